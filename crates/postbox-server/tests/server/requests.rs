//! How requests are read, beyond what the round trips show.

use crate::{failure, form, get, json, map, texts};
use postbox_server::ErrorKind;
use postbox_server::message_attributes::MessageAttribute;
use postbox_server::wire::{Action, HttpRequest, Protocol, Request, parse};

fn protocol(headers: &[(&str, &str)]) -> Protocol {
    Protocol::of(&HttpRequest { method: "POST", path: "/", query: "", headers, body: b"" })
}

#[test]
fn each_request_chooses_its_protocol() {
    for (headers, expected) in [
        (&[][..], Protocol::Query),
        (&[("Content-Type", "application/x-www-form-urlencoded; charset=utf-8")], Protocol::Query),
        (&[("Content-Type", "application/x-amz-json-1.0")], Protocol::Json),
        (&[("content-type", "Application/X-Amz-Json-1.1; charset=utf-8")], Protocol::Json),
        (&[("X-AMZ-TARGET", "AmazonSQS.ListQueues")], Protocol::Json),
        (&[("Accept", "application/json")], Protocol::QueryJson),
        (&[("accept", "text/html, application/json;q=0.5")], Protocol::QueryJson),
        (&[("accept", "*/*")], Protocol::Query),
    ] {
        assert_eq!(protocol(headers), expected, "{headers:?}");
    }
}

#[test]
fn json_may_be_posted_to_a_queues_url() {
    let headers = [("x-amz-target", "AmazonSQS.ReceiveMessage"), ("content-type", "application/x-amz-json-1.0")];
    let http = HttpRequest {
        method: "POST",
        path: "/111111111111/jobs",
        query: "",
        headers: &headers,
        body: br#"{"QueueUrl":"http://h/111111111111/jobs","WaitTimeSeconds":1}"#,
    };
    assert_eq!(parse(Protocol::of(&http), &http).unwrap().queue_url(), Some("http://h/111111111111/jobs"));
}

#[test]
fn a_json_request_needs_a_known_target() {
    for target in ["", "AmazonSQS", "AmazonSQS.", "AmazonSQS.FooBar", "DynamoDB_20120810.ListTables"] {
        let headers = [("x-amz-target", target)];
        let http = HttpRequest { method: "POST", path: "/", query: "", headers: &headers, body: b"{}" };
        assert_eq!(parse(Protocol::Json, &http).unwrap_err().kind, ErrorKind::UnknownOperation);
    }
}

#[test]
fn a_query_request_needs_a_known_action() {
    assert_eq!(get("/", "").unwrap_err().kind, ErrorKind::UnknownOperation);
    assert_eq!(get("/111111111111/jobs", "").unwrap_err().kind, ErrorKind::UnknownOperation);
    assert_eq!(get("/", "Action=").unwrap_err().kind, ErrorKind::UnknownOperation);
    assert_eq!(
        failure(get("/111111111111/jobs", "Action=FooBar&Version=2012-11-05")),
        (ErrorKind::InvalidAction, "The action FooBar is not valid for this endpoint.".into())
    );
}

#[test]
fn two_actions_are_not_valid_at_a_queues_url() {
    for action in ["CreateQueue", "ListQueues"] {
        for path in ["/111111111111/jobs", "/111111111111/jobs.fifo/", "/eu-west-1/111111111111/jobs"] {
            let message = format!("The action {action} is not valid for this endpoint.");
            assert_eq!(
                failure(get(path, &format!("Action={action}&QueueName=x"))),
                (ErrorKind::InvalidAction, message)
            );
        }
        assert!(get("/", &format!("Action={action}&QueueName=x")).is_ok());
    }
    let found = get("/111111111111/jobs", "Action=GetQueueUrl&QueueName=other").unwrap();
    assert_eq!(found.action(), Action::GetQueueUrl);
}

#[test]
fn a_queue_is_named_by_the_path_or_by_a_parameter_that_beats_it() {
    let by_path = get("/111111111111/jobs", "Action=PurgeQueue").unwrap();
    assert_eq!(by_path.queue_url(), Some("/111111111111/jobs"));
    let by_parameter = get("/111111111111/jobs", "Action=PurgeQueue&QueueUrl=other").unwrap();
    assert_eq!(by_parameter.queue_url(), Some("other"));
    assert_eq!(
        failure(get("/", "Action=PurgeQueue")),
        (ErrorKind::MissingParameter, "The request must contain the parameter QueueUrl.".into())
    );
}

#[test]
fn parameters_of_a_post_may_be_in_its_url() {
    let http = HttpRequest {
        method: "POST",
        path: "/",
        query: "Action=CreateQueue&QueueName=a",
        headers: &[],
        body: b"QueueName=b",
    };
    let Ok(Request::CreateQueue(request)) = parse(Protocol::Query, &http) else { panic!() };
    assert_eq!(request.queue_name, "b");
}

#[test]
fn absent_members_are_named() {
    for (result, member) in [
        (json("SendMessage", r#"{"MessageBody":"b"}"#), "QueueUrl"),
        (json("SendMessage", r#"{"QueueUrl":"q","MessageBody":null}"#), "MessageBody"),
        (get("/111111111111/jobs", "Action=SendMessage"), "MessageBody"),
        (json("CreateQueue", ""), "QueueName"),
        (json("AddPermission", r#"{"QueueUrl":"q"}"#), "Label"),
        (json("DeleteMessage", r#"{"QueueUrl":"q"}"#), "ReceiptHandle"),
        (json("CancelMessageMoveTask", "{}"), "TaskHandle"),
        (json("StartMessageMoveTask", "{}"), "SourceArn"),
        (
            json("DeleteMessageBatch", r#"{"QueueUrl":"q","Entries":[{"Id":"a","ReceiptHandle":"r"},{"Id":"b"}]}"#),
            "DeleteMessageBatchRequestEntry.2.ReceiptHandle",
        ),
        (
            form("Action=SendMessageBatch&QueueUrl=q&SendMessageBatchRequestEntry.3.Id=a"),
            "SendMessageBatchRequestEntry.3.MessageBody",
        ),
        (form("Action=SetQueueAttributes&QueueUrl=q&Attribute.1.Name=DelaySeconds"), "Attribute.1.Value"),
        (form("Action=TagQueue&QueueUrl=q&Tag.1.Value=v"), "Tag.1.Key"),
    ] {
        let message = format!("The request must contain the parameter {member}.");
        assert_eq!(failure(result), (ErrorKind::MissingParameter, message));
    }
}

#[test]
fn lists_of_the_query_protocol_in_all_their_forms() {
    let names = texts(&["QueueArn", "Policy"]);
    for parameters in [
        "AttributeName.1=QueueArn&AttributeName.2=Policy",
        "AttributeName.20=Policy&AttributeName.3=QueueArn",
        "AttributeName.member.1=QueueArn&AttributeName.member.2=Policy",
        "AttributeNames.1=QueueArn&AttributeNames.2=Policy",
        "AttributeNames.member.1=QueueArn&AttributeNames.member.2=Policy",
        "AttributeNames.AttributeName.1=QueueArn&AttributeNames.AttributeName.2=Policy",
        "AttributeName.1=QueueArn&AttributeName.2=Policy&AttributeName=All&AttributeName.x=All",
    ] {
        let Ok(Request::GetQueueAttributes(request)) =
            form(&format!("Action=GetQueueAttributes&QueueUrl=q&{parameters}"))
        else {
            panic!()
        };
        assert_eq!(request.attribute_names, names, "{parameters}");
    }
    let Ok(Request::GetQueueAttributes(request)) = form("Action=GetQueueAttributes&QueueUrl=q&AttributeName=All")
    else {
        panic!()
    };
    assert_eq!(request.attribute_names, texts(&["All"]));
}

#[test]
fn maps_of_the_query_protocol_in_all_their_forms() {
    for parameters in [
        "Attribute.1.Name=DelaySeconds&Attribute.1.Value=5",
        "Attribute.Name=DelaySeconds&Attribute.Value=5",
        "Attribute.entry.1.Name=DelaySeconds&Attribute.entry.1.Value=5",
        "Attributes.entry.1.key=DelaySeconds&Attributes.entry.1.value=5",
        "Attributes.1.Name=DelaySeconds&Attributes.1.Value=5",
    ] {
        let Ok(Request::SetQueueAttributes(request)) =
            form(&format!("Action=SetQueueAttributes&QueueUrl=q&{parameters}"))
        else {
            panic!()
        };
        assert_eq!(request.attributes, map(&[("DelaySeconds", "5")]), "{parameters}");
    }
    let Ok(Request::CreateQueue(request)) =
        form("Action=CreateQueue&QueueName=q&Tag.1.Key=k&Tag.1.Value=v&Tag.2.Key=l&Tag.2.Value=")
    else {
        panic!()
    };
    assert_eq!(request.tags, map(&[("k", "v"), ("l", "")]));
}

#[test]
fn message_attributes_of_the_query_protocol() {
    let Ok(Request::SendMessage(request)) = form(
        "Action=SendMessage&QueueUrl=q&MessageBody=a+b%0D%0A%26quot%3B\
         &MessageAttribute.1.Name=n&MessageAttribute.1.Value.StringValue=1&MessageAttribute.1.Value.DataType=Number\
         &MessageAttribute.2.Name=b&MessageAttribute.2.Value.BinaryValue=%2B%2F8%3D\
         &MessageAttribute.2.Value.DataType=Binary.png\
         &MessageSystemAttribute.1.Name=AWSTraceHeader&MessageSystemAttribute.1.Value.StringValue=Root%3D1\
         &MessageSystemAttribute.1.Value.DataType=String",
    ) else {
        panic!()
    };
    assert_eq!(request.message_body, "a b\r\n&quot;");
    assert_eq!(request.message_attributes["n"], MessageAttribute::text("Number", "1"));
    assert_eq!(request.message_attributes["b"], MessageAttribute::binary("Binary.png", [0xfb, 0xff]));
    assert_eq!(request.message_system_attributes["AWSTraceHeader"], MessageAttribute::text("String", "Root=1"));
}

#[test]
fn values_of_the_wrong_type_are_malformed() {
    for (result, message) in [
        (json("ListQueues", "[]"), "Start of structure or map expected."),
        (json("ListQueues", "{"), "The request body is not valid JSON."),
        (json("ListQueues", "{\"QueueNamePrefix\":\"\\ud800\"}"), "The request body is not valid JSON."),
        (json("ListQueues", r#"{"MaxResults":"5"}"#), "STRING_VALUE can not be converted to an Integer"),
        (json("ListQueues", r#"{"MaxResults":1.5}"#), "NUMBER_VALUE can not be converted to an Integer"),
        (json("ListQueues", r#"{"QueueNamePrefix":true}"#), "TRUE_VALUE can not be converted to a String"),
        (json("ListQueues", r#"{"QueueNamePrefix":["a"]}"#), "Start of list found where not expected"),
        (
            json("CreateQueue", r#"{"QueueName":"q","Attributes":{"DelaySeconds":5}}"#),
            "NUMBER_VALUE can not be converted to a String",
        ),
        (json("CreateQueue", r#"{"QueueName":{}}"#), "Start of structure or map found where not expected."),
        (
            json("SendMessage", r#"{"QueueUrl":"q","MessageBody":"b","MessageAttributes":{"a":{"BinaryValue":"?"}}}"#),
            "A blob is not valid base64.",
        ),
        (form("Action=ListQueues&MaxResults=many"), "For input string: \"many\""),
        (form("Action=ListQueues&MaxResults="), "For input string: \"\""),
    ] {
        assert_eq!(failure(result), (ErrorKind::MalformedInput, message.into()));
    }
}

#[test]
fn unknown_members_are_ignored() {
    assert!(json("ListQueues", r#"{"Foo":{"Bar":[1]},"MaxResults":null}"#).is_ok());
    assert!(form("Action=ListQueues&Version=2012-11-05&Foo.1.Bar=x&a.b.c.d.e.f.g.h.i.j.k=1&....=&=").is_ok());
}

#[test]
fn actions_have_their_names() {
    assert_eq!(Action::ALL.len(), 23);
    for &action in Action::ALL {
        assert_eq!(Action::from_name(action.name()), Some(action));
    }
    assert_eq!(Action::from_name("sendmessage"), None);
}

#[test]
fn a_trace_id_comes_with_a_header() {
    let headers = [("X-Amzn-Trace-Id", " Root=1-2 "), ("x-other", "")];
    let http = HttpRequest { method: "POST", path: "/", query: "", headers: &headers, body: b"" };
    assert_eq!(http.trace_header(), Some("Root=1-2"));
    let http = HttpRequest { headers: &[("x-amzn-trace-id", " ")], ..http };
    assert_eq!(http.trace_header(), None);
}
