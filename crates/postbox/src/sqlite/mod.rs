//! Mailboxes in one file, durable, shared by processes. Feature `sqlite`.
//!
//! A thread per file does the work, unless a thread that waits can do its own: what is asked for at the same time shares a transaction
//! and one wait for the disk.
//! Other processes' changes are noticed by a look at the file every 20 ms, while somebody waits.

mod desk;
mod mailbox;
#[cfg(all(test, feature = "conformance"))]
mod plans;
mod replies;
mod schema;
mod time;
mod writer;

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use self::desk::{Desk, Kept, Stored};
use self::mailbox::SqliteMailbox;
use self::replies::SqliteReplyStore;
pub use self::schema::{SqliteConfig, Synchronous};
use self::time::FileClock;
use self::writer::Queue;
use crate::address::MailboxName;
use crate::backend::{Backend, ByteMailbox, Limits, MailboxSettings, Outgoing};
use crate::clock::{Clock, SystemClock};
use crate::error::Error;
use crate::id::MessageId;
use crate::operation::Answer;
use crate::reply_store::ReplyStore;

/// Mailboxes in one file. `sqlite://path/to/file.db/mailbox` opens one of them.
///
/// ```
/// use postbox::{Connection, Mailbox, SqliteBackend};
///
/// let folder = std::env::temp_dir().join(format!("postbox-doc-{}", std::process::id()));
/// std::fs::create_dir_all(&folder).unwrap();
/// let connection = Connection::new(SqliteBackend::open(folder.join("jobs.db"))?);
/// let jobs: Mailbox<String> = connection.mailbox("jobs")?;
/// jobs.send(&"survives a restart".to_string()).blocking()?;
/// assert_eq!(jobs.receive().blocking()?[0].body, "survives a restart");
/// # std::fs::remove_dir_all(&folder).unwrap();
/// # Ok::<(), postbox::Error>(())
/// ```
#[derive(Clone)]
pub struct SqliteBackend {
    inner: Arc<Inner>,
}

struct Inner {
    queue: Arc<Queue>,
    path: PathBuf,
    clock: Arc<dyn Clock>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.queue.close();
    }
}

type Opened = HashMap<(Identity, SqliteConfig), Weak<Inner>>;

/// Files that are open: two opens of one file share its thread.
static OPENED: LazyLock<Mutex<Opened>> = LazyLock::new(Mutex::default);

fn opened() -> MutexGuard<'static, Opened> {
    OPENED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Which file it is, whatever it is called: one that was deleted and made anew is another one.
#[cfg(unix)]
type Identity = (u64, u64);

#[cfg(unix)]
fn identity(path: &Path) -> Option<Identity> {
    use std::os::unix::fs::MetadataExt as _;
    path.metadata().ok().map(|file| (file.dev(), file.ino()))
}

#[cfg(not(unix))]
type Identity = PathBuf;

#[cfg(not(unix))]
fn identity(path: &Path) -> Option<Identity> {
    path.canonicalize().ok()
}

impl SqliteBackend {
    /// Opens a file, and makes it if there is none: with the permissions 0600, so only its owner can read and write it.
    /// What is sent is on the disk when `send` returns.
    ///
    /// # Errors
    /// [`Error::Connection`] if it cannot be used, with the reason.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open_with(path, SqliteConfig::default())
    }

    /// Opens a file with a configuration, or with another durability.
    ///
    /// # Errors
    /// [`Error::Connection`] if it cannot be used, with the reason.
    pub fn open_with(path: impl AsRef<Path>, config: impl Into<SqliteConfig>) -> Result<Self, Error> {
        let (path, config) = (path.as_ref(), config.into());
        let is_open = |inner: &Arc<Inner>| !inner.queue.is_closed();
        let known = identity(path).and_then(|file| opened().get(&(file, config))?.upgrade()).filter(is_open);
        if let Some(inner) = known {
            return Ok(SqliteBackend { inner });
        }
        // It may have to wait for a lock: other files are opened meanwhile, and maybe this one, by another thread.
        let connection = schema::open(path, config)?;
        let start = || Inner::start(path, connection, config, SystemClock::shared());
        let Some(file) = identity(path) else { return Ok(SqliteBackend { inner: start()? }) };
        let key = (file, config);
        let mut opened = opened();
        opened.retain(|_, inner| inner.strong_count() > 0);
        let known = opened.get(&key).and_then(Weak::upgrade).filter(is_open);
        let inner = match known {
            Some(inner) => inner,
            None => {
                let inner = start()?;
                opened.insert(key, Arc::downgrade(&inner));
                inner
            }
        };
        Ok(SqliteBackend { inner })
    }

    /// Opens a file with a clock that a test moves. It shares nothing with other opens of the file.
    ///
    /// # Errors
    /// [`Error::Connection`] if it cannot be used, with the reason.
    #[cfg(feature = "testing")]
    pub fn open_with_clock(
        path: impl AsRef<Path>,
        config: impl Into<SqliteConfig>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let (path, config) = (path.as_ref(), config.into());
        let connection = schema::open(path, config)?;
        Ok(SqliteBackend { inner: Inner::start(path, connection, config, clock)? })
    }
}

impl Inner {
    fn start(
        path: &Path,
        connection: rusqlite::Connection,
        config: SqliteConfig,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<Self>, Error> {
        let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        let file_clock = FileClock::new(Arc::clone(&clock));
        let queue = Queue::start(path.clone(), connection, file_clock, config.busy_timeout)?;
        Ok(Arc::new(Inner { queue, path, clock }))
    }
}

impl fmt::Debug for SqliteBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteBackend").field("path", &self.inner.path).finish()
    }
}

impl Backend for SqliteBackend {
    fn kind(&self) -> &'static str {
        "sqlite"
    }

    fn limits(&self) -> Limits {
        Limits::generous()
    }

    fn mailbox(&self, name: &MailboxName, settings: &MailboxSettings) -> Result<Arc<dyn ByteMailbox>, Error> {
        Ok(Arc::new(SqliteMailbox::new(Arc::clone(&self.inner), name.clone(), settings.clone())))
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.inner.clock)
    }

    fn replies(&self) -> Option<Arc<dyn ReplyStore>> {
        Some(Arc::new(SqliteReplyStore { inner: Arc::clone(&self.inner) }))
    }

    fn list(&self) -> Answer<Result<Vec<MailboxName>, Error>> {
        self.inner.queue.ask(|desk| desk.list()).map(|names| {
            let named = |(prefix, name): (String, String)| {
                let name = MailboxName::new(&name)?;
                if prefix.is_empty() { Ok(name) } else { name.with_prefix(&prefix) }
            };
            names?.into_iter().map(named).collect()
        })
    }
}

/// Stores a message within a transaction of the caller's. Waiters notice it when that is committed.
pub(crate) fn send_within(
    transaction: &rusqlite::Connection,
    clock: Arc<dyn Clock>,
    name: &MailboxName,
    settings: &MailboxSettings,
    message: &Outgoing,
) -> Result<MessageId, Error> {
    if transaction.is_autocommit() {
        // Each statement would be a transaction of its own, and the counts of the mailbox would go wrong.
        return Err(Error::invalid(
            "connection",
            "without a transaction",
            "a connection that has begun one; call transaction() on it, send within that, and commit it",
        ));
    }
    let store = || {
        // Changes nothing, but takes the lock for writing: SQLite waits for it only before the first read.
        transaction.prepare_cached("UPDATE meta SET value = value WHERE key = ''")?.execute([])?;
        let mut desk = Desk::open(transaction, FileClock::new(clock).now(), Kept::default())?;
        let stored = desk.send(name, settings, message)?;
        desk.close()?;
        Ok(stored)
    };
    let path = transaction.path().unwrap_or_default();
    let waited = Duration::ZERO;
    match store().map_err(|error| schema::explain(Path::new(path), waited, error))? {
        Stored::Yes(id) => Ok(id),
        Stored::Full(most) => {
            Err(Error::MailboxFull { mailbox: name.to_string(), limit: format!("max_size = {most}") })
        }
        Stored::IdInUse => Err(Error::id_in_use(&message.id)),
        Stored::NotAUuid => Err(Error::invalid("message id", &message.id, "a UUID")),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn a_file_that_is_opened_by_many_at_once_is_open_once() {
        let folder = tempfile::tempdir().unwrap();
        for round in 0..300 {
            let path = folder.path().join(format!("{round}.db"));
            let start = Barrier::new(8);
            let opened: Vec<SqliteBackend> = std::thread::scope(|scope| {
                let open = || {
                    start.wait();
                    SqliteBackend::open(&path).unwrap()
                };
                let threads: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert!(opened.iter().all(|other| Arc::ptr_eq(&other.inner, &opened[0].inner)));
        }
    }
}
