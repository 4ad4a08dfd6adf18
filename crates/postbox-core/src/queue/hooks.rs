//! Hooks: the metrics sink, the scheduler hook and the signal of a mailbox.

use alloc::sync::Arc;

use super::*;
use crate::shared::mailbox::{MetricsSink, SchedulerHook, Signal};

/// The hooks of one mailbox.
pub(crate) struct Hooks<C: MetadataStorageMode> {
    pub(crate) sink: Option<Arc<dyn MetricsSink>>,
    pub(crate) scheduler: Option<Arc<dyn SchedulerHook>>,
    pub(crate) signal: Option<Signal<C>>,
}

impl<C: MetadataStorageMode> Default for Hooks<C> {
    fn default() -> Self {
        Hooks { sink: None, scheduler: None, signal: None }
    }
}

impl<M, O: Order<M>, C: MetadataStorageMode> Queue<M, O, C> {
    /// Changes the hooks and updates the flags that tell operations to call them.
    pub(crate) fn change_hooks<R>(&self, change: impl FnOnce(&mut Hooks<C>) -> R) -> R {
        let store = self.front.store.lock();
        let mut inbox = self.back.inbox.lock();
        let mut guard = self.extras.lock();
        let hooks = &mut guard.get_or_insert_default().hooks;
        let answer = change(hooks);
        let mut flags = self.flags.get() & !(METRICS | NOTIFY);
        if hooks.sink.is_some() {
            flags |= METRICS;
        }
        if hooks.signal.is_some() || hooks.scheduler.is_some() {
            flags |= NOTIFY;
        }
        self.flags.store_release(flags);
        drop(guard);
        self.refresh_room(&mut inbox);
        drop((inbox, store));
        answer
    }

    /// Sets the metrics sink. The previous sink is dropped outside all locks.
    pub(crate) fn set_metrics_sink(&self, sink: Option<Arc<dyn MetricsSink>>) {
        drop(self.change_hooks(|hooks| core::mem::replace(&mut hooks.sink, sink)));
    }

    /// Sets the scheduler hook. The previous hook is dropped outside all locks.
    pub(crate) fn set_scheduler_hook(&self, hook: Option<Arc<dyn SchedulerHook>>) {
        drop(self.change_hooks(|hooks| core::mem::replace(&mut hooks.scheduler, hook)));
    }

    /// Notifies the signal and the scheduler hook that a message may be ready to receive.
    pub(super) fn notify_hooks(&self) {
        if self.flags.get() & NOTIFY == 0 {
            return;
        }
        let (signal, scheduler) = match self.extras.lock().as_ref() {
            None => return,
            Some(extras) => {
                let Hooks { signal, scheduler, .. } = &extras.hooks;
                (signal.as_ref().filter(|signal| signal.raise()).cloned(), scheduler.clone())
            }
        };
        if let Some(signal) = signal {
            signal.wake();
        }
        if let Some(scheduler) = scheduler {
            scheduler.notify_ready();
        }
    }

    fn sink(&self) -> Option<Arc<dyn MetricsSink>> {
        if self.flags.get() & METRICS == 0 {
            return None;
        }
        self.extras.lock().as_ref().and_then(|extras| extras.hooks.sink.clone())
    }

    /// Reports an event to the metrics sink.
    pub(super) fn report(&self, event: MailboxEvent) {
        if let Some(sink) = self.sink() {
            record(&*sink, event, self.len(), self.usage());
        }
    }

    /// Reports the outcome of an offer to the hooks.
    pub(super) fn report_offer<T>(&self, outcome: &OfferOutcome<T>) {
        if self.flags.get() & (METRICS | NOTIFY) == 0 {
            return;
        }
        if let Some(sink) = self.sink() {
            let (depth, usage) = (self.len(), self.usage());
            let special = match outcome {
                OfferOutcome::Accepted => None,
                OfferOutcome::Rejected(_) => Some(MailboxEvent::Rejected),
                OfferOutcome::Evicted(_) => Some(MailboxEvent::Evicted),
                OfferOutcome::Grew(capacity) => Some(MailboxEvent::Grown { capacity: *capacity }),
            };
            if let Some(event) = special {
                record(&*sink, event, depth, usage);
            }
            if outcome.is_accepted() {
                record(&*sink, MailboxEvent::Enqueued, depth, usage);
            }
        }
        if outcome.is_accepted() {
            self.notify_hooks();
        }
    }
}

/// The fill level, as a fraction, from which on `Pressure` events are reported.
const PRESSURE: (usize, usize) = (3, 4);

/// Records `event`, followed by the depth and the pressure where the event changes them. `usage` is
/// the number of occupied places and the capacity of a bounded mailbox.
fn record(sink: &dyn MetricsSink, event: MailboxEvent, depth: usize, usage: Option<(usize, usize)>) {
    sink.record(event);
    if matches!(event, MailboxEvent::Enqueued | MailboxEvent::Dequeued | MailboxEvent::Evicted) {
        sink.record(MailboxEvent::Depth { depth });
    }
    if let (MailboxEvent::Enqueued, Some((taken, capacity))) = (event, usage)
        && taken.saturating_mul(PRESSURE.1) >= capacity.saturating_mul(PRESSURE.0)
    {
        sink.record(MailboxEvent::Pressure { depth: taken, capacity });
    }
}
