use core::fmt;

/// How many messages a queue may hold.
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
    /// As many as memory holds.
    #[default]
    Limitless,
    /// This many at the most.
    Limited(usize),
}

impl QueueSize {
    /// No limit.
    pub const fn limitless() -> Self {
        QueueSize::Limitless
    }

    /// At most `limit` messages.
    pub const fn limited(limit: usize) -> Self {
        QueueSize::Limited(limit)
    }

    /// The limit, if there is one.
    pub const fn limit(self) -> Option<usize> {
        match self {
            QueueSize::Limitless => None,
            QueueSize::Limited(limit) => Some(limit),
        }
    }

    /// Whether there is no limit.
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
