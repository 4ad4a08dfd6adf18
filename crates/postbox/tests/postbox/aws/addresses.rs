//! Addresses and clients for SQS, existing and missing queues, and what may be sent to a queue.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use postbox::aws::QueueSettings;
use postbox::resolver::MailboxFactory as _;
use postbox::*;
use postbox_test_servers::{Certificates, Fate, HttpProxy, REGION};
use serde_json::json;

use super::{HOURS, SECRET, TOKEN, TestQueue, client, json, ministack, moto, refusal, shown};

/// Opens a URI in a child process with these environment variables, and returns the outcome that it prints.
fn outcome(uri: &str, variables: &[(&str, &str)]) -> String {
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "aws::addresses::child_that_opens_a_uri", "--nocapture"]);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("AWS_")) {
        command.env_remove(name);
    }
    command.env("HOME", home.path()).env("AWS_EC2_METADATA_DISABLED", "true").env("POSTBOX_TEST_URI", uri);
    let output = command.envs(variables.iter().copied()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(!text.contains(SECRET) && !text.contains(TOKEN), "{text}");
    let outcome = text.split("outcome: ").nth(1).unwrap_or_else(|| panic!("{text}"));
    outcome.lines().next().unwrap_or_default().to_string()
}

const CREDENTIALS: [(&str, &str); 3] =
    [("AWS_ACCESS_KEY_ID", "test"), ("AWS_SECRET_ACCESS_KEY", SECRET), ("AWS_SESSION_TOKEN", TOKEN)];

/// Runs only in a child process.
#[test]
fn child_that_opens_a_uri() {
    let Ok(uri) = std::env::var("POSTBOX_TEST_URI") else { return };
    let works = |jobs: Mailbox<u64, u64>| {
        if !uri.contains("replies=") {
            jobs.send(&1).blocking()?;
            let message = jobs.receive().blocking()?.remove(0);
            return message.acknowledge().blocking();
        }
        let reply = jobs.send_expecting_reply(&1).blocking()?;
        let message = jobs.receive().blocking()?.remove(0);
        message.reply(&(message.body + 1)).blocking()?;
        assert_eq!(reply.wait().blocking()?, 2);
        // Open the address also by a factory that allows it.
        let factory = UriMailboxFactory::new().allow_all();
        let same: Mailbox<u64> = factory.create(&uri).blocking()?.typed();
        same.send(&3).blocking()?;
        let message = jobs.receive().blocking()?.remove(0);
        assert_eq!(message.body, 3);
        message.acknowledge().blocking()
    };
    match postbox::open(uri.as_str()).blocking().and_then(works) {
        Ok(()) => println!("\noutcome: works"),
        Err(error) => {
            shown(&error);
            println!("\noutcome: transient {}: {}", error.is_transient(), error.to_string().replace('\n', " "));
        }
    }
}

#[test]
fn a_uri_opens_a_queue_with_the_credentials_of_the_environment() {
    for (server, suffix) in [(moto(), ""), (moto(), ".fifo"), (ministack(), "")] {
        let name = format!("by-uri-{}{suffix}", MessageId::new());
        let uri = format!(
            "sqs://eu-west-1/{name}?create=true&endpoint={server}&replies=dynamodb://eu-west-1/replies-{}",
            MessageId::new()
        );
        assert_eq!(outcome(&uri, &CREDENTIALS), "works");
        // The queue exists now. A program that creates nothing finds it, also in a region that the environment names.
        let region = [("AWS_REGION", "eu-west-1"), ("AWS_ENDPOINT_URL", &server)];
        let variables: Vec<_> = CREDENTIALS.into_iter().chain(region).collect();
        assert_eq!(outcome(&format!("sqs:///{name}"), &variables), "works");
    }
}

#[test]
fn a_uri_that_cannot_be_opened_says_why() {
    let server = moto();
    let here = |rest: &str| format!("sqs://eu-west-1/{rest}&endpoint={server}");
    let fails = |uri: &str, variables: &[(&str, &str)], is_transient: bool, words: &[&str]| {
        let outcome = outcome(uri, variables);
        assert!(outcome.starts_with(&format!("transient {is_transient}: ")), "{uri}: {outcome}");
        words.iter().for_each(|word| assert!(outcome.contains(word), "{uri}: no {word:?} in {outcome}"));
    };
    fails(
        &here("nobody-made-this?create=false"),
        &CREDENTIALS,
        false,
        &["nobody-made-this", "sqs://eu-west-1", "create"],
    );
    fails(&here("x?create=true"), &[], false, &["no credentials", "sqs://eu-west-1/x"]);
    let broken = [("AWS_PROFILE", "nobody-has-this")];
    fails(&here("x?create=true"), &broken, false, &["credentials", "sqs://eu-west-1/x"]);
    let away = [("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:1/credentials")];
    fails(&here("x?create=true"), &away, true, &["could not be loaded", "sqs://eu-west-1/x"]);
    fails(&here("x?create=yes"), &CREDENTIALS, false, &["create", "true or false"]);
    fails(&here("x?colour=red"), &CREDENTIALS, false, &["colour"]);
    fails(&here("x?group="), &CREDENTIALS, false, &["group"]);
    fails(&here("x?replies=redis://y"), &CREDENTIALS, false, &["dynamodb://region/table"]);
    fails(&here("x?idle_expiry=60s"), &CREDENTIALS, false, &["idle"]);
    fails("sqs://eu_west/x", &CREDENTIALS, false, &["no region"]);
    fails(&format!("sqs://user:{SECRET}@eu-west-1/x"), &CREDENTIALS, false, &["no region"]);
    fails(&here(&format!("x?replies=dynamodb://key:{SECRET}@eu-west-1/t")), &CREDENTIALS, false, &["%40"]);
    fails(&format!("sqs://eu-west-1/x?endpoint=user:{SECRET}%40host"), &CREDENTIALS, false, &["endpoint", "***@host"]);
    fails("sqs:///x", &CREDENTIALS, false, &["region"]);
    fails("sqs://eu-west-1/x?endpoint=localhost", &CREDENTIALS, false, &["endpoint", "http://localhost:4566"]);
    let closed_port = HttpProxy::start(1);
    closed_port.refuse(true);
    let uri = format!("sqs://eu-west-1/x?endpoint=http://user:{SECRET}%40127.0.0.1:{}", closed_port.port());
    fails(&uri, &CREDENTIALS, true, &["sqs://eu-west-1/x", "127.0.0.1"]);
}

#[test]
fn a_queue_of_another_name_is_used_by_its_url() {
    for (server, suffix) in [(moto(), ""), (ministack(), ".fifo")] {
        let queue = TestQueue::new(server, "");
        let queue_name = |name: &str| format!("{}-{name}{suffix}", queue.name);
        let attributes = if suffix.is_empty() { json!({}) } else { json!({ "FifoQueue": "true" }) };
        for name in ["production", "production-dead"] {
            queue.call("CreateQueue", json!({ "QueueName": queue_name(name), "Attributes": attributes }));
        }
        let url = queue.url(&queue_name("production"));
        let backend = queue.builder().queue_url("jobs", &url).unwrap().build();
        let jobs: Mailbox<u64> = Connection::new(backend).mailbox("jobs").unwrap();
        assert_eq!(jobs.limits().groups, !suffix.is_empty());
        jobs.send(&7).blocking().unwrap();
        let counts = queue.call("GetQueueAttributes", json!({ "QueueUrl": url, "AttributeNames": ["All"] }));
        assert_eq!(counts["Attributes"]["ApproximateNumberOfMessages"], "1");
        assert_eq!(jobs.receive().blocking().unwrap()[0].body, 7);
        jobs.delete().blocking().unwrap();
        // This queue still exists: its name alone does not make it the mailbox's dead-letter queue.
        queue.url(&queue_name("production-dead"));
    }
}

#[test]
fn a_url_without_a_queue_is_an_error_and_creates_none() {
    for url in ["jobs", "https://sqs.eu-west-1.amazonaws.com", "https://sqs.eu-west-1.amazonaws.com/1/", "ftp://a/b"] {
        let error = TestQueue::moto().builder().queue_url("jobs", url).map(drop).unwrap_err();
        assert!(matches!(error, Error::InvalidParameter { parameter: "queue_url", .. }), "{error:?}");
    }
    let queue = TestQueue::moto();
    let url = format!("{}/123456789012/{}", queue.server, queue.name);
    let backend = queue.builder().create_missing(true).queue_url("jobs", &url).unwrap().build();
    let jobs: Mailbox<u64> = Connection::new(backend).mailbox("jobs").unwrap();
    for error in [jobs.send(&1).blocking().map(drop).unwrap_err(), jobs.create().blocking().unwrap_err()] {
        assert!(!error.is_transient() && shown(&error).contains(&url), "{error:?}");
    }
}

#[test]
fn settings_that_sqs_does_not_accept_are_named() {
    let queue = TestQueue::moto();
    let backend = queue.builder().build();
    // Local servers accept any value, so the proxy sends the error of SQS.
    queue.proxy.on(|request| match request.operation == "CreateQueue" {
        true => refusal("InvalidAttributeValue", "InvalidAttributeValue", "Invalid value for MessageRetentionPeriod"),
        false => Fate::Pass,
    });
    let settings = QueueSettings::new().retention(Duration::from_secs(1));
    let error = backend.create_queue(&queue.name, settings).blocking().unwrap_err();
    assert!(matches!(error, Error::InvalidParameter { parameter: "queue settings", .. }), "{error:?}");
    assert!(shown(&error).contains("Invalid value for MessageRetentionPeriod"), "{error}");
    // The name leaves room for the name of the dead-letter queue.
    let long = "x".repeat(78);
    let error = backend.create_queue(&long, QueueSettings::new().max_deliveries(3)).blocking().unwrap_err();
    assert!(matches!(error, Error::InvalidParameter { parameter: "mailbox name", .. }), "{error:?}");
    assert!(shown(&error).contains("74"), "{error}");
}

#[test]
fn a_missing_queue_is_named_with_its_region_by_every_verb() {
    let queue = TestQueue::moto();
    let jobs = queue.mailbox(queue.builder());
    for error in [
        jobs.send(&1).blocking().unwrap_err(),
        jobs.receive().blocking().map(drop).unwrap_err(),
        jobs.receive().wait_time(super::LONG).blocking().map(drop).unwrap_err(),
        jobs.counts().blocking().map(drop).unwrap_err(),
        jobs.purge().blocking().map(drop).unwrap_err(),
        jobs.dead_letters().list(1).blocking().map(drop).unwrap_err(),
        jobs.dead_letters().redrive(1).blocking().map(drop).unwrap_err(),
    ] {
        let text = shown(&error);
        assert!(matches!(error, Error::Resolution { .. }), "{error:?}");
        assert!(text.contains(&queue.name) && text.contains(REGION) && text.contains("create"), "{text}");
    }
    jobs.delete().blocking().unwrap();
    // A queue that is removed while it is used is named too, and used again when it exists.
    jobs.create().blocking().unwrap();
    jobs.send(&1).blocking().unwrap();
    queue.others().delete().blocking().unwrap();
    assert!(matches!(jobs.send(&2).blocking(), Err(Error::Resolution { .. })));
    jobs.create().blocking().unwrap();
    jobs.send(&3).blocking().unwrap();
}

/// A queue can be missing because it was removed, or because SQS does not find a new queue yet.
#[test]
fn a_removed_queue_is_created_again_where_allowed() {
    let queue = TestQueue::moto();
    let jobs = queue.jobs();
    queue.others().delete().blocking().unwrap();
    super::assert_passing(&jobs.send(&1).blocking().unwrap_err(), &queue.name);
    jobs.send(&2).blocking().unwrap();
    let message = jobs.receive().blocking().unwrap().remove(0);
    queue.others().delete().blocking().unwrap();
    super::assert_passing(&jobs.receive().blocking().map(drop).unwrap_err(), &queue.name);
    assert!(jobs.receive().blocking().unwrap().is_empty());
    assert!(message.acknowledge().blocking().is_err());
}

#[test]
fn names_and_tenants_are_kept_apart() {
    let queue = TestQueue::moto();
    let connection = Connection::new(queue.builder().create_missing(true).build());
    let own: String = queue.name.chars().take(20).collect();
    let pairs = [(Some("a"), "b"), (None, "a_-tb"), (None, "a:b"), (Some("a_"), "b"), (Some("a"), "_b"), (None, "a.b")];
    let mailboxes: Vec<Mailbox<u64>> = pairs
        .iter()
        .map(|(prefix, name)| match prefix {
            Some(prefix) => connection.clone().prefix(format!("{own}{prefix}")).mailbox(name).unwrap(),
            None => connection.mailbox(&format!("{own}{name}")).unwrap(),
        })
        .collect();
    for (number, mailbox) in (0..).zip(&mailboxes) {
        mailbox.send(&number).blocking().unwrap();
    }
    for (number, mailbox) in (0..).zip(&mailboxes) {
        let got = mailbox.receive().max_messages(10).visibility_timeout(HOURS).blocking().unwrap();
        assert_eq!(got.iter().map(|message| message.body).collect::<Vec<_>>(), [number], "{:?}", mailbox.name());
    }
    let tenant = connection.prefix(format!("{own}a"));
    let listed: Vec<_> = tenant.list().blocking().unwrap().iter().map(|name| name.as_str().to_string()).collect();
    assert_eq!(listed, ["_b", "b"]);
}

#[test]
fn names_that_sqs_does_not_allow_are_refused_without_a_request() {
    let queue = TestQueue::moto();
    let connection = Connection::new(queue.builder().create_missing(true).build());
    for name in ["x".repeat(81), ".".repeat(27), ".fifo".into(), format!("{}.fifo", "x".repeat(76))] {
        let error = connection.mailbox::<u64, (), Json>(&name).map(drop).unwrap_err();
        assert!(matches!(error, Error::InvalidParameter { .. }) && error.to_string().contains("80"), "{error:?}");
    }
    assert_eq!(queue.proxy.requests(), [""; 0]);
    // A name without room for the name of a dead-letter queue works without dead letters.
    let name = format!("{:x<79}", MessageId::new().to_string());
    queue.proxy.on(|request| {
        let asked = json(request);
        assert!(asked["QueueName"].as_str().is_none_or(|name| name.len() <= 80), "{asked}");
        Fate::Pass
    });
    let jobs: Mailbox<u64> = connection.mailbox(&name).unwrap();
    jobs.send(&1).blocking().unwrap();
    assert_eq!(jobs.counts().blocking().unwrap(), Counts::new(1, 0, 0, 0));
    assert!(jobs.dead_letters().list(10).blocking().unwrap().is_empty());
    jobs.delete().blocking().unwrap();
}

#[test]
fn a_factory_of_mailboxes_on_sqs_resolves_names() {
    let queue = TestQueue::moto();
    let connection = Connection::new(queue.builder().create_missing(true).build());
    let resolver = CompositeResolver::new().factory(connection.clone());
    let jobs: Mailbox<u64> = connection.clone().resolver(resolver.clone()).mailbox(&queue.name).unwrap();
    let responses = format!("{}-responses", queue.name);
    jobs.send(&1).reply_to(&responses).blocking().unwrap();
    let message = jobs.receive().blocking().unwrap().remove(0);
    message.reply_mailbox::<u64>().blocking().unwrap().send(&2u64).blocking().unwrap();
    let same: Mailbox<u64> = connection.mailbox(&responses).unwrap();
    assert_eq!(same.receive().blocking().unwrap()[0].body, 2);
    assert!(resolver.check_health().blocking().is_empty());
    queue.proxy.on(|_| Fate::internal());
    assert_eq!(resolver.check_health().blocking(), [responses]);
}

#[test]
fn the_settings_of_a_queue_arrive() {
    for server in [moto(), ministack()] {
        let queue = TestQueue::new(server, ".fifo");
        let backend = queue.builder().build();
        let settings = QueueSettings::new()
            .visibility_timeout(Duration::from_secs(77))
            .retention(Duration::from_secs(7_200))
            .delay(Duration::from_secs(3))
            .max_message_size(2_048)
            .content_based_deduplication(true)
            .high_throughput()
            .max_deliveries(4);
        backend.create_queue(&queue.name, settings.clone()).blocking().unwrap();
        backend.create_queue(&queue.name, settings).blocking().unwrap();
        let url = queue.url(&queue.name);
        let has = queue.call("GetQueueAttributes", json!({ "QueueUrl": url, "AttributeNames": ["All"] }));
        for (name, value) in [
            ("VisibilityTimeout", "77"),
            ("MessageRetentionPeriod", "7200"),
            ("DelaySeconds", "3"),
            ("MaximumMessageSize", "2048"),
            ("ContentBasedDeduplication", "true"),
            ("DeduplicationScope", "messageGroup"),
            ("FifoThroughputLimit", "perMessageGroupId"),
        ] {
            assert_eq!(has["Attributes"][name], value, "{name}");
        }
        assert!(has["Attributes"]["RedrivePolicy"].as_str().unwrap().contains("_-dead.fifo"), "{has}");
        let other = QueueSettings::new().visibility_timeout(Duration::from_secs(78));
        let error = backend.create_queue(&queue.name, other).blocking().unwrap_err();
        assert!(matches!(error, Error::InvalidParameter { .. }), "{error:?}");
        assert!(error.to_string().contains("78") && error.to_string().contains(&queue.name), "{error}");
    }
}

#[test]
fn a_different_max_deliveries_of_the_queue_is_an_error_unless_it_may_be_changed() {
    for server in [moto(), ministack()] {
        let queue = TestQueue::new(server, "");
        queue.builder().build().create_queue(&queue.name, QueueSettings::new().max_deliveries(3)).blocking().unwrap();
        let wants = |most: u32| -> Mailbox<u64> {
            Connection::new(queue.builder().build()).max_deliveries(most).mailbox(&queue.name).unwrap()
        };
        wants(3).send(&1).blocking().unwrap();
        let error = wants(5).send(&1).blocking().unwrap_err();
        assert!(matches!(error, Error::InvalidParameter { parameter: "max_deliveries", .. }), "{error:?}");
        assert!(
            error.to_string().contains("maxReceiveCount = 3") && error.to_string().contains(&queue.name),
            "{error}"
        );
        wants(5).create().blocking().unwrap();
        wants(5).send(&1).blocking().unwrap();
        assert!(wants(3).send(&1).blocking().is_err());
        // Without permission to read the attributes, the difference is not noticed.
        queue.first(usize::MAX, "GetQueueAttributes", || refusal("AccessDenied", "AccessDenied", "no"));
        let error = wants(5).send(&1).blocking().unwrap_err();
        assert!(error.to_string().contains("GetQueueAttributes is not permitted"), "{error}");
    }
}

#[test]
fn a_queue_can_be_used_without_permission_to_read_its_attributes() {
    let queue = TestQueue::moto();
    queue.others().create().blocking().unwrap();
    queue.first(usize::MAX, "GetQueueAttributes", || refusal("AccessDenied", "AccessDenied", "not yours to see"));
    let jobs = queue.mailbox(queue.builder());
    jobs.send(&1).blocking().unwrap();
    let message = jobs.receive().blocking().unwrap().remove(0);
    message.nack().blocking().unwrap();
    jobs.receive().blocking().unwrap().remove(0).acknowledge().blocking().unwrap();
    let error = jobs.counts().blocking().unwrap_err();
    assert!(!error.is_transient() && shown(&error).contains("not yours to see"), "{error:?}");
}

#[test]
fn a_message_that_is_too_large_is_named_with_both_sizes() {
    let queue = TestQueue::moto();
    let backend = queue.builder().build();
    backend.create_queue(&queue.name, QueueSettings::new().max_message_size(2_048)).blocking().unwrap();
    let texts: Mailbox<String> = Connection::new(backend).mailbox(&queue.name).unwrap();
    let (small, large) = ("x".repeat(1_500), "x".repeat(2_100));
    let results = texts.send_batch(&[small.clone(), large.clone(), small.clone()]).blocking().unwrap();
    assert!(results[0].is_ok() && results[2].is_ok(), "{results:?}");
    let text = results[1].as_ref().unwrap_err().to_string();
    assert!(text.contains("2048") && text.contains(&queue.name) && text.contains("bytes"), "{text}");
    // Attributes count for the size.
    assert!(texts.send(&small).attribute("a", "y".repeat(600)).blocking().is_err());
    assert_eq!(texts.approximate_count().blocking().unwrap(), 2);
    queue.proxy.reset_counts();
    let error = texts.send(&"x".repeat(1 << 20)).blocking().unwrap_err();
    assert!(matches!(error, Error::InvalidParameter { .. }), "{error:?}");
    assert_eq!(queue.proxy.count("SendMessage"), 0);
}

#[test]
fn the_largest_message_passes() {
    for server in [moto(), ministack()] {
        let queue = TestQueue::new(server, "");
        let connection = Connection::new(queue.builder().create_missing(true).build());
        let raw: Mailbox<Vec<u8>, (), Raw> = connection.mailbox(&queue.name).unwrap();
        let largest = vec![b'x'; (1 << 20) - 400];
        raw.send(&largest).blocking().unwrap();
        assert_eq!(raw.receive().blocking().unwrap()[0].body, largest);
        let binary = vec![0u8; 700 << 10];
        raw.send(&binary).blocking().unwrap();
        assert_eq!(raw.receive().blocking().unwrap()[0].body, binary);
        // In base64 the body exceeds the limit of SQS.
        let error = raw.send(&vec![0u8; 900 << 10]).blocking().unwrap_err();
        assert!(matches!(error, Error::InvalidParameter { .. }), "{error:?}");
    }
}

#[test]
fn more_attributes_than_sqs_supports_are_delivered() {
    for server in [moto(), ministack()] {
        let queue = TestQueue::new(server, "");
        let jobs = queue.jobs();
        let send = (0..25).fold(jobs.send(&1), |send, at| send.attribute(format!("a{at}"), format!("{at}")));
        send.reply_to("elsewhere").blocking().unwrap();
        let message = jobs.receive().blocking().unwrap().remove(0);
        assert_eq!(message.attributes.len(), 25);
        assert!((0..25).all(|at| message.attributes[&format!("a{at}")] == at.to_string()));
        assert_eq!(message.reply_to.as_deref(), Some("elsewhere"));
    }
}

#[test]
fn messages_of_other_programs_are_received_unchanged() {
    for server in [moto(), ministack()] {
        let queue = TestQueue::new(server, "");
        let jobs = queue.jobs();
        let sent = queue.call(
            "SendMessage",
            json!({
                "QueueUrl": queue.url(&queue.name),
                "MessageBody": "17",
                "MessageAttributes": {
                    "tries": { "DataType": "Number", "StringValue": "3" },
                    "raw": { "DataType": "Binary", "BinaryValue": "AP8=" },
                    "kind": { "DataType": "String.custom", "StringValue": "odd" },
                },
            }),
        );
        let message = jobs.receive().blocking().unwrap().remove(0);
        assert_eq!((message.body, message.id.to_string().as_str()), (17, sent["MessageId"].as_str().unwrap()));
        let attributes: Vec<_> =
            message.attributes.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(attributes, [("kind", "odd"), ("raw", "AP8="), ("tries", "3")]);
        message.acknowledge().blocking().unwrap();
        // A body that the mailbox cannot decode is an error.
        queue.call("SendMessage", json!({ "QueueUrl": queue.url(&queue.name), "MessageBody": "<xml/>" }));
        assert!(matches!(jobs.receive().blocking(), Err(Error::Serialization { .. })));
    }
}

#[test]
fn regions_are_separate() {
    let queue = TestQueue::moto();
    queue.jobs().send(&1).blocking().unwrap();
    let config = client(&queue.server).config().to_builder();
    let elsewhere =
        postbox::aws::sqs::Client::from_conf(config.region(postbox::aws::config::Region::new("ap-south-1")).build());
    let other = queue.mailbox(postbox::aws::SqsBackend::builder(elsewhere));
    let error = other.receive().blocking().map(drop).unwrap_err();
    assert!(error.to_string().contains("sqs://ap-south-1"), "{error}");
}

/// Forwards TLS connections to a port without TLS.
const UNWRAP: &str = r#"
import socket, ssl, sys, threading

def pour(source, sink):
    try:
        while data := source.recv(65536):
            sink.sendall(data)
    except OSError:
        pass
    sink.close()

context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1], sys.argv[2])
door = socket.create_server(("127.0.0.1", 0))
print(door.getsockname()[1], flush=True)
while True:
    outer = door.accept()[0]
    try:
        outer = context.wrap_socket(outer, server_side=True)
    except OSError:
        continue
    inner = socket.create_connection(("127.0.0.1", int(sys.argv[3])))
    for way in ((outer, inner), (inner, outer)):
        threading.Thread(target=pour, args=way, daemon=True).start()
"#;

#[test]
fn a_tls_server_is_used_if_its_certificate_is_valid() {
    let server = ministack();
    let certificates = Certificates::generate();
    let mut unwrap = Command::new("python3")
        .args(["-c", UNWRAP])
        .args([certificates.server_certificate(), certificates.server_key()])
        .arg(server.rsplit(':').next().unwrap().trim_end_matches('/'))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut port = String::new();
    BufReader::new(unwrap.stdout.as_mut().unwrap()).read_line(&mut port).unwrap();
    let name = format!("tls-{}", std::process::id());
    let uri = format!("sqs://{REGION}/{name}?create=true&endpoint=https://localhost:{}", port.trim());
    let outcome_by = |authority: &Certificates| {
        let file = authority.ca().display().to_string();
        outcome(&uri, &[&CREDENTIALS[..], &[("SSL_CERT_FILE", &file)]].concat())
    };
    let good = outcome_by(&certificates);
    let bad = outcome_by(&Certificates::generate());
    unwrap.kill().unwrap();
    unwrap.wait().unwrap();
    assert_eq!(good, "works");
    assert!(bad.contains("certificate"), "{bad}");
}

/// Requests to AWS use the proxy of the environment. Requests to a server on this machine do not.
#[test]
fn requests_go_through_the_proxy_of_the_environment() {
    use std::io::{BufRead as _, BufReader};

    let proxy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", proxy.local_addr().unwrap());
    let asked = std::thread::spawn(move || {
        let mut lines = BufReader::new(proxy.accept().unwrap().0).lines();
        lines.next().unwrap().unwrap()
    });
    let proxies = [("HTTPS_PROXY", address.as_str()), ("HTTP_PROXY", &address), ("NO_PROXY", "127.0.0.1")];
    let variables: Vec<_> = CREDENTIALS.into_iter().chain(proxies).collect();
    let here = format!("sqs://eu-west-1/proxied-{}?create=true&endpoint={}", MessageId::new(), moto());
    assert_eq!(outcome(&here, &variables), "works");
    let outcome = outcome("sqs://eu-west-1/jobs", &variables);
    assert!(outcome.starts_with("transient true: "), "{outcome}");
    assert_eq!(asked.join().unwrap(), "CONNECT sqs.eu-west-1.amazonaws.com:443 HTTP/1.1");
}

/// AWS uses the trace id to detect functions that call themselves.
#[test]
fn requests_of_a_lambda_function_carry_its_trace_id() {
    let queue = TestQueue::moto();
    let traces = Arc::new(Mutex::new(Vec::new()));
    queue.proxy.on({
        let traces = Arc::clone(&traces);
        move |request| {
            let trace = request.headers.iter().find(|(name, _)| name == "x-amzn-trace-id");
            traces.lock().unwrap().push(trace.map(|(_, value)| value.clone()));
            Fate::Pass
        }
    });
    let uri = format!("sqs://eu-west-1/{}?create=true&endpoint={}", queue.name, queue.proxy.endpoint());
    let function = [("AWS_LAMBDA_FUNCTION_NAME", "f"), ("_X_AMZN_TRACE_ID", "Root=1-2-3")];
    let variables: Vec<_> = CREDENTIALS.into_iter().chain(function).collect();
    assert_eq!(outcome(&uri, &variables), "works");
    let mut traces = std::mem::take(&mut *traces.lock().unwrap());
    assert!(!traces.is_empty());
    traces.dedup();
    assert_eq!(traces, [Some("Root=1-2-3".to_string())]);
}
