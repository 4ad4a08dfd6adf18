//! Checks of ReceiveMessage, ChangeMessageVisibility and move tasks; filters of attributes.

use crate::{created, failure, texts};
use postbox_server::ErrorKind::*;
use postbox_server::check::*;
use postbox_server::message_attributes::AttributeFilter;
use postbox_server::queue::QueueAttributes;
use postbox_server::wire::request::{ReceiveMessage, StartMessageMoveTask};

fn standard() -> QueueAttributes {
    created("jobs", &[])
}

fn fifo() -> QueueAttributes {
    created("jobs.fifo", &[("FifoQueue", "true")])
}

#[test]
fn numbers_of_a_receive() {
    for good in [
        ReceiveMessage::default(),
        ReceiveMessage { max_number_of_messages: Some(1), wait_time_seconds: Some(0), ..Default::default() },
        ReceiveMessage { max_number_of_messages: Some(10), wait_time_seconds: Some(20), ..Default::default() },
        ReceiveMessage { visibility_timeout: Some(0), ..Default::default() },
        ReceiveMessage { visibility_timeout: Some(43_200), ..Default::default() },
    ] {
        assert!(check_receive(&good, &standard()).is_ok());
    }
    let between = "Must be between 1 and 10, if provided.";
    let up_to_20 = "Must be >= 0 and <= 20, if provided.";
    let up_to_43200 = "Must be >= 0 and <= 43200, if provided.";
    for (parameter, value, reason) in [
        ("MaxNumberOfMessages", 0, between),
        ("MaxNumberOfMessages", 11, between),
        ("MaxNumberOfMessages", -1, between),
        ("WaitTimeSeconds", -1, up_to_20),
        ("WaitTimeSeconds", 21, up_to_20),
        ("VisibilityTimeout", -1, up_to_43200),
        ("VisibilityTimeout", 43_201, up_to_43200),
    ] {
        let only = |name: &str| (name == parameter).then_some(value);
        let request = ReceiveMessage {
            max_number_of_messages: only("MaxNumberOfMessages"),
            wait_time_seconds: only("WaitTimeSeconds"),
            visibility_timeout: only("VisibilityTimeout"),
            ..Default::default()
        };
        let message = format!("Value {value} for parameter {parameter} is invalid. Reason: {reason}");
        assert_eq!(failure(check_receive(&request, &standard())), (InvalidParameterValue, message));
    }
}

#[test]
fn receive_attempts_are_for_fifo_queues() {
    let attempt = |id: &str| ReceiveMessage { receive_request_attempt_id: Some(id.into()), ..Default::default() };
    assert!(check_receive(&attempt("a1"), &fifo()).is_ok());
    assert_eq!(check_receive(&attempt("a 1"), &fifo()).unwrap_err().kind, InvalidParameterValue);
    assert_eq!(
        failure(check_receive(&attempt("a1"), &standard())),
        (
            InvalidParameterValue,
            "Value a1 for parameter ReceiveRequestAttemptId is invalid. Reason: The request include parameter that \
             is not valid for this queue type."
                .into()
        )
    );
}

#[test]
fn names_of_system_attributes() {
    let request = |old: &[&str], new: &[&str]| ReceiveMessage {
        attribute_names: texts(old),
        message_system_attribute_names: texts(new),
        ..Default::default()
    };
    for name in [
        "All",
        "SenderId",
        "SentTimestamp",
        "ApproximateReceiveCount",
        "ApproximateFirstReceiveTimestamp",
        "SequenceNumber",
        "MessageDeduplicationId",
        "MessageGroupId",
        "AWSTraceHeader",
        "DeadLetterQueueSourceArn",
        "Policy",
    ] {
        assert!(check_receive(&request(&[name], &[name]), &standard()).is_ok());
    }
    for bad in [request(&["SenderId", "Foo"], &[]), request(&[], &["Foo"])] {
        let expected = (InvalidAttributeName, "Unknown Attribute Foo.".to_owned());
        assert_eq!(failure(check_receive(&bad, &standard())), expected);
    }
    // Both parameters at once: JSON unites them, the query protocol takes the old one.
    let both = request(&["SenderId"], &["SentTimestamp"]);
    let json = system_attribute_names(&both, false);
    assert!(json.matches("SenderId") && json.matches("SentTimestamp") && !json.matches("MessageGroupId"));
    let query = system_attribute_names(&both, true);
    assert!(query.matches("SenderId") && !query.matches("SentTimestamp"));
    assert!(!system_attribute_names(&request(&["SenderId"], &["All"]), true).matches("SentTimestamp"));
    assert!(system_attribute_names(&request(&["SenderId"], &["All"]), false).matches("SentTimestamp"));
    assert!(system_attribute_names(&request(&[], &["All"]), true).matches("SentTimestamp"));
    assert!(!system_attribute_names(&request(&[], &[]), true).matches("SenderId"));
}

#[test]
fn filters_of_message_attributes() {
    const PRESENT: [&str; 3] = ["General", "Hello", "Help.Me"];
    for (names, found) in [
        (&[][..], &[][..]),
        (&["All"], &PRESENT),
        (&[".*"], &PRESENT),
        (&["*"], &PRESENT),
        (&["Foo", "All"], &PRESENT),
        (&["Hel.*"], &["Hello", "Help.Me"]),
        (&["Help.*"], &["Help.Me"]),
        (&["Hello", "General"], &["General", "Hello"]),
        (&["Hel"], &[]),
        (&["hello"], &[]),
        (&["Foo", "Help"], &[]),
        (&["AWS."], &[]),
        (&["..foo"], &[]),
        (&["Foo.*"], &[]),
        (&[""], &[]),
    ] {
        let filter = AttributeFilter::new(&texts(names));
        let matched: Vec<&str> = PRESENT.into_iter().filter(|name| filter.matches(name)).collect();
        assert_eq!(matched, found, "{names:?}");
    }
}

#[test]
fn visibility_timeouts() {
    for seconds in [0, 43_200] {
        assert_eq!(check_visibility_timeout(seconds), Ok(seconds as u32));
        assert_eq!(check_change_visibility(Some(seconds)), Ok(seconds as u32));
    }
    for seconds in [-1, 43_201] {
        let message = format!(
            "Value {seconds} for parameter VisibilityTimeout is invalid. Reason: VisibilityTimeout must be an integer \
             between 0 and 43200."
        );
        assert_eq!(failure(check_change_visibility(Some(seconds))), (InvalidParameterValue, message));
    }
    assert_eq!(
        failure(check_change_visibility(None)),
        (MissingParameter, "The request must contain the parameter VisibilityTimeout.".into())
    );
}

#[test]
fn rates_and_lists_of_move_tasks() {
    let task = |rate| StartMessageMoveTask { max_number_of_messages_per_second: rate, ..Default::default() };
    for rate in [None, Some(1), Some(500)] {
        assert_eq!(check_move_task(&task(rate)), Ok(()));
    }
    for rate in [0, -1, 501] {
        let message = format!(
            "Value {rate} for parameter MaxNumberOfMessagesPerSecond is invalid. Reason: \
             MaxNumberOfMessagesPerSecond must be an integer between 1 and 500."
        );
        assert_eq!(failure(check_move_task(&task(Some(rate)))), (InvalidParameterValue, message));
    }
    assert_eq!([check_move_task_list(None), check_move_task_list(Some(10))], [Ok(1), Ok(10)]);
    for count in [0, 11] {
        assert_eq!(check_move_task_list(Some(count)).unwrap_err().kind, InvalidParameterValue);
    }
}

#[test]
fn the_numbers_that_count() {
    let queue = created("jobs", &[("VisibilityTimeout", "5"), ("ReceiveMessageWaitTimeSeconds", "6")]);
    assert_eq!(
        check_receive(&ReceiveMessage::default(), &queue),
        Ok(ReceiveNumbers { max_messages: 1, wait_time: 6, visibility_timeout: 5 })
    );
    let request = ReceiveMessage {
        max_number_of_messages: Some(10),
        wait_time_seconds: Some(0),
        visibility_timeout: Some(0),
        ..Default::default()
    };
    assert_eq!(
        check_receive(&request, &queue),
        Ok(ReceiveNumbers { max_messages: 10, wait_time: 0, visibility_timeout: 0 })
    );
}
