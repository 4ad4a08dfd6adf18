//! Batch requests for concurrent operations, and the results of their entries.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use postbox::backend::Backend;
use postbox::backend::{MailboxSettings, Receipt, Visibility};
use postbox::*;
use postbox_test_servers::{Fate, HttpProxy};
use serde_json::{Value, json};

use super::{HOURS, TestQueue, answer, begin, end, json, moto, shown, take_all, until};

/// Holds the first request of an operation, and records the bodies of all its requests.
fn hold_first(proxy: &HttpProxy, operation: &'static str) -> Arc<Mutex<Vec<Value>>> {
    let asked = Arc::new(Mutex::new(Vec::new()));
    proxy.on({
        let asked = Arc::clone(&asked);
        move |request| {
            if !request.is(operation) {
                return Fate::Pass;
            }
            let mut asked = asked.lock().unwrap();
            asked.push(json(request));
            if asked.len() == 1 { Fate::Stall } else { Fate::Pass }
        }
    });
    asked
}

fn entries(requests: &Mutex<Vec<Value>>) -> Vec<usize> {
    requests.lock().unwrap().iter().map(|request| request["Entries"].as_array().map_or(1, Vec::len)).collect()
}

#[test]
fn a_single_operation_is_one_request() {
    let queue = TestQueue::moto();
    let jobs = queue.jobs();
    for _ in 0..3 {
        queue.proxy.reset_counts();
        jobs.send(&1).blocking().unwrap();
        let message = jobs.receive().blocking().unwrap().remove(0);
        message.nack().blocking().unwrap();
        let message = jobs.receive().wait_time(super::LONG).blocking().unwrap().remove(0);
        message.acknowledge().blocking().unwrap();
        let requests = ["SendMessage", "ReceiveMessage", "ChangeMessageVisibility", "ReceiveMessage", "DeleteMessage"];
        assert_eq!(queue.proxy.requests(), requests);
    }
}

#[test]
fn operations_during_a_request_are_sent_in_full_batches() {
    let queue = TestQueue::moto();
    let jobs = queue.jobs();
    let asked = hold_first(&queue.proxy, "SendMessage");
    let mut sends = vec![begin(jobs.send(&0))];
    queue.proxy.wait_until_held(1);
    sends.extend((1..=64).map(|number| begin(jobs.send(&number))));
    until("all requests that are full", || entries(&asked).len() == 7);
    assert_eq!(entries(&asked), [1, 10, 10, 10, 10, 10, 10]);
    queue.proxy.clear_faults();
    end(sends).into_iter().for_each(|sent| drop(sent.unwrap()));
    assert_eq!(queue.proxy.count("SendMessage"), 8, "the other four together");

    let messages = take_all(&jobs);
    assert_eq!(messages.len(), 65);
    let asked = hold_first(&queue.proxy, "DeleteMessage");
    let mut done = vec![begin(messages[0].acknowledge())];
    queue.proxy.wait_until_held(1);
    done.extend(messages[1..].iter().map(|message| begin(message.acknowledge())));
    until("all requests that are full", || entries(&asked).len() == 7);
    assert_eq!(entries(&asked), [1, 10, 10, 10, 10, 10, 10]);
    queue.proxy.clear_faults();
    end(done).into_iter().for_each(|done| done.unwrap());
    assert_eq!(queue.proxy.count("DeleteMessage"), 8);
    assert_eq!(queue.others().approximate_count().blocking().unwrap(), 0);
}

#[test]
fn receives_without_a_wait_share_requests() {
    let queue = TestQueue::moto();
    let jobs = queue.jobs();
    jobs.send_batch(&(0..10).collect::<Vec<_>>()).blocking().unwrap();
    jobs.send_batch(&(10..20).collect::<Vec<_>>()).blocking().unwrap();
    let asked = hold_first(&queue.proxy, "ReceiveMessage");
    let receive = |visibility: u64| begin(jobs.receive().visibility_timeout(Duration::from_secs(visibility)));
    let mut receives = vec![receive(100)];
    queue.proxy.wait_until_held(1);
    receives.extend((0..12).map(|_| receive(100)));
    receives.extend((0..4).map(|_| receive(200)));
    // The last operations may share a request.
    until("the others", || asked.lock().unwrap().len() == 3);
    queue.proxy.clear_faults();
    let mut bodies: Vec<u64> = end(receives).into_iter().map(|got| got.unwrap()[0].body).collect();
    bodies.sort_unstable();
    bodies.dedup();
    assert_eq!(bodies.len(), 17, "each has one, and none is another's");
    let asked = asked.lock().unwrap();
    let mut asked: Vec<_> = asked
        .iter()
        .map(|asked| [&asked["VisibilityTimeout"], &asked["MaxNumberOfMessages"]].map(Value::as_u64))
        .collect();
    asked[1..].sort_unstable();
    assert_eq!(asked, [[Some(100), Some(1)], [Some(100), Some(2)], [Some(100), Some(10)]]);
    assert_eq!(queue.proxy.count("ReceiveMessage"), 4, "and the four of the other kind");
}

#[test]
fn without_batching_each_operation_is_a_separate_request() {
    for suffix in ["", ".fifo"] {
        let queue = TestQueue::new(moto(), suffix);
        let jobs = queue.mailbox(queue.builder().create_missing(true).gather(false));
        jobs.create().blocking().unwrap();
        hold_first(&queue.proxy, "SendMessage");
        let mut sends = vec![begin(jobs.send(&0))];
        queue.proxy.wait_until_held(1);
        sends.extend((1..=12).map(|number| begin(jobs.send(&number))));
        let batch = begin(jobs.send_batch(&[13, 14, 15]));
        queue.proxy.clear_faults();
        end(sends).into_iter().for_each(|sent| drop(sent.unwrap()));
        end([batch]).remove(0).unwrap().into_iter().for_each(|sent| drop(sent.unwrap()));
        assert_eq!(queue.proxy.count("SendMessage"), 14, "{suffix}: a batch of the caller's stays one");
        let messages = take_all(&queue.others());
        assert_eq!(messages.len(), 16);
    }
}

#[test]
fn requests_do_not_exceed_the_size_limit_of_sqs() {
    let queue = TestQueue::moto();
    let connection = Connection::new(queue.builder().create_missing(true).build());
    let texts: Mailbox<String> = connection.mailbox(&queue.name).unwrap();
    texts.create().blocking().unwrap();
    let sizes = Arc::new(Mutex::new(Vec::new()));
    queue.proxy.on({
        let sizes = Arc::clone(&sizes);
        move |request| {
            let value = json(request);
            let size = |entry: &Value| {
                let attributes = entry["MessageAttributes"].as_object().into_iter().flatten();
                let attributes = attributes.map(|(name, value)| {
                    name.len() + "String".len() + value["StringValue"].as_str().map_or(0, str::len)
                });
                entry["MessageBody"].as_str().map_or(0, str::len) + attributes.sum::<usize>()
            };
            if request.is("SendMessage") {
                let entries = value["Entries"].as_array().cloned().unwrap_or_else(|| vec![value]);
                sizes.lock().unwrap().push((entries.len(), entries.iter().map(size).sum::<usize>()));
            }
            Fate::Pass
        }
    });
    let checked = |many: usize| {
        let sizes = std::mem::take(&mut *sizes.lock().unwrap());
        assert!(sizes.iter().all(|(_, bytes)| *bytes <= 1 << 20), "{sizes:?}");
        assert_eq!(sizes.iter().map(|(entries, _)| entries).sum::<usize>(), many);
        sizes.len()
    };
    let text = "x".repeat(200 << 10);
    let sent = texts.send_batch(&vec![text.clone(); 10]).blocking().unwrap();
    sent.into_iter().for_each(|sent| drop(sent.unwrap()));
    assert_eq!(checked(10), 2, "five of 200 KiB fit");
    // Concurrent sends, and some whose attributes are large.
    let sends: Vec<_> = (0..12).map(|_| begin(texts.send(&text))).collect();
    let large =
        |_| (0..8).fold(texts.send(&String::new()), |send, at| send.attribute(format!("a{at}"), "y".repeat(20 << 10)));
    let sends: Vec<_> = sends.into_iter().chain((0..12).map(|at| begin(large(at)))).collect();
    end(sends).into_iter().for_each(|sent| drop(sent.unwrap()));
    checked(24);
    assert_eq!(texts.approximate_count().blocking().unwrap(), 34);
}

/// Answers in place of the server. `fails` has the number of failures and the error of each entry.
struct Failing {
    left: HashMap<String, usize>,
    failure: fn(&str) -> Option<Value>,
    /// The number of requests for each entry.
    asked: Arc<Mutex<BTreeMap<String, usize>>>,
}

impl Failing {
    /// Answers a request. Entries are identified by the body of a message or the receipt of a delivery.
    fn reply(&mut self, request: &Value) -> Fate {
        let (mut successful, mut failed) = (Vec::new(), Vec::new());
        for entry in request["Entries"].as_array().unwrap() {
            let id = entry["Id"].as_str().unwrap();
            let key = entry["MessageBody"].as_str().or(entry["ReceiptHandle"].as_str()).unwrap().to_string();
            *self.asked.lock().unwrap().entry(key.clone()).or_default() += 1;
            match self.left.get_mut(&key).filter(|left| **left > 0) {
                None => successful.push(json!({ "Id": id, "MessageId": "m", "MD5OfMessageBody": "x" })),
                Some(left) => {
                    *left -= 1;
                    failed.extend((self.failure)(id));
                }
            }
        }
        // SQS omits empty lists.
        let mut reply = serde_json::Map::new();
        for (name, list) in [("Successful", successful), ("Failed", failed)] {
            if !list.is_empty() {
                reply.insert(name.into(), list.into());
            }
        }
        answer(200, Value::Object(reply))
    }
}

/// Sends a batch of five, in which the second and fourth entry fail `times` times. Returns the results and the number of
/// requests for each entry.
fn batch_of_five(
    verb: &'static str,
    times: usize,
    failure: fn(&str) -> Option<Value>,
) -> (Vec<Result<(), Error>>, Vec<usize>) {
    let queue = TestQueue::moto();
    let backend = queue.builder().create_missing(true).build();
    let jobs: Mailbox<u64, u64> = Connection::new(backend.clone()).mailbox(&queue.name).unwrap();
    jobs.create().blocking().unwrap();
    jobs.send_batch(&[1, 2, 3, 4, 5]).blocking().unwrap();
    let messages = jobs.receive().max_messages(5).visibility_timeout(HOURS).blocking().unwrap();
    let receipts: Vec<_> =
        messages.iter().map(|message| Receipt::new(message.id.clone(), message.receipt_handle.clone())).collect();
    let keys: Vec<String> = match verb {
        "SendMessageBatch" => (1..=5).map(|number| number.to_string()).collect(),
        _ => receipts.iter().map(|receipt| receipt.handle.to_string()).collect(),
    };
    let asked = Arc::new(Mutex::new(BTreeMap::new()));
    let left = HashMap::from([(keys[1].clone(), times), (keys[3].clone(), times)]);
    let mut failing = Failing { left, failure, asked: Arc::clone(&asked) };
    queue.proxy.on(move |request| if request.operation == verb { failing.reply(&json(request)) } else { Fate::Pass });
    let bytes = backend.mailbox(&MailboxName::new(&queue.name).unwrap(), &MailboxSettings::default()).unwrap();
    let results = match verb {
        "SendMessageBatch" => {
            let sent = jobs.send_batch(&[1, 2, 3, 4, 5]).blocking().unwrap();
            sent.into_iter().map(|sent| sent.map(drop)).collect()
        }
        "DeleteMessageBatch" => jobs.acknowledge_batch(&messages).blocking().unwrap(),
        _ => {
            let changes = receipts.into_iter().map(|receipt| (receipt, Visibility::Return(Duration::ZERO)));
            bytes.set_visibility(changes.collect()).blocking()
        }
    };
    let asked = asked.lock().unwrap();
    (results, keys.iter().map(|key| asked[key]).collect())
}

const BATCHES: [&str; 3] = ["SendMessageBatch", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"];

fn service_error(id: &str) -> Option<Value> {
    Some(json!({ "Id": id, "Code": "InternalError", "SenderFault": false, "Message": "try again" }))
}

#[test]
fn an_entry_that_sqs_refuses_has_its_own_error_and_is_not_repeated() {
    for verb in BATCHES {
        let (results, asked) = batch_of_five(verb, usize::MAX, |id| {
            Some(json!({ "Id": id, "Code": "InvalidMessageContents", "SenderFault": true, "Message": "not so" }))
        });
        assert_eq!(results.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true, false, true], "{verb}");
        assert_eq!(asked, [1, 1, 1, 1, 1], "{verb}");
        for result in results {
            let Err(error) = result else { continue };
            assert!(!error.is_transient() && shown(&error).contains("InvalidMessageContents"), "{verb}: {error:?}");
        }
    }
}

#[test]
fn an_entry_that_sqs_fails_to_process_is_repeated_alone() {
    for verb in BATCHES {
        for failure in [service_error as fn(&str) -> Option<Value>, |_| None] {
            let (results, asked) = batch_of_five(verb, 2, failure);
            assert!(results.iter().all(Result::is_ok), "{verb}: {results:?}");
            assert_eq!(asked, [1, 3, 1, 3, 1], "{verb}");
        }
    }
}

#[test]
fn an_entry_that_always_fails_has_its_own_transient_error() {
    for verb in BATCHES {
        for failure in [service_error as fn(&str) -> Option<Value>, |_| None] {
            let (results, asked) = batch_of_five(verb, usize::MAX, failure);
            let ok: Vec<_> = results.iter().map(Result::is_ok).collect();
            assert_eq!((ok, asked), (vec![true, false, true, false, true], vec![1, 3, 1, 3, 1]), "{verb}");
            for result in results {
                let Err(error) = result else { continue };
                super::assert_passing(&error, "jobs-");
            }
        }
    }
}

/// If a server refuses a whole request because of one entry, the other entries succeed.
#[test]
fn a_refused_batch_is_split() {
    for suffix in ["", ".fifo"] {
        let queue = TestQueue::new(moto(), suffix);
        let jobs = queue.jobs();
        queue.proxy.on(|request| {
            let is_bad = |entry: &Value| entry["MessageBody"] == "5";
            let request = json(request);
            match request["Entries"].as_array().map_or_else(|| is_bad(&request), |all| all.iter().any(is_bad)) {
                true => super::refusal("InvalidParameterValue", "InvalidParameterValue", "not five"),
                false => Fate::Pass,
            }
        });
        queue.proxy.stall(true);
        let mut sends = vec![begin(jobs.send(&0))];
        queue.proxy.wait_until_held(1);
        sends.extend((1..=8).map(|number| begin(jobs.send(&number))));
        queue.proxy.stall(false);
        let results = end(sends);
        assert_eq!(queue.proxy.count("SendMessage"), 1 + 1 + 8);
        let refused: Vec<_> = (0..).zip(&results).filter(|(_, result)| result.is_err()).map(|(at, _)| at).collect();
        assert_eq!(refused, [5], "{results:?}");
        assert!(shown(results[5].as_ref().unwrap_err()).contains("not five"));
        let mut bodies: Vec<_> = take_all(&queue.others()).iter().map(|message| message.body).collect();
        bodies.sort_unstable();
        assert_eq!(bodies, [0, 1, 2, 3, 4, 6, 7, 8]);
    }
}

/// SQS reports throttling as a fault of the sender. It is a transient error.
#[test]
fn a_throttled_entry_is_repeated() {
    let (results, asked) = batch_of_five("SendMessageBatch", 1, |id| {
        Some(json!({ "Id": id, "Code": "RequestThrottled", "SenderFault": true, "Message": "slow down" }))
    });
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    assert_eq!(asked, [1, 2, 1, 2, 1]);
}
