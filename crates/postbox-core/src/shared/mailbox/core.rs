//! The heart of every mailbox: one queue with two ends.
//!
//! Producers push into the *inbox* under one lock, consumers pop from the *store* under another. When the store
//! has nothing more to give, a consumer takes the whole inbox in one exchange. So one producer and one consumer
//! meet once per batch, not once per message, and what a consumer has taken in but not handed out is still in the
//! mailbox: it counts in its size and any consumer may have it.
//!
//! # Invariants
//!
//! 1. Locks are taken in the order store, inbox, then the wait queues and extras. A thread that holds the inbox may
//!    only *try* the store.
//! 2. `pushed - popped` is the number of messages in the mailbox. `pushed` is written under the inbox; `popped`
//!    under the store, or under the inbox while the store is empty.
//! 3. The store gains messages only while both locks are held. So whoever holds the inbox and reads `stored == 0`
//!    knows that the store is empty and stays so.
//! 4. A receiver registers under the inbox, in the section that saw nothing to take. A sender registers under both,
//!    in the section that saw no room. Every push holds the inbox, every pop holds one of the two, so none misses
//!    a waiter.
//! 5. `flags` are written under the inbox. Wakers, hooks and messages' destructors run under no lock.

use core::fmt;
use core::marker::PhantomData;
use core::task::Waker;

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::options::MailboxOptions;
use super::producer::{Hooks, MailboxEvent};
use crate::chunks::Chunks;
use crate::order::{Displaced, Order, Store};
use crate::shared::queue::{OfferOutcome, OverflowPolicy, QueueError};
use crate::sync::{Count, Lock, MailboxConcurrency, MetadataStorageMode, Padded};
use crate::wait::{Ticket, WaitQueue};

/// The control lane holds a message.
const CONTROL: usize = 1;
/// Regular messages are held back.
const SUSPENDED: usize = 2;
/// A sink, a scheduler hook or a signal wants to know.
const OBSERVED: usize = 4;
/// No more messages are taken.
const CLOSED: usize = 8;
/// The last producer is gone.
const ORPHANED: usize = 16;

/// More room than any queue needs, yet near enough for wrapping counters to be compared.
const FAR: usize = isize::MAX as usize;

/// How often a waiting thread gives its time slice away before it sleeps, until it knows better.
#[cfg(feature = "std")]
const INITIAL_PATIENCE: usize = 16;

/// How many messages make meeting the producers worth while.
const GOOD_BATCH: usize = 64;

/// How many pauses of the processor a receiver lets messages gather, at the most: one or two microseconds.
const LONGEST_LINGER: usize = 64;

/// Up to this many waiting messages are taken one by one from the inbox, under its lock alone, which costs less
/// than an exchange. More are taken at once.
const EXCHANGE_ABOVE: usize = 2;

pub(crate) struct Core<M, O: Order<M>, C: MetadataStorageMode> {
    front: Padded<Front<O::Store, C>>,
    back: Padded<Back<O::Item, C>>,
    flags: C::Count,
    /// The bound; `usize::MAX` without one. Written under the inbox.
    capacity: C::Count,
    /// Messages in the stash; they take up room. Written under both locks.
    stashed: C::Count,
    /// Messages that were refused or evicted. Written under the inbox.
    pub(crate) refused: C::Count,
    /// Waits for a message.
    pub(crate) receivers: WaitQueue<C>,
    /// Waits for room.
    pub(crate) senders: WaitQueue<C>,
    /// How patiently threads wait awake, for a message and for room: see `park.rs`.
    #[cfg(feature = "std")]
    pub(crate) receive_patience: C::Count,
    /// How long a receiver lets messages gather; a hint, so lost updates do not matter.
    linger: C::Count,
    #[cfg(feature = "std")]
    pub(crate) send_patience: C::Count,
    pub(crate) producers: C::Count,
    pub(crate) consumers: C::Count,
    extras: C::Lock<LazyExtras<O::Store, C>>,
    policy: OverflowPolicy,
    control_capacity: usize,
    order: O,
    messages: PhantomData<fn() -> M>,
}

/// The consumers' end.
struct Front<S, C: MailboxConcurrency> {
    store: C::Lock<S>,
    popped: C::Count,
    /// `store.len()`, readable without its lock.
    stored: C::Count,
}

/// The producers' end.
struct Back<I, C: MailboxConcurrency> {
    inbox: C::Lock<Inbox<I>>,
    pushed: C::Count,
}

struct Inbox<I> {
    arrived: Chunks<I>,
    /// The value of `pushed` up to which a push needs no second look: there was room that far when `popped` was
    /// last read, so the consumers' cache line is left alone. A closed or observed mailbox has none of it.
    clear_until: usize,
}

type LazyExtras<S, C> = Option<Box<Extras<S, C>>>;

/// What most mailboxes never use; allocated on first use.
struct Extras<S: Store, C: MetadataStorageMode> {
    control: S,
    /// Control messages ever taken in.
    control_pushed: usize,
    stash: Vec<S::Item>,
    suspensions: usize,
    hooks: Hooks<C>,
    /// Waits for room on the control lane.
    control_senders: WaitQueue<C>,
}

impl<S: Store, C: MetadataStorageMode> Default for Extras<S, C> {
    fn default() -> Self {
        Extras {
            control: S::default(),
            control_pushed: 0,
            stash: Vec::new(),
            suspensions: 0,
            hooks: Hooks::default(),
            control_senders: WaitQueue::new(),
        }
    }
}

type InboxGuard<'a, M, O, C> =
    <<C as MailboxConcurrency>::Lock<Inbox<<O as Order<M>>::Item>> as Lock<Inbox<<O as Order<M>>::Item>>>::Guard<'a>;

impl<M, O: Order<M>, C: MetadataStorageMode> Core<M, O, C> {
    pub(crate) fn new(order: O, options: MailboxOptions) -> Self {
        let capacity = options.capacity_limit().unwrap_or(usize::MAX);
        let inbox = Inbox { arrived: Chunks::default(), clear_until: capacity.min(FAR) };
        Core {
            front: Padded(Front {
                store: C::Lock::new(O::Store::default()),
                popped: C::Count::new(0),
                stored: C::Count::new(0),
            }),
            back: Padded(Back { inbox: C::Lock::new(inbox), pushed: C::Count::new(0) }),
            flags: C::Count::new(0),
            capacity: C::Count::new(capacity),
            stashed: C::Count::new(0),
            refused: C::Count::new(0),
            receivers: WaitQueue::new(),
            senders: WaitQueue::new(),
            linger: C::Count::new(0),
            #[cfg(feature = "std")]
            receive_patience: C::Count::new(INITIAL_PATIENCE),
            #[cfg(feature = "std")]
            send_patience: C::Count::new(INITIAL_PATIENCE),
            producers: C::Count::new(0),
            consumers: C::Count::new(0),
            extras: C::Lock::new(None),
            policy: options.overflow,
            control_capacity: options.priority_capacity_limit().unwrap_or(usize::MAX),
            order,
            messages: PhantomData,
        }
    }

    // ---- looking ----

    /// Messages that wait, control messages included, stashed ones not.
    pub(crate) fn len(&self) -> usize {
        // `pushed` first: what leaves in between makes the answer smaller, never larger than the truth was.
        let pushed = self.back.pushed.observe();
        let regular = pushed.wrapping_sub(self.front.popped.observe()) as isize;
        regular.max(0) as usize + self.control_len()
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.is_drained() && self.flags.get() & CONTROL == 0
    }

    /// Whether no regular message waits. Exact: `popped` never passes `pushed`, so if `popped` as it was equals
    /// `pushed` as it is, nothing is in between now.
    #[inline(always)]
    fn is_drained(&self) -> bool {
        let popped = self.front.popped.observe();
        popped == self.back.pushed.observe()
    }

    /// Whether a receive might find something: a message, or the end.
    #[cfg(feature = "std")]
    #[inline(always)]
    pub(crate) fn may_receive(&self) -> bool {
        !self.is_drained() || self.flags.get() & (CONTROL | CLOSED | ORPHANED) != 0
    }

    /// For how many messages there is room.
    #[inline(always)]
    pub(crate) fn room_now(&self) -> usize {
        let waiting = self.back.pushed.get().wrapping_sub(self.front.popped.get()) as isize;
        self.room().saturating_sub(waiting.max(0) as usize)
    }

    pub(crate) fn control_len(&self) -> usize {
        if self.flags.get() & CONTROL == 0 {
            return 0;
        }
        self.extras.lock().as_ref().map_or(0, |extras| extras.control.len())
    }

    /// How many messages were ever taken in; evicted ones count, refused ones do not.
    pub(crate) fn lifetime(&self) -> usize {
        let control = self.extras.lock().as_ref().map_or(0, |extras| extras.control_pushed);
        self.back.pushed.observe().wrapping_add(control)
    }

    pub(crate) fn capacity(&self) -> Option<usize> {
        Some(self.capacity.get()).filter(|&capacity| capacity != usize::MAX)
    }

    pub(crate) fn control_capacity(&self) -> Option<usize> {
        Some(self.control_capacity).filter(|&capacity| capacity != usize::MAX)
    }

    pub(crate) fn policy(&self) -> OverflowPolicy {
        self.policy
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.flags.observe() & CLOSED != 0
    }

    pub(crate) fn is_suspended(&self) -> bool {
        self.flags.get() & SUSPENDED != 0
    }

    pub(crate) fn stashed(&self) -> usize {
        self.stashed.get()
    }

    /// The bound less what is in the stash.
    fn room(&self) -> usize {
        match self.capacity.get() {
            usize::MAX => usize::MAX,
            capacity => capacity.saturating_sub(self.stashed.get()),
        }
    }

    // ---- sending ----

    /// Offers a message at once, and counts a refusal.
    #[inline]
    pub(crate) fn try_offer(&self, message: M) -> Result<OfferOutcome<M>, QueueError<M>> {
        match self.offer(self.order.enclose(message)) {
            Ok(outcome) => Ok(outcome.map(O::open)),
            Err(refusal) => Err(self.refuse(refusal)),
        }
    }

    /// Prepares a message for [`offer`](Self::offer), once for all attempts.
    pub(crate) fn enclose(&self, message: M) -> O::Item {
        self.order.enclose(message)
    }

    pub(crate) fn is_control(&self, item: &O::Item) -> bool {
        self.order.is_control(item)
    }

    /// One attempt. A sender that means to wait makes many, so "full" is not counted as a refusal here.
    #[inline]
    pub(crate) fn offer(&self, item: O::Item) -> Result<OfferOutcome<O::Item>, QueueError<O::Item>> {
        if self.order.is_control(&item) {
            return self.offer_control(item);
        }
        // A sorted store that nobody uses right now takes the message at once, which saves a stop in the inbox.
        let store = if O::Store::KEEPS_ARRIVAL { None } else { self.front.store.try_lock() };
        let mut inbox = self.back.inbox.lock();
        let pushed = self.back.pushed.get();
        if inbox.clear_until.wrapping_sub(pushed) as isize <= 0 {
            drop(store);
            return self.offer_after_second_look(item, inbox);
        }
        if let Some(mut store) = store {
            store.absorb(&mut inbox.arrived);
            store.push(item);
            self.front.stored.publish(store.len());
        } else {
            inbox.arrived.push_back(item);
        }
        self.back.pushed.publish(pushed.wrapping_add(1));
        drop(inbox);
        self.wake_receiver();
        Ok(OfferOutcome::Accepted)
    }

    #[inline(never)]
    fn offer_after_second_look<'a>(
        &'a self,
        item: O::Item,
        mut inbox: InboxGuard<'a, M, O, C>,
    ) -> Result<OfferOutcome<O::Item>, QueueError<O::Item>> {
        if self.flags.get() & CLOSED != 0 {
            return Err(QueueError::Closed(item));
        }
        let outcome = if self.has_room(&mut inbox) {
            self.push(&mut inbox, item);
            OfferOutcome::Accepted
        } else {
            match self.policy {
                OverflowPolicy::Block => return Err(QueueError::Full(item)),
                OverflowPolicy::Grow => {
                    let capacity = self.capacity.get().saturating_mul(2);
                    self.capacity.set(capacity);
                    self.has_room(&mut inbox);
                    self.push(&mut inbox, item);
                    OfferOutcome::Grew(capacity)
                }
                OverflowPolicy::DropNewest | OverflowPolicy::DropOldest => {
                    drop(inbox);
                    return self.displace(item);
                }
            }
        };
        drop(inbox);
        self.wake_receiver();
        self.report_offer(&outcome);
        Ok(outcome)
    }

    /// Takes `item` in at the expense of the least wanted message. Both locks, so the priority of what has
    /// just arrived counts as well.
    fn displace(&self, item: O::Item) -> Result<OfferOutcome<O::Item>, QueueError<O::Item>> {
        let mut store = self.front.store.lock();
        let mut inbox = self.back.inbox.lock();
        if self.flags.get() & CLOSED != 0 {
            return Err(QueueError::Closed(item));
        }
        let outcome = if self.has_room(&mut inbox) {
            // A consumer was here between the two looks.
            self.push(&mut inbox, item);
            OfferOutcome::Accepted
        } else {
            self.exchange(&mut store, &mut inbox);
            match store.displace(item, self.policy == OverflowPolicy::DropOldest) {
                Displaced::Incoming(item) => OfferOutcome::Rejected(item),
                Displaced::Other(item) => {
                    self.front.popped.publish(self.front.popped.get().wrapping_add(1));
                    self.back.pushed.publish(self.back.pushed.get().wrapping_add(1));
                    OfferOutcome::Evicted(item)
                }
            }
        };
        drop((inbox, store));
        if !matches!(outcome, OfferOutcome::Accepted) {
            self.refused.increment();
        }
        self.wake_receiver();
        self.report_offer(&outcome);
        Ok(outcome)
    }

    /// Offers a message on the control lane: reserved room, and it overtakes all regular messages.
    pub(crate) fn try_offer_control(&self, message: M) -> Result<(), QueueError<M>> {
        match self.offer_control(self.order.enclose(message)) {
            Ok(_) => Ok(()),
            Err(refusal) => Err(self.refuse(refusal)),
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
        self.flags.publish(flags | CONTROL);
        drop((guard, inbox));
        self.wake_receiver();
        self.report_offer::<O::Item>(&OfferOutcome::Accepted);
        Ok(OfferOutcome::Accepted)
    }

    /// Counts and reports that a message was given back for want of room.
    #[cold]
    pub(crate) fn refuse(&self, refusal: QueueError<O::Item>) -> QueueError<M> {
        if let QueueError::Full(_) = refusal {
            self.refused.increment();
            self.report(MailboxEvent::Rejected);
        }
        refusal.map(O::open)
    }

    fn push(&self, inbox: &mut InboxGuard<'_, M, O, C>, item: O::Item) {
        inbox.arrived.push_back(item);
        self.back.pushed.publish(self.back.pushed.get().wrapping_add(1));
    }

    /// Looks how far there is room now.
    fn has_room(&self, inbox: &mut InboxGuard<'_, M, O, C>) -> bool {
        let popped = self.front.popped.observe();
        let room = self.room().min(FAR);
        let observed = self.flags.get() & (CLOSED | OBSERVED) != 0;
        let pushed = self.back.pushed.get();
        let clear_until = popped.wrapping_add(room);
        inbox.clear_until = if observed { pushed } else { clear_until };
        clear_until.wrapping_sub(pushed) as isize > 0
    }

    /// Waits for room: `true` if the sender is registered, `false` if an offer would be answered now.
    pub(crate) fn register_sender(&self, ticket: &mut Option<Ticket>, waker: &Waker) -> bool {
        let _store = self.front.store.lock();
        let mut inbox = self.back.inbox.lock();
        if self.flags.get() & CLOSED != 0 || self.has_room(&mut inbox) {
            return false;
        }
        self.senders.register(ticket, waker);
        true
    }

    /// Waits for room on the control lane, likewise.
    pub(crate) fn register_control_sender(&self, ticket: &mut Option<Ticket>, waker: &Waker) -> bool {
        let _inbox = self.back.inbox.lock();
        let mut guard = self.extras.lock();
        let extras = guard.get_or_insert_default();
        if self.flags.get() & CLOSED != 0 || extras.control.len() < self.control_capacity {
            return false;
        }
        extras.control_senders.register(ticket, waker);
        true
    }

    /// Gives a sender's ticket back. A notification that it has not used goes to the next sender.
    pub(crate) fn remove_sender(&self, ticket: &mut Option<Ticket>, control: bool, used: bool) {
        if !control {
            if self.senders.remove(ticket) && !used {
                wake_one(&self.senders);
            }
            return;
        }
        let waker = self.extras.lock().as_ref().and_then(|extras| {
            let pass_on = extras.control_senders.remove(ticket) && !used;
            pass_on.then(|| extras.control_senders.notify_one()).flatten()
        });
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Gives a receiver's ticket back, likewise.
    pub(crate) fn remove_receiver(&self, ticket: &mut Option<Ticket>, used: bool) {
        if self.receivers.remove(ticket) && !used {
            wake_one(&self.receivers);
        }
    }

    // ---- receiving ----

    #[inline]
    pub(crate) fn try_poll(&self) -> Result<Option<M>, QueueError<M>> {
        if self.flags.get() & (CONTROL | SUSPENDED | OBSERVED) != 0 {
            return self.poll_with_care();
        }
        match self.take() {
            Some(item) => Ok(Some(O::open(item))),
            None => self.end(),
        }
    }

    /// [`try_poll`](Self::try_poll) for a receiver that has time: where messages come in a stream, it lets some
    /// gather before it takes them, so that it meets the producers once for many. See `learn`.
    #[inline]
    pub(crate) fn poll_leisurely(&self) -> Result<Option<M>, QueueError<M>> {
        if self.front.stored.get() == 0 {
            for _ in 0..self.linger.get() {
                core::hint::spin_loop();
            }
        }
        self.try_poll()
    }

    /// A batch of `taken` messages was there. Some, but not many: let more gather next time. One: they come one by
    /// one, and waiting would only delay them.
    #[inline]
    fn learn(&self, taken: usize) {
        let linger = self.linger.get();
        let better = match taken {
            0..=1 => linger / 2,
            2..GOOD_BATCH => (linger * 2 + 2).min(LONGEST_LINGER),
            _ => linger,
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
        if self.flags.get() & CONTROL != 0 {
            return Ok(self.take_control());
        }
        if self.flags.get() & SUSPENDED != 0 && !self.is_drained() {
            return Ok(None);
        }
        match self.take() {
            Some(item) => Ok(Some(O::open(item))),
            None => Err(QueueError::Disconnected),
        }
    }

    #[cold]
    fn poll_with_care(&self) -> Result<Option<M>, QueueError<M>> {
        let flags = self.flags.observe();
        let mut message = None;
        if flags & CONTROL != 0 {
            message = self.take_control();
        }
        if message.is_none() && flags & SUSPENDED == 0 {
            message = self.take().map(O::open);
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
    fn take(&self) -> Option<O::Item> {
        if !O::Store::KEEPS_ARRIVAL {
            return self.take_sorted();
        }
        loop {
            if self.front.stored.observe() != 0 {
                let mut store = self.front.store.lock();
                if let Some(item) = store.pop() {
                    self.popped_one(&store);
                    drop(store);
                    self.wake_sender();
                    return Some(item);
                }
            }
            if self.is_drained() {
                return None;
            }
            let mut inbox = self.back.inbox.lock();
            if self.front.stored.observe() != 0 {
                // Another consumer took the batch in.
                continue;
            }
            let waiting = inbox.arrived.len();
            self.learn(waiting);
            let item = if waiting > EXCHANGE_ABOVE
                && let Some(mut store) = self.front.store.try_lock()
            {
                self.exchange(&mut store, &mut inbox);
                drop(inbox);
                let item = store.pop();
                self.popped_one(&store);
                item
            } else {
                let item = inbox.arrived.pop_front();
                if item.is_some() {
                    // The store is empty and stays so while the inbox is held: nobody else writes `popped`.
                    self.front.popped.publish(self.front.popped.get().wrapping_add(1));
                }
                drop(inbox);
                item
            };
            if item.is_some() {
                self.wake_sender();
            }
            return item;
        }
    }

    /// Takes the most urgent message, after all that has arrived is sorted in.
    fn take_sorted(&self) -> Option<O::Item> {
        if self.is_drained() {
            return None;
        }
        let mut store = self.front.store.lock();
        self.sort_in(&mut store);
        let item = store.pop()?;
        self.popped_one(&store);
        drop(store);
        self.wake_sender();
        Some(item)
    }

    /// Moves in what has arrived, if anything. Under the store's lock, so `popped` stands still.
    fn sort_in(&self, store: &mut O::Store) {
        let in_mailbox = self.back.pushed.observe().wrapping_sub(self.front.popped.get());
        if in_mailbox != store.len() {
            self.exchange(store, &mut self.back.inbox.lock());
        }
    }

    /// Moves all that has arrived into the store. Invariant 3: `stored` tells of it before either lock is released.
    fn exchange(&self, store: &mut O::Store, inbox: &mut InboxGuard<'_, M, O, C>) {
        store.absorb(&mut inbox.arrived);
        self.front.stored.publish(store.len());
    }

    #[inline(always)]
    fn popped_one(&self, store: &O::Store) {
        // `stored` last: whoever reads 0 there may write `popped` next, and must see this value of it.
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
        let inbox = self.back.inbox.lock();
        let flags = self.flags.get();
        let empty = self.front.stored.observe() == 0 && inbox.arrived.is_empty();
        let answered =
            flags & CONTROL != 0 || (!empty && flags & SUSPENDED == 0) || (empty && flags & (CLOSED | ORPHANED) != 0);
        if answered {
            return false;
        }
        self.receivers.register(ticket, waker);
        true
    }

    // ---- waking ----

    #[inline(always)]
    fn wake_receiver(&self) {
        if self.receivers.is_waiting() {
            wake_one(&self.receivers);
        }
    }

    #[inline(always)]
    fn wake_sender(&self) {
        if self.senders.is_waiting() {
            wake_one(&self.senders);
        }
    }

    // ---- the life of a mailbox ----

    /// Sets and clears flags under the inbox.
    fn change_flags(&self, change: impl FnOnce(usize) -> usize) {
        let mut inbox = self.back.inbox.lock();
        self.flags.publish(change(self.flags.get()));
        self.has_room(&mut inbox);
    }

    /// Takes no more messages; those inside can still be received. `false` if it was closed before.
    pub(crate) fn close(&self) -> bool {
        let mut first = false;
        // Under both locks no push is half done: whoever sees the flag sees all messages.
        let store = self.front.store.lock();
        self.change_flags(|flags| {
            first = flags & CLOSED == 0;
            flags | CLOSED
        });
        drop(store);
        self.senders.wake_all();
        self.receivers.wake_all();
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
            store.absorb(&mut inbox.arrived);
            let mut guard = self.extras.lock();
            let mut stash = Vec::new();
            if let Some(extras) = guard.as_mut() {
                while let Some(item) = extras.control.pop() {
                    left.push(O::open(item));
                }
                stash = core::mem::take(&mut extras.stash);
            }
            left.extend(stash.drain(..).map(O::open));
            while let Some(item) = store.pop() {
                left.push(O::open(item));
            }
            self.flags.publish(self.flags.get() & !CONTROL);
            self.stashed.set(0);
            self.front.popped.publish(self.back.pushed.get());
            self.front.stored.publish(0);
            stash
        };
        drop(stash);
        self.receivers.wake_all();
        left
    }

    /// Holds regular messages back until as many `resume`s have come.
    pub(crate) fn suspend(&self) {
        let inbox = self.back.inbox.lock();
        let mut guard = self.extras.lock();
        guard.get_or_insert_default().suspensions += 1;
        self.flags.publish(self.flags.get() | SUSPENDED);
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
            self.flags.publish(self.flags.get() & !SUSPENDED);
        }
        drop((guard, inbox));
        if running {
            self.receivers.wake_all();
            self.report(MailboxEvent::Resumed);
            self.notify_hooks();
        }
        true
    }

    /// Puts a received message aside. It keeps its room in the mailbox, so it can always come back.
    pub(crate) fn stash(&self, message: M) {
        let item = self.order.enclose(message);
        let _store = self.front.store.lock();
        let mut inbox = self.back.inbox.lock();
        self.extras.lock().get_or_insert_default().stash.push(item);
        self.stashed.set(self.stashed.get() + 1);
        self.has_room(&mut inbox);
    }

    /// Puts all stashed messages back, in the order in which they were stashed and before what waits. Returns how
    /// many.
    pub(crate) fn unstash(&self) -> usize {
        let mut store = self.front.store.lock();
        let mut inbox = self.back.inbox.lock();
        let stash = self.extras.lock().as_mut().map(|extras| core::mem::take(&mut extras.stash)).unwrap_or_default();
        let count = stash.len();
        if count == 0 {
            return 0;
        }
        for item in stash.into_iter().rev() {
            store.restore(item);
        }
        self.stashed.set(0);
        let popped = self.front.popped.get().wrapping_sub(count);
        self.front.popped.publish(popped);
        self.front.stored.publish(store.len());
        self.has_room(&mut inbox);
        drop((inbox, store));
        for _ in 0..count {
            self.wake_receiver();
        }
        self.notify_hooks();
        count
    }

    /// A producer handle exists.
    pub(crate) fn add_producer(&self) {
        if self.producers.increment() == 0 {
            self.refresh_orphaned();
        }
    }

    /// A producer handle is gone. With the last one nothing more will come.
    pub(crate) fn remove_producer(&self) {
        if self.producers.decrement() == 1 && self.refresh_orphaned() {
            self.receivers.wake_all();
            self.notify_hooks();
        }
    }

    /// Whether there is a producer is asked under the lock, so that of one that comes and one that goes at the same
    /// time the later one leaves the right answer.
    fn refresh_orphaned(&self) -> bool {
        let mut orphaned = false;
        self.change_flags(|flags| {
            orphaned = self.producers.observe() == 0;
            if orphaned { flags | ORPHANED } else { flags & !ORPHANED }
        });
        orphaned
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

    // ---- observing ----

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

    fn notify_hooks(&self) {
        if let Some(hooks) = self.hooks() {
            hooks.notify();
        }
    }

    /// Tells the metrics sink what happened.
    fn report(&self, event: MailboxEvent) {
        if let Some(hooks) = self.hooks() {
            hooks.report(event, self.len(), self.capacity());
        }
    }

    /// Tells the hooks what became of an offer, and that there is something to receive.
    fn report_offer<T>(&self, outcome: &OfferOutcome<T>) {
        let Some(hooks) = self.hooks() else { return };
        let (depth, capacity) = (self.len(), self.capacity());
        match outcome {
            OfferOutcome::Accepted => {}
            OfferOutcome::Rejected(_) => {
                return hooks.report(MailboxEvent::Rejected, depth, capacity);
            }
            OfferOutcome::Evicted(_) => hooks.report(MailboxEvent::Evicted, depth, capacity),
            OfferOutcome::Grew(capacity) => {
                hooks.report(MailboxEvent::Grown { capacity: *capacity }, depth, Some(*capacity));
            }
        }
        hooks.report(MailboxEvent::Enqueued, depth, capacity);
        hooks.notify();
    }
}

/// Wakes the first waiter, under no lock.
#[cold]
fn wake_one<C: MailboxConcurrency>(queue: &WaitQueue<C>) {
    if let Some(waker) = queue.notify_one() {
        waker.wake();
    }
}

impl<M, O: Order<M>, C: MetadataStorageMode> fmt::Debug for Core<M, O, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core")
            .field("len", &self.len())
            .field("capacity", &self.capacity())
            .field("policy", &self.policy)
            .field("closed", &self.is_closed())
            .finish_non_exhaustive()
    }
}
