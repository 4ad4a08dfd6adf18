//! The backends: each keeps mailboxes and replies in one kind of store.

#[cfg(feature = "aws")]
pub(crate) mod aws;
#[cfg(feature = "aws")]
pub(crate) mod dynamodb;
pub(crate) mod memory;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;
#[cfg(feature = "aws")]
pub(crate) mod sqs;
