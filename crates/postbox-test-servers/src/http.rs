//! The subset of HTTP/1.1 that AWS's JSON interfaces need.

use std::io::{self, BufRead, Read as _, Write};

/// A request or a reply.
#[derive(Clone, Debug, Default)]
pub(crate) struct Message {
    /// The request line or the status line.
    pub(crate) line: String,
    pub(crate) headers: Headers,
    pub(crate) body: Vec<u8>,
}

/// Names and values. Names are compared without regard to case.
#[derive(Clone, Debug, Default)]
pub(crate) struct Headers(pub(crate) Vec<(String, String)>);

impl Headers {
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(other, _)| other.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    fn has(&self, name: &str, word: &str) -> bool {
        self.get(name).is_some_and(|value| value.split(',').any(|part| part.trim().eq_ignore_ascii_case(word)))
    }

    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.remove(name);
        self.0.push((name.into(), value.into()));
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.0.retain(|(other, _)| !other.eq_ignore_ascii_case(name));
    }
}

fn invalid(reason: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

/// Reads a line without its line end. Returns `None` at the end of the stream.
fn line(from: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut bytes = Vec::new();
    from.read_until(b'\n', &mut bytes)?;
    if bytes.is_empty() {
        return Ok(None);
    }
    if bytes.pop() != Some(b'\n') {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if bytes.last() == Some(&b'\r') {
        bytes.pop();
    }
    String::from_utf8(bytes).map(Some).map_err(|error| invalid(error.to_string()))
}

fn some_line(from: &mut impl BufRead) -> io::Result<String> {
    line(from)?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

fn exactly(from: &mut impl BufRead, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(length as u64).read_to_end(&mut bytes)?;
    if bytes.len() == length { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

fn chunks(from: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let size = some_line(from)?;
        let size = size.split(';').next().unwrap_or_default().trim();
        let length = usize::from_str_radix(size, 16).map_err(|_| invalid(format!("a chunk of length {size:?}")))?;
        if length == 0 {
            while !some_line(from)?.is_empty() {}
            return Ok(body);
        }
        body.extend(exactly(from, length)?);
        some_line(from)?;
    }
}

impl Message {
    /// Reads the next message. Returns `None` at the end of the connection. A chunked body is decoded. Without a length,
    /// the body of a reply is the rest of the connection, and the body of a request is empty.
    pub(crate) fn read(from: &mut impl BufRead) -> io::Result<Option<Message>> {
        let Some(first) = line(from)? else { return Ok(None) };
        let mut message = Message { line: first, ..Message::default() };
        loop {
            let header = some_line(from)?;
            if header.is_empty() {
                break;
            }
            let (name, value) = header.split_once(':').ok_or_else(|| invalid(format!("the header {header:?}")))?;
            message.headers.0.push((name.into(), value.trim().into()));
        }
        message.body = if message.headers.has("transfer-encoding", "chunked") {
            chunks(from)?
        } else if let Some(length) = message.headers.get("content-length") {
            exactly(from, length.parse().map_err(|_| invalid(format!("a body of length {length:?}")))?)?
        } else if message.status().is_some_and(|status| status >= 200 && status != 204 && status != 304) {
            let mut rest = Vec::new();
            from.read_to_end(&mut rest)?;
            message.headers.set("connection", "close");
            rest
        } else {
            Vec::new()
        };
        message.headers.remove("transfer-encoding");
        Ok(Some(message))
    }

    /// Writes the message with a `content-length` header.
    pub(crate) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let mut bytes = format!("{}\r\n", self.line).into_bytes();
        for (name, value) in &self.headers.0 {
            if !name.eq_ignore_ascii_case("content-length") {
                write!(bytes, "{name}: {value}\r\n")?;
            }
        }
        write!(bytes, "content-length: {}\r\n\r\n", self.body.len())?;
        bytes.extend_from_slice(&self.body);
        to.write_all(&bytes)
    }

    /// The status code, if this is a reply.
    pub(crate) fn status(&self) -> Option<u16> {
        self.line.strip_prefix("HTTP/")?.split(' ').nth(1)?.parse().ok()
    }

    /// Whether the connection stays open for another message.
    pub(crate) fn keeps_alive(&self) -> bool {
        if self.line.starts_with("HTTP/1.0") || self.line.ends_with("HTTP/1.0") {
            self.headers.has("connection", "keep-alive")
        } else {
            !self.headers.has("connection", "close")
        }
    }
}
