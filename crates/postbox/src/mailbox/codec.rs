//! Codecs: how a value becomes the body of a message, and back.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The content type of a body, which is sent with the message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ContentType {
    /// `application/json`
    Json,
    /// `application/msgpack`
    MessagePack,
    /// `application/octet-stream`
    Bytes,
    /// Any other.
    Other(Box<str>),
    /// No content type: the sender is another library.
    #[default]
    Unmarked,
}

impl ContentType {
    /// The media type. Empty if there is none.
    pub fn as_str(&self) -> &str {
        match self {
            ContentType::Json => "application/json",
            ContentType::MessagePack => "application/msgpack",
            ContentType::Bytes => "application/octet-stream",
            ContentType::Other(text) => text,
            ContentType::Unmarked => "",
        }
    }
}

impl From<&str> for ContentType {
    fn from(text: &str) -> Self {
        match text {
            "application/json" => ContentType::Json,
            "application/msgpack" => ContentType::MessagePack,
            "application/octet-stream" => ContentType::Bytes,
            "" => ContentType::Unmarked,
            other => ContentType::Other(other.into()),
        }
    }
}

impl fmt::Display for ContentType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Why a value could not be encoded or decoded.
pub type CodecError = Cow<'static, str>;

/// A format for bodies. [`Encode`] and [`Decode`] say which types it has a body for.
pub trait Codec: 'static {
    /// The content type that it writes.
    const CONTENT_TYPE: ContentType;

    /// Whether it reads bodies of a content type. By default its own, and bodies without one.
    fn reads(content_type: &ContentType) -> bool {
        *content_type == Self::CONTENT_TYPE || *content_type == ContentType::Unmarked
    }
}

/// A codec that can encode a `T`.
pub trait Encode<T: ?Sized>: Codec {
    /// Encodes a value.
    ///
    /// # Errors
    /// The reason why the value has no body in this format.
    fn encode(value: &T) -> Result<Bytes, CodecError>;
}

/// A codec that can decode a `T`.
pub trait Decode<T>: Codec {
    /// Decodes a body.
    ///
    /// # Errors
    /// The reason why the body is not a `T`.
    fn decode(body: &Bytes) -> Result<T, CodecError>;

    /// Decodes a body that it may keep. For codecs whose values share the memory of the body; by default the same as
    /// [`decode`](Self::decode).
    ///
    /// # Errors
    /// As `decode`.
    #[inline]
    fn decode_owned(body: Bytes) -> Result<T, CodecError> {
        Self::decode(&body)
    }
}

thread_local! {
    /// Bodies are written here and copied once, at their final size: one allocation for a message, not several.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A buffer that has grown beyond this is dropped.
const LARGEST_KEPT: usize = 64 * 1024;

fn written(write: impl FnOnce(&mut Vec<u8>) -> Result<(), CodecError>) -> Result<Bytes, CodecError> {
    // Taken out, because a `Serialize` of the user may encode another value.
    let mut buffer = BUFFER.take();
    buffer.clear();
    let bytes = write(&mut buffer).map(|()| copied(&buffer));
    if buffer.capacity() <= LARGEST_KEPT {
        BUFFER.set(buffer);
    }
    bytes
}

/// A small body, in one allocation with its reference count. `Bytes` of a slice has two as soon as it is shared.
pub(crate) struct Small<const N: usize> {
    length: usize,
    bytes: [u8; N],
}

const LARGEST_SMALL: usize = 128;

impl<const N: usize> Small<N> {
    /// The first `length` of these bytes.
    #[inline(always)]
    pub(crate) fn first(length: usize, bytes: [u8; N]) -> Bytes {
        debug_assert!(length <= N);
        Bytes::from_owner(Small { length, bytes })
    }

    fn copied(body: &[u8]) -> Bytes {
        let mut bytes = [0; N];
        bytes[..body.len()].copy_from_slice(body);
        Self::first(body.len(), bytes)
    }
}

impl<const N: usize> AsRef<[u8]> for Small<N> {
    #[inline(always)]
    fn as_ref(&self) -> &[u8] {
        // Without an index, which would add a panic to every access.
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

#[inline]
pub(crate) fn copied(body: &[u8]) -> Bytes {
    match body.len() {
        0 => Bytes::new(),
        1..=32 => Small::<32>::copied(body),
        33..=64 => Small::<64>::copied(body),
        65..=LARGEST_SMALL => Small::<LARGEST_SMALL>::copied(body),
        _ => Bytes::copy_from_slice(body),
    }
}

/// JSON, by serde. The default codec.
#[derive(Clone, Copy, Debug, Default)]
pub struct Json;

impl Codec for Json {
    const CONTENT_TYPE: ContentType = ContentType::Json;
}

impl<T: Serialize + ?Sized> Encode<T> for Json {
    fn encode(value: &T) -> Result<Bytes, CodecError> {
        written(|buffer| serde_json::to_writer(buffer, value).map_err(|error| error.to_string().into()))
    }
}

impl<T: DeserializeOwned> Decode<T> for Json {
    fn decode(body: &Bytes) -> Result<T, CodecError> {
        serde_json::from_slice(body).map_err(|error| error.to_string().into())
    }
}

/// MessagePack, by serde. It is smaller and faster than JSON. Field names are written, so fields can be added later.
#[cfg(feature = "messagepack")]
#[derive(Clone, Copy, Debug, Default)]
pub struct MessagePack;

#[cfg(feature = "messagepack")]
impl Codec for MessagePack {
    const CONTENT_TYPE: ContentType = ContentType::MessagePack;
}

#[cfg(feature = "messagepack")]
impl<T: Serialize + ?Sized> Encode<T> for MessagePack {
    fn encode(value: &T) -> Result<Bytes, CodecError> {
        written(|buffer| rmp_serde::encode::write_named(buffer, value).map_err(|error| error.to_string().into()))
    }
}

#[cfg(feature = "messagepack")]
impl<T: DeserializeOwned> Decode<T> for MessagePack {
    fn decode(body: &Bytes) -> Result<T, CodecError> {
        rmp_serde::from_slice(body).map_err(|error| error.to_string().into())
    }
}

/// Bytes or text as they are. Reads the bodies of every content type.
#[derive(Clone, Copy, Debug, Default)]
pub struct Raw;

impl Codec for Raw {
    const CONTENT_TYPE: ContentType = ContentType::Bytes;

    fn reads(_: &ContentType) -> bool {
        true
    }
}

impl Encode<Bytes> for Raw {
    #[inline]
    fn encode(value: &Bytes) -> Result<Bytes, CodecError> {
        Ok(if value.len() <= LARGEST_SMALL { copied(value) } else { value.clone() })
    }
}

macro_rules! raw_from_slice {
    ($($kind:ty),+) => {$(
        impl Encode<$kind> for Raw {
            fn encode(value: &$kind) -> Result<Bytes, CodecError> {
                Ok(copied(value.as_ref()))
            }
        }
    )+};
}
raw_from_slice!(Vec<u8>, [u8], String, str);

impl Encode<()> for Raw {
    fn encode((): &()) -> Result<Bytes, CodecError> {
        Ok(Bytes::new())
    }
}

impl Decode<Bytes> for Raw {
    #[inline]
    fn decode(body: &Bytes) -> Result<Bytes, CodecError> {
        Ok(body.clone())
    }

    #[inline]
    fn decode_owned(body: Bytes) -> Result<Bytes, CodecError> {
        Ok(body)
    }
}

impl Decode<Vec<u8>> for Raw {
    fn decode(body: &Bytes) -> Result<Vec<u8>, CodecError> {
        Ok(body.to_vec())
    }
}

impl Decode<String> for Raw {
    fn decode(body: &Bytes) -> Result<String, CodecError> {
        String::from_utf8(body.to_vec()).map_err(|error| error.to_string().into())
    }
}

impl Decode<()> for Raw {
    fn decode(_: &Bytes) -> Result<(), CodecError> {
        Ok(())
    }
}
