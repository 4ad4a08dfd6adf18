//! Postbox and the bare SDK as queues. omniqueue is in `peers/omniqueue`.

use std::hint::black_box;
use std::ops::Range;
use std::time::Duration;

use postbox::aws::SqsBackend;
use postbox::aws::config::{BehaviorVersion, ConfigLoader};
use postbox::aws::sqs::Client;
use postbox::aws::sqs::config::{Builder, Credentials, Region, SharedCredentialsProvider};
use postbox::aws::sqs::types::{
    DeleteMessageBatchRequestEntry, Message, MessageAttributeValue, MessageSystemAttributeName as Fact,
    SendMessageBatchRequestEntry,
};
use postbox::{Connection, Json, Mailbox};

use super::workload::{Counting, FULL, Queue, WAIT};
use crate::memory::body::{Document, Job};

/// The region of all clients.
const REGION: &str = "eu-west-1";

async fn counted(loader: ConfigLoader, endpoint: &str) -> Client {
    let credentials = Credentials::new("test", "test", None, None, "bench");
    let loader = loader
        .region(Region::new(REGION))
        .credentials_provider(SharedCredentialsProvider::new(credentials))
        .endpoint_url(endpoint);
    Client::from_conf(Builder::from(&loader.load().await).interceptor(Counting).build())
}

/// A client of the bare SDK, with separate connections.
pub(crate) async fn client(endpoint: &str) -> Client {
    let http = aws_smithy_http_client::Builder::new().build_http();
    counted(postbox::aws::config::defaults(BehaviorVersion::latest()).http_client(http), endpoint).await
}

fn job(number: u64) -> Job {
    let mut job = Job::new();
    job.set_number(number);
    job
}

fn text(number: u64) -> String {
    serde_json::to_string(&job(number)).expect("it can be written")
}

/// Postbox, with single messages or batches. It acknowledges messages one by one.
#[derive(Clone)]
pub(crate) struct Postbox(Mailbox<Job, (), Json>);

impl Postbox {
    pub(crate) async fn open(endpoint: &str, url: &str, gathers: bool) -> Self {
        let client = counted(postbox::aws::defaults(), endpoint).await;
        let builder = SqsBackend::builder(client).gather(gathers).queue_url("jobs", url).expect("a good name");
        Postbox(Connection::new(builder.build()).mailbox("jobs").expect("a good name"))
    }
}

impl Queue for Postbox {
    async fn send(&self, numbers: Range<u64>) {
        if numbers.end - numbers.start == 1 {
            self.0.send(&job(numbers.start)).await.expect("sent");
        } else {
            let jobs: Vec<Job> = numbers.map(job).collect();
            let results = self.0.send_batch(&jobs).await.expect("a good batch");
            assert!(results.iter().all(Result::is_ok));
        }
    }

    async fn receive(&self) -> usize {
        let messages = self.0.receive().max_messages(FULL).wait_time(Duration::from_secs(WAIT.into()));
        let messages = messages.await.expect("received");
        for message in &messages {
            black_box(message.body.number());
            message.acknowledge().await.expect("acknowledged");
        }
        messages.len()
    }
}

/// Postbox, with acknowledgements in batches.
#[derive(Clone)]
pub(crate) struct Batches(pub(crate) Postbox);

impl Queue for Batches {
    async fn send(&self, numbers: Range<u64>) {
        self.0.send(numbers).await;
    }

    async fn receive(&self) -> usize {
        let mailbox = &self.0.0;
        let messages = mailbox.receive().max_messages(FULL).wait_time(Duration::from_secs(WAIT.into()));
        let messages = messages.await.expect("received");
        for message in &messages {
            black_box(message.body.number());
        }
        if !messages.is_empty() {
            let results = mailbox.acknowledge_batch(&messages).await.expect("a good batch");
            assert!(results.iter().all(Result::is_ok));
        }
        messages.len()
    }
}

/// How the SDK is used.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Style {
    /// One request for each message.
    Single,
    /// One request for each message, with the same attributes as requests of Postbox.
    Same,
    /// One request for each batch.
    Batches,
}

/// The bare SDK.
#[derive(Clone)]
pub(crate) struct Sdk {
    pub(crate) client: Client,
    pub(crate) url: String,
    /// Maximum number of messages in one receive.
    pub(crate) max_messages: i32,
    pub(crate) style: Style,
}

impl Sdk {
    async fn send_batch(&self, numbers: impl Iterator<Item = u64>) {
        let entries = numbers.enumerate().map(|(at, number)| {
            let entry = SendMessageBatchRequestEntry::builder().id(at.to_string()).message_body(text(number));
            entry.build().expect("an id and a body")
        });
        let request = self.client.send_message_batch().queue_url(&self.url).set_entries(Some(entries.collect()));
        assert!(request.send().await.expect("sent").failed.is_empty());
    }

    async fn delete_batch(&self, receipts: impl Iterator<Item = String>) {
        let entries = receipts.enumerate().map(|(at, receipt)| {
            let entry = DeleteMessageBatchRequestEntry::builder().id(at.to_string()).receipt_handle(receipt);
            entry.build().expect("an id and a receipt")
        });
        let request = self.client.delete_message_batch().queue_url(&self.url).set_entries(Some(entries.collect()));
        assert!(request.send().await.expect("deleted").failed.is_empty());
    }
}

fn read(message: &Message) -> String {
    let body = message.body().expect("a body");
    black_box(serde_json::from_str::<Job>(body).expect("it is JSON").number());
    message.receipt_handle().expect("a receipt").into()
}

impl Queue for Sdk {
    async fn send(&self, numbers: Range<u64>) {
        match self.style {
            Style::Single | Style::Same => {
                for number in numbers {
                    let mut request = self.client.send_message().queue_url(&self.url).message_body(text(number));
                    if self.style == Style::Same {
                        let headers =
                            r#"{"id":"01890a5d-ac96-774b-bcce-b302099a8057","content-type":"application/json"}"#;
                        let value = MessageAttributeValue::builder().data_type("String").string_value(headers).build();
                        request = request.message_attributes("postbox.headers", value.expect("it has a type"));
                    }
                    request.send().await.expect("sent");
                }
            }
            Style::Batches => self.send_batch(numbers).await,
        }
    }

    async fn receive(&self) -> usize {
        let mut request = self.client.receive_message().queue_url(&self.url).max_number_of_messages(self.max_messages);
        if self.style == Style::Same {
            request = request
                .visibility_timeout(30)
                .message_attribute_names("All")
                .message_system_attribute_names(Fact::ApproximateReceiveCount)
                .message_system_attribute_names(Fact::SentTimestamp);
        }
        let answer = request.wait_time_seconds(WAIT.into()).send().await.expect("received");
        let receipts: Vec<String> = answer.messages().iter().map(read).collect();
        let count = receipts.len();
        match self.style {
            Style::Single | Style::Same => {
                for receipt in receipts {
                    let request = self.client.delete_message().queue_url(&self.url).receipt_handle(receipt);
                    request.send().await.expect("deleted");
                }
            }
            Style::Batches if count == 0 => {}
            Style::Batches => self.delete_batch(receipts.into_iter()).await,
        }
        count
    }
}
