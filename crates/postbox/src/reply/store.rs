//! Reply stores: where replies are stored until the requester takes them.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use crate::backend::ByteCount;
use crate::error::Error;
use crate::mailbox::codec::ContentType;
use crate::mailbox::id::ReplyId;
use crate::mailbox::operation::Answer;

/// The usual limit of [`ReplyStore::scan_expired`] and [`ReplyStore::cleanup_expired`].
pub const SCAN_LIMIT: usize = 100;

/// The state of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ReplyState {
    /// The answer has not come yet.
    Pending,
    /// The answer has come.
    Resolved,
    /// The requester cancelled the reply.
    Cancelled,
    /// The time to live is over.
    Expired,
}

/// A reply, as a store keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplyEntry {
    /// The id of the reply.
    pub id: ReplyId,
    /// The encoded answer, if the reply is resolved.
    pub value: Option<ReplyValue>,
    /// The state.
    pub state: ReplyState,
    /// When the request was sent.
    pub created_at: SystemTime,
    /// When the reply expires, in any state.
    pub expires_at: SystemTime,
    /// When the answer came.
    pub resolved_at: Option<SystemTime>,
}

impl ReplyEntry {
    /// A pending entry. A store sets the fields of other states.
    pub const fn new(id: ReplyId, created_at: SystemTime, expires_at: SystemTime) -> Self {
        ReplyEntry { id, value: None, state: ReplyState::Pending, created_at, expires_at, resolved_at: None }
    }
}

/// An encoded answer.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplyValue {
    /// The encoded bytes.
    pub body: Bytes,
    /// Their content type.
    pub content_type: ContentType,
}

impl ReplyValue {
    /// An answer of these bytes.
    pub const fn new(body: Bytes, content_type: ContentType) -> Self {
        ReplyValue { body, content_type }
    }
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

/// The result of [`ReplyStore::resolve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolved {
    /// The answer is stored, and its waiters are woken.
    Stored,
    /// The entry was not pending, but in this state. `None` if there is no entry: it was consumed, deleted or cleaned up.
    Refused(Option<ReplyState>),
}

/// The reply store of a handle, if there is one. A store that panics has failed.
#[derive(Clone, Debug)]
pub(crate) struct Replies {
    backend: &'static str,
    store: Option<Arc<dyn ReplyStore>>,
}

impl Replies {
    pub(crate) const fn new(backend: &'static str, store: Option<Arc<dyn ReplyStore>>) -> Self {
        Replies { backend, store }
    }

    pub(crate) const fn is_there(&self) -> bool {
        self.store.is_some()
    }

    pub(crate) fn call<T: Send + 'static>(
        &self,
        operation: &'static str,
        verb: impl FnOnce(&dyn ReplyStore) -> Answer<Result<T, Error>>,
    ) -> Answer<Result<T, Error>> {
        let Some(store) = &self.store else {
            let operation = "keep replies: open with ?replies=… or .replies(store)";
            return Answer::ready(Err(Error::Unsupported { backend: self.backend, operation }));
        };
        Answer::caught(|| verb(&**store), move || Err(Error::panicked("the reply store", operation)))
    }
}

/// Keeps replies for a time to live. A part of the contract of a [backend](crate::backend), at the level of bytes.
///
/// ```text
/// create → Pending ── resolve → Resolved ── consume → gone
///             ├────── cancel  → Cancelled
///             └────── time to live passes → Expired ── cleanup_expired → gone
/// ```
///
/// Every transition is atomic, and the clock is the store's. An entry whose time to live is over is expired, in any state. A
/// store removes expired entries by itself after a while.
pub trait ReplyStore: fmt::Debug + Send + Sync + 'static {
    /// Creates a pending entry. Returns `false` if there is an entry with this id.
    fn create(&self, id: ReplyId, ttl: Duration) -> Answer<Result<bool, Error>>;

    /// Stores an answer if the entry is pending, and wakes its waiters.
    fn resolve(&self, id: ReplyId, value: ReplyValue) -> Answer<Result<Resolved, Error>>;

    /// Cancels a pending entry. Returns `false` if it was not pending.
    fn cancel(&self, id: ReplyId) -> Answer<Result<bool, Error>>;

    /// Returns an entry.
    fn get(&self, id: ReplyId) -> Answer<Result<Option<ReplyEntry>, Error>>;

    /// Returns an entry and, if it is resolved, removes it in the same step.
    fn consume(&self, id: ReplyId) -> Answer<Result<Option<ReplyEntry>, Error>>;

    /// Removes an entry. Returns `false` if there was none.
    fn delete(&self, id: ReplyId) -> Answer<Result<bool, Error>>;

    /// Returns the ids of at most `limit` expired entries; usually [`SCAN_LIMIT`].
    fn scan_expired(&self, limit: usize) -> Answer<Result<Vec<ReplyId>, Error>>;

    /// Removes at most `limit` expired entries; usually [`SCAN_LIMIT`]. Returns their number.
    fn cleanup_expired(&self, limit: usize) -> Answer<Result<u64, Error>>;

    /// Waits at most `wait` until the entry is resolved, cancelled, expired or gone. Returns whether it is. An entry that never
    /// existed is gone.
    fn settled(&self, id: ReplyId, wait: Duration) -> Answer<Result<bool, Error>>;
}
