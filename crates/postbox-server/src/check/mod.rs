//! Validation that needs no look at the messages of a queue.
//!
//! AWS looks the queue up before it judges the other parameters. So these checks take the queue's
//! attributes, and a request for an unknown queue never reaches them. The store decides about
//! receipts, deduplication and limits of messages in flight.

mod batch;
mod receive;
mod send;

pub use batch::{check_batch, check_send_batch};
pub use receive::{
    ReceiveNumbers, SystemAttributeNames, check_change_visibility, check_move_task, check_move_task_list,
    check_receive, check_visibility_timeout, system_attribute_names,
};
pub use send::{LARGEST_MESSAGE, OutgoingMessage, check_send};

use crate::error::SqsError;

/// The longest group id, deduplication id or receive attempt id.
const LONGEST_ID: usize = 128;

/// Checks an id of 1 to 128 letters, digits and punctuation characters.
fn check_id(value: &str, parameter: &str) -> Result<(), SqsError> {
    if (1..=LONGEST_ID).contains(&value.len()) && value.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(());
    }
    let reason = format!("{parameter} can only include alphanumeric and punctuation characters. 1 to 128 in length.");
    Err(SqsError::invalid(value, parameter, &reason))
}

/// A parameter that this type of queue does not have.
fn wrong_queue_type(value: impl std::fmt::Display, parameter: &str) -> SqsError {
    SqsError::invalid(value, parameter, "The request include parameter that is not valid for this queue type.")
}
