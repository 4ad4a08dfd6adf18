//! Where a URI leads: servers, user, database, and how to behave there.

use std::path::PathBuf;

use redis::cluster::ClusterClientBuilder;
use redis::sentinel::{SentinelClientBuilder, SentinelServerType};
use redis::{
    Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _, ProtocolVersion, RedisConnectionInfo, RedisError,
    TlsCertificates, TlsMode,
};

use super::redis_client::{Options, Target};
use crate::error::Error;
use crate::mailbox::ranges::{REPLICA_TIMEOUT, TIMEOUT};
use crate::resolver::address::{Uri, decoded};

/// The options of a URI that are about the place, not about the mailbox.
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

/// A place, taken out of a URI.
pub(super) struct Config {
    pub(super) target: Target,
    pub(super) options: Options,
    /// Scheme and servers, without secrets.
    pub(super) address: String,
    /// Everything that makes it another connection.
    pub(super) key: String,
}

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
            uri.place.rsplit_once('@').map_or((None, uri.place.as_str()), |(secret, rest)| (Some(secret), rest));
        let (user, password) = match secret.map(|secret| secret.split_once(':').unwrap_or((secret, ""))) {
            Some((user, password)) => (decoded(user), decoded(password)),
            None => Default::default(),
        };
        let (options, server) = options(uri)?;
        let mut settings = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3).set_db(server.db);
        if !user.is_empty() {
            settings = settings.set_username(&user);
        }
        if !password.is_empty() {
            settings = settings.set_password(&password);
        }
        if server.is_tls {
            // Unless the program has chosen another one.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let is_unix = uri.scheme == "redis+unix";
        if hosts.is_empty() {
            return Err(wrong("no server; write redis://host:6379/name"));
        }
        let failed = |error: RedisError| wrong(&error.to_string());
        let default_port = if uri.scheme.contains("sentinel") { 26379 } else { 6379 };
        let addresses = || -> Result<Vec<ConnectionAddr>, Error> {
            hosts.split(',').map(|host| address(text, host, default_port, server.is_tls)).collect()
        };
        let info = |address: ConnectionAddr| -> Result<ConnectionInfo, Error> {
            Ok(address.into_connection_info().map_err(failed)?.set_redis_settings(settings.clone()))
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
            _ if is_unix => {
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
        let place: Vec<_> = uri.options.iter().filter(|(name, _)| OPTIONS.contains(&name.as_str())).collect();
        Ok(Config {
            target,
            options,
            address: format!("{}://{hosts}", uri.scheme),
            key: format!("{} {user} {password} {hosts} {place:?}", uri.scheme),
        })
    }
}

fn options(uri: &Uri) -> Result<(Options, ServerOptions), Error> {
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

/// `host`, `host:port`, `[::1]:port`.
fn address(text: &str, host: &str, default_port: u16, is_tls: bool) -> Result<ConnectionAddr, Error> {
    let (name, port) = match host.rsplit_once(':').filter(|(_, port)| !port.contains(']')) {
        Some((name, port)) => {
            // Where a port should be there may be a password, so it is not address.
            let port = port.parse().map_err(|_| Error::resolution(text, "a port is a number from 0 to 65535"))?;
            (name, port)
        }
        None => (host, default_port),
    };
    let name = name.trim_start_matches('[').trim_end_matches(']').to_string();
    if name.is_empty() {
        return Err(Error::resolution(text, "a server without a name; write host:port"));
    }
    Ok(if is_tls {
        ConnectionAddr::TcpTls { host: name, port, insecure: false, tls_params: None }
    } else {
        ConnectionAddr::Tcp(name, port)
    })
}
