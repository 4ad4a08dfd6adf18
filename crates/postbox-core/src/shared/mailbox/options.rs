//! How large a mailbox is, and what it does when it is full.

use crate::shared::queue::{OverflowPolicy, QueueSize};

/// Room that is kept for control messages, unless the options say otherwise.
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
    /// Room for regular messages.
    pub capacity: QueueSize,
    /// Room for control messages.
    pub priority_capacity: QueueSize,
    /// What a full mailbox does.
    pub overflow: OverflowPolicy,
}

impl Default for MailboxOptions {
    fn default() -> Self {
        Self::with_capacities(QueueSize::Limitless, QueueSize::Limited(DEFAULT_SYSTEM_RESERVATION))
    }
}

impl MailboxOptions {
    /// Room for `capacity` regular messages and the default reservation for control messages.
    pub const fn with_capacity(capacity: usize) -> Self {
        Self::with_capacities(QueueSize::Limited(capacity), QueueSize::Limited(DEFAULT_SYSTEM_RESERVATION))
    }

    /// Room for both kinds of messages, stated apart.
    pub const fn with_capacities(capacity: QueueSize, priority_capacity: QueueSize) -> Self {
        MailboxOptions { capacity, priority_capacity, overflow: OverflowPolicy::Block }
    }

    /// The same options with this much room for control messages.
    #[must_use]
    pub const fn with_priority_capacity(mut self, priority_capacity: QueueSize) -> Self {
        self.priority_capacity = priority_capacity;
        self
    }

    /// The same options with another way to deal with a full mailbox.
    #[must_use]
    pub const fn with_overflow(mut self, overflow: OverflowPolicy) -> Self {
        self.overflow = overflow;
        self
    }

    /// No limit for regular messages, nor for control messages.
    pub const fn unbounded() -> Self {
        Self::with_capacities(QueueSize::Limitless, QueueSize::Limitless)
    }

    /// The limit for regular messages, if there is one.
    pub const fn capacity_limit(&self) -> Option<usize> {
        self.capacity.limit()
    }

    /// The limit for control messages, if there is one.
    pub const fn priority_capacity_limit(&self) -> Option<usize> {
        self.priority_capacity.limit()
    }
}
