//! An entry as an item of a table.

use std::collections::HashMap;
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;

use crate::mailbox::id::ReplyId;
use crate::reply::store::{ReplyEntry, ReplyState, ReplyValue};
use crate::runtime::clock::{Clock as _, Moment, SystemClock};

pub(super) type Item = HashMap<String, AttributeValue>;

pub(super) fn text(value: impl Into<String>) -> AttributeValue {
    AttributeValue::S(value.into())
}

pub(super) fn number(value: impl ToString) -> AttributeValue {
    AttributeValue::N(value.to_string())
}

/// By the clock on the wall: other programs compare it with theirs.
pub(super) fn now() -> u64 {
    Moment::from(SystemClock.wall()).as_nanos() / 1_000_000
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn read<'a>(item: &'a Item, name: &str) -> Option<&'a str> {
    match item.get(name)? {
        AttributeValue::S(text) | AttributeValue::N(text) => Some(text),
        _ => None,
    }
}

pub(super) fn natural(item: &Item, name: &str) -> Option<u64> {
    read(item, name)?.parse().ok()
}

/// What an item says at a moment. `None`: somebody has taken it.
pub(super) fn state(item: &Item, now: u64) -> Option<ReplyState> {
    let state = match read(item, "state")? {
        "taken" => return None,
        "resolved" => ReplyState::Resolved,
        "cancelled" => ReplyState::Cancelled,
        _ => ReplyState::Pending,
    };
    Some(if natural(item, "expires").is_some_and(|expires| expires <= now) { ReplyState::Expired } else { state })
}

pub(super) fn entry(id: &ReplyId, mut item: Item, now: u64) -> Option<ReplyEntry> {
    let state = state(&item, now)?;
    let moment = |millis: u64| Moment::from_nanos(millis.saturating_mul(1_000_000)).into();
    let time = |name: &str| natural(&item, name).map(moment);
    let (created_at, expires_at, resolved_at) = (
        time("created").unwrap_or(std::time::UNIX_EPOCH),
        time("expires").unwrap_or(std::time::UNIX_EPOCH),
        time("resolved"),
    );
    let content_type = read(&item, "content_type").unwrap_or_default().into();
    let value = match item.remove("value") {
        Some(AttributeValue::B(body)) if state == ReplyState::Resolved => {
            Some(ReplyValue { body: body.into_inner().into(), content_type })
        }
        _ => None,
    };
    Some(ReplyEntry { id: id.clone(), value, state, created_at, expires_at, resolved_at })
}
