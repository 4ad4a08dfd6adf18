//! The counts and the metrics of a loop.

use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;

use metrics::{Counter, Histogram};
use postbox_core::shared::mailbox::Signal;

use super::LoopReport;
use crate::mailbox::handle::Core;
use crate::runtime::lock;

/// The counts of a loop. The guards of its messages own it too, so it may outlive the loop.
#[derive(Default)]
pub(super) struct Stats {
    /// The messages that were fetched and not yet finished.
    pub(super) in_flight: AtomicUsize,
    /// The messages that are being given back.
    pub(super) returning: AtomicUsize,
    /// Notified when a message is finished or given back, or a worker ends.
    pub(super) progress: Signal,
    report: Mutex<LoopReport>,
}

impl Stats {
    /// Adds one to a count of the report.
    pub(super) fn count(&self, field: impl FnOnce(&mut LoopReport) -> &mut u64) {
        *field(&mut lock(&self.report)) += 1;
    }

    pub(super) fn report(&self) -> LoopReport {
        *lock(&self.report)
    }
}

pub(super) struct LoopMetrics {
    pub(super) succeeded: Counter,
    pub(super) failed: Counter,
    pub(super) took: Histogram,
}

impl LoopMetrics {
    pub(super) fn new(core: &Core) -> Self {
        let mailbox = core.name.to_string();
        LoopMetrics {
            succeeded: metrics::counter!("postbox_handled_total", "mailbox" => mailbox.clone(), "outcome" => "succeeded"),
            failed: metrics::counter!("postbox_handled_total", "mailbox" => mailbox.clone(), "outcome" => "failed"),
            took: metrics::histogram!("postbox_handler_seconds", "mailbox" => mailbox),
        }
    }
}
