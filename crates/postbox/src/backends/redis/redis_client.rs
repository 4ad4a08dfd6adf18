//! The client of a server, a cluster, or the primary that sentinels know. All mailboxes of a
//! backend share it.
//!
//! It connects when it is first used, and again when a connection is lost. Its connections live on
//! the I/O thread, so they do not end with the caller's runtime.

use std::fmt;
use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rand::RngExt as _;
use redis::{Cmd, PushInfo, RedisError, RedisResult, Value, cmd};

use super::config::{Options, Target};
use super::connection::Connection;
use super::error::RequestError;
use super::message_format::flag;
use super::script::{Script, ScriptCall, Time};
use super::subscriptions::Subscriptions;
use crate::error::Error;
use crate::runtime::lock;

/// A request of at least this size is large.
const LARGE: usize = 1 << 20;

pub(super) struct RedisClient {
    address: String,
    target: Target,
    options: Options,
    /// Identifies this client in the requests that the server remembers.
    id: String,
    time: Time,
    connections: [Mutex<Option<Connection>>; 3],
    connecting: tokio::sync::Mutex<()>,
    next_connection: AtomicU64,
    next_token: AtomicU64,
    subscriptions: Subscriptions,
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Commands,
    /// Sends that wait for replicas. WAIT blocks all later commands of its connection, and no other operation should
    /// wait for that.
    DurableSends,
    /// A server limits what may be queued for a connection that subscribes (32 MiB), so no message
    /// uses this one.
    Subscriptions,
}

impl fmt::Debug for RedisClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RedisClient").field(&self.address).finish()
    }
}

impl RedisClient {
    /// `address` is shown in errors, so it has no secrets.
    pub(super) fn new(address: String, target: Target, options: Options, time: Time) -> Arc<Self> {
        Arc::new(RedisClient {
            time,
            address,
            target,
            options,
            id: format!("{:016x}", rand::random::<u64>()),
            connections: Default::default(),
            connecting: tokio::sync::Mutex::default(),
            next_connection: AtomicU64::new(0),
            next_token: AtomicU64::new(0),
            subscriptions: Subscriptions::default(),
        })
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    pub(super) fn options(&self) -> &Options {
        &self.options
    }

    pub(super) fn subscriptions(&self) -> &Subscriptions {
        &self.subscriptions
    }

    pub(super) fn error(&self, error: impl Into<RequestError>) -> Error {
        error.into().into_error(&self.address)
    }

    /// The token of a new request. All attempts of the request have the same token, and the server
    /// executes one of them.
    pub(super) fn next_token(&self) -> u64 {
        self.next_token.fetch_add(1, Ordering::Relaxed)
    }

    /// The argument that tells scripts whether they run in a cluster.
    pub(super) fn cluster_flag(&self) -> Bytes {
        flag(matches!(self.target, Target::Cluster(_)))
    }

    /// Connects, with one attempt.
    pub(super) async fn connect(self: &Arc<Self>) -> Result<(), Error> {
        self.connection(Purpose::Commands).await.map(drop).map_err(|error| self.error(error))
    }

    fn lock(&self, purpose: Purpose) -> MutexGuard<'_, Option<Connection>> {
        lock(&self.connections[purpose as usize])
    }

    /// The current connection, if there is one.
    pub(super) fn current(&self, purpose: Purpose) -> Option<Connection> {
        self.lock(purpose).clone()
    }

    pub(super) fn is_current(&self, connection: u64, purpose: Purpose) -> bool {
        self.lock(purpose).as_ref().is_some_and(|current| current.id() == connection)
    }

    async fn connection(self: &Arc<Self>, purpose: Purpose) -> RedisResult<Connection> {
        if let Some(connection) = self.current(purpose) {
            return Ok(connection);
        }
        let _one_at_a_time = self.connecting.lock().await;
        if let Some(connection) = self.current(purpose) {
            return Ok(connection);
        }
        let id = self.next_connection.fetch_add(1, Ordering::Relaxed);
        let client = Arc::downgrade(self);
        let on_push = move |info: PushInfo| {
            if let Some(client) = client.upgrade() {
                client.on_push(id, &info);
            }
            Ok::<_, redis::aio::SendError>(())
        };
        let on_push = (purpose == Purpose::Subscriptions).then_some(on_push);
        let connection = Connection::open(id, &self.target, &self.options, on_push).await?;
        *self.lock(purpose) = Some(connection.clone());
        Ok(connection)
    }

    /// Gives up a connection that is lost, or silent. If it was the one for subscriptions, waiting
    /// receivers subscribe again, then receive.
    pub(super) fn connection_lost(&self, connection: u64, purpose: Purpose, is_silent: bool) {
        let mut current = self.lock(purpose);
        // In a cluster the client library replaces the connection of one node, and the others go
        // on.
        let is_over = |held: &Connection| held.id() == connection && (is_silent || !held.is_cluster());
        if current.as_ref().is_some_and(is_over) {
            *current = None;
        }
        drop(current);
        if purpose == Purpose::Subscriptions {
            self.subscriptions.end_all();
        }
    }

    fn call(&self, script: &'static Script, keys: &[String], arguments: &[Bytes]) -> (Arc<ScriptCall>, bool) {
        let call = script.call(self.time, keys, arguments);
        let is_large = call.bytes() >= LARGE;
        (Arc::new(call), is_large)
    }

    /// Runs a script, again if its response is lost.
    pub(super) async fn run(
        self: &Arc<Self>,
        script: &'static Script,
        keys: &[String],
        arguments: &[Bytes],
    ) -> Result<Value, RequestError> {
        let (call, is_large) = self.call(script, keys, arguments);
        self.retry(Purpose::Commands, is_large, move |connection| {
            let call = Arc::clone(&call);
            async move { connection.run(&call).await }
        })
        .await
    }

    /// Runs a script, and waits for the replicas. Returns the number of replicas that have
    /// confirmed it.
    pub(super) async fn run_durably(
        self: &Arc<Self>,
        script: &'static Script,
        keys: &[String],
        arguments: &[Bytes],
    ) -> Result<(Value, u32), RequestError> {
        let (call, is_large) = self.call(script, keys, arguments);
        let (replicas, timeout) = (self.options.min_replicas, self.options.replica_timeout.as_millis() as u64);
        self.retry(Purpose::DurableSends, is_large, move |connection| {
            let call = Arc::clone(&call);
            async move {
                let response = connection.run(&call).await?;
                let reached = connection.request_at_key(cmd("WAIT").arg(replicas).arg(timeout), call.key()).await?;
                Ok((response, redis::from_redis_value(reached)?))
            }
        })
        .await
    }

    pub(super) async fn command(self: &Arc<Self>, command: &Cmd) -> Result<Value, RequestError> {
        let command = Arc::new(command.clone());
        self.retry(Purpose::Commands, false, move |connection| {
            let command = Arc::clone(&command);
            async move { connection.request(&command).await }
        })
        .await
    }

    /// Repeats a request until it succeeds, fails for good, or the timeout is over.
    pub(super) async fn retry<T, F: Future<Output = RedisResult<T>> + Send>(
        self: &Arc<Self>,
        purpose: Purpose,
        is_large: bool,
        mut attempt: impl FnMut(Connection) -> F + Send,
    ) -> Result<T, RequestError> {
        let end = Instant::now() + self.options.timeout;
        let (mut failures, mut is_long) = (0, is_large);
        loop {
            let (error, broken): (RedisError, _) = match self.connection(purpose).await {
                Ok(mut connection) => {
                    let id = connection.id();
                    let long_attempts = connection.long_attempts().clone();
                    let _long_attempt = is_long.then(|| long_attempts.begin());
                    let left = end.saturating_duration_since(Instant::now());
                    connection.set_timeout(self.options.attempt_timeout(is_long, left));
                    match attempt(connection).await {
                        // A connection that was given up meanwhile may have confused its responses.
                        Ok(response) if self.is_current(id, purpose) => return Ok(response),
                        Ok(_) => (not_connected(), Some(id)),
                        Err(error) if error.is_timeout() && !is_long && !long_attempts.is_empty() => (error, None),
                        Err(error) => (error, Some(id)),
                    }
                }
                Err(error) => (error, None),
            };
            let mut error = RequestError::from(error);
            if matches!(self.target, Target::Cluster(_)) {
                error = error.in_cluster();
            }
            is_long |= error.is_timeout();
            if let Some(id) = broken.filter(|_| error.breaks_connection()) {
                self.connection_lost(id, purpose, error.is_timeout());
            }
            if !error.is_transient() || Instant::now() >= end {
                return Err(error);
            }
            failures += 1;
            tokio::time::sleep(backoff(failures)).await;
        }
    }
}

pub(super) fn not_connected() -> RedisError {
    io::Error::from(io::ErrorKind::NotConnected).into()
}

/// From 10 ms, doubled with each failure up to 500 ms, with jitter.
fn backoff(failures: u32) -> Duration {
    let longest = Duration::from_millis(10 << failures.min(6)).min(Duration::from_millis(500));
    longest.mul_f64(rand::rng().random_range(0.5..1.0))
}

#[cfg(test)]
mod tests {
    use redis::Client;
    use redis::cluster::ClusterClientBuilder;

    use super::*;

    #[test]
    fn whether_a_target_is_a_cluster_is_known_without_a_connection() {
        let cluster = Target::Cluster(Box::new(|| ClusterClientBuilder::new(["redis://127.0.0.1:1"])));
        let server = Target::Server(Client::open("redis://127.0.0.1:1").unwrap());
        for (target, flag) in [(cluster, "1"), (server, "0")] {
            assert_eq!(RedisClient::new("redis".into(), target, Options::default(), Time::Server).cluster_flag(), flag);
        }
    }
}
