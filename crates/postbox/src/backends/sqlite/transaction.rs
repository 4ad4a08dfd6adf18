//! One transaction: its time, and the rows of its mailboxes.

use std::collections::HashMap;

use rusqlite::{Connection, Result};

use super::clock::{Now, is_behind, restart_deadlines};
use super::mailbox_row::{MailboxRow, RowCache};
use super::mailbox_state::{MailboxState, remove_messages};
use super::statements::Statements as _;
use crate::backend::MailboxSettings;
use crate::mailbox::id::ReplyId;
use crate::resolver::address::MailboxName;
use crate::runtime::clock::Moment;

/// What a waiter waits for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Event {
    /// A message of the mailbox is deliverable, or will be at a new moment.
    Message(MailboxName),
    /// The reply is resolved, cancelled or deleted.
    Reply(ReplyId),
}

/// The events of a transaction, each with the most waiters that its commit wakes.
pub(super) type Wakeups = Vec<(Event, u64)>;

/// How often, in milliseconds, the present moment is written to the file.
const HIGH_WATER_INTERVAL: i64 = 1_000;

pub(super) struct Transaction<'a> {
    connection: &'a Connection,
    clock: Now,
    cache: RowCache,
    rows: HashMap<MailboxName, MailboxRow>,
    wakeups: Wakeups,
}

impl<'a> Transaction<'a> {
    /// Starts in a transaction that SQLite has begun.
    pub(super) fn start(connection: &'a Connection, clock: Now, cache: RowCache) -> Result<Self> {
        let mut cache = cache.refreshed(connection)?;
        if is_behind(clock.millis, cache.high_water) {
            restart_deadlines(connection, clock.millis)?;
            cache = RowCache::default().refreshed(connection)?;
        }
        Ok(Transaction { connection, clock, cache, rows: HashMap::new(), wakeups: Vec::new() })
    }

    /// Writes the changed rows. Returns the waiters to wake after the commit, and the cache for the next transaction.
    /// A transaction that changed nothing writes nothing.
    pub(super) fn finish(mut self) -> Result<(Wakeups, RowCache)> {
        let mut is_changed = false;
        for (name, mut row) in std::mem::take(&mut self.rows) {
            if std::mem::take(&mut row.is_changed) {
                is_changed = true;
                row.write(self.connection)?;
            }
            match std::mem::take(&mut row.wakeups) {
                0 => {}
                waiters => self.wakeups.push((Event::Message(name.clone()), waiters)),
            }
            self.cache.put(name, row);
        }
        if is_changed {
            self.note_time()?;
        }
        Ok((self.wakeups, self.cache))
    }

    pub(super) fn connection(&self) -> &'a Connection {
        self.connection
    }

    /// The moment of the transaction, in Unix milliseconds.
    pub(super) const fn now(&self) -> i64 {
        self.clock.millis
    }

    /// The moment at which the process's clock shows a moment of the file.
    pub(super) fn alarm(&self, moment: i64) -> Moment {
        self.clock.alarm(moment)
    }

    /// Wakes the waiters for a reply after the commit.
    pub(super) fn wake_reply(&mut self, id: &ReplyId) {
        self.wakeups.push((Event::Reply(id.clone()), u64::MAX));
    }

    /// Writes the time to the file, at most once a second. Every change calls it.
    pub(super) fn note_time(&mut self) -> Result<()> {
        if self.now() >= self.cache.high_water.saturating_add(HIGH_WATER_INTERVAL) {
            self.cache.high_water = self.now();
            self.connection.execute_cached("UPDATE meta SET value = ?1 WHERE key = 'high_water'", [self.now()])?;
        }
        Ok(())
    }

    /// Runs an operation on a mailbox, after the transitions that are due. `None` if the mailbox does not exist.
    pub(super) fn with_mailbox<T>(
        &mut self,
        name: &MailboxName,
        act: impl FnOnce(&mut MailboxState<'_>) -> Result<T>,
    ) -> Result<Option<T>> {
        match self.take_row(name)? {
            Some(row) => self.act_on(name, row, act).map(Some),
            None => Ok(None),
        }
    }

    /// The same. Creates the mailbox with these settings if it does not exist.
    pub(super) fn with_new_mailbox<T>(
        &mut self,
        name: &MailboxName,
        settings: &MailboxSettings,
        act: impl FnOnce(&mut MailboxState<'_>) -> Result<T>,
    ) -> Result<T> {
        let row = match self.take_row(name)? {
            Some(row) => row,
            None => {
                self.remove_idle_mailboxes()?;
                let mut row = MailboxRow::insert(self.connection, name)?;
                row.configure(settings);
                row
            }
        };
        self.act_on(name, row, act)
    }

    fn act_on<T>(
        &mut self,
        name: &MailboxName,
        mut row: MailboxRow,
        act: impl FnOnce(&mut MailboxState<'_>) -> Result<T>,
    ) -> Result<T> {
        let mut mailbox = MailboxState { connection: self.connection, now: self.now(), row: &mut row };
        let result = mailbox.promote_due().and_then(|()| act(&mut mailbox));
        row.mark_used(self.now());
        self.rows.insert(name.clone(), row);
        result
    }

    /// Takes the row of a mailbox out of the transaction. A mailbox that is idle is deleted, and does not exist then.
    fn take_row(&mut self, name: &MailboxName) -> Result<Option<MailboxRow>> {
        if let Some(row) = self.rows.remove(name) {
            return Ok(Some(row));
        }
        let row = match self.cache.take(name) {
            Some(row) => Some(row),
            None => MailboxRow::read(self.connection, name)?,
        };
        match row {
            Some(row) if row.is_idle(self.now()) => self.remove_mailbox(row.id).map(|()| None),
            row => Ok(row),
        }
    }

    pub(super) fn delete(&mut self, name: &MailboxName) -> Result<()> {
        match self.take_row(name)? {
            Some(row) => self.remove_mailbox(row.id),
            None => Ok(()),
        }
    }

    fn remove_mailbox(&mut self, mailbox: i64) -> Result<()> {
        self.cache.remove(mailbox);
        remove_messages(self.connection, mailbox)?;
        for statement in [
            "DELETE FROM dead WHERE mailbox = ?1",
            "DELETE FROM deduplication WHERE mailbox = ?1",
            "DELETE FROM mailbox WHERE id = ?1",
        ] {
            self.connection.execute_cached(statement, [mailbox])?;
        }
        self.note_time()
    }

    /// Removes up to 16 idle mailboxes, except those that this transaction uses.
    fn remove_idle_mailboxes(&mut self) -> Result<()> {
        let idle: Vec<i64> = self.connection.query_all(
            "SELECT id FROM mailbox WHERE idle_at IS NOT NULL AND idle_at <= ?1 ORDER BY idle_at LIMIT 16",
            [self.now()],
            |found| found.get(0),
        )?;
        let in_use: Vec<i64> = self.rows.values().map(|row| row.id).collect();
        idle.into_iter().filter(|id| !in_use.contains(id)).try_for_each(|id| self.remove_mailbox(id))
    }

    /// The prefixes and names of all mailboxes.
    pub(super) fn list(&mut self) -> Result<Vec<(String, String)>> {
        self.remove_idle_mailboxes()?;
        let names = "SELECT prefix, name FROM mailbox ORDER BY prefix, name";
        self.connection.query_all(names, [], |found| Ok((found.get(0)?, found.get(1)?)))
    }
}
