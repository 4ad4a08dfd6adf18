//! The wire format: its decoder takes any bytes, and what is encoded is decoded again.

use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use postbox::backend::Headers;
use postbox::backend::wire::{self, MAX_HEADER_BYTES, MAX_HEADERS};
use postbox::{ContentType, ReplyId};

/// Any bytes are a message, a foreign body or an error. What is read keeps the limits of a message, and
/// is the same after it is written and read again.
#[test]
fn wire_decode() {
    bolero::check!().for_each(|input: &[u8]| {
        let bytes = Bytes::copy_from_slice(input);
        let Ok((body, content_type, headers)) = wire::decode(bytes.clone()) else { return };
        assert!(bytes.ends_with(&body));
        let attributes = headers.iter().flat_map(|headers| &headers.attributes);
        assert!(attributes.clone().count() <= MAX_HEADERS);
        assert!(attributes.map(|(name, value)| name.len() + value.len()).sum::<usize>() <= MAX_HEADER_BYTES);

        // A later version of the format may say more than this one reads, so only what is read is compared.
        let again = wire::decode(wire::encode(&body, &content_type, headers.as_deref()));
        assert_eq!(again, Ok((body, content_type, headers)));
    });
}

type Attributes = Vec<(String, String)>;

/// Headers and a body of any kind come back as they were.
#[test]
fn wire_round_trip() {
    type Input = (Vec<u8>, Option<String>, Option<u128>, Option<u64>, Attributes);
    bolero::check!().with_type::<Input>().for_each(|(body, reply_to, reply, enqueued_at, attributes)| {
        let mut headers = Headers::default();
        headers.reply_to.clone_from(reply_to);
        headers.reply = reply.map(ReplyId::from_u128);
        headers.enqueued_at = enqueued_at.map(|nanos| UNIX_EPOCH + Duration::from_nanos(nanos));
        // Names of this kind are Postbox's own, and `attribute` refuses them.
        let attributes = || attributes.iter().filter(|(name, _)| !name.starts_with("postbox."));
        headers.attributes = attributes().cloned().collect();
        let bytes = wire::encode(body, &ContentType::Json, Some(&headers));
        let is_too_much = attributes().count() + 4 > MAX_HEADERS;
        match wire::decode(bytes) {
            Ok((decoded, content_type, read)) => {
                assert_eq!((decoded, content_type), (Bytes::copy_from_slice(body), ContentType::Json));
                assert_eq!(read.as_deref().cloned().unwrap_or_default(), headers);
            }
            Err(error) => assert!(is_too_much, "{error}"),
        }
    });
}
