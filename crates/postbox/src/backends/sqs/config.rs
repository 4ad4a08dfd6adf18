//! The configuration of the backend, and what a URI says of it.

use std::sync::{Arc, LazyLock};

use super::send::{FIFO_ID_RULE, is_fifo_id};
use super::{Inner, SqsBackend};
use crate::backends::aws::{AwsOptions, check_endpoint, is_region, parse_bool};
use crate::backends::dynamodb::DynamoDbReplyStore;
use crate::error::Error;
use crate::mailbox::operation::Answer;
use crate::resolver::address::{Uri, decoded, without_secrets};
use crate::runtime::io_thread;
use crate::runtime::open_stores::OpenStores;

/// The options of a URI that concern the backend, not one mailbox.
pub(crate) const OPTIONS: &[&str] =
    &["endpoint", "create", "gather", "group", "profile", "replies", "replies_endpoint"];

/// The open backends by region and options. Two opens of the same URI share one.
static OPEN: LazyLock<OpenStores<String, Inner>> = LazyLock::new(OpenStores::default);

/// What a URI or a builder says of all mailboxes of a backend.
#[derive(Clone, Debug)]
pub(super) struct SqsConfig {
    /// Create queues that do not exist.
    pub(super) create_missing: bool,
    /// Let concurrent operations share requests.
    pub(super) gather: bool,
    /// The group of messages without one, on FIFO queues.
    pub(super) default_group: Option<String>,
}

impl Default for SqsConfig {
    fn default() -> Self {
        SqsConfig { create_missing: false, gather: true, default_group: None }
    }
}

impl SqsConfig {
    pub(super) fn check(&self) -> Result<(), Error> {
        match self.default_group.as_ref().filter(|group| !is_fifo_id(group)) {
            Some(group) => Err(Error::invalid("group", format!("{group:?}"), FIFO_ID_RULE)),
            None => Ok(()),
        }
    }
}

#[derive(Default)]
struct UriOptions {
    config: SqsConfig,
    aws: AwsOptions,
    replies: Option<String>,
    replies_endpoint: Option<String>,
}

impl UriOptions {
    fn parse(uri: &Uri) -> Result<Self, Error> {
        let mut options = Self::default();
        for (name, value) in &uri.options {
            match name.as_str() {
                "gather" => options.config.gather = parse_bool("gather", value)?,
                "group" => options.config.default_group = Some(value.clone()),
                "replies" => options.replies = Some(value.clone()),
                "replies_endpoint" => {
                    check_endpoint(value)?;
                    options.replies_endpoint = Some(value.clone());
                }
                // All other names are options of the mailbox.
                _ => _ = options.aws.parse(name, value)?,
            }
        }
        options.config.create_missing = options.aws.create;
        options.config.check()?;
        Ok(options)
    }

    async fn connect(self, region: &str) -> Result<SqsBackend, Error> {
        let UriOptions { config, mut aws, replies, replies_endpoint } = self;
        let mut builder = SqsBackend::builder(aws_sdk_sqs::Client::new(&aws.load(region).await));
        builder.endpoint = aws.endpoint.as_deref().map(without_secrets);
        builder.config = config;
        if let Some(uri) = replies {
            aws.endpoint = replies_endpoint.or(aws.endpoint);
            builder = builder.replies(Arc::new(DynamoDbReplyStore::open_with(&uri, aws).await?));
        }
        Ok(builder.build())
    }
}

/// Opens the backend of a URI. `uri` no longer has the name of the mailbox.
pub(super) fn open(text: &str, uri: &Uri) -> Answer<Result<SqsBackend, Error>> {
    let region = decoded(&uri.location);
    if !is_region(&region) {
        return Answer::ready(Err(Error::resolution(text, "that is no region; write sqs://eu-west-1/name")));
    }
    let options = match UriOptions::parse(uri) {
        Ok(options) => options,
        Err(error) => return Answer::ready(Err(error)),
    };
    let key: Vec<_> = uri.options.iter().filter(|(name, _)| OPTIONS.contains(&name.as_str())).collect();
    let key = format!("{region} {key:?}");
    if let Some(inner) = OPEN.get(&key) {
        return Answer::ready(Ok(SqsBackend { inner }));
    }
    io_thread::ask(async move {
        let backend = options.connect(&region).await?;
        // A concurrent open of the same URI may have finished first.
        let inner = OPEN.get_or_open(key, |_| true, || Ok::<_, Error>(backend.inner))?;
        Ok(SqsBackend { inner })
    })
}
