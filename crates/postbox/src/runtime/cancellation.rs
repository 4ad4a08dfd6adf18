//! A token that is cancelled once, and wakes its waiters.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use postbox_core::{ThreadSafe, Ticket, WaitQueue};

/// A cancellation token: its owner should stop, since a lease is lost or a loop ends. Cheap to clone.
///
/// ```
/// let token = postbox::worker::Cancellation::new();
/// assert!(!token.is_cancelled());
/// token.cancel();
/// postbox_core::wait_for(token.cancelled());
/// assert!(token.is_cancelled());
/// ```
#[derive(Clone, Default)]
pub struct Cancellation(Arc<Shared>);

#[derive(Default)]
struct Shared {
    raised: AtomicBool,
    waiting: WaitQueue<ThreadSafe>,
}

impl Cancellation {
    /// A token that is not cancelled.
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancels the token. That cannot be undone.
    pub fn cancel(&self) {
        if !self.0.raised.swap(true, Ordering::SeqCst) {
            self.0.waiting.wake_all();
        }
    }

    /// Whether the token is cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.raised.load(Ordering::SeqCst)
    }

    /// Ready when the token is cancelled.
    pub fn cancelled(&self) -> Cancelled {
        Cancelled { token: self.clone(), ticket: None }
    }
}

impl fmt::Debug for Cancellation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cancellation").field(&self.is_cancelled()).finish()
    }
}

/// The future of [`Cancellation::cancelled`].
#[derive(Debug)]
pub struct Cancelled {
    token: Cancellation,
    ticket: Option<Ticket>,
}

impl Future for Cancelled {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if !self.token.is_cancelled() {
            // Registered before the second check, so that a cancellation after the check finds the registration.
            let this = &mut *self;
            drop(this.token.0.waiting.register(&mut this.ticket, context.waker().clone()));
            if !self.token.is_cancelled() {
                return Poll::Pending;
            }
        }
        Poll::Ready(())
    }
}

impl Drop for Cancelled {
    fn drop(&mut self) {
        // A cancellation wakes all waiters, so there is no notification to pass on.
        drop(self.token.0.waiting.remove(&mut self.ticket));
    }
}

/// Awaits `future`. `None` if `stop` is ready first.
pub(crate) async fn unless<F: Future>(stop: impl Future<Output = ()>, future: F) -> Option<F::Output> {
    let (mut stop, mut future) = (std::pin::pin!(stop), std::pin::pin!(future));
    std::future::poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        stop.as_mut().poll(context).map(|()| None)
    })
    .await
}

/// Yields to other tasks once.
pub(crate) async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await
}
