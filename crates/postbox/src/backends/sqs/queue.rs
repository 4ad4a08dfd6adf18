//! One queue, as all handles of a mailbox in this process share it.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use aws_sdk_sqs::types::{BatchResultErrorEntry, QueueAttributeName as Attribute};

use super::client::{QueueInfo, SqsClient};
use super::error::AwsError;
use super::lease_tracker::LeaseTracker;
use super::long_poll::LongPolls;
use super::queue_name;
use super::receive::PendingReceive;
use super::send::PendingSend;
use super::settle::PendingSettle;
use crate::error::Error;
use crate::resolver::address::{MailboxName, without_secrets};
use crate::runtime::batcher::{BatchLimits, Batcher};
use crate::runtime::clock::{Sleep, SystemClock};
use crate::runtime::io_thread;

/// What every server takes as a batch, in bytes.
pub(super) const SAFE_BATCH_BYTES: usize = 256 << 10;
/// How many entries a request has at most, by SQS's rule.
pub(super) const MAX_BATCH: usize = 10;
/// How many requests of one kind are under way at once.
const MAX_REQUESTS: usize = 16;
/// How often entries are asked for that a server failed to do.
const ATTEMPTS: u32 = 3;

pub(super) struct Queue {
    pub(super) client: Arc<SqsClient>,
    pub(super) name: MailboxName,
    /// The names of the queue and of the one for its dead letters.
    pub(super) queue: String,
    pub(super) dead: String,
    pub(super) is_fifo: bool,
    /// Where the user said that it is.
    url: Option<String>,
    info: Mutex<Option<Arc<QueueInfo>>>,
    /// The same of the queue for dead letters.
    pub(super) dead_letter_info: Mutex<Option<Arc<QueueInfo>>>,
    finding: tokio::sync::Mutex<()>,
    pub(super) max_deliveries: Mutex<Option<u32>>,
    pub(super) sends: Batcher<PendingSend>,
    pub(super) deletes: Batcher<PendingSettle>,
    pub(super) changes: Batcher<PendingSettle>,
    pub(super) receives: Batcher<PendingReceive>,
    pub(super) long_polls: LongPolls,
    pub(super) leases: LeaseTracker,
    pub(super) purged: Mutex<Option<Instant>>,
}

pub(in crate::backends) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a batch came to: the entries that are done, with what came of them, and those that failed.
pub(super) type BatchResponse = (Vec<(String, String)>, Vec<BatchResultErrorEntry>);

/// A redrive policy, as SQS writes it.
fn policy(arn: &str, most: u32) -> String {
    serde_json::json!({ "deadLetterTargetArn": arn, "maxReceiveCount": most }).to_string()
}

impl Queue {
    pub(super) fn new(client: Arc<SqsClient>, name: MailboxName, url: Option<String>) -> Result<Arc<Self>, Error> {
        let (queue, dead) = match &url {
            // Its own name is as it is, whatever the mailbox is called here.
            Some(url) => {
                let queue = url.rsplit('/').next().unwrap_or_default().to_string();
                let dead = queue_name::dead_letter_queue(&queue);
                (queue, dead)
            }
            None => queue_name::for_mailbox(&name)?,
        };
        let gathers = client.config.gathers;
        let is_fifo = queue.ends_with(queue_name::FIFO_SUFFIX);
        // Without gathering only the order keeps anything back.
        let most = if gathers { MAX_REQUESTS } else { usize::MAX };
        let limits = |gathers, requests| BatchLimits { entries: MAX_BATCH, requests, gathers };
        Ok(Arc::new(Queue {
            is_fifo,
            queue,
            dead,
            url,
            name,
            info: Mutex::default(),
            dead_letter_info: Mutex::default(),
            finding: tokio::sync::Mutex::default(),
            max_deliveries: Mutex::default(),
            // One at a time, so that messages arrive in order.
            sends: Batcher::new(limits(gathers, if is_fifo { 1 } else { most }), SAFE_BATCH_BYTES),
            deletes: Batcher::new(limits(gathers, most), SAFE_BATCH_BYTES),
            changes: Batcher::new(limits(gathers, most), SAFE_BATCH_BYTES),
            // A FIFO queue's answer may be of one group, which is for one receiver.
            receives: Batcher::new(
                limits(gathers && !is_fifo, if is_fifo { MAX_REQUESTS } else { most }),
                SAFE_BATCH_BYTES,
            ),
            long_polls: LongPolls::new(gathers, is_fifo),
            leases: LeaseTracker::default(),
            purged: Mutex::default(),
            client,
        }))
    }

    /// What a handle wants of it.
    pub(super) fn configure(&self, max_deliveries: Option<u32>) {
        let mut wanted = lock(&self.max_deliveries);
        if max_deliveries.is_some() && *wanted != max_deliveries {
            *wanted = max_deliveries;
            self.forget();
        }
    }

    pub(super) fn forget(&self) {
        *lock(&self.info) = None;
        *lock(&self.dead_letter_info) = None;
    }

    /// How the queue is called in errors.
    pub(super) fn describe(&self) -> String {
        self.client.describe(Some(&self.queue))
    }

    pub(super) fn missing(&self) -> Error {
        self.forget();
        if let Some(url) = &self.url {
            let reason = format!("there is no queue at {}; correct the URL, or create the queue", without_secrets(url));
            return Error::resolution(&self.describe(), reason);
        }
        if self.client.config.creates {
            return Error::connection(format!("{} is gone; the next use makes it again", self.describe()));
        }
        let reason = format!(
            "there is no queue {:?} in {}; create it (create(), ?create=true, or as you create other queues)",
            self.queue,
            self.client.describe(None)
        );
        Error::resolution(&self.describe(), reason)
    }

    /// What a request to this queue ended with.
    pub(super) fn error(&self, aws_error: AwsError) -> Error {
        if aws_error.is_missing() {
            return self.missing();
        }
        if aws_error.is_over_limit() {
            let limit = "so many messages of it are leased as SQS allows at once".into();
            return Error::MailboxFull { mailbox: self.name.to_string(), limit };
        }
        aws_error.error
    }

    /// Finds the queue, or makes it, and looks at it. Later it is known.
    pub(super) async fn info(self: &Arc<Self>) -> Result<Arc<QueueInfo>, Error> {
        if let Some(info) = lock(&self.info).clone() {
            return Ok(info);
        }
        // On the I/O thread, because other operations wait for the result too and this caller's future may be dropped.
        let queue = Arc::clone(self);
        io_thread::ask(async move { queue.load_info().await }).await
    }

    async fn load_info(&self) -> Result<Arc<QueueInfo>, Error> {
        let _one_at_a_time = self.finding.lock().await;
        if let Some(info) = lock(&self.info).clone() {
            return Ok(info);
        }
        let url = self.find().await?;
        match url {
            Some(url) => self.read_info(url, self.client.config.creates).await,
            None if self.client.config.creates => self.create_default().await,
            None => Err(self.missing()),
        }
    }

    /// Whose it is, if its URL says so: https://sqs.client.amazonaws.com/account/name.
    pub(super) fn account(&self) -> Option<&str> {
        let account = self.url.as_ref()?.rsplit('/').nth(1)?;
        (account.len() == 12 && account.bytes().all(|byte| byte.is_ascii_digit())).then_some(account)
    }

    /// Where it is, if it is.
    async fn find(&self) -> Result<Option<String>, Error> {
        match &self.url {
            Some(url) => Ok(Some(url.clone())),
            None => self.client.find(&self.queue, None).await.map_err(|aws_error| aws_error.error),
        }
    }

    /// Makes the queue if it is not there, and makes it as the handles want it.
    pub(super) async fn create(&self) -> Result<(), Error> {
        let _one_at_a_time = self.finding.lock().await;
        let url = self.find().await?;
        match url {
            Some(url) => self.read_info(url, true).await?,
            None => self.create_default().await?,
        };
        Ok(())
    }

    async fn create_default(&self) -> Result<Arc<QueueInfo>, Error> {
        let most = *lock(&self.max_deliveries);
        match self.make(Vec::new(), most).await {
            // Somebody else has just made it, otherwise.
            Err(error @ Error::InvalidParameter { .. }) => match self.find().await? {
                Some(url) => self.read_info(url, true).await,
                None => Err(error),
            },
            made => made,
        }
    }

    /// Makes the queue. Nothing happens if there is one like it; one with other settings is an error.
    pub(super) async fn make(
        &self,
        mut attributes: Vec<(Attribute, String)>,
        max_deliveries: Option<u32>,
    ) -> Result<Arc<QueueInfo>, Error> {
        let settings = attributes.clone();
        if let Some(most) = max_deliveries {
            attributes.push((Attribute::RedrivePolicy, self.redrive_policy(most).await?));
        }
        let made = self.client.create(&self.queue, attributes).await;
        let url =
            made.map_err(|aws_error| match aws_error.is("QueueNameExists") || aws_error.is("QueueAlreadyExists") {
                true => {
                    let limit =
                        format!("as queue {:?} has them, which exists; change that one, or delete it", self.queue);
                    Error::invalid("queue settings", format!("{settings:?}"), limit)
                }
                // SQS says which of them and why.
                false if aws_error.is_about_content() => {
                    Error::invalid("queue settings", format!("{settings:?}"), aws_error.error.to_string())
                }
                false => aws_error.error,
            })?;
        self.read_info(url, true).await
    }

    /// Removes the queue, and the one for its dead letters if that is the mailbox's own.
    pub(super) async fn delete(&self) -> Result<(), Error> {
        let own = self.find().await?;
        let dead = self.client.find(&self.dead, self.account()).await.map_err(|aws_error| aws_error.error)?;
        for url in own.into_iter().chain(dead) {
            let gone = self.client.sdk.delete_queue().queue_url(url).send().await;
            match gone.map_err(|error| AwsError::from_sdk(&self.describe(), error)) {
                Err(aws_error) if !aws_error.is_missing() => return Err(aws_error.error),
                _ => {}
            }
        }
        self.forget();
        Ok(())
    }

    /// Where dead letters go after so many deliveries; the queue for them is made.
    async fn redrive_policy(&self, most: u32) -> Result<String, Error> {
        let failed = |aws_error: AwsError| aws_error.error;
        let url = match self.find_dead_letter_queue().await? {
            Some(url) => url,
            None => self.create_dead_letter_queue().await?,
        };
        let arn = self.client.queue_info(url).await.map_err(failed)?.arn;
        let arn = arn.ok_or_else(|| {
            Error::connection(format!("{} has no ARN for {:?}", self.client.describe(None), self.dead))
        })?;
        Ok(policy(&arn, most))
    }

    /// Looks at the queue, and whether it is as the handles want it.
    async fn read_info(&self, url: String, may_change: bool) -> Result<Arc<QueueInfo>, Error> {
        let mut info = self.client.queue_info(url).await.map_err(|aws_error| self.error(aws_error))?;
        let (wanted, has) = (*lock(&self.max_deliveries), info.redrive.as_ref().map(|redrive| redrive.1));
        if let Some(most) = wanted.filter(|most| Some(*most) != has) {
            if !may_change {
                let has = match (has, &info.arn) {
                    (Some(has), _) => format!("maxReceiveCount = {has}"),
                    (None, Some(_)) => "none".into(),
                    (None, None) => "not known, since GetQueueAttributes is not permitted".into(),
                };
                let limit = format!(
                    "as the redrive policy of queue {:?} says, which is {has}; change that, or call create()",
                    self.queue
                );
                return Err(Error::invalid("max_deliveries", most, limit));
            }
            let wanted = match &info.redrive {
                Some((arn, _)) => policy(arn, most),
                None => self.redrive_policy(most).await?,
            };
            let request = self.client.sdk.set_queue_attributes().queue_url(&info.url);
            let set = request.attributes(Attribute::RedrivePolicy, wanted).send().await;
            set.map_err(|error| self.error(AwsError::from_sdk(&self.describe(), error)))?;
            info = self.client.queue_info(info.url).await.map_err(|aws_error| self.error(aws_error))?;
        }
        let info = Arc::new(info);
        self.sends.set_max_bytes(info.max_message_size.max(SAFE_BATCH_BYTES));
        *lock(&self.info) = Some(Arc::clone(&info));
        Ok(info)
    }

    /// Asks for a batch, and again for the entries that the server failed to do. `is_before` says whether an entry must not be
    /// done after another one, which came later. What is not good any more is not asked for; nor again
    /// what would then be done after something that it goes before.
    pub(super) async fn request_with_retries<J, F>(
        &self,
        entries: Vec<J>,
        check: impl Fn(&J) -> Result<(), AwsError>,
        is_before: impl Fn(&J, &J) -> bool,
        ask: impl Fn(&[J]) -> F,
    ) -> Vec<(J, Result<String, AwsError>)>
    where
        F: Future<Output = Result<BatchResponse, AwsError>>,
    {
        let mut results = Vec::with_capacity(entries.len());
        let mut parts = vec![entries];
        while let Some(mut left) = parts.pop() {
            let mut attempt = 1;
            loop {
                let mut good = Vec::with_capacity(left.len());
                for entry in left {
                    match check(&entry) {
                        Ok(()) => good.push(entry),
                        Err(aws_error) => results.push((entry, Err(aws_error))),
                    }
                }
                left = good;
                if left.is_empty() {
                    break;
                }
                let (done, failed) = match ask(&left).await {
                    Ok(answer) => answer,
                    // What is still good is asked for without the rest.
                    Err(aws_error) if aws_error.is_abandoned() => continue,
                    // One of them may be why, and the others are not to suffer for it.
                    Err(aws_error) if left.len() > 1 && aws_error.is_about_content() => {
                        parts.extend(left.into_iter().rev().map(|entry| vec![entry]));
                        break;
                    }
                    Err(aws_error) => {
                        results.extend(left.into_iter().map(|entry| (entry, Err(aws_error.clone()))));
                        break;
                    }
                };
                let mut outcomes: Vec<Option<Result<String, AwsError>>> = (0..left.len()).map(|_| None).collect();
                let mut note = |id: &str, outcome| {
                    if let Some(slot) = id.parse::<usize>().ok().and_then(|at| outcomes.get_mut(at)) {
                        *slot = Some(outcome);
                    }
                };
                for (id, value) in done {
                    note(&id, Ok(value));
                }
                for entry in failed {
                    let id = entry.id.clone();
                    note(&id, Err(AwsError::from_entry(&self.describe(), entry)));
                }
                let done: Vec<bool> = outcomes.iter().map(|outcome| matches!(outcome, Some(Ok(_)))).collect();
                let is_overtaken = |at: usize| {
                    let later = left[at + 1..].iter().zip(&done[at + 1..]);
                    later.into_iter().any(|(later, is_done)| *is_done && is_before(&left[at], later))
                };
                let overtaken: Vec<bool> = (0..left.len()).map(is_overtaken).collect();
                let mut again = Vec::new();
                for ((entry, outcome), is_overtaken) in left.into_iter().zip(outcomes).zip(overtaken) {
                    let outcome = outcome.unwrap_or_else(|| Err(AwsError::missing_entry(&self.describe())));
                    match outcome {
                        Err(aws_error) if aws_error.error.is_transient() && attempt < ATTEMPTS && !is_overtaken => {
                            again.push(entry);
                        }
                        // What is done too late was perhaps done to something else.
                        outcome => {
                            let outcome = outcome.and_then(|done| check(&entry).map(|()| done));
                            results.push((entry, outcome));
                        }
                    }
                }
                left = again;
                if !left.is_empty() {
                    Sleep::for_(SystemClock::shared(), crate::mailbox::receive::pause_after(attempt)).await;
                }
                attempt += 1;
            }
        }
        results
    }
}
