//! Mailboxes on AWS SQS, and replies in DynamoDB. Feature `aws`.
//!
//! SQS's own verbs and batches, on standard and FIFO queues. Concurrent operations share requests, and all who wait share long
//! polls. `docs/aws.md` says what is stored, what is promised, and where SQS promises less than other places.

mod act;
mod dead;
mod desk;
mod fault;
mod item;
mod leases;
mod letter;
mod mailbox;
mod name;
mod place;
mod queue;
mod receive;
mod region;
mod replies;
mod send;
mod table;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

pub use aws_config as config;
use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::QueueAttributeName as Attribute;
pub use {aws_sdk_dynamodb as dynamodb, aws_sdk_sqs as sqs};

use self::fault::fault;
use self::letter::whole_seconds;
use self::mailbox::SqsMailbox;
pub(crate) use self::place::OPTIONS;
pub use self::place::defaults;
use self::queue::{Queue, lock};
use self::region::{MOST_BYTES, Manners, Region};
pub use self::replies::DynamoDbReplyStore;
use crate::backend::{Backend, ByteMailbox, Limits, MailboxSettings, Ordering};
use crate::error::Error;
use crate::mailbox::operation::{Answer, Call};
use crate::reply::store::ReplyStore;
use crate::resolver::address::{MailboxName, Uri, without_secrets};
use crate::runtime::io_thread;

/// What the backend is called.
const KIND: &str = "sqs";
/// How long SQS wants between two purges.
const PURGE_COOLDOWN: Duration = Duration::from_secs(60);

/// Mailboxes on SQS. `sqs://eu-west-1/mailbox` opens one of them.
///
/// ```no_run
/// use postbox::aws::SqsBackend;
/// use postbox::{Connection, Mailbox};
///
/// # async fn example() -> Result<(), postbox::Error> {
/// // With a client and queues of one's own; a URI does the same.
/// let config = postbox::aws::defaults().load().await;
/// let backend = SqsBackend::builder(postbox::aws::sqs::Client::new(&config))
///     .queue_url("jobs", "https://sqs.eu-west-1.amazonaws.com/123456789012/jobs-production")?
///     .build();
/// let jobs: Mailbox<String> = Connection::new(backend).mailbox("jobs")?;
/// jobs.send("into the cloud").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SqsBackend {
    inner: Arc<Inner>,
}

struct Inner {
    region: Arc<Region>,
    urls: HashMap<MailboxName, String>,
    queues: Mutex<HashMap<MailboxName, Weak<Queue>>>,
    replies: Option<Arc<dyn ReplyStore>>,
}

/// How to use SQS: [`SqsBackend::builder`].
#[must_use = "a builder does nothing until build()"]
pub struct SqsBuilder {
    client: Client,
    at: Option<String>,
    manners: Manners,
    urls: HashMap<MailboxName, String>,
    replies: Option<Arc<dyn ReplyStore>>,
}

impl SqsBuilder {
    /// Makes queues that are not there, when they are first used. Otherwise a queue that is not there is an error.
    pub fn create_missing(mut self, creates: bool) -> Self {
        self.manners.creates = creates;
        self
    }

    /// Whether concurrent operations share requests: ten messages for the price of one. They do unless it is turned off. A lone
    /// operation never waits for others.
    pub fn gather(mut self, gathers: bool) -> Self {
        self.manners.gathers = gathers;
        self
    }

    /// The group of messages without one, on FIFO queues: all of them in one order, one at a time. Otherwise each of them is a
    /// group of its own.
    pub fn default_group(mut self, group: impl Into<String>) -> Self {
        self.manners.group = Some(group.into());
        self
    }

    /// The queue of a mailbox, by its URL. Others are found by their names.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`] for a name that is not one, or a URL that ends with no name.
    pub fn queue_url(mut self, mailbox: &str, url: impl Into<String>) -> Result<Self, Error> {
        let url = url.into();
        let path = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
        if !path
            .is_some_and(|path| path.split_once('/').is_some_and(|(_, path)| !path.is_empty() && !path.ends_with('/')))
        {
            let limit = "a URL like https://sqs.eu-west-1.amazonaws.com/123456789012/jobs";
            return Err(Error::invalid("queue_url", format!("{:?}", without_secrets(&url)), limit));
        }
        self.urls.insert(MailboxName::new(mailbox)?, url);
        Ok(self)
    }

    /// Where replies are kept: SQS has no place for them.
    pub fn replies(mut self, store: Arc<dyn ReplyStore>) -> Self {
        self.replies = Some(store);
        self
    }

    /// The backend. Nothing is asked of AWS yet.
    pub fn build(self) -> SqsBackend {
        let region = Arc::new(Region::new(self.client, self.at, self.manners));
        let inner = Inner { region, urls: self.urls, queues: Mutex::default(), replies: self.replies };
        SqsBackend { inner: Arc::new(inner) }
    }
}

impl fmt::Debug for SqsBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqsBuilder").field("manners", &self.manners).finish_non_exhaustive()
    }
}

/// How a queue is made: [`SqsBackend::create_queue`]. What is not said is as SQS does it.
///
/// ```
/// use postbox::aws::QueueSettings;
/// use std::time::Duration;
///
/// let settings = QueueSettings::new().retention(Duration::from_secs(14 * 24 * 60 * 60)).max_deliveries(5);
/// ```
#[derive(Clone, Debug, Default)]
pub struct QueueSettings {
    attributes: Vec<(Attribute, String)>,
    max_deliveries: Option<u32>,
}

impl QueueSettings {
    /// As SQS does it.
    pub fn new() -> Self {
        Self::default()
    }

    fn with(mut self, attribute: Attribute, value: impl ToString) -> Self {
        self.attributes.push((attribute, value.to_string()));
        self
    }

    /// For how long a message is leased to consumers that do not say, as other programs may. Postbox always says.
    #[must_use]
    pub fn visibility_timeout(self, timeout: Duration) -> Self {
        self.with(Attribute::VisibilityTimeout, whole_seconds(timeout))
    }

    /// For how long messages are kept: 60 s to 14 days. SQS's default is 4 days.
    #[must_use]
    pub fn retention(self, period: Duration) -> Self {
        self.with(Attribute::MessageRetentionPeriod, whole_seconds(period))
    }

    /// How long every message stays invisible at first, if its sender does not say.
    #[must_use]
    pub fn delay(self, delay: Duration) -> Self {
        self.with(Attribute::DelaySeconds, whole_seconds(delay))
    }

    /// The largest message, in bytes: up to 1 MiB.
    #[must_use]
    pub fn max_message_size(self, bytes: usize) -> Self {
        self.with(Attribute::MaximumMessageSize, bytes)
    }

    /// After how many deliveries a message goes to the dead letters, whose queue is made too.
    #[must_use]
    pub fn max_deliveries(mut self, most: u32) -> Self {
        self.max_deliveries = Some(most);
        self
    }

    /// Whether messages with the same body within five minutes are one. FIFO queues only.
    #[must_use]
    pub fn content_based_deduplication(self, by_content: bool) -> Self {
        self.with(Attribute::ContentBasedDeduplication, by_content)
    }

    /// Whether order and deduplication are by group, for more throughput. FIFO queues only.
    #[must_use]
    pub fn high_throughput(self) -> Self {
        self.with(Attribute::DeduplicationScope, "messageGroup")
            .with(Attribute::FifoThroughputLimit, "perMessageGroupId")
    }
}

impl SqsBackend {
    /// With a client of one's own.
    pub fn from_client(client: Client) -> Self {
        Self::builder(client).build()
    }

    /// With a client of one's own, and more to say.
    pub fn builder(client: Client) -> SqsBuilder {
        SqsBuilder { client, at: None, manners: Manners::default(), urls: HashMap::new(), replies: None }
    }

    /// Opens the region that a URI without the name of a mailbox leads to.
    pub(crate) fn open(text: &str, uri: &Uri) -> Answer<Result<Self, Error>> {
        place::open(text, uri)
    }

    /// Makes a queue as it should be, for a mailbox. A FIFO queue's name ends with `.fifo`.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`] if there is one with other settings, or AWS does not take these;
    /// [`Error::Connection`].
    pub fn create_queue(&self, mailbox: &str, settings: QueueSettings) -> Call<Result<(), Error>> {
        let queue = MailboxName::new(mailbox).and_then(|name| self.queue(&name));
        Call::new(move || match queue {
            Ok(queue) => {
                io_thread::ask(async move { queue.make(settings.attributes, settings.max_deliveries).await.map(drop) })
            }
            Err(error) => Answer::ready(Err(error)),
        })
    }

    fn queue(&self, name: &MailboxName) -> Result<Arc<Queue>, Error> {
        let mut queues = lock(&self.inner.queues);
        if let Some(queue) = queues.get(name).and_then(Weak::upgrade) {
            return Ok(queue);
        }
        if queues.len() % 64 == 63 {
            queues.retain(|_, queue| queue.strong_count() > 0);
        }
        let url = self.inner.urls.get(name).cloned();
        let queue = Queue::new(Arc::clone(&self.inner.region), name.clone(), url)?;
        queues.insert(name.clone(), Arc::downgrade(&queue));
        Ok(queue)
    }
}

impl fmt::Debug for SqsBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqsBackend").field("place", &self.inner.region.shown(None)).finish()
    }
}

impl Backend for SqsBackend {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn limits(&self) -> Limits {
        // What every backend allows is what SQS allows.
        Limits {
            ordering: Ordering::BestEffort,
            max_message_size: Some(MOST_BYTES),
            exact_counts: false,
            exact_deliveries: false,
            purge_cooldown: Some(PURGE_COOLDOWN),
            purge_ends_leases: false,
            ..Limits::generous().portable()
        }
    }

    fn limits_of(&self, name: &MailboxName) -> Limits {
        let is_fifo = match self.inner.urls.get(name) {
            Some(url) => url.ends_with(name::FIFO),
            None => name::is_fifo(name),
        };
        match is_fifo {
            // SQS delays messages of a FIFO queue all alike or not at all.
            true => Limits {
                ordering: Ordering::FifoPerGroup,
                max_delay: Duration::ZERO,
                groups: true,
                deduplication: true,
                deduplication_window: Some(Duration::from_secs(300)),
                ..self.limits()
            },
            false => self.limits(),
        }
    }

    fn mailbox(&self, name: &MailboxName, settings: &MailboxSettings) -> Result<Arc<dyn ByteMailbox>, Error> {
        let window = self.limits_of(name).deduplication_window;
        if let Some(wanted) = settings.deduplication_window.filter(|wanted| Some(*wanted) != window) {
            let limit = if window.is_some() { "300 s, as SQS has it" } else { "none: only FIFO queues deduplicate" };
            return Err(Error::invalid("deduplication_window", format!("{wanted:?}"), limit));
        }
        if settings.idle_expiry.is_some() {
            return Err(Error::Unsupported { backend: KIND, operation: "remove a mailbox when it is idle" });
        }
        self.inner.region.manners.check()?;
        let queue = self.queue(name)?;
        queue.configure(settings.max_deliveries);
        Ok(Arc::new(SqsMailbox { queue }))
    }

    fn replies(&self) -> Option<Arc<dyn ReplyStore>> {
        self.inner.replies.clone()
    }

    fn list(&self) -> Answer<Result<Vec<MailboxName>, Error>> {
        let region = Arc::clone(&self.inner.region);
        io_thread::ask(async move {
            let mut names = Vec::new();
            let mut pages = region.client.list_queues().max_results(1_000).into_paginator().send();
            while let Some(page) = pages.next().await {
                let page = page.map_err(|error| fault(&region.shown(None), error).error)?;
                let queues = page.queue_urls.unwrap_or_default();
                names.extend(queues.iter().filter_map(|url| name::mailbox(url.rsplit('/').next()?)));
            }
            names.sort();
            Ok(names)
        })
    }
}
