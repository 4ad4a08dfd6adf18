//! Replies in a file.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::params;

use super::Inner;
use super::clock::milliseconds;
use super::mailbox_row::millis;
use super::mailbox_state::moment;
use super::statements::Statements as _;
use super::transaction::{Event, Transaction};
use crate::error::Error;
use crate::mailbox::id::ReplyId;
use crate::mailbox::operation::Answer;
use crate::reply::store::{ReplyEntry, ReplyState, ReplyStore, ReplyValue, Resolved};
use crate::runtime::waiters::Attempt;

/// How long an expired entry is kept, so that it can be told from one that never was, in milliseconds.
const GRACE: i64 = 60_000;

const PENDING: i64 = 0;
const RESOLVED: i64 = 1;
const CANCELLED: i64 = 2;

pub(super) struct SqliteReplyStore {
    pub(super) inner: Arc<Inner>,
}

impl fmt::Debug for SqliteReplyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteReplyStore").field("path", &self.inner.path).finish()
    }
}

/// The entry, with its state at the transaction's moment.
fn read(transaction: &Transaction<'_>, id: &ReplyId) -> rusqlite::Result<Option<ReplyEntry>> {
    transaction.connection().query_first(
        "SELECT state, value, content_type, created_at, expires_at, resolved_at FROM reply WHERE id = ?1",
        [id.to_string()],
        |row| {
            let (state, expires_at): (i64, i64) = (row.get(0)?, row.get(4)?);
            let state = match state {
                _ if expires_at <= transaction.now() => ReplyState::Expired,
                RESOLVED => ReplyState::Resolved,
                CANCELLED => ReplyState::Cancelled,
                _ => ReplyState::Pending,
            };
            let body: Option<Vec<u8>> = row.get(1)?;
            let content_type: Option<String> = row.get(2)?;
            let value = body.filter(|_| state == ReplyState::Resolved).map(|body| ReplyValue {
                body: body.into(),
                content_type: content_type.unwrap_or_default().as_str().into(),
            });
            Ok(ReplyEntry {
                id: id.clone(),
                value,
                state,
                created_at: moment(row.get(3)?).into(),
                expires_at: moment(expires_at).into(),
                resolved_at: row.get::<_, Option<i64>>(5)?.map(|at| moment(at).into()),
            })
        },
    )
}

fn delete(transaction: &mut Transaction<'_>, id: &ReplyId) -> rusqlite::Result<bool> {
    transaction.note_time()?;
    transaction.wake_reply(id);
    Ok(transaction.connection().execute_cached("DELETE FROM reply WHERE id = ?1", [id.to_string()])? > 0)
}

impl ReplyStore for SqliteReplyStore {
    fn create(&self, id: ReplyId, ttl: Duration) -> Answer<Result<bool, Error>> {
        let ttl = millis(ttl);
        self.inner.writer.submit(move |transaction| {
            // Each new entry removes up to two old ones, so that the file does not grow without end.
            transaction.connection().execute_cached("DELETE FROM reply WHERE id IN (SELECT id FROM reply WHERE expires_at <= ?1 ORDER BY expires_at LIMIT 2)", [transaction.now() - GRACE])?;
            let made = transaction
                .connection().execute_cached("INSERT OR IGNORE INTO reply (id, state, created_at, expires_at) VALUES (?1, ?2, ?3, ?4)", params![id.to_string(), PENDING, transaction.now(), transaction.now().saturating_add(ttl)])?;
            transaction.note_time()?;
            Ok(made > 0)
        })
    }

    fn resolve(&self, id: ReplyId, value: ReplyValue) -> Answer<Result<Resolved, Error>> {
        self.inner.writer.submit(move |transaction| match read(transaction, &id)? {
            Some(ReplyEntry { state: ReplyState::Pending, .. }) => {
                transaction.note_time()?;
                transaction.wake_reply(&id);
                transaction.connection().execute_cached(
                    "UPDATE reply SET state = ?2, value = ?3, content_type = ?4, resolved_at = ?5 WHERE id = ?1",
                    params![id.to_string(), RESOLVED, &value.body[..], value.content_type.as_str(), transaction.now()],
                )?;
                Ok(Resolved::Stored)
            }
            entry => Ok(Resolved::Refused(entry.map(|entry| entry.state))),
        })
    }

    fn cancel(&self, id: ReplyId) -> Answer<Result<bool, Error>> {
        self.inner.writer.submit(move |transaction| match read(transaction, &id)? {
            Some(ReplyEntry { state: ReplyState::Pending, .. }) => {
                transaction.note_time()?;
                transaction.wake_reply(&id);
                transaction
                    .connection()
                    .execute_cached("UPDATE reply SET state = ?2 WHERE id = ?1", params![id.to_string(), CANCELLED])?;
                Ok(true)
            }
            _ => Ok(false),
        })
    }

    fn get(&self, id: ReplyId) -> Answer<Result<Option<ReplyEntry>, Error>> {
        self.inner.writer.submit(move |transaction| read(transaction, &id))
    }

    fn consume(&self, id: ReplyId) -> Answer<Result<Option<ReplyEntry>, Error>> {
        self.inner.writer.submit(move |transaction| {
            let entry = read(transaction, &id)?;
            if entry.as_ref().is_some_and(|entry| entry.state == ReplyState::Resolved) {
                delete(transaction, &id)?;
            }
            Ok(entry)
        })
    }

    fn delete(&self, id: ReplyId) -> Answer<Result<bool, Error>> {
        self.inner.writer.submit(move |transaction| delete(transaction, &id))
    }

    fn scan_expired(&self, limit: usize) -> Answer<Result<Vec<ReplyId>, Error>> {
        self.inner.writer.submit(move |transaction| {
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            transaction.connection().query_all(
                "SELECT id FROM reply WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2",
                [transaction.now(), limit],
                |row| Ok(ReplyId::from(row.get::<_, String>(0)?)),
            )
        })
    }

    fn cleanup_expired(&self, limit: usize) -> Answer<Result<u64, Error>> {
        let inner = Arc::clone(&self.inner);
        self.scan_expired(limit).then(move |expired| {
            let expired = match expired {
                Ok(expired) => expired,
                Err(error) => return Answer::ready(Err(error)),
            };
            inner.writer.submit(move |transaction| {
                let mut gone = 0;
                for id in &expired {
                    gone += u64::from(delete(transaction, id)?);
                }
                Ok(gone)
            })
        })
    }

    fn settled(&self, id: ReplyId, wait: Duration) -> Answer<Result<bool, Error>> {
        let inner = Arc::clone(&self.inner);
        Answer::from_future(async move {
            let waiter = inner.writer.add_waiter(Event::Reply(id.clone()));
            let attempt = || {
                let (id, clock) = (id.clone(), Arc::clone(&inner.clock));
                let due = inner.writer.submit(move |transaction| {
                    let entry = read(transaction, &id)?.filter(|entry| entry.state == ReplyState::Pending);
                    Ok(entry.map(|entry| transaction.alarm(milliseconds(entry.expires_at))))
                });
                due.map(move |due| {
                    Ok(due?.map_or(Attempt::Taken(()), |due| Attempt::Empty(Some(clock.now().until(due)))))
                })
            };
            Ok(waiter.long_poll(&inner.clock, wait, attempt).await?.is_some())
        })
    }
}
