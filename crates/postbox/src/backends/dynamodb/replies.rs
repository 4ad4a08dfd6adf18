//! The reply store: its verbs, on the [`Table`].
//!
//! DynamoDB has no clock that a write could use, so times are those of the programs that use the table.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::AttributeValue;
use aws_smithy_types::Blob;
use futures_util::future::try_join_all;

use super::config::TableConfig;
use super::format::{now, state, text};
use super::table::{Table, UpdateOutcome};
use crate::backends::aws::AwsOptions;
use crate::error::Error;
use crate::mailbox::id::ReplyId;
use crate::mailbox::operation::{Answer, Call};
use crate::reply::store::{ReplyEntry, ReplyState, ReplyStore, ReplyValue, Resolved};
use crate::runtime::cancellation::unless;
use crate::runtime::clock::{Sleep, SystemClock};
use crate::runtime::io_thread;

/// The largest reply. An item has at most 400 KB.
const MAX_REPLY_SIZE: usize = 390 * 1024;

/// Replies in a DynamoDB table. `sqs://eu-west-1/name?replies=dynamodb://eu-west-1/table` uses one.
///
/// [`create_table`](Self::create_table) creates the table.
///
/// ```no_run
/// use postbox::aws::DynamoDbReplyStore;
/// use postbox::Mailbox;
/// use std::sync::Arc;
///
/// # async fn example() -> Result<(), postbox::Error> {
/// let replies = DynamoDbReplyStore::open("dynamodb://eu-west-1/replies").await?;
/// replies.create_table().await?;
/// let jobs: Mailbox<String, u32> = postbox::open("sqs://eu-west-1/jobs").replies(Arc::new(replies)).await?;
/// let reply = jobs.send_expecting_reply("count").await?;
/// println!("{}", reply.wait().await?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct DynamoDbReplyStore {
    table: Arc<Table>,
}

impl DynamoDbReplyStore {
    /// Uses your own client.
    pub fn from_client(client: Client, table: impl Into<String>) -> Self {
        DynamoDbReplyStore { table: Table::new(client, table.into()) }
    }

    /// Opens `dynamodb://region/table`. Options: `?endpoint=` of a server that is not AWS, `profile=`,
    /// `create=true`.
    ///
    /// # Errors
    /// [`Error::Resolution`] for an invalid URI, [`Error::Connection`] if the table cannot be created.
    pub fn open(uri: impl Into<String>) -> Call<Result<Self, Error>> {
        let uri = uri.into();
        Call::new(move || io_thread::ask(async move { Self::open_with(&uri, AwsOptions::default()).await }))
    }

    /// Opens a URI. `options` are its defaults.
    pub(in crate::backends) async fn open_with(uri: &str, options: AwsOptions) -> Result<Self, Error> {
        let table = TableConfig::parse(uri, options)?.open().await?;
        Ok(DynamoDbReplyStore { table })
    }

    /// Creates the table with its index and its time to live, and waits until it is active. Succeeds
    /// if the table exists.
    ///
    /// # Errors
    /// [`Error::Connection`].
    pub fn create_table(&self) -> Call<Result<(), Error>> {
        let table = Arc::clone(&self.table);
        Call::new(move || io_thread::ask(async move { table.create().await }))
    }

    /// Runs an operation on the I/O thread.
    fn run<T: Send + 'static, F: Future<Output = Result<T, Error>> + Send + 'static>(
        &self,
        operation: impl FnOnce(Arc<Table>) -> F,
    ) -> Answer<Result<T, Error>> {
        io_thread::ask(operation(Arc::clone(&self.table)))
    }
}

impl fmt::Debug for DynamoDbReplyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DynamoDbReplyStore").field("table", &self.table.address()).finish()
    }
}

impl ReplyStore for DynamoDbReplyStore {
    fn create(&self, id: ReplyId, ttl: Duration) -> Answer<Result<bool, Error>> {
        self.run(move |table| async move { table.put(&id, ttl).await })
    }

    fn resolve(&self, id: ReplyId, value: ReplyValue) -> Answer<Result<Resolved, Error>> {
        if value.body.len() > MAX_REPLY_SIZE {
            let size = format!("{} bytes", value.body.len());
            let limit = format!("up to {MAX_REPLY_SIZE} bytes in DynamoDB");
            return Answer::ready(Err(Error::invalid("reply size", size, limit)));
        }
        self.run(|table| async move {
            let changes = "#state = :resolved_state, #value = :value, #content_type = :content_type, #resolved = :now";
            let values = vec![
                (":resolved_state", text("resolved")),
                (":value", AttributeValue::B(Blob::new(value.body))),
                (":content_type", text(value.content_type.as_str())),
            ];
            Ok(match table.update_pending(&id, changes, values).await? {
                UpdateOutcome::Done => Resolved::Stored,
                UpdateOutcome::Refused(item) => Resolved::Refused(item.and_then(|item| state(&item, now()))),
            })
        })
    }

    fn cancel(&self, id: ReplyId) -> Answer<Result<bool, Error>> {
        self.run(|table| async move {
            let outcome =
                table.update_pending(&id, "#state = :cancelled", vec![(":cancelled", text("cancelled"))]).await?;
            Ok(matches!(outcome, UpdateOutcome::Done))
        })
    }

    fn get(&self, id: ReplyId) -> Answer<Result<Option<ReplyEntry>, Error>> {
        self.run(|table| async move { table.get(&id).await })
    }

    fn consume(&self, id: ReplyId) -> Answer<Result<Option<ReplyEntry>, Error>> {
        self.run(|table| async move { table.take(&id).await })
    }

    fn delete(&self, id: ReplyId) -> Answer<Result<bool, Error>> {
        self.run(|table| async move { table.remove(&id.to_string(), false).await })
    }

    fn scan_expired(&self, limit: usize) -> Answer<Result<Vec<ReplyId>, Error>> {
        self.run(move |table| async move { Ok(table.expired(limit).await?.into_iter().map(ReplyId::from).collect()) })
    }

    fn cleanup_expired(&self, limit: usize) -> Answer<Result<u64, Error>> {
        self.run(move |table| async move {
            let mut count = 0;
            for ids in table.expired(limit).await?.chunks(16) {
                let removed = try_join_all(ids.iter().map(|id| table.remove(id, true))).await?;
                count += removed.into_iter().map(u64::from).sum::<u64>();
            }
            Ok(count)
        })
    }

    fn settled(&self, id: ReplyId, wait: Duration) -> Answer<Result<bool, Error>> {
        let table = Arc::clone(&self.table);
        if wait.is_zero() {
            let is_pending = |entry: &ReplyEntry| entry.state == ReplyState::Pending;
            return self.get(id).map(move |entry| Ok(!entry?.as_ref().is_some_and(is_pending)));
        }
        let settled = table.settled(id);
        Answer::from_future(async move {
            let clock = SystemClock::shared();
            let end = clock.now().after(wait);
            unless(Sleep::until(clock, end), settled).await.unwrap_or(Ok(false))
        })
    }
}
