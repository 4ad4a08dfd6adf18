//! The raw codec: message bodies as bytes.

use bytes::Bytes;
use postbox::ContentType;
use postbox::codec::CodecError;
use postbox::codec::{Codec, Decode, Encode};

/// Leaves bodies unchanged and sets no content type, so that a receiver decodes them with its own codec.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawCodec;

impl Codec for RawCodec {
    const CONTENT_TYPE: ContentType = ContentType::Unmarked;

    fn reads(_: &ContentType) -> bool {
        true
    }
}

impl Encode<Bytes> for RawCodec {
    fn encode(value: &Bytes) -> Result<Bytes, CodecError> {
        Ok(value.clone())
    }
}

impl Decode<Bytes> for RawCodec {
    fn decode(body: &Bytes) -> Result<Bytes, CodecError> {
        Ok(body.clone())
    }
}

/// A mailbox of raw bodies, which all commands use.
pub(crate) type Mailbox = postbox::Mailbox<Bytes, Bytes, RawCodec>;
