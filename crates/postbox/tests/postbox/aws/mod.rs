//! SQS and DynamoDB on local servers, with a proxy that causes faults.

mod addresses;
mod batching;
mod callers;
mod dead_letters;
mod faults;
mod fifo;
mod load;
mod receipts;
mod replies;
mod waiting;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use postbox::aws::config::retry::RetryConfig;
use postbox::aws::config::{Region, SdkConfig};
use postbox::aws::sqs::config::{Credentials, SharedCredentialsProvider};
use postbox::aws::{DynamoDbReplyStore, SqsBackend, SqsBuilder};
use postbox::{Connection, Error, Mailbox, MessageId};
use postbox_test_servers::{Fate, HttpProxy, HttpRequest, REGION};

/// A secret that no error may show.
const SECRET: &str = "s3cret-Pa55";
const TOKEN: &str = "t0ken-0f-a-sess1on";
/// The longest wait of SQS, which no test may reach, so that a missed wake-up fails the test.
const LONG: Duration = Duration::from_secs(20);
/// The longest lease of SQS. A message that stays leased is missing in the test.
const HOURS: Duration = Duration::from_secs(12 * 60 * 60);

pub(crate) fn moto() -> String {
    postbox_test_servers::shared_moto().into()
}

pub(crate) fn ministack() -> String {
    postbox_test_servers::shared_ministack().into()
}

pub(crate) fn dynamodb() -> String {
    postbox_test_servers::shared_dynamodb().into()
}

/// The configuration of a program for a test server, or for AWS itself if `endpoint` is `aws://region/prefix`.
pub(crate) fn config(endpoint: &str) -> SdkConfig {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    if let Some(aws) = endpoint.strip_prefix("aws://") {
        let region = aws.split('/').next().unwrap_or_default().to_string();
        return runtime.block_on(postbox::aws::defaults().region(Region::new(region)).load());
    }
    let credentials = Credentials::new("test", SECRET, Some(TOKEN.into()), None, "tests");
    let loader = postbox::aws::defaults()
        .region(Region::new(REGION))
        .credentials_provider(SharedCredentialsProvider::new(credentials))
        .endpoint_url(endpoint);
    runtime.block_on(loader.load())
}

pub(crate) fn backend(endpoint: &str) -> SqsBuilder {
    SqsBackend::builder(postbox::aws::sqs::Client::new(&config(endpoint)))
}

fn table(endpoint: &str) -> String {
    format!("{}-{}", prefix(endpoint).unwrap_or("replies"), postbox::MessageId::new())
}

/// The prefix of the names of all queues and tables that tests create on AWS.
fn prefix(endpoint: &str) -> Option<&str> {
    Some(endpoint.strip_prefix("aws://")?.split_once('/').expect("aws://region/prefix").1)
}

pub(crate) fn is_aws(endpoint: &str) -> bool {
    prefix(endpoint).is_some()
}

/// The part of a prefix that fits before the longest names: `conformance-`, 32 digits, `_-dead.fifo`, with `_-t` in between.
const PREFIX: usize = 20;
/// The length of the longest name after the prefix.
pub(crate) const LONGEST_UNDER_PREFIX: usize = 80 - PREFIX - 3;

/// A backend that creates missing queues and tables. On AWS it removes them on drop.
pub(crate) struct Scratch {
    pub(crate) connection: Connection,
    cleanup: Option<(SdkConfig, String)>,
}

impl Scratch {
    /// Uses a prefix if `has_prefix` is set, and always on AWS.
    pub(crate) fn at(endpoint: &str, dynamodb: &str, has_prefix: bool) -> Self {
        let name = table(dynamodb);
        let client = postbox::aws::dynamodb::Client::new(&config(dynamodb));
        let replies = DynamoDbReplyStore::from_client(client, name.as_str());
        replies.create_table().blocking().unwrap();
        let backend = backend(endpoint).create_missing(true).replies(Arc::new(replies)).build();
        let connection = Connection::new(backend);
        let is_aws = is_aws(endpoint);
        let own: String = name.chars().take(PREFIX).collect();
        let connection = if is_aws || has_prefix { connection.prefix(own) } else { connection };
        Scratch { connection, cleanup: is_aws.then(|| (config(dynamodb), name)) }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let Some((config, table)) = self.cleanup.take() else { return };
        for name in self.connection.list().blocking().unwrap_or_default() {
            let mailbox: Mailbox<()> = self.connection.mailbox(name.as_str()).unwrap();
            let _ = mailbox.delete().blocking();
        }
        let delete = postbox::aws::dynamodb::Client::new(&config).delete_table().table_name(table).send();
        let _ = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(delete);
    }
}

/// A test's queue on a shared server with a proxy.
struct TestQueue {
    proxy: HttpProxy,
    server: String,
    name: String,
}

impl TestQueue {
    fn new(server: String, suffix: &str) -> Self {
        let port = server.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
        TestQueue { proxy: HttpProxy::start(port), server, name: format!("jobs-{}{suffix}", MessageId::new()) }
    }

    fn moto() -> Self {
        Self::new(moto(), "")
    }

    /// A builder of a backend through the proxy, with short pauses between retries.
    fn builder(&self) -> SqsBuilder {
        SqsBackend::builder(self.client())
    }

    fn client(&self) -> postbox::aws::sqs::Client {
        client(&self.proxy.endpoint())
    }

    /// The mailbox of the test's queue through the proxy. Creates the queue.
    fn jobs(&self) -> Mailbox<u64, u64> {
        let jobs = self.absent();
        jobs.create().blocking().unwrap();
        jobs
    }

    fn absent(&self) -> Mailbox<u64, u64> {
        self.mailbox(self.builder().create_missing(true))
    }

    fn mailbox(&self, builder: SqsBuilder) -> Mailbox<u64, u64> {
        Connection::new(builder.build()).mailbox(&self.name).unwrap()
    }

    /// The same mailbox without the proxy, with another client.
    fn others(&self) -> Mailbox<u64, u64> {
        self.mailbox(SqsBackend::builder(client(&self.server)).create_missing(true))
    }

    /// Sends a request to the server without the proxy, as another program does.
    fn call(&self, operation: &str, body: serde_json::Value) -> serde_json::Value {
        let port = self.server.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
        let answer = HttpProxy::start(port).try_call(&format!("AmazonSQS.{operation}"), &body.to_string()).unwrap();
        assert_eq!(answer.0, 200, "{operation} {body}: {}", answer.1);
        serde_json::from_str(&answer.1).unwrap_or_default()
    }

    /// The URL of a queue.
    fn url(&self, queue: &str) -> String {
        let answer = self.call("GetQueueUrl", serde_json::json!({ "QueueName": queue }));
        answer["QueueUrl"].as_str().expect("a URL").into()
    }

    /// Gives the first `many` requests of an operation this fate. All others are forwarded.
    fn first(&self, many: usize, operation: &'static str, fate: fn() -> Fate) {
        let mut left = many;
        self.proxy.on(move |request| {
            if !request.is(operation) || left == 0 {
                return Fate::Pass;
            }
            left -= 1;
            fate()
        });
    }
}

fn client(endpoint: &str) -> postbox::aws::sqs::Client {
    let config = postbox::aws::sqs::config::Builder::from(&config(endpoint)).retry_config(soon());
    postbox::aws::sqs::Client::from_conf(config.build())
}

/// The retries of the SDK without its long pauses.
fn soon() -> RetryConfig {
    RetryConfig::standard().with_initial_backoff(Duration::from_millis(2))
}

/// Polls until a condition holds.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < end, "{what}: it does not come");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The text of an error. Asserts that neither it nor the debug output shows a secret.
#[track_caller]
fn shown(error: &Error) -> String {
    let mut text = format!("{error} {error:?}");
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        text += &format!(" {error} {error:?}");
        source = error.source();
    }
    assert!(!text.contains(SECRET) && !text.contains(TOKEN), "{text}");
    error.to_string()
}

/// Asserts that an error is transient, names the queue, and shows no secret.
#[track_caller]
fn assert_passing(error: &Error, queue: &str) {
    let text = shown(error);
    assert!(matches!(error, Error::Connection { .. }) && error.is_transient() && text.contains(queue), "{error:?}");
}

/// Receives all ready messages with long leases.
fn take_all(mailbox: &Mailbox<u64, u64>) -> Vec<postbox::Message<u64, u64>> {
    let mut all = Vec::new();
    loop {
        let some = mailbox.receive().max_messages(10).visibility_timeout(HOURS).blocking().unwrap();
        if some.is_empty() {
            return all;
        }
        all.extend(some);
    }
}

/// The body of a request as JSON.
fn json(request: &HttpRequest) -> serde_json::Value {
    serde_json::from_slice(&request.body).unwrap()
}

/// A reply of SQS.
fn answer(status: u16, body: impl ToString) -> Fate {
    let headers = vec![("content-type".into(), "application/x-amz-json-1.0".into())];
    Fate::Answer { status, headers, body: body.to_string().into() }
}

/// An error reply of SQS, with the error code of its older query protocol.
fn refusal(code: &str, query_code: &str, message: &str) -> Fate {
    let body = serde_json::json!({ "__type": format!("com.amazonaws.sqs#{code}"), "message": message });
    match answer(400, body) {
        Fate::Answer { status, mut headers, body } => {
            headers.push(("x-amzn-query-error".into(), format!("{query_code};Sender")));
            Fate::Answer { status, headers, body }
        }
        fate => fate,
    }
}

/// An operation that was polled once, so that its request is sent or queued.
type Begun<T> = Pin<Box<dyn Future<Output = T> + Send>>;

fn begin<O>(operation: O) -> Begun<O::Output>
where
    O: IntoFuture<IntoFuture: Send + 'static, Output: Send + 'static>,
{
    let mut future = Box::pin(operation.into_future());
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Box::pin(std::future::ready(value)),
        Poll::Pending => future,
    }
}

/// Waits for the results of operations.
fn end<T>(begun: impl IntoIterator<Item = Begun<T>>) -> Vec<T> {
    begun.into_iter().map(postbox::wait_for).collect()
}
