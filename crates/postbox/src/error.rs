//! The error type of the crate.

use std::sync::Arc;

use crate::mailbox::id::{MessageId, ReplyId};

/// The error of every operation: a variant for each failure that a caller can act on.
///
/// `docs/errors.md` has a section for each variant: what happened, and what to do.
///
/// ```
/// use postbox::{Error, Mailbox};
///
/// # postbox_core::wait_for(async {
/// let mailbox: Mailbox<String> = postbox::open("memory://doc-error?max_size=1").await?;
/// mailbox.send("one").await?;
/// match mailbox.send("two").await {
///     Err(error @ Error::MailboxFull { .. }) => assert!(error.is_transient(), "there may be room later"),
///     other => panic!("{other:?}"),
/// }
/// # Ok::<(), Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The lease of this delivery has ended: its visibility timeout is over, or it was settled, or the mailbox was purged. The
    /// message may be with another consumer by now, so the caller leaves it alone.
    #[error(
        "the lease of message {id} has ended; it may be delivered to another consumer (longer work: extend_visibility in time)"
    )]
    ReceiptHandleExpired {
        /// The message whose lease has ended.
        id: MessageId,
    },
    /// The mailbox has no room for the message.
    #[error("mailbox {mailbox:?} is full ({limit}); try again when consumers have caught up")]
    MailboxFull {
        /// The name of the mailbox.
        mailbox: String,
        /// The limit.
        limit: String,
    },
    /// A body could not be encoded or decoded.
    #[error("{reason}")]
    Serialization {
        /// The message that could not be decoded. `None` for bodies that could not be encoded, and for replies.
        message: Option<MessageId>,
        /// What failed, and the reason that the codec gives.
        reason: String,
    },
    /// The store cannot be reached, or refuses the operation; or a backend broke its contract.
    #[error("{message}")]
    Connection {
        /// What happened, without secrets.
        message: String,
        /// Whether a retry can help.
        transient: bool,
        /// The error of the client library.
        #[source]
        source: Option<Arc<dyn std::error::Error + Send + Sync>>,
    },
    /// An argument is out of its range.
    #[error("{parameter} = {value} is not allowed: {limit}")]
    InvalidParameter {
        /// The name of the argument.
        parameter: &'static str,
        /// The value that was given.
        value: String,
        /// What is allowed.
        limit: String,
    },
    /// An address does not lead to a mailbox.
    #[error("cannot resolve {identifier:?}: {reason}")]
    Resolution {
        /// The address.
        identifier: String,
        /// The cause, and what to do.
        reason: String,
    },
    /// The reply did not come within the timeout. It may still come: wait again.
    #[error("no reply {id} within the time given; it may still come: wait again")]
    ReplyTimeout {
        /// The id of the reply.
        id: ReplyId,
    },
    /// The reply will not come: its time to live has passed, or another consumer took it.
    #[error("reply {id} is over: its time to live has passed, or it was consumed elsewhere")]
    ReplyExpired {
        /// The id of the reply.
        id: ReplyId,
    },
    /// The requester cancelled the reply.
    #[error("reply {id} was cancelled by the requester")]
    ReplyCancelled {
        /// The id of the reply.
        id: ReplyId,
    },
    /// An earlier delivery of the message was answered already. The message is finished.
    #[error("reply {id} had already been sent")]
    ReplyAlreadySent {
        /// The id of the reply.
        id: ReplyId,
    },
    /// A request with the same deduplication id was sent before. The answer goes to the reply of that request.
    #[error("a request with this deduplication id was sent before, as message {id}; wait for that one's reply")]
    DuplicateRequest {
        /// The message of the earlier request.
        id: MessageId,
    },
    /// The message expects a reply, so it is finished by `reply`, not by `acknowledge`.
    #[error("message {id} expects a reply: finish it with reply(), or give it up with nack() or dead_letter()")]
    ReplyExpected {
        /// The id of the message.
        id: MessageId,
    },
    /// The message expects no reply.
    #[error("message {id} expects no reply: finish it with acknowledge()")]
    NoReplyChannel {
        /// The id of the message.
        id: MessageId,
    },
    /// There is no mailbox to send an answer to.
    #[error("no mailbox for the answer: {reason}")]
    ReplyMailboxUnavailable {
        /// The address in the message, if it has one.
        reply_to: Option<String>,
        /// The cause.
        reason: String,
    },
    /// The mailbox handle was closed.
    #[error("mailbox {mailbox:?} was closed by this program; open it again")]
    Closed {
        /// The name of the mailbox.
        mailbox: String,
    },
    /// The backend does not have this operation.
    #[error("{backend} cannot {operation}")]
    Unsupported {
        /// The kind of the backend.
        backend: &'static str,
        /// The operation, as the end of a sentence: "peek".
        operation: &'static str,
    },
}

impl Error {
    /// Whether the same call may succeed later, with nothing else changed.
    pub fn is_transient(&self) -> bool {
        match self {
            Error::MailboxFull { .. } | Error::ReplyTimeout { .. } => true,
            Error::Connection { transient, .. } => *transient,
            _ => false,
        }
    }

    /// A transient [`Connection`](Self::Connection) error, for backends whose store cannot be reached.
    ///
    /// ```
    /// assert!(postbox::Error::connection("the network is down").is_transient());
    /// ```
    pub fn connection(message: impl Into<String>) -> Self {
        Error::Connection { message: message.into(), transient: true, source: None }
    }

    /// The error for a backend that broke its contract. A retry does not help.
    #[cold]
    pub(crate) fn faulty(message: String) -> Self {
        Error::Connection { message, transient: false, source: None }
    }

    #[cold]
    pub(crate) fn panicked(what: &str, operation: &str) -> Self {
        Self::faulty(format!("{what} panicked in {operation}"))
    }

    pub(crate) fn invalid(parameter: &'static str, value: impl ToString, limit: impl Into<String>) -> Self {
        Error::InvalidParameter { parameter, value: value.to_string(), limit: limit.into() }
    }

    /// The mailbox holds a message with this id and another body.
    pub(crate) fn id_in_use(id: &MessageId) -> Self {
        Error::invalid(
            "id",
            id,
            "the mailbox holds another message with this id; choose a new id, or send the same body",
        )
    }

    pub(crate) fn encoding(reason: impl std::fmt::Display) -> Self {
        Error::Serialization { message: None, reason: format!("cannot encode the body: {reason}") }
    }

    pub(crate) fn decoding(id: &MessageId, reason: impl std::fmt::Display) -> Self {
        let reason =
            format!("cannot decode message {id}: {reason}; it stays leased and is tried again, then dead-lettered");
        Error::Serialization { message: Some(id.clone()), reason }
    }

    pub(crate) fn resolution(identifier: &str, reason: impl Into<String>) -> Self {
        Error::Resolution { identifier: crate::resolver::address::shown(identifier), reason: reason.into() }
    }

    /// A short, stable name of the variant. It is the label `error` of the metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            Error::ReceiptHandleExpired { .. } => "receipt_handle_expired",
            Error::MailboxFull { .. } => "mailbox_full",
            Error::Serialization { .. } => "serialization",
            Error::Connection { .. } => "connection",
            Error::InvalidParameter { .. } => "invalid_parameter",
            Error::Resolution { .. } => "resolution",
            Error::ReplyTimeout { .. } => "reply_timeout",
            Error::ReplyExpired { .. } => "reply_expired",
            Error::ReplyCancelled { .. } => "reply_cancelled",
            Error::ReplyAlreadySent { .. } => "reply_already_sent",
            Error::DuplicateRequest { .. } => "duplicate_request",
            Error::ReplyExpected { .. } => "reply_expected",
            Error::NoReplyChannel { .. } => "no_reply_channel",
            Error::ReplyMailboxUnavailable { .. } => "reply_mailbox_unavailable",
            Error::Closed { .. } => "closed",
            Error::Unsupported { .. } => "unsupported",
        }
    }
}
