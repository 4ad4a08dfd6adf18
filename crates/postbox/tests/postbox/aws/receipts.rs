//! Receipts are valid once and until their deadline, also on servers that would accept them later.

use std::sync::Arc;
use std::time::Duration;

use postbox::reply::MemoryReplyStore;
use postbox::*;
use postbox_test_servers::Fate;
use serde_json::json;

use super::{HOURS, LONG, TestQueue, answer, begin, end, ministack, moto, refusal};

fn assert_expired<T: std::fmt::Debug>(result: Result<T, Error>) {
    assert!(matches!(result, Err(Error::ReceiptHandleExpired { .. })), "{result:?}");
}

/// Waits, because the server has its own clock. SQS has a resolution of one second.
fn pass(seconds: u64) {
    std::thread::sleep(Duration::from_millis(seconds * 1_000 + 100));
}

#[test]
fn a_settle_after_the_deadline_sends_no_request() {
    let queue = TestQueue::moto();
    let jobs = queue.mailbox(queue.builder().create_missing(true).replies(Arc::new(MemoryReplyStore::new())));
    jobs.send_batch(&[1, 2, 3, 4]).blocking().unwrap();
    let reply = jobs.send_expecting_reply(&5).blocking().unwrap();
    let mut messages = jobs.receive().max_messages(5).visibility_timeout(Duration::from_secs(1)).blocking().unwrap();
    messages.sort_by_key(|message| message.body);
    pass(1);
    queue.proxy.reset_counts();
    assert_expired(messages[0].acknowledge().blocking());
    assert_expired(messages[1].nack().blocking());
    assert_expired(messages[2].extend_visibility(LONG).blocking());
    assert_expired(messages[3].dead_letter("late").blocking());
    assert_expired(messages[4].reply(&50).blocking());
    assert_eq!(queue.proxy.requests(), [""; 0]);
    assert!(!reply.is_ready().blocking().unwrap());
    assert_eq!(super::take_all(&queue.others()).len(), 5, "all are there");
}

/// One of the servers would accept the old receipt for the new lease.
#[test]
fn a_receipt_of_an_earlier_delivery_is_refused_on_either_server() {
    for server in [moto(), ministack()] {
        for suffix in ["", ".fifo"] {
            let queue = TestQueue::new(server.clone(), suffix);
            let jobs = queue.jobs();
            jobs.send(&1).blocking().unwrap();
            let first = jobs.receive().visibility_timeout(Duration::from_secs(1)).blocking().unwrap().remove(0);
            let second = jobs.receive().visibility_timeout(HOURS).wait_time(LONG).blocking().unwrap().remove(0);
            assert_expired(first.acknowledge().blocking());
            assert_expired(first.nack().blocking());
            assert_eq!(second.delivery_count, 2);
            second.acknowledge().blocking().unwrap();
        }
    }
}

/// Requests are repeated only while the lease holds. A late success does not restore the lease.
#[test]
fn a_settle_whose_response_is_late_has_no_lease() {
    type Act = fn(&Message<u64, u64>) -> Result<(), Error>;
    let acts: [(&str, Act); 2] = [
        ("ChangeMessageVisibility", |message| message.extend_visibility(HOURS / 2).blocking()),
        ("DeleteMessage", |message| message.acknowledge().blocking()),
    ];
    for (operation, act) in acts {
        let queue = TestQueue::moto();
        let jobs = queue.jobs();
        jobs.send(&1).blocking().unwrap();
        let message = jobs.receive().visibility_timeout(Duration::from_secs(2)).blocking().unwrap().remove(0);
        queue.first(usize::MAX, operation, || Fate::Stall);
        assert_expired(act(&message));
        let next = queue.others().receive().visibility_timeout(HOURS).wait_time(LONG).blocking().unwrap().remove(0);
        queue.proxy.clear_faults();
        assert_expired(message.acknowledge().blocking());
        next.acknowledge().blocking().unwrap();
    }
}

/// If operations share a late request, only those fail whose leases have ended.
#[test]
fn a_late_response_is_requested_again_for_leases_that_still_hold() {
    let queue = TestQueue::moto();
    let jobs = queue.jobs();
    jobs.send_batch(&[1, 2]).blocking().unwrap();
    let short = jobs.receive().visibility_timeout(Duration::from_secs(2)).blocking().unwrap().remove(0);
    let long = jobs.receive().visibility_timeout(HOURS).blocking().unwrap().remove(0);
    queue.first(1, "DeleteMessageBatch", || Fate::Stall);
    let mut results = jobs.acknowledge_batch(&[short, long]).blocking().unwrap();
    results.pop().unwrap().unwrap();
    assert_expired(results.pop().unwrap());
}

/// An operation that was done in time succeeds, also if others of its request take longer.
#[test]
fn a_settle_that_was_done_in_time_does_not_wait_for_others() {
    let queue = TestQueue::moto();
    let jobs = queue.jobs();
    jobs.send_batch(&[1, 2]).blocking().unwrap();
    let short = jobs.receive().visibility_timeout(Duration::from_secs(2)).blocking().unwrap().remove(0);
    let long = jobs.receive().visibility_timeout(HOURS).blocking().unwrap().remove(0);
    queue.proxy.on(|request| match request.operation.as_str() {
        "DeleteMessageBatch" => answer(
            200,
            json!({
                "Successful": [{ "Id": "0" }],
                "Failed": [{ "Id": "1", "Code": "InternalError", "SenderFault": false }],
            }),
        ),
        "DeleteMessage" => Fate::Stall,
        _ => Fate::Pass,
    });
    let batch = begin(jobs.acknowledge_batch(&[short, long]));
    queue.proxy.wait_until_held(1);
    pass(2);
    queue.proxy.clear_faults();
    end([batch]).remove(0).unwrap().into_iter().for_each(|done| done.unwrap());
}

#[test]
fn a_lease_is_limited_to_the_total_that_sqs_allows() {
    let queue = TestQueue::moto();
    let jobs = queue.jobs();
    jobs.send(&1).blocking().unwrap();
    let message = jobs.receive().visibility_timeout(Duration::from_secs(100)).blocking().unwrap().remove(0);
    pass(1);
    for error in [message.extend_visibility(HOURS).blocking(), message.nack().visibility_timeout(HOURS).blocking()] {
        let text = super::shown(&error.unwrap_err());
        assert!(text.contains("visibility_timeout") && text.contains("at most 43200 s after the receive"), "{text}");
    }
    message.extend_visibility(HOURS - Duration::from_secs(60)).blocking().unwrap();
    message.acknowledge().blocking().unwrap();
}

#[test]
fn a_receipt_is_good_once() {
    let queue = TestQueue::moto();
    let jobs = queue.jobs();
    jobs.send_batch(&[1, 2]).blocking().unwrap();
    let messages = jobs.receive().max_messages(2).blocking().unwrap();
    messages[0].acknowledge().blocking().unwrap();
    messages[1].nack().blocking().unwrap();
    queue.proxy.reset_counts();
    for message in &messages {
        assert_expired(message.acknowledge().blocking());
        assert_expired(message.nack().blocking());
        assert_expired(message.extend_visibility(LONG).blocking());
    }
    assert_eq!(queue.proxy.requests(), [""; 0]);
}

#[test]
fn of_two_concurrent_settles_one_succeeds() {
    let queue = TestQueue::moto();
    let jobs = queue.jobs();
    for _ in 0..3 {
        jobs.send(&1).blocking().unwrap();
        let message = jobs.receive().blocking().unwrap().remove(0);
        queue.proxy.reset_counts();
        queue.first(1, "DeleteMessage", || Fate::Stall);
        let acts = [message.acknowledge(), message.acknowledge(), message.extend_visibility(HOURS)].map(begin);
        queue.proxy.wait_until_held(1);
        queue.proxy.clear_faults();
        let mut results = end(acts);
        results.remove(0).unwrap();
        results.into_iter().for_each(assert_expired);
        assert_eq!(queue.proxy.requests(), ["DeleteMessage"]);
    }
    assert_eq!(jobs.approximate_count().blocking().unwrap(), 0);
}

#[test]
fn after_a_failed_settle_the_receipt_is_valid() {
    let queue = TestQueue::moto();
    let jobs = queue.jobs();
    jobs.send(&1).blocking().unwrap();
    let message = jobs.receive().blocking().unwrap().remove(0);
    queue.first(3, "DeleteMessage", Fate::internal);
    let acts = [message.acknowledge(), message.acknowledge(), message.acknowledge()].map(begin);
    let results = end(acts);
    assert!(results[0].as_ref().is_err_and(Error::is_transient), "{results:?}");
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1, "{results:?}");
    assert_eq!(jobs.approximate_count().blocking().unwrap(), 0);
}

#[test]
fn an_extension_shorter_than_the_lease_sends_no_request() {
    let queue = TestQueue::moto();
    let jobs = queue.jobs();
    jobs.send(&1).blocking().unwrap();
    let message = jobs.receive().visibility_timeout(Duration::from_secs(300)).blocking().unwrap().remove(0);
    queue.proxy.reset_counts();
    for by in [0, 1, 200] {
        message.extend_visibility(Duration::from_secs(by)).blocking().unwrap();
    }
    assert_eq!(queue.proxy.requests(), [""; 0]);
    message.extend_visibility(Duration::from_secs(301)).blocking().unwrap();
    message.extend_visibility(Duration::from_secs(300)).blocking().unwrap();
    assert_eq!(queue.proxy.requests(), ["ChangeMessageVisibility"]);
}

#[test]
fn an_extension_lasts_as_long_as_it_says() {
    let queue = TestQueue::moto();
    let jobs = queue.jobs();
    jobs.send(&1).blocking().unwrap();
    let message = jobs.receive().visibility_timeout(Duration::from_secs(1)).blocking().unwrap().remove(0);
    message.extend_visibility(HOURS - Duration::from_secs(60)).blocking().unwrap();
    pass(1);
    assert!(queue.others().receive().blocking().unwrap().is_empty());
    message.acknowledge().blocking().unwrap();
    assert_eq!(jobs.approximate_count().blocking().unwrap(), 0);
}

/// An operation that is queued behind another request may be too late when it is sent. SQS would accept it.
#[test]
fn a_settle_whose_lease_ends_in_the_queue_is_refused() {
    let queue = TestQueue::moto();
    let jobs = queue.jobs();
    jobs.send_batch(&[1, 2, 3]).blocking().unwrap();
    let long = jobs.receive().visibility_timeout(HOURS).blocking().unwrap().remove(0);
    let short = jobs.receive().max_messages(2).visibility_timeout(Duration::from_secs(1)).blocking().unwrap();
    queue.proxy.reset_counts();
    queue.first(1, "DeleteMessage", || Fate::Stall);
    let first = begin(long.acknowledge());
    queue.proxy.wait_until_held(1);
    let late: Vec<_> = short.iter().map(|message| begin(message.acknowledge())).collect();
    pass(1);
    queue.proxy.clear_faults();
    end([first]).remove(0).unwrap();
    end(late).into_iter().for_each(assert_expired);
    assert_eq!(queue.proxy.requests(), ["DeleteMessage"]);
    assert_eq!(super::take_all(&queue.others()).len(), 2);
}

#[test]
fn refusals_of_sqs_are_mapped_to_errors() {
    let queue = TestQueue::moto();
    let jobs = queue.jobs();
    queue.first(usize::MAX, "ReceiveMessage", || {
        refusal("OverLimit", "OverLimit", "Too many messages in flight (inflight messages count limit is 120000)")
    });
    for wait in [Duration::ZERO, LONG] {
        let error = jobs.receive().wait_time(wait).blocking().map(drop).unwrap_err();
        assert!(matches!(&error, Error::MailboxFull { mailbox, .. } if *mailbox == queue.name), "{error:?}");
        assert!(error.is_transient());
    }
    queue.proxy.clear_faults();
    for code in ["ReceiptHandleIsInvalid", "InvalidParameterValue"] {
        jobs.send(&1).blocking().unwrap();
        let message = jobs.receive().blocking().unwrap().remove(0);
        let text = "Value AQEB for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired.";
        queue.proxy.on(move |_| refusal(code, code, text));
        assert_expired(message.acknowledge().blocking());
        queue.proxy.reset_counts();
        assert_expired(message.acknowledge().blocking());
        assert_eq!(queue.proxy.requests(), [""; 0], "it is known to have ended");
        queue.proxy.clear_faults();
        // The same refusal for an entry of a batch.
        jobs.send_batch(&[1, 2]).blocking().unwrap();
        let messages = jobs.receive().max_messages(2).blocking().unwrap();
        queue.proxy.on(move |_| {
            let failed = json!([{ "Id": "1", "Code": code, "SenderFault": true, "Message": text }]);
            answer(200, json!({ "Successful": [{ "Id": "0" }], "Failed": failed }))
        });
        let mut done = jobs.acknowledge_batch(&messages).blocking().unwrap();
        assert_expired(done.remove(1));
        done.remove(0).unwrap();
        queue.proxy.clear_faults();
    }
}
