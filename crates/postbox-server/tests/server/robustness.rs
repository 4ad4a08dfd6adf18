//! Random input: nothing panics, and every error can be written in both protocols.

use crate::{map, queue};
use postbox_server::auth::*;
use postbox_server::queue::*;
use postbox_server::wire::{Action, HttpRequest, Protocol, parse, render_error};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

/// Names of members and parts of names, so that random requests get far.
fn word() -> impl Strategy<Value = String> {
    let words = [
        "Action",
        "QueueUrl",
        "MessageBody",
        "Entries",
        "Attribute",
        "Attributes",
        "1",
        "2",
        "0",
        "01",
        "Name",
        "Value",
        "Key",
        "member",
        "entry",
        "MessageAttribute",
        "MessageAttributes",
        "SendMessageBatchRequestEntry",
        "Id",
        "StringValue",
        "BinaryValue",
        "DataType",
        "String",
        "DelaySeconds",
        "All",
        "AAE=",
        "99999999999",
        "-1",
        "",
    ];
    prop_oneof![
        4 => prop::sample::select(words.to_vec()).prop_map(str::to_owned),
        1 => ".{0,6}",
    ]
}

fn action() -> impl Strategy<Value = Action> {
    prop::sample::select(Action::ALL.to_vec())
}

fn json_value() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<f64>().prop_map(Into::into),
        word().prop_map(Into::into),
    ];
    leaf.prop_recursive(4, 32, 5, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Into::into),
            btree_map(word(), inner, 0..5).prop_map(|object| serde_json::Value::Object(object.into_iter().collect())),
        ]
    })
}

fn check(http: &HttpRequest<'_>) {
    let protocol = Protocol::of(http);
    let Err(error) = parse(protocol, http) else { return };
    for protocol in [Protocol::Json, Protocol::Query, Protocol::QueryJson] {
        let response = render_error(protocol, &error, "id");
        assert!((400..600).contains(&response.status));
        if protocol != Protocol::Query && error.kind != postbox_server::ErrorKind::UnknownOperation {
            serde_json::from_slice::<serde_json::Value>(&response.body).unwrap();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes(path in ".{0,20}", query in ".{0,40}", body in vec(any::<u8>(), 0..200), json: bool) {
        let headers: &[(&str, &str)] = if json { &[("x-amz-target", "AmazonSQS.SendMessage")] } else { &[] };
        for method in ["GET", "POST", ""] {
            check(&HttpRequest { method, path: &path, query: &query, headers, body: &body });
        }
    }

    #[test]
    fn any_json(action in action(), value in json_value()) {
        let target = format!("AmazonSQS.{}", action.name());
        let headers = [("x-amz-target", target.as_str())];
        let body = value.to_string();
        check(&HttpRequest { method: "POST", path: "/", query: "", headers: &headers, body: body.as_bytes() });
    }

    #[test]
    fn any_form(action in action(), pairs in vec((vec(word(), 1..7), word()), 0..12)) {
        let pairs = pairs.into_iter().map(|(name, value)| (name.join("."), value));
        let mut form = form_of([("Action".to_owned(), action.name().to_owned())]);
        form.push('&');
        form.push_str(&form_of(pairs));
        check(&HttpRequest { method: "GET", path: "/1/q", query: &form, headers: &[], body: b"" });
    }

    #[test]
    fn any_signature(authorization in ".{0,60}", date in ".{0,17}", query in ".{0,60}", now: u64) {
        let keys = AccessKeys::new([AccessKey::new("a", "b")]);
        for header in [authorization.clone(), format!("AWS4-HMAC-SHA256 {authorization}")] {
            let headers = [("authorization", header.as_str()), ("x-amz-date", date.as_str()), ("host", "h")];
            let http = HttpRequest { method: "GET", path: "/", query: &query, headers: &headers, body: b"" };
            prop_assert!(verify(&http, &keys, now).is_err());
        }
    }

    #[test]
    fn any_signature_of_the_right_form(
        scope in vec("[a-z0-9]{0,3}|a|sqs|aws4_request|20150830", 4..7),
        parameters in vec(prop::sample::select(vec![
            "X-Amz-Algorithm=AWS4-HMAC-SHA256", "X-Amz-Date=20150830T123600Z", "X-Amz-SignedHeaders=host",
            "X-Amz-Expires=60", "X-Amz-Signature=0", "X-Amz-Security-Token=t", "X-Amz-Date=99991231T235959Z",
        ]), 0..8),
        now: u64,
    ) {
        let keys = AccessKeys::new([AccessKey::new("a", "b")]);
        let query = format!("X-Amz-Credential={}&{}", scope.join("/"), parameters.join("&"));
        let http = HttpRequest { method: "GET", path: "/", query: &query, headers: &[("host", "h")], body: b"" };
        prop_assert!(verify(&http, &keys, now).is_err());
    }

    /// What is signed is verified, by a header and by a URL; with another secret it is not.
    #[test]
    fn any_request_can_be_signed(
        method in "GET|POST", path in "/[a-zA-Z0-9%/._ é-]{0,20}", parameters in vec((".{0,6}", ".{0,6}"), 0..5),
        values in vec("[ -~]{0,12}", 0..4), body in vec(any::<u8>(), 0..50), now in 1_000_000u64..4_000_000_000,
        skew in 0u64..600,
    ) {
        let time = format_time(now + skew - 300);
        let scope = format!("{}/eu-west-1/sqs/aws4_request", &time[..8]);
        let secret = Secret::new("a secret");
        let names: Vec<String> = (0..values.len()).map(|index| format!("x-amz-{index}")).collect();
        let mut headers: Vec<(&str, &str)> = vec![("Host", "h:1")];
        headers.extend(names.iter().map(String::as_str).zip(values.iter().map(String::as_str)));
        let mut signed: Vec<String> = headers.iter().map(|(name, _)| name.to_lowercase()).collect();
        let query = form_of(parameters);
        let sign = |http: &HttpRequest<'_>, signed: &[String]| {
            let text = string_to_sign(&time, &scope, &canonical_request(http, signed));
            signature(&signing_key(&secret, &scope), &text)
        };
        let good = AccessKeys::new([AccessKey::new("a", "a secret")]);
        let other = AccessKeys::new([AccessKey::new("a", "another")]);

        let credential = format!("a/{scope}").replace('/', "%2F");
        let presigned = format!(
            "{query}&X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={credential}&X-Amz-Date={time}\
             &X-Amz-Expires=604800&X-Amz-SignedHeaders={}", signed.join("%3B")
        );
        let http = HttpRequest { method: &method, path: &path, query: &presigned, headers: &headers, body: &body };
        let with_signature = format!("{presigned}&X-Amz-Signature={}", sign(&http, &signed));
        let http = HttpRequest { query: &with_signature, ..http };
        prop_assert!(verify(&http, &good, now).is_ok());
        prop_assert!(verify(&http, &other, now).is_err());

        headers.push(("x-amz-date", &time));
        signed.push("x-amz-date".to_owned());
        let http = HttpRequest { method: &method, path: &path, query: &query, headers: &headers, body: &body };
        let authorization = format!(
            "AWS4-HMAC-SHA256 Credential=a/{scope}, SignedHeaders={}, Signature={}",
            signed.join(";"), sign(&http, &signed)
        );
        let mut with_header = headers.clone();
        with_header.push(("Authorization", &authorization));
        let http = HttpRequest { headers: &with_header, ..http };
        prop_assert!(verify(&http, &good, now).is_ok());
        prop_assert!(verify(&http, &other, now).is_err());
    }

    #[test]
    fn any_text_as_address(text in ".{0,60}|[a-z:/.0-9]{0,40}") {
        let scope = Scope::new("eu-west-1", "111111111111");
        if let Ok(address) = QueueUrl::parse(&text, &scope) {
            let url = QueueUrl::format(&address, "http://h:1", "eu-west-1");
            prop_assert_eq!(QueueUrl::parse(&url, &scope), Ok(address));
        }
        QueueUrl::is_path_of_queue(&text);
        if let Some(address) = QueueAddress::from_arn(&text) {
            prop_assert_eq!(address.arn(), text.clone());
        }
        let _ = TaskHandle::decode(&text);
        let _ = AccessKeys::parse(&text);
        let _ = RedrivePolicy::parse(&text);
        let _ = RedriveAllowPolicy::parse(&text);
    }

    #[test]
    fn any_task_is_read_back(task_id: String, source_arn: String) {
        let task = TaskHandle { task_id, source_arn };
        prop_assert_eq!(TaskHandle::decode(&task.encode()), Ok(task));
    }

    #[test]
    fn any_time_is_read_back(seconds in 0u64..253_402_300_800) {
        prop_assert_eq!(parse_time(&format_time(seconds)), Some(seconds));
    }

    /// What GetQueueAttributes shows creates a queue with the same attributes.
    #[test]
    fn any_attributes_are_shown_as_they_were_set(
        delay in 0u32..=900, size in 1024u32..=1_048_576, retention in 60u32..=1_209_600, wait in 0u32..=20,
        visibility in 0u32..=43_200, fifo: bool, content_based: bool, per_group: bool, key: bool,
    ) {
        let name = if fifo { "a.fifo" } else { "a" };
        let dead = queue(if fifo { "dead.fifo" } else { "dead" }).arn();
        let mut attributes = map(&[
            ("DelaySeconds", &delay.to_string()),
            ("MaximumMessageSize", &size.to_string()),
            ("MessageRetentionPeriod", &retention.to_string()),
            ("ReceiveMessageWaitTimeSeconds", &wait.to_string()),
            ("VisibilityTimeout", &visibility.to_string()),
            ("RedrivePolicy", &format!("{{\"deadLetterTargetArn\":\"{dead}\",\"maxReceiveCount\":\"3\"}}")),
            ("RedriveAllowPolicy", "{\"redrivePermission\":\"denyAll\"}"),
            ("Policy", "{\"Statement\":[]}"),
        ]);
        if fifo {
            attributes.extend(map(&[
                ("FifoQueue", "true"),
                ("ContentBasedDeduplication", &content_based.to_string()),
                ("DeduplicationScope", if per_group { "messageGroup" } else { "queue" }),
                ("FifoThroughputLimit", if per_group { "perMessageGroupId" } else { "perQueue" }),
            ]));
        }
        if key {
            attributes.extend(map(&[("KmsMasterKeyId", "k"), ("KmsDataKeyReusePeriodSeconds", "60")]));
        }
        let created = QueueAttributes::create(&queue(name), &attributes).unwrap();
        let mut shown = created.show(&queue(name), &QueueFigures::default(), &["All".to_owned()]).unwrap();
        shown.retain(|name, _| !name.starts_with("Approximate") && !name.ends_with("Timestamp") && name != "QueueArn");
        prop_assert_eq!(created.first_difference(&queue(name), &shown), Ok(None));
        prop_assert_eq!(QueueAttributes::create(&queue(name), &shown), Ok(created));
    }
}

fn form_of(pairs: impl IntoIterator<Item = (String, String)>) -> String {
    let encode = |text: &str| text.bytes().map(|byte| format!("%{byte:02X}")).collect::<String>();
    let pairs: Vec<String> =
        pairs.into_iter().map(|(name, value)| format!("{}={}", encode(&name), encode(&value))).collect();
    pairs.join("&")
}
