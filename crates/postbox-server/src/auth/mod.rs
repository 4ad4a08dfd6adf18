//! Access keys with rights, and signatures of version 4 that prove them.
//!
//! [`verify`] takes a request of either protocol, signed by the header `Authorization` or by
//! parameters of its URL. It returns the [`AccessKey`] and the region of the signature. Then
//! [`AccessKey::authorize`] decides about the action and the queue. The time is an argument.
//! [`Secret`] holds secrets; it is never shown, and it is compared in constant time.

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
