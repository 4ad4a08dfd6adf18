//! Replies in a DynamoDB table: an item each, every transition a conditional write.
//!
//! DynamoDB has no clock that a write could ask, so times are those of the programs that use the table.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::operation::delete_item::DeleteItemError;
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, AttributeValue, BillingMode, GlobalSecondaryIndex, KeySchemaElement, KeyType,
    KeysAndAttributes, Projection, ProjectionType, ReturnValue, ReturnValuesOnConditionCheckFailure,
    ScalarAttributeType, TableStatus, TimeToLiveSpecification,
};
use aws_smithy_types::Blob;
use futures_util::future::try_join_all;

use super::fault::{Fault, fault};
use super::place::{checked_endpoint, load, truth};
use super::queue::lock;
use crate::address::{Uri, decoded};
use crate::cancellation::unless;
use crate::clock::{Clock as _, Moment, Sleep, SystemClock};
use crate::error::Error;
use crate::id::{ReplyId, new_uuid};
use crate::network;
use crate::operation::{Answer, Call};
use crate::promise::{Promise, promise};
use crate::reply_store::{ReplyEntry, ReplyState, ReplyStore, ReplyValue, Resolved};

/// The index by expiry, and how many parts it has: one would be as fast as one part of DynamoDB is.
const INDEX: &str = "postbox-expiry";
const SHELVES: u32 = 8;
/// How long between two looks at what is waited for: at first, and after a while without news.
const LOOK: (Duration, Duration) = (Duration::from_millis(25), Duration::from_secs(1));
/// So many entries are looked at in one request.
const LOOK_AT: usize = 100;
/// The largest answer: an item has 400 KB at most.
const MOST_BYTES: usize = 390 * 1024;

type Item = HashMap<String, AttributeValue>;

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
/// let reply = jobs.send_expecting_reply(&"count".to_string()).await?;
/// println!("{}", reply.wait().await?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct DynamoDbReplyStore {
    table: Arc<Table>,
}

struct Table {
    client: Client,
    name: String,
    /// In errors.
    shown: String,
    waiting: Mutex<Waiting>,
    /// Somebody began to wait.
    joined: tokio::sync::Notify,
}

/// Those who wait for replies.
#[derive(Default)]
struct Waiting {
    waiters: Vec<(ReplyId, Promise<bool>)>,
    /// Whether somebody looks for them.
    is_watched: bool,
}

impl DynamoDbReplyStore {
    /// With a client of one's own.
    pub fn from_client(client: Client, table: impl Into<String>) -> Self {
        let name = table.into();
        let region = client.config().region().map_or_else(String::new, ToString::to_string);
        let shown = format!("dynamodb://{region}/{name}");
        Self::new(client, name, shown)
    }

    fn new(client: Client, name: String, shown: String) -> Self {
        let table = Table { client, name, shown, waiting: Mutex::default(), joined: tokio::sync::Notify::new() };
        DynamoDbReplyStore { table: Arc::new(table) }
    }

    /// By a URI: `dynamodb://region/table`, with `?endpoint=` for a server of one's own, `&profile=`, `&create=true`.
    ///
    /// # Errors
    /// [`Error::Resolution`] for a URI that is not one, [`Error::Connection`] if a table should be made and cannot.
    pub fn open(uri: impl Into<String>) -> Call<Result<Self, Error>> {
        let uri = uri.into();
        Call::new(move || network::ask(async move { Self::at(&uri, None, None, false).await }))
    }

    /// The same, where the URI of a mailbox has said something already.
    pub(super) async fn at(
        text: &str,
        endpoint: Option<&str>,
        profile: Option<&str>,
        creates: bool,
    ) -> Result<Self, Error> {
        let uri = Uri::parse(text)?;
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
        let (region, table) = uri.host_and_path();
        let table = decoded(table);
        if table.is_empty() {
            return Err(Error::resolution(text, "which table? Write dynamodb://region/table"));
        }
        let config = load(region, endpoint.as_deref(), profile.as_deref()).await;
        let region = config.region().map_or_else(String::new, ToString::to_string);
        let store = Self::new(Client::new(&config), table.clone(), format!("dynamodb://{region}/{table}"));
        if creates {
            store.table.create().await?;
        }
        Ok(store)
    }

    /// Makes the table with its index and its time to live, and waits until it can be used. Nothing happens if there is one.
    ///
    /// # Errors
    /// [`Error::Connection`].
    pub fn create_table(&self) -> Call<Result<(), Error>> {
        let table = Arc::clone(&self.table);
        Call::new(move || network::ask(async move { table.create().await }))
    }

    fn ask<T: Send + 'static, F: Future<Output = Result<T, Error>> + Send + 'static>(
        &self,
        act: impl FnOnce(Arc<Table>) -> F,
    ) -> Answer<Result<T, Error>> {
        network::ask(act(Arc::clone(&self.table)))
    }
}

impl fmt::Debug for DynamoDbReplyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DynamoDbReplyStore").field("table", &self.table.shown).finish()
    }
}

fn text(value: impl Into<String>) -> AttributeValue {
    AttributeValue::S(value.into())
}

fn number(value: impl ToString) -> AttributeValue {
    AttributeValue::N(value.to_string())
}

fn now() -> u64 {
    SystemClock.now().as_nanos() / 1_000_000
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Which part of the index an entry is in.
fn shelf(id: &str) -> u32 {
    id.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)) % SHELVES
}

fn read<'a>(item: &'a Item, name: &str) -> Option<&'a str> {
    match item.get(name)? {
        AttributeValue::S(text) | AttributeValue::N(text) => Some(text),
        _ => None,
    }
}

fn natural(item: &Item, name: &str) -> Option<u64> {
    read(item, name)?.parse().ok()
}

/// What an item says at a moment. `None`: somebody has taken it.
fn state(item: &Item, now: u64) -> Option<ReplyState> {
    let state = match read(item, "state")? {
        "taken" => return None,
        "resolved" => ReplyState::Resolved,
        "cancelled" => ReplyState::Cancelled,
        _ => ReplyState::Pending,
    };
    Some(if natural(item, "expires").is_some_and(|expires| expires <= now) { ReplyState::Expired } else { state })
}

fn entry(id: &ReplyId, mut item: Item, now: u64) -> Option<ReplyEntry> {
    let state = state(&item, now)?;
    let moment = |millis: u64| Moment::from_nanos(millis.saturating_mul(1_000_000)).into();
    let time = |name: &str| natural(&item, name).map(moment);
    let (created_at, expires_at, resolved_at) = (
        time("created").unwrap_or(std::time::UNIX_EPOCH),
        time("expires").unwrap_or(std::time::UNIX_EPOCH),
        time("resolved"),
    );
    let content_type = read(&item, "content_type").unwrap_or_default().into();
    let value = match item.remove("value") {
        Some(AttributeValue::B(body)) if state == ReplyState::Resolved => {
            Some(ReplyValue { body: body.into_inner().into(), content_type })
        }
        _ => None,
    };
    Some(ReplyEntry { id: id.clone(), value, state, created_at, expires_at, resolved_at })
}

/// What a conditional write came to.
enum Written {
    Done,
    /// The condition did not hold, and this is what is there.
    Refused(Option<Item>),
}

impl Table {
    fn failed(&self, fault: Fault) -> Error {
        if fault.is_missing() {
            let reason = "there is no such table; create it (create_table(), or ?create=true)";
            return Error::resolution(&self.shown, reason);
        }
        fault.error
    }

    fn error<E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static>(&self, error: SdkError<E>) -> Error {
        self.failed(fault(&self.shown, error))
    }

    /// What is there, if an update's condition did not hold.
    fn refused(&self, error: SdkError<UpdateItemError>) -> Result<Option<Item>, Error> {
        match error {
            SdkError::ServiceError(service) if service.err().is_conditional_check_failed_exception() => {
                match service.into_err() {
                    UpdateItemError::ConditionalCheckFailedException(refusal) => Ok(refusal.item),
                    _ => Ok(None),
                }
            }
            error => Err(self.error(error)),
        }
    }

    async fn create(&self) -> Result<(), Error> {
        let attribute =
            |name: &str, kind| AttributeDefinition::builder().attribute_name(name).attribute_type(kind).build();
        let key = |name: &str, kind| KeySchemaElement::builder().attribute_name(name).key_type(kind).build();
        let built = "all that it needs is there";
        let index = GlobalSecondaryIndex::builder()
            .index_name(INDEX)
            .key_schema(key("shelf", KeyType::Hash).expect(built))
            .key_schema(key("expires", KeyType::Range).expect(built))
            .projection(Projection::builder().projection_type(ProjectionType::KeysOnly).build())
            .build()
            .expect(built);
        let request = self
            .client
            .create_table()
            .table_name(&self.name)
            .billing_mode(BillingMode::PayPerRequest)
            .attribute_definitions(attribute("id", ScalarAttributeType::S).expect(built))
            .attribute_definitions(attribute("shelf", ScalarAttributeType::N).expect(built))
            .attribute_definitions(attribute("expires", ScalarAttributeType::N).expect(built))
            .key_schema(key("id", KeyType::Hash).expect(built))
            .global_secondary_indexes(index);
        match request.send().await.map_err(|error| fault(&self.shown, error)) {
            Err(fault) if !fault.is("ResourceInUseException") => return Err(self.failed(fault)),
            _ => {}
        }
        let mut pause = LOOK.0;
        loop {
            let shown = self.client.describe_table().table_name(&self.name).send().await;
            let table = shown.map_err(|error| self.error(error))?.table;
            if table.and_then(|table| table.table_status) == Some(TableStatus::Active) {
                break;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LOOK.1);
        }
        let ttl = TimeToLiveSpecification::builder().enabled(true).attribute_name("ttl").build().expect(built);
        let set = self.client.update_time_to_live().table_name(&self.name).time_to_live_specification(ttl).send().await;
        match set.map_err(|error| fault(&self.shown, error)) {
            // It is so already.
            Err(fault) if !fault.is("ValidationException") => Err(self.failed(fault)),
            _ => Ok(()),
        }
    }

    /// Changes a pending entry. The token tells our own change from another's if the answer to it was lost.
    async fn settle(
        &self,
        id: &ReplyId,
        changes: &str,
        mut values: Vec<(&str, AttributeValue)>,
    ) -> Result<Written, Error> {
        let (token, now) = (new_uuid().to_string(), now());
        values.extend([(":token", text(&token)), (":pending", text("pending")), (":now", number(now))]);
        let mut request = self
            .client
            .update_item()
            .table_name(&self.name)
            .key("id", text(id.to_string()))
            .update_expression(format!("SET #token = :token, {changes}"))
            .condition_expression("#state = :pending AND #expires > :now")
            .expression_attribute_names("#token", "token")
            .expression_attribute_names("#state", "state")
            .expression_attribute_names("#expires", "expires")
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
        for name in ["value", "content_type", "resolved"] {
            if changes.contains(&format!("#{name} ")) {
                request = request.expression_attribute_names(format!("#{name}"), name);
            }
        }
        for (name, value) in values {
            request = request.expression_attribute_values(name, value);
        }
        match request.send().await {
            Ok(_) => Ok(Written::Done),
            Err(error) => match self.refused(error)? {
                Some(item) if read(&item, "token") == Some(&token) => Ok(Written::Done),
                item => Ok(Written::Refused(item)),
            },
        }
    }

    /// Takes an answer: it is marked as taken, by us, so that a lost answer to that loses nothing, and then removed.
    async fn take(self: &Arc<Self>, id: &ReplyId) -> Result<Option<ReplyEntry>, Error> {
        let (token, now) = (new_uuid().to_string(), now());
        let request = self
            .client
            .update_item()
            .table_name(&self.name)
            .key("id", text(id.to_string()))
            .update_expression("SET #token = :token, #state = :taken")
            .condition_expression("#state = :resolved AND #expires > :now")
            .expression_attribute_names("#token", "token")
            .expression_attribute_names("#state", "state")
            .expression_attribute_names("#expires", "expires")
            .expression_attribute_values(":token", text(&token))
            .expression_attribute_values(":taken", text("taken"))
            .expression_attribute_values(":resolved", text("resolved"))
            .expression_attribute_values(":now", number(now))
            .return_values(ReturnValue::AllOld)
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
        let mut item = match request.send().await {
            Ok(answer) => answer.attributes.unwrap_or_default(),
            Err(error) => match self.refused(error)? {
                Some(item) if read(&item, "token") == Some(&token) => item,
                Some(item) => return Ok(entry(id, item, now)),
                None => return Ok(None),
            },
        };
        item.insert("state".into(), text("resolved"));
        let (table, key) = (Arc::clone(self), id.to_string());
        network::spawn(async move {
            // If this fails, its time to live removes it.
            let _ = table.client.delete_item().table_name(&table.name).key("id", text(key)).send().await;
        });
        Ok(entry(id, item, now))
    }

    async fn get(&self, id: &ReplyId) -> Result<Option<ReplyEntry>, Error> {
        let request =
            self.client.get_item().table_name(&self.name).key("id", text(id.to_string())).consistent_read(true);
        let answer = request.send().await.map_err(|error| self.error(error))?;
        Ok(answer.item.and_then(|item| entry(id, item, now())))
    }

    async fn expired(&self, limit: usize) -> Result<Vec<String>, Error> {
        let now = now();
        let looks = (0..SHELVES).map(|shelf| {
            let request = self
                .client
                .query()
                .table_name(&self.name)
                .index_name(INDEX)
                .key_condition_expression("#shelf = :shelf AND #expires <= :now")
                .expression_attribute_names("#shelf", "shelf")
                .expression_attribute_names("#expires", "expires")
                .expression_attribute_values(":shelf", number(shelf))
                .expression_attribute_values(":now", number(now))
                .limit(i32::try_from(limit).unwrap_or(i32::MAX));
            async { request.send().await.map_err(|error| self.error(error)) }
        });
        let mut found: Vec<(u64, String)> = Vec::new();
        for page in try_join_all(looks).await? {
            let items = page.items.unwrap_or_default();
            found.extend(
                items.iter().filter_map(|item| Some((natural(item, "expires")?, read(item, "id")?.to_string()))),
            );
        }
        found.sort();
        found.truncate(limit);
        Ok(found.into_iter().map(|(_, id)| id).collect())
    }

    /// Removes an entry, if a condition holds. Whether there was one.
    async fn remove(&self, id: &str, only_expired: bool) -> Result<bool, Error> {
        let mut request =
            self.client.delete_item().table_name(&self.name).key("id", text(id)).return_values(ReturnValue::AllOld);
        if only_expired {
            request = request
                .condition_expression("#expires <= :now")
                .expression_attribute_names("#expires", "expires")
                .expression_attribute_values(":now", number(now()));
        }
        match request.send().await {
            Ok(answer) => {
                Ok(answer.attributes.is_some_and(|item| only_expired || read(&item, "state") != Some("taken")))
            }
            Err(error) if is_refused(&error) => Ok(false),
            Err(error) => Err(self.error(error)),
        }
    }

    /// Looks for all who wait, together, as long as anybody does.
    async fn watch(self: Arc<Self>) {
        let mut pause = LOOK.0;
        loop {
            let joined = self.joined.notified();
            let soonest = tokio::time::Instant::now() + LOOK.0;
            let ids: Vec<ReplyId> = {
                let mut waiting = lock(&self.waiting);
                waiting.waiters.retain(|(_, promise)| !promise.is_void());
                if waiting.waiters.is_empty() {
                    waiting.is_watched = false;
                    return;
                }
                let mut ids: Vec<_> = waiting.waiters.iter().map(|(id, _)| id.clone()).collect();
                ids.sort();
                ids.dedup();
                ids
            };
            let mut next: Option<u64> = None;
            let mut is_news = false;
            for part in ids.chunks(LOOK_AT) {
                let seen = self.look_at(part).await;
                let waiters = {
                    let mut waiting = lock(&self.waiting);
                    let is_settled = |id: &ReplyId| match &seen {
                        Ok(seen) => seen.get(id).is_some_and(Option::is_none),
                        Err(_) => part.binary_search(id).is_ok(),
                    };
                    let (done, others): (Vec<_>, _) =
                        std::mem::take(&mut waiting.waiters).into_iter().partition(|(id, _)| is_settled(id));
                    waiting.waiters = others;
                    done
                };
                is_news |= !waiters.is_empty();
                for (_, promise) in waiters {
                    promise.fulfil(seen.as_ref().map(|_| true).map_err(Clone::clone));
                }
                let expiries = seen.iter().flat_map(HashMap::values).filter_map(|expires| *expires);
                next = expiries.chain(next).min();
            }
            pause = if is_news { LOOK.0 } else { pause };
            // Nothing is awaited past its expiry.
            let until_expiry = next.map_or(LOOK.1, |expires| Duration::from_millis(expires.saturating_sub(now())));
            let is_joined = unless(tokio::time::sleep(pause.min(until_expiry)), joined).await.is_some();
            pause = (pause * 3 / 2).min(LOOK.1);
            if is_joined {
                // Who has just begun to wait is answered soon as a rule; how many do, does not matter.
                tokio::time::sleep_until(soonest).await;
                pause = LOOK.0;
            }
        }
    }

    /// What has become of entries: `None` for those that are settled, otherwise when they expire. What DynamoDB had no time to look
    /// at is not there.
    async fn look_at(&self, ids: &[ReplyId]) -> Result<HashMap<ReplyId, Option<u64>>, Error> {
        let mut keys = KeysAndAttributes::builder()
            .consistent_read(true)
            .projection_expression("#id, #state, #expires")
            .expression_attribute_names("#id", "id")
            .expression_attribute_names("#state", "state")
            .expression_attribute_names("#expires", "expires");
        for id in ids {
            keys = keys.keys(Item::from([("id".to_string(), text(id.to_string()))]));
        }
        let keys = keys.build().expect("it has keys");
        let answer = self.client.batch_get_item().request_items(&self.name, keys).send().await;
        let answer = answer.map_err(|error| self.error(error))?;
        let now = now();
        let mut seen: HashMap<ReplyId, Option<u64>> = ids.iter().map(|id| (id.clone(), None)).collect();
        for unseen in answer.unprocessed_keys.unwrap_or_default().into_values().flat_map(|keys| keys.keys) {
            seen.remove(&ReplyId::from(read(&unseen, "id").unwrap_or_default()));
        }
        for item in answer.responses.unwrap_or_default().into_values().flatten() {
            if let (Some(id), Some(ReplyState::Pending)) = (read(&item, "id"), state(&item, now)) {
                seen.insert(id.into(), natural(&item, "expires"));
            }
        }
        Ok(seen)
    }
}

fn is_refused(error: &SdkError<DeleteItemError>) -> bool {
    error.as_service_error().is_some_and(DeleteItemError::is_conditional_check_failed_exception)
}

impl ReplyStore for DynamoDbReplyStore {
    fn create(&self, id: ReplyId, ttl: Duration) -> Answer<Result<bool, Error>> {
        self.ask(|table| async move {
            let (now, key, token) = (now(), id.to_string(), new_uuid().to_string());
            let expires = now.saturating_add(millis(ttl));
            let request = table
                .client
                .put_item()
                .table_name(&table.name)
                .item("shelf", number(shelf(&key)))
                .item("id", text(key))
                .item("token", text(&token))
                .item("state", text("pending"))
                .item("created", number(now))
                .item("expires", number(expires))
                // DynamoDB removes it when it is over, within days.
                .item("ttl", number(expires / 1_000 + 1))
                .condition_expression("attribute_not_exists(#id)")
                .expression_attribute_names("#id", "id")
                .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
            match request.send().await {
                Ok(_) => Ok(true),
                Err(SdkError::ServiceError(service)) if service.err().is_conditional_check_failed_exception() => {
                    use aws_sdk_dynamodb::operation::put_item::PutItemError;
                    let PutItemError::ConditionalCheckFailedException(refusal) = service.into_err() else {
                        return Ok(false);
                    };
                    // Ours, if the answer to the first attempt was lost.
                    Ok(refusal.item.is_some_and(|item| read(&item, "token") == Some(&token)))
                }
                Err(error) => Err(table.error(error)),
            }
        })
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
        // Nothing is to be undone, but who has left is known by it.
        let (promise, settled) = promise(Some(Box::new(drop)));
        let mut waiting = lock(&table.waiting);
        waiting.waiters.push((id, promise));
        let has_watcher = std::mem::replace(&mut waiting.is_watched, true);
        drop(waiting);
        if has_watcher {
            table.joined.notify_one();
        } else {
            network::spawn(Arc::clone(&table).watch());
        }
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
