//! A TCP proxy that loses, delays and counts requests and replies between a client and a Redis server.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::ops::Add;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::listener::Listener;
use crate::resp::Scanner;
use crate::supervisor::{eventually, lock};

/// One direction through a [`Proxy`], or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Requests.
    ToServer,
    /// Replies.
    ToClient,
    /// Requests and replies.
    Both,
}

impl Direction {
    fn includes(self, other: Direction) -> bool {
        self == other || self == Direction::Both
    }
}

/// Counters of a [`Proxy`]. They do not include connections of replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Connections that were accepted.
    pub connections: usize,
    /// Connections that are open now.
    pub open: usize,
    /// Requests that were forwarded. Each request of a pipeline counts.
    pub requests: usize,
    /// Number of times that a client sent bytes after it had received bytes. A pipeline is one round trip.
    pub round_trips: usize,
    /// Replies of the server, including dropped ones.
    pub replies: usize,
    /// Replies and requests that were dropped.
    pub dropped: usize,
    /// Bytes that were forwarded to the server.
    pub bytes_to_server: usize,
    /// Bytes that were forwarded to clients.
    pub bytes_to_client: usize,
}

impl Add for Stats {
    type Output = Stats;

    fn add(self, other: Stats) -> Stats {
        Stats {
            connections: self.connections + other.connections,
            open: self.open + other.open,
            requests: self.requests + other.requests,
            round_trips: self.round_trips + other.round_trips,
            replies: self.replies + other.replies,
            dropped: self.dropped + other.dropped,
            bytes_to_server: self.bytes_to_server + other.bytes_to_server,
            bytes_to_client: self.bytes_to_client + other.bytes_to_client,
        }
    }
}

/// A TCP proxy on a free port of the loopback address. By default it forwards all bytes. Faults apply to present and
/// future connections, except for connections of replicas to their primary.
pub struct Proxy {
    listener: Listener,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    target: u16,
    stalled: [bool; 2],
    /// Number of directions of connections that hold bytes because of a stall.
    held: usize,
    delay: [Duration; 2],
    faults: Vec<Fault>,
    /// Counters of connections that have ended.
    past: Stats,
    open_connections: HashMap<usize, Connection>,
    next_connection: usize,
}

/// Drops a request that contains the pattern, or its reply.
struct Fault {
    pattern: Vec<u8>,
    /// Number of matching requests to forward first.
    passing: usize,
    reply: bool,
}

/// A client's connection to the proxy, and the proxy's connection to the server.
struct Connection {
    client: TcpStream,
    server: TcpStream,
    replication: bool,
    closed: bool,
    /// Number of directions that have not ended.
    open_directions: usize,
    stats: Stats,
    /// Number of requests so far that have a reply.
    expected: usize,
    /// The number of the reply to drop. The connection is closed instead.
    drop_reply: Option<usize>,
    /// Whether the server has sent bytes since the client last sent bytes.
    replied: bool,
}

impl Connection {
    fn close(&mut self) {
        self.closed = true;
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }
}

impl Proxy {
    /// Starts a proxy in front of a port of the loopback address.
    pub fn start(target: u16) -> Proxy {
        let state = State {
            target,
            stalled: [false; 2],
            held: 0,
            delay: [Duration::ZERO; 2],
            faults: Vec::new(),
            past: Stats::default(),
            open_connections: HashMap::new(),
            next_connection: 0,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let listener = Listener::open({
            let shared = shared.clone();
            move |client| shared.add_connection(client)
        });
        Proxy { listener, shared }
    }

    /// The port that clients connect to.
    pub fn port(&self) -> u16 {
        self.listener.port()
    }

    /// A `redis://` URL without a password.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port())
    }

    /// Sends new connections to another port.
    pub fn retarget(&self, target: u16) {
        self.change(|state| state.target = target);
    }

    /// Holds all bytes, and the ends of connections, until [`Proxy::resume`].
    pub fn stall(&self, direction: Direction) {
        self.change(|state| {
            for (each, stalled) in DIRECTIONS.into_iter().zip(&mut state.stalled) {
                *stalled |= direction.includes(each);
            }
        });
    }

    /// Waits until a stalled connection holds bytes.
    pub fn wait_until_held(&self) {
        self.wait("bytes that are held", |state| state.held > 0);
    }

    /// Ends [`Proxy::stall`] and forwards the held bytes.
    pub fn resume(&self) {
        self.change(|state| state.stalled = [false; 2]);
    }

    /// Delays all bytes; a delay of zero ends it.
    pub fn delay(&self, direction: Direction, by: Duration) {
        self.change(|state| {
            for (each, delay) in DIRECTIONS.into_iter().zip(&mut state.delay) {
                if direction.includes(each) {
                    *delay = by;
                }
            }
        });
    }

    /// Closes all connections. New ones are accepted.
    pub fn cut(&self) {
        self.listener.accept_pending();
        self.change(|state| {
            state
                .open_connections
                .values_mut()
                .filter(|connection| !connection.replication)
                .for_each(Connection::close);
        });
    }

    /// Stops listening, so that new connections are refused. Open connections stay open.
    pub fn refuse(&self) {
        self.listener.refuse();
    }

    /// Ends [`Proxy::refuse`].
    pub fn accept(&self) {
        self.listener.accept();
    }

    /// Loses one reply. The next request that contains the pattern reaches the server and has its effect. Its reply is
    /// dropped and the connection is closed. Replies to earlier requests on the connection and pushes arrive. Subscribe
    /// commands are ignored, since their replies are pushes.
    pub fn drop_reply(&self, pattern: &str) {
        self.drop_nth_reply(pattern, 0);
    }

    /// Like [`Proxy::drop_reply`], after `passing` other requests that contain the pattern.
    pub fn drop_nth_reply(&self, pattern: &str, passing: usize) {
        self.change(|state| state.faults.push(Fault { pattern: pattern.into(), passing, reply: true }));
    }

    /// Loses the next request that contains the pattern. It does not reach the server, and the connection is closed.
    pub fn drop_request(&self, pattern: &str) {
        self.change(|state| state.faults.push(Fault { pattern: pattern.into(), passing: 0, reply: false }));
    }

    /// Waits until all requested drops have happened.
    pub fn wait_until_dropped(&self) {
        self.wait("a drop", |state| {
            state.faults.is_empty() && state.open_connections.values().all(|l| l.drop_reply.is_none())
        });
    }

    /// The counters so far.
    pub fn stats(&self) -> Stats {
        let state = lock(&self.shared.state);
        let present = state
            .open_connections
            .values()
            .filter(|connection| !connection.replication)
            .map(|connection| connection.stats);
        present.fold(state.past, |sum, stats| sum + stats)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut lock(&self.shared.state));
        self.shared.changed.notify_all();
    }

    fn wait(&self, what: &str, until: impl Fn(&State) -> bool) {
        eventually(what, || if until(&lock(&self.shared.state)) { Ok(()) } else { Err(String::new()) });
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listener.close();
        self.change(|state| state.open_connections.values_mut().for_each(Connection::close));
    }
}

const DIRECTIONS: [Direction; 2] = [Direction::ToServer, Direction::ToClient];

impl Shared {
    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    fn add_connection(self: &Arc<Self>, client: TcpStream) {
        let mut state = lock(&self.state);
        let Ok(server) = TcpStream::connect(("127.0.0.1", state.target)) else { return };
        let number = state.next_connection;
        state.next_connection += 1;
        for stream in [&client, &server] {
            stream.set_nodelay(true).expect("a socket");
        }
        for direction in DIRECTIONS {
            let copy = |stream: &TcpStream| stream.try_clone().expect("a socket");
            let (from, to) = match direction {
                Direction::ToServer => (copy(&client), copy(&server)),
                _ => (copy(&server), copy(&client)),
            };
            let scanner = Some(Scanner::default());
            let pump = Pump { shared: self.clone(), number, direction, from, to, scanner, held: Vec::new() };
            std::thread::spawn(move || pump.run());
        }
        let stats = Stats { connections: 1, open: 1, ..Stats::default() };
        let connection = Connection {
            client,
            server,
            replication: false,
            closed: false,
            open_directions: 2,
            stats,
            expected: 0,
            drop_reply: None,
            replied: true,
        };
        state.open_connections.insert(number, connection);
    }
}

/// Forwards one direction of a connection. It forwards only complete requests, and counts requests and replies. If the
/// bytes are not Redis's protocol, it forwards them unchanged and uncounted.
struct Pump {
    shared: Arc<Shared>,
    number: usize,
    direction: Direction,
    from: TcpStream,
    to: TcpStream,
    scanner: Option<Scanner>,
    /// The start of an incomplete request.
    held: Vec<u8>,
}

/// The connection has ended.
struct Closed;

impl Pump {
    fn run(mut self) {
        let mut chunk = vec![0; 64 * 1024];
        let closed = loop {
            let result = match self.from.read(&mut chunk) {
                Ok(0) => {
                    self.hold();
                    let held = std::mem::take(&mut self.held);
                    // Close this direction only, since the other one may still carry bytes.
                    break self.write(&held).is_err() || self.to.shutdown(Shutdown::Write).is_err();
                }
                Ok(length) => {
                    self.hold();
                    match self.direction {
                        Direction::ToServer => self.requests(&chunk[..length]),
                        _ => self.replies(&chunk[..length]),
                    }
                }
                Err(_) => Err(Closed),
            };
            if result.is_err() {
                break true;
            }
        };
        let mut state = lock(&self.shared.state);
        let connection = state.open_connections.get_mut(&self.number).expect("a connection until both directions end");
        connection.open_directions -= 1;
        if closed {
            connection.close();
        }
        if connection.open_directions == 0 {
            let connection = state.open_connections.remove(&self.number).expect("it was there");
            if !connection.replication {
                state.past = state.past + Stats { open: 0, ..connection.stats };
            }
        }
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Waits while this direction is stalled, then for the delay.
    fn hold(&self) {
        let direction =
            DIRECTIONS.iter().position(|direction| *direction == self.direction).expect("one of the directions");
        let mut state = lock(&self.shared.state);
        loop {
            let connection = &state.open_connections[&self.number];
            if connection.closed || connection.replication {
                return;
            }
            if !state.stalled[direction] {
                break;
            }
            state.held += 1;
            state = self.shared.wait(state);
            state.held -= 1;
        }
        let delay = state.delay[direction];
        drop(state);
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Closed> {
        self.update(|connection, _| match self.direction {
            Direction::ToServer => connection.stats.bytes_to_server += bytes.len(),
            _ => connection.stats.bytes_to_client += bytes.len(),
        });
        self.to.write_all(bytes).map_err(|_| Closed)
    }

    fn update<T>(&self, change: impl FnOnce(&mut Connection, &mut Vec<Fault>) -> T) -> T {
        let state = &mut *lock(&self.shared.state);
        change(
            state.open_connections.get_mut(&self.number).expect("a connection until both directions end"),
            &mut state.faults,
        )
    }

    fn requests(&mut self, bytes: &[u8]) -> Result<(), Closed> {
        let before = self.held.len();
        self.held.extend_from_slice(bytes);
        let held = std::mem::take(&mut self.held);
        let Some(Ok(ends)) = self.scanner.as_mut().map(|scanner| scanner.feed(bytes)) else {
            self.scanner = None;
            return self.write(&held);
        };
        let mut passed = 0;
        for end in ends {
            if self.request(&held[passed..before + end.at]).is_err() {
                self.write(&held[..passed])?;
                return Err(Closed);
            }
            passed = before + end.at;
        }
        self.held = held[passed..].to_vec();
        self.write(&held[..passed])
    }

    /// Counts a request. An error means that it must be dropped.
    fn request(&self, frame: &[u8]) -> Result<(), Closed> {
        let contains = |bytes: &[u8], pattern: &[u8]| bytes.windows(pattern.len()).any(|window| window == pattern);
        // The third line of a request is the command name. It follows the number of words and the length of the name.
        let command = frame.split(|byte| *byte == b'\n').nth(2).unwrap_or_default().to_ascii_uppercase();
        // (P)SUBSCRIBE and the like are answered by any number of pushes.
        let has_reply = !command.ends_with(b"SUBSCRIBE\r");
        self.update(|connection, faults| {
            connection.replication |= command == b"REPLCONF\r";
            connection.stats.round_trips += usize::from(std::mem::take(&mut connection.replied));
            // The first fault that is due applies. Other faults that match count this request.
            let due = faults.iter_mut().position(|fault| {
                let matches = (has_reply || !fault.reply) && contains(frame, &fault.pattern);
                let due = matches && fault.passing == 0;
                fault.passing -= usize::from(matches && !due);
                due
            });
            match due.map(|due| faults.remove(due)) {
                Some(fault) if !fault.reply => {
                    connection.stats.dropped += 1;
                    return Err(Closed);
                }
                Some(_) => connection.drop_reply = connection.drop_reply.or(Some(connection.expected)),
                None => {}
            }
            connection.stats.requests += 1;
            connection.expected += usize::from(has_reply);
            Ok(())
        })
    }

    fn replies(&mut self, bytes: &[u8]) -> Result<(), Closed> {
        // The first bytes may continue a reply whose start was forwarded before, so they are forwarded too.
        let mut inside = self.scanner.as_ref().is_some_and(Scanner::is_inside);
        let Some(Ok(ends)) = self.scanner.as_mut().map(|scanner| scanner.feed(bytes)) else {
            self.scanner = None;
            return self.write(bytes);
        };
        // Bytes after the last end are an incomplete reply, which is counted when it is complete.
        let frames = ends.into_iter().map(|end| (end.at, usize::from(!end.push))).chain([(bytes.len(), 0)]);
        let dropped = self.update(|connection, _| {
            connection.replied = true;
            let mut begin = 0;
            for (end, counts) in frames {
                if begin == bytes.len() {
                    break;
                }
                if !inside && bytes[begin] != b'>' && connection.drop_reply == Some(connection.stats.replies) {
                    connection.drop_reply = None;
                    connection.stats.replies += 1;
                    connection.stats.dropped += 1;
                    return Some(begin);
                }
                inside = false;
                connection.stats.replies += counts;
                begin = end;
            }
            None
        });
        match dropped {
            Some(begin) => {
                self.write(&bytes[..begin])?;
                Err(Closed)
            }
            None => self.write(bytes),
        }
    }
}
