//! The file: its tables, its version, and what is done with a file that is not ours.

use std::path::Path;
use std::time::Duration;

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

/// Invariants: a message is `due` only while it is delayed, returning or leased; `ord` orders what is ready by the moment
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

/// What came with version 3: the place in the order that a released message goes back to, and dead letters by their ids.
const RANK: &str = "
ALTER TABLE message ADD COLUMN rank INTEGER;
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

/// Opens a file, makes its tables if it is new, brings it up to date if it is old.
pub(super) fn open(path: &Path, synchronous: Synchronous) -> Result<Connection, Error> {
    let failed = |error: rusqlite::Error| explain(path, error);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags).map_err(failed)?;
    // Every verb, even a look, takes the lock for writing.
    if connection.is_readonly("main").map_err(failed)? {
        return Err(refused(path, "the file is read-only, and was not touched; choose another one or allow writing"));
    }
    // A lock is waited for, however long another process holds it.
    connection.busy_handler(Some(wait)).map_err(failed)?;
    // In one look: another process may make the file at this moment, and it sets all of these at once.
    let look = "SELECT (SELECT count(*) FROM sqlite_schema), application_id, user_version \
                FROM pragma_application_id, pragma_user_version";
    let (tables, application, version): (i64, i32, i32) =
        connection.query_row(look, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).map_err(failed)?;
    let is_new = tables == 0 && application == 0 && version == 0;
    if !is_new && application != APPLICATION_ID {
        return Err(refused(path, "it is a database of another program, and was not touched; choose another file"));
    }
    if version > VERSION {
        let reason =
            format!("it is of version {version}, this program knows up to {VERSION}; update it. Nothing was changed");
        return Err(refused(path, &reason));
    }
    if is_new {
        // A transaction writes whole pages to the log: with smaller ones than usual a message costs a fifth less, and large
        // bodies hardly more.
        connection.pragma_update(None, "page_size", 2_048).map_err(failed)?;
    }
    // SQLite does not wait for this lock by itself.
    let mut attempt = 0;
    loop {
        match write_ahead(&connection) {
            Ok(true) => break,
            Ok(false) => {
                return Err(refused(path, "there is no write-ahead log in this place; choose a file on a local disk"));
            }
            Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy) => wait(attempt),
            Err(error) => return Err(failed(error)),
        };
        attempt += 1;
    }
    let level = match synchronous {
        Synchronous::Full => "FULL",
        Synchronous::Normal => "NORMAL",
    };
    connection.pragma_update(None, "synchronous", level).map_err(failed)?;
    // As much log as usual, in pages of half the size. More would be less work for the disk, but the same few pages change with
    // every message, and SQLite finds a place for each in the log's index the slower, the more often it is in there.
    connection.pragma_update(None, "wal_autocheckpoint", 2_000).map_err(failed)?;
    connection.set_prepared_statement_cache_capacity(128);
    // Otherwise a statement is compiled anew whenever another value is bound to it: a third of the time of a small file.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map_err(failed)?;
    if version < VERSION {
        migrate(&connection).map_err(failed)?;
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

fn wait(attempt: i32) -> bool {
    std::thread::sleep(Duration::from_millis(match attempt {
        0..10 => 1,
        10..50 => 5,
        _ => 20,
    }));
    true
}

fn refused(path: &Path, reason: &str) -> Error {
    Error::Connection { message: format!("cannot use {}: {reason}", path.display()), transient: false, source: None }
}

/// The one place in which errors of SQLite become ours.
pub(super) fn explain(path: &Path, error: rusqlite::Error) -> Error {
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
        Some(DatabaseBusy | DatabaseLocked) => ("another process holds its lock", true),
        _ => ("SQLite failed", false),
    };
    let message = format!("cannot use {}: {reason} ({error})", path.display());
    Error::Connection { message, transient, source: Some(std::sync::Arc::new(error)) }
}
