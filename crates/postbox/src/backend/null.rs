//! The reply store of backends that have none.

use std::time::Duration;

use crate::error::Error;
use crate::mailbox::id::ReplyId;
use crate::mailbox::operation::Answer;
use crate::reply::store::{ReplyEntry, ReplyStore, ReplyValue, Resolved};

/// Fails each operation. Holds the kind of the backend.
#[derive(Debug)]
pub(crate) struct NoReplies(pub(crate) &'static str);

impl NoReplies {
    fn refuse<T>(&self) -> Answer<Result<T, Error>> {
        Answer::ready(Err(Error::Unsupported { backend: self.0, operation: "keep replies: open with .replies(store)" }))
    }
}

impl ReplyStore for NoReplies {
    fn create(&self, _: ReplyId, _: Duration) -> Answer<Result<bool, Error>> {
        self.refuse()
    }

    fn resolve(&self, _: ReplyId, _: ReplyValue) -> Answer<Result<Resolved, Error>> {
        self.refuse()
    }

    fn cancel(&self, _: ReplyId) -> Answer<Result<bool, Error>> {
        self.refuse()
    }

    fn get(&self, _: ReplyId) -> Answer<Result<Option<ReplyEntry>, Error>> {
        self.refuse()
    }

    fn consume(&self, _: ReplyId) -> Answer<Result<Option<ReplyEntry>, Error>> {
        self.refuse()
    }

    fn delete(&self, _: ReplyId) -> Answer<Result<bool, Error>> {
        self.refuse()
    }

    fn scan_expired(&self, _: usize) -> Answer<Result<Vec<ReplyId>, Error>> {
        self.refuse()
    }

    fn cleanup_expired(&self, _: usize) -> Answer<Result<u64, Error>> {
        self.refuse()
    }

    fn settled(&self, _: ReplyId, _: Duration) -> Answer<Result<bool, Error>> {
        self.refuse()
    }
}
