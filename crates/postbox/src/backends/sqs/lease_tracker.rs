//! What this process has been handed and has not finished.
//!
//! SQS says success to a receipt whose lease has ended, and sometimes acts on it. So it is decided here, before SQS is asked: a
//! receipt is good until its deadline, once, and for one act at a time.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::message_format::ReceivedMessage;
use crate::backend::Delivery;
use crate::mailbox::id::ReceiptHandle;
use crate::runtime::cancellation::unless;
use crate::runtime::clock::{Sleep, SystemClock};

#[derive(Default)]
pub(super) struct LeaseTracker {
    held: Mutex<Held>,
    /// An act has ended.
    changed: Notify,
}

#[derive(Default)]
struct Held {
    leases: HashMap<ReceiptHandle, Lease>,
    /// How many bytes of bodies they have.
    bytes: usize,
    /// How many there may be, and how many bytes, before the next look for those that have ended.
    most: (usize, usize),
}

impl Held {
    fn remove(&mut self, handle: &ReceiptHandle) {
        if let Some(lease) = self.leases.remove(handle) {
            self.bytes -= lease.delivery.body.len();
        }
    }
}

struct Lease {
    /// When it was given. SQS lets it last for so long from then.
    since: Instant,
    until: Instant,
    is_settling: bool,
    delivery: Delivery,
    group: Option<String>,
}

/// Whether an act may begin.
#[derive(Debug, PartialEq)]
pub(super) enum BeginSettle {
    /// It may, and nothing else until it has ended. The lease lasts until then.
    Begun(Instant),
    /// Another one is under way.
    Busy,
    /// The lease has ended.
    Expired,
}

/// A process that crashes and a queue that loses nothing need no more than this many entries checked at a time.
const FEW: usize = 1_000;
/// The same in bytes.
const FEW_BYTES: usize = 16 << 20;

impl LeaseTracker {
    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, received: &ReceivedMessage, since: Instant, until: Instant) {
        let mut held = self.lock();
        if held.leases.len() >= held.most.0.max(FEW) || held.bytes >= held.most.1.max(FEW_BYTES) {
            let now = Instant::now();
            held.leases.retain(|_, lease| lease.until > now || lease.is_settling);
            held.bytes = held.leases.values().map(|lease| lease.delivery.body.len()).sum();
            held.most = (held.leases.len() * 2, held.bytes * 2);
        }
        let delivery = received.delivery.clone();
        let handle = delivery.receipt_handle.clone();
        held.remove(&handle);
        held.bytes += delivery.body.len();
        held.leases.insert(handle, Lease { since, until, is_settling: false, delivery, group: received.group.clone() });
    }

    pub(super) fn begin(&self, handle: &ReceiptHandle) -> BeginSettle {
        let mut held = self.lock();
        match held.leases.get_mut(handle) {
            Some(lease) if lease.is_settling => BeginSettle::Busy,
            Some(lease) if lease.until > Instant::now() => {
                lease.is_settling = true;
                BeginSettle::Begun(lease.until)
            }
            Some(_) => {
                held.remove(handle);
                BeginSettle::Expired
            }
            None => BeginSettle::Expired,
        }
    }

    /// How much is left of a lease.
    pub(super) fn left(&self, handle: &ReceiptHandle) -> Duration {
        let until = self.lock().leases.get(handle).map(|lease| lease.until);
        until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()))
    }

    /// Since when it has been leased.
    pub(super) fn age(&self, handle: &ReceiptHandle) -> Duration {
        let since = self.lock().leases.get(handle).map(|lease| lease.since);
        since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// The same, after what is under way, but not after the deadline: whoever acts may have stopped looking after it. `None`: the
    /// lease has ended.
    pub(super) async fn begin_after(&self, handle: &ReceiptHandle) -> Option<Instant> {
        loop {
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            match self.begin(handle) {
                BeginSettle::Begun(until) => return Some(until),
                BeginSettle::Expired => return None,
                BeginSettle::Busy => {
                    let left = self.left(handle);
                    if left.is_zero() {
                        return None;
                    }
                    unless(Sleep::for_(SystemClock::shared(), left), changed).await;
                }
            }
        }
    }

    /// Whether it has not ended by then.
    pub(super) fn lasts(&self, handle: &ReceiptHandle, now: Instant) -> bool {
        self.lock().leases.get(handle).is_some_and(|lease| lease.until > now)
    }

    /// What was delivered, for an act that needs it.
    pub(super) fn content(&self, handle: &ReceiptHandle) -> Option<(Delivery, Option<String>)> {
        self.lock().leases.get(handle).map(|lease| (lease.delivery.clone(), lease.group.clone()))
    }

    /// The lease has ended.
    pub(super) fn end(&self, handle: &ReceiptHandle) {
        self.lock().remove(handle);
        self.changed.notify_waiters();
    }

    /// The act has ended and the lease has not. `until` if that has changed.
    pub(super) fn release(&self, handle: &ReceiptHandle, until: Option<Instant>) {
        if let Some(lease) = self.lock().leases.get_mut(handle) {
            lease.is_settling = false;
            lease.until = until.unwrap_or(lease.until);
        }
        self.changed.notify_waiters();
    }
}

/// An instant so far ahead, or as far as there are any.
pub(super) fn after(start: Instant, by: Duration) -> Instant {
    start.checked_add(by).unwrap_or_else(|| start + Duration::from_secs(24 * 60 * 60))
}
