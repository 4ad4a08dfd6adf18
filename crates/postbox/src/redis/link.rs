//! The connection to a server, a cluster, or a primary that sentinels know: made when it is needed, made again when it is
//! lost, shared by all mailboxes.
//!
//! It lives on a thread of its own, one for the whole process, so that it does not end with anybody's executor. Waiting
//! costs no connection: the server pushes what happens through the one that carries the commands.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rand::RngExt as _;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClientBuilder;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr};
use redis::sentinel::SentinelClient;
use redis::{AsyncConnectionConfig, Client, Cmd, PushInfo, PushKind, RedisError, RedisResult, Value, cmd};

use super::fault::{Fault, fault_of};
use super::post::Post;
use super::script::ScriptCall;
use crate::awake::UnderWay;
use crate::cancellation::unless;
use crate::clock::{Sleep, SystemClock};
use crate::error::Error;
use crate::hub::{Hubs, Watched};
use crate::network;

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

/// A server that does not answer for so long has lost the connection.
const ATTEMPT: Duration = Duration::from_secs(3);
/// So often a connection over which nothing but waiting goes is tried.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

pub(super) struct Link {
    /// Without secrets, for errors.
    pub(super) place: String,
    target: Target,
    pub(super) manners: Manners,
    /// Names this process in the memory of operations.
    pub(super) client: String,
    wire: Mutex<Option<Wire>>,
    /// For sends that wait for replicas: the wait blocks what comes after it.
    durable: Mutex<Option<Wire>>,
    connecting: tokio::sync::Mutex<()>,
    subscribing: tokio::sync::Mutex<()>,
    numbers: AtomicU64,
    tokens: AtomicU64,
    /// What is subscribed to, and whether the server has confirmed it.
    channels: Mutex<HashMap<String, bool>>,
    /// Those who wait, by channel, or by channel and reply.
    pub(super) hubs: Hubs<String>,
    /// To whom messages are handed, by channel.
    handovers: Mutex<HashMap<String, Weak<Post>>>,
    waiting: AtomicUsize,
    /// Whether somebody looks after those who wait.
    is_watched: AtomicBool,
}

#[derive(Clone)]
struct Wire {
    number: u64,
    kind: Kind,
    /// An answer that takes longer does not come.
    longest: Duration,
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
            Kind::Cluster(connection) => connection.clone().req_packed_command(command).await?.extract_error(),
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
        match (&self.kind, self.is_sharded, on) {
            (Kind::Server(connection), _, true) => self.in_time(connection.clone().subscribe(channel)).await,
            (Kind::Server(connection), _, false) => self.in_time(connection.clone().unsubscribe(channel)).await,
            (Kind::Cluster(connection), true, true) => connection.clone().ssubscribe(channel).await,
            (Kind::Cluster(connection), true, false) => connection.clone().sunsubscribe(channel).await,
            (Kind::Cluster(connection), false, true) => connection.clone().subscribe(channel).await,
            (Kind::Cluster(connection), false, false) => connection.clone().unsubscribe(channel).await,
        }
    }

    /// The same, of any node.
    async fn ask_any(&self, command: &Cmd) -> RedisResult<Value> {
        match &self.kind {
            Kind::Server(_) => self.ask(command).await,
            Kind::Cluster(connection) => {
                let any = RoutingInfo::SingleNode(SingleNodeRoutingInfo::RandomPrimary);
                connection.clone().route_command(command.clone(), any).await?.extract_error()
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
                connection.clone().route_command(command.clone(), routing).await?.extract_error()
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
        Arc::new(Link {
            place,
            target,
            manners,
            client: format!("{:016x}", rand::random::<u64>()),
            wire: Mutex::default(),
            durable: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
            subscribing: tokio::sync::Mutex::default(),
            numbers: AtomicU64::new(0),
            tokens: AtomicU64::new(0),
            channels: Mutex::default(),
            hubs: Hubs::default(),
            handovers: Mutex::default(),
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
        self.wire(false).await.map(drop).map_err(|error| fault_of(&error).explain(&self.place, error))
    }

    async fn wire(self: &Arc<Self>, is_durable: bool) -> RedisResult<Wire> {
        let slot = if is_durable { &self.durable } else { &self.wire };
        if let Some(wire) = &*lock(slot) {
            return Ok(wire.clone());
        }
        let _one_at_a_time = self.connecting.lock().await;
        if let Some(wire) = &*lock(slot) {
            return Ok(wire.clone());
        }
        let wire = self.make().await?;
        *lock(slot) = Some(wire.clone());
        Ok(wire)
    }

    fn is_good(&self, number: u64, is_durable: bool) -> bool {
        let slot = if is_durable { &self.durable } else { &self.wire };
        lock(slot).as_ref().is_some_and(|wire| wire.number == number)
    }

    async fn make(self: &Arc<Self>) -> RedisResult<Wire> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let link = Arc::downgrade(self);
        let pushed = move |info: PushInfo| {
            if let Some(link) = link.upgrade() {
                link.pushed(number, &info);
            }
            Ok::<_, redis::aio::SendError>(())
        };
        let longest = match self.manners.min_replicas {
            0 => ATTEMPT,
            _ => ATTEMPT.max(self.manners.replica_timeout + Duration::from_secs(1)),
        };
        let server = AsyncConnectionConfig::new().set_connection_timeout(Some(ATTEMPT)).set_response_timeout(None);
        let kind = match &self.target {
            Target::Server(client) => {
                let server = server.set_push_sender(pushed);
                Kind::Server(client.get_multiplexed_async_connection_with_config(&server).await?)
            }
            Target::Sentinels(sentinels) => {
                let client = sentinels.lock().await.async_get_client().await?;
                let server = server.set_push_sender(pushed);
                Kind::Server(client.get_multiplexed_async_connection_with_config(&server).await?)
            }
            Target::Cluster(builder) => {
                let cluster = builder()
                    .use_protocol(redis::ProtocolVersion::RESP3)
                    .connection_timeout(ATTEMPT)
                    .response_timeout(longest)
                    .retries(4)
                    .push_sender(pushed)
                    .build()?;
                Kind::Cluster(cluster.get_async_connection().await?)
            }
        };
        let mut wire = Wire { number, kind, longest, is_sharded: false };
        self.inspect(&mut wire).await?;
        Ok(wire)
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
                if let (Some(post), Some(Value::BulkString(pushed))) = (self.handover(&channel), info.data.get(1)) {
                    // What comes over a connection that was given up is asked for by the next one.
                    if self.is_good(number, false) {
                        post.handover.hand_over(pushed);
                    }
                    return;
                }
                let payload = text(1);
                if channel.ends_with(super::replies::CHANNEL) {
                    self.hubs.wake(&format!("{channel}/{payload}"), u64::MAX);
                } else {
                    // 0: there is nothing to take yet, but everybody's next moment may be another.
                    let many = payload.parse().ok().filter(|many| *many > 0).unwrap_or(u64::MAX);
                    self.hubs.wake(&channel, many);
                }
            }
            PushKind::Disconnection => self.lost(number, false),
            // The slot has moved away with its channels. Nobody asked for this, but the client takes it for the answer to
            // whatever is under way, and each answer after it for that to the next request: the connection is no good.
            PushKind::SUnsubscribe | PushKind::Unsubscribe if lock(&self.channels).contains_key(&text(0)) => {
                self.lost(number, true);
            }
            _ => {}
        }
    }

    fn handover(&self, channel: &str) -> Option<Arc<Post>> {
        lock(&self.handovers).get(channel)?.upgrade()
    }

    /// Lets messages be handed to those who wait at a mailbox, if they can be.
    pub(super) fn hands_to(&self, post: &Arc<Post>) -> bool {
        if matches!(self.target, Target::Cluster(_)) {
            return false;
        }
        let mut handovers = lock(&self.handovers);
        if !handovers.contains_key(&post.handover.channel) {
            handovers.insert(post.handover.channel.clone(), Arc::downgrade(post));
        }
        true
    }

    pub(super) fn hands_over_no_more(&self, channel: &str) {
        lock(&self.handovers).remove(channel);
    }

    /// A connection is gone. Whoever waits subscribes again, and looks. One that is silent has to be given up: nothing
    /// else ends it.
    fn lost(&self, number: u64, is_silent: bool) {
        for slot in [&self.wire, &self.durable] {
            let mut slot = lock(slot);
            // A cluster's connections to other nodes live on, and the one that has ended is made again.
            let is_over = |wire: &Wire| wire.number == number && (is_silent || matches!(wire.kind, Kind::Server(_)));
            if slot.as_ref().is_some_and(is_over) {
                *slot = None;
            }
        }
        lock(&self.channels).clear();
        self.hubs.wake_all();
    }

    /// Runs a script, again if its answer is lost.
    pub(super) async fn run(self: &Arc<Self>, call: ScriptCall) -> Result<Value, Fault> {
        let call = Arc::new(call);
        self.patiently(false, move |wire| {
            let call = Arc::clone(&call);
            async move { wire.run(&call).await }
        })
        .await
    }

    /// The same, and waits until enough replicas have it. Says how many have it.
    pub(super) async fn run_durably(self: &Arc<Self>, call: ScriptCall) -> Result<(Value, u32), Fault> {
        let (replicas, timeout) = (self.manners.min_replicas, self.manners.replica_timeout.as_millis() as u64);
        let wait = cmd("WAIT").arg(replicas).arg(timeout).to_owned();
        let both = Arc::new((call, wait));
        self.patiently(true, move |wire| {
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
        self.patiently(false, move |wire| {
            let command = Arc::clone(&command);
            async move { wire.ask(&command).await }
        })
        .await
    }

    async fn patiently<T, F: Future<Output = RedisResult<T>> + Send>(
        self: &Arc<Self>,
        is_durable: bool,
        mut act: impl FnMut(Wire) -> F + Send,
    ) -> Result<T, Fault> {
        let _under_way = UnderWay::begin();
        let end = Instant::now() + self.manners.patience;
        let mut failures = 0;
        loop {
            let (error, number) = match self.wire(is_durable).await {
                Ok(wire) => {
                    let number = wire.number;
                    match act(wire).await {
                        // What comes over a connection that was given up meanwhile is not believed.
                        Ok(answer) if self.is_good(number, is_durable) => return Ok(answer),
                        Ok(_) => (std::io::Error::from(std::io::ErrorKind::NotConnected).into(), Some(number)),
                        Err(error) => (error, Some(number)),
                    }
                }
                Err(error) => (error, None),
            };
            let fault = match self.target {
                Target::Cluster(_) => fault_of(&error).in_cluster(),
                _ => fault_of(&error),
            };
            if let Some(number) = number.filter(|_| fault.breaks_connection()) {
                self.lost(number, error.is_timeout());
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
            .patiently(false, |wire| {
                let (link, channel) = (Arc::clone(self), channel.to_string());
                async move {
                    let _one_at_a_time = link.subscribing.lock().await;
                    if link.is_subscribed(&channel) {
                        return Ok(());
                    }
                    if !link.is_good(wire.number, false) {
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
        let (link, wire) = (Arc::clone(self), lock(&self.wire).clone());
        let Some(wire) = wire else { return };
        network::spawn(async move {
            let _one_at_a_time = link.subscribing.lock().await;
            if link.hubs.is_waited_for(&channel) || lock(&link.channels).remove(&channel).is_none() {
                return;
            }
            let _ = wire.subscribe(&channel, false).await;
        });
    }

    /// The command with which a script wakes those who wait.
    pub(super) async fn publish(self: &Arc<Self>) -> &'static str {
        let is_sharded = self.wire(false).await.is_ok_and(|wire| wire.is_sharded);
        if is_sharded { "SPUBLISH" } else { "PUBLISH" }
    }
}

impl Watched for Link {
    /// Somebody begins to wait: a connection that is silently dead has to be noticed.
    fn begin_waiting(self: &Arc<Self>) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        if !self.is_watched.swap(true, Ordering::SeqCst) {
            let link: Weak<Self> = Arc::downgrade(self);
            network::spawn(async move {
                loop {
                    tokio::time::sleep(KEEP_ALIVE).await;
                    let Some(link) = link.upgrade() else { return };
                    if link.waiting.load(Ordering::SeqCst) == 0 {
                        link.is_watched.store(false, Ordering::SeqCst);
                        // Whoever has begun meanwhile found it watched.
                        if link.waiting.load(Ordering::SeqCst) == 0 || link.is_watched.swap(true, Ordering::SeqCst) {
                            return;
                        }
                    }
                    let Some(wire) = lock(&link.wire).clone() else { continue };
                    let answer = tokio::time::timeout(ATTEMPT, wire.ask(&cmd("PING"))).await;
                    if !matches!(answer, Ok(Ok(_))) {
                        link.lost(wire.number, true);
                    }
                }
            });
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
