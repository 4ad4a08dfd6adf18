//! A flag that is raised once and wakes its waiters.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use postbox_core::{ThreadSafe, Ticket, WaitQueue};

/// Tells that something should stop: a lease is lost, a loop is asked to end. Cheap to clone.
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
    /// Not cancelled.
    pub fn new() -> Self {
        Self::default()
    }

    /// Raises the flag, for good.
    pub fn cancel(&self) {
        if !self.0.raised.swap(true, Ordering::SeqCst) {
            self.0.waiting.wake_all();
        }
    }

    /// Whether the flag is raised.
    pub fn is_cancelled(&self) -> bool {
        self.0.raised.load(Ordering::SeqCst)
    }

    /// Ready when the flag is raised.
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
            // Register, then look: a call that raises the flag after this look finds the registration.
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
        // Everybody is woken at once, so there is no notification to pass on.
        drop(self.token.0.waiting.remove(&mut self.ticket));
    }
}

/// The first of two futures, or `None` if the second was ready first.
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

/// Lets others run first.
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
