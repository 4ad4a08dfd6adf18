//! The one place in which errors of the client library become ours.

use std::sync::Arc;

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::error::Error;

/// What kind of failure it is, and what to do about it.
#[derive(Debug)]
pub(super) struct Fault {
    kind: FaultKind,
    error: Option<RedisError>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum FaultKind {
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

pub(super) fn fault_of(error: &RedisError) -> Fault {
    let kind = match (error.kind(), code_of(error).as_str()) {
        (_, "OOM") => FaultKind::Full,
        (_, "READONLY") => FaultKind::ReadOnly,
        (_, "LOADING" | "TRYAGAIN" | "CLUSTERDOWN" | "MASTERDOWN" | "ASK" | "BUSY" | "NOREPLICAS" | "MISCONF") => {
            FaultKind::Busy
        }
        (_, "NOAUTH" | "WRONGPASS" | "NOPERM") => FaultKind::Refused,
        (ErrorKind::Server(ServerErrorKind::Moved), _) => FaultKind::Moved,
        (ErrorKind::ClusterConnectionNotFound | ErrorKind::MasterNameNotFoundBySentinel, _) => FaultKind::Busy,
        // It was the primary when the message was stored, or is thought to be.
        _ if error.to_string().contains("WAIT cannot be used with replica") => FaultKind::ReadOnly,
        _ if is_certificate(error) => FaultKind::Refused,
        (ErrorKind::Io, _) => FaultKind::Broken,
        _ if error.is_io_error() || error.is_timeout() || error.is_connection_dropped() => FaultKind::Broken,
        _ => FaultKind::Refused,
    };
    Fault { kind, error: None }
}

/// What is wrong with TLS does not pass.
fn is_certificate(error: &RedisError) -> bool {
    let text = error.to_string();
    ["certificate", "UnknownIssuer", "invalid peer", "InvalidContentType", "corrupt message", "tls"]
        .iter()
        .any(|sign| text.contains(sign))
}

impl Fault {
    pub(super) fn with(mut self, error: RedisError) -> Self {
        self.error = Some(error);
        self
    }

    /// In a cluster one is sent to and fro until all nodes know who has taken over.
    pub(super) fn in_cluster(mut self) -> Self {
        if self.kind == FaultKind::Moved {
            self.kind = FaultKind::Busy;
        }
        self
    }

    pub(super) fn breaks_connection(&self) -> bool {
        matches!(self.kind, FaultKind::Broken | FaultKind::ReadOnly)
    }

    pub(super) fn may_pass(&self) -> bool {
        matches!(self.kind, FaultKind::Broken | FaultKind::Busy | FaultKind::ReadOnly)
    }

    pub(super) fn is_full(&self) -> bool {
        self.kind == FaultKind::Full
    }

    pub(super) fn into_error(mut self, place: &str) -> Error {
        match self.error.take() {
            Some(error) => self.explain(place, error),
            None => Error::connection(format!("{place} cannot be used")),
        }
    }

    pub(super) fn explain(self, place: &str, error: RedisError) -> Error {
        let code = code_of(&error);
        let hint = match (self.kind, error.kind()) {
            (FaultKind::Broken, _) if place.starts_with("rediss:") => "cannot be reached, or does not answer by TLS",
            (FaultKind::Broken, _) => "cannot be reached, or does not answer",
            (FaultKind::Busy, _) => "cannot at the moment",
            (FaultKind::ReadOnly, _) => "is a replica; connect to the primary",
            (FaultKind::Full, _) => "has no memory left",
            (_, ErrorKind::AuthenticationFailed) => "refuses the user or the password",
            _ if matches!(code.as_str(), "NOAUTH" | "WRONGPASS") => "refuses the user or the password",
            _ if code == "NOPERM" => "does not permit this user to do that",
            (FaultKind::Moved, _) => "is part of a cluster; write redis+cluster://",
            (_, ErrorKind::RESP3NotSupported) => "is too old; Redis 6.2 or later is needed",
            _ if is_certificate(&error) => "does not agree on TLS",
            _ => "refuses",
        };
        let message = format!("{place} {hint}: {error}");
        let transient = self.may_pass() || self.is_full();
        Error::Connection { message, transient, source: Some(Arc::new(error)) }
    }
}
