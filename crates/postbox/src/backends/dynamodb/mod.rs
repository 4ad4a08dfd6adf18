//! Replies in a DynamoDB table. The SQS backend uses it, because SQS has no place for replies.

mod config;
mod format;
mod poll;
mod replies;
mod table;

pub use self::replies::DynamoDbReplyStore;
