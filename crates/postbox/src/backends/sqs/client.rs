//! The client of one region of SQS: one function per request that is not batched.

use std::time::{Duration, Instant};

use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::timeout::TimeoutConfig;
use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_sqs::types::{
    ChangeMessageVisibilityBatchRequestEntry, MessageSystemAttributeName as SystemAttribute,
    QueueAttributeName as Attribute,
};

use super::config::SqsConfig;
use super::message_format::{EncodedMessage, ReceivedMessage};
use super::queue::MAX_BATCH;
use super::{PURGE_COOLDOWN, queue_name};
use crate::backends::aws::error::AwsError;
use crate::backends::aws::{ATTEMPT_TIMEOUT, OPERATION_TIMEOUT};
use crate::mailbox::id::{ReceiptHandle, new_uuid};
use crate::runtime::clock::{Clock as _, SystemClock};

/// The client of one region, or of a server that speaks SQS's protocol.
pub(super) struct SqsClient {
    pub(super) sdk: Client,
    /// The same client with longer timeouts, for long polls.
    long_poll_sdk: Client,
    /// `sqs://region`, for error messages.
    address: String,
    /// The server, if it is not AWS, for error messages.
    endpoint: Option<String>,
    pub(super) config: SqsConfig,
}

/// The attributes of a queue.
#[derive(Clone, Debug)]
pub(super) struct QueueInfo {
    pub(super) url: String,
    /// `None` if `GetQueueAttributes` is not permitted.
    pub(super) arn: Option<String>,
    pub(super) max_message_size: usize,
    pub(super) content_based_deduplication: bool,
    pub(super) redrive_policy: Option<RedrivePolicy>,
    pub(super) read_at: Instant,
}

#[derive(Clone, Debug)]
pub(super) struct RedrivePolicy {
    /// The ARN of the dead-letter queue.
    pub(super) target: String,
    pub(super) max_deliveries: u32,
}

impl RedrivePolicy {
    fn parse(text: &str) -> Option<Self> {
        let policy: serde_json::Value = serde_json::from_str(text).ok()?;
        let max = &policy["maxReceiveCount"];
        let max = max.as_u64().or_else(|| max.as_str()?.parse().ok())?;
        let target = policy["deadLetterTargetArn"].as_str()?.to_string();
        Some(RedrivePolicy { target, max_deliveries: u32::try_from(max).ok()? })
    }

    pub(super) fn to_json(&self) -> String {
        let RedrivePolicy { target, max_deliveries } = self;
        serde_json::json!({ "deadLetterTargetArn": target, "maxReceiveCount": max_deliveries }).to_string()
    }
}

/// The largest message, and the largest batch, that SQS accepts.
pub(super) const MAX_MESSAGE_SIZE: usize = 1 << 20;
/// The timeout of one attempt of a long poll. All attempts together have twice that.
const LONG_POLL_TIMEOUT: Duration = Duration::from_secs(35);

impl SqsClient {
    pub(super) fn new(sdk: Client, endpoint: Option<String>, config: SqsConfig) -> Self {
        let region = sdk.config().region().map_or_else(String::new, ToString::to_string);
        let given = sdk.config().timeout_config().cloned().unwrap_or_else(|| TimeoutConfig::builder().build());
        let with_timeouts =
            |timeouts: TimeoutConfig| Client::from_conf(sdk.config().to_builder().timeout_config(timeouts).build());
        let mut long =
            given.to_builder().operation_attempt_timeout(LONG_POLL_TIMEOUT).operation_timeout(LONG_POLL_TIMEOUT * 2);
        if given.read_timeout().is_some() {
            long = long.read_timeout(LONG_POLL_TIMEOUT);
        }
        // Without a timeout, an unanswered request would block the requests behind it for ever.
        let attempt = given.operation_attempt_timeout().unwrap_or(ATTEMPT_TIMEOUT);
        let operation = given.operation_timeout().unwrap_or(OPERATION_TIMEOUT.max(attempt * 3));
        let short = given.to_builder().operation_attempt_timeout(attempt).operation_timeout(operation);
        SqsClient {
            long_poll_sdk: with_timeouts(long.build()),
            address: format!("sqs://{region}"),
            endpoint,
            config,
            sdk: with_timeouts(short.build()),
        }
    }

    /// The region, or a queue in it, as error messages name it.
    pub(super) fn describe(&self, queue: Option<&str>) -> String {
        let (slash, queue) = queue.map_or(("", ""), |queue| ("/", queue));
        let endpoint = self.endpoint.as_ref().map_or_else(String::new, |endpoint| format!(" (at {endpoint})"));
        format!("{}{slash}{queue}{endpoint}", self.address)
    }

    /// An error of a request to the queue at a URL.
    fn error<E>(&self, url: &str, error: SdkError<E>) -> AwsError
    where
        E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
    {
        AwsError::new(&self.describe(url.rsplit('/').next()), error)
    }

    /// The URL of a queue, `None` if it does not exist. `account` is the owner, if it is another one.
    pub(super) async fn queue_url(&self, queue: &str, account: Option<&str>) -> Result<Option<String>, AwsError> {
        if queue.len() > queue_name::MAX_LENGTH {
            return Ok(None);
        }
        let request = self.sdk.get_queue_url().queue_name(queue);
        let response = request.set_queue_owner_aws_account_id(account.map(Into::into)).send().await;
        match response.map_err(|error| self.error(queue, error)) {
            Ok(response) => Ok(response.queue_url),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn create_queue(
        &self,
        queue: &str,
        attributes: impl IntoIterator<Item = (Attribute, String)>,
    ) -> Result<String, AwsError> {
        let mut request = self.sdk.create_queue().queue_name(queue);
        if queue.ends_with(queue_name::FIFO_SUFFIX) {
            request = request.attributes(Attribute::FifoQueue, "true");
        }
        for (attribute, value) in attributes {
            request = request.attributes(attribute, value);
        }
        let response = request.send().await.map_err(|error| self.error(queue, error))?;
        Ok(response.queue_url.unwrap_or_default())
    }

    /// Reads the attributes of a queue. Where that is not permitted, SQS's defaults are assumed.
    pub(super) async fn queue_info(&self, url: String) -> Result<QueueInfo, AwsError> {
        let request = self.sdk.get_queue_attributes().queue_url(&url).attribute_names(Attribute::All);
        let attributes = match request.send().await.map_err(|error| self.error(&url, error)) {
            Ok(response) => response.attributes.unwrap_or_default(),
            Err(error) if error.is_not_permitted() => Default::default(),
            Err(error) => return Err(error),
        };
        let max_message_size = attributes.get(&Attribute::MaximumMessageSize).and_then(|text| text.parse().ok());
        let deduplicates = attributes.get(&Attribute::ContentBasedDeduplication);
        Ok(QueueInfo {
            arn: attributes.get(&Attribute::QueueArn).cloned(),
            max_message_size: max_message_size.unwrap_or(MAX_MESSAGE_SIZE),
            content_based_deduplication: deduplicates.is_some_and(|text| text == "true"),
            redrive_policy: attributes.get(&Attribute::RedrivePolicy).and_then(|text| RedrivePolicy::parse(text)),
            url,
            read_at: Instant::now(),
        })
    }

    pub(super) async fn set_redrive_policy(&self, url: &str, policy: &RedrivePolicy) -> Result<(), AwsError> {
        let request = self.sdk.set_queue_attributes().queue_url(url);
        let request = request.attributes(Attribute::RedrivePolicy, policy.to_json());
        request.send().await.map(drop).map_err(|error| self.error(url, error))
    }

    pub(super) async fn delete_queue(&self, url: &str) -> Result<(), AwsError> {
        let response = self.sdk.delete_queue().queue_url(url).send().await;
        response.map(drop).map_err(|error| self.error(url, error))
    }

    /// Receives at most `max` messages. `extra` are system attributes beyond those of every delivery.
    pub(super) async fn receive(
        &self,
        url: &str,
        max: usize,
        visibility_seconds: i32,
        wait_seconds: i32,
        is_fifo: bool,
        extra: &[SystemAttribute],
    ) -> Result<Vec<ReceivedMessage>, AwsError> {
        let sdk = if wait_seconds == 0 { &self.sdk } else { &self.long_poll_sdk };
        let mut names = vec![SystemAttribute::ApproximateReceiveCount, SystemAttribute::SentTimestamp];
        names.extend(is_fifo.then_some(SystemAttribute::MessageGroupId));
        names.extend_from_slice(extra);
        let request = sdk
            .receive_message()
            .queue_url(url)
            .max_number_of_messages(max.min(MAX_BATCH) as i32)
            .visibility_timeout(visibility_seconds)
            .wait_time_seconds(wait_seconds)
            .message_attribute_names("All")
            .set_message_system_attribute_names(Some(names))
            // An attempt after a lost response receives the same messages.
            .set_receive_request_attempt_id(is_fifo.then(|| new_uuid().to_string()));
        let response = request.send().await.map_err(|error| self.error(url, error))?;
        let now = SystemClock.now();
        Ok(response
            .messages
            .unwrap_or_default()
            .into_iter()
            .map(|message| ReceivedMessage::new(message, now))
            .collect())
    }

    /// Makes messages visible again. Errors are ignored: the leases end by themselves.
    pub(super) async fn release(&self, url: &str, handles: impl IntoIterator<Item = ReceiptHandle>) {
        let handles: Vec<_> = handles.into_iter().collect();
        for batch in handles.chunks(MAX_BATCH) {
            let entries = batch.iter().enumerate().map(|(index, handle)| {
                let entry = ChangeMessageVisibilityBatchRequestEntry::builder().id(index.to_string());
                let entry = entry.receipt_handle(handle.to_string()).visibility_timeout(0);
                entry.build().expect("the entry has an id and a receipt")
            });
            let request = self.sdk.change_message_visibility_batch().queue_url(url);
            let _ = request.set_entries(Some(entries.collect())).send().await;
        }
    }

    /// How many messages are visible, delayed and in flight.
    pub(super) async fn counts(&self, url: &str) -> Result<[u64; 3], AwsError> {
        let names = [
            Attribute::ApproximateNumberOfMessages,
            Attribute::ApproximateNumberOfMessagesDelayed,
            Attribute::ApproximateNumberOfMessagesNotVisible,
        ];
        let request = self.sdk.get_queue_attributes().queue_url(url).set_attribute_names(Some(names.to_vec()));
        let response = request.send().await.map_err(|error| self.error(url, error))?;
        let attributes = response.attributes.unwrap_or_default();
        Ok(names.map(|name| attributes.get(&name).and_then(|text| text.parse().ok()).unwrap_or(0)))
    }

    /// Removes all messages, and returns SQS's count of them. `last_purge` is for the error message.
    pub(super) async fn purge(&self, url: &str, last_purge: Option<Instant>) -> Result<u64, AwsError> {
        let counts = self.counts(url).await?;
        let response = self.sdk.purge_queue().queue_url(url).send().await;
        response.map_err(|error| {
            let error = self.error(url, error);
            if !error.has_code("PurgeQueueInProgress") {
                return error;
            }
            let remaining = last_purge.map(|last| PURGE_COOLDOWN.saturating_sub(last.elapsed()));
            let when = remaining
                .filter(|remaining| !remaining.is_zero())
                .map_or("in up to 60 s".into(), |remaining| format!("in {} s", remaining.as_secs() + 1));
            let queue = self.describe(url.rsplit('/').next());
            error.with_message(format!(
                "{queue} was purged less than 60 s ago, and SQS allows no more than that; try again {when}"
            ))
        })?;
        Ok(counts.iter().sum())
    }

    /// Sends a message that comes from another queue.
    pub(super) async fn forward(
        &self,
        url: &str,
        message: EncodedMessage,
        is_fifo: bool,
        group: Option<String>,
        deduplication_id: &str,
    ) -> Result<(), AwsError> {
        let mut request = self.sdk.send_message().queue_url(url).message_body(message.body);
        request = request.set_message_attributes(Some(message.attributes));
        if is_fifo {
            let group = group.unwrap_or_else(|| deduplication_id.into());
            request = request.message_group_id(group).message_deduplication_id(deduplication_id);
        }
        request.send().await.map(drop).map_err(|error| self.error(url, error))
    }

    pub(super) async fn delete_message(&self, url: &str, handle: &ReceiptHandle) -> Result<(), AwsError> {
        let request = self.sdk.delete_message().queue_url(url).receipt_handle(handle.to_string());
        request.send().await.map(drop).map_err(|error| self.error(url, error))
    }
}

#[cfg(test)]
mod tests {
    use aws_sdk_sqs::Config;
    use aws_sdk_sqs::config::BehaviorVersion;

    use super::*;

    fn timeouts(given: TimeoutConfig) -> [(Option<Duration>, Option<Duration>, Option<Duration>); 2] {
        let config = Config::builder().behavior_version(BehaviorVersion::latest()).timeout_config(given).build();
        let client = SqsClient::new(Client::from_conf(config), None, SqsConfig::default());
        [&client.sdk, &client.long_poll_sdk].map(|sdk| {
            let timeouts = sdk.config().timeout_config().expect("the client has timeouts");
            (timeouts.operation_attempt_timeout(), timeouts.operation_timeout(), timeouts.read_timeout())
        })
    }

    #[test]
    fn every_request_has_a_timeout() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let short = (Some(ATTEMPT_TIMEOUT), Some(OPERATION_TIMEOUT), None);
        let long = (Some(LONG_POLL_TIMEOUT), Some(LONG_POLL_TIMEOUT * 2), None);
        assert_eq!(timeouts(TimeoutConfig::builder().build()), [short, long]);
        let given = TimeoutConfig::builder().operation_attempt_timeout(Duration::from_secs(1));
        let given = given.operation_timeout(Duration::from_secs(2)).read_timeout(Duration::from_secs(3)).build();
        let long = (Some(LONG_POLL_TIMEOUT), Some(LONG_POLL_TIMEOUT * 2), Some(LONG_POLL_TIMEOUT));
        assert_eq!(timeouts(given), [(seconds(1), seconds(2), seconds(3)), long]);
    }
}
