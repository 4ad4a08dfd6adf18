use core::future::Future;

use super::{OfferOutcome, QueueError};

/// The queue behind a mailbox.
///
/// # Contract
///
/// * **Order.** Messages leave in the order of the queue: arrival, or urgency and then arrival.
/// * **Bound.** The queue never takes in more messages than its capacity.
/// * **`try_…` never waits.** It answers from what is there.
/// * **The futures** attempt, register, and park. The registration happens in the critical section that saw "full"
///   or "empty"; no lock is held when `poll` returns; dropping a future gives its registration back and passes an
///   unused wake-up on. A dropped [`OfferFuture`](Self::OfferFuture) has not sent its message. They need nothing
///   but `core::task`, so they run on any executor and on none.
/// * **A message is never lost silently.** What is not taken comes back in the error or in the outcome.
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
    /// Offers a message and, under the `Block` policy, waits for room. Holds the message until then.
    type OfferFuture<'a>: Future<Output = Result<OfferOutcome<M>, QueueError<M>>>
    where
        Self: 'a,
        M: 'a;

    /// Waits for a message.
    type PollFuture<'a>: Future<Output = Result<M, QueueError<M>>>
    where
        Self: 'a,
        M: 'a;

    /// Offers a message, at once.
    ///
    /// # Errors
    /// [`Full`](QueueError::Full) under the `Block` policy, and for a control message without room on its lane;
    /// [`Closed`](QueueError::Closed). Both carry the message.
    fn try_offer(&self, message: M) -> Result<OfferOutcome<M>, QueueError<M>>;

    /// Takes the next message, if one is there.
    ///
    /// # Errors
    /// [`Disconnected`](QueueError::Disconnected) when nothing is left and nothing will come.
    fn try_poll(&self) -> Result<Option<M>, QueueError<M>>;

    /// Offers a message and waits for room if the policy is `Block`; every other policy answers on the first poll.
    fn offer_blocking(&self, message: M) -> Self::OfferFuture<'_>;

    /// Takes the next message, and waits for one if none is there.
    fn poll_blocking(&self) -> Self::PollFuture<'_>;
}
