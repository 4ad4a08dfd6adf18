//! The one address in which errors of the client library become ours.

use std::sync::Arc;

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::error::Error;

/// What kind of failure it is, and what to do about it.
#[derive(Debug)]
pub(super) struct RequestError {
    kind: RequestErrorKind,
    error: Option<RedisError>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum RequestErrorKind {
    /// The connection is gone, or no answer came.
    Broken,
    /// The server cannot at the moment: it loads its data, a fail-over or a migration is under way.
    Busy,
    /// This server is a replica now.
    ReadOnly,
    /// Another node of the cluster has it.
    Moved,
    /// The server's memory is full.
    Full,
    /// It will not work until somebody changes something.
    Refused,
}

/// The codes of refusals within scripts. Redis 6.2 reports such a refusal as an error of the script, with the code in its
/// text.
const WITHIN_SCRIPTS: [&str; 5] = ["OOM", "READONLY", "MISCONF", "NOREPLICAS", "NOPERM"];

fn code_of(error: &RedisError) -> String {
    let code = error.code().unwrap_or_default().trim_start_matches('-');
    let detail = error.detail().unwrap_or_default();
    let within = WITHIN_SCRIPTS.iter().find(|code| detail.contains(&format!("-{code} ")));
    within.copied().unwrap_or(code).to_string()
}

pub(super) fn request_error(error: &RedisError) -> RequestError {
    let kind = match (error.kind(), code_of(error).as_str()) {
        (_, "OOM") => RequestErrorKind::Full,
        (_, "READONLY") => RequestErrorKind::ReadOnly,
        (_, "LOADING" | "TRYAGAIN" | "CLUSTERDOWN" | "MASTERDOWN" | "ASK" | "BUSY" | "NOREPLICAS" | "MISCONF") => {
            RequestErrorKind::Busy
        }
        (_, "NOAUTH" | "WRONGPASS" | "NOPERM") => RequestErrorKind::Refused,
        (ErrorKind::Server(ServerErrorKind::Moved), _) => RequestErrorKind::Moved,
        (ErrorKind::ClusterConnectionNotFound | ErrorKind::MasterNameNotFoundBySentinel, _) => RequestErrorKind::Busy,
        // It was the primary when the message was stored, or is thought to be.
        _ if error.to_string().contains("WAIT cannot be used with replica") => RequestErrorKind::ReadOnly,
        _ if is_certificate(error) => RequestErrorKind::Refused,
        (ErrorKind::Io, _) => RequestErrorKind::Broken,
        _ if error.is_io_error() || error.is_timeout() || error.is_connection_dropped() => RequestErrorKind::Broken,
        _ => RequestErrorKind::Refused,
    };
    RequestError { kind, error: None }
}

/// What is wrong with TLS does not pass.
fn is_certificate(error: &RedisError) -> bool {
    let text = error.to_string();
    ["certificate", "UnknownIssuer", "invalid peer", "InvalidContentType", "corrupt message", "tls"]
        .iter()
        .any(|sign| text.contains(sign))
}

impl RequestError {
    pub(super) fn with(mut self, error: RedisError) -> Self {
        self.error = Some(error);
        self
    }

    /// In a cluster one is sent to and fro until all nodes know who has taken over.
    pub(super) fn in_cluster(mut self) -> Self {
        if self.kind == RequestErrorKind::Moved {
            self.kind = RequestErrorKind::Busy;
        }
        self
    }

    pub(super) fn breaks_connection(&self) -> bool {
        matches!(self.kind, RequestErrorKind::Broken | RequestErrorKind::ReadOnly)
    }

    pub(super) fn may_pass(&self) -> bool {
        matches!(self.kind, RequestErrorKind::Broken | RequestErrorKind::Busy | RequestErrorKind::ReadOnly)
    }

    pub(super) fn is_full(&self) -> bool {
        self.kind == RequestErrorKind::Full
    }

    pub(super) fn into_error(mut self, address: &str) -> Error {
        match self.error.take() {
            Some(error) => self.explain(address, error),
            None => Error::connection(format!("{address} cannot be used")),
        }
    }

    pub(super) fn explain(self, address: &str, error: RedisError) -> Error {
        let code = code_of(&error);
        let hint = match (self.kind, error.kind()) {
            (RequestErrorKind::Broken, _) if address.starts_with("rediss:") => {
                "cannot be reached, or does not answer by TLS"
            }
            (RequestErrorKind::Broken, _) => "cannot be reached, or does not answer",
            (RequestErrorKind::Busy, _) => "cannot at the moment",
            (RequestErrorKind::ReadOnly, _) => "is a replica; connect to the primary",
            (RequestErrorKind::Full, _) => "has no memory left",
            (_, ErrorKind::AuthenticationFailed) => "refuses the user or the password",
            _ if matches!(code.as_str(), "NOAUTH" | "WRONGPASS") => "refuses the user or the password",
            _ if code == "NOPERM" => "does not permit this user to do that",
            (RequestErrorKind::Moved, _) => "is part of a cluster; write redis+cluster://",
            (_, ErrorKind::RESP3NotSupported) => "is too old; Redis 6.2 or later is needed",
            _ if is_certificate(&error) => "does not agree on TLS",
            _ => "refuses",
        };
        let message = format!("{address} {hint}: {error}");
        let transient = self.may_pass() || self.is_full();
        Error::Connection { message, transient, source: Some(Arc::new(error)) }
    }
}
