//! Errors of the client library as errors of Postbox.

use std::sync::Arc;

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::error::Error;

/// A request that failed.
#[derive(Debug)]
pub(super) struct RequestError {
    kind: RequestErrorKind,
    source: RedisError,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum RequestErrorKind {
    /// The connection is lost, or the response took too long.
    Broken,
    /// The server loads its data, or a fail-over or a slot migration is under way.
    Busy,
    /// The server is a replica.
    ReadOnly,
    /// Another node of the cluster has the slot.
    Moved,
    /// The server has no memory left.
    Full,
    /// A retry does not help.
    Refused,
}

/// Error codes that scripts report. Redis 6.2 has them only in the text of the error.
const CODES_IN_SCRIPTS: [&str; 5] = ["OOM", "READONLY", "MISCONF", "NOREPLICAS", "NOPERM"];

fn code_of(error: &RedisError) -> String {
    let code = error.code().unwrap_or_default().trim_start_matches('-');
    let detail = error.detail().unwrap_or_default();
    let in_script = CODES_IN_SCRIPTS.iter().find(|code| detail.contains(&format!("-{code} ")));
    in_script.copied().unwrap_or(code).to_string()
}

fn kind_of(error: &RedisError) -> RequestErrorKind {
    match (error.kind(), code_of(error).as_str()) {
        (_, "OOM") => RequestErrorKind::Full,
        (_, "READONLY") => RequestErrorKind::ReadOnly,
        (_, "LOADING" | "TRYAGAIN" | "CLUSTERDOWN" | "MASTERDOWN" | "ASK" | "BUSY" | "NOREPLICAS" | "MISCONF") => {
            RequestErrorKind::Busy
        }
        (_, "NOAUTH" | "WRONGPASS" | "NOPERM") => RequestErrorKind::Refused,
        (ErrorKind::Server(ServerErrorKind::Moved), _) => RequestErrorKind::Moved,
        (ErrorKind::ClusterConnectionNotFound | ErrorKind::MasterNameNotFoundBySentinel, _) => RequestErrorKind::Busy,
        // The server was the primary when it executed the script.
        _ if error.to_string().contains("WAIT cannot be used with replica") => RequestErrorKind::ReadOnly,
        _ if is_tls_error(error) => RequestErrorKind::Refused,
        (ErrorKind::Io, _) => RequestErrorKind::Broken,
        _ if error.is_io_error() || error.is_timeout() || error.is_connection_dropped() => RequestErrorKind::Broken,
        _ => RequestErrorKind::Refused,
    }
}

fn is_tls_error(error: &RedisError) -> bool {
    let text = error.to_string();
    ["certificate", "UnknownIssuer", "invalid peer", "InvalidContentType", "corrupt message", "tls"]
        .iter()
        .any(|sign| text.contains(sign))
}

impl From<RedisError> for RequestError {
    fn from(source: RedisError) -> Self {
        RequestError { kind: kind_of(&source), source }
    }
}

impl RequestError {
    /// Nodes of a cluster redirect to each other until all know the new primary. So a redirection
    /// is worth a retry.
    pub(super) fn in_cluster(mut self) -> Self {
        if self.kind == RequestErrorKind::Moved {
            self.kind = RequestErrorKind::Busy;
        }
        self
    }

    pub(super) fn is_timeout(&self) -> bool {
        self.source.is_timeout()
    }

    pub(super) fn breaks_connection(&self) -> bool {
        matches!(self.kind, RequestErrorKind::Broken | RequestErrorKind::ReadOnly)
    }

    pub(super) fn is_transient(&self) -> bool {
        matches!(self.kind, RequestErrorKind::Broken | RequestErrorKind::Busy | RequestErrorKind::ReadOnly)
    }

    pub(super) fn is_full(&self) -> bool {
        self.kind == RequestErrorKind::Full
    }

    pub(super) fn into_error(self, address: &str) -> Error {
        let code = code_of(&self.source);
        let reason = match (self.kind, self.source.kind()) {
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
            _ if is_tls_error(&self.source) => "does not agree on TLS",
            _ => "refuses",
        };
        let message = format!("{address} {reason}: {}", self.source);
        let transient = self.is_transient() || self.is_full();
        Error::Connection { message, transient, source: Some(Arc::new(self.source)) }
    }
}
