//! The DynamoDB table of replies. Each transition of an entry is one conditional write.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::operation::delete_item::DeleteItemError;
use aws_sdk_dynamodb::operation::put_item::PutItemError;
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::operation::update_item::builders::UpdateItemFluentBuilder;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, AttributeValue, BillingMode, GlobalSecondaryIndex, KeySchemaElement, KeyType,
    KeysAndAttributes, Projection, ProjectionType, ReturnValue, ReturnValuesOnConditionCheckFailure,
    ScalarAttributeType, TableStatus, TimeToLiveSpecification,
};
use futures_util::future::try_join_all;

use super::format::{Item, entry, millis, now, number, read_number, read_text, state, text};
use super::poll::{PAUSE, Waiters};
use crate::backends::aws::error::AwsError;
use crate::backends::shard_of;
use crate::error::Error;
use crate::mailbox::id::{ReplyId, new_uuid};
use crate::reply::store::{ReplyEntry, ReplyState};
use crate::runtime::io_thread;
use crate::runtime::lock;

/// The index by expiry.
const INDEX: &str = "postbox-expiry";
/// The partition key of the index.
const SHARD: &str = "shelf";
/// The number of partition keys. One key would limit the index to one partition of DynamoDB.
const INDEX_SHARDS: u32 = 8;
/// The most unconfirmed takes that are remembered.
const MAX_UNCONFIRMED: usize = 1_000;

pub(super) struct Table {
    client: Client,
    name: String,
    /// `dynamodb://region/table`, for error messages.
    address: String,
    pub(super) waiters: Waiters,
    /// The tokens of takes whose response was lost. The next take of the same reply uses the same
    /// token, so it gets the reply if the first one took it.
    unconfirmed: Mutex<VecDeque<(ReplyId, String)>>,
}

/// The outcome of a conditional update.
pub(super) enum UpdateOutcome {
    Done,
    /// The condition did not hold. The item, if it exists.
    Refused(Option<Item>),
}

impl Table {
    pub(super) fn new(client: Client, name: String) -> Arc<Self> {
        let region = client.config().region().map_or_else(String::new, ToString::to_string);
        Arc::new(Table {
            address: format!("dynamodb://{region}/{name}"),
            client,
            name,
            waiters: Waiters::default(),
            unconfirmed: Mutex::default(),
        })
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    fn aws_error<E>(&self, error: SdkError<E>) -> AwsError
    where
        E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
    {
        AwsError::new(&self.address, error)
    }

    fn error<E>(&self, error: SdkError<E>) -> Error
    where
        E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
    {
        let error = self.aws_error(error);
        if error.is_not_found() {
            let reason = "there is no such table; create it (create_table(), or ?create=true)";
            return Error::resolution(&self.address, reason);
        }
        error.into()
    }

    /// Creates the table if it does not exist, waits until it is active, and sets its time to live.
    pub(super) async fn create(&self) -> Result<(), Error> {
        let complete = "all required fields are set";
        let attribute = |name: &str, kind| {
            AttributeDefinition::builder().attribute_name(name).attribute_type(kind).build().expect(complete)
        };
        let key =
            |name: &str, kind| KeySchemaElement::builder().attribute_name(name).key_type(kind).build().expect(complete);
        let index = GlobalSecondaryIndex::builder()
            .index_name(INDEX)
            .key_schema(key(SHARD, KeyType::Hash))
            .key_schema(key("expires", KeyType::Range))
            .projection(Projection::builder().projection_type(ProjectionType::KeysOnly).build())
            .build()
            .expect(complete);
        let request = self
            .client
            .create_table()
            .table_name(&self.name)
            .billing_mode(BillingMode::PayPerRequest)
            .attribute_definitions(attribute("id", ScalarAttributeType::S))
            .attribute_definitions(attribute(SHARD, ScalarAttributeType::N))
            .attribute_definitions(attribute("expires", ScalarAttributeType::N))
            .key_schema(key("id", KeyType::Hash))
            .global_secondary_indexes(index);
        match request.send().await.map_err(|error| self.aws_error(error)) {
            Err(error) if !error.has_code("ResourceInUseException") => return Err(error.into()),
            _ => {}
        }
        let mut pause = PAUSE.0;
        loop {
            let response = self.client.describe_table().table_name(&self.name).send().await;
            let table = response.map_err(|error| self.error(error))?.table;
            if table.and_then(|table| table.table_status) == Some(TableStatus::Active) {
                break;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE.1);
        }
        let ttl = TimeToLiveSpecification::builder().enabled(true).attribute_name("ttl").build().expect(complete);
        let request = self.client.update_time_to_live().table_name(&self.name).time_to_live_specification(ttl);
        match request.send().await.map_err(|error| self.aws_error(error)) {
            // DynamoDB's error if the time to live is set already.
            Err(error) if !error.has_code("ValidationException") => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Adds a pending entry. Returns `false` if there is one with this id.
    pub(super) async fn put(&self, id: &ReplyId, ttl: Duration) -> Result<bool, Error> {
        let (now, key, token) = (now(), id.to_string(), new_uuid().to_string());
        let expires = now.saturating_add(millis(ttl));
        let request = self
            .client
            .put_item()
            .table_name(&self.name)
            .item(SHARD, number(shard_of(&key, INDEX_SHARDS)))
            .item("id", text(key))
            .item("token", text(&token))
            .item("state", text("pending"))
            .item("created", number(now))
            .item("expires", number(expires))
            .item("ttl", number(expires / 1_000 + 1))
            .condition_expression("attribute_not_exists(#id)")
            .expression_attribute_names("#id", "id")
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
        match request.send().await {
            Ok(_) => Ok(true),
            Err(error) => match error.as_service_error() {
                // With this token, the item is from an attempt whose response was lost.
                Some(PutItemError::ConditionalCheckFailedException(refusal)) => {
                    Ok(refusal.item.as_ref().is_some_and(|item| read_text(item, "token") == Some(&token)))
                }
                _ => Err(self.error(error)),
            },
        }
    }

    /// An update of an item that has not expired and has a state, `from`.
    fn update(&self, id: &ReplyId, from: &str, changes: &str, token: &str) -> UpdateItemFluentBuilder {
        self.client
            .update_item()
            .table_name(&self.name)
            .key("id", text(id.to_string()))
            .update_expression(format!("SET #token = :token, {changes}"))
            .condition_expression("#state = :from AND #expires > :now")
            .expression_attribute_names("#token", "token")
            .expression_attribute_names("#state", "state")
            .expression_attribute_names("#expires", "expires")
            .expression_attribute_values(":token", text(token))
            .expression_attribute_values(":from", text(from))
            .expression_attribute_values(":now", number(now()))
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
    }

    /// The item of an update whose condition did not hold.
    fn refused(&self, error: SdkError<UpdateItemError>) -> Result<Option<Item>, Error> {
        match error.as_service_error() {
            Some(UpdateItemError::ConditionalCheckFailedException(refusal)) => Ok(refusal.item.clone()),
            _ => Err(self.error(error)),
        }
    }

    /// Updates a pending entry.
    pub(super) async fn update_pending(
        &self,
        id: &ReplyId,
        changes: &str,
        values: Vec<(&str, AttributeValue)>,
    ) -> Result<UpdateOutcome, Error> {
        let token = new_uuid().to_string();
        let mut request = self.update(id, "pending", changes, &token);
        for name in ["value", "content_type", "resolved"] {
            if changes.contains(&format!("#{name} ")) {
                request = request.expression_attribute_names(format!("#{name}"), name);
            }
        }
        for (name, value) in values {
            request = request.expression_attribute_values(name, value);
        }
        match request.send().await {
            Ok(_) => Ok(UpdateOutcome::Done),
            Err(error) => match self.refused(error)? {
                // With this token, the update is done and its response was lost.
                Some(item) if read_text(&item, "token") == Some(&token) => Ok(UpdateOutcome::Done),
                item => Ok(UpdateOutcome::Refused(item)),
            },
        }
    }

    /// Takes a resolved reply: marks it as taken, then deletes it. A lost response to the mark loses
    /// nothing, because the next take uses the same token.
    pub(super) async fn take(self: &Arc<Self>, id: &ReplyId) -> Result<Option<ReplyEntry>, Error> {
        let token = {
            let mut unconfirmed = lock(&self.unconfirmed);
            let index = unconfirmed.iter().position(|(known, _)| known == id);
            let known = index.and_then(|index| unconfirmed.remove(index));
            known.map_or_else(|| new_uuid().to_string(), |(_, token)| token)
        };
        let taken = self.take_with_token(id, &token).await;
        if taken.as_ref().is_err_and(Error::is_transient) {
            let mut unconfirmed = lock(&self.unconfirmed);
            if unconfirmed.len() == MAX_UNCONFIRMED {
                unconfirmed.pop_front();
            }
            unconfirmed.push_back((id.clone(), token));
        }
        taken
    }

    async fn take_with_token(self: &Arc<Self>, id: &ReplyId, token: &str) -> Result<Option<ReplyEntry>, Error> {
        let now = now();
        let request = self.update(id, "resolved", "#state = :taken", token);
        let request = request.expression_attribute_values(":taken", text("taken")).return_values(ReturnValue::AllOld);
        let mut item = match request.send().await {
            Ok(response) => response.attributes.unwrap_or_default(),
            Err(error) => match self.refused(error)? {
                Some(item) if read_text(&item, "token") == Some(token) => item,
                Some(item) => return Ok(entry(id, item, now)),
                None => return Ok(None),
            },
        };
        item.insert("state".into(), text("resolved"));
        let (table, id_text) = (Arc::clone(self), id.to_string());
        let _ = io_thread::spawn(async move {
            // If this fails, DynamoDB's time to live removes the item.
            let _ = table.client.delete_item().table_name(&table.name).key("id", text(id_text)).send().await;
        });
        Ok(entry(id, item, now))
    }

    pub(super) async fn get(&self, id: &ReplyId) -> Result<Option<ReplyEntry>, Error> {
        let request =
            self.client.get_item().table_name(&self.name).key("id", text(id.to_string())).consistent_read(true);
        let response = request.send().await.map_err(|error| self.error(error))?;
        Ok(response.item.and_then(|item| entry(id, item, now())))
    }

    /// The ids of at most `limit` expired entries, the oldest first.
    pub(super) async fn expired(&self, limit: usize) -> Result<Vec<String>, Error> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        let now = now();
        let queries = (0..INDEX_SHARDS).map(|shard| {
            let request = self
                .client
                .query()
                .table_name(&self.name)
                .index_name(INDEX)
                .key_condition_expression("#shard = :shard AND #expires <= :now")
                .expression_attribute_names("#shard", SHARD)
                .expression_attribute_names("#expires", "expires")
                .expression_attribute_values(":shard", number(shard))
                .expression_attribute_values(":now", number(now))
                .limit(i32::try_from(limit).unwrap_or(i32::MAX));
            async { request.send().await.map_err(|error| self.error(error)) }
        });
        let pages = try_join_all(queries).await?;
        let items = pages.iter().flat_map(|page| page.items());
        let found = items.filter_map(|item| Some((read_number(item, "expires")?, read_text(item, "id")?.to_string())));
        let mut found: Vec<(u64, String)> = found.collect();
        found.sort();
        found.truncate(limit);
        Ok(found.into_iter().map(|(_, id)| id).collect())
    }

    /// Deletes an entry, or only if it has expired. Returns whether there was one. An entry that a
    /// consumer has taken does not count.
    pub(super) async fn remove(&self, id: &str, only_expired: bool) -> Result<bool, Error> {
        let mut request =
            self.client.delete_item().table_name(&self.name).key("id", text(id)).return_values(ReturnValue::AllOld);
        if only_expired {
            request = request
                .condition_expression("#expires <= :now")
                .expression_attribute_names("#expires", "expires")
                .expression_attribute_values(":now", number(now()));
        }
        match request.send().await {
            Ok(response) => {
                let is_counted = |item: Item| only_expired || read_text(&item, "state") != Some("taken");
                Ok(response.attributes.is_some_and(is_counted))
            }
            Err(error) => match error.as_service_error() {
                Some(DeleteItemError::ConditionalCheckFailedException(_)) => Ok(false),
                _ => Err(self.error(error)),
            },
        }
    }

    /// When the entries expire, `None` for settled ones. Keys that DynamoDB did not process are left
    /// out.
    pub(super) async fn pending_expiries(&self, ids: &[ReplyId]) -> Result<HashMap<ReplyId, Option<u64>>, Error> {
        let mut keys = KeysAndAttributes::builder()
            .consistent_read(true)
            .projection_expression("#id, #state, #expires")
            .expression_attribute_names("#id", "id")
            .expression_attribute_names("#state", "state")
            .expression_attribute_names("#expires", "expires");
        for id in ids {
            keys = keys.keys(Item::from([("id".to_string(), text(id.to_string()))]));
        }
        let keys = keys.build().expect("there are keys");
        let response = self.client.batch_get_item().request_items(&self.name, keys).send().await;
        let response = response.map_err(|error| self.error(error))?;
        let now = now();
        let mut expiries: HashMap<ReplyId, Option<u64>> = ids.iter().map(|id| (id.clone(), None)).collect();
        for key in response.unprocessed_keys.unwrap_or_default().into_values().flat_map(|keys| keys.keys) {
            expiries.remove(&ReplyId::from(read_text(&key, "id").unwrap_or_default()));
        }
        for item in response.responses.unwrap_or_default().into_values().flatten() {
            if let (Some(id), Some(ReplyState::Pending)) = (read_text(&item, "id"), state(&item, now)) {
                expiries.insert(id.into(), read_number(&item, "expires"));
            }
        }
        Ok(expiries)
    }
}
