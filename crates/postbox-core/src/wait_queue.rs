//! The wait queue: the waiters in order, and which of them to wake.
//!
//! Rules that its users keep, and that every future of this crate follows:
//!
//! 1. *Register in the critical section that saw "not yet".* The owner of the condition holds the lock that guards
//!    it while it calls [`WaitQueue::register`], so nothing can change unseen between the look and the registration.
//! 2. *Wake after the locks are released.* [`WaitQueue::notify_one`] hands out the waker instead of calling it.
//! 3. *A wake-up is never swallowed.* Whoever gives back a ticket that was notified but not used passes the
//!    notification on; [`WaitQueue::remove`] tells.

use core::fmt;
use core::task::Waker;

use alloc::vec::Vec;

use crate::sync::{Count, Lock, MailboxConcurrency};

const NONE: u32 = u32::MAX;

/// A place in a [`WaitQueue`], or among the receivers of a mailbox. Its owner gives it back: [`WaitQueue::remove`].
#[derive(Debug)]
pub struct Ticket {
    index: u32,
    generation: u32,
}

/// Waiting tasks in order of arrival.
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
    /// How many tickets wait un-notified. Read without the lock by threads that might have to notify.
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

/// Waiting tasks in order of arrival, without a lock of its own: for an owner that has one under which waiters register.
///
/// A doubly linked list in a slab: any ticket leaves in constant time, and places are used again.
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
    /// `None` while the slot is free.
    waker: Option<Waker>,
    prev: u32,
    next: u32,
    /// Counts the waiters that this slot has served, so that a ticket knows its own.
    generation: u32,
}

impl<C: MailboxConcurrency> WaitQueue<C> {
    /// An empty queue. Allocates nothing until a task waits.
    pub fn new() -> Self {
        WaitQueue { waiting: C::Count::new(0), waiters: C::Lock::new(WaiterList::default()) }
    }

    /// Whether anybody waits. Exact for a caller that holds the lock under which waiters register.
    #[inline(always)]
    pub fn is_waiting(&self) -> bool {
        self.waiting.get() != 0
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiting.get()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        !self.is_waiting()
    }

    /// Makes `waker` wait under `ticket`.
    ///
    /// Without a ticket, a new one goes to the end. A ticket that still waits keeps its place and takes the new
    /// waker. A ticket that was notified, and whose owner found the condition untrue again because another task was
    /// quicker, goes to the head: it has waited longest.
    ///
    /// What comes back is a waker that is not needed any more. Its drop runs foreign code, so the caller keeps it
    /// until it holds no lock; for the same reason `waker` is cloned by the caller, before it takes its locks.
    #[must_use = "a waker must be dropped when no lock is held"]
    pub fn register(&self, ticket: &mut Option<Ticket>, waker: Waker) -> Option<Waker> {
        let mut waiters = self.waiters.lock();
        let unused = waiters.register(ticket, waker);
        self.waiting.set(waiters.len());
        unused
    }

    /// Takes the first waiter out and gives its waker, to be woken once the caller holds no lock.
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

    /// Gives a ticket back, and its waker, to be dropped when no lock is held. `None` if it had been notified: then the
    /// caller either has used the notification or passes it on.
    #[must_use = "a ticket that was notified must pass the notification on"]
    pub fn remove(&self, ticket: &mut Option<Ticket>) -> Option<Waker> {
        let ticket = ticket.take()?;
        // Nobody waits, so this ticket does not: it was notified since it was registered. No lock for the usual end
        // of a wait.
        if !self.is_waiting() {
            return None;
        }
        let mut waiters = self.waiters.lock();
        let waker = waiters.remove(&ticket);
        self.waiting.set(waiters.len());
        waker
    }

    /// How many places the slab holds, used and free: tests look at it for leaks.
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

    /// All wakers, to be woken under no lock.
    pub(crate) fn drain(&mut self) -> Vec<Waker> {
        core::iter::from_fn(|| self.pop_first()).collect()
    }

    /// See [`WaitQueue::remove`].
    pub(crate) fn remove(&mut self, ticket: &Ticket) -> Option<Waker> {
        if self.is_waiting(ticket) { self.remove_at(ticket.index) } else { None }
    }

    /// Whether the ticket's own registration is still in the waiters.
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
        assert!(self.free != NONE, "fewer than 2^32 - 1 tasks wait on one queue");
        self.slots.push(Slot { waker: None, prev: NONE, next: NONE, generation: 0 });
    }

    /// Takes a waiter out of the line and frees its slot; its ticket is of an old generation from now on.
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
