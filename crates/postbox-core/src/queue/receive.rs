//! The consumers' end.

use alloc::vec::Vec;

use super::*;

/// How many messages make meeting the producers worth while.
const GOOD_BATCH: usize = 512;

/// How many pauses of the processor a receiver lets messages gather, at the most: some ten microseconds, in which a
/// stream that is dense enough for it brings hundreds.
const LONGEST_LINGER: usize = 512;

/// Up to this number of bytes, letting messages gather pays. With larger ones a line of memory changes processors for each of them,
/// which costs more than to meet the producers.
const GATHERED_BYTES: usize = 32;

/// After this number of single messages in a row they are no stream.
const STREAM: usize = 32;

/// Up to this many waiting messages are taken one by one from the inbox, under its lock alone, which costs less
/// than an exchange. More are taken at once.
const EXCHANGE_ABOVE: usize = 2;

impl<M, O: Order<M>, C: MetadataStorageMode> Core<M, O, C> {
    /// The usual case of a receive, which moves the message once: the next of a batch that was taken in before. `None`
    /// says nothing; then it is [`try_poll`](Self::try_poll)'s turn.
    #[inline(always)]
    pub(crate) fn poll_batch(&self) -> Option<M> {
        if !O::Store::KEEPS_ARRIVAL || self.flags.get() & (CONTROL | SUSPENDED | WATCHED) != 0 {
            return None;
        }
        self.take_stored()
    }

    #[inline]
    pub(crate) fn try_poll(&self) -> Result<Option<M>, QueueError<M>> {
        if self.flags.get() & (CONTROL | SUSPENDED | WATCHED) != 0 {
            return self.poll_with_care();
        }
        match self.take() {
            Some(message) => Ok(Some(message)),
            None => self.end(),
        }
    }

    /// [`try_poll`](Self::try_poll) for a receiver that does not ask whether nothing will come.
    #[inline]
    pub(crate) fn poll_some(&self) -> Option<M> {
        if self.flags.get() & (CONTROL | SUSPENDED | WATCHED) != 0 {
            return self.poll_with_care().ok().flatten();
        }
        self.take()
    }

    /// [`try_poll`](Self::try_poll) for a receiver that has time: where messages come in a stream, it lets some
    /// gather before it takes them, so that it meets the producers once for many. It passes at most `most` pauses with
    /// that. See `learn`.
    #[inline]
    pub(crate) fn poll_leisurely(&self, most: usize) -> Result<Option<M>, QueueError<M>> {
        if size_of::<M>() <= GATHERED_BYTES && self.flows.get() > 0 {
            let linger = self.linger.get();
            if linger > 0 && self.front.stored.get() == 0 {
                self.gather(linger, most);
            }
        }
        self.try_poll()
    }

    /// Whether there is nothing, and messages come one by one: then a receiver had better wait at once. `false` says nothing.
    /// In a stream the next message is often there before a receiver has come to waiting, and it is not woken for it.
    #[inline(always)]
    pub(crate) fn has_nothing(&self) -> bool {
        self.flags.get() & !AWAITED == 0 && self.flows.get() == 0 && self.is_drained()
    }

    #[inline(never)]
    fn gather(&self, linger: usize, most: usize) {
        for _ in 0..linger.min(most) {
            core::hint::spin_loop();
        }
        if self.is_drained() {
            // For nothing: the stream has ended, or its producers wait for this very thread.
            self.linger.set(linger / 4);
        }
    }

    /// A batch of `taken` messages was there. If they come so densely that waiting a little longer brings many more,
    /// let more gather next time. If they come one by one, waiting only delays them.
    #[inline(never)]
    fn learn(&self, taken: usize) {
        self.flows.set(if taken > 1 { STREAM } else { self.flows.get().saturating_sub(1) });
        if size_of::<M>() > GATHERED_BYTES {
            return;
        }
        let linger = self.linger.get();
        // A quarter of the room at the most: the producers must not run full meanwhile.
        let good = GOOD_BATCH.min(self.capacity.get() / 4);
        let better = if taken <= 1 || taken * 8 < linger {
            linger / 2
        } else if taken < good && taken * 2 >= linger {
            (linger * 2 + 2).min(LONGEST_LINGER)
        } else {
            linger
        };
        if better != linger {
            self.linger.set(better);
        }
    }

    /// Nothing was there. Is that the end? A message that came after the look and before the close still counts.
    fn end(&self) -> Result<Option<M>, QueueError<M>> {
        if self.flags.observe() & (CLOSED | ORPHANED) == 0 {
            return Ok(None);
        }
        let message = if self.flags.get() & CONTROL != 0 {
            self.take_control()
        } else if self.flags.get() & SUSPENDED != 0 && !self.is_drained() {
            None
        } else {
            Some(self.take().ok_or(QueueError::Disconnected)?)
        };
        if message.is_some() {
            self.report(MailboxEvent::Dequeued);
        }
        Ok(message)
    }

    #[cold]
    fn poll_with_care(&self) -> Result<Option<M>, QueueError<M>> {
        let flags = self.flags.observe();
        let mut message = None;
        if flags & CONTROL != 0 {
            message = self.take_control();
        }
        if message.is_none() && flags & SUSPENDED == 0 {
            message = self.take();
        }
        match message {
            Some(message) => {
                self.report(MailboxEvent::Dequeued);
                Ok(Some(message))
            }
            None => self.end(),
        }
    }

    fn take_control(&self) -> Option<M> {
        let inbox = self.back.inbox.lock();
        let mut guard = self.extras.lock();
        let extras = guard.as_mut()?;
        let item = extras.control.pop();
        if extras.control.len() == 0 {
            self.flags.publish(self.flags.get() & !CONTROL);
        }
        let waker = extras.control_senders.notify_one();
        drop((guard, inbox));
        if let Some(waker) = waker {
            waker.wake();
        }
        item.map(O::open)
    }

    /// Takes the next regular message.
    #[inline(always)]
    fn take(&self) -> Option<M> {
        if !O::Store::KEEPS_ARRIVAL {
            return self.take_sorted();
        }
        if let Some(message) = self.take_stored() {
            return Some(message);
        }
        if self.is_drained() {
            return None;
        }
        let mut inbox = self.back.inbox.lock_at_once();
        match self.take_single(&mut inbox) {
            Some(message) => Some(message),
            None => self.take_with_care(inbox),
        }
    }

    /// The message that a receiver was woken for, if there is no other and messages come one by one. `None` says nothing; then
    /// it is [`try_poll`](Self::try_poll)'s turn.
    #[inline(always)]
    pub(crate) fn poll_single(&self) -> Option<M> {
        if !O::Store::KEEPS_ARRIVAL || self.flags.get() & (CONTROL | SUSPENDED | WATCHED) != 0 {
            return None;
        }
        self.take_single(&mut self.back.inbox.lock_at_once())
    }

    #[inline(always)]
    fn take_single<'a>(&'a self, inbox: &mut Option<InboxGuard<'a, M, O, C>>) -> Option<M> {
        let mut inbox = inbox.take_if(|inbox| self.may_take_single(inbox))?;
        let item = inbox.arrived.pop_single()?;
        // The store is empty and stays so while the inbox is held: nobody else writes `popped`.
        self.front.popped.publish(self.front.popped.get().wrapping_add(1));
        drop(inbox);
        self.wake_sender();
        Some(O::open(item))
    }

    /// Whether the inbox holds one message, all others being gone, where messages come one by one.
    #[inline(always)]
    fn may_take_single(&self, inbox: &Inbox<O::Item>) -> bool {
        self.front.stored.observe() == 0 && inbox.arrived.is_single() && self.flows.get() == 0
    }

    /// [`take`](Self::take) from a FIFO mailbox, with all that can be the matter.
    #[inline(never)]
    fn take_with_care<'a>(&'a self, inbox: Option<InboxGuard<'a, M, O, C>>) -> Option<M> {
        let mut inbox = inbox.unwrap_or_else(|| self.back.inbox.wait_for());
        loop {
            if self.front.stored.observe() != 0 {
                // Another consumer took the batch in.
                drop(inbox);
                if let Some(message) = self.take_stored() {
                    return Some(message);
                }
                if self.is_drained() {
                    return None;
                }
                inbox = self.back.inbox.lock();
                continue;
            }
            let waiting = inbox.arrived.len();
            if waiting > 1 || self.flows.get() > 0 {
                self.learn(waiting);
            }
            if waiting > EXCHANGE_ABOVE
                && let Some(mut store) = self.front.store.try_lock()
            {
                self.exchange(&mut store, &mut inbox);
                drop(inbox);
                let item = store.pop()?;
                self.popped_one(&store);
                drop(store);
                self.wake_sender();
                return Some(O::open(item));
            }
            let item = inbox.arrived.pop_front()?;
            // The store is empty, as in `take`.
            self.front.popped.publish(self.front.popped.get().wrapping_add(1));
            drop(inbox);
            self.wake_sender();
            return Some(O::open(item));
        }
    }

    /// Takes the next regular message of a batch that was taken in before.
    #[inline(always)]
    fn take_stored(&self) -> Option<M> {
        if self.front.stored.observe() == 0 {
            return None;
        }
        let mut store = self.front.store.lock();
        let item = store.pop()?;
        self.popped_one(&store);
        drop(store);
        self.wake_sender();
        Some(O::open(item))
    }

    /// Takes the most urgent message, after all that has arrived is sorted in.
    #[inline(always)]
    fn take_sorted(&self) -> Option<M> {
        if self.is_drained() {
            return None;
        }
        let mut store = self.front.store.lock();
        self.sort_in(&mut store);
        let item = store.pop()?;
        self.popped_one(&store);
        drop(store);
        self.wake_sender();
        Some(O::open(item))
    }

    /// Moves in what has arrived, if anything. Under the store's lock, so `popped` stands still.
    fn sort_in(&self, store: &mut O::Store) {
        let in_mailbox = self.back.pushed.observe().wrapping_sub(self.front.popped.get());
        if in_mailbox != store.len() {
            self.exchange(store, &mut self.back.inbox.lock());
        }
    }

    #[inline(always)]
    fn popped_one(&self, store: &O::Store) {
        // `stored` last: a thread that reads 0 there may write `popped` next, and must see this value of it.
        self.front.popped.publish(self.front.popped.get().wrapping_add(1));
        self.front.stored.publish(store.len());
    }

    /// Moves up to `max` messages into `into`, control messages first, in one go. Returns how many.
    pub(crate) fn drain_into(&self, into: &mut Vec<M>, max: usize) -> usize {
        let before = into.len();
        while into.len() - before < max && self.flags.get() & CONTROL != 0 {
            into.extend(self.take_control());
        }
        if self.flags.observe() & SUSPENDED == 0 {
            let mut store = self.front.store.lock();
            if O::Store::KEEPS_ARRIVAL {
                // The inbox is a younger batch: look at it only when the store does not suffice.
                if store.len() < max - (into.len() - before) {
                    self.exchange(&mut store, &mut self.back.inbox.lock());
                }
            } else {
                self.sort_in(&mut store);
            }
            let wanted = (max - (into.len() - before)).min(store.len());
            into.reserve(wanted);
            for _ in 0..wanted {
                into.extend(store.pop().map(O::open));
            }
            if wanted > 0 {
                // Only a holder of messages writes `popped`: with the store empty it is the inbox's to write.
                self.front.popped.publish(self.front.popped.get().wrapping_add(wanted));
                self.front.stored.publish(store.len());
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
        let store = if O::Store::KEEPS_ARRIVAL { None } else { Some(self.front.store.lock()) };
        let mut inbox = self.back.inbox.lock();
        let flags = self.flags.get();
        let empty = self.front.stored.observe() == 0 && inbox.arrived.is_empty();
        let answered =
            flags & CONTROL != 0 || (!empty && flags & SUSPENDED == 0) || (empty && flags & (CLOSED | ORPHANED) != 0);
        let unused = if answered { Some(waker) } else { inbox.receivers.register(ticket, waker) };
        self.back.waiting.set(inbox.receivers.len());
        drop((inbox, store));
        drop(unused);
        !answered
    }
}
