//! An HTTP proxy that applies faults to requests between an AWS client and a server.

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

/// A request that reached an [`HttpProxy`].
#[derive(Clone, Debug)]
pub struct HttpRequest {
    /// The operation, such as `SendMessageBatch`, or the request line if no header names an operation.
    pub operation: String,
    /// Names and values of the headers.
    pub headers: Vec<(String, String)>,
    /// The body.
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

    /// Whether this is the operation or its batch form: `SendMessage` matches `SendMessageBatch` too.
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

/// What an [`HttpProxy`] does with a request.
pub enum Fate {
    /// Forward the request and the reply.
    Pass,
    /// Send this reply to the client. The request does not reach the server.
    Answer {
        /// The HTTP status.
        status: u16,
        /// Names and values of the headers, without the content length.
        headers: Vec<(String, String)>,
        /// The body.
        body: Vec<u8>,
    },
    /// Close the connection. The request does not reach the server.
    DropRequest,
    /// Forward the request, and close the connection instead of forwarding the reply.
    DropReply,
    /// Forward the request after a delay.
    Delay(Duration),
    /// Hold the request until [`HttpProxy::clear_faults`]. It is lost if the client closes the connection before.
    Stall,
    /// Forward the request, and hold the reply until [`HttpProxy::clear_faults`]. The reply is lost if the client closes the
    /// connection before.
    StallReply,
    /// Forward the request with this body.
    Rewrite(Vec<u8>),
    /// Forward the request, and replace the body of the reply by the result of this function.
    RewriteReply(Box<dyn FnOnce(Vec<u8>) -> Vec<u8> + Send>),
}

impl Fate {
    /// The error by which SQS throttles requests.
    pub fn throttled() -> Fate {
        Fate::error(400, "com.amazonaws.sqs#", "RequestThrottled", "Sender", "Request is throttled.")
    }

    /// The error by which DynamoDB throttles requests.
    pub fn table_throttled() -> Fate {
        Fate::error(400, "com.amazon.coral.availability#", "ThrottlingException", "Sender", "Rate exceeded")
    }

    /// The error of a service that is unavailable for a time.
    pub fn unavailable() -> Fate {
        Fate::error(503, "", "ServiceUnavailable", "Receiver", "Service is unable to handle request.")
    }

    /// The error of a failure within the service.
    pub fn internal() -> Fate {
        Fate::error(500, "", "InternalFailure", "Receiver", "We encountered an internal error. Please try again.")
    }

    /// An error in the JSON protocol, with the header in which SQS repeats the error code of its older query protocol.
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

/// An HTTP proxy on a free port of the loopback address, in front of an [`AwsServer`](crate::AwsServer). It forwards all
/// requests, unless the function given to [`HttpProxy::on`] returns another [`Fate`]. A connection to the server is kept
/// open until the client closes its connection.
///
/// ```
/// use postbox_test_servers::{Fate, HttpProxy, Ministack};
///
/// let server = Ministack::start();
/// let proxy = HttpProxy::start(server.port());
/// // The first send reaches the server, and its reply is lost.
/// let mut first = true;
/// proxy.on(move |request| match request.operation.as_str() {
///     "SendMessage" if std::mem::take(&mut first) => Fate::DropReply,
///     _ => Fate::Pass,
/// });
/// # let call = |operation: &str, body: &str| proxy.try_call(&format!("AmazonSQS.{operation}"), body);
/// # let url = format!("{}/000000000000/jobs", proxy.endpoint());
/// # let message = format!(r#"{{"QueueUrl":"{url}","MessageBody":"hello"}}"#);
/// # call("CreateQueue", r#"{"QueueName":"jobs"}"#).unwrap();
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
    /// The operations of all requests.
    log: Vec<String>,
    stalled: bool,
    /// Number of calls of [`HttpProxy::clear_faults`].
    clears: usize,
    held: usize,
    connections: HashMap<usize, Connection>,
    next_connection: usize,
}

/// A client's connection to the proxy, and the proxy's connection to the server if there is one.
struct Connection {
    client: TcpStream,
    server: Option<TcpStream>,
    closed: bool,
    /// The client has closed the connection. Requests that it sent before are still forwarded.
    client_closed: bool,
    /// The server has received a whole request and has not replied.
    awaiting_reply: bool,
}

impl Connection {
    fn is_open(&self) -> bool {
        !self.closed && !self.client_closed
    }

    /// Closes the connection if the client has closed its side and the server has the whole request.
    fn close_if_abandoned(&mut self) {
        if self.client_closed && self.awaiting_reply {
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
    /// Starts a proxy in front of a port of the loopback address.
    pub fn start(target: u16) -> HttpProxy {
        let state = State {
            target,
            hook: None,
            log: Vec::new(),
            stalled: false,
            clears: 0,
            held: 0,
            connections: HashMap::new(),
            next_connection: 0,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let listener = Listener::open({
            let shared = shared.clone();
            move |client| shared.add_connection(client)
        });
        HttpProxy { listener, shared }
    }

    /// The port that clients connect to.
    pub fn port(&self) -> u16 {
        self.listener.port()
    }

    /// The URL that clients connect to.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port())
    }

    /// Sends all later requests to another port.
    pub fn retarget(&self, target: u16) {
        self.change(|state| {
            state.target = target;
            // Requests that are under way lose their replies.
            state.connections.values().flat_map(|connection| &connection.server).for_each(|server| {
                let _ = server.shutdown(Shutdown::Both);
            });
        });
    }

    /// Calls `hook` for every later request, one at a time. It replaces the previous hook.
    pub fn on(&self, hook: impl FnMut(&HttpRequest) -> Fate + Send + 'static) {
        self.change(|state| state.hook = Some(Arc::new(Mutex::new(hook))));
    }

    /// Removes the hook, and forwards everything that [`Fate::Stall`] and [`Fate::StallReply`] hold.
    pub fn clear_faults(&self) {
        self.change(|state| {
            state.hook = None;
            state.clears += 1;
        });
    }

    /// Holds all requests and replies, until it is called with `false`.
    pub fn stall(&self, stalled: bool) {
        self.change(|state| state.stalled = stalled);
    }

    /// Closes all connections. New ones are accepted.
    pub fn cut(&self) {
        self.listener.accept_pending();
        self.change(|state| state.connections.values_mut().for_each(Connection::close));
    }

    /// Stops listening, so that new connections are refused, until it is called with `false`. Open connections stay open.
    pub fn refuse(&self, refused: bool) {
        if refused { self.listener.refuse() } else { self.listener.accept() }
    }

    /// Calls an operation through the proxy, like [`AwsServer::try_call`](crate::AwsServer::try_call).
    pub fn try_call(&self, target: &str, body: &str) -> io::Result<(u16, String)> {
        call(self.port(), target, body)
    }

    /// The operations of all requests in order, including those that were not forwarded.
    pub fn requests(&self) -> Vec<String> {
        lock(&self.shared.state).log.clone()
    }

    /// Number of requests for an operation [or its batch form](HttpRequest::is).
    pub fn count(&self, operation: &str) -> usize {
        lock(&self.shared.state).log.iter().filter(|other| is(other, operation)).count()
    }

    /// Clears the list of requests.
    pub fn reset_counts(&self) {
        self.change(|state| state.log.clear());
    }

    /// Waits for `count` requests for an operation.
    pub fn wait_for(&self, operation: &str, count: usize) {
        eventually(&format!("{count} times {operation}"), || {
            if self.count(operation) >= count { Ok(()) } else { Err(format!("requests: {:?}", self.requests())) }
        });
    }

    /// Waits until `count` requests and replies are held by [`Fate::Stall`], [`Fate::StallReply`], [`Fate::Delay`] or
    /// [`HttpProxy::stall`].
    pub fn wait_until_held(&self, count: usize) {
        eventually(&format!("{count} held requests and replies"), || match lock(&self.shared.state).held {
            held if held >= count => Ok(()),
            held => Err(format!("{held} are held")),
        });
    }

    /// Number of open connections.
    pub fn open(&self) -> usize {
        lock(&self.shared.state).connections.values().filter(|connection| connection.is_open()).count()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut lock(&self.shared.state));
        self.shared.changed.notify_all();
    }
}

impl Drop for HttpProxy {
    fn drop(&mut self) {
        self.listener.close();
        self.change(|state| state.connections.values_mut().for_each(Connection::close));
    }
}

/// The connection has ended.
struct Closed;

impl Shared {
    fn add_connection(self: &Arc<Self>, client: TcpStream) {
        client.set_nodelay(true).expect("a socket");
        let copy = || client.try_clone().expect("a socket");
        let (sender, requests) = mpsc::channel();
        let mut reader = BufReader::new(copy());
        let mut state = lock(&self.state);
        let number = state.next_connection;
        state.next_connection += 1;
        let forwarder = Forwarder { shared: self.clone(), number, client: copy(), server: None };
        state.connections.insert(
            number,
            Connection { client, server: None, closed: false, client_closed: false, awaiting_reply: false },
        );
        drop(state);
        // This thread keeps reading while a request is under way, to notice when the client closes the connection.
        std::thread::spawn({
            let shared = self.clone();
            move || {
                while let Ok(Some(request)) = Message::read(&mut reader) {
                    if sender.send(request).is_err() {
                        break;
                    }
                }
                shared.change(number, |connection| {
                    connection.client_closed = true;
                    connection.close_if_abandoned();
                });
            }
        });
        std::thread::spawn(move || forwarder.run(&requests));
    }

    fn change(&self, number: usize, change: impl FnOnce(&mut Connection)) {
        if let Some(connection) = lock(&self.state).connections.get_mut(&number) {
            change(connection);
        }
        self.changed.notify_all();
    }

    /// Waits while the condition holds, for at most `limit`. Fails when the connection ends.
    fn hold(&self, number: usize, limit: Option<Duration>, condition: impl Fn(&State) -> bool) -> Result<(), Closed> {
        let end = limit.map(|limit| Instant::now() + limit);
        let mut state = lock(&self.state);
        let mut held = false;
        let result = loop {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) || !condition(&state) {
                break Ok(());
            }
            if !state.connections.get(&number).is_some_and(Connection::is_open) {
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

/// Forwards the requests of one client to the server, and the replies to the client.
struct Forwarder {
    shared: Arc<Shared>,
    number: usize,
    client: TcpStream,
    server: Option<BufReader<TcpStream>>,
}

impl Forwarder {
    fn run(mut self, requests: &Receiver<Message>) {
        for request in requests {
            let last = !request.keeps_alive();
            if self.forward(request).is_err() || last {
                break;
            }
        }
    }

    fn forward(&mut self, mut message: Message) -> Result<(), Closed> {
        let request = HttpRequest::new(&message);
        let (hook, clears) = {
            let mut state = lock(&self.shared.state);
            state.log.push(request.operation.clone());
            (state.hook.clone(), state.clears)
        };
        let fate = hook.map_or(Fate::Pass, |hook| lock(&hook)(&request));
        let until_cleared = |state: &State| state.clears == clears;
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
                self.shared.hold(self.number, None, until_cleared)?;
                self.pass(message)?
            }
            Fate::StallReply => {
                let reply = self.pass(message)?;
                self.shared.hold(self.number, None, until_cleared)?;
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

    /// Forwards a request and returns the reply, without the headers that close a connection.
    fn pass(&mut self, mut request: Message) -> Result<Message, Closed> {
        self.hold_while_stalled()?;
        request.headers.remove("connection");
        let server = self.server()?;
        request.write(server.get_mut()).map_err(|_| Closed)?;
        self.set_awaiting_reply(true);
        let server = self.server.as_mut().ok_or(Closed)?;
        let mut reply = loop {
            let reply = Message::read(server).ok().flatten().ok_or(Closed)?;
            if reply.status().ok_or(Closed)? >= 200 {
                break reply;
            }
        };
        self.set_awaiting_reply(false);
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

    fn set_awaiting_reply(&self, awaiting_reply: bool) {
        self.shared.change(self.number, |connection| {
            connection.awaiting_reply = awaiting_reply;
            connection.close_if_abandoned();
        });
    }

    /// The connection to the server. Opens a new one if the server has closed the last one.
    fn server(&mut self) -> Result<&mut BufReader<TcpStream>, Closed> {
        let kept = self.server.take().filter(|server| is_quiet(server.get_ref()));
        let server = match kept {
            Some(server) => server,
            None => {
                let mut state = lock(&self.shared.state);
                let stream = TcpStream::connect(("127.0.0.1", state.target)).map_err(|_| Closed)?;
                stream.set_nodelay(true).expect("a socket");
                let connection =
                    state.connections.get_mut(&self.number).filter(|connection| !connection.closed).ok_or(Closed)?;
                connection.server = Some(stream.try_clone().expect("a socket"));
                BufReader::new(stream)
            }
        };
        Ok(self.server.insert(server))
    }
}

/// Closes the connection on drop, since the hook may panic.
impl Drop for Forwarder {
    fn drop(&mut self) {
        self.shared.change(self.number, Connection::close);
        lock(&self.shared.state).connections.remove(&self.number);
    }
}

/// Whether a connection is open and has no bytes to read.
fn is_quiet(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).expect("a socket");
    let quiet = matches!(stream.peek(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock);
    stream.set_nonblocking(false).expect("a socket");
    quiet
}
