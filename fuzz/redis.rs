//! Arguments and responses of the Lua scripts of the Redis backend.

use std::time::Duration;

use postbox::backend::Special;
use postbox::redis::fuzz::{ENTRY, entry_of_receipt, parse_received, special_options};
use serde::Deserialize;

/// What `send.lua` unpacks.
#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Options {
    g: Option<String>,
    d: Option<String>,
    x: Option<u64>,
    i: Option<bool>,
}

/// The options of a message are MessagePack, with the values that the sender gave.
#[test]
fn redis_options() {
    type Input = (Option<String>, Option<String>, Option<u64>, bool);
    bolero::check!().with_type::<Input>().for_each(|(group, deduplication, expiry, own_id)| {
        // Scripts have times as doubles, which are exact up to here.
        let expiry = expiry.map(|millis| millis % 2_000_000_000_000);
        let mut special = Special::default();
        special.group.clone_from(group);
        special.deduplication.clone_from(deduplication);
        special.expires_in = expiry.map(Duration::from_millis);
        special.own_id = *own_id;
        let options: Options = rmp_serde::from_slice(&special_options(&special)).unwrap();
        let expected = Options { g: group.clone(), d: deduplication.clone(), x: expiry, i: own_id.then_some(true) };
        assert_eq!(options, expected);
    });
}

/// The receipt of a delivery names its entry.
#[test]
fn redis_entries() {
    bolero::check!().with_type::<([u8; ENTRY], Vec<u8>, u64)>().for_each(|(entry, body, now)| {
        let (delivery, named) = entry_of_receipt(entry, body.clone(), *now);
        assert_eq!(named.as_deref(), Some(&entry[..]));
        assert!(delivery.delivery_count < 1 << 24);
    });
}

/// A response of any kind gives the deliveries that are in it as a whole.
#[test]
fn redis_responses() {
    type Input = (i64, i64, Vec<u8>, Vec<Vec<u8>>);
    bolero::check!().with_type::<Input>().for_each(|(now, due, leased, bodies)| {
        let received = parse_received(*now, *due, leased.clone(), bodies.clone());
        let deliveries: usize = received.iter().map(|(deliveries, _)| deliveries.len()).sum();
        assert!(deliveries <= bodies.len() && deliveries * ENTRY <= leased.len());
    });
}
