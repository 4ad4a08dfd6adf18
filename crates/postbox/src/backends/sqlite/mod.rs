//! Mailboxes in one file, durable, shared by processes. Feature `sqlite`.
//!
//! Each file has one connection and one thread. Operations that are submitted at the same time share a transaction and one
//! wait for the disk. A blocking caller without company does its work on its own thread. While a caller waits for a message
//! or a reply, the file is checked every 20 ms for changes by other processes.
//!
//! From a call to the disk: [`mailbox`](self::mailbox) submits an operation to the [`writer`](self::writer), which runs it in
//! a [`transaction`](self::transaction), where [`mailbox_state`](self::mailbox_state) has the statements of each verb.

mod clock;
mod config;
mod error;
mod file;
mod mailbox;
mod mailbox_row;
mod mailbox_state;
#[cfg(all(test, feature = "conformance"))]
mod plans;
mod replies;
mod schema;
mod transaction;
mod writer;

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use self::clock::FileClock;
pub use self::config::{SqliteConfig, Synchronous};
use self::mailbox::{SqliteMailbox, send_result};
use self::mailbox_row::RowCache;
use self::replies::SqliteReplyStore;
use self::transaction::Transaction;
use self::writer::Writer;
use crate::backend::{Backend, ByteMailbox, Limits, MailboxSettings, Outgoing};
use crate::error::Error;
use crate::mailbox::id::MessageId;
use crate::mailbox::operation::Answer;
use crate::reply::store::ReplyStore;
use crate::resolver::address::MailboxName;
use crate::runtime::clock::{Clock, SystemClock};

/// Mailboxes in one file. `sqlite://path/to/file.db/mailbox` opens one of them.
///
/// ```
/// use postbox::sqlite::SqliteBackend;
/// use postbox::{Connection, Mailbox};
///
/// let folder = std::env::temp_dir().join(format!("postbox-doc-{}", std::process::id()));
/// std::fs::create_dir_all(&folder).unwrap();
/// let connection = Connection::new(SqliteBackend::open(folder.join("jobs.db"))?);
/// let jobs: Mailbox<String> = connection.mailbox("jobs")?;
/// jobs.send("survives a restart").blocking()?;
/// assert_eq!(jobs.receive().blocking()?[0].body, "survives a restart");
/// # std::fs::remove_dir_all(&folder).unwrap();
/// # Ok::<(), postbox::Error>(())
/// ```
#[derive(Clone)]
pub struct SqliteBackend {
    inner: Arc<Inner>,
}

struct Inner {
    writer: Arc<Writer>,
    path: PathBuf,
    clock: Arc<dyn Clock>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.writer.close();
    }
}

type Opened = HashMap<(Identity, SqliteConfig), Weak<Inner>>;

/// The open files: two opens of one file share its connection and its thread.
static OPENED: LazyLock<Mutex<Opened>> = LazyLock::new(Mutex::default);

fn opened() -> MutexGuard<'static, Opened> {
    OPENED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tells files apart, whatever they are called. A file that was deleted and made again is another one.
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
        let is_open = |inner: &Arc<Inner>| !inner.writer.is_closed();
        let known = identity(path).and_then(|file| opened().get(&(file, config))?.upgrade()).filter(is_open);
        if let Some(inner) = known {
            return Ok(SqliteBackend { inner });
        }
        // It may have to wait for a lock: other files are opened meanwhile, and maybe this one, by another thread.
        let connection = file::open(path, config)?;
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
        let connection = file::open(path, config)?;
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
        let writer = Writer::start(path.clone(), connection, file_clock, config.busy_timeout)?;
        Ok(Arc::new(Inner { writer, path, clock }))
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
        self.inner.writer.submit(|transaction| transaction.list()).map(|names| {
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
    connection: &rusqlite::Connection,
    clock: Arc<dyn Clock>,
    name: &MailboxName,
    settings: &MailboxSettings,
    message: &Outgoing,
) -> Result<MessageId, Error> {
    if connection.is_autocommit() {
        // Each statement would be a transaction of its own, and the counts of the mailbox would go wrong.
        return Err(Error::invalid(
            "connection",
            "without a transaction",
            "a connection that has begun one; call transaction() on it, send within that, and commit it",
        ));
    }
    let store = || {
        // Changes nothing, but takes the lock for writing: SQLite waits for it only before the first read.
        connection.prepare_cached("UPDATE meta SET value = value WHERE key = ''")?.execute([])?;
        let mut transaction = Transaction::start(connection, FileClock::new(clock).now(), RowCache::default())?;
        let outcome = transaction.with_new_mailbox(name, settings, |mailbox| mailbox.send(message))?;
        transaction.finish()?;
        Ok(outcome)
    };
    let path = connection.path().unwrap_or_default();
    let outcome = store().map_err(|error| error::from_sqlite(Path::new(path), Duration::ZERO, error))?;
    send_result(outcome, &message.id, name)
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
