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

use super::fault::{Fault, fault_of};
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
pub(super) struct Manners {
    /// For how long an operation is tried again.
    pub(super) patience: Duration,
    /// How many replicas must have a message when `send` returns, and how long to wait for them.
    pub(super) min_replicas: u32,
    pub(super) replica_timeout: Duration,
    /// Whether a server that may evict messages is accepted.
    pub(super) allow_eviction: bool,
}

impl Default for Manners {
    fn default() -> Self {
        Manners {
            patience: Duration::from_secs(10),
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

pub(super) struct Link {
    /// Without secrets, for errors.
    pub(super) place: String,
    target: Target,
    pub(super) manners: Manners,
    /// Names this process in the memory of operations.
    pub(super) client: String,
    /// Where scripts have the time from.
    pub(super) time: Time,
    wires: [Mutex<Option<Wire>>; 3],
    connecting: tokio::sync::Mutex<()>,
    subscribing: tokio::sync::Mutex<()>,
    numbers: AtomicU64,
    tokens: AtomicU64,
    /// What is subscribed to, and whether the server has confirmed it.
    channels: Mutex<HashMap<String, bool>>,
    /// Those who wait, by channel, or by channel and reply.
    pub(super) hubs: Hubs<String>,
    waiting: AtomicUsize,
    /// Whether somebody looks after those who wait.
    is_watched: AtomicBool,
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Commands,
    /// Sends that wait for replicas: the wait blocks what comes after it.
    Durable,
    /// Subscriptions.
    News,
}

#[derive(Clone)]
struct Wire {
    number: u64,
    kind: Kind,
    /// An attempt ends after this time.
    longest: Duration,
    /// How many attempts are under way that may take long. While there is one, the connection is not given up because an answer
    /// behind it is late.
    long_attempts: Arc<AtomicUsize>,
    /// Whether channels belong to slots.
    is_sharded: bool,
}

#[derive(Clone)]
enum Kind {
    Server(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Wire {
    async fn ask(&self, command: &Cmd) -> RedisResult<Value> {
        match &self.kind {
            Kind::Server(connection) => {
                let mut connection = connection.clone();
                self.in_time(connection.req_packed_command(command)).await?.extract_error()
            }
            Kind::Cluster(connection) => {
                let mut connection = connection.clone();
                self.in_time(connection.req_packed_command(command)).await?.extract_error()
            }
        }
    }

    /// An answer of a server. A timer of the client library, or of the runtime, would wake the very thread that sets it, for each
    /// request.
    async fn in_time<T>(&self, answer: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
        let late = Sleep::for_(SystemClock::shared(), self.longest);
        unless(late, answer).await.unwrap_or_else(|| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()))
    }

    async fn run(&self, call: &ScriptCall) -> RedisResult<Value> {
        match self.ask(&call.command).await {
            Err(error) if error.code() == Some("NOSCRIPT") => self.ask(&call.with_source()).await,
            answer => answer,
        }
    }

    async fn subscribe(&self, channel: &str, on: bool) -> RedisResult<()> {
        match (self.kind.clone(), self.is_sharded, on) {
            (Kind::Server(mut connection), _, true) => self.in_time(connection.subscribe(channel)).await,
            (Kind::Server(mut connection), _, false) => self.in_time(connection.unsubscribe(channel)).await,
            (Kind::Cluster(mut connection), true, true) => self.in_time(connection.ssubscribe(channel)).await,
            (Kind::Cluster(mut connection), true, false) => self.in_time(connection.sunsubscribe(channel)).await,
            (Kind::Cluster(mut connection), false, true) => self.in_time(connection.subscribe(channel)).await,
            (Kind::Cluster(mut connection), false, false) => self.in_time(connection.unsubscribe(channel)).await,
        }
    }

    /// The same, of any node.
    async fn ask_any(&self, command: &Cmd) -> RedisResult<Value> {
        match &self.kind {
            Kind::Server(_) => self.ask(command).await,
            Kind::Cluster(connection) => {
                let any = RoutingInfo::SingleNode(SingleNodeRoutingInfo::RandomPrimary);
                let mut connection = connection.clone();
                self.in_time(connection.route_command(command.clone(), any)).await?.extract_error()
            }
        }
    }

    /// The same, of the node that has a key.
    async fn ask_at(&self, key: &str, command: &Cmd) -> RedisResult<Value> {
        match &self.kind {
            Kind::Server(_) => self.ask(command).await,
            Kind::Cluster(connection) => {
                let node = SingleNodeRoutingInfo::SpecificNode(Route::new(slot(key), SlotAddr::Master));
                let routing = RoutingInfo::SingleNode(node);
                let mut connection = connection.clone();
                self.in_time(connection.route_command(command.clone(), routing)).await?.extract_error()
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Link").field(&self.place).finish()
    }
}

impl Link {
    pub(super) fn new(place: String, target: Target, manners: Manners) -> Arc<Self> {
        Self::with_time(place, target, manners, Time::default())
    }

    pub(super) fn with_time(place: String, target: Target, manners: Manners, time: Time) -> Arc<Self> {
        Arc::new(Link {
            time,
            place,
            target,
            manners,
            client: format!("{:016x}", rand::random::<u64>()),
            wires: Default::default(),
            connecting: tokio::sync::Mutex::default(),
            subscribing: tokio::sync::Mutex::default(),
            numbers: AtomicU64::new(0),
            tokens: AtomicU64::new(0),
            channels: Mutex::default(),
            hubs: Hubs::default(),
            waiting: AtomicUsize::new(0),
            is_watched: AtomicBool::new(false),
        })
    }

    /// Another one for each operation: asked again with the same, a script does not act again.
    pub(super) fn token(&self) -> [u8; 8] {
        self.tokens.fetch_add(1, Ordering::Relaxed).to_be_bytes()
    }

    /// Connects, once: what cannot be reached is an error at once.
    pub(super) async fn connect(self: &Arc<Self>) -> Result<(), Error> {
        self.wire(Use::Commands).await.map(drop).map_err(|error| fault_of(&error).explain(&self.place, error))
    }

    async fn wire(self: &Arc<Self>, purpose: Use) -> RedisResult<Wire> {
        let slot = &self.wires[purpose as usize];
        if let Some(wire) = &*lock(slot) {
            return Ok(wire.clone());
        }
        let _one_at_a_time = self.connecting.lock().await;
        if let Some(wire) = &*lock(slot) {
            return Ok(wire.clone());
        }
        let wire = self.make(purpose).await?;
        *lock(slot) = Some(wire.clone());
        Ok(wire)
    }

    fn is_good(&self, number: u64, purpose: Use) -> bool {
        lock(&self.wires[purpose as usize]).as_ref().is_some_and(|wire| wire.number == number)
    }

    async fn make(self: &Arc<Self>, purpose: Use) -> RedisResult<Wire> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let link = Arc::downgrade(self);
        let pushed = move |info: PushInfo| {
            if let Some(link) = link.upgrade() {
                link.pushed(number, &info);
            }
            Ok::<_, redis::aio::SendError>(())
        };
        let is_news = purpose == Use::News;
        let mut server = AsyncConnectionConfig::new().set_connection_timeout(Some(ATTEMPT)).set_response_timeout(None);
        if is_news {
            server = server.set_push_sender(pushed.clone());
        }
        let kind = match &self.target {
            Target::Server(client) => Kind::Server(client.get_multiplexed_async_connection_with_config(&server).await?),
            Target::Sentinels(sentinels) => {
                let client = sentinels.lock().await.async_get_client().await?;
                Kind::Server(client.get_multiplexed_async_connection_with_config(&server).await?)
            }
            Target::Cluster(builder) => {
                let mut cluster = builder()
                    .use_protocol(redis::ProtocolVersion::RESP3)
                    .connection_timeout(ATTEMPT)
                    .response_timeout(self.longest(true, self.manners.patience))
                    .retries(4);
                if is_news {
                    cluster = cluster.push_sender(pushed);
                }
                Kind::Cluster(cluster.build()?.get_async_connection().await?)
            }
        };
        let mut wire = Wire {
            number,
            kind,
            longest: self.longest(false, ATTEMPT),
            long_attempts: Arc::default(),
            is_sharded: false,
        };
        self.inspect(&mut wire).await?;
        Ok(wire)
    }

    /// How long an attempt may take, of an operation that has this much time left.
    fn longest(&self, is_long: bool, left: Duration) -> Duration {
        let replicas = match self.manners.min_replicas {
            0 => Duration::ZERO,
            _ => self.manners.replica_timeout + Duration::from_secs(1),
        };
        let least = if is_long { left.max(ATTEMPT) } else { ATTEMPT };
        least.max(replicas)
    }

    /// Tells scripts whether they run in a cluster.
    pub(super) fn cluster_flag(&self) -> Bytes {
        Bytes::from_static(if matches!(self.target, Target::Cluster(_)) { b"1" } else { b"0" })
    }

    /// Looks at what the server is. One that does not tell is taken as it is.
    async fn inspect(&self, wire: &mut Wire) -> RedisResult<()> {
        let told = match wire.ask_any(cmd("INFO").arg("everything")).await {
            Ok(told) => redis::from_redis_value::<String>(told).unwrap_or_default(),
            // Its version it tells everybody; all programs must wake each other in the same way.
            Err(error) if error.code() == Some("NOPERM") => {
                let hello = wire.ask_any(&cmd("HELLO")).await?;
                let hello = redis::from_redis_value::<HashMap<String, Value>>(hello).unwrap_or_default();
                let version = hello.get("version").cloned().map(redis::from_redis_value::<String>);
                format!("redis_version:{}", version.and_then(Result::ok).unwrap_or_default())
            }
            Err(error) => return Err(error),
        };
        let field =
            |name: &str| told.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
        let major: u32 = field("redis_version").and_then(|text| text.split('.').next()?.parse().ok()).unwrap_or(0);
        wire.is_sharded = matches!(wire.kind, Kind::Cluster(_)) && major >= 7;
        if matches!(wire.kind, Kind::Server(_)) && field("cluster_enabled") == Some("1") {
            let next = "write redis+cluster://".to_string();
            return Err(RedisError::from((
                redis::ErrorKind::InvalidClientConfig,
                "the server is part of a cluster",
                next,
            )));
        }
        let evicts = field("maxmemory").is_some_and(|most| most != "0")
            && field("maxmemory_policy").is_some_and(|policy| policy != "noeviction");
        if evicts && !self.manners.allow_eviction {
            return Err(RedisError::from((
                redis::ErrorKind::InvalidClientConfig,
                "the server may evict messages when its memory is full",
                "set maxmemory-policy to noeviction there, or accept the loss with ?allow_eviction=true".to_string(),
            )));
        }
        Ok(())
    }

    /// What the server says without being asked.
    fn pushed(self: &Arc<Self>, number: u64, info: &PushInfo) {
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
                    self.hubs.wake(&format!("{channel}/{payload}"), u64::MAX);
                } else {
                    // 0: there is nothing to take yet, but everybody's next moment may be another.
                    let many = payload.parse().ok().filter(|many| *many > 0).unwrap_or(u64::MAX);
                    self.hubs.wake(&channel, many);
                }
            }
            PushKind::Disconnection => self.lost(number, Use::News, false),
            // The slot has moved away with its channels. Nobody asked for this, but the client takes it for the answer to
            // whatever is under way, and each answer after it for that to the next request: the connection is no good.
            PushKind::SUnsubscribe | PushKind::Unsubscribe if lock(&self.channels).contains_key(&text(0)) => {
                self.lost(number, Use::News, true);
            }
            _ => {}
        }
    }

    /// A connection is gone. If it was the one with subscriptions, receivers that wait subscribe again, and look. One that is
    /// silent has to be given up: nothing else ends it.
    fn lost(&self, number: u64, purpose: Use, is_silent: bool) {
        let mut slot = lock(&self.wires[purpose as usize]);
        // A cluster's connections to other nodes live on, and the one that has ended is made again.
        let is_over = |wire: &Wire| wire.number == number && (is_silent || matches!(wire.kind, Kind::Server(_)));
        if slot.as_ref().is_some_and(is_over) {
            *slot = None;
        }
        drop(slot);
        if purpose == Use::News {
            lock(&self.channels).clear();
            self.hubs.wake_all();
        }
    }

    /// Runs a script, again if its answer is lost.
    pub(super) async fn run(self: &Arc<Self>, call: ScriptCall) -> Result<Value, Fault> {
        let is_large = call.size() >= LARGE;
        let call = Arc::new(call);
        self.patiently(Use::Commands, is_large, move |wire| {
            let call = Arc::clone(&call);
            async move { wire.run(&call).await }
        })
        .await
    }

    /// The same, and waits until enough replicas have it. Says how many have it.
    pub(super) async fn run_durably(self: &Arc<Self>, call: ScriptCall) -> Result<(Value, u32), Fault> {
        let (replicas, timeout) = (self.manners.min_replicas, self.manners.replica_timeout.as_millis() as u64);
        let wait = cmd("WAIT").arg(replicas).arg(timeout).to_owned();
        let is_large = call.size() >= LARGE;
        let both = Arc::new((call, wait));
        self.patiently(Use::Durable, is_large, move |wire| {
            let both = Arc::clone(&both);
            async move {
                let answer = wire.run(&both.0).await?;
                let reached = wire.ask_at(&both.0.key, &both.1).await?;
                Ok((answer, redis::from_redis_value(reached)?))
            }
        })
        .await
    }

    /// One command, as often as it takes.
    pub(super) async fn command(self: &Arc<Self>, command: &Cmd) -> Result<Value, Fault> {
        let command = Arc::new(command.clone());
        self.patiently(Use::Commands, false, move |wire| {
            let command = Arc::clone(&command);
            async move { wire.ask(&command).await }
        })
        .await
    }

    async fn patiently<T, F: Future<Output = RedisResult<T>> + Send>(
        self: &Arc<Self>,
        purpose: Use,
        is_large: bool,
        mut act: impl FnMut(Wire) -> F + Send,
    ) -> Result<T, Fault> {
        let end = Instant::now() + self.manners.patience;
        let (mut failures, mut is_long) = (0, is_large);
        loop {
            let (error, number) = match self.wire(purpose).await {
                Ok(mut wire) => {
                    let number = wire.number;
                    let long_attempts = Arc::clone(&wire.long_attempts);
                    let _long_attempt = is_long.then(|| LongAttempt::begin(&long_attempts));
                    wire.longest = self.longest(is_long, end.saturating_duration_since(Instant::now()));
                    match act(wire).await {
                        // What comes over a connection that was given up meanwhile is not believed.
                        Ok(answer) if self.is_good(number, purpose) => return Ok(answer),
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
            let fault = match self.target {
                Target::Cluster(_) => fault_of(&error).in_cluster(),
                _ => fault_of(&error),
            };
            if let Some(number) = number.filter(|_| fault.breaks_connection()) {
                self.lost(number, purpose, error.is_timeout());
            }
            if !fault.may_pass() || Instant::now() >= end {
                return Err(fault.with(error));
            }
            failures += 1;
            tokio::time::sleep(pause(failures)).await;
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
            .patiently(Use::News, false, |wire| {
                let (link, channel) = (Arc::clone(self), channel.to_string());
                async move {
                    let _one_at_a_time = link.subscribing.lock().await;
                    if link.is_subscribed(&channel) {
                        return Ok(());
                    }
                    if !link.is_good(wire.number, Use::News) {
                        // Lost while others were before this one: it waits for no answer of theirs.
                        return Err(std::io::Error::from(std::io::ErrorKind::NotConnected).into());
                    }
                    // Before it is: a connection that is lost meanwhile takes it out again.
                    lock(&link.channels).insert(channel.clone(), false);
                    let done = wire.subscribe(&channel, true).await;
                    let mut channels = lock(&link.channels);
                    match (&done, channels.get_mut(&channel)) {
                        (Ok(()), Some(is_confirmed)) => *is_confirmed = true,
                        (Err(_), Some(_)) => drop(channels.remove(&channel)),
                        (_, None) => {}
                    }
                    done
                }
            })
            .await;
        subscribed.map_err(|fault| fault.into_error(&self.place))
    }

    /// Nobody waits there any more.
    pub(super) fn unsubscribe(self: &Arc<Self>, channel: String) {
        let (link, wire) = (Arc::clone(self), lock(&self.wires[Use::News as usize]).clone());
        let Some(wire) = wire else { return };
        let _ = io_thread::spawn(async move {
            let _one_at_a_time = link.subscribing.lock().await;
            if link.hubs.is_waited_for(&channel) || lock(&link.channels).remove(&channel).is_none() {
                return;
            }
            let _ = wire.subscribe(&channel, false).await;
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
struct Watching {
    link: Weak<Link>,
    /// Whether it ended as planned.
    is_over: bool,
}

impl Watching {
    async fn run(mut self) {
        loop {
            tokio::time::sleep(KEEP_ALIVE).await;
            let Some(link) = self.link.upgrade() else { return };
            if link.waiting.load(Ordering::SeqCst) == 0 {
                link.is_watched.store(false, Ordering::SeqCst);
                // A receive that began to wait in between found this task, and relies on it.
                if link.waiting.load(Ordering::SeqCst) == 0 || link.is_watched.swap(true, Ordering::SeqCst) {
                    self.is_over = true;
                    return;
                }
            }
            let Some(wire) = lock(&link.wires[Use::News as usize]).clone() else { continue };
            let answer = tokio::time::timeout(ATTEMPT, wire.ask(&cmd("PING"))).await;
            if !matches!(answer, Ok(Ok(_))) {
                link.lost(wire.number, Use::News, true);
            }
        }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        if let Some(link) = self.link.upgrade().filter(|_| !self.is_over) {
            link.is_watched.store(false, Ordering::SeqCst);
        }
    }
}

impl Watched for Link {
    /// Somebody begins to wait: a connection that is silently dead has to be noticed.
    fn begin_waiting(self: &Arc<Self>) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        if !self.is_watched.swap(true, Ordering::SeqCst) {
            let watching = Watching { link: Arc::downgrade(self), is_over: false };
            // Without a thread the task is dropped.
            let _ = io_thread::spawn(watching.run());
        }
    }

    fn end_waiting(&self) {
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The slot of a key with a tag: the remainder of a checksum, CRC-16 with the polynomial 0x1021, of what is in the braces.
fn slot(key: &str) -> u16 {
    let tag = key.trim_start_matches('{').split('}').next().unwrap_or(key);
    let sum = tag.bytes().fold(0_u16, |sum, byte| {
        (0..8).fold(sum ^ u16::from(byte) << 8, |sum, _| if sum & 0x8000 == 0 { sum << 1 } else { sum << 1 ^ 0x1021 })
    });
    sum % 16_384
}

/// From 10 milliseconds, doubling up to half a second, and never the same for two.
fn pause(failures: u32) -> Duration {
    let longest = Duration::from_millis(10 << failures.min(6)).min(Duration::from_millis(500));
    longest.mul_f64(rand::rng().random_range(0.5..1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whether_a_place_is_a_cluster_is_known_without_a_connection() {
        let cluster = Target::Cluster(Box::new(|| ClusterClientBuilder::new(["redis://127.0.0.1:1"])));
        let server = Target::Server(Client::open("redis://127.0.0.1:1").unwrap());
        for (target, flag) in [(cluster, "1"), (server, "0")] {
            assert_eq!(Link::new("redis".into(), target, Manners::default()).cluster_flag(), flag);
        }
    }
}
