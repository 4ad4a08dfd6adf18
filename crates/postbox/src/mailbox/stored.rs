//! Messages that are shown without a lease.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::SystemTime;

use crate::backend::{self, Delivery};
use crate::error::Error;
use crate::mailbox::codec::{ContentType, Decode};
use crate::mailbox::id::MessageId;
use crate::mailbox::receive::decode;
use crate::resolver::address::shown;

/// A message as the mailbox stores it: shown by [`Mailbox::peek`](crate::Mailbox::peek), and part of a [`DeadLetter`].
///
/// It is a copy. It has no lease, so it cannot be settled.
///
/// ```
/// use postbox::Mailbox;
///
/// let numbers: Mailbox<u32> = postbox::open("memory://doc-stored").blocking()?;
/// numbers.send(&7).attribute("tenant", "a").blocking()?;
/// let texts: Mailbox<String> = postbox::open("memory://doc-stored").blocking()?;
/// texts.send("eight").blocking()?;
///
/// // A body that cannot be decoded says why, and spoils no other.
/// let shown = numbers.peek(10).blocking()?;
/// assert_eq!(shown[0].body.as_ref().ok(), Some(&7));
/// assert_eq!(shown[0].attributes["tenant"], "a");
/// assert!(shown[1].body.is_err());
/// # numbers.purge().blocking()?;
/// # Ok::<(), postbox::Error>(())
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct StoredMessage<T> {
    /// The id of the message.
    pub id: MessageId,
    /// The decoded body, or the [`Serialization`](Error::Serialization) error that says why it cannot be decoded.
    pub body: Result<T, Error>,
    /// The content type of the body, as the sender marked it.
    pub content_type: ContentType,
    /// How often the message was delivered.
    pub delivery_count: u32,
    /// When the message was sent.
    pub enqueued_at: SystemTime,
    /// The attributes that the sender set.
    pub attributes: BTreeMap<String, String>,
    /// The address for an answer, if the sender set one.
    pub reply_to: Option<String>,
    /// Whether the sender waits for a reply in the reply store.
    pub expects_reply: bool,
}

impl<T> StoredMessage<T> {
    pub(crate) fn new<C: Decode<T>>(delivery: Delivery) -> Self {
        let Delivery { id, body, content_type, headers, delivery_count, enqueued_at, .. } = delivery;
        let headers = headers.map(Arc::unwrap_or_clone).unwrap_or_default();
        let body = decode::<T, C>(body, &content_type).map_err(|reason| {
            let reason = format!("cannot decode message {id}: {reason}");
            Error::Serialization { message: Some(id.clone()), reason }
        });
        StoredMessage {
            id,
            body,
            content_type,
            delivery_count,
            enqueued_at: headers.enqueued_at.unwrap_or(enqueued_at.into()),
            attributes: headers.attributes,
            reply_to: headers.reply_to,
            expects_reply: headers.reply.is_some(),
        }
    }
}

/// Without the secrets of a URI in `reply_to`.
impl<T: fmt::Debug> fmt::Debug for StoredMessage<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredMessage")
            .field("id", &self.id)
            .field("body", &self.body)
            .field("delivery_count", &self.delivery_count)
            .field("attributes", &self.attributes)
            .field("reply_to", &self.reply_to.as_deref().map(shown))
            .field("expects_reply", &self.expects_reply)
            .finish_non_exhaustive()
    }
}

/// A message that no consumer could finish: one of [`DeadLetters::list`](crate::DeadLetters::list).
///
/// A dead letter dereferences to the [`StoredMessage`]: `letter.id`, `letter.body`, `letter.attributes`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeadLetter<T> {
    /// The message.
    pub message: StoredMessage<T>,
    /// Why it became a dead letter.
    pub reason: String,
    /// When it became a dead letter.
    pub died_at: SystemTime,
}

impl<T> DeadLetter<T> {
    pub(crate) fn new<C: Decode<T>>(letter: backend::DeadLetter) -> Self {
        DeadLetter {
            message: StoredMessage::new::<C>(letter.delivery),
            reason: letter.reason.into_owned(),
            died_at: letter.died_at.into(),
        }
    }
}

impl<T> Deref for DeadLetter<T> {
    type Target = StoredMessage<T>;

    fn deref(&self) -> &StoredMessage<T> {
        &self.message
    }
}
