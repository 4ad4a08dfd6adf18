//! The connection to a server, a cluster, or a primary that sentinels know: made when it is needed, made again when it is
//! lost, shared by all mailboxes.
//!
//! It lives on a thread of its own, one for the whole process, so that it does not end with anybody's executor. Receivers that
//! wait share one more connection, on which the server tells what happens: a server limits what may wait in a connection that
//! subscribes (32 MiB), so no message goes over that one.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rand::RngExt as _;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClientBuilder;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr};
use redis::sentinel::SentinelClient;
use redis::{AsyncConnectionConfig, Client, Cmd, PushInfo, PushKind, RedisError, RedisResult, Value, cmd};

use super::error::{RequestError, request_error};
use super::script::{ScriptCall, Time};
use crate::error::Error;
use crate::runtime::cancellation::unless;
use crate::runtime::clock::{Sleep, SystemClock};
use crate::runtime::io_thread;
use crate::runtime::waiters::{Hubs, Watched};

/// Where to connect.
pub(super) enum Target {
    Server(Client),
    /// Its builder cannot be used twice, and a connection may have to be made again.
    Cluster(Box<dyn Fn() -> ClusterClientBuilder + Send + Sync>),
    Sentinels(tokio::sync::Mutex<SentinelClient>),
}

/// How to behave there.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Options {
    /// For how long an operation is tried again.
    pub(super) timeout: Duration,
    /// How many replicas must have a message when `send` returns, and how long to wait for them.
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

/// The first attempt of an operation ends after this time, since the connection may be dead. A further attempt, and an attempt
/// with a large request, may take all the time that the operation has left: large messages take long on a slow network.
const ATTEMPT: Duration = Duration::from_secs(3);
/// A request of at least this size is large.
const LARGE: usize = 1 << 20;
/// So often a connection over which nothing but waiting goes is tried.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

pub(super) struct RedisClient {
    /// Without secrets, for errors.
    pub(super) address: String,
    target: Target,
    pub(super) options: Options,
    /// Names this process in the memory of operations.
    pub(super) client_id: String,
    /// Where scripts have the time from.
    pub(super) time: Time,
    connections: [Mutex<Option<Connection>>; 3],
    connecting: tokio::sync::Mutex<()>,
    subscribing: tokio::sync::Mutex<()>,
    numbers: AtomicU64,
    tokens: AtomicU64,
    /// What is subscribed to, and whether the server has confirmed it.
    channels: Mutex<HashMap<String, bool>>,
    /// Those who wait, by channel, or by channel and reply.
    pub(super) waiters: Hubs<String>,
    waiting: AtomicUsize,
    /// Whether somebody looks after those who wait.
    is_checked: AtomicBool,
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Commands,
    /// Sends that wait for replicas: the wait blocks what comes after it.
    Durable,
    /// Subscriptions.
    Subscriptions,
}

#[derive(Clone)]
struct Connection {
    number: u64,
    kind: ConnectionKind,
    /// An attempt ends after this time.
    attempt_timeout: Duration,
    /// How many attempts are under way that may take long. While there is one, the connection is not given up because an answer
    /// behind it is late.
    long_attempts: Arc<AtomicUsize>,
    /// Whether channels belong to slots.
    is_sharded: bool,
}

#[derive(Clone)]
enum ConnectionKind {
    Server(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Connection {
    async fn request(&self, command: &Cmd) -> RedisResult<Value> {
        match &self.kind {
            ConnectionKind::Server(connection) => {
                let mut connection = connection.clone();
                self.with_timeout(connection.req_packed_command(command)).await?.extract_error()
            }
            ConnectionKind::Cluster(connection) => {
                let mut connection = connection.clone();
                self.with_timeout(connection.req_packed_command(command)).await?.extract_error()
            }
        }
    }

    /// An answer of a server. A timer of the client library, or of the runtime, would wake the very thread that sets it, for each
    /// request.
    async fn with_timeout<T>(&self, answer: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
        let late = Sleep::for_(SystemClock::shared(), self.attempt_timeout);
        unless(late, answer).await.unwrap_or_else(|| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()))
    }

    async fn run(&self, call: &ScriptCall) -> RedisResult<Value> {
        match self.request(&call.command).await {
            Err(error) if error.code() == Some("NOSCRIPT") => self.request(&call.with_source()).await,
            answer => answer,
        }
    }

    async fn subscribe(&self, channel: &str, on: bool) -> RedisResult<()> {
        match (self.kind.clone(), self.is_sharded, on) {
            (ConnectionKind::Server(mut connection), _, true) => self.with_timeout(connection.subscribe(channel)).await,
            (ConnectionKind::Server(mut connection), _, false) => {
                self.with_timeout(connection.unsubscribe(channel)).await
            }
            (ConnectionKind::Cluster(mut connection), true, true) => {
                self.with_timeout(connection.ssubscribe(channel)).await
            }
            (ConnectionKind::Cluster(mut connection), true, false) => {
                self.with_timeout(connection.sunsubscribe(channel)).await
            }
            (ConnectionKind::Cluster(mut connection), false, true) => {
                self.with_timeout(connection.subscribe(channel)).await
            }
            (ConnectionKind::Cluster(mut connection), false, false) => {
                self.with_timeout(connection.unsubscribe(channel)).await
            }
        }
    }

    /// The same, of any node.
    async fn request_any_node(&self, command: &Cmd) -> RedisResult<Value> {
        match &self.kind {
            ConnectionKind::Server(_) => self.request(command).await,
            ConnectionKind::Cluster(connection) => {
                let any = RoutingInfo::SingleNode(SingleNodeRoutingInfo::RandomPrimary);
                let mut connection = connection.clone();
                self.with_timeout(connection.route_command(command.clone(), any)).await?.extract_error()
            }
        }
    }

    /// The same, of the node that has a key.
    async fn request_node_of(&self, key: &str, command: &Cmd) -> RedisResult<Value> {
        match &self.kind {
            ConnectionKind::Server(_) => self.request(command).await,
            ConnectionKind::Cluster(connection) => {
                let node = SingleNodeRoutingInfo::SpecificNode(Route::new(hash_slot(key), SlotAddr::Master));
                let routing = RoutingInfo::SingleNode(node);
                let mut connection = connection.clone();
                self.with_timeout(connection.route_command(command.clone(), routing)).await?.extract_error()
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for RedisClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RedisClient").field(&self.address).finish()
    }
}

impl RedisClient {
    pub(super) fn new(address: String, target: Target, options: Options) -> Arc<Self> {
        Self::with_time(address, target, options, Time::default())
    }

    pub(super) fn with_time(address: String, target: Target, options: Options, time: Time) -> Arc<Self> {
        Arc::new(RedisClient {
            time,
            address,
            target,
            options,
            client_id: format!("{:016x}", rand::random::<u64>()),
            connections: Default::default(),
            connecting: tokio::sync::Mutex::default(),
            subscribing: tokio::sync::Mutex::default(),
            numbers: AtomicU64::new(0),
            tokens: AtomicU64::new(0),
            channels: Mutex::default(),
            waiters: Hubs::default(),
            waiting: AtomicUsize::new(0),
            is_checked: AtomicBool::new(false),
        })
    }

    /// Another one for each operation: asked again with the same, a script does not act again.
    pub(super) fn token(&self) -> [u8; 8] {
        self.tokens.fetch_add(1, Ordering::Relaxed).to_be_bytes()
    }

    /// Connects, once: what cannot be reached is an error at once.
    pub(super) async fn connect(self: &Arc<Self>) -> Result<(), Error> {
        self.connection(Purpose::Commands)
            .await
            .map(drop)
            .map_err(|error| request_error(&error).explain(&self.address, error))
    }

    async fn connection(self: &Arc<Self>, purpose: Purpose) -> RedisResult<Connection> {
        let slot = &self.connections[purpose as usize];
        if let Some(connection) = &*lock(slot) {
            return Ok(connection.clone());
        }
        let _one_at_a_time = self.connecting.lock().await;
        if let Some(connection) = &*lock(slot) {
            return Ok(connection.clone());
        }
        let connection = self.open(purpose).await?;
        *lock(slot) = Some(connection.clone());
        Ok(connection)
    }

    fn is_current(&self, number: u64, purpose: Purpose) -> bool {
        lock(&self.connections[purpose as usize]).as_ref().is_some_and(|connection| connection.number == number)
    }

    async fn open(self: &Arc<Self>, purpose: Purpose) -> RedisResult<Connection> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let client = Arc::downgrade(self);
        let on_push = move |info: PushInfo| {
            if let Some(client) = client.upgrade() {
                client.on_push(number, &info);
            }
            Ok::<_, redis::aio::SendError>(())
        };
        let is_for_subscriptions = purpose == Purpose::Subscriptions;
        let mut server = AsyncConnectionConfig::new().set_connection_timeout(Some(ATTEMPT)).set_response_timeout(None);
        if is_for_subscriptions {
            server = server.set_push_sender(on_push.clone());
        }
        let kind = match &self.target {
            Target::Server(client) => {
                ConnectionKind::Server(client.get_multiplexed_async_connection_with_config(&server).await?)
            }
            Target::Sentinels(sentinels) => {
                let client = sentinels.lock().await.async_get_client().await?;
                ConnectionKind::Server(client.get_multiplexed_async_connection_with_config(&server).await?)
            }
            Target::Cluster(builder) => {
                let mut cluster = builder()
                    .use_protocol(redis::ProtocolVersion::RESP3)
                    .connection_timeout(ATTEMPT)
                    .response_timeout(self.attempt_timeout(true, self.options.timeout))
                    .retries(4);
                if is_for_subscriptions {
                    cluster = cluster.push_sender(on_push);
                }
                ConnectionKind::Cluster(cluster.build()?.get_async_connection().await?)
            }
        };
        let mut connection = Connection {
            number,
            kind,
            attempt_timeout: self.attempt_timeout(false, ATTEMPT),
            long_attempts: Arc::default(),
            is_sharded: false,
        };
        self.inspect(&mut connection).await?;
        Ok(connection)
    }

    /// How long an attempt may take, of an operation that has this much time left.
    fn attempt_timeout(&self, is_long: bool, left: Duration) -> Duration {
        let replicas = match self.options.min_replicas {
            0 => Duration::ZERO,
            _ => self.options.replica_timeout + Duration::from_secs(1),
        };
        let least = if is_long { left.max(ATTEMPT) } else { ATTEMPT };
        least.max(replicas)
    }

    /// Tells scripts whether they run in a cluster.
    pub(super) fn cluster_flag(&self) -> Bytes {
        Bytes::from_static(if matches!(self.target, Target::Cluster(_)) { b"1" } else { b"0" })
    }

    /// Looks at what the server is. One that does not tell is taken as it is.
    async fn inspect(&self, connection: &mut Connection) -> RedisResult<()> {
        let told = match connection.request_any_node(cmd("INFO").arg("everything")).await {
            Ok(told) => redis::from_redis_value::<String>(told).unwrap_or_default(),
            // Its version it tells everybody; all programs must wake each other in the same way.
            Err(error) if error.code() == Some("NOPERM") => {
                let hello = connection.request_any_node(&cmd("HELLO")).await?;
                let hello = redis::from_redis_value::<HashMap<String, Value>>(hello).unwrap_or_default();
                let version = hello.get("version").cloned().map(redis::from_redis_value::<String>);
                format!("redis_version:{}", version.and_then(Result::ok).unwrap_or_default())
            }
            Err(error) => return Err(error),
        };
        let field =
            |name: &str| told.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
        let major: u32 = field("redis_version").and_then(|text| text.split('.').next()?.parse().ok()).unwrap_or(0);
        connection.is_sharded = matches!(connection.kind, ConnectionKind::Cluster(_)) && major >= 7;
        if matches!(connection.kind, ConnectionKind::Server(_)) && field("cluster_enabled") == Some("1") {
            let next = "write redis+cluster://".to_string();
            return Err(RedisError::from((
                redis::ErrorKind::InvalidClientConfig,
                "the server is part of a cluster",
                next,
            )));
        }
        let evicts = field("maxmemory").is_some_and(|most| most != "0")
            && field("maxmemory_policy").is_some_and(|policy| policy != "noeviction");
        if evicts && !self.options.allow_eviction {
            return Err(RedisError::from((
                redis::ErrorKind::InvalidClientConfig,
                "the server may evict messages when its memory is full",
                "set maxmemory-policy to noeviction there, or accept the loss with ?allow_eviction=true".to_string(),
            )));
        }
        Ok(())
    }

    /// What the server says without being asked.
    fn on_push(self: &Arc<Self>, number: u64, info: &PushInfo) {
        let text = |at: usize| match info.data.get(at) {
            Some(Value::BulkString(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
            Some(Value::SimpleString(text)) => text.clone(),
            _ => String::new(),
        };
        match info.kind {
            PushKind::Message | PushKind::SMessage => {
                let channel = text(0);
                let payload = text(1);
                if channel.ends_with(super::replies::CHANNEL) {
                    self.waiters.wake(&format!("{channel}/{payload}"), u64::MAX);
                } else {
                    // 0: there is nothing to take yet, but everybody's next moment may be another.
                    let many = payload.parse().ok().filter(|many| *many > 0).unwrap_or(u64::MAX);
                    self.waiters.wake(&channel, many);
                }
            }
            PushKind::Disconnection => self.connection_lost(number, Purpose::Subscriptions, false),
            // The slot has moved away with its channels. Nobody asked for this, but the client takes it for the answer to
            // whatever is under way, and each answer after it for that to the next request: the connection is no good.
            PushKind::SUnsubscribe | PushKind::Unsubscribe if lock(&self.channels).contains_key(&text(0)) => {
                self.connection_lost(number, Purpose::Subscriptions, true);
            }
            _ => {}
        }
    }

    /// A connection is gone. If it was the one with subscriptions, receivers that wait subscribe again, and look. One that is
    /// silent has to be given up: nothing else ends it.
    fn connection_lost(&self, number: u64, purpose: Purpose, is_silent: bool) {
        let mut slot = lock(&self.connections[purpose as usize]);
        // A cluster's connections to other nodes live on, and the one that has ended is made again.
        let is_over = |connection: &Connection| {
            connection.number == number && (is_silent || matches!(connection.kind, ConnectionKind::Server(_)))
        };
        if slot.as_ref().is_some_and(is_over) {
            *slot = None;
        }
        drop(slot);
        if purpose == Purpose::Subscriptions {
            lock(&self.channels).clear();
            self.waiters.wake_all();
        }
    }

    /// Runs a script, again if its answer is lost.
    pub(super) async fn run(self: &Arc<Self>, call: ScriptCall) -> Result<Value, RequestError> {
        let is_large = call.size() >= LARGE;
        let call = Arc::new(call);
        self.retry(Purpose::Commands, is_large, move |connection| {
            let call = Arc::clone(&call);
            async move { connection.run(&call).await }
        })
        .await
    }

    /// The same, and waits until enough replicas have it. Says how many have it.
    pub(super) async fn run_durably(self: &Arc<Self>, call: ScriptCall) -> Result<(Value, u32), RequestError> {
        let (replicas, timeout) = (self.options.min_replicas, self.options.replica_timeout.as_millis() as u64);
        let wait = cmd("WAIT").arg(replicas).arg(timeout).to_owned();
        let is_large = call.size() >= LARGE;
        let both = Arc::new((call, wait));
        self.retry(Purpose::Durable, is_large, move |connection| {
            let both = Arc::clone(&both);
            async move {
                let answer = connection.run(&both.0).await?;
                let reached = connection.request_node_of(&both.0.key, &both.1).await?;
                Ok((answer, redis::from_redis_value(reached)?))
            }
        })
        .await
    }

    /// One command, as often as it takes.
    pub(super) async fn command(self: &Arc<Self>, command: &Cmd) -> Result<Value, RequestError> {
        let command = Arc::new(command.clone());
        self.retry(Purpose::Commands, false, move |connection| {
            let command = Arc::clone(&command);
            async move { connection.request(&command).await }
        })
        .await
    }

    async fn retry<T, F: Future<Output = RedisResult<T>> + Send>(
        self: &Arc<Self>,
        purpose: Purpose,
        is_large: bool,
        mut act: impl FnMut(Connection) -> F + Send,
    ) -> Result<T, RequestError> {
        let end = Instant::now() + self.options.timeout;
        let (mut failures, mut is_long) = (0, is_large);
        loop {
            let (error, number) = match self.connection(purpose).await {
                Ok(mut connection) => {
                    let number = connection.number;
                    let long_attempts = Arc::clone(&connection.long_attempts);
                    let _long_attempt = is_long.then(|| LongAttempt::begin(&long_attempts));
                    connection.attempt_timeout =
                        self.attempt_timeout(is_long, end.saturating_duration_since(Instant::now()));
                    match act(connection).await {
                        // What comes over a connection that was given up meanwhile is not believed.
                        Ok(answer) if self.is_current(number, purpose) => return Ok(answer),
                        Ok(_) => (std::io::Error::from(std::io::ErrorKind::NotConnected).into(), Some(number)),
                        Err(error) if error.is_timeout() && !is_long && long_attempts.load(Ordering::SeqCst) > 0 => {
                            (error, None)
                        }
                        Err(error) => (error, Some(number)),
                    }
                }
                Err(error) => (error, None),
            };
            is_long |= error.is_timeout();
            let failure = match self.target {
                Target::Cluster(_) => request_error(&error).in_cluster(),
                _ => request_error(&error),
            };
            if let Some(number) = number.filter(|_| failure.breaks_connection()) {
                self.connection_lost(number, purpose, error.is_timeout());
            }
            if !failure.may_pass() || Instant::now() >= end {
                return Err(failure.with(error));
            }
            failures += 1;
            tokio::time::sleep(backoff(failures)).await;
        }
    }

    /// Whether what is published there wakes those who wait.
    pub(super) fn is_subscribed(&self, channel: &str) -> bool {
        lock(&self.channels).get(channel).is_some_and(|is_confirmed| *is_confirmed)
    }

    /// From here on what is published there wakes those who wait.
    pub(super) async fn subscribe(self: &Arc<Self>, channel: &str) -> Result<(), Error> {
        if self.is_subscribed(channel) {
            return Ok(());
        }
        let subscribed = self
            .retry(Purpose::Subscriptions, false, |connection| {
                let (client, channel) = (Arc::clone(self), channel.to_string());
                async move {
                    let _one_at_a_time = client.subscribing.lock().await;
                    if client.is_subscribed(&channel) {
                        return Ok(());
                    }
                    if !client.is_current(connection.number, Purpose::Subscriptions) {
                        // Lost while others were before this one: it waits for no answer of theirs.
                        return Err(std::io::Error::from(std::io::ErrorKind::NotConnected).into());
                    }
                    // Before it is: a connection that is lost meanwhile takes it out again.
                    lock(&client.channels).insert(channel.clone(), false);
                    let done = connection.subscribe(&channel, true).await;
                    let mut channels = lock(&client.channels);
                    match (&done, channels.get_mut(&channel)) {
                        (Ok(()), Some(is_confirmed)) => *is_confirmed = true,
                        (Err(_), Some(_)) => drop(channels.remove(&channel)),
                        (_, None) => {}
                    }
                    done
                }
            })
            .await;
        subscribed.map_err(|error| error.into_error(&self.address))
    }

    /// Nobody waits there any more.
    pub(super) fn unsubscribe(self: &Arc<Self>, channel: String) {
        let (client, connection) = (Arc::clone(self), lock(&self.connections[Purpose::Subscriptions as usize]).clone());
        let Some(connection) = connection else { return };
        let _ = io_thread::spawn(async move {
            let _one_at_a_time = client.subscribing.lock().await;
            if client.waiters.is_waited_for(&channel) || lock(&client.channels).remove(&channel).is_none() {
                return;
            }
            let _ = connection.subscribe(&channel, false).await;
        });
    }
}

/// An attempt that may take long is under way, until this is dropped.
struct LongAttempt(Arc<AtomicUsize>);

impl LongAttempt {
    fn begin(attempts: &Arc<AtomicUsize>) -> Self {
        attempts.fetch_add(1, Ordering::SeqCst);
        LongAttempt(Arc::clone(attempts))
    }
}

impl Drop for LongAttempt {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The task that checks the connection of the subscriptions. However it ends, the next receive that waits starts another.
struct HealthCheck {
    client: Weak<RedisClient>,
    /// Whether it ended as planned.
    is_over: bool,
}

impl HealthCheck {
    async fn run(mut self) {
        loop {
            tokio::time::sleep(KEEP_ALIVE).await;
            let Some(client) = self.client.upgrade() else { return };
            if client.waiting.load(Ordering::SeqCst) == 0 {
                client.is_checked.store(false, Ordering::SeqCst);
                // A receive that began to wait in between found this task, and relies on it.
                if client.waiting.load(Ordering::SeqCst) == 0 || client.is_checked.swap(true, Ordering::SeqCst) {
                    self.is_over = true;
                    return;
                }
            }
            let Some(connection) = lock(&client.connections[Purpose::Subscriptions as usize]).clone() else { continue };
            let answer = tokio::time::timeout(ATTEMPT, connection.request(&cmd("PING"))).await;
            if !matches!(answer, Ok(Ok(_))) {
                client.connection_lost(connection.number, Purpose::Subscriptions, true);
            }
        }
    }
}

impl Drop for HealthCheck {
    fn drop(&mut self) {
        if let Some(client) = self.client.upgrade().filter(|_| !self.is_over) {
            client.is_checked.store(false, Ordering::SeqCst);
        }
    }
}

impl Watched for RedisClient {
    /// Somebody begins to wait: a connection that is silently dead has to be noticed.
    fn begin_waiting(self: &Arc<Self>) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        if !self.is_checked.swap(true, Ordering::SeqCst) {
            let watching = HealthCheck { client: Arc::downgrade(self), is_over: false };
            // Without a thread the task is dropped.
            let _ = io_thread::spawn(watching.run());
        }
    }

    fn end_waiting(&self) {
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The slot of a key with a tag: the remainder of a checksum, CRC-16 with the polynomial 0x1021, of what is in the braces.
fn hash_slot(key: &str) -> u16 {
    let tag = key.trim_start_matches('{').split('}').next().unwrap_or(key);
    let sum = tag.bytes().fold(0_u16, |sum, byte| {
        (0..8).fold(sum ^ u16::from(byte) << 8, |sum, _| if sum & 0x8000 == 0 { sum << 1 } else { sum << 1 ^ 0x1021 })
    });
    sum % 16_384
}

/// From 10 milliseconds, doubling up to half a second, and never the same for two.
fn backoff(failures: u32) -> Duration {
    let attempt_timeout = Duration::from_millis(10 << failures.min(6)).min(Duration::from_millis(500));
    attempt_timeout.mul_f64(rand::rng().random_range(0.5..1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whether_a_target_is_a_cluster_is_known_without_a_connection() {
        let cluster = Target::Cluster(Box::new(|| ClusterClientBuilder::new(["redis://127.0.0.1:1"])));
        let server = Target::Server(Client::open("redis://127.0.0.1:1").unwrap());
        for (target, flag) in [(cluster, "1"), (server, "0")] {
            assert_eq!(RedisClient::new("redis".into(), target, Options::default()).cluster_flag(), flag);
        }
    }
}
