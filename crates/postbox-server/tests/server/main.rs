//! The statements of AWS's behaviour on the wire, as tables.

mod addresses;
mod answers;
mod attributes;
mod auth;
mod digests;
mod errors;
mod keys;
mod listing;
mod permissions;
mod receiving;
mod recorded;
mod requests;
mod robustness;
mod sending;

use postbox_server::queue::{QueueAddress, QueueAttributes, Scope};
use postbox_server::wire::{HttpRequest, Protocol, Request, parse};
use postbox_server::{ErrorKind, SqsError};
use std::collections::BTreeMap;

/// A queue of the tests.
fn queue(name: &str) -> QueueAddress {
    QueueAddress::new(Scope::new("eu-west-1", "111111111111"), name)
}

/// A map of texts.
fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
}

/// A list of texts.
fn texts(items: &[&str]) -> Vec<String> {
    items.iter().map(|item| item.to_string()).collect()
}

/// The attributes of a queue that was created with these.
fn created(name: &str, attributes: &[(&str, &str)]) -> QueueAttributes {
    QueueAttributes::create(&queue(name), &map(attributes)).unwrap()
}

/// Kind and message of a failure.
fn failure<T: std::fmt::Debug>(result: Result<T, SqsError>) -> (ErrorKind, String) {
    let error = result.unwrap_err();
    (error.kind, error.message.into_owned())
}

/// Parses a JSON request for `action`.
fn json(action: &str, body: &str) -> Result<Request, SqsError> {
    let target = format!("AmazonSQS.{action}");
    let headers = [("x-amz-target", target.as_str()), ("content-type", "application/x-amz-json-1.0")];
    parse(
        Protocol::Json,
        &HttpRequest { method: "POST", path: "/", query: "", headers: &headers, body: body.as_bytes() },
    )
}

/// Parses a form that is posted to the root.
fn form(body: &str) -> Result<Request, SqsError> {
    let headers = [("content-type", "application/x-www-form-urlencoded")];
    parse(
        Protocol::Query,
        &HttpRequest { method: "POST", path: "/", query: "", headers: &headers, body: body.as_bytes() },
    )
}

/// Parses a GET.
fn get(path: &str, query: &str) -> Result<Request, SqsError> {
    parse(Protocol::Query, &HttpRequest { method: "GET", path, query, headers: &[], body: b"" })
}
