//! The settings of a mailbox: its capacities and its overflow policy.
//!
//! ```
//! use postbox_core::shared::mailbox::*;
//!
//! let options = MailboxOptions::with_capacity(1).with_overflow(OverflowPolicy::DropOldest);
//! let (mailbox, producer) = ThreadSafe.build_mailbox(options);
//! producer.try_send("old").unwrap();
//! producer.try_send("new").unwrap();
//! assert_eq!(mailbox.dequeue(), Some("new"));
//! ```

use crate::shared::queue::{OverflowPolicy, QueueSize};

/// The default capacity for control messages.
pub const DEFAULT_SYSTEM_RESERVATION: usize = 4;

/// The settings of a new mailbox.
///
/// ```
/// use postbox_core::shared::mailbox::*;
///
/// let options = MailboxOptions::default();
/// assert_eq!((options.capacity_limit(), options.priority_capacity_limit()), (None, Some(4)));
///
/// let options = MailboxOptions::with_capacity(128).with_overflow(OverflowPolicy::DropOldest);
/// assert_eq!((options.capacity_limit(), options.priority_capacity_limit()), (Some(128), Some(4)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MailboxOptions {
    /// The capacity for regular messages.
    pub capacity: QueueSize,
    /// The capacity for control messages.
    pub priority_capacity: QueueSize,
    /// What a full mailbox does with another message.
    pub overflow: OverflowPolicy,
}

impl Default for MailboxOptions {
    fn default() -> Self {
        Self::with_capacities(QueueSize::Limitless, QueueSize::Limited(DEFAULT_SYSTEM_RESERVATION))
    }
}

impl MailboxOptions {
    /// A capacity for regular messages, and the default capacity for control messages.
    pub const fn with_capacity(capacity: usize) -> Self {
        Self::with_capacities(QueueSize::Limited(capacity), QueueSize::Limited(DEFAULT_SYSTEM_RESERVATION))
    }

    /// Capacities for regular and for control messages.
    pub const fn with_capacities(capacity: QueueSize, priority_capacity: QueueSize) -> Self {
        MailboxOptions { capacity, priority_capacity, overflow: OverflowPolicy::Block }
    }

    /// Sets the capacity for control messages.
    #[must_use]
    pub const fn with_priority_capacity(mut self, priority_capacity: QueueSize) -> Self {
        self.priority_capacity = priority_capacity;
        self
    }

    /// Sets the overflow policy.
    #[must_use]
    pub const fn with_overflow(mut self, overflow: OverflowPolicy) -> Self {
        self.overflow = overflow;
        self
    }

    /// No limit for regular or control messages.
    pub const fn unbounded() -> Self {
        Self::with_capacities(QueueSize::Limitless, QueueSize::Limitless)
    }

    /// The capacity for regular messages; `None` if unlimited.
    pub const fn capacity_limit(&self) -> Option<usize> {
        self.capacity.limit()
    }

    /// The capacity for control messages; `None` if unlimited.
    pub const fn priority_capacity_limit(&self) -> Option<usize> {
        self.priority_capacity.limit()
    }
}
