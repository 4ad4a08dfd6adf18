//! The tables of a file, and their versions.

use rusqlite::{Connection, Result};

/// "Pbox": marks a database as one of Postbox.
pub(super) const APPLICATION_ID: i32 = 0x5062_6f78;
/// The version that this program writes.
pub(super) const VERSION: i32 = 3;

/// States of a message, as they are stored.
pub(super) const READY: i64 = 0;
/// Visible, and behind the head of its group.
pub(super) const BEHIND: i64 = 1;
/// Sent with a delay.
pub(super) const DELAYED: i64 = 2;
/// Given back with a delay.
pub(super) const RETURNING: i64 = 3;
pub(super) const LEASED: i64 = 4;

/// Version 1. Invariants:
///
/// * `message.due` is set while a message is delayed, returning or leased; `since` is when it was set.
/// * `message.ord` orders the messages of a state: the ready ones by the moment at which they became visible, the others
///   among those that are due at one moment. A leased message keeps the `ord` that it had when it was ready in `rank`.
/// * `message.receipt` is the number of the current delivery.
/// * Of each group at most one message is ready, returning or leased: its head.
/// * The counts of a mailbox's row are those of its messages.
/// * Each verb has a partial index for the messages that it reads, so none scans.
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

/// Version 2: an unused mailbox is removed from `idle_at` on.
const VERSION_2: &str = "
ALTER TABLE mailbox ADD COLUMN idle_at INTEGER;
CREATE INDEX mailbox_idle ON mailbox (idle_at) WHERE idle_at IS NOT NULL;
";

/// Version 3: `rank`, `since`, and an index of dead letters by id. A deadline of an older version gets the latest moment that the
/// file knows as its `since`.
const VERSION_3: &str = "
ALTER TABLE message ADD COLUMN rank INTEGER;
ALTER TABLE message ADD COLUMN since INTEGER;
ALTER TABLE deduplication ADD COLUMN since INTEGER;
UPDATE message SET since = (SELECT value FROM meta WHERE key = 'high_water') WHERE due IS NOT NULL;
UPDATE deduplication SET since = (SELECT value FROM meta WHERE key = 'high_water');
CREATE INDEX dead_id ON dead (mailbox, id);
";

/// The index of messages by id, for sends with an id of the caller's own. The first of these sends makes it: the ids are
/// random, so the index costs every other send a page of its own.
pub(super) const CREATE_ID_INDEX: &str = "CREATE INDEX IF NOT EXISTS message_id ON message (mailbox, id)";

/// Brings a file to [`VERSION`]. The version is read under the lock, since another process may do the same.
pub(super) fn migrate(connection: &Connection) -> Result<()> {
    connection.execute_batch("BEGIN IMMEDIATE")?;
    let version: i32 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    for (number, statements) in [(1, TABLES), (2, VERSION_2), (3, VERSION_3)] {
        if version < number {
            connection.execute_batch(statements)?;
        }
    }
    connection
        .execute_batch(&format!("PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION}; COMMIT"))
}
