//! What a URI says: servers, user, database, and options.

use std::path::PathBuf;
use std::time::Duration;

use redis::cluster::ClusterClientBuilder;
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{
    Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _, ProtocolVersion, RedisConnectionInfo, RedisError,
    TlsCertificates, TlsMode,
};

use super::connection::FIRST_ATTEMPT;
use crate::error::Error;
use crate::mailbox::ranges::{REPLICA_TIMEOUT, TIMEOUT};
use crate::resolver::address::{Uri, decoded};

/// The options of a URI that belong to the connection, not to the mailbox.
pub(crate) const OPTIONS: &[&str] = &[
    "db",
    "timeout",
    "min_replicas",
    "replica_timeout",
    "allow_eviction",
    "tls",
    "ca",
    "primary",
    "sentinel_user",
    "sentinel_password",
];

/// What to connect to.
pub(super) enum Target {
    Server(Client),
    /// A function, because a builder can be used once, and a lost connection needs another one.
    Cluster(Box<dyn Fn() -> ClusterClientBuilder + Send + Sync>),
    Sentinels(tokio::sync::Mutex<SentinelClient>),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Options {
    /// How long an operation is repeated.
    pub(super) timeout: Duration,
    /// The number of replicas that must have a message when `send` returns.
    pub(super) min_replicas: u32,
    pub(super) replica_timeout: Duration,
    /// Whether a server that may evict messages is accepted.
    pub(super) allow_eviction: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            timeout: Duration::from_secs(10),
            min_replicas: 0,
            replica_timeout: Duration::from_secs(1),
            allow_eviction: false,
        }
    }
}

impl Options {
    /// The longest time of an attempt of an operation that has `left` until its timeout.
    pub(super) fn attempt_timeout(&self, is_long: bool, left: Duration) -> Duration {
        let replicas = match self.min_replicas {
            0 => Duration::ZERO,
            _ => self.replica_timeout + Duration::from_secs(1),
        };
        let timeout = if is_long { left.max(FIRST_ATTEMPT) } else { FIRST_ATTEMPT };
        timeout.max(replicas)
    }
}

/// A parsed URI.
pub(super) struct Config {
    pub(super) target: Target,
    pub(super) options: Options,
    /// Scheme and servers, without secrets.
    pub(super) address: String,
    /// Equal for URIs that share a connection.
    pub(super) connection_key: String,
}

/// The options that say how to reach and to enter a server.
struct ServerOptions {
    db: i64,
    is_tls: bool,
    ca: Option<Vec<u8>>,
    primary: Option<String>,
    sentinel_user: Option<String>,
    sentinel_password: Option<String>,
}

impl Config {
    pub(super) fn parse(text: &str, uri: &Uri) -> Result<Self, Error> {
        let wrong = |reason: &str| Error::resolution(text, reason);
        let (secret, hosts) =
            uri.location.rsplit_once('@').map_or((None, uri.location.as_str()), |(secret, rest)| (Some(secret), rest));
        let (user, password) = match secret.map(|secret| secret.split_once(':').unwrap_or((secret, ""))) {
            Some((user, password)) => (decoded(user), decoded(password)),
            None => Default::default(),
        };
        let (options, server) = parse_options(uri)?;
        let mut login = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3).set_db(server.db);
        if !user.is_empty() {
            login = login.set_username(&user);
        }
        if !password.is_empty() {
            login = login.set_password(&password);
        }
        if server.is_tls {
            // Fails if the program has installed a provider, which is then used.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        if hosts.is_empty() {
            return Err(wrong("no server; write redis://host:6379/name"));
        }
        let failed = |error: RedisError| wrong(&error.to_string());
        let default_port = if uri.scheme.contains("sentinel") { 26379 } else { 6379 };
        let addresses = || -> Result<Vec<ConnectionAddr>, Error> {
            hosts.split(',').map(|host| parse_host(text, host, default_port, server.is_tls)).collect()
        };
        let info = |address: ConnectionAddr| -> Result<ConnectionInfo, Error> {
            Ok(address.into_connection_info().map_err(failed)?.set_redis_settings(login.clone()))
        };
        let certificates = || TlsCertificates { client_tls: None, root_cert: server.ca.clone() };
        let target = match uri.scheme.as_str() {
            "redis+cluster" => {
                if server.db != 0 {
                    return Err(Error::invalid("db", server.db, "0: a cluster has one database"));
                }
                let nodes = addresses()?.into_iter().map(info).collect::<Result<Vec<_>, _>>()?;
                let (is_tls, certificates) = (server.is_tls, server.ca.is_some().then(certificates));
                Target::Cluster(Box::new(move || {
                    let mut builder = ClusterClientBuilder::new(nodes.clone());
                    if is_tls {
                        builder = builder.tls(TlsMode::Secure);
                    }
                    match &certificates {
                        Some(certificates) => builder.certs(certificates.clone()),
                        None => builder,
                    }
                }))
            }
            "redis+sentinel" => {
                let primary = server.primary.as_deref().ok_or_else(|| wrong("which primary? Add ?primary=name"))?;
                let builder = SentinelClientBuilder::new(addresses()?, primary, SentinelServerType::Master);
                let mut builder = builder
                    .map_err(failed)?
                    .set_client_to_redis_protocol(ProtocolVersion::RESP3)
                    .set_client_to_redis_db(server.db);
                if !user.is_empty() {
                    builder = builder.set_client_to_redis_username(&user);
                }
                if !password.is_empty() {
                    builder = builder.set_client_to_redis_password(&password);
                }
                if let Some(user) = &server.sentinel_user {
                    builder = builder.set_client_to_sentinel_username(user);
                }
                if let Some(password) = &server.sentinel_password {
                    builder = builder.set_client_to_sentinel_password(password);
                }
                if server.is_tls {
                    builder = builder.set_client_to_redis_tls_mode(TlsMode::Secure);
                    if server.ca.is_some() {
                        builder = builder.set_client_to_redis_certificates(certificates());
                    }
                }
                Target::Sentinels(tokio::sync::Mutex::new(builder.build().map_err(failed)?))
            }
            "redis+unix" => {
                let path = ConnectionAddr::Unix(PathBuf::from(decoded(hosts)));
                Target::Server(Client::open(info(path)?).map_err(failed)?)
            }
            _ => {
                let mut addresses = addresses()?;
                let (Some(only), true) = (addresses.pop(), addresses.is_empty()) else {
                    return Err(wrong("several servers; write redis+cluster:// or redis+sentinel://"));
                };
                let client = match server.ca {
                    Some(_) if server.is_tls => Client::build_with_tls(info(only)?, certificates()),
                    _ => Client::open(info(only)?),
                };
                Target::Server(client.map_err(failed)?)
            }
        };
        let set: Vec<_> = uri.options.iter().filter(|(name, _)| OPTIONS.contains(&name.as_str())).collect();
        Ok(Config {
            target,
            options,
            address: format!("{}://{hosts}", uri.scheme),
            connection_key: format!("{} {user} {password} {hosts} {set:?}", uri.scheme),
        })
    }
}

fn parse_options(uri: &Uri) -> Result<(Options, ServerOptions), Error> {
    let mut options = Options::default();
    let mut server = ServerOptions {
        db: 0,
        is_tls: uri.scheme == "rediss",
        ca: None,
        primary: None,
        sentinel_user: None,
        sentinel_password: None,
    };
    for (name, value) in &uri.options {
        let bad = |parameter, limit: &str| Error::invalid(parameter, format!("{value:?}"), limit);
        match name.as_str() {
            "db" => {
                let db = value.parse::<u32>().map_err(|_| bad("db", "a whole number, 0 or more"))?;
                server.db = db.into();
            }
            "timeout" => options.timeout = TIMEOUT.parse(value)?,
            "min_replicas" => {
                options.min_replicas = value.parse().map_err(|_| bad("min_replicas", "a whole number, 0 or more"))?;
            }
            "replica_timeout" => options.replica_timeout = REPLICA_TIMEOUT.parse(value)?,
            "allow_eviction" => {
                options.allow_eviction = value.parse().map_err(|_| bad("allow_eviction", "true or false"))?;
            }
            "tls" => server.is_tls = value.parse().map_err(|_| bad("tls", "true or false"))?,
            "ca" => {
                let read = std::fs::read(value).map_err(|error| error.to_string()).and_then(|file| {
                    let has_one = file.windows(27).any(|text| text == b"-----BEGIN CERTIFICATE-----");
                    if has_one { Ok(file) } else { Err("there is none in it".into()) }
                });
                server.ca = Some(read.map_err(|error| bad("ca", &format!("a file of certificates (PEM): {error}")))?);
            }
            "primary" => server.primary = Some(value.clone()),
            "sentinel_user" => server.sentinel_user = Some(value.clone()),
            "sentinel_password" => server.sentinel_password = Some(value.clone()),
            _ => {}
        }
    }
    Ok((options, server))
}

/// Parses `host`, `host:port` or `[::1]:port`.
fn parse_host(text: &str, host: &str, default_port: u16, is_tls: bool) -> Result<ConnectionAddr, Error> {
    let (name, port) = match host.rsplit_once(':').filter(|(_, port)| !port.contains(']')) {
        Some((name, port)) => {
            // The error does not show the port, which may be a password.
            let port = port.parse().map_err(|_| Error::resolution(text, "a port is a number from 0 to 65535"))?;
            (name, port)
        }
        None => (host, default_port),
    };
    let host = name.trim_start_matches('[').trim_end_matches(']').to_string();
    if host.is_empty() {
        return Err(Error::resolution(text, "a server without a name; write host:port"));
    }
    Ok(if is_tls {
        ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
    } else {
        ConnectionAddr::Tcp(host, port)
    })
}
