//! FIFO queues: order, groups and duplicates.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use postbox::aws::QueueSettings;
use postbox::reply::MemoryReplyStore;
use postbox::worker::Cancellation;
use postbox::*;
use postbox_test_servers::Fate;

use super::{HOURS, LONG, TestQueue, begin, end, ministack, moto};

fn fifo(server: String) -> TestQueue {
    TestQueue::new(server, ".fifo")
}

#[test]
fn order_is_kept_across_requests_and_failures() {
    let queue = fifo(moto());
    let jobs = queue.jobs();
    // The second request fails twice, and the reply to the third one is lost.
    let mut at = 0;
    queue.proxy.on(move |_| {
        at += 1;
        match at {
            2 | 3 => Fate::internal(),
            5 => Fate::DropReply,
            _ => Fate::Pass,
        }
    });
    queue.proxy.stall(true);
    let send = |number: u64| begin(jobs.send(&number).group("g"));
    let mut sends = vec![send(0)];
    queue.proxy.wait_until_held(1);
    sends.extend((1..=64).map(send));
    queue.proxy.stall(false);
    end(sends).into_iter().for_each(|sent| drop(sent.unwrap()));
    queue.proxy.clear_faults();
    let mut bodies = Vec::new();
    while bodies.len() < 65 {
        let some = jobs.receive().max_messages(10).blocking().unwrap();
        assert!(!some.is_empty(), "{bodies:?}");
        bodies.extend(some.iter().map(|message| message.body));
        jobs.acknowledge_batch(&some).blocking().unwrap().into_iter().for_each(|done| done.unwrap());
    }
    assert_eq!(bodies, (0..65).collect::<Vec<_>>());
    assert_eq!(queue.proxy.count("SendMessage"), 1 + 7 + 3);
}

/// SQS may return several messages of a group in one response. They go to one receiver, because two receivers would handle
/// the group concurrently.
#[test]
fn a_group_is_with_one_receiver_at_a_time() {
    for server in [moto(), ministack()] {
        for wait in [Duration::ZERO, LONG] {
            let queue = fifo(server.clone());
            let jobs = queue.jobs();
            // The first poll finds nothing, and other receivers arrive while it is under way.
            let mut is_first = true;
            queue.proxy.on(move |request| match request.operation == "ReceiveMessage" {
                true if std::mem::take(&mut is_first) => Fate::StallReply,
                true => Fate::Stall,
                false => Fate::Pass,
            });
            let receive = |wait| begin(jobs.receive().visibility_timeout(HOURS).wait_time(wait));
            let nothing = receive(wait.min(Duration::from_secs(1)));
            queue.proxy.wait_until_held(1);
            let mut receives: Vec<_> = (0..4).map(|_| receive(wait)).collect();
            for number in 1..=4 {
                queue.others().send(&number).group("g").blocking().unwrap();
            }
            queue.proxy.clear_faults();
            assert!(end([nothing]).remove(0).unwrap().is_empty());
            if wait.is_zero() {
                let got: Vec<u64> =
                    end(receives).into_iter().flat_map(|got| got.unwrap()).map(|got| got.body).collect();
                assert_eq!(got, [1], "none of the others may have the next before that is done");
                continue;
            }
            let first = end([receives.remove(0)]).remove(0).unwrap().remove(0);
            assert_eq!(first.body, 1);
            queue.others().send(&9).group("h").blocking().unwrap();
            let second = end([receives.remove(0)]).remove(0).unwrap().remove(0);
            assert_eq!(second.body, 9, "another group does not wait");
            first.acknowledge().blocking().unwrap();
            let third = end([receives.remove(0)]).remove(0).unwrap().remove(0);
            assert_eq!((third.body, third.delivery_count), (2, 1));
        }
    }
}

#[test]
fn messages_of_one_response_go_to_a_receiver_that_takes_them_all() {
    let queue = fifo(moto());
    let jobs = queue.jobs();
    let receive = |max| begin(jobs.receive().max_messages(max).visibility_timeout(HOURS).wait_time(LONG));
    // After a poll that has returned a message, two polls may run at the same time.
    let first = receive(1);
    jobs.send(&0).blocking().unwrap();
    end([first]).remove(0).unwrap()[0].acknowledge().blocking().unwrap();
    queue.proxy.reset_counts();
    queue.proxy.on(|request| match super::json(request)["MaxNumberOfMessages"].as_u64() {
        Some(1) => Fate::Stall,
        _ => Fate::Pass,
    });
    let (_one, many) = (receive(1), receive(10));
    queue.proxy.wait_for("ReceiveMessage", 2);
    queue.others().send_batch(&[1, 2, 3]).group("g").blocking().unwrap();
    let got = end([many]).remove(0).unwrap();
    assert_eq!(got.iter().map(|message| message.body).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(got.iter().all(|message| message.delivery_count == 1));
}

#[test]
fn a_duplicate_has_the_id_of_the_first_send_after_a_lost_reply() {
    let queue = fifo(ministack());
    let jobs = queue.jobs();
    let send = || jobs.send(&1).deduplication_id("once").blocking().unwrap();
    queue.first(1, "SendMessage", || Fate::DropReply);
    let first = send();
    assert_eq!(send(), first);
    let message = jobs.receive().blocking().unwrap().remove(0);
    assert_eq!(message.id, first);
    message.acknowledge().blocking().unwrap();
    assert_eq!(send(), first, "also when it is done");
    assert!(jobs.receive().blocking().unwrap().is_empty());
}

#[test]
fn a_queue_that_deduplicates_by_content_does_so() {
    for server in [moto(), ministack()] {
        let queue = fifo(server);
        let backend = queue.builder().build();
        backend.create_queue(&queue.name, QueueSettings::new().content_based_deduplication(true)).blocking().unwrap();
        let jobs: Mailbox<u64> = Connection::new(backend).mailbox(&queue.name).unwrap();
        for number in [1, 1, 2] {
            jobs.send(&number).group("g").blocking().unwrap();
        }
        let got = jobs.receive().max_messages(10).blocking().unwrap();
        assert_eq!(got.iter().map(|message| message.body).collect::<Vec<_>>(), [1, 2]);
    }
}

/// Each request is a separate message, since its sender waits for a reply. Other messages are deduplicated by the queue.
#[test]
fn equal_requests_are_two_on_a_queue_that_deduplicates_by_content() {
    let queue = fifo(ministack());
    let backend = queue.builder().replies(Arc::new(MemoryReplyStore::new())).build();
    backend.create_queue(&queue.name, QueueSettings::new().content_based_deduplication(true)).blocking().unwrap();
    let jobs: Mailbox<u64, u64> = Connection::new(backend).mailbox(&queue.name).unwrap();
    let replies = [1, 1].map(|number| jobs.send_expecting_reply(&number).blocking().unwrap());
    for _ in 0..2 {
        let message = jobs.receive().blocking().unwrap().remove(0);
        message.reply(&(message.body + 1)).blocking().unwrap();
    }
    replies.into_iter().for_each(|reply| assert_eq!(reply.wait().blocking().unwrap(), 2));
    let ids = [7, 7].map(|number| jobs.send(&number).blocking().unwrap());
    assert_eq!(ids[0], ids[1], "the second is the first");
    let message = jobs.receive().blocking().unwrap().remove(0);
    assert_eq!(message.id, ids[0]);
}

/// If a message fails and a later one of its group is stored, repeating the first would store it after the later one.
#[test]
fn a_message_overtaken_in_its_group_is_not_sent_again() {
    let queue = fifo(moto());
    let jobs = queue.jobs();
    let sends = Arc::new(Mutex::new(Vec::new()));
    queue.proxy.on({
        let sends = Arc::clone(&sends);
        move |request| {
            let mut sends = sends.lock().unwrap();
            let asked = super::json(request);
            let Some(entries) = asked["Entries"].as_array() else { return Fate::Pass };
            sends.push(entries.iter().map(|entry| entry["MessageBody"].as_str().unwrap()).collect::<String>());
            // The first message of each group fails, and the last one of the second group.
            let failed = |at: usize| sends.len() == 1 && [0, 1, 4].contains(&at);
            let (mut done, mut not_done) = (Vec::new(), Vec::new());
            for (at, entry) in entries.iter().enumerate() {
                match failed(at) {
                    true => not_done
                        .push(serde_json::json!({ "Id": entry["Id"], "Code": "InternalError", "SenderFault": false })),
                    false => {
                        done.push(serde_json::json!({ "Id": entry["Id"], "MessageId": "m", "MD5OfMessageBody": "x" }))
                    }
                }
            }
            super::answer(200, serde_json::json!({ "Successful": done, "Failed": not_done }))
        }
    });
    queue.proxy.stall(true);
    let mut begun = vec![begin(jobs.send(&9).group("first"))];
    queue.proxy.wait_until_held(1);
    begun.extend(
        [(0, "a"), (1, "b"), (2, "a"), (3, "c"), (4, "b")]
            .map(|(number, group)| begin(jobs.send(&number).group(group))),
    );
    queue.proxy.stall(false);
    let results = end(begun);
    let is_done: Vec<_> = results[1..].iter().map(Result::is_ok).collect();
    // Group b has no stored message, so both of its messages are sent again in order.
    assert_eq!(is_done, [false, true, true, true, true]);
    assert_eq!(*sends.lock().unwrap(), ["01234", "14"]);
    assert!(results[1].as_ref().unwrap_err().is_transient());
}

#[test]
fn ids_that_a_fifo_queue_does_not_take_are_named() {
    let queue = fifo(moto());
    let jobs = queue.jobs();
    queue.proxy.reset_counts();
    for (error, named) in [
        (jobs.send(&1).group("two words").blocking(), "group"),
        (jobs.send(&1).deduplication_id("für immer").blocking(), "deduplication_id"),
        (jobs.send(&1).id("any text").blocking(), "id"),
    ] {
        let error = error.unwrap_err();
        assert!(matches!(&error, Error::InvalidParameter { parameter, .. } if *parameter == named), "{error:?}");
        assert!(error.to_string().contains("1 to 128"), "{error}");
    }
    assert_eq!(queue.proxy.requests(), [""; 0]);
    for group in ["", "two words", &"g".repeat(129)] {
        let connection = Connection::new(queue.builder().default_group(group).build());
        let error = connection.mailbox::<u64, u64, Json>(&queue.name).map(drop).unwrap_err();
        assert!(matches!(error, Error::InvalidParameter { parameter: "group", .. }), "{error:?}");
    }
}

#[test]
fn a_default_group_puts_all_messages_in_one_order() {
    let queue = fifo(moto());
    let jobs = queue.mailbox(queue.builder().create_missing(true).default_group("all"));
    for number in 0..3 {
        jobs.send(&number).blocking().unwrap();
    }
    let first = jobs.receive().blocking().unwrap().remove(0);
    assert_eq!(first.body, 0);
    assert!(jobs.receive().blocking().unwrap().is_empty(), "one at a time");
    first.acknowledge().blocking().unwrap();
    assert_eq!(jobs.receive().blocking().unwrap()[0].body, 1);
}

#[test]
fn a_request_cannot_be_sent_once() {
    let queue = fifo(moto());
    let jobs =
        queue.mailbox(queue.builder().create_missing(true).replies(std::sync::Arc::new(MemoryReplyStore::new())));
    let error = jobs.send_expecting_reply(&1).deduplication_id("once").blocking().map(drop).unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
    jobs.send_expecting_reply(&1).blocking().unwrap();
    assert_eq!(jobs.receive().blocking().unwrap()[0].body, 1);
}

/// Handlers run concurrently, and a group is still handled in order, one message at a time.
#[test]
fn a_worker_handles_a_group_in_order() {
    for server in [moto(), ministack()] {
        let queue = fifo(server);
        let jobs = queue.jobs();
        for number in 0..12 {
            jobs.send(&number).group(if number % 2 == 0 { "even" } else { "odd" }).blocking().unwrap();
        }
        let seen: Arc<Mutex<Vec<u64>>> = Arc::default();
        let busy: Arc<[AtomicBool; 2]> = Arc::default();
        let stop = Cancellation::new();
        let worker = Worker::new(&jobs, {
            let (seen, busy, stop) = (Arc::clone(&seen), Arc::clone(&busy), stop.clone());
            move |number: u64, _: Context| {
                let (seen, busy, stop) = (Arc::clone(&seen), Arc::clone(&busy), stop.clone());
                async move {
                    let busy = &busy[number as usize % 2];
                    let is_second = busy.swap(true, Ordering::SeqCst);
                    // Let other tasks run.
                    for _ in 0..100 {
                        tokio::task::yield_now().await;
                    }
                    busy.store(false, Ordering::SeqCst);
                    let mut seen = seen.lock().unwrap();
                    seen.push(if is_second { u64::MAX } else { number });
                    if seen.len() == 12 {
                        stop.cancel();
                    }
                    Ok::<_, String>(0u64)
                }
            }
        })
        .concurrency(8)
        .wait_time(Duration::from_secs(1));
        let handle = worker.handle();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let report = runtime.block_on(async {
            let shutdown = async {
                stop.cancelled().await;
                handle.shutdown();
            };
            tokio::join!(worker.run(), shutdown).0.unwrap()
        });
        assert_eq!(report.succeeded, 12);
        let of = |rest| seen.lock().unwrap().iter().copied().filter(|number| number % 2 == rest).collect::<Vec<_>>();
        assert_eq!((of(0), of(1)), (vec![0, 2, 4, 6, 8, 10], vec![1, 3, 5, 7, 9, 11]));
    }
}
