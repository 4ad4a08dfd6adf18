//! How a reply is written as an item of the table.

use std::collections::HashMap;
use std::time::{Duration, UNIX_EPOCH};

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

/// Milliseconds since 1970 by the wall clock, which other programs compare with theirs.
pub(super) fn now() -> u64 {
    Moment::from(SystemClock.wall()).as_nanos() / 1_000_000
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn read_text<'a>(item: &'a Item, name: &str) -> Option<&'a str> {
    match item.get(name)? {
        AttributeValue::S(text) | AttributeValue::N(text) => Some(text),
        _ => None,
    }
}

pub(super) fn read_number(item: &Item, name: &str) -> Option<u64> {
    read_text(item, name)?.parse().ok()
}

/// The state of a reply at a time. `None` if a consumer has taken it.
pub(super) fn state(item: &Item, now: u64) -> Option<ReplyState> {
    let state = match read_text(item, "state")? {
        "taken" => return None,
        "resolved" => ReplyState::Resolved,
        "cancelled" => ReplyState::Cancelled,
        _ => ReplyState::Pending,
    };
    let is_expired = read_number(item, "expires").is_some_and(|expires| expires <= now);
    Some(if is_expired { ReplyState::Expired } else { state })
}

/// The reply at a time. `None` if a consumer has taken it.
pub(super) fn entry(id: &ReplyId, mut item: Item, now: u64) -> Option<ReplyEntry> {
    let state = state(&item, now)?;
    let time =
        |name: &str| read_number(&item, name).map(|millis| Moment::from_nanos(millis.saturating_mul(1_000_000)).into());
    let created_at = time("created").unwrap_or(UNIX_EPOCH);
    let expires_at = time("expires").unwrap_or(UNIX_EPOCH);
    let resolved_at = time("resolved");
    let content_type = read_text(&item, "content_type").unwrap_or_default().into();
    let value = match item.remove("value") {
        Some(AttributeValue::B(body)) if state == ReplyState::Resolved => {
            Some(ReplyValue { body: body.into_inner().into(), content_type })
        }
        _ => None,
    };
    Some(ReplyEntry { id: id.clone(), value, state, created_at, expires_at, resolved_at })
}
