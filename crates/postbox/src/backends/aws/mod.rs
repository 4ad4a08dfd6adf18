//! What the backends on AWS share: the configuration of the SDK, options of URIs, and errors.

pub(super) mod error;

use std::time::Duration;

use aws_config::{BehaviorVersion, ConfigLoader, Region, SdkConfig};
use aws_sdk_sqs::config::timeout::TimeoutConfig;
use aws_sdk_sqs::config::{RuntimeComponents, SharedHttpClient};
use aws_smithy_http_client::proxy::ProxyConfig;
use aws_smithy_http_client::tls::Provider;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_http_client::{Builder, Connector};

use crate::error::Error;
use crate::resolver::address::without_secrets;

/// The timeout of one attempt of a request.
pub(super) const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
/// The timeout of a request with all its attempts.
pub(super) const OPERATION_TIMEOUT: Duration = Duration::from_secs(30);

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

/// The options that the URIs of both backends have.
#[derive(Clone, Default)]
pub(super) struct AwsOptions {
    /// A server that is not AWS.
    pub(super) endpoint: Option<String>,
    profile: Option<String>,
    /// Create queues and tables that do not exist.
    pub(super) create: bool,
}

impl AwsOptions {
    /// Parses an option. Returns whether there is one with this name.
    pub(super) fn parse(&mut self, name: &str, value: &str) -> Result<bool, Error> {
        match name {
            "endpoint" => {
                check_endpoint(value)?;
                self.endpoint = Some(value.into());
            }
            "profile" => self.profile = Some(value.into()),
            "create" => self.create = parse_bool("create", value)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Loads the SDK's configuration. The options override the environment and the profile.
    pub(super) async fn load(&self, region: &str) -> SdkConfig {
        let mut loader = defaults();
        if !region.is_empty() {
            loader = loader.region(Region::new(region.to_string()));
        }
        if let Some(endpoint) = &self.endpoint {
            loader = loader.endpoint_url(endpoint);
        }
        if let Some(profile) = &self.profile {
            loader = loader.profile_name(profile);
        }
        loader.load().await
    }
}

pub(super) fn check_endpoint(value: &str) -> Result<(), Error> {
    if value.starts_with("http://") || value.starts_with("https://") {
        return Ok(());
    }
    Err(Error::invalid("endpoint", format!("{:?}", without_secrets(value)), "a URL like http://localhost:4566"))
}

pub(super) fn is_region(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

pub(super) fn parse_bool(parameter: &'static str, value: &str) -> Result<bool, Error> {
    value.parse().map_err(|_| Error::invalid(parameter, format!("{value:?}"), "true or false"))
}
