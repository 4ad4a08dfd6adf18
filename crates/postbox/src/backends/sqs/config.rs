//! What a URI says, and how the AWS SDK is configured. `dynamodb/` configures the SDK in the same way.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use aws_config::{BehaviorVersion, ConfigLoader, Region, SdkConfig};
use aws_sdk_sqs::config::timeout::TimeoutConfig;
use aws_sdk_sqs::config::{RuntimeComponents, SharedHttpClient};
use aws_smithy_http_client::proxy::ProxyConfig;
use aws_smithy_http_client::tls::Provider;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_http_client::{Builder, Connector};

use super::send::{FIFO_ID_RULE, is_fifo_id};
use super::{Inner, SqsBackend};
use crate::backends::dynamodb::DynamoDbReplyStore;
use crate::error::Error;
use crate::mailbox::operation::Answer;
use crate::resolver::address::{Uri, decoded, without_secrets};
use crate::runtime::io_thread;
use crate::runtime::open_stores::OpenStores;

/// The options of a URI that concern the backend, not one mailbox.
pub(crate) const OPTIONS: &[&str] =
    &["endpoint", "create", "gather", "group", "profile", "replies", "replies_endpoint"];

/// The timeout of one attempt of a request.
pub(super) const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
/// The timeout of a request with all its attempts.
pub(super) const OPERATION_TIMEOUT: Duration = Duration::from_secs(30);

/// The open backends by region and options. Two opens of the same URI share one.
static OPEN: LazyLock<OpenStores<String, Inner>> = LazyLock::new(OpenStores::default);

/// The SDK's own configuration (environment, profile and machine), with timeouts for each request
/// and its attempts. HTTP uses the proxies that the environment names (`HTTPS_PROXY`, `NO_PROXY`).
///
/// ```no_run
/// # async fn example() {
/// let config = postbox::aws::defaults().profile_name("staging").load().await;
/// let client = postbox::aws::sqs::Client::new(&config);
/// # }
/// ```
pub fn defaults() -> ConfigLoader {
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(Duration::from_secs(3))
        .operation_attempt_timeout(ATTEMPT_TIMEOUT)
        .operation_timeout(OPERATION_TIMEOUT)
        .build();
    aws_config::defaults(BehaviorVersion::latest()).http_client(http_client()).timeout_config(timeouts)
}

/// The SDK's HTTP client, with TLS by rustls and ring.
fn http_client() -> SharedHttpClient {
    Builder::new().build_with_connector_fn(|settings, components| {
        let mut connector = Connector::builder().proxy_config(ProxyConfig::from_env());
        connector.set_connector_settings(settings.cloned());
        connector.set_sleep_impl(components.and_then(RuntimeComponents::sleep_impl));
        connector.tls_provider(Provider::Rustls(CryptoMode::Ring)).build()
    })
}

/// Loads the SDK's configuration. What the URI says overrides the environment and the profile.
pub(crate) async fn load_sdk_config(region: &str, endpoint: Option<&str>, profile: Option<&str>) -> SdkConfig {
    let mut loader = defaults();
    if !region.is_empty() {
        loader = loader.region(Region::new(region.to_string()));
    }
    if let Some(endpoint) = endpoint {
        loader = loader.endpoint_url(endpoint);
    }
    if let Some(profile) = profile {
        loader = loader.profile_name(profile);
    }
    loader.load().await
}

pub(crate) fn check_endpoint(value: &str) -> Result<(), Error> {
    if value.starts_with("http://") || value.starts_with("https://") {
        return Ok(());
    }
    Err(Error::invalid("endpoint", format!("{:?}", without_secrets(value)), "a URL like http://localhost:4566"))
}

pub(crate) fn is_region(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

pub(crate) fn parse_bool(parameter: &'static str, value: &str) -> Result<bool, Error> {
    value.parse().map_err(|_| Error::invalid(parameter, format!("{value:?}"), "true or false"))
}

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
    endpoint: Option<String>,
    profile: Option<String>,
    replies: Option<String>,
    replies_endpoint: Option<String>,
}

impl UriOptions {
    fn parse(uri: &Uri) -> Result<Self, Error> {
        let mut options = Self::default();
        for (name, value) in &uri.options {
            match name.as_str() {
                "endpoint" => options.endpoint = Some(value.clone()),
                "create" => options.config.create_missing = parse_bool("create", value)?,
                "gather" => options.config.gather = parse_bool("gather", value)?,
                "group" => options.config.default_group = Some(value.clone()),
                "profile" => options.profile = Some(value.clone()),
                "replies" => options.replies = Some(value.clone()),
                "replies_endpoint" => options.replies_endpoint = Some(value.clone()),
                _ => {}
            }
        }
        options.endpoint.iter().chain(&options.replies_endpoint).try_for_each(|value| check_endpoint(value))?;
        options.config.check()?;
        Ok(options)
    }

    async fn connect(self, region: &str) -> Result<SqsBackend, Error> {
        let (endpoint, profile) = (self.endpoint.as_deref(), self.profile.as_deref());
        let sdk_config = load_sdk_config(region, endpoint, profile).await;
        let mut builder = SqsBackend::builder(aws_sdk_sqs::Client::new(&sdk_config));
        builder.endpoint = endpoint.map(without_secrets);
        if let Some(uri) = self.replies {
            let endpoint = self.replies_endpoint.as_deref().or(endpoint);
            let store = DynamoDbReplyStore::open_with(&uri, endpoint, profile, self.config.create_missing).await?;
            builder = builder.replies(Arc::new(store));
        }
        builder.config = self.config;
        Ok(builder.build())
    }
}

/// Opens the backend of a URI. `uri` no longer has the name of the mailbox.
pub(super) fn open(text: &str, uri: &Uri) -> Answer<Result<SqsBackend, Error>> {
    let region = decoded(&uri.place);
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
