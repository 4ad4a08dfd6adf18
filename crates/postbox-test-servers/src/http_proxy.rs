//! A network with faults, between a client of AWS and a server.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, BufReader};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::aws::call;
use crate::http::{Headers, Message};
use crate::listener::Listener;
use crate::supervisor::{eventually, lock};

/// A request that came to an [`HttpProxy`].
#[derive(Clone, Debug)]
pub struct HttpRequest {
    /// The operation, such as `SendMessageBatch`; the request line if no header names it.
    pub operation: String,
    /// Names and values.
    pub headers: Vec<(String, String)>,
    /// As it came.
    pub body: Vec<u8>,
}

impl HttpRequest {
    fn new(message: &Message) -> HttpRequest {
        let target = message.headers.get("x-amz-target").unwrap_or(&message.line);
        let operation = match target.split_once('.') {
            Some((_, operation)) if message.headers.get("x-amz-target").is_some() => operation,
            _ => target,
        };
        HttpRequest { operation: operation.into(), headers: message.headers.0.clone(), body: message.body.clone() }
    }

    /// Whether it asks for an operation, of one entry or of several: `SendMessage` is `SendMessageBatch` too.
    pub fn is(&self, operation: &str) -> bool {
        is(&self.operation, operation)
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

fn is(asked: &str, operation: &str) -> bool {
    asked.strip_prefix(operation).is_some_and(|rest| rest.is_empty() || rest == "Batch")
}

/// What becomes of a request.
pub enum Fate {
    /// It passes, and so does its reply.
    Pass,
    /// This is the reply; the server hears of nothing.
    Answer {
        /// The HTTP status.
        status: u16,
        /// Names and values, besides the length.
        headers: Vec<(String, String)>,
        /// The body.
        body: Vec<u8>,
    },
    /// The connection is closed; the server hears of nothing.
    DropRequest,
    /// The server acts, then the connection is closed instead of a reply.
    DropReply,
    /// It passes later.
    Delay(Duration),
    /// It passes after [`HttpProxy::calm`], or goes with its connection.
    Stall,
    /// The server acts, and the reply passes after [`HttpProxy::calm`], or goes with its connection.
    StallReply,
    /// It passes with another body.
    Rewrite(Vec<u8>),
    /// It passes; the body of its reply is what this makes of it.
    RewriteReply(Box<dyn FnOnce(Vec<u8>) -> Vec<u8> + Send>),
}

impl Fate {
    /// SQS does not take as many requests.
    pub fn throttled() -> Fate {
        Fate::error(400, "com.amazonaws.sqs#", "RequestThrottled", "Sender", "Request is throttled.")
    }

    /// DynamoDB does not take as many requests.
    pub fn table_throttled() -> Fate {
        Fate::error(400, "com.amazon.coral.availability#", "ThrottlingException", "Sender", "Rate exceeded")
    }

    /// The service is not there for a while.
    pub fn unavailable() -> Fate {
        Fate::error(503, "", "ServiceUnavailable", "Receiver", "Service is unable to handle request.")
    }

    /// The service failed.
    pub fn internal() -> Fate {
        Fate::error(500, "", "InternalFailure", "Receiver", "We encountered an internal error. Please try again.")
    }

    /// As the JSON protocol has it, with the header by which SQS repeats the code of its older protocol.
    fn error(status: u16, space: &str, code: &str, fault: &str, message: &str) -> Fate {
        let headers = [
            ("content-type", "application/x-amz-json-1.0".into()),
            ("x-amzn-query-error", format!("{code};{fault}")),
            ("x-amzn-requestid", "00000000-0000-0000-0000-000000000000".into()),
        ];
        let headers = headers.map(|(name, value)| (name.to_owned(), value)).into();
        Fate::Answer { status, headers, body: format!(r#"{{"__type":"{space}{code}","message":"{message}"}}"#).into() }
    }
}

impl fmt::Debug for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fate::Pass => f.write_str("Pass"),
            Fate::Answer { status, body, .. } => write!(f, "Answer({status}, {})", String::from_utf8_lossy(body)),
            Fate::DropRequest => f.write_str("DropRequest"),
            Fate::DropReply => f.write_str("DropReply"),
            Fate::Delay(by) => write!(f, "Delay({by:?})"),
            Fate::Stall => f.write_str("Stall"),
            Fate::StallReply => f.write_str("StallReply"),
            Fate::Rewrite(body) => write!(f, "Rewrite({})", String::from_utf8_lossy(body)),
            Fate::RewriteReply(_) => f.write_str("RewriteReply"),
        }
    }
}

/// An HTTP proxy on a free port of the loopback address, before an [`AwsServer`](crate::AwsServer). It passes on what
/// comes, unless the function given to [`HttpProxy::on`] decides otherwise. Connections are kept open, and end with those
/// of the client.
///
/// ```
/// use postbox_test_servers::{Fate, HttpProxy, Ministack};
///
/// let server = Ministack::start();
/// let proxy = HttpProxy::start(server.port());
/// // The first send is done, and its reply lost.
/// let mut first = true;
/// proxy.on(move |request| match request.operation.as_str() {
///     "SendMessage" if std::mem::take(&mut first) => Fate::DropReply,
///     _ => Fate::Pass,
/// });
/// # let call = |operation: &str, body: &str| proxy.try_call(&format!("AmazonSQS.{operation}"), body);
/// # let url = format!("{}/000000000000/letters", proxy.endpoint());
/// # let message = format!(r#"{{"QueueUrl":"{url}","MessageBody":"hello"}}"#);
/// # call("CreateQueue", r#"{"QueueName":"letters"}"#).unwrap();
/// assert!(call("SendMessage", &message).is_err());
/// assert!(call("SendMessage", &message).is_ok());
/// assert_eq!(proxy.count("SendMessage"), 2);
/// ```
pub struct HttpProxy {
    listener: Listener,
    shared: Arc<Shared>,
}

type Hook = dyn FnMut(&HttpRequest) -> Fate + Send;

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    target: u16,
    hook: Option<Arc<Mutex<Hook>>>,
    /// The operations that came.
    log: Vec<String>,
    stalled: bool,
    /// How often it was calmed.
    calms: usize,
    held: usize,
    links: HashMap<usize, Link>,
    next_link: usize,
}

/// A client's connection and, while there is one, its counterpart.
struct Link {
    client: TcpStream,
    server: Option<TcpStream>,
    closed: bool,
    /// The client has closed it. What it asked for before still reaches the server.
    left: bool,
    /// The server has the whole request.
    asked: bool,
}

impl Link {
    fn is_open(&self) -> bool {
        !self.closed && !self.left
    }

    /// Nobody waits for the reply any more.
    fn leave(&mut self) {
        if self.left && self.asked {
            self.close();
        }
    }

    fn close(&mut self) {
        self.closed = true;
        for stream in self.server.iter().chain([&self.client]) {
            // It may be closed already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl HttpProxy {
    /// Before a port of the loopback address.
    pub fn start(target: u16) -> HttpProxy {
        let state = State {
            target,
            hook: None,
            log: Vec::new(),
            stalled: false,
            calms: 0,
            held: 0,
            links: HashMap::new(),
            next_link: 0,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let listener = Listener::open({
            let shared = shared.clone();
            move |client| shared.link(client)
        });
        HttpProxy { listener, shared }
    }

    /// Where clients connect.
    pub fn port(&self) -> u16 {
        self.listener.port()
    }

    /// `http://127.0.0.1:` and the port.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port())
    }

    /// Requests go to another port from now on.
    pub fn retarget(&self, target: u16) {
        self.change(|state| {
            state.target = target;
            // Those who wait for a reply lose it.
            state.links.values().flat_map(|link| &link.server).for_each(|server| {
                let _ = server.shutdown(Shutdown::Both);
            });
        });
    }

    /// Decides about every request from now on, one after the other, instead of what decided before.
    pub fn on(&self, hook: impl FnMut(&HttpRequest) -> Fate + Send + 'static) {
        self.change(|state| state.hook = Some(Arc::new(Mutex::new(hook))));
    }

    /// Everything passes from now on, and so does what [`Fate::Stall`] and [`Fate::StallReply`] hold.
    pub fn calm(&self) {
        self.change(|state| {
            state.hook = None;
            state.calms += 1;
        });
    }

    /// Holds all requests and replies that come, until it is told not to.
    pub fn stall(&self, stalled: bool) {
        self.change(|state| state.stalled = stalled);
    }

    /// Closes all connections. New ones are accepted.
    pub fn cut(&self) {
        self.listener.catch_up();
        self.change(|state| state.links.values_mut().for_each(Link::close));
    }

    /// Listens no more, so that who connects is refused, until it is told not to. Open connections stay.
    pub fn refuse(&self, refused: bool) {
        if refused { self.listener.refuse() } else { self.listener.accept() }
    }

    /// Calls an operation through the proxy, as [`AwsServer::try_call`](crate::AwsServer::try_call) does without.
    pub fn try_call(&self, target: &str, body: &str) -> io::Result<(u16, String)> {
        call(self.port(), target, body)
    }

    /// The operations that came, in their order, also those that did not pass.
    pub fn requests(&self) -> Vec<String> {
        lock(&self.shared.state).log.clone()
    }

    /// How often an operation came, [of one entry or of several](HttpRequest::is).
    pub fn count(&self, operation: &str) -> usize {
        lock(&self.shared.state).log.iter().filter(|other| is(other, operation)).count()
    }

    /// Forgets what came.
    pub fn reset_counts(&self) {
        self.change(|state| state.log.clear());
    }

    /// Waits until an operation has come as often.
    pub fn wait_for(&self, operation: &str, count: usize) {
        eventually(&format!("{count} times {operation}"), || {
            if self.count(operation) >= count { Ok(()) } else { Err(format!("{:?} came", self.requests())) }
        });
    }

    /// Waits until as many requests and replies are held, by [`Fate::Stall`], [`Fate::StallReply`], [`Fate::Delay`] or
    /// [`HttpProxy::stall`].
    pub fn wait_until_held(&self, count: usize) {
        eventually(&format!("{count} that are held"), || match lock(&self.shared.state).held {
            held if held >= count => Ok(()),
            held => Err(format!("{held} are")),
        });
    }

    /// How many connections are open.
    pub fn open(&self) -> usize {
        lock(&self.shared.state).links.values().filter(|link| link.is_open()).count()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut lock(&self.shared.state));
        self.shared.changed.notify_all();
    }
}

impl Drop for HttpProxy {
    fn drop(&mut self) {
        self.listener.close();
        self.change(|state| state.links.values_mut().for_each(Link::close));
    }
}

/// The link is at its end.
struct Closed;

impl Shared {
    fn link(self: &Arc<Self>, client: TcpStream) {
        client.set_nodelay(true).expect("a socket");
        let copy = || client.try_clone().expect("a socket");
        let (requests, coming) = mpsc::channel();
        let mut reader = BufReader::new(copy());
        let mut state = lock(&self.state);
        let number = state.next_link;
        state.next_link += 1;
        let carrier = Carrier { shared: self.clone(), number, client: copy(), server: None };
        state.links.insert(number, Link { client, server: None, closed: false, left: false, asked: false });
        drop(state);
        // Reads on while a request is under way, so that a client that closes its connection is noticed.
        std::thread::spawn({
            let shared = self.clone();
            move || {
                while let Ok(Some(request)) = Message::read(&mut reader) {
                    if requests.send(request).is_err() {
                        break;
                    }
                }
                shared.change(number, |link| {
                    link.left = true;
                    link.leave();
                });
            }
        });
        std::thread::spawn(move || carrier.run(&coming));
    }

    fn change(&self, number: usize, change: impl FnOnce(&mut Link)) {
        if let Some(link) = lock(&self.state).links.get_mut(&number) {
            change(link);
        }
        self.changed.notify_all();
    }

    /// Waits while a link is open and the condition holds, and at most for a while.
    fn hold(&self, number: usize, limit: Option<Duration>, condition: impl Fn(&State) -> bool) -> Result<(), Closed> {
        let end = limit.map(|limit| Instant::now() + limit);
        let mut state = lock(&self.state);
        let mut held = false;
        let result = loop {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) || !condition(&state) {
                break Ok(());
            }
            if !state.links.get(&number).is_some_and(Link::is_open) {
                break Err(Closed);
            }
            state.held += usize::from(!std::mem::replace(&mut held, true));
            state = self.wait(state, left);
        };
        state.held -= usize::from(held);
        result
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, limit: Option<Duration>) -> MutexGuard<'a, State> {
        match limit {
            Some(limit) => self.changed.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0,
            None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
        }
    }
}

/// Carries the requests of one client to the server, and the replies back.
struct Carrier {
    shared: Arc<Shared>,
    number: usize,
    client: TcpStream,
    server: Option<BufReader<TcpStream>>,
}

impl Carrier {
    fn run(mut self, requests: &Receiver<Message>) {
        for request in requests {
            let last = !request.keeps_alive();
            if self.carry(request).is_err() || last {
                break;
            }
        }
    }

    fn carry(&mut self, mut message: Message) -> Result<(), Closed> {
        let request = HttpRequest::new(&message);
        let (hook, calms) = {
            let mut state = lock(&self.shared.state);
            state.log.push(request.operation.clone());
            (state.hook.clone(), state.calms)
        };
        let fate = hook.map_or(Fate::Pass, |hook| lock(&hook)(&request));
        let until_calm = |state: &State| state.calms == calms;
        let reply = match fate {
            Fate::Pass => self.pass(message)?,
            Fate::Answer { status, headers, body } => {
                self.hold_while_stalled()?;
                Message { line: format!("HTTP/1.1 {status} Answer"), headers: Headers(headers), body }
            }
            Fate::DropRequest => return Err(Closed),
            Fate::DropReply => {
                self.pass(message)?;
                return Err(Closed);
            }
            Fate::Delay(by) => {
                self.shared.hold(self.number, Some(by), |_| true)?;
                self.pass(message)?
            }
            Fate::Stall => {
                self.shared.hold(self.number, None, until_calm)?;
                self.pass(message)?
            }
            Fate::StallReply => {
                let reply = self.pass(message)?;
                self.shared.hold(self.number, None, until_calm)?;
                reply
            }
            Fate::Rewrite(body) => {
                message.body = body;
                self.pass(message)?
            }
            Fate::RewriteReply(rewrite) => {
                let mut reply = self.pass(message)?;
                reply.body = rewrite(reply.body);
                reply
            }
        };
        self.hold_while_stalled()?;
        reply.write(&mut self.client).map_err(|_| Closed)
    }

    fn hold_while_stalled(&self) -> Result<(), Closed> {
        self.shared.hold(self.number, None, |state| state.stalled)
    }

    /// The reply of the server, as one of a connection that is kept.
    fn pass(&mut self, mut request: Message) -> Result<Message, Closed> {
        self.hold_while_stalled()?;
        request.headers.remove("connection");
        let server = self.server()?;
        request.write(server.get_mut()).map_err(|_| Closed)?;
        self.asked(true);
        let server = self.server.as_mut().ok_or(Closed)?;
        let mut reply = loop {
            let reply = Message::read(server).ok().flatten().ok_or(Closed)?;
            if reply.status().ok_or(Closed)? >= 200 {
                break reply;
            }
        };
        self.asked(false);
        if !reply.keeps_alive() {
            self.server = None;
        }
        for name in ["connection", "keep-alive"] {
            reply.headers.remove(name);
        }
        if let Some(rest) = reply.line.strip_prefix("HTTP/1.0") {
            reply.line = format!("HTTP/1.1{rest}");
        }
        Ok(reply)
    }

    fn asked(&self, asked: bool) {
        self.shared.change(self.number, |link| {
            link.asked = asked;
            link.leave();
        });
    }

    /// The connection to the server, a new one if there is none that the server keeps.
    fn server(&mut self) -> Result<&mut BufReader<TcpStream>, Closed> {
        let kept = self.server.take().filter(|server| is_quiet(server.get_ref()));
        let server = match kept {
            Some(server) => server,
            None => {
                let mut state = lock(&self.shared.state);
                let stream = TcpStream::connect(("127.0.0.1", state.target)).map_err(|_| Closed)?;
                stream.set_nodelay(true).expect("a socket");
                let link = state.links.get_mut(&self.number).filter(|link| !link.closed).ok_or(Closed)?;
                link.server = Some(stream.try_clone().expect("a socket"));
                BufReader::new(stream)
            }
        };
        Ok(self.server.insert(server))
    }
}

/// However it ends: a function that decides may panic.
impl Drop for Carrier {
    fn drop(&mut self) {
        self.shared.change(self.number, Link::close);
        lock(&self.shared.state).links.remove(&self.number);
    }
}

/// Whether a connection is open and has nothing to say.
fn is_quiet(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).expect("a socket");
    let quiet = matches!(stream.peek(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock);
    stream.set_nonblocking(false).expect("a socket");
    quiet
}
