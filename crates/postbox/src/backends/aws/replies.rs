//! Replies in a DynamoDB table: an item each, every transition a conditional write.
//!
//! DynamoDB has no clock that a write could ask, so times are those of the programs that use the table.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::AttributeValue;
use aws_smithy_types::Blob;
use futures_util::future::try_join_all;

use super::item::{now, state, text};
use super::place::{checked_endpoint, is_region, load, truth};
use super::table::{Table, Written};
use crate::error::Error;
use crate::mailbox::id::ReplyId;
use crate::mailbox::operation::{Answer, Call};
use crate::reply::store::{ReplyEntry, ReplyState, ReplyStore, ReplyValue, Resolved};
use crate::resolver::address::Uri;
use crate::runtime::cancellation::unless;
use crate::runtime::clock::{Sleep, SystemClock};
use crate::runtime::io_thread;

/// The largest answer: an item has 400 KB at most.
const MOST_BYTES: usize = 390 * 1024;

/// Replies in a DynamoDB table. `sqs://eu-west-1/name?replies=dynamodb://eu-west-1/table` uses one.
///
/// The table has to be there, or is made by [`create_table`](Self::create_table).
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
    /// With a client of one's own.
    pub fn from_client(client: Client, table: impl Into<String>) -> Self {
        let name = table.into();
        let region = client.config().region().map_or_else(String::new, ToString::to_string);
        let shown = format!("dynamodb://{region}/{name}");
        DynamoDbReplyStore { table: Table::new(client, name, shown) }
    }

    /// By a URI: `dynamodb://region/table`, with `?endpoint=` for a server of one's own, `&profile=`, `&create=true`.
    ///
    /// # Errors
    /// [`Error::Resolution`] for a URI that is not one, [`Error::Connection`] if a table should be made and cannot.
    pub fn open(uri: impl Into<String>) -> Call<Result<Self, Error>> {
        let uri = uri.into();
        Call::new(move || io_thread::ask(async move { Self::at(&uri, None, None, false).await }))
    }

    /// The same, where the URI of a mailbox has said something already.
    pub(super) async fn at(
        text: &str,
        endpoint: Option<&str>,
        profile: Option<&str>,
        creates: bool,
    ) -> Result<Self, Error> {
        let mut uri = Uri::parse(text)?;
        if uri.scheme != "dynamodb" {
            return Err(Error::resolution(text, "replies are kept in dynamodb://region/table"));
        }
        let (mut endpoint, mut profile) = (endpoint.map(String::from), profile.map(String::from));
        let mut creates = creates;
        for (name, value) in &uri.options {
            match name.as_str() {
                "endpoint" => {
                    checked_endpoint(value)?;
                    endpoint = Some(value.clone());
                }
                "profile" => profile = Some(value.clone()),
                "create" => creates = truth("create", value)?,
                _ => {
                    let reason = format!("unknown option {name:?}; there are endpoint, profile, create");
                    return Err(Error::resolution(text, reason));
                }
            }
        }
        let table = uri.take_name();
        let region = &uri.place;
        if !is_region(region) {
            return Err(Error::resolution(text, "that is no region; write dynamodb://eu-west-1/table"));
        }
        let Some(table) = table else {
            return Err(Error::resolution(text, "which table? Write dynamodb://region/table"));
        };
        let config = load(region, endpoint.as_deref(), profile.as_deref()).await;
        let region = config.region().map_or_else(String::new, ToString::to_string);
        let shown = format!("dynamodb://{region}/{table}");
        let table = Table::new(Client::new(&config), table, shown);
        if creates {
            table.create().await?;
        }
        Ok(DynamoDbReplyStore { table })
    }

    /// Makes the table with its index and its time to live, and waits until it can be used. Nothing happens if there is one.
    ///
    /// # Errors
    /// [`Error::Connection`].
    pub fn create_table(&self) -> Call<Result<(), Error>> {
        let table = Arc::clone(&self.table);
        Call::new(move || io_thread::ask(async move { table.create().await }))
    }

    fn ask<T: Send + 'static, F: Future<Output = Result<T, Error>> + Send + 'static>(
        &self,
        act: impl FnOnce(Arc<Table>) -> F,
    ) -> Answer<Result<T, Error>> {
        io_thread::ask(act(Arc::clone(&self.table)))
    }
}

impl fmt::Debug for DynamoDbReplyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DynamoDbReplyStore").field("table", &self.table.shown).finish()
    }
}

impl ReplyStore for DynamoDbReplyStore {
    fn create(&self, id: ReplyId, ttl: Duration) -> Answer<Result<bool, Error>> {
        self.ask(move |table| async move { table.put(&id, ttl).await })
    }

    fn resolve(&self, id: ReplyId, value: ReplyValue) -> Answer<Result<Resolved, Error>> {
        if value.body.len() > MOST_BYTES {
            let size = format!("{} bytes", value.body.len());
            let limit = format!("up to {MOST_BYTES} bytes in DynamoDB");
            return Answer::ready(Err(Error::invalid("reply size", size, limit)));
        }
        self.ask(|table| async move {
            let changes = "#state = :resolved_state, #value = :value, #content_type = :content_type, #resolved = :now";
            let values = vec![
                (":resolved_state", text("resolved")),
                (":value", AttributeValue::B(Blob::new(value.body))),
                (":content_type", text(value.content_type.as_str())),
            ];
            Ok(match table.settle(&id, changes, values).await? {
                Written::Done => Resolved::Stored,
                Written::Refused(item) => Resolved::Refused(item.and_then(|item| state(&item, now()))),
            })
        })
    }

    fn cancel(&self, id: ReplyId) -> Answer<Result<bool, Error>> {
        self.ask(|table| async move {
            let done = table.settle(&id, "#state = :cancelled", vec![(":cancelled", text("cancelled"))]).await?;
            Ok(matches!(done, Written::Done))
        })
    }

    fn get(&self, id: ReplyId) -> Answer<Result<Option<ReplyEntry>, Error>> {
        self.ask(|table| async move { table.get(&id).await })
    }

    fn consume(&self, id: ReplyId) -> Answer<Result<Option<ReplyEntry>, Error>> {
        self.ask(|table| async move { table.take(&id).await })
    }

    fn delete(&self, id: ReplyId) -> Answer<Result<bool, Error>> {
        self.ask(|table| async move { table.remove(&id.to_string(), false).await })
    }

    fn scan_expired(&self, limit: usize) -> Answer<Result<Vec<ReplyId>, Error>> {
        self.ask(move |table| async move { Ok(table.expired(limit).await?.into_iter().map(ReplyId::from).collect()) })
    }

    fn cleanup_expired(&self, limit: usize) -> Answer<Result<u64, Error>> {
        self.ask(move |table| async move {
            let mut many = 0;
            for part in table.expired(limit).await?.chunks(16) {
                let gone = try_join_all(part.iter().map(|id| table.remove(id, true))).await?;
                many += gone.into_iter().map(u64::from).sum::<u64>();
            }
            Ok(many)
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
            match unless(Sleep::until(clock, end), settled).await {
                Some(settled) => settled,
                None => Ok(false),
            }
        })
    }
}
