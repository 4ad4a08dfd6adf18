//! Messages that other threads send behave like those of the receiving thread.

use std::future::{Future as _, IntoFuture as _};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use crate::Flag;
use bytes::Bytes;
use postbox::clock::{Alarm, Clock, Moment};
use postbox::testing::ManualClock;
use postbox::*;
use proptest::prelude::*;

#[test]
fn delete_removes_messages_of_other_threads() {
    let mailbox: Mailbox<u32> = Connection::new(MemoryBackend::new()).mailbox("jobs").unwrap();
    assert!(mailbox.receive().blocking().unwrap().is_empty());
    thread::scope(|scope| scope.spawn(|| mailbox.send(&1).blocking().unwrap()).join().unwrap());
    mailbox.delete().blocking().unwrap();
    mailbox.create().blocking().unwrap();
    assert!(mailbox.receive().blocking().unwrap().is_empty());
}

/// Bodies of any length, each a prefix of the same bytes, are peeked at, delivered, redelivered, dead-lettered and redriven.
#[test]
fn bodies_of_every_length_are_unchanged() {
    let mailbox: Mailbox<Vec<u8>, (), Raw> = Connection::new(MemoryBackend::new()).mailbox("bodies").unwrap();
    assert!(mailbox.receive().blocking().unwrap().is_empty());
    let bytes: Vec<u8> = (1..=200).collect();
    let bodies = || (0..=bytes.len()).map(|length| &bytes[..length]);
    thread::scope(|scope| {
        scope.spawn(|| bodies().for_each(|body| drop(mailbox.send(&body.to_vec()).blocking().unwrap())));
    });
    let peeked = mailbox.peek(1000).blocking().unwrap();
    assert!(peeked.iter().map(|message| &message.body.as_ref().unwrap()[..]).eq(bodies()));
    let receive = || mailbox.receive().max_messages(1000).blocking().unwrap();
    for delivery_count in 1..3 {
        let messages = receive();
        assert!(messages.iter().map(|message| &message.body[..]).eq(bodies()));
        assert!(messages.iter().all(|message| message.delivery_count == delivery_count));
        messages.iter().for_each(|message| message.nack().blocking().unwrap());
    }
    receive().iter().for_each(|message| message.dead_letter("to see it again").blocking().unwrap());
    let letters = mailbox.dead_letters().list(1000).blocking().unwrap();
    assert!(letters.iter().map(|letter| &letter.body.as_ref().unwrap()[..]).eq(bodies()));
    assert_eq!(mailbox.dead_letters().redrive(1000).blocking().unwrap(), bytes.len() as u64 + 1);
    let messages = receive();
    assert!(messages.iter().map(|message| &message.body[..]).eq(bodies()));
    let done = mailbox.acknowledge_batch(&messages).blocking().unwrap();
    assert!(done.iter().all(Result::is_ok));
    assert_eq!(mailbox.approximate_count().blocking().unwrap(), 0);
}

/// Each body of a batch is valid as long as it is held.
#[test]
fn a_body_outlives_those_that_were_received_with_it() {
    let mailbox: Mailbox<Bytes, (), Raw> = Connection::new(MemoryBackend::new()).mailbox("bodies").unwrap();
    assert!(mailbox.receive().blocking().unwrap().is_empty());
    let body = |number: u8| Bytes::from(vec![number; usize::from(number % 64) + 1]);
    for batch in [1, 2, 15, 16, 17, 40] {
        thread::scope(|scope| {
            scope.spawn(|| (0..40).for_each(|number| drop(mailbox.send(&body(number)).blocking().unwrap())));
        });
        let mut kept = Vec::new();
        while kept.len() < 40 {
            let messages = mailbox.receive().max_messages(batch).blocking().unwrap();
            assert!(!messages.is_empty());
            assert!(mailbox.acknowledge_batch(&messages).blocking().unwrap().iter().all(Result::is_ok));
            kept.extend(messages.into_iter().map(|message| message.body));
        }
        let mut numbered: Vec<(u8, Bytes)> = (0..40).zip(kept).collect();
        // Drop every third body, until none is left.
        while !numbered.is_empty() {
            assert!(numbered.iter().all(|(number, kept)| *kept == body(*number)));
            let mut at = 0..;
            numbered.retain(|_| at.next().is_some_and(|at| at % 3 != 0));
        }
    }
}

/// Headers stay with their message over several deliveries, and no other message gets them.
#[test]
fn headers_stay_with_their_message() {
    let mailbox: Mailbox<Vec<u8>, (), Raw> = Connection::new(MemoryBackend::new()).mailbox("parts").unwrap();
    assert!(mailbox.receive().blocking().unwrap().is_empty());
    thread::scope(|scope| {
        scope.spawn(|| {
            mailbox.send(&vec![1]).attribute("tenant", "a").reply_to("somewhere").blocking().unwrap();
            mailbox.send(&vec![2]).blocking().unwrap();
        });
    });
    for _ in 0..2 {
        let messages = mailbox.receive().max_messages(2).blocking().unwrap();
        assert_eq!(
            (messages[0].attributes["tenant"].as_str(), messages[0].reply_to.as_deref()),
            ("a", Some("somewhere"))
        );
        assert_eq!((messages[1].attributes.len(), messages[1].reply_to.as_deref()), (0, None));
        messages.iter().for_each(|message| message.nack().blocking().unwrap());
    }
    let messages = mailbox.receive().max_messages(2).blocking().unwrap();
    let done = mailbox.acknowledge_batch(&messages).blocking().unwrap();
    assert!(done.len() == 2 && done.iter().all(Result::is_ok), "{done:?}");
}

#[derive(Clone, Debug)]
enum Step {
    Send,
    SendToGroup,
    SendLater(u64),
    Receive { max: usize, visibility: u64 },
    Acknowledge(usize),
    Nack(usize, u64),
    Extend(usize, u64),
    DeadLetter(usize),
    Count,
    Peek,
    Redrive,
    Purge,
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => Just(Step::Send),
        3 => Just(Step::SendToGroup),
        2 => (1u64..6).prop_map(Step::SendLater),
        8 => (1usize..4, 0u64..8).prop_map(|(max, visibility)| Step::Receive { max, visibility }),
        6 => any::<usize>().prop_map(Step::Acknowledge),
        3 => (any::<usize>(), 0u64..4).prop_map(|(which, after)| Step::Nack(which, after)),
        2 => (any::<usize>(), 0u64..8).prop_map(|(which, by)| Step::Extend(which, by)),
        1 => any::<usize>().prop_map(Step::DeadLetter),
        1 => Just(Step::Count),
        1 => Just(Step::Peek),
        1 => Just(Step::Redrive),
        1 => prop_oneof![9 => Just(Step::Pass(1)), 1 => Just(Step::Purge)],
        6 => (0u64..5).prop_map(Step::Pass),
    ]
}

/// Runs the steps and returns all observable results. Messages are sent by the receiving thread or by another one.
fn seen(steps: &[Step], max_deliveries: Option<u32>, by_another_thread: bool) -> Vec<String> {
    let clock = ManualClock::new();
    let start = clock.now();
    let connection = Connection::new(MemoryBackend::with_clock(Arc::new(clock.clone())));
    let connection = max_deliveries.map_or(connection.clone(), |most| connection.max_deliveries(most));
    let mailbox: Mailbox<u32> = connection.mailbox("jobs").unwrap();
    let seconds = Duration::from_secs;
    // From now on this thread receives.
    assert!(mailbox.receive().blocking().unwrap().is_empty());
    let (mut number, mut messages, mut seen) = (0, Vec::<Message<u32>>::new(), Vec::new());
    let show = |message: &StoredMessage<u32>| {
        let since = message.enqueued_at.duration_since(std::time::SystemTime::from(start)).unwrap();
        format!("{:?} {} {since:?}", message.body, message.delivery_count)
    };
    for step in steps {
        let at = |which: usize| which.checked_rem(messages.len()).map(|at| &messages[at]);
        seen.push(match *step {
            Step::Send | Step::SendToGroup | Step::SendLater(_) => {
                number += 1;
                let send = || match *step {
                    Step::SendToGroup => mailbox.send(&number).group("g").blocking().map(drop),
                    Step::SendLater(after) => mailbox.send(&number).delay(seconds(after)).blocking().map(drop),
                    _ => mailbox.send(&number).blocking().map(drop),
                };
                if by_another_thread {
                    format!("{:?}", thread::scope(|scope| scope.spawn(send).join().unwrap()))
                } else {
                    format!("{:?}", send())
                }
            }
            Step::Receive { max, visibility } => {
                let request = mailbox.receive().max_messages(max).visibility_timeout(seconds(visibility));
                let received = request.blocking().unwrap();
                let line = |message: &Message<u32>| {
                    let since = message.enqueued_at.duration_since(std::time::SystemTime::from(start)).unwrap();
                    format!("{} {} {since:?}", message.body, message.delivery_count)
                };
                let shown = received.iter().map(line).collect::<Vec<_>>().join(", ");
                messages.extend(received);
                shown
            }
            Step::Acknowledge(which) => format!("{:?}", at(which).map(|it| it.acknowledge().blocking().is_ok())),
            Step::Nack(which, after) => {
                format!("{:?}", at(which).map(|it| it.nack().visibility_timeout(seconds(after)).blocking().is_ok()))
            }
            Step::Extend(which, by) => {
                format!("{:?}", at(which).map(|it| it.extend_visibility(seconds(by)).blocking().is_ok()))
            }
            Step::DeadLetter(which) => format!("{:?}", at(which).map(|it| it.dead_letter("bad").blocking().is_ok())),
            Step::Count => format!("{:?}", mailbox.counts().blocking()),
            Step::Peek => format!("{:?}", mailbox.peek(10).blocking().unwrap().iter().map(show).collect::<Vec<_>>()),
            Step::Redrive => format!("{:?}", mailbox.dead_letters().redrive(1).blocking()),
            Step::Purge => format!("{:?}", mailbox.purge().blocking()),
            Step::Pass(time) => {
                clock.advance(seconds(time));
                String::new()
            }
        });
    }
    seen
}

#[test]
fn the_sending_thread_makes_no_difference() {
    let config = ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(steps in prop::collection::vec(step(), 0..60), most in prop::option::of(1u32..4))| {
        prop_assert_eq!(seen(&steps, most, false), seen(&steps, most, true));
    });
}

/// A clock that jumps forwards when it is read.
#[derive(Debug)]
struct Jumping {
    clock: ManualClock,
    reads_left: AtomicUsize,
}

impl Clock for Jumping {
    fn now(&self) -> Moment {
        if self.reads_left.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.clock.advance(Duration::from_secs(2));
        }
        self.clock.now()
    }

    fn set_alarm(&self, at: Moment, waker: Waker) -> Alarm {
        self.clock.set_alarm(at, waker)
    }

    fn cancel_alarm(&self, alarm: Alarm) {
        self.clock.cancel_alarm(alarm);
    }
}

#[test]
fn a_lease_that_ends_while_messages_are_taken_in_is_behind_them() {
    for reads in 1..8 {
        let clock = Arc::new(Jumping { clock: ManualClock::new(), reads_left: AtomicUsize::new(usize::MAX) });
        let connection = Connection::new(MemoryBackend::with_clock(Arc::clone(&clock) as Arc<dyn Clock>));
        let mailbox: Mailbox<u32> = connection.mailbox("jobs").unwrap();
        mailbox.send(&1).blocking().unwrap();
        let lease = mailbox.receive().visibility_timeout(Duration::from_secs(10)).blocking().unwrap();
        clock.clock.advance(Duration::from_secs(9));
        thread::scope(|scope| {
            let send = || [2, 3].iter().for_each(|number| drop(mailbox.send(number).blocking().unwrap()));
            scope.spawn(send).join().unwrap();
        });
        clock.reads_left.store(reads, Ordering::SeqCst);
        let mut order = Vec::new();
        while order.len() < 3 {
            order.extend(mailbox.receive().blocking().unwrap().iter().map(|message| message.body));
            if order.len() == 2 {
                clock.clock.advance(Duration::from_secs(2));
            }
        }
        assert_eq!(order, [2, 3, 1], "the clock jumped at its read {reads}");
        drop(lease);
    }
}

/// A clock whose alarms can fire one second too early.
#[derive(Clone, Debug, Default)]
struct Early {
    clock: ManualClock,
    is_early: Arc<AtomicBool>,
}

impl Clock for Early {
    fn now(&self) -> Moment {
        self.clock.now()
    }

    fn set_alarm(&self, at: Moment, waker: Waker) -> Alarm {
        let early = if self.is_early.load(Ordering::SeqCst) { 1_000_000_000 } else { 0 };
        self.clock.set_alarm(Moment::from_nanos(at.as_nanos() - early), waker)
    }

    fn cancel_alarm(&self, alarm: Alarm) {
        self.clock.cancel_alarm(alarm);
    }
}

#[test]
fn an_alarm_that_fires_too_early_fires_again() {
    let seconds = Duration::from_secs;
    for (lease, wait) in [(60, 10), (10, 60)] {
        let clock = Early::default();
        let connection = Connection::new(MemoryBackend::with_clock(Arc::new(clock.clone())));
        let mailbox: Mailbox<u32> = connection.mailbox("jobs").unwrap();
        mailbox.send(&1).blocking().unwrap();
        let leased = mailbox.receive().visibility_timeout(seconds(lease)).blocking().unwrap();
        let flag = Arc::new(Flag::default());
        let waker = Waker::from(Arc::clone(&flag));
        let mut receive = pin!(mailbox.receive().wait_time(seconds(wait)).into_future());
        // The receiver reads the clock a few times before it sleeps.
        let mut look = || loop {
            flag.0.store(false, Ordering::SeqCst);
            let looked = receive.as_mut().poll(&mut Context::from_waker(&waker));
            if looked.is_ready() || !flag.0.load(Ordering::SeqCst) {
                return looked.map(|received| received.unwrap().len());
            }
        };
        clock.is_early.store(true, Ordering::SeqCst);
        assert!(look().is_pending());
        clock.is_early.store(false, Ordering::SeqCst);
        clock.clock.advance(seconds(9));
        assert!(look().is_pending(), "its time has not come");
        clock.clock.advance(seconds(1));
        assert!(flag.0.load(Ordering::SeqCst), "the waiter is not woken: a lease of {lease} s, a wait of {wait} s");
        assert_eq!(look(), Poll::Ready(usize::from(lease < wait)));
        drop(leased);
    }
}
