//! Factories of mailboxes: the trait [`MailboxFactory`], implemented by [`ThreadSafe`] and
//! [`SingleThread`], and [`PriorityMailboxFactory`].
//!
//! ```
//! use postbox_core::shared::mailbox::*;
//!
//! let (mailbox, producer) = ThreadSafe.build_mailbox(MailboxOptions::with_capacity(128));
//! producer.try_send(1).unwrap();
//! assert_eq!((mailbox.size(), mailbox.capacity()), (1, Some(128)));
//! ```

use super::consumer::{MailboxConsumer, QueueMailbox, QueueMailboxCore};
use super::messages::{ByEnvelope, PriorityEnvelope};
use super::options::MailboxOptions;
use super::producer::{MailboxProducer, QueueMailboxProducer};
use super::signal::{MailboxSignal, Signal};
use crate::order::{Fifo, Priority};
use crate::shared::queue::MailboxQueueBackend;

pub use crate::sync::{MailboxConcurrency, MetadataStorageMode, SingleThread, ThreadSafe};

/// Builds a mailbox together with a producer.
///
/// [`ThreadSafe`] and [`SingleThread`] are factories; a runtime can implement its own.
///
/// ```
/// use postbox_core::shared::mailbox::*;
///
/// fn start<F: MailboxFactory>(factory: &F) -> (F::Mailbox<String>, F::Producer<String>) {
///     factory.build_mailbox(MailboxOptions::with_capacity(128))
/// }
/// let (mailbox, producer) = start(&SingleThread);
/// producer.try_send("hello".into()).unwrap();
/// assert_eq!(mailbox.capacity(), Some(128));
/// assert_eq!(mailbox.size(), 1);
/// ```
pub trait MailboxFactory {
    /// How mailboxes are protected and shared.
    type Concurrency: MailboxConcurrency + MetadataStorageMode;
    /// The signal of the mailboxes.
    type Signal: MailboxSignal;
    /// The queue of a mailbox.
    type Queue<M>: MailboxQueueBackend<M> + Clone;
    /// The consumer's end.
    type Mailbox<M>: MailboxConsumer<M, Signal = Self::Signal>;
    /// The producer's end.
    type Producer<M>: MailboxProducer<M>;

    /// Builds a mailbox with the given options, and a producer for it.
    ///
    /// # Panics
    /// If the capacity is 0.
    fn build_mailbox<M>(&self, options: MailboxOptions) -> (Self::Mailbox<M>, Self::Producer<M>);

    /// Builds a mailbox with the default options, and a producer for it.
    fn build_default_mailbox<M>(&self) -> (Self::Mailbox<M>, Self::Producer<M>) {
        self.build_mailbox(MailboxOptions::default())
    }
}

impl<C: MetadataStorageMode> MailboxFactory for C {
    type Concurrency = C;
    type Signal = Signal<C>;
    type Queue<M> = QueueMailboxCore<M, Fifo, C>;
    type Mailbox<M> = QueueMailbox<M, Fifo, C>;
    type Producer<M> = QueueMailboxProducer<M, Fifo, C>;

    fn build_mailbox<M>(&self, options: MailboxOptions) -> (Self::Mailbox<M>, Self::Producer<M>) {
        let mailbox = QueueMailbox::with_order(Fifo, options);
        let producer = mailbox.producer();
        (mailbox, producer)
    }
}

/// The order of a mailbox of envelopes: control messages first, then by priority, then by arrival.
pub type EnvelopeOrder = Priority<ByEnvelope>;

/// Builds mailboxes of [`PriorityEnvelope`]s, ordered by channel and priority.
///
/// ```
/// use postbox_core::shared::mailbox::messages::PriorityEnvelope;
/// use postbox_core::shared::mailbox::*;
///
/// let (mailbox, producer) = ThreadSafe.build_priority_mailbox(MailboxOptions::default());
/// producer.try_send(PriorityEnvelope::new("later", 9)).unwrap();
/// producer.try_send(PriorityEnvelope::new("soon", 1)).unwrap();
/// producer.try_send(PriorityEnvelope::control("stop", 9)).unwrap();
/// let order: Vec<_> = std::iter::from_fn(|| mailbox.dequeue()).map(|e| e.into_parts().0).collect();
/// assert_eq!(order, ["stop", "soon", "later"]);
/// ```
pub trait PriorityMailboxFactory: MetadataStorageMode {
    /// Builds a mailbox of envelopes, and a producer for it.
    ///
    /// # Panics
    /// If the capacity is 0.
    #[allow(clippy::type_complexity, reason = "the pair is the answer; an alias would hide what it is made of")]
    fn build_priority_mailbox<M>(
        &self,
        options: MailboxOptions,
    ) -> (
        QueueMailbox<PriorityEnvelope<M>, EnvelopeOrder, Self>,
        QueueMailboxProducer<PriorityEnvelope<M>, EnvelopeOrder, Self>,
    ) {
        let mailbox = QueueMailbox::with_order(Priority::new(ByEnvelope), options);
        let producer = mailbox.producer();
        (mailbox, producer)
    }
}

impl<C: MetadataStorageMode> PriorityMailboxFactory for C {}
