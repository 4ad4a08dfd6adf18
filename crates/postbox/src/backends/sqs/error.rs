//! The one place in which errors of AWS and of its client library become ours.

use std::error::Error as StdError;
use std::fmt::Write as _;
use std::sync::Arc;

use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_sqs::types::BatchResultErrorEntry;

use crate::error::Error;

/// A refusal or a failure: its code, if AWS gave one, and our error.
#[derive(Clone, Debug)]
pub(in crate::backends) struct AwsError {
    code: String,
    /// Whether AWS has answered.
    pub(in crate::backends) is_response: bool,
    pub(in crate::backends) error: Error,
}

/// What stands before codes of SQS's older protocol, which the newer one repeats in a header.
const BEFORE: &[&str] = &["AWS.SimpleQueueService.", "KMS."];
const MISSING: &[&str] = &["QueueDoesNotExist", "NonExistentQueue", "ResourceNotFoundException"];
const STALE: &str = "ReceiptHandleIsInvalid";
const CUT: &str = "NoAnswerInTime";
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
const NOT_KNOWN: &[&str] = &[
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
const PASSING: &[&str] = &[
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
    pub(in crate::backends) fn is_missing(&self) -> bool {
        MISSING.contains(&self.code.as_str())
    }

    pub(in crate::backends) fn is_not_permitted(&self) -> bool {
        NOT_PERMITTED.contains(&self.code.as_str())
    }

    /// A refusal of what was asked for, not of who asks or where.
    pub(in crate::backends) fn is_about_content(&self) -> bool {
        let is_about_else = self.is_missing() || self.is_not_permitted() || NOT_KNOWN.contains(&self.code.as_str());
        self.is_response && !self.error.is_transient() && !is_about_else
    }

    /// The receipt is not good any more.
    pub(in crate::backends) fn is_stale_receipt(&self) -> bool {
        matches!(self.code.as_str(), STALE | "MessageNotInflight" | "InvalidIdFormat")
            || self.code == "InvalidParameterValue" && self.error.to_string().to_lowercase().contains("receipt handle")
    }

    pub(in crate::backends) fn is_over_limit(&self) -> bool {
        self.is("OverLimit")
    }

    pub(in crate::backends) fn is(&self, code: &str) -> bool {
        self.code == code
    }

    /// The same, in other words. It passes.
    pub(in crate::backends) fn with_message(self, message: String) -> Self {
        AwsError { error: Error::connection(message), ..self }
    }

    /// What became of one entry of a batch.
    pub(in crate::backends) fn from_entry(place: &str, entry: BatchResultErrorEntry) -> Self {
        let text = entry.message.unwrap_or_default();
        Self::from_response(place, entry.code, &text, !entry.sender_fault, None)
    }

    /// Something that should be in an answer is not.
    pub(in crate::backends) fn missing_entry(place: &str) -> Self {
        Self::from_response(place, "IncompleteAnswer".into(), "it says nothing of this entry", true, None)
    }

    /// A request was given up, since part of it is not good any more. Nobody knows what was done.
    pub(in crate::backends) fn abandoned(place: &str) -> Self {
        Self::from_response(place, CUT.into(), "it did not answer before a lease ended", true, None)
    }

    pub(in crate::backends) fn is_abandoned(&self) -> bool {
        self.is(CUT)
    }

    /// The lease has ended.
    pub(in crate::backends) fn lease_ended(place: &str) -> Self {
        Self::from_response(place, STALE.into(), "its lease has ended", false, None)
    }

    fn from_response(
        place: &str,
        code: String,
        text: &str,
        is_server_fault: bool,
        source: Option<Arc<dyn StdError + Send + Sync>>,
    ) -> AwsError {
        let code = BEFORE.iter().find_map(|before| code.strip_prefix(before)).unwrap_or(&code).to_string();
        let has = |codes: &[&str]| codes.contains(&code.as_str());
        // What follows the first line may repeat the request, with the token of a session in it.
        let (text, source) = match has(NOT_KNOWN) {
            true => (text.lines().next().unwrap_or_default(), None),
            false => (text, source),
        };
        let transient = is_server_fault || has(THROTTLED) || has(PASSING);
        let hint = match () {
            () if has(THROTTLED) => "throttles; slow down, or ask AWS for more",
            () if has(NOT_PERMITTED) => "does not permit that to these credentials",
            () if has(NOT_KNOWN) => "does not accept these credentials",
            () if is_server_fault => "failed",
            () => "refuses",
        };
        let message = if text.is_empty() {
            format!("{place} {hint} ({code})")
        } else {
            format!("{place} {hint} ({code}): {text}")
        };
        AwsError { code, is_response: true, error: Error::Connection { message, transient, source } }
    }

    /// What a request ended with.
    pub(in crate::backends) fn from_sdk<E>(place: &str, error: SdkError<E>) -> AwsError
    where
        E: ProvideErrorMetadata + StdError + Send + Sync + 'static,
    {
        let status = error.raw_response().map(|response| response.status().as_u16());
        match error {
            SdkError::ServiceError(service) => {
                let error = service.into_err();
                let code = error.code().unwrap_or_default().to_string();
                let text = error.message().unwrap_or_default().to_string();
                let is_server_fault = status.is_some_and(|status| status >= 500);
                let code = if code.is_empty() { format!("HTTP {}", status.unwrap_or_default()) } else { code };
                Self::from_response(place, code, &text, is_server_fault, Some(Arc::new(error)))
            }
            other => {
                let chain = chain(&other);
                let says = |sign: &str| chain.to_lowercase().contains(sign);
                // Who has no credentials now will have none in a second, unless it was only that they did not come in time, or that
                // the place could not be reached which has them.
                let below = other.source().map_or_else(String::new, self::chain).to_lowercase();
                let is_unreached = says("timed out") || below.contains("dispatch failure") && !says("not enabled");
                let is_final = matches!(&other, SdkError::ConstructionFailure(_))
                    || says("credential") && !is_unreached
                    || ["certificate", "unknownissuer", "missing region"].into_iter().any(says);
                let hint = match () {
                    () if says("missing region") => {
                        "cannot be asked: no region (write sqs://eu-west-1/name, or set AWS_REGION)"
                    }
                    () if says("credential") && !is_final => "cannot be asked: its credentials could not be had",
                    () if says("credential") => {
                        "cannot be asked: no credentials (set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or have a profile or a role)"
                    }
                    () if is_final => "cannot be asked",
                    () => "cannot be reached, or does not answer",
                };
                let message = format!("{place} {hint}: {chain}");
                AwsError {
                    code: String::new(),
                    is_response: false,
                    error: Error::Connection { message, transient: !is_final, source: Some(Arc::new(Text(chain))) },
                }
            }
        }
    }
}

/// What an error and its causes say. Their debug forms could have more than anybody should see.
fn chain(error: &dyn StdError) -> String {
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
