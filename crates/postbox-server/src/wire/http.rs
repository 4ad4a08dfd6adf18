//! An HTTP request and its answer, with the parts that SQS needs.
//!
//! The server above it builds the request from what it read. With HTTP/2 it must add the header
//! `Host`, because signatures cover it.

/// An HTTP request, borrowed from the server that read it.
#[derive(Clone, Copy, Debug)]
pub struct HttpRequest<'a> {
    /// `GET` or `POST`.
    pub method: &'a str,
    /// The path, still percent-encoded.
    pub path: &'a str,
    /// The query string without its question mark, still percent-encoded.
    pub query: &'a str,
    /// Names in any case and values, in the order of the request.
    pub headers: &'a [(&'a str, &'a str)],
    /// The body.
    pub body: &'a [u8],
}

impl<'a> HttpRequest<'a> {
    /// The value of the first header of this name.
    pub fn header(&self, name: &str) -> Option<&'a str> {
        self.headers.iter().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| *value)
    }

    /// The trace id that the request carries, which becomes the `AWSTraceHeader` of its messages.
    pub fn trace_header(&self) -> Option<&'a str> {
        self.header("x-amzn-trace-id").map(str::trim).filter(|value| !value.is_empty())
    }
}

/// An answer for the server to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpResponse {
    /// The status.
    pub status: u16,
    /// Names in lower case, and values.
    pub headers: Vec<(&'static str, String)>,
    /// The body.
    pub body: Vec<u8>,
}

impl HttpResponse {
    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| *found == name).map(|(_, value)| value.as_str())
    }
}
