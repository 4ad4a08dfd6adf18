//! MD5 digests of bodies and attributes, and the SHA-256 that deduplicates by content.
//!
//! Clients compute the MD5 digests too and refuse answers that differ. The digest of attributes is
//! over the attributes in the order of their names. Each attribute contributes its name, its type,
//! one byte (1 for a text, 2 for bytes) and its value. Name, type and value are each preceded by
//! their length in four bytes.

use crate::message_attributes::MessageAttribute;
use md5::{Digest, Md5};
use sha2::Sha256;
use std::collections::BTreeMap;

const TEXT: u8 = 1;
const BYTES: u8 = 2;

/// The digest of a body, in lower-case hexadecimal digits.
pub fn md5_of_body(body: &str) -> String {
    hex(&Md5::digest(body.as_bytes()))
}

/// The digest of attributes, or `None` if there are none: then answers leave it out.
pub fn md5_of_attributes(attributes: &BTreeMap<String, MessageAttribute>) -> Option<String> {
    if attributes.is_empty() {
        return None;
    }
    let mut digest = Md5::new();
    for (name, attribute) in attributes {
        update(&mut digest, name.as_bytes());
        update(&mut digest, attribute.data_type.as_deref().unwrap_or_default().as_bytes());
        match &attribute.binary_value {
            Some(bytes) if attribute.is_binary() => {
                digest.update([BYTES]);
                update(&mut digest, bytes);
            }
            _ => {
                digest.update([TEXT]);
                update(&mut digest, attribute.string_value.as_deref().unwrap_or_default().as_bytes());
            }
        }
    }
    Some(hex(&digest.finalize()))
}

/// The deduplication id of a message that has none, in a queue with content-based deduplication.
///
/// It is the SHA-256 of the body; attributes do not count.
pub fn content_deduplication_id(body: &str) -> String {
    hex(&Sha256::digest(body.as_bytes()))
}

fn update(digest: &mut Md5, part: &[u8]) {
    digest.update((part.len() as u32).to_be_bytes());
    digest.update(part);
}

/// Lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u8| char::from(DIGITS[usize::from(nibble)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}
