//! Telling those who watch.

use super::*;

impl<M, O: Order<M>, C: MetadataStorageMode> Core<M, O, C> {
    /// Changes the hooks. With none set, no operation looks at them.
    pub(crate) fn change_hooks<R>(&self, change: impl FnOnce(&mut Hooks<C>) -> R) -> R {
        let mut inbox = self.back.inbox.lock();
        let mut guard = self.extras.lock();
        let hooks = &mut guard.get_or_insert_default().hooks;
        let answer = change(hooks);
        let flags = self.flags.get();
        self.flags.publish(if hooks.is_empty() { flags & !OBSERVED } else { flags | OBSERVED });
        drop(guard);
        self.has_room(&mut inbox);
        answer
    }

    fn hooks(&self) -> Option<Hooks<C>> {
        if self.flags.get() & OBSERVED == 0 {
            return None;
        }
        self.extras.lock().as_ref().map(|extras| extras.hooks.clone())
    }

    pub(super) fn notify_hooks(&self) {
        if let Some(hooks) = self.hooks() {
            hooks.notify();
        }
    }

    /// Tells the metrics sink what happened.
    pub(super) fn report(&self, event: MailboxEvent) {
        if let Some(hooks) = self.hooks() {
            hooks.report(event, self.len(), self.occupation());
        }
    }

    /// Tells the hooks what became of an offer, and that there is something to receive.
    pub(super) fn report_offer<T>(&self, outcome: &OfferOutcome<T>) {
        let Some(hooks) = self.hooks() else { return };
        let (depth, occupation) = (self.len(), self.occupation());
        match outcome {
            OfferOutcome::Accepted => {}
            OfferOutcome::Rejected(_) => {
                return hooks.report(MailboxEvent::Rejected, depth, occupation);
            }
            OfferOutcome::Evicted(_) => hooks.report(MailboxEvent::Evicted, depth, occupation),
            OfferOutcome::Grew(capacity) => {
                hooks.report(MailboxEvent::Grown { capacity: *capacity }, depth, occupation);
            }
        }
        hooks.report(MailboxEvent::Enqueued, depth, occupation);
        hooks.notify();
    }
}
