//! Replies in DynamoDB, with a proxy that causes faults.

use std::sync::Arc;
use std::time::{Duration, Instant};

use postbox::aws::DynamoDbReplyStore;
use postbox::aws::dynamodb::Client;
use postbox::reply::ReplyStore;
use postbox::reply::{ReplyState, ReplyValue, Resolved};
use postbox::*;
use postbox_test_servers::{Fate, REGION};
use serde_json::json;

use super::{
    LONG, TestQueue, answer, assert_passing, begin, config, dynamodb, end, json, ministack, moto, shown, soon,
};

const HOUR: Duration = Duration::from_secs(3_600);

/// A table through the proxy, and the same table without the proxy.
struct Table {
    queue: TestQueue,
    store: DynamoDbReplyStore,
    others: DynamoDbReplyStore,
}

fn store(endpoint: &str, table: &str) -> DynamoDbReplyStore {
    let config = postbox::aws::dynamodb::config::Builder::from(&config(endpoint)).retry_config(soon());
    DynamoDbReplyStore::from_client(Client::from_conf(config.build()), table)
}

impl Table {
    fn new(server: String) -> Self {
        let queue = TestQueue::new(server, "");
        let (store, others) = (store(&queue.proxy.endpoint(), &queue.name), store(&queue.server, &queue.name));
        others.create_table().blocking().unwrap();
        Table { queue, store, others }
    }

    fn pending(&self) -> ReplyId {
        let id = ReplyId::new();
        assert!(self.others.create(id.clone(), HOUR).blocking().unwrap());
        id
    }

    fn resolved(&self) -> ReplyId {
        let id = self.pending();
        assert_eq!(self.others.resolve(id.clone(), value()).blocking().unwrap(), Resolved::Stored);
        id
    }
}

fn value() -> ReplyValue {
    ReplyValue::new("42".into(), ContentType::Json)
}

fn state(store: &DynamoDbReplyStore, id: &ReplyId) -> Option<ReplyState> {
    store.get(id.clone()).blocking().unwrap().map(|entry| entry.state)
}

/// Asserts that each transition has one effect if its first request has this fate.
fn assert_one_effect(table: &Table, fate: fn() -> Fate) {
    let id = ReplyId::new();
    table.queue.first(1, "PutItem", fate);
    assert!(table.store.create(id.clone(), HOUR).blocking().unwrap());
    assert!(!table.store.create(id.clone(), HOUR).blocking().unwrap());
    table.queue.first(1, "UpdateItem", fate);
    assert_eq!(table.store.resolve(id.clone(), value()).blocking().unwrap(), Resolved::Stored);
    let again = table.store.resolve(id.clone(), value()).blocking().unwrap();
    assert_eq!(again, Resolved::Refused(Some(ReplyState::Resolved)));
    table.queue.first(1, "UpdateItem", fate);
    let taken = table.store.consume(id.clone()).blocking().unwrap().expect("the answer");
    assert_eq!((taken.value, taken.state), (Some(value()), ReplyState::Resolved));
    assert_eq!(table.store.consume(id.clone()).blocking().unwrap(), None);
    let id = table.pending();
    table.queue.first(1, "UpdateItem", fate);
    assert!(table.store.cancel(id.clone()).blocking().unwrap());
    assert!(!table.store.cancel(id.clone()).blocking().unwrap());
    assert_eq!(state(&table.others, &id), Some(ReplyState::Cancelled));
    let id = table.resolved();
    for (operation, look) in [("GetItem", false), ("BatchGetItem", true)] {
        table.queue.first(1, operation, fate);
        match look {
            false => assert_eq!(state(&table.store, &id), Some(ReplyState::Resolved)),
            true => assert!(table.store.settled(id.clone(), LONG).blocking().unwrap()),
        }
    }
    table.queue.first(1, "Query", fate);
    assert!(table.store.scan_expired(10).blocking().unwrap().is_empty());
    table.queue.proxy.clear_faults();
}

#[test]
fn a_lost_reply_of_any_transition_has_one_effect() {
    for server in [dynamodb(), moto(), ministack()] {
        assert_one_effect(&Table::new(server), || Fate::DropReply);
    }
}

#[test]
fn transient_failures_and_throttling_are_retried() {
    let table = Table::new(dynamodb());
    for fate in [Fate::table_throttled, Fate::internal, Fate::unavailable, || Fate::DropRequest] {
        assert_one_effect(&table, fate);
    }
}

#[test]
fn retries_end_with_a_transient_error_that_names_the_table() {
    let table = Table::new(dynamodb());
    let id = table.resolved();
    let named = format!("dynamodb://{REGION}/{}", table.queue.name);
    for fate in [Fate::table_throttled, Fate::internal, || Fate::DropRequest] {
        table.queue.proxy.on(move |_| fate());
        for error in [
            table.store.create(ReplyId::new(), HOUR).blocking().map(drop).unwrap_err(),
            table.store.resolve(id.clone(), value()).blocking().map(drop).unwrap_err(),
            table.store.cancel(id.clone()).blocking().map(drop).unwrap_err(),
            table.store.get(id.clone()).blocking().map(drop).unwrap_err(),
            table.store.consume(id.clone()).blocking().map(drop).unwrap_err(),
            table.store.delete(id.clone()).blocking().map(drop).unwrap_err(),
            table.store.scan_expired(10).blocking().map(drop).unwrap_err(),
            table.store.cleanup_expired(10).blocking().map(drop).unwrap_err(),
            table.store.settled(id.clone(), Duration::ZERO).blocking().map(drop).unwrap_err(),
            table.store.settled(id.clone(), LONG).blocking().map(drop).unwrap_err(),
        ] {
            assert_passing(&error, &named);
        }
        table.queue.proxy.clear_faults();
        assert_eq!(state(&table.store, &id), Some(ReplyState::Resolved));
    }
    assert!(table.store.consume(id).blocking().unwrap().is_some());
}

/// The reply was consumed and the response lost. The second request returns it.
#[test]
fn a_reply_is_not_lost_if_all_responses_to_its_consumption_are() {
    for server in [dynamodb(), moto(), ministack()] {
        let table = Table::new(server);
        let id = table.resolved();
        table.queue.first(usize::MAX, "UpdateItem", || Fate::DropReply);
        assert!(table.store.consume(id.clone()).blocking().unwrap_err().is_transient());
        assert_eq!(state(&table.others, &id), None, "it has been taken");
        table.queue.proxy.clear_faults();
        let taken = table.store.consume(id.clone()).blocking().unwrap().expect("the answer");
        assert_eq!(taken.value, Some(value()));
        assert_eq!(table.store.consume(id.clone()).blocking().unwrap(), None, "once");
        assert_eq!(table.others.consume(id).blocking().unwrap(), None);
    }
}

#[test]
fn entries_are_removed_by_ttl_and_expired_ones_are_found_by_the_index() {
    for server in [dynamodb(), moto(), ministack()] {
        let table = Table::new(server);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let client = Client::new(&config(&table.queue.server));
        let shown = runtime.block_on(client.describe_time_to_live().table_name(&table.queue.name).send()).unwrap();
        let shown = shown.time_to_live_description.unwrap();
        assert_eq!(shown.attribute_name.as_deref(), Some("ttl"));
        assert!(matches!(shown.time_to_live_status.unwrap().as_str(), "ENABLED" | "ENABLING"));

        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        let written = Arc::new(std::sync::Mutex::new(Vec::new()));
        table.queue.proxy.on({
            let written = Arc::clone(&written);
            move |request| {
                if request.operation == "PutItem" {
                    written.lock().unwrap().push(json(request)["Item"]["ttl"]["N"].as_str().unwrap().to_string());
                }
                Fate::Pass
            }
        });
        assert!(table.store.create(ReplyId::new(), HOUR).blocking().unwrap());
        let ttl: u64 = written.lock().unwrap().remove(0).parse().unwrap();
        assert!((now + 3_600..=now + 3_660).contains(&ttl), "{ttl}, and it is {now}");

        table.queue.proxy.reset_counts();
        assert!(table.store.scan_expired(10).blocking().unwrap().is_empty());
        assert_eq!(table.store.cleanup_expired(10).blocking().unwrap(), 0);
        assert!(table.queue.proxy.requests().iter().all(|operation| operation == "Query"));
    }
}

#[test]
fn an_invalid_reply_is_an_error_and_no_panic() {
    let table = Table::new(dynamodb());
    let id = table.resolved();
    for nonsense in ["", "[1]", "<html/>", "{\"Item\":7}", "{\"Item\":{\"id\":{\"Q\":\"1\"}},\"Responses\":[]}"] {
        table.queue.proxy.on(move |_| answer(200, nonsense));
        let short = Duration::from_millis(50);
        let results = [
            table.store.create(ReplyId::new(), HOUR).blocking().map(drop),
            table.store.get(id.clone()).blocking().map(drop),
            table.store.scan_expired(10).blocking().map(drop),
            table.store.settled(id.clone(), short).blocking().map(drop),
        ];
        results.into_iter().filter_map(Result::err).for_each(|error| drop(shown(&error)));
    }
    table.queue.proxy.clear_faults();
    assert_eq!(state(&table.store, &id), Some(ReplyState::Resolved));
}

#[test]
fn thousands_of_waits_share_requests() {
    let table = Table::new(dynamodb());
    let ids: Vec<_> = (0..100).map(|_| table.pending()).collect();
    let start = Instant::now();
    // There is at most one round of requests every 25 ms, for any number of new waiters. One request reads a hundred replies.
    let assert_few = || {
        let looks = table.queue.proxy.count("BatchGetItem");
        let rounds = start.elapsed().as_millis() as usize / 25 + 1;
        assert!(looks <= rounds && table.queue.proxy.open() <= 4, "{looks} in {rounds} rounds");
    };
    let mut waiting: Vec<_> = Vec::new();
    for part in ids.chunks(1) {
        waiting.extend(part.iter().cycle().take(40).map(|id| begin(table.store.settled(id.clone(), LONG))));
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_few();
    for id in &ids {
        table.others.resolve(id.clone(), value()).blocking().unwrap();
    }
    assert!(end(waiting).into_iter().all(|settled| settled.unwrap()));
    assert_few();
}

#[test]
fn a_wait_repeats_unprocessed_keys() {
    let table = Table::new(dynamodb());
    let id = table.pending();
    table.queue.proxy.on(|request| {
        let asked = json(request);
        match request.operation.as_str() {
            "BatchGetItem" => answer(200, json!({ "Responses": {}, "UnprocessedKeys": asked["RequestItems"] })),
            _ => Fate::Pass,
        }
    });
    let waiting = begin(table.store.settled(id.clone(), LONG));
    table.queue.proxy.wait_for("BatchGetItem", 4);
    table.others.resolve(id, value()).blocking().unwrap();
    table.queue.proxy.clear_faults();
    assert!(end([waiting]).remove(0).unwrap());
}

#[test]
fn no_requests_are_sent_without_waiters() {
    let table = Table::new(dynamodb());
    let id = table.pending();
    for round in 0..2 {
        let waiting = begin(table.store.settled(id.clone(), LONG));
        table.queue.proxy.wait_for("BatchGetItem", 3);
        match round {
            0 => drop(waiting),
            _ => {
                table.others.resolve(id.clone(), value()).blocking().unwrap();
                assert!(end([waiting]).remove(0).unwrap());
            }
        }
        // One more request may have been under way. Another one would come within a second.
        std::thread::sleep(Duration::from_millis(100));
        table.queue.proxy.reset_counts();
        std::thread::sleep(Duration::from_millis(1_300));
        assert_eq!(table.queue.proxy.count("BatchGetItem"), 0);
    }
}

#[test]
fn a_missing_table_is_named_and_can_be_created() {
    let queue = TestQueue::new(dynamodb(), "");
    let store = store(&queue.proxy.endpoint(), &queue.name);
    for error in [
        store.create(ReplyId::new(), HOUR).blocking().map(drop).unwrap_err(),
        store.resolve(ReplyId::new(), value()).blocking().map(drop).unwrap_err(),
        store.get(ReplyId::new()).blocking().map(drop).unwrap_err(),
        store.settled(ReplyId::new(), LONG).blocking().map(drop).unwrap_err(),
    ] {
        let text = shown(&error);
        assert!(matches!(error, Error::Resolution { .. }) && text.contains(&queue.name), "{error:?}");
        assert!(text.contains("create_table()"), "{text}");
    }
    // The table is created also if responses to the creation are lost.
    queue.first(1, "CreateTable", || Fate::DropReply);
    store.create_table().blocking().unwrap();
    queue.first(1, "UpdateTimeToLive", || Fate::DropReply);
    store.create_table().blocking().unwrap();
    assert!(store.create(ReplyId::new(), HOUR).blocking().unwrap());
}

#[test]
fn an_answer_that_is_too_large_is_an_error_and_can_be_replaced() {
    let table = Table::new(dynamodb());
    // The queue is on another server than the replies.
    let queue = TestQueue::moto();
    let backend = queue.builder().create_missing(true).replies(Arc::new(table.store.clone())).build();
    let jobs: Mailbox<u64, String> = Connection::new(backend).mailbox(&queue.name).unwrap();
    let reply = jobs.send_expecting_reply(&1).blocking().unwrap();
    let message = jobs.receive().blocking().unwrap().remove(0);
    let error = message.reply(&"x".repeat(400 << 10)).blocking().unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::InvalidParameter { .. }) && text.contains("399360"), "{text}");
    let largest = "x".repeat((390 << 10) - 2);
    message.reply(&largest).blocking().unwrap();
    assert_eq!(reply.wait().timeout(LONG).blocking().unwrap(), largest);
}

#[test]
fn a_request_is_answered_over_a_network_that_loses_every_first_reply() {
    for suffix in ["", ".fifo"] {
        let table = Table::new(dynamodb());
        let queue = TestQueue::new(moto(), suffix);
        let backend = queue.builder().create_missing(true).replies(Arc::new(table.store.clone())).build();
        let jobs: Mailbox<u64, u64> = Connection::new(backend).mailbox(&queue.name).unwrap();
        jobs.create().blocking().unwrap();
        for queue in [&table.queue, &queue] {
            let mut seen = Vec::new();
            queue.proxy.on(move |request| {
                // A lost reply to a receive leases a message that no receiver gets, so leases are short.
                let is_first = request.operation != "ReceiveMessage" && !seen.contains(&request.operation);
                seen.push(request.operation.clone());
                if is_first { Fate::DropReply } else { Fate::Pass }
            });
        }
        let reply = jobs.send_expecting_reply(&20).blocking().unwrap();
        let message = jobs.receive().wait_time(LONG).blocking().unwrap().remove(0);
        message.reply(&(message.body + 1)).blocking().unwrap();
        assert_eq!(reply.wait().timeout(LONG).blocking().unwrap(), 21);
        // Another program can read the reply by its id until it is consumed.
        let again: Reply<u64> = jobs.reply(reply.id().clone());
        assert!(matches!(again.wait().timeout(LONG).blocking(), Err(Error::ReplyExpired { .. })));
    }
}
