//! Where replies are kept until the requester takes them.

use std::fmt;
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use crate::backend::ByteCount;
use crate::error::Error;
use crate::mailbox::codec::ContentType;
use crate::mailbox::id::ReplyId;
use crate::mailbox::operation::Answer;

/// How many expired entries a scan or a clean-up usually looks at.
pub const SCAN_LIMIT: usize = 100;

/// What has become of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ReplyState {
    /// Awaited.
    Pending,
    /// There.
    Resolved,
    /// Not wanted any more.
    Cancelled,
    /// Its time to live has passed.
    Expired,
}

/// A reply as its store keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyEntry {
    /// Which reply.
    pub id: ReplyId,
    /// The answer, encoded, if it is resolved.
    pub value: Option<ReplyValue>,
    /// What has become of it.
    pub state: ReplyState,
    /// When it was asked for.
    pub created_at: SystemTime,
    /// When it ends, whatever its state.
    pub expires_at: SystemTime,
    /// When the answer came.
    pub resolved_at: Option<SystemTime>,
}

/// An answer, encoded.
#[derive(Clone, PartialEq, Eq)]
pub struct ReplyValue {
    /// The bytes.
    pub body: Bytes,
    /// How they are encoded.
    pub content_type: ContentType,
}

/// Without the body.
impl fmt::Debug for ReplyValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplyValue")
            .field("body", &ByteCount(&self.body))
            .field("content_type", &self.content_type)
            .finish()
    }
}

/// What a store did with an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolved {
    /// It keeps the answer, and wakes its waiters.
    Stored,
    /// Nothing: the entry was not pending. `None`: there is no entry, because it was consumed, deleted or cleaned up.
    Refused(Option<ReplyState>),
}

/// Keeps replies, with a time to live. Byte level, object safe.
///
/// ```text
/// create → Pending ── resolve → Resolved ── consume → gone
///             ├────── cancel  → Cancelled
///             └────── time to live passes → Expired ── cleanup_expired → gone
/// ```
///
/// Every transition is atomic, and time is the store's own. An entry past its time to live is expired, whatever its
/// state was: resolved ones do not stay for ever either. A store forgets expired entries by itself after a while.
pub trait ReplyStore: fmt::Debug + Send + Sync + 'static {
    /// Makes a pending entry. `false` if there is one with this id.
    fn create(&self, id: ReplyId, ttl: Duration) -> Answer<Result<bool, Error>>;

    /// Keeps an answer, if the entry is pending, and wakes its waiters.
    fn resolve(&self, id: ReplyId, value: ReplyValue) -> Answer<Result<Resolved, Error>>;

    /// Cancels a pending entry. `false` if it was not pending.
    fn cancel(&self, id: ReplyId) -> Answer<Result<bool, Error>>;

    /// Shows an entry.
    fn get(&self, id: ReplyId) -> Answer<Result<Option<ReplyEntry>, Error>>;

    /// Shows an entry and, if it is resolved, removes it in the same step.
    fn consume(&self, id: ReplyId) -> Answer<Result<Option<ReplyEntry>, Error>>;

    /// Removes an entry. `false` if there was none.
    fn delete(&self, id: ReplyId) -> Answer<Result<bool, Error>>;

    /// The ids of up to `limit` expired entries; usually [`SCAN_LIMIT`].
    fn scan_expired(&self, limit: usize) -> Answer<Result<Vec<ReplyId>, Error>>;

    /// Removes up to `limit` expired entries; usually [`SCAN_LIMIT`]. Answers how many.
    fn cleanup_expired(&self, limit: usize) -> Answer<Result<u64, Error>>;

    /// Waits until the entry is not pending any more (resolved, cancelled, expired or gone), up to `wait`. Says
    /// whether that is so. An entry that was never there is gone.
    fn settled(&self, id: ReplyId, wait: Duration) -> Answer<Result<bool, Error>>;
}
