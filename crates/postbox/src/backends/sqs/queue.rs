//! One queue, which all handles of a mailbox in this process share.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_sqs::types::{BatchResultErrorEntry, QueueAttributeName as Attribute};

use super::client::{QueueInfo, RedrivePolicy, SqsClient};
use super::lease_tracker::LeaseTracker;
use super::long_poll::LongPolls;
use super::queue_name;
use super::receive::PendingReceive;
use super::send::PendingSend;
use super::settle::PendingSettle;
use crate::backends::aws::error::AwsError;
use crate::error::Error;
use crate::mailbox::receive::pause_after;
use crate::resolver::address::{MailboxName, without_secrets};
use crate::runtime::batcher::{BatchLimits, Batcher};
use crate::runtime::clock::{Sleep, SystemClock};
use crate::runtime::io_thread;
use crate::runtime::lock;

/// The size of a batch that every server accepts.
pub(super) const SAFE_BATCH_BYTES: usize = 256 << 10;
/// The most entries of one request, and the most messages of one receive.
pub(super) const MAX_BATCH: usize = 10;
/// The most requests of one kind in flight.
const MAX_REQUESTS: usize = 16;
/// How often an entry is sent that fails on the server's side.
const MAX_ATTEMPTS: u32 = 3;

pub(super) struct Queue {
    pub(super) client: Arc<SqsClient>,
    mailbox: MailboxName,
    pub(super) name: String,
    /// The dead-letter queue that Postbox creates. The redrive policy may name another one.
    pub(super) dead_letter_name: String,
    pub(super) is_fifo: bool,
    given_url: Option<String>,
    info: Mutex<Option<Arc<QueueInfo>>>,
    pub(super) dead_letter_info: Mutex<Option<Arc<QueueInfo>>>,
    /// Held while the queue is looked up or created.
    lookup: tokio::sync::Mutex<()>,
    /// What the handles of the mailbox want the redrive policy to say.
    max_deliveries: Mutex<Option<u32>>,
    last_purge: Mutex<Option<Instant>>,
    pub(super) sends: Batcher<PendingSend>,
    pub(super) receives: Batcher<PendingReceive>,
    pub(super) deletes: Batcher<PendingSettle>,
    pub(super) visibility_changes: Batcher<PendingSettle>,
    pub(super) long_polls: LongPolls,
    pub(super) leases: LeaseTracker,
}

/// The response to a batch. Each entry has its index in the request as its id.
pub(super) struct BatchResponse {
    /// The ids of the entries that succeeded. Those of a send have SQS's id of the message, too.
    succeeded: Vec<(String, String)>,
    failed: Vec<BatchResultErrorEntry>,
}

/// A request that is being sent.
pub(super) type BatchRequest<'a> = Pin<Box<dyn Future<Output = Result<BatchResponse, AwsError>> + Send + 'a>>;

impl BatchResponse {
    pub(super) fn new(
        succeeded: impl IntoIterator<Item = (String, String)>,
        failed: Vec<BatchResultErrorEntry>,
    ) -> Self {
        BatchResponse { succeeded: succeeded.into_iter().collect(), failed }
    }

    /// The response to a request with one entry, which succeeded.
    pub(super) fn one(value: String) -> Self {
        Self::new([("0".into(), value)], Vec::new())
    }
}

impl Queue {
    pub(super) fn new(
        client: Arc<SqsClient>,
        mailbox: MailboxName,
        given_url: Option<String>,
    ) -> Result<Arc<Self>, Error> {
        let name = match &given_url {
            Some(url) => url.rsplit('/').next().unwrap_or_default().to_string(),
            None => queue_name::of_mailbox(&mailbox)?,
        };
        let is_fifo = name.ends_with(queue_name::FIFO_SUFFIX);
        let gathers = client.config.gather;
        let requests = if gathers { MAX_REQUESTS } else { usize::MAX };
        let limits = |gathers, requests| BatchLimits { entries: MAX_BATCH, requests, gathers };
        Ok(Arc::new(Queue {
            dead_letter_name: queue_name::dead_letter_queue(&name),
            // On a FIFO queue one send request at a time, so that messages arrive in order.
            sends: Batcher::new(limits(gathers, if is_fifo { 1 } else { requests }), SAFE_BATCH_BYTES),
            // A FIFO queue may return messages of one group, which must go to one receiver.
            receives: Batcher::new(
                limits(gathers && !is_fifo, if is_fifo { MAX_REQUESTS } else { requests }),
                SAFE_BATCH_BYTES,
            ),
            deletes: Batcher::new(limits(gathers, requests), SAFE_BATCH_BYTES),
            visibility_changes: Batcher::new(limits(gathers, requests), SAFE_BATCH_BYTES),
            long_polls: LongPolls::new(gathers, is_fifo),
            leases: LeaseTracker::default(),
            info: Mutex::default(),
            dead_letter_info: Mutex::default(),
            lookup: tokio::sync::Mutex::default(),
            max_deliveries: Mutex::default(),
            last_purge: Mutex::default(),
            client,
            mailbox,
            name,
            is_fifo,
            given_url,
        }))
    }

    pub(super) fn set_max_deliveries(&self, wanted: Option<u32>) {
        let mut max_deliveries = lock(&self.max_deliveries);
        if wanted.is_some() && *max_deliveries != wanted {
            *max_deliveries = wanted;
            self.forget_info();
        }
    }

    /// Has the next operation look the queue up again.
    pub(super) fn forget_info(&self) {
        *lock(&self.info) = None;
        *lock(&self.dead_letter_info) = None;
    }

    /// The queue as error messages name it.
    pub(super) fn describe(&self) -> String {
        self.client.describe(Some(&self.name))
    }

    fn not_found(&self) -> Error {
        self.forget_info();
        if let Some(url) = &self.given_url {
            let reason = format!("there is no queue at {}; correct the URL, or create the queue", without_secrets(url));
            return Error::resolution(&self.describe(), reason);
        }
        if self.client.config.create_missing {
            return Error::connection(format!("{} was deleted; the next operation creates it again", self.describe()));
        }
        let reason = format!(
            "there is no queue {:?} in {}; create it (create(), ?create=true, or as you create other queues)",
            self.name,
            self.client.describe(None)
        );
        Error::resolution(&self.describe(), reason)
    }

    /// Maps the error of a request to this queue.
    pub(super) fn error(&self, error: AwsError) -> Error {
        if error.is_not_found() {
            return self.not_found();
        }
        if error.is_over_limit() {
            let limit = "SQS allows no more messages in flight".into();
            return Error::MailboxFull { mailbox: self.mailbox.to_string(), limit };
        }
        error.into()
    }

    /// The attributes of the queue. The first call looks the queue up, and creates it if the
    /// configuration says so.
    pub(super) async fn info(self: &Arc<Self>) -> Result<Arc<QueueInfo>, Error> {
        if let Some(info) = lock(&self.info).clone() {
            return Ok(info);
        }
        // As a task of the I/O thread: the look-up goes on for other operations if this caller's
        // future is dropped.
        let queue = Arc::clone(self);
        io_thread::ask(async move { queue.look_up().await }).await
    }

    async fn look_up(&self) -> Result<Arc<QueueInfo>, Error> {
        let _guard = self.lookup.lock().await;
        if let Some(info) = lock(&self.info).clone() {
            return Ok(info);
        }
        let creates = self.client.config.create_missing;
        match self.find_url().await? {
            Some(url) => self.read_info(url, creates).await,
            None if creates => self.create_default().await,
            None => Err(self.not_found()),
        }
    }

    /// The account in a given URL, such as `https://sqs.region.amazonaws.com/account/name`.
    pub(super) fn account(&self) -> Option<&str> {
        let account = self.given_url.as_ref()?.rsplit('/').nth(1)?;
        (account.len() == 12 && account.bytes().all(|byte| byte.is_ascii_digit())).then_some(account)
    }

    async fn find_url(&self) -> Result<Option<String>, Error> {
        match &self.given_url {
            Some(url) => Ok(Some(url.clone())),
            None => Ok(self.client.queue_url(&self.name, None).await?),
        }
    }

    /// Creates the queue if it does not exist, and sets its redrive policy.
    pub(super) async fn create(&self) -> Result<(), Error> {
        let _guard = self.lookup.lock().await;
        match self.find_url().await? {
            Some(url) => self.read_info(url, true).await?,
            None => self.create_default().await?,
        };
        Ok(())
    }

    async fn create_default(&self) -> Result<Arc<QueueInfo>, Error> {
        let max_deliveries = *lock(&self.max_deliveries);
        match self.create_with(Vec::new(), max_deliveries).await {
            // Another program may have created it meanwhile.
            Err(error @ Error::InvalidParameter { .. }) => match self.find_url().await? {
                Some(url) => self.read_info(url, true).await,
                None => Err(error),
            },
            result => result,
        }
    }

    /// Creates the queue. It is an error if it exists with other attributes.
    pub(super) async fn create_with(
        &self,
        attributes: Vec<(Attribute, String)>,
        max_deliveries: Option<u32>,
    ) -> Result<Arc<QueueInfo>, Error> {
        let invalid = |limit| Error::invalid("queue settings", format!("{attributes:?}"), limit);
        let policy = match max_deliveries {
            Some(max) => Some((Attribute::RedrivePolicy, self.new_redrive_policy(max).await?.to_json())),
            None => None,
        };
        let created = self.client.create_queue(&self.name, attributes.iter().cloned().chain(policy)).await;
        let url = created.map_err(|error| {
            if error.has_code("QueueNameExists") || error.has_code("QueueAlreadyExists") {
                return invalid(format!("those of queue {:?}, which exists; change that one, or delete it", self.name));
            }
            match error.is_about_content() {
                true => invalid(Error::from(error).to_string()),
                false => error.into(),
            }
        })?;
        self.read_info(url, true).await
    }

    /// Deletes the queue, and the dead-letter queue that Postbox created.
    pub(super) async fn delete(&self) -> Result<(), Error> {
        let url = self.find_url().await?;
        let dead_letters = self.client.queue_url(&self.dead_letter_name, self.account()).await?;
        for url in url.into_iter().chain(dead_letters) {
            match self.client.delete_queue(&url).await {
                Err(error) if !error.is_not_found() => return Err(error.into()),
                _ => {}
            }
        }
        self.forget_info();
        Ok(())
    }

    /// A redrive policy to the mailbox's own dead-letter queue, which is created if it does not exist.
    async fn new_redrive_policy(&self, max_deliveries: u32) -> Result<RedrivePolicy, Error> {
        let url = match self.find_dead_letter_queue().await? {
            Some(url) => url,
            None => self.create_dead_letter_queue().await?,
        };
        let Some(target) = self.client.queue_info(url).await?.arn else {
            let address = self.client.describe(None);
            return Err(Error::connection(format!("{address} has no ARN for {:?}", self.dead_letter_name)));
        };
        Ok(RedrivePolicy { target, max_deliveries })
    }

    /// Reads the attributes of the queue. If the redrive policy is not what the handles want, it is
    /// changed or, unless `may_change`, an error.
    async fn read_info(&self, url: String, may_change: bool) -> Result<Arc<QueueInfo>, Error> {
        let mut info = self.client.queue_info(url).await.map_err(|error| self.error(error))?;
        let current = info.redrive_policy.as_ref().map(|policy| policy.max_deliveries);
        let wanted = *lock(&self.max_deliveries);
        if let Some(max_deliveries) = wanted.filter(|_| wanted != current) {
            if !may_change {
                let current = match (current, &info.arn) {
                    (Some(current), _) => format!("maxReceiveCount = {current}"),
                    (None, Some(_)) => "none".into(),
                    (None, None) => "not known, since GetQueueAttributes is not permitted".into(),
                };
                let limit = format!(
                    "as the redrive policy of queue {:?} says, which is {current}; change that, or call create()",
                    self.name
                );
                return Err(Error::invalid("max_deliveries", max_deliveries, limit));
            }
            let policy = match info.redrive_policy {
                Some(policy) => RedrivePolicy { max_deliveries, ..policy },
                None => self.new_redrive_policy(max_deliveries).await?,
            };
            self.client.set_redrive_policy(&info.url, &policy).await.map_err(|error| self.error(error))?;
            info = self.client.queue_info(info.url).await.map_err(|error| self.error(error))?;
        }
        let info = Arc::new(info);
        self.sends.set_max_bytes(info.max_message_size.max(SAFE_BATCH_BYTES));
        *lock(&self.info) = Some(Arc::clone(&info));
        Ok(info)
    }

    /// How many messages are visible, delayed and in flight.
    pub(super) async fn counts(self: &Arc<Self>) -> Result<[u64; 3], Error> {
        let info = self.info().await?;
        self.client.counts(&info.url).await.map_err(|error| self.error(error))
    }

    pub(super) async fn purge(self: &Arc<Self>) -> Result<u64, Error> {
        let info = self.info().await?;
        let last_purge = *lock(&self.last_purge);
        let purged = self.client.purge(&info.url, last_purge).await.map_err(|error| self.error(error))?;
        *lock(&self.last_purge) = Some(Instant::now());
        Ok(purged)
    }

    /// Sends a batch request, and sends entries again that failed on the server's side.
    ///
    /// `check` says whether an entry may still be sent. `must_precede` says whether its first
    /// argument must not be executed after the second: such an entry is not sent again when the
    /// second one has succeeded.
    pub(super) async fn request_with_retries<E, F>(
        &self,
        entries: Vec<E>,
        check: impl Fn(&E) -> Result<(), AwsError>,
        must_precede: impl Fn(&E, &E) -> bool,
        request: impl Fn(&[E]) -> F,
    ) -> Vec<(E, Result<String, AwsError>)>
    where
        F: Future<Output = Result<BatchResponse, AwsError>>,
    {
        let mut results = Vec::with_capacity(entries.len());
        let mut batches = vec![entries];
        while let Some(mut batch) = batches.pop() {
            let mut attempt = 1;
            loop {
                let mut valid = Vec::with_capacity(batch.len());
                for entry in batch {
                    match check(&entry) {
                        Ok(()) => valid.push(entry),
                        Err(error) => results.push((entry, Err(error))),
                    }
                }
                if valid.is_empty() {
                    break;
                }
                let response = match request(&valid).await {
                    Ok(response) => response,
                    // The lease of one entry ended. `check` drops that entry, and the others are
                    // sent again.
                    Err(error) if error.is_abandoned() => {
                        batch = valid;
                        continue;
                    }
                    // One entry may be the cause, so each is sent alone.
                    Err(error) if valid.len() > 1 && error.is_about_content() => {
                        batches.extend(valid.into_iter().rev().map(|entry| vec![entry]));
                        break;
                    }
                    Err(error) => {
                        results.extend(valid.into_iter().map(|entry| (entry, Err(error.clone()))));
                        break;
                    }
                };
                let outcomes = self.outcomes(response, valid.len());
                let is_overtaken = |index: usize| {
                    let mut later = valid.iter().zip(&outcomes).skip(index + 1);
                    later.any(|(later, outcome)| outcome.is_ok() && must_precede(&valid[index], later))
                };
                let is_retried = |index: usize| {
                    let is_transient = outcomes[index].as_ref().is_err_and(AwsError::is_transient);
                    is_transient && attempt < MAX_ATTEMPTS && !is_overtaken(index)
                };
                let is_retried: Vec<bool> = (0..valid.len()).map(is_retried).collect();
                batch = Vec::new();
                for ((entry, outcome), is_retried) in valid.into_iter().zip(outcomes).zip(is_retried) {
                    if is_retried {
                        batch.push(entry);
                        continue;
                    }
                    // After the end of a lease SQS may have executed the entry on a later delivery.
                    let outcome = outcome.and_then(|value| check(&entry).map(|()| value));
                    results.push((entry, outcome));
                }
                if batch.is_empty() {
                    break;
                }
                Sleep::for_(SystemClock::shared(), pause_after(attempt)).await;
                attempt += 1;
            }
        }
        results
    }

    /// Sends one request, and reads its response.
    pub(super) fn batch_request<'a, T, E>(
        &'a self,
        request: impl Future<Output = Result<T, SdkError<E>>> + Send + 'a,
        read: impl FnOnce(T) -> BatchResponse + Send + 'a,
    ) -> BatchRequest<'a>
    where
        E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
    {
        Box::pin(async move { request.await.map(read).map_err(|error| AwsError::new(&self.describe(), error)) })
    }

    /// The outcome of each entry of a batch, in the order of the request.
    fn outcomes(&self, response: BatchResponse, count: usize) -> Vec<Result<String, AwsError>> {
        let mut outcomes: Vec<_> = (0..count).map(|_| Err(AwsError::missing_entry(&self.describe()))).collect();
        let succeeded = response.succeeded.into_iter().map(|(id, value)| (id, Ok(value)));
        let failed = response
            .failed
            .into_iter()
            .map(|entry| (entry.id.clone(), Err(AwsError::from_entry(&self.describe(), entry))));
        for (id, outcome) in succeeded.chain(failed) {
            if let Some(slot) = id.parse::<usize>().ok().and_then(|index| outcomes.get_mut(index)) {
                *slot = outcome;
            }
        }
        outcomes
    }
}
