//! How a value becomes the body of a message, and back.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// How a body is encoded, as it travels with the message.
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
    /// None was given: another library sent the message.
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

/// A way to write values down.
pub trait Codec: 'static {
    /// What it writes.
    const CONTENT_TYPE: ContentType;

    /// Whether it reads what is marked so. What is not marked is tried.
    fn reads(content_type: &ContentType) -> bool {
        *content_type == Self::CONTENT_TYPE || *content_type == ContentType::Unmarked
    }
}

/// A codec that can write a `T`.
pub trait Encode<T: ?Sized>: Codec {
    /// Writes it down.
    ///
    /// # Errors
    /// Whatever keeps the value from being written.
    fn encode(value: &T) -> Result<Bytes, CodecError>;
}

/// A codec that can read a `T`.
pub trait Decode<T>: Codec {
    /// Reads it.
    ///
    /// # Errors
    /// Whatever keeps the body from being a `T`.
    fn decode(body: &Bytes) -> Result<T, CodecError>;

    /// Reads it from a body that nobody else needs. The same as [`decode`](Self::decode), for codecs that can keep the body.
    ///
    /// # Errors
    /// As `decode`.
    #[inline]
    fn decode_owned(body: Bytes) -> Result<T, CodecError> {
        Self::decode(&body)
    }
}

thread_local! {
    /// Bodies are written here and copied once, at their size: one allocation for a message, not several.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A buffer that a large body left behind is not kept.
const LARGEST_KEPT: usize = 64 * 1024;

fn written(write: impl FnOnce(&mut Vec<u8>) -> Result<(), CodecError>) -> Result<Bytes, CodecError> {
    // Taken out: a value's own `Serialize` may encode another one.
    let mut buffer = BUFFER.take();
    buffer.clear();
    let bytes = write(&mut buffer).map(|()| copied(&buffer));
    if buffer.capacity() <= LARGEST_KEPT {
        BUFFER.set(buffer);
    }
    bytes
}

/// A small body, in one piece of memory with its count of references. `Bytes` of a slice has two pieces as soon as it is shared, and
/// what goes from thread to thread is best one.
pub(crate) struct Small<const N: usize> {
    length: usize,
    bytes: [u8; N],
}

const LARGEST_SMALL: usize = 128;

impl<const N: usize> Small<N> {
    /// The first bytes of these.
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
        // Not by an index, which might panic: what cannot fail needs no way out.
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

/// JSON, by serde. The default.
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

/// MessagePack, by serde, with field names: smaller and faster than JSON, and as open to new fields.
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

/// Bytes or text as they are. Reads every body, whatever wrote it.
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
