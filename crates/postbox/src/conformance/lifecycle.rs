//! Counting, purging, looking, making, removing, closing.

use std::time::Duration;

use super::{Place, Waiting, bodies, can_delay, receive_all, send_all};
use crate::backend::Counts;
use crate::error::Error;
use crate::mailbox::Mailbox;

pub(super) fn counts_are_by_state(place: &Place<'_>) {
    let mailbox: Mailbox<u32, u32> = place.mailbox();
    assert_eq!(mailbox.counts().blocking().unwrap(), Counts::default());
    send_all(&mailbox, 0..5);
    if can_delay(&mailbox, place) {
        mailbox.send(&5).delay(place.ticks(50)).blocking().unwrap();
    }
    let leased = mailbox.receive().max_messages(2).visibility_timeout(place.ticks(5)).blocking().unwrap();
    if !place.limits().exact_counts {
        return;
    }
    assert_eq!(mailbox.counts().blocking().unwrap(), Counts::new(3, 1, leased.len() as u64, 0));
    assert_eq!(mailbox.approximate_count().blocking().unwrap(), 6);
    leased[0].acknowledge().blocking().unwrap();
    leased[1].nack().visibility_timeout(place.ticks(50)).blocking().unwrap();
    assert_eq!(mailbox.counts().blocking().unwrap(), Counts::new(3, 2, 0, 0));
    // Time alone moves messages, and the counts know.
    let _dying = mailbox.receive().visibility_timeout(place.ticks(5)).blocking().unwrap();
    place.pass(6);
    assert_eq!(mailbox.counts().blocking().unwrap(), Counts::new(3, 2, 0, 0));
}

pub(super) fn a_purge_removes_all_and_says_how_many(place: &Place<'_>) {
    let mailbox: Mailbox<u32, u32> = place.mailbox();
    send_all(&mailbox, 0..3);
    if can_delay(&mailbox, place) {
        mailbox.send(&3).delay(place.ticks(50)).blocking().unwrap();
    }
    let _leased = receive_all(&mailbox, place);
    let purged = mailbox.purge().blocking().unwrap();
    if place.limits().exact_counts {
        assert_eq!(purged, 4);
        assert_eq!(mailbox.approximate_count().blocking().unwrap(), 0);
    }
    if place.limits().purge_cooldown.is_none() {
        assert_eq!(mailbox.purge().blocking().unwrap(), 0);
    }
    send_all(&mailbox, [9]);
    place.pass(60);
    assert_eq!(bodies(&receive_all(&mailbox, place)), [9]);
}

pub(super) fn peeking_delivers_nothing(place: &Place<'_>) {
    let mailbox: Mailbox<u32, u32> = place.mailbox();
    send_all(&mailbox, 1..=3);
    if !place.limits().peek {
        return assert!(matches!(mailbox.peek(10).blocking(), Err(Error::Unsupported { .. })));
    }
    mailbox.send(&4).delay(place.ticks(50)).blocking().unwrap();
    let shown = mailbox.peek(2).blocking().unwrap();
    assert_eq!(shown.iter().map(|message| message.body.clone().unwrap()).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(mailbox.peek(10).blocking().unwrap().len(), 3);
    let received = receive_all(&mailbox, place);
    assert!(received.iter().all(|message| message.delivery_count == 1));
    assert_eq!(received[0].id, shown[0].id);
}

pub(super) fn handles_of_one_name_are_one_mailbox(place: &Place<'_>) {
    let name = place.name();
    let one: Mailbox<u32, u32> = place.connection.mailbox(&name).unwrap();
    let two: Mailbox<u32, u32> = place.connection.mailbox(&name).unwrap();
    one.create().blocking().unwrap();
    send_all(&one, [5]);
    // What is in it outlives the handle.
    drop(one);
    let message = two.receive().blocking().unwrap().remove(0);
    assert_eq!(message.body, 5);
    message.acknowledge().blocking().unwrap();
    let other: Mailbox<u32, u32> = place.mailbox();
    send_all(&two, [6]);
    assert!(receive_all(&other, place).is_empty(), "another name is another mailbox");
}

pub(super) fn a_mailbox_is_created_and_deleted(place: &Place<'_>) {
    let mailbox: Mailbox<u32, u32> = place.mailbox();
    mailbox.create().blocking().unwrap();
    send_all(&mailbox, 0..2);
    receive_all(&mailbox, place)[0].dead_letter("x").blocking().unwrap();
    mailbox.delete().blocking().unwrap();
    mailbox.delete().blocking().unwrap();
    // Some places want a rest in between.
    while let Err(error) = mailbox.create().blocking() {
        assert!(error.is_transient(), "{error:?}");
        place.pass(1);
    }
    assert_eq!(mailbox.counts().blocking().unwrap(), Counts::default());
    send_all(&mailbox, [7]);
    assert_eq!(bodies(&receive_all(&mailbox, place)), [7]);
}

pub(super) fn mailboxes_are_listed(place: &Place<'_>) {
    let mailbox: Mailbox<u32, u32> = place.mailbox();
    match place.connection.list().blocking() {
        Ok(names) => {
            assert!(names.contains(mailbox.name()));
            let absent = place.name();
            assert!(!names.iter().any(|name| name.as_str() == absent));
        }
        Err(error) => assert!(matches!(error, Error::Unsupported { .. }), "{error:?}"),
    }
}

pub(super) fn closing_concerns_this_handle_and_its_clones(place: &Place<'_>) {
    let mailbox: Mailbox<u32, u32> = place.mailbox();
    let other: Mailbox<u32, u32> = place.connection.mailbox(mailbox.name().as_str()).unwrap();
    let clone = mailbox.clone();
    let waiting = Waiting::start(mailbox.receive().wait_time(Duration::from_secs(20)));
    clone.close();
    assert!(waiting.finish().unwrap().is_empty(), "who waits returns with nothing");
    assert!(mailbox.is_closed() && !other.is_closed());
    assert!(matches!(mailbox.send(&1).blocking(), Err(Error::Closed { .. })));
    assert!(matches!(mailbox.send_batch(&[1]).blocking(), Err(Error::Closed { .. })));
    assert!(matches!(mailbox.send_expecting_reply(&1).blocking(), Err(Error::Closed { .. })));
    assert!(matches!(clone.receive().blocking(), Err(Error::Closed { .. })));
    send_all(&other, [1]);
    assert_eq!(bodies(&other.receive().wait_time(Duration::from_secs(20)).blocking().unwrap()), [1]);
}

pub(super) fn what_is_leased_can_be_finished_after_closing(place: &Place<'_>) {
    let mailbox: Mailbox<u32, u32> = place.mailbox();
    send_all(&mailbox, 0..2);
    let messages = receive_all(&mailbox, place);
    mailbox.close();
    messages[0].acknowledge().blocking().unwrap();
    messages[1].nack().blocking().unwrap();
    let other: Mailbox<u32, u32> = place.connection.mailbox(mailbox.name().as_str()).unwrap();
    assert_eq!(receive_all(&other, place).len(), 1);
}

pub(super) fn mailboxes_are_told_apart(place: &Place<'_>) {
    let name = place.name();
    let open = |name: &str| place.harness.connect().mailbox::<u32, u32, crate::mailbox::codec::Json>(name).unwrap();
    let (mailbox, again, other) = (open(&name), open(&name), open(&place.name()));
    for mailbox in [&mailbox, &other] {
        mailbox.create().blocking().unwrap();
    }
    assert!(mailbox.is_same_as(&again).blocking().unwrap());
    assert!(!mailbox.is_same_as(&other).blocking().unwrap());
    let elsewhere: Mailbox<u32> = crate::Connection::new(crate::MemoryBackend::new()).mailbox("jobs").unwrap();
    assert!(!mailbox.is_same_as(&elsewhere).blocking().unwrap());
}

pub(super) fn settings_are_in_force_after_a_delete(place: &Place<'_>) {
    let mailbox: Mailbox<u32, u32> = place.mailbox_with(|options| options.max_deliveries(1));
    for _ in 0..2 {
        mailbox.create().blocking().unwrap();
        send_all(&mailbox, [1]);
        receive_all(&mailbox, place)[0].nack().blocking().unwrap();
        assert!(receive_all(&mailbox, place).is_empty());
        assert_eq!(mailbox.dead_letters().count().blocking().unwrap(), 1);
        mailbox.delete().blocking().unwrap();
    }
}

pub(super) fn the_settings_that_were_given_last_are_in_force(place: &Place<'_>) {
    let name = place.name();
    let open = |most| {
        place.connection.clone().max_deliveries(most).mailbox::<u32, u32, crate::mailbox::codec::Json>(&name).unwrap()
    };
    let mut open_handles = Vec::new();
    // Counted, not purged: SQS allows one purge a minute.
    for (dead, most) in (0..).zip([2, 3, 2, 1, 2]) {
        let mailbox = open(most);
        mailbox.create().blocking().unwrap();
        send_all(&mailbox, [1]);
        for _ in 0..most {
            assert_eq!(mailbox.dead_letters().count().blocking().unwrap(), dead, "of {most} deliveries");
            receive_all(&mailbox, place)[0].nack().blocking().unwrap();
        }
        assert!(receive_all(&mailbox, place).is_empty());
        assert_eq!(mailbox.dead_letters().count().blocking().unwrap(), dead + 1, "after {most} deliveries");
        open_handles.push(mailbox);
    }
}
