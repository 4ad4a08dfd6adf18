//! Replies on a server: a hash each, in a few slots, so that few channels tell of all of them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use redis::Value;

use super::mailbox::at_most;
use super::message_format::{bytes, integer, list, millis, natural};
use super::redis_client::RedisClient;
use super::script::{self, Script};
use crate::error::Error;
use crate::mailbox::id::ReplyId;
use crate::mailbox::operation::Answer;
use crate::reply::store::{ReplyEntry, ReplyState, ReplyStore, ReplyValue, Resolved, shelf};
use crate::runtime::clock::{Moment, SystemClock};
use crate::runtime::io_thread;
use crate::runtime::waiters::{Waits, look_until};

/// How the channels of replies end.
pub(super) const CHANNEL: &str = ":replies";
/// So many slots are used. Part of the format: all programs must agree.
const SHELVES: u32 = 64;

pub(super) struct RedisReplyStore {
    pub(super) client: Arc<RedisClient>,
}

impl fmt::Debug for RedisReplyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisReplyStore").field("address", &self.client.address).finish()
    }
}

fn tag(shelf: u32) -> String {
    format!("{{postbox.replies:{shelf}}}")
}

async fn run(
    client: &Arc<RedisClient>,
    script: &'static Script,
    shelf: u32,
    id: &str,
    more: Vec<Bytes>,
) -> Result<Value, Error> {
    let tag = tag(shelf);
    let keys = [format!("{tag}:reply:{id}"), format!("{tag}:expiries")];
    let token = Bytes::from(format!("{}:{}", client.client_id, u64::from_be_bytes(client.token())));
    let channel = Bytes::from(format!("{tag}{CHANNEL}"));
    let mut arguments = vec![token, Bytes::copy_from_slice(id.as_bytes()), client.cluster_flag(), channel];
    arguments.extend(more);
    client.run(script.call(client.time, &keys, &arguments)).await.map_err(|error| error.into_error(&client.address))
}

fn entry(id: &ReplyId, answer: Value) -> Option<ReplyEntry> {
    let mut parts = list(answer).into_iter();
    let state = match bytes(parts.next()?).as_slice() {
        b"pending" => ReplyState::Pending,
        b"resolved" => ReplyState::Resolved,
        b"cancelled" => ReplyState::Cancelled,
        _ => ReplyState::Expired,
    };
    let mut part = || parts.next().unwrap_or_default();
    let (value, content_type) = (part(), part());
    let moment = |value: &Value| Moment::from_nanos(natural(value).saturating_mul(1_000_000)).into();
    let (created_at, expires_at, resolved) = (moment(&part()), moment(&part()), part());
    let value = matches!(value, Value::BulkString(_)).then(|| ReplyValue {
        body: bytes(value).into(),
        content_type: String::from_utf8_lossy(&bytes(content_type)).as_ref().into(),
    });
    let resolved_at = matches!(resolved, Value::BulkString(_) | Value::Int(_)).then(|| moment(&resolved));
    Some(ReplyEntry { id: id.clone(), value, state, created_at, expires_at, resolved_at })
}

impl RedisReplyStore {
    fn ask<T: Send + 'static>(
        &self,
        script: &'static Script,
        id: &ReplyId,
        more: Vec<Bytes>,
        read: impl FnOnce(Value) -> T + Send + 'static,
    ) -> Answer<Result<T, Error>> {
        let (client, id) = (Arc::clone(&self.client), id.to_string());
        io_thread::ask(async move { Ok(read(run(&client, script, shelf(&id, SHELVES), &id, more).await?)) })
    }

    fn show(&self, id: ReplyId, how: &'static str) -> Answer<Result<Option<ReplyEntry>, Error>> {
        let about = id.clone();
        self.ask(&script::REPLY_GET, &id, vec![how.into()], move |answer| entry(&about, answer))
    }
}

async fn expired(client: &Arc<RedisClient>, limit: usize) -> Result<Vec<ReplyId>, Error> {
    let limit = at_most(limit);
    let looks = (0..SHELVES).map(|shelf| run(client, &script::REPLY_EXPIRED, shelf, "", vec![limit.clone()]));
    let mut ids = Vec::new();
    for found in join_all(looks).await {
        ids.extend(list(found?).into_iter().map(|id| ReplyId::from(String::from_utf8_lossy(&bytes(id)).into_owned())));
    }
    Ok(ids)
}

impl ReplyStore for RedisReplyStore {
    fn create(&self, id: ReplyId, ttl: Duration) -> Answer<Result<bool, Error>> {
        self.ask(&script::REPLY_CREATE, &id, vec![millis(ttl).to_string().into()], |made| integer(&made) == 1)
    }

    fn resolve(&self, id: ReplyId, value: ReplyValue) -> Answer<Result<Resolved, Error>> {
        let content_type = Bytes::copy_from_slice(value.content_type.as_str().as_bytes());
        self.ask(&script::REPLY_RESOLVE, &id, vec![value.body, content_type], |answer| match bytes(answer).as_slice() {
            b"stored" => Resolved::Stored,
            b"resolved" => Resolved::Refused(Some(ReplyState::Resolved)),
            b"cancelled" => Resolved::Refused(Some(ReplyState::Cancelled)),
            b"expired" => Resolved::Refused(Some(ReplyState::Expired)),
            _ => Resolved::Refused(None),
        })
    }

    fn cancel(&self, id: ReplyId) -> Answer<Result<bool, Error>> {
        self.ask(&script::REPLY_CANCEL, &id, vec![], |done| integer(&done) == 1)
    }

    fn get(&self, id: ReplyId) -> Answer<Result<Option<ReplyEntry>, Error>> {
        self.show(id, "look")
    }

    fn consume(&self, id: ReplyId) -> Answer<Result<Option<ReplyEntry>, Error>> {
        self.show(id, "take")
    }

    fn delete(&self, id: ReplyId) -> Answer<Result<bool, Error>> {
        self.ask(&script::REPLY_DELETE, &id, vec![], |done| integer(&done) == 1)
    }

    fn scan_expired(&self, limit: usize) -> Answer<Result<Vec<ReplyId>, Error>> {
        let client = Arc::clone(&self.client);
        io_thread::ask(async move {
            let mut ids = expired(&client, limit).await?;
            ids.truncate(limit);
            Ok(ids)
        })
    }

    fn cleanup_expired(&self, limit: usize) -> Answer<Result<u64, Error>> {
        let client = Arc::clone(&self.client);
        io_thread::ask(async move {
            let mut ids: Vec<String> = expired(&client, limit).await?.iter().map(ToString::to_string).collect();
            ids.truncate(limit);
            let gone = ids.iter().map(|id| run(&client, &script::REPLY_DELETE, shelf(id, SHELVES), id, vec![]));
            let mut many = 0;
            for gone in join_all(gone).await {
                many += natural(&gone?);
            }
            Ok(many)
        })
    }

    fn settled(&self, id: ReplyId, wait: Duration) -> Answer<Result<bool, Error>> {
        let client = Arc::clone(&self.client);
        let settled = async move {
            let text = id.to_string();
            let channel: Arc<str> = format!("{}{CHANNEL}", tag(shelf(&text, SHELVES))).into();
            let key = format!("{channel}/{text}");
            let waits = Waits::begin(Arc::clone(&client), |client| &client.waiters, key);
            let look = || {
                let (client, id, text, channel) = (Arc::clone(&client), id.clone(), text.clone(), Arc::clone(&channel));
                io_thread::ask(async move {
                    client.subscribe(&channel).await?;
                    let answer =
                        run(&client, &script::REPLY_GET, shelf(&text, SHELVES), &text, vec!["look".into()]).await?;
                    let now = list(answer.clone()).last().map(natural).unwrap_or(0);
                    match entry(&id, answer) {
                        Some(ReplyEntry { state: ReplyState::Pending, expires_at, .. }) => {
                            let now = std::time::SystemTime::from(Moment::from_nanos(now.saturating_mul(1_000_000)));
                            Ok((vec![], Some(expires_at.duration_since(now).unwrap_or_default())))
                        }
                        _ => Ok((vec![()], None)),
                    }
                })
            };
            Ok(!look_until(waits.hub(), &SystemClock::shared(), wait, look).await?.is_empty())
        };
        io_thread::wait(settled, None)
    }
}
