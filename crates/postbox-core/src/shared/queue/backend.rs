use core::future::Future;

use super::{OfferOutcome, QueueError};

/// The queue of a mailbox.
///
/// # Contract
///
/// * **Order.** Messages leave in the order of the queue: by arrival, or by priority and then by
///   arrival.
/// * **Capacity.** The queue accepts no message beyond its capacity.
/// * **`try_…` never waits.**
/// * **Futures** attempt, register, and return `Pending`. They register in the critical section
///   that found the queue full or empty, and hold no lock when `poll` returns. Dropping a future
///   unregisters it and passes on an unused notification. A dropped
///   [`OfferFuture`](Self::OfferFuture) has not sent its message. Futures need only `core::task`,
///   so they run on any executor.
/// * **No silent loss.** A message that is not accepted is returned in the error or in the outcome.
///
/// ```
/// use core::future::Future;
/// use core::pin::pin;
/// use core::task::{Context, Poll, Waker};
/// use postbox_core::shared::mailbox::*;
///
/// let (mailbox, _producer) = ThreadSafe.build_mailbox::<u32>(MailboxOptions::with_capacity(2));
/// let queue = mailbox.queue();
/// assert!(queue.try_offer(1).is_ok() && queue.try_offer(2).is_ok());
///
/// let mut third = pin!(queue.offer_blocking(3));
/// let mut context = Context::from_waker(Waker::noop());
/// assert!(third.as_mut().poll(&mut context).is_pending());
/// assert_eq!(queue.try_poll(), Ok(Some(1)));
/// assert_eq!(third.as_mut().poll(&mut context), Poll::Ready(Ok(OfferOutcome::Accepted)));
/// ```
pub trait MailboxQueueBackend<M> {
    /// The future of [`offer_blocking`](Self::offer_blocking), which owns the message until it is
    /// sent.
    type OfferFuture<'a>: Future<Output = Result<OfferOutcome<M>, QueueError<M>>>
    where
        Self: 'a,
        M: 'a;

    /// The future of [`poll_blocking`](Self::poll_blocking).
    type PollFuture<'a>: Future<Output = Result<M, QueueError<M>>>
    where
        Self: 'a,
        M: 'a;

    /// Offers a message without waiting.
    ///
    /// # Errors
    /// [`Full`](QueueError::Full) under the `Block` policy, or for a control message without room
    /// on its channel; [`Closed`](QueueError::Closed). Both with the message.
    fn try_offer(&self, message: M) -> Result<OfferOutcome<M>, QueueError<M>>;

    /// Takes the next message, if there is one.
    ///
    /// # Errors
    /// [`Disconnected`](QueueError::Disconnected) when the queue is empty and no message can arrive
    /// any more.
    fn try_poll(&self) -> Result<Option<M>, QueueError<M>>;

    /// Offers a message, waiting for room under the `Block` policy. Under every other policy the
    /// first poll is ready.
    fn offer_blocking(&self, message: M) -> Self::OfferFuture<'_>;

    /// Takes the next message, waiting for it if the queue is empty.
    fn poll_blocking(&self) -> Self::PollFuture<'_>;
}
