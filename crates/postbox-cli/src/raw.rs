//! Bodies as they are.

use bytes::Bytes;
use postbox::ContentType;
use postbox::codec::CodecError;
use postbox::codec::{Codec, Decode, Encode};

/// Bytes as they are, without a content type: the receiver reads them by its own codec.
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

/// The mailboxes of this program.
pub(crate) type Mailbox = postbox::Mailbox<Bytes, Bytes, RawCodec>;
