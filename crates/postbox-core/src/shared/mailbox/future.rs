//! The futures of a queue, on `core::task` alone. They attempt, register, attempt again, and return
//! `Pending` while holding no lock.

use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

use crate::order::{Fifo, Order};
use crate::queue::Queue;
use crate::shared::queue::{OfferOutcome, QueueError};
use crate::sync::{MetadataStorageMode, ThreadSafe};
use crate::wait_queue::Ticket;

/// For how many spins a task lets messages gather: one to two microseconds, since it shares its
/// thread.
const MAX_TASK_SPINS: usize = 64;

/// A future that sends a message, waiting for room; see
/// [`MailboxQueueBackend::offer_blocking`](crate::shared::queue::MailboxQueueBackend::offer_blocking).
///
/// If it is dropped before it is ready, the message was not sent.
#[must_use = "futures do nothing unless polled"]
pub struct OfferFuture<'a, M, O: Order<M> = Fifo, C: MetadataStorageMode = ThreadSafe> {
    queue: &'a Queue<M, O, C>,
    /// `None` once the future is ready.
    item: Option<O::Item>,
    ticket: Option<Ticket>,
    control: bool,
}

// The item is never pinned, only moved in and out.
impl<M, O: Order<M>, C: MetadataStorageMode> Unpin for OfferFuture<'_, M, O, C> {}

impl<'a, M, O: Order<M>, C: MetadataStorageMode> OfferFuture<'a, M, O, C> {
    pub(super) fn new(queue: &'a Queue<M, O, C>, message: M) -> Self {
        Self::from_item(queue, queue.to_item(message))
    }

    pub(super) fn from_item(queue: &'a Queue<M, O, C>, item: O::Item) -> Self {
        OfferFuture { queue, control: queue.is_control(&item), item: Some(item), ticket: None }
    }

    /// Cancels the send and returns the message, unless the future was ready.
    pub fn into_message(mut self) -> Option<M> {
        self.item.take().map(O::into_message)
    }

    /// Ends the wait with [`Timeout`](QueueError::Timeout), which carries the message, when `timer`
    /// completes first.
    ///
    /// ```
    /// use core::future::ready;
    /// use postbox_core::shared::mailbox::*;
    ///
    /// let (_mailbox, producer) = ThreadSafe.build_mailbox::<u32>(MailboxOptions::with_capacity(1));
    /// producer.try_send(1).unwrap();
    /// let answer = smol::block_on(producer.send(2).until(ready(())));
    /// assert_eq!(answer, Err(QueueError::Timeout(2)));
    /// ```
    pub fn until<T: Future + Unpin>(self, timer: T) -> Until<Self, T> {
        Until { wait: self, timer }
    }

    #[inline(never)]
    fn poll_slow(&mut self, context: &mut Context<'_>) -> Poll<Result<OfferOutcome<M>, QueueError<M>>> {
        let mut item = self.item.take().expect("OfferFuture polled after it was ready");
        loop {
            let answer = match self.queue.offer(item) {
                Ok(outcome) => Ok(outcome.map(O::into_message)),
                Err(QueueError::Full(back)) if self.queue.can_wait(self.control) => {
                    item = back;
                    let registered = if self.control {
                        self.queue.register_control_sender(&mut self.ticket, context.waker())
                    } else {
                        self.queue.register_sender(&mut self.ticket, context.waker())
                    };
                    if registered {
                        self.item = Some(item);
                        return Poll::Pending;
                    }
                    continue;
                }
                Err(error) => Err(self.queue.reject(error)),
            };
            if self.ticket.is_some() {
                self.queue.unregister_sender(&mut self.ticket, self.control, true);
            }
            return Poll::Ready(answer);
        }
    }

    /// Unregisters the sender, passing on a notification that it has not used.
    fn unregister(&mut self) {
        if self.ticket.is_some() {
            self.queue.unregister_sender(&mut self.ticket, self.control, false);
        }
    }
}

impl<M, O: Order<M>, C: MetadataStorageMode> Future for OfferFuture<'_, M, O, C> {
    type Output = Result<OfferOutcome<M>, QueueError<M>>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if this.ticket.is_none() && this.queue.offer_fast(&mut this.item) {
            return Poll::Ready(Ok(OfferOutcome::Accepted));
        }
        this.poll_slow(context)
    }
}

impl<M, O: Order<M>, C: MetadataStorageMode> Drop for OfferFuture<'_, M, O, C> {
    fn drop(&mut self) {
        self.unregister();
    }
}

impl<M, O: Order<M>, C: MetadataStorageMode> fmt::Debug for OfferFuture<'_, M, O, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OfferFuture").field("registered", &self.ticket.is_some()).finish_non_exhaustive()
    }
}

/// A future that receives a message, waiting for it; see
/// [`MailboxQueueBackend::poll_blocking`](crate::shared::queue::MailboxQueueBackend::poll_blocking).
///
/// It takes a message only in the poll that returns it, so dropping it loses no message.
#[must_use = "futures do nothing unless polled"]
pub struct PollFuture<'a, M, O: Order<M> = Fifo, C: MetadataStorageMode = ThreadSafe> {
    queue: &'a Queue<M, O, C>,
    ticket: Option<Ticket>,
}

impl<M, O: Order<M>, C: MetadataStorageMode> Unpin for PollFuture<'_, M, O, C> {}

impl<'a, M, O: Order<M>, C: MetadataStorageMode> PollFuture<'a, M, O, C> {
    pub(super) fn new(queue: &'a Queue<M, O, C>) -> Self {
        PollFuture { queue, ticket: None }
    }

    /// Ends the wait with [`Empty`](QueueError::Empty) when `timer` completes first. Any future can
    /// be the timer.
    ///
    /// ```
    /// use core::future::ready;
    /// use postbox_core::shared::mailbox::*;
    ///
    /// let (mailbox, _producer) = ThreadSafe.build_default_mailbox::<u32>();
    /// let answer = smol::block_on(mailbox.recv().until(ready(())));
    /// assert_eq!(answer, Err(QueueError::Empty));
    /// ```
    pub fn until<T: Future + Unpin>(self, timer: T) -> Until<Self, T> {
        Until { wait: self, timer }
    }

    #[inline(never)]
    fn poll_slow(&mut self, context: &mut Context<'_>) -> Poll<Result<M, QueueError<M>>> {
        loop {
            let answer = match self.queue.poll_gathering(MAX_TASK_SPINS) {
                Ok(Some(message)) => Ok(message),
                Err(error) => Err(error),
                Ok(None) => {
                    if self.queue.register_receiver(&mut self.ticket, context.waker()) {
                        return Poll::Pending;
                    }
                    continue;
                }
            };
            if self.ticket.is_some() {
                self.queue.unregister_receiver(&mut self.ticket, true);
            }
            return Poll::Ready(answer);
        }
    }

    /// Unregisters the receiver, passing on a notification that it has not used.
    fn unregister(&mut self) {
        if self.ticket.is_some() {
            self.queue.unregister_receiver(&mut self.ticket, false);
        }
    }
}

impl<M, O: Order<M>, C: MetadataStorageMode> Future for PollFuture<'_, M, O, C> {
    type Output = Result<M, QueueError<M>>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if this.ticket.is_none() {
            if let Some(message) = this.queue.poll_fast() {
                return Poll::Ready(Ok(message));
            }
            if this.queue.is_idle() && this.queue.register_receiver(&mut this.ticket, context.waker()) {
                return Poll::Pending;
            }
        } else if let Some(message) = this.queue.poll_single() {
            // The usual end of a wait.
            this.queue.unregister_receiver(&mut this.ticket, true);
            return Poll::Ready(Ok(message));
        }
        this.poll_slow(context)
    }
}

impl<M, O: Order<M>, C: MetadataStorageMode> Drop for PollFuture<'_, M, O, C> {
    fn drop(&mut self) {
        self.unregister();
    }
}

impl<M, O: Order<M>, C: MetadataStorageMode> fmt::Debug for PollFuture<'_, M, O, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PollFuture").field("registered", &self.ticket.is_some()).finish_non_exhaustive()
    }
}

/// A send or receive with a timeout; see [`PollFuture::until`] and [`OfferFuture::until`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Until<F, T> {
    wait: F,
    timer: T,
}

impl<'a, M, O: Order<M>, C: MetadataStorageMode, T: Future + Unpin> Future for Until<PollFuture<'a, M, O, C>, T> {
    type Output = Result<M, QueueError<M>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(answer) = Pin::new(&mut self.wait).poll(context) {
            return Poll::Ready(answer);
        }
        Pin::new(&mut self.timer).poll(context).map(|_| {
            // The wait has ended, even if the future is kept: it is unregistered at once.
            self.wait.unregister();
            Err(QueueError::Empty)
        })
    }
}

impl<'a, M, O: Order<M>, C: MetadataStorageMode, T: Future + Unpin> Future for Until<OfferFuture<'a, M, O, C>, T> {
    type Output = Result<OfferOutcome<M>, QueueError<M>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(answer) = Pin::new(&mut self.wait).poll(context) {
            return Poll::Ready(answer);
        }
        Pin::new(&mut self.timer).poll(context).map(|_| {
            self.wait.unregister();
            let message = self.wait.item.take().expect("Until polled after it was ready");
            Err(QueueError::Timeout(O::into_message(message)))
        })
    }
}
