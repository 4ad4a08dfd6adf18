//! The heart of every mailbox: one queue with two ends.
//!
//! Producers push into the *inbox* under one lock, consumers pop from the *store* under another. When the store
//! has nothing more to give, a consumer takes the whole inbox in one move_inbox_to_store. So one producer and one consumer
//! meet once per batch, not once per message, and what a consumer has taken in but not handed out is still in the
//! mailbox: it counts in its size and any consumer may have it. A store of sorted messages that nobody uses also takes a
//! message at once, past the inbox.
//!
//! # Invariants
//!
//! 1. Locks are taken in the order store, inbox, then the senders' wait queues and extras. A thread that holds the inbox
//!    may only *try* the store. Receivers stand in line under the inbox.
//! 2. `pushed - popped` is the number of regular messages in the mailbox. `pushed` is written under the inbox;
//!    `popped` under the store, or, in a FIFO mailbox, under the inbox while the store is empty. A message that is direct_pushes
//!    in the store past the inbox moves `popped` one back; an eviction, one in and one out, moves neither.
//! 3. The store of a FIFO mailbox gains messages only while both locks are held. So a thread that holds the inbox and reads
//!    `store_len == 0` knows that the store is empty and stays so.
//! 4. A receiver registers under the inbox, and where messages are sorted under both locks, in the section that saw
//!    nothing to take. A sender registers under both, in the section that saw no room. Every push holds the inbox, or the
//!    store of sorted messages; every pop holds one of the two; so none misses a waiter.
//! 5. `flags` are written under the inbox, and those that a sender heeds (`CLOSED`, `METRICS`, `NOTIFY`) under both.
//!    Wakers (their clone and drop, too), hooks, priority functions and messages' destructors run under no lock.

mod hooks;
mod lifecycle;
mod receive;
mod send;

use self::hooks::Hooks;

use core::fmt;
use core::marker::PhantomData;
use core::task::Waker;

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::order::{ChunkedQueue, Evicted, Order, Store};
use crate::shared::mailbox::{MailboxEvent, MailboxOptions};
use crate::shared::queue::{OfferOutcome, OverflowPolicy, QueueError};
use crate::sync::{Count, Lock, MailboxConcurrency, MetadataStorageMode, Padded};
use crate::wait_queue::{Ticket, WaitQueue, WaiterList};

/// The control lane holds a message.
const CONTROL: usize = 1;
/// Regular messages are held back.
const SUSPENDED: usize = 2;
/// A metrics sink wants to know what happens.
const METRICS: usize = 4;
/// No more messages are taken.
const CLOSED: usize = 8;
/// The last producer is gone.
const NO_PRODUCER: usize = 16;
/// A signal or a scheduler hook wants to know when there is something to receive.
const NOTIFY: usize = 32;

/// More room than any queue needs, yet near enough for wrapping counters to be compared.
const MAX_ROOM: usize = isize::MAX as usize;

/// How often a waiting thread gives its time slice away before it sleeps, until it knows better.
#[cfg(feature = "std")]
const INITIAL_YIELDS: usize = 16;

pub(crate) struct Queue<M, O: Order<M>, C: MetadataStorageMode> {
    front: Padded<Front<O::Store, C>>,
    back: Padded<Back<O::Item, C>>,
    flags: C::Count,
    /// The bound; `usize::MAX` without one. Written under the inbox.
    capacity: C::Count,
    /// Regular messages in the stash; they take up room. Written under both locks.
    stashed: C::Count,
    /// Messages that were refused or evicted.
    rejected: C::Count,
    /// Messages that were direct_pushes in the store past the inbox, so that `pushed` does not count them. Written under the store.
    direct_pushes: C::Count,
    /// Waits for room.
    senders: WaitQueue<C>,
    /// How long a receiver lets messages gather, while they flow; a hint, so lost updates do not matter.
    gather_spins: C::Count,
    /// Whether messages come in a stream: more than 0 if a receiver that met the producers of a FIFO mailbox has found several,
    /// not long ago. A hint, too.
    stream_credit: C::Count,
    /// How patiently threads wait awake, for a message and for room: see `blocking.rs`.
    #[cfg(feature = "std")]
    receive_yields: C::Count,
    #[cfg(feature = "std")]
    send_yields: C::Count,
    producers: C::Count,
    consumers: C::Count,
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
    store_len: C::Count,
}

/// The producers' end. What every push writes lies on one cache line, the waiters on the next.
#[repr(C)]
struct Back<I, C: MailboxConcurrency> {
    pushed: C::Count,
    inbox: C::Lock<Inbox<I>>,
    /// `receivers.len()`, readable without the lock.
    receiver_count: C::Count,
}

#[repr(C)]
struct Inbox<I> {
    messages: ChunkedQueue<I>,
    /// The value of `pushed` up to which a push needs no second look: there was room that far when `popped` was
    /// last read, so the consumers' cache line is left alone. A closed or observed mailbox has none of it.
    fast_until: usize,
    /// Wait for a message. Here, because who brings one holds the inbox anyway, and so does who registers.
    receivers: WaiterList,
}

type LazyExtras<S, C> = Option<Box<Extras<S, C>>>;

/// What most mailboxes never use; allocated on first use.
struct Extras<S: Store, C: MetadataStorageMode> {
    control: S,
    /// Control messages ever taken in.
    control_pushed: usize,
    /// With each message, whether it belongs to the control lane.
    stash: Vec<(S::Item, bool)>,
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

type StoreGuard<'a, M, O, C> =
    <<C as MailboxConcurrency>::Lock<<O as Order<M>>::Store> as Lock<<O as Order<M>>::Store>>::Guard<'a>;

impl<M, O: Order<M>, C: MetadataStorageMode> Queue<M, O, C> {
    pub(crate) fn new(order: O, options: MailboxOptions) -> Self {
        let capacity = options.capacity_limit().unwrap_or(usize::MAX);
        let inbox = Inbox {
            messages: ChunkedQueue::default(),
            fast_until: capacity.min(MAX_ROOM),
            receivers: WaiterList::default(),
        };
        Queue {
            front: Padded(Front {
                store: C::Lock::new(O::Store::default()),
                popped: C::Count::new(0),
                store_len: C::Count::new(0),
            }),
            back: Padded(Back {
                pushed: C::Count::new(0),
                inbox: C::Lock::new(inbox),
                receiver_count: C::Count::new(0),
            }),
            flags: C::Count::new(0),
            capacity: C::Count::new(capacity),
            stashed: C::Count::new(0),
            rejected: C::Count::new(0),
            direct_pushes: C::Count::new(0),
            senders: WaitQueue::new(),
            gather_spins: C::Count::new(0),
            stream_credit: C::Count::new(0),
            #[cfg(feature = "std")]
            receive_yields: C::Count::new(INITIAL_YIELDS),
            #[cfg(feature = "std")]
            send_yields: C::Count::new(INITIAL_YIELDS),
            producers: C::Count::new(0),
            consumers: C::Count::new(0),
            extras: C::Lock::new(None),
            policy: options.overflow,
            control_capacity: options.priority_capacity_limit().unwrap_or(usize::MAX),
            order,
            messages: PhantomData,
        }
    }

    /// Messages that wait, control messages included, stashed ones not.
    pub(crate) fn len(&self) -> usize {
        self.regular_len() + self.control_len()
    }

    /// Regular messages that wait.
    fn regular_len(&self) -> usize {
        let mut pushed = self.back.pushed.load_acquire();
        // While `pushed` stands still, `popped` tells the truth of one moment. On a busy mailbox a few attempts must
        // do; then what left in between makes the answer smaller, never larger.
        for _ in 0..4 {
            let len = pushed.wrapping_sub(self.front.popped.load_acquire()) as isize;
            let now = self.back.pushed.load_acquire();
            if now == pushed {
                return len.max(0) as usize;
            }
            pushed = now;
        }
        (pushed.wrapping_sub(self.front.popped.load_acquire()) as isize).max(0) as usize
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.is_regular_empty() && self.flags.get() & CONTROL == 0
    }

    /// Whether no regular message waits. Exact: `popped` never passes `pushed`, which never goes back, so if `popped` as it was
    /// equals `pushed` as it is, nothing was in between then.
    #[inline(always)]
    fn is_regular_empty(&self) -> bool {
        let popped = self.front.popped.load_acquire();
        popped == self.back.pushed.load_acquire()
    }

    /// Whether a receive might find something: a message, or the end.
    #[cfg(feature = "std")]
    #[inline(always)]
    pub(crate) fn may_receive(&self) -> bool {
        !self.is_regular_empty() || self.flags.get() & (CONTROL | CLOSED | NO_PRODUCER) != 0
    }

    /// For how many messages there is room.
    #[inline(always)]
    pub(crate) fn free_capacity(&self) -> usize {
        let len = self.back.pushed.get().wrapping_sub(self.front.popped.get()) as isize;
        self.effective_capacity().saturating_sub(len.max(0) as usize)
    }

    pub(crate) fn control_len(&self) -> usize {
        if self.flags.get() & CONTROL == 0 {
            return 0;
        }
        self.extras.lock().as_ref().map_or(0, |extras| extras.control.len())
    }

    /// How many messages were ever taken in; evicted ones count, refused ones do not.
    pub(crate) fn message_count(&self) -> usize {
        let control = self.extras.lock().as_ref().map_or(0, |extras| extras.control_pushed);
        self.back.pushed.load_acquire().wrapping_add(self.direct_pushes.get()).wrapping_add(control)
    }

    pub(crate) fn capacity(&self) -> Option<usize> {
        Some(self.capacity.get()).filter(|&capacity| capacity != usize::MAX)
    }

    pub(crate) fn control_capacity(&self) -> Option<usize> {
        Some(self.control_capacity).filter(|&capacity| capacity != usize::MAX)
    }

    /// How many messages were rejected or evicted.
    pub(crate) fn rejected_count(&self) -> usize {
        self.rejected.get()
    }

    /// How often a blocked receiver yields before it parks.
    #[cfg(feature = "std")]
    pub(crate) fn receive_yields(&self) -> &C::Count {
        &self.receive_yields
    }

    /// How often a blocked sender yields before it parks.
    #[cfg(feature = "std")]
    pub(crate) fn send_yields(&self) -> &C::Count {
        &self.send_yields
    }

    pub(crate) fn policy(&self) -> OverflowPolicy {
        self.policy
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.flags.load_acquire() & CLOSED != 0
    }

    pub(crate) fn is_suspended(&self) -> bool {
        self.flags.get() & SUSPENDED != 0
    }

    pub(crate) fn stashed(&self) -> usize {
        self.extras.lock().as_ref().map_or(0, |extras| extras.stash.len())
    }

    /// How many places are taken, and how many there are.
    fn usage(&self) -> Option<(usize, usize)> {
        self.capacity().map(|capacity| (self.regular_len() + self.stashed.get(), capacity))
    }

    /// The bound less what is in the stash.
    fn effective_capacity(&self) -> usize {
        match self.capacity.get() {
            usize::MAX => usize::MAX,
            capacity => capacity.saturating_sub(self.stashed.get()),
        }
    }

    /// Looks how far there is room now.
    fn refresh_room(&self, inbox: &mut InboxGuard<'_, M, O, C>) -> bool {
        let popped = self.front.popped.load_acquire();
        let room = self.effective_capacity().min(MAX_ROOM);
        let observed = self.flags.get() & (CLOSED | METRICS | NOTIFY) != 0;
        let pushed = self.back.pushed.get();
        let fast_until = popped.wrapping_add(room);
        inbox.fast_until = if observed { pushed } else { fast_until };
        fast_until.wrapping_sub(pushed) as isize > 0
    }

    /// Moves all that has messages into the store. Invariant 3: `store_len` tells of it before either lock is released.
    fn move_inbox_to_store(&self, store: &mut O::Store, inbox: &mut InboxGuard<'_, M, O, C>) {
        store.append(&mut inbox.messages);
        self.front.store_len.store_release(store.len());
    }

    /// Sets and clears flags under the inbox.
    fn change_flags(&self, change: impl FnOnce(usize) -> usize) {
        let mut inbox = self.back.inbox.lock();
        self.flags.store_release(change(self.flags.get()));
        self.refresh_room(&mut inbox);
    }

    /// How many senders wait for room.
    pub(crate) fn waiting_senders(&self) -> usize {
        self.senders.len()
    }

    /// How many receivers wait.
    pub(crate) fn waiting_receivers(&self) -> usize {
        self.back.receiver_count.get()
    }

    /// Gives the inbox back after a message came in, and wakes the receiver that it is for.
    #[inline(always)]
    fn unlock_and_wake(&self, inbox: InboxGuard<'_, M, O, C>) {
        if inbox.receivers.is_empty() {
            drop(inbox);
        } else {
            self.unlock_and_wake_one(inbox);
        }
    }

    #[inline(never)]
    fn unlock_and_wake_one(&self, mut inbox: InboxGuard<'_, M, O, C>) {
        let first = inbox.receivers.pop_first();
        self.back.receiver_count.set(inbox.receivers.len());
        drop(inbox);
        if let Some(waker) = first {
            waker.wake();
        }
    }

    /// Wakes a receiver for a message that came in past the inbox.
    #[inline(always)]
    fn wake_receiver(&self) {
        if self.waiting_receivers() != 0 {
            self.unlock_and_wake_one(self.back.inbox.lock());
        }
    }

    fn wake_receivers(&self) {
        let wakers = {
            let mut inbox = self.back.inbox.lock();
            self.back.receiver_count.set(0);
            inbox.receivers.drain()
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    #[inline(always)]
    fn wake_sender(&self) {
        if self.senders.is_waiting() {
            wake_one(&self.senders);
        }
    }
}

/// Wakes the first waiter, under no lock.
#[cold]
fn wake_one<C: MailboxConcurrency>(queue: &WaitQueue<C>) {
    if let Some(waker) = queue.notify_one() {
        waker.wake();
    }
}

impl<M, O: Order<M>, C: MetadataStorageMode> fmt::Debug for Queue<M, O, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("len", &self.len())
            .field("capacity", &self.capacity())
            .field("policy", &self.policy)
            .field("closed", &self.is_closed())
            .finish_non_exhaustive()
    }
}
