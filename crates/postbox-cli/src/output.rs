//! What is printed, for people and for programs.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde_json::{Value, json};

/// Why a command ends without success.
#[derive(Debug)]
pub(crate) enum Failure {
    Postbox(postbox::Error),
    /// With what to do next.
    Other(String),
    /// There was nothing to receive, or no reply in time.
    Nothing(&'static str),
    /// It was ended before it was done.
    Interrupted(&'static str),
    /// The output is closed.
    Output,
}

impl From<postbox::Error> for Failure {
    fn from(error: postbox::Error) -> Self {
        Failure::Postbox(error)
    }
}

impl Failure {
    /// 1 for errors, 3 for nothing, 130 for Ctrl-C; 2 is for wrong arguments.
    pub(crate) fn code(&self) -> ExitCode {
        ExitCode::from(match self {
            Failure::Nothing(_) => 3,
            Failure::Interrupted(_) => 130,
            Failure::Output => 0,
            _ => 1,
        })
    }
}

pub(crate) fn failed(failure: &Failure, json: bool) {
    let (text, kind, transient) = match failure {
        Failure::Postbox(error) => (by_options(error), error.kind(), error.is_transient()),
        Failure::Other(text) => (text.clone(), "failed", false),
        Failure::Nothing(text) => ((*text).to_string(), "nothing", true),
        Failure::Interrupted(text) => ((*text).to_string(), "interrupted", true),
        Failure::Output => return,
    };
    if json {
        eprintln!("{}", json!({ "error": kind, "message": text, "transient": transient }));
    } else {
        eprintln!("postbox: {text}");
    }
}

/// What the library calls by the name of an argument is an option here.
fn by_options(error: &postbox::Error) -> String {
    let postbox::Error::InvalidParameter { parameter, value, limit } = error else { return error.to_string() };
    let option = match *parameter {
        "max_messages" => "--max",
        "visibility_timeout" => "--visibility",
        "wait_time" => "--wait",
        "reply_timeout" => "--timeout",
        "delay" => "--delay",
        "concurrency" => "--concurrency",
        other => other,
    };
    format!("{option} = {value} is not allowed: {limit}")
}

/// Says beside the output what happens.
pub(crate) fn note(text: &str, json: bool) {
    let text = if json { json!({ "note": text }).to_string() } else { format!("postbox: {text}") };
    // Nobody may be there to read it.
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Writes a line. A closed output ends the command quietly.
pub(crate) fn line(text: impl std::fmt::Display) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(|_| Failure::Output)
}

/// A body as it is, and a line end.
pub(crate) fn bytes(body: &[u8]) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let end: &[u8] = if body.ends_with(b"\n") { b"" } else { b"\n" };
    out.write_all(body).and_then(|()| out.write_all(end)).and_then(|()| out.flush()).map_err(|_| Failure::Output)
}

/// A body in JSON: as it is if it is JSON, else as text, else as numbers.
pub(crate) fn body(body: &Bytes) -> Value {
    serde_json::from_slice(body).unwrap_or_else(|_| match std::str::from_utf8(body) {
        Ok(text) => Value::from(text),
        Err(_) => Value::from(body.to_vec()),
    })
}

pub(crate) fn millis(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// A body on one short line.
pub(crate) fn short(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body).replace(['\n', '\r', '\t'], " ");
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
