//! Replies in a DynamoDB table. The SQS backend uses it, because SQS cannot store replies.

mod config;
mod format;
mod poll;
mod replies;
mod table;

pub use self::replies::DynamoDbReplyStore;
