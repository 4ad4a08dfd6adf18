//! Maps the errors of AWS and of its SDK to [`Error`].

use std::error::Error as StdError;
use std::fmt::Write as _;
use std::sync::Arc;

use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_sqs::types::BatchResultErrorEntry;

use crate::error::Error;

/// The error of one request, or of one entry of a batch.
#[derive(Clone, Debug)]
pub(in crate::backends) struct AwsError {
    /// AWS's error code. Empty if there was no response.
    code: String,
    has_response: bool,
    error: Error,
}

impl From<AwsError> for Error {
    fn from(error: AwsError) -> Self {
        error.error
    }
}

/// SQS's query protocol puts these before its codes, and the JSON protocol repeats them in a header.
const CODE_PREFIXES: &[&str] = &["AWS.SimpleQueueService.", "KMS."];
const NOT_FOUND: &[&str] = &["QueueDoesNotExist", "NonExistentQueue", "ResourceNotFoundException"];
const INVALID_RECEIPT: &str = "ReceiptHandleIsInvalid";
/// Our own code: SQS has none for it.
const ABANDONED: &str = "NoAnswerInTime";
const THROTTLED: &[&str] = &[
    "RequestThrottled",
    "Throttling",
    "ThrottlingException",
    "ThrottledException",
    "TooManyRequestsException",
    "RequestLimitExceeded",
    "ProvisionedThroughputExceededException",
    "LimitExceededException",
    "KmsThrottled",
];
const NOT_PERMITTED: &[&str] = &["AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "KmsAccessDenied"];
const BAD_CREDENTIALS: &[&str] = &[
    "InvalidClientTokenId",
    "UnrecognizedClientException",
    "SignatureDoesNotMatch",
    "InvalidSignatureException",
    "IncompleteSignature",
    "MissingAuthenticationToken",
    "InvalidSecurity",
    "InvalidAccessKeyId",
    "ExpiredToken",
    "ExpiredTokenException",
];
const TRANSIENT: &[&str] = &[
    "InternalError",
    "InternalFailure",
    "InternalServerError",
    "ServiceUnavailable",
    "RequestTimeout",
    "QueueDeletedRecently",
    "PurgeQueueInProgress",
    "TransactionInProgressException",
];

impl AwsError {
    /// The error of a request. `target` is the queue or the table, as error messages name it.
    pub(in crate::backends) fn new<E>(target: &str, error: SdkError<E>) -> Self
    where
        E: ProvideErrorMetadata + StdError + Send + Sync + 'static,
    {
        let status = error.raw_response().map_or(0, |response| response.status().as_u16());
        match error {
            SdkError::ServiceError(service) => {
                let error = service.into_err();
                let text = error.message().unwrap_or_default().to_string();
                let code = error.code().filter(|code| !code.is_empty());
                let code = code.map_or_else(|| format!("HTTP {status}"), String::from);
                Self::from_response(target, &code, &text, status >= 500, Some(Arc::new(error)))
            }
            other => Self::without_response(target, &other),
        }
    }

    /// The error of one entry of a batch.
    pub(in crate::backends) fn from_entry(target: &str, entry: BatchResultErrorEntry) -> Self {
        let text = entry.message.unwrap_or_default();
        Self::from_response(target, &entry.code, &text, !entry.sender_fault, None)
    }

    /// The response to a batch lacks an entry.
    pub(in crate::backends) fn missing_entry(target: &str) -> Self {
        Self::from_response(target, "IncompleteAnswer", "the response lacks this entry", true, None)
    }

    /// The request was abandoned because a lease in it ended. SQS may have executed it.
    pub(in crate::backends) fn abandoned(target: &str) -> Self {
        Self::from_response(target, ABANDONED, "no response before a lease ended", true, None)
    }

    /// The lease ended before the request was sent.
    pub(in crate::backends) fn lease_ended(target: &str) -> Self {
        Self::from_response(target, INVALID_RECEIPT, "its lease has ended", false, None)
    }

    fn from_response(
        target: &str,
        code: &str,
        text: &str,
        is_server_fault: bool,
        source: Option<Arc<dyn StdError + Send + Sync>>,
    ) -> Self {
        let code = CODE_PREFIXES.iter().find_map(|prefix| code.strip_prefix(prefix)).unwrap_or(code);
        let is_one_of = |codes: &[&str]| codes.contains(&code);
        // After the first line AWS may repeat the request, session token included.
        let (text, source) = match is_one_of(BAD_CREDENTIALS) {
            true => (text.lines().next().unwrap_or_default(), None),
            false => (text, source),
        };
        let transient = is_server_fault || is_one_of(THROTTLED) || is_one_of(TRANSIENT);
        let hint = match () {
            () if is_one_of(THROTTLED) => "throttles; slow down, or ask AWS for a higher limit",
            () if is_one_of(NOT_PERMITTED) => "does not permit that to these credentials",
            () if is_one_of(BAD_CREDENTIALS) => "does not accept these credentials",
            () if is_server_fault => "failed",
            () => "refuses",
        };
        let colon = if text.is_empty() { "" } else { ": " };
        let message = format!("{target} {hint} ({code}){colon}{text}");
        AwsError { code: code.to_string(), has_response: true, error: Error::Connection { message, transient, source } }
    }

    fn without_response<E: StdError + 'static>(target: &str, error: &SdkError<E>) -> Self {
        let chain = error_chain(error);
        let says = |text: &str| chain.to_lowercase().contains(text);
        // Missing credentials are final. Credentials that timed out, or whose provider could not be
        // reached, may load the next time.
        let causes = error.source().map_or_else(String::new, error_chain).to_lowercase();
        let is_unreachable = says("timed out") || causes.contains("dispatch failure") && !says("not enabled");
        let is_final = matches!(error, SdkError::ConstructionFailure(_))
            || says("credential") && !is_unreachable
            || ["certificate", "unknownissuer", "missing region"].into_iter().any(says);
        let hint = match () {
            () if says("missing region") => {
                "cannot be called: no region (write sqs://eu-west-1/name, or set AWS_REGION)"
            }
            () if says("credential") && !is_final => "cannot be called: its credentials could not be loaded",
            () if says("credential") => {
                "cannot be called: no credentials (set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or configure a \
                 profile or a role)"
            }
            () if is_final => "cannot be called",
            () => "cannot be reached, or does not answer",
        };
        let message = format!("{target} {hint}: {chain}");
        let error = Error::Connection { message, transient: !is_final, source: Some(Arc::new(Text(chain))) };
        AwsError { code: String::new(), has_response: false, error }
    }

    /// The same error with another message. It is transient.
    pub(in crate::backends) fn with_message(self, message: String) -> Self {
        AwsError { error: Error::connection(message), ..self }
    }

    pub(in crate::backends) fn has_code(&self, code: &str) -> bool {
        self.code == code
    }

    /// The queue or the table does not exist.
    pub(in crate::backends) fn is_not_found(&self) -> bool {
        NOT_FOUND.contains(&self.code.as_str())
    }

    pub(in crate::backends) fn has_response(&self) -> bool {
        self.has_response
    }

    pub(in crate::backends) fn is_transient(&self) -> bool {
        self.error.is_transient()
    }

    pub(in crate::backends) fn is_not_permitted(&self) -> bool {
        NOT_PERMITTED.contains(&self.code.as_str())
    }

    /// SQS refuses the content of the request, not its credentials or its queue.
    pub(in crate::backends) fn is_about_content(&self) -> bool {
        let is_about_access =
            self.is_not_found() || self.is_not_permitted() || BAD_CREDENTIALS.contains(&self.code.as_str());
        self.has_response && !self.is_transient() && !is_about_access
    }

    /// The receipt is no longer valid.
    pub(in crate::backends) fn is_expired_receipt(&self) -> bool {
        matches!(self.code.as_str(), INVALID_RECEIPT | "MessageNotInflight" | "InvalidIdFormat")
            || self.has_code("InvalidParameterValue")
                && self.error.to_string().to_lowercase().contains("receipt handle")
    }

    /// Too many messages of the queue are in flight.
    pub(in crate::backends) fn is_over_limit(&self) -> bool {
        self.has_code("OverLimit")
    }

    pub(in crate::backends) fn is_abandoned(&self) -> bool {
        self.has_code(ABANDONED)
    }
}

/// The messages of an error and of its causes. `Debug` output is avoided: it may contain secrets.
fn error_chain(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let _ = write!(text, ": {error}");
        cause = error.source();
    }
    text
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Text(String);
