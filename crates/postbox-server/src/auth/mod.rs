//! Who may do what: access keys with rights, and signatures of version 4 that prove them.
//!
//! [`verify`] takes a request with its headers, in either protocol, signed by the header `Authorization`
//! or by parameters of a URL. It returns the [`AccessKey`] and the region of the signature;
//! [`AccessKey::authorize`] then decides about the action and the queue. The time is an argument.
//! Secrets are kept in [`Secret`], which shows nothing of itself, and are compared in constant time.

mod canonical;
mod credentials;
mod keys;
mod rights;
mod time;
mod verify;

pub use canonical::{canonical_request, signature, signing_key, string_to_sign};
pub use credentials::Signed;
pub use keys::{AccessKey, AccessKeys, KeysError, Secret};
pub use rights::Right;
pub use time::{format_time, parse_time};
pub use verify::{Verified, verify};
