//! A queue of waiting tasks, the base of every future of this crate.
//!
//! Users of a wait queue follow three rules:
//!
//! 1. *Register in the critical section that found the condition false.* The caller of
//!    [`WaitQueue::register`] holds the lock that protects the condition, so the condition cannot
//!    change between the check and the registration.
//! 2. *Wake outside all locks.* [`WaitQueue::notify_one`] returns the waker instead of calling it.
//! 3. *Pass on unused notifications.* A waiter that was notified and does not use the notification
//!    must notify the next waiter; [`WaitQueue::remove`] tells whether it was notified.

use core::fmt;
use core::task::Waker;

use alloc::vec::Vec;

use crate::sync::{Count, Lock, MailboxConcurrency};

const NONE: u32 = u32::MAX;

/// A registration in a [`WaitQueue`]. The owner returns it by [`WaitQueue::remove`].
#[derive(Debug)]
pub struct Ticket {
    index: u32,
    generation: u32,
}

/// Waiting tasks in order of arrival.
///
/// A caller checks a condition and registers under one lock. The code that makes the condition true
/// takes a waker by [`notify_one`](Self::notify_one) and calls it after it has released its locks.
/// A task that no longer waits [removes](Self::remove) its ticket, and notifies the next task if
/// the ticket had been notified already.
///
/// ```
/// use core::task::Waker;
/// use postbox_core::{ThreadSafe, WaitQueue};
///
/// let queue: WaitQueue<ThreadSafe> = WaitQueue::new();
/// let mut ticket = None;
/// assert!(queue.register(&mut ticket, Waker::noop().clone()).is_none());
/// assert!(queue.is_waiting());
///
/// let waker = queue.notify_one().expect("one task waits");
/// waker.wake();
/// assert!(!queue.is_waiting());
/// assert!(queue.remove(&mut ticket).is_none(), "the ticket had been notified");
/// ```
pub struct WaitQueue<C: MailboxConcurrency> {
    /// The number of registered waiters. Notifiers read it without the lock.
    waiting: C::Count,
    waiters: C::Lock<WaiterList>,
}

impl<C: MailboxConcurrency> fmt::Debug for WaitQueue<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitQueue").field("waiting", &self.waiting.get()).finish_non_exhaustive()
    }
}

impl<C: MailboxConcurrency> Default for WaitQueue<C> {
    fn default() -> Self {
        Self::new()
    }
}

/// A list of waiters without a lock, for owners that register waiters under a lock of their own.
///
/// A doubly linked list in a slab: a waiter is removed in constant time, and slots are reused.
#[derive(Debug)]
pub(crate) struct WaiterList {
    slots: Vec<Slot>,
    head: u32,
    tail: u32,
    /// The first free slot; free slots are linked by `next`.
    free: u32,
    len: u32,
}

#[derive(Debug)]
struct Slot {
    /// `None` in a free slot.
    waker: Option<Waker>,
    prev: u32,
    next: u32,
    /// Incremented when a waiter leaves the slot, which invalidates its ticket.
    generation: u32,
}

impl<C: MailboxConcurrency> WaitQueue<C> {
    /// Creates an empty queue. Allocates nothing until a task registers.
    pub fn new() -> Self {
        WaitQueue { waiting: C::Count::new(0), waiters: C::Lock::new(WaiterList::default()) }
    }

    /// Whether a task waits. Exact for a caller that holds the lock under which tasks register.
    #[inline(always)]
    pub fn is_waiting(&self) -> bool {
        self.waiting.get() != 0
    }

    /// The number of waiting tasks.
    pub fn len(&self) -> usize {
        self.waiting.get()
    }

    /// Whether no task waits.
    pub fn is_empty(&self) -> bool {
        !self.is_waiting()
    }

    /// Registers `waker` under `ticket`.
    ///
    /// Without a ticket, the waker is appended and `ticket` is set. A ticket that is still
    /// registered keeps its position and gets the new waker. A ticket that was notified, but found
    /// the condition false again, is put first, since it has waited longest.
    ///
    /// Returns a waker that is no longer needed. Dropping it runs foreign code, so the caller drops
    /// it after releasing its locks. For the same reason the caller clones `waker` before it takes
    /// its locks.
    #[must_use = "the waker must be dropped outside all locks"]
    pub fn register(&self, ticket: &mut Option<Ticket>, waker: Waker) -> Option<Waker> {
        let mut waiters = self.waiters.lock();
        let unused = waiters.register(ticket, waker);
        self.waiting.set(waiters.len());
        unused
    }

    /// Removes the first waiter and returns its waker, which the caller wakes after releasing its
    /// locks.
    pub fn notify_one(&self) -> Option<Waker> {
        let mut waiters = self.waiters.lock();
        let waker = waiters.pop_first();
        self.waiting.set(waiters.len());
        waker
    }

    /// Wakes all waiters. The caller holds no lock.
    pub fn wake_all(&self) {
        let wakers = {
            let mut waiters = self.waiters.lock();
            self.waiting.set(0);
            waiters.drain()
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Unregisters a ticket and returns its waker, which the caller drops after releasing its
    /// locks. Returns `None` if the ticket was notified: then the caller has used the notification,
    /// or passes it on.
    #[must_use = "a notification that was not used must be passed on"]
    pub fn remove(&self, ticket: &mut Option<Ticket>) -> Option<Waker> {
        let ticket = ticket.take()?;
        // Without waiters this ticket was notified, so the usual end of a wait takes no lock.
        if !self.is_waiting() {
            return None;
        }
        let mut waiters = self.waiters.lock();
        let waker = waiters.remove(&ticket);
        self.waiting.set(waiters.len());
        waker
    }

    /// The number of slots, used and free, for tests that look for leaks.
    #[doc(hidden)]
    pub fn slots(&self) -> usize {
        self.waiters.lock().slots.len()
    }
}

impl Default for WaiterList {
    fn default() -> Self {
        WaiterList { slots: Vec::new(), head: NONE, tail: NONE, free: NONE, len: 0 }
    }
}

impl WaiterList {
    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.head == NONE
    }

    /// See [`WaitQueue::register`].
    #[inline]
    pub(crate) fn register(&mut self, ticket: &mut Option<Ticket>, waker: Waker) -> Option<Waker> {
        match ticket {
            Some(waiting) if self.is_waiting(waiting) => self.slots[waiting.index as usize].waker.replace(waker),
            _ => {
                let new = self.allocate(waker);
                match ticket {
                    Some(_) => self.link_first(new.index),
                    None => self.link_last(new.index),
                }
                *ticket = Some(new);
                self.len += 1;
                None
            }
        }
    }

    /// See [`WaitQueue::notify_one`].
    #[inline]
    pub(crate) fn pop_first(&mut self) -> Option<Waker> {
        if self.is_empty() { None } else { self.remove_at(self.head) }
    }

    /// Removes all waiters. The caller wakes them after releasing its locks.
    pub(crate) fn drain(&mut self) -> Vec<Waker> {
        core::iter::from_fn(|| self.pop_first()).collect()
    }

    /// See [`WaitQueue::remove`].
    pub(crate) fn remove(&mut self, ticket: &Ticket) -> Option<Waker> {
        if self.is_waiting(ticket) { self.remove_at(ticket.index) } else { None }
    }

    /// Whether the ticket's registration is still in the list.
    fn is_waiting(&self, ticket: &Ticket) -> bool {
        self.slots[ticket.index as usize].generation == ticket.generation
    }

    #[inline]
    fn allocate(&mut self, waker: Waker) -> Ticket {
        if self.free == NONE {
            self.grow();
        }
        let index = self.free;
        let slot = &mut self.slots[index as usize];
        self.free = slot.next;
        slot.waker = Some(waker);
        Ticket { index, generation: slot.generation }
    }

    #[cold]
    fn grow(&mut self) {
        self.free = u32::try_from(self.slots.len()).unwrap_or(NONE);
        assert!(self.free != NONE, "too many tasks wait on one queue");
        self.slots.push(Slot { waker: None, prev: NONE, next: NONE, generation: 0 });
    }

    /// Removes a waiter and frees its slot, which invalidates its ticket.
    #[inline]
    fn remove_at(&mut self, index: u32) -> Option<Waker> {
        if self.head == self.tail {
            (self.head, self.tail) = (NONE, NONE);
        } else {
            self.unlink(index);
        }
        self.len -= 1;
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.next = self.free;
        self.free = index;
        slot.waker.take()
    }

    #[inline]
    fn link_last(&mut self, index: u32) {
        let tail = self.tail;
        let slot = &mut self.slots[index as usize];
        (slot.prev, slot.next) = (tail, NONE);
        match tail {
            NONE => self.head = index,
            tail => self.slots[tail as usize].next = index,
        }
        self.tail = index;
    }

    fn link_first(&mut self, index: u32) {
        let head = self.head;
        let slot = &mut self.slots[index as usize];
        (slot.prev, slot.next) = (NONE, head);
        match head {
            NONE => self.tail = index,
            head => self.slots[head as usize].prev = index,
        }
        self.head = index;
    }

    fn unlink(&mut self, index: u32) {
        let Slot { prev, next, .. } = self.slots[index as usize];
        match prev {
            NONE => self.head = next,
            prev => self.slots[prev as usize].next = next,
        }
        match next {
            NONE => self.tail = prev,
            next => self.slots[next as usize].prev = prev,
        }
    }
}
