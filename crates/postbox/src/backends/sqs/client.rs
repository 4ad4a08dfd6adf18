//! A region of SQS: what is asked of it, one request each.

use std::time::{Duration, Instant};

use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::timeout::TimeoutConfig;
use aws_sdk_sqs::types::{
    ChangeMessageVisibilityBatchRequestEntry as ChangeEntry, MessageSystemAttributeName as SystemAttribute,
    QueueAttributeName as Attribute,
};

use super::config::{ATTEMPT_TIMEOUT, OPERATION_TIMEOUT};
use super::error::AwsError;
use super::message_format::{EncodedMessage, ReceivedMessage};
use super::send::{ORDER_IDS, is_order_id};
use super::{PURGE_COOLDOWN, queue_name};
use crate::error::Error;
use crate::mailbox::id::{ReceiptHandle, new_uuid};
use crate::runtime::clock::{Clock as _, SystemClock};

/// A region, or a server that does as one, and how to behave there.
pub(super) struct SqsClient {
    pub(super) sdk: Client,
    /// The same, with more patience: for long polls.
    long_poll_sdk: Client,
    /// In errors: `sqs://region`, and where that is if it is not AWS.
    pub(super) address: String,
    pub(super) endpoint: Option<String>,
    pub(super) config: SqsConfig,
}

#[derive(Clone, Debug)]
pub(super) struct SqsConfig {
    /// Makes queues that are not there.
    pub(super) creates: bool,
    /// Gathers concurrent operations into batches.
    pub(super) gathers: bool,
    /// The group of messages without one, on a queue that keeps order.
    pub(super) group: Option<String>,
}

impl Default for SqsConfig {
    fn default() -> Self {
        SqsConfig { creates: false, gathers: true, group: None }
    }
}

impl SqsConfig {
    pub(super) fn check(&self) -> Result<(), Error> {
        match self.group.as_ref().filter(|group| !is_order_id(group)) {
            Some(group) => Err(Error::invalid("group", format!("{group:?}"), ORDER_IDS)),
            None => Ok(()),
        }
    }
}

/// What is known of a queue.
#[derive(Clone, Debug)]
pub(super) struct QueueInfo {
    pub(super) url: String,
    pub(super) arn: Option<String>,
    /// The largest message.
    pub(super) max_message_size: usize,
    /// Whether it deduplicates by the body.
    pub(super) content_based_deduplication: bool,
    /// Where dead letters go, after so many deliveries.
    pub(super) redrive: Option<(String, u32)>,
    pub(super) since: Instant,
}

/// What SQS takes at most, in a message or in a batch.
pub(super) const MAX_MESSAGE_SIZE: usize = 1 << 20;
/// How long a request that waits for messages may take, as often as it is asked: twice.
const LONG_POLL_TIMEOUT: Duration = Duration::from_secs(35);

impl SqsClient {
    pub(super) fn new(client: Client, at: Option<String>, config: SqsConfig) -> Self {
        let region = client.config().region().map_or_else(String::new, ToString::to_string);
        let own = client.config().timeout_config().cloned().unwrap_or_else(|| TimeoutConfig::builder().build());
        let with =
            |patience: TimeoutConfig| Client::from_conf(client.config().to_builder().timeout_config(patience).build());
        let mut patience =
            own.to_builder().operation_attempt_timeout(LONG_POLL_TIMEOUT).operation_timeout(LONG_POLL_TIMEOUT * 2);
        if own.read_timeout().is_some() {
            patience = patience.read_timeout(LONG_POLL_TIMEOUT);
        }
        let waiting = with(patience.build());
        // What is never answered would keep those waiting who stand in line behind it.
        let attempt = own.operation_attempt_timeout().unwrap_or(ATTEMPT_TIMEOUT);
        let all = own.operation_timeout().unwrap_or(OPERATION_TIMEOUT.max(attempt * 3));
        let client = with(own.to_builder().operation_attempt_timeout(attempt).operation_timeout(all).build());
        SqsClient { sdk: client, long_poll_sdk: waiting, address: format!("sqs://{region}"), endpoint: at, config }
    }

    /// How the region or a queue in it is called in errors.
    pub(super) fn describe(&self, queue: Option<&str>) -> String {
        let (slash, queue) = queue.map_or(("", ""), |queue| ("/", queue));
        let at = self.endpoint.as_ref().map_or_else(String::new, |at| format!(" (at {at})"));
        format!("{}{slash}{queue}{at}", self.address)
    }

    /// How the queue at a URL is called in errors.
    fn describe_url(&self, url: &str) -> String {
        self.describe(url.rsplit('/').next())
    }

    /// Where a queue is, if it is. Another account's is asked for by that account.
    pub(super) async fn find(&self, queue: &str, account: Option<&str>) -> Result<Option<String>, AwsError> {
        if queue.len() > queue_name::MAX_LENGTH {
            return Ok(None);
        }
        let request = self.sdk.get_queue_url().queue_name(queue);
        let found = request.set_queue_owner_aws_account_id(account.map(Into::into)).send().await;
        match found.map_err(|error| AwsError::from_sdk(&self.describe(Some(queue)), error)) {
            Ok(found) => Ok(found.queue_url),
            Err(aws_error) if aws_error.is_missing() => Ok(None),
            Err(aws_error) => Err(aws_error),
        }
    }

    pub(super) async fn create(&self, queue: &str, attributes: Vec<(Attribute, String)>) -> Result<String, AwsError> {
        let mut request = self.sdk.create_queue().queue_name(queue);
        if queue.ends_with(queue_name::FIFO_SUFFIX) {
            request = request.attributes(Attribute::FifoQueue, "true");
        }
        for (attribute, value) in attributes {
            request = request.attributes(attribute, value);
        }
        let made = request.send().await.map_err(|error| AwsError::from_sdk(&self.describe(Some(queue)), error))?;
        Ok(made.queue_url.unwrap_or_default())
    }

    /// What a queue says of itself. Who may not ask knows little, and SQS decides.
    pub(super) async fn queue_info(&self, url: String) -> Result<QueueInfo, AwsError> {
        let request = self.sdk.get_queue_attributes().queue_url(&url).attribute_names(Attribute::All);
        let attributes = match request.send().await.map_err(|error| AwsError::from_sdk(&self.describe_url(&url), error))
        {
            Ok(answer) => answer.attributes.unwrap_or_default(),
            Err(aws_error) if aws_error.is_not_permitted() => Default::default(),
            Err(aws_error) => return Err(aws_error),
        };
        let policy = attributes.get(&Attribute::RedrivePolicy);
        let policy = policy.and_then(|text| serde_json::from_str::<serde_json::Value>(text).ok());
        let redrive = policy.and_then(|policy| {
            let most = &policy["maxReceiveCount"];
            let most = most.as_u64().or_else(|| most.as_str()?.parse().ok())?;
            Some((policy["deadLetterTargetArn"].as_str()?.to_string(), u32::try_from(most).ok()?))
        });
        let most = attributes.get(&Attribute::MaximumMessageSize).and_then(|text| text.parse().ok());
        Ok(QueueInfo {
            arn: attributes.get(&Attribute::QueueArn).cloned(),
            max_message_size: most.unwrap_or(MAX_MESSAGE_SIZE),
            content_based_deduplication: attributes
                .get(&Attribute::ContentBasedDeduplication)
                .is_some_and(|text| text == "true"),
            redrive,
            url,
            since: Instant::now(),
        })
    }

    /// LeaseTracker messages of a queue, and asks for info besides those that every delivery has.
    pub(super) async fn receive(
        &self,
        url: &str,
        max: usize,
        visibility: i32,
        wait: i32,
        is_fifo: bool,
        besides: &[SystemAttribute],
    ) -> Result<Vec<ReceivedMessage>, AwsError> {
        let client = if wait == 0 { &self.sdk } else { &self.long_poll_sdk };
        let mut names = vec![SystemAttribute::ApproximateReceiveCount, SystemAttribute::SentTimestamp];
        names.extend(is_fifo.then_some(SystemAttribute::MessageGroupId));
        names.extend_from_slice(besides);
        let request = client
            .receive_message()
            .queue_url(url)
            .max_number_of_messages(max.min(10) as i32)
            .visibility_timeout(visibility)
            .wait_time_seconds(wait)
            .message_attribute_names("All")
            .set_message_system_attribute_names(Some(names))
            // If the answer is lost, the same messages come again.
            .set_receive_request_attempt_id(is_fifo.then(|| new_uuid().to_string()));
        let answer = request.send().await.map_err(|error| AwsError::from_sdk(&self.describe_url(url), error))?;
        let now = SystemClock.now();
        Ok(answer.messages.unwrap_or_default().into_iter().map(|message| ReceivedMessage::new(message, now)).collect())
    }

    /// Makes messages visible again, as far as that goes: what is left over comes by itself.
    pub(super) async fn release(&self, url: &str, handles: impl IntoIterator<Item = ReceiptHandle>) {
        let handles: Vec<_> = handles.into_iter().collect();
        for part in handles.chunks(10) {
            let entries = part.iter().enumerate().map(|(at, handle)| {
                let entry = ChangeEntry::builder().id(at.to_string()).receipt_handle(handle.to_string());
                entry.visibility_timeout(0).build().expect("it has an id and a receipt")
            });
            let request = self.sdk.change_message_visibility_batch().queue_url(url);
            let _ = request.set_entries(Some(entries.collect())).send().await;
        }
    }

    /// How many messages are visible, delayed and leased: the first, and all three.
    pub(super) async fn count(&self, url: &str) -> Result<(u64, [u64; 3]), AwsError> {
        let names = [
            Attribute::ApproximateNumberOfMessages,
            Attribute::ApproximateNumberOfMessagesDelayed,
            Attribute::ApproximateNumberOfMessagesNotVisible,
        ];
        let request = self.sdk.get_queue_attributes().queue_url(url).set_attribute_names(Some(names.to_vec()));
        let answer = request.send().await.map_err(|error| AwsError::from_sdk(&self.describe_url(url), error))?;
        let attributes = answer.attributes.unwrap_or_default();
        let counts = names.map(|name| attributes.get(&name).and_then(|text| text.parse().ok()).unwrap_or(0));
        Ok((counts[0], counts))
    }

    /// Removes all messages. How many there were, as far as SQS knew. `last`: when it was done last, if that is known.
    pub(super) async fn purge(&self, url: &str, last: Option<Instant>) -> Result<u64, AwsError> {
        let (_, counts) = self.count(url).await?;
        let purged = self.sdk.purge_queue().queue_url(url).send().await;
        purged.map_err(|error| {
            let aws_error = AwsError::from_sdk(&self.describe_url(url), error);
            if !aws_error.is("PurgeQueueInProgress") {
                return aws_error;
            }
            let left = last.map(|last| PURGE_COOLDOWN.saturating_sub(last.elapsed()));
            let when = left
                .filter(|left| !left.is_zero())
                .map_or("in up to 60 s".into(), |left| format!("in {} s", left.as_secs() + 1));
            let place = self.describe_url(url);
            let message =
                format!("{place} was purged less than 60 s ago, and SQS allows no more than that; try again {when}");
            aws_error.with_message(message)
        })?;
        Ok(counts.iter().sum())
    }

    /// Sends one message that was in another queue.
    pub(super) async fn put(
        &self,
        url: &str,
        letter: EncodedMessage,
        is_fifo: bool,
        group: Option<String>,
        once: &str,
    ) -> Result<(), AwsError> {
        let mut request = self.sdk.send_message().queue_url(url).message_body(letter.body);
        request = request.set_message_attributes(Some(letter.attributes));
        if is_fifo {
            request = request.message_group_id(group.unwrap_or_else(|| once.into())).message_deduplication_id(once);
        }
        request.send().await.map_err(|error| AwsError::from_sdk(&self.describe_url(url), error))?;
        Ok(())
    }

    pub(super) async fn remove(&self, url: &str, handle: &ReceiptHandle) -> Result<(), AwsError> {
        let request = self.sdk.delete_message().queue_url(url).receipt_handle(handle.to_string());
        request.send().await.map_err(|error| AwsError::from_sdk(&self.describe_url(url), error))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use aws_sdk_sqs::Config;
    use aws_sdk_sqs::config::BehaviorVersion;

    use super::*;

    fn limits(own: TimeoutConfig) -> [(Option<Duration>, Option<Duration>, Option<Duration>); 2] {
        let config = Config::builder().behavior_version(BehaviorVersion::latest()).timeout_config(own).build();
        let client = SqsClient::new(Client::from_conf(config), None, SqsConfig::default());
        [&client.sdk, &client.long_poll_sdk].map(|client| {
            let limits = client.config().timeout_config().expect("it has limits");
            (limits.operation_attempt_timeout(), limits.operation_timeout(), limits.read_timeout())
        })
    }

    /// On a queue that keeps order, those behind a request that is never answered would wait for ever.
    #[test]
    fn no_client_waits_for_ever() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let usual = (Some(ATTEMPT_TIMEOUT), Some(OPERATION_TIMEOUT), None);
        let patient = (Some(LONG_POLL_TIMEOUT), Some(LONG_POLL_TIMEOUT * 2), None);
        assert_eq!(limits(TimeoutConfig::builder().build()), [usual, patient]);
        let own = TimeoutConfig::builder().operation_attempt_timeout(Duration::from_secs(1));
        let own = own.operation_timeout(Duration::from_secs(2)).read_timeout(Duration::from_secs(3)).build();
        let patient = (Some(LONG_POLL_TIMEOUT), Some(LONG_POLL_TIMEOUT * 2), Some(LONG_POLL_TIMEOUT));
        assert_eq!(limits(own), [(seconds(1), seconds(2), seconds(3)), patient]);
    }
}
