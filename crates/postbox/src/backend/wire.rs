//! The wire format, version 1: a message as one string of bytes, for stores that keep nothing else.
//!
//! `docs/wire-format.md` describes it for programs in any language. On SQS, which has attributes, the headers are
//! attributes with the same names.

use std::sync::Arc;

use bytes::{BufMut as _, Bytes, BytesMut};

use crate::backend::Headers;
use crate::mailbox::codec::ContentType;
use crate::runtime::clock::Moment;

/// The first bytes of a message in this format, before the version.
pub const MAGIC: [u8; 2] = *b"PB";
/// The version that is written.
pub const VERSION: u8 = 1;

/// The header with the media type of the body.
pub const CONTENT_TYPE: &str = "postbox.content-type";
/// The header with the address for answers.
pub const REPLY_TO: &str = "postbox.reply-to";
/// The header with the id of the reply for which the sender waits.
pub const REPLY: &str = "postbox.reply";

/// The header with the time at which a message was first sent, if it was moved since. In nanoseconds since 1970.
pub const ENQUEUED_AT: &str = "postbox.enqueued-at";

/// The most headers of a message, those of Postbox included. A header takes a reader far more memory than its bytes.
pub const MAX_HEADERS: usize = 256;
/// The largest size of all names and values of a message's headers together, in bytes.
pub const MAX_HEADER_BYTES: usize = 1 << 20;

/// Why a message cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// A version of the format that this program does not know.
    #[error("the message is in version {0} of the wire format, and this program reads version {VERSION}: update it")]
    UnknownVersion(u8),
    /// More than [`MAX_HEADERS`].
    #[error("the message has {0} headers, and at most {MAX_HEADERS} are read")]
    TooManyHeaders(usize),
    /// More than [`MAX_HEADER_BYTES`].
    #[error("the headers of the message have {0} bytes, and at most {MAX_HEADER_BYTES} are read")]
    HeadersTooLarge(usize),
}

/// Checks the number and the total size of a message's headers, and of `more` empty headers.
pub(crate) fn check_headers(
    content_type: &ContentType,
    with: Option<&Headers>,
    more: usize,
) -> Result<(), DecodeError> {
    let mut texts = Default::default();
    let list = headers(content_type, with, &mut texts);
    check_size(list.len() + more, list.iter().map(|(name, value)| name.len() + value.len()).sum())
}

fn check_size(many: usize, bytes: usize) -> Result<(), DecodeError> {
    if many > MAX_HEADERS {
        return Err(DecodeError::TooManyHeaders(many));
    }
    if bytes > MAX_HEADER_BYTES {
        return Err(DecodeError::HeadersTooLarge(bytes));
    }
    Ok(())
}

/// The headers of a message in the order in which they are written: those of Postbox, then the attributes by name.
pub fn headers<'a>(
    content_type: &'a ContentType,
    headers: Option<&'a Headers>,
    texts: &'a mut [String; 2],
) -> Vec<(&'a str, &'a str)> {
    let mut list = Vec::new();
    if *content_type != ContentType::Unmarked {
        list.push((CONTENT_TYPE, content_type.as_str()));
    }
    let Some(headers) = headers else { return list };
    list.extend(headers.reply_to.as_deref().map(|address| (REPLY_TO, address)));
    let [reply, enqueued_at] = texts;
    if let Some(id) = &headers.reply {
        *reply = id.to_string();
        list.push((REPLY, reply));
    }
    if let Some(time) = headers.enqueued_at {
        *enqueued_at = Moment::from(time).as_nanos().to_string();
        list.push((ENQUEUED_AT, enqueued_at));
    }
    list.extend(headers.attributes.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    list
}

/// Reads the headers of a message. Names under `postbox.` that this version does not know are left out.
pub fn from_headers<'a>(list: impl IntoIterator<Item = (&'a str, &'a str)>) -> (ContentType, Option<Arc<Headers>>) {
    let mut content_type = ContentType::Unmarked;
    let mut headers = Headers::default();
    for (name, value) in list {
        match name {
            CONTENT_TYPE => content_type = value.into(),
            REPLY_TO => headers.reply_to = Some(value.into()),
            REPLY => headers.reply = Some(value.into()),
            ENQUEUED_AT => headers.enqueued_at = value.parse().ok().map(|nanos| Moment::from_nanos(nanos).into()),
            reserved if reserved.starts_with(crate::mailbox::send::RESERVED) => {}
            name => drop(headers.attributes.insert(name.into(), value.into())),
        }
    }
    let headers = (headers != Headers::default()).then(|| Arc::new(headers));
    (content_type, headers)
}

/// Writes a message as one string of bytes.
///
/// ```
/// use bytes::Bytes;
/// use postbox::ContentType;
/// use postbox::backend::wire;
///
/// let bytes = wire::encode(b"{}", &ContentType::Json, None);
/// assert_eq!(wire::decode(bytes), Ok((Bytes::from("{}"), ContentType::Json, None)));
/// // A message of another program is received as it is.
/// let foreign = Bytes::from(r#"{"from":"elsewhere"}"#);
/// assert_eq!(wire::decode(foreign.clone()), Ok((foreign, ContentType::Unmarked, None)));
/// ```
pub fn encode(body: &[u8], content_type: &ContentType, with: Option<&Headers>) -> Bytes {
    let mut texts = Default::default();
    let list = headers(content_type, with, &mut texts);
    let size: usize = list.iter().map(|(name, value)| name.len() + value.len() + 8).sum();
    let mut bytes = BytesMut::with_capacity(body.len() + size + 8);
    bytes.put_slice(&MAGIC);
    bytes.put_u8(VERSION);
    put_number(&mut bytes, list.len());
    for (name, value) in list {
        for text in [name, value] {
            put_number(&mut bytes, text.len());
            bytes.put_slice(text.as_bytes());
        }
    }
    bytes.put_slice(body);
    bytes.freeze()
}

/// The parts of a message: its body, its content type and its headers.
pub type Parts = (Bytes, ContentType, Option<Arc<Headers>>);

/// Decodes a message. Bytes that are not in this format are a body without headers.
///
/// # Errors
/// [`DecodeError`] for a later version of this format, and for more headers than a message may have.
pub fn decode(bytes: Bytes) -> Result<Parts, DecodeError> {
    match bytes[..] {
        [m, a, VERSION, ..] if [m, a] == MAGIC => {}
        // A text that begins with these two bytes goes on with a printable character, and versions are lower numbers.
        [m, a, version, ..] if [m, a] == MAGIC && (1..32).contains(&version) => {
            return Err(DecodeError::UnknownVersion(version));
        }
        _ => return Ok((bytes, ContentType::Unmarked, None)),
    }
    let mut rest = &bytes[3..];
    let Some(list) = take_headers(&mut rest) else { return Ok((bytes, ContentType::Unmarked, None)) };
    let list = list?;
    let texts = list
        .iter()
        .filter_map(|(name, value)| Some((std::str::from_utf8(name).ok()?, std::str::from_utf8(value).ok()?)));
    let (content_type, headers) = from_headers(texts);
    let body = bytes.len() - rest.len();
    Ok((bytes.slice(body..), content_type, headers))
}

/// As [`decode`]. A message that cannot be decoded is returned as its bytes, with the reason as its content type, so only
/// the raw codec reads it.
#[cfg(any(feature = "sqlite", feature = "redis"))]
pub(crate) fn decode_or_mark(bytes: Bytes) -> Parts {
    decode(bytes.clone()).unwrap_or_else(|error| (bytes, unread(error), None))
}

/// The content type of a message that cannot be decoded.
#[cfg(any(feature = "sqlite", feature = "redis", feature = "aws"))]
pub(crate) fn unread(error: DecodeError) -> ContentType {
    ContentType::from(error.to_string().as_str())
}

type Pairs<'a> = Vec<(&'a [u8], &'a [u8])>;

/// Takes the headers off, so that `rest` is the body. `None` if the bytes end too early. Keeps at most [`MAX_HEADERS`].
fn take_headers<'a>(rest: &mut &'a [u8]) -> Option<Result<Pairs<'a>, DecodeError>> {
    let many = take_number(rest)?;
    let mut list = Vec::with_capacity(many.min(MAX_HEADERS));
    let mut size = 0;
    for at in 0..many {
        let mut text = || {
            let length = take_number(rest)?;
            let (text, after) = rest.split_at_checked(length)?;
            *rest = after;
            Some(text)
        };
        let (name, value) = (text()?, text()?);
        size += name.len() + value.len();
        if at < MAX_HEADERS {
            list.push((name, value));
        }
    }
    Some(check_size(many, size).map(|()| list))
}

/// Seven bits in each byte, the lowest first. The highest bit is set if another byte follows.
fn put_number(bytes: &mut BytesMut, mut number: usize) {
    while number >= 0x80 {
        bytes.put_u8(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.put_u8(number as u8);
}

fn take_number(bytes: &mut &[u8]) -> Option<usize> {
    let mut number = 0usize;
    for shift in (0..35).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= usize::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}
