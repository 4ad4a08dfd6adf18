//! Optional features: deduplication, groups, expiry, cancelling, idle mailboxes.

use super::{Target, Waiting, bodies, receive_all, send_all};
use crate::error::Error;
use crate::mailbox::Mailbox;

fn assert_unsupported<T: std::fmt::Debug>(result: Result<T, Error>) {
    assert!(matches!(result, Err(Error::Unsupported { .. })), "{result:?}");
}

pub(super) fn a_deduplication_id_is_one_message_within_the_window(target: &Target<'_>) {
    let (window, limits) = (target.ticks(10), target.limits());
    let can_be_set = limits.deduplication && limits.deduplication_window.is_none();
    let mailbox: Mailbox<u32, u32> =
        target.mailbox_with(|options| if can_be_set { options.deduplication_window(window) } else { options });
    let send = |number: u32| mailbox.send(&number).deduplication_id("order-7").blocking();
    if !limits.deduplication {
        return assert_unsupported(send(1));
    }
    let first = send(1).unwrap();
    assert_eq!(send(2).unwrap(), first, "a repeated send returns the id of the first message");
    let other = mailbox.send(&3).deduplication_id("order-8").blocking().unwrap();
    assert_ne!(other, first);
    let received = receive_all(&mailbox, target);
    assert_eq!(bodies(&received), [1, 3]);
    mailbox.acknowledge_batch(&received).blocking().unwrap();
    assert_eq!(send(4).unwrap(), first, "the window goes on after the first message is acknowledged");
    if !can_be_set {
        return assert!(receive_all(&mailbox, target).is_empty());
    }
    target.pass(11);
    assert_ne!(send(5).unwrap(), first);
    assert_eq!(bodies(&receive_all(&mailbox, target)), [5]);
}

pub(super) fn a_group_is_delivered_in_order_one_at_a_time(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    let send = |number: u32, group: &str| mailbox.send(&number).group(group).blocking();
    if !target.limits().groups {
        return assert_unsupported(send(1, "a"));
    }
    for (number, group) in [(1, "a"), (2, "a"), (3, "b"), (4, "a"), (5, "b")] {
        send(number, group).unwrap();
    }
    let mut seen = Vec::new();
    let mut leased = receive_all(&mailbox, target);
    while !leased.is_empty() {
        // While a message of a group is leased, no other message of the group is delivered.
        assert!(receive_all(&mailbox, target).is_empty());
        for message in leased {
            message.acknowledge().blocking().unwrap();
            seen.push(message.body);
        }
        leased = receive_all(&mailbox, target);
    }
    let of = |group: &[u32]| seen.iter().copied().filter(|number| group.contains(number)).collect::<Vec<_>>();
    assert_eq!((of(&[1, 2, 4]), of(&[3, 5])), (vec![1, 2, 4], vec![3, 5]));
}

pub(super) fn a_group_waits_for_its_returned_message(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    if !target.limits().groups {
        return assert_unsupported(mailbox.send(&1).group("a").blocking());
    }
    for number in 1..=2 {
        mailbox.send(&number).group("a").blocking().unwrap();
    }
    let first = mailbox.receive().visibility_timeout(target.ticks(100)).blocking().unwrap().remove(0);
    assert_eq!(first.body, 1);
    first.nack().visibility_timeout(target.ticks(3)).blocking().unwrap();
    assert!(receive_all(&mailbox, target).is_empty(), "the group waits for its first message");
    send_all(&mailbox, [9]);
    assert_eq!(bodies(&receive_all(&mailbox, target)), [9], "messages without a group do not wait");
    target.pass(4);
    let again = mailbox.receive().blocking().unwrap().remove(0);
    assert_eq!((again.body, again.delivery_count), (1, 2), "the returned message is still the first of its group");
    again.acknowledge().blocking().unwrap();
    assert_eq!(bodies(&receive_all(&mailbox, target)), [2]);
}

pub(super) fn a_message_expires_unless_it_is_leased(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    let send = |number: u32| mailbox.send(&number).expires_in(target.ticks(5)).blocking();
    if !target.limits().expiry {
        return assert_unsupported(send(1));
    }
    send(1).unwrap();
    send(2).unwrap();
    send_all(&mailbox, [3]);
    let leased = mailbox.receive().visibility_timeout(target.ticks(100)).blocking().unwrap().remove(0);
    target.pass(6);
    assert_eq!(mailbox.approximate_count().blocking().unwrap(), 2);
    assert_eq!(bodies(&receive_all(&mailbox, target)), [3]);
    leased.acknowledge().blocking().unwrap();
    send(4).unwrap();
    let leased = mailbox.receive().visibility_timeout(target.ticks(100)).blocking().unwrap().remove(0);
    target.pass(6);
    leased.nack().blocking().unwrap();
    assert!(receive_all(&mailbox, target).is_empty(), "a message that expires during its lease is not delivered again");
}

pub(super) fn a_wait_wakes_when_an_expiry_frees_a_group(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    if !target.limits().expiry || !target.limits().groups {
        return assert!(!(target.limits().expiry && target.limits().groups));
    }
    mailbox.send(&1).group("a").expires_in(target.ticks(5)).blocking().unwrap();
    mailbox.send(&2).group("a").blocking().unwrap();
    let first = mailbox.receive().blocking().unwrap().remove(0);
    first.nack().visibility_timeout(target.ticks(50)).blocking().unwrap();
    let waiting = Waiting::start(mailbox.receive().wait_time(target.ticks(40)));
    target.pass(6);
    assert_eq!(bodies(&waiting.finish().unwrap()), [2]);
}

pub(super) fn a_delayed_message_can_be_cancelled_until_it_is_visible(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    if !target.limits().cancel {
        let id = mailbox.send(&1).blocking().unwrap();
        return assert_unsupported(mailbox.cancel(&id).blocking());
    }
    let id = mailbox.send(&1).delay(target.ticks(5)).blocking().unwrap();
    assert!(mailbox.cancel(&id).blocking().unwrap());
    assert!(!mailbox.cancel(&id).blocking().unwrap());
    let late = mailbox.send(&2).delay(target.ticks(3)).blocking().unwrap();
    target.pass(4);
    assert!(!mailbox.cancel(&late).blocking().unwrap(), "a message that has become visible cannot be cancelled");
    let visible = mailbox.send(&3).blocking().unwrap();
    assert!(!mailbox.cancel(&visible).blocking().unwrap());
    assert_eq!(bodies(&receive_all(&mailbox, target)), [2, 3]);
}

pub(super) fn a_group_skips_expired_messages(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    if !mailbox.limits().groups || !mailbox.limits().expiry {
        return a_group_is_delivered_in_order_one_at_a_time(target);
    }
    for number in 1..=5 {
        mailbox.send(&number).group("a").expires_in(target.ticks(2)).blocking().unwrap();
    }
    mailbox.send(&6).group("a").blocking().unwrap();
    target.pass(4);
    mailbox.send(&7).group("a").blocking().unwrap();
    for number in [6, 7] {
        let message = receive_all(&mailbox, target).remove(0);
        assert_eq!(message.body, number);
        message.acknowledge().blocking().unwrap();
    }
    mailbox.send(&8).group("a").blocking().unwrap();
    assert_eq!(receive_all(&mailbox, target)[0].body, 8);
}

pub(super) fn a_group_skips_messages_whose_deliveries_are_spent(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox_with(|options| options.max_deliveries(1));
    if !mailbox.limits().groups || !mailbox.limits().expiry {
        return a_group_is_delivered_in_order_one_at_a_time(target);
    }
    mailbox.send(&1).group("a").blocking().unwrap();
    mailbox.send(&2).group("a").expires_in(target.ticks(2)).blocking().unwrap();
    mailbox.send(&3).group("a").blocking().unwrap();
    let head = receive_all(&mailbox, target).remove(0);
    target.pass(4);
    head.nack().blocking().unwrap();
    assert_eq!(mailbox.dead_letters().count().blocking().unwrap(), 1);
    assert_eq!(receive_all(&mailbox, target)[0].body, 3);
}

pub(super) fn a_mailbox_with_a_delayed_or_leased_message_is_not_idle(target: &Target<'_>) {
    let opened = target
        .connection
        .clone()
        .idle_expiry(target.ticks(3))
        .mailbox::<u32, u32, crate::mailbox::codec::Json>(&target.name());
    let mailbox = match opened {
        Err(Error::Unsupported { .. }) => return,
        opened => opened.unwrap(),
    };
    mailbox.send(&1).delay(target.ticks(6)).blocking().unwrap();
    target.pass(7);
    let message = mailbox.receive().visibility_timeout(target.ticks(7)).blocking().unwrap().remove(0);
    target.pass(5);
    message.nack().visibility_timeout(target.ticks(6)).blocking().unwrap();
    target.pass(7);
    assert_eq!(mailbox.receive().blocking().unwrap()[0].body, 1);
}
