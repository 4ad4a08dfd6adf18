//! Turns of message loops on a pool of workers.

use crate::sync::{AtomicUsize, Ordering};

/// Who runs the turns of a loop on a pool of workers: at most one at a time, and none forgotten.
///
/// The scheduler hook of a mailbox, and that of its loop ([`MessageLoop::set_scheduler_hook`]), call
/// [`request`](Self::request) and queue a turn if that says so. The worker
/// calls [`begin`](Self::begin), runs the turn, and asks [`finish`](Self::finish) whether to queue another. A request
/// that comes while the turn runs, even in its last moment, is not lost.
///
/// ```
/// use postbox_core::Schedule;
///
/// let schedule = Schedule::new();
/// assert!(schedule.request(), "idle: queue a turn");
/// assert!(!schedule.request(), "queued already");
/// schedule.begin();
/// assert!(!schedule.request(), "running: remembered");
/// assert!(schedule.finish(false), "queue another turn");
/// schedule.begin();
/// assert!(!schedule.finish(false), "idle");
/// ```
#[derive(Debug)]
pub struct Schedule {
    state: AtomicUsize,
}

const IDLE: usize = 0;
const QUEUED: usize = 1;
const RUNNING: usize = 2;
const REQUESTED: usize = 3;

impl Default for Schedule {
    fn default() -> Self {
        Self::new()
    }
}

impl Schedule {
    /// Nothing is queued.
    pub fn new() -> Self {
        Schedule { state: AtomicUsize::new(IDLE) }
    }

    /// There may be work. `true` if the caller must queue a turn.
    ///
    /// Every step writes, even one that leaves the state as it is: so a request either comes before the beginning of
    /// a turn, which then sees what the request is about, or after it, and is remembered.
    pub fn request(&self) -> bool {
        let before = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| match state {
            IDLE | QUEUED => Some(QUEUED),
            _ => Some(REQUESTED),
        });
        before == Ok(IDLE)
    }

    /// A queued turn begins.
    pub fn begin(&self) {
        self.state.swap(RUNNING, Ordering::AcqRel);
    }

    /// A turn ends; `more` if it left work behind. `true` if the caller must queue another turn.
    pub fn finish(&self, more: bool) -> bool {
        if !more && self.state.compare_exchange(RUNNING, IDLE, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            return false;
        }
        self.state.swap(QUEUED, Ordering::AcqRel);
        true
    }
}
