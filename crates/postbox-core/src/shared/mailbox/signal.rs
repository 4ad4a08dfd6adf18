//! "There may be something to do": a notification that tasks can wait for.

use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

use crate::sync::{Count, Lock, MetadataStorageMode, ThreadSafe};
use crate::wait_queue::{Ticket, WaitQueue};

/// A notification without content.
///
/// A notification that comes before the wait is not lost: the next [`wait`](MailboxSignal::wait) on that handle
/// returns at once. Several notifications before a wait count as one.
pub trait MailboxSignal: Clone {
    /// Completes after a notification.
    type WaitFuture<'a>: Future<Output = ()>
    where
        Self: 'a;

    /// Wakes all waiters, and lets the next wait of each other handle return at once.
    fn notify(&self);

    /// Waits for a notification that this handle has not seen.
    fn wait(&self) -> Self::WaitFuture<'_>;
}

/// The signal of this crate's mailboxes.
///
/// Each handle remembers what it has seen. A clone starts with what its original has seen, so no handle can take
/// a notification away from another.
///
/// ```
/// use core::future::Future;
/// use core::pin::pin;
/// use core::task::{Context, Waker};
/// use postbox_core::shared::mailbox::*;
///
/// let signal: Signal = Signal::new();
/// let mut context = Context::from_waker(Waker::noop());
/// assert!(pin!(signal.wait()).poll(&mut context).is_pending());
/// signal.notify();
/// assert!(pin!(signal.wait()).poll(&mut context).is_ready());
/// assert!(pin!(signal.wait()).poll(&mut context).is_pending());
/// ```
pub struct Signal<C: MetadataStorageMode = ThreadSafe> {
    state: C::Shared<State<C>>,
    /// The last generation that a wait of this handle returned for.
    seen: C::Count,
}

struct State<C: MetadataStorageMode> {
    /// How often it was notified. Waiters register while they hold it.
    generation: C::Lock<usize>,
    waiters: WaitQueue<C>,
}

impl<C: MetadataStorageMode> Signal<C> {
    /// A signal that nobody has notified yet.
    pub fn new() -> Self {
        Signal {
            state: C::share(State { generation: C::Lock::new(0), waiters: WaitQueue::new() }),
            seen: C::Count::new(0),
        }
    }
}

impl<C: MetadataStorageMode> Signal<C> {
    /// The first half of a notification, which may be done under a lock. `true` if there is a waiter and the second half is
    /// to follow.
    pub(crate) fn raise(&self) -> bool {
        let mut generation = self.state.generation.lock();
        *generation = generation.wrapping_add(1);
        self.state.waiters.is_waiting()
    }

    /// The second half, under no lock.
    pub(crate) fn wake(&self) {
        self.state.waiters.wake_all();
    }
}

impl<C: MetadataStorageMode> Default for Signal<C> {
    fn default() -> Self {
        Self::new()
    }
}

impl<C: MetadataStorageMode> Clone for Signal<C> {
    fn clone(&self) -> Self {
        Signal { state: self.state.clone(), seen: C::Count::new(self.seen.get()) }
    }
}

impl<C: MetadataStorageMode> fmt::Debug for Signal<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signal").field("waiters", &self.state.waiters.len()).finish_non_exhaustive()
    }
}

impl<C: MetadataStorageMode> MailboxSignal for Signal<C> {
    type WaitFuture<'a> = WaitFuture<'a, C>;

    fn notify(&self) {
        if self.raise() {
            self.wake();
        }
    }

    fn wait(&self) -> WaitFuture<'_, C> {
        WaitFuture { signal: self, seen: self.seen.get(), ticket: None }
    }
}

/// Completes when its signal is notified; see [`MailboxSignal::wait`].
#[must_use = "futures do nothing unless polled"]
pub struct WaitFuture<'a, C: MetadataStorageMode = ThreadSafe> {
    signal: &'a Signal<C>,
    seen: usize,
    ticket: Option<Ticket>,
}

impl<C: MetadataStorageMode> fmt::Debug for WaitFuture<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitFuture").field("registered", &self.ticket.is_some()).finish_non_exhaustive()
    }
}

impl<C: MetadataStorageMode> Future for WaitFuture<'_, C> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let state = &this.signal.state;
        let waker = context.waker().clone();
        let generation = state.generation.lock();
        if *generation == this.seen {
            let unused = state.waiters.register(&mut this.ticket, waker);
            drop(generation);
            drop(unused);
            return Poll::Pending;
        }
        this.signal.seen.set(*generation);
        drop(generation);
        drop(state.waiters.remove(&mut this.ticket));
        Poll::Ready(())
    }
}

impl<C: MetadataStorageMode> Drop for WaitFuture<'_, C> {
    fn drop(&mut self) {
        // A notification wakes all and is remembered by its number: there is nothing to pass on.
        drop(self.signal.state.waiters.remove(&mut self.ticket));
    }
}
