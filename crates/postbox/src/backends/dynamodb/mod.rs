//! Replies in a DynamoDB table, for SQS, which has no place for them.

mod format;
mod replies;
mod table;

pub use self::replies::DynamoDbReplyStore;
