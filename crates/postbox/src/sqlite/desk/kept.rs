//! What one transaction knows of the file at its end, for the next one.

use std::collections::HashMap;

use rusqlite::{Connection, Result};

use super::row::Row;
use crate::address::MailboxName;

/// So many mailboxes are kept at most.
const MOST: usize = 256;

/// Holds as long as no other connection has changed the file, and only after a commit: a transaction takes it, and gives
/// back what holds now if it succeeds.
#[derive(Default)]
pub(in crate::sqlite) struct Kept {
    /// SQLite's number for the changes by other connections.
    version: Option<i64>,
    /// The latest moment that is written in the file.
    pub(super) high_water: i64,
    rows: HashMap<MailboxName, Row>,
}

impl Kept {
    /// The same, or what the file says now. Within a transaction, so that nobody else can change it any more.
    pub(super) fn if_current(self, connection: &Connection) -> Result<Self> {
        let version = connection.prepare_cached("PRAGMA data_version")?.query_row([], |found| found.get(0))?;
        if self.version == Some(version) {
            return Ok(self);
        }
        let high_water = connection
            .prepare_cached("SELECT value FROM meta WHERE key = 'high_water'")?
            .query_row([], |found| found.get(0))?;
        Ok(Kept { version: Some(version), high_water, rows: HashMap::new() })
    }

    pub(super) fn take(&mut self, name: &MailboxName) -> Option<Row> {
        self.rows.remove(name)
    }

    pub(super) fn put(&mut self, name: MailboxName, row: Row) {
        if self.rows.len() >= MOST {
            self.rows.clear();
        }
        self.rows.insert(name, row);
    }

    /// A mailbox is gone.
    pub(super) fn forget(&mut self, mailbox: i64) {
        self.rows.retain(|_, row| row.id != mailbox);
    }
}
