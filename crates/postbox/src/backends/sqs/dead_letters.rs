//! DeathRecord letters: in the queue that the redrive policy names, or in one of the mailbox's own.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_sqs::types::{MessageSystemAttributeName as SystemAttribute, QueueAttributeName as Attribute};

use super::client::QueueInfo;
use super::error::AwsError;
use super::message_format::{DeathRecord, EncodedMessage, MessageContent, ReceivedMessage, as_millis};
use super::queue::{Queue, lock};
use super::queue_name;
use super::settle::SettleGuard;
use crate::backend::{DeadLetter, Delivery, Receipt, Redrive};
use crate::error::Error;
use crate::mailbox::id::{MessageId, ReceiptHandle};
use crate::runtime::clock::{Clock as _, SystemClock};

/// For how long letters are taken out to be looked at, in seconds. They are put back when that is done.
const LOOK: i32 = 60;
/// What is asked of letters besides: when one died that SQS itself has buried, and where.
const DEAD_LETTER_ATTRIBUTES: [SystemAttribute; 2] =
    [SystemAttribute::ApproximateFirstReceiveTimestamp, SystemAttribute::DeadLetterQueueSourceArn];
/// For how long letters are kept, in seconds: as long as SQS does, which counts from when a message was first sent.
const RETENTION: u32 = 14 * 24 * 60 * 60;
/// How long to look for a letter that should be there, in seconds.
const SEARCH: i32 = 1;
/// How often to ask how far a move is.
const ASK: (Duration, Duration) = (Duration::from_millis(25), Duration::from_secs(1));

impl Queue {
    /// The queue of the dead letters, if there is one.
    pub(super) async fn dead_letter_queue(self: &Arc<Self>) -> Result<Option<Arc<QueueInfo>>, Error> {
        let info = self.info().await?;
        if let Some(dead) = lock(&self.dead_letter_info).clone() {
            return Ok(Some(dead));
        }
        let url = match &info.redrive {
            Some((arn, _)) => {
                // arn:aws:sqs:region:account:name
                let mut parts = arn.rsplit(':');
                let (queue, account) = (parts.next().unwrap_or_default(), parts.next());
                self.client.find(queue, account).await.map_err(|aws_error| aws_error.error)?
            }
            None => self.find_dead_letter_queue().await?,
        };
        match url {
            Some(url) => self.read_dead_letter_info(url).await.map(Some),
            None => Ok(None),
        }
    }

    /// The mailbox's own queue for dead letters: with a queue of another account it is there or, since it can be made only there, here.
    pub(super) async fn find_dead_letter_queue(&self) -> Result<Option<String>, Error> {
        let find = async |account| self.client.find(&self.dead, account).await.map_err(|aws_error| aws_error.error);
        match find(self.account()).await? {
            None if self.account().is_some() => find(None).await,
            found => Ok(found),
        }
    }

    async fn read_dead_letter_info(&self, url: String) -> Result<Arc<QueueInfo>, Error> {
        let dead = Arc::new(self.client.queue_info(url).await.map_err(|aws_error| aws_error.error)?);
        *lock(&self.dead_letter_info) = Some(Arc::clone(&dead));
        Ok(dead)
    }

    /// What a request to the queue of the dead letters ended with.
    fn dead_letter_error(&self, aws_error: AwsError) -> Error {
        if aws_error.is_missing() {
            *lock(&self.dead_letter_info) = None;
        }
        aws_error.error
    }

    async fn dead_letter_queue_for_write(self: &Arc<Self>) -> Result<Arc<QueueInfo>, Error> {
        if let Some(dead) = self.dead_letter_queue().await? {
            return Ok(dead);
        }
        if let Some((arn, _)) = &self.info().await?.redrive
            && arn.rsplit(':').next() != Some(&self.dead)
        {
            let reason = format!(
                "the redrive policy of queue {:?} names {arn}, and there is no such queue; create it",
                self.queue
            );
            return Err(Error::resolution(&self.describe(), reason));
        }
        if !self.client.config.creates {
            let reason = format!(
                "queue {:?} has no redrive policy, and there is no queue {:?} for its dead letters; create one of the two \
                 (max_deliveries with create(), or ?create=true)",
                self.queue, self.dead
            );
            return Err(Error::resolution(&self.describe(), reason));
        }
        let url = self.create_dead_letter_queue().await?;
        self.read_dead_letter_info(url).await
    }

    /// Makes the mailbox's own queue for dead letters.
    pub(super) async fn create_dead_letter_queue(&self) -> Result<String, Error> {
        if self.dead.len() > queue_name::MAX_LENGTH {
            let limit = format!(
                "up to {} characters where it has dead letters, whose queue would be {:?}",
                queue_name::MAX_LENGTH_WITH_DEAD_LETTERS,
                self.dead
            );
            return Err(Error::invalid("mailbox name", format!("{:?}", self.queue), limit));
        }
        let retention = (Attribute::MessageRetentionPeriod, RETENTION.to_string());
        self.client.create(&self.dead, vec![retention]).await.map_err(|aws_error| aws_error.error)
    }

    /// Whether a queue of dead letters is this mailbox's alone, and all in it can be moved or removed at once.
    async fn is_only_source(&self, dead: &QueueInfo) -> bool {
        if dead.url.rsplit('/').next() == Some(&self.dead) {
            return true;
        }
        let sources = self.client.sdk.list_dead_letter_source_queues().queue_url(&dead.url).send().await;
        let is_this = |url: &String| url.rsplit('/').next() == Some(&self.queue);
        sources.is_ok_and(|sources| sources.queue_urls.len() == 1 && sources.queue_urls.iter().all(is_this))
    }

    /// Moves a delivery there: written first, then removed here. A crash in between leaves it in both, never in none.
    pub(super) async fn dead_letter(self: &Arc<Self>, receipt: Receipt, reason: String) -> Result<(), Error> {
        let gone = || Error::ReceiptHandleExpired { id: receipt.id.clone() };
        self.leases.begin_after(&receipt.handle).await.ok_or_else(gone)?;
        let guard = SettleGuard::new(self, receipt.clone());
        let Some((delivery, group)) = self.leases.content(&receipt.handle) else { return Err(gone()) };
        self.write(&delivery, group, reason).await?;
        self.finish(guard).await
    }

    async fn write(self: &Arc<Self>, delivery: &Delivery, group: Option<String>, reason: String) -> Result<(), Error> {
        let dead = self.dead_letter_queue_for_write().await?;
        let source = self.info().await?.arn.clone();
        let letter = |reason: &str| {
            let dead = DeathRecord {
                reason: reason.to_string(),
                at: as_millis(SystemClock.wall().into()),
                enqueued_at: as_millis(delivery.enqueued_at),
                delivery_count: delivery.delivery_count,
                source: source.clone(),
            };
            EncodedMessage::new(MessageContent { dead: Some(dead), ..MessageContent::of(delivery) })
        };
        // A reason that is cut is better than a letter that cannot be written.
        let room = reason.len().saturating_sub(letter(&reason).size.saturating_sub(dead.max_message_size));
        let end = (0..=room).rev().find(|at| reason.is_char_boundary(*at)).unwrap_or(0);
        let letter = letter(&reason[..end]);
        // The same for each attempt at it, and another one when it has been back in the queue: SQS remembers it for five minutes.
        let once = format!("dead-{:.100}-{}", delivery.id.to_string(), as_millis(delivery.enqueued_at));
        self.client
            .put(&dead.url, letter, self.is_fifo, group, &once)
            .await
            .map_err(|aws_error| self.dead_letter_error(aws_error))
    }

    pub(super) async fn count_dead_letters(self: &Arc<Self>) -> Result<u64, Error> {
        let Some(dead) = self.dead_letter_queue().await? else { return Ok(0) };
        match self.client.count(&dead.url).await {
            Ok((_, counts)) => Ok(counts.iter().sum()),
            // Somebody has removed it.
            Err(aws_error) if aws_error.is_missing() => {
                *lock(&self.dead_letter_info) = None;
                Ok(0)
            }
            Err(aws_error) => Err(aws_error.error),
        }
    }

    /// Takes dead letters out, up to so many, or the one with an id. Also the receipts of others that came with it: whoever calls
    /// this puts them back.
    async fn lease_dead_letters(
        self: &Arc<Self>,
        dead: &QueueInfo,
        most: usize,
        which: Option<&MessageId>,
    ) -> Result<(Vec<ReceivedMessage>, Vec<ReceiptHandle>), Error> {
        let own = self.info().await?.arn.clone();
        let (there, _) = self.client.count(&dead.url).await.map_err(|aws_error| self.dead_letter_error(aws_error))?;
        let there = usize::try_from(there).unwrap_or(usize::MAX);
        let (mut taken, mut others) = (Vec::new(), Vec::new());
        let mut seen = HashSet::new();
        loop {
            let left = most.saturating_sub(taken.len());
            if left == 0 {
                break;
            }
            // What is said to be there is waited for; SQS does not find everything at the first look, nor knows at once how much there is.
            let wait = if seen.is_empty() || seen.len() < there { SEARCH } else { 0 };
            let many = if which.is_some() { 10 } else { left.min(10) };
            let found = self.client.receive(&dead.url, many, LOOK, wait, self.is_fifo, &DEAD_LETTER_ATTRIBUTES).await;
            let found = match found {
                Ok(found) => found,
                Err(aws_error) => {
                    others.extend(taken.iter().map(|letter: &ReceivedMessage| letter.delivery.receipt_handle.clone()));
                    self.client.release(&dead.url, others).await;
                    return Err(self.dead_letter_error(aws_error));
                }
            };
            let known = seen.len();
            for letter in found {
                let is_new = seen.insert(letter.sqs_id.clone());
                if let Some(before) =
                    taken.iter_mut().find(|before: &&mut ReceivedMessage| before.sqs_id == letter.sqs_id)
                {
                    // It has come back, and is good by its new receipt only.
                    *before = letter;
                    continue;
                }
                let is_wanted = letter.is_of(own.as_deref()) && which.is_none_or(|id| letter.delivery.id == *id);
                if is_new && is_wanted && taken.len() < most {
                    taken.push(letter);
                } else {
                    others.push(letter.delivery.receipt_handle.clone());
                }
            }
            // Nothing, or only what has come back by now.
            if seen.len() == known {
                break;
            }
        }
        Ok((taken, others))
    }

    pub(super) async fn list_dead_letters(self: &Arc<Self>, most: usize) -> Result<Vec<DeadLetter>, Error> {
        let Some(dead) = self.dead_letter_queue().await? else { return Ok(Vec::new()) };
        let limit = self.info().await?.redrive.as_ref().map(|redrive| redrive.1);
        let (letters, others) = self.lease_dead_letters(&dead, most, None).await?;
        let all = letters.iter().map(|letter| letter.delivery.receipt_handle.clone()).chain(others);
        self.client.release(&dead.url, all).await;
        Ok(letters.into_iter().map(|letter| letter.into_dead_letter(limit)).collect())
    }

    pub(super) async fn redrive(self: &Arc<Self>, which: Redrive) -> Result<u64, Error> {
        let Some(dead) = self.dead_letter_queue().await? else { return Ok(0) };
        let info = self.info().await?;
        let most = match which {
            Redrive::One(id) => {
                let taken = self.lease_dead_letters(&dead, 1, Some(&id)).await?;
                let (moved, failure) = self.move_one_by_one(&dead, &info, taken).await;
                return failure.map_or(Ok(moved), Err);
            }
            Redrive::UpTo(most) => most,
        };
        let (there, _) = self.client.count(&dead.url).await.map_err(|aws_error| self.dead_letter_error(aws_error))?;
        if usize::try_from(there).is_ok_and(|there| there > 0 && most >= there)
            && self.is_only_source(&dead).await
            && let Some(moved) = self.move_by_task(&dead, &info).await?
        {
            return Ok(moved);
        }
        // A few at a time: none waits for its turn until its lease ends, and what is behind them in their group comes.
        let mut all = 0;
        while let left @ 1.. = most.saturating_sub(all) {
            let (moved, failure) = match self.lease_dead_letters(&dead, left.min(10), None).await {
                Ok(taken) => self.move_one_by_one(&dead, &info, taken).await,
                Err(error) => (0, Some(error)),
            };
            all += usize::try_from(moved).unwrap_or(usize::MAX);
            match failure {
                Some(error) if all == 0 => return Err(error),
                None if moved > 0 => {}
                _ => break,
            }
        }
        Ok(all as u64)
    }

    /// Moves letters that were taken out back to where they came from. How many, and why no more.
    async fn move_one_by_one(
        self: &Arc<Self>,
        dead: &QueueInfo,
        info: &QueueInfo,
        (letters, mut back): (Vec<ReceivedMessage>, Vec<ReceiptHandle>),
    ) -> (u64, Option<Error>) {
        let (mut moved, mut failure) = (0, None);
        for letter in letters {
            let handle = letter.delivery.receipt_handle.clone();
            if failure.is_some() {
                back.push(handle);
                continue;
            }
            let again = EncodedMessage::new(MessageContent::of(&letter.delivery));
            let deduplication = format!("redrive-{handle}");
            let deduplication = &deduplication[..deduplication.len().min(128)];
            let sent = self.client.put(&info.url, again, self.is_fifo, letter.group.clone(), deduplication).await;
            let gone = match sent {
                Ok(()) => self.client.remove(&dead.url, &handle).await,
                Err(aws_error) => Err(aws_error),
            };
            match gone {
                Ok(()) => moved += 1,
                Err(aws_error) => {
                    failure = Some(aws_error.error);
                    back.push(handle);
                }
            }
        }
        self.client.release(&dead.url, back).await;
        (moved, failure)
    }

    /// Has SQS move all of them. `None`: this server cannot, or not from that queue.
    async fn move_by_task(&self, dead: &QueueInfo, info: &QueueInfo) -> Result<Option<u64>, Error> {
        let (Some(source), Some(destination)) = (&dead.arn, &info.arn) else { return Ok(None) };
        let client = &self.client.sdk;
        let started = client.start_message_move_task().source_arn(source).destination_arn(destination).send().await;
        match started.map_err(|error| AwsError::from_sdk(&self.describe(), error)) {
            Ok(_) => {}
            Err(aws_error) if aws_error.is_response => return Ok(None),
            Err(aws_error) => return Err(aws_error.error),
        }
        let mut pause = ASK.0;
        loop {
            let tasks = client.list_message_move_tasks().source_arn(source).send().await;
            let tasks = tasks.map_err(|error| AwsError::from_sdk(&self.describe(), error).error)?;
            let Some(task) = tasks.results.unwrap_or_default().into_iter().next() else { return Ok(Some(0)) };
            let moved = u64::try_from(task.approximate_number_of_messages_moved).unwrap_or(0);
            match task.status.as_deref() {
                Some("RUNNING" | "CANCELLING") => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(ASK.1);
                }
                Some("FAILED") => {
                    let why = task.failure_reason.unwrap_or_default();
                    return Err(Error::connection(format!(
                        "{} could not move all dead letters, only {moved}: {why}",
                        self.describe()
                    )));
                }
                _ => return Ok(Some(moved)),
            }
        }
    }

    pub(super) async fn purge_dead_letters(self: &Arc<Self>) -> Result<u64, Error> {
        let Some(dead) = self.dead_letter_queue().await? else { return Ok(0) };
        if self.is_only_source(&dead).await {
            return self.client.purge(&dead.url, None).await.map_err(|aws_error| self.dead_letter_error(aws_error));
        }
        // Letters of other queues stay.
        let mut all = 0;
        loop {
            let (letters, others) = self.lease_dead_letters(&dead, 10, None).await?;
            let mut gone = Ok(());
            let many = letters.len() as u64;
            for letter in letters {
                gone = gone.and(self.client.remove(&dead.url, &letter.delivery.receipt_handle).await);
            }
            self.client.release(&dead.url, others).await;
            gone.map_err(|aws_error| self.dead_letter_error(aws_error))?;
            all += many;
            if many == 0 {
                return Ok(all);
            }
        }
    }
}
