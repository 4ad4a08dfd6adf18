//! A message in flight: fetched by a loop, and not finished.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use postbox_core::shared::mailbox::MailboxSignal as _;

use super::lease_renewal::RenewalGuard;
use super::stats::Stats;
use crate::backend::{Receipt, Visibility};
use crate::mailbox::handle::{Core, Settlement};
use crate::mailbox::message::Message;
use crate::mailbox::receive::in_background;

pub(super) struct InFlight<T, R, C> {
    pub(super) message: Message<T, R, C>,
    pub(super) renewal: RenewalGuard,
    pub(super) guard: ReturnGuard,
}

/// Counts a message as in flight. Dropping the guard gives the message back unless it was finished.
pub(super) struct ReturnGuard {
    core: Arc<Core>,
    receipt: Option<Receipt>,
    /// Whether a handler has begun. Otherwise the message is released, and the delivery does not count.
    is_begun: bool,
    stats: Arc<Stats>,
}

impl ReturnGuard {
    pub(super) fn new(core: &Arc<Core>, receipt: Receipt, stats: &Arc<Stats>) -> Self {
        stats.in_flight.fetch_add(1, Ordering::SeqCst);
        ReturnGuard { core: Arc::clone(core), receipt: Some(receipt), is_begun: false, stats: Arc::clone(stats) }
    }

    /// A handler begins.
    pub(super) fn begin(&mut self) {
        self.is_begun = true;
    }

    /// The message is finished, or its lease is lost: it is not given back.
    pub(super) fn finish(mut self) {
        self.receipt = None;
    }
}

impl Drop for ReturnGuard {
    fn drop(&mut self) {
        if let Some(receipt) = self.receipt.take() {
            let stats = Arc::clone(&self.stats);
            stats.returning.fetch_add(1, Ordering::SeqCst);
            let visibility = if self.is_begun { Visibility::Return(Duration::ZERO) } else { Visibility::Release };
            let returned = self.core.settle(receipt, Settlement::Visibility(visibility));
            in_background(returned.map(move |returned| {
                if returned.is_ok() {
                    stats.count(|report| &mut report.given_back);
                }
                stats.returning.fetch_sub(1, Ordering::SeqCst);
                stats.progress.notify();
            }));
        }
        self.stats.in_flight.fetch_sub(1, Ordering::SeqCst);
        self.stats.progress.notify();
    }
}
