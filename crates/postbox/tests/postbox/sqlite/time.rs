//! Clocks that jump, and waits that end by the clock of the file.

use std::future::IntoFuture as _;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::{Duration, SystemTime};

use postbox::clock::{Alarm, Clock, Moment};
use postbox::sqlite::{SqliteBackend, Synchronous, rusqlite};
use postbox::testing::ManualClock;
use postbox::*;

/// A monotonic clock that the test moves, and a wall clock that is ahead of it by an offset that the test sets.
#[derive(Clone, Debug, Default)]
struct Jumping {
    monotonic: ManualClock,
    seconds_ahead: Arc<AtomicU64>,
}

impl Jumping {
    fn pass(&self, seconds: u64) {
        self.monotonic.advance(Duration::from_secs(seconds));
    }

    fn set_ahead(&self, seconds: u64) {
        self.seconds_ahead.store(seconds, Ordering::SeqCst);
    }
}

impl Clock for Jumping {
    fn now(&self) -> Moment {
        self.monotonic.now()
    }

    fn wall(&self) -> SystemTime {
        SystemTime::from(self.now()) + Duration::from_secs(self.seconds_ahead.load(Ordering::SeqCst))
    }

    fn set_alarm(&self, at: Moment, waker: Waker) -> Alarm {
        self.monotonic.set_alarm(at, waker)
    }

    fn cancel_alarm(&self, alarm: Alarm) {
        self.monotonic.cancel_alarm(alarm);
    }
}

const HOUR: u64 = 3_600;

fn connect(path: &Path, clock: &Jumping) -> Connection {
    Connection::new(SqliteBackend::open_with_clock(path, Synchronous::Normal, Arc::new(clock.clone())).unwrap())
}

fn seconds(many: u64) -> Duration {
    Duration::from_secs(many)
}

/// Sets deadlines of each kind, which end in five to seven seconds.
fn set_deadlines(connection: &Connection) -> (Message<u32, u32>, Reply<u32>) {
    let jobs: Mailbox<u32, u32> = connection.mailbox("jobs").unwrap();
    jobs.send(&0).blocking().unwrap();
    let leased = jobs.receive().visibility_timeout(seconds(5)).blocking().unwrap().remove(0);
    jobs.send(&1).delay(seconds(6)).blocking().unwrap();
    let expiring: Mailbox<u32> = connection.mailbox("expiring").unwrap();
    expiring.send(&2).expires_in(seconds(5)).blocking().unwrap();
    let once: Mailbox<u32> = connection.clone().deduplication_window(seconds(5)).mailbox("once").unwrap();
    once.send(&3).deduplication_id("a").blocking().unwrap();
    let idle: Mailbox<u32> = connection.clone().idle_expiry(seconds(5)).mailbox("idle").unwrap();
    idle.send(&4).blocking().unwrap();
    let asked: Mailbox<u32, u32> = connection.mailbox("asked").unwrap();
    let reply = asked.send_expecting_reply(&5).reply_timeout(seconds(5)).blocking().unwrap();
    (leased, reply)
}

/// Whether each of the deadlines has passed.
fn passed(connection: &Connection, reply: &Reply<u32>) -> [bool; 6] {
    let jobs: Mailbox<u32, u32> = connection.mailbox("jobs").unwrap();
    let ready: Vec<u32> = jobs.peek(10).blocking().unwrap().into_iter().map(|seen| seen.body.unwrap()).collect();
    let has = |digit: u8| ready.contains(&u32::from(digit - b'0'));
    let expiring: Mailbox<u32> = connection.mailbox("expiring").unwrap();
    let once: Mailbox<u32> = connection.mailbox("once").unwrap();
    let before = once.approximate_count().blocking().unwrap();
    once.send(&3).deduplication_id("a").blocking().unwrap();
    let names = connection.list().blocking().unwrap();
    [
        has(b'0'),
        has(b'1'),
        expiring.approximate_count().blocking().unwrap() == 0,
        once.approximate_count().blocking().unwrap() > before,
        !names.iter().any(|name| name.as_str() == "idle"),
        matches!(reply.poll().blocking(), Err(Error::ReplyExpired { .. })),
    ]
}

#[test]
fn a_clock_that_was_ahead_freezes_nothing() {
    for is_restarted in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let (path, clock) = (folder.path().join("a.db"), Jumping::default());
        clock.set_ahead(HOUR);
        let mut connection = connect(&path, &clock);
        let (leased, reply) = set_deadlines(&connection);
        clock.set_ahead(0);
        if is_restarted {
            connection = connect(&path, &clock);
        }
        assert_eq!(passed(&connection, &reply), [false; 6], "each deadline begins again, with its own length");
        clock.pass(4);
        assert_eq!(passed(&connection, &reply), [false; 6]);
        leased.extend_visibility(seconds(1)).blocking().unwrap();
        clock.pass(6);
        assert_eq!(passed(&connection, &reply), [true; 6]);
        assert!(matches!(leased.acknowledge().blocking(), Err(Error::ReceiptHandleExpired { .. })));
    }
}

#[test]
fn a_wait_ends_after_the_clock_was_set_back() {
    let folder = tempfile::tempdir().unwrap();
    let (path, clock) = (folder.path().join("a.db"), Jumping::default());
    clock.set_ahead(HOUR);
    let connection = connect(&path, &clock);
    let jobs: Mailbox<u32> = connection.mailbox("jobs").unwrap();
    jobs.send(&1).delay(seconds(5)).blocking().unwrap();
    clock.set_ahead(0);
    let waiting = std::thread::spawn(move || jobs.receive().wait_time(seconds(60)).blocking());
    while clock.monotonic.alarms() == 0 {
        std::thread::yield_now();
    }
    clock.pass(5);
    assert_eq!(waiting.join().unwrap().unwrap()[0].body, 1);
}

#[test]
fn small_differences_between_the_clocks_do_not_count() {
    let folder = tempfile::tempdir().unwrap();
    let (path, clock) = (folder.path().join("a.db"), Jumping::default());
    let connection = connect(&path, &clock);
    let jobs: Mailbox<u32> = connection.mailbox("jobs").unwrap();
    jobs.send(&1).delay(seconds(5)).blocking().unwrap();
    clock.set_ahead(4);
    clock.pass(4);
    assert!(jobs.receive().blocking().unwrap().is_empty());
    clock.set_ahead(0);
    clock.pass(1);
    assert_eq!(jobs.receive().blocking().unwrap()[0].body, 1);
}

#[test]
fn connections_whose_clocks_are_hours_apart_both_make_progress() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let clocks = [Jumping::default(), Jumping::default()];
    clocks[1].set_ahead(3 * HOUR);
    let mailboxes: Vec<Mailbox<u32>> =
        clocks.iter().map(|clock| connect(&path, clock).mailbox("jobs").unwrap()).collect();
    for (number, mailbox) in (0..).zip(&mailboxes) {
        mailbox.send(&number).delay(seconds(5)).blocking().unwrap();
    }
    let mut seen = Vec::new();
    for _ in 0..20 {
        for (clock, mailbox) in clocks.iter().zip(&mailboxes) {
            clock.pass(1);
            for message in mailbox.receive().max_messages(10).blocking().unwrap() {
                message.acknowledge().blocking().unwrap();
                seen.push(message.body);
            }
        }
    }
    seen.sort_unstable();
    assert_eq!(seen, [0, 1]);
}

/// Starts a wait for a reply and locks the file with another connection. `settle` starts an operation that waits for the
/// lock, and does not poll it again. Returns the result of the wait.
fn wakes(settle: impl FnOnce(&Message<u32, u32>, &Reply<u32>, &mut Context<'_>)) -> Result<u32, Error> {
    let folder = tempfile::tempdir().unwrap();
    let (path, clock) = (folder.path().join("a.db"), Jumping::default());
    let jobs: Mailbox<u32, u32> = connect(&path, &clock).mailbox("jobs").unwrap();
    let reply = jobs.send_expecting_reply(&1).reply_timeout(seconds(60)).blocking().unwrap();
    let message = jobs.receive().blocking().unwrap().remove(0);
    let waiting = std::thread::spawn({
        let reply = jobs.reply(reply.id().clone());
        move || reply.wait().timeout(seconds(30)).blocking()
    });
    while clock.monotonic.alarms() == 0 {
        std::thread::yield_now();
    }
    let holder = rusqlite::Connection::open(&path).unwrap();
    holder.execute_batch("BEGIN IMMEDIATE").unwrap();
    settle(&message, &reply, &mut Context::from_waker(Waker::noop()));
    holder.execute_batch("COMMIT").unwrap();
    waiting.join().unwrap()
}

#[test]
fn a_change_of_a_reply_wakes_the_waiter_if_its_operation_is_no_longer_polled() {
    let resolved = wakes(|message, _, context| {
        let sending = pin!(message.reply_channel().unwrap().send(&7).into_future());
        assert!(Future::poll(sending, context).is_pending());
    });
    assert_eq!(resolved.unwrap(), 7);
    let cancelled = wakes(|_, reply, context| {
        let cancelling = pin!(reply.cancel().into_future());
        assert!(Future::poll(cancelling, context).is_pending());
    });
    assert!(matches!(cancelled, Err(Error::ReplyCancelled { .. })), "{cancelled:?}");
}
