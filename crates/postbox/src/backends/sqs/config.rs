//! Where a URI leads: a region, or a server that does as one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use aws_config::{BehaviorVersion, ConfigLoader, Region, SdkConfig};
use aws_sdk_sqs::config::timeout::TimeoutConfig;
use aws_sdk_sqs::config::{RuntimeComponents, SharedHttpClient};
use aws_smithy_http_client::proxy::ProxyConfig;
use aws_smithy_http_client::tls::Provider;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_http_client::{Builder, Connector};

use super::client::SqsConfig;
use super::queue::lock;
use super::{Inner, SqsBackend};
use crate::backends::dynamodb::DynamoDbReplyStore;
use crate::error::Error;
use crate::mailbox::operation::Answer;
use crate::resolver::address::{Uri, decoded, without_secrets};
use crate::runtime::io_thread;

/// The options of a URI that are about the place, not about the mailbox.
pub(crate) const OPTIONS: &[&str] =
    &["endpoint", "create", "gather", "group", "profile", "replies", "replies_endpoint"];

/// How long one attempt of a request may take, and all of them.
pub(super) const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
pub(super) const OPERATION_TIMEOUT: Duration = Duration::from_secs(30);

/// Places that are open: two opens of one share what is known of its queues, and connections.
static OPEN: Mutex<Option<HashMap<String, Weak<Inner>>>> = Mutex::new(None);

/// The SDK's own settings (of the environment, the profile and the machine), with limits of time for each request and all its
/// attempts. HTTP goes through the proxies that the environment names (`HTTPS_PROXY`, `NO_PROXY`).
///
/// ```no_run
/// # async fn example() {
/// let config = postbox::aws::defaults().profile_name("staging").load().await;
/// let client = postbox::aws::sqs::Client::new(&config);
/// # }
/// ```
pub fn defaults() -> ConfigLoader {
    let patience = TimeoutConfig::builder()
        .connect_timeout(Duration::from_secs(3))
        .operation_attempt_timeout(ATTEMPT_TIMEOUT)
        .operation_timeout(OPERATION_TIMEOUT)
        .build();
    aws_config::defaults(BehaviorVersion::latest()).http_client(http_client()).timeout_config(patience)
}

/// The SDK's HTTP client, with TLS by ring.
fn http_client() -> SharedHttpClient {
    Builder::new().build_with_connector_fn(|settings, components| {
        let mut connector = Connector::builder().proxy_config(ProxyConfig::from_env());
        connector.set_connector_settings(settings.cloned());
        connector.set_sleep_impl(components.and_then(RuntimeComponents::sleep_impl));
        connector.tls_provider(Provider::Rustls(CryptoMode::Ring)).build()
    })
}

/// What the environment, the profile and the URI say, credentials by the SDK's own chain.
pub(in crate::backends) async fn load_sdk_config(
    region: &str,
    endpoint: Option<&str>,
    profile: Option<&str>,
) -> SdkConfig {
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

pub(in crate::backends) fn check_endpoint(value: &str) -> Result<(), Error> {
    if value.starts_with("http://") || value.starts_with("https://") {
        return Ok(());
    }
    Err(Error::invalid("endpoint", format!("{:?}", without_secrets(value)), "a URL like http://localhost:4566"))
}

pub(in crate::backends) fn is_region(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

pub(in crate::backends) fn parse_bool(parameter: &'static str, value: &str) -> Result<bool, Error> {
    value.parse().map_err(|_| Error::invalid(parameter, format!("{value:?}"), "true or false"))
}

struct UriOptions {
    config: SqsConfig,
    endpoint: Option<String>,
    profile: Option<String>,
    replies: Option<String>,
    replies_endpoint: Option<String>,
}

fn uri_options(uri: &Uri) -> Result<UriOptions, Error> {
    let mut options = UriOptions {
        config: SqsConfig::default(),
        endpoint: None,
        profile: None,
        replies: None,
        replies_endpoint: None,
    };
    for (name, value) in &uri.options {
        match name.as_str() {
            "endpoint" => options.endpoint = Some(value.clone()),
            "create" => options.config.creates = parse_bool("create", value)?,
            "gather" => options.config.gathers = parse_bool("gather", value)?,
            "group" => options.config.group = Some(value.clone()),
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

pub(super) fn open(text: &str, uri: &Uri) -> Answer<Result<SqsBackend, Error>> {
    let region = decoded(&uri.place);
    if !is_region(&region) {
        return Answer::ready(Err(Error::resolution(text, "that is no region; write sqs://eu-west-1/name")));
    }
    let options = match uri_options(uri) {
        Ok(options) => options,
        Err(error) => return Answer::ready(Err(error)),
    };
    let place: Vec<_> = uri.options.iter().filter(|(name, _)| OPTIONS.contains(&name.as_str())).collect();
    let key = format!("{region} {place:?}");
    if let Some(inner) = opened(&key) {
        return Answer::ready(Ok(SqsBackend { inner }));
    }
    io_thread::ask(async move {
        let UriOptions { config, endpoint, profile, replies, replies_endpoint } = options;
        let sdk_config = load_sdk_config(&region, endpoint.as_deref(), profile.as_deref()).await;
        let mut builder = SqsBackend::builder(aws_sdk_sqs::Client::new(&sdk_config));
        builder.at = endpoint.as_deref().map(without_secrets);
        if let Some(uri) = replies {
            let endpoint = replies_endpoint.as_deref().or(endpoint.as_deref());
            let store = DynamoDbReplyStore::open_with(&uri, endpoint, profile.as_deref(), config.creates).await?;
            builder = builder.replies(Arc::new(store));
        }
        builder.config = config;
        let backend = builder.build();
        let mut open = lock(&OPEN);
        let open = open.get_or_insert_default();
        open.retain(|_, inner| inner.strong_count() > 0);
        // Another open may have been quicker.
        let inner = match open.get(&key).and_then(Weak::upgrade) {
            Some(inner) => inner,
            None => {
                open.insert(key, Arc::downgrade(&backend.inner));
                backend.inner
            }
        };
        Ok(SqsBackend { inner })
    })
}

fn opened(key: &str) -> Option<Arc<Inner>> {
    lock(&OPEN).as_ref()?.get(key)?.upgrade()
}
