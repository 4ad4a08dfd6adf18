//! SQS and DynamoDB, on servers that speak their protocol.

use std::sync::Arc;

use postbox::Connection;
use postbox::aws::config::{Region, SdkConfig};
use postbox::aws::sqs::config::{Credentials, SharedCredentialsProvider};
use postbox::aws::{DynamoDbReplyStore, SqsBackend, SqsBuilder};

pub(crate) fn moto() -> String {
    postbox_test_servers::shared_moto().into()
}

pub(crate) fn ministack() -> String {
    postbox_test_servers::shared_ministack().into()
}

fn dynamodb() -> String {
    postbox_test_servers::shared_dynamodb().into()
}

/// As a program on AWS would be set up, for a server of the tests.
fn config(endpoint: &str) -> SdkConfig {
    let credentials = Credentials::new("test", "test", None, None, "tests");
    let loader = postbox::aws::defaults()
        .region(Region::new("eu-west-1"))
        .credentials_provider(SharedCredentialsProvider::new(credentials))
        .endpoint_url(endpoint);
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(loader.load())
}

pub(crate) fn backend(endpoint: &str) -> SqsBuilder {
    SqsBackend::builder(postbox::aws::sqs::Client::new(&config(endpoint)))
}

/// A table of its own.
pub(crate) fn replies(endpoint: &str) -> DynamoDbReplyStore {
    let client = postbox::aws::dynamodb::Client::new(&config(endpoint));
    let store = DynamoDbReplyStore::from_client(client, format!("replies-{}", postbox::MessageId::new()));
    store.create_table().blocking().unwrap();
    store
}

/// A place that makes what is missing.
pub(crate) fn connection(endpoint: &str) -> Connection {
    Connection::new(backend(endpoint).create_missing(true).replies(Arc::new(replies(&dynamodb()))).build())
}
