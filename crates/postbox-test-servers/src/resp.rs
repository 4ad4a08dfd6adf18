//! Redis's protocol: a client with one connection, and a scanner that finds the ends of frames.

use std::fmt;
use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// A reply of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A simple or a bulk string. Invalid UTF-8 is replaced.
    Text(String),
    /// An integer.
    Integer(i64),
    /// A missing string or array.
    Nil,
    /// An error, with its code as the first word.
    Error(String),
    /// An array.
    Array(Vec<Reply>),
}

/// Formats a reply as one line, and an array as one line for each entry.
impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reply::Text(text) | Reply::Error(text) => f.write_str(text),
            Reply::Integer(number) => number.fmt(f),
            Reply::Nil => f.write_str("(nil)"),
            Reply::Array(entries) => {
                for (index, entry) in entries.iter().enumerate() {
                    write!(f, "{}{entry}", if index == 0 { "" } else { "\n" })?;
                }
                Ok(())
            }
        }
    }
}

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// One RESP2 connection to a server.
pub struct Client {
    stream: BufReader<Box<dyn Stream>>,
}

/// Read timeout of a connection. A server that exceeds it is paused, or its connection is stalled.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

impl Client {
    /// Connects to a port of the loopback address.
    pub fn connect(port: u16) -> io::Result<Client> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(READ_TIMEOUT))?;
        Ok(Client { stream: BufReader::new(Box::new(stream)) })
    }

    /// Connects to a Unix socket.
    pub fn connect_unix(path: &Path) -> io::Result<Client> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(READ_TIMEOUT))?;
        Ok(Client { stream: BufReader::new(Box::new(stream)) })
    }

    /// Sends a command and waits for its reply.
    pub fn call(&mut self, command: &[&str]) -> io::Result<Reply> {
        self.send(command)?;
        self.receive()
    }

    /// Sends a command.
    pub fn send(&mut self, command: &[&str]) -> io::Result<()> {
        let mut bytes = format!("*{}\r\n", command.len()).into_bytes();
        for word in command {
            write!(bytes, "${}\r\n{word}\r\n", word.len())?;
        }
        self.stream.get_mut().write_all(&bytes)
    }

    /// Waits for the next reply.
    pub fn receive(&mut self) -> io::Result<Reply> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end();
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, format!("not a reply: {line:?}"));
        let (kind, rest) = line.split_at_checked(1).ok_or_else(wrong)?;
        let number = || rest.parse::<i64>().map_err(|_| wrong());
        Ok(match kind {
            "+" => Reply::Text(rest.into()),
            "-" => Reply::Error(rest.into()),
            ":" => Reply::Integer(number()?),
            "$" | "*" if number()? < 0 => Reply::Nil,
            "$" => {
                let mut bytes = vec![0; number()? as usize + 2];
                self.stream.read_exact(&mut bytes)?;
                Reply::Text(String::from_utf8_lossy(&bytes[..bytes.len() - 2]).into_owned())
            }
            "*" => Reply::Array((0..number()?).map(|_| self.receive()).collect::<io::Result<_>>()?),
            _ => return Err(wrong()),
        })
    }
}

/// Finds the ends of frames in a stream of bytes, which may arrive in pieces of any length. It reads requests and replies
/// in RESP2 and RESP3.
#[derive(Default)]
pub(crate) struct Scanner {
    /// Number of missing entries of each incomplete array.
    open: Vec<u64>,
    /// Number of missing bytes of a string, including its line end.
    skip: usize,
    /// The start of an incomplete header line.
    line: Vec<u8>,
    push: bool,
}

/// The end of a frame.
pub(crate) struct End {
    /// The offset after the frame, in the bytes that were fed.
    pub(crate) at: usize,
    /// Whether the frame is a push, which is not a reply to a request.
    pub(crate) push: bool,
}

/// The stream is not RESP, for example TLS or a copy of the data for a replica.
pub(crate) struct NotResp;

impl Scanner {
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Result<Vec<End>, NotResp> {
        let mut ends = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            if self.skip > 0 {
                let step = self.skip.min(bytes.len() - at);
                (self.skip, at) = (self.skip - step, at + step);
                if self.skip == 0 {
                    self.close(at, &mut ends);
                }
                continue;
            }
            self.line.push(bytes[at]);
            at += 1;
            if self.line.len() == 1 && !b"+-:_,#($=!*~>%".contains(&self.line[0]) {
                return Err(NotResp);
            }
            if bytes[at - 1] == b'\n' && self.header()? {
                self.close(at, &mut ends);
            }
        }
        Ok(ends)
    }

    /// Whether the last frame is incomplete.
    pub(crate) fn is_inside(&self) -> bool {
        !self.open.is_empty() || self.skip > 0 || !self.line.is_empty()
    }

    /// Parses the header in `line`. Returns whether the header is the whole value.
    fn header(&mut self) -> Result<bool, NotResp> {
        let line = std::mem::take(&mut self.line);
        if self.open.is_empty() {
            self.push = line[0] == b'>';
        }
        let length = || -> Result<i64, NotResp> {
            std::str::from_utf8(&line[1..]).ok().and_then(|text| text.trim_end().parse().ok()).ok_or(NotResp)
        };
        let (string, entries) = match line[0] {
            b'$' | b'=' | b'!' => (length()?, 0),
            b'*' | b'~' | b'>' => (-1, length()?),
            b'%' => (-1, length()? * 2),
            _ => (-1, 0),
        };
        if string >= 0 {
            self.skip = string as usize + 2;
        } else if entries > 0 {
            self.open.push(entries as u64);
        }
        Ok(string < 0 && entries <= 0)
    }

    /// Ends a value at `at`, and all arrays that it completes.
    fn close(&mut self, at: usize, ends: &mut Vec<End>) {
        while let Some(missing) = self.open.last_mut() {
            *missing -= 1;
            if *missing > 0 {
                return;
            }
            self.open.pop();
        }
        ends.push(End { at, push: self.push });
    }
}
