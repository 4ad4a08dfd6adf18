//! The consumer side: receiving and waiting for messages.

use alloc::vec::Vec;

use super::*;

/// The batch size from which on gathering more messages no longer pays.
const TARGET_BATCH: usize = 512;

/// The upper bound of `gather_spins`, about ten microseconds. A dense stream delivers hundreds of
/// messages in that time.
const MAX_GATHER_SPINS: usize = 512;

/// The largest message, in bytes, for which gathering pays. Larger messages transfer a cache line
/// each, which costs more than contending for the lock.
const MAX_GATHER_BYTES: usize = 32;

/// The number of consecutive single messages after which a stream counts as ended.
const STREAM_CREDIT: usize = 32;

/// At most this many messages are popped from the inbox one by one. That costs less than moving
/// them into the store.
const MAX_SINGLE_POPS: usize = 2;

impl<M, O: Order<M>, C: MetadataStorageMode> Queue<M, O, C> {
    /// The fast path of a receive, which moves the message once: pops the next message of a batch.
    /// `None` means that [`try_poll`](Self::try_poll) must decide.
    #[inline(always)]
    pub(crate) fn poll_fast(&self) -> Option<M> {
        if !O::Store::IS_FIFO || self.flags.get() & (CONTROL | SUSPENDED | METRICS) != 0 {
            return None;
        }
        self.pop_stored()
    }

    #[inline]
    pub(crate) fn try_poll(&self) -> Result<Option<M>, QueueError<M>> {
        if self.flags.get() & (CONTROL | SUSPENDED | METRICS) != 0 {
            return self.poll_slow();
        }
        match self.pop() {
            Some(message) => Ok(Some(message)),
            None => self.poll_empty(),
        }
    }

    /// [`try_poll`](Self::try_poll) without the check for disconnection.
    #[inline]
    pub(crate) fn poll_message(&self) -> Option<M> {
        if self.flags.get() & (CONTROL | SUSPENDED | METRICS) != 0 {
            return self.poll_slow().ok().flatten();
        }
        self.pop()
    }

    /// [`try_poll`](Self::try_poll) for a receiver that would wait otherwise. While messages arrive
    /// in a stream, it first spins for up to `max_spins`, so that a batch gathers. See
    /// [`adapt_gathering`](Self::adapt_gathering).
    #[inline]
    pub(crate) fn poll_gathering(&self, max_spins: usize) -> Result<Option<M>, QueueError<M>> {
        if size_of::<M>() <= MAX_GATHER_BYTES && self.stream_credit.get() > 0 {
            let spins = self.gather_spins.get();
            if spins > 0 && self.front.store_len.get() == 0 {
                self.gather(spins, max_spins);
            }
        }
        self.try_poll()
    }

    /// Whether the queue is empty and messages arrive one by one, so a receiver should register at
    /// once. During a stream the next message often arrives before a receiver has registered, which
    /// saves the wake-up.
    #[inline(always)]
    pub(crate) fn is_idle(&self) -> bool {
        self.flags.get() & !NOTIFY == 0 && self.stream_credit.get() == 0 && self.is_regular_empty()
    }

    #[inline(never)]
    fn gather(&self, spins: usize, max_spins: usize) {
        for _ in 0..spins.min(max_spins) {
            core::hint::spin_loop();
        }
        if self.is_regular_empty() {
            // The stream has ended, or its producers need this thread to make progress.
            self.gather_spins.set(spins / 4);
        }
    }

    /// Adapts `gather_spins` after `taken` messages were found in the inbox. Gathering is extended
    /// while a longer spin brings many more messages, and shortened when messages arrive one by
    /// one, which it would only delay.
    #[inline(never)]
    fn adapt_gathering(&self, taken: usize) {
        self.stream_credit.set(if taken > 1 { STREAM_CREDIT } else { self.stream_credit.get().saturating_sub(1) });
        if size_of::<M>() > MAX_GATHER_BYTES {
            return;
        }
        let spins = self.gather_spins.get();
        // At most a quarter of the capacity, so that the producers do not block meanwhile.
        let target = TARGET_BATCH.min(self.capacity.get() / 4);
        let adapted = if taken <= 1 || taken * 8 < spins {
            spins / 2
        } else if taken < target && taken * 2 >= spins {
            (spins * 2 + 2).min(MAX_GATHER_SPINS)
        } else {
            spins
        };
        if adapted != spins {
            self.gather_spins.set(adapted);
        }
    }

    /// Handles an empty queue: `Disconnected`, or a message that was pushed before the queue was
    /// closed.
    fn poll_empty(&self) -> Result<Option<M>, QueueError<M>> {
        if self.flags.load_acquire() & (CLOSED | NO_PRODUCER) == 0 {
            return Ok(None);
        }
        let message = if self.flags.get() & CONTROL != 0 {
            self.pop_control()
        } else if self.flags.get() & SUSPENDED != 0 && !self.is_regular_empty() {
            None
        } else {
            Some(self.pop().ok_or(QueueError::Disconnected)?)
        };
        if message.is_some() {
            self.report(MailboxEvent::Dequeued);
        }
        Ok(message)
    }

    #[cold]
    fn poll_slow(&self) -> Result<Option<M>, QueueError<M>> {
        let flags = self.flags.load_acquire();
        let mut message = None;
        if flags & CONTROL != 0 {
            message = self.pop_control();
        }
        if message.is_none() && flags & SUSPENDED == 0 {
            message = self.pop();
        }
        match message {
            Some(message) => {
                self.report(MailboxEvent::Dequeued);
                Ok(Some(message))
            }
            None => self.poll_empty(),
        }
    }

    fn pop_control(&self) -> Option<M> {
        let inbox = self.back.inbox.lock();
        let mut guard = self.extras.lock();
        let extras = guard.as_mut()?;
        let item = extras.control.pop();
        if extras.control.len() == 0 {
            self.flags.store_release(self.flags.get() & !CONTROL);
        }
        let waker = extras.control_senders.notify_one();
        drop((guard, inbox));
        if let Some(waker) = waker {
            waker.wake();
        }
        item.map(O::into_message)
    }

    /// Pops the next regular message.
    #[inline(always)]
    fn pop(&self) -> Option<M> {
        if !O::Store::IS_FIFO {
            return self.pop_sorted();
        }
        if let Some(message) = self.pop_stored() {
            return Some(message);
        }
        if self.is_regular_empty() {
            return None;
        }
        let mut inbox = self.back.inbox.lock_fast();
        match self.pop_single_from_inbox(&mut inbox) {
            Some(message) => Some(message),
            None => self.pop_slow(inbox),
        }
    }

    /// The fast path of a receiver that was woken: pops the only message of a queue whose messages
    /// arrive one by one. `None` means that [`try_poll`](Self::try_poll) must decide.
    #[inline(always)]
    pub(crate) fn poll_single(&self) -> Option<M> {
        if !O::Store::IS_FIFO || self.flags.get() & (CONTROL | SUSPENDED | METRICS) != 0 {
            return None;
        }
        self.pop_single_from_inbox(&mut self.back.inbox.lock_fast())
    }

    #[inline(always)]
    fn pop_single_from_inbox<'a>(&'a self, inbox: &mut Option<InboxGuard<'a, M, O, C>>) -> Option<M> {
        let mut inbox = inbox.take_if(|inbox| self.may_pop_single(inbox))?;
        let item = inbox.messages.pop_single()?;
        // The store is empty and stays so (invariant 3), so the holder of the inbox may write
        // `popped` (invariant 2).
        self.front.popped.store_release(self.front.popped.get().wrapping_add(1));
        drop(inbox);
        self.wake_sender();
        Some(O::into_message(item))
    }

    /// Whether the inbox holds exactly one message, the store none, and messages arrive one by one.
    #[inline(always)]
    fn may_pop_single(&self, inbox: &Inbox<O::Item>) -> bool {
        self.front.store_len.load_acquire() == 0 && inbox.messages.is_single() && self.stream_credit.get() == 0
    }

    /// The slow path of [`pop`](Self::pop) for FIFO mailboxes.
    #[inline(never)]
    fn pop_slow<'a>(&'a self, inbox: Option<InboxGuard<'a, M, O, C>>) -> Option<M> {
        let mut inbox = inbox.unwrap_or_else(|| self.back.inbox.lock_slow());
        loop {
            if self.front.store_len.load_acquire() != 0 {
                // Another consumer has moved the inbox into the store.
                drop(inbox);
                if let Some(message) = self.pop_stored() {
                    return Some(message);
                }
                if self.is_regular_empty() {
                    return None;
                }
                inbox = self.back.inbox.lock();
                continue;
            }
            let len = inbox.messages.len();
            if len > 1 || self.stream_credit.get() > 0 {
                self.adapt_gathering(len);
            }
            if len > MAX_SINGLE_POPS
                && let Some(mut store) = self.front.store.try_lock()
            {
                self.move_inbox_to_store(&mut store, &mut inbox);
                drop(inbox);
                let item = store.pop()?;
                self.count_pop(&store);
                drop(store);
                self.wake_sender();
                return Some(O::into_message(item));
            }
            let item = inbox.messages.pop_front()?;
            // The store is empty and stays so (invariants 2 and 3).
            self.front.popped.store_release(self.front.popped.get().wrapping_add(1));
            drop(inbox);
            self.wake_sender();
            return Some(O::into_message(item));
        }
    }

    /// Pops the next message of a batch from the store.
    #[inline(always)]
    fn pop_stored(&self) -> Option<M> {
        if self.front.store_len.load_acquire() == 0 {
            return None;
        }
        let mut store = self.front.store.lock();
        let item = store.pop()?;
        self.count_pop(&store);
        drop(store);
        self.wake_sender();
        Some(O::into_message(item))
    }

    /// Pops the most urgent message, after the inbox was moved into the store.
    #[inline(always)]
    fn pop_sorted(&self) -> Option<M> {
        if self.is_regular_empty() {
            return None;
        }
        let mut store = self.front.store.lock();
        self.move_arrivals_to_store(&mut store);
        let item = store.pop()?;
        self.count_pop(&store);
        drop(store);
        self.wake_sender();
        Some(O::into_message(item))
    }

    /// Moves messages from the inbox into the store, if there are any. The caller holds the store,
    /// so `popped` does not change.
    fn move_arrivals_to_store(&self, store: &mut O::Store) {
        let in_mailbox = self.back.pushed.load_acquire().wrapping_sub(self.front.popped.get());
        if in_mailbox != store.len() {
            self.move_inbox_to_store(store, &mut self.back.inbox.lock());
        }
    }

    #[inline(always)]
    fn count_pop(&self, store: &O::Store) {
        // `store_len` is published last: a thread that reads 0 there may write `popped` next, and
        // must see this value (invariant 2).
        self.front.popped.store_release(self.front.popped.get().wrapping_add(1));
        self.front.store_len.store_release(store.len());
    }

    /// Moves up to `max` messages into `into`, control messages first. Returns their number.
    pub(crate) fn drain_into(&self, into: &mut Vec<M>, max: usize) -> usize {
        let before = into.len();
        while into.len() - before < max && self.flags.get() & CONTROL != 0 {
            into.extend(self.pop_control());
        }
        if self.flags.load_acquire() & SUSPENDED == 0 {
            let mut store = self.front.store.lock();
            if O::Store::IS_FIFO {
                // The inbox is younger than the store, so it is moved only if the store has too few
                // messages.
                if store.len() < max - (into.len() - before) {
                    self.move_inbox_to_store(&mut store, &mut self.back.inbox.lock());
                }
            } else {
                self.move_arrivals_to_store(&mut store);
            }
            let wanted = (max - (into.len() - before)).min(store.len());
            into.reserve(wanted);
            for _ in 0..wanted {
                into.extend(store.pop().map(O::into_message));
            }
            if wanted > 0 {
                // Without a popped message the store may be empty, and then `popped` belongs to the
                // holder of the inbox (invariant 2).
                self.front.popped.store_release(self.front.popped.get().wrapping_add(wanted));
                self.front.store_len.store_release(store.len());
            }
        }
        let taken = into.len() - before;
        for _ in 0..taken {
            self.wake_sender();
            self.report(MailboxEvent::Dequeued);
        }
        taken
    }

    /// Registers a receiver. Returns `false` if a poll would return at once ([invariant
    /// 4](super#invariants)).
    pub(crate) fn register_receiver(&self, ticket: &mut Option<Ticket>, waker: &Waker) -> bool {
        let waker = waker.clone();
        let store = if O::Store::IS_FIFO { None } else { Some(self.front.store.lock()) };
        let mut inbox = self.back.inbox.lock();
        let flags = self.flags.get();
        let empty = self.front.store_len.load_acquire() == 0 && inbox.messages.is_empty();
        let answered = flags & CONTROL != 0
            || (!empty && flags & SUSPENDED == 0)
            || (empty && flags & (CLOSED | NO_PRODUCER) != 0);
        let unused = if answered { Some(waker) } else { inbox.receivers.register(ticket, waker) };
        self.back.receiver_count.set(inbox.receivers.len());
        drop((inbox, store));
        drop(unused);
        !answered
    }
}
