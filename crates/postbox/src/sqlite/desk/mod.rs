//! The verbs, as statements within one transaction. It does what the ledger does.

mod dead;
mod kept;
mod row;

use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension as _, Result, params};

pub(super) use self::kept::Kept;
use self::row::Row;
use super::schema::{BEHIND, DELAYED, IDS, LEASED, READY, RETURNING};
use super::time::{Now, is_behind, restart_deadlines};
use crate::address::MailboxName;
use crate::backend::{Counts, Delivery, MailboxSettings, Outgoing};
use crate::clock::Moment;
use crate::id::{MessageId, ReceiptHandle, ReplyId};
use crate::wire;

/// One transaction: its moment, and the mailboxes that it touches.
pub(in crate::sqlite) struct Desk<'a> {
    connection: &'a Connection,
    clock: Now,
    pub(in crate::sqlite) now: i64,
    kept: Kept,
    rows: HashMap<MailboxName, Row>,
    settled: Vec<ReplyId>,
}

/// What waiters are told after the commit of a transaction.
#[derive(Default)]
pub(in crate::sqlite) struct News {
    /// Mailboxes in which something is deliverable, or will be at a new moment, and how many waiters have to look.
    pub(in crate::sqlite) mailboxes: Vec<(MailboxName, u64)>,
    /// Replies that were resolved, cancelled or deleted.
    pub(in crate::sqlite) replies: Vec<ReplyId>,
}

/// What is needed of a message on its way from one state to another.
struct Slip {
    seq: i64,
    state: i64,
    deliveries: i64,
    group: Option<String>,
}

/// What a send came to.
pub(in crate::sqlite) enum Stored {
    Yes(MessageId),
    Full(i64),
    IdInUse,
    NotAUuid,
}

pub(in crate::sqlite) fn moment(millis: i64) -> Moment {
    Moment::from_nanos(u64::try_from(millis).unwrap_or(0).saturating_mul(1_000_000))
}

/// Rounded up, so that nothing ends early.
pub(super) fn millis(duration: std::time::Duration) -> i64 {
    i64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX / 4)
}

fn id_of(blob: &[u8]) -> MessageId {
    blob.try_into().map_or_else(
        |_| String::from_utf8_lossy(blob).into_owned().into(),
        |bytes| MessageId::from_u128(u128::from_be_bytes(bytes)),
    )
}

fn blob_of(id: &MessageId) -> Option<[u8; 16]> {
    id.as_u128().map(u128::to_be_bytes)
}

const FIVE_MINUTES: i64 = 300_000;
/// How often, in milliseconds, the present moment is written to the file.
const MARK: i64 = 1_000;

impl<'a> Desk<'a> {
    /// At a moment of the connection's clock. The transaction has begun.
    pub(in crate::sqlite) fn open(connection: &'a Connection, clock: Now, kept: Kept) -> Result<Self> {
        let now = clock.millis;
        let mut kept = kept.if_current(connection)?;
        if is_behind(now, kept.high_water) {
            restart_deadlines(connection, now)?;
            kept = Kept::default().if_current(connection)?;
        }
        Ok(Desk { connection, clock, now, kept, rows: HashMap::new(), settled: Vec::new() })
    }

    /// When the process's clock shows a moment of the file.
    pub(in crate::sqlite) fn alarm(&self, moment: i64) -> Moment {
        self.clock.alarm(moment)
    }

    /// A reply was resolved, cancelled or deleted: its waiters are woken after the commit.
    pub(in crate::sqlite) fn settled(&mut self, id: &ReplyId) {
        self.settled.push(id.clone());
    }

    /// Writes back what has changed. Returns what waiters are told after the commit, and what the next transaction can
    /// go on with.
    pub(in crate::sqlite) fn close(mut self) -> Result<(News, Kept)> {
        let mut mailboxes = Vec::new();
        let mut changed = false;
        for (name, mut row) in std::mem::take(&mut self.rows) {
            if std::mem::take(&mut row.changed) {
                changed = true;
                row.write(self.connection)?;
            }
            match std::mem::take(&mut row.news) {
                0 => {}
                news => mailboxes.push((name.clone(), news)),
            }
            self.kept.put(name, row);
        }
        // Only with other changes: a look alone writes nothing.
        if changed {
            self.touch()?;
        }
        Ok((News { mailboxes, replies: self.settled }, self.kept))
    }

    /// Takes the row of a mailbox out, to be put back by the caller; what is due in it is done.
    fn take(&mut self, name: &MailboxName) -> Result<Option<Row>> {
        let mut row = match self.rows.remove(name) {
            Some(row) => row,
            None => {
                let kept = self.kept.take(name);
                let Some(row) = kept.map_or_else(|| Row::read(self.connection, name), |row| Ok(Some(row)))? else {
                    return Ok(None);
                };
                if row.idle_at.is_some_and(|at| at <= self.now) {
                    self.discard(row.id)?;
                    return Ok(None);
                }
                row
            }
        };
        if row.due.is_some_and(|due| due <= self.now) {
            self.advance(&mut row)?;
        }
        row.use_at(self.now);
        Ok(Some(row))
    }

    /// The row of a mailbox, made with these settings if there is none.
    fn take_or_make(&mut self, name: &MailboxName, settings: &MailboxSettings) -> Result<Row> {
        if let Some(row) = self.take(name)? {
            return Ok(row);
        }
        self.sweep()?;
        let mut row = Row::make(self.connection, name)?;
        row.configure(settings);
        row.use_at(self.now);
        Ok(row)
    }

    fn with<T>(&mut self, name: &MailboxName, act: impl FnOnce(&mut Self, &mut Row) -> Result<T>) -> Result<Option<T>> {
        let Some(mut row) = self.take(name)? else { return Ok(None) };
        let result = act(self, &mut row);
        self.rows.insert(name.clone(), row);
        result.map(Some)
    }

    /// Does what is due, in due order, and lets expired messages and deduplication ids go.
    fn advance(&mut self, row: &mut Row) -> Result<()> {
        loop {
            let due: Vec<Slip> = {
                let mut statement = self.connection.prepare_cached(
                    "SELECT seq, state, deliveries, grp FROM message INDEXED BY message_due \
                     WHERE mailbox = ?1 AND state >= 2 AND due <= ?2 ORDER BY due, ord LIMIT 256",
                )?;
                let slips = statement.query_map(params![row.id, self.now], slip_of)?;
                slips.collect::<Result<_>>()?
            };
            if due.is_empty() {
                break;
            }
            for mut slip in due {
                row.changed = true;
                let is_new = slip.state == DELAYED;
                row.leave(slip.state);
                slip.state = -1;
                if is_new { self.join(row, slip)? } else { self.surface(row, slip)? }
            }
        }
        loop {
            let expired: Vec<Slip> = {
                let mut statement = self.connection.prepare_cached(
                    "SELECT seq, state, deliveries, grp FROM message INDEXED BY message_expiring \
                     WHERE mailbox = ?1 AND expires_at IS NOT NULL AND state <> 4 AND expires_at <= ?2 \
                     ORDER BY expires_at, seq LIMIT 1",
                )?;
                let slips = statement.query_map(params![row.id, self.now], slip_of)?;
                slips.collect::<Result<_>>()?
            };
            let Some(slip) = expired.into_iter().next() else { break };
            self.remove(row, &slip)?;
        }
        let forgotten = self
            .connection
            .prepare_cached("DELETE FROM deduplication WHERE mailbox = ?1 AND until <= ?2")?
            .execute(params![row.id, self.now])?;
        row.changed |= forgotten > 0;
        row.look(self.connection)
    }

    /// A message is visible for the first time.
    fn join(&mut self, row: &mut Row, slip: Slip) -> Result<()> {
        if let Some(group) = &slip.group {
            let has_head = self
                .connection
                .prepare_cached(
                    "SELECT 1 FROM message INDEXED BY message_head \
                     WHERE mailbox = ?1 AND grp IS NOT NULL AND grp = ?2 AND state IN (0, 3, 4) AND seq <> ?3 LIMIT 1",
                )?
                .exists(params![row.id, group, slip.seq])?;
            if has_head {
                row.ready += 1;
                return self.set(row, slip.seq, BEHIND, None);
            }
        }
        self.surface(row, slip)
    }

    /// A message can be delivered, unless its deliveries are spent.
    fn surface(&mut self, row: &mut Row, slip: Slip) -> Result<()> {
        if row.max_deliveries.is_some_and(|most| slip.deliveries >= most) {
            return self.bury(row, &slip, postbox_core::DELIVERIES_SPENT);
        }
        row.ready += 1;
        row.news += 1;
        self.set(row, slip.seq, READY, None)
    }

    /// Puts a message into a state, behind all others that are in it.
    fn set(&self, row: &mut Row, seq: i64, state: i64, due: Option<i64>) -> Result<()> {
        row.changed = true;
        row.counter += 1;
        row.schedule(due);
        self.connection
            .prepare_cached("UPDATE message SET state = ?2, ord = ?3, due = ?4, since = ?5 WHERE seq = ?1")?
            .execute(params![seq, state, row.counter, due, self.now])?;
        Ok(())
    }

    /// Takes a message out, wherever it is, and lets its group go on.
    fn remove(&mut self, row: &mut Row, slip: &Slip) -> Result<()> {
        row.changed = true;
        row.leave(slip.state);
        self.connection.prepare_cached("DELETE FROM message WHERE seq = ?1")?.execute([slip.seq])?;
        let is_head = matches!(slip.state, READY | RETURNING | LEASED | -1);
        let Some(group) = slip.group.as_ref().filter(|_| is_head) else { return Ok(()) };
        let next: Option<Slip> = self
            .connection
            .prepare_cached(
                "SELECT seq, state, deliveries, grp FROM message INDEXED BY message_behind \
                 WHERE mailbox = ?1 AND grp = ?2 AND state = 1 ORDER BY ord LIMIT 1",
            )?
            .query_row(params![row.id, group], slip_of)
            .optional()?;
        match next {
            Some(next) => {
                row.leave(BEHIND);
                self.surface(row, next)
            }
            None => Ok(()),
        }
    }

    pub(in crate::sqlite) fn configure(&mut self, name: &MailboxName, settings: &MailboxSettings) -> Result<()> {
        let mut row = self.take_or_make(name, settings)?;
        row.configure(settings);
        row.use_at(self.now);
        self.rows.insert(name.clone(), row);
        Ok(())
    }

    /// Stores a message. The settings are for a mailbox that does not exist yet.
    pub(in crate::sqlite) fn send(
        &mut self,
        name: &MailboxName,
        settings: &MailboxSettings,
        message: &Outgoing,
    ) -> Result<Stored> {
        let Some(id) = blob_of(&message.id) else { return Ok(Stored::NotAUuid) };
        let mut row = self.take_or_make(name, settings)?;
        let result = self.store(&mut row, &id, message);
        self.rows.insert(name.clone(), row);
        result
    }

    fn store(&mut self, row: &mut Row, id: &[u8; 16], message: &Outgoing) -> Result<Stored> {
        let special = message.special.as_deref();
        let deduplication = special.and_then(|special| special.deduplication.as_deref());
        if let Some(key) = deduplication {
            let first: Option<Vec<u8>> = self
                .connection
                .prepare_cached("SELECT id FROM deduplication WHERE mailbox = ?1 AND key = ?2")?
                .query_row(params![row.id, key], |found| found.get(0))
                .optional()?;
            if let Some(first) = first {
                return Ok(Stored::Yes(id_of(&first)));
            }
        }
        if special.is_some_and(|special| special.own_id)
            && let Some(held) = self.body_of(row, id)?
        {
            let is_same = wire::decode(held.into()).is_ok_and(|(body, ..)| body == message.body);
            return Ok(if is_same { Stored::Yes(message.id.clone()) } else { Stored::IdInUse });
        }
        if let Some(most) = row.max_size.filter(|most| row.ready + row.delayed + row.leased >= *most) {
            return Ok(Stored::Full(most));
        }
        if let Some(key) = deduplication {
            let until = self.now.saturating_add(row.window.unwrap_or(FIVE_MINUTES));
            row.due_by(Some(until));
            self.connection
                .prepare_cached(
                    "INSERT INTO deduplication (mailbox, key, id, until, since) VALUES (?1, ?2, ?3, ?4, ?5)",
                )?
                .execute(params![row.id, key, &id[..], until, self.now])?;
        }
        let body = wire::encode(&message.body, &message.content_type, message.headers.as_deref());
        let group = special.and_then(|special| special.group.clone());
        let expires_at = special.and_then(|special| special.expires_in).map(|after| self.now + millis(after));
        let delay = millis(message.delay);
        row.changed = true;
        row.counter += 1;
        // A plain message is ready as it is stored; the others take their place afterwards.
        let is_plain = delay == 0 && group.is_none();
        let (state, due) = if delay > 0 { (DELAYED, Some(self.now + delay)) } else { (READY, None) };
        row.schedule(due);
        row.due_by(expires_at);
        self.connection
            .prepare_cached(
                "INSERT INTO message (mailbox, id, state, ord, due, since, sent_at, expires_at, grp, body) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6, ?7, ?8, ?9)",
            )?
            .execute(params![row.id, &id[..], state, row.counter, due, self.now, expires_at, group, &body[..]])?;
        if delay > 0 {
            row.delayed += 1;
            row.news += 1;
        } else if is_plain {
            row.ready += 1;
            row.news += 1;
        } else {
            let slip = Slip { seq: self.connection.last_insert_rowid(), state: -1, deliveries: 0, group };
            self.join(row, slip)?;
        }
        Ok(Stored::Yes(message.id.clone()))
    }

    /// What is stored of the message with an id, a dead letter included.
    fn body_of(&self, row: &Row, id: &[u8; 16]) -> Result<Option<Vec<u8>>> {
        self.connection.prepare_cached(IDS)?.execute([])?;
        self.connection
            .prepare_cached(
                "SELECT body FROM message INDEXED BY message_id WHERE mailbox = ?1 AND id = ?2 \
                 UNION ALL SELECT body FROM dead INDEXED BY dead_id WHERE mailbox = ?1 AND id = ?2 LIMIT 1",
            )?
            .query_row(params![row.id, &id[..]], |found| found.get(0))
            .optional()
    }

    /// Up to `max` deliveries, and when the next one may be due.
    pub(in crate::sqlite) fn receive(
        &mut self,
        name: &MailboxName,
        max: usize,
        visibility: std::time::Duration,
    ) -> Result<(Vec<Delivery>, Option<i64>)> {
        let now = self.now;
        let taken = self.with(name, |desk, row| {
            let mut taken = desk.read(row, max)?;
            let due = now + millis(visibility);
            for (seq, delivery) in &mut taken {
                row.counter += 1;
                row.changed = true;
                desk.connection
                    .prepare_cached(
                        "UPDATE message SET state = 4, rank = ord, ord = ?2, receipt = ?2, due = ?3, since = ?4, \
                         deliveries = deliveries + 1 WHERE seq = ?1",
                    )?
                    .execute(params![*seq, row.counter, due, now])?;
                row.ready -= 1;
                row.leased += 1;
                delivery.delivery_count += 1;
                delivery.receipt_handle = ReceiptHandle::from_u128(u128::from(*seq as u64) << 64 | row.counter as u128);
            }
            let next = if taken.is_empty() { desk.next_due(row)? } else { None };
            // Whoever waits uses the mailbox.
            let next = row.idle_expiry.map_or(next, |idle| next.into_iter().chain([now + idle / 2]).min());
            row.schedule((!taken.is_empty()).then_some(due));
            Ok((taken.into_iter().map(|(_, delivery)| delivery).collect(), next))
        })?;
        Ok(taken.unwrap_or_default())
    }

    fn next_due(&self, row: &Row) -> Result<Option<i64>> {
        let due: Option<i64> = self
            .connection
            .prepare_cached(
                "SELECT due FROM message INDEXED BY message_due WHERE mailbox = ?1 AND state >= 2 ORDER BY due, ord LIMIT 1",
            )?
            .query_row([row.id], |found| found.get(0))
            .optional()?;
        let expiry: Option<i64> = self
            .connection
            .prepare_cached(
                "SELECT expires_at FROM message INDEXED BY message_expiring \
                 WHERE mailbox = ?1 AND expires_at IS NOT NULL AND state <> 4 ORDER BY expires_at, seq LIMIT 1",
            )?
            .query_row([row.id], |found| found.get(0))
            .optional()?;
        Ok(due.into_iter().chain(expiry).min())
    }

    /// What is ready, in order.
    fn read(&self, row: &Row, max: usize) -> Result<Vec<(i64, Delivery)>> {
        let mut statement = self.connection.prepare_cached(
            "SELECT seq, id, deliveries, sent_at, body FROM message INDEXED BY message_ready \
             WHERE mailbox = ?1 AND state = 0 ORDER BY ord LIMIT ?2",
        )?;
        let max = i64::try_from(max).unwrap_or(i64::MAX);
        let rows = statement.query_map(params![row.id, max], |found| {
            let id: Vec<u8> = found.get(1)?;
            let seq: i64 = found.get(0)?;
            Ok((seq, delivery(&id, found.get(2)?, found.get(3)?, found.get(4)?, self.now)))
        })?;
        rows.collect()
    }

    /// The message of a receipt, if its lease lives.
    fn leased(&self, row: &Row, handle: &ReceiptHandle) -> Result<Option<(Slip, i64)>> {
        let Some(bits) = handle.as_u128() else { return Ok(None) };
        let (seq, number) = ((bits >> 64) as u64 as i64, bits as u64 as i64);
        self.connection
            .prepare_cached(
                "SELECT seq, state, deliveries, grp, due FROM message \
                 WHERE seq = ?1 AND mailbox = ?2 AND state = 4 AND receipt = ?3",
            )?
            .query_row(params![seq, row.id, number], |found| Ok((slip_of(found)?, found.get(4)?)))
            .optional()
    }

    /// Does something to a leased message. `false` if the lease has ended.
    fn act(
        &mut self,
        name: &MailboxName,
        handle: &ReceiptHandle,
        act: impl FnOnce(&mut Self, &mut Row, Slip, i64) -> Result<()>,
    ) -> Result<bool> {
        let done = self.with(name, |desk, row| match desk.leased(row, handle)? {
            Some((slip, due)) => act(desk, row, slip, due).map(|()| true),
            None => Ok(false),
        })?;
        Ok(done.unwrap_or(false))
    }

    pub(in crate::sqlite) fn acknowledge(&mut self, name: &MailboxName, handle: &ReceiptHandle) -> Result<bool> {
        self.act(name, handle, |desk, row, slip, _| desk.remove(row, &slip))
    }

    pub(in crate::sqlite) fn give_back(
        &mut self,
        name: &MailboxName,
        handle: &ReceiptHandle,
        after: std::time::Duration,
    ) -> Result<bool> {
        self.act(name, handle, |desk, row, mut slip, _| {
            row.leave(LEASED);
            slip.state = -1;
            // It may be past its expiry, which did not count while it was leased.
            row.due_by(Some(i64::MIN));
            match millis(after) {
                0 => desk.surface(row, slip),
                after => {
                    row.delayed += 1;
                    row.news += 1;
                    desk.set(row, slip.seq, RETURNING, Some(desk.now + after))
                }
            }
        })
    }

    /// Ends a lease as if the message had not been delivered.
    pub(in crate::sqlite) fn release(&mut self, name: &MailboxName, handle: &ReceiptHandle) -> Result<bool> {
        self.act(name, handle, |desk, row, slip, _| {
            row.leave(LEASED);
            row.ready += 1;
            row.news += 1;
            row.changed = true;
            // It may be past its expiry, which did not count while it was leased.
            row.due_by(Some(i64::MIN));
            // A message that was leased before version 3 of the file has no rank.
            desk.connection
                .prepare_cached(
                    "UPDATE message SET state = 0, ord = coalesce(rank, ord), due = NULL, deliveries = deliveries - 1 \
                     WHERE seq = ?1",
                )?
                .execute([slip.seq])?;
            Ok(())
        })
    }

    pub(in crate::sqlite) fn extend(
        &mut self,
        name: &MailboxName,
        handle: &ReceiptHandle,
        by: std::time::Duration,
    ) -> Result<bool> {
        self.act(name, handle, |desk, row, slip, due| {
            let until = desk.now + millis(by);
            if until > due { desk.set(row, slip.seq, LEASED, Some(until)) } else { Ok(()) }
        })
    }

    pub(in crate::sqlite) fn dead_letter(
        &mut self,
        name: &MailboxName,
        handle: &ReceiptHandle,
        reason: &str,
    ) -> Result<bool> {
        self.act(name, handle, |desk, row, slip, _| desk.bury(row, &slip, reason))
    }

    pub(in crate::sqlite) fn cancel(&mut self, name: &MailboxName, id: &MessageId) -> Result<bool> {
        let Some(id) = blob_of(id) else { return Ok(false) };
        let cancelled = self.with(name, |desk, row| {
            let found: Option<Slip> = desk
                .connection
                .prepare_cached(
                    "SELECT seq, state, deliveries, grp FROM message INDEXED BY message_delayed \
                     WHERE mailbox = ?1 AND id = ?2 AND state = 2 ORDER BY seq LIMIT 1",
                )?
                .query_row(params![row.id, &id[..]], slip_of)
                .optional()?;
            match found {
                Some(slip) => desk.remove(row, &slip).map(|()| true),
                None => Ok(false),
            }
        })?;
        Ok(cancelled.unwrap_or(false))
    }

    pub(in crate::sqlite) fn purge(&mut self, name: &MailboxName) -> Result<u64> {
        let purged = self.with(name, |desk, row| {
            let gone = desk.remove_all(row.id)?;
            (row.ready, row.delayed, row.leased, row.changed) = (0, 0, 0, true);
            Ok(gone as u64)
        })?;
        Ok(purged.unwrap_or(0))
    }

    pub(in crate::sqlite) fn counts(&mut self, name: &MailboxName) -> Result<Counts> {
        let counts = self.with(name, |_, row| {
            let [ready, delayed, leased, dead] =
                [row.ready, row.delayed, row.leased, row.dead].map(|many| u64::try_from(many).unwrap_or(0));
            Ok(Counts::new(ready, delayed, leased, dead))
        })?;
        Ok(counts.unwrap_or_default())
    }

    pub(in crate::sqlite) fn peek(&mut self, name: &MailboxName, max: usize) -> Result<Vec<Delivery>> {
        let shown =
            self.with(name, |desk, row| Ok(desk.read(row, max)?.into_iter().map(|(_, delivery)| delivery).collect()))?;
        Ok(shown.unwrap_or_default())
    }

    pub(in crate::sqlite) fn delete(&mut self, name: &MailboxName) -> Result<()> {
        match self.take(name)? {
            Some(row) => self.discard(row.id),
            None => Ok(()),
        }
    }

    /// Removes all messages of a mailbox, by the partial indexes that have all states between them. Returns how many.
    fn remove_all(&self, mailbox: i64) -> Result<usize> {
        let mut gone = 0;
        for statement in [
            "DELETE FROM message INDEXED BY message_ready WHERE mailbox = ?1 AND state = 0",
            "DELETE FROM message INDEXED BY message_behind WHERE mailbox = ?1 AND state = 1",
            "DELETE FROM message INDEXED BY message_due WHERE mailbox = ?1 AND state >= 2",
        ] {
            gone += self.connection.prepare_cached(statement)?.execute([mailbox])?;
        }
        Ok(gone)
    }

    /// Takes a mailbox away, with all that is in it.
    fn discard(&mut self, mailbox: i64) -> Result<()> {
        self.kept.forget(mailbox);
        self.remove_all(mailbox)?;
        for table in ["dead", "deduplication"] {
            self.connection.prepare_cached(&format!("DELETE FROM {table} WHERE mailbox = ?1"))?.execute([mailbox])?;
        }
        self.connection.prepare_cached("DELETE FROM mailbox WHERE id = ?1")?.execute([mailbox])?;
        self.touch()
    }

    /// Takes mailboxes away that nobody has used for their time, except those that this transaction has at hand.
    fn sweep(&mut self) -> Result<()> {
        let idle: Vec<i64> = self
            .connection
            .prepare_cached(
                "SELECT id FROM mailbox WHERE idle_at IS NOT NULL AND idle_at <= ?1 ORDER BY idle_at LIMIT 16",
            )?
            .query_map([self.now], |found| found.get(0))?
            .collect::<Result<_>>()?;
        let at_hand: Vec<i64> = self.rows.values().map(|row| row.id).collect();
        idle.into_iter().filter(|id| !at_hand.contains(id)).try_for_each(|id| self.discard(id))
    }

    pub(in crate::sqlite) fn list(&mut self) -> Result<Vec<(String, String)>> {
        self.sweep()?;
        let mut statement = self.connection.prepare_cached("SELECT prefix, name FROM mailbox ORDER BY prefix, name")?;
        let rows = statement.query_map([], |found| Ok((found.get(0)?, found.get(1)?)))?;
        rows.collect()
    }

    pub(in crate::sqlite) fn connection(&self) -> &Connection {
        self.connection
    }

    /// Something was written: the moment counts as seen.
    pub(in crate::sqlite) fn touch(&mut self) -> Result<()> {
        if self.now >= self.kept.high_water.saturating_add(MARK) {
            self.kept.high_water = self.now;
            self.connection
                .prepare_cached("UPDATE meta SET value = ?1 WHERE key = 'high_water'")?
                .execute([self.now])?;
        }
        Ok(())
    }
}

fn slip_of(found: &rusqlite::Row<'_>) -> Result<Slip> {
    Ok(Slip { seq: found.get(0)?, state: found.get(1)?, deliveries: found.get(2)?, group: found.get(3)? })
}

fn delivery(id: &[u8], deliveries: i64, sent_at: i64, body: Vec<u8>, now: i64) -> Delivery {
    // A later version is handed on as it is: the codec says that it cannot be read.
    let (body, content_type, headers) = match wire::decode(body.into()) {
        Ok(parts) => parts,
        Err(error) => (bytes::Bytes::new(), crate::codec::ContentType::from(error.to_string().as_str()), None),
    };
    Delivery {
        id: id_of(id),
        body,
        content_type,
        headers,
        receipt_handle: ReceiptHandle::from_u128(u128::MAX),
        delivery_count: u32::try_from(deliveries).unwrap_or(u32::MAX),
        enqueued_at: moment(sent_at),
        delivered_at: moment(now),
    }
}
