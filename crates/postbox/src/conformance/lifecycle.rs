//! Operations on a whole mailbox: counts, purge, peek, create, delete, list, close, settings.

use std::time::Duration;

use super::{Target, Waiting, bodies, can_delay, receive_all, send_all};
use crate::backend::Counts;
use crate::error::Error;
use crate::mailbox::Mailbox;

pub(super) fn counts_are_by_state(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    assert_eq!(mailbox.counts().blocking().unwrap(), Counts::default());
    send_all(&mailbox, 0..5);
    if can_delay(&mailbox, target) {
        mailbox.send(&5).delay(target.ticks(50)).blocking().unwrap();
    }
    let leased = mailbox.receive().max_messages(2).visibility_timeout(target.ticks(5)).blocking().unwrap();
    if !target.limits().exact_counts {
        return;
    }
    assert_eq!(mailbox.counts().blocking().unwrap(), Counts::new(3, 1, leased.len() as u64, 0));
    assert_eq!(mailbox.approximate_count().blocking().unwrap(), 6);
    leased[0].acknowledge().blocking().unwrap();
    leased[1].nack().visibility_timeout(target.ticks(50)).blocking().unwrap();
    assert_eq!(mailbox.counts().blocking().unwrap(), Counts::new(3, 2, 0, 0));
    // The counts include the end of a lease, without a receive after it.
    let _dying = mailbox.receive().visibility_timeout(target.ticks(5)).blocking().unwrap();
    target.pass(6);
    assert_eq!(mailbox.counts().blocking().unwrap(), Counts::new(3, 2, 0, 0));
}

pub(super) fn a_purge_removes_all_messages_and_returns_their_number(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    send_all(&mailbox, 0..3);
    if can_delay(&mailbox, target) {
        mailbox.send(&3).delay(target.ticks(50)).blocking().unwrap();
    }
    let _leased = receive_all(&mailbox, target);
    let purged = mailbox.purge().blocking().unwrap();
    if target.limits().exact_counts {
        assert_eq!(purged, 4);
        assert_eq!(mailbox.approximate_count().blocking().unwrap(), 0);
    }
    if target.limits().purge_cooldown.is_none() {
        assert_eq!(mailbox.purge().blocking().unwrap(), 0);
    }
    send_all(&mailbox, [9]);
    target.pass(60);
    assert_eq!(bodies(&receive_all(&mailbox, target)), [9]);
}

pub(super) fn a_peek_delivers_no_message(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    send_all(&mailbox, 1..=3);
    if !target.limits().peek {
        return assert!(matches!(mailbox.peek(10).blocking(), Err(Error::Unsupported { .. })));
    }
    mailbox.send(&4).delay(target.ticks(50)).blocking().unwrap();
    let shown = mailbox.peek(2).blocking().unwrap();
    assert_eq!(shown.iter().map(|message| message.body.clone().unwrap()).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(mailbox.peek(10).blocking().unwrap().len(), 3);
    let received = receive_all(&mailbox, target);
    assert!(received.iter().all(|message| message.delivery_count == 1));
    assert_eq!(received[0].id, shown[0].id);
}

pub(super) fn handles_of_one_name_share_a_mailbox(target: &Target<'_>) {
    let name = target.name();
    let one: Mailbox<u32, u32> = target.connection.mailbox(&name).unwrap();
    let two: Mailbox<u32, u32> = target.connection.mailbox(&name).unwrap();
    one.create().blocking().unwrap();
    send_all(&one, [5]);
    // The message outlives the handle that sent it.
    drop(one);
    let message = two.receive().blocking().unwrap().remove(0);
    assert_eq!(message.body, 5);
    message.acknowledge().blocking().unwrap();
    let other: Mailbox<u32, u32> = target.mailbox();
    send_all(&two, [6]);
    assert!(receive_all(&other, target).is_empty(), "another name is a different mailbox");
}

pub(super) fn a_mailbox_is_created_and_deleted(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    mailbox.create().blocking().unwrap();
    send_all(&mailbox, 0..2);
    receive_all(&mailbox, target)[0].dead_letter("x").blocking().unwrap();
    mailbox.delete().blocking().unwrap();
    mailbox.delete().blocking().unwrap();
    // A backend may refuse to create a mailbox for a while after its deletion, as SQS does.
    while let Err(error) = mailbox.create().blocking() {
        assert!(error.is_transient(), "{error:?}");
        target.pass(1);
    }
    assert_eq!(mailbox.counts().blocking().unwrap(), Counts::default());
    send_all(&mailbox, [7]);
    assert_eq!(bodies(&receive_all(&mailbox, target)), [7]);
}

pub(super) fn mailboxes_are_listed(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    match target.connection.list().blocking() {
        Ok(names) => {
            assert!(names.contains(mailbox.name()));
            let absent = target.name();
            assert!(!names.iter().any(|name| name.as_str() == absent));
        }
        Err(error) => assert!(matches!(error, Error::Unsupported { .. }), "{error:?}"),
    }
}

pub(super) fn closing_affects_only_a_handle_and_its_clones(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    let other: Mailbox<u32, u32> = target.connection.mailbox(mailbox.name().as_str()).unwrap();
    let clone = mailbox.clone();
    let waiting = Waiting::start(mailbox.receive().wait_time(Duration::from_secs(20)));
    clone.close();
    assert!(waiting.finish().unwrap().is_empty(), "closing wakes a waiting receive, which returns no messages");
    assert!(mailbox.is_closed() && !other.is_closed());
    assert!(matches!(mailbox.send(&1).blocking(), Err(Error::Closed { .. })));
    assert!(matches!(mailbox.send_batch(&[1]).blocking(), Err(Error::Closed { .. })));
    assert!(matches!(mailbox.send_expecting_reply(&1).blocking(), Err(Error::Closed { .. })));
    assert!(matches!(clone.receive().blocking(), Err(Error::Closed { .. })));
    send_all(&other, [1]);
    assert_eq!(bodies(&other.receive().wait_time(Duration::from_secs(20)).blocking().unwrap()), [1]);
}

pub(super) fn a_leased_message_can_be_settled_after_closing(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    send_all(&mailbox, 0..2);
    let messages = receive_all(&mailbox, target);
    mailbox.close();
    messages[0].acknowledge().blocking().unwrap();
    messages[1].nack().blocking().unwrap();
    let other: Mailbox<u32, u32> = target.connection.mailbox(mailbox.name().as_str()).unwrap();
    assert_eq!(receive_all(&other, target).len(), 1);
}

pub(super) fn handles_are_compared_by_their_mailbox(target: &Target<'_>) {
    let name = target.name();
    let open = |name: &str| target.harness.connect().mailbox::<u32, u32, crate::mailbox::codec::Json>(name).unwrap();
    let (mailbox, again, other) = (open(&name), open(&name), open(&target.name()));
    for mailbox in [&mailbox, &other] {
        mailbox.create().blocking().unwrap();
    }
    assert!(mailbox.is_same_as(&again).blocking().unwrap());
    assert!(!mailbox.is_same_as(&other).blocking().unwrap());
    let elsewhere: Mailbox<u32> = crate::Connection::new(crate::MemoryBackend::new()).mailbox("jobs").unwrap();
    assert!(!mailbox.is_same_as(&elsewhere).blocking().unwrap());
}

pub(super) fn settings_apply_after_a_delete(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox_with(|options| options.max_deliveries(1));
    for _ in 0..2 {
        mailbox.create().blocking().unwrap();
        send_all(&mailbox, [1]);
        receive_all(&mailbox, target)[0].nack().blocking().unwrap();
        assert!(receive_all(&mailbox, target).is_empty());
        assert_eq!(mailbox.dead_letters().count().blocking().unwrap(), 1);
        mailbox.delete().blocking().unwrap();
    }
}

pub(super) fn the_last_settings_of_a_mailbox_apply(target: &Target<'_>) {
    let name = target.name();
    let open = |most| {
        target.connection.clone().max_deliveries(most).mailbox::<u32, u32, crate::mailbox::codec::Json>(&name).unwrap()
    };
    let mut open_handles = Vec::new();
    // The dead letters are counted and not purged, because SQS allows only one purge a minute.
    for (dead, most) in (0..).zip([2, 3, 2, 1, 2]) {
        let mailbox = open(most);
        mailbox.create().blocking().unwrap();
        send_all(&mailbox, [1]);
        for _ in 0..most {
            assert_eq!(mailbox.dead_letters().count().blocking().unwrap(), dead, "of {most} deliveries");
            receive_all(&mailbox, target)[0].nack().blocking().unwrap();
        }
        assert!(receive_all(&mailbox, target).is_empty());
        assert_eq!(mailbox.dead_letters().count().blocking().unwrap(), dead + 1, "after {most} deliveries");
        open_handles.push(mailbox);
    }
}
