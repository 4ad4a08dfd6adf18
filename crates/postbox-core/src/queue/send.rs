//! The producer side: sending and waiting for room.

use super::*;

impl<M, O: Order<M>, C: MetadataStorageMode> Queue<M, O, C> {
    /// Offers a message without waiting, and counts a rejection.
    #[inline]
    pub(crate) fn try_offer(&self, message: M) -> Result<OfferOutcome<M>, QueueError<M>> {
        match self.offer(self.order.to_item(message)) {
            // A separate arm avoids copying the unused message of the outcome.
            Ok(OfferOutcome::Accepted) => Ok(OfferOutcome::Accepted),
            Ok(outcome) => Ok(outcome.map(O::into_message)),
            Err(error) => Err(self.reject(error)),
        }
    }

    /// Wraps a message for [`offer`](Self::offer), once for all attempts.
    pub(crate) fn to_item(&self, message: M) -> O::Item {
        self.order.to_item(message)
    }

    pub(crate) fn is_control(&self, item: &O::Item) -> bool {
        self.order.is_control(item)
    }

    /// Whether a sender may wait for room on its channel. A reservation of 0 never gets room.
    pub(crate) fn can_wait(&self, control: bool) -> bool {
        self.policy == OverflowPolicy::Block && !(control && self.control_capacity == 0)
    }

    /// Attempts to push once. `Full` is not counted as a rejection, since a waiting sender makes
    /// many attempts.
    #[inline]
    pub(crate) fn offer(&self, item: O::Item) -> Result<OfferOutcome<O::Item>, QueueError<O::Item>> {
        if self.order.is_control(&item) {
            return self.offer_control(item);
        }
        if !O::Store::IS_FIFO {
            return self.offer_sorted(item);
        }
        let mut inbox = self.back.inbox.lock_fast();
        if let Some(mut inbox) = inbox.take_if(|inbox| self.has_fast_room(inbox)) {
            let Some(chunk) = inbox.messages.tail_with_spare() else { return self.offer_slow(item, Some(inbox)) };
            chunk.push_back(item);
            self.back.pushed.store_release(self.back.pushed.get().wrapping_add(1));
            self.unlock_and_wake(inbox);
            return Ok(OfferOutcome::Accepted);
        }
        self.offer_slow(item, inbox)
    }

    /// Whether a push may take the fast path.
    #[inline(always)]
    fn has_fast_room(&self, inbox: &Inbox<O::Item>) -> bool {
        inbox.fast_until.wrapping_sub(self.back.pushed.get()) as isize > 0
    }

    /// The slow path of [`offer`](Self::offer) for FIFO mailboxes.
    #[inline(never)]
    fn offer_slow<'a>(
        &'a self,
        item: O::Item,
        inbox: Option<InboxGuard<'a, M, O, C>>,
    ) -> Result<OfferOutcome<O::Item>, QueueError<O::Item>> {
        let mut inbox = inbox.unwrap_or_else(|| self.back.inbox.lock_slow());
        if !self.has_fast_room(&inbox) {
            return self.offer_checked(item, inbox);
        }
        self.push(&mut inbox, item);
        self.unlock_and_wake(inbox);
        Ok(OfferOutcome::Accepted)
    }

    /// [`offer`](Self::offer) for priority mailboxes. If the store is not locked, the message is
    /// pushed directly into it.
    #[inline]
    fn offer_sorted(&self, item: O::Item) -> Result<OfferOutcome<O::Item>, QueueError<O::Item>> {
        let mut store = self.front.store.try_lock();
        if let Some(mut store) = store.take_if(|store| self.may_push_directly(store)) {
            store.push(item);
            self.direct_pushes.set(self.direct_pushes.get().wrapping_add(1));
            self.front.popped.store_release(self.front.popped.get().wrapping_sub(1));
            self.front.store_len.store_release(store.len());
            drop(store);
            self.wake_receiver();
            return Ok(OfferOutcome::Accepted);
        }
        self.offer_sorted_slow(item, store)
    }

    /// The slow path of [`offer_sorted`](Self::offer_sorted): with both locks, or through the inbox
    /// while another thread holds the store.
    #[inline(never)]
    fn offer_sorted_slow<'a>(
        &'a self,
        item: O::Item,
        mut store: Option<StoreGuard<'a, M, O, C>>,
    ) -> Result<OfferOutcome<O::Item>, QueueError<O::Item>> {
        let mut inbox = self.back.inbox.lock();
        if !self.has_fast_room(&inbox) {
            drop(store);
            return self.offer_checked(item, inbox);
        }
        match &mut store {
            Some(store) => {
                store.append(&mut inbox.messages);
                store.push(item);
                self.front.store_len.store_release(store.len());
            }
            None => inbox.messages.push_back(item),
        }
        // Published before either lock is released: a holder of the store relies on it
        // (`move_arrivals_to_store`).
        self.back.pushed.store_release(self.back.pushed.get().wrapping_add(1));
        drop(store);
        self.unlock_and_wake(inbox);
        Ok(OfferOutcome::Accepted)
    }

    /// Whether a message may be pushed directly into the store of a priority mailbox: it is
    /// unbounded, has no hooks, and its inbox is empty. These conditions hold while the store is
    /// locked: no capacity is ever set later, and messages that enter the inbox meanwhile are not
    /// older.
    #[inline(always)]
    fn may_push_directly(&self, store: &O::Store) -> bool {
        self.capacity.get() == usize::MAX
            && self.flags.get() & (CLOSED | METRICS | NOTIFY) == 0
            && self.back.pushed.load_acquire().wrapping_sub(self.front.popped.get()) == store.len()
    }

    /// The fast path of [`offer`](Self::offer), which moves the message once. Returns `false` and
    /// leaves the message in `item` if [`offer`](Self::offer) must decide.
    #[inline(always)]
    pub(crate) fn offer_fast(&self, item: &mut Option<O::Item>) -> bool {
        if !O::Store::IS_FIFO || item.as_ref().is_none_or(|item| self.order.is_control(item)) {
            return false;
        }
        let mut inbox = self.back.inbox.lock();
        if !self.has_fast_room(&inbox)
            && (self.flags.get() & (CLOSED | METRICS | NOTIFY) != 0 || !self.refresh_room(&mut inbox))
        {
            return false;
        }
        let Some(item) = item.take() else { return false };
        self.push(&mut inbox, item);
        self.unlock_and_wake(inbox);
        true
    }

    #[inline(never)]
    fn offer_checked<'a>(
        &'a self,
        item: O::Item,
        mut inbox: InboxGuard<'a, M, O, C>,
    ) -> Result<OfferOutcome<O::Item>, QueueError<O::Item>> {
        if self.flags.get() & CLOSED != 0 {
            return Err(QueueError::Closed(item));
        }
        let outcome = if self.refresh_room(&mut inbox) {
            self.push(&mut inbox, item);
            OfferOutcome::Accepted
        } else {
            match self.policy {
                OverflowPolicy::Block => return Err(QueueError::Full(item)),
                OverflowPolicy::Grow => {
                    // Repeated only if stashed messages exceed the capacity.
                    while !self.refresh_room(&mut inbox) {
                        self.capacity.set(self.capacity.get().saturating_mul(2));
                    }
                    let capacity = self.capacity.get();
                    self.push(&mut inbox, item);
                    OfferOutcome::Grew(capacity)
                }
                OverflowPolicy::DropNewest | OverflowPolicy::DropOldest => {
                    drop(inbox);
                    return self.offer_evicting(item);
                }
            }
        };
        self.unlock_and_wake(inbox);
        self.report_offer(&outcome);
        Ok(outcome)
    }

    /// Pushes `item` and evicts the least urgent message. Both locks are held, so messages in the
    /// inbox are considered too.
    fn offer_evicting(&self, item: O::Item) -> Result<OfferOutcome<O::Item>, QueueError<O::Item>> {
        let mut store = self.front.store.lock();
        let mut inbox = self.back.inbox.lock();
        if self.flags.get() & CLOSED != 0 {
            return Err(QueueError::Closed(item));
        }
        let outcome = if self.refresh_room(&mut inbox) {
            // A consumer made room between the two checks.
            self.push(&mut inbox, item);
            OfferOutcome::Accepted
        } else {
            self.move_inbox_to_store(&mut store, &mut inbox);
            match store.push_evicting(item, self.policy == OverflowPolicy::DropOldest) {
                Evicted::Incoming(item) => OfferOutcome::Rejected(item),
                Evicted::Stored(item) => {
                    // One message in, one out: the counters do not change, so no observer sees a
                    // wrong size (invariant 2).
                    self.direct_pushes.set(self.direct_pushes.get().wrapping_add(1));
                    OfferOutcome::Evicted(item)
                }
            }
        };
        if !matches!(outcome, OfferOutcome::Accepted) {
            self.rejected.increment();
        }
        drop(store);
        self.unlock_and_wake(inbox);
        self.report_offer(&outcome);
        Ok(outcome)
    }

    /// Offers a message on the control channel, which has reserved room and overtakes regular
    /// messages.
    pub(crate) fn try_offer_control(&self, message: M) -> Result<(), QueueError<M>> {
        match self.offer_control(self.order.to_item(message)) {
            Ok(_) => Ok(()),
            Err(error) => Err(self.reject(error)),
        }
    }

    #[cold]
    fn offer_control(&self, item: O::Item) -> Result<OfferOutcome<O::Item>, QueueError<O::Item>> {
        let inbox = self.back.inbox.lock();
        let flags = self.flags.get();
        if flags & CLOSED != 0 {
            return Err(QueueError::Closed(item));
        }
        let mut guard = self.extras.lock();
        let extras = guard.get_or_insert_default();
        if extras.control.len() >= self.control_capacity {
            return Err(QueueError::Full(item));
        }
        extras.control.push(item);
        extras.control_pushed = extras.control_pushed.wrapping_add(1);
        self.flags.store_release(flags | CONTROL);
        drop(guard);
        self.unlock_and_wake(inbox);
        self.report_offer::<O::Item>(&OfferOutcome::Accepted);
        Ok(OfferOutcome::Accepted)
    }

    /// Counts and reports a rejection for lack of room.
    #[cold]
    pub(crate) fn reject(&self, error: QueueError<O::Item>) -> QueueError<M> {
        if let QueueError::Full(_) = error {
            self.rejected.increment();
            self.report(MailboxEvent::Rejected);
        }
        error.map(O::into_message)
    }

    #[inline(always)]
    fn push(&self, inbox: &mut InboxGuard<'_, M, O, C>, item: O::Item) {
        inbox.messages.push_back(item);
        self.back.pushed.store_release(self.back.pushed.get().wrapping_add(1));
    }

    /// Registers a sender. Returns `false` if an offer would return at once ([invariant
    /// 4](super#invariants)).
    pub(crate) fn register_sender(&self, ticket: &mut Option<Ticket>, waker: &Waker) -> bool {
        let waker = waker.clone();
        let (registered, unused) = {
            let _store = self.front.store.lock();
            let mut inbox = self.back.inbox.lock();
            if self.flags.get() & CLOSED != 0 || self.refresh_room(&mut inbox) {
                (false, Some(waker))
            } else {
                (true, self.senders.register(ticket, waker))
            }
        };
        drop(unused);
        registered
    }

    /// Registers a sender for the control channel. Returns `false` if an offer would return at
    /// once.
    pub(crate) fn register_control_sender(&self, ticket: &mut Option<Ticket>, waker: &Waker) -> bool {
        let waker = waker.clone();
        let (registered, unused) = {
            let _inbox = self.back.inbox.lock();
            let mut guard = self.extras.lock();
            let extras = guard.get_or_insert_default();
            if self.flags.get() & CLOSED != 0 || extras.control.len() < self.control_capacity {
                (false, Some(waker))
            } else {
                (true, extras.control_senders.register(ticket, waker))
            }
        };
        drop(unused);
        registered
    }

    /// Unregisters a sender. An unused notification is passed to the next sender.
    pub(crate) fn unregister_sender(&self, ticket: &mut Option<Ticket>, control: bool, used: bool) {
        if !control {
            if self.senders.remove(ticket).is_none() && !used {
                wake_one(&self.senders);
            }
            return;
        }
        let (removed, next) = {
            let guard = self.extras.lock();
            let Some(extras) = guard.as_ref() else { return };
            let removed = extras.control_senders.remove(ticket);
            let pass_on = removed.is_none() && !used;
            (removed, if pass_on { extras.control_senders.notify_one() } else { None })
        };
        drop(removed);
        if let Some(waker) = next {
            waker.wake();
        }
    }

    /// Unregisters a receiver. An unused notification is passed to the next receiver.
    #[inline(always)]
    pub(crate) fn unregister_receiver(&self, ticket: &mut Option<Ticket>, used: bool) {
        // Without waiters this receiver was notified, as in `WaitQueue::remove`, and there is no
        // receiver to pass the notification to.
        if let Some(ticket) = ticket.take()
            && self.waiting_receivers() != 0
        {
            self.unregister_receiver_slow(&ticket, used);
        }
    }

    #[inline(never)]
    fn unregister_receiver_slow(&self, ticket: &Ticket, used: bool) {
        let mut inbox = self.back.inbox.lock();
        let removed = inbox.receivers.remove(ticket);
        self.back.receiver_count.set(inbox.receivers.len());
        match removed.is_some() || used {
            true => drop(inbox),
            false => self.unlock_and_wake(inbox),
        }
        drop(removed);
    }
}
