//! Checks of requests that receive messages, change their visibility or move them.
//!
//! A value out of its range is refused and never corrected.

use super::{check_id, wrong_queue_type};
use crate::error::SqsError;
use crate::queue::{QueueAttributes, is_queue_attribute};
use crate::wire::request::{ReceiveMessage, StartMessageMoveTask};
use std::collections::BTreeSet;

/// The longest visibility timeout in seconds.
const LONGEST_VISIBILITY: i64 = 43_200;

/// The names of the attributes that the system gives to messages.
const SYSTEM_ATTRIBUTES: [&str; 9] = [
    "AWSTraceHeader",
    "ApproximateFirstReceiveTimestamp",
    "ApproximateReceiveCount",
    "DeadLetterQueueSourceArn",
    "MessageDeduplicationId",
    "MessageGroupId",
    "SenderId",
    "SentTimestamp",
    "SequenceNumber",
];

/// The numbers of a ReceiveMessage, with the queue's own where the request has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveNumbers {
    /// 1 to 10.
    pub max_messages: u32,
    /// In seconds.
    pub wait_time: u32,
    /// In seconds.
    pub visibility_timeout: u32,
}

/// Checks a ReceiveMessage from a queue with these attributes.
pub fn check_receive(request: &ReceiveMessage, queue: &QueueAttributes) -> Result<ReceiveNumbers, SqsError> {
    if let Some(count) = request.max_number_of_messages.filter(|count| !(1..=10).contains(count)) {
        return Err(SqsError::invalid(count, "MaxNumberOfMessages", "Must be between 1 and 10, if provided."));
    }
    if let Some(seconds) = request.wait_time_seconds.filter(|seconds| !(0..=20).contains(seconds)) {
        return Err(SqsError::invalid(seconds, "WaitTimeSeconds", "Must be >= 0 and <= 20, if provided."));
    }
    if let Some(seconds) = request.visibility_timeout.filter(|seconds| !(0..=LONGEST_VISIBILITY).contains(seconds)) {
        return Err(SqsError::invalid(seconds, "VisibilityTimeout", "Must be >= 0 and <= 43200, if provided."));
    }
    match request.receive_request_attempt_id.as_deref() {
        Some(id) if !queue.fifo => return Err(wrong_queue_type(id, "ReceiveRequestAttemptId")),
        Some(id) => check_id(id, "ReceiveRequestAttemptId")?,
        None => (),
    }
    let is_known = |name: &&String| SYSTEM_ATTRIBUTES.contains(&name.as_str()) || is_queue_attribute(name);
    let mut names = request.attribute_names.iter().chain(&request.message_system_attribute_names);
    if let Some(name) = names.find(|name| !is_known(name)) {
        return Err(SqsError::unknown_attribute(name));
    }
    let or = |value: Option<i64>, default: u32| value.map_or(default, |value| value as u32);
    Ok(ReceiveNumbers {
        max_messages: or(request.max_number_of_messages, 1),
        wait_time: or(request.wait_time_seconds, queue.receive_message_wait_time_seconds),
        visibility_timeout: or(request.visibility_timeout, queue.visibility_timeout),
    })
}

/// Which system attributes a receiver asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SystemAttributeNames {
    all: bool,
    names: BTreeSet<String>,
}

impl SystemAttributeNames {
    /// True if the receiver asks for the system attribute `name`.
    pub fn matches(&self, name: &str) -> bool {
        self.all || self.names.contains(name)
    }
}

/// The system attributes that a receiver asks for, by the new and the old parameter.
///
/// The JSON protocol unites both. The query protocol takes `AttributeName`, if it is there.
pub fn system_attribute_names(request: &ReceiveMessage, is_query: bool) -> SystemAttributeNames {
    let old = &request.attribute_names;
    let new = if is_query && !old.is_empty() { &[][..] } else { &request.message_system_attribute_names };
    let mut asked = SystemAttributeNames::default();
    for name in old.iter().chain(new) {
        asked.all |= name == "All";
        asked.names.insert(name.clone());
    }
    asked
}

/// Checks the visibility timeout of a ChangeMessageVisibility, and of an entry of its batch.
pub fn check_visibility_timeout(seconds: i64) -> Result<u32, SqsError> {
    if (0..=LONGEST_VISIBILITY).contains(&seconds) {
        return Ok(seconds as u32);
    }
    let reason = "VisibilityTimeout must be an integer between 0 and 43200.";
    Err(SqsError::invalid(seconds, "VisibilityTimeout", reason))
}

/// Checks the visibility timeout of a ChangeMessageVisibility, which must have one.
pub fn check_change_visibility(seconds: Option<i64>) -> Result<u32, SqsError> {
    check_visibility_timeout(seconds.ok_or_else(|| SqsError::missing("VisibilityTimeout"))?)
}

/// Checks the rate of a StartMessageMoveTask.
pub fn check_move_task(request: &StartMessageMoveTask) -> Result<(), SqsError> {
    match request.max_number_of_messages_per_second {
        Some(rate) if !(1..=500).contains(&rate) => {
            let parameter = "MaxNumberOfMessagesPerSecond";
            let reason = format!("{parameter} must be an integer between 1 and 500.");
            Err(SqsError::invalid(rate, parameter, &reason))
        }
        _ => Ok(()),
    }
}

/// The limit of a ListMessageMoveTasks: 1 if it says none, 10 at most.
pub fn check_move_task_list(max_results: Option<i64>) -> Result<usize, SqsError> {
    match max_results {
        None => Ok(1),
        Some(count @ 1..=10) => Ok(count as usize),
        Some(count) => Err(SqsError::invalid(count, "MaxResults", "MaxResults must be an integer between 1 and 10.")),
    }
}
