//! Mailboxes on Redis: one server, a cluster, or the primary that sentinels know. Feature `redis`.
//!
//! Each transition of a message is one script on the server, by the server's clock. A repeated
//! request has no second effect. All keys of a mailbox are in one slot. `docs/redis.md` describes
//! what is stored and what is promised.

// From a call to the server: `mailbox` gives an operation to the batchers of `requests`. A request
// runs a script by the `queue` and the `redis_client`, on a `connection`.

mod config;
mod connection;
mod error;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod fuzz;
mod mailbox;
mod message_format;
mod queue;
mod redis_client;
mod registry;
mod replies;
mod requests;
mod script;
mod subscriptions;

use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, LazyLock};

pub use ::redis as client;
use ::redis::cluster::ClusterClientBuilder;
use ::redis::{Client, ProtocolVersion};

pub(crate) use self::config::OPTIONS;
use self::config::{Config, Options, Target};
use self::error::RequestError;
use self::mailbox::RedisMailbox;
use self::queue::Queue;
use self::redis_client::RedisClient;
use self::replies::RedisReplyStore;
use self::script::Time;
use crate::backend::{Backend, ByteMailbox, Limits, MailboxSettings};
use crate::error::Error;
use crate::mailbox::operation::Answer;
use crate::reply::store::ReplyStore;
use crate::resolver::address::{MailboxName, Uri};
use crate::runtime::io_thread;
use crate::runtime::open_stores::OpenStores;

/// The largest body and headers. A server takes more as one value, but not within the default
/// timeout.
const MAX_MESSAGE_SIZE: usize = 128 << 20;

/// Mailboxes on Redis. `redis://host:6379/mailbox` opens one of them.
///
/// ```no_run
/// use postbox::redis::RedisBackend;
/// use postbox::redis::client::Client;
/// use postbox::{Connection, Mailbox};
///
/// // With a client that you have; a URI does the same.
/// let client = Client::open("redis://127.0.0.1:6379").unwrap();
/// let connection = Connection::new(RedisBackend::from_client(client)?);
/// let jobs: Mailbox<String> = connection.mailbox("jobs")?;
/// jobs.send("across machines").blocking()?;
/// # Ok::<(), postbox::Error>(())
/// ```
#[derive(Clone)]
pub struct RedisBackend {
    inner: Arc<Inner>,
}

struct Inner {
    client: Arc<RedisClient>,
    queues: OpenStores<MailboxName, Queue>,
}

/// The backends that are open, by [`Config::connection_key`]. Two opens of one URI share their
/// connections.
static OPEN: LazyLock<OpenStores<String, Inner>> = LazyLock::new(OpenStores::default);

impl RedisBackend {
    /// Uses the address, user, database and certificates of a client that you have, with RESP3.
    /// Connects when it is first used.
    ///
    /// # Errors
    /// [`Error::Connection`] if the client cannot be used.
    pub fn from_client(client: Client) -> Result<Self, Error> {
        Self::with_time(client, Time::Server)
    }

    /// The same, with a time that tests set: the key `postbox:test:time` of the database holds it
    /// in half microseconds since 1970. Each script sees a time half a millisecond after that of
    /// the script before. For one server, not for a cluster.
    ///
    /// # Errors
    /// [`Error::Connection`] if the client cannot be used.
    #[cfg(feature = "testing")]
    pub fn from_client_with_test_time(client: Client) -> Result<Self, Error> {
        Self::with_time(client, Time::Key)
    }

    fn with_time(client: Client, time: Time) -> Result<Self, Error> {
        let info = client.get_connection_info().clone();
        let address = format!("redis://{}", info.addr());
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let client = Client::open(info.set_redis_settings(settings))
            .map_err(|error| RequestError::from(error).into_error(&address))?;
        Ok(Self::new(RedisClient::new(address, Target::Server(client), Options::default(), time)))
    }

    /// Uses a function that returns the builder of a cluster client. It is called for each
    /// connection, which has RESP3. Connects when it is first used.
    pub fn from_cluster(builder: impl Fn() -> ClusterClientBuilder + Send + Sync + 'static) -> Self {
        Self::new(RedisClient::new(
            "redis+cluster".into(),
            Target::Cluster(Box::new(builder)),
            Options::default(),
            Time::Server,
        ))
    }

    fn new(client: Arc<RedisClient>) -> Self {
        RedisBackend { inner: Arc::new(Inner { client, queues: OpenStores::default() }) }
    }

    /// Connects to the server of a URI that has no mailbox name.
    pub(crate) fn open(text: &str, uri: &Uri) -> Answer<Result<Self, Error>> {
        let config = match Config::parse(text, uri) {
            Ok(config) => config,
            Err(error) => return Answer::ready(Err(error)),
        };
        let Config { address, target, options, connection_key } = config;
        let open = || Ok::<_, Infallible>(Self::new(RedisClient::new(address, target, options, Time::Server)).inner);
        let Ok(inner) = OPEN.get_or_open(connection_key, |_| true, open);
        let backend = RedisBackend { inner };
        let client = Arc::clone(&backend.inner.client);
        io_thread::ask(async move { client.connect().await }).map(move |connected| connected.map(|()| backend))
    }
}

impl fmt::Debug for RedisBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBackend").field("address", &self.inner.client.address()).finish()
    }
}

impl Backend for RedisBackend {
    fn kind(&self) -> &'static str {
        "redis"
    }

    fn limits(&self) -> Limits {
        Limits { max_message_size: Some(MAX_MESSAGE_SIZE), ..Limits::generous() }
    }

    fn mailbox(&self, name: &MailboxName, settings: &MailboxSettings) -> Result<Arc<dyn ByteMailbox>, Error> {
        let open = || Ok::<_, Infallible>(Queue::new(Arc::clone(&self.inner.client), name.clone()));
        let Ok(queue) = self.inner.queues.get_or_open(name.clone(), |_| true, open);
        queue.configure(settings);
        Ok(Arc::new(RedisMailbox::new(queue, Arc::clone(&self.inner))))
    }

    fn replies(&self) -> Option<Arc<dyn ReplyStore>> {
        Some(Arc::new(RedisReplyStore::new(Arc::clone(&self.inner.client))))
    }

    fn list(&self) -> Answer<Result<Vec<MailboxName>, Error>> {
        let client = Arc::clone(&self.inner.client);
        io_thread::ask(async move { registry::existing(&client).await.map_err(|error| client.error(error)) })
    }
}
