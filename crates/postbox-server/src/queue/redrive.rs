//! `RedrivePolicy` and `RedriveAllowPolicy`: where dead letters go, and which queues may send them.
//!
//! Both are JSON objects in a text. They are parsed when they are set and written anew when they
//! are shown, so `maxReceiveCount` is always shown as a number. Whether the queues of a policy
//! exist is for the store to decide.

use super::address::QueueAddress;
use crate::error::SqsError;
use serde_json::{Map, Value, json};

/// The most deliveries that a policy may allow.
const MOST_RECEIVES: i64 = 1000;

/// The most source queues that a `byQueue` policy may name.
const MOST_SOURCES: usize = 10;

fn refused(text: &str, parameter: &str, reason: &str) -> SqsError {
    SqsError::invalid(text, parameter, reason)
}

fn parse_map(text: &str, parameter: &str, subject: &str) -> Result<Map<String, Value>, SqsError> {
    match serde_json::from_str(text) {
        Ok(Value::Object(map)) => Ok(map),
        _ => Err(refused(text, parameter, &format!("{subject} is not a valid JSON map."))),
    }
}

/// After how many deliveries a message goes to which queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedrivePolicy {
    /// The dead-letter queue.
    pub dead_letter_queue: QueueAddress,
    /// 1 to 1000.
    pub max_receive_count: u32,
}

impl RedrivePolicy {
    /// Reads a policy. `maxReceiveCount` may be a number or a text.
    pub fn parse(text: &str) -> Result<Self, SqsError> {
        const PARAMETER: &str = "RedrivePolicy";
        let map = parse_map(text, PARAMETER, "Redrive policy")?;
        let arn = map.get("deadLetterTargetArn").and_then(Value::as_str);
        let arn = arn.ok_or_else(|| SqsError::parameter("The required parameter 'deadLetterTargetArn' is missing"))?;
        let count = match map.get("maxReceiveCount") {
            None | Some(Value::Null) => {
                return Err(SqsError::parameter("The required parameter 'maxReceiveCount' is missing"));
            }
            Some(Value::String(text)) => text.trim().parse().ok(),
            Some(value) => value.as_i64(),
        };
        let dead_letter_queue = QueueAddress::from_arn(arn)
            .ok_or_else(|| refused(text, PARAMETER, "Invalid value for deadLetterTargetArn."))?;
        match count {
            Some(count @ 1..=MOST_RECEIVES) => Ok(RedrivePolicy { dead_letter_queue, max_receive_count: count as u32 }),
            _ => {
                let found = map["maxReceiveCount"].to_string();
                let reason = format!(
                    "Invalid value for maxReceiveCount: {}, valid values are from 1 to 1000 both inclusive.",
                    found.trim_matches('"')
                );
                Err(refused(text, PARAMETER, &reason))
            }
        }
    }

    /// The policy as SQS gives it back, where the count is a number.
    pub fn to_json(&self) -> String {
        let value =
            json!({ "deadLetterTargetArn": self.dead_letter_queue.arn(), "maxReceiveCount": self.max_receive_count });
        value.to_string()
    }

    /// Checks that `source` may have this policy: same account and region, same type, not itself.
    pub fn check_for(&self, source: &QueueAddress) -> Result<(), SqsError> {
        let target = &self.dead_letter_queue;
        let reason = if target.scope.account != source.scope.account {
            "Dead letter target owner should be same as the source."
        } else if target.scope.region != source.scope.region {
            "Dead letter target must be in the same region as the source."
        } else if target.is_fifo() != source.is_fifo() {
            "Dead-letter queue must be same type of queue as the source."
        } else {
            return Ok(());
        };
        Err(refused(&self.to_json(), "RedrivePolicy", reason))
    }

    /// The error for a policy whose dead-letter queue is not there.
    pub fn target_does_not_exist(&self) -> SqsError {
        refused(&self.to_json(), "RedrivePolicy", "Dead letter target does not exist.")
    }
}

/// Which queues may use this queue as their dead-letter queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedriveAllowPolicy {
    /// Every queue of the account and the region.
    AllowAll,
    /// No queue.
    DenyAll,
    /// The queues with these ARNs.
    ByQueue(Vec<String>),
}

impl RedriveAllowPolicy {
    /// Reads a policy.
    pub fn parse(text: &str) -> Result<Self, SqsError> {
        const PARAMETER: &str = "RedriveAllowPolicy";
        let refuse = |reason: &str| refused(text, PARAMETER, reason);
        let map = parse_map(text, PARAMETER, "Redrive allow policy")?;
        let sources = match map.get("sourceQueueArns") {
            None | Some(Value::Null) => None,
            Some(Value::Array(values)) => {
                let arns: Option<Vec<String>> = values.iter().map(|arn| arn.as_str().map(str::to_owned)).collect();
                Some(arns.ok_or_else(|| refuse("sourceQueueArns must be a list of ARNs."))?)
            }
            Some(_) => return Err(refuse("sourceQueueArns must be a list of ARNs.")),
        };
        match (map.get("redrivePermission").and_then(Value::as_str), sources) {
            (Some("allowAll"), None) => Ok(RedriveAllowPolicy::AllowAll),
            (Some("denyAll"), None) => Ok(RedriveAllowPolicy::DenyAll),
            (Some("allowAll" | "denyAll"), Some(_)) => {
                Err(refuse("sourceQueueArns can be specified only when redrivePermission is byQueue."))
            }
            (Some("byQueue"), Some(arns)) if (1..=MOST_SOURCES).contains(&arns.len()) => {
                match arns.iter().all(|arn| QueueAddress::from_arn(arn).is_some()) {
                    true => Ok(RedriveAllowPolicy::ByQueue(arns)),
                    false => Err(refuse("sourceQueueArns must be a list of ARNs.")),
                }
            }
            (Some("byQueue"), _) => Err(refuse("byQueue needs from 1 to 10 sourceQueueArns.")),
            _ => Err(refuse("redrivePermission must be one of allowAll, denyAll, byQueue.")),
        }
    }

    /// The policy as SQS gives it back.
    pub fn to_json(&self) -> String {
        let value = match self {
            RedriveAllowPolicy::AllowAll => json!({ "redrivePermission": "allowAll" }),
            RedriveAllowPolicy::DenyAll => json!({ "redrivePermission": "denyAll" }),
            RedriveAllowPolicy::ByQueue(arns) => json!({ "redrivePermission": "byQueue", "sourceQueueArns": arns }),
        };
        value.to_string()
    }

    /// True if `source` may send its dead letters to the queue that has this policy.
    pub fn allows(&self, source: &QueueAddress) -> bool {
        match self {
            RedriveAllowPolicy::AllowAll => true,
            RedriveAllowPolicy::DenyAll => false,
            RedriveAllowPolicy::ByQueue(arns) => arns.contains(&source.arn()),
        }
    }
}
