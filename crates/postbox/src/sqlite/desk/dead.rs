//! Dead letters: how messages become them, and how they come back.

use rusqlite::{Result, params};

use super::row::Row;
use super::{Desk, Slip, blob_of, delivery, moment};
use crate::address::MailboxName;
use crate::backend::{DeadLetter, Redrive};

impl Desk<'_> {
    /// Makes a message a dead letter.
    pub(super) fn bury(&mut self, row: &mut Row, slip: &Slip, reason: &str) -> Result<()> {
        self.connection
            .prepare_cached(
                "INSERT INTO dead (mailbox, id, deliveries, sent_at, died_at, reason, grp, body) \
                 SELECT mailbox, id, deliveries, sent_at, ?2, ?3, grp, body FROM message WHERE seq = ?1",
            )?
            .execute(params![slip.seq, self.now, reason])?;
        row.dead += 1;
        self.remove(row, slip)
    }

    pub(in crate::sqlite) fn dead_letters(&mut self, name: &MailboxName, max: usize) -> Result<Vec<DeadLetter>> {
        let letters = self.with(name, |desk, row| {
            let mut statement = desk.connection.prepare_cached(
                "SELECT id, deliveries, sent_at, body, died_at, reason FROM dead WHERE mailbox = ?1 ORDER BY seq LIMIT ?2",
            )?;
            let max = i64::try_from(max).unwrap_or(i64::MAX);
            let rows = statement.query_map(params![row.id, max], |found| {
                let id: Vec<u8> = found.get(0)?;
                let died_at: i64 = found.get(4)?;
                let reason: String = found.get(5)?;
                let delivery = delivery(&id, found.get(1)?, found.get(2)?, found.get(3)?, died_at);
                Ok(DeadLetter::new(delivery, moment(died_at), reason.into()))
            })?;
            rows.collect::<Result<Vec<_>>>()
        })?;
        Ok(letters.unwrap_or_default())
    }

    pub(in crate::sqlite) fn redrive(&mut self, name: &MailboxName, which: &Redrive) -> Result<u64> {
        let moved = self.with(name, |desk, row| {
            let room = row.max_size.map_or(i64::MAX, |most| (most - row.ready - row.delayed - row.leased).max(0));
            let letter = |found: &rusqlite::Row<'_>| Ok((found.get(0)?, found.get(1)?));
            let letters: Vec<(i64, Option<String>)> = match which {
                Redrive::UpTo(max) => desk
                    .connection
                    .prepare_cached("SELECT seq, grp FROM dead WHERE mailbox = ?1 ORDER BY seq LIMIT ?2")?
                    .query_map([row.id, room.min(i64::try_from(*max).unwrap_or(i64::MAX))], letter)?
                    .collect::<Result<_>>()?,
                Redrive::One(id) => desk
                    .connection
                    .prepare_cached(
                        "SELECT seq, grp FROM dead INDEXED BY dead_id WHERE mailbox = ?1 AND id = ?2 ORDER BY seq LIMIT ?3",
                    )?
                    .query_map(params![row.id, blob_of(id), room.min(1)], letter)?
                    .collect::<Result<_>>()?,
            };
            for (seq, group) in &letters {
                row.counter += 1;
                desk.connection
                    .prepare_cached(
                        "INSERT INTO message (mailbox, id, state, ord, sent_at, grp, body) \
                         SELECT mailbox, id, 0, ?2, sent_at, grp, body FROM dead WHERE seq = ?1",
                    )?
                    .execute(params![seq, row.counter])?;
                let slip =
                    Slip { seq: desk.connection.last_insert_rowid(), state: -1, deliveries: 0, group: group.clone() };
                desk.connection.prepare_cached("DELETE FROM dead WHERE seq = ?1")?.execute([seq])?;
                row.dead -= 1;
                row.changed = true;
                desk.join(row, slip)?;
            }
            Ok(letters.len() as u64)
        })?;
        Ok(moved.unwrap_or(0))
    }

    pub(in crate::sqlite) fn purge_dead_letters(&mut self, name: &MailboxName) -> Result<u64> {
        let purged = self.with(name, |desk, row| {
            let gone = desk.connection.prepare_cached("DELETE FROM dead WHERE mailbox = ?1")?.execute([row.id])?;
            (row.dead, row.changed) = (0, true);
            Ok(gone as u64)
        })?;
        Ok(purged.unwrap_or(0))
    }
}
