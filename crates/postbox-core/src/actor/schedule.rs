//! Scheduling of message loops on a pool of workers.

use crate::sync::{AtomicUsize, Ordering};

/// Schedules the turns of one message loop on a pool of workers: at most one turn runs at a time,
/// and no request is lost.
///
/// The scheduler hook of the mailbox, and that of the loop ([`MessageLoop::set_scheduler_hook`]),
/// call [`request`](Self::request), and enqueue a turn if it returns `true`. The worker calls
/// [`begin`](Self::begin), runs the turn, and enqueues another one if [`finish`](Self::finish)
/// returns `true`. A request that arrives during a turn leads to another turn.
///
/// [`MessageLoop::set_scheduler_hook`]: super::MessageLoop::set_scheduler_hook
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
    /// Creates an idle schedule.
    pub fn new() -> Self {
        Schedule { state: AtomicUsize::new(IDLE) }
    }

    /// Requests a turn. Returns `true` if the caller must enqueue it.
    ///
    /// Every call writes, even if the state stays the same. So a request is ordered either before
    /// `begin`, and the turn sees the reason for it, or after `begin`, and is remembered.
    pub fn request(&self) -> bool {
        let before = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| match state {
            IDLE | QUEUED => Some(QUEUED),
            _ => Some(REQUESTED),
        });
        before == Ok(IDLE)
    }

    /// Begins the enqueued turn.
    pub fn begin(&self) {
        self.state.swap(RUNNING, Ordering::AcqRel);
    }

    /// Ends the turn; `more` tells whether it left work behind. Returns `true` if the caller must
    /// enqueue another turn.
    pub fn finish(&self, more: bool) -> bool {
        if !more && self.state.compare_exchange(RUNNING, IDLE, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            return false;
        }
        self.state.swap(QUEUED, Ordering::AcqRel);
        true
    }
}
