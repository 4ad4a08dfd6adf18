//! A DynamoDB table of replies: every transition a conditional write, and one look for all who wait.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::operation::delete_item::DeleteItemError;
use aws_sdk_dynamodb::operation::put_item::PutItemError;
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, AttributeValue, BillingMode, GlobalSecondaryIndex, KeySchemaElement, KeyType,
    KeysAndAttributes, Projection, ProjectionType, ReturnValue, ReturnValuesOnConditionCheckFailure,
    ScalarAttributeType, TableStatus, TimeToLiveSpecification,
};
use futures_util::future::try_join_all;

use super::format::{Item, entry, millis, natural, now, number, read, state, text};
use crate::backends::sqs::error::AwsError;
use crate::backends::sqs::queue::lock;
use crate::error::Error;
use crate::mailbox::id::{ReplyId, new_uuid};
use crate::reply::store::{ReplyEntry, ReplyState, shelf};
use crate::runtime::cancellation::unless;
use crate::runtime::io_thread;
use crate::runtime::oneshot;

/// The index by expiry, and how many parts it has: one would be as fast as one part of DynamoDB is.
const INDEX: &str = "postbox-expiry";
const EXPIRY_PARTITIONS: u32 = 8;
/// How long between two looks at what is waited for: at first, and after a while without news.
const LOOK: (Duration, Duration) = (Duration::from_millis(25), Duration::from_secs(1));
/// So many entries are looked at in one request.
const MAX_KEYS: usize = 100;
/// Of so many answers, the last ones, it is remembered that nobody knows whether they were taken.
const MAX_UNCONFIRMED: usize = 1_000;

/// A table of replies.
pub(super) struct Table {
    client: Client,
    name: String,
    /// In errors.
    pub(super) shown: String,
    waiting: Mutex<Waiters>,
    /// The tokens of those answers of which nobody knows whether they were taken here.
    unconfirmed: Mutex<VecDeque<(ReplyId, String)>>,
    /// Somebody began to wait.
    waiter_added: tokio::sync::Notify,
}

/// Those who wait for replies.
#[derive(Default)]
struct Waiters {
    waiters: Vec<(ReplyId, oneshot::Sender<bool>)>,
    /// Whether somebody looks for them.
    is_polled: bool,
}

/// What a conditional write came to.
pub(super) enum UpdateOutcome {
    Done,
    /// The condition did not hold, and this is what is there.
    Refused(Option<Item>),
}

impl Table {
    pub(super) fn new(client: Client, name: String, shown: String) -> Arc<Self> {
        let waiter_added = tokio::sync::Notify::new();
        Arc::new(Table { client, name, shown, waiting: Mutex::default(), unconfirmed: Mutex::default(), waiter_added })
    }

    fn public_error(&self, aws_error: AwsError) -> Error {
        if aws_error.is_missing() {
            let reason = "there is no such table; create it (create_table(), or ?create=true)";
            return Error::resolution(&self.shown, reason);
        }
        aws_error.error
    }

    fn error<E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static>(&self, error: SdkError<E>) -> Error {
        self.public_error(AwsError::from_sdk(&self.shown, error))
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

    pub(super) async fn create(&self) -> Result<(), Error> {
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
        match request.send().await.map_err(|error| AwsError::from_sdk(&self.shown, error)) {
            Err(aws_error) if !aws_error.is("ResourceInUseException") => return Err(self.public_error(aws_error)),
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
        match set.map_err(|error| AwsError::from_sdk(&self.shown, error)) {
            // It is so already.
            Err(aws_error) if !aws_error.is("ValidationException") => Err(self.public_error(aws_error)),
            _ => Ok(()),
        }
    }

    /// Puts a pending entry. Whether it is new.
    pub(super) async fn put(&self, id: &ReplyId, ttl: Duration) -> Result<bool, Error> {
        let (now, key, token) = (now(), id.to_string(), new_uuid().to_string());
        let expires = now.saturating_add(millis(ttl));
        let request = self
            .client
            .put_item()
            .table_name(&self.name)
            .item("shelf", number(shelf(&key, EXPIRY_PARTITIONS)))
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
                let PutItemError::ConditionalCheckFailedException(refusal) = service.into_err() else {
                    return Ok(false);
                };
                // Ours, if the answer to the first attempt was lost.
                Ok(refusal.item.is_some_and(|item| read(&item, "token") == Some(&token)))
            }
            Err(error) => Err(self.error(error)),
        }
    }

    /// Changes a pending entry. The token tells our own change from another's if the answer to it was lost.
    pub(super) async fn settle(
        &self,
        id: &ReplyId,
        changes: &str,
        mut values: Vec<(&str, AttributeValue)>,
    ) -> Result<UpdateOutcome, Error> {
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
            Ok(_) => Ok(UpdateOutcome::Done),
            Err(error) => match self.refused(error)? {
                Some(item) if read(&item, "token") == Some(&token) => Ok(UpdateOutcome::Done),
                item => Ok(UpdateOutcome::Refused(item)),
            },
        }
    }

    /// Takes an answer: it is marked as taken, by us, so that a lost answer to that loses nothing, and then removed. If none of the
    /// attempts was answered, the next one has the same mark.
    pub(super) async fn take(self: &Arc<Self>, id: &ReplyId) -> Result<Option<ReplyEntry>, Error> {
        let token = {
            let mut unconfirmed = lock(&self.unconfirmed);
            let known = unconfirmed.iter().position(|(known, _)| known == id).and_then(|at| unconfirmed.remove(at));
            known.map_or_else(|| new_uuid().to_string(), |(_, token)| token)
        };
        let taken = self.take_as(id, &token).await;
        if taken.as_ref().is_err_and(Error::is_transient) {
            let mut unconfirmed = lock(&self.unconfirmed);
            if unconfirmed.len() == MAX_UNCONFIRMED {
                unconfirmed.pop_front();
            }
            unconfirmed.push_back((id.clone(), token));
        }
        taken
    }

    async fn take_as(self: &Arc<Self>, id: &ReplyId, token: &str) -> Result<Option<ReplyEntry>, Error> {
        let now = now();
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
            .expression_attribute_values(":token", text(token))
            .expression_attribute_values(":taken", text("taken"))
            .expression_attribute_values(":resolved", text("resolved"))
            .expression_attribute_values(":now", number(now))
            .return_values(ReturnValue::AllOld)
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
        let mut item = match request.send().await {
            Ok(answer) => answer.attributes.unwrap_or_default(),
            Err(error) => match self.refused(error)? {
                Some(item) if read(&item, "token") == Some(token) => item,
                Some(item) => return Ok(entry(id, item, now)),
                None => return Ok(None),
            },
        };
        item.insert("state".into(), text("resolved"));
        let (table, key) = (Arc::clone(self), id.to_string());
        let _ = io_thread::spawn(async move {
            // If this fails, its time to live removes it.
            let _ = table.client.delete_item().table_name(&table.name).key("id", text(key)).send().await;
        });
        Ok(entry(id, item, now))
    }

    pub(super) async fn get(&self, id: &ReplyId) -> Result<Option<ReplyEntry>, Error> {
        let request =
            self.client.get_item().table_name(&self.name).key("id", text(id.to_string())).consistent_read(true);
        let answer = request.send().await.map_err(|error| self.error(error))?;
        Ok(answer.item.and_then(|item| entry(id, item, now())))
    }

    pub(super) async fn expired(&self, limit: usize) -> Result<Vec<String>, Error> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        let now = now();
        let looks = (0..EXPIRY_PARTITIONS).map(|shelf| {
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
            Ok(answer) => {
                Ok(answer.attributes.is_some_and(|item| only_expired || read(&item, "state") != Some("taken")))
            }
            Err(error) if is_refused(&error) => Ok(false),
            Err(error) => Err(self.error(error)),
        }
    }

    /// Ready when an entry is settled; until then it is looked at together with all that are waited for.
    pub(super) fn settled(self: &Arc<Self>, id: ReplyId) -> oneshot::Receiver<bool> {
        // Nothing is to be undone, but who has left is known by it.
        let (sender, settled) = oneshot::channel(Some(Box::new(drop)));
        let mut waiting = lock(&self.waiting);
        waiting.waiters.push((id, sender));
        let has_task = std::mem::replace(&mut waiting.is_polled, true);
        drop(waiting);
        if has_task {
            self.waiter_added.notify_one();
        } else {
            let task = PollTask { table: Arc::clone(self), is_over: false };
            // Without a thread the task is dropped, and all waits fail.
            let _ = io_thread::spawn(task.run());
        }
        settled
    }

    /// Looks for all who wait, together, as long as anybody does.
    async fn poll_entries(&self, is_over: &mut bool) {
        let mut pause = LOOK.0;
        loop {
            #[cfg(test)]
            assert_ne!(self.name, tests::PANICS, "on purpose");
            let waiter_added = self.waiter_added.notified();
            let soonest = tokio::time::Instant::now() + LOOK.0;
            let ids: Vec<ReplyId> = {
                let mut waiting = lock(&self.waiting);
                waiting.waiters.retain(|(_, sender)| !sender.is_unwanted());
                if waiting.waiters.is_empty() {
                    waiting.is_polled = false;
                    *is_over = true;
                    return;
                }
                let mut ids: Vec<_> = waiting.waiters.iter().map(|(id, _)| id.clone()).collect();
                ids.sort();
                ids.dedup();
                ids
            };
            let mut next: Option<u64> = None;
            let mut is_news = false;
            for part in ids.chunks(MAX_KEYS) {
                let seen = self.poll_states(part).await;
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
                for (_, sender) in waiters {
                    sender.send(seen.as_ref().map(|_| true).map_err(Clone::clone));
                }
                let expiries = seen.iter().flat_map(HashMap::values).filter_map(|expires| *expires);
                next = expiries.chain(next).min();
            }
            pause = if is_news { LOOK.0 } else { pause };
            // Nothing is awaited past its expiry.
            let until_expiry = next.map_or(LOOK.1, |expires| Duration::from_millis(expires.saturating_sub(now())));
            let is_joined = unless(tokio::time::sleep(pause.min(until_expiry)), waiter_added).await.is_some();
            pause = slower(pause);
            if is_joined {
                // Who has just begun to wait is answered soon as a rule; how many do, does not matter.
                tokio::time::sleep_until(soonest).await;
                pause = LOOK.0;
            }
        }
    }

    /// What has become of entries: `None` for those that are settled, otherwise when they expire. What DynamoDB had no time to look
    /// at is not there.
    async fn poll_states(&self, ids: &[ReplyId]) -> Result<HashMap<ReplyId, Option<u64>>, Error> {
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

/// The task that looks for settled replies. If it ends early, by a panic or with its thread, all waits fail.
struct PollTask {
    table: Arc<Table>,
    is_over: bool,
}

impl PollTask {
    async fn run(mut self) {
        self.table.poll_entries(&mut self.is_over).await;
    }
}

impl Drop for PollTask {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let mut waiting = lock(&self.table.waiting);
        waiting.is_polled = false;
        let waiters = std::mem::take(&mut waiting.waiters);
        drop(waiting);
        // A dropped promise is an error.
        drop(waiters);
    }
}

/// How long to wait after a look that brought nothing, by how long before it.
fn slower(pause: Duration) -> Duration {
    (pause * 3 / 2).min(LOOK.1)
}

fn is_refused(error: &SdkError<DeleteItemError>) -> bool {
    error.as_service_error().is_some_and(DeleteItemError::is_conditional_check_failed_exception)
}

#[cfg(test)]
mod tests {
    use aws_sdk_dynamodb::config::{BehaviorVersion, Config};

    use super::*;
    use crate::mailbox::operation::Answer;

    /// The task for a table of this name panics.
    pub(super) const PANICS: &str = "panics-on-purpose";

    #[test]
    fn a_panic_of_the_task_fails_all_waits_and_the_next_wait_starts_another_task() {
        let client = Client::from_conf(Config::builder().behavior_version(BehaviorVersion::latest()).build());
        let table = Table::new(client, PANICS.into(), "dynamodb".into());
        for _ in 0..2 {
            let settled = Answer::from_future(table.settled(ReplyId::new()));
            assert!(matches!(settled.blocking(), Err(Error::Connection { .. })));
        }
    }

    #[test]
    fn looks_become_rare_while_nothing_comes() {
        let mut pauses: Vec<Duration> =
            std::iter::successors(Some(LOOK.0), |pause| Some(slower(*pause))).take(20).collect();
        assert_eq!((pauses[0], pauses[19]), (Duration::from_millis(25), Duration::from_secs(1)));
        assert!(pauses.is_sorted() && pauses.iter().sum::<Duration>() < Duration::from_secs(15));
        pauses.dedup();
        assert!(pauses.len() > 5, "not all at once: {pauses:?}");
    }
}
