//! The row of a mailbox, and the cache of rows that a transaction leaves to the next one.

use std::collections::HashMap;
use std::time::Duration;

use rusqlite::{Connection, Result, params};

use super::schema::{BEHIND, DELAYED, LEASED, READY, RETURNING};
use super::statements::Statements as _;
use crate::backend::MailboxSettings;
use crate::resolver::address::MailboxName;

/// Milliseconds, rounded up so that nothing ends early.
pub(super) fn millis(duration: Duration) -> i64 {
    /// A moment that is this much later is still in range.
    const LONGEST: i64 = i64::MAX / 4;
    i64::try_from(duration.as_nanos().div_ceil(1_000_000)).map_or(LONGEST, |millis| millis.min(LONGEST))
}

/// The row of a mailbox, as the transaction has changed it. It is written back when the transaction ends.
#[derive(Default)]
pub(super) struct MailboxRow {
    pub(super) id: i64,
    /// The last number that was given to a position or a delivery.
    pub(super) counter: i64,
    pub(super) ready: i64,
    pub(super) delayed: i64,
    pub(super) leased: i64,
    pub(super) dead: i64,
    pub(super) max_size: Option<i64>,
    pub(super) max_deliveries: Option<i64>,
    pub(super) deduplication_window: Option<i64>,
    pub(super) idle_expiry: Option<i64>,
    /// From this moment on the mailbox is idle, and is removed.
    idle_at: Option<i64>,
    pub(super) is_changed: bool,
    /// Nothing in the mailbox is due before this moment; `None` if nothing is due at all.
    next_due: Option<i64>,
    /// The number of waiters that the commit wakes: one for each message that became deliverable, or got a new due time.
    pub(super) wakeups: u64,
}

impl MailboxRow {
    pub(super) fn read(connection: &Connection, name: &MailboxName) -> Result<Option<Self>> {
        let row = connection.query_first(
            "SELECT id, counter, ready, delayed, leased, dead, max_size, max_deliveries, deduplication_window, \
             idle_expiry, idle_at FROM mailbox WHERE prefix = ?1 AND name = ?2",
            params![name.prefix().unwrap_or(""), name.as_str()],
            |found| {
                Ok(MailboxRow {
                    id: found.get(0)?,
                    counter: found.get(1)?,
                    ready: found.get(2)?,
                    delayed: found.get(3)?,
                    leased: found.get(4)?,
                    dead: found.get(5)?,
                    max_size: found.get(6)?,
                    max_deliveries: found.get(7)?,
                    deduplication_window: found.get(8)?,
                    idle_expiry: found.get(9)?,
                    idle_at: found.get(10)?,
                    ..MailboxRow::default()
                })
            },
        )?;
        row.map(|mut row| row.read_next_due(connection).map(|()| row)).transpose()
    }

    pub(super) fn insert(connection: &Connection, name: &MailboxName) -> Result<Self> {
        // Delivery numbers start at random, so that a receipt of a deleted mailbox never fits a later delivery.
        let counter = (rand::random::<u64>() >> 24) as i64;
        connection.execute_cached(
            "INSERT INTO mailbox (prefix, name, counter) VALUES (?1, ?2, ?3)",
            params![name.prefix().unwrap_or(""), name.as_str(), counter],
        )?;
        Ok(MailboxRow { id: connection.last_insert_rowid(), counter, is_changed: true, ..MailboxRow::default() })
    }

    pub(super) fn write(&self, connection: &Connection) -> Result<()> {
        connection.execute_cached(
            "UPDATE mailbox SET counter = ?2, ready = ?3, delayed = ?4, leased = ?5, dead = ?6, max_size = ?7, \
             max_deliveries = ?8, deduplication_window = ?9, idle_expiry = ?10, idle_at = ?11 WHERE id = ?1",
            params![
                self.id,
                self.counter,
                self.ready,
                self.delayed,
                self.leased,
                self.dead,
                self.max_size,
                self.max_deliveries,
                self.deduplication_window,
                self.idle_expiry,
                self.idle_at
            ],
        )?;
        Ok(())
    }

    /// The next number for a position or a delivery.
    pub(super) fn next_number(&mut self) -> i64 {
        self.is_changed = true;
        self.counter += 1;
        self.counter
    }

    /// How many messages the mailbox holds, without its dead letters.
    pub(super) const fn total(&self) -> i64 {
        self.ready + self.delayed + self.leased
    }

    /// Applies the settings that are given. The others stay as they are.
    pub(super) fn configure(&mut self, settings: &MailboxSettings) {
        let number = |value: usize| i64::try_from(value).unwrap_or(i64::MAX);
        let before = (self.max_size, self.max_deliveries, self.deduplication_window, self.idle_expiry);
        self.max_size = settings.max_size.map(number).or(self.max_size);
        self.max_deliveries = settings.max_deliveries.map(i64::from).or(self.max_deliveries);
        self.deduplication_window = settings.deduplication_window.map(millis).or(self.deduplication_window);
        self.idle_expiry = settings.idle_expiry.map(millis).or(self.idle_expiry);
        self.is_changed |= before != (self.max_size, self.max_deliveries, self.deduplication_window, self.idle_expiry);
    }

    pub(super) fn is_idle(&self, now: i64) -> bool {
        self.idle_at.is_some_and(|at| at <= now)
    }

    /// Starts the idle time anew, since the mailbox is used. At most eight times in that time, since each is a write.
    pub(super) fn mark_used(&mut self, now: i64) {
        let idle_at = self.idle_expiry.map(|idle| now.saturating_add(idle));
        let is_worth_a_write = match (self.idle_at, idle_at) {
            (Some(old), Some(new)) => new.saturating_sub(old) > self.idle_expiry.unwrap_or(0) / 8,
            (old, new) => old != new,
        };
        if is_worth_a_write {
            self.idle_at = idle_at;
            self.is_changed = true;
        }
    }

    pub(super) fn is_due(&self, now: i64) -> bool {
        self.next_due.is_some_and(|due| due <= now)
    }

    /// Something is due at a moment: an expiry, or the end of a deduplication window.
    pub(super) fn expect_due(&mut self, moment: Option<i64>) {
        self.next_due = self.next_due.into_iter().chain(moment).min();
    }

    /// A lease or a delay ends at a moment. Until then the mailbox is in use.
    pub(super) fn schedule(&mut self, moment: Option<i64>) {
        self.expect_due(moment);
        if let Some((moment, idle)) = moment.zip(self.idle_expiry) {
            self.idle_at = self.idle_at.max(Some(moment.saturating_add(idle)));
        }
    }

    /// Reads when the next lease, delay, expiry or deduplication window ends.
    pub(super) fn read_next_due(&mut self, connection: &Connection) -> Result<()> {
        let due: [Option<i64>; 3] = connection
            .prepare_cached(
                "SELECT (SELECT due FROM message INDEXED BY message_due \
                 WHERE mailbox = ?1 AND state >= 2 ORDER BY due LIMIT 1), \
                 (SELECT expires_at FROM message INDEXED BY message_expiring \
                 WHERE mailbox = ?1 AND expires_at IS NOT NULL AND state <> 4 ORDER BY expires_at LIMIT 1), \
                 (SELECT until FROM deduplication INDEXED BY deduplication_until \
                 WHERE mailbox = ?1 ORDER BY until LIMIT 1)",
            )?
            .query_row([self.id], |found| Ok([found.get(0)?, found.get(1)?, found.get(2)?]))?;
        self.next_due = due.into_iter().flatten().min();
        Ok(())
    }

    /// A message leaves a state.
    pub(super) fn leave_state(&mut self, state: i64) {
        self.is_changed = true;
        match state {
            READY | BEHIND => self.ready -= 1,
            DELAYED | RETURNING => self.delayed -= 1,
            LEASED => self.leased -= 1,
            _ => {}
        }
    }
}

/// The most rows that are cached.
const CACHED_ROWS: usize = 256;

/// The rows that a transaction knew when it was committed. They are valid until another connection changes the file.
///
/// A transaction takes the cache, and gives it back only if it is committed.
#[derive(Default)]
pub(super) struct RowCache {
    /// SQLite's number for the changes by other connections.
    data_version: Option<i64>,
    /// The latest moment that is written in the file.
    pub(super) high_water: i64,
    rows: HashMap<MailboxName, MailboxRow>,
}

impl RowCache {
    /// The cache, or a new one if another connection has changed the file. Called within a transaction, so that the cache
    /// is valid until its end.
    pub(super) fn refreshed(self, connection: &Connection) -> Result<Self> {
        let version = connection.prepare_cached("PRAGMA data_version")?.query_row([], |found| found.get(0))?;
        if self.data_version == Some(version) {
            return Ok(self);
        }
        let high_water = connection
            .prepare_cached("SELECT value FROM meta WHERE key = 'high_water'")?
            .query_row([], |found| found.get(0))?;
        Ok(RowCache { data_version: Some(version), high_water, rows: HashMap::new() })
    }

    pub(super) fn take(&mut self, name: &MailboxName) -> Option<MailboxRow> {
        self.rows.remove(name)
    }

    pub(super) fn put(&mut self, name: MailboxName, row: MailboxRow) {
        if self.rows.len() >= CACHED_ROWS {
            self.rows.clear();
        }
        self.rows.insert(name, row);
    }

    /// The mailbox with this row id is removed.
    pub(super) fn remove(&mut self, mailbox: i64) {
        self.rows.retain(|_, row| row.id != mailbox);
    }
}
