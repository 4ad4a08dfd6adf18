//! The deadline of every delivery that this process has received and not settled.
//!
//! SQS answers with success to a receipt whose lease has ended, and sometimes executes the request.
//! So the tracker decides before a request is sent. A receipt is valid until its deadline, and for
//! one operation at a time.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::message_format::ReceivedMessage;
use crate::backend::Delivery;
use crate::mailbox::id::ReceiptHandle;
use crate::runtime::cancellation::unless;
use crate::runtime::clock::{Sleep, SystemClock};
use crate::runtime::lock;

#[derive(Default)]
pub(super) struct LeaseTracker {
    state: Mutex<State>,
    /// Notified when an operation on a delivery ends.
    changed: Notify,
}

#[derive(Default)]
struct State {
    leases: HashMap<ReceiptHandle, Lease>,
    body_bytes: usize,
    /// The number of leases and of body bytes at which expired leases are removed.
    sweep_at: (usize, usize),
}

impl State {
    fn remove(&mut self, handle: &ReceiptHandle) {
        if let Some(lease) = self.leases.remove(handle) {
            self.body_bytes -= lease.delivery.body.len();
        }
    }
}

struct Lease {
    received_at: Instant,
    deadline: Instant,
    /// An operation on the delivery is in progress.
    is_settling: bool,
    delivery: Delivery,
    group: Option<String>,
}

/// Whether an operation on a delivery may begin.
#[derive(Debug, PartialEq)]
pub(super) enum BeginSettle {
    /// It has begun, and no other one begins until it ends. The lease ends at this deadline.
    Begun(Instant),
    /// Another operation is in progress.
    Busy,
    /// The lease has ended.
    Expired,
}

/// Expired leases are not removed while there are fewer leases than this.
const MIN_SWEEP_LEASES: usize = 1_000;
/// Expired leases are not removed while bodies have fewer bytes than this.
const MIN_SWEEP_BYTES: usize = 16 << 20;

impl LeaseTracker {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(super) fn add(&self, received: &ReceivedMessage, received_at: Instant, deadline: Instant) {
        let mut state = self.lock();
        if state.leases.len() >= state.sweep_at.0.max(MIN_SWEEP_LEASES)
            || state.body_bytes >= state.sweep_at.1.max(MIN_SWEEP_BYTES)
        {
            let now = Instant::now();
            state.leases.retain(|_, lease| lease.deadline > now || lease.is_settling);
            state.body_bytes = state.leases.values().map(|lease| lease.delivery.body.len()).sum();
            state.sweep_at = (state.leases.len() * 2, state.body_bytes * 2);
        }
        let delivery = received.delivery.clone();
        let handle = delivery.receipt_handle.clone();
        state.remove(&handle);
        state.body_bytes += delivery.body.len();
        let group = received.group.clone();
        state.leases.insert(handle, Lease { received_at, deadline, is_settling: false, delivery, group });
    }

    pub(super) fn begin(&self, handle: &ReceiptHandle) -> BeginSettle {
        let mut state = self.lock();
        match state.leases.get_mut(handle) {
            Some(lease) if lease.is_settling => BeginSettle::Busy,
            Some(lease) if lease.deadline > Instant::now() => {
                lease.is_settling = true;
                BeginSettle::Begun(lease.deadline)
            }
            Some(_) => {
                state.remove(handle);
                BeginSettle::Expired
            }
            None => BeginSettle::Expired,
        }
    }

    /// Waits until the operation in progress ends, then begins. `None` if the lease has ended, also
    /// while another operation is in progress.
    pub(super) async fn begin_when_idle(&self, handle: &ReceiptHandle) -> Option<Instant> {
        loop {
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            match self.begin(handle) {
                BeginSettle::Begun(deadline) => return Some(deadline),
                BeginSettle::Expired => return None,
                BeginSettle::Busy => {
                    let remaining = self.remaining(handle);
                    if remaining.is_zero() {
                        return None;
                    }
                    unless(Sleep::for_(SystemClock::shared(), remaining), changed).await;
                }
            }
        }
    }

    /// The time until the deadline. Zero for an unknown receipt.
    pub(super) fn remaining(&self, handle: &ReceiptHandle) -> Duration {
        let deadline = self.lock().leases.get(handle).map(|lease| lease.deadline);
        deadline.map_or(Duration::ZERO, |deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// The time since the delivery was received.
    pub(super) fn age(&self, handle: &ReceiptHandle) -> Duration {
        self.lock().leases.get(handle).map_or(Duration::ZERO, |lease| lease.received_at.elapsed())
    }

    /// The delivery and its message group.
    pub(super) fn delivery(&self, handle: &ReceiptHandle) -> Option<(Delivery, Option<String>)> {
        self.lock().leases.get(handle).map(|lease| (lease.delivery.clone(), lease.group.clone()))
    }

    /// Ends an operation and the lease.
    pub(super) fn end_lease(&self, handle: &ReceiptHandle) {
        self.lock().remove(handle);
        self.changed.notify_waiters();
    }

    /// Ends an operation and keeps the lease, with a new deadline if there is one.
    pub(super) fn keep_lease(&self, handle: &ReceiptHandle, deadline: Option<Instant>) {
        if let Some(lease) = self.lock().leases.get_mut(handle) {
            lease.is_settling = false;
            lease.deadline = deadline.unwrap_or(lease.deadline);
        }
        self.changed.notify_waiters();
    }
}

/// Adds a duration to an instant, or a day if the platform cannot represent the sum.
pub(super) fn add_duration(start: Instant, duration: Duration) -> Instant {
    start.checked_add(duration).unwrap_or_else(|| start + Duration::from_secs(24 * 60 * 60))
}
