//! Attributes of queues: CreateQueue, SetQueueAttributes, GetQueueAttributes; tags.

use crate::{created, failure, map, queue, texts};
use postbox_server::queue::*;
use postbox_server::{ErrorKind, SqsError};
use std::collections::BTreeMap;

const DEAD: &str = "arn:aws:sqs:eu-west-1:111111111111:dead";

fn create(name: &str, attributes: &[(&str, &str)]) -> Result<QueueAttributes, SqsError> {
    QueueAttributes::create(&queue(name), &map(attributes))
}

fn set(name: &str, attributes: &mut QueueAttributes, changes: &[(&str, &str)]) -> Result<(), SqsError> {
    attributes.set(&queue(name), &map(changes))
}

fn show(name: &str, attributes: &QueueAttributes, names: &[&str]) -> BTreeMap<String, String> {
    let figures =
        QueueFigures { messages: 1, messages_not_visible: 2, messages_delayed: 3, created: 4, last_modified: 5 };
    attributes.show(&queue(name), &figures, &texts(names)).unwrap()
}

#[test]
fn defaults_of_a_standard_queue() {
    assert_eq!(
        show("jobs", &created("jobs", &[]), &["All"]),
        map(&[
            ("ApproximateNumberOfMessages", "1"),
            ("ApproximateNumberOfMessagesNotVisible", "2"),
            ("ApproximateNumberOfMessagesDelayed", "3"),
            ("CreatedTimestamp", "4"),
            ("LastModifiedTimestamp", "5"),
            ("QueueArn", "arn:aws:sqs:eu-west-1:111111111111:jobs"),
            ("DelaySeconds", "0"),
            ("MaximumMessageSize", "1048576"),
            ("MessageRetentionPeriod", "345600"),
            ("ReceiveMessageWaitTimeSeconds", "0"),
            ("SqsManagedSseEnabled", "true"),
            ("VisibilityTimeout", "30"),
        ])
    );
}

#[test]
fn defaults_of_a_fifo_queue() {
    let names = ["FifoQueue", "ContentBasedDeduplication", "DeduplicationScope", "FifoThroughputLimit"];
    assert_eq!(
        show("jobs.fifo", &created("jobs.fifo", &[("FifoQueue", "true")]), &names),
        map(&[
            ("FifoQueue", "true"),
            ("ContentBasedDeduplication", "false"),
            ("DeduplicationScope", "queue"),
            ("FifoThroughputLimit", "perQueue"),
        ])
    );
}

#[test]
fn get_shows_what_it_is_asked_for_and_has() {
    let attributes = created("jobs", &[]);
    assert_eq!(show("jobs", &attributes, &[]), map(&[]));
    assert_eq!(show("jobs", &attributes, &["KmsMasterKeyId", "Policy", "FifoQueue"]), map(&[]));
    assert_eq!(show("jobs", &attributes, &["VisibilityTimeout", "Policy"]), map(&[("VisibilityTimeout", "30")]));
    for (names, unknown) in [(&["QueueArn", "Foobar", "x"][..], "Foobar"), (&[""], ""), (&["queuearn"], "queuearn")] {
        let result = attributes.show(&queue("jobs"), &QueueFigures::default(), &texts(names));
        assert_eq!(failure(result), (ErrorKind::InvalidAttributeName, format!("Unknown Attribute {unknown}.")));
    }
}

#[test]
fn true_in_any_case_is_given_back_in_lower_case() {
    let attributes = created("a.fifo", &[("FifoQueue", "True"), ("ContentBasedDeduplication", "TRUE")]);
    let shown = show("a.fifo", &attributes, &["FifoQueue", "ContentBasedDeduplication"]);
    assert_eq!(shown, map(&[("FifoQueue", "true"), ("ContentBasedDeduplication", "true")]));
}

#[test]
fn names_and_types_of_queues_agree() {
    for (name, attributes) in
        [("jobs", &[("FifoQueue", "true")][..]), ("jobs.fifo", &[]), ("jobs.fifo", &[("FifoQueue", "false")])]
    {
        assert_eq!(create(name, attributes).unwrap_err().kind, ErrorKind::InvalidParameterValue, "{name}");
    }
}

#[test]
fn attributes_that_need_a_fifo_queue() {
    let needs = |name: &str| format!("You can specify the {name} only when FifoQueue is set to true.");
    for (name, value, message) in [
        ("FifoQueue", "false", "Unknown Attribute FifoQueue.".into()),
        ("ContentBasedDeduplication", "true", "Unknown Attribute ContentBasedDeduplication.".into()),
        ("ContentBasedDeduplication", "false", "Unknown Attribute ContentBasedDeduplication.".into()),
        ("DeduplicationScope", "queue", needs("DeduplicationScope")),
        ("FifoThroughputLimit", "perQueue", needs("FifoThroughputLimit")),
    ] {
        let expected = (ErrorKind::InvalidAttributeName, message);
        assert_eq!(failure(create("jobs", &[(name, value)])), expected);
        assert_eq!(failure(set("jobs", &mut created("jobs", &[]), &[(name, value)])), expected);
    }
    let expected = (ErrorKind::InvalidAttributeName, "Unknown Attribute FifoQueue.".to_owned());
    assert_eq!(failure(set("jobs", &mut created("jobs", &[]), &[("FifoQueue", "true")])), expected);
}

#[test]
fn the_type_of_a_queue_does_not_change() {
    let mut fifo = created("a.fifo", &[("FifoQueue", "true")]);
    assert_eq!(set("a.fifo", &mut fifo, &[("FifoQueue", "true")]), Ok(()));
    let message = "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported.";
    assert_eq!(
        failure(set("a.fifo", &mut fifo, &[("FifoQueue", "false")])),
        (ErrorKind::InvalidAttributeValue, message.into())
    );
}

#[test]
fn ranges_of_numbers() {
    for (name, lowest, highest) in [
        ("DelaySeconds", 0, 900),
        ("MaximumMessageSize", 1024, 1_048_576),
        ("MessageRetentionPeriod", 60, 1_209_600),
        ("ReceiveMessageWaitTimeSeconds", 0, 20),
        ("VisibilityTimeout", 0, 43_200),
        ("KmsDataKeyReusePeriodSeconds", 60, 86_400),
    ] {
        for value in [lowest, highest] {
            assert!(create("jobs", &[(name, &value.to_string())]).is_ok(), "{name}={value}");
        }
        let message = format!("Invalid value for the parameter {name}.");
        for value in [&*(lowest - 1).to_string(), &(highest + 1).to_string(), "", "x", "1.0", " 1", "4294967296"] {
            let expected = (ErrorKind::InvalidAttributeValue, message.clone());
            assert_eq!(failure(create("jobs", &[(name, value)])), expected, "{name}={value}");
        }
    }
}

#[test]
fn values_that_are_no_numbers() {
    for (name, value) in [
        ("FifoQueue", "tru"),
        ("ContentBasedDeduplication", "1"),
        ("SqsManagedSseEnabled", "yes"),
        ("DeduplicationScope", "group"),
        ("FifoThroughputLimit", "PerQueue"),
        ("Policy", "{"),
        ("Policy", "[]"),
        ("Policy", "{}"),
    ] {
        let mut attributes = vec![("FifoQueue", "true")];
        attributes.push((name, value));
        let expected = (ErrorKind::InvalidAttributeValue, format!("Invalid value for the parameter {name}."));
        assert_eq!(failure(create("a.fifo", &attributes)), expected, "{name}={value}");
    }
    for (scope, limit) in [("queue", "perQueue"), ("messageGroup", "perMessageGroupId")] {
        let attributes = [("FifoQueue", "true"), ("DeduplicationScope", scope), ("FifoThroughputLimit", limit)];
        assert!(create("a.fifo", &attributes).is_ok());
    }
}

#[test]
fn attributes_that_nobody_can_set() {
    for name in ["All", "QueueArn", "CreatedTimestamp", "ApproximateNumberOfMessages", "Foo", ""] {
        let expected = (ErrorKind::InvalidAttributeName, format!("Unknown Attribute {name}."));
        assert_eq!(failure(create("jobs", &[(name, "1")])), expected);
    }
}

#[test]
fn a_failed_set_changes_nothing() {
    let mut attributes = created("jobs", &[]);
    assert!(set("jobs", &mut attributes, &[("DelaySeconds", "5"), ("VisibilityTimeout", "x")]).is_err());
    assert_eq!(attributes, created("jobs", &[]));
}

#[test]
fn encryption() {
    const NAMES: [&str; 3] = ["KmsMasterKeyId", "KmsDataKeyReusePeriodSeconds", "SqsManagedSseEnabled"];
    let mut attributes = created("jobs", &[]);
    set("jobs", &mut attributes, &[("KmsMasterKeyId", "k"), ("KmsDataKeyReusePeriodSeconds", "6000")]).unwrap();
    let with_key =
        [("KmsMasterKeyId", "k"), ("KmsDataKeyReusePeriodSeconds", "6000"), ("SqsManagedSseEnabled", "false")];
    assert_eq!(show("jobs", &attributes, &NAMES), map(&with_key));
    set("jobs", &mut attributes, &[("KmsMasterKeyId", ""), ("KmsDataKeyReusePeriodSeconds", "300")]).unwrap();
    assert_eq!(show("jobs", &attributes, &NAMES), map(&[("SqsManagedSseEnabled", "false")]));
    set("jobs", &mut attributes, &[("SqsManagedSseEnabled", "true")]).unwrap();
    assert_eq!(show("jobs", &attributes, &NAMES), map(&[("SqsManagedSseEnabled", "true")]));

    set("jobs", &mut attributes, &[("KmsDataKeyReusePeriodSeconds", "6000")]).unwrap();
    assert_eq!(show("jobs", &attributes, &NAMES[..2]), map(&[("KmsDataKeyReusePeriodSeconds", "6000")]));

    let message = "You can use one type of server-side encryption (SSE) at one time. \
                   You can either enable KMS SSE or SQS SSE.";
    let both = [("KmsMasterKeyId", "k"), ("SqsManagedSseEnabled", "true")];
    assert_eq!(failure(set("jobs", &mut attributes, &both)), (ErrorKind::InvalidAttributeName, message.into()));
    assert_eq!(create("jobs", &both).unwrap_err().kind, ErrorKind::InvalidAttributeName);
    assert!(create("jobs", &[("KmsMasterKeyId", "k"), ("SqsManagedSseEnabled", "false")]).is_ok());
    assert_eq!(
        show("jobs", &created("jobs", &[("KmsMasterKeyId", "k")]), &NAMES)["KmsDataKeyReusePeriodSeconds"],
        "300"
    );
}

#[test]
fn empty_policies_delete() {
    let policy = "{\"Statement\": []}";
    let redrive = format!("{{\"deadLetterTargetArn\":\"{DEAD}\",\"maxReceiveCount\":3}}");
    let mut attributes = created(
        "jobs",
        &[
            ("Policy", policy),
            ("RedrivePolicy", &redrive),
            ("RedriveAllowPolicy", "{\"redrivePermission\":\"denyAll\"}"),
        ],
    );
    let names = ["Policy", "RedrivePolicy", "RedriveAllowPolicy"];
    assert_eq!(show("jobs", &attributes, &names).len(), 3);
    assert_eq!(show("jobs", &attributes, &["Policy"])["Policy"], policy);
    set("jobs", &mut attributes, &[("Policy", ""), ("RedrivePolicy", ""), ("RedriveAllowPolicy", "")]).unwrap();
    assert_eq!(attributes, created("jobs", &[]));
    assert_eq!(show("jobs", &attributes, &names), map(&[]));
}

#[test]
fn redrive_policies_that_are_taken() {
    for count in ["5", "\"5\""] {
        let policy = RedrivePolicy::parse(&format!(
            "{{ \"maxReceiveCount\": {count}, \"deadLetterTargetArn\": \"{DEAD}\", \"x\": 1 }}"
        ))
        .unwrap();
        let expected = RedrivePolicy { dead_letter_queue: queue("dead"), max_receive_count: 5 };
        assert_eq!(policy, expected);
        let shown = format!("{{\"deadLetterTargetArn\":\"{DEAD}\",\"maxReceiveCount\":5}}");
        assert_eq!(policy.to_json(), shown);
    }
}

#[test]
fn redrive_policies_that_are_refused() {
    for (policy, reason) in [
        ("x".to_owned(), "Reason: Redrive policy is not a valid JSON map."),
        ("[]".to_owned(), "Reason: Redrive policy is not a valid JSON map."),
        ("{\"maxReceiveCount\":1}".to_owned(), "The required parameter 'deadLetterTargetArn' is missing"),
        (format!("{{\"deadLetterTargetArn\":\"{DEAD}\"}}"), "The required parameter 'maxReceiveCount' is missing"),
        (
            "{\"deadLetterTargetArn\":\"dead\",\"maxReceiveCount\":1}".to_owned(),
            "Reason: Invalid value for deadLetterTargetArn.",
        ),
        (
            format!("{{\"deadLetterTargetArn\":\"{DEAD}\",\"maxReceiveCount\":0}}"),
            "Reason: Invalid value for maxReceiveCount: 0, valid values are from 1 to 1000 both inclusive.",
        ),
        (
            format!("{{\"deadLetterTargetArn\":\"{DEAD}\",\"maxReceiveCount\":\"1001\"}}"),
            "Reason: Invalid value for maxReceiveCount: 1001, valid values are from 1 to 1000 both inclusive.",
        ),
        (
            format!("{{\"deadLetterTargetArn\":\"{DEAD}\",\"maxReceiveCount\":\"many\"}}"),
            "Reason: Invalid value for maxReceiveCount: many, valid values are from 1 to 1000 both inclusive.",
        ),
        (
            format!("{{\"deadLetterTargetArn\":\"{DEAD}.fifo\",\"maxReceiveCount\":1}}"),
            "Reason: Dead-letter queue must be same type of queue as the source.",
        ),
        (
            "{\"deadLetterTargetArn\":\"arn:aws:sqs:eu-west-1:2:dead\",\"maxReceiveCount\":1}".to_owned(),
            "Reason: Dead letter target owner should be same as the source.",
        ),
        (
            "{\"deadLetterTargetArn\":\"arn:aws:sqs:us-east-1:111111111111:dead\",\"maxReceiveCount\":1}".to_owned(),
            "Reason: Dead letter target must be in the same region as the source.",
        ),
    ] {
        let (kind, message) = failure(create("jobs", &[("RedrivePolicy", &policy)]));
        assert_eq!(kind, ErrorKind::InvalidParameterValue, "{policy}");
        assert!(message.ends_with(reason), "{message}");
    }
    let policy = RedrivePolicy { dead_letter_queue: queue("dead"), max_receive_count: 5 };
    assert_eq!(
        policy.target_does_not_exist().message,
        format!(
            "Value {} for parameter RedrivePolicy is invalid. Reason: Dead letter target does not exist.",
            policy.to_json()
        )
    );
}

#[test]
fn redrive_allow_policies() {
    let source = queue("jobs");
    let arn = source.arn();
    let by_queue = format!("{{\"redrivePermission\":\"byQueue\",\"sourceQueueArns\":[\"{arn}\"]}}");
    for (text, allows, allows_other) in [
        ("{\"redrivePermission\":\"allowAll\"}", true, true),
        ("{\"redrivePermission\":\"denyAll\"}", false, false),
        (&*by_queue, true, false),
    ] {
        let policy = RedriveAllowPolicy::parse(text).unwrap();
        assert_eq!(policy.to_json(), text);
        assert_eq!((policy.allows(&source), policy.allows(&queue("other"))), (allows, allows_other));
    }
    let eleven = serde_json::json!({ "redrivePermission": "byQueue", "sourceQueueArns": vec![&arn; 11] }).to_string();
    for text in [
        "",
        "x",
        "[]",
        "{}",
        "{\"redrivePermission\":\"all\"}",
        "{\"redrivePermission\":\"byQueue\"}",
        "{\"redrivePermission\":\"byQueue\",\"sourceQueueArns\":[]}",
        "{\"redrivePermission\":\"byQueue\",\"sourceQueueArns\":[\"jobs\"]}",
        "{\"redrivePermission\":\"byQueue\",\"sourceQueueArns\":[1]}",
        "{\"redrivePermission\":\"byQueue\",\"sourceQueueArns\":\"x\"}",
        "{\"redrivePermission\":\"allowAll\",\"sourceQueueArns\":[]}",
        &eleven,
    ] {
        let (kind, message) = failure(RedriveAllowPolicy::parse(text));
        assert_eq!(kind, ErrorKind::InvalidParameterValue, "{text}");
        assert!(message.starts_with("Value ") && message.contains("for parameter RedriveAllowPolicy"), "{message}");
    }
}

#[test]
fn a_second_create_finds_the_queue_unless_a_value_differs() {
    let mut attributes = created("jobs", &[("DelaySeconds", "1"), ("ReceiveMessageWaitTimeSeconds", "1")]);
    let difference = |attributes: &QueueAttributes, asked: &[(&str, &str)]| {
        attributes.first_difference(&queue("jobs"), &map(asked)).unwrap()
    };
    for same in [
        &[][..],
        &[("DelaySeconds", "1")],
        &[("DelaySeconds", "01")],
        &[("ReceiveMessageWaitTimeSeconds", "1"), ("VisibilityTimeout", "30")],
        &[("RedrivePolicy", "")],
        &[("SqsManagedSseEnabled", "True")],
    ] {
        assert_eq!(difference(&attributes, same), None, "{same:?}");
    }
    for (asked, name) in [
        (&[("DelaySeconds", "0")][..], "DelaySeconds"),
        (&[("ReceiveMessageWaitTimeSeconds", "2"), ("DelaySeconds", "2")], "DelaySeconds"),
        (&[("DelaySeconds", "1"), ("VisibilityTimeout", "31")], "VisibilityTimeout"),
        (&[("KmsMasterKeyId", "k")], "KmsMasterKeyId"),
    ] {
        assert_eq!(difference(&attributes, asked).as_deref(), Some(name));
    }
    // The comparison is with the values as they are now.
    set("jobs", &mut attributes, &[("DelaySeconds", "2")]).unwrap();
    assert_eq!(difference(&attributes, &[("DelaySeconds", "2")]), None);
    assert_eq!(difference(&attributes, &[("DelaySeconds", "1")]).as_deref(), Some("DelaySeconds"));
    // Values that no queue can have are refused as they are for a new queue.
    assert!(attributes.first_difference(&queue("jobs"), &map(&[("DelaySeconds", "x")])).is_err());

    let fifo = created("a.fifo", &[("FifoQueue", "true")]);
    let asked = map(&[("FifoQueue", "true"), ("ContentBasedDeduplication", "true")]);
    assert_eq!(fifo.first_difference(&queue("a.fifo"), &asked).unwrap().as_deref(), Some("ContentBasedDeduplication"));
}

#[test]
fn tags() {
    let fifty: BTreeMap<String, String> = (0..50).map(|n| (format!("k{n}"), "v".into())).collect();
    assert_eq!(check_new_tags("jobs", &map(&[]), &fifty), Ok(()));
    assert_eq!(check_new_tags("jobs", &fifty, &map(&[("k7", "other")])), Ok(()));
    let too_many = (ErrorKind::InvalidParameterValue, "Too many tags added for queue jobs.".to_owned());
    assert_eq!(failure(check_new_tags("jobs", &fifty, &map(&[("one more", "")]))), too_many);
    let keys =
        (ErrorKind::InvalidParameterValue, "Tag keys must be between 1 and 128 characters in length.".to_owned());
    assert_eq!(check_new_tags("jobs", &map(&[]), &map(&[(&"ä".repeat(128), &"ä".repeat(256))])), Ok(()));
    for key in ["", &"a".repeat(129)] {
        assert_eq!(failure(check_new_tags("jobs", &map(&[]), &map(&[(key, "v")]))), keys);
        assert_eq!(failure(check_tag_keys(&texts(&["a", key]))), keys);
    }
    assert!(check_new_tags("jobs", &map(&[]), &map(&[("k", &"v".repeat(257))])).is_err());
    assert!(check_new_tags("jobs", &map(&[]), &map(&[("AWS:k", "v")])).is_err());
    assert_eq!(
        failure(check_tag_request(&map(&[]))),
        (ErrorKind::MissingParameter, "The request must contain the parameter Tags.".into())
    );
    assert_eq!(failure(check_untag_request(&[])), keys);
    assert_eq!(check_untag_request(&texts(&["a"])), Ok(()));
}
