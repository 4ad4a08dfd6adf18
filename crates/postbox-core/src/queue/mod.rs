//! The queue behind every mailbox: a two-lock queue that hands over messages in batches.
//!
//! Producers push into the *inbox* under one lock. Consumers pop from the *store* under another
//! lock. A consumer that finds the store empty moves the whole inbox into it at once, so producers
//! and consumers contend once for each batch instead of once for each message. A batch in the store
//! still belongs to the mailbox: it counts in the size, every consumer can pop from it, and it
//! outlives the consumer that moved it.
//!
//! What differs between a FIFO and a priority mailbox is the [store](crate::order). Overflow
//! policies, control messages, the stash, suspension, closing and waiting are implemented once,
//! here.
//!
//! # Fast paths
//!
//! * A push to a FIFO mailbox takes the inbox lock, compares `pushed` with `fast_until`, and writes
//!   the message. `fast_until` is the value of `pushed` up to which there was room when `popped`
//!   was last read. It does not exceed `pushed` while the mailbox is closed or has hooks, so
//!   capacity, closing and hooks cost the fast path nothing else.
//! * A pop from a FIFO mailbox takes one lock: that of the store for the next message of a batch,
//!   or that of the inbox for a single message.
//! * A push to an unbounded priority mailbox without hooks goes directly to the store if the store
//!   is not locked and the inbox is empty.
//!
//! The fast paths are inlined into the caller and move the message once; a second move of a large
//! message can cost more than the lock. All other cases are in functions with the suffix `_slow`.
//!
//! # Invariants
//!
//! Code that relies on an invariant names its number.
//!
//! 1. Locks are acquired in the order store, inbox, extras, waiting senders. A thread that holds
//!    the inbox may only *try* to lock the store. Waiting receivers are protected by the inbox
//!    lock.
//! 2. `pushed - popped` is the number of stored regular messages. `pushed` is written under the
//!    inbox lock. `popped` is written under the store lock; in a FIFO mailbox also under the inbox
//!    lock while the store is empty. A message pushed directly into the store decrements `popped`.
//!    An eviction changes neither counter.
//! 3. The store of a FIFO mailbox gains messages only while both locks are held. So a thread that
//!    holds the inbox lock and reads `store_len == 0` knows that the store stays empty.
//! 4. A receiver registers under the inbox lock, and in a priority mailbox under both locks, in the
//!    critical section that found no message. A sender registers under both locks, in the critical
//!    section that found no room. Every push holds the inbox lock, or the store lock in a priority
//!    mailbox. Every pop holds one of the two locks. So no push or pop misses a waiter, and the
//!    fast paths need no memory fence.
//! 5. `flags` are written under the inbox lock; those that senders check (`CLOSED`, `METRICS`,
//!    `NOTIFY`) under both locks. Foreign code never runs under a lock: wakers (including clone and
//!    drop), hooks, priority functions and destructors of messages.

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

/// The control channel holds a message.
const CONTROL: usize = 1;
/// Regular messages are withheld.
const SUSPENDED: usize = 2;
/// A metrics sink is set.
const METRICS: usize = 4;
/// The queue accepts no more messages.
const CLOSED: usize = 8;
/// The last producer handle was dropped.
const NO_PRODUCER: usize = 16;
/// A signal or a scheduler hook is set.
const NOTIFY: usize = 32;

/// The largest amount of room that wrapping comparisons of the counters support.
const MAX_ROOM: usize = isize::MAX as usize;

/// How often a blocked thread initially yields before it parks.
#[cfg(feature = "std")]
const INITIAL_YIELDS: usize = 16;

/// The state that all handles of one mailbox share.
pub(crate) struct Queue<M, O: Order<M>, C: MetadataStorageMode> {
    front: Padded<Front<O::Store, C>>,
    back: Padded<Back<O::Item, C>>,
    flags: C::Count,
    /// The capacity; `usize::MAX` if unbounded. Written under the inbox lock.
    capacity: C::Count,
    /// Stashed regular messages; they count against the capacity. Written under both locks.
    stashed: C::Count,
    /// Messages that were rejected or evicted.
    rejected: C::Count,
    /// Messages that were pushed directly into the store, which `pushed` does not count. Written
    /// under the store lock.
    direct_pushes: C::Count,
    /// Senders that wait for room.
    senders: WaitQueue<C>,
    /// For how many spins a receiver lets messages gather before it takes them. A heuristic, so
    /// lost updates do no harm.
    gather_spins: C::Count,
    /// Positive while messages arrive in a stream: set when a receiver takes several messages from
    /// the inbox of a FIFO mailbox, decremented when it takes one. A heuristic, as well.
    stream_credit: C::Count,
    /// How often blocked threads yield before they park; see `WaitBackoff` in `blocking.rs`.
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

/// The consumer side.
struct Front<S, C: MailboxConcurrency> {
    store: C::Lock<S>,
    popped: C::Count,
    /// `store.len()`, readable without the lock.
    store_len: C::Count,
}

/// The producer side. The fields that every push writes share a cache line; the waiting
/// receivers are on the next one.
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
    /// A push takes the fast path while `pushed` is less than this value; see the module
    /// documentation.
    fast_until: usize,
    /// Receivers that wait for a message. Every push and every registration locks the inbox anyway.
    receivers: WaiterList,
}

type LazyExtras<S, C> = Option<Box<Extras<S, C>>>;

/// State that few mailboxes need, allocated on first use.
struct Extras<S: Store, C: MetadataStorageMode> {
    control: S,
    /// Control messages ever accepted.
    control_pushed: usize,
    /// Stashed messages; `true` for control messages.
    stash: Vec<(S::Item, bool)>,
    suspensions: usize,
    hooks: Hooks<C>,
    /// Senders that wait for room on the control channel.
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

    /// Stored messages, including control messages and excluding stashed ones.
    pub(crate) fn len(&self) -> usize {
        self.regular_len() + self.control_len()
    }

    /// Stored regular messages.
    fn regular_len(&self) -> usize {
        let mut pushed = self.back.pushed.load_acquire();
        // The difference is exact if `pushed` did not change while `popped` was read. After four
        // attempts the result may be too small, never too large.
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

    /// Whether no message is stored.
    pub(crate) fn is_empty(&self) -> bool {
        self.is_regular_empty() && self.flags.get() & CONTROL == 0
    }

    /// Whether no regular message is stored. The result is exact: `popped` never exceeds `pushed`,
    /// and `pushed` never decreases, so if the earlier value of `popped` equals the later value of
    /// `pushed`, no message was stored in between.
    #[inline(always)]
    fn is_regular_empty(&self) -> bool {
        let popped = self.front.popped.load_acquire();
        popped == self.back.pushed.load_acquire()
    }

    /// Whether a receive may return a message or `Disconnected`.
    #[cfg(feature = "std")]
    #[inline(always)]
    pub(crate) fn may_receive(&self) -> bool {
        !self.is_regular_empty() || self.flags.get() & (CONTROL | CLOSED | NO_PRODUCER) != 0
    }

    /// The number of messages for which there is room.
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

    /// The number of messages ever accepted, including evicted and excluding rejected ones.
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

    /// The number of messages that were rejected or evicted.
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

    /// The number of occupied places and the capacity of a bounded queue.
    fn usage(&self) -> Option<(usize, usize)> {
        self.capacity().map(|capacity| (self.regular_len() + self.stashed.get(), capacity))
    }

    /// The capacity minus the stashed messages.
    fn effective_capacity(&self) -> usize {
        match self.capacity.get() {
            usize::MAX => usize::MAX,
            capacity => capacity.saturating_sub(self.stashed.get()),
        }
    }

    /// Recomputes `fast_until`. Returns whether there is room for one more message.
    fn refresh_room(&self, inbox: &mut InboxGuard<'_, M, O, C>) -> bool {
        let popped = self.front.popped.load_acquire();
        let room = self.effective_capacity().min(MAX_ROOM);
        let observed = self.flags.get() & (CLOSED | METRICS | NOTIFY) != 0;
        let pushed = self.back.pushed.get();
        let fast_until = popped.wrapping_add(room);
        inbox.fast_until = if observed { pushed } else { fast_until };
        fast_until.wrapping_sub(pushed) as isize > 0
    }

    /// Moves all messages from the inbox into the store. Both locks are held until `store_len` is
    /// published ([invariant 3](self#invariants)).
    fn move_inbox_to_store(&self, store: &mut O::Store, inbox: &mut InboxGuard<'_, M, O, C>) {
        store.append(&mut inbox.messages);
        self.front.store_len.store_release(store.len());
    }

    /// Changes the flags under the inbox lock.
    fn change_flags(&self, change: impl FnOnce(usize) -> usize) {
        let mut inbox = self.back.inbox.lock();
        self.flags.store_release(change(self.flags.get()));
        self.refresh_room(&mut inbox);
    }

    /// The number of senders that wait for room.
    pub(crate) fn waiting_senders(&self) -> usize {
        self.senders.len()
    }

    /// The number of receivers that wait for a message.
    pub(crate) fn waiting_receivers(&self) -> usize {
        self.back.receiver_count.get()
    }

    /// Unlocks the inbox after a push and wakes the first waiting receiver.
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

    /// Wakes the first waiting receiver after a push that did not lock the inbox.
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

/// Wakes the first waiter. The caller holds no lock ([invariant 5](self#invariants)).
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
