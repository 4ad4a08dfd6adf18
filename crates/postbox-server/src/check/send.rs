//! Checks of a message that is sent, alone or in a batch.
//!
//! The size of a message is that of its body and its attributes. It is limited by the queue.

use super::{check_id, wrong_queue_type};
use crate::digest::{content_deduplication_id, md5_of_attributes, md5_of_body};
use crate::error::{ErrorKind, SqsError};
use crate::message_attributes::{
    MessageAttribute, check_attributes, check_system_attributes, forbidden_character, size_of_attributes,
};
use crate::queue::QueueAttributes;
use crate::wire::request::{SendMessage, SendMessageEntry};
use crate::wire::response::SendMessageResult;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// The largest message, and the largest sum of a batch, in bytes.
pub const LARGEST_MESSAGE: usize = 1_048_576;

/// The longest delay in seconds.
const LONGEST_DELAY: i64 = 900;

/// What SendMessage and an entry of SendMessageBatch have in common.
#[derive(Clone, Copy, Debug)]
pub struct OutgoingMessage<'a> {
    /// The body.
    pub body: &'a str,
    /// Seconds until the message becomes visible.
    pub delay_seconds: Option<i64>,
    /// Attributes that the receiver sees.
    pub attributes: &'a BTreeMap<String, MessageAttribute>,
    /// Attributes for the system.
    pub system_attributes: &'a BTreeMap<String, MessageAttribute>,
    /// What a FIFO queue knows a repeated send by.
    pub deduplication_id: Option<&'a str>,
    /// The group of the message.
    pub group_id: Option<&'a str>,
}

macro_rules! outgoing_message_from {
    ($source:ty) => {
        impl<'a> From<&'a $source> for OutgoingMessage<'a> {
            fn from(source: &'a $source) -> Self {
                OutgoingMessage {
                    body: &source.message_body,
                    delay_seconds: source.delay_seconds,
                    attributes: &source.message_attributes,
                    system_attributes: &source.message_system_attributes,
                    deduplication_id: source.message_deduplication_id.as_deref(),
                    group_id: source.message_group_id.as_deref(),
                }
            }
        }
    };
}

outgoing_message_from!(SendMessage);
outgoing_message_from!(SendMessageEntry);

impl OutgoingMessage<'_> {
    /// The bytes that count: the body, and names, types and values of its attributes.
    pub fn size(&self) -> usize {
        self.body.len() + size_of_attributes(self.attributes)
    }

    /// Checks that hold for a message wherever it is. `invalid` is how AWS begins the error of its
    /// size.
    ///
    /// Returns the delay in seconds.
    pub(super) fn check(&self, queue: &QueueAttributes, invalid: &str) -> Result<u32, SqsError> {
        check_attributes(self.attributes)?;
        check_system_attributes(self.system_attributes)?;
        if let Some(message) = forbidden_character(self.body, "message body") {
            return Err(SqsError::new(ErrorKind::InvalidMessageContents, message));
        }
        let largest = queue.maximum_message_size;
        if self.size() > largest as usize {
            return Err(SqsError::parameter(format!(
                "One or more parameters {invalid}. Reason: Message must be shorter than {largest} bytes."
            )));
        }
        self.group_id.map_or(Ok(()), |id| check_id(id, "MessageGroupId"))?;
        self.deduplication_id.map_or(Ok(()), |id| check_id(id, "MessageDeduplicationId"))?;
        let delay = self.check_delay(queue)?;
        match self.deduplication_id {
            Some(id) if !queue.fifo => Err(wrong_queue_type(id, "MessageDeduplicationId")),
            _ => Ok(delay),
        }
    }

    /// The delay in seconds. A FIFO queue has one delay for all messages, so 0 stands for that.
    fn check_delay(&self, queue: &QueueAttributes) -> Result<u32, SqsError> {
        match self.delay_seconds {
            None => Ok(queue.delay_seconds),
            Some(0) if queue.fifo => Ok(queue.delay_seconds),
            Some(delay @ 1..) if queue.fifo => Err(wrong_queue_type(delay, "DelaySeconds")),
            Some(delay @ 0..=LONGEST_DELAY) => Ok(delay as u32),
            Some(delay) => Err(SqsError::invalid(delay, "DelaySeconds", "DelaySeconds must be >= 0 and <= 900.")),
        }
    }

    /// The id by which a FIFO queue recognises a repeated send: the message's own, or by its content.
    pub fn deduplication_id(&self, queue: &QueueAttributes) -> Option<Cow<'_, str>> {
        let by_content = || queue.content_based_deduplication.then(|| content_deduplication_id(self.body).into());
        self.deduplication_id.map(Cow::Borrowed).or_else(by_content)
    }

    /// The answer to the sender. `sequence_number` is for FIFO queues only.
    pub fn sent(&self, message_id: String, sequence_number: Option<String>) -> SendMessageResult {
        SendMessageResult {
            md5_of_message_body: Some(md5_of_body(self.body)),
            md5_of_message_attributes: md5_of_attributes(self.attributes),
            md5_of_message_system_attributes: md5_of_attributes(self.system_attributes),
            message_id: Some(message_id),
            sequence_number,
        }
    }

    /// True if the message has, or gets, what a FIFO queue recognises repeated sends by.
    pub(super) fn has_deduplication(&self, queue: &QueueAttributes) -> bool {
        self.deduplication_id.is_some() || queue.content_based_deduplication
    }
}

/// The error for a message of a FIFO queue without deduplication id.
pub(super) fn deduplication_missing() -> SqsError {
    SqsError::parameter(
        "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly",
    )
}

/// Checks a SendMessage to a queue with these attributes. Returns the delay in seconds.
pub fn check_send(message: &OutgoingMessage<'_>, queue: &QueueAttributes) -> Result<u32, SqsError> {
    if message.body.is_empty() {
        return Err(SqsError::missing("MessageBody"));
    }
    if queue.fifo && message.group_id.is_none() {
        return Err(SqsError::missing("MessageGroupId"));
    }
    let delay = message.check(queue, "are invalid")?;
    if queue.fifo && !message.has_deduplication(queue) {
        return Err(deduplication_missing());
    }
    Ok(delay)
}
