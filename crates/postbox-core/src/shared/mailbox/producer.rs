//! The producer's end of a mailbox: the trait [`MailboxProducer`] and [`QueueMailboxProducer`], and
//! the hooks [`MetricsSink`] and [`SchedulerHook`].
//!
//! ```
//! use postbox_core::shared::mailbox::*;
//!
//! let (mailbox, producer) = ThreadSafe.build_default_mailbox();
//! let second = producer.clone();
//! producer.try_send(1).unwrap();
//! second.try_send(2).unwrap();
//! assert_eq!((mailbox.dequeue(), mailbox.dequeue()), (Some(1), Some(2)));
//! ```

use core::fmt;

use alloc::sync::Arc;

use super::consumer::QueueMailboxCore;
use super::future::OfferFuture;
use crate::order::{Fifo, Order};
use crate::shared::queue::{MailboxError, OfferOutcome, QueueError};
use crate::sync::{MetadataStorageMode, ThreadSafe};

/// The producer's end of a mailbox.
///
/// ```
/// use postbox_core::shared::mailbox::*;
///
/// let (_mailbox, producer) = ThreadSafe.build_mailbox::<u32>(MailboxOptions::with_capacity(1));
/// producer.try_send(1).unwrap();
/// assert_eq!(producer.try_send_mailbox(2), Err(MailboxError::Queue(QueueError::Full(2))));
/// ```
pub trait MailboxProducer<M>: Clone {
    /// Sends a message without waiting.
    ///
    /// # Errors
    /// [`Full`](QueueError::Full) if there is no room, or [`Closed`](QueueError::Closed); both with
    /// the message.
    fn try_send(&self, message: M) -> Result<(), QueueError<M>>;

    /// Like [`try_send`](Self::try_send), with a [`MailboxError`].
    ///
    /// # Errors
    /// The error of [`try_send`](Self::try_send), wrapped.
    fn try_send_mailbox(&self, message: M) -> Result<(), MailboxError<M>> {
        self.try_send(message).map_err(MailboxError::from)
    }

    /// Sets the sink that records the events of the mailbox, for all its handles. Does nothing
    /// unless implemented.
    fn set_metrics_sink(&self, sink: Option<Arc<dyn MetricsSink>>) {
        let _ = sink;
    }

    /// Sets the hook that is called when the mailbox may have a message to receive, for all its
    /// handles. Does nothing unless implemented.
    fn set_scheduler_hook(&self, hook: Option<Arc<dyn SchedulerHook>>) {
        let _ = hook;
    }
}

/// An event in a mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MailboxEvent {
    /// A message was accepted.
    Enqueued,
    /// A message was received.
    Dequeued,
    /// A message was rejected for lack of room.
    Rejected,
    /// A message was evicted by a newer or more urgent one.
    Evicted,
    /// The capacity was increased.
    Grown {
        /// The new capacity.
        capacity: usize,
    },
    /// Regular messages are withheld.
    Suspended,
    /// Regular messages are delivered again.
    Resumed,
    /// The number of messages, after each event that changes it.
    Depth {
        /// The number of messages.
        depth: usize,
    },
    /// The mailbox is at least 75 % full, after a message was accepted.
    Pressure {
        /// The number of occupied places: regular messages, including stashed ones.
        depth: usize,
        /// The capacity.
        capacity: usize,
    },
}

/// Records the events of a mailbox, on the thread that causes them and outside all locks.
///
/// ```
/// use std::sync::{Arc, Mutex};
/// use postbox_core::shared::mailbox::*;
///
/// #[derive(Default)]
/// struct Log(Mutex<Vec<MailboxEvent>>);
/// impl MetricsSink for Log {
///     fn record(&self, event: MailboxEvent) {
///         self.0.lock().unwrap().push(event);
///     }
/// }
///
/// let (_mailbox, producer) = ThreadSafe.build_mailbox(MailboxOptions::with_capacity(4));
/// let log = Arc::new(Log::default());
/// producer.set_metrics_sink(Some(log.clone()));
/// for message in 0..3 {
///     producer.try_send(message).unwrap();
/// }
/// let events = log.0.lock().unwrap();
/// assert_eq!(events[0], MailboxEvent::Enqueued);
/// assert_eq!(events.last(), Some(&MailboxEvent::Pressure { depth: 3, capacity: 4 }));
/// ```
pub trait MetricsSink: Send + Sync {
    /// Records one event. Should return quickly, since it runs inside the operation.
    fn record(&self, event: MailboxEvent);
}

/// Called when a mailbox may have a message to receive: after a message, a resume, or the
/// disconnection.
///
/// It is called after every such event, so a hook that schedules a task keeps a flag of its own;
/// see [`Schedule`](crate::Schedule).
pub trait SchedulerHook: Send + Sync {
    /// A message, or the disconnection, may be ready to receive.
    fn notify_ready(&self);
}

impl<F: Fn() + Send + Sync> SchedulerHook for F {
    fn notify_ready(&self) {
        self();
    }
}

/// The producer's end of a [`QueueMailbox`](super::QueueMailbox). After the last one is dropped,
/// receivers get the remaining messages and then [`Disconnected`](QueueError::Disconnected).
pub struct QueueMailboxProducer<M, O: Order<M> = Fifo, C: MetadataStorageMode = ThreadSafe> {
    queue: QueueMailboxCore<M, O, C>,
}

impl<M, O: Order<M>, C: MetadataStorageMode> QueueMailboxProducer<M, O, C> {
    pub(super) fn new(queue: QueueMailboxCore<M, O, C>) -> Self {
        queue.inner().add_producer();
        QueueMailboxProducer { queue }
    }

    /// The queue of the mailbox.
    pub fn queue(&self) -> &QueueMailboxCore<M, O, C> {
        &self.queue
    }

    /// Sends a message, waiting for room under the `Block` policy. The future runs on any executor.
    ///
    /// ```
    /// use postbox_core::shared::mailbox::*;
    ///
    /// let (mailbox, producer) = ThreadSafe.build_default_mailbox();
    /// smol::block_on(async {
    ///     producer.send("hello").await.unwrap();
    ///     assert_eq!(mailbox.recv().await, Ok("hello"));
    /// });
    /// ```
    #[inline]
    pub fn send(&self, message: M) -> OfferFuture<'_, M, O, C> {
        OfferFuture::new(self.queue.inner(), message)
    }

    /// Sends a message without waiting, and returns the outcome.
    ///
    /// # Errors
    /// [`Full`](QueueError::Full) under the `Block` policy, or for a control message without room
    /// on its channel; [`Closed`](QueueError::Closed). Both with the message.
    #[inline]
    pub fn try_offer(&self, message: M) -> Result<OfferOutcome<M>, QueueError<M>> {
        self.queue.inner().try_offer(message)
    }

    /// Sends on the control channel, which has room of its own and overtakes all regular messages.
    ///
    /// ```
    /// use postbox_core::shared::mailbox::*;
    ///
    /// let (mailbox, producer) = ThreadSafe.build_mailbox(MailboxOptions::with_capacity(1));
    /// producer.try_send("work").unwrap();
    /// assert!(producer.try_send("more work").is_err());
    /// producer.try_send_control("stop").unwrap();
    /// assert_eq!(mailbox.dequeue(), Some("stop"));
    /// ```
    ///
    /// # Errors
    /// [`Full`](QueueError::Full) if the control channel is full, or
    /// [`Closed`](QueueError::Closed); both with the message.
    pub fn try_send_control(&self, message: M) -> Result<(), QueueError<M>> {
        self.queue.inner().try_offer_control(message)
    }

    /// Closes the mailbox: it accepts no more messages, and those inside can still be received.
    pub fn close(&self) {
        self.queue.inner().close();
    }

    /// Whether the mailbox is closed.
    pub fn is_closed(&self) -> bool {
        self.queue.inner().is_closed()
    }
}

impl<M, O: Order<M>, C: MetadataStorageMode> MailboxProducer<M> for QueueMailboxProducer<M, O, C> {
    #[inline]
    fn try_send(&self, message: M) -> Result<(), QueueError<M>> {
        match self.queue.inner().try_offer(message)? {
            OfferOutcome::Rejected(message) => Err(QueueError::Full(message)),
            OfferOutcome::Accepted | OfferOutcome::Evicted(_) | OfferOutcome::Grew(_) => Ok(()),
        }
    }

    fn set_metrics_sink(&self, sink: Option<Arc<dyn MetricsSink>>) {
        self.queue.inner().set_metrics_sink(sink);
    }

    fn set_scheduler_hook(&self, hook: Option<Arc<dyn SchedulerHook>>) {
        self.queue.inner().set_scheduler_hook(hook);
    }
}

impl<M, O: Order<M>, C: MetadataStorageMode> Clone for QueueMailboxProducer<M, O, C> {
    fn clone(&self) -> Self {
        Self::new(self.queue.clone())
    }
}

impl<M, O: Order<M>, C: MetadataStorageMode> Drop for QueueMailboxProducer<M, O, C> {
    fn drop(&mut self) {
        self.queue.inner().remove_producer();
    }
}

impl<M, O: Order<M>, C: MetadataStorageMode> fmt::Debug for QueueMailboxProducer<M, O, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("QueueMailboxProducer").field(self.queue.inner()).finish()
    }
}
