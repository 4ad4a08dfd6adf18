//! Opens files: creates them, refuses databases of other programs, and waits for locks.

use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::config::{SqliteConfig, Synchronous};
use super::error::{from_sqlite, is_busy, refused};
use super::schema::{APPLICATION_ID, VERSION, migrate};
use crate::error::Error;

/// Opens a file. Creates it with its tables if it does not exist, and migrates an older version.
pub(super) fn open(path: &Path, config: SqliteConfig) -> Result<Connection, Error> {
    config.check()?;
    if path.as_os_str() == ":memory:" {
        return Err(refused(path, "SQLite would keep it in memory, for one connection; use memory://name"));
    }
    let is_created = create(path);
    let mut lock = LockWait::until(Instant::now() + config.busy_timeout);
    loop {
        let failure = match connect(path, config.synchronous) {
            Ok(connection) => return Ok(connection),
            Err(Failure::Sqlite(error)) if lock.wait(&error) => continue,
            Err(failure) => failure,
        };
        // An address that fails creates nothing. A file that another process has begun to write is not empty.
        if is_created && path.metadata().is_ok_and(|file| file.len() == 0) {
            let _ = std::fs::remove_file(path);
        }
        return Err(match failure {
            Failure::Refused(reason) => refused(path, &reason),
            Failure::Sqlite(error) => from_sqlite(path, config.busy_timeout, error),
        });
    }
}

/// Creates an empty file that only its owner can read and write. Returns `false` if that fails, also because the file
/// exists. SQLite gives its other files the same permissions.
fn create(path: &Path) -> bool {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path).is_ok()
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
fn connect(path: &Path, synchronous: Synchronous) -> Result<Connection, Failure> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    // SQLite would take a name that begins with `file:` for a URI of another file.
    let path = if path.is_relative() { &Path::new(".").join(path) } else { path };
    let connection = Connection::open_with_flags(path, flags)?;
    // Every verb takes the lock for writing.
    if connection.is_readonly("main")? {
        return Err("the file is read-only, and was not touched; choose another one or allow writing".into());
    }
    // Callers wait for locks up to their own limit, by `LockWait`.
    connection.busy_timeout(Duration::ZERO)?;
    // In one statement: another process that makes the file at this moment sets all of these at once.
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
        // A transaction writes whole pages to the log. With pages of half the default size a message costs a fifth less,
        // and a large body hardly more.
        connection.pragma_update(None, "page_size", 2_048)?;
    }
    if !use_write_ahead_log(&connection)? {
        return Err("there is no write-ahead log in this place; choose a file on a local disk".into());
    }
    let level = match synchronous {
        Synchronous::Full => "FULL",
        Synchronous::Normal => "NORMAL",
    };
    connection.pragma_update(None, "synchronous", level)?;
    // A log of the default size in bytes. A longer log means fewer checkpoints, but slower look-ups in its index.
    connection.pragma_update(None, "wal_autocheckpoint", 2_000)?;
    connection.set_prepared_statement_cache_capacity(128);
    // Without it SQLite compiles a statement again whenever another value is bound to it: a third of the time of a small
    // file.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    if version < VERSION {
        migrate(&connection)?;
    }
    Ok(connection)
}

/// Switches to the write-ahead log. The statement answers before the switch is written, so all of its rows are read.
fn use_write_ahead_log(connection: &Connection) -> rusqlite::Result<bool> {
    let mut statement = connection.prepare("PRAGMA journal_mode = WAL")?;
    let mut rows = statement.query([])?;
    let mut is_on = false;
    while let Some(row) = rows.next()? {
        is_on = row.get::<_, String>(0)? == "wal";
    }
    Ok(is_on)
}

/// Waits for a lock of another connection, up to a deadline.
pub(super) struct LockWait {
    deadline: Instant,
    attempts: u32,
}

impl LockWait {
    pub(super) const fn until(deadline: Instant) -> Self {
        LockWait { deadline, attempts: 0 }
    }

    /// Pauses, and returns whether to try again: if another connection holds the lock, and there is time left.
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
