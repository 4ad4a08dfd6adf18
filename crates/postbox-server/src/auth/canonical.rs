//! Signatures of version 4: the canonical request, the string to sign, and the signing key.
//!
//! The body is always hashed here; the header `x-amz-content-sha256` is compared and not trusted.
//! The path is encoded once more than in the request, as it is for all services but S3.

use super::keys::Secret;
use crate::digest::hex;
use crate::wire::HttpRequest;
use hmac::{Hmac, Mac};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use sha2::{Digest, Sha256};

/// The name of the algorithm.
pub(super) const ALGORITHM: &str = "AWS4-HMAC-SHA256";

/// The last element of a credential's scope.
pub(super) const TERMINATOR: &str = "aws4_request";

/// The parameter that a presigned URL does not sign: its signature.
pub(super) const SIGNATURE_PARAMETER: &str = "X-Amz-Signature";

const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

fn encode(bytes: &[u8]) -> String {
    percent_encode(bytes, UNRESERVED).to_string()
}

fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hmac(key: &[u8], message: &[u8]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(message);
    mac.finalize().into_bytes().into()
}

/// Removes empty segments, `.` and `..`, and encodes the rest.
fn canonical_path(path: &str) -> String {
    let mut segments: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => (),
            ".." => drop(segments.pop()),
            other => segments.push(other),
        }
    }
    let mut canonical = String::from("/");
    canonical.push_str(&segments.iter().map(|segment| encode(segment.as_bytes())).collect::<Vec<_>>().join("/"));
    if path.ends_with('/') && canonical.len() > 1 {
        canonical.push('/');
    }
    canonical
}

/// The parameters but the signature, encoded anew and sorted.
fn canonical_query(query: &str) -> String {
    let decode = |text: &str| percent_decode_str(text).collect::<Vec<u8>>();
    let mut parameters: Vec<(String, String)> = query
        .split('&')
        .filter(|parameter| !parameter.is_empty())
        .map(|parameter| parameter.split_once('=').unwrap_or((parameter, "")))
        .map(|(name, value)| (encode(&decode(name)), encode(&decode(value))))
        .filter(|(name, _)| name != SIGNATURE_PARAMETER)
        .collect();
    parameters.sort();
    parameters.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&")
}

/// The values of a header, joined by commas, with runs of spaces made one.
fn canonical_header(http: &HttpRequest<'_>, name: &str) -> String {
    let values = http.headers.iter().filter(|(found, _)| found.eq_ignore_ascii_case(name));
    let values: Vec<String> = values.map(|(_, value)| value.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    values.join(",")
}

/// The canonical request, with the headers that are signed.
pub fn canonical_request(http: &HttpRequest<'_>, signed_headers: &[String]) -> String {
    let mut canonical = format!("{}\n{}\n{}\n", http.method, canonical_path(http.path), canonical_query(http.query));
    for name in signed_headers {
        canonical.push_str(&format!("{name}:{}\n", canonical_header(http, name)));
    }
    canonical.push_str(&format!("\n{}\n{}", signed_headers.join(";"), sha256_hex(http.body)));
    canonical
}

/// The string to sign. `scope` is `date/region/service/aws4_request`.
pub fn string_to_sign(time: &str, scope: &str, canonical_request: &str) -> String {
    format!("{ALGORITHM}\n{time}\n{scope}\n{}", sha256_hex(canonical_request.as_bytes()))
}

/// The key that signs what a secret key signs in one scope.
pub fn signing_key(secret: &Secret, scope: &str) -> [u8; 32] {
    let first = format!("AWS4{}", secret.reveal()).into_bytes();
    scope
        .split('/')
        .fold(None, |key: Option<[u8; 32]>, element| {
            Some(hmac(key.as_ref().map_or(&first[..], |key| &key[..]), element.as_bytes()))
        })
        .expect("a text has at least one element")
}

/// The signature, in lower-case hexadecimal digits.
pub fn signature(signing_key: &[u8; 32], string_to_sign: &str) -> String {
    hex(&hmac(signing_key, string_to_sign.as_bytes()))
}

/// The SHA-256 of a header for an error message, so that the message repeats no secret.
pub(super) fn masked(text: &str) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(Sha256::digest(text.as_bytes()))
}

/// True if the client said another digest of the body than it has.
pub(super) fn contradicts_body(http: &HttpRequest<'_>) -> bool {
    http.header("x-amz-content-sha256").is_some_and(|said| said.trim() != sha256_hex(http.body))
}
