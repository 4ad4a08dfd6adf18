//! How answers are written.

use crate::map;
use postbox_server::SqsError;
use postbox_server::message_attributes::MessageAttribute;
use postbox_server::wire::response::*;
use postbox_server::wire::{Action, Protocol, Response, render};
use std::collections::BTreeMap;

fn body(protocol: Protocol, response: Response) -> String {
    String::from_utf8(render(protocol, response, "the-id").body).unwrap()
}

fn message() -> Response {
    let message = ReceivedMessage {
        message_id: Some("m".into()),
        receipt_handle: Some("r".into()),
        md5_of_body: Some("d".into()),
        body: Some("a\rb\r\n&quot;<\"\u{1f600}".into()),
        attributes: map(&[("SenderId", "s"), ("SentTimestamp", "1")]),
        md5_of_message_attributes: Some("e".into()),
        message_attributes: BTreeMap::from([
            ("n".to_owned(), MessageAttribute::text("Number", "1")),
            ("b".to_owned(), MessageAttribute::binary("Binary", [0, 255])),
        ]),
    };
    Response::ReceiveMessage(ReceiveMessageResult { messages: vec![message] })
}

#[test]
fn headers_of_an_answer() {
    for (protocol, content_type) in [
        (Protocol::Json, "application/x-amz-json-1.0"),
        (Protocol::Query, "text/xml"),
        (Protocol::QueryJson, "application/json"),
    ] {
        let response = render(protocol, message(), "the-id");
        assert_eq!(response.status, 200);
        assert_eq!(response.header("content-type"), Some(content_type));
        assert_eq!(response.header("x-amzn-requestid"), Some("the-id"));
    }
}

#[test]
fn a_message_in_json() {
    let expected = serde_json::json!({ "Messages": [{
        "MessageId": "m",
        "ReceiptHandle": "r",
        "MD5OfBody": "d",
        "Body": "a\rb\r\n&quot;<\"\u{1f600}",
        "Attributes": { "SenderId": "s", "SentTimestamp": "1" },
        "MD5OfMessageAttributes": "e",
        "MessageAttributes": {
            "b": { "BinaryValue": "AP8=", "DataType": "Binary" },
            "n": { "StringValue": "1", "DataType": "Number" },
        },
    }] });
    let found: serde_json::Value = serde_json::from_str(&body(Protocol::Json, message())).unwrap();
    assert_eq!(found, expected);
}

#[test]
fn a_message_in_xml() {
    assert_eq!(
        body(Protocol::Query, message()),
        "<?xml version=\"1.0\"?><ReceiveMessageResponse xmlns=\"http://queue.amazonaws.com/doc/2012-11-05/\">\
         <ReceiveMessageResult><Message><MessageId>m</MessageId><ReceiptHandle>r</ReceiptHandle>\
         <MD5OfBody>d</MD5OfBody><Body>a&#xD;b&#xD;\n&amp;quot;&lt;&quot;\u{1f600}</Body>\
         <Attribute><Name>SenderId</Name><Value>s</Value></Attribute>\
         <Attribute><Name>SentTimestamp</Name><Value>1</Value></Attribute>\
         <MD5OfMessageAttributes>e</MD5OfMessageAttributes>\
         <MessageAttribute><Name>b</Name><Value><BinaryValue>AP8=</BinaryValue><DataType>Binary</DataType></Value>\
         </MessageAttribute>\
         <MessageAttribute><Name>n</Name><Value><StringValue>1</StringValue><DataType>Number</DataType></Value>\
         </MessageAttribute></Message></ReceiveMessageResult>\
         <ResponseMetadata><RequestId>the-id</RequestId></ResponseMetadata></ReceiveMessageResponse>"
    );
}

#[test]
fn a_message_in_the_json_of_the_query_protocol() {
    let found: serde_json::Value = serde_json::from_str(&body(Protocol::QueryJson, message())).unwrap();
    let message = &found["ReceiveMessageResponse"]["ReceiveMessageResult"]["messages"][0];
    assert_eq!(message["Body"], "a\rb\r\n&quot;<\"\u{1f600}");
    assert_eq!(message["Attributes"][0], serde_json::json!({ "Name": "SenderId", "Value": "s" }));
    let attribute = serde_json::json!({ "Name": "n", "Value": { "StringValue": "1", "DataType": "Number" } });
    assert_eq!(message["MessageAttributes"][1], attribute);
}

#[test]
fn lists_of_queues_and_attributes_in_the_json_of_the_query_protocol() {
    let queues = ListQueuesResult { queue_urls: vec!["u".into()], next_token: Some("t".into()) };
    assert_eq!(
        body(Protocol::QueryJson, Response::ListQueues(queues)),
        "{\"ListQueuesResponse\":{\"ListQueuesResult\":{\"queueUrls\":[\"u\"],\"nextToken\":\"t\"},\
         \"ResponseMetadata\":{\"RequestId\":\"the-id\"}}}"
    );
    let attributes = GetQueueAttributesResult { attributes: map(&[("QueueArn", "a")]) };
    assert_eq!(
        body(Protocol::QueryJson, Response::GetQueueAttributes(attributes)),
        "{\"GetQueueAttributesResponse\":{\"GetQueueAttributesResult\":{\"Attributes\":\
         [{\"Name\":\"QueueArn\",\"Value\":\"a\"}]},\"ResponseMetadata\":{\"RequestId\":\"the-id\"}}}"
    );
}

#[test]
fn empty_results_leave_everything_out() {
    for (response, name) in [
        (Response::ReceiveMessage(ReceiveMessageResult::default()), "ReceiveMessage"),
        (Response::ListQueues(ListQueuesResult::default()), "ListQueues"),
        (Response::ListQueueTags(ListQueueTagsResult::default()), "ListQueueTags"),
        (Response::GetQueueAttributes(GetQueueAttributesResult::default()), "GetQueueAttributes"),
        (Response::SendMessageBatch(SendMessageBatchResult::default()), "SendMessageBatch"),
        (Response::ListMessageMoveTasks(ListMessageMoveTasksResult::default()), "ListMessageMoveTasks"),
    ] {
        assert_eq!(body(Protocol::Json, response.clone()), "{}");
        let xml = body(Protocol::Query, response.clone());
        assert!(xml.contains(&format!("><{name}Result/><ResponseMetadata>")), "{xml}");
        let other = body(Protocol::QueryJson, response);
        assert!(other.contains(&format!("\"{name}Result\":null,")), "{other}");
    }
}

#[test]
fn actions_without_result() {
    for action in [Action::DeleteQueue, Action::DeleteMessage, Action::PurgeQueue, Action::TagQueue] {
        assert_eq!(body(Protocol::Json, Response::Empty(action)), "");
        let name = action.name();
        assert_eq!(
            body(Protocol::Query, Response::Empty(action)),
            format!(
                "<?xml version=\"1.0\"?><{name}Response xmlns=\"http://queue.amazonaws.com/doc/2012-11-05/\">\
                 <ResponseMetadata><RequestId>the-id</RequestId></ResponseMetadata></{name}Response>"
            )
        );
    }
}

#[test]
fn a_batch_with_a_failure() {
    let result = SendMessageBatchResult {
        successful: vec![SendMessageSuccess { id: "a".into(), message_id: Some("m".into()), ..Default::default() }],
        failed: vec![BatchFailure::new("b", &SqsError::missing("X"))],
    };
    assert_eq!(
        body(Protocol::Json, Response::SendMessageBatch(result.clone())),
        "{\"Successful\":[{\"Id\":\"a\",\"MessageId\":\"m\"}],\"Failed\":[{\"Id\":\"b\",\"SenderFault\":true,\
         \"Code\":\"MissingParameter\",\"Message\":\"The request must contain the parameter X.\"}]}"
    );
    let xml = body(Protocol::Query, Response::SendMessageBatch(result));
    assert!(xml.contains(
        "<SendMessageBatchResult><SendMessageBatchResultEntry><Id>a</Id><MessageId>m</MessageId>\
         </SendMessageBatchResultEntry><BatchResultErrorEntry><Id>b</Id><SenderFault>true</SenderFault>\
         <Code>MissingParameter</Code><Message>The request must contain the parameter X.</Message>\
         </BatchResultErrorEntry></SendMessageBatchResult>"
    ));
}

#[test]
fn names_that_differ_between_the_protocols() {
    let sources = ListDeadLetterSourceQueuesResult { queue_urls: vec!["u".into()], next_token: None };
    let sources = Response::ListDeadLetterSourceQueues(sources);
    assert_eq!(body(Protocol::Json, sources.clone()), "{\"queueUrls\":[\"u\"]}");
    assert!(body(Protocol::Query, sources).contains("<QueueUrl>u</QueueUrl>"));
    let tags = Response::ListQueueTags(ListQueueTagsResult { tags: map(&[("k", "")]) });
    assert_eq!(body(Protocol::Json, tags.clone()), "{\"Tags\":{\"k\":\"\"}}");
    assert!(body(Protocol::Query, tags).contains("<Tag><Key>k</Key><Value></Value></Tag>"));
}
