//! Lost requests and replies, failures, throttling, cuts, stalls and invalid replies, for each verb.

use std::sync::Mutex;
use std::time::Duration;

use postbox::*;
use postbox_test_servers::{Fate, Moto, REGION};

use super::{
    HOURS, LONG, SECRET, TOKEN, TestQueue, answer, assert_passing, begin, client, end, ministack, moto, refusal, shown,
    take_all, until,
};

/// A mailbox through the proxy, the same mailbox without the proxy, and the object of a verb.
struct Stage {
    queue: TestQueue,
    jobs: Mailbox<u64, u64>,
    others: Mailbox<u64, u64>,
    /// A message that was leased through the proxy.
    held: Option<Message<u64, u64>>,
    ids: Mutex<Vec<MessageId>>,
    is_fifo: bool,
}

/// A verb: the operation, its request, and a check of its effect. A lost reply may cause a second effect.
struct Verb {
    name: &'static str,
    operation: &'static str,
    prepare: fn(&mut Stage),
    act: fn(&Stage) -> Result<(), Error>,
    check: fn(&Stage, bool),
}

fn nothing(_: &mut Stage) {}

fn one_message(stage: &mut Stage) {
    stage.others.send(&7).blocking().unwrap();
}

fn one_lease(stage: &mut Stage) {
    one_message(stage);
    let mut messages = stage.jobs.receive().visibility_timeout(Duration::from_secs(300)).blocking().unwrap();
    stage.held = messages.pop();
}

fn one_dead_letter(stage: &mut Stage) {
    one_lease(stage);
    held(stage).dead_letter("why not").blocking().unwrap();
}

fn held(stage: &Stage) -> &Message<u64, u64> {
    stage.held.as_ref().expect("a lease")
}

/// Asserts that there is one message, or two after a lost reply on a queue that does not deduplicate.
fn assert_once(stage: &Stage, many: usize, is_lost: bool) {
    let most = if is_lost && !stage.is_fifo { 2 } else { 1 };
    assert!((1..=most).contains(&many), "{many}");
}

const VERBS: &[Verb] = &[
    Verb {
        name: "send",
        operation: "SendMessage",
        prepare: nothing,
        act: |stage| stage.jobs.send(&7).blocking().map(|id| stage.ids.lock().unwrap().push(id)),
        check: |stage, is_lost| {
            let (got, ids) = (take_all(&stage.others), stage.ids.lock().unwrap());
            assert_once(stage, got.len(), is_lost);
            assert!(got.iter().all(|message| message.body == 7 && message.id == ids[0]), "{got:?} {ids:?}");
        },
    },
    Verb {
        name: "send_batch",
        operation: "SendMessage",
        prepare: nothing,
        act: |stage| {
            let sent = stage.jobs.send_batch(&[1, 2, 3]).blocking()?;
            *stage.ids.lock().unwrap() = sent.into_iter().collect::<Result<_, _>>()?;
            Ok(())
        },
        check: |stage, is_lost| {
            let (got, ids) = (take_all(&stage.others), stage.ids.lock().unwrap());
            for (body, id) in (1..).zip(ids.iter()) {
                let same: Vec<_> = got.iter().filter(|message| message.id == *id).collect();
                assert!(same.iter().all(|message| message.body == body));
                assert_once(stage, same.len(), is_lost);
            }
        },
    },
    Verb {
        name: "receive",
        operation: "ReceiveMessage",
        prepare: one_message,
        act: |stage| {
            let got = stage.jobs.receive().visibility_timeout(Duration::from_secs(1)).blocking()?;
            stage.ids.lock().unwrap().extend(got.iter().map(|message| message.id.clone()));
            Ok(())
        },
        check: |stage, is_lost| {
            // The lost reply has leased the message, which is visible again when that lease ends.
            assert!(is_lost || stage.ids.lock().unwrap().len() == 1);
            let got = stage.others.receive().wait_time(LONG).blocking().unwrap();
            assert_eq!(got[0].body, 7);
        },
    },
    Verb {
        name: "receive and wait",
        operation: "ReceiveMessage",
        prepare: one_message,
        act: |stage| {
            let second = Duration::from_secs(1);
            let receive = stage.jobs.receive().visibility_timeout(second).wait_time(2 * second);
            stage.ids.lock().unwrap().extend(receive.blocking()?.iter().map(|message| message.id.clone()));
            Ok(())
        },
        check: |stage, _| assert_eq!(stage.ids.lock().unwrap().len(), 1),
    },
    Verb {
        name: "acknowledge",
        operation: "DeleteMessage",
        prepare: one_lease,
        act: |stage| held(stage).acknowledge().blocking(),
        check: |stage, _| assert_eq!(stage.others.approximate_count().blocking().unwrap(), 0),
    },
    Verb {
        name: "nack",
        operation: "ChangeMessageVisibility",
        prepare: one_lease,
        act: |stage| held(stage).nack().blocking(),
        check: |stage, _| assert_eq!(take_all(&stage.others)[0].delivery_count, 2),
    },
    Verb {
        name: "extend",
        operation: "ChangeMessageVisibility",
        prepare: one_lease,
        act: |stage| held(stage).extend_visibility(Duration::from_secs(900)).blocking(),
        check: |stage, _| {
            assert_eq!(stage.others.counts().blocking().unwrap().in_flight, 1);
            held(stage).acknowledge().blocking().unwrap();
        },
    },
    Verb { name: "dead_letter, written", operation: "SendMessage", ..BURY },
    Verb { name: "dead_letter, removed", operation: "DeleteMessage", ..BURY },
    Verb {
        name: "purge",
        operation: "PurgeQueue",
        prepare: one_message,
        act: |stage| match stage.jobs.purge().blocking() {
            Ok(many) => {
                assert_eq!(many, 1);
                Ok(())
            }
            // After a lost reply, the next attempt may get the error that the receipt is used, which is true.
            Err(error) if error.to_string().contains("was purged less than 60 s ago") => {
                assert!(error.is_transient());
                Ok(())
            }
            Err(error) => Err(error),
        },
        check: |stage, _| assert_eq!(stage.others.approximate_count().blocking().unwrap(), 0),
    },
    Verb {
        name: "counts",
        operation: "GetQueueAttributes",
        prepare: one_lease,
        act: |stage| {
            let counts = stage.jobs.counts().blocking()?;
            stage.ids.lock().unwrap().extend((0..counts.in_flight).map(|_| MessageId::new()));
            Ok(())
        },
        check: |stage, _| assert_eq!(stage.ids.lock().unwrap().len(), 1),
    },
    Verb {
        name: "create",
        operation: "CreateQueue",
        prepare: |stage| stage.others.delete().blocking().unwrap(),
        act: |stage| stage.jobs.create().blocking(),
        check: |stage, _| drop(stage.queue.url(&stage.queue.name)),
    },
    Verb {
        name: "delete",
        operation: "DeleteQueue",
        prepare: one_dead_letter,
        act: |stage| stage.jobs.delete().blocking(),
        check: |stage, _| {
            let without = stage.queue.mailbox(stage.queue.builder());
            assert!(matches!(without.counts().blocking(), Err(Error::Resolution { .. })));
        },
    },
    Verb { name: "redrive, taken out", operation: "ReceiveMessage", ..REDRIVE },
    Verb { name: "redrive, sent", operation: "SendMessage", ..REDRIVE },
    Verb { name: "redrive, removed", operation: "DeleteMessage", ..REDRIVE },
    Verb {
        name: "dead_letters",
        operation: "ReceiveMessage",
        prepare: one_dead_letter,
        act: |stage| {
            let many = stage.jobs.dead_letters().list(10).blocking()?.len();
            stage.ids.lock().unwrap().extend((0..many).map(|_| MessageId::new()));
            Ok(())
        },
        check: |stage, is_lost| {
            assert_eq!(stage.others.counts().blocking().unwrap(), Counts::new(0, 0, 0, 1));
            // The lost reply has leased the dead letter, which is visible again after a minute.
            assert!(is_lost || stage.ids.lock().unwrap().len() == 1);
        },
    },
];

const BURY: Verb = Verb {
    name: "",
    operation: "",
    prepare: one_lease,
    act: |stage| held(stage).dead_letter("why not").blocking(),
    check: |stage, is_lost| {
        let letters = stage.others.dead_letters().list(10).blocking().unwrap();
        assert_once(stage, letters.len(), is_lost);
        assert!(letters.iter().all(|letter| letter.reason == "why not" && letter.id == held(stage).id));
        assert_eq!(stage.others.approximate_count().blocking().unwrap(), 0);
    },
};

const REDRIVE: Verb = Verb {
    name: "",
    operation: "",
    prepare: one_dead_letter,
    act: |stage| stage.jobs.dead_letters().redrive(10).blocking().map(drop),
    check: |stage, is_lost| {
        let counts = stage.others.counts().blocking().unwrap();
        if is_lost && counts.ready == 0 {
            // The lost reply has leased the dead letter.
            assert_eq!(counts.dead, 1);
            return;
        }
        assert_eq!(counts.dead, 0);
        let got = take_all(&stage.others);
        assert_once(stage, got.len(), is_lost);
        assert!(got.iter().all(|message| message.id == held(stage).id && message.body == 7));
    },
};

fn each_verb(suffix: &str, then: impl Fn(&Verb, &Stage)) {
    for verb in VERBS {
        let queue = TestQueue::new(moto(), suffix);
        let (jobs, others) = (queue.jobs(), queue.others());
        let is_fifo = !suffix.is_empty();
        let mut stage = Stage { queue, jobs, others, held: None, ids: Mutex::default(), is_fifo };
        (verb.prepare)(&mut stage);
        stage.queue.proxy.reset_counts();
        println!("{} ({})", verb.name, verb.operation);
        then(verb, &stage);
    }
}

/// Asserts that each verb succeeds if its first request has this fate.
fn assert_unnoticed(suffix: &str, fate: fn() -> Fate) {
    let is_lost = matches!(fate(), Fate::DropReply);
    each_verb(suffix, |verb, stage| {
        stage.queue.first(1, verb.operation, fate);
        (verb.act)(stage).unwrap_or_else(|error| panic!("{}: {error:?}", verb.name));
        assert!(stage.queue.proxy.count(verb.operation) >= 2, "{:?}", stage.queue.proxy.requests());
        stage.queue.proxy.clear_faults();
        (verb.check)(stage, is_lost);
    });
}

#[test]
fn a_lost_reply_of_any_verb_loses_nothing() {
    assert_unnoticed("", || Fate::DropReply);
}

#[test]
fn a_lost_reply_of_any_verb_has_one_effect_on_a_fifo_queue() {
    assert_unnoticed(".fifo", || Fate::DropReply);
}

#[test]
fn a_lost_request_of_any_verb_is_repeated() {
    assert_unnoticed("", || Fate::DropRequest);
    assert_unnoticed(".fifo", || Fate::DropRequest);
}

#[test]
fn transient_failures_and_throttling_are_retried() {
    for fate in [Fate::internal, Fate::unavailable, Fate::throttled] {
        assert_unnoticed("", fate);
    }
}

#[test]
fn retries_end_with_a_transient_error_and_lose_nothing() {
    for fate in [Fate::internal, Fate::unavailable, Fate::throttled, || Fate::DropRequest] {
        each_verb("", |verb, stage| {
            stage.queue.first(usize::MAX, verb.operation, fate);
            let error = (verb.act)(stage).expect_err(verb.name);
            assert_passing(&error, &stage.queue.name);
            assert!(error.to_string().contains(&format!("sqs://{REGION}/")), "{error}");
            stage.queue.proxy.clear_faults();
            (verb.act)(stage).unwrap_or_else(|error| panic!("{}: {error:?}", verb.name));
            // A message that was sent to the dead-letter queue and could not be deleted is sent there again.
            (verb.check)(stage, verb.name.ends_with("removed"));
        });
    }
}

#[test]
fn an_invalid_reply_is_an_error_and_no_panic() {
    let nonsense: [fn() -> Fate; 6] = [
        || answer(200, "<html>It works!</html>"),
        || answer(200, "{\"Successful\":[{\"Id\":\"0\""),
        || answer(200, "[1,2,3]"),
        || answer(200, ""),
        || answer(200, "{\"Successful\":7,\"Messages\":\"x\",\"QueueUrl\":[],\"Attributes\":[1]}"),
        || answer(418, "\u{0}"),
    ];
    for fate in nonsense {
        each_verb("", |verb, stage| {
            stage.queue.first(usize::MAX, verb.operation, fate);
            // Replies of SQS to some verbs are empty or nearly empty, so invalid bodies are not always noticed.
            if let Err(error) = (verb.act)(stage) {
                shown(&error);
            }
        });
    }
}

/// One of the servers answers a second deletion with "expired". The message is deleted on both.
#[test]
fn a_lost_reply_to_a_deletion_leaves_no_message_on_either_server() {
    for server in [moto(), ministack()] {
        let queue = TestQueue::new(server, "");
        let jobs = queue.jobs();
        jobs.send(&1).blocking().unwrap();
        let message = jobs.receive().blocking().unwrap().remove(0);
        queue.first(1, "DeleteMessage", || Fate::DropReply);
        match message.acknowledge().blocking() {
            Ok(()) | Err(Error::ReceiptHandleExpired { .. }) => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(queue.others().approximate_count().blocking().unwrap(), 0);
    }
}

#[test]
fn operations_and_waits_continue_after_a_cut() {
    let queue = TestQueue::moto();
    let jobs = queue.jobs();
    // The server does not notice the cut. Its poll continues, and a message that it leases is visible when the lease ends.
    let second = Duration::from_secs(1);
    for round in 0..3 {
        queue.proxy.reset_counts();
        let waiting = std::thread::spawn({
            let jobs = jobs.clone();
            move || {
                let receive = jobs.receive().visibility_timeout(second).wait_time(LONG);
                let message = receive.blocking().unwrap().remove(0);
                message.acknowledge().blocking().unwrap();
                message.body
            }
        });
        queue.proxy.wait_for("ReceiveMessage", 1);
        queue.proxy.cut();
        queue.proxy.wait_for("ReceiveMessage", 2);
        jobs.send(&round).blocking().unwrap();
        assert_eq!(waiting.join().unwrap(), round);
        queue.proxy.cut();
    }
    assert_eq!(jobs.approximate_count().blocking().unwrap(), 0);
}

#[test]
fn operations_wait_for_a_killed_server_and_succeed_after_its_restart() {
    let server = Moto::start();
    let queue = TestQueue::new(server.endpoint(), "");
    let jobs = queue.jobs();
    jobs.send(&1).blocking().unwrap();
    let waiting = std::thread::spawn({
        let jobs = jobs.clone();
        move || jobs.receive().visibility_timeout(HOURS).max_messages(2).wait_time(LONG).blocking().map(|got| got.len())
    });
    assert_eq!(waiting.join().unwrap().unwrap(), 1);
    let waiting = std::thread::spawn({
        let jobs = jobs.clone();
        move || jobs.receive().wait_time(LONG).blocking().map(drop)
    });
    queue.proxy.wait_for("ReceiveMessage", 2);
    server.kill();
    assert_passing(&waiting.join().unwrap().unwrap_err(), &queue.name);
    for error in [
        jobs.send(&2).blocking().unwrap_err(),
        jobs.receive().blocking().map(drop).unwrap_err(),
        jobs.counts().blocking().map(drop).unwrap_err(),
        jobs.create().blocking().unwrap_err(),
        jobs.delete().blocking().unwrap_err(),
    ] {
        assert_passing(&error, &queue.name);
    }
    server.restart();
    // The restarted server has no data, so the queue is missing too.
    until("a queue", || jobs.send(&3).blocking().is_ok());
    assert_eq!(jobs.receive().wait_time(LONG).blocking().unwrap()[0].body, 3);
}

/// An attempt times out after ten seconds and is repeated.
#[test]
fn a_request_without_a_reply_is_repeated() {
    let queue = TestQueue::new(moto(), ".fifo");
    let jobs = queue.mailbox(super::backend(&queue.proxy.endpoint()).create_missing(true));
    jobs.send(&1).blocking().unwrap();
    let message = jobs.receive().visibility_timeout(HOURS).blocking().unwrap().remove(0);
    let mut stalled = Vec::new();
    queue.proxy.on(move |request| {
        let is_first = !stalled.contains(&request.operation) && !request.is("ReceiveMessage");
        stalled.push(request.operation.clone());
        if is_first { Fate::StallReply } else { Fate::Pass }
    });
    let (sent, done) = (begin(jobs.send(&2)), begin(message.acknowledge()));
    queue.proxy.wait_until_held(2);
    end([sent]).remove(0).unwrap();
    end([done]).remove(0).unwrap();
    assert_eq!(queue.proxy.count("SendMessage"), 3);
    queue.proxy.clear_faults();
    let got = take_all(&jobs);
    assert_eq!(got.iter().map(|message| message.body).collect::<Vec<_>>(), [2], "stored once");
}

/// The text of a refusal may repeat the request, including a session token.
#[test]
fn rejected_credentials_are_a_permanent_error_without_secrets() {
    let queue = TestQueue::moto();
    let jobs = queue.jobs();
    for code in ["SignatureDoesNotMatch", "InvalidClientTokenId", "ExpiredToken"] {
        queue.proxy.on(move |_| {
            let text = format!(
                "The request signature we calculated does not match the signature you provided.\n\nThe Canonical String \
                 for this request should have been\n'POST\n/\n\nhost:sqs\nx-amz-security-token:{TOKEN}\n\nhost'"
            );
            refusal(code, code, &text)
        });
        let error = jobs.send(&1).blocking().unwrap_err();
        let text = shown(&error);
        assert!(!error.is_transient() && text.contains("does not accept these credentials"), "{error:?}");
        assert!(text.contains(code) && text.contains(&queue.name), "{text}");
    }
    queue
        .proxy
        .on(|_| refusal("AccessDenied", "AccessDenied", "User test is not authorized to perform: sqs:SendMessage"));
    let error = jobs.send(&1).blocking().unwrap_err();
    let text = shown(&error);
    assert!(!error.is_transient() && text.contains("does not permit") && text.contains("sqs:SendMessage"), "{text}");
    assert!(!format!("{:?} {:?}", queue.builder(), queue.builder().build()).contains(SECRET));
}

/// SQS repeats the error codes of its older query protocol in a header. They have other names.
#[test]
fn transient_refusals_are_known_by_either_error_code() {
    let queue = TestQueue::moto();
    let jobs = queue.absent();
    let cases = [
        ("CreateQueue", "QueueDeletedRecently", "AWS.SimpleQueueService.QueueDeletedRecently"),
        ("GetQueueUrl", "KmsThrottled", "KMS.ThrottlingException"),
        ("GetQueueUrl", "RequestThrottled", "RequestThrottled"),
    ];
    for (operation, code, query_code) in cases {
        queue.proxy.on(move |request| match request.operation == operation {
            true => refusal(code, query_code, "wait a minute"),
            false => Fate::Pass,
        });
        let error = jobs.send(&1).blocking().unwrap_err();
        assert!(error.is_transient() && shown(&error).contains("wait a minute"), "{code}: {error:?}");
    }
    queue.proxy.clear_faults();
    jobs.send(&1).blocking().unwrap();
    let message = jobs.receive().blocking().unwrap().remove(0);
    for code in ["AWS.SimpleQueueService.MessageNotInflight", "MessageNotInflight"] {
        jobs.send(&1).blocking().unwrap();
        let message = jobs.receive().blocking().unwrap().remove(0);
        queue.proxy.on(move |_| refusal("MessageNotInflight", code, "late"));
        assert!(matches!(message.nack().blocking(), Err(Error::ReceiptHandleExpired { .. })), "{code}");
        queue.proxy.clear_faults();
    }
    message.acknowledge().blocking().unwrap();
}

/// A user's client may have timeouts that are shorter than a long poll.
#[test]
fn a_long_poll_may_take_longer_than_other_requests() {
    let queue = TestQueue::moto();
    let hasty = client(&queue.proxy.endpoint()).config().to_builder();
    let limits = postbox::aws::sqs::config::timeout::TimeoutConfig::builder()
        .operation_attempt_timeout(Duration::from_secs(1))
        .operation_timeout(Duration::from_secs(1))
        .build();
    let hasty = postbox::aws::sqs::Client::from_conf(hasty.timeout_config(limits).build());
    let jobs = queue.mailbox(postbox::aws::SqsBackend::builder(hasty).create_missing(true));
    assert!(jobs.receive().wait_time(Duration::from_secs(3)).blocking().unwrap().is_empty());
}

#[test]
fn a_long_poll_may_take_longer_than_its_client_reads() {
    let queue = TestQueue::moto();
    let hasty = client(&queue.proxy.endpoint()).config().to_builder();
    let limits = postbox::aws::sqs::config::timeout::TimeoutConfig::builder().read_timeout(Duration::from_millis(500));
    let hasty = postbox::aws::sqs::Client::from_conf(hasty.timeout_config(limits.build()).build());
    let jobs = queue.mailbox(postbox::aws::SqsBackend::builder(hasty).create_missing(true));
    jobs.create().blocking().unwrap();
    queue.proxy.reset_counts();
    assert!(jobs.receive().wait_time(Duration::from_secs(2)).blocking().unwrap().is_empty());
    assert_eq!(queue.proxy.requests(), ["ReceiveMessage"]);
}
