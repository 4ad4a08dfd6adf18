//! Checks of SendMessage and of the three batches.

use crate::{created, failure};
use postbox_server::ErrorKind::{self, *};
use postbox_server::SqsError;
use postbox_server::check::{LARGEST_MESSAGE, OutgoingMessage, check_batch, check_send, check_send_batch};
use postbox_server::message_attributes::{
    MessageAttribute, check_attributes, check_system_attributes, size_of_attributes, trace_header,
};
use postbox_server::queue::QueueAttributes;
use postbox_server::wire::Action;
use postbox_server::wire::request::{SendMessage, SendMessageBatch, SendMessageEntry};
use postbox_server::wire::response::SendMessageSuccess;
use std::collections::BTreeMap;

fn standard() -> QueueAttributes {
    created("jobs", &[])
}

fn fifo() -> QueueAttributes {
    created("jobs.fifo", &[("FifoQueue", "true")])
}

fn message(body: &str) -> SendMessage {
    SendMessage { queue_url: "q".into(), message_body: body.into(), ..Default::default() }
}

fn grouped(group: Option<&str>, deduplication: Option<&str>) -> SendMessage {
    SendMessage {
        message_group_id: group.map(str::to_owned),
        message_deduplication_id: deduplication.map(str::to_owned),
        ..message("b")
    }
}

fn send(message: &SendMessage, queue: &QueueAttributes) -> Result<(), SqsError> {
    check_send(&message.into(), queue).map(drop)
}

fn attributes(list: &[(&str, MessageAttribute)]) -> BTreeMap<String, MessageAttribute> {
    list.iter().map(|(name, attribute)| (name.to_string(), attribute.clone())).collect()
}

fn entry(id: &str, body: &str) -> SendMessageEntry {
    SendMessageEntry { id: id.into(), message_body: body.into(), ..Default::default() }
}

fn batch(
    entries: Vec<SendMessageEntry>,
    queue: &QueueAttributes,
) -> Result<Vec<Result<u32, SqsError>>, (ErrorKind, String)> {
    check_send_batch(&SendMessageBatch { queue_url: "q".into(), entries }, queue)
        .map_err(|error| (error.kind, error.message.into_owned()))
}

#[test]
fn a_message_has_a_body() {
    let expected = (MissingParameter, "The request must contain the parameter MessageBody.".to_owned());
    assert_eq!(failure(send(&message(""), &standard())), expected);
    assert_eq!(failure(send(&message(""), &fifo())), expected);
    assert_eq!(send(&message(" "), &standard()), Ok(()));
}

#[test]
fn characters_of_a_body() {
    for body in ["\t\n\r ", "\u{d7ff}\u{e000}\u{fffd}", "\u{10000}\u{10ffff}", "\u{7f}\u{80}"] {
        assert_eq!(send(&message(body), &standard()), Ok(()), "{body:?}");
    }
    for (body, found) in [("a\u{0}", "#x0"), ("\u{8}", "#x8"), ("\u{1f}", "#x1F"), ("\u{ffff}", "#xFFFF")] {
        let (kind, message) = failure(send(&message(body), &standard()));
        assert_eq!(kind, InvalidMessageContents);
        let start = format!("Invalid binary character '{found}' was found in the message body");
        assert!(message.starts_with(&start), "{message}");
    }
}

#[test]
fn sizes() {
    let refused = |size: usize| {
        let message = format!("One or more parameters are invalid. Reason: Message must be shorter than {size} bytes.");
        (InvalidParameterValue, message)
    };
    assert_eq!(send(&message(&"a".repeat(LARGEST_MESSAGE)), &standard()), Ok(()));
    assert_eq!(failure(send(&message(&"a".repeat(LARGEST_MESSAGE + 1)), &standard())), refused(LARGEST_MESSAGE));
    let small = created("jobs", &[("MaximumMessageSize", "1024")]);
    assert_eq!(send(&message(&"ä".repeat(512)), &small), Ok(()));
    assert_eq!(failure(send(&message(&"ä".repeat(513)), &small)), refused(1024));
    // Names, types and values of attributes count: 1 + 6 + 3, and 2 + 6 + 4.
    let extra = attributes(&[
        ("a", MessageAttribute::text("String", "ä1")),
        ("bb", MessageAttribute::binary("Binary", [0; 4])),
    ]);
    assert_eq!(size_of_attributes(&extra), 22);
    let with = |length| SendMessage { message_attributes: extra.clone(), ..message(&"a".repeat(length)) };
    assert_eq!(send(&with(1002), &small), Ok(()));
    assert_eq!(failure(send(&with(1003), &small)), refused(1024));
    // System attributes do not.
    let trace = attributes(&[("AWSTraceHeader", MessageAttribute::text("String", "Root=1"))]);
    let traced = SendMessage { message_system_attributes: trace, ..message(&"a".repeat(1024)) };
    assert_eq!(send(&traced, &small), Ok(()));
}

#[test]
fn names_of_attributes() {
    let check = |name: &str| check_attributes(&attributes(&[(name, MessageAttribute::text("String", "v"))]));
    let longest = "L".repeat(256);
    for name in ["a", "attr.1øßä", "A-b_c.d9", "aws", "AWSx", "amazonian", "Þ", &longest] {
        assert_eq!(check(name), Ok(()), "{name}");
    }
    let too_long = "L".repeat(257);
    let names = [
        "", "aWs.x", "AMAZON.x", ".x", "x.", "a..b", "a!b", "a\"b", "a§b", "a(b", "a?b", "a b", "a×b", "日", &too_long,
    ];
    for name in names {
        assert_eq!(check(name).unwrap_err().kind, InvalidParameterValue, "{name}");
    }
    assert_eq!(
        check("a!").unwrap_err().message,
        "The message attribute name 'a!' is invalid. Attribute name can contain A-Z, a-z, 0-9, underscore (_), \
         hyphen (-), and period (.) characters."
    );
}

#[test]
fn values_of_attributes() {
    let check = |attribute: &MessageAttribute| check_attributes(&attributes(&[("n", attribute.clone())]));
    let long_type = format!("String.{}", "t".repeat(249));
    for attribute in [
        MessageAttribute::text("String", "v"),
        MessageAttribute::text("String.label with space", "v"),
        MessageAttribute::text(long_type.as_str(), "v"),
        MessageAttribute::text("Number", "-12.5e-3"),
        MessageAttribute::text("Number.int", "99999999999999999999999999999999999999"),
        MessageAttribute::binary("Binary", [0]),
        MessageAttribute::binary("Binary.png", [0]),
    ] {
        assert_eq!(check(&attribute), Ok(()), "{attribute:?}");
    }
    let unknown_type = "The message attribute 'n' has an invalid message attribute type, the set of supported type \
                        prefixes is Binary, Number, and String.";
    let no_number = "Can't cast the value of message (user) attribute 'n' to a number.";
    let empty =
        |data_type: &str| format!("Message (user) attribute 'n' must contain a non-empty value of type '{data_type}'.");
    for (attribute, message) in [
        (
            MessageAttribute { string_value: Some("v".into()), ..Default::default() },
            "The message attribute 'n' must contain non-empty message attribute type.".to_owned(),
        ),
        (MessageAttribute::text("InvalidNumber", "1"), unknown_type.to_owned()),
        (MessageAttribute::text("Stringy", "1"), unknown_type.to_owned()),
        (MessageAttribute::text("string", "1"), unknown_type.to_owned()),
        (MessageAttribute::text("String.\u{1}", "1"), unknown_type.to_owned()),
        (
            MessageAttribute::text(format!("{long_type}t"), "v"),
            "Message (user) attribute types must be shorter than 256 Bytes".to_owned(),
        ),
        (MessageAttribute::text("String", ""), empty("String")),
        (MessageAttribute::text("Number", ""), empty("Number")),
        (MessageAttribute::binary("Binary", []), empty("Binary")),
        (MessageAttribute::text("Binary", "text"), empty("Binary")),
        (MessageAttribute::binary("String.x", [1]), empty("String.x")),
        (MessageAttribute::text("Number", "149314735990a"), no_number.to_owned()),
        (MessageAttribute::text("Number", "NaN"), no_number.to_owned()),
        (MessageAttribute::text("Number", "inf"), no_number.to_owned()),
    ] {
        assert_eq!(failure(check(&attribute)), (InvalidParameterValue, message), "{attribute:?}");
    }
    let control = MessageAttribute::text("String", "a\u{8}");
    assert_eq!(check(&control).unwrap_err().kind, InvalidParameterValue);
    let list = MessageAttribute { string_list_values: vec!["a".into()], ..MessageAttribute::text("String", "v") };
    assert_eq!(check(&list).unwrap_err().kind, UnsupportedOperation);
}

#[test]
fn an_empty_string_value_as_aws_words_it() {
    let error = check_attributes(&attributes(&[("ErrorDetails", MessageAttribute::text("String", ""))])).unwrap_err();
    assert_eq!(
        error.message,
        "Message (user) attribute 'ErrorDetails' must contain a non-empty value of type 'String'."
    );
}

#[test]
fn a_message_has_at_most_ten_attributes() {
    let many = |count: usize| (0..count).map(|n| (format!("n{n}"), MessageAttribute::text("String", "v"))).collect();
    assert_eq!(check_attributes(&many(10)), Ok(()));
    assert_eq!(
        failure(check_attributes(&many(11))),
        (InvalidParameterValue, "Number of message attributes [11] exceeds the allowed maximum [10].".into())
    );
}

#[test]
fn a_trace_header_is_the_only_system_attribute() {
    let trace = MessageAttribute::text("String", "Root=1");
    assert_eq!(check_system_attributes(&attributes(&[("AWSTraceHeader", trace.clone())])), Ok(()));
    for (name, attribute) in [
        ("SenderId", trace),
        ("AWSTraceHeader", MessageAttribute::text("Number", "1")),
        ("AWSTraceHeader", MessageAttribute::text("String", "")),
        ("AWSTraceHeader", MessageAttribute::binary("Binary", [1])),
    ] {
        let sent = SendMessage { message_system_attributes: attributes(&[(name, attribute)]), ..message("b") };
        assert_eq!(send(&sent, &standard()).unwrap_err().kind, InvalidParameterValue, "{name}");
    }
}

#[test]
fn the_trace_header_comes_from_the_message_or_else_from_the_request() {
    let system = attributes(&[("AWSTraceHeader", MessageAttribute::text("String", "Root=1"))]);
    assert_eq!(trace_header(&system, Some("Root=2")), Some("Root=1"));
    assert_eq!(trace_header(&BTreeMap::new(), Some("Root=2")), Some("Root=2"));
    assert_eq!(trace_header(&BTreeMap::new(), None), None);
}

#[test]
fn group_and_deduplication_ids() {
    let all_punctuation = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";
    let longest = "a".repeat(128);
    for id in ["a", "A9", all_punctuation, &longest] {
        assert_eq!(send(&grouped(Some(id), Some(id)), &fifo()), Ok(()), "{id}");
        assert_eq!(send(&grouped(Some(id), None), &standard()), Ok(()), "{id}");
    }
    let too_long = "a".repeat(129);
    for id in ["", "group 123", "ä", "a\u{8}", &too_long] {
        let refused = |parameter: &str| {
            let reason =
                format!("{parameter} can only include alphanumeric and punctuation characters. 1 to 128 in length.");
            (InvalidParameterValue, format!("Value {id} for parameter {parameter} is invalid. Reason: {reason}"))
        };
        assert_eq!(failure(send(&grouped(Some(id), Some("d")), &fifo())), refused("MessageGroupId"));
        assert_eq!(failure(send(&grouped(Some(id), None), &standard())), refused("MessageGroupId"));
        assert_eq!(failure(send(&grouped(Some("g"), Some(id)), &fifo())), refused("MessageDeduplicationId"));
    }
}

#[test]
fn what_a_fifo_queue_needs() {
    let content_based = created("a.fifo", &[("FifoQueue", "true"), ("ContentBasedDeduplication", "true")]);
    let no_group = (MissingParameter, "The request must contain the parameter MessageGroupId.".to_owned());
    let no_deduplication = (
        InvalidParameterValue,
        "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided \
         explicitly"
            .to_owned(),
    );
    assert_eq!(failure(send(&grouped(None, Some("d")), &fifo())), no_group);
    assert_eq!(failure(send(&grouped(None, None), &content_based)), no_group);
    assert_eq!(failure(send(&grouped(Some("g"), None), &fifo())), no_deduplication);
    assert_eq!(send(&grouped(Some("g"), None), &content_based), Ok(()));
    assert_eq!(send(&grouped(Some("g"), Some("d")), &content_based), Ok(()));
    // A standard queue keeps a group and takes no deduplication id.
    assert_eq!(
        failure(send(&grouped(None, Some("d")), &standard())),
        (
            InvalidParameterValue,
            "Value d for parameter MessageDeduplicationId is invalid. Reason: The request include parameter that is \
             not valid for this queue type."
                .into()
        )
    );
}

#[test]
fn delays() {
    let delayed = |seconds| SendMessage { delay_seconds: Some(seconds), ..grouped(Some("g"), None) };
    for seconds in [0, 1, 900] {
        assert_eq!(send(&delayed(seconds), &standard()), Ok(()));
    }
    for seconds in [-1, 901, i64::MAX, i64::MIN] {
        let message = format!(
            "Value {seconds} for parameter DelaySeconds is invalid. Reason: DelaySeconds must be >= 0 and <= 900."
        );
        assert_eq!(failure(send(&delayed(seconds), &standard())), (InvalidParameterValue, message));
    }
    let delayed = |seconds| SendMessage { delay_seconds: Some(seconds), ..grouped(Some("g"), Some("d")) };
    assert_eq!(send(&delayed(0), &fifo()), Ok(()));
    assert_eq!(
        failure(send(&delayed(2), &fifo())),
        (
            InvalidParameterValue,
            "Value 2 for parameter DelaySeconds is invalid. Reason: The request include parameter that is not valid \
             for this queue type."
                .into()
        )
    );
}

#[test]
fn ids_of_a_batch() {
    let longest = "i".repeat(80);
    let too_long = "i".repeat(81);
    let bad_id = "A batch entry id can only contain alphanumeric characters, hyphens and underscores. \
                  It can be at most 80 letters long.";
    let actions = [Action::SendMessageBatch, Action::DeleteMessageBatch, Action::ChangeMessageVisibilityBatch];
    for action in actions {
        let check = |ids: &[&str]| check_batch(action, ids.iter().copied());
        assert_eq!(check(&["1", "a-B_9", &longest]), Ok(()));
        let message = format!("There should be at least one {}RequestEntry in the request.", action.name());
        assert_eq!(failure(check(&[])), (EmptyBatchRequest, message));
        let twenty: Vec<String> = (0..20).map(|n| n.to_string()).collect();
        let twenty: Vec<&str> = twenty.iter().map(String::as_str).collect();
        assert_eq!(check(&twenty[..10]), Ok(()));
        assert_eq!(
            failure(check(&twenty)),
            (TooManyEntriesInBatchRequest, "Maximum number of entries per request are 10. You have sent 20.".into())
        );
        for id in ["", "invalid:id", ".!@#$%^&*()+=", "a b", "ä", &too_long] {
            assert_eq!(failure(check(&["1", id])), (InvalidBatchEntryId, bad_id.into()), "{id}");
        }
        // Only the first id that is repeated is named.
        let repeated = check(&["id_1", "id_2", "id_2", "id_1"]);
        assert_eq!(failure(repeated), (BatchEntryIdsNotDistinct, "Id id_2 repeated.".into()));
    }
}

#[test]
fn faults_that_fail_a_batch() {
    let with_group = |id: &str, group: Option<&str>, deduplication: Option<&str>| SendMessageEntry {
        message_group_id: group.map(str::to_owned),
        message_deduplication_id: deduplication.map(str::to_owned),
        ..entry(id, "b")
    };
    for (entries, queue, kind, message) in [
        (
            vec![],
            standard(),
            EmptyBatchRequest,
            "There should be at least one SendMessageBatchRequestEntry in the request.",
        ),
        (
            vec![entry("1", "a"), entry("2", "")],
            standard(),
            MissingParameter,
            "The request must contain the parameter SendMessageBatchRequestEntry.2.MessageBody.",
        ),
        (
            vec![entry("1", &"a".repeat(LARGEST_MESSAGE)), entry("2", "a")],
            standard(),
            BatchRequestTooLong,
            "Batch requests cannot be longer than 1048576 bytes. You have sent 1048577 bytes.",
        ),
        (
            vec![entry("1", &"a".repeat(LARGEST_MESSAGE + 1))],
            created("jobs", &[("MaximumMessageSize", "1024")]),
            BatchRequestTooLong,
            "Batch requests cannot be longer than 1048576 bytes. You have sent 1048577 bytes.",
        ),
        (
            vec![with_group("1", Some("g"), Some("d")), with_group("2", None, Some("e"))],
            fifo(),
            InvalidParameterValue,
            "The request must contain the parameter MessageGroupId.",
        ),
        (
            vec![with_group("1", Some("g"), Some("d")), with_group("2", Some("g"), None)],
            fifo(),
            InvalidParameterValue,
            "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided \
             explicitly",
        ),
    ] {
        assert_eq!(batch(entries, &queue), Err((kind, message.into())));
    }
}

#[test]
fn faults_that_fail_only_their_entry() {
    let small = created("jobs", &[("MaximumMessageSize", "1024")]);
    let long = "a".repeat(1025);
    let too_late = SendMessageEntry { delay_seconds: Some(901), ..entry("4", "b") };
    let bad_attribute = SendMessageEntry {
        message_attributes: attributes(&[("n", MessageAttribute::text("Foo", "v"))]),
        ..entry("5", "b")
    };
    let entries = vec![entry("1", "good"), entry("2", "\u{1}"), entry("3", &long), too_late, bad_attribute];
    let results = batch(entries, &small).unwrap();
    let kinds: Vec<_> = results.iter().map(|result| result.as_ref().err().map(|error| error.kind)).collect();
    let invalid = Some(InvalidParameterValue);
    assert_eq!(kinds, [None, Some(InvalidMessageContents), invalid, invalid, invalid]);
    assert_eq!(
        results[2].as_ref().unwrap_err().message,
        "One or more parameters cannot be validated. Reason: Message must be shorter than 1024 bytes."
    );
}

#[test]
fn the_sum_of_a_batch_has_a_limit_of_its_own() {
    let small = created("jobs", &[("MaximumMessageSize", "1024")]);
    let entries = (0..10).map(|n| entry(&n.to_string(), &"a".repeat(1024))).collect();
    assert!(batch(entries, &small).unwrap().iter().all(Result::is_ok));
    let attribute = MessageAttribute::text("String", "v".repeat(100));
    let with = SendMessageEntry { message_attributes: attributes(&[("n", attribute)]), ..entry("1", "b") };
    assert_eq!(OutgoingMessage::from(&with).size(), 1 + 1 + 6 + 100);
}

#[test]
fn the_delay_that_counts() {
    let slow = created("jobs", &[("DelaySeconds", "7")]);
    let slow_fifo = created("a.fifo", &[("FifoQueue", "true"), ("DelaySeconds", "7")]);
    for (delay, standard, fifo) in [(None, 7, 7), (Some(0), 0, 7)] {
        let plain = SendMessage { delay_seconds: delay, ..message("b") };
        assert_eq!(check_send(&(&plain).into(), &slow), Ok(standard));
        let grouped = SendMessage { delay_seconds: delay, ..grouped(Some("g"), Some("d")) };
        assert_eq!(check_send(&(&grouped).into(), &slow_fifo), Ok(fifo));
    }
    let late = SendMessageEntry { delay_seconds: Some(9), ..entry("2", "b") };
    assert_eq!(batch(vec![entry("1", "b"), late], &slow), Ok(vec![Ok(7), Ok(9)]));
}

#[test]
fn the_deduplication_id_that_counts() {
    let content_based = created("a.fifo", &[("FifoQueue", "true"), ("ContentBasedDeduplication", "true")]);
    let own = grouped(Some("g"), Some("d"));
    let by_content = SendMessage { message_body: "abc".into(), ..grouped(Some("g"), None) };
    let id = |message: &SendMessage, queue| OutgoingMessage::from(message).deduplication_id(queue).map(String::from);
    assert_eq!(id(&own, &content_based).as_deref(), Some("d"));
    let digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(id(&by_content, &content_based).as_deref(), Some(digest));
    assert_eq!(id(&by_content, &fifo()), None);
}

#[test]
fn answers_to_senders_have_the_digests_of_what_was_sent() {
    let number = attributes(&[("timestamp", MessageAttribute::text("Number", "1493147359900"))]);
    let trace = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1";
    let trace = attributes(&[("AWSTraceHeader", MessageAttribute::text("String", trace))]);
    let plain = SendMessage { message_attributes: number, ..message("test") };
    let traced = SendMessage { message_system_attributes: trace, ..plain.clone() };
    let sent = |message: &SendMessage| OutgoingMessage::from(message).sent("id".into(), None);
    let (plain, traced) = (sent(&plain), sent(&traced));
    assert_eq!(plain.md5_of_message_body.as_deref(), Some("098f6bcd4621d373cade4e832627b4f6"));
    assert_eq!(plain.md5_of_message_attributes.as_deref(), Some("235c5c510d26fb653d073faed50ae77c"));
    assert_eq!(plain.md5_of_message_system_attributes, None);
    assert_eq!(plain.sequence_number, None);
    // System attributes have a digest of their own, and do not change the other.
    assert_eq!(traced.md5_of_message_attributes, plain.md5_of_message_attributes);
    assert_eq!(traced.md5_of_message_system_attributes.as_deref(), Some("5ae4d5d7636402d80f4eb6d213245a88"));
    assert_eq!(sent(&message("b")).md5_of_message_attributes, None);
    let entry = SendMessageSuccess::new("1", traced.clone());
    assert_eq!((entry.id.as_str(), entry.md5_of_message_body), ("1", traced.md5_of_message_body));
}
