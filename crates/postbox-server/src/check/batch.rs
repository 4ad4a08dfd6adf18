//! The rules of batches: some faults fail the request, others only their entry.
//!
//! The ids, the number of entries and the sum of the sizes concern the request, and so do missing
//! group and deduplication ids of a FIFO queue. Characters, sizes, delays and attributes concern
//! the entry.

use super::send::{LARGEST_MESSAGE, OutgoingMessage, deduplication_missing};
use crate::error::{ErrorKind, SqsError};
use crate::queue::QueueAttributes;
use crate::wire::request::{Action, SendMessageBatch};
use std::collections::HashSet;

const MOST_ENTRIES: usize = 10;
const LONGEST_ID: usize = 80;

/// Checks the ids of a batch, of any of the three actions that take one.
pub fn check_batch<'a>(action: Action, ids: impl ExactSizeIterator<Item = &'a str>) -> Result<(), SqsError> {
    let count = ids.len();
    if count == 0 {
        let message = format!("There should be at least one {}RequestEntry in the request.", action.name());
        return Err(SqsError::new(ErrorKind::EmptyBatchRequest, message));
    }
    if count > MOST_ENTRIES {
        let message = format!("Maximum number of entries per request are {MOST_ENTRIES}. You have sent {count}.");
        return Err(SqsError::new(ErrorKind::TooManyEntriesInBatchRequest, message));
    }
    let mut seen = HashSet::new();
    let mut repeated = None;
    for id in ids {
        let is_character = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if !(1..=LONGEST_ID).contains(&id.len()) || !id.bytes().all(is_character) {
            let message = "A batch entry id can only contain alphanumeric characters, hyphens and underscores. \
                           It can be at most 80 letters long.";
            return Err(SqsError::new(ErrorKind::InvalidBatchEntryId, message));
        }
        if !seen.insert(id) && repeated.is_none() {
            repeated = Some(id);
        }
    }
    match repeated {
        Some(id) => Err(SqsError::new(ErrorKind::BatchEntryIdsNotDistinct, format!("Id {id} repeated."))),
        None => Ok(()),
    }
}

/// Checks a SendMessageBatch. An error fails the request; otherwise each entry has a result, which is
/// its delay in seconds.
pub fn check_send_batch(
    batch: &SendMessageBatch,
    queue: &QueueAttributes,
) -> Result<Vec<Result<u32, SqsError>>, SqsError> {
    check_batch(Action::SendMessageBatch, batch.entries.iter().map(|entry| entry.id.as_str()))?;
    let messages: Vec<OutgoingMessage<'_>> = batch.entries.iter().map(OutgoingMessage::from).collect();
    if let Some(index) = messages.iter().position(|message| message.body.is_empty()) {
        return Err(SqsError::missing(&format!("SendMessageBatchRequestEntry.{}.MessageBody", index + 1)));
    }
    let size: usize = messages.iter().map(OutgoingMessage::size).sum();
    if size > LARGEST_MESSAGE {
        let message =
            format!("Batch requests cannot be longer than {LARGEST_MESSAGE} bytes. You have sent {size} bytes.");
        return Err(SqsError::new(ErrorKind::BatchRequestTooLong, message));
    }
    if queue.fifo {
        for message in &messages {
            // Here, unlike in SendMessage, a missing group is an invalid value.
            if message.group_id.is_none() {
                return Err(SqsError::parameter("The request must contain the parameter MessageGroupId."));
            }
            if !message.has_deduplication(queue) {
                return Err(deduplication_missing());
            }
        }
    }
    Ok(messages.iter().map(|message| message.check(queue, "cannot be validated")).collect())
}
