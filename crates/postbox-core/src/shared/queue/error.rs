use core::fmt;

/// Why a queue did not accept or return a message. A message that was not accepted is in the error.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueueError<M> {
    /// The queue is full.
    Full(M),
    /// The queue is closed.
    Closed(M),
    /// The queue is empty and no message can arrive any more: it is closed, or its last producer
    /// was dropped.
    Disconnected,
    /// The timeout passed before there was room.
    Timeout(M),
    /// The timeout passed before a message arrived.
    Empty,
}

impl<M> QueueError<M> {
    /// Returns the message, if the error carries one.
    pub fn into_message(self) -> Option<M> {
        match self {
            QueueError::Full(message) | QueueError::Closed(message) | QueueError::Timeout(message) => Some(message),
            QueueError::Disconnected | QueueError::Empty => None,
        }
    }

    /// Whether the same call may succeed later.
    pub const fn is_transient(&self) -> bool {
        matches!(self, QueueError::Full(_) | QueueError::Timeout(_) | QueueError::Empty)
    }

    /// Transforms the message.
    pub(crate) fn map<N>(self, change: impl FnOnce(M) -> N) -> QueueError<N> {
        match self {
            QueueError::Full(message) => QueueError::Full(change(message)),
            QueueError::Closed(message) => QueueError::Closed(change(message)),
            QueueError::Timeout(message) => QueueError::Timeout(change(message)),
            QueueError::Disconnected => QueueError::Disconnected,
            QueueError::Empty => QueueError::Empty,
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            QueueError::Full(_) => {
                "the mailbox is full: receive from it, wait for room, or choose another overflow policy"
            }
            QueueError::Closed(_) => "the mailbox is closed: it accepts no more messages",
            QueueError::Disconnected => {
                "the mailbox is empty and no more messages can arrive: it is closed, or its last producer was dropped"
            }
            QueueError::Timeout(_) => "the mailbox had no room in the time allowed: try again, or allow more time",
            QueueError::Empty => "no message arrived in the time allowed: try again, or allow more time",
        }
    }
}

// Implemented by hand: messages need no `Debug`, and their contents stay out of logs.
impl<M> fmt::Debug for QueueError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QueueError::Full(_) => "Full(..)",
            QueueError::Closed(_) => "Closed(..)",
            QueueError::Disconnected => "Disconnected",
            QueueError::Timeout(_) => "Timeout(..)",
            QueueError::Empty => "Empty",
        })
    }
}

impl<M> fmt::Display for QueueError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason())
    }
}

impl<M> core::error::Error for QueueError<M> {}

/// The error of a mailbox.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MailboxError<M> {
    /// The error of the queue behind the mailbox.
    Queue(QueueError<M>),
}

impl<M> MailboxError<M> {
    /// Returns the message, if the error carries one.
    pub fn into_message(self) -> Option<M> {
        let MailboxError::Queue(error) = self;
        error.into_message()
    }

    /// Whether the same call may succeed later.
    pub const fn is_transient(&self) -> bool {
        let MailboxError::Queue(error) = self;
        error.is_transient()
    }
}

impl<M> From<QueueError<M>> for MailboxError<M> {
    fn from(error: QueueError<M>) -> Self {
        MailboxError::Queue(error)
    }
}

impl<M> fmt::Debug for MailboxError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MailboxError::Queue(error) = self;
        f.debug_tuple("Queue").field(error).finish()
    }
}

impl<M> fmt::Display for MailboxError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MailboxError::Queue(error) = self;
        error.fmt(f)
    }
}

impl<M> core::error::Error for MailboxError<M> {}
