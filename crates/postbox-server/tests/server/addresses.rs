//! Names, ARNs and URLs.

use crate::{failure, queue};
use postbox_server::ErrorKind;
use postbox_server::queue::{QueueAddress, QueueUrl, Scope, TaskHandle, check_name, parse_task_arn, region_of_host};

const REGION: &str = "eu-west-1";

fn request() -> Scope {
    Scope::new(REGION, "111111111111")
}

#[test]
fn names_of_queues() {
    let eighty = "a".repeat(80);
    let fifo_of_eighty = format!("{}.fifo", "a".repeat(75));
    for (name, fifo) in [("a", false), ("A-b_9", false), (&*eighty, false), ("a.fifo", true), (&*fifo_of_eighty, true)]
    {
        assert_eq!(check_name(name, fifo), Ok(()), "{name}");
    }
    let standard = "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length";
    let too_long = "a".repeat(81);
    for name in ["a.fifo", "a.b", "a b", "ä", "a/b", ".fifo", &*too_long] {
        assert_eq!(failure(check_name(name, false)), (ErrorKind::InvalidParameterValue, standard.into()), "{name}");
    }
    let fifo_too_long = format!("{}.fifo", "a".repeat(76));
    for name in ["a", ".fifo", "a.FIFO", "a b.fifo", &*fifo_too_long] {
        let (kind, message) = failure(check_name(name, true));
        assert_eq!(kind, ErrorKind::InvalidParameterValue, "{name}");
        assert!(message.contains("must end with .fifo suffix"), "{message}");
    }
    assert_eq!(
        failure(check_name("", false)),
        (ErrorKind::MissingParameter, "The request must contain the parameter QueueName.".into())
    );
}

#[test]
fn arns() {
    for (region, arn) in [
        ("eu-west-1", "arn:aws:sqs:eu-west-1:111111111111:jobs.fifo"),
        ("cn-north-1", "arn:aws-cn:sqs:cn-north-1:111111111111:jobs.fifo"),
        ("us-gov-west-1", "arn:aws-us-gov:sqs:us-gov-west-1:111111111111:jobs.fifo"),
    ] {
        let address = QueueAddress::new(Scope::new(region, "111111111111"), "jobs.fifo");
        assert_eq!(address.arn(), arn);
        assert_eq!(QueueAddress::from_arn(arn), Some(address));
    }
    for arn in [
        "",
        "arn",
        "arn:aws:sqs:eu-west-1:111111111111",
        "arn:aws:sqs:eu-west-1:111111111111:",
        "arn:aws:sns:eu-west-1:111111111111:jobs",
        "arn:aws:sqs::111111111111:jobs",
        "arn:aws:sqs:eu_west_1:111111111111:jobs",
        "arn:aws:sqs:eu-west-1:account:jobs",
        "arn:aws:sqs:eu-west-1:111111111111:jobs:more",
        "arn:aws:sqs:eu-west-1:111111111111:a b",
        "arn:aws-cn:sqs:eu-west-1:111111111111:jobs",
        "ARN:aws:sqs:eu-west-1:111111111111:jobs",
    ] {
        assert_eq!(QueueAddress::from_arn(arn), None, "{arn}");
    }
}

#[test]
fn a_queue_is_found_by_any_of_its_urls() {
    for (text, region, account, name) in [
        ("jobs", REGION, "111111111111", "jobs"),
        ("jobs.fifo", REGION, "111111111111", "jobs.fifo"),
        ("http://127.0.0.1:9324/111111111111/jobs", REGION, "111111111111", "jobs"),
        ("https://another.host/222222222222/jobs", REGION, "222222222222", "jobs"),
        ("http://[::1]:9324/111111111111/jobs/", REGION, "111111111111", "jobs"),
        ("http://h/123/jobs", REGION, "123", "jobs"),
        ("/111111111111/jobs", REGION, "111111111111", "jobs"),
        ("/us-east-2/111111111111/jobs", "us-east-2", "111111111111", "jobs"),
        ("http://h/us-east-2/111111111111/jobs", "us-east-2", "111111111111", "jobs"),
        ("http://h/queue/us-east-2/111111111111/jobs", "us-east-2", "111111111111", "jobs"),
        ("https://sqs.us-east-2.amazonaws.com/111111111111/jobs", "us-east-2", "111111111111", "jobs"),
        ("http://sqs.us-east-2.localhost.localstack.cloud:4566/111111111111/jobs", "us-east-2", "111111111111", "jobs"),
        ("https://us-east-2.queue.amazonaws.com/111111111111/jobs", "us-east-2", "111111111111", "jobs"),
        ("https://queue.amazonaws.com/111111111111/jobs", REGION, "111111111111", "jobs"),
        ("https://sqs.example.org/111111111111/jobs?x=y", REGION, "111111111111", "jobs"),
    ] {
        let expected = QueueAddress::new(Scope::new(region, account), name);
        assert_eq!(QueueUrl::parse(text, &request()), Ok(expected), "{text}");
    }
}

#[test]
fn what_can_be_no_queue_is_an_unknown_queue() {
    for text in [
        "",
        "/",
        "http://",
        "http://h",
        "http://h/",
        "http://h/jobs",
        "a b",
        "http://h/account/jobs",
        "http://h/EU-west-1/111111111111/jobs",
        "http://h/1111111111111/jobs",
        "http://h/111111111111/a/b",
        "http://h/111111111111/a%2Fb",
        "http://h/a/b/c/d/e",
    ] {
        let error = QueueUrl::parse(text, &request()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::QueueDoesNotExist, "{text}");
    }
}

#[test]
fn a_url_has_the_host_of_the_client_and_tells_regions_apart() {
    let here = queue("jobs");
    let there = QueueAddress::new(Scope::new("us-east-2", "111111111111"), "jobs");
    for (address, origin, url) in [
        (&here, "http://127.0.0.1:9324", "http://127.0.0.1:9324/111111111111/jobs"),
        (&here, "https://mq.example.org/", "https://mq.example.org/111111111111/jobs"),
        (&there, "http://127.0.0.1:9324", "http://127.0.0.1:9324/us-east-2/111111111111/jobs"),
        (&there, "https://sqs.us-east-2.example.org", "https://sqs.us-east-2.example.org/111111111111/jobs"),
        (&here, "https://sqs.us-east-2.example.org", "https://sqs.us-east-2.example.org/eu-west-1/111111111111/jobs"),
    ] {
        assert_eq!(QueueUrl::format(address, origin, REGION), url);
        assert_eq!(QueueUrl::parse(url, &request()).as_ref(), Ok(address), "{url}");
    }
}

#[test]
fn paths_of_queues() {
    for (path, is_queue) in [
        ("/", false),
        ("", false),
        ("/jobs", false),
        ("/111111111111/jobs", true),
        ("/111111111111/jobs/", true),
        ("/123/jobs", true),
        ("/eu-west-1/111111111111/jobs", true),
        ("/a/jobs", false),
        ("/ui/queues", false),
    ] {
        assert_eq!(QueueUrl::is_path_of_queue(path), is_queue, "{path}");
    }
}

#[test]
fn handles_of_move_tasks() {
    let task = TaskHandle { task_id: "6c9cb0a6-6d5e-4c5e-9d4d-1f2f3f4f5f6f".into(), source_arn: queue("dead").arn() };
    let handle = task.encode();
    // {"taskId":"6c9c…","sourceArn":"arn:…"} in base64
    assert!(handle.starts_with("eyJ0YXNrSWQiOiI2YzljYjBhNi"), "{handle}");
    assert_eq!(TaskHandle::decode(&handle), Ok(task));
    let without_arn = "eyJ0YXNrSWQiOiJ4In0=";
    let no_object = "WzFd";
    for bad in ["", "foobar", "%", &handle[1..], without_arn, no_object] {
        assert_eq!(
            failure(TaskHandle::decode(bad)),
            (ErrorKind::InvalidParameterValue, "Value for parameter TaskHandle is invalid.".into())
        );
    }
}

#[test]
fn arns_of_move_tasks() {
    assert_eq!(parse_task_arn("arn:aws:sqs:eu-west-1:111111111111:dead", "SourceArn"), Ok(queue("dead")));
    for parameter in ["SourceArn", "DestinationArn"] {
        let (kind, message) = failure(parse_task_arn("dead", parameter));
        assert_eq!(kind, ErrorKind::InvalidParameterValue);
        assert_eq!(
            message,
            format!(
                "You must use this format to specify the {parameter}: \
                 arn:<partition>:<service>:<region>:<account-id>:<resource-id>"
            )
        );
        let (kind, message) = failure(parse_task_arn("arn:aws:sns:eu-west-1:111111111111:dead", parameter));
        assert_eq!(kind, ErrorKind::ResourceNotFound);
        assert_eq!(message, format!("The resource that you specified for the {parameter} parameter doesn't exist."));
    }
}

#[test]
fn regions_of_hosts() {
    for (host, region) in [
        ("sqs.eu-west-1.amazonaws.com", Some("eu-west-1")),
        ("sqs.eu-west-1.localhost:9324", Some("eu-west-1")),
        ("eu-west-1.queue.amazonaws.com", Some("eu-west-1")),
        ("sqs.example.org", None),
        ("queue.amazonaws.com", None),
        ("127.0.0.1:9324", None),
        ("[::1]:9324", None),
        ("", None),
    ] {
        assert_eq!(region_of_host(host), region, "{host}");
    }
}
