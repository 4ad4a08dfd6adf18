//! One test for each known trap of mailboxes. The numbers are those of the list in CONTRIBUTING.md.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Wake};

use postbox_core::shared::mailbox::messages::PriorityEnvelope;
use postbox_core::shared::mailbox::*;
use postbox_core::{PriorityMailbox, UnboundedMailbox};

use crate::support::{Wakes, drain, poll_once};

fn capacity_of_one() -> (QueueMailbox<u32>, QueueMailboxProducer<u32>) {
    ThreadSafe.build_mailbox(MailboxOptions::with_capacity(1))
}

/// 1. A future registers in the critical section that found the mailbox full, so room that is freed
///    right after is not missed. The loom test `a_slot_freed_during_registration_is_not_missed`
///    runs every interleaving.
#[test]
fn trap_01_room_right_after_registration_wakes() {
    let (mailbox, producer) = capacity_of_one();
    producer.try_send(1).unwrap();
    let wakes = Wakes::new();
    let mut offer = producer.send(2);
    assert!(wakes.poll(&mut offer).is_pending());
    assert_eq!(mailbox.dequeue(), Some(1));
    assert_eq!(wakes.count(), 1);
}

/// 2. A woken producer that finds the queue full again registers again, at the head.
#[test]
fn trap_02_an_overtaken_producer_waits_again_at_the_head() {
    let (mailbox, producer) = capacity_of_one();
    producer.try_send(1).unwrap();
    let (first, second) = (Wakes::new(), Wakes::new());
    let mut offer_first = producer.send(10);
    let mut offer_second = producer.send(20);
    assert!(first.poll(&mut offer_first).is_pending());
    assert!(second.poll(&mut offer_second).is_pending());
    assert_eq!(mailbox.dequeue(), Some(1));
    assert_eq!((first.count(), second.count()), (1, 0));
    producer.try_send(2).unwrap();
    assert!(first.poll(&mut offer_first).is_pending(), "another sender was faster");
    assert_eq!(mailbox.queue().waiting_senders(), 2);
    assert_eq!(mailbox.dequeue(), Some(2));
    assert_eq!((first.count(), second.count()), (2, 0), "the sender that has waited longest is woken");
    assert!(first.poll(&mut offer_first).is_ready());
}

/// 3. A waiter that was notified and dropped before its next poll passes the notification on.
///    Senders and receivers.
#[test]
fn trap_03_a_dropped_waiter_passes_its_wake_up_on() {
    let (mailbox, producer) = capacity_of_one();
    producer.try_send(1).unwrap();
    let (first, second) = (Wakes::new(), Wakes::new());
    let mut offer_first = producer.send(10);
    let mut offer_second = producer.send(20);
    assert!(first.poll(&mut offer_first).is_pending() && second.poll(&mut offer_second).is_pending());
    assert_eq!(mailbox.dequeue(), Some(1));
    drop(offer_first);
    assert_eq!(second.count(), 1);
    assert!(second.poll(&mut offer_second).is_ready());

    let (mailbox, producer) = ThreadSafe.build_default_mailbox();
    let (first, second) = (Wakes::new(), Wakes::new());
    let mut poll_first = mailbox.recv();
    let mut poll_second = mailbox.recv();
    assert!(first.poll(&mut poll_first).is_pending() && second.poll(&mut poll_second).is_pending());
    producer.try_send(5).unwrap();
    assert_eq!((first.count(), second.count()), (1, 0));
    drop(poll_first);
    assert_eq!(second.count(), 1);
    assert_eq!(second.poll(&mut poll_second), Poll::Ready(Ok(5)));
}

/// 4. Dropped registrations do not accumulate.
#[test]
fn trap_04_dropped_registrations_do_not_pile_up() {
    let queue = postbox_core::WaitQueue::<ThreadSafe>::new();
    let (mailbox, producer) = capacity_of_one();
    producer.try_send(1).unwrap();
    let wakes = Wakes::new();
    for _ in 0..10_000 {
        let mut offer = producer.send(2);
        assert!(wakes.poll(&mut offer).is_pending());
        let mut ticket = None;
        assert!(queue.register(&mut ticket, std::task::Waker::noop().clone()).is_none());
        assert!(queue.remove(&mut ticket).is_some());
    }
    assert_eq!(mailbox.queue().waiting_senders(), 0);
    assert_eq!(queue.slots(), 1);
    assert_eq!(Arc::strong_count(&wakes), 1);
}

/// 5. Wakers run outside all locks: one that uses the mailbox does not deadlock.
#[test]
fn trap_05_a_waker_may_use_the_mailbox_inline() {
    struct Inline(Mutex<Option<QueueMailbox<u32>>>, Mutex<Vec<u32>>);
    impl Wake for Inline {
        fn wake(self: Arc<Self>) {
            if let Some(mailbox) = &*self.0.lock().unwrap() {
                self.1.lock().unwrap().extend(mailbox.dequeue());
                assert_eq!(mailbox.size(), 0);
                mailbox.queue().try_offer(99).unwrap();
            }
        }
    }
    let (mailbox, producer) = ThreadSafe.build_default_mailbox();
    let inline = Arc::new(Inline(Mutex::new(Some(mailbox.clone())), Mutex::default()));
    let waker = inline.clone().into();
    let mut context = std::task::Context::from_waker(&waker);
    let mut poll = mailbox.recv();
    assert!(std::pin::Pin::new(&mut poll).poll(&mut context).is_pending());
    producer.try_send(7).unwrap();
    assert_eq!(*inline.1.lock().unwrap(), [7]);
    assert_eq!(poll_once(&mut poll), Poll::Ready(Ok(99)));
    inline.0.lock().unwrap().take();
}

/// 5. Wakers are dropped outside all locks: one that owns the last producer locks the mailbox in
///    its drop.
#[test]
fn trap_05_a_waker_may_own_a_handle() {
    struct Owner<T>(#[allow(dead_code, reason = "held for its drop")] T);
    impl<T: Send + Sync> Wake for Owner<T> {
        fn wake(self: Arc<Self>) {}
    }
    fn owning<T: Send + Sync + 'static>(value: T) -> std::task::Waker {
        Arc::new(Owner(value)).into()
    }
    fn poll<F: Future + Unpin>(future: &mut F, waker: &std::task::Waker) -> Poll<F::Output> {
        std::pin::Pin::new(future).poll(&mut std::task::Context::from_waker(waker))
    }
    let noop = std::task::Waker::noop();

    // The waker is replaced by another one.
    let (mailbox, producer) = ThreadSafe.build_default_mailbox::<u8>();
    let mut receive = mailbox.recv();
    assert!(poll(&mut receive, &owning(producer)).is_pending());
    assert!(poll(&mut receive, noop).is_pending(), "registered; then the old waker is dropped with its producer");
    assert_eq!(poll(&mut receive, noop), Poll::Ready(Err(QueueError::Disconnected)));

    // The waker is dropped with its future, on both channels.
    let options = MailboxOptions::with_capacities(QueueSize::limited(1), QueueSize::limited(1));
    let (mailbox, producer) = ThreadSafe.build_priority_mailbox(options);
    for envelope in [PriorityEnvelope::new, PriorityEnvelope::control] {
        producer.try_send(envelope(1, 0)).unwrap();
        let mut offer = producer.send(envelope(2, 0));
        assert!(poll(&mut offer, &owning(producer.clone())).is_pending());
        assert!(poll(&mut offer, &owning(producer.clone())).is_pending());
    }

    // A signal is owned by the waker of its waiter.
    let signal = mailbox.signal();
    let mut wait = signal.wait();
    assert!(poll(&mut wait, &owning(signal.clone())).is_pending());
    assert!(poll(&mut wait, noop).is_pending());
}

/// 5. Receivers wait under a lock of the mailbox, which is released before their wakers are woken
///    or dropped.
#[test]
fn trap_05_a_receiver_is_woken_and_dropped_outside_all_locks() {
    struct Uses<F: Fn() + Send + Sync>(F);
    impl<F: Fn() + Send + Sync> Wake for Uses<F> {
        fn wake(self: Arc<Self>) {
            (self.0)();
        }
    }
    impl<F: Fn() + Send + Sync> Drop for Uses<F> {
        fn drop(&mut self) {
            (self.0)();
        }
    }
    macro_rules! through_all_events {
        ($both:expr, $message:expr) => {
            for event in 0..6 {
                let (mailbox, producer) = $both;
                let uses = Arc::new(AtomicUsize::new(0));
                let waker = || {
                    let (mailbox, uses) = (mailbox.clone(), Arc::clone(&uses));
                    std::task::Waker::from(Arc::new(Uses(move || {
                        mailbox.suspend();
                        mailbox.resume();
                        mailbox.drain_into(&mut Vec::new(), 0);
                        uses.fetch_add(1, Ordering::Relaxed);
                    })))
                };
                let (mut first, mut second) = (mailbox.recv(), mailbox.recv());
                for receive in [&mut first, &mut second] {
                    let waker = waker();
                    let context = &mut std::task::Context::from_waker(&waker);
                    assert!(std::pin::Pin::new(receive).poll(context).is_pending());
                }
                match event {
                    0 => drop(producer.try_send($message)),
                    1 => mailbox.close(),
                    2 => drop((mailbox.suspend(), mailbox.resume())),
                    3 => drop(producer),
                    // The dropped receiver passes its notification on.
                    4 => drop((producer.try_send($message), first)),
                    // The dropped receiver is still registered.
                    _ => drop(first),
                }
                drop(second);
                assert!(uses.load(Ordering::Relaxed) >= 2, "event {event}");
            }
        };
    }
    through_all_events!(ThreadSafe.build_default_mailbox(), 1);
    through_all_events!(ThreadSafe.build_priority_mailbox(MailboxOptions::default()), PriorityEnvelope::new(1, 0));
}

/// 6. Closing returns the message of every waiting producer.
#[test]
fn trap_06_close_returns_parked_messages() {
    let (mailbox, producer) = capacity_of_one();
    producer.try_send(1).unwrap();
    let wakes = Wakes::new();
    let mut offers: Vec<_> = (2..5).map(|n| producer.send(n)).collect();
    assert!(offers.iter_mut().all(|offer| wakes.poll(offer).is_pending()));
    mailbox.close();
    assert_eq!(wakes.count(), 3);
    for (offer, n) in offers.iter_mut().zip(2..) {
        assert_eq!(wakes.poll(offer), Poll::Ready(Err(QueueError::Closed(n))));
    }
    assert_eq!(mailbox.dequeue(), Some(1));
}

/// 7. A closed mailbox is checked for messages before it is reported as disconnected.
#[test]
fn trap_07_a_closed_mailbox_drains_before_it_is_disconnected() {
    let mailbox = UnboundedMailbox::new();
    (0..10).for_each(|n| assert!(mailbox.enqueue(n)));
    mailbox.close();
    for n in 0..10 {
        assert_eq!(poll_once(&mut mailbox.recv()), Poll::Ready(Ok(n)));
    }
    assert_eq!(poll_once(&mut mailbox.recv()), Poll::Ready(Err(QueueError::Disconnected)));
}

/// 8. A request at the end of a turn is not lost. The loom test
///    `a_request_at_the_end_of_a_turn_is_not_lost` runs every interleaving.
#[test]
fn trap_08_a_request_during_a_turn_leads_to_another() {
    let schedule = postbox_core::Schedule::new();
    assert!(schedule.request());
    schedule.begin();
    assert!(!schedule.request(), "the running turn will be followed by another");
    assert!(schedule.finish(false));
    schedule.begin();
    assert!(schedule.finish(true), "more work was left");
    schedule.begin();
    assert!(!schedule.finish(false));
    assert!(schedule.request(), "idle again");
}

/// 9. A full priority queue evicts the least urgent message, in rings and in the heap.
#[test]
fn trap_09_eviction_takes_the_least_urgent() {
    for count in [10i64, 500] {
        let options = MailboxOptions::with_capacity(count as usize).with_overflow(OverflowPolicy::DropOldest);
        let mailbox = PriorityMailbox::with_options(|n: &i64| *n, options);
        (0..count).for_each(|n| assert!(mailbox.enqueue(n * 2)));
        for n in 0..count {
            let outcome = mailbox.queue().try_offer(n - count);
            assert_eq!(outcome, Ok(OfferOutcome::Evicted((count - 1 - n) * 2)), "of {count}");
        }
        assert_eq!(drain(&mailbox), (-count..0).collect::<Vec<_>>());
    }
}

/// 10. A priority mailbox keeps its capacity, and extreme ranks stay distinct.
#[test]
fn trap_10_priority_keeps_bound_and_levels() {
    let mailbox = PriorityMailbox::with_options(|n: &i64| *n, MailboxOptions::with_capacity(4));
    for n in [i64::MAX, i64::MIN, i64::MAX - 1, i64::MIN + 1] {
        assert!(mailbox.enqueue(n));
    }
    assert!(!mailbox.enqueue(0), "the bound holds");
    assert_eq!(drain(&mailbox), [i64::MIN, i64::MIN + 1, i64::MAX - 1, i64::MAX]);
}

/// 11. Suspensions are counted: two suspends need two resumes.
#[test]
fn trap_11_suspensions_are_counted() {
    let (mailbox, producer) = ThreadSafe.build_default_mailbox();
    producer.try_send(1).unwrap();
    mailbox.suspend();
    mailbox.suspend();
    let wakes = Wakes::new();
    let mut poll = mailbox.recv();
    assert!(wakes.poll(&mut poll).is_pending());
    assert!(mailbox.resume());
    assert!(mailbox.is_suspended());
    assert_eq!((wakes.count(), mailbox.dequeue()), (0, None));
    assert!(mailbox.resume());
    assert_eq!(wakes.count(), 1);
    assert_eq!(wakes.poll(&mut poll), Poll::Ready(Ok(1)));
    assert!(!mailbox.resume(), "not suspended any more");
}
