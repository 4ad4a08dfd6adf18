//! Operations whose future is dropped before its result. Such an operation has its complete effect
//! or none, can be repeated, and leaves no message leased.

use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::{ChannelWaker, Target, bodies, can_delay, send_all};
use crate::error::Error;
use crate::mailbox::Mailbox;
use crate::mailbox::id::MessageId;
use crate::mailbox::message::Message;

/// The cases drop an operation after 0 to this many polls.
const MOST_POLLS: usize = 3;

/// Polls an operation `polls` times, each time after a wake-up, and then drops it. Returns its
/// result if it was ready.
fn poll_and_drop<O: IntoFuture>(operation: O, polls: usize) -> Option<O::Output> {
    let (sender, woken) = mpsc::channel();
    let waker = Waker::from(Arc::new(ChannelWaker(sender)));
    let mut future = pin!(operation.into_future());
    for poll in 0..polls {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(output);
        }
        if poll + 1 < polls {
            woken.recv_timeout(Duration::from_secs(30)).expect("the operation is not woken");
        }
    }
    None
}

/// Checks the result of a repeated settlement. The receipt has expired if the dropped attempt had
/// its effect.
fn assert_settled(operation: &str, result: Result<(), Error>) {
    assert!(matches!(result, Ok(()) | Err(Error::ReceiptHandleExpired { .. })), "{operation}: {result:?}");
}

/// Receives and acknowledges messages until these have come, in any order. Returns them in the
/// order of their numbers.
fn receive_each(mailbox: &Mailbox<u32, u32>, target: &Target<'_>, expected: &[u32]) -> Vec<Message<u32, u32>> {
    let mut seen = Vec::new();
    while seen.len() < expected.len() {
        let receive = mailbox.receive().max_messages(mailbox.limits().max_batch.min(10));
        let wait = target.ticks(1_000).min(mailbox.limits().max_wait);
        let batch = receive.visibility_timeout(target.ticks(100)).wait_time(wait).blocking().unwrap();
        assert!(!batch.is_empty(), "expected {expected:?}, but only {:?} were received", bodies(&seen));
        for message in batch {
            message.acknowledge().blocking().unwrap();
            seen.push(message);
        }
    }
    seen.sort_by_key(|message| message.body);
    assert_eq!(bodies(&seen), expected);
    seen
}

fn assert_counts(operation: &str, mailbox: &Mailbox<u32, u32>, total: u64, dead: u64) {
    if mailbox.limits().exact_counts {
        let counts = mailbox.counts().blocking().unwrap();
        assert_eq!((counts.total(), counts.dead), (total, dead), "{operation}");
    }
}

pub(super) fn a_dropped_send_with_an_id_can_be_repeated(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    if !mailbox.limits().own_ids {
        return;
    }
    for (number, polls) in (0..).zip((0..=MOST_POLLS).cycle().take(20)) {
        let id = MessageId::new();
        poll_and_drop(mailbox.send(&number).id(id.clone()), polls);
        assert_eq!(mailbox.send(&number).id(id.clone()).blocking().unwrap(), id);
        assert_eq!(receive_each(&mailbox, target, &[number])[0].id, id);
        assert_counts("send", &mailbox, 0, 0);
    }
}

pub(super) fn dropped_sends_are_stored_once_or_not_at_all(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    for number in 0..20 {
        let batch = [10 * number, 10 * number + 1];
        poll_and_drop(mailbox.send(&(10 * number + 2)), number as usize % (MOST_POLLS + 1));
        poll_and_drop(mailbox.send_batch(&batch), number as usize % (MOST_POLLS + 1));
    }
    // These sends complete, so all of their messages must be received.
    send_all(&mailbox, 1_000..1_010);
    let mut seen = Vec::new();
    while !(1_000..1_010).all(|number| seen.contains(&number)) || mailbox.counts().blocking().unwrap().ready > 0 {
        let messages = mailbox.receive().max_messages(10).visibility_timeout(target.ticks(100)).blocking().unwrap();
        for message in &messages {
            message.acknowledge().blocking().unwrap();
        }
        seen.extend(bodies(&messages));
    }
    let all = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), all, "a message was stored twice");
}

pub(super) fn a_dropped_receive_releases_its_messages(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    for round in 0..20 {
        send_all(&mailbox, 0..3);
        let receive = mailbox.receive().max_messages(2).visibility_timeout(target.ticks(100));
        let wait = target.ticks(round % 2 * 10).min(mailbox.limits().max_wait);
        // A receive that was ready in time has given its messages to this caller.
        for message in
            poll_and_drop(receive.wait_time(wait), round as usize % (MOST_POLLS + 1)).into_iter().flatten().flatten()
        {
            message.release().blocking().unwrap();
        }
        let seen = receive_each(&mailbox, target, &[0, 1, 2]);
        let counts: Vec<u32> = seen.iter().map(|message| message.delivery_count).collect();
        assert!(counts == [1; 3] || !mailbox.limits().exact_deliveries, "{counts:?}");
    }
}

pub(super) fn a_dropped_settlement_has_one_effect_when_it_is_repeated(target: &Target<'_>) {
    for polls in 0..=MOST_POLLS {
        let mailbox: Mailbox<u32, u32> = target.mailbox();
        let take = || {
            send_all(&mailbox, [1]);
            let wait = target.ticks(100).min(mailbox.limits().max_wait);
            mailbox.receive().visibility_timeout(target.ticks(100)).wait_time(wait).blocking().unwrap().remove(0)
        };
        let again = || receive_each(&mailbox, target, &[1]).remove(0).delivery_count;

        let message = take();
        poll_and_drop(message.acknowledge(), polls);
        assert_settled("acknowledge", message.acknowledge().blocking());
        assert_counts("acknowledge", &mailbox, 0, 0);

        let message = take();
        poll_and_drop(message.nack(), polls);
        assert_settled("nack", message.nack().blocking());
        assert_eq!(again(), 2, "nack");

        let message = take();
        poll_and_drop(message.release(), polls);
        assert_settled("release", message.release().blocking());
        let count = again();
        assert!(count == 1 || !mailbox.limits().exact_deliveries, "release: {count}");

        let message = take();
        poll_and_drop(message.extend_visibility(target.ticks(200)), polls);
        message.extend_visibility(target.ticks(200)).blocking().unwrap();
        assert_counts("extend", &mailbox, 1, 0);
        message.acknowledge().blocking().unwrap();

        let message = take();
        poll_and_drop(message.dead_letter("by request"), polls);
        assert_settled("dead_letter", message.dead_letter("by request").blocking());
        assert_counts("dead_letter", &mailbox, 0, 1);

        poll_and_drop(mailbox.dead_letters().redrive(1), polls);
        mailbox.dead_letters().redrive(1).blocking().unwrap();
        again();
        assert_counts("redrive", &mailbox, 0, 0);
        mailbox.delete().blocking().unwrap();
    }
}

pub(super) fn a_dropped_cancel_purge_or_delete_can_be_repeated(target: &Target<'_>) {
    for polls in 0..=MOST_POLLS {
        let mailbox: Mailbox<u32, u32> = target.mailbox();
        if mailbox.limits().cancel && can_delay(&mailbox, target) {
            let id = mailbox.send(&1).delay(target.ticks(100)).blocking().unwrap();
            poll_and_drop(mailbox.cancel(&id), polls);
            mailbox.cancel(&id).blocking().unwrap();
            assert_counts("cancel", &mailbox, 0, 0);
        }
        if mailbox.limits().purge_cooldown.is_none() {
            send_all(&mailbox, 0..3);
            poll_and_drop(mailbox.purge(), polls);
            mailbox.purge().blocking().unwrap();
            assert_counts("purge", &mailbox, 0, 0);
        }
        poll_and_drop(mailbox.create(), polls);
        poll_and_drop(mailbox.delete(), polls);
        mailbox.delete().blocking().unwrap();
    }
}

pub(super) fn a_dropped_request_or_answer_can_be_repeated(target: &Target<'_>) {
    for polls in 0..=MOST_POLLS {
        let mailbox: Mailbox<u32, u32> = target.mailbox();
        let request = |number: &u32| mailbox.send_expecting_reply(number).reply_timeout(target.ticks(500));
        poll_and_drop(request(&0), polls);
        let reply = request(&1).blocking().unwrap();
        // The message of the dropped request may have been stored. If so, it can be answered too.
        let mut is_answered = false;
        while !is_answered {
            let wait = target.ticks(1_000).min(mailbox.limits().max_wait);
            let received = mailbox.receive().visibility_timeout(target.ticks(100)).wait_time(wait).blocking().unwrap();
            assert!(!received.is_empty(), "the request is not delivered");
            for message in received {
                poll_and_drop(message.reply(&(10 + message.body)), polls);
                let answer = message.reply(&(10 + message.body)).blocking();
                let is_done = match &answer {
                    Ok(()) | Err(Error::ReceiptHandleExpired { .. } | Error::ReplyAlreadySent { .. }) => true,
                    // Dropping the request deleted its reply.
                    Err(Error::ReplyExpired { .. }) => message.body == 0,
                    Err(_) => false,
                };
                assert!(is_done, "{answer:?}");
                is_answered |= message.body == 1;
            }
        }
        poll_and_drop(reply.is_ready(), polls);
        // If a dropped wait has consumed the reply, the handle keeps it for the next wait.
        poll_and_drop(reply.wait(), polls);
        poll_and_drop(reply.poll(), polls);
        assert_eq!(reply.wait().blocking().unwrap(), 11);

        let reply = request(&2).blocking().unwrap();
        poll_and_drop(reply.cancel(), polls);
        reply.cancel().blocking().unwrap();
        assert!(reply.is_cancelled().blocking().unwrap());
        mailbox.delete().blocking().unwrap();
    }
}
