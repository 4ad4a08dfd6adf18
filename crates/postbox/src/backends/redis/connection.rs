//! One connection to a server or to the nodes of a cluster.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::aio::{AsyncPushSender, ConnectionLike, MultiplexedConnection};
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr};
use redis::{AsyncConnectionConfig, Client, Cmd, ErrorKind, ProtocolVersion, RedisError, RedisResult, Value, cmd};

use super::config::{Options, Target};
use super::script::ScriptCall;
use crate::runtime::cancellation::unless;
use crate::runtime::clock::{Sleep, SystemClock};

/// The first attempt of a request ends after this time, because its connection may be dead. Further
/// attempts, and those of large requests, may take all the time that is left: large messages take
/// long on a slow network.
pub(super) const FIRST_ATTEMPT: Duration = Duration::from_secs(3);

#[derive(Clone)]
pub(super) struct Connection {
    id: u64,
    kind: ConnectionKind,
    /// The longest time that a request waits for its response.
    timeout: Duration,
    long_attempts: LongAttempts,
    has_sharded_channels: bool,
}

#[derive(Clone)]
enum ConnectionKind {
    Server(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Connection {
    /// Connects, and checks that the server can be used. Pushed messages go to `on_push`.
    pub(super) async fn open(
        id: u64,
        target: &Target,
        options: &Options,
        on_push: Option<impl AsyncPushSender>,
    ) -> RedisResult<Self> {
        let kind = match target {
            Target::Server(client) => ConnectionKind::Server(connect(client, on_push).await?),
            Target::Sentinels(sentinels) => {
                let client = sentinels.lock().await.async_get_client().await?;
                ConnectionKind::Server(connect(&client, on_push).await?)
            }
            Target::Cluster(builder) => {
                let mut cluster = builder()
                    .use_protocol(ProtocolVersion::RESP3)
                    .connection_timeout(FIRST_ATTEMPT)
                    .response_timeout(options.attempt_timeout(true, options.timeout))
                    .retries(4);
                if let Some(on_push) = on_push {
                    cluster = cluster.push_sender(on_push);
                }
                ConnectionKind::Cluster(cluster.build()?.get_async_connection().await?)
            }
        };
        let timeout = options.attempt_timeout(false, FIRST_ATTEMPT);
        let long_attempts = LongAttempts::default();
        let mut connection = Connection { id, kind, timeout, long_attempts, has_sharded_channels: false };
        connection.check_server(options).await?;
        Ok(connection)
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn is_cluster(&self) -> bool {
        matches!(self.kind, ConnectionKind::Cluster(_))
    }

    pub(super) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    pub(super) fn long_attempts(&self) -> &LongAttempts {
        &self.long_attempts
    }

    /// Limits the time of a response by the timer of this crate. A timer of the client library or
    /// of Tokio would wake the I/O thread for each request.
    async fn within_timeout<T>(&self, response: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
        let timeout = Sleep::for_(SystemClock::shared(), self.timeout);
        unless(timeout, response).await.unwrap_or_else(|| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
    }

    pub(super) async fn request(&self, command: &Cmd) -> RedisResult<Value> {
        match self.kind.clone() {
            ConnectionKind::Server(mut connection) => {
                self.within_timeout(connection.req_packed_command(command)).await?.extract_error()
            }
            ConnectionKind::Cluster(mut connection) => {
                self.within_timeout(connection.req_packed_command(command)).await?.extract_error()
            }
        }
    }

    async fn request_at(&self, command: &Cmd, node: SingleNodeRoutingInfo) -> RedisResult<Value> {
        match self.kind.clone() {
            ConnectionKind::Server(_) => self.request(command).await,
            ConnectionKind::Cluster(mut connection) => {
                let response = connection.route_command(command.clone(), RoutingInfo::SingleNode(node));
                self.within_timeout(response).await?.extract_error()
            }
        }
    }

    /// Sends a command without a key to the node that has a key.
    pub(super) async fn request_at_key(&self, command: &Cmd, key: &str) -> RedisResult<Value> {
        let node = SingleNodeRoutingInfo::SpecificNode(Route::new(hash_slot(key), SlotAddr::Master));
        self.request_at(command, node).await
    }

    pub(super) async fn run(&self, call: &ScriptCall) -> RedisResult<Value> {
        match self.request(call.command()).await {
            Err(error) if error.code() == Some("NOSCRIPT") => self.request(&call.with_source()).await,
            response => response,
        }
    }

    /// Subscribes to a channel, or ends the subscription.
    pub(super) async fn set_subscribed(&self, channel: &str, is_subscribed: bool) -> RedisResult<()> {
        match (self.kind.clone(), self.has_sharded_channels, is_subscribed) {
            (ConnectionKind::Server(mut server), _, true) => self.within_timeout(server.subscribe(channel)).await,
            (ConnectionKind::Server(mut server), _, false) => self.within_timeout(server.unsubscribe(channel)).await,
            (ConnectionKind::Cluster(mut nodes), true, true) => self.within_timeout(nodes.ssubscribe(channel)).await,
            (ConnectionKind::Cluster(mut nodes), true, false) => self.within_timeout(nodes.sunsubscribe(channel)).await,
            (ConnectionKind::Cluster(mut nodes), false, true) => self.within_timeout(nodes.subscribe(channel)).await,
            (ConnectionKind::Cluster(mut nodes), false, false) => self.within_timeout(nodes.unsubscribe(channel)).await,
        }
    }

    /// Refuses a cluster node that is addressed as a single server, and a server that may evict
    /// messages.
    async fn check_server(&mut self, options: &Options) -> RedisResult<()> {
        let any_node = || SingleNodeRoutingInfo::RandomPrimary;
        let info = match self.request_at(cmd("INFO").arg("everything"), any_node()).await {
            Ok(info) => redis::from_redis_value::<String>(info).unwrap_or_default(),
            // The version decides which channels are used. HELLO tells it to all users.
            Err(error) if error.code() == Some("NOPERM") => {
                let hello = self.request_at(&cmd("HELLO"), any_node()).await?;
                let hello = redis::from_redis_value::<HashMap<String, Value>>(hello).unwrap_or_default();
                let version = hello.get("version").cloned().map(redis::from_redis_value::<String>);
                format!("redis_version:{}", version.and_then(Result::ok).unwrap_or_default())
            }
            Err(error) => return Err(error),
        };
        let field =
            |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
        let refused =
            |reason, advice: &str| Err(RedisError::from((ErrorKind::InvalidClientConfig, reason, advice.into())));
        let major: u32 = field("redis_version").and_then(|text| text.split('.').next()?.parse().ok()).unwrap_or(0);
        self.has_sharded_channels = self.is_cluster() && major >= 7;
        if !self.is_cluster() && field("cluster_enabled") == Some("1") {
            return refused("the server is part of a cluster", "write redis+cluster://");
        }
        let evicts = field("maxmemory").is_some_and(|bytes| bytes != "0")
            && field("maxmemory_policy").is_some_and(|policy| policy != "noeviction");
        if evicts && !options.allow_eviction {
            return refused(
                "the server may evict messages when its memory is full",
                "set maxmemory-policy to noeviction there, or accept the loss with ?allow_eviction=true",
            );
        }
        Ok(())
    }
}

async fn connect(client: &Client, on_push: Option<impl AsyncPushSender>) -> RedisResult<MultiplexedConnection> {
    let mut config =
        AsyncConnectionConfig::new().set_connection_timeout(Some(FIRST_ATTEMPT)).set_response_timeout(None);
    if let Some(on_push) = on_push {
        config = config.set_push_sender(on_push);
    }
    client.get_multiplexed_async_connection_with_config(&config).await
}

/// The attempts on a connection that may take long. While there is one, a late response of another
/// attempt does not mean that the connection is dead.
#[derive(Clone, Default)]
pub(super) struct LongAttempts(Arc<AtomicUsize>);

/// An attempt that is counted until this is dropped.
pub(super) struct LongAttempt(LongAttempts);

impl LongAttempts {
    pub(super) fn begin(&self) -> LongAttempt {
        self.0.fetch_add(1, Ordering::SeqCst);
        LongAttempt(self.clone())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.load(Ordering::SeqCst) == 0
    }
}

impl Drop for LongAttempt {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The hash slot of a key with a hash tag: CRC-16 (XMODEM) of the tag, modulo the number of slots.
fn hash_slot(key: &str) -> u16 {
    let tag = key.trim_start_matches('{').split('}').next().unwrap_or(key);
    let sum = tag.bytes().fold(0_u16, |sum, byte| {
        (0..8).fold(sum ^ u16::from(byte) << 8, |sum, _| if sum & 0x8000 == 0 { sum << 1 } else { sum << 1 ^ 0x1021 })
    });
    sum % 16_384
}
