//! The reply store of this backend: a hash for each reply. The replies share 64 hash slots, so that
//! 64 channels suffice.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::future::join_all;
use redis::Value;

use super::message_format::{bytes, integer, list, max_argument, millis, natural, text};
use super::redis_client::RedisClient;
use super::script::{self, Script};
use crate::backends::shard_of;
use crate::error::Error;
use crate::mailbox::id::ReplyId;
use crate::mailbox::operation::Answer;
use crate::reply::store::{ReplyEntry, ReplyState, ReplyStore, ReplyValue, Resolved};
use crate::runtime::clock::{Moment, SystemClock};
use crate::runtime::io_thread;
use crate::runtime::waiters::Attempt;

/// The end of the name of every channel for replies.
pub(super) const CHANNEL: &str = ":replies";
/// Part of the stored format: all programs must use the same number.
const SHARDS: u32 = 64;

pub(super) struct RedisReplyStore {
    client: Arc<RedisClient>,
}

impl fmt::Debug for RedisReplyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisReplyStore").field("address", &self.client.address()).finish()
    }
}

/// The prefix of all keys of a shard: a hash tag.
fn key_prefix(shard: u32) -> String {
    format!("{{postbox.replies:{shard}}}")
}

async fn run(
    client: &Arc<RedisClient>,
    script: &'static Script,
    shard: u32,
    id: &str,
    more: Vec<Bytes>,
) -> Result<Value, Error> {
    let prefix = key_prefix(shard);
    let keys = [format!("{prefix}:reply:{id}"), format!("{prefix}:expiries")];
    let token = Bytes::from(format!("{}:{}", client.id(), client.next_token()));
    let channel = Bytes::from(format!("{prefix}{CHANNEL}"));
    let mut arguments = vec![token, Bytes::copy_from_slice(id.as_bytes()), client.cluster_flag(), channel];
    arguments.extend(more);
    client.run(script, &keys, &arguments).await.map_err(|error| client.error(error))
}

/// Reads an entry without consuming it. Also returns the server's time.
async fn read_entry(client: &Arc<RedisClient>, id: &ReplyId) -> Result<(Option<ReplyEntry>, Moment), Error> {
    let text = id.to_string();
    let response = run(client, &script::REPLY_GET, shard_of(&text, SHARDS), &text, vec![]).await?;
    let parts = list(response);
    let now = moment(parts.last().unwrap_or(&Value::Nil));
    Ok((parse_entry(id, parts), now))
}

/// Times of replies are milliseconds.
fn moment(value: &Value) -> Moment {
    Moment::from_nanos(natural(value).saturating_mul(1_000_000))
}

fn parse_entry(id: &ReplyId, parts: Vec<Value>) -> Option<ReplyEntry> {
    let mut parts = parts.into_iter();
    let state = match bytes(parts.next()?).as_slice() {
        b"pending" => ReplyState::Pending,
        b"resolved" => ReplyState::Resolved,
        b"cancelled" => ReplyState::Cancelled,
        _ => ReplyState::Expired,
    };
    let mut part = || parts.next().unwrap_or_default();
    let (value, content_type) = (part(), part());
    let (created_at, expires_at, resolved) = (moment(&part()).into(), moment(&part()).into(), part());
    let value = matches!(value, Value::BulkString(_))
        .then(|| ReplyValue { body: bytes(value).into(), content_type: text(content_type).as_str().into() });
    let resolved_at = matches!(resolved, Value::BulkString(_) | Value::Int(_)).then(|| moment(&resolved).into());
    Some(ReplyEntry { id: id.clone(), value, state, created_at, expires_at, resolved_at })
}

/// The ids of at most `limit` expired entries.
async fn expired(client: &Arc<RedisClient>, limit: usize) -> Result<Vec<String>, Error> {
    let max = max_argument(limit);
    let scans = (0..SHARDS).map(|shard| run(client, &script::REPLY_EXPIRED, shard, "", vec![max.clone()]));
    let mut ids = Vec::new();
    for found in join_all(scans).await {
        ids.extend(list(found?).into_iter().map(text));
    }
    ids.truncate(limit);
    Ok(ids)
}

impl RedisReplyStore {
    pub(super) fn new(client: Arc<RedisClient>) -> Self {
        RedisReplyStore { client }
    }

    fn run<T: Send + 'static>(
        &self,
        script: &'static Script,
        id: &ReplyId,
        more: Vec<Bytes>,
        parse: impl FnOnce(Value) -> T + Send + 'static,
    ) -> Answer<Result<T, Error>> {
        let (client, id) = (Arc::clone(&self.client), id.to_string());
        io_thread::ask(async move { Ok(parse(run(&client, script, shard_of(&id, SHARDS), &id, more).await?)) })
    }
}

impl ReplyStore for RedisReplyStore {
    fn create(&self, id: ReplyId, ttl: Duration) -> Answer<Result<bool, Error>> {
        let ttl = millis(ttl).to_string().into();
        self.run(&script::REPLY_CREATE, &id, vec![ttl], |is_created| integer(&is_created) == 1)
    }

    fn resolve(&self, id: ReplyId, value: ReplyValue) -> Answer<Result<Resolved, Error>> {
        let content_type = Bytes::copy_from_slice(value.content_type.as_str().as_bytes());
        self.run(&script::REPLY_RESOLVE, &id, vec![value.body, content_type], |response| {
            match bytes(response).as_slice() {
                b"stored" => Resolved::Stored,
                b"resolved" => Resolved::Refused(Some(ReplyState::Resolved)),
                b"cancelled" => Resolved::Refused(Some(ReplyState::Cancelled)),
                b"expired" => Resolved::Refused(Some(ReplyState::Expired)),
                _ => Resolved::Refused(None),
            }
        })
    }

    fn cancel(&self, id: ReplyId) -> Answer<Result<bool, Error>> {
        self.run(&script::REPLY_CANCEL, &id, vec![], |is_cancelled| integer(&is_cancelled) == 1)
    }

    fn get(&self, id: ReplyId) -> Answer<Result<Option<ReplyEntry>, Error>> {
        let client = Arc::clone(&self.client);
        io_thread::ask(async move { Ok(read_entry(&client, &id).await?.0) })
    }

    fn consume(&self, id: ReplyId) -> Answer<Result<Option<ReplyEntry>, Error>> {
        let consumed = id.clone();
        self.run(&script::REPLY_GET, &id, vec!["take".into()], move |entry| parse_entry(&consumed, list(entry)))
    }

    fn delete(&self, id: ReplyId) -> Answer<Result<bool, Error>> {
        self.run(&script::REPLY_DELETE, &id, vec![], |is_deleted| integer(&is_deleted) == 1)
    }

    fn scan_expired(&self, limit: usize) -> Answer<Result<Vec<ReplyId>, Error>> {
        let client = Arc::clone(&self.client);
        io_thread::ask(async move { Ok(expired(&client, limit).await?.into_iter().map(ReplyId::from).collect()) })
    }

    fn cleanup_expired(&self, limit: usize) -> Answer<Result<u64, Error>> {
        let client = Arc::clone(&self.client);
        io_thread::ask(async move {
            let ids = expired(&client, limit).await?;
            let deletions = ids.iter().map(|id| run(&client, &script::REPLY_DELETE, shard_of(id, SHARDS), id, vec![]));
            let mut count = 0;
            for deleted in join_all(deletions).await {
                count += natural(&deleted?);
            }
            Ok(count)
        })
    }

    fn settled(&self, id: ReplyId, wait: Duration) -> Answer<Result<bool, Error>> {
        let client = Arc::clone(&self.client);
        let settled = async move {
            let channel: Arc<str> = format!("{}{CHANNEL}", key_prefix(shard_of(&id.to_string(), SHARDS))).into();
            let waiter = client.add_waiter(format!("{channel}/{id}"));
            let attempt = || {
                let (client, id, channel) = (Arc::clone(&client), id.clone(), Arc::clone(&channel));
                io_thread::ask(async move {
                    client.subscribe(&channel).await?;
                    match read_entry(&client, &id).await? {
                        (Some(ReplyEntry { state: ReplyState::Pending, expires_at, .. }), now) => {
                            let left = expires_at.duration_since(SystemTime::from(now)).unwrap_or_default();
                            Ok(Attempt::Empty(Some(left)))
                        }
                        _ => Ok(Attempt::Taken(())),
                    }
                })
            };
            Ok(waiter.long_poll(&SystemClock::shared(), wait, attempt).await?.is_some())
        };
        io_thread::wait(settled, None)
    }
}
