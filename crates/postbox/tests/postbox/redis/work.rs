//! Producers and consumers that work during a failure, with exact counts.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use postbox::{Error, Mailbox};

use super::until;

/// The counts of all producers and consumers.
#[derive(Default)]
pub(super) struct Work {
    /// Numbers of messages whose send has returned.
    sent: Mutex<BTreeSet<u64>>,
    /// Numbers of messages whose acknowledgement has returned.
    done: Mutex<BTreeSet<u64>>,
    next: AtomicU64,
    finished: AtomicU64,
    /// The number of deliveries of messages that were acknowledged before.
    pub(super) came_back: AtomicU64,
    /// The number of redeliveries.
    pub(super) delivered_again: AtomicU64,
    pub(super) errors: AtomicU64,
    is_enough: AtomicBool,
    is_over: AtomicBool,
}

/// Maximum number of messages that are sent and not acknowledged.
const AHEAD: usize = 300;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Work {
    /// Runs two producers and two consumers on each mailbox during `trouble`, and until all sent messages are acknowledged.
    pub(super) fn during(mailboxes: &[Mailbox<u64, u64>], visibility: Duration, trouble: impl FnOnce(&Work)) -> Work {
        let work = Work::default();
        std::thread::scope(|scope| {
            // The threads must end also if `trouble` panics.
            let _over = Over(&work);
            let mut producers = Vec::new();
            for mailbox in mailboxes {
                for _ in 0..2 {
                    producers.push(scope.spawn(|| work.produce(mailbox)));
                    scope.spawn(|| work.consume(mailbox, visibility));
                }
            }
            trouble(&work);
            work.is_enough.store(true, Ordering::SeqCst);
            producers.into_iter().for_each(|producer| producer.join().unwrap());
            let end = Instant::now() + Duration::from_secs(60);
            while !lock(&work.sent).is_subset(&lock(&work.done)) {
                let lost = || lock(&work.sent).difference(&lock(&work.done)).copied().collect::<Vec<_>>();
                assert!(Instant::now() < end, "lost of {}: {:?}", lock(&work.sent).len(), lost());
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        work
    }

    fn produce(&self, mailbox: &Mailbox<u64, u64>) {
        while !self.is_enough.load(Ordering::SeqCst) && !self.is_over.load(Ordering::SeqCst) {
            if lock(&self.sent).len() > lock(&self.done).len() + AHEAD {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            let number = self.next.fetch_add(1, Ordering::SeqCst);
            match mailbox.send(&number).blocking() {
                Ok(_) => drop(lock(&self.sent).insert(number)),
                Err(error) => self.failed(&error),
            }
        }
    }

    fn consume(&self, mailbox: &Mailbox<u64, u64>, visibility: Duration) {
        while !self.is_over.load(Ordering::SeqCst) {
            let receive = mailbox.receive().max_messages(5).visibility_timeout(visibility);
            let messages = match receive.wait_time(Duration::from_secs(1)).blocking() {
                Ok(messages) => messages,
                Err(error) => {
                    self.failed(&error);
                    continue;
                }
            };
            for message in messages {
                let is_done = lock(&self.done).contains(&message.body);
                self.came_back.fetch_add(u64::from(is_done), Ordering::SeqCst);
                self.delivered_again.fetch_add(u64::from(message.delivery_count > 1), Ordering::SeqCst);
                match message.acknowledge().blocking() {
                    Ok(()) => {
                        let is_first = lock(&self.done).insert(message.body);
                        self.came_back.fetch_add(u64::from(!is_first && !is_done), Ordering::SeqCst);
                        self.finished.fetch_add(1, Ordering::SeqCst);
                    }
                    // The lease may end during an outage.
                    Err(Error::ReceiptHandleExpired { .. }) => {}
                    Err(error) => self.failed(&error),
                }
            }
        }
    }

    fn failed(&self, error: &Error) {
        assert!(error.is_transient(), "{error:?}");
        self.errors.fetch_add(1, Ordering::SeqCst);
    }

    /// Waits until `more` further messages are acknowledged.
    pub(super) fn goes_on(&self, more: u64) {
        let finished = || self.finished.load(Ordering::SeqCst);
        let goal = finished() + more;
        until("the work goes on", || finished() >= goal);
    }

    pub(super) fn many_sent(&self) -> usize {
        lock(&self.sent).len()
    }

    pub(super) fn count(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::SeqCst)
    }
}

struct Over<'a>(&'a Work);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::SeqCst);
    }
}
