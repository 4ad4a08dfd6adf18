//! Checks of a message that is sent, alone or in a batch.
//!
//! The size of a message is that of its body and its attributes. It is limited by the queue.

use super::{check_id, wrong_queue_type};
use crate::error::{ErrorKind, SqsError};
use crate::message_attributes::{
    MessageAttribute, check_attributes, check_system_attributes, forbidden_character, size_of_attributes,
};
use crate::queue::QueueAttributes;
use crate::wire::request::{SendMessage, SendMessageEntry};
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
    pub(super) fn check(&self, queue: &QueueAttributes, invalid: &str) -> Result<(), SqsError> {
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
        self.check_delay(queue.fifo)?;
        match self.deduplication_id {
            Some(id) if !queue.fifo => Err(wrong_queue_type(id, "MessageDeduplicationId")),
            _ => Ok(()),
        }
    }

    fn check_delay(&self, fifo: bool) -> Result<(), SqsError> {
        match self.delay_seconds {
            None | Some(0) => Ok(()),
            Some(delay @ 1..) if fifo => Err(wrong_queue_type(delay, "DelaySeconds")),
            Some(1..=LONGEST_DELAY) => Ok(()),
            Some(delay) => Err(SqsError::invalid(delay, "DelaySeconds", "DelaySeconds must be >= 0 and <= 900.")),
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

/// Checks a SendMessage to a queue with these attributes.
pub fn check_send(message: &OutgoingMessage<'_>, queue: &QueueAttributes) -> Result<(), SqsError> {
    if message.body.is_empty() {
        return Err(SqsError::missing("MessageBody"));
    }
    if queue.fifo && message.group_id.is_none() {
        return Err(SqsError::missing("MessageGroupId"));
    }
    message.check(queue, "are invalid")?;
    if queue.fifo && !message.has_deduplication(queue) {
        return Err(deduplication_missing());
    }
    Ok(())
}
