//! The rights of an access key: send, receive, administer.

use crate::wire::Action;
use serde::Deserialize;

/// A right of an access key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Right {
    /// To send messages.
    Send,
    /// To receive and delete messages, and to change their visibility.
    Receive,
    /// To create, change, purge and delete queues, and to move messages.
    Admin,
}

impl Right {
    /// All rights.
    pub const ALL: [Right; 3] = [Right::Send, Right::Receive, Right::Admin];

    /// The right that an action needs. To find a queue and read its attributes, any right will do.
    pub fn of(action: Action) -> Option<Right> {
        match action {
            Action::SendMessage | Action::SendMessageBatch => Some(Right::Send),
            Action::ReceiveMessage
            | Action::DeleteMessage
            | Action::DeleteMessageBatch
            | Action::ChangeMessageVisibility
            | Action::ChangeMessageVisibilityBatch => Some(Right::Receive),
            Action::GetQueueUrl
            | Action::GetQueueAttributes
            | Action::ListQueues
            | Action::ListQueueTags
            | Action::ListDeadLetterSourceQueues => None,
            Action::AddPermission
            | Action::CancelMessageMoveTask
            | Action::CreateQueue
            | Action::DeleteQueue
            | Action::ListMessageMoveTasks
            | Action::PurgeQueue
            | Action::RemovePermission
            | Action::SetQueueAttributes
            | Action::StartMessageMoveTask
            | Action::TagQueue
            | Action::UntagQueue => Some(Right::Admin),
        }
    }
}
