//! One mailbox within a transaction: the statements of each verb. They do what the ledger does in memory.

use std::time::Duration;

use rusqlite::{Connection, Result, Row, params};

use super::mailbox_row::{MailboxRow, millis};
use super::schema::{BEHIND, CREATE_ID_INDEX, DELAYED, LEASED, READY, RETURNING};
use super::statements::Statements as _;
use crate::backend::wire;
use crate::backend::{Counts, DeadLetter, Delivery, Outgoing, Redrive};
use crate::mailbox::id::{MessageId, ReceiptHandle};
use crate::runtime::clock::Moment;

/// How long a deduplication id is remembered, unless the settings say otherwise. In milliseconds.
const DEDUPLICATION_WINDOW: i64 = 300_000;

/// A message that has left its state and is not yet in the next one.
const NO_STATE: i64 = -1;

pub(super) struct MailboxState<'a> {
    pub(super) connection: &'a Connection,
    /// The moment of the transaction.
    pub(super) now: i64,
    pub(super) row: &'a mut MailboxRow,
}

/// The columns of a message that a change of state needs.
struct MessageRef {
    seq: i64,
    state: i64,
    deliveries: i64,
    group: Option<String>,
}

impl MessageRef {
    fn read(found: &Row<'_>) -> Result<Self> {
        Ok(MessageRef { seq: found.get(0)?, state: found.get(1)?, deliveries: found.get(2)?, group: found.get(3)? })
    }
}

pub(super) enum SendOutcome {
    Stored(MessageId),
    /// The mailbox holds its `max_size` already.
    Full(i64),
    /// The id that the caller chose belongs to a message with another body.
    IdInUse,
    NotAUuid,
}

/// Changes of state.
impl MailboxState<'_> {
    /// Ends the leases and delays that are due, in due order, and removes expired messages and deduplication ids.
    pub(super) fn promote_due(&mut self) -> Result<()> {
        if !self.row.is_due(self.now) {
            return Ok(());
        }
        loop {
            let due: Vec<MessageRef> = self.connection.query_all(
                "SELECT seq, state, deliveries, grp FROM message INDEXED BY message_due \
                 WHERE mailbox = ?1 AND state >= 2 AND due <= ?2 ORDER BY due, ord LIMIT 256",
                params![self.row.id, self.now],
                MessageRef::read,
            )?;
            if due.is_empty() {
                break;
            }
            for mut message in due {
                let is_first_time = message.state == DELAYED;
                self.row.leave_state(message.state);
                message.state = NO_STATE;
                if is_first_time { self.make_visible(message)? } else { self.make_ready(message)? }
            }
        }
        // One by one: when the head of a group goes, the next one becomes ready, and may have expired too.
        while let Some(message) = self.next_expired()? {
            self.remove(&message)?;
        }
        let forgotten = self.connection.execute_cached(
            "DELETE FROM deduplication WHERE mailbox = ?1 AND until <= ?2",
            params![self.row.id, self.now],
        )?;
        self.row.is_changed |= forgotten > 0;
        self.row.read_next_due(self.connection)
    }

    fn next_expired(&self) -> Result<Option<MessageRef>> {
        self.connection.query_first(
            "SELECT seq, state, deliveries, grp FROM message INDEXED BY message_expiring \
             WHERE mailbox = ?1 AND expires_at IS NOT NULL AND state <> 4 AND expires_at <= ?2 \
             ORDER BY expires_at, seq LIMIT 1",
            params![self.row.id, self.now],
            MessageRef::read,
        )
    }

    /// A message becomes visible for the first time: ready, or behind the head of its group.
    fn make_visible(&mut self, message: MessageRef) -> Result<()> {
        if let Some(group) = &message.group {
            let has_head = self
                .connection
                .prepare_cached(
                    "SELECT 1 FROM message INDEXED BY message_head \
                     WHERE mailbox = ?1 AND grp IS NOT NULL AND grp = ?2 AND state IN (0, 3, 4) AND seq <> ?3 LIMIT 1",
                )?
                .exists(params![self.row.id, group, message.seq])?;
            if has_head {
                self.row.ready += 1;
                return self.set_state(message.seq, BEHIND, None);
            }
        }
        self.make_ready(message)
    }

    /// A message becomes deliverable, or a dead letter if its deliveries are spent.
    fn make_ready(&mut self, message: MessageRef) -> Result<()> {
        if self.row.max_deliveries.is_some_and(|most| message.deliveries >= most) {
            return self.move_to_dead_letters(&message, postbox_core::DELIVERIES_SPENT);
        }
        self.row.ready += 1;
        self.row.wakeups += 1;
        self.set_state(message.seq, READY, None)
    }

    /// Puts a message into a state, behind all others in it.
    fn set_state(&mut self, seq: i64, state: i64, due: Option<i64>) -> Result<()> {
        let position = self.row.next_number();
        self.row.schedule(due);
        self.connection.execute_cached(
            "UPDATE message SET state = ?2, ord = ?3, due = ?4, since = ?5 WHERE seq = ?1",
            params![seq, state, position, due, self.now],
        )?;
        Ok(())
    }

    /// Removes a message in any state. If it was the head of its group, the next one becomes ready.
    fn remove(&mut self, message: &MessageRef) -> Result<()> {
        self.row.leave_state(message.state);
        self.connection.execute_cached("DELETE FROM message WHERE seq = ?1", [message.seq])?;
        let is_head = matches!(message.state, READY | RETURNING | LEASED | NO_STATE);
        let Some(group) = message.group.as_ref().filter(|_| is_head) else { return Ok(()) };
        let next = self.connection.query_first(
            "SELECT seq, state, deliveries, grp FROM message INDEXED BY message_behind \
             WHERE mailbox = ?1 AND grp = ?2 AND state = 1 ORDER BY ord LIMIT 1",
            params![self.row.id, group],
            MessageRef::read,
        )?;
        match next {
            Some(next) => {
                self.row.leave_state(BEHIND);
                self.make_ready(next)
            }
            None => Ok(()),
        }
    }

    fn move_to_dead_letters(&mut self, message: &MessageRef, reason: &str) -> Result<()> {
        self.connection.execute_cached(
            "INSERT INTO dead (mailbox, id, deliveries, sent_at, died_at, reason, grp, body) \
             SELECT mailbox, id, deliveries, sent_at, ?2, ?3, grp, body FROM message WHERE seq = ?1",
            params![message.seq, self.now, reason],
        )?;
        self.row.dead += 1;
        self.remove(message)
    }
}

/// Sending.
impl MailboxState<'_> {
    pub(super) fn send(&mut self, message: &Outgoing) -> Result<SendOutcome> {
        let Some(id) = blob_of(&message.id) else { return Ok(SendOutcome::NotAUuid) };
        let special = message.special.as_deref();
        let deduplication = special.and_then(|special| special.deduplication.as_deref());
        if let Some(key) = deduplication
            && let Some(first) = self.sent_with_deduplication_id(key)?
        {
            return Ok(SendOutcome::Stored(first));
        }
        if special.is_some_and(|special| special.own_id)
            && let Some(held) = self.body_of(&id)?
        {
            let is_same = wire::decode(held.into()).is_ok_and(|(body, ..)| body == message.body);
            return Ok(if is_same { SendOutcome::Stored(message.id.clone()) } else { SendOutcome::IdInUse });
        }
        if let Some(most) = self.row.max_size.filter(|most| self.row.total() >= *most) {
            return Ok(SendOutcome::Full(most));
        }
        if let Some(key) = deduplication {
            let until = self.now.saturating_add(self.row.deduplication_window.unwrap_or(DEDUPLICATION_WINDOW));
            self.row.expect_due(Some(until));
            self.connection.execute_cached(
                "INSERT INTO deduplication (mailbox, key, id, until, since) VALUES (?1, ?2, ?3, ?4, ?5)",
                params![self.row.id, key, &id[..], until, self.now],
            )?;
        }
        let body = wire::encode(&message.body, &message.content_type, message.headers.as_deref());
        let group = special.and_then(|special| special.group.clone());
        let expires_at = special.and_then(|special| special.expires_in).map(|after| self.now + millis(after));
        let delay = millis(message.delay);
        let (state, due) = if delay > 0 { (DELAYED, Some(self.now + delay)) } else { (READY, None) };
        let position = self.row.next_number();
        self.row.schedule(due);
        self.row.expect_due(expires_at);
        self.connection.execute_cached(
            "INSERT INTO message (mailbox, id, state, ord, due, since, sent_at, expires_at, grp, body) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6, ?7, ?8, ?9)",
            params![self.row.id, &id[..], state, position, due, self.now, expires_at, group, &body[..]],
        )?;
        if delay > 0 {
            self.row.delayed += 1;
            self.row.wakeups += 1;
        } else if group.is_none() {
            self.row.ready += 1;
            self.row.wakeups += 1;
        } else {
            let seq = self.connection.last_insert_rowid();
            self.make_visible(MessageRef { seq, state: NO_STATE, deliveries: 0, group })?;
        }
        Ok(SendOutcome::Stored(message.id.clone()))
    }

    fn sent_with_deduplication_id(&self, key: &str) -> Result<Option<MessageId>> {
        let first: Option<Vec<u8>> = self.connection.query_first(
            "SELECT id FROM deduplication WHERE mailbox = ?1 AND key = ?2",
            params![self.row.id, key],
            |found| found.get(0),
        )?;
        Ok(first.map(|first| id_of(&first)))
    }

    /// The stored bytes of the message with an id, also of a dead letter.
    fn body_of(&self, id: &[u8; 16]) -> Result<Option<Vec<u8>>> {
        self.connection.execute_cached(CREATE_ID_INDEX, [])?;
        self.connection.query_first(
            "SELECT body FROM message INDEXED BY message_id WHERE mailbox = ?1 AND id = ?2 \
             UNION ALL SELECT body FROM dead INDEXED BY dead_id WHERE mailbox = ?1 AND id = ?2 LIMIT 1",
            params![self.row.id, &id[..]],
            |found| found.get(0),
        )
    }

    /// Removes a delayed message.
    pub(super) fn cancel(&mut self, id: &MessageId) -> Result<bool> {
        let Some(id) = blob_of(id) else { return Ok(false) };
        let delayed = self.connection.query_first(
            "SELECT seq, state, deliveries, grp FROM message INDEXED BY message_delayed \
             WHERE mailbox = ?1 AND id = ?2 AND state = 2 ORDER BY seq LIMIT 1",
            params![self.row.id, &id[..]],
            MessageRef::read,
        )?;
        match delayed {
            Some(message) => self.remove(&message).map(|()| true),
            None => Ok(false),
        }
    }
}

/// Receiving and settling.
impl MailboxState<'_> {
    /// Leases up to `max` messages. Also returns the moment at which the next one may be deliverable, if none is now.
    pub(super) fn receive(&mut self, max: usize, visibility: Duration) -> Result<(Vec<Delivery>, Option<i64>)> {
        let mut taken = self.ready(max)?;
        let due = self.now + millis(visibility);
        for (seq, delivery) in &mut taken {
            let number = self.row.next_number();
            self.connection.execute_cached(
                "UPDATE message SET state = 4, rank = ord, ord = ?2, receipt = ?2, due = ?3, since = ?4, \
                 deliveries = deliveries + 1 WHERE seq = ?1",
                params![*seq, number, due, self.now],
            )?;
            self.row.ready -= 1;
            self.row.leased += 1;
            delivery.delivery_count += 1;
            delivery.receipt_handle = ReceiptHandle::from_u128(u128::from(*seq as u64) << 64 | number as u128);
        }
        let next = if taken.is_empty() { self.next_attempt()? } else { None };
        self.row.schedule((!taken.is_empty()).then_some(due));
        Ok((taken.into_iter().map(|(_, delivery)| delivery).collect(), next))
    }

    /// When a waiter receives again: when a lease, a delay or an expiry ends, or often enough to keep the mailbox in use.
    fn next_attempt(&self) -> Result<Option<i64>> {
        let due: Option<i64> = self
            .connection.query_first("SELECT due FROM message INDEXED BY message_due WHERE mailbox = ?1 AND state >= 2 ORDER BY due, ord LIMIT 1", [self.row.id], |found| found.get(0))?;
        let expiry: Option<i64> = self.connection.query_first(
            "SELECT expires_at FROM message INDEXED BY message_expiring \
             WHERE mailbox = ?1 AND expires_at IS NOT NULL AND state <> 4 ORDER BY expires_at, seq LIMIT 1",
            [self.row.id],
            |found| found.get(0),
        )?;
        let use_again = self.row.idle_expiry.map(|idle| self.now.saturating_add(idle / 2));
        Ok(due.into_iter().chain(expiry).chain(use_again).min())
    }

    /// Up to `max` deliverable messages, in order.
    fn ready(&self, max: usize) -> Result<Vec<(i64, Delivery)>> {
        self.connection.query_all(
            "SELECT seq, id, deliveries, sent_at, body FROM message INDEXED BY message_ready \
             WHERE mailbox = ?1 AND state = 0 ORDER BY ord LIMIT ?2",
            params![self.row.id, sql_limit(max)],
            |found| {
                let id: Vec<u8> = found.get(1)?;
                Ok((found.get(0)?, delivery(&id, found.get(2)?, found.get(3)?, found.get(4)?, self.now)))
            },
        )
    }

    pub(super) fn peek(&self, max: usize) -> Result<Vec<Delivery>> {
        Ok(self.ready(max)?.into_iter().map(|(_, delivery)| delivery).collect())
    }

    /// Settles the delivery of a receipt; `settle` gets the message and the end of its lease. `false` if the lease has
    /// ended.
    fn settle(
        &mut self,
        handle: &ReceiptHandle,
        settle: impl FnOnce(&mut Self, MessageRef, i64) -> Result<()>,
    ) -> Result<bool> {
        let Some(bits) = handle.as_u128() else { return Ok(false) };
        let (seq, number) = ((bits >> 64) as u64 as i64, bits as u64 as i64);
        let leased = self.connection.query_first(
            "SELECT seq, state, deliveries, grp, due FROM message \
             WHERE seq = ?1 AND mailbox = ?2 AND state = 4 AND receipt = ?3",
            params![seq, self.row.id, number],
            |found| Ok((MessageRef::read(found)?, found.get(4)?)),
        )?;
        match leased {
            Some((message, due)) => settle(self, message, due).map(|()| true),
            None => Ok(false),
        }
    }

    pub(super) fn acknowledge(&mut self, handle: &ReceiptHandle) -> Result<bool> {
        self.settle(handle, |mailbox, message, _| mailbox.remove(&message))
    }

    /// Ends a lease; the message is visible again after a delay.
    pub(super) fn nack(&mut self, handle: &ReceiptHandle, after: Duration) -> Result<bool> {
        self.settle(handle, |mailbox, mut message, _| {
            mailbox.row.leave_state(LEASED);
            message.state = NO_STATE;
            mailbox.check_expiry_next();
            match millis(after) {
                0 => mailbox.make_ready(message),
                after => {
                    mailbox.row.delayed += 1;
                    mailbox.row.wakeups += 1;
                    mailbox.set_state(message.seq, RETURNING, Some(mailbox.now + after))
                }
            }
        })
    }

    /// Ends a lease as if the message had not been delivered: it is at its old position, with its old delivery count.
    pub(super) fn release(&mut self, handle: &ReceiptHandle) -> Result<bool> {
        self.settle(handle, |mailbox, message, _| {
            mailbox.row.leave_state(LEASED);
            mailbox.row.ready += 1;
            mailbox.row.wakeups += 1;
            mailbox.check_expiry_next();
            // A message that was leased before version 3 of the file has no rank.
            mailbox.connection.execute_cached(
                "UPDATE message SET state = 0, ord = coalesce(rank, ord), due = NULL, deliveries = deliveries - 1 \
                 WHERE seq = ?1",
                [message.seq],
            )?;
            Ok(())
        })
    }

    /// Has the next operation check expiries: a message may have expired while it was leased, when expiries do not count.
    fn check_expiry_next(&mut self) {
        self.row.expect_due(Some(i64::MIN));
    }

    /// Extends a lease to at least this time from now. A lease is never shortened.
    pub(super) fn extend(&mut self, handle: &ReceiptHandle, by: Duration) -> Result<bool> {
        self.settle(handle, |mailbox, message, due| {
            let until = mailbox.now + millis(by);
            if until > due { mailbox.set_state(message.seq, LEASED, Some(until)) } else { Ok(()) }
        })
    }

    pub(super) fn dead_letter(&mut self, handle: &ReceiptHandle, reason: &str) -> Result<bool> {
        self.settle(handle, |mailbox, message, _| mailbox.move_to_dead_letters(&message, reason))
    }
}

/// The mailbox as a whole, and its dead letters.
impl MailboxState<'_> {
    pub(super) fn counts(&self) -> Counts {
        let MailboxRow { ready, delayed, leased, dead, .. } = *self.row;
        let [ready, delayed, leased, dead] =
            [ready, delayed, leased, dead].map(|count| u64::try_from(count).unwrap_or(0));
        Counts::new(ready, delayed, leased, dead)
    }

    /// Removes all messages, and returns their number.
    pub(super) fn purge(&mut self) -> Result<u64> {
        let removed = remove_messages(self.connection, self.row.id)?;
        (self.row.ready, self.row.delayed, self.row.leased) = (0, 0, 0);
        self.row.is_changed = true;
        Ok(removed as u64)
    }

    pub(super) fn dead_letters(&self, max: usize) -> Result<Vec<DeadLetter>> {
        self.connection.query_all(
            "SELECT id, deliveries, sent_at, body, died_at, reason FROM dead WHERE mailbox = ?1 ORDER BY seq LIMIT ?2",
            params![self.row.id, sql_limit(max)],
            |found| {
                let id: Vec<u8> = found.get(0)?;
                let died_at: i64 = found.get(4)?;
                let reason: String = found.get(5)?;
                let delivery = delivery(&id, found.get(1)?, found.get(2)?, found.get(3)?, died_at);
                Ok(DeadLetter::new(delivery, moment(died_at), reason.into()))
            },
        )
    }

    /// Makes dead letters visible again, up to the mailbox's `max_size`, and returns their number.
    pub(super) fn redrive(&mut self, which: &Redrive) -> Result<u64> {
        let room = self.row.max_size.map_or(i64::MAX, |most| (most - self.row.total()).max(0));
        let letter = |found: &Row<'_>| Ok((found.get(0)?, found.get(1)?));
        let letters: Vec<(i64, Option<String>)> = match which {
            Redrive::UpTo(max) => self.connection.query_all(
                "SELECT seq, grp FROM dead WHERE mailbox = ?1 ORDER BY seq LIMIT ?2",
                [self.row.id, room.min(sql_limit(*max))],
                letter,
            )?,
            Redrive::One(id) => self.connection.query_all(
                "SELECT seq, grp FROM dead INDEXED BY dead_id WHERE mailbox = ?1 AND id = ?2 ORDER BY seq LIMIT ?3",
                params![self.row.id, blob_of(id), room.min(1)],
                letter,
            )?,
        };
        for (dead_seq, group) in &letters {
            let position = self.row.next_number();
            self.connection.execute_cached(
                "INSERT INTO message (mailbox, id, state, ord, sent_at, grp, body) \
                 SELECT mailbox, id, 0, ?2, sent_at, grp, body FROM dead WHERE seq = ?1",
                params![dead_seq, position],
            )?;
            let seq = self.connection.last_insert_rowid();
            self.connection.execute_cached("DELETE FROM dead WHERE seq = ?1", [dead_seq])?;
            self.row.dead -= 1;
            self.make_visible(MessageRef { seq, state: NO_STATE, deliveries: 0, group: group.clone() })?;
        }
        Ok(letters.len() as u64)
    }

    pub(super) fn purge_dead_letters(&mut self) -> Result<u64> {
        let removed = self.connection.execute_cached("DELETE FROM dead WHERE mailbox = ?1", [self.row.id])?;
        self.row.dead = 0;
        self.row.is_changed = true;
        Ok(removed as u64)
    }
}

/// Removes all messages of a mailbox, and returns their number. The three partial indexes cover all states.
pub(super) fn remove_messages(connection: &Connection, mailbox: i64) -> Result<usize> {
    let mut removed = 0;
    for statement in [
        "DELETE FROM message INDEXED BY message_ready WHERE mailbox = ?1 AND state = 0",
        "DELETE FROM message INDEXED BY message_behind WHERE mailbox = ?1 AND state = 1",
        "DELETE FROM message INDEXED BY message_due WHERE mailbox = ?1 AND state >= 2",
    ] {
        removed += connection.execute_cached(statement, [mailbox])?;
    }
    Ok(removed)
}

pub(super) fn moment(millis: i64) -> Moment {
    Moment::from_nanos(u64::try_from(millis).unwrap_or(0).saturating_mul(1_000_000))
}

fn sql_limit(max: usize) -> i64 {
    i64::try_from(max).unwrap_or(i64::MAX)
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

/// A delivery without a receipt.
fn delivery(id: &[u8], deliveries: i64, sent_at: i64, body: Vec<u8>, now: i64) -> Delivery {
    let (body, content_type, headers) = wire::decode_or_mark(body.into());
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
