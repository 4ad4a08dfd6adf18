//! Dead letters: by the queue's redrive policy, by `dead_letter`, and redriving them.

use std::time::Duration;

use postbox::aws::QueueSettings;
use postbox::*;
use postbox_test_servers::Fate;
use serde_json::json;

use super::{HOURS, LONG, TestQueue, answer, assert_passing, ministack, moto, shown, take_all};

/// Makes `many` dead letters, in groups on a FIFO queue.
fn dead(jobs: &Mailbox<u64, u64>, many: u64, group: impl Fn(u64) -> String) {
    for number in 0..many {
        let send = jobs.send(&number);
        if jobs.limits().groups { send.group(group(number)) } else { send }.blocking().unwrap();
        let message = jobs.receive().wait_time(LONG).blocking().unwrap().remove(0);
        message.dead_letter(format!("reason {number}")).blocking().unwrap();
    }
}

fn one_group(_: u64) -> String {
    "g".into()
}

#[test]
fn the_redrive_policy_moves_unfinished_messages() {
    for server in [moto(), ministack()] {
        for suffix in ["", ".fifo"] {
            let queue = TestQueue::new(server.clone(), suffix);
            let connection = Connection::new(queue.builder().build()).max_deliveries(2);
            let jobs: Mailbox<u64> = connection.mailbox(&queue.name).unwrap();
            jobs.create().blocking().unwrap();
            let id = jobs.send(&7).attribute("colour", "red").blocking().unwrap();
            for count in 1..=2 {
                let message = jobs.receive().wait_time(LONG).blocking().unwrap().remove(0);
                assert_eq!(message.delivery_count, count);
                message.nack().blocking().unwrap();
            }
            assert!(jobs.receive().wait_time(Duration::from_secs(1)).blocking().unwrap().is_empty());
            assert_eq!(jobs.counts().blocking().unwrap(), Counts::new(0, 0, 0, 1));
            let letters = jobs.dead_letters().list(10).blocking().unwrap();
            assert_eq!((&letters[0].id, letters[0].delivery_count), (&id, 2));
            assert!(letters[0].reason.contains("delivered 2 times"), "{}", letters[0].reason);
            assert_eq!(jobs.dead_letters().redrive(10).blocking().unwrap(), 1);
            let message = jobs.receive().wait_time(LONG).blocking().unwrap().remove(0);
            assert_eq!((&message.id, message.delivery_count, &message.attributes["colour"][..]), (&id, 1, "red"));
        }
    }
}

#[test]
fn a_dead_letter_that_cannot_be_removed_from_its_queue_is_in_both_queues() {
    for suffix in ["", ".fifo"] {
        let queue = TestQueue::new(moto(), suffix);
        let jobs = queue.jobs();
        jobs.send(&7).blocking().unwrap();
        let message = jobs.receive().visibility_timeout(HOURS).blocking().unwrap().remove(0);
        queue.first(usize::MAX, "DeleteMessage", Fate::internal);
        assert_passing(&message.dead_letter("why").blocking().unwrap_err(), &queue.name);
        assert_eq!(queue.others().counts().blocking().unwrap(), Counts::new(0, 0, 1, 1));
        queue.proxy.clear_faults();
        message.dead_letter("why").blocking().unwrap();
        let counts = queue.others().counts().blocking().unwrap();
        assert_eq!(counts.total(), 0);
        assert!(counts.dead == 1 || suffix.is_empty() && counts.dead == 2, "{counts:?}");
    }
}

/// SQS deduplicates for five minutes, also if the message was received meanwhile.
#[test]
fn a_redriven_message_can_be_dead_lettered_again() {
    for suffix in ["", ".fifo"] {
        let queue = TestQueue::new(ministack(), suffix);
        let jobs = queue.jobs();
        dead(&jobs, 1, one_group);
        for round in 1..=3 {
            assert_eq!(jobs.dead_letters().redrive(10).blocking().unwrap(), 1, "{suffix}, {round}");
            let message = jobs.receive().wait_time(LONG).blocking().unwrap().remove(0);
            message.dead_letter(format!("again {round}")).blocking().unwrap();
            let letters = jobs.dead_letters().list(10).blocking().unwrap();
            assert_eq!(letters.iter().map(|letter| &letter.reason[..]).collect::<Vec<_>>(), [format!("again {round}")]);
        }
    }
}

/// SQS counts the retention period from the first send of a message.
#[test]
fn dead_letters_are_kept_for_the_maximum_retention_period() {
    let by_hand = TestQueue::moto();
    dead(&by_hand.jobs(), 1, one_group);
    let by_policy = TestQueue::moto();
    let settings = QueueSettings::new().max_deliveries(3);
    by_policy.builder().build().create_queue(&by_policy.name, settings).blocking().unwrap();
    for queue in [by_hand, by_policy] {
        let url = queue.url(&format!("{}_-dead", queue.name));
        let asked = json!({ "QueueUrl": url, "AttributeNames": ["MessageRetentionPeriod"] });
        let kept = queue.call("GetQueueAttributes", asked);
        assert_eq!(kept["Attributes"]["MessageRetentionPeriod"], "1209600");
    }
}

/// Two queues whose policies name the same dead-letter queue. Each has two dead letters: one that SQS has moved, and one by
/// `dead_letter`.
fn two_with_one_place_for_letters() -> (TestQueue, [Mailbox<u64, u64>; 2]) {
    let queue = TestQueue::new(ministack(), "");
    let dead = queue.call("CreateQueue", json!({ "QueueName": format!("{}-letters", queue.name) }));
    let asked = json!({ "QueueUrl": dead["QueueUrl"], "AttributeNames": ["QueueArn"] });
    let arn = queue.call("GetQueueAttributes", asked)["Attributes"]["QueueArn"].clone();
    let policy = json!({ "deadLetterTargetArn": arn, "maxReceiveCount": 1 }).to_string();
    let connection = Connection::new(queue.builder().build());
    let mailboxes = ["-a", "-b"].map(|suffix| {
        let name = format!("{}{suffix}", queue.name);
        queue.call("CreateQueue", json!({ "QueueName": name, "Attributes": { "RedrivePolicy": policy } }));
        let jobs: Mailbox<u64, u64> = connection.mailbox(&name).unwrap();
        jobs.send(&1).blocking().unwrap();
        jobs.receive().wait_time(LONG).blocking().unwrap()[0].nack().blocking().unwrap();
        assert!(jobs.receive().blocking().unwrap().is_empty());
        jobs.send(&2).blocking().unwrap();
        jobs.receive().wait_time(LONG).blocking().unwrap()[0].dead_letter("by hand").blocking().unwrap();
        jobs
    });
    (queue, mailboxes)
}

fn bodies_of_letters(jobs: &Mailbox<u64, u64>) -> Vec<u64> {
    let letters = jobs.dead_letters().list(100).blocking().unwrap();
    let mut bodies: Vec<_> = letters.iter().map(|letter| letter.body.clone().unwrap()).collect();
    bodies.sort_unstable();
    bodies
}

#[test]
fn dead_letters_of_other_queues_are_not_touched() {
    let (_place, [a, b]) = two_with_one_place_for_letters();
    assert_eq!((bodies_of_letters(&a), bodies_of_letters(&b)), (vec![1, 2], vec![1, 2]));
    assert_eq!(a.dead_letters().redrive(100).blocking().unwrap(), 2);
    assert_eq!((bodies_of_letters(&a), bodies_of_letters(&b)), (vec![], vec![1, 2]));
    assert_eq!(take_all(&a).len(), 2);
    assert_eq!(a.dead_letters().purge().blocking().unwrap(), 0);
    assert_eq!(bodies_of_letters(&b), [1, 2]);
    assert_eq!(b.dead_letters().purge().blocking().unwrap(), 2);
    assert_eq!(bodies_of_letters(&b), [0; 0]);
}

#[test]
fn the_move_task_of_sqs_is_used_only_if_all_dead_letters_are_of_this_queue() {
    for suffixes in [vec!["-a"], vec!["-a", "-b"], vec!["-b"]] {
        let (queue, [a, _]) = two_with_one_place_for_letters();
        let is_own = suffixes == ["-a"];
        let sources: Vec<_> = suffixes.iter().map(|suffix| format!("http://sqs/1/{}{suffix}", queue.name)).collect();
        queue.proxy.reset_counts();
        queue.proxy.on(move |request| match request.operation.as_str() {
            "ListDeadLetterSourceQueues" => answer(200, json!({ "queueUrls": sources })),
            "StartMessageMoveTask" => answer(200, json!({ "TaskHandle": "task" })),
            "ListMessageMoveTasks" => {
                answer(200, json!({ "Results": [{ "Status": "COMPLETED", "ApproximateNumberOfMessagesMoved": 4 }] }))
            }
            _ => Fate::Pass,
        });
        assert_eq!(a.dead_letters().redrive(100).blocking().unwrap(), if is_own { 4 } else { 2 });
        assert_eq!(queue.proxy.count("StartMessageMoveTask"), usize::from(is_own));
    }
}

/// If there are many dead letters, they become visible again during the search.
#[test]
fn a_search_for_a_missing_dead_letter_ends() {
    let queue = TestQueue::moto();
    let jobs = queue.jobs();
    dead(&jobs, 1, one_group);
    let mut at = 0;
    queue.proxy.on(move |request| {
        if request.operation != "ReceiveMessage" {
            return Fate::Pass;
        }
        at += 1;
        let letter = |number: u64| json!({ "MessageId": format!("m-{number}"), "ReceiptHandle": format!("r-{at}"), "Body": "1" });
        answer(200, json!({ "Messages": [letter(at % 3), letter((at + 1) % 3)] }))
    });
    assert!(!jobs.dead_letters().redrive_one(&MessageId::new()).blocking().unwrap());
    assert_eq!(jobs.dead_letters().list(100).blocking().unwrap().len(), 3, "each once");
}

#[test]
fn a_policy_without_an_existing_queue_is_an_error() {
    let queue = TestQueue::moto();
    let policy = json!({ "deadLetterTargetArn": "arn:aws:sqs:eu-west-1:123456789012:nowhere", "maxReceiveCount": 1 });
    let jobs = queue.jobs();
    queue.proxy.on(move |request| match request.operation.as_str() {
        "GetQueueAttributes" => answer(
            200,
            json!({ "Attributes": { "QueueArn": "arn:aws:sqs:eu-west-1:123456789012:x", "RedrivePolicy": policy.to_string() } }),
        ),
        _ => Fate::Pass,
    });
    let jobs_again = queue.mailbox(queue.builder().create_missing(true));
    jobs.send(&1).blocking().unwrap();
    let message = jobs_again.receive().blocking().unwrap().remove(0);
    let text = shown(&message.dead_letter("why").blocking().unwrap_err());
    assert!(text.contains(":nowhere") && text.contains("create it"), "{text}");
}

/// A queue with a redrive policy. The proxy answers the requests of a move task in place of the server.
fn with_moves(statuses: &'static [(&str, u64)]) -> (TestQueue, Mailbox<u64, u64>) {
    let queue = TestQueue::moto();
    queue.builder().build().create_queue(&queue.name, QueueSettings::new().max_deliveries(9)).blocking().unwrap();
    let jobs = queue.mailbox(queue.builder());
    dead(&jobs, 2, one_group);
    let mut statuses = statuses.iter();
    queue.proxy.reset_counts();
    queue.proxy.on(move |request| match request.operation.as_str() {
        "StartMessageMoveTask" => {
            let asked = super::json(request);
            assert!(asked["SourceArn"].as_str().unwrap().ends_with("_-dead"), "{asked}");
            assert!(asked["DestinationArn"].as_str().unwrap().contains(":jobs-"), "{asked}");
            answer(200, json!({ "TaskHandle": "task" }))
        }
        "ListMessageMoveTasks" => {
            let (status, moved) = statuses.next().expect("no more questions");
            let task =
                json!({ "Status": status, "ApproximateNumberOfMessagesMoved": moved, "FailureReason": "AccessDenied" });
            answer(200, json!({ "Results": [task] }))
        }
        "SendMessage" | "ReceiveMessage" | "DeleteMessage" => panic!("by hand"),
        _ => Fate::Pass,
    });
    (queue, jobs)
}

#[test]
fn a_redrive_uses_the_move_task_of_sqs() {
    let (queue, jobs) = with_moves(&[("RUNNING", 0), ("RUNNING", 3), ("COMPLETED", 5)]);
    assert_eq!(jobs.dead_letters().redrive(10).blocking().unwrap(), 5);
    assert_eq!((queue.proxy.count("StartMessageMoveTask"), queue.proxy.count("ListMessageMoveTasks")), (1, 3));
}

#[test]
fn a_failed_move_task_is_an_error() {
    let (_place, jobs) = with_moves(&[("RUNNING", 0), ("FAILED", 1)]);
    let error = jobs.dead_letters().redrive(10).blocking().unwrap_err();
    let text = shown(&error);
    assert!(text.contains("only 1") && text.contains("AccessDenied"), "{text}");
}

/// SQS returns at most ten messages of a group, and no more until these are finished.
#[test]
fn any_number_of_dead_letters_is_redriven_in_order() {
    for server in [moto(), ministack()] {
        for suffix in ["", ".fifo"] {
            let queue = TestQueue::new(server.clone(), suffix);
            let jobs = queue.jobs();
            dead(&jobs, 25, one_group);
            assert_eq!(jobs.dead_letters().redrive(4).blocking().unwrap(), 4);
            assert_eq!(jobs.dead_letters().redrive(100).blocking().unwrap(), 21);
            assert_eq!(jobs.counts().blocking().unwrap(), Counts::new(25, 0, 0, 0));
            let mut bodies = Vec::new();
            while bodies.len() < 25 {
                let some = jobs.receive().max_messages(10).blocking().unwrap();
                assert!(!some.is_empty(), "{bodies:?}");
                bodies.extend(some.iter().map(|message| message.body));
                jobs.acknowledge_batch(&some).blocking().unwrap().into_iter().for_each(|done| done.unwrap());
            }
            if suffix.is_empty() {
                bodies.sort_unstable();
            }
            assert_eq!(bodies, (0..25).collect::<Vec<_>>());
        }
    }
}

#[test]
fn listing_shows_all_dead_letters_and_releases_them() {
    for (server, suffix) in [(moto(), ""), (ministack(), ".fifo")] {
        let queue = TestQueue::new(server, suffix);
        let jobs = queue.jobs();
        dead(&jobs, 25, |number| number.to_string());
        for _ in 0..3 {
            let letters = jobs.dead_letters().list(100).blocking().unwrap();
            let mut bodies: Vec<_> = letters.iter().map(|letter| letter.body.clone().unwrap()).collect();
            bodies.sort_unstable();
            assert_eq!(bodies, (0..25).collect::<Vec<_>>());
            assert!(letters.iter().all(|letter| letter.reason.starts_with("reason ")));
            assert_eq!(jobs.dead_letters().list(3).blocking().unwrap().len(), 3);
        }
        let letters = jobs.dead_letters().list(100).blocking().unwrap();
        let wanted = letters.iter().find(|letter| letter.reason == "reason 17").unwrap();
        assert!(jobs.dead_letters().redrive_one(&wanted.id).blocking().unwrap());
        assert!(!jobs.dead_letters().redrive_one(&wanted.id).blocking().unwrap());
        assert_eq!(take_all(&jobs)[0].body, 17);
        assert_eq!(jobs.dead_letters().list(100).blocking().unwrap().len(), 24);
        assert_eq!(jobs.dead_letters().purge().blocking().unwrap(), 24);
        assert_eq!(jobs.counts().blocking().unwrap(), Counts::new(0, 0, 1, 0));
    }
}

#[test]
fn dead_letters_that_cannot_be_moved_stay() {
    let queue = TestQueue::moto();
    let jobs = queue.jobs();
    dead(&jobs, 3, one_group);
    queue.first(usize::MAX, "SendMessage", Fate::unavailable);
    assert_passing(&jobs.dead_letters().redrive(10).blocking().unwrap_err(), &queue.name);
    // They are not left leased.
    assert_eq!(queue.others().dead_letters().list(10).blocking().unwrap().len(), 3);
}

/// The reason of a dead letter counts for the size limit.
#[test]
fn a_dead_letter_does_not_exceed_the_size_limit() {
    let queue = TestQueue::moto();
    let connection = Connection::new(queue.builder().create_missing(true).build());
    let raw: Mailbox<Vec<u8>, (), Raw> = connection.mailbox(&queue.name).unwrap();
    raw.send(&vec![b'x'; (1 << 20) - 1_000]).blocking().unwrap();
    let message = raw.receive().blocking().unwrap().remove(0);
    queue.proxy.on(|request| {
        if request.operation == "SendMessage" {
            let asked = super::json(request);
            let packed = asked["MessageAttributes"]["postbox.headers"]["StringValue"].as_str().unwrap();
            let size = asked["MessageBody"].as_str().unwrap().len() + "postbox.headersString".len() + packed.len();
            assert!(size <= 1 << 20, "{size}");
        }
        Fate::Pass
    });
    message.dead_letter("ü".repeat(5_000)).blocking().unwrap();
    let letters = raw.dead_letters().list(10).blocking().unwrap();
    assert!(letters[0].reason.starts_with('ü') && letters[0].body.as_ref().unwrap().len() == (1 << 20) - 1_000);
}

#[test]
fn a_missing_dead_letter_queue_is_an_error_that_says_how_to_add_one() {
    let queue = TestQueue::moto();
    let jobs = queue.mailbox(queue.builder());
    jobs.create().blocking().unwrap();
    jobs.send(&7).blocking().unwrap();
    let message = jobs.receive().blocking().unwrap().remove(0);
    let text = message.dead_letter("why").blocking().unwrap_err().to_string();
    assert!(text.contains(&format!("{}_-dead", queue.name)) && text.contains("max_deliveries"), "{text}");
    assert!(jobs.dead_letters().list(10).blocking().unwrap().is_empty());
    assert_eq!(jobs.dead_letters().redrive(10).blocking().unwrap(), 0);
    message.acknowledge().blocking().unwrap();
}

#[test]
fn a_removed_dead_letter_queue_is_created_again() {
    let queue = TestQueue::moto();
    let jobs = queue.jobs();
    dead(&jobs, 1, one_group);
    assert_eq!(jobs.counts().blocking().unwrap().dead, 1);
    queue.call("DeleteQueue", json!({ "QueueUrl": queue.url(&format!("{}_-dead", queue.name)) }));
    assert_eq!(jobs.counts().blocking().unwrap().dead, 0);
    dead(&jobs, 1, one_group);
    assert_eq!(jobs.counts().blocking().unwrap().dead, 1);
}

#[test]
fn a_second_purge_of_dead_letters_names_their_queue() {
    let queue = TestQueue::moto();
    let jobs = queue.jobs();
    dead(&jobs, 1, one_group);
    assert_eq!(jobs.dead_letters().purge().blocking().unwrap(), 1);
    let error = jobs.dead_letters().purge().blocking().unwrap_err();
    assert!(error.is_transient() && shown(&error).contains("_-dead was purged less than 60 s ago"), "{error}");
    assert_eq!(jobs.purge().blocking().unwrap(), 0);
    let error = jobs.purge().blocking().unwrap_err();
    assert!(error.is_transient() && shown(&error).contains("try again in 60 s"), "{error}");
}
