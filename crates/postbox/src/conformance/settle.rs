//! Settling a delivery: acknowledge, nack, release, extend.

use std::time::Duration;

use super::{Target, assert_expired, bodies, receive_all, send_all};
use crate::error::Error;
use crate::mailbox::Mailbox;

pub(super) fn an_acknowledged_message_is_gone(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    send_all(&mailbox, [1]);
    let message = mailbox.receive().visibility_timeout(target.ticks(3)).blocking().unwrap().remove(0);
    message.acknowledge().blocking().unwrap();
    target.pass(4);
    assert!(receive_all(&mailbox, target).is_empty());
    assert_eq!(mailbox.approximate_count().blocking().unwrap(), 0);
}

pub(super) fn a_returned_message_is_ready_at_once_at_the_tail(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    send_all(&mailbox, 1..=3);
    let first = mailbox.receive().visibility_timeout(target.ticks(100)).blocking().unwrap().remove(0);
    first.nack().blocking().unwrap();
    let mut again = Vec::new();
    while again.len() < 3 {
        let batch = receive_all(&mailbox, target);
        assert!(!batch.is_empty());
        again.extend(batch.into_iter().map(|message| (message.body, message.delivery_count)));
    }
    let back = again.iter().find(|message| message.0 == first.body).unwrap();
    assert_eq!(back.1, 2);
    if target.limits().ordering == crate::backend::Ordering::Fifo {
        assert_eq!(again, [(2, 1), (3, 1), (1, 2)], "the returned message is the last one");
    }
}

pub(super) fn a_message_returned_with_a_delay_is_visible_after_it(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    send_all(&mailbox, [1]);
    let message = mailbox.receive().visibility_timeout(target.ticks(100)).blocking().unwrap().remove(0);
    message.nack().visibility_timeout(target.ticks(4)).blocking().unwrap();
    assert!(receive_all(&mailbox, target).is_empty());
    assert_expired(message.acknowledge().blocking());
    target.pass(2);
    assert!(receive_all(&mailbox, target).is_empty());
    target.pass(3);
    assert_eq!(receive_all(&mailbox, target)[0].delivery_count, 2);
}

pub(super) fn a_lease_ends_at_its_deadline(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    send_all(&mailbox, 0..4);
    let receive = || mailbox.receive().visibility_timeout(target.ticks(5)).blocking().unwrap().remove(0);
    let messages = [receive(), receive(), receive(), receive()];
    // No receive follows the deadline. The lease must end without one.
    match target.harness.is_exact() {
        true => target.pass(5),
        false => target.pass(6),
    }
    assert_expired(messages[0].acknowledge().blocking());
    assert_expired(messages[1].nack().blocking());
    assert_expired(messages[2].extend_visibility(target.ticks(5)).blocking());
    assert_expired(messages[3].dead_letter("late").blocking());
    let mut again = Vec::new();
    while again.len() < 4 {
        again.extend(receive_all(&mailbox, target));
    }
    assert!(again.iter().all(|message| message.delivery_count == 2));
    assert_eq!(mailbox.counts().blocking().unwrap().dead, 0);
}

pub(super) fn a_message_of_a_crashed_consumer_is_delivered_again(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    send_all(&mailbox, [1]);
    for delivery in 1..=4 {
        let message = mailbox.receive().visibility_timeout(target.ticks(2)).blocking().unwrap().remove(0);
        assert_eq!(message.delivery_count, delivery);
        drop(message);
        target.pass(3);
    }
}

pub(super) fn an_old_receipt_does_not_settle_the_next_delivery(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    send_all(&mailbox, [1]);
    let late = mailbox.receive().visibility_timeout(target.ticks(2)).blocking().unwrap().remove(0);
    target.pass(3);
    let current = mailbox.receive().visibility_timeout(target.ticks(100)).blocking().unwrap().remove(0);
    assert_eq!(current.id, late.id);
    assert_ne!(current.receipt_handle, late.receipt_handle);
    assert_expired(late.acknowledge().blocking());
    assert_expired(late.nack().blocking());
    assert_expired(late.extend_visibility(Duration::ZERO).blocking());
    assert!(receive_all(&mailbox, target).is_empty(), "the second consumer still has the lease");
    current.acknowledge().blocking().unwrap();
}

pub(super) fn a_receipt_settles_once(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    send_all(&mailbox, [1, 2]);
    let messages = receive_all(&mailbox, target);
    let (first, second) = match messages.len() {
        2 => (&messages[0], &messages[1]),
        _ => panic!("a receive returned {} messages instead of 2", messages.len()),
    };
    first.acknowledge().blocking().unwrap();
    assert_expired(first.acknowledge().blocking());
    assert_expired(first.nack().blocking());
    second.nack().blocking().unwrap();
    assert_expired(second.nack().blocking());
    assert_expired(second.acknowledge().blocking());
}

pub(super) fn an_extension_counts_from_now(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    send_all(&mailbox, [1]);
    let message = mailbox.receive().visibility_timeout(target.ticks(6)).blocking().unwrap().remove(0);
    for _ in 0..4 {
        target.pass(3);
        message.extend_visibility(target.ticks(6)).blocking().unwrap();
    }
    target.pass(3);
    assert!(receive_all(&mailbox, target).is_empty());
    target.pass(4);
    assert_expired(message.extend_visibility(target.ticks(6)).blocking());
    assert_eq!(receive_all(&mailbox, target)[0].delivery_count, 2);
}

pub(super) fn an_extension_never_shortens_a_lease(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    send_all(&mailbox, [1]);
    let message = mailbox.receive().visibility_timeout(target.ticks(10)).blocking().unwrap().remove(0);
    message.extend_visibility(target.ticks(2)).blocking().unwrap();
    target.pass(5);
    assert!(receive_all(&mailbox, target).is_empty());
    message.acknowledge().blocking().unwrap();
}

pub(super) fn a_purge_ends_leases(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    send_all(&mailbox, [1]);
    let message = receive_all(&mailbox, target).remove(0);
    mailbox.purge().blocking().unwrap();
    if target.limits().purge_ends_leases {
        assert_expired(message.acknowledge().blocking());
        send_all(&mailbox, [2]);
        assert_expired(message.acknowledge().blocking());
    }
    target.pass(1);
    assert!(bodies(&receive_all(&mailbox, target)).iter().all(|body| *body == 2));
}

pub(super) fn a_batch_is_acknowledged_with_a_result_for_each_message(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    send_all(&mailbox, [1, 2, 3, 5]);
    let expecting = [0, 4].into_iter().filter(|body| mailbox.send_expecting_reply(body).blocking().is_ok()).count();
    let mut messages = Vec::new();
    while messages.len() < 4 + expecting {
        messages.extend(receive_all(&mailbox, target));
    }
    messages.sort_by_key(|message| message.body);
    messages.iter().find(|message| message.body == 1).unwrap().acknowledge().blocking().unwrap();
    let results = mailbox.acknowledge_batch(&messages).blocking().unwrap();
    for (result, message) in results.iter().zip(&messages) {
        match message.body {
            1 => assert!(matches!(result, Err(Error::ReceiptHandleExpired { id }) if *id == message.id)),
            0 | 4 => assert!(matches!(result, Err(Error::ReplyExpected { id }) if *id == message.id)),
            _ => assert!(result.is_ok()),
        }
    }
    assert_eq!(results.len(), messages.len());
    assert_eq!(mailbox.approximate_count().blocking().unwrap(), expecting as u64);
    assert!(mailbox.acknowledge_batch([]).blocking().unwrap().is_empty());
}

pub(super) fn a_lease_without_its_body_has_the_same_operations(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    send_all(&mailbox, [1]);
    let (body, lease) = receive_all(&mailbox, target).remove(0).into_parts();
    assert_eq!((body, lease.delivery_count), (1, 1));
    lease.extend_visibility(target.ticks(100)).blocking().unwrap();
    lease.nack().blocking().unwrap();
    let (_, lease) = receive_all(&mailbox, target).remove(0).into_parts();
    lease.acknowledge().blocking().unwrap();
    assert_expired(lease.acknowledge().blocking());
}

pub(super) fn an_operation_can_be_repeated_after_an_invalid_parameter(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    send_all(&mailbox, [1]);
    let message = receive_all(&mailbox, target).remove(0);
    assert!(matches!(message.nack().visibility_timeout(Duration::MAX).blocking(), Err(Error::InvalidParameter { .. })));
    assert!(matches!(message.extend_visibility(Duration::MAX).blocking(), Err(Error::InvalidParameter { .. })));
    message.acknowledge().blocking().unwrap();
}

pub(super) fn a_released_message_keeps_its_position_and_its_count(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    send_all(&mailbox, 1..=4);
    let messages = receive_all(&mailbox, target);
    // Three messages are released, neither in the order of the mailbox nor in reverse. The fourth
    // stays leased.
    let released = [1, 3, 0].into_iter().filter_map(|at| messages.get(at));
    let released = released.map(|message| message.release().blocking().unwrap()).count();
    send_all(&mailbox, [5]);
    let mut again = Vec::new();
    while again.len() < 5 - (messages.len() - released) {
        let batch = receive_all(&mailbox, target);
        assert!(!batch.is_empty());
        again.extend(batch.into_iter().map(|message| (message.body, message.delivery_count)));
    }
    if target.limits().exact_deliveries {
        assert_eq!(again, [(1, 1), (2, 1), (4, 1), (5, 1)]);
    }
}

pub(super) fn a_receipt_is_invalid_after_a_release(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    send_all(&mailbox, [1]);
    let mut old = Vec::new();
    for _ in 0..3 {
        let message = receive_all(&mailbox, target).remove(0);
        message.release().blocking().unwrap();
        assert_expired(message.acknowledge().blocking());
        assert_expired(message.release().blocking());
        old.push(message);
    }
    let message = receive_all(&mailbox, target).remove(0);
    for old in &old {
        assert_expired(old.acknowledge().blocking());
        assert_expired(old.extend_visibility(target.ticks(1)).blocking());
    }
    message.acknowledge().blocking().unwrap();
}

pub(super) fn a_release_after_other_deliveries_keeps_the_order(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    if mailbox.limits().ordering != crate::backend::Ordering::Fifo {
        return a_released_message_keeps_its_position_and_its_count(target);
    }
    send_all(&mailbox, 1..=3);
    let take = |max| mailbox.receive().max_messages(max).visibility_timeout(target.ticks(100)).blocking().unwrap();
    let (first, second) = (take(1).remove(0), take(1).remove(0));
    // A nack counts the delivery and moves the message to the tail. A release does neither.
    second.nack().blocking().unwrap();
    first.release().blocking().unwrap();
    let seen: Vec<_> = take(10).iter().map(|message| (message.body, message.delivery_count)).collect();
    assert_eq!(seen, [(1, 1), (3, 1), (2, 2)]);
}

pub(super) fn a_group_stays_in_order_after_a_release(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    if !mailbox.limits().groups || !mailbox.limits().exact_deliveries {
        return a_receipt_is_invalid_after_a_release(target);
    }
    for number in 1..=3 {
        mailbox.send(&number).group("a").blocking().unwrap();
    }
    let head = receive_all(&mailbox, target);
    assert_eq!(bodies(&head), [1]);
    head[0].release().blocking().unwrap();
    for number in 1..=3 {
        let head = receive_all(&mailbox, target);
        assert_eq!((bodies(&head), head[0].delivery_count), (vec![number], 1));
        head[0].acknowledge().blocking().unwrap();
    }
}
