//! SQS and DynamoDB, on servers that speak their protocol.

use std::sync::Arc;

use postbox::aws::config::{Region, SdkConfig};
use postbox::aws::sqs::config::{Credentials, SharedCredentialsProvider};
use postbox::aws::{DynamoDbReplyStore, SqsBackend, SqsBuilder};
use postbox::{Connection, Mailbox};

pub(crate) fn moto() -> String {
    postbox_test_servers::shared_moto().into()
}

pub(crate) fn ministack() -> String {
    postbox_test_servers::shared_ministack().into()
}

pub(crate) fn dynamodb() -> String {
    postbox_test_servers::shared_dynamodb().into()
}

/// As a program on AWS would be set up, for a server of the tests; or, for `aws://region/prefix`, for AWS itself.
pub(crate) fn config(endpoint: &str) -> SdkConfig {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    if let Some(aws) = endpoint.strip_prefix("aws://") {
        let region = aws.split('/').next().unwrap_or_default().to_string();
        return runtime.block_on(postbox::aws::defaults().region(Region::new(region)).load());
    }
    let credentials = Credentials::new("test", "test", None, None, "tests");
    let loader = postbox::aws::defaults()
        .region(Region::new("eu-west-1"))
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

/// What the names of everything that is made on AWS begin with.
fn prefix(endpoint: &str) -> Option<&str> {
    Some(endpoint.strip_prefix("aws://")?.split_once('/').expect("aws://region/prefix").1)
}

/// A place that makes what is missing; on AWS it removes that in the end.
pub(crate) struct Scratch {
    pub(crate) connection: Connection,
    cleanup: Option<(SdkConfig, String)>,
}

impl Scratch {
    pub(crate) fn at(endpoint: &str, dynamodb: &str) -> Self {
        let name = table(dynamodb);
        let client = postbox::aws::dynamodb::Client::new(&config(dynamodb));
        let replies = DynamoDbReplyStore::from_client(client, name.as_str());
        replies.create_table().blocking().unwrap();
        let backend = backend(endpoint).create_missing(true).replies(Arc::new(replies)).build();
        let connection = Connection::new(backend);
        match prefix(endpoint) {
            None => Scratch { connection, cleanup: None },
            Some(_) => {
                let own: String = name.chars().take(30).collect();
                Scratch { connection: connection.prefix(own), cleanup: Some((config(dynamodb), name)) }
            }
        }
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
