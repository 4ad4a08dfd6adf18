//! Extends the leases of the messages in flight. One background task does so for a whole loop.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::FutureExt as _;

use crate::backend::{Receipt, Visibility};
use crate::error::Error;
use crate::mailbox::handle::Core;
use crate::runtime::cancellation::{Cancellation, unless};
use crate::runtime::clock::{Moment, Sleep};
use crate::runtime::{background, lock};

/// The leases that are extended: each when a third of its time has passed, up to `max_lease` after the message was
/// received. A lease that is lost, or that has reached that limit, cancels its token.
pub(super) struct LeaseRenewal {
    core: Arc<Core>,
    visibility: Duration,
    max_lease: Duration,
    leases: Mutex<Leases>,
    stop: Cancellation,
}

#[derive(Default)]
struct Leases {
    /// By number. A later message has a higher number.
    entries: BTreeMap<u64, RenewedLease>,
    last_number: u64,
}

struct RenewedLease {
    receipt: Receipt,
    extend_at: Moment,
    /// When the lease ends unless it is extended.
    deadline: Moment,
    /// The lease is not extended beyond this moment.
    max_deadline: Moment,
    lost: Cancellation,
}

impl RenewedLease {
    /// When the handler has to stop.
    fn ends_at(&self) -> Moment {
        self.deadline.min(self.max_deadline)
    }
}

/// A lease that is extended until this is dropped.
pub(super) struct RenewalGuard {
    renewal: Arc<LeaseRenewal>,
    number: u64,
    /// Cancelled when the lease is lost.
    pub(super) lost: Cancellation,
}

impl Drop for RenewalGuard {
    fn drop(&mut self) {
        let removed = self.renewal.leases().entries.remove(&self.number);
        // Without the lock, since it may be the last owner of a waker.
        drop(removed);
    }
}

impl Drop for LeaseRenewal {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl LeaseRenewal {
    /// Starts the task. It ends with the last owner.
    pub(super) fn start(core: Arc<Core>, visibility: Duration, max_lease: Duration) -> Arc<Self> {
        let stop = Cancellation::new();
        let leases = Mutex::default();
        let renewal = Arc::new(LeaseRenewal { core, visibility, max_lease, leases, stop: stop.clone() });
        let weak = Arc::downgrade(&renewal);
        background::spawn(async move {
            while let Some(sleep) = weak.upgrade().map(|renewal| renewal.sleep()) {
                if unless(stop.cancelled(), sleep).await.is_none() {
                    break;
                }
                if let Some(renewal) = weak.upgrade() {
                    // After a panic of the backend the next round tries again, as after an error.
                    let _ = AssertUnwindSafe(renewal.extend_due()).catch_unwind().await;
                }
            }
        });
        renewal
    }

    /// The time between two rounds: six in the time of a lease.
    fn interval(&self) -> Duration {
        (self.visibility / 6).min(self.max_lease / 2).max(Duration::from_millis(1))
    }

    /// Sleeps until the next round, or until a lease has to be extended or ends.
    fn sleep(&self) -> Sleep {
        let next_round = self.core.clock.now().after(self.interval());
        let leases = self.leases();
        let live = leases.entries.values().filter(|lease| !lease.lost.is_cancelled());
        let next = live.map(|lease| lease.extend_at.min(lease.ends_at())).chain([next_round]).min();
        Sleep::until(Arc::clone(&self.core.clock), next.unwrap_or(next_round))
    }

    fn leases(&self) -> MutexGuard<'_, Leases> {
        lock(&self.leases)
    }

    /// Extends a lease that began at `since`.
    pub(super) fn add(self: &Arc<Self>, receipt: Receipt, since: Moment) -> RenewalGuard {
        let lost = Cancellation::new();
        let lease = RenewedLease {
            receipt,
            extend_at: since.after(self.visibility / 3),
            deadline: since.after(self.visibility),
            max_deadline: since.after(self.max_lease),
            lost: lost.clone(),
        };
        let mut leases = self.leases();
        leases.last_number += 1;
        let number = leases.last_number;
        leases.entries.insert(number, lease);
        RenewalGuard { renewal: Arc::clone(self), number, lost }
    }

    /// Extends no lease any more, and cancels the tokens of all.
    pub(super) fn abandon_all(&self) {
        let entries = std::mem::take(&mut self.leases().entries);
        cancel(entries.into_values().rev().map(|lease| lease.lost).collect());
    }

    async fn extend_due(&self) {
        let now = self.core.clock.now();
        let (mut due, mut lost) = (Vec::new(), Vec::new());
        for (number, lease) in self.leases().entries.iter_mut().rev().filter(|(_, lease)| !lease.lost.is_cancelled()) {
            if now >= lease.ends_at() {
                lost.push(lease.lost.clone());
            } else if now >= lease.extend_at {
                // Not beyond the limit: from then on another consumer may have the message.
                let by = self.visibility.min(now.until(lease.max_deadline));
                due.push((*number, lease.receipt.clone(), by));
                // If the extension fails, the next round tries again.
                lease.extend_at = now.after(self.interval());
            }
        }
        cancel(lost);
        for batch in due.chunks(self.core.limits.max_batch) {
            let changes: Vec<_> =
                batch.iter().map(|(_, receipt, by)| (receipt.clone(), Visibility::Extend(*by))).collect();
            // A request without a response must not delay the extension of the other leases.
            let timeout = (self.visibility / 3).max(Duration::from_millis(1));
            let timeout = Sleep::for_(Arc::clone(&self.core.clock), timeout);
            let Some(results) = unless(timeout, self.core.set_visibility(changes)).await else { continue };
            let mut lost = Vec::new();
            {
                let mut leases = self.leases();
                for ((number, _, by), result) in batch.iter().zip(results) {
                    let Some(lease) = leases.entries.get_mut(number) else { continue };
                    match result {
                        Ok(()) => {
                            lease.deadline = now.after(*by);
                            lease.extend_at = now.after(self.visibility / 3);
                        }
                        Err(Error::ReceiptHandleExpired { .. }) => lost.push(lease.lost.clone()),
                        // The next round tries again.
                        Err(_) => {}
                    }
                }
            }
            cancel(lost);
        }
    }
}

/// Cancels tokens, those of the latest messages first: a message that still waits for a handler must be marked as lost
/// before a handler is free.
fn cancel(lost: Vec<Cancellation>) {
    lost.iter().for_each(Cancellation::cancel);
}
