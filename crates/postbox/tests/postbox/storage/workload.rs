//! A concurrent workload on a mailbox, a log of the operations that had returned, and a check of a file against that log.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use postbox::sqlite::rusqlite;
use postbox::*;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::disk::Disk;

/// A body with a number and padding.
pub(super) type Jobs = Mailbox<(u64, String), u64>;

/// A log of operations that had begun and that had returned. It takes no entries after a power cut, so all its entries are
/// older than the cut.
#[derive(Default)]
pub(super) struct Log {
    /// Sends that had begun.
    begun: HashSet<u64>,
    /// Sends that had returned.
    sent: HashSet<u64>,
    /// Sends that had returned an error.
    refused: HashSet<u64>,
    /// The replies of requests whose send had returned.
    replies: HashMap<u64, ReplyId>,
    /// Messages whose acknowledgement or answer had begun.
    finishing: HashSet<u64>,
    /// Messages whose acknowledgement or answer had returned, with the number of the note.
    finished: HashMap<u64, u64>,
    /// Notes so far.
    notes: u64,
}

pub(super) struct Workload<'a> {
    disk: &'a Disk,
    log: Mutex<Log>,
    numbers: AtomicU64,
    /// Called after each operation.
    after_each: Box<dyn Fn() + Sync + 'a>,
    /// Says whether this failure is expected.
    expects: fn(&Error) -> bool,
}

impl<'a> Workload<'a> {
    /// Creates a workload in which no operation may fail.
    pub(super) fn new(disk: &'a Disk) -> Self {
        Workload {
            disk,
            log: Mutex::default(),
            numbers: AtomicU64::new(0),
            after_each: Box::new(|| {}),
            expects: |_| false,
        }
    }

    pub(super) fn after_each(mut self, act: impl Fn() + Sync + 'a) -> Self {
        self.after_each = Box::new(act);
        self
    }

    pub(super) fn may_fail(mut self, expects: fn(&Error) -> bool) -> Self {
        self.expects = expects;
        self
    }

    /// The number of sends, and the number of acknowledgements and answers, that had returned.
    pub(super) fn returned(&self) -> (usize, usize) {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        (log.sent.len(), log.finished.len())
    }

    /// Adds an entry to the log, unless the power was cut before. Returns the number of the entry.
    fn note(&self, act: impl FnOnce(&mut Log)) -> u64 {
        let noted = self.disk.unless_cut(|| {
            let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
            log.notes += 1;
            act(&mut log);
            log.notes
        });
        noted.unwrap_or(u64::MAX)
    }

    fn judge<T>(&self, result: Result<T, Error>) -> Option<T> {
        (self.after_each)();
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                assert!((self.expects)(&error), "{error:?}");
                None
            }
        }
    }

    /// Runs threads that send, receive, acknowledge, answer and give back messages. Each runs a number of operations, or ends
    /// with a power cut.
    pub(super) fn run(&self, jobs: &Jobs, file: &Path, seed: u64, threads: u64, operations: u32) {
        std::thread::scope(|scope| {
            for thread in 0..threads {
                scope.spawn(move || {
                    let mut random = StdRng::seed_from_u64(seed.wrapping_mul(1000) + thread);
                    for _ in 0..operations {
                        if self.disk.is_cut() {
                            break;
                        }
                        match random.random_range(0..100) {
                            0..35 => self.send(jobs, &mut random),
                            35..45 => self.send_batch(jobs, &mut random),
                            45..55 => self.request(jobs, &mut random),
                            55..98 => self.consume(jobs, &mut random),
                            _ => self.checkpoint(file, &mut random),
                        }
                    }
                });
            }
        });
    }

    fn body(&self, random: &mut StdRng) -> (u64, String) {
        let long = [10, 1000, 5000, 40_000][random.random_range(0..4)];
        (self.numbers.fetch_add(1, Ordering::SeqCst), "x".repeat(long))
    }

    fn sent(&self, number: u64, result: Result<(), Error>) {
        let result = self.judge(result);
        self.note(|log| match result {
            Some(()) => log.sent.extend([number]),
            None => log.refused.extend([number]),
        });
    }

    fn send(&self, jobs: &Jobs, random: &mut StdRng) {
        let body = self.body(random);
        self.note(|log| log.begun.extend([body.0]));
        let delay = Duration::from_millis([0, 0, 0, 50][random.random_range(0..4)]);
        self.sent(body.0, jobs.send(&body).delay(delay).blocking().map(drop));
    }

    fn send_batch(&self, jobs: &Jobs, random: &mut StdRng) {
        let bodies: Vec<_> = (0..random.random_range(2..5)).map(|_| self.body(random)).collect();
        self.note(|log| log.begun.extend(bodies.iter().map(|body| body.0)));
        let results = jobs.send_batch(&bodies).blocking();
        for (body, result) in bodies.iter().zip(results.unwrap()) {
            self.sent(body.0, result.map(drop));
        }
    }

    fn request(&self, jobs: &Jobs, random: &mut StdRng) {
        let body = self.body(random);
        self.note(|log| log.begun.extend([body.0]));
        let reply = jobs.send_expecting_reply(&body).reply_timeout(Duration::from_secs(3600)).blocking();
        let reply = self.judge(reply);
        self.note(|log| match reply {
            Some(reply) => {
                log.sent.insert(body.0);
                log.replies.insert(body.0, reply.id().clone());
            }
            None => log.refused.extend([body.0]),
        });
    }

    fn consume(&self, jobs: &Jobs, random: &mut StdRng) {
        let began = self.note(|_| {});
        let lease = Duration::from_millis(random.random_range(20..200));
        let wait = Duration::from_millis([0, 0, 30][random.random_range(0..3)]);
        let receive = jobs.receive().max_messages(random.random_range(1..6)).visibility_timeout(lease).wait_time(wait);
        let Some(messages) = self.judge(receive.blocking()) else { return };
        for message in messages {
            let number = message.body.0;
            self.note(|log| {
                let is_over = log.finished.get(&number).is_some_and(|finished| *finished < began);
                assert!(!is_over, "{number} was finished and came back");
            });
            let result = match random.random_range(0..10) {
                // The message is delivered again when its lease ends.
                0 => continue,
                1 => {
                    self.finish_or_lose(message.nack().blocking());
                    continue;
                }
                _ => {
                    self.note(|log| log.finishing.extend([number]));
                    if message.expects_reply() {
                        message.reply(&(number + 1)).blocking()
                    } else {
                        message.acknowledge().blocking()
                    }
                }
            };
            if self.finish_or_lose(result) {
                self.note(|log| {
                    let notes = log.notes;
                    log.finished.entry(number).or_insert(notes);
                });
            }
        }
    }

    /// Whether a message was finished. Its lease may have ended before, so that it was delivered again.
    fn finish_or_lose(&self, result: Result<(), Error>) -> bool {
        match result {
            Err(Error::ReceiptHandleExpired { .. }) => false,
            // An earlier delivery has answered the request, and this one has finished the message.
            Err(Error::ReplyAlreadySent { .. }) => true,
            result => self.judge(result).is_some(),
        }
    }

    /// Runs a checkpoint on a separate connection, as another program might.
    fn checkpoint(&self, file: &Path, random: &mut StdRng) {
        let mode = ["PASSIVE", "FULL", "RESTART", "TRUNCATE"][random.random_range(0..4)];
        let done = rusqlite::Connection::open(file)
            .and_then(|connection| connection.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |_| Ok(())));
        // The checkpoint may fail with the disk. Only the mailbox is tested here.
        drop(done);
    }

    /// Asserts that the log is true of this file: no sent message is lost, and no finished message is present. Removes all
    /// messages. With `is_exact`, the file contains only effects of operations that had returned.
    pub(super) fn check(&self, jobs: &Jobs, file: &Path, is_exact: bool) {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        super::check_file(file);
        for (number, id) in &log.replies {
            let answer = jobs.reply(id.clone()).poll().blocking();
            match answer.unwrap_or_else(|error| panic!("the reply of {number}: {error}")) {
                Some(answer) => {
                    assert_eq!(answer, number + 1);
                    assert!(log.finishing.contains(number), "{number} was not answered by the workload");
                }
                None => assert!(!log.finished.contains_key(number), "the answer of {number} is lost"),
            }
        }
        let mut left = HashSet::new();
        while jobs.counts().blocking().unwrap().total() > 0 {
            let receive = jobs.receive().max_messages(100).wait_time(Duration::from_secs(1));
            for message in receive.blocking().unwrap() {
                let number = message.body.0;
                assert!(log.begun.contains(&number), "{number} was not sent by the workload");
                assert!(!log.finished.contains_key(&number), "{number} was finished and came back");
                assert!(left.insert(number), "{number} is there twice");
                assert!(!is_exact || !log.refused.contains(&number), "{number} was refused and is there");
                match message.expects_reply() {
                    true => match message.reply(&(number + 1)).blocking() {
                        // The reply was consumed above, or no client waits for one. The message is finished in both cases.
                        Ok(()) | Err(Error::ReplyAlreadySent { .. } | Error::ReplyExpired { .. }) => {}
                        Err(error) => panic!("{number}: {error}"),
                    },
                    false => message.acknowledge().blocking().unwrap(),
                }
            }
        }
        for number in &log.sent {
            assert!(left.contains(number) || log.finishing.contains(number), "{number} is lost");
        }
        super::check_file(file);
    }
}
