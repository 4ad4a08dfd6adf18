//! Signals: notifications that tasks can wait for, here that a mailbox may have a message.
//!
//! ```
//! use postbox_core::shared::mailbox::*;
//!
//! let (mailbox, producer) = ThreadSafe.build_default_mailbox();
//! let signal = mailbox.signal();
//! producer.try_send("hello").unwrap();
//! smol::block_on(signal.wait());
//! assert_eq!(mailbox.dequeue(), Some("hello"));
//! ```

use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

use crate::sync::{Count, Lock, MetadataStorageMode, ThreadSafe};
use crate::wait_queue::{Ticket, WaitQueue};

/// A notification without content.
///
/// A notification before the wait is not lost: the next [`wait`](MailboxSignal::wait) on that
/// handle completes at once. Several notifications before a wait count as one.
pub trait MailboxSignal: Clone {
    /// The future of [`wait`](Self::wait).
    type WaitFuture<'a>: Future<Output = ()>
    where
        Self: 'a;

    /// Completes all current waits, and the next wait of every other handle.
    fn notify(&self);

    /// Waits for a notification that this handle has not seen.
    fn wait(&self) -> Self::WaitFuture<'_>;
}

/// The signal of this crate's mailboxes.
///
/// Each handle remembers the last notification that it has seen. A clone starts from the
/// notification that its original has seen, so no handle takes a notification away from another.
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
    /// The generation at which the last wait of this handle completed.
    seen: C::Count,
}

struct State<C: MetadataStorageMode> {
    /// The number of notifications. Waiters register under this lock.
    generation: C::Lock<usize>,
    waiters: WaitQueue<C>,
}

impl<C: MetadataStorageMode> Signal<C> {
    /// Creates a signal without a notification.
    pub fn new() -> Self {
        Signal {
            state: C::share(State { generation: C::Lock::new(0), waiters: WaitQueue::new() }),
            seen: C::Count::new(0),
        }
    }

    /// The first half of a notification, which may run under a lock. Returns `true` if
    /// [`wake`](Self::wake) must follow.
    pub(crate) fn raise(&self) -> bool {
        let mut generation = self.state.generation.lock();
        *generation = generation.wrapping_add(1);
        self.state.waiters.is_waiting()
    }

    /// The second half of a notification, which runs outside all locks.
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

/// Completes after a notification; see [`MailboxSignal::wait`].
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
        // A notification wakes all waiters and is counted, so it need not be passed on.
        drop(self.signal.state.waiters.remove(&mut self.ticket));
    }
}
