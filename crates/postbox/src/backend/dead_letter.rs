//! Dead letters: the messages that could not be finished.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;

use crate::backend::{ByteCount, Delivery, Headers};
use crate::mailbox::codec::ContentType;
use crate::mailbox::id::MessageId;
use crate::runtime::clock::Moment;

/// A message that could not be finished.
#[derive(Clone)]
#[non_exhaustive]
pub struct DeadLetter {
    /// The id of the message.
    pub id: MessageId,
    /// The body, encoded.
    pub body: Bytes,
    /// The codec of the body.
    pub content_type: ContentType,
    /// The headers, if there are any.
    pub headers: Option<Arc<Headers>>,
    /// The number of deliveries.
    pub delivery_count: u32,
    /// When the message was sent.
    pub enqueued_at: SystemTime,
    /// When the message became a dead letter.
    pub died_at: SystemTime,
    /// The reason, which a consumer or the backend gave.
    pub reason: Cow<'static, str>,
}

/// Without the body.
impl fmt::Debug for DeadLetter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadLetter")
            .field("id", &self.id)
            .field("body", &ByteCount(&self.body))
            .field("content_type", &self.content_type)
            .field("headers", &self.headers)
            .field("delivery_count", &self.delivery_count)
            .field("enqueued_at", &self.enqueued_at)
            .field("died_at", &self.died_at)
            .field("reason", &self.reason)
            .finish()
    }
}

impl DeadLetter {
    /// A dead letter with the content of a delivery.
    pub fn new(delivery: Delivery, died_at: Moment, reason: Cow<'static, str>) -> Self {
        DeadLetter {
            id: delivery.id,
            body: delivery.body,
            content_type: delivery.content_type,
            headers: delivery.headers,
            delivery_count: delivery.delivery_count,
            enqueued_at: delivery.enqueued_at.into(),
            died_at: died_at.into(),
            reason,
        }
    }
}

/// The dead letters to make visible again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Redrive {
    /// At most this number, oldest first.
    UpTo(usize),
    /// The one with this id.
    One(MessageId),
}
