//! The consumers' end.

use alloc::vec::Vec;

use super::*;

/// How many messages make meeting the producers worth while.
const TARGET_BATCH: usize = 512;

/// How many pauses of the processor a receiver lets messages gather, at the most: some ten microseconds, in which a
/// stream that is dense enough for it brings hundreds.
const MAX_GATHER_SPINS: usize = 512;

/// Up to this number of bytes, letting messages gather pays. With larger ones a line of memory changes processors for each of them,
/// which costs more than to meet the producers.
const MAX_GATHER_BYTES: usize = 32;

/// After this number of single messages in a row they are no stream.
const STREAM_CREDIT: usize = 32;

/// Up to this many waiting messages are taken one by one from the inbox, under its lock alone, which costs less
/// than an move_inbox_to_store. More are taken at once.
const MAX_SINGLE_POPS: usize = 2;

impl<M, O: Order<M>, C: MetadataStorageMode> Queue<M, O, C> {
    /// The usual case of a receive, which moves the message once: the next of a batch that was taken in before. `None`
    /// says nothing; then it is [`try_poll`](Self::try_poll)'s turn.
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

    /// [`try_poll`](Self::try_poll) for a receiver that does not ask whether nothing will come.
    #[inline]
    pub(crate) fn poll_message(&self) -> Option<M> {
        if self.flags.get() & (CONTROL | SUSPENDED | METRICS) != 0 {
            return self.poll_slow().ok().flatten();
        }
        self.pop()
    }

    /// [`try_poll`](Self::try_poll) for a receiver that has time: where messages come in a stream, it lets some
    /// gather before it takes them, so that it meets the producers once for many. It passes at most `most` pauses with
    /// that. See `adapt_gathering`.
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

    /// Whether there is nothing, and messages come one by one: then a receiver had adapted wait at once. `false` says nothing.
    /// In a stream the next message is often there before a receiver has come to waiting, and it is not woken for it.
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
            // For nothing: the stream has ended, or its producers wait for this very thread.
            self.gather_spins.set(spins / 4);
        }
    }

    /// A batch of `taken` messages was there. If they come so densely that waiting a little longer brings many more,
    /// let more gather next time. If they come one by one, waiting only delays them.
    #[inline(never)]
    fn adapt_gathering(&self, taken: usize) {
        self.stream_credit.set(if taken > 1 { STREAM_CREDIT } else { self.stream_credit.get().saturating_sub(1) });
        if size_of::<M>() > MAX_GATHER_BYTES {
            return;
        }
        let spins = self.gather_spins.get();
        // A quarter of the room at the most: the producers must not run full meanwhile.
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

    /// Nothing was there. Is that the end? A message that came after the look and before the close still counts.
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

    /// Takes the next regular message.
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

    /// The message that a receiver was woken for, if there is no other and messages come one by one. `None` says nothing; then
    /// it is [`try_poll`](Self::try_poll)'s turn.
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
        // The store is empty and stays so while the inbox is held: nobody else writes `popped`.
        self.front.popped.store_release(self.front.popped.get().wrapping_add(1));
        drop(inbox);
        self.wake_sender();
        Some(O::into_message(item))
    }

    /// Whether the inbox holds one message, all others being gone, where messages come one by one.
    #[inline(always)]
    fn may_pop_single(&self, inbox: &Inbox<O::Item>) -> bool {
        self.front.store_len.load_acquire() == 0 && inbox.messages.is_single() && self.stream_credit.get() == 0
    }

    /// [`pop`](Self::pop) from a FIFO mailbox, with all that can be the matter.
    #[inline(never)]
    fn pop_slow<'a>(&'a self, inbox: Option<InboxGuard<'a, M, O, C>>) -> Option<M> {
        let mut inbox = inbox.unwrap_or_else(|| self.back.inbox.lock_slow());
        loop {
            if self.front.store_len.load_acquire() != 0 {
                // Another consumer took the batch in.
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
            // The store is empty, as in `pop`.
            self.front.popped.store_release(self.front.popped.get().wrapping_add(1));
            drop(inbox);
            self.wake_sender();
            return Some(O::into_message(item));
        }
    }

    /// Takes the next regular message of a batch that was taken in before.
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

    /// Takes the most urgent message, after all that has messages is sorted in.
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

    /// Moves in what has messages, if anything. Under the store's lock, so `popped` stands still.
    fn move_arrivals_to_store(&self, store: &mut O::Store) {
        let in_mailbox = self.back.pushed.load_acquire().wrapping_sub(self.front.popped.get());
        if in_mailbox != store.len() {
            self.move_inbox_to_store(store, &mut self.back.inbox.lock());
        }
    }

    #[inline(always)]
    fn count_pop(&self, store: &O::Store) {
        // `store_len` last: a thread that reads 0 there may write `popped` next, and must see this value of it.
        self.front.popped.store_release(self.front.popped.get().wrapping_add(1));
        self.front.store_len.store_release(store.len());
    }

    /// Moves up to `max` messages into `into`, control messages first, in one go. Returns how many.
    pub(crate) fn drain_into(&self, into: &mut Vec<M>, max: usize) -> usize {
        let before = into.len();
        while into.len() - before < max && self.flags.get() & CONTROL != 0 {
            into.extend(self.pop_control());
        }
        if self.flags.load_acquire() & SUSPENDED == 0 {
            let mut store = self.front.store.lock();
            if O::Store::IS_FIFO {
                // The inbox is a younger batch: look at it only when the store does not suffice.
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
                // Only a holder of messages writes `popped`: with the store empty it is the inbox's to write.
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

    /// Waits for a message: `true` if the receiver is registered, `false` if a poll would be answered now.
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
