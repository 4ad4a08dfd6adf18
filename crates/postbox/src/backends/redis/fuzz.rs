//! What fuzz targets call of this backend. Not part of the API.

use std::time::Duration;

use redis::Value;

use super::message_format;
use super::requests;
use crate::backend::{Delivery, Receipt, Special};

/// The length of an entry.
pub const ENTRY: usize = message_format::ENTRY;

/// The options of a message, as an argument of a script.
pub fn special_options(special: &Special) -> Vec<u8> {
    message_format::special_options(special)
}

/// An entry as a delivery, and the entry that its receipt names.
pub fn entry_of_receipt(entry: &[u8; ENTRY], body: Vec<u8>, now: u64) -> (Delivery, Option<Vec<u8>>) {
    let delivery = message_format::delivery(entry, body, now);
    let receipt = Receipt { id: delivery.id.clone(), handle: delivery.receipt_handle.clone() };
    (delivery, message_format::member(&receipt).map(|member| member[1..].to_vec()))
}

/// The deliveries of the response to a receive: for each receiver its deliveries, or the time until the
/// next deadline.
pub fn parse_received(
    now: i64,
    due: i64,
    leased: Vec<u8>,
    bodies: Vec<Vec<u8>>,
) -> Vec<(Vec<Delivery>, Option<Duration>)> {
    let head = [Value::Int(now), Value::Int(due), Value::BulkString(leased)];
    requests::parse_received(head.into_iter().chain(bodies.into_iter().map(Value::BulkString)).collect())
}
