//! Redis's protocol: a client of one connection, and where the frames of a stream end.

use std::fmt;
use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// What a server answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A simple or a bulk string; what is not UTF-8 in it is replaced.
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

/// As a line; the entries of an array as one line each.
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

/// One connection to a server, with RESP2.
pub struct Client {
    stream: BufReader<Box<dyn Stream>>,
}

/// A reply that has not come by then does not come: the server is paused or the connection stalled.
const PATIENCE: Duration = Duration::from_secs(10);

impl Client {
    /// To a port of the loopback address.
    pub fn connect(port: u16) -> io::Result<Client> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Client { stream: BufReader::new(Box::new(stream)) })
    }

    /// To a Unix socket.
    pub fn connect_unix(path: &Path) -> io::Result<Client> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
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

/// Finds where the frames of a stream end, however it is cut into pieces. Requests and replies, RESP2 and RESP3.
#[derive(Default)]
pub(crate) struct Scanner {
    /// How many entries each open array still lacks.
    open: Vec<u64>,
    /// Bytes of a string that are still to come, with the line end.
    skip: usize,
    /// A header whose end has not come.
    line: Vec<u8>,
    push: bool,
}

/// The end of a frame.
pub(crate) struct End {
    /// The offset behind it, in the bytes that were fed.
    pub(crate) at: usize,
    /// Not a reply to anything: sent by the server on its own.
    pub(crate) push: bool,
}

/// The stream is something else: TLS, or a copy of the data for a replica.
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

    /// Whether a frame has begun and not ended.
    pub(crate) fn is_inside(&self) -> bool {
        !self.open.is_empty() || self.skip > 0 || !self.line.is_empty()
    }

    /// Reads the header in `line`; whether that was the whole value.
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

    /// A value ends here, and with it every array that it completes.
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
