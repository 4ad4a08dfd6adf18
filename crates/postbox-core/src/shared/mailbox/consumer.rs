//! The receiving end of a mailbox.

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

/// What every mailbox can do, whichever kind it is. Nothing here waits.
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
    /// Puts a message in. `false` if it was not taken: the mailbox is full or closed. The message is dropped then;
    /// [`MailboxProducer::try_send`](super::MailboxProducer::try_send) gives it back instead.
    fn enqueue(&self, message: M) -> bool;

    /// Takes the next message, if there is one.
    fn dequeue(&self) -> Option<M>;

    /// Whether no message waits.
    fn is_empty(&self) -> bool {
        self.size() == 0
    }

    /// How many messages wait.
    fn size(&self) -> usize;

    /// How many messages the mailbox has taken in since it exists.
    fn message_count(&self) -> usize;

    /// How many messages it has room for; `None` without a limit.
    fn capacity(&self) -> Option<usize>;

    /// Takes no more messages from now on. Those inside can still be taken out.
    fn close(&self);

    /// Whether it is closed.
    fn is_closed(&self) -> bool;
}

/// A mailbox from the consumer's side.
pub trait MailboxConsumer<M>: Mailbox<M> + Clone {
    /// Tells of new messages.
    type Signal: MailboxSignal;

    /// A signal that is notified after each message, when the mailbox is resumed, and when the end comes.
    fn signal(&self) -> Self::Signal;

    /// Takes the next message, if there is one.
    ///
    /// # Errors
    /// [`Disconnected`](QueueError::Disconnected) when nothing is left and nothing will come.
    fn try_dequeue(&self) -> Result<Option<M>, QueueError<M>>;

    /// [`try_dequeue`](Self::try_dequeue) with the error of a mailbox.
    ///
    /// # Errors
    /// As [`try_dequeue`](Self::try_dequeue), wrapped.
    fn try_dequeue_mailbox(&self) -> Result<Option<M>, MailboxError<M>> {
        self.try_dequeue().map_err(MailboxError::from)
    }
}

/// The queue that all handles of one mailbox share: the [`MailboxQueueBackend`] of this crate.
///
/// It counts neither as a producer nor as a consumer, so holding one keeps no mailbox open.
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

    /// How many senders wait for room.
    pub fn waiting_senders(&self) -> usize {
        self.shared.waiting_senders()
    }

    /// How many receivers wait for a message.
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

/// The mailbox that the factories build, and the one behind `UnboundedMailbox`, `BoundedMailbox` and
/// `PriorityMailbox`.
///
/// `O` is the order in which messages leave, `C` the concurrency mode. Clones share one mailbox; each message goes
/// to one of them. When the last clone is dropped, the mailbox closes and what is left in it is dropped.
pub struct QueueMailbox<M, O: Order<M> = Fifo, C: MetadataStorageMode = ThreadSafe> {
    queue: QueueMailboxCore<M, O, C>,
}

impl<M, O: Order<M>, C: MetadataStorageMode> QueueMailbox<M, O, C> {
    /// A mailbox without a producer yet.
    ///
    /// # Panics
    /// If the capacity is 0: nothing could ever be sent.
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

    /// The queue behind the mailbox.
    pub fn queue(&self) -> &QueueMailboxCore<M, O, C> {
        &self.queue
    }

    /// A new producer for this mailbox.
    ///
    /// When the last producer is dropped, the mailbox is disconnected: receivers get what is left and then
    /// [`Disconnected`](QueueError::Disconnected), and a message loop ends. So keep a producer for as long as something
    /// may come, even if other handles send by [`enqueue`](Mailbox::enqueue); a mailbox that never had a producer waits
    /// for ever. A new producer connects the mailbox again; a closed mailbox stays closed.
    pub fn producer(&self) -> QueueMailboxProducer<M, O, C> {
        QueueMailboxProducer::new(self.queue.clone())
    }

    /// Takes the next message, and waits for one. Needs no particular runtime.
    #[inline]
    pub fn recv(&self) -> PollFuture<'_, M, O, C> {
        PollFuture::new(self.queue.inner())
    }

    /// Moves up to `max` messages into `into`, control messages first, with one synchronisation. Returns how many.
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

    /// Closes the mailbox and takes out all that is left: control messages, stashed messages, then the others in
    /// their order. Senders that wait get their own messages back.
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

    /// Holds regular messages back; control messages still come. Suspensions are counted: it takes as many
    /// [`resume`](Self::resume)s.
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

    /// Takes one [`suspend`](Self::suspend) back. `false` if there was none to take back.
    pub fn resume(&self) -> bool {
        self.queue.inner().resume()
    }

    /// Whether regular messages are held back.
    pub fn is_suspended(&self) -> bool {
        self.queue.inner().is_suspended()
    }

    /// Puts a received message aside until [`unstash`](Self::unstash): a handler that cannot use it yet.
    ///
    /// A stashed message takes up room, so a bounded mailbox takes fewer new ones meanwhile. Room that producers
    /// filled while the message was out is not taken back: then the mailbox holds that much more than its capacity.
    /// An envelope goes back on its own lane; what was sent by
    /// [`try_send_control`](QueueMailboxProducer::try_send_control) goes back as a regular message. A mailbox that is
    /// closed and drained is disconnected even if something is stashed: unstash first.
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

    /// Puts all stashed messages back, in the order in which they were stashed and before those that wait (in a
    /// priority mailbox: before their equals). Returns how many.
    pub fn unstash(&self) -> usize {
        self.queue.inner().unstash()
    }

    /// How many messages are stashed. They do not count in [`size`](Mailbox::size).
    pub fn stashed(&self) -> usize {
        self.queue.inner().stashed()
    }

    /// How many control messages wait. They count in [`size`](Mailbox::size), not against the capacity.
    pub fn control_size(&self) -> usize {
        self.queue.inner().control_len()
    }

    /// How many control messages there is room for; `None` without a limit.
    pub fn control_capacity(&self) -> Option<usize> {
        self.queue.inner().control_capacity()
    }

    /// How many messages were refused or evicted for want of room since the mailbox exists.
    pub fn rejected_count(&self) -> usize {
        self.queue.inner().rejected_count()
    }

    /// Sets the sink that is told what happens in the mailbox, as
    /// [`MailboxProducer::set_metrics_sink`](super::MailboxProducer::set_metrics_sink) does.
    pub fn set_metrics_sink(&self, sink: Option<Arc<dyn MetricsSink>>) {
        self.queue.inner().set_metrics_sink(sink);
    }

    /// Sets the hook that is told that the mailbox has something to receive, as
    /// [`MailboxProducer::set_scheduler_hook`](super::MailboxProducer::set_scheduler_hook) does.
    pub fn set_scheduler_hook(&self, hook: Option<Arc<dyn SchedulerHook>>) {
        self.queue.inner().set_scheduler_hook(hook);
    }

    /// Whether a message sent now would find no room.
    pub fn is_full(&self) -> bool {
        self.queue.inner().free_capacity() == 0
    }

    /// What the mailbox does when it is full.
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
