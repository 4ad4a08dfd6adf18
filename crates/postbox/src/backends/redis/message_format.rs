//! How a message looks in lists and sorted sets, and answers of scripts in our terms.

use redis::Value;

use crate::backend::wire;
use crate::backend::{Delivery, Receipt, Special};
use crate::mailbox::id::{MessageId, ReceiptHandle};
use crate::resolver::address::MailboxName;
use crate::runtime::clock::Moment;

/// Flags, deliveries, id, rank and moment of sending.
pub(super) const ENTRY: usize = 32;
/// A lease's letter and its entry.
pub(super) const MEMBER: usize = ENTRY + 1;

/// A moment of a script: half microseconds.
pub(super) fn moment(halves: u64) -> Moment {
    Moment::from_nanos(halves.saturating_mul(500))
}

/// The bits of the last eight bytes that are the moment of sending; the others are the upper part of the rank.
const SENT: u64 = (1 << 53) - 1;

fn number<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().expect("an entry is of a fixed length")
}

/// The delivery that an entry is about.
pub(super) fn delivery(entry: &[u8], body: Vec<u8>, now: u64) -> Delivery {
    let (body, content_type, headers) = wire::decode_or_mark(body.into());
    let head = u32::from_be_bytes(number(&entry[..4]));
    let rank = u32::from_be_bytes(number(&entry[20..24]));
    let rank_and_sent = u64::from_be_bytes(number(&entry[24..32]));
    let handle = u128::from(rank) << 96 | u128::from(head) << 64 | u128::from(rank_and_sent);
    Delivery {
        id: MessageId::from_u128(u128::from_be_bytes(number(&entry[4..20]))),
        body,
        content_type,
        headers,
        receipt_handle: ReceiptHandle::from_u128(handle),
        delivery_count: head & 0xff_ffff,
        enqueued_at: moment(rank_and_sent & SENT),
        delivered_at: moment(now),
    }
}

/// The member that a receipt is about, if it is one of ours.
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

/// What a message asks for, as MessagePack.
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
    if let Some(key) = &special.deduplication {
        text(b'd', key);
    }
    if let Some(after) = special.expires_in {
        packed[0] += 1;
        packed.extend([0xa1, b'x', 0xcf]);
        packed.extend(millis(after).to_be_bytes());
    }
    if special.own_id {
        packed[0] += 1;
        packed.extend([0xa1, b'i', 0xc3]);
    }
    packed
}

/// The longest duration that scripts take, in milliseconds: 63 years.
const LONGEST: u64 = 2_000_000_000_000;

/// Milliseconds, rounded up so that nothing ends early. A longer duration than [`LONGEST`] could not be added to the time of a
/// script, whose numbers are exact up to 2⁵³ half microseconds.
pub(super) fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).map_or(LONGEST, |millis| millis.min(LONGEST))
}

/// All keys of a mailbox are in the slot of this. A colon in a prefix is written otherwise, so that no name reaches another
/// prefix; braces are in no name.
pub(super) fn tag(name: &MailboxName) -> String {
    match name.prefix() {
        None => format!("{{queue:{}}}", name.as_str()),
        Some(prefix) => format!("{{queue/{}:{}}}", prefix.replace(':', "%3A"), name.as_str()),
    }
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
