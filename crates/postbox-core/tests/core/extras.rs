//! Features beyond the specifications (X1): policies, drains, stash, suspension, metrics, blocking
//! forms.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use postbox_core::shared::mailbox::*;
use postbox_core::{BoundedMailbox, PriorityMailbox, UnboundedMailbox};

use crate::support::{drain, poll_once};

#[test]
fn outcomes_carry_the_message() {
    let offer = |policy| {
        let mailbox = BoundedMailbox::with_overflow(2, policy);
        let outcomes: Vec<_> = (1..=4).map(|n| mailbox.queue().try_offer(n)).collect();
        (outcomes, mailbox.rejected_count(), mailbox.capacity(), drain(&mailbox))
    };
    use OfferOutcome::{Accepted, Evicted, Grew, Rejected};
    let (outcomes, refused, capacity, left) = offer(OverflowPolicy::Block);
    assert_eq!(outcomes, [Ok(Accepted), Ok(Accepted), Err(QueueError::Full(3)), Err(QueueError::Full(4))]);
    assert_eq!((refused, capacity, left), (2, Some(2), vec![1, 2]));
    let (outcomes, refused, capacity, left) = offer(OverflowPolicy::DropNewest);
    assert_eq!(outcomes, [Ok(Accepted), Ok(Accepted), Ok(Rejected(3)), Ok(Rejected(4))]);
    assert_eq!((refused, capacity, left), (2, Some(2), vec![1, 2]));
    let (outcomes, refused, capacity, left) = offer(OverflowPolicy::DropOldest);
    assert_eq!(outcomes, [Ok(Accepted), Ok(Accepted), Ok(Evicted(1)), Ok(Evicted(2))]);
    assert_eq!((refused, capacity, left), (2, Some(2), vec![3, 4]));
    let (outcomes, refused, capacity, left) = offer(OverflowPolicy::Grow);
    assert_eq!(outcomes, [Ok(Accepted), Ok(Accepted), Ok(Grew(4)), Ok(Accepted)]);
    assert_eq!((refused, capacity, left), (0, Some(4), vec![1, 2, 3, 4]));
}

#[test]
fn growing_makes_room_besides_stashed_messages() {
    let mailbox = BoundedMailbox::with_overflow(2, OverflowPolicy::Grow);
    (0..8).for_each(|n| mailbox.stash(n));
    assert_eq!(mailbox.queue().try_offer(8), Ok(OfferOutcome::Grew(16)));
    assert_eq!((mailbox.capacity(), mailbox.unstash()), (Some(16), 8));
}

#[test]
fn try_send_returns_a_rejected_message() {
    let mailbox = BoundedMailbox::with_overflow(1, OverflowPolicy::DropNewest);
    let producer = mailbox.producer();
    producer.try_send(1).unwrap();
    assert_eq!(producer.try_send(2), Err(QueueError::Full(2)));
    assert!(!postbox_core::Mailbox::enqueue(&mailbox, 2));
}

#[test]
fn drain_into_takes_a_batch_in_order_with_control_first() {
    let (mailbox, producer) = ThreadSafe.build_default_mailbox();
    (0..10).for_each(|n| producer.try_send(n).unwrap());
    assert_eq!(mailbox.dequeue(), Some(0));
    (10..15).for_each(|n| producer.try_send(n).unwrap());
    producer.try_send_control(100).unwrap();
    let mut batch = vec![-1];
    assert_eq!(mailbox.drain_into(&mut batch, 3), 3);
    assert_eq!(batch, [-1, 100, 1, 2]);
    assert_eq!(mailbox.size(), 12);
    assert_eq!(mailbox.drain_into(&mut batch, usize::MAX), 12);
    assert_eq!(batch[4..], (3..15).collect::<Vec<_>>());
    assert_eq!((mailbox.drain_into(&mut batch, 5), mailbox.drain_into(&mut batch, 0)), (0, 0));
    mailbox.suspend();
    producer.try_send(1).unwrap();
    assert_eq!(mailbox.drain_into(&mut batch, 5), 0, "suspended");
}

#[test]
fn drain_into_makes_room_for_as_many_senders() {
    let (mailbox, producer) = ThreadSafe.build_mailbox(MailboxOptions::with_capacity(3));
    (0..3).for_each(|n| producer.try_send(n).unwrap());
    let wakes = crate::support::Wakes::new();
    let mut offers: Vec<_> = (3..6).map(|n| producer.send(n)).collect();
    assert!(offers.iter_mut().all(|offer| wakes.poll(offer).is_pending()));
    mailbox.drain_into(&mut Vec::new(), 2);
    assert_eq!(wakes.count(), 2);
    assert_eq!(offers.iter_mut().map(|offer| usize::from(wakes.poll(offer).is_ready())).sum::<usize>(), 2);
}

#[test]
fn close_and_drain_returns_everything_undelivered() {
    let (mailbox, producer) = ThreadSafe.build_default_mailbox();
    (0..6).for_each(|n| producer.try_send(n).unwrap());
    let stashed = mailbox.dequeue().unwrap();
    mailbox.stash(stashed);
    producer.try_send_control(100).unwrap();
    assert_eq!(mailbox.close_and_drain(), [100, 0, 1, 2, 3, 4, 5]);
    assert_eq!(producer.try_send(9), Err(QueueError::Closed(9)));
    assert_eq!(producer.try_send_control(9), Err(QueueError::Closed(9)));
    assert_eq!((mailbox.size(), mailbox.stashed(), mailbox.try_dequeue()), (0, 0, Err(QueueError::Disconnected)));
}

#[test]
fn a_batch_belongs_to_all_consumers() {
    let mailbox = UnboundedMailbox::new();
    (0..100).for_each(|n| assert!(postbox_core::Mailbox::enqueue(&mailbox, n)));
    let second = mailbox.clone();
    assert_eq!(mailbox.dequeue(), Some(0), "moves the batch into the store");
    assert_eq!((mailbox.size(), second.size()), (99, 99));
    assert_eq!(second.dequeue(), Some(1));
    drop(second);
    assert_eq!(mailbox.dequeue(), Some(2));
    let third = mailbox.clone();
    drop(mailbox);
    assert_eq!(drain(&third), (3..100).collect::<Vec<_>>());
}

#[test]
fn stashed_messages_keep_their_order_and_their_room() {
    let mailbox = BoundedMailbox::new(4);
    (1..=4).for_each(|n| assert!(postbox_core::Mailbox::enqueue(&mailbox, n)));
    for _ in 0..2 {
        let message = mailbox.dequeue().unwrap();
        mailbox.stash(message);
    }
    assert_eq!((mailbox.size(), mailbox.stashed()), (2, 2));
    assert!(mailbox.is_full() && !postbox_core::Mailbox::enqueue(&mailbox, 9), "stashed messages take up room");
    assert_eq!(mailbox.unstash(), 2);
    assert_eq!((mailbox.size(), mailbox.stashed(), mailbox.message_count()), (4, 0, 4));
    assert_eq!(drain(&mailbox), [1, 2, 3, 4]);
    assert!(postbox_core::Mailbox::enqueue(&mailbox, 5));
    assert_eq!(mailbox.unstash(), 0);

    let priority = PriorityMailbox::new(|message: &(i64, char)| message.0);
    [(1, 'a'), (0, 'b'), (1, 'c')].into_iter().for_each(|m| assert!(postbox_core::Mailbox::enqueue(&priority, m)));
    let first = [priority.dequeue().unwrap(), priority.dequeue().unwrap()];
    first.into_iter().for_each(|message| priority.stash(message));
    priority.unstash();
    assert_eq!(drain(&priority).into_iter().map(|m| m.1).collect::<String>(), "bac", "before its equals, by its rank");
}

#[test]
fn unstash_wakes_a_waiting_receiver() {
    let (mailbox, producer) = ThreadSafe.build_default_mailbox();
    producer.try_send(1).unwrap();
    let message = mailbox.dequeue().unwrap();
    mailbox.stash(message);
    let wakes = crate::support::Wakes::new();
    let mut poll = mailbox.recv();
    assert!(wakes.poll(&mut poll).is_pending());
    mailbox.unstash();
    assert_eq!(wakes.count(), 1);
    assert_eq!(wakes.poll(&mut poll), std::task::Poll::Ready(Ok(1)));
}

#[test]
fn control_messages_are_received_during_a_suspension() {
    let (mailbox, producer) = ThreadSafe.build_default_mailbox();
    mailbox.suspend();
    producer.try_send("regular").unwrap();
    producer.try_send_control("control").unwrap();
    assert_eq!(mailbox.dequeue(), Some("control"));
    assert_eq!(mailbox.dequeue(), None);
    mailbox.close();
    assert_eq!(mailbox.try_dequeue(), Ok(None), "closed and suspended: the regular one is still to come");
    mailbox.resume();
    assert_eq!(mailbox.try_dequeue(), Ok(Some("regular")));
    assert_eq!(mailbox.try_dequeue(), Err(QueueError::Disconnected));
}

#[derive(Default)]
struct Log(Mutex<Vec<MailboxEvent>>);

impl MetricsSink for Log {
    fn record(&self, event: MailboxEvent) {
        self.0.lock().unwrap().push(event);
    }
}

impl Log {
    fn take(&self) -> Vec<MailboxEvent> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

#[test]
fn a_send_future_calls_hooks_and_fails_like_try_send() {
    for capacity in [1, 8] {
        let (mailbox, producer) = ThreadSafe.build_mailbox(MailboxOptions::with_capacity(capacity));
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        producer.set_scheduler_hook(Some(Arc::new(move || {
            counted.fetch_add(1, Ordering::Relaxed);
        })));
        assert!(poll_once(&mut producer.send(1)).is_ready());
        assert_eq!(calls.load(Ordering::Relaxed), 1, "the hook is called");
        producer.set_scheduler_hook(None);
        assert_eq!(mailbox.dequeue(), Some(1));

        let log = Arc::new(Log::default());
        producer.set_metrics_sink(Some(log.clone()));
        assert!(poll_once(&mut producer.send(2)).is_ready());
        assert_eq!(log.take()[0], MailboxEvent::Enqueued, "the event is recorded");
        producer.set_metrics_sink(None);
        assert_eq!(mailbox.dequeue(), Some(2));

        mailbox.close();
        assert_eq!(poll_once(&mut producer.send(3)), Poll::Ready(Err(QueueError::Closed(3))));
        assert_eq!(mailbox.dequeue(), None);
    }
}

/// A blocking receiver takes the messages of a batch one by one.
#[test]
fn a_blocking_receive_of_a_batch_observes_control_hooks_and_suspension() {
    let (mailbox, producer) = ThreadSafe.build_mailbox(MailboxOptions::with_capacity(16));
    (0..8).for_each(|n| producer.try_send(n).unwrap());
    assert_eq!(mailbox.recv_blocking(), Ok(0));

    producer.try_send_control(100).unwrap();
    assert_eq!(mailbox.recv_blocking(), Ok(100), "control messages overtake");
    assert_eq!(mailbox.recv_blocking(), Ok(1));

    let log = Arc::new(Log::default());
    producer.set_metrics_sink(Some(log.clone()));
    assert_eq!(mailbox.recv_blocking(), Ok(2));
    assert_eq!(log.take()[0], MailboxEvent::Dequeued, "the event is recorded");
    producer.set_metrics_sink(None);

    mailbox.suspend();
    thread::scope(|scope| {
        let receiver = scope.spawn(|| mailbox.recv_blocking());
        while mailbox.queue().waiting_receivers() == 0 {
            assert!(!receiver.is_finished(), "no message leaves a suspended mailbox");
            thread::yield_now();
        }
        mailbox.resume();
        assert_eq!(receiver.join().unwrap(), Ok(3));
    });
}

#[test]
fn the_metrics_sink_records_every_event() {
    use MailboxEvent::*;
    let watch = |policy| {
        let (mailbox, producer) = ThreadSafe.build_mailbox(MailboxOptions::with_capacity(4).with_overflow(policy));
        let log = Arc::new(Log::default());
        producer.set_metrics_sink(Some(log.clone()));
        (mailbox, producer, log)
    };
    let (mailbox, producer, log) = watch(OverflowPolicy::Block);
    producer.try_send(1).unwrap();
    assert_eq!(log.take(), [Enqueued, Depth { depth: 1 }]);
    (2..=4).for_each(|n| producer.try_send(n).unwrap());
    let events = log.take();
    assert_eq!(events.iter().filter(|event| matches!(event, Pressure { .. })).count(), 2, "from 75 % on");
    assert_eq!(events.last(), Some(&Pressure { depth: 4, capacity: 4 }));
    assert!(producer.try_send(5).is_err());
    assert_eq!(log.take(), [Rejected]);
    mailbox.dequeue();
    assert_eq!(log.take(), [Dequeued, Depth { depth: 3 }]);
    mailbox.suspend();
    mailbox.resume();
    assert_eq!(log.take(), [Suspended, Resumed]);
    mailbox.drain_into(&mut Vec::new(), 2);
    assert_eq!(log.take().iter().filter(|event| **event == Dequeued).count(), 2);
    producer.try_send_control(7).unwrap();
    assert_eq!(log.take()[0], Enqueued);
    producer.set_metrics_sink(None);
    producer.try_send(8).unwrap();
    assert_eq!(log.take(), []);
    assert_eq!(Arc::strong_count(&log), 1);

    let (mailbox, producer, log) = watch(OverflowPolicy::Block);
    (0..4).for_each(|n| producer.try_send_control(n).unwrap());
    assert!(log.take().iter().all(|event| !matches!(event, Pressure { .. })), "control messages cause no pressure");
    drain(&mailbox);
    (0..3).for_each(|n| producer.try_send(n).unwrap());
    (0..3).for_each(|_| mailbox.stash(mailbox.dequeue().unwrap()));
    log.take();
    producer.try_send(3).unwrap();
    assert_eq!(log.take().last(), Some(&Pressure { depth: 4, capacity: 4 }), "stashed messages take up room");
    mailbox.unstash();
    assert_eq!(log.take(), [Depth { depth: 4 }]);
    mailbox.close();
    drain(&mailbox);
    assert_eq!(log.take().iter().filter(|event| **event == Dequeued).count(), 4, "including the last message");

    let (_mailbox, producer, log) = watch(OverflowPolicy::DropOldest);
    (0..5).for_each(|n| producer.try_send(n).unwrap());
    assert_eq!(log.take().iter().filter(|event| **event == Evicted).count(), 1);
    let (_mailbox, producer, log) = watch(OverflowPolicy::Grow);
    (0..5).for_each(|n| producer.try_send(n).unwrap());
    assert!(log.take().contains(&Grown { capacity: 8 }));
    let (_mailbox, producer, log) = watch(OverflowPolicy::DropNewest);
    let refused = (0..5).filter(|n| producer.try_send(*n).is_err()).count();
    assert_eq!(refused, 1);
    assert_eq!(log.take().last(), Some(&Rejected));
}

#[test]
fn the_scheduler_hook_is_called_when_a_message_may_be_ready() {
    let (mailbox, producer) = ThreadSafe.build_mailbox(MailboxOptions::with_capacity(1));
    let calls = Arc::new(AtomicUsize::new(0));
    let count = calls.clone();
    producer.set_scheduler_hook(Some(Arc::new(move || {
        count.fetch_add(1, Ordering::SeqCst);
    })));
    producer.try_send(1).unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    assert!(producer.try_send(2).is_err());
    mailbox.dequeue();
    assert_eq!(calls.load(Ordering::SeqCst), 1, "neither a rejection nor a receive calls it");
    mailbox.suspend();
    mailbox.resume();
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    mailbox.close();
    assert_eq!(calls.load(Ordering::SeqCst), 3, "the disconnection can be received");
}

#[test]
fn mailboxes_with_a_signal_keep_their_bound_and_order() {
    let (mailbox, producer) = ThreadSafe.build_mailbox(MailboxOptions::with_capacity(8));
    let _signal = mailbox.signal();
    for round in 0..100 {
        (0..8).for_each(|n| producer.try_send(round * 8 + n).unwrap());
        assert!(producer.try_send(0).is_err());
        (0..8).for_each(|n| assert_eq!(mailbox.dequeue(), Some(round * 8 + n)));
    }
}

#[test]
fn blocking_forms_wait_for_each_other() {
    let mailbox = BoundedMailbox::new(2);
    let producer = mailbox.producer();
    thread::scope(|scope| {
        scope.spawn(move || {
            for n in 0..10_000 {
                producer.send_blocking(n).unwrap();
            }
        });
        for n in 0..10_000 {
            assert_eq!(mailbox.recv_blocking(), Ok(n));
        }
    });
    assert_eq!(mailbox.recv_blocking(), Err(QueueError::Disconnected));
    assert_eq!(mailbox.rejected_count(), 0, "waiting is not a rejection");
}

#[test]
fn blocking_forms_time_out_and_return_the_message() {
    let mailbox = BoundedMailbox::new(1);
    let producer = mailbox.producer();
    assert_eq!(mailbox.recv_timeout(Duration::from_millis(2)), Err(QueueError::Empty));
    producer.send_timeout("first", Duration::ZERO).unwrap();
    assert_eq!(producer.send_timeout("second", Duration::from_millis(2)), Err(QueueError::Timeout("second")));
    assert_eq!(producer.send_timeout("second", Duration::ZERO), Err(QueueError::Timeout("second")));
    assert_eq!((producer.queue().waiting_senders(), producer.queue().waiting_receivers()), (0, 0));
    assert_eq!(mailbox.recv_timeout(Duration::MAX), Ok("first"));
    mailbox.close();
    assert_eq!(producer.send_timeout("third", Duration::from_secs(60)), Err(QueueError::Closed("third")));
}

#[test]
fn close_wakes_blocked_threads() {
    let full = BoundedMailbox::new(1);
    let empty = UnboundedMailbox::<u8>::new();
    let producer = full.producer();
    producer.try_send(1).unwrap();
    thread::scope(|scope| {
        let sender = scope.spawn(move || producer.send_blocking(2));
        let receiver = scope.spawn(|| empty.recv_blocking());
        while full.queue().waiting_senders() + empty.queue().waiting_receivers() < 2 {
            thread::yield_now();
        }
        postbox_core::Mailbox::close(&full);
        postbox_core::Mailbox::close(&empty);
        assert_eq!(sender.join().unwrap(), Err(QueueError::Closed(2)));
        assert_eq!(receiver.join().unwrap(), Err(QueueError::Disconnected));
    });
}

#[test]
fn errors_suggest_a_remedy_and_hide_the_message() {
    let error = MailboxError::Queue(QueueError::Full("password"));
    assert_eq!(format!("{error:?}"), "Queue(Full(..))");
    assert!(error.to_string().contains("receive from it, wait for room"));
    assert!(error.is_transient() && !MailboxError::Queue(QueueError::Closed(1)).is_transient());
    assert_eq!(error.into_message(), Some("password"));
    assert_eq!(QueueError::<u8>::Disconnected.into_message(), None);
}
