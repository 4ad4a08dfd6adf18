//! The three kinds of mailbox, and a function that creates any of them.

use core::fmt;
use core::ops::Deref;

use alloc::boxed::Box;
use alloc::sync::Arc;

use crate::order::{Fifo, Priority, Rank};
use crate::shared::mailbox::{Mailbox, MailboxConsumer, MailboxOptions, OverflowPolicy, QueueMailbox, Signal};
use crate::shared::queue::{QueueError, QueueSize};

/// The default capacity of a bounded mailbox.
pub const DEFAULT_CAPACITY: usize = 1000;

/// The rank of every message in a priority mailbox without a priority function. Equal ranks make it
/// a FIFO.
pub const DEFAULT_RANK: i64 = 10;

/// A function that returns the rank of a message; a lower rank is more urgent.
pub type PriorityFn<M> = Arc<dyn Fn(&M) -> i64 + Send + Sync>;

/// A mailbox without a limit: first in, first out.
///
/// It accepts every message, so a producer that is faster than the consumer fills the memory.
/// Prefer a [`BoundedMailbox`] where that can happen. Clones share one mailbox.
///
/// ```
/// use postbox_core::{Mailbox, UnboundedMailbox};
///
/// let mailbox = UnboundedMailbox::new();
/// assert!(mailbox.enqueue("first") && mailbox.enqueue("second"));
/// assert_eq!(mailbox.dequeue(), Some("first"));
/// assert_eq!((mailbox.size(), mailbox.message_count()), (1, 2));
/// ```
#[derive(Debug)]
pub struct UnboundedMailbox<M>(QueueMailbox<M>);

impl<M> UnboundedMailbox<M> {
    /// Creates an empty mailbox.
    pub fn new() -> Self {
        UnboundedMailbox(QueueMailbox::with_order(Fifo, MailboxOptions::default()))
    }
}

impl<M> Default for UnboundedMailbox<M> {
    fn default() -> Self {
        Self::new()
    }
}

/// A mailbox with a capacity: first in, first out. A full mailbox rejects messages without waiting.
///
/// To wait for room, use [`send`](crate::shared::mailbox::QueueMailboxProducer::send) or
/// `send_blocking` of a [`producer`](QueueMailbox::producer). Clones share one mailbox.
///
/// ```
/// use postbox_core::{BoundedMailbox, Mailbox};
///
/// let mailbox = BoundedMailbox::new(2);
/// assert!(mailbox.enqueue(1) && mailbox.enqueue(2));
/// assert!(mailbox.is_full());
/// assert!(!mailbox.enqueue(3));
/// assert_eq!(mailbox.rejected_count(), 1);
/// ```
#[derive(Debug)]
pub struct BoundedMailbox<M>(QueueMailbox<M>);

impl<M> BoundedMailbox<M> {
    /// Creates an empty mailbox with room for `capacity` messages.
    ///
    /// # Panics
    /// If `capacity` is 0; [`create_mailbox`] returns an error instead.
    #[track_caller]
    pub fn new(capacity: usize) -> Self {
        Self::with_overflow(capacity, OverflowPolicy::Block)
    }

    /// Creates an empty mailbox with an overflow policy.
    ///
    /// # Panics
    /// If `capacity` is 0.
    #[track_caller]
    pub fn with_overflow(capacity: usize, policy: OverflowPolicy) -> Self {
        let options = MailboxOptions::with_capacity(capacity).with_overflow(policy);
        BoundedMailbox(QueueMailbox::with_order(Fifo, options))
    }

    /// Whether the mailbox has no room for another message.
    pub fn is_full(&self) -> bool {
        self.0.is_full()
    }
}

impl<M> Default for BoundedMailbox<M> {
    /// Creates an empty mailbox with room for [`DEFAULT_CAPACITY`] messages.
    fn default() -> Self {
        Self::new(DEFAULT_CAPACITY)
    }
}

/// A mailbox in order of priority: the most urgent message first, and first in, first out among
/// equals. A lower number is more urgent.
///
/// Clones share one mailbox.
///
/// ```
/// use postbox_core::{Mailbox, PriorityMailbox};
///
/// let mailbox = PriorityMailbox::new(|text: &&str| if text.starts_with("CRITICAL") { 0 } else { 10 });
/// mailbox.enqueue("NORMAL: tidy up");
/// mailbox.enqueue("CRITICAL: fire");
/// assert_eq!(mailbox.dequeue(), Some("CRITICAL: fire"));
/// ```
#[derive(Debug)]
pub struct PriorityMailbox<M>(QueueMailbox<M, Priority<ByFn<M>>>);

impl<M> PriorityMailbox<M> {
    /// Creates an empty mailbox without a limit. `priority` is called once for each message, when
    /// it is sent.
    pub fn new(priority: impl Fn(&M) -> i64 + Send + Sync + 'static) -> Self {
        Self::with_options(priority, MailboxOptions::default())
    }

    /// Creates an empty mailbox with a capacity or an overflow policy.
    ///
    /// ```
    /// use postbox_core::shared::mailbox::*;
    /// use postbox_core::PriorityMailbox;
    ///
    /// let options = MailboxOptions::with_capacity(1).with_overflow(OverflowPolicy::DropOldest);
    /// let mailbox = PriorityMailbox::with_options(|n: &i64| *n, options);
    /// assert!(mailbox.enqueue(5));
    /// assert!(mailbox.enqueue(1), "more urgent: evicts 5");
    /// assert!(!mailbox.enqueue(9), "less urgent than every stored message");
    /// assert_eq!(mailbox.dequeue(), Some(1));
    /// ```
    ///
    /// # Panics
    /// If the capacity is 0.
    #[track_caller]
    pub fn with_options(priority: impl Fn(&M) -> i64 + Send + Sync + 'static, options: MailboxOptions) -> Self {
        Self::from_fn(Arc::new(priority), options)
    }

    fn from_fn(priority: PriorityFn<M>, options: MailboxOptions) -> Self {
        PriorityMailbox(QueueMailbox::with_order(Priority::new(ByFn(priority)), options))
    }

    /// Whether the mailbox has no room for another message.
    pub fn is_full(&self) -> bool {
        self.0.is_full()
    }
}

impl<M> Default for PriorityMailbox<M> {
    /// Creates an empty mailbox in which all messages are equally urgent.
    fn default() -> Self {
        Self::new(|_| DEFAULT_RANK)
    }
}

/// Ranks by a function chosen at run time.
#[doc(hidden)]
pub struct ByFn<M>(PriorityFn<M>);

impl<M> Rank<M> for ByFn<M> {
    fn rank(&self, message: &M) -> i64 {
        (self.0)(message)
    }
}

/// What the three kinds have in common besides their constructors.
macro_rules! mailbox_kind {
    ($kind:ident, $order:ty) => {
        impl<M> Deref for $kind<M> {
            type Target = QueueMailbox<M, $order>;

            #[inline(always)]
            fn deref(&self) -> &Self::Target {
                &self.0
            }
        }

        impl<M> Clone for $kind<M> {
            fn clone(&self) -> Self {
                $kind(self.0.clone())
            }
        }

        impl<M> Mailbox<M> for $kind<M> {
            #[inline]
            fn enqueue(&self, message: M) -> bool {
                self.0.enqueue(message)
            }

            #[inline]
            fn dequeue(&self) -> Option<M> {
                self.0.dequeue()
            }

            fn is_empty(&self) -> bool {
                self.0.is_empty()
            }

            fn size(&self) -> usize {
                self.0.size()
            }

            fn message_count(&self) -> usize {
                self.0.message_count()
            }

            fn capacity(&self) -> Option<usize> {
                self.0.capacity()
            }

            fn close(&self) {
                self.0.close();
            }

            fn is_closed(&self) -> bool {
                self.0.is_closed()
            }
        }

        impl<M> MailboxConsumer<M> for $kind<M> {
            type Signal = Signal;

            fn signal(&self) -> Signal {
                self.0.signal()
            }

            fn try_dequeue(&self) -> Result<Option<M>, QueueError<M>> {
                self.0.try_dequeue()
            }
        }
    };
}

mailbox_kind!(UnboundedMailbox, Fifo);
mailbox_kind!(BoundedMailbox, Fifo);
mailbox_kind!(PriorityMailbox, Priority<ByFn<M>>);

/// The kind of mailbox that [`create_mailbox`] creates, with its settings.
#[derive(Clone)]
#[non_exhaustive]
pub enum MailboxType<M> {
    /// An [`UnboundedMailbox`].
    Unbounded,
    /// A [`BoundedMailbox`].
    Bounded {
        /// The capacity; [`DEFAULT_CAPACITY`] if `None`.
        capacity: Option<usize>,
    },
    /// A [`PriorityMailbox`].
    Priority {
        /// The priority function; all messages are equally urgent if `None`.
        priority_fn: Option<PriorityFn<M>>,
        /// The capacity; unlimited if `None`.
        capacity: Option<usize>,
    },
}

impl<M> MailboxType<M> {
    /// A bounded mailbox with room for `capacity` messages.
    pub const fn bounded(capacity: usize) -> Self {
        MailboxType::Bounded { capacity: Some(capacity) }
    }

    /// A priority mailbox without a limit.
    pub fn priority(priority_fn: impl Fn(&M) -> i64 + Send + Sync + 'static) -> Self {
        MailboxType::Priority { priority_fn: Some(Arc::new(priority_fn)), capacity: None }
    }

    /// A priority mailbox with room for `capacity` messages.
    pub fn bounded_priority(priority_fn: impl Fn(&M) -> i64 + Send + Sync + 'static, capacity: usize) -> Self {
        MailboxType::Priority { priority_fn: Some(Arc::new(priority_fn)), capacity: Some(capacity) }
    }
}

impl<M> fmt::Debug for MailboxType<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MailboxType::Unbounded => f.write_str("Unbounded"),
            MailboxType::Bounded { capacity } => f.debug_struct("Bounded").field("capacity", capacity).finish(),
            MailboxType::Priority { priority_fn, capacity } => f
                .debug_struct("Priority")
                .field("priority_fn", &priority_fn.as_ref().map(|_| ".."))
                .field("capacity", capacity)
                .finish(),
        }
    }
}

/// A setting that is out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InvalidMailbox {
    /// The name of the setting.
    pub field: &'static str,
    /// Its value.
    pub value: usize,
    /// The smallest valid value.
    pub minimum: usize,
}

impl fmt::Display for InvalidMailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let InvalidMailbox { field, value, minimum } = self;
        write!(f, "invalid mailbox: {field} is {value}, it must be at least {minimum}")
    }
}

impl core::error::Error for InvalidMailbox {}

/// Creates a mailbox of any kind.
///
/// ```
/// use postbox_core::{Mailbox, MailboxType, create_mailbox};
///
/// let mailbox = create_mailbox(MailboxType::Bounded { capacity: None }).unwrap();
/// assert_eq!(mailbox.capacity(), Some(1000));
/// mailbox.enqueue("hello");
///
/// let error = create_mailbox::<u8>(MailboxType::bounded(0)).err().unwrap();
/// assert_eq!(error.to_string(), "invalid mailbox: capacity is 0, it must be at least 1");
/// ```
///
/// # Errors
/// [`InvalidMailbox`] if the capacity is 0.
pub fn create_mailbox<M: Send + 'static>(
    kind: MailboxType<M>,
) -> Result<Box<dyn Mailbox<M> + Send + Sync>, InvalidMailbox> {
    let capacity = |capacity: Option<usize>| match capacity {
        Some(0) => Err(InvalidMailbox { field: "capacity", value: 0, minimum: 1 }),
        capacity => Ok(capacity),
    };
    Ok(match kind {
        MailboxType::Unbounded => Box::new(UnboundedMailbox::new()),
        MailboxType::Bounded { capacity: wanted } => {
            Box::new(BoundedMailbox::new(capacity(wanted)?.unwrap_or(DEFAULT_CAPACITY)))
        }
        MailboxType::Priority { priority_fn, capacity: wanted } => {
            let size = capacity(wanted)?.map_or(QueueSize::Limitless, QueueSize::Limited);
            let options = MailboxOptions { capacity: size, ..MailboxOptions::default() };
            Box::new(PriorityMailbox::from_fn(priority_fn.unwrap_or_else(|| Arc::new(|_| DEFAULT_RANK)), options))
        }
    })
}
