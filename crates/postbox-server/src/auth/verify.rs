//! The decision about a signature.
//!
//! The checks come in this order: the form of the signature, the key and its session token, the
//! scope, the time, the signed headers, the signature itself.

use super::canonical::{canonical_request, contradicts_body, signature, signing_key, string_to_sign};
use super::credentials::Signed;
use super::keys::{AccessKey, AccessKeys};
use super::time::format_time;
use crate::error::{ErrorKind, SqsError};
use crate::wire::HttpRequest;
use subtle::ConstantTimeEq;

/// The service that credentials must be scoped to.
const SERVICE: &str = "sqs";

/// How far a client's clock may be from the server's, in minutes.
const SKEW_MINUTES: u64 = 5;

const SKEW: u64 = SKEW_MINUTES * 60;

/// The one header of AWS that some clients (the SDK for PHP) do not sign. It has no effect.
const UNSIGNED_HEADER: &str = "x-amz-user-agent";

/// A request whose signature is good.
#[derive(Clone, Debug)]
pub struct Verified<'k> {
    /// The key that signed it.
    pub key: &'k AccessKey,
    /// The region that it is for.
    pub region: String,
}

/// Verifies the signature of a request. `now` is in Unix seconds.
///
/// The headers `host` and `x-amz-*` must be signed. A signature in a header is good for five
/// minutes before and after its time, one in a URL from five minutes before its time until it
/// expires.
pub fn verify<'k>(http: &HttpRequest<'_>, keys: &'k AccessKeys, now: u64) -> Result<Verified<'k>, SqsError> {
    let signed = Signed::of(http)?;
    let key = find_key(keys, &signed)?;
    signed.check_scope(SERVICE)?;
    check_time(&signed, now)?;
    check_signed_headers(http, &signed)?;
    let scope = signed.scope();
    let text = string_to_sign(&signed.time, &scope, &canonical_request(http, &signed.signed_headers));
    let expected = signature(&signing_key(&key.secret, &scope), &text);
    let is_equal: bool = expected.as_bytes().ct_eq(signed.signature.as_bytes()).into();
    if !is_equal || contradicts_body(http) {
        return Err(mismatch(
            "The request signature we calculated does not match the signature you provided. Check your AWS Secret \
             Access Key and signing method. Consult the service documentation for details.",
        ));
    }
    Ok(Verified { key, region: signed.region })
}

fn mismatch(message: impl Into<std::borrow::Cow<'static, str>>) -> SqsError {
    SqsError::new(ErrorKind::SignatureDoesNotMatch, message)
}

fn find_key<'k>(keys: &'k AccessKeys, signed: &Signed) -> Result<&'k AccessKey, SqsError> {
    let has_token = |key: &&AccessKey| match (&key.session_token, &signed.session_token) {
        (Some(token), Some(given)) => token.matches(given),
        (None, None) => true,
        _ => false,
    };
    keys.get(&signed.key_id).filter(has_token).ok_or_else(|| {
        SqsError::new(ErrorKind::InvalidClientTokenId, "The security token included in the request is invalid.")
    })
}

fn check_time(signed: &Signed, now: u64) -> Result<(), SqsError> {
    let latest = now.saturating_add(SKEW);
    if signed.unix_time > latest {
        return Err(mismatch(format!(
            "Signature not yet current: {} is still later than {} ({} + {SKEW_MINUTES} min.)",
            signed.time,
            format_time(latest),
            format_time(now)
        )));
    }
    match signed.expires {
        Some(expires) if signed.unix_time + expires < now => {
            Err(SqsError::new(ErrorKind::RequestExpired, "Request has expired."))
        }
        Some(_) => Ok(()),
        None if signed.unix_time + SKEW < now => Err(mismatch(format!(
            "Signature expired: {} is now earlier than {} ({} - {SKEW_MINUTES} min.)",
            signed.time,
            format_time(now - SKEW),
            format_time(now)
        ))),
        None => Ok(()),
    }
}

fn check_signed_headers(http: &HttpRequest<'_>, signed: &Signed) -> Result<(), SqsError> {
    let is_signed = |name: &str| signed.signed_headers.iter().any(|signed| signed == name);
    // With line feeds or colons in names, two requests could have one canonical form.
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if let Some(name) = signed.signed_headers.iter().find(|name| name.is_empty() || !name.bytes().all(is_token)) {
        return Err(mismatch(format!("'{name}' is no name of a header that can be signed.")));
    }
    if !is_signed("host") {
        return Err(mismatch("'Host' or ':authority' must be a 'SignedHeader' in the AWS Authorization."));
    }
    for (name, _) in http.headers {
        let name = name.to_ascii_lowercase();
        if name.starts_with("x-amz-") && name != UNSIGNED_HEADER && !is_signed(&name) {
            return Err(mismatch(format!("'{name}' must be a 'SignedHeader' in the AWS Authorization.")));
        }
    }
    Ok(())
}
