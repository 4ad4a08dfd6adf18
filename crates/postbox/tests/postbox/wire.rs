//! The wire format: its documentation is true, and decoding returns the encoded message.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use postbox::backend::Headers;
use postbox::backend::wire::{DecodeError, MAX_HEADER_BYTES, MAX_HEADERS, decode, encode};
use postbox::*;
use proptest::prelude::*;

#[test]
fn the_example_of_the_page() {
    let mut headers = Headers::default();
    headers.attributes.insert("tenant".into(), "a".into());
    let bytes = encode(b"{}", &ContentType::Json, Some(&headers));
    assert_eq!(&bytes[..], b"PB\x01\x02\x14postbox.content-type\x10application/json\x06tenant\x01a{}");
}

#[test]
fn a_body_without_the_wire_format_is_received_unchanged() {
    for body in ["", "P", "PB", "PBS is a channel", "{\"a\":1}", "PB\x01", "PB\x01\x02\x14short", "PB\x01\u{7f}"] {
        let bytes = Bytes::from(body);
        assert_eq!(decode(bytes.clone()), Ok((bytes, ContentType::Unmarked, None)), "{body:?}");
    }
}

#[test]
fn a_later_version_is_named() {
    assert_eq!(decode(Bytes::from("PB\x02whatever")), Err(DecodeError::UnknownVersion(2)));
    assert!(DecodeError::UnknownVersion(2).to_string().contains("version 2"));
}

#[test]
fn reserved_names_that_are_not_known_are_ignored() {
    let bytes = Bytes::from("PB\x01\x02\x0bpostbox.new\x01x\x01a\x01bbody");
    let (body, content_type, headers) = decode(bytes).unwrap();
    assert_eq!((&body[..], content_type), (&b"body"[..], ContentType::Unmarked));
    assert_eq!(headers.unwrap().attributes, BTreeMap::from([("a".into(), "b".into())]));
}

/// An encoded message with `count` headers that have empty names and values.
fn empty_headers(many: usize) -> Bytes {
    let mut bytes = b"PB\x01".to_vec();
    let mut number = many;
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes.resize(bytes.len() + 2 * many, 0);
    bytes.into()
}

#[test]
fn a_message_with_too_many_headers_is_rejected() {
    assert!(decode(empty_headers(MAX_HEADERS)).is_ok());
    for many in [MAX_HEADERS + 1, 1_000_000] {
        assert_eq!(decode(empty_headers(many)), Err(DecodeError::TooManyHeaders(many)));
    }
    let attribute = |size: usize| {
        let attributes = BTreeMap::from([("a".to_string(), "x".repeat(size - 1))]);
        let mut headers = Headers::default();
        headers.attributes = attributes;
        encode(b"", &ContentType::Unmarked, Some(&headers))
    };
    assert!(decode(attribute(MAX_HEADER_BYTES)).is_ok());
    let larger = MAX_HEADER_BYTES + 1;
    assert_eq!(decode(attribute(larger)), Err(DecodeError::HeadersTooLarge(larger)));
}

proptest! {
    #[test]
    fn encoded_messages_are_decoded(
        body in prop::collection::vec(any::<u8>(), 0..400),
        content_type in prop::sample::select(vec!["", "application/json", "application/msgpack", "text/plain"]),
        reply_to in prop::option::of("[a-z:/.-]{0,40}"),
        reply in prop::option::of("[a-z0-9-]{1,40}"),
        attributes in prop::collection::btree_map("[A-Za-z0-9._-]{1,300}", ".{0,200}", 0..12),
    ) {
        let content_type = ContentType::from(content_type);
        let mut headers = Headers::default();
        (headers.reply_to, headers.reply, headers.attributes) = (reply_to, reply.map(ReplyId::from), attributes);
        let bytes = encode(&body, &content_type, Some(&headers));
        let expected = (headers != Headers::default()).then(|| Arc::new(headers));
        prop_assert_eq!(decode(bytes), Ok((Bytes::from(body), content_type, expected)));
    }

    #[test]
    fn decoding_never_panics(mut bytes in prop::collection::vec(any::<u8>(), 0..60), has_magic in any::<bool>()) {
        if has_magic {
            bytes.splice(0..0, *b"PB\x01");
        }
        let _ = decode(bytes.into());
    }
}
