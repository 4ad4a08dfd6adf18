//! Operations on a whole mailbox: close, suspend, stash, and the counts of its handles.

use alloc::vec::Vec;

use super::*;

impl<M, O: Order<M>, C: MetadataStorageMode> Queue<M, O, C> {
    /// Stops accepting messages; stored messages can still be received. Returns `false` if the
    /// queue was closed already.
    pub(crate) fn close(&self) -> bool {
        let mut first = false;
        // With both locks held no push is in progress, so a thread that sees the flag sees every
        // accepted message.
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

    /// Closes the queue and takes all messages: control messages, then stashed ones, then the rest
    /// in order.
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

    /// Withholds regular messages until [`resume`](Self::resume) was called as often as `suspend`.
    pub(crate) fn suspend(&self) {
        let inbox = self.back.inbox.lock();
        let mut guard = self.extras.lock();
        guard.get_or_insert_default().suspensions += 1;
        self.flags.store_release(self.flags.get() | SUSPENDED);
        drop((guard, inbox));
        self.report(MailboxEvent::Suspended);
    }

    /// Undoes one [`suspend`](Self::suspend). Returns `false` if there was none.
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

    /// Stashes a received message. A stashed regular message counts against the capacity, so it can
    /// always be unstashed.
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

    /// Returns all stashed messages to their channels, in the order in which they were stashed and
    /// ahead of stored messages of equal priority. Returns their number.
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

    /// Registers a producer handle.
    pub(crate) fn add_producer(&self) {
        // A concurrent first producer may have incremented the count but not yet cleared the flag.
        if self.producers.increment() == 0 || self.flags.get() & NO_PRODUCER != 0 {
            self.refresh_no_producer();
        }
    }

    /// Unregisters a producer handle. The last one disconnects the receivers.
    pub(crate) fn remove_producer(&self) {
        if self.producers.decrement() == 1 && self.refresh_no_producer() {
            self.wake_receivers();
            self.notify_hooks();
        }
    }

    /// Recomputes the flag `NO_PRODUCER`. The count is read under the inbox lock, so the last of
    /// several concurrent calls writes the correct flag.
    fn refresh_no_producer(&self) -> bool {
        let mut no_producer = false;
        self.change_flags(|flags| {
            no_producer = self.producers.load_acquire() == 0;
            if no_producer { flags | NO_PRODUCER } else { flags & !NO_PRODUCER }
        });
        no_producer
    }

    /// Registers a consumer handle.
    pub(crate) fn add_consumer(&self) {
        self.consumers.increment();
    }

    /// The number of producer and consumer handles.
    #[cfg(feature = "std")]
    pub(crate) fn handles(&self) -> usize {
        self.producers.get() + self.consumers.get()
    }

    /// Unregisters a consumer handle. The last one closes the queue: stored messages are dropped,
    /// and waiting senders get their messages back.
    pub(crate) fn remove_consumer(&self) {
        if self.consumers.decrement() == 1 {
            drop(self.close_and_drain());
        }
    }
}
