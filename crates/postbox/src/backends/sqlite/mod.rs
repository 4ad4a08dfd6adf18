//! Mailboxes in one file, durable, shared by processes. Feature `sqlite`.
//!
//! Each file has one connection and one thread. Operations that are submitted at the same time share a transaction, and so
//! one wait for the disk. A lone blocking caller runs its operation on its own thread. While a caller waits for a message
//! or a reply, the file is checked for changes by other processes, every 10 to 160 ms.
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
mod plan_tests;
mod replies;
mod schema;
mod statements;
mod transaction;
mod writer;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use self::clock::FileClock;
pub use self::config::{SqliteConfig, Synchronous};
use self::mailbox::{SqliteMailbox, send_result};
use self::mailbox_row::RowCache;
use self::replies::SqliteReplyStore;
use self::statements::Statements as _;
use self::transaction::Transaction;
use self::writer::Writer;
use crate::backend::{Backend, ByteMailbox, Limits, MailboxSettings, Outgoing};
use crate::error::Error;
use crate::mailbox::id::MessageId;
use crate::mailbox::operation::Answer;
use crate::reply::store::ReplyStore;
use crate::resolver::address::MailboxName;
use crate::runtime::clock::{Clock, SystemClock};
use crate::runtime::open_stores::OpenStores;

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

/// The open files: two opens of one file share its connection and its thread.
static OPEN: LazyLock<OpenStores<(Identity, SqliteConfig), Inner>> = LazyLock::new(OpenStores::default);

/// Identifies a file, whatever its path. A file that was deleted and created again is another file.
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
    /// Opens a file, and creates it if it does not exist, with the permissions 0600: only its owner can read and write it.
    /// A message is on the disk when `send` returns.
    ///
    /// # Errors
    /// [`Error::Connection`] if it cannot be used, with the reason.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open_with(path, SqliteConfig::default())
    }

    /// Opens a file with a configuration.
    ///
    /// # Errors
    /// [`Error::Connection`] if it cannot be used, with the reason.
    pub fn open_with(path: impl AsRef<Path>, config: impl Into<SqliteConfig>) -> Result<Self, Error> {
        let (path, config) = (path.as_ref(), config.into());
        let is_usable = |inner: &Inner| !inner.writer.is_closed();
        let known = identity(path).and_then(|file| OPEN.get(&(file, config)));
        if let Some(inner) = known.filter(|inner| is_usable(inner)) {
            return Ok(SqliteBackend { inner });
        }
        // Without the lock of the registry, since this may wait for a lock of the file.
        let connection = file::open(path, config)?;
        let start = || Inner::start(path, connection, config, SystemClock::shared());
        let inner = match identity(path) {
            Some(file) => OPEN.get_or_open((file, config), is_usable, start)?,
            None => start()?,
        };
        Ok(SqliteBackend { inner })
    }

    /// Opens a file with a clock that a test moves. Other opens of the file do not share its connection.
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

/// Stores a message within a transaction of the caller. Waiters notice the message after the commit.
pub(crate) fn send_within(
    connection: &rusqlite::Connection,
    clock: Arc<dyn Clock>,
    name: &MailboxName,
    settings: &MailboxSettings,
    message: &Outgoing,
) -> Result<MessageId, Error> {
    if connection.is_autocommit() {
        // Each statement would be a transaction of its own, and the counts of the mailbox would become wrong.
        return Err(Error::invalid(
            "connection",
            "without a transaction",
            "a connection that has begun one; call transaction() on it, send within that, and commit it",
        ));
    }
    let store = || {
        // Changes nothing, and takes the write lock, for which SQLite waits only before the first read.
        connection.execute_cached("UPDATE meta SET value = value WHERE key = ''", [])?;
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
