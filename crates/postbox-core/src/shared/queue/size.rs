use core::fmt;

/// The capacity of a queue.
///
/// ```
/// use postbox_core::shared::mailbox::QueueSize;
///
/// assert_eq!(QueueSize::limited(8).limit(), Some(8));
/// assert_eq!(QueueSize::limitless().limit(), None);
/// assert_eq!(QueueSize::limited(8).to_string(), "8");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum QueueSize {
    /// Unlimited.
    #[default]
    Limitless,
    /// At most this many messages.
    Limited(usize),
}

impl QueueSize {
    /// An unlimited capacity.
    pub const fn limitless() -> Self {
        QueueSize::Limitless
    }

    /// A capacity of `limit` messages.
    pub const fn limited(limit: usize) -> Self {
        QueueSize::Limited(limit)
    }

    /// The limit; `None` if unlimited.
    pub const fn limit(self) -> Option<usize> {
        match self {
            QueueSize::Limitless => None,
            QueueSize::Limited(limit) => Some(limit),
        }
    }

    /// Whether the capacity is unlimited.
    pub const fn is_limitless(self) -> bool {
        matches!(self, QueueSize::Limitless)
    }
}

impl From<usize> for QueueSize {
    fn from(limit: usize) -> Self {
        QueueSize::Limited(limit)
    }
}

impl fmt::Display for QueueSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QueueSize::Limitless => f.write_str("unlimited"),
            QueueSize::Limited(limit) => limit.fmt(f),
        }
    }
}
