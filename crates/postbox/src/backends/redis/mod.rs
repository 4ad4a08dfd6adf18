//! Mailboxes on Redis: one server, a cluster, or a primary that sentinels know. Feature `redis`.
//!
//! Every transition of a message is one script on the server, by the server's clock, and can be asked for twice without a
//! second effect. All keys of a mailbox are in one slot. `docs/redis.md` says what is stored and what is promised.

mod entry;
mod fault;
mod link;
mod mailbox;
mod place;
mod post;
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

use self::entry::{bytes, list};
use self::link::{Link, Manners, Target};
use self::mailbox::RedisMailbox;
pub(crate) use self::place::OPTIONS;
use self::place::Place;
use self::post::{Post, REGISTRY, is_listed, listed_name};
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
/// use postbox::redis::RedisBackend;
/// use postbox::redis::client::Client;
/// use postbox::{Connection, Mailbox};
///
/// // With a client of one's own; a URI does the same.
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
    link: Arc<Link>,
    posts: Mutex<HashMap<MailboxName, Weak<Post>>>,
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
        let place = format!("redis://{}", info.addr());
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let client = Client::open(info.set_redis_settings(settings))
            .map_err(|error| fault::fault_of(&error).explain(&place, error))?;
        Ok(Self::new(Link::with_time(place, Target::Server(client), Manners::default(), time)))
    }

    /// With a cluster client of one's own, which is built anew for each connection and speaks RESP3. Nothing is connected
    /// yet.
    pub fn from_cluster(builder: impl Fn() -> ClusterClientBuilder + Send + Sync + 'static) -> Self {
        Self::new(Link::new("redis+cluster".into(), Target::Cluster(Box::new(builder)), Manners::default()))
    }

    fn new(link: Arc<Link>) -> Self {
        RedisBackend { inner: Arc::new(Inner { link, posts: Mutex::default() }) }
    }

    /// Connects to the server that a URI without the name of a mailbox leads to.
    pub(crate) fn open(text: &str, uri: &Uri) -> Answer<Result<Self, Error>> {
        let place = match Place::parse(text, uri) {
            Ok(place) => place,
            Err(error) => return Answer::ready(Err(error)),
        };
        let Place { target, manners, shown, key } = place;
        let backend = {
            let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
            let open = open.get_or_insert_default();
            open.retain(|_, inner| inner.strong_count() > 0);
            match open.get(&key).and_then(Weak::upgrade) {
                Some(inner) => RedisBackend { inner },
                None => {
                    let backend = Self::new(Link::new(shown, target, manners));
                    open.insert(key, Arc::downgrade(&backend.inner));
                    backend
                }
            }
        };
        let link = Arc::clone(&backend.inner.link);
        io_thread::ask(async move { link.connect().await }).map(move |connected| connected.map(|()| backend))
    }
}

impl fmt::Debug for RedisBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBackend").field("place", &self.inner.link.place).finish()
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
        let mut posts = self.inner.posts.lock().unwrap_or_else(PoisonError::into_inner);
        let post = match posts.get(name).and_then(Weak::upgrade) {
            Some(post) => post,
            None => {
                if posts.len() % 64 == 63 {
                    posts.retain(|_, post| post.strong_count() > 0);
                }
                let post = Post::new(Arc::clone(&self.inner.link), name.clone());
                posts.insert(name.clone(), Arc::downgrade(&post));
                post
            }
        };
        post.configure(settings);
        Ok(Arc::new(RedisMailbox { post, _backend: Arc::clone(&self.inner) }))
    }

    fn replies(&self) -> Option<Arc<dyn ReplyStore>> {
        Some(Arc::new(RedisReplyStore { link: Arc::clone(&self.inner.link) }))
    }

    fn list(&self) -> Answer<Result<Vec<MailboxName>, Error>> {
        let link = Arc::clone(&self.inner.link);
        io_thread::ask(async move {
            let failed = |fault: fault::Fault| fault.into_error(&link.place);
            let known = link.command(cmd("SMEMBERS").arg(REGISTRY)).await.map_err(failed)?;
            let known = list(known).into_iter().filter_map(|name| listed_name(&bytes(name)).ok());
            let looks = known.map(|name| async {
                let exists = is_listed(&link, &name).await;
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
