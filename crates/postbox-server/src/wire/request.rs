//! The 23 actions as typed requests.
//!
//! A member that AWS requires is a plain value, and parsing fails without it. All other checks are
//! in [`crate::check`], because AWS looks the queue up before it makes them.

use super::shape::{Member, Shape, Visitor, shapes};
use crate::error::SqsError;
use crate::message_attributes::MessageAttribute;

const QUEUE_URL: Member = Member::plain("QueueUrl");
const QUEUE_NAME: Member = Member::plain("QueueName");
const ID: Member = Member::plain("Id");
const RECEIPT_HANDLE: Member = Member::plain("ReceiptHandle");
const VISIBILITY_TIMEOUT: Member = Member::plain("VisibilityTimeout");
const LABEL: Member = Member::plain("Label");
const NEXT_TOKEN: Member = Member::plain("NextToken");
const MAX_RESULTS: Member = Member::plain("MaxResults");
const SOURCE_ARN: Member = Member::plain("SourceArn");
const TASK_HANDLE: Member = Member::plain("TaskHandle");
const ATTRIBUTES: Member = Member::list("Attributes", "Attribute");
const ATTRIBUTE_NAMES: Member = Member::list("AttributeNames", "AttributeName");

macro_rules! actions {
    ($( $action:ident )*) => {
        /// The actions of SQS.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Action {
            $( #[doc = concat!("`", stringify!($action), "`")] $action, )*
        }

        impl Action {
            /// All actions, in the order of their names.
            pub const ALL: &[Action] = &[$( Action::$action, )*];

            /// The name on the wire.
            pub const fn name(self) -> &'static str {
                match self { $( Action::$action => stringify!($action), )* }
            }

            /// The action of this name.
            pub fn from_name(name: &str) -> Option<Action> {
                match name { $( stringify!($action) => Some(Action::$action), )* _ => None }
            }
        }

        /// A request, parsed: its members are there and have the right types, and no more is known
        /// of them.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Request {
            $( #[doc = concat!("A request of [`Action::", stringify!($action), "`].")] $action($action), )*
        }

        impl Request {
            /// Which action this is.
            pub fn action(&self) -> Action {
                match self { $( Request::$action(_) => Action::$action, )* }
            }

            /// Reads a request of `action` by `visitor`.
            pub(crate) fn read<V: Visitor>(action: Action, visitor: &mut V) -> Result<Self, SqsError> {
                Ok(match action {
                    $( Action::$action => {
                        let mut request = $action::default();
                        request.visit(visitor)?;
                        Request::$action(request)
                    } )*
                })
            }

            /// Takes the members out of a request by `visitor`, to play the client.
            #[cfg(test)]
            pub(crate) fn write<V: Visitor>(&mut self, visitor: &mut V) -> Result<(), SqsError> {
                match self { $( Request::$action(request) => request.visit(visitor), )* }
            }
        }
    };
}

actions! {
    AddPermission CancelMessageMoveTask ChangeMessageVisibility ChangeMessageVisibilityBatch CreateQueue
    DeleteMessage DeleteMessageBatch DeleteQueue GetQueueAttributes GetQueueUrl ListDeadLetterSourceQueues
    ListMessageMoveTasks ListQueueTags ListQueues PurgeQueue ReceiveMessage RemovePermission SendMessage
    SendMessageBatch SetQueueAttributes StartMessageMoveTask TagQueue UntagQueue
}

shapes! {
    /// Adds a statement to the policy of a queue.
    AddPermission {
        required queue_url = QUEUE_URL;
        required label = LABEL;
        texts aws_account_ids = Member::list("AWSAccountIds", "AWSAccountId");
        texts actions = Member::list("Actions", "ActionName");
    }
    /// Stops a message move task.
    CancelMessageMoveTask { required task_handle = TASK_HANDLE; }
    /// Sets how long a message in flight stays invisible, from now.
    ChangeMessageVisibility {
        required queue_url = QUEUE_URL;
        required receipt_handle = RECEIPT_HANDLE;
        integer visibility_timeout = VISIBILITY_TIMEOUT;
    }
    /// Several times [`ChangeMessageVisibility`].
    ChangeMessageVisibilityBatch {
        required queue_url = QUEUE_URL;
        items entries: ChangeMessageVisibilityEntry = Member::list("Entries", "ChangeMessageVisibilityBatchRequestEntry");
    }
    /// An entry of [`ChangeMessageVisibilityBatch`].
    ChangeMessageVisibilityEntry {
        required id = ID;
        required receipt_handle = RECEIPT_HANDLE;
        integer visibility_timeout = VISIBILITY_TIMEOUT;
    }
    /// Creates a queue, or finds one of the same name and attributes.
    CreateQueue {
        required queue_name = QUEUE_NAME;
        pairs attributes = ATTRIBUTES;
        pairs tags = Member::tags("tags");
    }
    /// Deletes a message by the receipt of its delivery.
    DeleteMessage {
        required queue_url = QUEUE_URL;
        required receipt_handle = RECEIPT_HANDLE;
    }
    /// Several times [`DeleteMessage`].
    DeleteMessageBatch {
        required queue_url = QUEUE_URL;
        items entries: DeleteMessageEntry = Member::list("Entries", "DeleteMessageBatchRequestEntry");
    }
    /// An entry of [`DeleteMessageBatch`].
    DeleteMessageEntry {
        required id = ID;
        required receipt_handle = RECEIPT_HANDLE;
    }
    /// Deletes a queue and its messages.
    DeleteQueue { required queue_url = QUEUE_URL; }
    /// Asks for attributes of a queue.
    GetQueueAttributes {
        required queue_url = QUEUE_URL;
        texts attribute_names = ATTRIBUTE_NAMES;
    }
    /// Asks for the URL of a queue by its name.
    GetQueueUrl {
        required queue_name = QUEUE_NAME;
        text queue_owner_account_id = Member::plain("QueueOwnerAWSAccountId");
    }
    /// Asks for the queues whose dead letters go to this one.
    ListDeadLetterSourceQueues {
        required queue_url = QUEUE_URL;
        text next_token = NEXT_TOKEN;
        integer max_results = MAX_RESULTS;
    }
    /// Asks for the latest message move tasks from a queue.
    ListMessageMoveTasks {
        required source_arn = SOURCE_ARN;
        integer max_results = MAX_RESULTS;
    }
    /// Asks for the tags of a queue.
    ListQueueTags { required queue_url = QUEUE_URL; }
    /// Asks for the queues of the account and the region.
    ListQueues {
        text queue_name_prefix = Member::plain("QueueNamePrefix");
        text next_token = NEXT_TOKEN;
        integer max_results = MAX_RESULTS;
    }
    /// Deletes all messages of a queue.
    PurgeQueue { required queue_url = QUEUE_URL; }
    /// Receives messages.
    ReceiveMessage {
        required queue_url = QUEUE_URL;
        texts attribute_names = ATTRIBUTE_NAMES;
        texts message_system_attribute_names = Member::list("MessageSystemAttributeNames", "MessageSystemAttributeName");
        texts message_attribute_names = Member::list("MessageAttributeNames", "MessageAttributeName");
        integer max_number_of_messages = Member::plain("MaxNumberOfMessages");
        integer visibility_timeout = VISIBILITY_TIMEOUT;
        integer wait_time_seconds = Member::plain("WaitTimeSeconds");
        text receive_request_attempt_id = Member::plain("ReceiveRequestAttemptId");
    }
    /// Removes a statement from the policy of a queue.
    RemovePermission {
        required queue_url = QUEUE_URL;
        required label = LABEL;
    }
    /// Sends a message.
    SendMessage {
        required queue_url = QUEUE_URL;
        required message_body = Member::plain("MessageBody");
        integer delay_seconds = Member::plain("DelaySeconds");
        named message_attributes: MessageAttribute = Member::list("MessageAttributes", "MessageAttribute");
        named message_system_attributes: MessageAttribute =
            Member::list("MessageSystemAttributes", "MessageSystemAttribute");
        text message_deduplication_id = Member::plain("MessageDeduplicationId");
        text message_group_id = Member::plain("MessageGroupId");
    }
    /// Sends several messages.
    SendMessageBatch {
        required queue_url = QUEUE_URL;
        items entries: SendMessageEntry = Member::list("Entries", "SendMessageBatchRequestEntry");
    }
    /// An entry of [`SendMessageBatch`].
    SendMessageEntry {
        required id = ID;
        required message_body = Member::plain("MessageBody");
        integer delay_seconds = Member::plain("DelaySeconds");
        named message_attributes: MessageAttribute = Member::list("MessageAttributes", "MessageAttribute");
        named message_system_attributes: MessageAttribute =
            Member::list("MessageSystemAttributes", "MessageSystemAttribute");
        text message_deduplication_id = Member::plain("MessageDeduplicationId");
        text message_group_id = Member::plain("MessageGroupId");
    }
    /// Sets attributes of a queue.
    SetQueueAttributes {
        required queue_url = QUEUE_URL;
        pairs attributes = ATTRIBUTES;
    }
    /// Starts to move the messages of a dead-letter queue.
    StartMessageMoveTask {
        required source_arn = SOURCE_ARN;
        text destination_arn = Member::plain("DestinationArn");
        integer max_number_of_messages_per_second = Member::plain("MaxNumberOfMessagesPerSecond");
    }
    /// Adds tags to a queue.
    TagQueue {
        required queue_url = QUEUE_URL;
        pairs tags = Member::tags("Tags");
    }
    /// Removes tags from a queue.
    UntagQueue {
        required queue_url = QUEUE_URL;
        texts tag_keys = Member::list("TagKeys", "TagKey");
    }
}

impl Request {
    /// The `QueueUrl` of a request that has one.
    pub fn queue_url(&self) -> Option<&str> {
        Some(match self {
            Request::AddPermission(r) => &r.queue_url,
            Request::ChangeMessageVisibility(r) => &r.queue_url,
            Request::ChangeMessageVisibilityBatch(r) => &r.queue_url,
            Request::DeleteMessage(r) => &r.queue_url,
            Request::DeleteMessageBatch(r) => &r.queue_url,
            Request::DeleteQueue(r) => &r.queue_url,
            Request::GetQueueAttributes(r) => &r.queue_url,
            Request::ListDeadLetterSourceQueues(r) => &r.queue_url,
            Request::ListQueueTags(r) => &r.queue_url,
            Request::PurgeQueue(r) => &r.queue_url,
            Request::ReceiveMessage(r) => &r.queue_url,
            Request::RemovePermission(r) => &r.queue_url,
            Request::SendMessage(r) => &r.queue_url,
            Request::SendMessageBatch(r) => &r.queue_url,
            Request::SetQueueAttributes(r) => &r.queue_url,
            Request::TagQueue(r) => &r.queue_url,
            Request::UntagQueue(r) => &r.queue_url,
            Request::CancelMessageMoveTask(_)
            | Request::CreateQueue(_)
            | Request::GetQueueUrl(_)
            | Request::ListMessageMoveTasks(_)
            | Request::ListQueues(_)
            | Request::StartMessageMoveTask(_) => return None,
        })
    }
}
