//! The answers to the 23 actions.
//!
//! Fourteen actions have a result, and the others answer [`Response::Empty`]. That variant has the
//! action, because the query protocol names it in its answer.

use super::request::Action;
use super::shape::{Member, Shape, Visitor, shapes};
use crate::digest::{md5_of_attributes, md5_of_body};
use crate::error::SqsError;
use crate::message_attributes::MessageAttribute;
use std::collections::BTreeMap;

const ID: Member = Member::plain("Id");
const QUEUE_URL: Member = Member::plain("QueueUrl");
const NEXT_TOKEN: Member = Member::plain("NextToken");
const MESSAGE_ID: Member = Member::plain("MessageId");
const MD5_OF_BODY: Member = Member::plain("MD5OfMessageBody");
const MD5_OF_ATTRIBUTES: Member = Member::plain("MD5OfMessageAttributes");
const MD5_OF_SYSTEM_ATTRIBUTES: Member = Member::plain("MD5OfMessageSystemAttributes");
const SEQUENCE_NUMBER: Member = Member::plain("SequenceNumber");
const ATTRIBUTES: Member = Member::list("Attributes", "Attribute");
const FAILED: Member = Member::list("Failed", "BatchResultErrorEntry");
const TASK_HANDLE: Member = Member::plain("TaskHandle");
const MOVED: Member = Member::plain("ApproximateNumberOfMessagesMoved");

macro_rules! responses {
    ($( $action:ident($result:ident) )*) => {
        /// The answer to a request that succeeded.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Response {
            $( #[doc = concat!("The answer to [`Action::", stringify!($action), "`].")] $action($result), )*
            /// The answer to an action that returns nothing.
            Empty(Action),
        }

        impl Response {
            /// Which action this answers.
            pub fn action(&self) -> Action {
                match self {
                    $( Response::$action(_) => Action::$action, )*
                    Response::Empty(action) => *action,
                }
            }

            /// Takes the members out of a response by `visitor`.
            pub(crate) fn write<V: Visitor>(&mut self, visitor: &mut V) -> Result<(), SqsError> {
                match self {
                    $( Response::$action(result) => result.visit(visitor), )*
                    Response::Empty(_) => Ok(()),
                }
            }

            /// Reads the answer to `action` by `visitor`, to play the client.
            #[cfg(test)]
            pub(crate) fn read<V: Visitor>(action: Action, visitor: &mut V) -> Result<Self, SqsError> {
                Ok(match action {
                    $( Action::$action => {
                        let mut result = $result::default();
                        result.visit(visitor)?;
                        Response::$action(result)
                    } )*
                    action => Response::Empty(action),
                })
            }
        }
    };
}

responses! {
    CancelMessageMoveTask(CancelMessageMoveTaskResult)
    ChangeMessageVisibilityBatch(ChangeMessageVisibilityBatchResult)
    CreateQueue(CreateQueueResult)
    DeleteMessageBatch(DeleteMessageBatchResult)
    GetQueueAttributes(GetQueueAttributesResult)
    GetQueueUrl(GetQueueUrlResult)
    ListDeadLetterSourceQueues(ListDeadLetterSourceQueuesResult)
    ListMessageMoveTasks(ListMessageMoveTasksResult)
    ListQueueTags(ListQueueTagsResult)
    ListQueues(ListQueuesResult)
    ReceiveMessage(ReceiveMessageResult)
    SendMessage(SendMessageResult)
    SendMessageBatch(SendMessageBatchResult)
    StartMessageMoveTask(StartMessageMoveTaskResult)
}

shapes! {
    /// How many messages the task had moved.
    CancelMessageMoveTaskResult { integer approximate_number_of_messages_moved = MOVED; }
    /// The entries that succeeded and those that failed.
    ChangeMessageVisibilityBatchResult {
        items successful: BatchSuccess = Member::list("Successful", "ChangeMessageVisibilityBatchResultEntry");
        items failed: BatchFailure = FAILED;
    }
    /// The URL of the queue.
    CreateQueueResult { text queue_url = QUEUE_URL; }
    /// The entries that succeeded and those that failed.
    DeleteMessageBatchResult {
        items successful: BatchSuccess = Member::list("Successful", "DeleteMessageBatchResultEntry");
        items failed: BatchFailure = FAILED;
    }
    /// An entry of a batch that succeeded.
    BatchSuccess { required id = ID; }
    /// An entry of a batch that failed.
    BatchFailure {
        required id = ID;
        flag sender_fault = Member::plain("SenderFault");
        required code = Member::plain("Code");
        text message = Member::plain("Message");
    }
    /// The attributes that were asked for and are set.
    GetQueueAttributesResult { pairs attributes = ATTRIBUTES; }
    /// The URL of the queue.
    GetQueueUrlResult { text queue_url = QUEUE_URL; }
    /// Queues whose dead letters go to this one. The JSON name begins with a small letter.
    ListDeadLetterSourceQueuesResult {
        texts queue_urls = Member::list("queueUrls", "QueueUrl");
        text next_token = NEXT_TOKEN;
    }
    /// Message move tasks, the latest first.
    ListMessageMoveTasksResult {
        items results: MessageMoveTask = Member::list("Results", "ListMessageMoveTasksResultEntry");
    }
    /// A message move task.
    MessageMoveTask {
        text task_handle = TASK_HANDLE;
        text status = Member::plain("Status");
        text source_arn = Member::plain("SourceArn");
        text destination_arn = Member::plain("DestinationArn");
        integer max_number_of_messages_per_second = Member::plain("MaxNumberOfMessagesPerSecond");
        integer approximate_number_of_messages_moved = MOVED;
        integer approximate_number_of_messages_to_move = Member::plain("ApproximateNumberOfMessagesToMove");
        text failure_reason = Member::plain("FailureReason");
        integer started_timestamp = Member::plain("StartedTimestamp");
    }
    /// The tags of the queue.
    ListQueueTagsResult { pairs tags = Member::tags("Tags"); }
    /// URLs of queues.
    ListQueuesResult {
        texts queue_urls = Member::list("QueueUrls", "QueueUrl");
        text next_token = NEXT_TOKEN;
    }
    /// The messages that were received.
    ReceiveMessageResult { items messages: ReceivedMessage = Member::list("Messages", "Message"); }
    /// A message that was received.
    ReceivedMessage {
        text message_id = MESSAGE_ID;
        text receipt_handle = Member::plain("ReceiptHandle");
        text md5_of_body = Member::plain("MD5OfBody");
        text body = Member::plain("Body");
        pairs attributes = ATTRIBUTES;
        text md5_of_message_attributes = MD5_OF_ATTRIBUTES;
        named message_attributes: MessageAttribute = Member::list("MessageAttributes", "MessageAttribute");
    }
    /// What was sent, as the server has it.
    SendMessageResult {
        text md5_of_message_body = MD5_OF_BODY;
        text md5_of_message_attributes = MD5_OF_ATTRIBUTES;
        text md5_of_message_system_attributes = MD5_OF_SYSTEM_ATTRIBUTES;
        text message_id = MESSAGE_ID;
        text sequence_number = SEQUENCE_NUMBER;
    }
    /// The entries that were sent and those that failed.
    SendMessageBatchResult {
        items successful: SendMessageSuccess = Member::list("Successful", "SendMessageBatchResultEntry");
        items failed: BatchFailure = FAILED;
    }
    /// An entry of a batch that was sent.
    SendMessageSuccess {
        required id = ID;
        text message_id = MESSAGE_ID;
        text md5_of_message_body = MD5_OF_BODY;
        text md5_of_message_attributes = MD5_OF_ATTRIBUTES;
        text md5_of_message_system_attributes = MD5_OF_SYSTEM_ATTRIBUTES;
        text sequence_number = SEQUENCE_NUMBER;
    }
    /// The handle of the task.
    StartMessageMoveTaskResult { text task_handle = TASK_HANDLE; }
}

impl BatchFailure {
    /// The entry `id` failed with `error`. AWS names the query code here, in both protocols.
    pub fn new(id: impl Into<String>, error: &SqsError) -> Self {
        BatchFailure {
            id: id.into(),
            sender_fault: error.kind.is_sender_fault(),
            code: error.kind.entry().code.into(),
            message: Some(error.message.clone().into_owned()),
        }
    }
}

impl SendMessageSuccess {
    /// The entry `id` was sent, with the answer that SendMessage would have.
    pub fn new(id: impl Into<String>, sent: SendMessageResult) -> Self {
        SendMessageSuccess {
            id: id.into(),
            message_id: sent.message_id,
            md5_of_message_body: sent.md5_of_message_body,
            md5_of_message_attributes: sent.md5_of_message_attributes,
            md5_of_message_system_attributes: sent.md5_of_message_system_attributes,
            sequence_number: sent.sequence_number,
        }
    }
}

impl ReceivedMessage {
    /// A message with the attributes that the receiver asked for, and the digests of what it gets.
    pub fn new(
        message_id: String,
        receipt_handle: String,
        body: String,
        attributes: BTreeMap<String, String>,
        message_attributes: BTreeMap<String, MessageAttribute>,
    ) -> Self {
        ReceivedMessage {
            message_id: Some(message_id),
            receipt_handle: Some(receipt_handle),
            md5_of_body: Some(md5_of_body(&body)),
            body: Some(body),
            attributes,
            md5_of_message_attributes: md5_of_attributes(&message_attributes),
            message_attributes,
        }
    }
}
