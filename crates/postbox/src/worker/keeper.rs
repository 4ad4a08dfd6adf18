//! Keeps the leases of a loop alive, all of them by one background task.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::FutureExt as _;

use crate::backend::{Batch, Receipt, Visibility};
use crate::error::Error;
use crate::mailbox::handle::Core;
use crate::runtime::cancellation::{Cancellation, unless};
use crate::runtime::clock::{Moment, Sleep};
use crate::runtime::{background, lock};

/// Leases that are in use. Each is extended when a third of its time has passed, until its cap; what is lost, or has come
/// to its cap, is told by its token.
pub(crate) struct Keeper {
    core: Arc<Core>,
    visibility: Duration,
    cap: Duration,
    state: Mutex<State>,
    stop: Cancellation,
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

#[derive(Default)]
struct State {
    leases: HashMap<u64, Kept>,
    counter: u64,
}

struct Kept {
    receipt: Receipt,
    extend_at: Moment,
    /// When the lease ends if it is not extended.
    ends: Moment,
    cap_at: Moment,
    lost: Cancellation,
}

impl Kept {
    /// When its handler must know that it is over.
    fn ends(&self) -> Moment {
        self.ends.min(self.cap_at)
    }
}

/// One lease among those of a [`Keeper`]; it is kept until this is dropped.
pub(crate) struct Keeping {
    keeper: Arc<Keeper>,
    number: u64,
    pub(crate) lost: Cancellation,
}

impl Drop for Keeping {
    fn drop(&mut self) {
        let gone = self.keeper.lock().leases.remove(&self.number);
        drop(gone);
    }
}

impl Keeper {
    pub(crate) fn start(core: Arc<Core>, visibility: Duration, cap: Duration) -> Arc<Self> {
        let stop = Cancellation::new();
        let keeper = Arc::new(Keeper { core, visibility, cap, state: Mutex::default(), stop: stop.clone() });
        let weak = Arc::downgrade(&keeper);
        background::spawn(async move {
            while let Some(sleep) = weak.upgrade().map(|keeper| keeper.rest()) {
                if unless(stop.cancelled(), sleep).await.is_none() {
                    break;
                }
                if let Some(keeper) = weak.upgrade() {
                    // A backend that panics is one that fails: the next round tries again.
                    let _ = AssertUnwindSafe(keeper.extend_due()).catch_unwind().await;
                }
            }
        });
        keeper
    }

    /// How often leases are looked at: six times each.
    fn round(&self) -> Duration {
        (self.visibility / 6).min(self.cap / 2).max(Duration::from_millis(1))
    }

    /// Until the next round, and no longer than until a lease is to be extended, or it or its cap ends.
    fn rest(&self) -> Sleep {
        let round = self.core.clock.now().after(self.round());
        let state = self.lock();
        let kept = state.leases.values().filter(|kept| !kept.lost.is_cancelled());
        let next = kept.map(|kept| kept.extend_at.min(kept.ends())).min();
        Sleep::until(Arc::clone(&self.core.clock), next.map_or(round, |next| next.min(round)))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Keeps a lease that was given at `since`.
    pub(crate) fn keep(self: &Arc<Self>, receipt: Receipt, since: Moment) -> Keeping {
        let lost = Cancellation::new();
        let kept = Kept {
            receipt,
            extend_at: since.after(self.visibility / 3),
            ends: since.after(self.visibility),
            cap_at: since.after(self.cap),
            lost: lost.clone(),
        };
        let mut state = self.lock();
        state.counter += 1;
        let number = state.counter;
        state.leases.insert(number, kept);
        drop(state);
        Keeping { keeper: Arc::clone(self), number, lost }
    }

    /// Keeps no lease any more, and tells their handlers.
    pub(crate) fn forget(&self) {
        let leases = std::mem::take(&mut self.lock().leases);
        tell(leases.into_iter().map(|(number, kept)| (number, kept.lost)).collect());
    }

    async fn extend_due(&self) {
        let now = self.core.clock.now();
        let mut due = Vec::new();
        let mut lost = Vec::new();
        {
            let mut state = self.lock();
            for (number, kept) in state.leases.iter_mut().filter(|(_, kept)| !kept.lost.is_cancelled()) {
                if now >= kept.ends() {
                    lost.push((*number, kept.lost.clone()));
                } else if now >= kept.extend_at {
                    // Not past the cap: from then on another consumer may have the message.
                    let by = self.visibility.min(now.until(kept.cap_at));
                    due.push((*number, kept.receipt.clone(), by));
                    // If it cannot be done now, the next round tries again.
                    kept.extend_at = now.after(self.round());
                }
            }
        }
        tell(lost);
        for batch in due.chunks(self.core.limits.max_batch) {
            let changes: Batch<_> =
                batch.iter().map(|(_, receipt, by)| (receipt.clone(), Visibility::Extend(*by))).collect();
            // A place that does not answer must not keep the others' leases from being looked at.
            let patience =
                Sleep::for_(Arc::clone(&self.core.clock), (self.visibility / 3).max(Duration::from_millis(1)));
            let Some(results) = unless(patience, self.core.set_visibility(changes)).await else { continue };
            let mut lost = Vec::new();
            {
                let mut state = self.lock();
                for ((number, _, by), result) in batch.iter().zip(results) {
                    let Some(kept) = state.leases.get_mut(number) else { continue };
                    match result {
                        Ok(()) => {
                            kept.ends = now.after(*by);
                            kept.extend_at = now.after(self.visibility / 3);
                        }
                        Err(Error::ReceiptHandleExpired { .. }) => lost.push((*number, kept.lost.clone())),
                        // It may pass.
                        Err(_) => {}
                    }
                }
            }
            tell(lost);
        }
    }
}

/// The latest first: they may still wait for their turn, and must know before it comes.
fn tell(mut lost: Vec<(u64, Cancellation)>) {
    lost.sort_unstable_by_key(|(number, _)| std::cmp::Reverse(*number));
    lost.iter().for_each(|(_, lost)| lost.cancel());
}
