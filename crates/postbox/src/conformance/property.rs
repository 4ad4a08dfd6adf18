//! Random operations on a backend, with the ledger as the oracle.

use std::time::{Duration, Instant};

use postbox_core::{Ledger, LedgerOptions, Posted, Posting, Receipt};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::{Harness, Place};
use crate::backend::{Counts, Ordering};
use crate::error::Error;
use crate::id::MessageId;
use crate::mailbox::Mailbox;
use crate::message::Message;

#[derive(Clone, Debug)]
enum Operation {
    Send { delay: u32, expiry: Option<u32>, group: Option<u8>, deduplication: Option<u8> },
    Receive { max: usize, visibility: u32 },
    Acknowledge(usize),
    Nack(usize, u32),
    Extend(usize, u32),
    DeadLetter(usize),
    Cancel(usize),
    Redrive(usize),
    Purge,
    Pass(u32),
}

fn operation() -> impl Strategy<Value = Operation> {
    let send = (
        prop_oneof![3 => Just(0), 1 => 0u32..8],
        prop::option::weighted(0.15, 1u32..12),
        prop::option::weighted(0.3, 0u8..3),
        prop::option::weighted(0.15, 0u8..4),
    );
    prop_oneof![
        10 => send.prop_map(|(delay, expiry, group, deduplication)| Operation::Send { delay, expiry, group, deduplication }),
        8 => (1usize..5, 0u32..8).prop_map(|(max, visibility)| Operation::Receive { max, visibility }),
        6 => any::<usize>().prop_map(Operation::Acknowledge),
        4 => (any::<usize>(), prop_oneof![Just(0), 0u32..8]).prop_map(|(which, after)| Operation::Nack(which, after)),
        2 => (any::<usize>(), 0u32..8).prop_map(|(which, by)| Operation::Extend(which, by)),
        1 => any::<usize>().prop_map(Operation::DeadLetter),
        1 => any::<usize>().prop_map(Operation::Cancel),
        1 => (1usize..3).prop_map(Operation::Redrive),
        1 => prop_oneof![9 => Just(Operation::Pass(0)), 1 => Just(Operation::Purge)],
        6 => (0u32..5).prop_map(Operation::Pass),
    ]
}

/// Does random operations on new mailboxes, so many times, and compares every answer with the ledger's.
///
/// # Panics
/// If the backend does not do as the ledger, with the shortest sequence of operations that shows it.
pub fn property(harness: &dyn Harness, cases: u32) {
    let connection = harness.connect();
    assert_eq!(connection.limits().ordering, Ordering::Fifo, "the ledger is first in, first out");
    let place = Place { harness, connection };
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let sequences =
        (prop::collection::vec(operation(), 0..60), prop::option::of(1usize..10), prop::option::of(1u32..4));
    let result = TestRunner::new(config).run(&sequences, |(operations, max_size, max_deliveries)| {
        let mut schedule = Schedule { place: &place, start: Instant::now(), ticks: 0, drift: Vec::new() };
        let result = check(&mut schedule, &operations, max_size, max_deliveries);
        // What a machine that stood still for a while shows is nothing that the backend did.
        match result {
            Err(TestCaseError::Fail(_)) if schedule.is_late() => Err(TestCaseError::reject("too slow for its ticks")),
            result => result,
        }
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

/// Lets time pass, and notes by how much more passed than was asked for.
struct Schedule<'a> {
    place: &'a Place<'a>,
    start: Instant,
    ticks: u32,
    /// By how much it was late, at which tick.
    drift: Vec<(u32, Duration)>,
}

/// No delay is longer than so many ticks.
const LONGEST: u32 = 13;

impl Schedule<'_> {
    fn pass(&mut self, ticks: u32) {
        self.place.pass(ticks);
        self.ticks += ticks;
        self.drift.push((self.ticks, self.start.elapsed().saturating_sub(self.place.ticks(self.ticks))));
    }

    /// Whether some operation may have met a deadline that the oracle puts after it: between the two most of a tick was lost.
    fn is_late(&self) -> bool {
        let now = (self.ticks, self.start.elapsed().saturating_sub(self.place.ticks(self.ticks)));
        let most = self.place.ticks(1) / 2;
        let lost = |(at, drift): &(u32, Duration)| {
            let earlier =
                self.drift.iter().find(|(tick, _)| tick + LONGEST >= *at).map_or(Duration::ZERO, |(_, drift)| *drift);
            drift.saturating_sub(earlier) > most
        };
        !self.place.harness.is_exact() && self.drift.iter().chain([&now]).any(lost)
    }
}

/// A tick is so many units of the oracle's time. Where time runs by itself, what is due after some ticks is due half a tick
/// earlier for the oracle, so that no operation meets a deadline; and what a later operation sets is due a little later, since
/// operations come later than they should, each a little more than the one before.
const TICK: u64 = 1_000;

struct Oracle {
    ledger: Ledger<u32>,
    now: u64,
}

const WINDOW: u32 = 10;

fn check(
    schedule: &mut Schedule<'_>,
    operations: &[Operation],
    max_size: Option<usize>,
    max_deliveries: Option<u32>,
) -> Result<(), TestCaseError> {
    let place = schedule.place;
    let limits = place.limits();
    let mailbox: Mailbox<u32, u32> = place.mailbox_with(|mut options| {
        if let Some(most) = max_size.filter(|_| limits.max_size) {
            options = options.max_size(most);
        }
        if let Some(most) = max_deliveries {
            options = options.max_deliveries(most);
        }
        options.deduplication_window(place.ticks(WINDOW))
    });
    let options = LedgerOptions {
        max_size: max_size.filter(|_| limits.max_size),
        max_deliveries,
        deduplication_window: TICK * u64::from(WINDOW),
    };
    let mut oracle = Oracle { ledger: Ledger::new(options), now: 0 };
    let exact = place.harness.is_exact();
    let mut messages: Vec<(Message<u32, u32>, Receipt)> = Vec::new();
    let mut sent: Vec<MessageId> = Vec::new();
    for (number, operation) in (0u32..).zip(operations) {
        let now = oracle.now;
        let due = |now: u64, ticks: u32| match exact || ticks == 0 {
            true => now + TICK * u64::from(ticks),
            false => now + TICK * u64::from(ticks) - TICK / 2 + u64::from(number),
        };
        match *operation {
            Operation::Send { delay, expiry, group, deduplication } => {
                let expiry = expiry.filter(|_| limits.expiry);
                let group = group.filter(|_| limits.groups).map(|group| group.to_string());
                let deduplication = deduplication.filter(|_| limits.deduplication).map(|id| id.to_string());
                let mut send = mailbox.send(&number).delay(place.ticks(delay));
                if let Some(after) = expiry {
                    send = send.expires_in(place.ticks(after));
                }
                if let Some(group) = &group {
                    send = send.group(group.as_str());
                }
                if let Some(id) = &deduplication {
                    send = send.deduplication_id(id.as_str());
                }
                let answer = send.blocking();
                let expected = oracle.ledger.send(
                    now,
                    Posting {
                        id: u128::from(number),
                        message: number,
                        visible_at: due(now, delay),
                        expires_at: expiry.map(|after| due(now, after)),
                        group: group.as_deref(),
                        deduplication: deduplication.as_deref(),
                    },
                );
                let id = match (answer, expected) {
                    (Ok(id), Ok(Posted::Stored)) => id,
                    (Ok(id), Ok(Posted::Duplicate(first))) => {
                        prop_assert_eq!(&id, &sent[first as usize]);
                        id
                    }
                    (Err(Error::MailboxFull { .. }), Err(_)) => MessageId::new(),
                    (answer, expected) => return Err(TestCaseError::fail(format!("{answer:?}, not {expected:?}"))),
                };
                sent.push(id);
            }
            Operation::Receive { max, visibility } => {
                let max = max.min(limits.max_batch);
                let receive = mailbox.receive().max_messages(max).visibility_timeout(place.ticks(visibility));
                let received = receive.blocking().map_err(|error| TestCaseError::fail(error.to_string()))?;
                let mut expected = Vec::new();
                oracle.ledger.receive(now, max, due(now, visibility), |held| {
                    expected.push((*held.message, held.deliveries, held.receipt));
                });
                let seen: Vec<_> = received.iter().map(|message| (message.body, message.delivery_count)).collect();
                let should: Vec<_> = expected.iter().map(|message| (message.0, message.1)).collect();
                prop_assert_eq!(seen, should);
                for (message, expected) in received.into_iter().zip(expected) {
                    prop_assert_eq!(&message.id, &sent[message.body as usize]);
                    messages.push((message, expected.2));
                }
            }
            Operation::Acknowledge(which) if !messages.is_empty() => {
                let (message, receipt) = &messages[which % messages.len()];
                let expected = oracle.ledger.acknowledge(now, *receipt).is_ok();
                prop_assert_eq!(done(message.acknowledge().blocking())?, expected);
            }
            Operation::Nack(which, after) if !messages.is_empty() => {
                let (message, receipt) = &messages[which % messages.len()];
                let expected = oracle.ledger.give_back(now, *receipt, due(now, after)).is_ok();
                prop_assert_eq!(done(message.nack().visibility_timeout(place.ticks(after)).blocking())?, expected);
            }
            Operation::Extend(which, by) if !messages.is_empty() => {
                let (message, receipt) = &messages[which % messages.len()];
                let expected = oracle.ledger.extend(now, *receipt, due(now, by)).is_ok();
                prop_assert_eq!(done(message.extend_visibility(place.ticks(by)).blocking())?, expected);
            }
            Operation::DeadLetter(which) if !messages.is_empty() => {
                let (message, receipt) = &messages[which % messages.len()];
                let expected = oracle.ledger.dead_letter(now, *receipt, "by request".into()).is_ok();
                prop_assert_eq!(done(message.dead_letter("by request").blocking())?, expected);
            }
            Operation::Cancel(which) if !sent.is_empty() && limits.cancel => {
                let which = which % sent.len();
                // A duplicate has the id of the first one.
                let first = sent.iter().position(|id| *id == sent[which]).unwrap_or(which);
                let expected = oracle.ledger.cancel(now, first as u128).is_some();
                prop_assert_eq!(mailbox.cancel(&sent[which]).blocking().unwrap(), expected);
            }
            Operation::Redrive(max) => {
                let expected = oracle.ledger.redrive(now, max) as u64;
                prop_assert_eq!(mailbox.dead_letters().redrive(max).blocking().unwrap(), expected);
            }
            Operation::Purge if limits.purge_cooldown.is_none() && limits.purge_ends_leases => {
                let expected = oracle.ledger.purge(now).0 as u64;
                prop_assert_eq!(mailbox.purge().blocking().unwrap(), expected);
            }
            Operation::Pass(ticks) => {
                schedule.pass(ticks);
                oracle.now += TICK * u64::from(ticks);
            }
            _ => {}
        }
        // One id per operation, so that it is found by the operation's number.
        sent.resize_with(number as usize + 1, MessageId::new);
        continue_after(&mut oracle, schedule);
        compare(&mailbox, &mut oracle)?;
    }
    mailbox.delete().blocking().unwrap();
    Ok(())
}

/// Without an exact clock a tick passes after each operation, so that what it set off lies clearly before or after what
/// follows.
fn continue_after(oracle: &mut Oracle, schedule: &mut Schedule<'_>) {
    if !schedule.place.harness.is_exact() {
        schedule.pass(1);
        oracle.now += TICK;
    }
}

/// `false` if the lease had ended.
fn done(result: Result<(), Error>) -> Result<bool, TestCaseError> {
    match result {
        Ok(()) => Ok(true),
        Err(Error::ReceiptHandleExpired { .. }) => Ok(false),
        Err(error) => Err(TestCaseError::fail(error.to_string())),
    }
}

fn compare(mailbox: &Mailbox<u32, u32>, oracle: &mut Oracle) -> Result<(), TestCaseError> {
    let tally = oracle.ledger.tally(oracle.now);
    let [ready, delayed, leased, dead] = [tally.ready, tally.delayed, tally.leased, tally.dead].map(|many| many as u64);
    prop_assert_eq!(mailbox.counts().blocking().unwrap(), Counts::new(ready, delayed, leased, dead));
    let letters = mailbox.dead_letters().list(100).blocking().unwrap();
    let seen: Vec<_> = letters.iter().map(|letter| (letter.body.to_vec(), letter.delivery_count)).collect();
    let expected: Vec<_> =
        oracle.ledger.dead().map(|dead| (dead.message.to_string().into_bytes(), dead.deliveries)).collect();
    prop_assert_eq!(seen, expected);
    if mailbox.limits().peek {
        let mut expected = Vec::new();
        oracle.ledger.peek(oracle.now, 100, |held| expected.push(held.message.to_string().into_bytes()));
        let seen: Vec<_> =
            mailbox.peek(100).blocking().unwrap().into_iter().map(|delivery| delivery.body.to_vec()).collect();
        prop_assert_eq!(seen, expected);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The memory of the process, by its own clock.
    struct Memory;

    impl Harness for Memory {
        fn connect(&self) -> crate::Connection {
            crate::connect("memory://").blocking().unwrap()
        }

        fn advance(&self, by: Duration) {
            std::thread::sleep(by);
        }

        fn tick(&self) -> Duration {
            Duration::from_millis(60)
        }
    }

    /// The lease of an extension that nominally changes nothing ends a little later, since the extension comes a little later
    /// than it should.
    #[test]
    fn an_extension_to_the_same_tick_is_the_later_one() {
        let send = || Operation::Send { delay: 0, expiry: None, group: None, deduplication: None };
        let receive = Operation::Receive { max: 2, visibility: 3 };
        let operations = [send(), send(), receive, Operation::Extend(0, 2), Operation::Pass(2)];
        let place = Place { harness: &Memory, connection: Memory.connect() };
        let mut schedule = Schedule { place: &place, start: Instant::now(), ticks: 0, drift: Vec::new() };
        let result = check(&mut schedule, &operations, None, None);
        assert!(result.is_ok() || schedule.is_late(), "{result:?}");
    }
}
