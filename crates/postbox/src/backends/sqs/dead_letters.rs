//! Dead letters: in the queue that the redrive policy names, or in one that Postbox creates.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_sqs::types::{MessageSystemAttributeName as SystemAttribute, QueueAttributeName as Attribute};

use super::client::QueueInfo;
use super::message_format::{DeadLetterRecord, EncodedMessage, MessageContent, ReceivedMessage, as_millis};
use super::queue::{MAX_BATCH, Queue};
use super::queue_name;
use super::settle::SettleGuard;
use crate::backend::{DeadLetter, Delivery, Receipt, Redrive};
use crate::backends::aws::error::AwsError;
use crate::error::Error;
use crate::mailbox::id::{MessageId, ReceiptHandle};
use crate::runtime::clock::{Clock as _, SystemClock};
use crate::runtime::lock;

/// The lease of dead letters that are listed or moved, in seconds.
const LEASE_SECONDS: i32 = 60;
/// The wait for dead letters that SQS counts and has not returned, in seconds.
const SEARCH_SECONDS: i32 = 1;
/// The retention of a dead-letter queue, in seconds. It is SQS's maximum, because SQS counts it from
/// when a message was first sent.
const RETENTION_SECONDS: u32 = 14 * 24 * 60 * 60;
/// The first and the longest pause between two requests for the progress of a move task.
const PROGRESS_PAUSE: (Duration, Duration) = (Duration::from_millis(25), Duration::from_secs(1));
/// The system attributes of dead letters beyond those of other messages.
const SYSTEM_ATTRIBUTES: [SystemAttribute; 2] =
    [SystemAttribute::ApproximateFirstReceiveTimestamp, SystemAttribute::DeadLetterQueueSourceArn];

/// Dead letters that are leased for an operation.
#[derive(Default)]
struct LeasedDeadLetters {
    messages: Vec<ReceivedMessage>,
    /// The receipts of other messages that SQS returned. The operation releases them.
    others: Vec<ReceiptHandle>,
}

impl Queue {
    /// The dead-letter queue, `None` if it does not exist.
    async fn dead_letter_queue(self: &Arc<Self>) -> Result<Option<Arc<QueueInfo>>, Error> {
        let info = self.info().await?;
        if let Some(dead_letters) = lock(&self.dead_letter_info).clone() {
            return Ok(Some(dead_letters));
        }
        let url = match &info.redrive_policy {
            Some(policy) => {
                // arn:aws:sqs:region:account:name
                let mut parts = policy.target.rsplit(':');
                let (name, account) = (parts.next().unwrap_or_default(), parts.next());
                self.client.queue_url(name, account).await?
            }
            None => self.find_dead_letter_queue().await?,
        };
        match url {
            Some(url) => self.read_dead_letter_info(url).await.map(Some),
            None => Ok(None),
        }
    }

    /// Finds the queue that Postbox creates for dead letters. If the mailbox's queue is in another
    /// account, it may be there or in this one, where Postbox can create it.
    pub(super) async fn find_dead_letter_queue(&self) -> Result<Option<String>, Error> {
        let account = self.account();
        match self.client.queue_url(&self.dead_letter_name, account).await? {
            None if account.is_some() => Ok(self.client.queue_url(&self.dead_letter_name, None).await?),
            url => Ok(url),
        }
    }

    async fn read_dead_letter_info(&self, url: String) -> Result<Arc<QueueInfo>, Error> {
        let info = Arc::new(self.client.queue_info(url).await?);
        *lock(&self.dead_letter_info) = Some(Arc::clone(&info));
        Ok(info)
    }

    /// Maps the error of a request to the dead-letter queue.
    fn dead_letter_error(&self, error: AwsError) -> Error {
        if error.is_not_found() {
            *lock(&self.dead_letter_info) = None;
        }
        error.into()
    }

    /// The dead-letter queue. It is created if that is allowed, otherwise it is an error if it does
    /// not exist.
    async fn dead_letter_queue_for_write(self: &Arc<Self>) -> Result<Arc<QueueInfo>, Error> {
        if let Some(dead_letters) = self.dead_letter_queue().await? {
            return Ok(dead_letters);
        }
        if let Some(policy) = &self.info().await?.redrive_policy
            && policy.target.rsplit(':').next() != Some(&self.dead_letter_name)
        {
            let reason = format!(
                "the redrive policy of queue {:?} names {}, and there is no such queue; create it",
                self.name, policy.target
            );
            return Err(Error::resolution(&self.describe(), reason));
        }
        if !self.client.config.create_missing {
            let reason = format!(
                "queue {:?} has no redrive policy, and there is no queue {:?} for its dead letters; create one of the two \
                 (max_deliveries with create(), or ?create=true)",
                self.name, self.dead_letter_name
            );
            return Err(Error::resolution(&self.describe(), reason));
        }
        let url = self.create_dead_letter_queue().await?;
        self.read_dead_letter_info(url).await
    }

    pub(super) async fn create_dead_letter_queue(&self) -> Result<String, Error> {
        if self.dead_letter_name.len() > queue_name::MAX_LENGTH {
            let limit = format!(
                "up to {} characters where it has dead letters, whose queue would be {:?}",
                queue_name::MAX_LENGTH_WITH_DEAD_LETTERS,
                self.dead_letter_name
            );
            return Err(Error::invalid("mailbox name", format!("{:?}", self.name), limit));
        }
        let retention = (Attribute::MessageRetentionPeriod, RETENTION_SECONDS.to_string());
        Ok(self.client.create_queue(&self.dead_letter_name, [retention]).await?)
    }

    /// Whether all messages of the dead-letter queue come from this queue.
    async fn is_only_source(&self, dead_letters: &QueueInfo) -> bool {
        let name = |url: &str| url.rsplit('/').next().map(String::from);
        if name(&dead_letters.url).as_ref() == Some(&self.dead_letter_name) {
            return true;
        }
        let sources = self.client.sdk.list_dead_letter_source_queues().queue_url(&dead_letters.url).send().await;
        sources.is_ok_and(|sources| matches!(&sources.queue_urls[..], [url] if name(url).as_ref() == Some(&self.name)))
    }

    /// Moves a delivery to the dead-letter queue: sends it there, then deletes it here. After a crash
    /// in between it is in both.
    pub(super) async fn dead_letter(self: &Arc<Self>, receipt: Receipt, reason: String) -> Result<(), Error> {
        let expired = || Error::ReceiptHandleExpired { id: receipt.id.clone() };
        self.leases.begin_when_idle(&receipt.handle).await.ok_or_else(expired)?;
        let guard = SettleGuard::new(self, receipt.clone());
        let (delivery, group) = self.leases.delivery(&receipt.handle).ok_or_else(expired)?;
        self.send_dead_letter(&delivery, group, &reason).await?;
        self.delete_delivery(guard).await
    }

    async fn send_dead_letter(
        self: &Arc<Self>,
        delivery: &Delivery,
        group: Option<String>,
        reason: &str,
    ) -> Result<(), Error> {
        let dead_letters = self.dead_letter_queue_for_write().await?;
        let source = self.info().await?.arn.clone();
        let encode = |reason: &str| {
            let record = DeadLetterRecord {
                reason: reason.to_string(),
                at: as_millis(SystemClock.wall().into()),
                enqueued_at: as_millis(delivery.enqueued_at),
                delivery_count: delivery.delivery_count,
                source: source.clone(),
            };
            EncodedMessage::new(MessageContent { dead_letter: Some(record), ..MessageContent::of(delivery) })
        };
        // The reason is cut if the message would be too large for the queue.
        let excess = encode(reason).size.saturating_sub(dead_letters.max_message_size);
        let max_len = reason.len().saturating_sub(excess);
        let end = (0..=max_len).rev().find(|index| reason.is_char_boundary(*index)).unwrap_or(0);
        let message = encode(&reason[..end]);
        // The same id in each attempt, and another one after a redrive: SQS remembers it for five minutes.
        let deduplication_id = format!("dead-{:.100}-{}", delivery.id.to_string(), as_millis(delivery.enqueued_at));
        let sent = self.client.forward(&dead_letters.url, message, self.is_fifo, group, &deduplication_id).await;
        sent.map_err(|error| self.dead_letter_error(error))
    }

    pub(super) async fn count_dead_letters(self: &Arc<Self>) -> Result<u64, Error> {
        let Some(dead_letters) = self.dead_letter_queue().await? else { return Ok(0) };
        match self.client.counts(&dead_letters.url).await {
            Ok(counts) => Ok(counts.iter().sum()),
            Err(error) if error.is_not_found() => {
                *lock(&self.dead_letter_info) = None;
                Ok(0)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Leases at most `max` dead letters of this mailbox, or the one with an id.
    async fn lease_dead_letters(
        self: &Arc<Self>,
        dead_letters: &QueueInfo,
        max: usize,
        id: Option<&MessageId>,
    ) -> Result<LeasedDeadLetters, Error> {
        let own_arn = self.info().await?.arn.clone();
        let visible = self.count_visible(dead_letters).await?;
        let mut leased = LeasedDeadLetters::default();
        let mut seen = HashSet::new();
        while leased.messages.len() < max {
            // One receive does not find all messages, and SQS's count lags behind. So the search goes
            // on while SQS counts more messages than were seen.
            let wait = if seen.is_empty() || seen.len() < visible { SEARCH_SECONDS } else { 0 };
            let count = if id.is_some() { MAX_BATCH } else { (max - leased.messages.len()).min(MAX_BATCH) };
            let found = self
                .client
                .receive(&dead_letters.url, count, LEASE_SECONDS, wait, self.is_fifo, &SYSTEM_ATTRIBUTES)
                .await;
            let found = match found {
                Ok(found) => found,
                Err(error) => {
                    self.release_dead_letters(dead_letters, leased).await;
                    return Err(self.dead_letter_error(error));
                }
            };
            let seen_before = seen.len();
            for message in found {
                let is_new = seen.insert(message.sqs_id.clone());
                let mut messages = leased.messages.iter_mut();
                if let Some(earlier) = messages.find(|earlier| earlier.sqs_id == message.sqs_id) {
                    // Its lease has ended meanwhile. Only the new receipt is valid.
                    *earlier = message;
                    continue;
                }
                let is_wanted = message.is_from(own_arn.as_deref()) && id.is_none_or(|id| message.delivery.id == *id);
                if is_new && is_wanted && leased.messages.len() < max {
                    leased.messages.push(message);
                } else {
                    leased.others.push(message.delivery.receipt_handle);
                }
            }
            if seen.len() == seen_before {
                break;
            }
        }
        Ok(leased)
    }

    async fn count_visible(&self, dead_letters: &QueueInfo) -> Result<usize, Error> {
        let counts = self.client.counts(&dead_letters.url).await;
        let [visible, ..] = counts.map_err(|error| self.dead_letter_error(error))?;
        Ok(usize::try_from(visible).unwrap_or(usize::MAX))
    }

    async fn release_dead_letters(&self, dead_letters: &QueueInfo, leased: LeasedDeadLetters) {
        let handles = leased.messages.into_iter().map(|message| message.delivery.receipt_handle);
        self.client.release(&dead_letters.url, handles.chain(leased.others)).await;
    }

    pub(super) async fn list_dead_letters(self: &Arc<Self>, max: usize) -> Result<Vec<DeadLetter>, Error> {
        let Some(dead_letters) = self.dead_letter_queue().await? else { return Ok(Vec::new()) };
        let max_deliveries = self.info().await?.redrive_policy.as_ref().map(|policy| policy.max_deliveries);
        let LeasedDeadLetters { messages, others } = self.lease_dead_letters(&dead_letters, max, None).await?;
        let handles = messages.iter().map(|message| message.delivery.receipt_handle.clone()).chain(others);
        self.client.release(&dead_letters.url, handles).await;
        Ok(messages.into_iter().map(|message| message.into_dead_letter(max_deliveries)).collect())
    }

    pub(super) async fn redrive(self: &Arc<Self>, which: Redrive) -> Result<u64, Error> {
        let Some(dead_letters) = self.dead_letter_queue().await? else { return Ok(0) };
        let info = self.info().await?;
        let max = match which {
            Redrive::One(id) => {
                let leased = self.lease_dead_letters(&dead_letters, 1, Some(&id)).await?;
                let (moved, failure) = self.move_one_by_one(&dead_letters, &info, leased).await;
                return failure.map_or(Ok(moved), Err);
            }
            Redrive::UpTo(max) => max,
        };
        let visible = self.count_visible(&dead_letters).await?;
        if visible > 0
            && max >= visible
            && self.is_only_source(&dead_letters).await
            && let Some(moved) = self.move_by_task(&dead_letters, &info).await?
        {
            return Ok(moved);
        }
        // In small batches, so that no lease ends before its message is moved. On a FIFO queue the
        // next messages of a group become visible only then.
        let mut total = 0;
        while let left @ 1.. = max.saturating_sub(total) {
            let (moved, failure) = match self.lease_dead_letters(&dead_letters, left.min(MAX_BATCH), None).await {
                Ok(leased) => self.move_one_by_one(&dead_letters, &info, leased).await,
                Err(error) => (0, Some(error)),
            };
            total += usize::try_from(moved).unwrap_or(usize::MAX);
            match failure {
                Some(error) if total == 0 => return Err(error),
                None if moved > 0 => {}
                _ => break,
            }
        }
        Ok(total as u64)
    }

    /// Moves leased dead letters back to the mailbox's queue. Returns the number of moved messages,
    /// and the error that ended the move.
    async fn move_one_by_one(
        self: &Arc<Self>,
        dead_letters: &QueueInfo,
        info: &QueueInfo,
        leased: LeasedDeadLetters,
    ) -> (u64, Option<Error>) {
        let (mut moved, mut failure) = (0, None);
        let mut unmoved = leased.others;
        for message in leased.messages {
            let handle = message.delivery.receipt_handle.clone();
            if failure.is_some() {
                unmoved.push(handle);
                continue;
            }
            let encoded = EncodedMessage::new(MessageContent::of(&message.delivery));
            let deduplication_id = format!("redrive-{handle}");
            let deduplication_id = &deduplication_id[..deduplication_id.len().min(128)];
            let sent = self.client.forward(&info.url, encoded, self.is_fifo, message.group, deduplication_id).await;
            let deleted = match sent {
                Ok(()) => self.client.delete_message(&dead_letters.url, &handle).await,
                Err(error) => Err(error),
            };
            match deleted {
                Ok(()) => moved += 1,
                Err(error) => {
                    failure = Some(error.into());
                    unmoved.push(handle);
                }
            }
        }
        self.client.release(&dead_letters.url, unmoved).await;
        (moved, failure)
    }

    /// Has SQS move all dead letters. `None` if the server refuses that.
    async fn move_by_task(&self, dead_letters: &QueueInfo, info: &QueueInfo) -> Result<Option<u64>, Error> {
        let (Some(source), Some(destination)) = (&dead_letters.arn, &info.arn) else { return Ok(None) };
        let sdk = &self.client.sdk;
        let started = sdk.start_message_move_task().source_arn(source).destination_arn(destination).send().await;
        match started.map_err(|error| AwsError::new(&self.describe(), error)) {
            Ok(_) => {}
            Err(error) if error.has_response() => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        let mut pause = PROGRESS_PAUSE.0;
        loop {
            let tasks = sdk.list_message_move_tasks().source_arn(source).send().await;
            let tasks = tasks.map_err(|error| AwsError::new(&self.describe(), error))?;
            let Some(task) = tasks.results.unwrap_or_default().into_iter().next() else { return Ok(Some(0)) };
            let moved = u64::try_from(task.approximate_number_of_messages_moved).unwrap_or(0);
            match task.status.as_deref() {
                Some("RUNNING" | "CANCELLING") => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PROGRESS_PAUSE.1);
                }
                Some("FAILED") => {
                    let reason = task.failure_reason.unwrap_or_default();
                    return Err(Error::connection(format!(
                        "{} could not move all dead letters, only {moved}: {reason}",
                        self.describe()
                    )));
                }
                _ => return Ok(Some(moved)),
            }
        }
    }

    pub(super) async fn purge_dead_letters(self: &Arc<Self>) -> Result<u64, Error> {
        let Some(dead_letters) = self.dead_letter_queue().await? else { return Ok(0) };
        if self.is_only_source(&dead_letters).await {
            let purged = self.client.purge(&dead_letters.url, None).await;
            return purged.map_err(|error| self.dead_letter_error(error));
        }
        // The queue has dead letters of other queues, so those of this one are deleted one by one.
        let mut total = 0;
        loop {
            let LeasedDeadLetters { messages, others } =
                self.lease_dead_letters(&dead_letters, MAX_BATCH, None).await?;
            if messages.is_empty() {
                self.client.release(&dead_letters.url, others).await;
                return Ok(total);
            }
            total += messages.len() as u64;
            let mut deleted = Ok(());
            for message in messages {
                let handle = &message.delivery.receipt_handle;
                deleted = deleted.and(self.client.delete_message(&dead_letters.url, handle).await);
            }
            self.client.release(&dead_letters.url, others).await;
            deleted.map_err(|error| self.dead_letter_error(error))?;
        }
    }
}
