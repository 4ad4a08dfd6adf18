//! The signature that a request states, in the header `Authorization` or in parameters of its URL.
//!
//! Error messages show the SHA-256 of the header and no part of it, because clients put secrets
//! into it by mistake.

use super::canonical::{ALGORITHM, SIGNATURE_PARAMETER, TERMINATOR, masked};
use super::time::parse_time;
use crate::error::{ErrorKind, SqsError};
use crate::queue::is_region;
use crate::wire::HttpRequest;

/// The longest time in seconds for which a presigned URL may be good: seven days.
const LONGEST_EXPIRY: u64 = 604_800;

/// A signature and what it is a signature of, as the request says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    /// The access key id.
    pub key_id: String,
    /// The first element of the scope, `YYYYMMDD`.
    pub date: String,
    /// The region of the scope.
    pub region: String,
    /// The service of the scope.
    pub service: String,
    /// The last element of the scope.
    pub terminator: String,
    /// The time of the signature as the request has it.
    pub time: String,
    /// The same in Unix seconds.
    pub unix_time: u64,
    /// The names of the signed headers, in lower case.
    pub signed_headers: Vec<String>,
    /// The signature.
    pub signature: String,
    /// Seconds for which a presigned URL is good. `None` for a signature in a header.
    pub expires: Option<u64>,
    /// The session token.
    pub session_token: Option<String>,
}

fn incomplete(message: impl Into<std::borrow::Cow<'static, str>>) -> SqsError {
    SqsError::new(ErrorKind::IncompleteSignature, message)
}

impl Signed {
    /// Finds the signature of a request and does not verify it.
    ///
    /// A server without access keys learns the region of a request from it.
    pub fn of(http: &HttpRequest<'_>) -> Result<Self, SqsError> {
        if let Some(authorization) = http.header("authorization") {
            return Self::from_header(http, authorization.trim());
        }
        if parameter(http.query, "X-Amz-Algorithm").is_some() || parameter(http.query, SIGNATURE_PARAMETER).is_some() {
            return Self::from_query(http);
        }
        Err(SqsError::new(ErrorKind::MissingAuthenticationToken, "Request is missing Authentication Token"))
    }

    fn from_header(http: &HttpRequest<'_>, authorization: &str) -> Result<Self, SqsError> {
        let time = http.header("x-amz-date").or_else(|| http.header("date")).map(str::trim);
        let (mut credential, mut signed_headers, mut signature) = (None, None, None);
        if let Some(parts) = authorization.strip_prefix(ALGORITHM) {
            for part in parts.split(',').map(str::trim).filter(|part| !part.is_empty()) {
                let Some((name, value)) = part.split_once('=') else {
                    return Err(incomplete(format!(
                        "Invalid key=value pair (missing equal-sign) in Authorization header (hashed with SHA-256 \
                         and encoded with Base64): '{}'.",
                        masked(authorization)
                    )));
                };
                match name.trim() {
                    "Credential" => credential = Some(value.trim()),
                    "SignedHeaders" => signed_headers = Some(value.trim()),
                    "Signature" => signature = Some(value.trim()),
                    _ => (),
                }
            }
        }
        match (credential, signed_headers, signature, time) {
            (Some(credential), Some(signed_headers), Some(signature), Some(time)) => {
                let session_token = http.header("x-amz-security-token").map(|token| token.trim().to_owned());
                Self::new(credential, signed_headers, signature, time, None, session_token)
            }
            _ => {
                let mut message = String::new();
                for (name, part) in
                    [("Credential", credential), ("Signature", signature), ("SignedHeaders", signed_headers)]
                {
                    if part.is_none() {
                        message.push_str(&format!("Authorization header requires '{name}' parameter. "));
                    }
                }
                if time.is_none() {
                    message.push_str(
                        "Authorization header requires existence of either a 'X-Amz-Date' or a 'Date' header. ",
                    );
                }
                let hashed = "(Hashed with SHA-256 and encoded with Base64)";
                Err(incomplete(format!("{message}{hashed} Authorization={}", masked(authorization))))
            }
        }
    }

    fn from_query(http: &HttpRequest<'_>) -> Result<Self, SqsError> {
        let required = |name: &str| {
            let message =
                format!("AWS query-string parameters must include '{name}'. Re-examine the query-string parameters.");
            parameter(http.query, name).ok_or_else(|| incomplete(message))
        };
        let algorithm = required("X-Amz-Algorithm")?;
        if algorithm != ALGORITHM {
            return Err(incomplete(format!("X-Amz-Algorithm only supports \"{ALGORITHM}\"")));
        }
        let credential = required("X-Amz-Credential")?;
        let signature = required(SIGNATURE_PARAMETER)?;
        let signed_headers = required("X-Amz-SignedHeaders")?;
        let time = required("X-Amz-Date")?;
        let expires = parameter(http.query, "X-Amz-Expires").map_or(Ok(300), |text| text.parse());
        let expires = expires.ok().filter(|seconds| (1..=LONGEST_EXPIRY).contains(seconds));
        let expires =
            expires.ok_or_else(|| incomplete("X-Amz-Expires must be a number between 1 and 604800 seconds."))?;
        let token = parameter(http.query, "X-Amz-Security-Token");
        let token = token.or_else(|| http.header("x-amz-security-token").map(str::to_owned));
        Self::new(&credential, &signed_headers, &signature, &time, Some(expires), token)
    }

    fn new(
        credential: &str,
        signed_headers: &str,
        signature: &str,
        time: &str,
        expires: Option<u64>,
        session_token: Option<String>,
    ) -> Result<Self, SqsError> {
        // The message does not repeat the credential, which may be a secret by mistake.
        let elements: Vec<&str> = credential.split('/').collect();
        let [key_id, date, region, service, terminator] = elements[..] else {
            let form = "keyid/date/region/service/term";
            return Err(incomplete(format!("Credential must have exactly 5 slash-delimited elements, e.g. {form}")));
        };
        let unix_time = parse_time(time).ok_or_else(|| {
            let form = "Date must be in ISO-8601 'basic format'.";
            incomplete(format!("{form} Got '{time}'. See http://en.wikipedia.org/wiki/ISO_8601"))
        })?;
        Ok(Signed {
            key_id: key_id.to_owned(),
            date: date.to_owned(),
            region: region.to_owned(),
            service: service.to_owned(),
            terminator: terminator.to_owned(),
            time: time.to_owned(),
            unix_time,
            signed_headers: signed_headers.split(';').map(|name| name.trim().to_ascii_lowercase()).collect(),
            signature: signature.to_owned(),
            expires,
            session_token,
        })
    }

    /// The scope in which the signature was made.
    pub fn scope(&self) -> String {
        format!("{}/{}/{}/{}", self.date, self.region, self.service, self.terminator)
    }

    /// Checks the scope of a credential against the time of the signature and the service.
    pub(super) fn check_scope(&self, service: &str) -> Result<(), SqsError> {
        let day = &self.time[..8];
        let mut message = String::new();
        if !is_region(&self.region) {
            message.push_str("Credential should be scoped to a valid region. ");
        }
        if self.service != service {
            message.push_str(&format!("Credential should be scoped to correct service: '{service}'. "));
        }
        if self.terminator != TERMINATOR {
            message.push_str(&format!("Credential should be scoped with a valid terminator: '{TERMINATOR}'. "));
        }
        if self.date != day {
            message.push_str(&format!(
                "Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from HTTP: \
                 '{}' != '{day}', from '{}'. ",
                self.date, self.time
            ));
        }
        if message.is_empty() {
            return Ok(());
        }
        Err(SqsError::new(ErrorKind::SignatureDoesNotMatch, message.trim_end().to_owned()))
    }
}

/// The value of a parameter of a URL.
fn parameter(query: &str, name: &str) -> Option<String> {
    form_urlencoded::parse(query.as_bytes()).find(|(found, _)| found == name).map(|(_, value)| value.into_owned())
}
