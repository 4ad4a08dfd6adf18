//! Random operations on a backend, with the ledger as the oracle.

use std::time::{Duration, Instant};

use postbox_core::{Ledger, LedgerOptions, LedgerRefusal, NewMessage, Receipt, SendOutcome};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::{Harness, Place};
use crate::backend::{Counts, Limits, Ordering};
use crate::error::Error;
use crate::mailbox::Mailbox;
use crate::mailbox::id::MessageId;
use crate::mailbox::message::Message;

#[derive(Clone, Debug)]
enum Operation {
    /// With an id of the caller's own, the body is one of a few, so that sends are repeated.
    Send {
        delay: u32,
        expiry: Option<u32>,
        group: Option<u8>,
        deduplication: Option<u8>,
        own: Option<(u8, u8)>,
    },
    Receive {
        max: usize,
        visibility: u32,
    },
    Acknowledge(usize),
    Nack(usize, u32),
    Release(usize),
    Extend(usize, u32),
    DeadLetter(usize),
    Cancel(usize),
    /// A dead letter by the id of a message.
    RedriveOne(usize),
    Redrive(usize),
    Purge,
    PurgeDeadLetters,
    /// Removes the mailbox; the next send makes it anew.
    Delete,
    /// Opens the mailbox with these settings.
    Configure(Settings),
    Pass(u32),
}

/// What a handle says of the mailbox: all of it, so that it does not matter what others said before.
#[derive(Clone, Copy, Debug)]
struct Settings {
    max_size: usize,
    max_deliveries: u32,
    window: Window,
    /// Whether the mailbox would go after the longest time without use.
    expires_idle: bool,
}

/// For how long a deduplication id is remembered.
#[derive(Clone, Copy, Debug)]
enum Window {
    Ticks(u32),
    /// The longest that is allowed.
    Longest,
    /// Longer than is allowed, for this or for the time without use: the mailbox is not opened, and its settings stay.
    TooLong,
}

fn settings() -> impl Strategy<Value = Settings> {
    let window = prop_oneof![
        10 => (1u32..12).prop_map(Window::Ticks),
        1 => Just(Window::Longest),
        1 => Just(Window::TooLong),
    ];
    let sizes = (prop_oneof![1usize..10, Just(1_000_000)], prop_oneof![1u32..4, Just(1_000_000)]);
    (sizes, window, prop::bool::weighted(0.2)).prop_map(|((max_size, max_deliveries), window, expires_idle)| Settings {
        max_size,
        max_deliveries,
        window,
        expires_idle,
    })
}

fn operation() -> impl Strategy<Value = Operation> {
    let send = (
        prop_oneof![3 => Just(0), 1 => 0u32..8],
        prop::option::weighted(0.3, 1u32..12),
        prop::option::weighted(0.4, 0u8..2),
        prop::option::weighted(0.15, 0u8..4),
        prop::option::weighted(0.2, (0u8..3, 0u8..2)),
    );
    prop_oneof![
        10 => send.prop_map(|(delay, expiry, group, deduplication, own)| {
            Operation::Send { delay, expiry, group, deduplication, own }
        }),
        8 => (1usize..5, 0u32..8).prop_map(|(max, visibility)| Operation::Receive { max, visibility }),
        6 => any::<usize>().prop_map(Operation::Acknowledge),
        4 => (any::<usize>(), prop_oneof![Just(0), 0u32..8]).prop_map(|(which, after)| Operation::Nack(which, after)),
        3 => any::<usize>().prop_map(Operation::Release),
        2 => (any::<usize>(), 0u32..8).prop_map(|(which, by)| Operation::Extend(which, by)),
        1 => any::<usize>().prop_map(Operation::DeadLetter),
        1 => any::<usize>().prop_map(Operation::Cancel),
        1 => prop_oneof![(1usize..3).prop_map(Operation::Redrive), any::<usize>().prop_map(Operation::RedriveOne)],
        1 => prop_oneof![
            20 => Just(Operation::Pass(0)),
            2 => Just(Operation::Purge),
            1 => Just(Operation::PurgeDeadLetters),
            1 => Just(Operation::Delete),
            4 => settings().prop_map(Operation::Configure),
        ],
        6 => (0u32..5).prop_map(Operation::Pass),
    ]
}

/// Does a number of sequences of random operations, each on a new mailbox, and compares every answer with the ledger's.
///
/// # Panics
/// If the backend does not do as the ledger, with the shortest sequence of operations that shows it.
pub fn property(harness: &dyn Harness, cases: u32) {
    let connection = harness.connect();
    assert_eq!(connection.limits().ordering, Ordering::Fifo, "the ledger is first in, first out");
    let place = Place { harness, connection };
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let sequences = (prop::collection::vec(operation(), 0..60), settings());
    let result = TestRunner::new(config).run(&sequences, |(operations, settings)| {
        let mut schedule = Schedule { place: &place, start: Instant::now(), ticks: 0, drift: Vec::new() };
        let result = check(&mut schedule, &operations, settings);
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

/// No delay is longer than this number of ticks.
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

/// How many units of the oracle's time a tick is. Where time runs by itself, what is due after some ticks is due half a tick
/// earlier for the oracle, so that no operation meets a deadline; and what a later operation sets is due a little later, since
/// operations come later than they should, each a little more than the one before.
const TICK: u64 = 1_000;

struct Oracle {
    ledger: Ledger<u32>,
    now: u64,
}

/// The ids that callers choose, as the oracle numbers them; the others have the number of their operation.
const OWN_IDS: u128 = 10_000;

/// What sends were answered, by operation.
struct Ids {
    sent: Vec<MessageId>,
    /// Makes the caller's own ids of one mailbox.
    first: u128,
}

impl Ids {
    /// The id that the oracle has as a number.
    fn of(&self, number: u128) -> MessageId {
        match number.checked_sub(OWN_IDS) {
            Some(own) => MessageId::from_u128(self.first + own),
            None => self.sent[number as usize].clone(),
        }
    }

    /// The oracle's number of the id that was the answer to some operation.
    fn number(&self, which: usize) -> u128 {
        let id = &self.sent[which];
        let own = id.as_u128().and_then(|id| id.checked_sub(self.first)).filter(|own| *own < 100);
        match own {
            Some(own) => OWN_IDS + own,
            // A duplicate has the id of the first one.
            None => self.sent.iter().position(|sent| sent == id).unwrap_or(which) as u128,
        }
    }
}

fn check(schedule: &mut Schedule<'_>, operations: &[Operation], settings: Settings) -> Result<(), TestCaseError> {
    let place = schedule.place;
    let limits = place.limits();
    let name = place.name();
    let keeps_idle_expiry = place.keeps_idle_expiry();
    let open = |settings: Settings| {
        let settings = Settings { expires_idle: settings.expires_idle && keeps_idle_expiry, ..settings };
        let mut options = place.connection.clone().max_deliveries(settings.max_deliveries);
        if limits.max_size {
            options = options.max_size(settings.max_size);
        }
        let is_too_long = matches!(settings.window, Window::TooLong);
        if limits.deduplication || is_too_long {
            options = options.deduplication_window(match settings.window {
                Window::Ticks(ticks) => place.ticks(ticks),
                Window::TooLong if !settings.expires_idle => Duration::MAX,
                Window::Longest | Window::TooLong => Limits::LONGEST,
            });
        }
        if settings.expires_idle {
            options = options.idle_expiry(if is_too_long { Duration::MAX } else { Limits::LONGEST });
        }
        options.mailbox::<u32, u32, crate::mailbox::codec::Json>(&name)
    };
    let options = |settings: Settings| LedgerOptions {
        max_size: Some(settings.max_size).filter(|_| limits.max_size),
        max_deliveries: Some(settings.max_deliveries),
        deduplication_window: match settings.window {
            Window::Ticks(ticks) => TICK * u64::from(ticks),
            Window::Longest | Window::TooLong => u64::MAX,
        },
    };
    let settings = match settings.window {
        Window::TooLong => Settings { window: Window::Longest, ..settings },
        _ => settings,
    };
    let mut mailbox = open(settings).unwrap();
    mailbox.create().blocking().unwrap();
    let mut oracle = Oracle { ledger: Ledger::new(options(settings)), now: 0 };
    let mut ids = Ids { sent: Vec::new(), first: crate::mailbox::id::new_uuid().as_u128() & !0xff };
    let exact = place.harness.is_exact();
    let mut messages: Vec<(Message<u32, u32>, Receipt)> = Vec::new();
    for (number, operation) in (0u32..).zip(operations) {
        let now = oracle.now;
        let due = |now: u64, ticks: u32| match exact || ticks == 0 {
            true => now + TICK * u64::from(ticks),
            false => now + TICK * u64::from(ticks) - TICK / 2 + u64::from(number),
        };
        match *operation {
            Operation::Send { delay, expiry, group, deduplication, own } => {
                let own = own.filter(|_| limits.own_ids);
                let body = own.map_or(number, |(_, body)| 100 + u32::from(body));
                let oracle_id = own.map_or(u128::from(number), |(id, _)| OWN_IDS + u128::from(id));
                let expiry = expiry.filter(|_| limits.expiry);
                let group = group.filter(|_| limits.groups).map(|group| group.to_string());
                let deduplication = deduplication.filter(|_| limits.deduplication).map(|id| id.to_string());
                let mut send = mailbox.send(&body).delay(place.ticks(delay));
                if own.is_some() {
                    send = send.id(ids.of(oracle_id));
                }
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
                let new = NewMessage {
                    id: oracle_id,
                    message: body,
                    visible_at: due(now, delay),
                    expires_at: expiry.map(|after| due(now, after)),
                    group: group.as_deref(),
                    deduplication: deduplication.as_deref(),
                };
                let expected = match own.is_some() {
                    true => oracle.ledger.send_once(now, new, |entry, new| entry == new),
                    false => oracle.ledger.send(now, new),
                };
                let id = match (answer, expected) {
                    (Ok(id), Ok(SendOutcome::Stored)) => id,
                    (Ok(id), Ok(SendOutcome::Duplicate(first))) => {
                        prop_assert_eq!(&id, &ids.of(first));
                        id
                    }
                    (Err(Error::MailboxFull { .. }), Err(LedgerRefusal::Full(_))) => MessageId::new(),
                    (Err(Error::InvalidParameter { parameter: "id", .. }), Err(LedgerRefusal::IdInUse(_))) => {
                        MessageId::new()
                    }
                    (answer, expected) => return Err(TestCaseError::fail(format!("{answer:?}, not {expected:?}"))),
                };
                ids.sent.push(id);
            }
            Operation::Receive { max, visibility } => {
                let max = max.min(limits.max_batch);
                let receive = mailbox.receive().max_messages(max).visibility_timeout(place.ticks(visibility));
                let received = receive.blocking().map_err(|error| TestCaseError::fail(error.to_string()))?;
                let mut expected = Vec::new();
                oracle.ledger.receive(now, max, due(now, visibility), |entry| {
                    expected.push((*entry.message, entry.deliveries, entry.receipt, entry.id));
                });
                let seen: Vec<_> = received.iter().map(|message| (message.body, message.delivery_count)).collect();
                let should: Vec<_> = expected.iter().map(|message| (message.0, message.1)).collect();
                prop_assert_eq!(seen, should);
                for (message, expected) in received.into_iter().zip(expected) {
                    prop_assert_eq!(&message.id, &ids.of(expected.3));
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
            Operation::Release(which) if !messages.is_empty() && limits.exact_deliveries => {
                let (message, receipt) = &messages[which % messages.len()];
                let expected = oracle.ledger.release(now, *receipt).is_ok();
                prop_assert_eq!(done(message.release().blocking())?, expected);
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
            Operation::Cancel(which) if !ids.sent.is_empty() && limits.cancel => {
                let which = which % ids.sent.len();
                let expected = oracle.ledger.cancel(now, ids.number(which)).is_some();
                prop_assert_eq!(mailbox.cancel(&ids.sent[which]).blocking().unwrap(), expected);
            }
            Operation::RedriveOne(which) if !ids.sent.is_empty() => {
                let which = which % ids.sent.len();
                let expected = oracle.ledger.redrive_one(now, ids.number(which));
                prop_assert_eq!(mailbox.dead_letters().redrive_one(&ids.sent[which]).blocking().unwrap(), expected);
            }
            Operation::PurgeDeadLetters => {
                let expected = oracle.ledger.purge_dead().len() as u64;
                prop_assert_eq!(mailbox.dead_letters().purge().blocking().unwrap(), expected);
            }
            Operation::Delete if limits.purge_ends_leases => {
                drop(oracle.ledger.purge(now));
                drop(oracle.ledger.purge_dead());
                oracle.ledger.forget_deduplication();
                mailbox.delete().blocking().unwrap();
            }
            Operation::Configure(settings @ Settings { window: Window::TooLong, .. }) => {
                let refused = open(settings);
                prop_assert!(matches!(refused, Err(Error::InvalidParameter { .. })), "{refused:?}");
            }
            Operation::Configure(settings) => {
                oracle.ledger.advance(now);
                oracle.ledger.set_options(options(settings));
                mailbox = open(settings).unwrap();
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
        ids.sent.resize_with(number as usize + 1, MessageId::new);
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
    let counts = oracle.ledger.counts(oracle.now);
    let [ready, delayed, leased, dead] =
        [counts.ready, counts.delayed, counts.leased, counts.dead].map(|many| many as u64);
    prop_assert_eq!(mailbox.counts().blocking().unwrap(), Counts::new(ready, delayed, leased, dead));
    let letters = mailbox.dead_letters().list(100).blocking().unwrap();
    let seen: Vec<_> = letters.iter().map(|letter| (letter.body.clone().unwrap(), letter.delivery_count)).collect();
    let expected: Vec<_> = oracle.ledger.dead().map(|dead| (dead.message, dead.deliveries)).collect();
    prop_assert_eq!(seen, expected);
    if mailbox.limits().peek {
        let mut expected = Vec::new();
        oracle.ledger.peek(oracle.now, 100, |entry| expected.push(*entry.message));
        let shown = mailbox.peek(100).blocking().unwrap();
        let seen: Vec<_> = shown.into_iter().map(|message| message.body.unwrap()).collect();
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
        let send = || Operation::Send { delay: 0, expiry: None, group: None, deduplication: None, own: None };
        let receive = Operation::Receive { max: 2, visibility: 3 };
        let operations = [send(), send(), receive, Operation::Extend(0, 2), Operation::Pass(2)];
        let place = Place { harness: &Memory, connection: Memory.connect() };
        let mut schedule = Schedule { place: &place, start: Instant::now(), ticks: 0, drift: Vec::new() };
        let result = check(
            &mut schedule,
            &operations,
            Settings { max_size: 1_000_000, max_deliveries: 1_000_000, window: Window::Ticks(10), expires_idle: false },
        );
        assert!(result.is_ok() || schedule.is_late(), "{result:?}");
    }
}
