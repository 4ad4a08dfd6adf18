//! The consumer's end of a mailbox: the traits [`Mailbox`] and [`MailboxConsumer`], and
//! [`QueueMailbox`].
//!
//! ```
//! use postbox_core::shared::mailbox::*;
//!
//! let (mailbox, producer) = ThreadSafe.build_default_mailbox();
//! producer.try_send("hello").unwrap();
//! drop(producer);
//! assert_eq!(mailbox.try_dequeue(), Ok(Some("hello")));
//! assert_eq!(mailbox.try_dequeue(), Err(QueueError::Disconnected));
//! ```

use core::fmt;

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::future::{OfferFuture, PollFuture};
use super::options::MailboxOptions;
use super::producer::{MetricsSink, QueueMailboxProducer, SchedulerHook};
use super::signal::{MailboxSignal, Signal};
use crate::order::{Fifo, Order};
use crate::queue::Queue;
use crate::shared::queue::{MailboxError, MailboxQueueBackend, OfferOutcome, OverflowPolicy, QueueError};
use crate::sync::{MetadataStorageMode, ThreadSafe};

/// The operations of every kind of mailbox. None of them waits.
///
/// ```
/// use postbox_core::{BoundedMailbox, Mailbox, UnboundedMailbox};
///
/// fn greet(mailbox: &dyn Mailbox<String>) -> bool {
///     mailbox.enqueue("hello".to_string())
/// }
/// assert!(greet(&UnboundedMailbox::new()));
/// assert!(greet(&BoundedMailbox::new(1)));
/// ```
pub trait Mailbox<M> {
    /// Sends a message. Returns `false`, and drops the message, if the mailbox is full or closed.
    /// [`MailboxProducer::try_send`](super::MailboxProducer::try_send) returns the message instead.
    fn enqueue(&self, message: M) -> bool;

    /// Receives the next message, if there is one.
    fn dequeue(&self) -> Option<M>;

    /// Whether the mailbox holds no message.
    fn is_empty(&self) -> bool {
        self.size() == 0
    }

    /// The number of messages in the mailbox.
    fn size(&self) -> usize;

    /// The number of messages accepted since the mailbox was created.
    fn message_count(&self) -> usize;

    /// The number of messages that the mailbox can hold; `None` if unlimited.
    fn capacity(&self) -> Option<usize>;

    /// Closes the mailbox: it accepts no more messages, and those inside can still be received.
    fn close(&self);

    /// Whether the mailbox is closed.
    fn is_closed(&self) -> bool;
}

/// The consumer's end of a mailbox.
pub trait MailboxConsumer<M>: Mailbox<M> + Clone {
    /// The signal that announces messages.
    type Signal: MailboxSignal;

    /// A signal that is notified after each message, after a resume, and when the mailbox is
    /// disconnected.
    fn signal(&self) -> Self::Signal;

    /// Receives the next message, if there is one.
    ///
    /// # Errors
    /// [`Disconnected`](QueueError::Disconnected) when the mailbox is empty and no message can
    /// arrive any more.
    fn try_dequeue(&self) -> Result<Option<M>, QueueError<M>>;

    /// Like [`try_dequeue`](Self::try_dequeue), with a [`MailboxError`].
    ///
    /// # Errors
    /// The error of [`try_dequeue`](Self::try_dequeue), wrapped.
    fn try_dequeue_mailbox(&self) -> Result<Option<M>, MailboxError<M>> {
        self.try_dequeue().map_err(MailboxError::from)
    }
}

/// The queue that all handles of a mailbox share: the [`MailboxQueueBackend`] of this crate.
///
/// It is neither a producer nor a consumer, so it does not keep the mailbox open.
pub struct QueueMailboxCore<M, O: Order<M> = Fifo, C: MetadataStorageMode = ThreadSafe> {
    shared: C::Shared<Queue<M, O, C>>,
}

impl<M, O: Order<M>, C: MetadataStorageMode> QueueMailboxCore<M, O, C> {
    pub(crate) fn new(order: O, options: MailboxOptions) -> Self {
        QueueMailboxCore { shared: C::share(Queue::new(order, options)) }
    }

    #[inline(always)]
    pub(crate) fn inner(&self) -> &Queue<M, O, C> {
        &self.shared
    }

    #[cfg(feature = "std")]
    pub(crate) fn offer_item(&self, item: O::Item) -> OfferFuture<'_, M, O, C> {
        OfferFuture::from_item(&self.shared, item)
    }

    /// The number of senders that wait for room.
    pub fn waiting_senders(&self) -> usize {
        self.shared.waiting_senders()
    }

    /// The number of receivers that wait for a message.
    pub fn waiting_receivers(&self) -> usize {
        self.shared.waiting_receivers()
    }
}

impl<M, O: Order<M>, C: MetadataStorageMode> MailboxQueueBackend<M> for QueueMailboxCore<M, O, C> {
    type OfferFuture<'a>
        = OfferFuture<'a, M, O, C>
    where
        Self: 'a,
        M: 'a;
    type PollFuture<'a>
        = PollFuture<'a, M, O, C>
    where
        Self: 'a,
        M: 'a;

    #[inline]
    fn try_offer(&self, message: M) -> Result<OfferOutcome<M>, QueueError<M>> {
        self.shared.try_offer(message)
    }

    #[inline]
    fn try_poll(&self) -> Result<Option<M>, QueueError<M>> {
        self.shared.try_poll()
    }

    #[inline]
    fn offer_blocking(&self, message: M) -> OfferFuture<'_, M, O, C> {
        OfferFuture::new(&self.shared, message)
    }

    #[inline]
    fn poll_blocking(&self) -> PollFuture<'_, M, O, C> {
        PollFuture::new(&self.shared)
    }
}

impl<M, O: Order<M>, C: MetadataStorageMode> Clone for QueueMailboxCore<M, O, C> {
    fn clone(&self) -> Self {
        QueueMailboxCore { shared: self.shared.clone() }
    }
}

impl<M, O: Order<M>, C: MetadataStorageMode> fmt::Debug for QueueMailboxCore<M, O, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("QueueMailboxCore").field(self.inner()).finish()
    }
}

/// The mailbox that the factories build. `UnboundedMailbox`, `BoundedMailbox` and `PriorityMailbox`
/// dereference to it.
///
/// `O` is the order of the messages, `C` the concurrency mode. Clones share one mailbox, and each
/// message goes to one of them. Dropping the last clone closes the mailbox and drops the messages
/// in it.
pub struct QueueMailbox<M, O: Order<M> = Fifo, C: MetadataStorageMode = ThreadSafe> {
    queue: QueueMailboxCore<M, O, C>,
}

impl<M, O: Order<M>, C: MetadataStorageMode> QueueMailbox<M, O, C> {
    /// Creates a mailbox without a producer.
    ///
    /// # Panics
    /// If the capacity is 0, since no message could ever be sent.
    pub(crate) fn with_order(order: O, options: MailboxOptions) -> Self {
        assert!(
            options.capacity_limit() != Some(0),
            "a mailbox needs a capacity of at least 1, got 0: choose 1 or more, or QueueSize::Limitless"
        );
        Self::from_queue(QueueMailboxCore::new(order, options))
    }

    fn from_queue(queue: QueueMailboxCore<M, O, C>) -> Self {
        queue.inner().add_consumer();
        QueueMailbox { queue }
    }

    /// The queue of the mailbox.
    pub fn queue(&self) -> &QueueMailboxCore<M, O, C> {
        &self.queue
    }

    /// Creates a producer for this mailbox.
    ///
    /// Dropping the last producer disconnects the mailbox: receivers get the remaining messages and
    /// then [`Disconnected`](QueueError::Disconnected), and a message loop ends. So keep a producer
    /// while messages may arrive, even if other handles send by [`enqueue`](Mailbox::enqueue). A
    /// mailbox that never had a producer is not disconnected. A new producer reconnects the
    /// mailbox, unless it is closed.
    pub fn producer(&self) -> QueueMailboxProducer<M, O, C> {
        QueueMailboxProducer::new(self.queue.clone())
    }

    /// Receives the next message, waiting for it. The future runs on any executor.
    #[inline]
    pub fn recv(&self) -> PollFuture<'_, M, O, C> {
        PollFuture::new(self.queue.inner())
    }

    /// Moves up to `max` messages into `into`, control messages first, and returns their number. It
    /// locks the mailbox once for all of them.
    ///
    /// ```
    /// use postbox_core::shared::mailbox::*;
    ///
    /// let (mailbox, producer) = ThreadSafe.build_default_mailbox();
    /// (0..5).for_each(|n| producer.try_send(n).unwrap());
    /// let mut batch = Vec::new();
    /// assert_eq!(mailbox.drain_into(&mut batch, 3), 3);
    /// assert_eq!(batch, [0, 1, 2]);
    /// ```
    pub fn drain_into(&self, into: &mut Vec<M>, max: usize) -> usize {
        self.queue.inner().drain_into(into, max)
    }

    /// Closes the mailbox and returns all remaining messages: control messages, stashed messages,
    /// then the others in order. Waiting senders get their own messages back.
    ///
    /// ```
    /// use postbox_core::shared::mailbox::*;
    ///
    /// let (mailbox, producer) = ThreadSafe.build_default_mailbox();
    /// producer.try_send("undelivered").unwrap();
    /// assert_eq!(mailbox.close_and_drain(), ["undelivered"]);
    /// assert_eq!(producer.try_send("late"), Err(QueueError::Closed("late")));
    /// ```
    pub fn close_and_drain(&self) -> Vec<M> {
        self.queue.inner().close_and_drain()
    }

    /// Withholds regular messages; control messages are still delivered. Suspensions are counted:
    /// each needs one [`resume`](Self::resume).
    ///
    /// ```
    /// use postbox_core::shared::mailbox::*;
    ///
    /// let (mailbox, producer) = ThreadSafe.build_default_mailbox();
    /// producer.try_send("work").unwrap();
    /// mailbox.suspend();
    /// assert_eq!(mailbox.dequeue(), None);
    /// assert!(mailbox.resume());
    /// assert_eq!(mailbox.dequeue(), Some("work"));
    /// ```
    pub fn suspend(&self) {
        self.queue.inner().suspend();
    }

    /// Undoes one [`suspend`](Self::suspend). Returns `false` if the mailbox was not suspended.
    pub fn resume(&self) -> bool {
        self.queue.inner().resume()
    }

    /// Whether regular messages are withheld.
    pub fn is_suspended(&self) -> bool {
        self.queue.inner().is_suspended()
    }

    /// Sets a received message aside until [`unstash`](Self::unstash), for a handler that cannot
    /// use it yet.
    ///
    /// A stashed message counts against the capacity. If senders have filled its place since it was
    /// received, the mailbox exceeds its capacity by that message. An envelope returns to its own
    /// channel; a message sent by [`try_send_control`](QueueMailboxProducer::try_send_control)
    /// returns as a regular message. A mailbox that is closed and empty is disconnected even if
    /// messages are stashed, so unstash them first.
    ///
    /// ```
    /// use postbox_core::shared::mailbox::*;
    ///
    /// let (mailbox, producer) = ThreadSafe.build_default_mailbox();
    /// (1..=3).for_each(|n| producer.try_send(n).unwrap());
    /// let early = mailbox.dequeue().unwrap();
    /// mailbox.stash(early);
    /// assert_eq!(mailbox.dequeue(), Some(2));
    /// assert_eq!(mailbox.unstash(), 1);
    /// assert_eq!(mailbox.dequeue(), Some(1));
    /// ```
    pub fn stash(&self, message: M) {
        self.queue.inner().stash(message);
    }

    /// Returns all stashed messages to the mailbox, in the order in which they were stashed, ahead
    /// of the messages in it (in a priority mailbox: ahead of equal ones). Returns their number.
    pub fn unstash(&self) -> usize {
        self.queue.inner().unstash()
    }

    /// The number of stashed messages. They do not count in [`size`](Mailbox::size).
    pub fn stashed(&self) -> usize {
        self.queue.inner().stashed()
    }

    /// The number of control messages. They count in [`size`](Mailbox::size), but not against the
    /// capacity.
    pub fn control_size(&self) -> usize {
        self.queue.inner().control_len()
    }

    /// The number of control messages that the mailbox can hold; `None` if unlimited.
    pub fn control_capacity(&self) -> Option<usize> {
        self.queue.inner().control_capacity()
    }

    /// The number of messages that were rejected or evicted since the mailbox was created.
    pub fn rejected_count(&self) -> usize {
        self.queue.inner().rejected_count()
    }

    /// Sets the metrics sink, like
    /// [`MailboxProducer::set_metrics_sink`](super::MailboxProducer::set_metrics_sink).
    pub fn set_metrics_sink(&self, sink: Option<Arc<dyn MetricsSink>>) {
        self.queue.inner().set_metrics_sink(sink);
    }

    /// Sets the scheduler hook, like
    /// [`MailboxProducer::set_scheduler_hook`](super::MailboxProducer::set_scheduler_hook).
    pub fn set_scheduler_hook(&self, hook: Option<Arc<dyn SchedulerHook>>) {
        self.queue.inner().set_scheduler_hook(hook);
    }

    /// Whether the mailbox has no room for another regular message.
    pub fn is_full(&self) -> bool {
        self.queue.inner().free_capacity() == 0
    }

    /// The overflow policy of the mailbox.
    pub fn overflow(&self) -> OverflowPolicy {
        self.queue.inner().policy()
    }
}

impl<M, O: Order<M>, C: MetadataStorageMode> Mailbox<M> for QueueMailbox<M, O, C> {
    #[inline]
    fn enqueue(&self, message: M) -> bool {
        self.queue.inner().try_offer(message).is_ok_and(|outcome| outcome.is_accepted())
    }

    #[inline]
    fn dequeue(&self) -> Option<M> {
        self.queue.inner().poll_message()
    }

    fn is_empty(&self) -> bool {
        self.queue.inner().is_empty()
    }

    fn size(&self) -> usize {
        self.queue.inner().len()
    }

    fn message_count(&self) -> usize {
        self.queue.inner().message_count()
    }

    fn capacity(&self) -> Option<usize> {
        self.queue.inner().capacity()
    }

    fn close(&self) {
        self.queue.inner().close();
    }

    fn is_closed(&self) -> bool {
        self.queue.inner().is_closed()
    }
}

impl<M, O: Order<M>, C: MetadataStorageMode> MailboxConsumer<M> for QueueMailbox<M, O, C> {
    type Signal = Signal<C>;

    fn signal(&self) -> Signal<C> {
        self.queue.inner().change_hooks(|hooks| hooks.signal.get_or_insert_default().clone())
    }

    #[inline]
    fn try_dequeue(&self) -> Result<Option<M>, QueueError<M>> {
        self.queue.inner().try_poll()
    }
}

impl<M, O: Order<M>, C: MetadataStorageMode> Clone for QueueMailbox<M, O, C> {
    fn clone(&self) -> Self {
        Self::from_queue(self.queue.clone())
    }
}

impl<M, O: Order<M>, C: MetadataStorageMode> Drop for QueueMailbox<M, O, C> {
    fn drop(&mut self) {
        self.queue.inner().remove_consumer();
    }
}

impl<M, O: Order<M>, C: MetadataStorageMode> fmt::Debug for QueueMailbox<M, O, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("QueueMailbox").field(self.queue.inner()).finish()
    }
}
