//! Mailboxes on AWS SQS.
//!
//! A mailbox is a queue, standard or FIFO. Concurrent operations share requests, and receives that
//! wait share long polls. `docs/aws.md` says what is stored and what is promised.

mod client;
mod config;
mod dead_letters;
mod lease_tracker;
mod long_poll;
mod mailbox;
mod message_format;
mod queue;
mod queue_name;
mod receive;
mod send;
mod settle;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::QueueAttributeName as Attribute;

use self::client::{MAX_MESSAGE_SIZE, SqsClient};
pub(crate) use self::config::OPTIONS;
use self::config::SqsConfig;
use self::mailbox::SqsMailbox;
use self::message_format::whole_seconds;
use self::queue::Queue;
use crate::backend::{Backend, ByteMailbox, Limits, MailboxSettings, Ordering};
use crate::backends::aws::error::AwsError;
use crate::error::Error;
use crate::mailbox::operation::{Answer, Call};
use crate::reply::store::ReplyStore;
use crate::resolver::address::{MailboxName, Uri, without_secrets};
use crate::runtime::io_thread;
use crate::runtime::open_stores::OpenStores;

const KIND: &str = "sqs";
/// SQS refuses a second purge of a queue within this time.
const PURGE_COOLDOWN: Duration = Duration::from_secs(60);
/// SQS remembers deduplication ids for this time.
const DEDUPLICATION_WINDOW: Duration = Duration::from_secs(300);

/// Mailboxes on SQS. `sqs://eu-west-1/mailbox` opens one of them.
///
/// ```no_run
/// use postbox::aws::SqsBackend;
/// use postbox::{Connection, Mailbox};
///
/// # async fn example() -> Result<(), postbox::Error> {
/// // With your own client and an existing queue. A URI does the same.
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
    client: Arc<SqsClient>,
    queue_urls: HashMap<MailboxName, String>,
    /// The queues in use. All handles of a mailbox share one.
    queues: OpenStores<MailboxName, Queue>,
    replies: Option<Arc<dyn ReplyStore>>,
}

/// Configures a backend: [`SqsBackend::builder`].
#[must_use = "a builder does nothing until build()"]
pub struct SqsBuilder {
    client: Client,
    endpoint: Option<String>,
    config: SqsConfig,
    queue_urls: HashMap<MailboxName, String>,
    replies: Option<Arc<dyn ReplyStore>>,
}

impl SqsBuilder {
    /// Whether a queue that does not exist is created at its first use. By default that is an error.
    pub fn create_missing(mut self, creates: bool) -> Self {
        self.config.create_missing = creates;
        self
    }

    /// Whether concurrent operations share requests, at most ten per request. The default is `true`.
    /// A lone operation never waits for others.
    pub fn gather(mut self, gathers: bool) -> Self {
        self.config.gather = gathers;
        self
    }

    /// The group of messages without a group, on FIFO queues: they are delivered in order, one at a
    /// time. By default each of them is its own group.
    pub fn default_group(mut self, group: impl Into<String>) -> Self {
        self.config.default_group = Some(group.into());
        self
    }

    /// The URL of a mailbox's queue. The queues of other mailboxes are found by name.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`] for an invalid name, or a URL without a path.
    pub fn queue_url(mut self, mailbox: &str, url: impl Into<String>) -> Result<Self, Error> {
        let url = url.into();
        let path = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
        let path = path.and_then(|rest| Some(rest.split_once('/')?.1));
        if path.is_none_or(|path| path.is_empty() || path.ends_with('/')) {
            let limit = "a URL like https://sqs.eu-west-1.amazonaws.com/123456789012/jobs";
            return Err(Error::invalid("queue_url", format!("{:?}", without_secrets(&url)), limit));
        }
        self.queue_urls.insert(MailboxName::new(mailbox)?, url);
        Ok(self)
    }

    /// The store of replies. SQS has none.
    pub fn replies(mut self, store: Arc<dyn ReplyStore>) -> Self {
        self.replies = Some(store);
        self
    }

    /// Builds the backend. It sends no request yet.
    pub fn build(self) -> SqsBackend {
        let client = Arc::new(SqsClient::new(self.client, self.endpoint, self.config));
        let inner = Inner { client, queue_urls: self.queue_urls, queues: OpenStores::default(), replies: self.replies };
        SqsBackend { inner: Arc::new(inner) }
    }
}

impl fmt::Debug for SqsBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqsBuilder").field("config", &self.config).finish_non_exhaustive()
    }
}

/// The attributes of a new queue: [`SqsBackend::create_queue`]. An attribute that is not set has
/// SQS's default.
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
    /// SQS's defaults.
    pub fn new() -> Self {
        Self::default()
    }

    fn with(mut self, attribute: Attribute, value: impl ToString) -> Self {
        self.attributes.push((attribute, value.to_string()));
        self
    }

    /// The lease of a receive without a visibility timeout. Postbox always sends one; other programs
    /// may not.
    #[must_use]
    pub fn visibility_timeout(self, timeout: Duration) -> Self {
        self.with(Attribute::VisibilityTimeout, whole_seconds(timeout))
    }

    /// How long messages are kept: 60 s to 14 days. SQS's default is 4 days.
    #[must_use]
    pub fn retention(self, period: Duration) -> Self {
        self.with(Attribute::MessageRetentionPeriod, whole_seconds(period))
    }

    /// The delay of messages that are sent without one.
    #[must_use]
    pub fn delay(self, delay: Duration) -> Self {
        self.with(Attribute::DelaySeconds, whole_seconds(delay))
    }

    /// The largest message, in bytes: up to 1 MiB.
    #[must_use]
    pub fn max_message_size(self, bytes: usize) -> Self {
        self.with(Attribute::MaximumMessageSize, bytes)
    }

    /// After this many deliveries SQS moves a message to the dead-letter queue, which is created too.
    #[must_use]
    pub fn max_deliveries(mut self, max: u32) -> Self {
        self.max_deliveries = Some(max);
        self
    }

    /// Whether messages with the same body within five minutes are one message. FIFO queues only.
    #[must_use]
    pub fn content_based_deduplication(self, enabled: bool) -> Self {
        self.with(Attribute::ContentBasedDeduplication, enabled)
    }

    /// Limits order and deduplication to message groups, for more throughput. FIFO queues only.
    #[must_use]
    pub fn high_throughput(self) -> Self {
        self.with(Attribute::DeduplicationScope, "messageGroup")
            .with(Attribute::FifoThroughputLimit, "perMessageGroupId")
    }
}

impl SqsBackend {
    /// Uses your own client.
    pub fn from_client(client: Client) -> Self {
        Self::builder(client).build()
    }

    /// Uses your own client, with further configuration.
    pub fn builder(client: Client) -> SqsBuilder {
        SqsBuilder { client, endpoint: None, config: SqsConfig::default(), queue_urls: HashMap::new(), replies: None }
    }

    /// Opens the backend of a URI, which no longer has the name of the mailbox.
    pub(crate) fn open(text: &str, uri: &Uri) -> Answer<Result<Self, Error>> {
        config::open(text, uri)
    }

    /// Creates the queue of a mailbox. A name that ends with `.fifo` makes it a FIFO queue.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`] if the queue exists with other settings, or AWS refuses these;
    /// [`Error::Connection`].
    pub fn create_queue(&self, mailbox: &str, settings: QueueSettings) -> Call<Result<(), Error>> {
        let queue = MailboxName::new(mailbox).and_then(|name| self.queue(&name));
        Call::new(move || match queue {
            Ok(queue) => {
                let QueueSettings { attributes, max_deliveries } = settings;
                io_thread::ask(async move { queue.create_with(attributes, max_deliveries).await.map(drop) })
            }
            Err(error) => Answer::ready(Err(error)),
        })
    }

    fn queue(&self, name: &MailboxName) -> Result<Arc<Queue>, Error> {
        let url = self.inner.queue_urls.get(name).cloned();
        let open = || Queue::new(Arc::clone(&self.inner.client), name.clone(), url);
        self.inner.queues.get_or_open(name.clone(), |_| true, open)
    }
}

impl fmt::Debug for SqsBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqsBackend").field("address", &self.inner.client.describe(None)).finish()
    }
}

impl Backend for SqsBackend {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn limits(&self) -> Limits {
        // The portable limits are SQS's.
        Limits {
            ordering: Ordering::BestEffort,
            max_message_size: Some(MAX_MESSAGE_SIZE),
            exact_counts: false,
            exact_deliveries: false,
            purge_cooldown: Some(PURGE_COOLDOWN),
            purge_ends_leases: false,
            ..Limits::generous().portable()
        }
    }

    fn limits_of(&self, name: &MailboxName) -> Limits {
        let is_fifo = match self.inner.queue_urls.get(name) {
            Some(url) => url.ends_with(queue_name::FIFO_SUFFIX),
            None => queue_name::is_fifo(name),
        };
        match is_fifo {
            true => Limits {
                ordering: Ordering::FifoPerGroup,
                // A FIFO queue has one delay for all its messages.
                max_delay: Duration::ZERO,
                groups: true,
                deduplication: true,
                deduplication_window: Some(DEDUPLICATION_WINDOW),
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
        self.inner.client.config.check()?;
        let queue = self.queue(name)?;
        queue.set_max_deliveries(settings.max_deliveries);
        Ok(Arc::new(SqsMailbox::new(queue)))
    }

    fn replies(&self) -> Option<Arc<dyn ReplyStore>> {
        self.inner.replies.clone()
    }

    fn list(&self) -> Answer<Result<Vec<MailboxName>, Error>> {
        let client = Arc::clone(&self.inner.client);
        io_thread::ask(async move {
            let mut names = Vec::new();
            let mut pages = client.sdk.list_queues().max_results(1_000).into_paginator().send();
            while let Some(page) = pages.next().await {
                let page = page.map_err(|error| AwsError::new(&client.describe(None), error))?;
                let urls = page.queue_urls.unwrap_or_default();
                names.extend(urls.iter().filter_map(|url| queue_name::to_mailbox(url.rsplit('/').next()?)));
            }
            names.sort();
            Ok(names)
        })
    }
}
