//! Prints results, notes and errors, as text or as JSON.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use postbox::{ContentType, MessageId, StoredMessage};
use serde_json::{Map, Value, json};

use crate::raw::RawCodec;

/// Why a command ends without success.
#[derive(Debug)]
pub(crate) enum Failure {
    Postbox(postbox::Error),
    /// An error of the command, with what to do next.
    Other(String),
    /// There was no message to receive, or no reply in time.
    Nothing(&'static str),
    /// A signal ended the command before it was complete.
    Interrupted(&'static str),
    /// The reader of standard output has closed it, as `head` does.
    Closed,
}

impl From<postbox::Error> for Failure {
    fn from(error: postbox::Error) -> Self {
        Failure::Postbox(error)
    }
}

/// Converts an error of writing to standard output.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::Closed,
            _ => Failure::Other(format!("cannot write to standard output: {error}")),
        }
    }
}

impl Failure {
    /// The exit status. Status 2 is missing here: `main` returns it for invalid arguments. A closed output is a success.
    pub(crate) fn code(&self) -> ExitCode {
        ExitCode::from(match self {
            Failure::Nothing(_) => 3,
            Failure::Interrupted(_) => 130,
            Failure::Closed => 0,
            Failure::Postbox(_) | Failure::Other(_) => 1,
        })
    }
}

pub(crate) fn failed(failure: &Failure, json: bool) {
    let (text, kind, transient) = match failure {
        Failure::Postbox(error) => (with_option_names(error), error.kind(), error.is_transient()),
        Failure::Other(text) => (text.clone(), "failed", false),
        Failure::Nothing(text) => ((*text).to_string(), "nothing", true),
        Failure::Interrupted(text) => ((*text).to_string(), "interrupted", true),
        Failure::Closed => return,
    };
    if json {
        error_line(&json!({ "error": kind, "message": text, "transient": transient }).to_string());
    } else {
        error_line(&format!("postbox: {text}"));
    }
}

/// The text of an error, with the name of a command-line option in place of the library's parameter name.
fn with_option_names(error: &postbox::Error) -> String {
    let postbox::Error::InvalidParameter { parameter, value, limit } = error else { return error.to_string() };
    let option = match *parameter {
        "max_messages" => "--max",
        "visibility_timeout" => "--visibility",
        "wait_time" => "--wait",
        "reply_timeout" => "--timeout",
        "shutdown_timeout" => "--shutdown-limit",
        "delay" => "--delay",
        "concurrency" => "--concurrency",
        other => other,
    };
    format!("{option} = {value} is not allowed: {limit}")
}

/// Prints a note to standard error.
pub(crate) fn note(text: &str, json: bool) {
    error_line(&if json { json!({ "note": text }).to_string() } else { format!("postbox: {text}") });
}

/// Writes a line to standard error. A failure to write cannot be reported.
pub(crate) fn error_line(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Writes a line to standard output.
pub(crate) fn line(text: impl std::fmt::Display) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")?;
    Ok(out.flush()?)
}

/// Writes a body byte for byte to standard output, and a newline if the body does not end with one.
pub(crate) fn bytes(body: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(body)?;
    if !body.ends_with(b"\n") {
        out.write_all(b"\n")?;
    }
    Ok(out.flush()?)
}

/// Adds a body to a JSON object without changing it: as a string under `name`, or in base64 under `name_base64` if it
/// is not UTF-8.
pub(crate) fn put_body(object: &mut Map<String, Value>, name: &str, body: &[u8]) {
    match std::str::from_utf8(body) {
        Ok(text) => object.insert(name.into(), text.into()),
        Err(_) => object.insert(format!("{name}_base64"), base64(body).into()),
    };
}

/// Encodes in base64 with padding (RFC 4648, section 4).
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group = (0..3).fold(0, |group, at| group << 8 | u32::from(chunk.get(at).copied().unwrap_or(0)));
        for at in 0..4 {
            let digit = DIGITS[(group >> (18 - 6 * at) & 63) as usize];
            text.push(if at <= chunk.len() { digit.into() } else { '=' });
        }
    }
    text
}

/// What is shown of a message, wherever it is.
pub(crate) struct Shown<'a> {
    id: &'a MessageId,
    pub(crate) body: &'a [u8],
    content_type: &'a ContentType,
    delivery_count: u32,
    enqueued_at: SystemTime,
    attributes: &'a BTreeMap<String, String>,
    reply_to: Option<&'a str>,
    expects_reply: bool,
}

impl<'a> Shown<'a> {
    pub(crate) fn message(message: &'a postbox::Message<Bytes, Bytes, RawCodec>) -> Self {
        Shown {
            id: &message.id,
            body: &message.body,
            content_type: message.content_type(),
            delivery_count: message.delivery_count,
            enqueued_at: message.enqueued_at,
            attributes: &message.attributes,
            reply_to: message.reply_to.as_deref(),
            expects_reply: message.expects_reply(),
        }
    }

    pub(crate) fn stored(message: &'a StoredMessage<Bytes>) -> Result<Self, Failure> {
        Ok(Shown {
            id: &message.id,
            body: message.body.as_ref().map_err(postbox::Error::clone)?,
            content_type: &message.content_type,
            delivery_count: message.delivery_count,
            enqueued_at: message.enqueued_at,
            attributes: &message.attributes,
            reply_to: message.reply_to.as_deref(),
            expects_reply: message.expects_reply,
        })
    }

    /// The fields that every command shows of a message.
    pub(crate) fn to_json(&self) -> Map<String, Value> {
        let mut object = Map::new();
        put_body(&mut object, "body", self.body);
        object.insert("id".into(), json!(self.id));
        object.insert("content_type".into(), self.content_type.as_str().into());
        object.insert("delivery_count".into(), self.delivery_count.into());
        object.insert("enqueued_at".into(), millis(self.enqueued_at).into());
        object.insert("attributes".into(), json!(self.attributes));
        object.insert("reply_to".into(), self.reply_to.into());
        object.insert("expects_reply".into(), self.expects_reply.into());
        object
    }
}

pub(crate) fn millis(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Replaces control characters, which would control the terminal, by spaces.
pub(crate) fn one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// The last `max` characters of a text, on one line.
pub(crate) fn last_chars(text: &str, max: usize) -> String {
    let text = one_line(text.trim());
    match text.char_indices().rev().nth(max) {
        Some((before, first)) => format!("…{}", &text[before + first.len_utf8()..]),
        None => text,
    }
}

/// The first 80 characters of a body, on one line.
pub(crate) fn short(body: &[u8]) -> String {
    let text = one_line(&String::from_utf8_lossy(body));
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
