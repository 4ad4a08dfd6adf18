//! The three kinds of mailbox (L1 to L6).

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use postbox_core::shared::mailbox::{MailboxOptions, OverflowPolicy};
use postbox_core::{BoundedMailbox, Mailbox, MailboxType, PriorityMailbox, UnboundedMailbox, create_mailbox};

use crate::support::drain;

fn all_kinds() -> Vec<(&'static str, Box<dyn Mailbox<u32> + Send + Sync>)> {
    vec![
        ("unbounded", create_mailbox(MailboxType::Unbounded).unwrap()),
        ("bounded", create_mailbox(MailboxType::bounded(10_000)).unwrap()),
        ("priority", create_mailbox(MailboxType::priority(|_| 10)).unwrap()),
    ]
}

#[test]
fn every_kind_implements_the_interface() {
    for (kind, mailbox) in all_kinds() {
        assert!(mailbox.is_empty(), "{kind}");
        assert_eq!((mailbox.size(), mailbox.message_count(), mailbox.dequeue()), (0, 0, None), "{kind}");
        for n in 0..5 {
            assert!(mailbox.enqueue(n), "{kind}");
        }
        assert!(!mailbox.is_empty(), "{kind}");
        assert_eq!((mailbox.size(), mailbox.message_count()), (5, 5), "{kind}");
        assert_eq!(drain(&*mailbox), [0, 1, 2, 3, 4], "{kind}: first in, first out");
        assert_eq!((mailbox.size(), mailbox.message_count()), (0, 5), "{kind}: the count is for life");
        mailbox.enqueue(6);
        mailbox.close();
        assert!(mailbox.is_closed() && !mailbox.enqueue(7), "{kind}");
        assert_eq!(drain(&*mailbox), [6], "{kind}: closing lets what is inside out");
    }
}

#[test]
fn unbounded_always_accepts() {
    let mailbox = UnboundedMailbox::new();
    assert!((0..200_000).all(|n| mailbox.enqueue(n)));
    assert_eq!((mailbox.size(), mailbox.capacity()), (200_000, None));
    assert!((0..200_000).all(|n| mailbox.dequeue() == Some(n)));
}

#[test]
fn a_full_bounded_mailbox_rejects_without_waiting() {
    let mailbox = BoundedMailbox::new(3);
    assert!((0..3).all(|n| mailbox.enqueue(n)) && mailbox.is_full());
    assert!(!mailbox.enqueue(3) && !mailbox.enqueue(4));
    assert_eq!((mailbox.rejected_count(), mailbox.size(), mailbox.message_count()), (2, 3, 3));
    assert_eq!(mailbox.dequeue(), Some(0));
    assert!(!mailbox.is_full() && mailbox.enqueue(5));
    assert_eq!(drain(&mailbox), [1, 2, 5]);
}

#[test]
fn priority_orders_by_number_and_then_by_arrival() {
    let mailbox = PriorityMailbox::new(|message: &(i64, char)| message.0);
    for message in [(10, 'a'), (0, 'b'), (5, 'c'), (10, 'd'), (0, 'e'), (-3, 'f')] {
        assert!(mailbox.enqueue(message));
    }
    let order: String = drain(&mailbox).into_iter().map(|message| message.1).collect();
    assert_eq!(order, "fbecad");
}

#[test]
fn a_more_urgent_message_overtakes_between_two_receives() {
    let mailbox = PriorityMailbox::new(|n: &i64| *n);
    (10..100).for_each(|n| assert!(mailbox.enqueue(n)));
    assert_eq!(mailbox.dequeue(), Some(10));
    mailbox.enqueue(3);
    assert_eq!(mailbox.dequeue(), Some(3));
    assert_eq!(mailbox.dequeue(), Some(11));
}

#[test]
fn priority_without_a_function_is_a_fifo() {
    let mailbox = PriorityMailbox::default();
    (0..100).rev().for_each(|n| assert!(mailbox.enqueue(n)));
    assert_eq!(drain(&mailbox), (0..100).rev().collect::<Vec<_>>());
}

#[test]
fn priority_takes_any_number_of_levels_and_any_key() {
    for levels in [1, 2, 63, 64, 65, 200, 5000] {
        let mailbox = PriorityMailbox::new(|message: &(i64, usize)| message.0);
        let mut expected = Vec::new();
        for n in 0..5000usize {
            let rank = (n as i64 * 7919) % levels - levels / 2;
            let rank = if n == 17 {
                i64::MIN
            } else if n == 18 {
                i64::MAX
            } else {
                rank
            };
            expected.push((rank, n));
            assert!(mailbox.enqueue((rank, n)));
        }
        expected.sort();
        assert_eq!(drain(&mailbox), expected, "{levels} levels");
    }
}

#[test]
fn bounded_priority_keeps_its_bound_and_drops_the_least_urgent() {
    let options = MailboxOptions::with_capacity(3);
    let refusing = PriorityMailbox::with_options(|n: &i64| *n, options);
    assert!([5, 1, 9].iter().all(|&n| refusing.enqueue(n)) && refusing.is_full());
    assert!(!refusing.enqueue(0), "without a drop policy even the most urgent waits outside");
    assert_eq!(drain(&refusing), [1, 5, 9]);

    for policy in [OverflowPolicy::DropOldest, OverflowPolicy::DropNewest] {
        let mailbox = PriorityMailbox::with_options(|message: &(i64, char)| message.0, options.with_overflow(policy));
        for message in [(5, 'a'), (9, 'b'), (9, 'c')] {
            assert!(mailbox.enqueue(message));
        }
        assert!(mailbox.enqueue((1, 'd')));
        assert!(!mailbox.enqueue((10, 'e')), "{policy:?}: less urgent than all that wait");
        assert_eq!(mailbox.size(), 3);
        let order: String = drain(&mailbox).into_iter().map(|message| message.1).collect();
        assert_eq!(order, if policy == OverflowPolicy::DropOldest { "dac" } else { "dab" }, "{policy:?}");
    }
}

#[test]
fn create_mailbox_creates_all_kinds_and_rejects_invalid_settings() {
    let default = create_mailbox::<u8>(MailboxType::Bounded { capacity: None }).unwrap();
    assert_eq!(default.capacity(), Some(1000));
    assert_eq!(create_mailbox::<u8>(MailboxType::bounded(500)).unwrap().capacity(), Some(500));
    assert_eq!(create_mailbox::<u8>(MailboxType::Unbounded).unwrap().capacity(), None);
    let priority = create_mailbox(MailboxType::bounded_priority(|n: &i64| -n, 2)).unwrap();
    assert!(priority.enqueue(1) && priority.enqueue(2) && !priority.enqueue(3));
    assert_eq!(drain(&*priority), [2, 1]);
    let equal = create_mailbox(MailboxType::Priority { priority_fn: None, capacity: None }).unwrap();
    assert!(equal.enqueue(2) && equal.enqueue(1));
    assert_eq!(drain(&*equal), [2, 1]);

    for bad in [MailboxType::bounded(0), MailboxType::bounded_priority(|_: &u8| 0, 0)] {
        let error = create_mailbox::<u8>(bad).err().expect("a capacity of 0 is refused");
        assert_eq!((error.field, error.value, error.minimum), ("capacity", 0, 1));
        assert_eq!(error.to_string(), "invalid mailbox: capacity is 0, it must be at least 1");
    }
}

#[test]
#[should_panic(expected = "a mailbox needs a capacity of at least 1, got 0")]
fn a_capacity_of_zero_panics_with_a_clear_message() {
    let _ = BoundedMailbox::<u8>::new(0);
}

#[test]
fn options_and_complex_values_are_ordinary_messages() {
    let mailbox = UnboundedMailbox::new();
    mailbox.enqueue(None);
    mailbox.enqueue(Some(vec![String::from("nested")]));
    assert_eq!(mailbox.dequeue(), Some(None));
    assert_eq!(mailbox.dequeue(), Some(Some(vec![String::from("nested")])));
    assert_eq!(mailbox.dequeue(), None);
}

/// Many producers and consumers: no message is lost or duplicated, and the messages of each
/// producer keep their order.
fn hammer(mailbox: &(dyn Mailbox<(u32, u32)> + Send + Sync), limit: Option<usize>) {
    const PRODUCERS: u32 = 4;
    const EACH: u32 = 5_000;
    let done = AtomicBool::new(false);
    let received: Vec<Vec<(u32, u32)>> = thread::scope(|scope| {
        let producers: Vec<_> = (0..PRODUCERS)
            .map(|producer| {
                scope.spawn(move || {
                    for n in 0..EACH {
                        while !mailbox.enqueue((producer, n)) {
                            thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        let consumers: Vec<_> = (0..3)
            .map(|_| {
                let done = &done;
                scope.spawn(move || {
                    let mut received = Vec::new();
                    loop {
                        if let Some(limit) = limit {
                            assert!(mailbox.size() <= limit, "the capacity is never exceeded");
                        }
                        let finished = done.load(Ordering::SeqCst);
                        match mailbox.dequeue() {
                            Some(message) => received.push(message),
                            None if finished => return received,
                            None => thread::yield_now(),
                        }
                    }
                })
            })
            .collect();
        producers.into_iter().for_each(|handle| handle.join().unwrap());
        done.store(true, Ordering::SeqCst);
        consumers.into_iter().map(|handle| handle.join().unwrap()).collect()
    });
    for one in &received {
        for producer in 0..PRODUCERS {
            let numbers: Vec<u32> =
                one.iter().filter(|message| message.0 == producer).map(|message| message.1).collect();
            assert!(numbers.is_sorted(), "one consumer sees one producer's messages in order");
        }
    }
    let all: HashSet<(u32, u32)> = received.iter().flatten().copied().collect();
    assert_eq!(received.iter().map(Vec::len).sum::<usize>(), (PRODUCERS * EACH) as usize, "nothing twice");
    assert_eq!(all.len(), (PRODUCERS * EACH) as usize, "nothing lost");
    assert_eq!(mailbox.message_count(), (PRODUCERS * EACH) as usize);
}

#[test]
fn unbounded_is_safe_under_many_threads() {
    hammer(&UnboundedMailbox::new(), None);
}

#[test]
fn bounded_is_safe_under_many_threads() {
    hammer(&BoundedMailbox::new(1), Some(1));
    hammer(&BoundedMailbox::new(7), Some(7));
    hammer(&BoundedMailbox::new(500), Some(500));
}

#[test]
fn priority_is_safe_under_many_threads() {
    hammer(&PriorityMailbox::default(), None);
    hammer(
        &PriorityMailbox::with_options(|message: &(u32, u32)| i64::from(message.0), MailboxOptions::with_capacity(9)),
        Some(9),
    );
}

#[test]
fn concurrent_producers_do_not_exceed_the_bound() {
    let mailbox = BoundedMailbox::new(50);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                (0..30).for_each(|n| {
                    mailbox.enqueue(n);
                })
            });
        }
    });
    assert_eq!((mailbox.size(), mailbox.rejected_count()), (50, 10));
}
