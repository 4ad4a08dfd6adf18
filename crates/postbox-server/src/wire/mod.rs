//! The wire: bytes to typed requests, and typed answers to bytes, in both protocols.
//!
//! | protocol | request | answer |
//! |---|---|---|
//! | [`Protocol::Json`] | `X-Amz-Target` and a JSON object | a JSON object |
//! | [`Protocol::Query`] | a form body, or the query of a `GET` | XML |
//! | [`Protocol::QueryJson`] | the same, with `Accept: application/json` | JSON with the structure of the XML |
//!
//! Each request chooses its protocol. Both protocols share the lists of members in [`request`] and
//! [`response`]. The URL of a request may name its queue; a parameter `QueueUrl` beats it.

mod http;
mod json;
mod query;
pub mod request;
pub mod response;
#[cfg(test)]
mod round_trip_tests;
pub(crate) mod shape;
mod xml;

pub use http::{HttpRequest, HttpResponse};
pub use request::{Action, Request};
pub use response::Response;

use crate::error::{ErrorKind, SqsError};
use crate::queue::QueueUrl;
use json::{JsonReader, JsonWriter, parse_object};
use query::{Parameters, QueryReader};
use xml::XmlWriter;

/// The XML namespace of SQS's answers.
pub const NAMESPACE: &str = "http://queue.amazonaws.com/doc/2012-11-05/";

/// The prefix of `X-Amz-Target`.
const TARGET: &str = "AmazonSQS.";

/// How a request is written, and so how its answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// AWS JSON 1.0.
    Json,
    /// The query protocol with its XML.
    Query,
    /// The query protocol, for a client that accepts JSON.
    QueryJson,
}

impl Protocol {
    /// The protocol of a request.
    pub fn of(http: &HttpRequest<'_>) -> Self {
        let has_json_body = http.header("content-type").is_some_and(|value| {
            let media_type = value.split(';').next().unwrap_or_default().trim();
            media_type.to_ascii_lowercase().starts_with("application/x-amz-json-")
        });
        if has_json_body || http.header("x-amz-target").is_some() {
            return Protocol::Json;
        }
        let accepts_json = http.header("accept").is_some_and(|value| {
            value.split(',').any(|range| range.split(';').next().unwrap_or_default().trim() == "application/json")
        });
        if accepts_json { Protocol::QueryJson } else { Protocol::Query }
    }

    /// True for both forms of the query protocol.
    pub fn is_query(self) -> bool {
        self != Protocol::Json
    }
}

/// Reads a request in its protocol.
pub fn parse(protocol: Protocol, http: &HttpRequest<'_>) -> Result<Request, SqsError> {
    match protocol {
        Protocol::Json => parse_json(http),
        Protocol::Query | Protocol::QueryJson => parse_query(http),
    }
}

fn parse_json(http: &HttpRequest<'_>) -> Result<Request, SqsError> {
    let target = http.header("x-amz-target").unwrap_or_default().trim();
    let action = target.strip_prefix(TARGET).and_then(Action::from_name);
    let Some(action) = action else {
        return Err(SqsError::new(ErrorKind::UnknownOperation, format!("The operation {target} is unknown.")));
    };
    Request::read(action, &mut JsonReader::new(parse_object(http.body)?))
}

fn parse_query(http: &HttpRequest<'_>) -> Result<Request, SqsError> {
    let mut parameters = Parameters::default();
    parameters.add(http.query.as_bytes());
    if http.method != "GET" {
        parameters.add(http.body);
    }
    let Some(name) = parameters.get("Action").filter(|name| !name.is_empty()) else {
        return Err(SqsError::new(ErrorKind::UnknownOperation, ""));
    };
    let action = Action::from_name(name).ok_or_else(|| SqsError::invalid_action(name))?;
    if QueueUrl::is_path_of_queue(http.path) {
        if matches!(action, Action::CreateQueue | Action::ListQueues) {
            return Err(SqsError::invalid_action(name));
        }
        parameters.set_default("QueueUrl", http.path);
    }
    Request::read(action, &mut QueryReader::new(parameters))
}

/// Writes an answer in the protocol of its request.
pub fn render(protocol: Protocol, mut response: Response, request_id: &str) -> HttpResponse {
    let action = response.action();
    let has_result = !matches!(response, Response::Empty(_));
    let body = match protocol {
        Protocol::Json if has_result => {
            let mut writer = JsonWriter::new(false);
            write(&mut response, &mut writer);
            writer.finish()
        }
        Protocol::Json => Vec::new(),
        Protocol::Query => render_xml(action, has_result, &mut response, request_id).into_bytes(),
        Protocol::QueryJson => render_query_json(action, has_result, &mut response, request_id),
    };
    answer(protocol, 200, request_id, body)
}

/// Writers do not fail; only readers do.
fn write<V: shape::Visitor>(response: &mut Response, writer: &mut V) {
    response.write(writer).expect("writing to memory does not fail");
}

fn render_xml(action: Action, has_result: bool, response: &mut Response, request_id: &str) -> String {
    let name = action.name();
    let mut writer = XmlWriter::default();
    writer.out.push_str(&format!("<?xml version=\"1.0\"?><{name}Response xmlns=\"{NAMESPACE}\">"));
    if has_result {
        let result = format!("{name}Result");
        let start = writer.out.len();
        writer.open(&result);
        let empty = writer.out.len();
        write(response, &mut writer);
        if writer.out.len() == empty {
            writer.out.truncate(start);
            writer.out.push_str(&format!("<{result}/>"));
        } else {
            writer.close(&result);
        }
    }
    writer.open("ResponseMetadata");
    writer.element("RequestId", request_id);
    writer.close("ResponseMetadata");
    writer.out.push_str(&format!("</{name}Response>"));
    writer.out
}

fn render_query_json(action: Action, has_result: bool, response: &mut Response, request_id: &str) -> Vec<u8> {
    let name = action.name();
    let mut out = format!("{{\"{name}Response\":{{").into_bytes();
    if has_result {
        let mut writer = JsonWriter::new(true);
        write(response, &mut writer);
        out.extend_from_slice(format!("\"{name}Result\":").as_bytes());
        let result = if writer.is_empty() { b"null".to_vec() } else { writer.finish() };
        out.extend_from_slice(&result);
        out.push(b',');
    }
    let metadata = serde_json::json!({ "RequestId": request_id });
    out.extend_from_slice(format!("\"ResponseMetadata\":{metadata}}}}}").as_bytes());
    out
}

/// Writes an error in the protocol of the request.
pub fn render_error(protocol: Protocol, error: &SqsError, request_id: &str) -> HttpResponse {
    let entry = error.kind.entry();
    let fault = if error.kind.is_sender_fault() { "Sender" } else { "Receiver" };
    if protocol == Protocol::Json {
        let body = serde_json::json!({ "__type": error.kind.json_type(), "message": error.message });
        let mut response = answer(protocol, entry.status, request_id, body.to_string().into_bytes());
        response.headers.push(("x-amzn-query-error", format!("{};{fault}", entry.code)));
        return response;
    }
    if error.kind == ErrorKind::UnknownOperation {
        return answer(Protocol::Query, entry.status, request_id, b"<UnknownOperationException/>".to_vec());
    }
    let message = match error.kind {
        ErrorKind::QueueDoesNotExist => "The specified queue does not exist for this wsdl version.",
        _ => &error.message,
    };
    let body = if protocol == Protocol::QueryJson {
        let error = serde_json::json!({ "Code": entry.code, "Message": message, "Type": fault });
        serde_json::json!({ "Error": error, "RequestId": request_id }).to_string()
    } else {
        let mut writer = XmlWriter::default();
        writer.out.push_str(&format!("<?xml version=\"1.0\"?><ErrorResponse xmlns=\"{NAMESPACE}\"><Error>"));
        writer.element("Type", fault);
        writer.element("Code", entry.code);
        writer.element("Message", message);
        writer.out.push_str("<Detail/></Error>");
        writer.element("RequestId", request_id);
        writer.close("ErrorResponse");
        writer.out
    };
    answer(protocol, entry.status, request_id, body.into_bytes())
}

fn answer(protocol: Protocol, status: u16, request_id: &str, body: Vec<u8>) -> HttpResponse {
    let content_type = match protocol {
        Protocol::Json => "application/x-amz-json-1.0",
        Protocol::Query => "text/xml",
        Protocol::QueryJson => "application/json",
    };
    let headers = vec![("x-amzn-requestid", request_id.to_owned()), ("content-type", content_type.to_owned())];
    HttpResponse { status, headers, body }
}
