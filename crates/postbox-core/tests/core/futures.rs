//! Futures polled by hand: pending, ready, dropped, and polled with another waker (L17).

use std::sync::Arc;
use std::task::Poll;

use postbox_core::shared::mailbox::*;

use crate::support::{Wakes, poll_once};

#[test]
fn a_future_polled_with_two_wakers_wakes_the_latest() {
    let (mailbox, producer) = ThreadSafe.build_mailbox(MailboxOptions::with_capacity(1));
    let (old, new) = (Wakes::new(), Wakes::new());
    let mut poll = mailbox.recv();
    assert!(old.poll(&mut poll).is_pending());
    assert!(new.poll(&mut poll).is_pending());
    assert!(new.poll(&mut poll).is_pending(), "the same waker again changes nothing");
    assert_eq!(mailbox.queue().waiting_receivers(), 1, "one registration, whatever the number of polls");
    assert_eq!(Arc::strong_count(&old), 1, "the old waker was let go");
    producer.try_send(1).unwrap();
    assert_eq!((old.count(), new.count()), (0, 1));
    assert_eq!(poll_once(&mut poll), Poll::Ready(Ok(1)));

    producer.try_send(2).unwrap();
    let mut offer = producer.send(3);
    assert!(old.poll(&mut offer).is_pending());
    assert!(new.poll(&mut offer).is_pending());
    mailbox.dequeue();
    assert_eq!((old.count(), new.count()), (0, 2));
    assert!(poll_once(&mut offer).is_ready());
}

#[test]
fn waiters_are_served_in_order_of_arrival() {
    let (mailbox, producer) = ThreadSafe.build_default_mailbox();
    let wakes: Vec<_> = (0..4).map(|_| Wakes::new()).collect();
    let mut polls: Vec<_> = (0..4).map(|_| mailbox.recv()).collect();
    for (poll, wakes) in polls.iter_mut().zip(&wakes) {
        assert!(wakes.poll(poll).is_pending());
    }
    for n in 0..4 {
        producer.try_send(n).unwrap();
        let counts: Vec<usize> = wakes.iter().map(|wakes| wakes.count()).collect();
        assert_eq!(counts, (0..4).map(|k| usize::from(k <= n)).collect::<Vec<_>>());
    }
    for (poll, n) in polls.iter_mut().zip(0..) {
        assert_eq!(poll_once(poll), Poll::Ready(Ok(n)));
    }
}

#[test]
fn a_message_without_waiters_wakes_no_task() {
    let (mailbox, producer) = ThreadSafe.build_default_mailbox();
    let wakes = Wakes::new();
    let mut poll = mailbox.recv();
    assert!(wakes.poll(&mut poll).is_pending());
    (0..5).for_each(|n| producer.try_send(n).unwrap());
    assert_eq!(wakes.count(), 1, "one wake-up for one registration, not one for each message");
}

#[test]
fn a_dropped_waiter_leaves_the_others_in_order() {
    let (mailbox, producer) = ThreadSafe.build_default_mailbox();
    let wakes: Vec<_> = (0..3).map(|_| Wakes::new()).collect();
    let mut polls: Vec<_> = (0..3).map(|_| mailbox.recv()).collect();
    for (poll, wakes) in polls.iter_mut().zip(&wakes) {
        assert!(wakes.poll(poll).is_pending());
    }
    drop(polls.remove(1));
    producer.try_send(1).unwrap();
    producer.try_send(2).unwrap();
    assert_eq!(wakes.iter().map(|wakes| wakes.count()).collect::<Vec<_>>(), [1, 0, 1]);
}

#[test]
fn futures_do_nothing_until_polled() {
    let (mailbox, producer) = ThreadSafe.build_default_mailbox();
    drop(producer.send(1));
    assert_eq!(mailbox.size(), 0);
    producer.try_send(2).unwrap();
    drop(mailbox.recv());
    assert_eq!(mailbox.size(), 1);
}

#[test]
fn a_cancelled_offer_returns_its_message() {
    let (_mailbox, producer) = ThreadSafe.build_mailbox(MailboxOptions::with_capacity(1));
    producer.try_send(1).unwrap();
    let mut offer = producer.send(2);
    assert!(poll_once(&mut offer).is_pending());
    assert_eq!(offer.into_message(), Some(2));
    assert_eq!(producer.queue().waiting_senders(), 0);
}

#[test]
#[should_panic(expected = "polled after it was ready")]
fn polling_an_offer_after_completion_panics() {
    let (_mailbox, producer) = ThreadSafe.build_default_mailbox();
    let mut offer = producer.send(1);
    assert!(poll_once(&mut offer).is_ready());
    let _ = poll_once(&mut offer);
}

#[test]
fn a_timer_ends_a_wait_and_returns_the_message() {
    let (mailbox, producer) = ThreadSafe.build_mailbox(MailboxOptions::with_capacity(1));
    assert_eq!(poll_once(&mut mailbox.recv().until(std::future::ready(()))), Poll::Ready(Err(QueueError::Empty)));
    assert!(poll_once(&mut mailbox.recv().until(std::future::pending::<()>())).is_pending());
    producer.try_send(1).unwrap();
    let timed_out = poll_once(&mut producer.send(2).until(std::future::ready(())));
    assert_eq!(timed_out, Poll::Ready(Err(QueueError::Timeout(2))));
    assert_eq!(poll_once(&mut mailbox.recv().until(std::future::ready(()))), Poll::Ready(Ok(1)), "messages go first");
    assert_eq!((mailbox.queue().waiting_senders(), mailbox.queue().waiting_receivers()), (0, 0));
}

#[test]
fn a_timed_out_wait_is_unregistered_while_its_future_exists() {
    let (mailbox, producer) = ThreadSafe.build_mailbox(MailboxOptions::with_capacity(1));
    let wakes = Wakes::new();
    let mut timer = false;
    let mut expired = mailbox.recv().until(std::future::poll_fn(|_| {
        if std::mem::replace(&mut timer, true) { Poll::Ready(()) } else { Poll::Pending }
    }));
    assert!(poll_once(&mut expired).is_pending());
    assert_eq!(poll_once(&mut expired), Poll::Ready(Err(QueueError::Empty)));
    let mut next = mailbox.recv();
    assert!(wakes.poll(&mut next).is_pending());
    producer.try_send(1).unwrap();
    assert_eq!(wakes.count(), 1, "the message is announced to the one who still waits");

    let mut timer = false;
    let mut expired = producer.send(2).until(std::future::poll_fn(|_| {
        if std::mem::replace(&mut timer, true) { Poll::Ready(()) } else { Poll::Pending }
    }));
    assert!(poll_once(&mut expired).is_pending());
    assert_eq!(poll_once(&mut expired), Poll::Ready(Err(QueueError::Timeout(2))));
    assert_eq!(mailbox.queue().waiting_senders(), 0);
}

#[test]
fn disconnection_wakes_every_receiver() {
    type End = fn(&QueueMailbox<u8>, QueueMailboxProducer<u8>);
    let ends: [End; 3] = [
        |mailbox, _producer| mailbox.close(),
        |_mailbox, producer| drop(producer),
        |mailbox, _producer| assert_eq!(mailbox.close_and_drain(), []),
    ];
    for end in ends {
        let (mailbox, producer) = ThreadSafe.build_default_mailbox();
        let wakes = Wakes::new();
        let mut polls: Vec<_> = (0..3).map(|_| mailbox.recv()).collect();
        assert!(polls.iter_mut().all(|poll| wakes.poll(poll).is_pending()));
        end(&mailbox, producer);
        assert_eq!(wakes.count(), 3);
        for poll in &mut polls {
            assert_eq!(wakes.poll(poll), Poll::Ready(Err(QueueError::Disconnected)));
        }
    }
}

#[test]
fn dropping_the_last_consumer_returns_waiting_messages() {
    let (mailbox, producer) = ThreadSafe.build_mailbox(MailboxOptions::with_capacity(1));
    let token = Arc::new(());
    producer.try_send(token.clone()).unwrap();
    let wakes = Wakes::new();
    let mut offer = producer.send(token.clone());
    assert!(wakes.poll(&mut offer).is_pending());
    let second = mailbox.clone();
    drop(mailbox);
    assert_eq!(wakes.count(), 0, "a consumer is left");
    drop(second);
    assert_eq!(wakes.count(), 1);
    assert!(matches!(wakes.poll(&mut offer), Poll::Ready(Err(QueueError::Closed(_)))));
    assert_eq!(Arc::strong_count(&token), 1, "a message without a consumer is dropped at once");
}

#[test]
fn every_signal_handle_sees_every_notification() {
    let signal: Signal = Signal::new();
    let other = signal.clone();
    signal.notify();
    signal.notify();
    assert!(poll_once(&mut signal.wait()).is_ready(), "a notification before the wait");
    assert!(poll_once(&mut signal.wait()).is_pending(), "several count as one");
    assert!(poll_once(&mut other.wait()).is_ready(), "each handle sees it");
    let wakes = Wakes::new();
    let (mut first, mut second) = (signal.wait(), other.wait());
    assert!(wakes.poll(&mut first).is_pending() && wakes.poll(&mut second).is_pending());
    other.notify();
    assert_eq!(wakes.count(), 2, "all who wait are woken");
    assert!(wakes.poll(&mut first).is_ready() && wakes.poll(&mut second).is_ready());
    let mut dropped = signal.wait();
    assert!(wakes.poll(&mut dropped).is_pending());
    drop(dropped);
    signal.notify();
    assert_eq!(wakes.count(), 2);
    assert_eq!(Arc::strong_count(&wakes), 1);
}

#[test]
fn the_signal_of_a_mailbox_announces_messages_resume_and_disconnection() {
    let (mailbox, producer) = ThreadSafe.build_default_mailbox();
    let signal = mailbox.signal();
    let told = || poll_once(&mut signal.wait()).is_ready();
    assert!(!told());
    producer.try_send(1).unwrap();
    assert!(told() && !told());
    producer.try_send_control(2).unwrap();
    assert!(told());
    mailbox.suspend();
    mailbox.resume();
    assert!(told());
    drop(producer);
    assert!(told());
    mailbox.close();
    assert!(told());
}

#[test]
fn single_thread_futures_behave_the_same() {
    let (mailbox, producer) = SingleThread.build_mailbox(MailboxOptions::with_capacity(1));
    let wakes = Wakes::new();
    let mut poll = mailbox.recv();
    assert!(wakes.poll(&mut poll).is_pending());
    producer.try_send(std::rc::Rc::new(1)).unwrap();
    assert_eq!(wakes.count(), 1);
    let mut offer = producer.send(std::rc::Rc::new(2));
    assert!(wakes.poll(&mut offer).is_pending());
    assert_eq!(wakes.poll(&mut poll).map(|m| m.map(|m| *m)), Poll::Ready(Ok(1)));
    assert!(wakes.poll(&mut offer).is_ready());
    let signal = mailbox.signal();
    producer.close();
    assert!(poll_once(&mut signal.wait()).is_ready());
}
