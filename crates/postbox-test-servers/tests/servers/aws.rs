//! The AWS servers.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;

use postbox_test_servers::{
    AwsServer, DynamoDbLocal, Ministack, Moto, REGION, shared_dynamodb, shared_ministack, shared_moto,
};

/// The text after `"name":"` up to the next quote.
fn field(json: &str, name: &str) -> String {
    let rest = json.replace("\": ", "\":").split_once(&format!("\"{name}\":\"")).expect(json).1.to_owned();
    rest.split_once('"').expect("a string").0.to_owned()
}

/// Creates a queue and returns its URL.
fn queue(server: &AwsServer) -> String {
    let answer = server.call("AmazonSQS.CreateQueue", r#"{"QueueName":"letters"}"#);
    field(&answer, "QueueUrl")
}

fn send(server: &AwsServer, url: &str, body: &str) {
    server.call("AmazonSQS.SendMessage", &format!(r#"{{"QueueUrl":"{url}","MessageBody":"{body}"}}"#));
}

fn receive(server: &AwsServer, url: &str, wait: u32) -> String {
    server.call("AmazonSQS.ReceiveMessage", &format!(r#"{{"QueueUrl":"{url}","WaitTimeSeconds":{wait}}}"#))
}

fn create_table(server: &AwsServer) {
    let body = r#"{"TableName":"table","BillingMode":"PAY_PER_REQUEST",
        "KeySchema":[{"AttributeName":"id","KeyType":"HASH"}],
        "AttributeDefinitions":[{"AttributeName":"id","AttributeType":"S"}]}"#;
    server.call("DynamoDB_20120810.CreateTable", body);
}

fn put_if_absent(server: &AwsServer) -> (u16, String) {
    let body = r#"{"TableName":"table","Item":{"id":{"S":"a"}},
        "ConditionExpression":"attribute_not_exists(id)","ReturnValuesOnConditionCheckFailure":"ALL_OLD"}"#;
    server.try_call("DynamoDB_20120810.PutItem", body).unwrap()
}

fn check_process(server: &AwsServer) {
    let port = server.port();
    assert_eq!(server.endpoint(), format!("http://127.0.0.1:{port}"));
    assert_eq!(server.addresses(), [format!("127.0.0.1:{port}").parse().unwrap()]);
    create_table(server);
    assert_eq!(put_if_absent(server).0, 200);
    let (status, answer) = put_if_absent(server);
    assert_eq!(status, 400);
    assert!(answer.contains("ConditionalCheckFailedException") && answer.contains("Item"), "{answer}");

    server.pause();
    assert!(!server.is_running());
    server.resume();
    assert!(server.is_running());
    let pid = server.pid();
    server.kill();
    assert!(!Path::new(&format!("/proc/{pid}")).exists() && !server.is_running() && server.pid() == 0);
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    // The restarted server has no data.
    server.restart();
    assert_eq!(server.port(), port);
    create_table(server);
    assert_eq!(put_if_absent(server).0, 200);
}

fn has_queues(server: &AwsServer) {
    let url = queue(server);
    assert!(url.starts_with(&server.endpoint()), "{url}");
    send(server, &url, "hello");
    assert_eq!(field(&receive(server, &url, 0), "Body"), "hello");
    assert!(!receive(server, &url, 0).contains("Body"));
}

/// Starts more long polls than tests run at the same time, each on its own connection, then sends one message.
fn long_polls_block_no_other_request(server: &AwsServer) {
    let url = queue(server);
    let (answers, polls) = mpsc::channel();
    let count = 128;
    std::thread::scope(|scope| {
        for _ in 0..count {
            let (answers, url) = (answers.clone(), url.clone());
            scope.spawn(move || answers.send(receive(server, &url, 20)).unwrap());
        }
        for number in 0..count {
            send(server, &url, &format!("message {number}"));
        }
        let mut bodies: Vec<String> = polls.iter().take(count).map(|answer| field(&answer, "Body")).collect();
        bodies.sort();
        bodies.dedup();
        assert_eq!(bodies.len(), count);
    });
}

/// Sends two requests on one connection.
fn connections_are_reused(server: &AwsServer) {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    let scope = format!("test/20260101/{REGION}/dynamodb/aws4_request");
    let request = format!(
        "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Amz-Target: DynamoDB_20120810.ListTables\r\n\
        Content-Type: application/x-amz-json-1.0\r\nContent-Length: 2\r\n\
        Authorization: AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=0\r\n\r\n{{}}"
    );
    for _ in 0..2 {
        stream.write_all(request.as_bytes()).unwrap();
        let mut reply = String::new();
        while !reply.contains("TableNames") || !reply.ends_with(['}', '\n']) {
            let mut bytes = [0; 4096];
            let length = stream.read(&mut bytes).unwrap();
            assert_ne!(length, 0, "{reply}");
            reply.push_str(std::str::from_utf8(&bytes[..length]).unwrap());
        }
        assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    }
}

#[test]
fn moto_has_queues_and_tables() {
    let server = Moto::start();
    check_process(&server);
    has_queues(&server);
    connections_are_reused(&server);
}

#[test]
fn ministack_has_queues_and_tables() {
    let server = Ministack::start();
    check_process(&server);
    has_queues(&server);
    connections_are_reused(&server);
}

#[test]
fn dynamodb_local_has_tables() {
    let server = DynamoDbLocal::start();
    check_process(&server);
    connections_are_reused(&server);
}

#[test]
fn a_hundred_long_polls_block_no_other_request() {
    std::thread::scope(|scope| {
        scope.spawn(|| long_polls_block_no_other_request(&Moto::start()));
        scope.spawn(|| long_polls_block_no_other_request(&Ministack::start()));
    });
}

#[test]
fn a_missing_server_panics_with_the_command_to_install_it() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "aws::moto_has_queues_and_tables", "--nocapture"])
        .env("POSTBOX_TEST_SERVERS", "/nonexistent")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(text.contains("Moto is missing") && text.contains("run ./test"), "{text}");
}

#[test]
fn the_shared_servers_of_aws_answer() {
    for endpoint in [shared_moto(), shared_ministack(), shared_dynamodb()] {
        let address = endpoint.strip_prefix("http://").unwrap();
        assert!(TcpStream::connect(address).is_ok(), "{endpoint}");
    }
}
