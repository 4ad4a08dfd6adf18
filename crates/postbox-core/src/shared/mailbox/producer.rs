//! The sending end of a mailbox, and what may watch it.

use core::fmt;

use alloc::sync::Arc;

use super::consumer::QueueMailboxCore;
use super::future::OfferFuture;
use crate::order::{Fifo, Order};
use crate::shared::queue::{MailboxError, OfferOutcome, QueueError};
use crate::sync::{MetadataStorageMode, ThreadSafe};

/// Sends to a mailbox.
///
/// ```
/// use postbox_core::shared::mailbox::*;
///
/// let (_mailbox, producer) = ThreadSafe.build_mailbox::<u32>(MailboxOptions::with_capacity(1));
/// producer.try_send(1).unwrap();
/// assert_eq!(producer.try_send_mailbox(2), Err(MailboxError::Queue(QueueError::Full(2))));
/// ```
pub trait MailboxProducer<M>: Clone {
    /// Sends at once, or gives the message back.
    ///
    /// # Errors
    /// [`Full`](QueueError::Full) when there is no room for this message, [`Closed`](QueueError::Closed).
    fn try_send(&self, message: M) -> Result<(), QueueError<M>>;

    /// [`try_send`](Self::try_send) with the error of a mailbox.
    ///
    /// # Errors
    /// As [`try_send`](Self::try_send), wrapped.
    fn try_send_mailbox(&self, message: M) -> Result<(), MailboxError<M>> {
        self.try_send(message).map_err(MailboxError::from)
    }

    /// Sets the sink that is told what happens in the mailbox, for all its handles. Does nothing unless the mailbox supports it.
    fn set_metrics_sink(&self, sink: Option<Arc<dyn MetricsSink>>) {
        let _ = sink;
    }

    /// Sets the hook that is told that the mailbox has something to receive, for all its handles. Does nothing unless the
    /// mailbox supports it.
    fn set_scheduler_hook(&self, hook: Option<Arc<dyn SchedulerHook>>) {
        let _ = hook;
    }
}

/// Something that happened in a mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MailboxEvent {
    /// A message came in.
    Enqueued,
    /// A message was received.
    Dequeued,
    /// A message was refused for want of room.
    Rejected,
    /// A message was pushed out by a newer or more urgent one.
    Evicted,
    /// The mailbox grew.
    Grown {
        /// Its capacity now.
        capacity: usize,
    },
    /// Regular messages are held back.
    Suspended,
    /// Regular messages flow again.
    Resumed,
    /// How many messages wait; after each event that changes it.
    Depth {
        /// Messages that wait.
        depth: usize,
    },
    /// The mailbox is at least 75 % full; after each message that leaves it so.
    Pressure {
        /// Places that are taken: by regular messages that wait, and by stashed ones.
        depth: usize,
        /// How many there are.
        capacity: usize,
    },
}

/// Is told what happens in a mailbox, in the thread in which it happens and under no lock.
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
    /// Takes note of one event. It should return soon: it runs inside the operation that it tells of.
    fn record(&self, event: MailboxEvent);
}

/// Is told that a mailbox may have something to receive: a message, a resume, or the end.
///
/// It is called after every such event, so a hook that schedules a task keeps a flag of its own; see
/// [`Schedule`](crate::Schedule).
pub trait SchedulerHook: Send + Sync {
    /// There may be something to receive.
    fn notify_ready(&self);
}

impl<F: Fn() + Send + Sync> SchedulerHook for F {
    fn notify_ready(&self) {
        self();
    }
}

/// The producer of a [`QueueMailbox`](super::QueueMailbox). When the last one is dropped, receivers get what is
/// left and then [`Disconnected`](QueueError::Disconnected).
pub struct QueueMailboxProducer<M, O: Order<M> = Fifo, C: MetadataStorageMode = ThreadSafe> {
    queue: QueueMailboxCore<M, O, C>,
}

impl<M, O: Order<M>, C: MetadataStorageMode> QueueMailboxProducer<M, O, C> {
    pub(super) fn new(queue: QueueMailboxCore<M, O, C>) -> Self {
        queue.inner().add_producer();
        QueueMailboxProducer { queue }
    }

    /// The queue behind the mailbox.
    pub fn queue(&self) -> &QueueMailboxCore<M, O, C> {
        &self.queue
    }

    /// Sends, and waits for room if the policy is `Block`. Needs no particular runtime.
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

    /// Sends at once and tells what became of the message.
    ///
    /// # Errors
    /// [`Full`](QueueError::Full) under the `Block` policy, and for a control message without room on its lane;
    /// [`Closed`](QueueError::Closed).
    #[inline]
    pub fn try_offer(&self, message: M) -> Result<OfferOutcome<M>, QueueError<M>> {
        self.queue.inner().try_offer(message)
    }

    /// Sends on the control lane: it has room of its own, and overtakes all regular messages.
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
    /// [`Full`](QueueError::Full) when the reservation is used up, [`Closed`](QueueError::Closed).
    pub fn try_send_control(&self, message: M) -> Result<(), QueueError<M>> {
        self.queue.inner().try_offer_control(message)
    }

    /// Closes the mailbox: it takes no more messages, and what is inside can still be received.
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
