//! A network with faults, between a client and a server.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::ops::Add;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::listener::Listener;
use crate::resp::Scanner;
use crate::supervisor::{eventually, lock};

/// One way through a [`Proxy`], or both.
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
    fn includes(self, way: Direction) -> bool {
        self == way || self == Direction::Both
    }
}

/// What went through a [`Proxy`], replication aside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Connections that were accepted.
    pub connections: usize,
    /// Those of them that are open.
    pub open: usize,
    /// Requests that were passed on; those of a pipeline count each.
    pub requests: usize,
    /// Times that a client sent something after it had got something: a pipeline is one round trip.
    pub round_trips: usize,
    /// Replies that came from the server, with those that were dropped.
    pub replies: usize,
    /// Replies and requests that were dropped.
    pub dropped: usize,
    /// Bytes that were passed on to the server.
    pub bytes_to_server: usize,
    /// Bytes that were passed on to clients.
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

/// A TCP proxy on a free port of the loopback address. It passes on what comes, until it is told otherwise; what it is
/// told holds for present and future connections. Connections by which replicas follow a server are left alone.
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
    delay: [Duration; 2],
    faults: Vec<Fault>,
    /// Of links that have ended.
    past: Stats,
    links: HashMap<usize, Link>,
    next_link: usize,
}

/// Drops a request or its reply.
struct Fault {
    pattern: Vec<u8>,
    /// How many requests that match come before the one.
    passing: usize,
    reply: bool,
}

/// A client's connection and its counterpart.
struct Link {
    client: TcpStream,
    server: TcpStream,
    replication: bool,
    closed: bool,
    /// How many of the two ways have not ended.
    ways: usize,
    stats: Stats,
    /// How many replies are or were to come.
    expected: usize,
    /// The reply with this number is the last thing that comes, and does not arrive.
    drop_reply: Option<usize>,
    /// Whether something came from the server since the client sent something.
    replied: bool,
}

impl Link {
    fn close(&mut self) {
        self.closed = true;
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }
}

impl Proxy {
    /// Before a port of the loopback address.
    pub fn start(target: u16) -> Proxy {
        let state = State {
            target,
            stalled: [false; 2],
            delay: [Duration::ZERO; 2],
            faults: Vec::new(),
            past: Stats::default(),
            links: HashMap::new(),
            next_link: 0,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let listener = Listener::open({
            let shared = shared.clone();
            move |client| shared.link(client)
        });
        Proxy { listener, shared }
    }

    /// Where clients connect.
    pub fn port(&self) -> u16 {
        self.listener.port()
    }

    /// `redis://`, without a password.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port())
    }

    /// New connections go to another port.
    pub fn retarget(&self, target: u16) {
        self.change(|state| state.target = target);
    }

    /// Holds what comes, and the end of connections, until [`Proxy::resume`].
    pub fn stall(&self, direction: Direction) {
        self.change(|state| {
            for (way, stalled) in WAYS.into_iter().zip(&mut state.stalled) {
                *stalled |= direction.includes(way);
            }
        });
    }

    /// Passes on what was held, and what comes.
    pub fn resume(&self) {
        self.change(|state| state.stalled = [false; 2]);
    }

    /// Holds every piece of what comes for a while; zero ends that.
    pub fn delay(&self, direction: Direction, by: Duration) {
        self.change(|state| {
            for (way, delay) in WAYS.into_iter().zip(&mut state.delay) {
                if direction.includes(way) {
                    *delay = by;
                }
            }
        });
    }

    /// Closes all connections. New ones are accepted.
    pub fn cut(&self) {
        self.listener.catch_up();
        self.change(|state| {
            state.links.values_mut().filter(|link| !link.replication).for_each(Link::close);
        });
    }

    /// Listens no more: who connects is refused. Open connections stay.
    pub fn refuse(&self) {
        self.listener.refuse();
    }

    /// Ends [`Proxy::refuse`].
    pub fn accept(&self) {
        self.listener.accept();
    }

    /// Loses one reply: the next request that contains the pattern reaches the server, which acts, but the reply is
    /// thrown away and the connection closed. Replies of earlier requests on the connection arrive, and so does what the
    /// server sends on its own. Subscriptions have no reply in this sense.
    pub fn drop_reply(&self, pattern: &str) {
        self.drop_nth_reply(pattern, 0);
    }

    /// Like [`Proxy::drop_reply`], after as many other requests that contain the pattern.
    pub fn drop_nth_reply(&self, pattern: &str, passing: usize) {
        self.change(|state| state.faults.push(Fault { pattern: pattern.into(), passing, reply: true }));
    }

    /// Loses the next request that contains the pattern: it does not reach the server, and the connection is closed.
    pub fn drop_request(&self, pattern: &str) {
        self.change(|state| state.faults.push(Fault { pattern: pattern.into(), passing: 0, reply: false }));
    }

    /// Waits until every reply and request that was to be dropped is.
    pub fn wait_until_dropped(&self) {
        self.wait("a drop", |state| state.faults.is_empty() && state.links.values().all(|l| l.drop_reply.is_none()));
    }

    /// What went through so far.
    pub fn stats(&self) -> Stats {
        let state = lock(&self.shared.state);
        let present = state.links.values().filter(|link| !link.replication).map(|link| link.stats);
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
        self.change(|state| state.links.values_mut().for_each(Link::close));
    }
}

const WAYS: [Direction; 2] = [Direction::ToServer, Direction::ToClient];

impl Shared {
    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    fn link(self: &Arc<Self>, client: TcpStream) {
        let mut state = lock(&self.state);
        let Ok(server) = TcpStream::connect(("127.0.0.1", state.target)) else { return };
        let number = state.next_link;
        state.next_link += 1;
        for stream in [&client, &server] {
            stream.set_nodelay(true).expect("a socket");
        }
        for way in WAYS {
            let copy = |stream: &TcpStream| stream.try_clone().expect("a socket");
            let (from, to) = match way {
                Direction::ToServer => (copy(&client), copy(&server)),
                _ => (copy(&server), copy(&client)),
            };
            let scanner = Some(Scanner::default());
            let pump = Pump { shared: self.clone(), number, way, from, to, scanner, held: Vec::new() };
            std::thread::spawn(move || pump.run());
        }
        let stats = Stats { connections: 1, open: 1, ..Stats::default() };
        let link = Link {
            client,
            server,
            replication: false,
            closed: false,
            ways: 2,
            stats,
            expected: 0,
            drop_reply: None,
            replied: true,
        };
        state.links.insert(number, link);
    }
}

/// One way of a link. It takes requests as a whole, and counts them and their replies, as long as it understands them.
struct Pump {
    shared: Arc<Shared>,
    number: usize,
    way: Direction,
    from: TcpStream,
    to: TcpStream,
    scanner: Option<Scanner>,
    /// The beginning of a request whose end has not come.
    held: Vec<u8>,
}

/// The link is at its end.
struct Closed;

impl Pump {
    fn run(mut self) {
        let mut chunk = vec![0; 64 * 1024];
        let closed = loop {
            let result = match self.from.read(&mut chunk) {
                Ok(0) => {
                    self.hold();
                    let held = std::mem::take(&mut self.held);
                    // The other way may have something to say still.
                    break self.write(&held).is_err() || self.to.shutdown(Shutdown::Write).is_err();
                }
                Ok(length) => {
                    self.hold();
                    match self.way {
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
        let link = state.links.get_mut(&self.number).expect("a link until both ways end");
        link.ways -= 1;
        if closed {
            link.close();
        }
        if link.ways == 0 {
            let link = state.links.remove(&self.number).expect("it was there");
            if !link.replication {
                state.past = state.past + Stats { open: 0, ..link.stats };
            }
        }
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Waits as long as this way is stalled, then for the delay.
    fn hold(&self) {
        let way = WAYS.iter().position(|way| *way == self.way).expect("one of the ways");
        let mut state = lock(&self.shared.state);
        loop {
            let link = &state.links[&self.number];
            if link.closed || link.replication {
                return;
            }
            if !state.stalled[way] {
                break;
            }
            state = self.shared.wait(state);
        }
        let delay = state.delay[way];
        drop(state);
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Closed> {
        self.link(|link, _| match self.way {
            Direction::ToServer => link.stats.bytes_to_server += bytes.len(),
            _ => link.stats.bytes_to_client += bytes.len(),
        });
        self.to.write_all(bytes).map_err(|_| Closed)
    }

    fn link<T>(&self, change: impl FnOnce(&mut Link, &mut Vec<Fault>) -> T) -> T {
        let state = &mut *lock(&self.shared.state);
        change(state.links.get_mut(&self.number).expect("a link until both ways end"), &mut state.faults)
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

    /// Counts a request, and decides whether it passes.
    fn request(&self, frame: &[u8]) -> Result<(), Closed> {
        let contains = |bytes: &[u8], pattern: &[u8]| bytes.windows(pattern.len()).any(|window| window == pattern);
        // Behind the number of words and the length of the first.
        let command = frame.split(|byte| *byte == b'\n').nth(2).unwrap_or_default().to_ascii_uppercase();
        // What follows it are pushes, of any number.
        let has_reply = !command.ends_with(b"SUBSCRIBE\r");
        self.link(|link, faults| {
            link.replication |= command == b"REPLCONF\r";
            link.stats.round_trips += usize::from(std::mem::take(&mut link.replied));
            // A fault that waits for a later request counts this one; the first that is due takes it.
            let due = faults.iter_mut().position(|fault| {
                let matches = (has_reply || !fault.reply) && contains(frame, &fault.pattern);
                let due = matches && fault.passing == 0;
                fault.passing -= usize::from(matches && !due);
                due
            });
            match due.map(|due| faults.remove(due)) {
                Some(fault) if !fault.reply => {
                    link.stats.dropped += 1;
                    return Err(Closed);
                }
                Some(_) => link.drop_reply = link.drop_reply.or(Some(link.expected)),
                None => {}
            }
            link.stats.requests += 1;
            link.expected += usize::from(has_reply);
            Ok(())
        })
    }

    fn replies(&mut self, bytes: &[u8]) -> Result<(), Closed> {
        // What continues here began before, and was let through.
        let mut inside = self.scanner.as_ref().is_some_and(Scanner::is_inside);
        let Some(Ok(ends)) = self.scanner.as_mut().map(|scanner| scanner.feed(bytes)) else {
            self.scanner = None;
            return self.write(bytes);
        };
        // What comes behind the last end is incomplete, and counts when it ends.
        let frames = ends.into_iter().map(|end| (end.at, usize::from(!end.push))).chain([(bytes.len(), 0)]);
        let dropped = self.link(|link, _| {
            link.replied = true;
            let mut begin = 0;
            for (end, counts) in frames {
                if begin == bytes.len() {
                    break;
                }
                if !inside && bytes[begin] != b'>' && link.drop_reply == Some(link.stats.replies) {
                    link.drop_reply = None;
                    link.stats.replies += 1;
                    link.stats.dropped += 1;
                    return Some(begin);
                }
                inside = false;
                link.stats.replies += counts;
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
