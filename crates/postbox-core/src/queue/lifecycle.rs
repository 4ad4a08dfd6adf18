//! What happens to a mailbox as a whole: closing, suspending, stashing, and handles that come and go.

use alloc::vec::Vec;

use super::*;

impl<M, O: Order<M>, C: MetadataStorageMode> Queue<M, O, C> {
    /// Takes no more messages; those inside can still be received. `false` if it was closed before.
    pub(crate) fn close(&self) -> bool {
        let mut first = false;
        // Under both locks no push is half done: a thread that sees the flag sees all messages.
        let store = self.front.store.lock();
        self.change_flags(|flags| {
            first = flags & CLOSED == 0;
            flags | CLOSED
        });
        drop(store);
        self.senders.wake_all();
        self.wake_receivers();
        let mut control_senders = Vec::new();
        if let Some(extras) = self.extras.lock().as_ref() {
            control_senders.extend(core::iter::from_fn(|| extras.control_senders.notify_one()));
        }
        control_senders.into_iter().for_each(Waker::wake);
        self.notify_hooks();
        first
    }

    /// Closes and takes everything that is left: control messages, then the stash, then the rest in order.
    pub(crate) fn close_and_drain(&self) -> Vec<M> {
        self.close();
        let mut left = Vec::new();
        let stash = {
            let mut store = self.front.store.lock();
            let mut inbox = self.back.inbox.lock();
            store.append(&mut inbox.messages);
            let mut guard = self.extras.lock();
            let mut stash = Vec::new();
            if let Some(extras) = guard.as_mut() {
                while let Some(item) = extras.control.pop() {
                    left.push(O::into_message(item));
                }
                stash = core::mem::take(&mut extras.stash);
            }
            left.extend(stash.drain(..).map(|(item, _)| O::into_message(item)));
            while let Some(item) = store.pop() {
                left.push(O::into_message(item));
            }
            self.flags.store_release(self.flags.get() & !CONTROL);
            self.stashed.set(0);
            self.front.popped.store_release(self.back.pushed.get());
            self.front.store_len.store_release(0);
            stash
        };
        drop(stash);
        self.wake_receivers();
        self.report(MailboxEvent::Depth { depth: 0 });
        left
    }

    /// Holds regular messages back until as many `resume`s have come.
    pub(crate) fn suspend(&self) {
        let inbox = self.back.inbox.lock();
        let mut guard = self.extras.lock();
        guard.get_or_insert_default().suspensions += 1;
        self.flags.store_release(self.flags.get() | SUSPENDED);
        drop((guard, inbox));
        self.report(MailboxEvent::Suspended);
    }

    /// Takes one `suspend` back. `false` if there was none.
    pub(crate) fn resume(&self) -> bool {
        let inbox = self.back.inbox.lock();
        let mut guard = self.extras.lock();
        let Some(extras) = guard.as_mut().filter(|extras| extras.suspensions > 0) else {
            return false;
        };
        extras.suspensions -= 1;
        let running = extras.suspensions == 0;
        if running {
            self.flags.store_release(self.flags.get() & !SUSPENDED);
        }
        drop((guard, inbox));
        if running {
            self.wake_receivers();
            self.report(MailboxEvent::Resumed);
            self.notify_hooks();
        }
        true
    }

    /// Puts a received message aside. It keeps its room in the mailbox, so it can always come back.
    pub(crate) fn stash(&self, message: M) {
        let item = self.order.to_item(message);
        let control = self.order.is_control(&item);
        let _store = self.front.store.lock();
        let mut inbox = self.back.inbox.lock();
        self.extras.lock().get_or_insert_default().stash.push((item, control));
        if !control {
            self.stashed.set(self.stashed.get() + 1);
            self.refresh_room(&mut inbox);
        }
    }

    /// Puts all stashed messages back on their lanes, in the order in which they were stashed and before what waits.
    /// Returns how many.
    pub(crate) fn unstash(&self) -> usize {
        let mut store = self.front.store.lock();
        let mut inbox = self.back.inbox.lock();
        let mut guard = self.extras.lock();
        let Some(extras) = guard.as_mut().filter(|extras| !extras.stash.is_empty()) else {
            return 0;
        };
        let count = extras.stash.len();
        for (item, control) in extras.stash.drain(..).rev() {
            if control {
                extras.control.push_before_equals(item);
                self.flags.store_release(self.flags.get() | CONTROL);
            } else {
                store.push_before_equals(item);
            }
        }
        let popped = self.front.popped.get().wrapping_sub(self.stashed.get());
        self.stashed.set(0);
        self.front.popped.store_release(popped);
        self.front.store_len.store_release(store.len());
        self.refresh_room(&mut inbox);
        drop((guard, inbox, store));
        for _ in 0..count {
            self.wake_receiver();
        }
        self.report(MailboxEvent::Depth { depth: self.len() });
        self.notify_hooks();
        count
    }

    /// A producer handle exists.
    pub(crate) fn add_producer(&self) {
        // Also when another newcomer was first, but has not come to the refreshing yet.
        if self.producers.increment() == 0 || self.flags.get() & NO_PRODUCER != 0 {
            self.refresh_no_producer();
        }
    }

    /// A producer handle is gone. With the last one nothing more will come.
    pub(crate) fn remove_producer(&self) {
        if self.producers.decrement() == 1 && self.refresh_no_producer() {
            self.wake_receivers();
            self.notify_hooks();
        }
    }

    /// Whether there is a producer is asked under the lock, so that of one that comes and one that goes at the same
    /// time the later one leaves the right answer.
    fn refresh_no_producer(&self) -> bool {
        let mut no_producer = false;
        self.change_flags(|flags| {
            no_producer = self.producers.load_acquire() == 0;
            if no_producer { flags | NO_PRODUCER } else { flags & !NO_PRODUCER }
        });
        no_producer
    }

    /// A consumer handle exists.
    pub(crate) fn add_consumer(&self) {
        self.consumers.increment();
    }

    /// Producers and consumers together.
    #[cfg(feature = "std")]
    pub(crate) fn handles(&self) -> usize {
        self.producers.get() + self.consumers.get()
    }

    /// A consumer handle is gone. With the last one nothing can be received: what is left is dropped, and senders
    /// get their messages back.
    pub(crate) fn remove_consumer(&self) {
        if self.consumers.decrement() == 1 {
            drop(self.close_and_drain());
        }
    }
}
