//! Handles and ARNs of message move tasks.
//!
//! A handle is the base64 of a JSON object with `taskId`, a UUID, and `sourceArn`.

use super::address::QueueAddress;
use crate::error::SqsError;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};

/// Which task, and from which queue it moves messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskHandle {
    /// A UUID.
    pub task_id: String,
    /// The ARN of the queue from which messages are moved.
    pub source_arn: String,
}

impl TaskHandle {
    /// The handle as clients have it.
    pub fn encode(&self) -> String {
        BASE64.encode(serde_json::to_vec(self).expect("two texts can be written"))
    }

    /// Reads a handle.
    pub fn decode(handle: &str) -> Result<Self, SqsError> {
        let bytes = BASE64.decode(handle).ok();
        let task = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        task.ok_or_else(|| SqsError::parameter("Value for parameter TaskHandle is invalid."))
    }
}

/// Reads the ARN that is the parameter `SourceArn` or `DestinationArn` of a request.
pub fn parse_task_arn(arn: &str, parameter: &str) -> Result<QueueAddress, SqsError> {
    if arn.split(':').count() < 6 || !arn.starts_with("arn:") {
        let format = "arn:<partition>:<service>:<region>:<account-id>:<resource-id>";
        return Err(SqsError::parameter(format!("You must use this format to specify the {parameter}: {format}")));
    }
    QueueAddress::from_arn(arn).ok_or_else(|| SqsError::resource_not_found(parameter))
}
