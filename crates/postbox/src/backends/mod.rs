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

/// The shard of a reply. It is part of the stored formats: FNV-1a of the id, modulo the number of shards.
#[cfg(any(feature = "redis", feature = "aws"))]
fn shard_of(id: &str, shards: u32) -> u32 {
    id.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)) % shards
}
