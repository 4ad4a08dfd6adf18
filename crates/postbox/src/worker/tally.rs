//! What a loop counts.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use metrics::{Counter, Histogram};
use postbox_core::shared::mailbox::Signal;

use super::LoopReport;
use crate::mailbox::handle::Core;

/// What is going on, and what was done; it outlives the loop for the sake of guards.
#[derive(Default)]
pub(super) struct Tally {
    /// Fetched and not yet finished.
    pub(super) outstanding: AtomicUsize,
    /// Being given back.
    pub(super) returning: AtomicUsize,
    /// Rung when a message is finished or given back, or a worker ends.
    pub(super) progress: Signal,
    pub(super) iterations: AtomicU64,
    pub(super) received: AtomicU64,
    pub(super) succeeded: AtomicU64,
    pub(super) retried: AtomicU64,
    pub(super) dead_lettered: AtomicU64,
    pub(super) given_back: AtomicU64,
    pub(super) unfinished: AtomicU64,
    pub(super) receive_errors: AtomicU64,
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Tally {
    pub(super) fn report(&self) -> LoopReport {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LoopReport {
            iterations: read(&self.iterations),
            received: read(&self.received),
            succeeded: read(&self.succeeded),
            retried: read(&self.retried),
            dead_lettered: read(&self.dead_lettered),
            given_back: read(&self.given_back),
            unfinished: read(&self.unfinished),
            receive_errors: read(&self.receive_errors),
        }
    }
}

pub(super) struct Meters {
    pub(super) succeeded: Counter,
    pub(super) failed: Counter,
    pub(super) took: Histogram,
}

impl Meters {
    pub(super) fn new(core: &Core) -> Self {
        let mailbox = core.name.to_string();
        Meters {
            succeeded: metrics::counter!("postbox_handled_total", "mailbox" => mailbox.clone(), "outcome" => "succeeded"),
            failed: metrics::counter!("postbox_handled_total", "mailbox" => mailbox.clone(), "outcome" => "failed"),
            took: metrics::histogram!("postbox_handler_seconds", "mailbox" => mailbox),
        }
    }
}
