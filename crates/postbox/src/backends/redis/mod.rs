//! Mailboxes on Redis: one server, a cluster, or a primary that sentinels know. Feature `redis`.
//!
//! Every transition of a message is one script on the server, by the server's clock, and can be asked for twice without a
//! second effect. All keys of a mailbox are in one slot. `docs/redis.md` says what is stored and what is promised.

mod config;
mod error;
mod mailbox;
mod message_format;
mod queue;
mod redis_client;
mod replies;
mod requests;
mod script;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

pub use ::redis as client;
use ::redis::cluster::ClusterClientBuilder;
use ::redis::{Client, ProtocolVersion, cmd};
use futures_util::future::join_all;

use self::config::Config;
pub(crate) use self::config::OPTIONS;
use self::mailbox::RedisMailbox;
use self::message_format::{bytes, list};
use self::queue::{Queue, REGISTRY, is_listed, listed_name};
use self::redis_client::{Options, RedisClient, Target};
use self::replies::RedisReplyStore;
use self::script::Time;
use crate::backend::{Backend, ByteMailbox, Limits, MailboxSettings};
use crate::error::Error;
use crate::mailbox::operation::Answer;
use crate::reply::store::ReplyStore;
use crate::resolver::address::{MailboxName, Uri};
use crate::runtime::io_thread;

/// The largest body and headers.
const MAX_MESSAGE_SIZE: usize = 128 << 20;

/// Mailboxes on Redis. `redis://host:6379/mailbox` opens one of them.
///
/// ```no_run
/// use postbox::redis::{RedisBackend, client::Client};
/// use postbox::{Connection, Mailbox};
///
/// // With a client of one's own; a URI does the same.
/// let client = Client::open("redis://127.0.0.1:6379").unwrap();
/// let connection = Connection::new(RedisBackend::from_client(client)?);
/// let jobs: Mailbox<String> = connection.mailbox("jobs")?;
/// jobs.send(&"across machines".to_string()).blocking()?;
/// # Ok::<(), postbox::Error>(())
/// ```
#[derive(Clone)]
pub struct RedisBackend {
    inner: Arc<Inner>,
}

struct Inner {
    client: Arc<RedisClient>,
    queues: Mutex<HashMap<MailboxName, Weak<Queue>>>,
}

/// Places that are connected: two opens of one place share a connection.
static OPEN: Mutex<Option<HashMap<String, Weak<Inner>>>> = Mutex::new(None);

impl RedisBackend {
    /// With a client of one's own: its address, user, database and certificates. It speaks RESP3 from here on. Nothing is
    /// connected yet.
    ///
    /// # Errors
    /// [`Error::Connection`] if the client cannot be used.
    pub fn from_client(client: Client) -> Result<Self, Error> {
        Self::with_time(client, Time::default())
    }

    /// The same, with a time that tests move: the number in the key `postbox:test:time` of the database, in half microseconds
    /// since 1970. Each script sees a time half a millisecond later than the script before. One server only, no cluster.
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
            .map_err(|error| error::request_error(&error).explain(&address, error))?;
        Ok(Self::new(RedisClient::with_time(address, Target::Server(client), Options::default(), time)))
    }

    /// With a cluster client of one's own, which is built anew for each connection and speaks RESP3. Nothing is connected
    /// yet.
    pub fn from_cluster(builder: impl Fn() -> ClusterClientBuilder + Send + Sync + 'static) -> Self {
        Self::new(RedisClient::new("redis+cluster".into(), Target::Cluster(Box::new(builder)), Options::default()))
    }

    fn new(client: Arc<RedisClient>) -> Self {
        RedisBackend { inner: Arc::new(Inner { client, queues: Mutex::default() }) }
    }

    /// Connects to the server that a URI without the name of a mailbox leads to.
    pub(crate) fn open(text: &str, uri: &Uri) -> Answer<Result<Self, Error>> {
        let config = match Config::parse(text, uri) {
            Ok(config) => config,
            Err(error) => return Answer::ready(Err(error)),
        };
        let Config { target, options, address, key } = config;
        let backend = {
            let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
            let open = open.get_or_insert_default();
            open.retain(|_, inner| inner.strong_count() > 0);
            match open.get(&key).and_then(Weak::upgrade) {
                Some(inner) => RedisBackend { inner },
                None => {
                    let backend = Self::new(RedisClient::new(address, target, options));
                    open.insert(key, Arc::downgrade(&backend.inner));
                    backend
                }
            }
        };
        let client = Arc::clone(&backend.inner.client);
        io_thread::ask(async move { client.connect().await }).map(move |connected| connected.map(|()| backend))
    }
}

impl fmt::Debug for RedisBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBackend").field("address", &self.inner.client.address).finish()
    }
}

impl Backend for RedisBackend {
    fn kind(&self) -> &'static str {
        "redis"
    }

    fn limits(&self) -> Limits {
        // Less than a server takes as one value, so that a message arrives within the usual timeout.
        Limits { max_message_size: Some(MAX_MESSAGE_SIZE), ..Limits::generous() }
    }

    fn mailbox(&self, name: &MailboxName, settings: &MailboxSettings) -> Result<Arc<dyn ByteMailbox>, Error> {
        let mut queues = self.inner.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = match queues.get(name).and_then(Weak::upgrade) {
            Some(queue) => queue,
            None => {
                if queues.len() % 64 == 63 {
                    queues.retain(|_, queue| queue.strong_count() > 0);
                }
                let queue = Queue::new(Arc::clone(&self.inner.client), name.clone());
                queues.insert(name.clone(), Arc::downgrade(&queue));
                queue
            }
        };
        queue.configure(settings);
        Ok(Arc::new(RedisMailbox { queue, _backend: Arc::clone(&self.inner) }))
    }

    fn replies(&self) -> Option<Arc<dyn ReplyStore>> {
        Some(Arc::new(RedisReplyStore { client: Arc::clone(&self.inner.client) }))
    }

    fn list(&self) -> Answer<Result<Vec<MailboxName>, Error>> {
        let client = Arc::clone(&self.inner.client);
        io_thread::ask(async move {
            let failed = |error: error::RequestError| error.into_error(&client.address);
            let known = client.command(cmd("SMEMBERS").arg(REGISTRY)).await.map_err(failed)?;
            let known = list(known).into_iter().filter_map(|name| listed_name(&bytes(name)).ok());
            let looks = known.map(|name| async {
                let exists = is_listed(&client, &name).await;
                exists.map(|exists| (name, exists))
            });
            let mut names = Vec::new();
            for look in join_all(looks).await {
                let (name, exists) = look.map_err(failed)?;
                names.extend(exists.then_some(name));
            }
            names.sort();
            Ok(names)
        })
    }
}
