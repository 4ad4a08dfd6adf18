//! Receiving, with and without waiting, and streams.

use std::pin::pin;
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_core::Stream as _;

use super::{Target, Waiting, bodies, can_delay, receive_all, send_all};
use crate::error::Error;
use crate::mailbox::Mailbox;
use crate::mailbox::codec::Raw;

pub(super) fn an_empty_mailbox_returns_no_messages(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    assert!(mailbox.receive().blocking().unwrap().is_empty());
    assert!(receive_all(&mailbox, target).is_empty());
}

pub(super) fn a_receive_does_not_wait_until_its_batch_is_full(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    send_all(&mailbox, 0..3);
    assert_eq!(mailbox.receive().max_messages(2).visibility_timeout(target.ticks(100)).blocking().unwrap().len(), 2);
    let wait =
        mailbox.receive().max_messages(10).visibility_timeout(target.ticks(100)).wait_time(mailbox.limits().max_wait);
    assert_eq!(wait.blocking().unwrap().len(), 1);
}

pub(super) fn a_received_message_is_invisible_to_others(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    let other: Mailbox<u32, u32> = target.connection.mailbox(mailbox.name().as_str()).unwrap();
    send_all(&mailbox, [1]);
    let message = mailbox.receive().visibility_timeout(target.ticks(6)).blocking().unwrap().remove(0);
    assert!(receive_all(&other, target).is_empty());
    target.pass(3);
    assert!(receive_all(&other, target).is_empty());
    message.acknowledge().blocking().unwrap();
    target.pass(6);
    assert!(receive_all(&other, target).is_empty());
}

pub(super) fn a_wait_ends_without_messages_after_its_wait_time(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    let waiting = Waiting::start(mailbox.receive().wait_time(target.ticks(10)));
    target.pass(11);
    assert!(waiting.finish().unwrap().is_empty());
}

/// A wait longer than every case takes. A case that is not woken fails after at most 20 s.
fn long_wait(mailbox: &Mailbox<u32, u32>) -> Duration {
    mailbox.limits().max_wait.min(Duration::from_secs(20))
}

pub(super) fn a_wait_wakes_for_a_message(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    let waiting = Waiting::start(mailbox.receive().max_messages(5).wait_time(long_wait(&mailbox)));
    send_all(&mailbox, [7]);
    assert_eq!(bodies(&waiting.finish().unwrap()), [7]);
}

pub(super) fn a_wait_wakes_for_a_delayed_message(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    if !can_delay(&mailbox, target) {
        return;
    }
    mailbox.send(&1).delay(target.ticks(5)).blocking().unwrap();
    let before = Waiting::start(mailbox.receive().wait_time(long_wait(&mailbox)));
    target.pass(6);
    assert_eq!(bodies(&before.finish().unwrap()), [1]);
    // The message of the second part is sent after the wait has begun.
    let after = Waiting::start(mailbox.receive().wait_time(long_wait(&mailbox)));
    mailbox.send(&2).delay(target.ticks(5)).blocking().unwrap();
    target.pass(6);
    assert_eq!(bodies(&after.finish().unwrap()), [2]);
}

pub(super) fn a_wait_wakes_for_an_ended_lease(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    send_all(&mailbox, [1]);
    let dying = mailbox.receive().visibility_timeout(target.ticks(5)).blocking().unwrap();
    let waiting = Waiting::start(mailbox.receive().wait_time(long_wait(&mailbox)));
    drop(dying);
    target.pass(6);
    let message = waiting.finish().unwrap().remove(0);
    assert_eq!((message.body, message.delivery_count), (1, 2));
}

pub(super) fn a_wait_wakes_for_a_returned_message(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    send_all(&mailbox, [1, 2]);
    let leased = receive_all(&mailbox, target);
    let waiting = Waiting::start(mailbox.receive().wait_time(long_wait(&mailbox)));
    leased[0].nack().blocking().unwrap();
    assert_eq!(bodies(&waiting.finish().unwrap()), [1]);
    let waiting = Waiting::start(mailbox.receive().wait_time(long_wait(&mailbox)));
    leased[1].nack().visibility_timeout(target.ticks(3)).blocking().unwrap();
    target.pass(4);
    assert_eq!(bodies(&waiting.finish().unwrap()), [2]);
}

pub(super) fn a_dropped_wait_leaves_no_message_leased(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    for number in 0..5 {
        let waiting = Waiting::start(mailbox.receive().wait_time(long_wait(&mailbox)));
        drop(waiting);
        send_all(&mailbox, [number]);
        let message = mailbox.receive().wait_time(long_wait(&mailbox)).blocking().unwrap().remove(0);
        assert_eq!(message.body, number);
        assert!(message.delivery_count == 1 || !target.limits().exact_deliveries, "{message:?}");
        message.acknowledge().blocking().unwrap();
    }
}

pub(super) fn a_woken_wait_that_is_dropped_passes_its_wake_up_on(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    let first = Waiting::start(mailbox.receive().wait_time(long_wait(&mailbox)));
    let second = Waiting::start(mailbox.receive().wait_time(long_wait(&mailbox)));
    send_all(&mailbox, [1]);
    drop(first);
    assert_eq!(bodies(&second.finish().unwrap()), [1]);
}

pub(super) fn waiting_consumers_get_one_message_each(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    let waiting: Vec<_> = (0..4).map(|_| Waiting::start(mailbox.receive().wait_time(long_wait(&mailbox)))).collect();
    send_all(&mailbox, 0..4);
    let mut received: Vec<u32> = waiting.into_iter().flat_map(|waiting| bodies(&waiting.finish().unwrap())).collect();
    received.sort_unstable();
    assert_eq!(received, [0, 1, 2, 3]);
}

pub(super) fn a_visibility_timeout_of_zero_delivers_once_per_receive(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    send_all(&mailbox, [1]);
    let receive = || mailbox.receive().max_messages(10).visibility_timeout(Duration::ZERO).blocking().unwrap();
    assert_eq!(receive().len(), 1, "one receive returns a message once");
    let again = receive();
    assert_eq!((again.len(), again[0].delivery_count), (1, 2));
    super::assert_expired(again[0].acknowledge().blocking());
}

pub(super) fn a_body_that_cannot_be_decoded_does_not_fail_the_batch(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    let text: Mailbox<String, ()> = mailbox.untyped().typed();
    let send = |number: u32| mailbox.send(&number).attribute("number", number.to_string()).blocking().unwrap();
    let first = send(1);
    let bad = text.send("not a number").attribute("number", "none").blocking().unwrap();
    let ids = [first, send(2)];
    let mut good = Vec::new();
    while good.len() < 2 {
        good.extend(receive_all(&mailbox, target));
    }
    assert_eq!(bodies(&good), [1, 2]);
    for (message, id) in good.iter().zip(&ids) {
        assert_eq!((&message.id, &message.attributes["number"]), (id, &message.body.to_string()));
        message.acknowledge().blocking().unwrap();
    }
    assert_eq!(
        mailbox.approximate_count().blocking().unwrap(),
        1,
        "the message that cannot be decoded stays in the mailbox"
    );
    // If no other message is available, the receive fails and names the message.
    let alone: Mailbox<u32, u32> = target.mailbox();
    let bad_alone = alone.untyped().typed::<String, (), crate::Json>().send("neither").blocking().unwrap();
    match alone.receive().blocking() {
        Err(Error::Serialization { message: Some(id), reason }) => {
            assert_eq!(id, bad_alone);
            assert!(reason.contains(&bad_alone.to_string()), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    assert_ne!(bad, bad_alone);
    assert_eq!(alone.approximate_count().blocking().unwrap(), 1, "the message stays in the mailbox");
}

pub(super) fn a_body_in_another_codec_is_refused(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    let raw: Mailbox<String, (), Raw> = mailbox.untyped().typed();
    raw.send("5").blocking().unwrap();
    let error = mailbox.receive().visibility_timeout(target.ticks(3)).blocking().unwrap_err();
    let text = error.to_string();
    assert!(text.contains("application/octet-stream") && text.contains("application/json"), "{text}");
    target.pass(4);
    // The codec `Raw` accepts every content type.
    assert_eq!(raw.receive().blocking().unwrap()[0].body, "5");
}

pub(super) fn consumers_on_threads_receive_each_message_once(target: &Target<'_>) {
    const MESSAGES: u32 = 200;
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    let seen = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for start in 0..2 {
            let mailbox = &mailbox;
            scope.spawn(move || send_all(mailbox, (start..MESSAGES).step_by(2)));
        }
        for consumer in 0..4 {
            let (mailbox, seen) = (mailbox.clone(), &seen);
            scope.spawn(move || {
                while seen.lock().unwrap().len() < MESSAGES as usize {
                    let receive =
                        mailbox.receive().max_messages(1 + consumer).visibility_timeout(Duration::from_secs(600));
                    for message in receive.blocking().unwrap() {
                        message.acknowledge().blocking().unwrap();
                        seen.lock().unwrap().push(message.body);
                    }
                    std::thread::yield_now();
                }
            });
        }
    });
    let mut seen = seen.into_inner().unwrap();
    seen.sort_unstable();
    assert_eq!(seen, (0..MESSAGES).collect::<Vec<_>>());
    assert_eq!(mailbox.approximate_count().blocking().unwrap(), 0);
}

pub(super) fn a_dropped_stream_releases_fetched_messages(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    send_all(&mailbox, 0..3);
    {
        let mut stream = pin!(mailbox.stream().max_messages(3).visibility_timeout(target.ticks(1000)));
        let first = postbox_core::wait_for(std::future::poll_fn(|context| stream.as_mut().poll_next(context)));
        first.unwrap().unwrap().acknowledge().blocking().unwrap();
    }
    let rest = mailbox.receive().max_messages(3).wait_time(long_wait(&mailbox)).blocking().unwrap();
    assert!(!rest.is_empty(), "a dropped stream releases the messages that it has fetched");
    // Closing ends a stream.
    let mut stream = pin!(mailbox.stream());
    mailbox.close();
    let end = stream.as_mut().poll_next(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(end, Poll::Ready(None)));
}
