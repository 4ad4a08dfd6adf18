//! Errors as AWS words them.
//!
//! [`ErrorKind::entry`] is the one table of codes. Each kind has a code for the query protocol, a
//! `__type` for the JSON protocol, and an HTTP status. The header `x-amzn-query-error` of the JSON
//! protocol has the query code too. The constructors of [`SqsError`] have the messages that more
//! than one module, or the store, needs.

use std::borrow::Cow;

/// An error of an SQS request: its kind, and the message that the client reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqsError {
    /// Decides code and status.
    pub kind: ErrorKind,
    /// The message as the JSON protocol gives it.
    pub message: Cow<'static, str>,
}

/// The codes and the status of an [`ErrorKind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorEntry {
    /// The code in the query protocol and in `x-amzn-query-error`.
    pub code: &'static str,
    /// The name of the shape in the JSON protocol, without its namespace.
    pub shape: &'static str,
    /// The HTTP status.
    pub status: u16,
    /// True if the shape is part of SQS's own model, false if it is common to AWS's services.
    pub modelled: bool,
}

macro_rules! error_kinds {
    ($( $kind:ident $status:literal $code:literal $shape:literal $modelled:literal )*) => {
        /// What went wrong, as far as a program can tell errors apart.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum ErrorKind {
            $( #[doc = concat!("`", $code, "`")] $kind, )*
        }

        impl ErrorKind {
            /// Every kind, in the order of the table.
            pub const ALL: &[ErrorKind] = &[$( ErrorKind::$kind, )*];

            /// The codes and the status of this kind.
            pub const fn entry(self) -> ErrorEntry {
                match self {
                    $( ErrorKind::$kind => ErrorEntry { code: $code, shape: $shape, status: $status, modelled: $modelled }, )*
                }
            }
        }
    };
}

error_kinds! {
    QueueDoesNotExist 400 "AWS.SimpleQueueService.NonExistentQueue" "QueueDoesNotExist" true
    QueueNameExists 400 "QueueAlreadyExists" "QueueNameExists" true
    QueueDeletedRecently 400 "AWS.SimpleQueueService.QueueDeletedRecently" "QueueDeletedRecently" true
    PurgeQueueInProgress 403 "AWS.SimpleQueueService.PurgeQueueInProgress" "PurgeQueueInProgress" true
    EmptyBatchRequest 400 "AWS.SimpleQueueService.EmptyBatchRequest" "EmptyBatchRequest" true
    TooManyEntriesInBatchRequest 400
        "AWS.SimpleQueueService.TooManyEntriesInBatchRequest" "TooManyEntriesInBatchRequest" true
    BatchEntryIdsNotDistinct 400
        "AWS.SimpleQueueService.BatchEntryIdsNotDistinct" "BatchEntryIdsNotDistinct" true
    InvalidBatchEntryId 400 "AWS.SimpleQueueService.InvalidBatchEntryId" "InvalidBatchEntryId" true
    BatchRequestTooLong 400 "AWS.SimpleQueueService.BatchRequestTooLong" "BatchRequestTooLong" true
    MessageNotInflight 400 "AWS.SimpleQueueService.MessageNotInflight" "MessageNotInflight" true
    UnsupportedOperation 400 "AWS.SimpleQueueService.UnsupportedOperation" "UnsupportedOperation" true
    InvalidAttributeName 400 "InvalidAttributeName" "InvalidAttributeName" true
    InvalidAttributeValue 400 "InvalidAttributeValue" "InvalidAttributeValue" true
    InvalidMessageContents 400 "InvalidMessageContents" "InvalidMessageContents" true
    InvalidAddress 400 "InvalidAddress" "InvalidAddress" true
    InvalidSecurity 403 "InvalidSecurity" "InvalidSecurity" true
    ReceiptHandleIsInvalid 400 "ReceiptHandleIsInvalid" "ReceiptHandleIsInvalid" true
    OverLimit 403 "OverLimit" "OverLimit" true
    RequestThrottled 403 "RequestThrottled" "RequestThrottled" true
    ResourceNotFound 404 "ResourceNotFoundException" "ResourceNotFoundException" true
    InvalidParameterValue 400 "InvalidParameterValue" "InvalidParameterValueException" false
    MissingParameter 400 "MissingParameter" "MissingRequiredParameterException" false
    InvalidAction 400 "InvalidAction" "InvalidAction" false
    UnknownOperation 404 "UnknownOperationException" "UnknownOperationException" false
    MalformedInput 400 "MalformedInput" "SerializationException" false
    AccessDenied 403 "AccessDenied" "AccessDeniedException" false
    MissingAuthenticationToken 403 "MissingAuthenticationToken" "MissingAuthenticationTokenException" false
    IncompleteSignature 400 "IncompleteSignature" "IncompleteSignatureException" false
    InvalidClientTokenId 403 "InvalidClientTokenId" "UnrecognizedClientException" false
    SignatureDoesNotMatch 403 "SignatureDoesNotMatch" "InvalidSignatureException" false
    RequestExpired 400 "RequestExpired" "RequestExpired" false
    InternalFailure 500 "InternalFailure" "InternalFailure" false
    ServiceUnavailable 503 "ServiceUnavailable" "ServiceUnavailable" false
}

impl ErrorKind {
    /// True if the request is at fault, false if the server is.
    pub const fn is_sender_fault(self) -> bool {
        self.entry().status < 500
    }

    /// The `__type` of the JSON protocol, with its namespace.
    pub fn json_type(self) -> String {
        let entry = self.entry();
        let namespace = if entry.modelled { "com.amazonaws.sqs" } else { "com.amazon.coral.service" };
        format!("{namespace}#{}", entry.shape)
    }
}

impl SqsError {
    /// An error with this message.
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        SqsError { kind, message: message.into() }
    }

    /// The queue of the request is not there.
    pub fn queue_does_not_exist() -> Self {
        Self::new(ErrorKind::QueueDoesNotExist, "The specified queue does not exist.")
    }

    /// A parameter is absent, or empty where AWS takes that for absent.
    pub fn missing(parameter: &str) -> Self {
        Self::new(ErrorKind::MissingParameter, format!("The request must contain the parameter {parameter}."))
    }

    /// A parameter has a value that AWS refuses, for a reason.
    pub fn invalid(value: impl std::fmt::Display, parameter: &str, reason: &str) -> Self {
        Self::parameter(format!("Value {value} for parameter {parameter} is invalid. Reason: {reason}"))
    }

    /// `InvalidParameterValue` with a message of its own.
    pub fn parameter(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::InvalidParameterValue, message)
    }

    /// A queue attribute that this queue cannot have.
    pub fn unknown_attribute(name: &str) -> Self {
        Self::new(ErrorKind::InvalidAttributeName, format!("Unknown Attribute {name}."))
    }

    /// A value that this queue attribute cannot have.
    pub fn attribute_value(name: &str) -> Self {
        Self::new(ErrorKind::InvalidAttributeValue, format!("Invalid value for the parameter {name}."))
    }

    /// An action that does not exist, or not at this address.
    pub fn invalid_action(action: &str) -> Self {
        Self::new(ErrorKind::InvalidAction, format!("The action {action} is not valid for this endpoint."))
    }

    /// A receipt handle that this server cannot have written.
    pub fn receipt_handle_is_invalid(handle: &str) -> Self {
        Self::new(
            ErrorKind::ReceiptHandleIsInvalid,
            format!("The input receipt handle \"{handle}\" is not a valid receipt handle."),
        )
    }

    /// A receipt handle of a FIFO queue whose lease has ended.
    pub fn receipt_handle_expired(handle: &str) -> Self {
        Self::invalid(handle, "ReceiptHandle", "The receipt handle has expired.")
    }

    /// A receipt handle of a message that is gone, or not in flight.
    pub fn not_available_for_visibility(handle: &str) -> Self {
        let reason = "Message does not exist or is not available for visibility timeout change.";
        Self::invalid(handle, "ReceiptHandle", reason)
    }

    /// A second purge within 60 seconds.
    pub fn purge_in_progress(queue: &str) -> Self {
        Self::new(
            ErrorKind::PurgeQueueInProgress,
            format!("Only one PurgeQueue operation on {queue} is allowed every 60 seconds."),
        )
    }

    /// A queue of this name was deleted less than 60 seconds ago.
    pub fn queue_deleted_recently() -> Self {
        let message =
            "You must wait 60 seconds after deleting a queue before you can create another with the same name.";
        Self::new(ErrorKind::QueueDeletedRecently, message)
    }

    /// A queue of this name has another value of this attribute.
    pub fn queue_name_exists(attribute: &str) -> Self {
        Self::new(
            ErrorKind::QueueNameExists,
            format!("A queue already exists with the same name and a different value for attribute {attribute}"),
        )
    }

    /// The queue that `parameter` (`SourceArn` or `DestinationArn`) names is not there.
    pub fn resource_not_found(parameter: &str) -> Self {
        Self::new(
            ErrorKind::ResourceNotFound,
            format!("The resource that you specified for the {parameter} parameter doesn't exist."),
        )
    }

    /// The message move task is not there.
    pub fn task_does_not_exist() -> Self {
        Self::new(ErrorKind::ResourceNotFound, "Task does not exist.")
    }

    /// A message move task from a queue that is no queue's dead-letter queue.
    pub fn source_is_no_dead_letter_queue() -> Self {
        Self::parameter("Source queue must be configured as a Dead Letter Queue.")
    }

    /// A second message move task from the same source.
    pub fn task_already_running() -> Self {
        Self::parameter(
            "There is already a task running. Only one active task is allowed for a source queue arn at a given time.",
        )
    }

    /// The store cannot be used at the moment; trying again helps.
    pub fn service_unavailable() -> Self {
        Self::new(ErrorKind::ServiceUnavailable, "The request has failed due to a temporary failure of the server.")
    }
}

impl std::fmt::Display for SqsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.kind.entry().code, self.message)
    }
}

impl std::error::Error for SqsError {}
