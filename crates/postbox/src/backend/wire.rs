//! The wire format, version 1: a message as one string of bytes, for places that store just that.
//!
//! `docs/wire-format.md` describes it for programs in any language. Places with attributes of their own (SQS) keep the
//! headers there, under the same names; the rules are the same.

use std::sync::Arc;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

use crate::backend::Headers;
use crate::mailbox::codec::ContentType;
use crate::runtime::clock::Moment;

/// What a message of this format begins with, before its version.
pub const MAGIC: [u8; 2] = *b"PB";
/// The version that is written.
pub const VERSION: u8 = 1;

/// The header with the media type of the body.
pub const CONTENT_TYPE: &str = "postbox.content-type";
/// The header with the address for answers.
pub const REPLY_TO: &str = "postbox.reply-to";
/// The header with the id of the reply that is awaited.
pub const REPLY: &str = "postbox.reply";

/// The header with the moment at which a message was first sent, in nanoseconds since 1970, if it was moved since.
pub const ENQUEUED_AT: &str = "postbox.enqueued-at";

/// The bytes are of a version that this program does not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the message is in version {0} of the wire format, and this program reads version {VERSION}: update it")]
pub struct UnknownVersion(pub u8);

/// The headers of a message in the order in which they are written: ours first, then the attributes by name.
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

/// Puts headers back to where they belong. Names under `postbox.` that this version does not know are left out.
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
/// use postbox::{ContentType, wire};
///
/// let bytes = wire::encode(b"{}", &ContentType::Json, None);
/// assert_eq!(wire::decode(bytes), Ok((Bytes::from("{}"), ContentType::Json, None)));
/// // What another program wrote is received as it is.
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

/// Reads what [`encode`] wrote, or anything else: bytes that are not of this format are a body without headers.
///
/// # Errors
/// [`UnknownVersion`] for a later version of this format.
pub fn decode(bytes: Bytes) -> Result<(Bytes, ContentType, Option<Arc<Headers>>), UnknownVersion> {
    match bytes[..] {
        [m, a, VERSION, ..] if [m, a] == MAGIC => {}
        // A text that happens to begin so goes on with a printable character; versions are below those.
        [m, a, version, ..] if [m, a] == MAGIC && (1..32).contains(&version) => return Err(UnknownVersion(version)),
        _ => return Ok((bytes, ContentType::Unmarked, None)),
    }
    let mut rest = bytes.slice(3..);
    Ok(match take_headers(&mut rest) {
        Some(list) => {
            let list = list
                .iter()
                .filter_map(|(name, value)| Some((std::str::from_utf8(name).ok()?, std::str::from_utf8(value).ok()?)));
            let (content_type, headers) = from_headers(list);
            (rest, content_type, headers)
        }
        None => (bytes, ContentType::Unmarked, None),
    })
}

/// Takes the headers off; what stays is the body. `None` if the bytes end too early.
fn take_headers(rest: &mut Bytes) -> Option<Vec<(Bytes, Bytes)>> {
    let many = take_number(rest)?;
    // Each header has two bytes at least, so a wrong number cannot ask for more memory than the message has.
    let mut list = Vec::with_capacity(many.min(rest.len() / 2));
    for _ in 0..many {
        let mut text = || {
            let length = take_number(rest)?;
            (length <= rest.len()).then(|| rest.split_to(length))
        };
        list.push((text()?, text()?));
    }
    Some(list)
}

/// Seven bits a byte, lowest first; the highest bit says that more follow.
fn put_number(bytes: &mut BytesMut, mut number: usize) {
    while number >= 0x80 {
        bytes.put_u8(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.put_u8(number as u8);
}

fn take_number(bytes: &mut Bytes) -> Option<usize> {
    let mut number = 0usize;
    for shift in (0..35).step_by(7) {
        if !bytes.has_remaining() {
            return None;
        }
        let byte = bytes.get_u8();
        number |= usize::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}
