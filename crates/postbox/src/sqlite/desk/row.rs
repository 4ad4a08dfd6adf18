//! A mailbox as a row of its table.

use rusqlite::{Connection, OptionalExtension as _, Result, params};

use super::super::schema::{BEHIND, DELAYED, LEASED, READY, RETURNING};
use super::millis;
use crate::address::MailboxName;
use crate::backend::MailboxSettings;

/// A mailbox, as its row says; written back at the end of the transaction.
pub(super) struct Row {
    pub(super) id: i64,
    pub(super) counter: i64,
    pub(super) ready: i64,
    pub(super) delayed: i64,
    pub(super) leased: i64,
    pub(super) dead: i64,
    pub(super) max_size: Option<i64>,
    pub(super) max_deliveries: Option<i64>,
    pub(super) window: Option<i64>,
    pub(super) idle_expiry: Option<i64>,
    pub(super) idle_at: Option<i64>,
    pub(super) changed: bool,
    /// Nothing in it is due before this moment, if at all.
    pub(super) due: Option<i64>,
    /// How many waiters this transaction wakes: one for each message that became deliverable, or that will at a new moment.
    pub(super) news: u64,
}

impl Row {
    pub(super) fn read(connection: &Connection, name: &MailboxName) -> Result<Option<Self>> {
        connection
            .prepare_cached(
                "SELECT id, counter, ready, delayed, leased, dead, max_size, max_deliveries, deduplication_window, \
                 idle_expiry, idle_at FROM mailbox WHERE prefix = ?1 AND name = ?2",
            )?
            .query_row(params![name.prefix().unwrap_or(""), name.as_str()], |row| {
                Ok(Row {
                    id: row.get(0)?,
                    counter: row.get(1)?,
                    ready: row.get(2)?,
                    delayed: row.get(3)?,
                    leased: row.get(4)?,
                    dead: row.get(5)?,
                    max_size: row.get(6)?,
                    max_deliveries: row.get(7)?,
                    window: row.get(8)?,
                    idle_expiry: row.get(9)?,
                    idle_at: row.get(10)?,
                    changed: false,
                    due: None,
                    news: 0,
                })
            })
            .optional()?
            .map(|mut row| row.look(connection).map(|()| row))
            .transpose()
    }

    /// Looks when the next thing is due: a lease, a delay, an expiry, a deduplication id.
    pub(super) fn look(&mut self, connection: &Connection) -> Result<()> {
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
        self.due = due.into_iter().flatten().min();
        Ok(())
    }

    /// A lease or a delay ends at a moment. Until then the mailbox is in use.
    pub(super) fn schedule(&mut self, moment: Option<i64>) {
        self.due_by(moment);
        if let Some((moment, idle)) = moment.zip(self.idle_expiry) {
            self.idle_at = self.idle_at.max(Some(moment.saturating_add(idle)));
        }
    }

    /// Takes over the settings that are given; the others stay.
    pub(super) fn configure(&mut self, settings: &MailboxSettings) {
        let number = |value: usize| i64::try_from(value).unwrap_or(i64::MAX);
        let before = (self.max_size, self.max_deliveries, self.window, self.idle_expiry);
        self.max_size = settings.max_size.map(number).or(self.max_size);
        self.max_deliveries = settings.max_deliveries.map(i64::from).or(self.max_deliveries);
        self.window = settings.deduplication_window.map(millis).or(self.window);
        self.idle_expiry = settings.idle_expiry.map(millis).or(self.idle_expiry);
        self.changed |= before != (self.max_size, self.max_deliveries, self.window, self.idle_expiry);
    }

    /// Something will be due at a moment.
    pub(super) fn due_by(&mut self, moment: Option<i64>) {
        self.due = self.due.into_iter().chain(moment).min();
    }

    /// Makes a mailbox.
    pub(super) fn make(connection: &Connection, name: &MailboxName) -> Result<Self> {
        // Numbers of deliveries start at random: a receipt of a mailbox that was deleted is good for nothing later.
        let counter = (rand::random::<u64>() >> 24) as i64;
        connection
            .prepare_cached("INSERT INTO mailbox (prefix, name, counter) VALUES (?1, ?2, ?3)")?
            .execute(params![name.prefix().unwrap_or(""), name.as_str(), counter])?;
        Ok(Row {
            id: connection.last_insert_rowid(),
            counter,
            ready: 0,
            delayed: 0,
            leased: 0,
            dead: 0,
            max_size: None,
            max_deliveries: None,
            window: None,
            idle_expiry: None,
            idle_at: None,
            changed: true,
            due: None,
            news: 0,
        })
    }

    pub(super) fn write(&self, connection: &Connection) -> Result<()> {
        connection
            .prepare_cached(
                "UPDATE mailbox SET counter = ?2, ready = ?3, delayed = ?4, leased = ?5, dead = ?6, max_size = ?7, \
                 max_deliveries = ?8, deduplication_window = ?9, idle_expiry = ?10, idle_at = ?11 WHERE id = ?1",
            )?
            .execute(params![
                self.id,
                self.counter,
                self.ready,
                self.delayed,
                self.leased,
                self.dead,
                self.max_size,
                self.max_deliveries,
                self.window,
                self.idle_expiry,
                self.idle_at
            ])?;
        Ok(())
    }

    /// Puts the moment off at which the mailbox is idle for too long. Seldom, since it costs a write.
    pub(super) fn use_at(&mut self, now: i64) {
        let idle_at = self.idle_expiry.map(|idle| now.saturating_add(idle));
        let is_soon = match (self.idle_at, idle_at) {
            (Some(old), Some(new)) => new - old > self.idle_expiry.unwrap_or(0) / 8,
            (old, new) => old != new,
        };
        if is_soon {
            self.idle_at = idle_at;
            self.changed = true;
        }
    }

    /// A message leaves a state.
    pub(super) fn leave(&mut self, state: i64) {
        match state {
            READY | BEHIND => self.ready -= 1,
            DELAYED | RETURNING => self.delayed -= 1,
            LEASED => self.leased -= 1,
            _ => {}
        }
    }
}
