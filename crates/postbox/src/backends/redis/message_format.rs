//! How a message is written for scripts, and what scripts return. `lua/head.lua` describes the
//! format.

use std::time::Duration;

use bytes::Bytes;
use redis::Value;

use crate::backend::wire;
use crate::backend::{Delivery, Outgoing, Receipt, Special};
use crate::mailbox::id::{MessageId, ReceiptHandle};
use crate::runtime::clock::Moment;

/// The length of an entry: flags, deliveries, id, rank and time of the send.
pub(super) const ENTRY: usize = 32;
/// The length of a member of `invisible`: a state letter and an entry.
pub(super) const MEMBER: usize = ENTRY + 1;

/// The lower bits of the last eight bytes of an entry are the time of the send. The others belong
/// to the rank.
const SENT_AT: u64 = (1 << 53) - 1;

/// Times of scripts are half microseconds.
pub(super) fn moment(half_micros: u64) -> Moment {
    Moment::from_nanos(half_micros.saturating_mul(500))
}

fn number<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().expect("an entry has a fixed length")
}

pub(super) fn delivery(entry: &[u8], body: Vec<u8>, now: u64) -> Delivery {
    let (body, content_type, headers) = wire::decode_or_mark(body.into());
    let flags_and_count = u32::from_be_bytes(number(&entry[..4]));
    let rank = u32::from_be_bytes(number(&entry[20..24]));
    let rank_and_sent_at = u64::from_be_bytes(number(&entry[24..32]));
    let handle = u128::from(rank) << 96 | u128::from(flags_and_count) << 64 | u128::from(rank_and_sent_at);
    Delivery {
        id: MessageId::from_u128(u128::from_be_bytes(number(&entry[4..20]))),
        body,
        content_type,
        headers,
        receipt_handle: ReceiptHandle::from_u128(handle),
        delivery_count: flags_and_count & 0xff_ffff,
        enqueued_at: moment(rank_and_sent_at & SENT_AT),
        delivered_at: moment(now),
    }
}

/// The member of the leased delivery, unless the receipt is from another backend.
pub(super) fn member(receipt: &Receipt) -> Option<[u8; MEMBER]> {
    let (id, handle) = (receipt.id.as_u128()?, receipt.handle.as_u128()?);
    let mut member = [0; MEMBER];
    member[0] = b'L';
    member[1..5].copy_from_slice(&((handle >> 64) as u32).to_be_bytes());
    member[5..21].copy_from_slice(&id.to_be_bytes());
    member[21..25].copy_from_slice(&((handle >> 96) as u32).to_be_bytes());
    member[25..33].copy_from_slice(&(handle as u64).to_be_bytes());
    Some(member)
}

/// The id and the body of a message, as arguments. The id must be a UUID.
pub(super) fn id_and_body(message: &Outgoing) -> [Bytes; 2] {
    let id = message.id.as_u128().expect("checked by the caller");
    let body = wire::encode(&message.body, &message.content_type, message.headers.as_deref());
    [Bytes::copy_from_slice(&id.to_be_bytes()), body]
}

/// The options of a message as MessagePack.
pub(super) fn special_options(special: &Special) -> Vec<u8> {
    let mut packed = vec![0x80];
    let mut text = |key: u8, value: &str| {
        packed[0] += 1;
        packed.extend([0xa1, key, 0xdb]);
        packed.extend((value.len() as u32).to_be_bytes());
        packed.extend(value.as_bytes());
    };
    if let Some(group) = &special.group {
        text(b'g', group);
    }
    if let Some(id) = &special.deduplication {
        text(b'd', id);
    }
    if let Some(expires_in) = special.expires_in {
        packed[0] += 1;
        packed.extend([0xa1, b'x', 0xcf]);
        packed.extend(millis(expires_in).to_be_bytes());
    }
    if special.own_id {
        packed[0] += 1;
        packed.extend([0xa1, b'i', 0xc3]);
    }
    packed
}

/// 63 years. Scripts can add it to a time, since a double is exact up to 2⁵³ half microseconds.
const MAX_MILLIS: u64 = 2_000_000_000_000;

/// Milliseconds, rounded up so that no lease or delay ends early.
pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).map_or(MAX_MILLIS, |millis| millis.min(MAX_MILLIS))
}

/// A maximum number of messages as an argument. No mailbox holds more than `i32::MAX`.
pub(super) fn max_argument(max: usize) -> Bytes {
    max.min(i32::MAX as usize).to_string().into()
}

pub(super) fn flag(is_set: bool) -> Bytes {
    Bytes::from_static(if is_set { b"1" } else { b"0" })
}

pub(super) fn list(value: Value) -> Vec<Value> {
    match value {
        Value::Array(values) | Value::Set(values) => values,
        _ => Vec::new(),
    }
}

pub(super) fn bytes(value: Value) -> Vec<u8> {
    match value {
        Value::BulkString(bytes) => bytes,
        Value::SimpleString(text) => text.into_bytes(),
        _ => Vec::new(),
    }
}

pub(super) fn text(value: Value) -> String {
    String::from_utf8_lossy(&bytes(value)).into_owned()
}

pub(super) fn integer(value: &Value) -> i64 {
    match value {
        Value::Int(number) => *number,
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok()).unwrap_or(0),
        _ => 0,
    }
}

pub(super) fn natural(value: &Value) -> u64 {
    u64::try_from(integer(value)).unwrap_or(0)
}
