//! The table of errors, and how both protocols give them.

use postbox_server::check::{check_receive, check_send};
use postbox_server::wire::{Protocol, render_error};
use postbox_server::{ErrorKind, SqsError};

use crate::{created, json};

/// Each row: kind, query code, JSON type, status. As AWS answers, or as its reference says.
const CODES: &[(ErrorKind, &str, &str, u16)] = &[
    (ErrorKind::QueueDoesNotExist, "AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist", 400),
    (ErrorKind::QueueNameExists, "QueueAlreadyExists", "QueueNameExists", 400),
    (ErrorKind::QueueDeletedRecently, "AWS.SimpleQueueService.QueueDeletedRecently", "QueueDeletedRecently", 400),
    (ErrorKind::PurgeQueueInProgress, "AWS.SimpleQueueService.PurgeQueueInProgress", "PurgeQueueInProgress", 403),
    (ErrorKind::EmptyBatchRequest, "AWS.SimpleQueueService.EmptyBatchRequest", "EmptyBatchRequest", 400),
    (
        ErrorKind::TooManyEntriesInBatchRequest,
        "AWS.SimpleQueueService.TooManyEntriesInBatchRequest",
        "TooManyEntriesInBatchRequest",
        400,
    ),
    (
        ErrorKind::BatchEntryIdsNotDistinct,
        "AWS.SimpleQueueService.BatchEntryIdsNotDistinct",
        "BatchEntryIdsNotDistinct",
        400,
    ),
    (ErrorKind::InvalidBatchEntryId, "AWS.SimpleQueueService.InvalidBatchEntryId", "InvalidBatchEntryId", 400),
    (ErrorKind::BatchRequestTooLong, "AWS.SimpleQueueService.BatchRequestTooLong", "BatchRequestTooLong", 400),
    (ErrorKind::MessageNotInflight, "AWS.SimpleQueueService.MessageNotInflight", "MessageNotInflight", 400),
    (ErrorKind::UnsupportedOperation, "AWS.SimpleQueueService.UnsupportedOperation", "UnsupportedOperation", 400),
    (ErrorKind::InvalidAttributeName, "InvalidAttributeName", "InvalidAttributeName", 400),
    (ErrorKind::InvalidAttributeValue, "InvalidAttributeValue", "InvalidAttributeValue", 400),
    (ErrorKind::InvalidMessageContents, "InvalidMessageContents", "InvalidMessageContents", 400),
    (ErrorKind::InvalidParameterValue, "InvalidParameterValue", "InvalidParameterValueException", 400),
    (ErrorKind::MissingParameter, "MissingParameter", "MissingRequiredParameterException", 400),
    (ErrorKind::ReceiptHandleIsInvalid, "ReceiptHandleIsInvalid", "ReceiptHandleIsInvalid", 400),
    (ErrorKind::OverLimit, "OverLimit", "OverLimit", 403),
    (ErrorKind::ResourceNotFound, "ResourceNotFoundException", "ResourceNotFoundException", 404),
    (ErrorKind::InvalidAction, "InvalidAction", "InvalidAction", 400),
    (ErrorKind::MissingAuthenticationToken, "MissingAuthenticationToken", "MissingAuthenticationTokenException", 403),
    (ErrorKind::IncompleteSignature, "IncompleteSignature", "IncompleteSignatureException", 400),
    (ErrorKind::InvalidClientTokenId, "InvalidClientTokenId", "UnrecognizedClientException", 403),
    (ErrorKind::SignatureDoesNotMatch, "SignatureDoesNotMatch", "InvalidSignatureException", 403),
    (ErrorKind::RequestExpired, "RequestExpired", "RequestExpired", 400),
    (ErrorKind::AccessDenied, "AccessDenied", "AccessDeniedException", 403),
    (ErrorKind::ServiceUnavailable, "ServiceUnavailable", "ServiceUnavailable", 503),
    (ErrorKind::InternalFailure, "InternalFailure", "InternalFailure", 500),
];

#[test]
fn codes_in_both_protocols() {
    for &(kind, code, shape, status) in CODES {
        let error = SqsError::new(kind, "a message with <&\"");
        let fault = if status < 500 { "Sender" } else { "Receiver" };

        let json = render_error(Protocol::Json, &error, "the-id");
        let body: serde_json::Value = serde_json::from_slice(&json.body).unwrap();
        assert_eq!(json.status, status);
        assert!(body["__type"].as_str().unwrap().ends_with(&format!("#{shape}")), "{body}");
        assert_eq!(body["message"], "a message with <&\"");
        assert_eq!(json.header("x-amzn-query-error").unwrap(), format!("{code};{fault}"));
        assert_eq!(json.header("x-amzn-requestid"), Some("the-id"));
        assert_eq!(json.header("content-type"), Some("application/x-amz-json-1.0"));

        let xml = render_error(Protocol::Query, &error, "the-id");
        let text = String::from_utf8(xml.body.clone()).unwrap();
        assert_eq!(xml.status, status);
        assert!(text.starts_with(
            "<?xml version=\"1.0\"?><ErrorResponse xmlns=\"http://queue.amazonaws.com/doc/2012-11-05/\"><Error>"
        ));
        assert!(text.contains(&format!("<Type>{fault}</Type><Code>{code}</Code>")), "{text}");
        assert!(text.ends_with("<Detail/></Error><RequestId>the-id</RequestId></ErrorResponse>"), "{text}");
        assert_eq!(xml.header("content-type"), Some("text/xml"));
        assert_eq!(xml.header("x-amzn-query-error"), None);

        let other = render_error(Protocol::QueryJson, &error, "the-id");
        let body: serde_json::Value = serde_json::from_slice(&other.body).unwrap();
        assert_eq!(other.status, status);
        assert_eq!((&body["Error"]["Code"], &body["RequestId"]), (&code.into(), &"the-id".into()));
        assert_eq!(other.header("content-type"), Some("application/json"));
    }
}

#[test]
fn kinds_have_different_codes() {
    let mut codes: Vec<_> = ErrorKind::ALL.iter().map(|kind| kind.entry().code).collect();
    codes.sort();
    codes.dedup();
    assert_eq!(codes.len(), ErrorKind::ALL.len());
}

#[test]
fn namespaces_of_types() {
    assert_eq!(ErrorKind::QueueDoesNotExist.json_type(), "com.amazonaws.sqs#QueueDoesNotExist");
    assert_eq!(ErrorKind::InvalidParameterValue.json_type(), "com.amazon.coral.service#InvalidParameterValueException");
}

#[test]
fn an_unknown_queue_has_a_message_for_each_protocol() {
    let error = SqsError::queue_does_not_exist();
    for (protocol, message) in [
        (Protocol::Json, "\"The specified queue does not exist.\""),
        (Protocol::Query, "<Message>The specified queue does not exist for this wsdl version.</Message>"),
        (Protocol::QueryJson, "\"The specified queue does not exist for this wsdl version.\""),
    ] {
        let body = String::from_utf8(render_error(protocol, &error, "id").body).unwrap();
        assert!(body.contains(message), "{body}");
    }
}

#[test]
fn a_request_without_action_is_answered_in_xml_whatever_is_accepted() {
    let error = SqsError::new(ErrorKind::UnknownOperation, "");
    for protocol in [Protocol::Query, Protocol::QueryJson] {
        let response = render_error(protocol, &error, "id");
        assert_eq!((response.status, &response.body[..]), (404, &b"<UnknownOperationException/>"[..]));
        assert_eq!(response.header("content-type"), Some("text/xml"));
    }
    assert_eq!(render_error(Protocol::Json, &error, "id").status, 404);
}

#[test]
fn messages_that_the_store_gives() {
    for (error, kind, message) in [
        (
            SqsError::purge_in_progress("jobs"),
            ErrorKind::PurgeQueueInProgress,
            "Only one PurgeQueue operation on jobs is allowed every 60 seconds.",
        ),
        (
            SqsError::queue_deleted_recently(),
            ErrorKind::QueueDeletedRecently,
            "You must wait 60 seconds after deleting a queue before you can create another with the same name.",
        ),
        (
            SqsError::queue_name_exists("DelaySeconds"),
            ErrorKind::QueueNameExists,
            "A queue already exists with the same name and a different value for attribute DelaySeconds",
        ),
        (
            SqsError::receipt_handle_is_invalid("H"),
            ErrorKind::ReceiptHandleIsInvalid,
            "The input receipt handle \"H\" is not a valid receipt handle.",
        ),
        (
            SqsError::receipt_handle_expired("H"),
            ErrorKind::InvalidParameterValue,
            "Value H for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired.",
        ),
        (
            SqsError::not_available_for_visibility("H"),
            ErrorKind::InvalidParameterValue,
            "Value H for parameter ReceiptHandle is invalid. Reason: Message does not exist or is not available \
             for visibility timeout change.",
        ),
        (
            SqsError::resource_not_found("SourceArn"),
            ErrorKind::ResourceNotFound,
            "The resource that you specified for the SourceArn parameter doesn't exist.",
        ),
        (
            SqsError::resource_not_found("DestinationArn"),
            ErrorKind::ResourceNotFound,
            "The resource that you specified for the DestinationArn parameter doesn't exist.",
        ),
        (SqsError::task_does_not_exist(), ErrorKind::ResourceNotFound, "Task does not exist."),
        (
            SqsError::source_is_no_dead_letter_queue(),
            ErrorKind::InvalidParameterValue,
            "Source queue must be configured as a Dead Letter Queue.",
        ),
        (
            SqsError::task_already_running(),
            ErrorKind::InvalidParameterValue,
            "There is already a task running. Only one active task is allowed for a source queue arn at a given \
             time.",
        ),
    ] {
        assert_eq!((error.kind, &*error.message), (kind, message));
    }
}

#[test]
fn an_error_shows_code_and_message() {
    assert_eq!(SqsError::task_does_not_exist().to_string(), "ResourceNotFoundException: Task does not exist.");
}

/// A message may repeat what the client sent; XML must not break on it.
#[test]
fn control_characters_in_messages_are_written_as_references() {
    let body = r#"{"QueueUrl":"q","MessageBody":"b","MessageGroupId":"a\u0008<"}"#;
    let postbox_server::wire::Request::SendMessage(request) = json("SendMessage", body).unwrap() else { panic!() };
    let error = check_send(&(&request).into(), &created("jobs", &[])).unwrap_err();
    let xml = String::from_utf8(render_error(Protocol::Query, &error, "id").body).unwrap();
    assert!(xml.contains("Value a&#x8;&lt; for parameter MessageGroupId"), "{xml}");
}

#[test]
fn the_first_fault_of_a_receive_wins() {
    let body = r#"{"QueueUrl":"q","MaxNumberOfMessages":11,"WaitTimeSeconds":21}"#;
    let postbox_server::wire::Request::ReceiveMessage(request) = json("ReceiveMessage", body).unwrap() else {
        panic!()
    };
    let error = check_receive(&request, &created("jobs", &[])).unwrap_err();
    assert_eq!(
        error.message,
        "Value 11 for parameter MaxNumberOfMessages is invalid. Reason: Must be between 1 and 10, if provided."
    );
}
