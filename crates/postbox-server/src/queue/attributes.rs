//! The attributes of a queue as a value.
//!
//! [`QueueAttributes::create`] and [`QueueAttributes::set`] are CreateQueue and SetQueueAttributes:
//! they check all attributes before they change one. [`QueueAttributes::first_difference`] decides
//! whether a second CreateQueue finds the queue or fails. [`QueueAttributes::show`] is
//! GetQueueAttributes.

use super::address::{QueueAddress, check_name};
use super::redrive::{RedriveAllowPolicy, RedrivePolicy};
use crate::error::{ErrorKind, SqsError};
use serde_json::Value;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Where a deduplication id must be unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeduplicationScope {
    /// In the queue.
    Queue,
    /// In each message group.
    MessageGroup,
}

/// What the throughput quota of a FIFO queue counts for. It is kept and has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FifoThroughputLimit {
    /// The queue.
    PerQueue,
    /// Each message group.
    PerMessageGroupId,
}

/// The attributes that a client can set, with AWS's defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueAttributes {
    /// True for a FIFO queue.
    pub fifo: bool,
    /// Seconds until a new message becomes visible, if its sender does not say.
    pub delay_seconds: u32,
    /// The largest message in bytes.
    pub maximum_message_size: u32,
    /// Seconds for which a message is kept.
    pub message_retention_period: u32,
    /// Seconds for which a receive waits, if the receiver does not say.
    pub receive_message_wait_time_seconds: u32,
    /// Seconds for which a received message is invisible, if the receiver does not say.
    pub visibility_timeout: u32,
    /// The policy document, as it was given.
    pub policy: Option<String>,
    /// Where dead letters go.
    pub redrive_policy: Option<RedrivePolicy>,
    /// From where dead letters may come.
    pub redrive_allow_policy: Option<RedriveAllowPolicy>,
    /// True if a message without deduplication id has the digest of its body for one.
    pub content_based_deduplication: bool,
    /// Where a deduplication id must be unique.
    pub deduplication_scope: DeduplicationScope,
    /// What the throughput quota counts for.
    pub fifo_throughput_limit: FifoThroughputLimit,
    /// The key of encryption by KMS. It is kept and has no effect.
    pub kms_master_key_id: Option<String>,
    /// Seconds for which a data key of KMS is used.
    pub kms_data_key_reuse_period_seconds: Option<u32>,
    /// True if SQS encrypts with its own keys. It is kept and has no effect.
    pub sqs_managed_sse_enabled: bool,
}

/// What GetQueueAttributes shows and only the store knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueFigures {
    /// Messages that can be received.
    pub messages: u64,
    /// Messages in flight.
    pub messages_not_visible: u64,
    /// Messages with a delay that has not ended.
    pub messages_delayed: u64,
    /// When the queue was created, in Unix seconds.
    pub created: u64,
    /// When its attributes were changed last, in Unix seconds.
    pub last_modified: u64,
}

/// The names of all attributes, with the one that stands for all.
const NAMES: [&str; 22] = [
    "All",
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesDelayed",
    "ApproximateNumberOfMessagesNotVisible",
    "ContentBasedDeduplication",
    "CreatedTimestamp",
    "DeduplicationScope",
    "DelaySeconds",
    "FifoQueue",
    "FifoThroughputLimit",
    "KmsDataKeyReusePeriodSeconds",
    "KmsMasterKeyId",
    "LastModifiedTimestamp",
    "MaximumMessageSize",
    "MessageRetentionPeriod",
    "Policy",
    "QueueArn",
    "ReceiveMessageWaitTimeSeconds",
    "RedriveAllowPolicy",
    "RedrivePolicy",
    "SqsManagedSseEnabled",
    "VisibilityTimeout",
];

const DEFAULT_KMS_REUSE: u32 = 300;

/// True if `name` is the name of a queue attribute, or `All`.
pub(crate) fn is_queue_attribute(name: &str) -> bool {
    NAMES.contains(&name)
}

impl QueueAttributes {
    /// The attributes of a new queue for which nothing was said.
    pub fn new(fifo: bool) -> Self {
        QueueAttributes {
            fifo,
            delay_seconds: 0,
            maximum_message_size: 1_048_576,
            message_retention_period: 345_600,
            receive_message_wait_time_seconds: 0,
            visibility_timeout: 30,
            policy: None,
            redrive_policy: None,
            redrive_allow_policy: None,
            content_based_deduplication: false,
            deduplication_scope: DeduplicationScope::Queue,
            fifo_throughput_limit: FifoThroughputLimit::PerQueue,
            kms_master_key_id: None,
            kms_data_key_reuse_period_seconds: None,
            sqs_managed_sse_enabled: true,
        }
    }

    /// The attributes of a queue that CreateQueue makes. The queue's name is checked too.
    pub fn create(queue: &QueueAddress, attributes: &BTreeMap<String, String>) -> Result<Self, SqsError> {
        let fifo = attributes.get("FifoQueue").map(|value| parse_bool("FifoQueue", value)).transpose()?;
        check_name(&queue.name, fifo == Some(true))?;
        if fifo == Some(false) {
            return Err(SqsError::unknown_attribute("FifoQueue"));
        }
        let mut created = QueueAttributes::new(fifo == Some(true));
        created.set(queue, attributes)?;
        Ok(created)
    }

    /// Sets attributes, or none if one of them cannot be set.
    pub fn set(&mut self, queue: &QueueAddress, attributes: &BTreeMap<String, String>) -> Result<(), SqsError> {
        let mut changed = self.clone();
        for (name, value) in attributes {
            changed.set_one(name, value)?;
        }
        changed.settle_encryption(attributes)?;
        if attributes.contains_key("RedrivePolicy")
            && let Some(policy) = &changed.redrive_policy
        {
            policy.check_for(queue)?;
        }
        *self = changed;
        Ok(())
    }

    fn set_one(&mut self, name: &str, value: &str) -> Result<(), SqsError> {
        match name {
            "ContentBasedDeduplication" | "FifoQueue" if !self.fifo => return Err(SqsError::unknown_attribute(name)),
            "DeduplicationScope" | "FifoThroughputLimit" if !self.fifo => {
                let message = format!("You can specify the {name} only when FifoQueue is set to true.");
                return Err(SqsError::new(ErrorKind::InvalidAttributeName, message));
            }
            "DelaySeconds" => self.delay_seconds = parse_number(name, value, 0..=900)?,
            "MaximumMessageSize" => self.maximum_message_size = parse_number(name, value, 1024..=1_048_576)?,
            "MessageRetentionPeriod" => self.message_retention_period = parse_number(name, value, 60..=1_209_600)?,
            "ReceiveMessageWaitTimeSeconds" => {
                self.receive_message_wait_time_seconds = parse_number(name, value, 0..=20)?;
            }
            "VisibilityTimeout" => self.visibility_timeout = parse_number(name, value, 0..=43_200)?,
            "Policy" => self.policy = parse_policy(value)?,
            "RedrivePolicy" => self.redrive_policy = parse_unless_empty(value, RedrivePolicy::parse)?,
            "RedriveAllowPolicy" => self.redrive_allow_policy = parse_unless_empty(value, RedriveAllowPolicy::parse)?,
            "KmsMasterKeyId" => self.kms_master_key_id = Some(value.to_owned()).filter(|value| !value.is_empty()),
            "KmsDataKeyReusePeriodSeconds" => {
                self.kms_data_key_reuse_period_seconds = Some(parse_number(name, value, 60..=86_400)?);
            }
            "SqsManagedSseEnabled" => self.sqs_managed_sse_enabled = parse_bool(name, value)?,
            "FifoQueue" => {
                if !parse_bool(name, value)? {
                    let reason = "Modifying queue type is not supported.";
                    let message = format!("Invalid value for the parameter {name}. Reason: {reason}");
                    return Err(SqsError::new(ErrorKind::InvalidAttributeValue, message));
                }
            }
            "ContentBasedDeduplication" => self.content_based_deduplication = parse_bool(name, value)?,
            "DeduplicationScope" => {
                self.deduplication_scope = match value {
                    "queue" => DeduplicationScope::Queue,
                    "messageGroup" => DeduplicationScope::MessageGroup,
                    _ => return Err(SqsError::attribute_value(name)),
                }
            }
            "FifoThroughputLimit" => {
                self.fifo_throughput_limit = match value {
                    "perQueue" => FifoThroughputLimit::PerQueue,
                    "perMessageGroupId" => FifoThroughputLimit::PerMessageGroupId,
                    _ => return Err(SqsError::attribute_value(name)),
                }
            }
            _ => return Err(SqsError::unknown_attribute(name)),
        }
        Ok(())
    }

    /// Encryption by KMS and by SQS exclude each other; a key of KMS turns the other off.
    fn settle_encryption(&mut self, attributes: &BTreeMap<String, String>) -> Result<(), SqsError> {
        let sets_key = attributes.get("KmsMasterKeyId").is_some_and(|key| !key.is_empty());
        let sets_managed = attributes.contains_key("SqsManagedSseEnabled") && self.sqs_managed_sse_enabled;
        if sets_managed && self.kms_master_key_id.is_some() {
            let message = "You can use one type of server-side encryption (SSE) at one time. \
                           You can either enable KMS SSE or SQS SSE.";
            return Err(SqsError::new(ErrorKind::InvalidAttributeName, message));
        }
        if sets_key {
            self.sqs_managed_sse_enabled = false;
        }
        if self.kms_master_key_id.is_none() && self.kms_data_key_reuse_period_seconds == Some(DEFAULT_KMS_REUSE) {
            self.kms_data_key_reuse_period_seconds = None;
        }
        Ok(())
    }

    /// The first of the attributes of a CreateQueue whose value this queue does not have.
    pub fn first_difference(
        &self,
        queue: &QueueAddress,
        attributes: &BTreeMap<String, String>,
    ) -> Result<Option<String>, SqsError> {
        let asked = QueueAttributes::create(queue, attributes)?.settings();
        let present = self.settings();
        let differs = |name: &&String| asked.get(name.as_str()) != present.get(name.as_str());
        Ok(attributes.keys().find(differs).cloned())
    }

    /// The attributes that `names` ask for and that have a value.
    pub fn show(
        &self,
        queue: &QueueAddress,
        figures: &QueueFigures,
        names: &[String],
    ) -> Result<BTreeMap<String, String>, SqsError> {
        if let Some(unknown) = names.iter().find(|name| !is_queue_attribute(name)) {
            return Err(SqsError::unknown_attribute(unknown));
        }
        let mut all = self.settings();
        all.extend([
            ("ApproximateNumberOfMessages", figures.messages.to_string()),
            ("ApproximateNumberOfMessagesDelayed", figures.messages_delayed.to_string()),
            ("ApproximateNumberOfMessagesNotVisible", figures.messages_not_visible.to_string()),
            ("CreatedTimestamp", figures.created.to_string()),
            ("LastModifiedTimestamp", figures.last_modified.to_string()),
            ("QueueArn", queue.arn()),
        ]);
        let asks_for_all = names.iter().any(|name| name == "All");
        let asked = all.into_iter().filter(|(name, _)| asks_for_all || names.iter().any(|asked| asked == name));
        Ok(asked.map(|(name, value)| (name.to_owned(), value)).collect())
    }

    /// The attributes that can be set and have a value, as texts.
    fn settings(&self) -> BTreeMap<&'static str, String> {
        let mut settings = BTreeMap::from([
            ("DelaySeconds", self.delay_seconds.to_string()),
            ("MaximumMessageSize", self.maximum_message_size.to_string()),
            ("MessageRetentionPeriod", self.message_retention_period.to_string()),
            ("ReceiveMessageWaitTimeSeconds", self.receive_message_wait_time_seconds.to_string()),
            ("SqsManagedSseEnabled", self.sqs_managed_sse_enabled.to_string()),
            ("VisibilityTimeout", self.visibility_timeout.to_string()),
        ]);
        if self.fifo {
            let scope = match self.deduplication_scope {
                DeduplicationScope::Queue => "queue",
                DeduplicationScope::MessageGroup => "messageGroup",
            };
            let limit = match self.fifo_throughput_limit {
                FifoThroughputLimit::PerQueue => "perQueue",
                FifoThroughputLimit::PerMessageGroupId => "perMessageGroupId",
            };
            settings.extend([
                ("FifoQueue", "true".to_owned()),
                ("ContentBasedDeduplication", self.content_based_deduplication.to_string()),
                ("DeduplicationScope", scope.to_owned()),
                ("FifoThroughputLimit", limit.to_owned()),
            ]);
        }
        let key = self.kms_master_key_id.clone();
        let default_reuse = key.as_ref().map(|_| DEFAULT_KMS_REUSE);
        let reuse = self.kms_data_key_reuse_period_seconds.or(default_reuse).map(|seconds| seconds.to_string());
        let optional = [
            ("KmsMasterKeyId", key),
            ("KmsDataKeyReusePeriodSeconds", reuse),
            ("Policy", self.policy.clone()),
            ("RedrivePolicy", self.redrive_policy.as_ref().map(RedrivePolicy::to_json)),
            ("RedriveAllowPolicy", self.redrive_allow_policy.as_ref().map(RedriveAllowPolicy::to_json)),
        ];
        settings.extend(optional.into_iter().filter_map(|(name, value)| Some((name, value?))));
        settings
    }
}

fn parse_bool(name: &str, value: &str) -> Result<bool, SqsError> {
    match value.to_ascii_lowercase().as_str() {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(SqsError::attribute_value(name)),
    }
}

fn parse_number(name: &str, value: &str, range: RangeInclusive<u32>) -> Result<u32, SqsError> {
    let number = value.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| SqsError::attribute_value(name))
}

fn parse_policy(value: &str) -> Result<Option<String>, SqsError> {
    parse_unless_empty(value, |text| match serde_json::from_str(text) {
        Ok(Value::Object(document)) if document.contains_key("Statement") => Ok(text.to_owned()),
        _ => Err(SqsError::attribute_value("Policy")),
    })
}

/// An empty text removes the attribute.
fn parse_unless_empty<T>(text: &str, parse: impl Fn(&str) -> Result<T, SqsError>) -> Result<Option<T>, SqsError> {
    if text.is_empty() { Ok(None) } else { parse(text).map(Some) }
}
