//! The file: its tables, its version, and what is done with a file that is not ours.

use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use crate::error::Error;

/// "Pbox", so that other programs' files are known by it.
const APPLICATION_ID: i32 = 0x5062_6f78;
/// The version that this program writes.
const VERSION: i32 = 3;

/// States of a message, as they are stored.
pub(super) const READY: i64 = 0;
pub(super) const BEHIND: i64 = 1;
pub(super) const DELAYED: i64 = 2;
pub(super) const RETURNING: i64 = 3;
pub(super) const LEASED: i64 = 4;

/// Invariants: a message is `due` only while it is delayed, returning or leased, and `since` is when that was set; `ord` orders what is ready by the moment
/// at which it became visible, and what is due at one moment; `receipt` is the number of the current delivery. Of each
/// group at most one message is ready, returning or leased. While a message is leased, `rank` is the `ord` that it had when it
/// was ready. Every index is partial, so that no verb scans.
const TABLES: &str = "
CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE mailbox (
    id INTEGER PRIMARY KEY, prefix TEXT NOT NULL, name TEXT NOT NULL, counter INTEGER NOT NULL,
    ready INTEGER NOT NULL DEFAULT 0, delayed INTEGER NOT NULL DEFAULT 0,
    leased INTEGER NOT NULL DEFAULT 0, dead INTEGER NOT NULL DEFAULT 0,
    max_size INTEGER, max_deliveries INTEGER, deduplication_window INTEGER, idle_expiry INTEGER,
    UNIQUE (prefix, name)
);
CREATE TABLE message (
    seq INTEGER PRIMARY KEY, mailbox INTEGER NOT NULL, id BLOB NOT NULL, state INTEGER NOT NULL,
    ord INTEGER NOT NULL, due INTEGER, receipt INTEGER, deliveries INTEGER NOT NULL DEFAULT 0,
    sent_at INTEGER NOT NULL, expires_at INTEGER, grp TEXT, body BLOB NOT NULL
);
CREATE INDEX message_ready ON message (mailbox, ord) WHERE state = 0;
CREATE INDEX message_due ON message (mailbox, due, ord) WHERE state >= 2;
CREATE INDEX message_expiring ON message (mailbox, expires_at, seq) WHERE expires_at IS NOT NULL AND state <> 4;
CREATE INDEX message_behind ON message (mailbox, grp, ord) WHERE state = 1;
CREATE INDEX message_head ON message (mailbox, grp) WHERE grp IS NOT NULL AND state IN (0, 3, 4);
CREATE INDEX message_delayed ON message (mailbox, id) WHERE state = 2;
CREATE TABLE dead (
    seq INTEGER PRIMARY KEY, mailbox INTEGER NOT NULL, id BLOB NOT NULL, deliveries INTEGER NOT NULL,
    sent_at INTEGER NOT NULL, died_at INTEGER NOT NULL, reason TEXT NOT NULL, grp TEXT, body BLOB NOT NULL
);
CREATE INDEX dead_mailbox ON dead (mailbox, seq);
CREATE TABLE deduplication (
    mailbox INTEGER NOT NULL, key TEXT NOT NULL, id BLOB NOT NULL, until INTEGER NOT NULL, PRIMARY KEY (mailbox, key)
) WITHOUT ROWID;
CREATE INDEX deduplication_until ON deduplication (mailbox, until);
CREATE TABLE reply (
    id TEXT PRIMARY KEY, state INTEGER NOT NULL, value BLOB, content_type TEXT,
    created_at INTEGER NOT NULL, expires_at INTEGER NOT NULL, resolved_at INTEGER
) WITHOUT ROWID;
CREATE INDEX reply_expires ON reply (expires_at);
INSERT INTO meta VALUES ('high_water', 0);
";

/// What came with version 2: from `idle_at` on, a mailbox that nobody uses is gone.
const IDLE: &str = "
ALTER TABLE mailbox ADD COLUMN idle_at INTEGER;
CREATE INDEX mailbox_idle ON mailbox (idle_at) WHERE idle_at IS NOT NULL;
";

/// What came with version 3: the place in the order that a released message goes back to, dead letters by their ids, and
/// the moments at which deadlines were set (for a deadline of an older version, the latest moment that the file knows).
const RANK: &str = "
ALTER TABLE message ADD COLUMN rank INTEGER;
ALTER TABLE message ADD COLUMN since INTEGER;
ALTER TABLE deduplication ADD COLUMN since INTEGER;
UPDATE message SET since = (SELECT value FROM meta WHERE key = 'high_water') WHERE due IS NOT NULL;
UPDATE deduplication SET since = (SELECT value FROM meta WHERE key = 'high_water');
CREATE INDEX dead_id ON dead (mailbox, id);
";

/// Finds any message by its id, for sends with an id of the caller's own. It is made by the first one of these: the ids are
/// random, so the index costs every other send a page of its own.
pub(super) const IDS: &str = "CREATE INDEX IF NOT EXISTS message_id ON message (mailbox, id)";

/// How sure a `send` that returned is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Synchronous {
    /// Synced to the disk, by SQLite's `synchronous = FULL`: it survives a power cut, if the disk keeps what was
    /// synced.
    #[default]
    Full,
    /// With the system: it survives the end of the process, and the file stays whole in a power cut, which may take the
    /// last messages. Several times as fast.
    Normal,
}

/// How a file is used.
///
/// ```
/// use postbox::{SqliteBackend, SqliteConfig, Synchronous};
/// use std::time::Duration;
///
/// let folder = std::env::temp_dir().join(format!("postbox-config-{}", std::process::id()));
/// std::fs::create_dir_all(&folder).unwrap();
/// let config = SqliteConfig::default().synchronous(Synchronous::Normal).busy_timeout(Duration::from_secs(2));
/// let backend = SqliteBackend::open_with(folder.join("jobs.db"), config)?;
/// # std::fs::remove_dir_all(&folder).unwrap();
/// # Ok::<(), postbox::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SqliteConfig {
    pub(super) synchronous: Synchronous,
    pub(super) busy_timeout: Duration,
}

impl Default for SqliteConfig {
    fn default() -> Self {
        SqliteConfig { synchronous: Synchronous::Full, busy_timeout: Duration::from_secs(10) }
    }
}

impl From<Synchronous> for SqliteConfig {
    fn from(synchronous: Synchronous) -> Self {
        Self::default().synchronous(synchronous)
    }
}

impl SqliteConfig {
    /// How sure a `send` that returned is. [`Synchronous::Full`] unless it is set.
    #[must_use]
    pub const fn synchronous(mut self, synchronous: Synchronous) -> Self {
        self.synchronous = synchronous;
        self
    }

    /// How long an operation waits for a lock that another connection holds, at most 300 s. Then it fails with
    /// [`Error::Connection`], which is transient. 10 s unless it is set.
    #[must_use]
    pub const fn busy_timeout(mut self, timeout: Duration) -> Self {
        self.busy_timeout = timeout;
        self
    }
}

/// The longest wait for a lock that can be configured.
const LONGEST_BUSY_TIMEOUT: Duration = Duration::from_secs(300);

/// Opens a file, makes its tables if it is new, brings it up to date if it is old. Waits for locks of other connections.
pub(super) fn open(path: &Path, config: SqliteConfig) -> Result<Connection, Error> {
    let SqliteConfig { synchronous, busy_timeout } = config;
    if busy_timeout > LONGEST_BUSY_TIMEOUT {
        return Err(Error::invalid("busy_timeout", format!("{} s", busy_timeout.as_secs_f64()), "0 s to 300 s"));
    }
    let is_made = make(path)?;
    let failed = |error: Failure| match error {
        Failure::Refused(reason) => refused(path, &reason),
        Failure::Sqlite(error) => explain(path, busy_timeout, error),
    };
    let mut lock = LockWait::begin(busy_timeout);
    loop {
        match attempt(path, synchronous) {
            Err(Failure::Sqlite(error)) if lock.wait(&error) => {}
            Err(error) => {
                // Nothing of ours is in it: a file of no bytes was not there before.
                if is_made && path.metadata().is_ok_and(|file| file.len() == 0) {
                    let _ = std::fs::remove_file(path);
                }
                return Err(failed(error));
            }
            Ok(connection) => return Ok(connection),
        }
    }
}

/// Makes an empty file that only its owner can read and write, unless there is a file. SQLite gives the files beside it
/// the same permissions. Says whether it was made here.
fn make(path: &Path) -> Result<bool, Error> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    match options.open(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(false),
        // SQLite says in its own way what is wrong with the folder.
        Err(_) => Ok(false),
    }
}

/// Waits for a lock of another connection, up to a limit.
pub(super) struct LockWait {
    deadline: Instant,
    attempts: u32,
}

impl LockWait {
    pub(super) fn begin(timeout: Duration) -> Self {
        Self::until(Instant::now() + timeout)
    }

    pub(super) const fn until(deadline: Instant) -> Self {
        LockWait { deadline, attempts: 0 }
    }

    /// Whether to try again, after a pause: another connection holds the lock, and there is time left.
    pub(super) fn wait(&mut self, error: &rusqlite::Error) -> bool {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if !is_busy(error) || left.is_zero() {
            return false;
        }
        let pause = match self.attempts {
            0..10 => 1,
            10..50 => 5,
            _ => 20,
        };
        self.attempts += 1;
        std::thread::sleep(Duration::from_millis(pause).min(left));
        true
    }
}

pub(super) fn is_busy(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode::{DatabaseBusy, DatabaseLocked};
    matches!(error.sqlite_error_code(), Some(DatabaseBusy | DatabaseLocked))
}

enum Failure {
    Refused(String),
    Sqlite(rusqlite::Error),
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Failure::Sqlite(error)
    }
}

impl From<&str> for Failure {
    fn from(reason: &str) -> Self {
        Failure::Refused(reason.into())
    }
}

/// Opens a file unless another connection holds a lock that this needs.
fn attempt(path: &Path, synchronous: Synchronous) -> Result<Connection, Failure> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    // Every verb, even a look, takes the lock for writing.
    if connection.is_readonly("main")? {
        return Err("the file is read-only, and was not touched; choose another one or allow writing".into());
    }
    // The caller waits, up to its own limit.
    connection.busy_timeout(Duration::ZERO)?;
    // In one look: another process may make the file at this moment, and it sets all of these at once.
    let look = "SELECT (SELECT count(*) FROM sqlite_schema), application_id, user_version \
                FROM pragma_application_id, pragma_user_version";
    let (tables, application, version): (i64, i32, i32) =
        connection.query_row(look, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let is_new = tables == 0 && application == 0 && version == 0;
    if !is_new && application != APPLICATION_ID {
        return Err("it is a database of another program, and was not touched; choose another file".into());
    }
    if version > VERSION {
        return Err(Failure::Refused(format!(
            "it is of version {version}, this program knows up to {VERSION}; update it. Nothing was changed"
        )));
    }
    if is_new {
        // A transaction writes whole pages to the log: with smaller ones than usual a message costs a fifth less, and large
        // bodies hardly more.
        connection.pragma_update(None, "page_size", 2_048)?;
    }
    if !write_ahead(&connection)? {
        return Err("there is no write-ahead log in this place; choose a file on a local disk".into());
    }
    let level = match synchronous {
        Synchronous::Full => "FULL",
        Synchronous::Normal => "NORMAL",
    };
    connection.pragma_update(None, "synchronous", level)?;
    // As much log as usual, in pages of half the size. More would be less work for the disk, but the same few pages change with
    // every message, and SQLite finds a place for each in the log's index the slower, the more often it is in there.
    connection.pragma_update(None, "wal_autocheckpoint", 2_000)?;
    connection.set_prepared_statement_cache_capacity(128);
    // Otherwise a statement is compiled anew whenever another value is bound to it: a third of the time of a small file.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    if version < VERSION {
        migrate(&connection)?;
    }
    Ok(connection)
}

/// Switches to the write-ahead log. It answers before the switch is written: whether that failed is said at the end.
fn write_ahead(connection: &Connection) -> rusqlite::Result<bool> {
    let mut statement = connection.prepare("PRAGMA journal_mode = WAL")?;
    let mut rows = statement.query([])?;
    let mut is_on = false;
    while let Some(row) = rows.next()? {
        is_on = row.get::<_, String>(0)? == "wal";
    }
    Ok(is_on)
}

/// Another process may do the same at the same moment: the version is looked at again under the lock.
fn migrate(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch("BEGIN IMMEDIATE")?;
    let version: i32 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    if version < 1 {
        connection.execute_batch(TABLES)?;
    }
    if version < 2 {
        connection.execute_batch(IDLE)?;
    }
    if version < 3 {
        connection.execute_batch(RANK)?;
    }
    connection
        .execute_batch(&format!("PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION}; COMMIT"))
}

fn refused(path: &Path, reason: &str) -> Error {
    Error::Connection { message: format!("cannot use {}: {reason}", path.display()), transient: false, source: None }
}

/// The one place in which errors of SQLite become ours. `waited` is how long a lock was waited for.
pub(super) fn explain(path: &Path, waited: Duration, error: rusqlite::Error) -> Error {
    use rusqlite::ErrorCode::*;
    let code = error.sqlite_error_code();
    let (reason, transient) = match code {
        Some(DiskFull) => ("the disk is full; make room", true),
        Some(ReadOnly) => ("the file or its folder is read-only", false),
        Some(NotADatabase) => ("it is not a database; choose another file", false),
        Some(DatabaseCorrupt) => ("the file is damaged; restore it from a copy", false),
        Some(PermissionDenied | AuthorizationForStatementDenied) => ("permission denied", false),
        Some(CannotOpen) => ("it cannot be opened: is there no such folder, or is it read-only?", false),
        Some(SystemIoFailure) => ("the disk failed", true),
        Some(DatabaseBusy | DatabaseLocked) => ("another connection holds its lock", true),
        _ => ("SQLite failed", false),
    };
    let advice = if is_busy(&error) {
        format!("; it was waited for for {} s. End the other transaction, or raise busy_timeout", waited.as_secs_f64())
    } else {
        String::new()
    };
    let message = format!("cannot use {}: {reason}{advice} ({error})", path.display());
    Error::Connection { message, transient, source: Some(std::sync::Arc::new(error)) }
}
