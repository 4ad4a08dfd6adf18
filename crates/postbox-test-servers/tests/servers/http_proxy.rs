//! Each [`Fate`] of a request, and the other faults of the HTTP proxy.

use std::io::{BufRead as _, BufReader, Error, ErrorKind, Read as _, Result, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use postbox_test_servers::{Fate, HttpProxy, Ministack};

/// Reads a message whose body has a length. Fails at the end of the connection.
fn read(from: &mut BufReader<TcpStream>) -> Result<(String, String)> {
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if from.read_line(&mut line)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().map_err(Error::other)?;
        }
        if line == "\r\n" {
            break;
        }
        head += &line;
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body)?;
    Ok((head, String::from_utf8(body).map_err(Error::other)?))
}

/// A server that answers with the body of the request, and records all requests.
struct Echo {
    port: u16,
    seen: Arc<Mutex<Vec<String>>>,
    /// One entry for each accepted connection.
    connections: mpsc::Receiver<()>,
}

impl Echo {
    fn start() -> Echo {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (seen, (taken, connections)) = (Arc::new(Mutex::new(Vec::new())), mpsc::channel());
        let all = seen.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map(Result::unwrap) {
                let seen = all.clone();
                let _ = taken.send(());
                std::thread::spawn(move || {
                    let mut reader = BufReader::new(stream.try_clone().unwrap());
                    while let Ok((_, body)) = read(&mut reader) {
                        seen.lock().unwrap().push(body.clone());
                        let reply = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
                        if (&stream).write_all(reply.as_bytes()).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Echo { port, seen, connections }
    }

    fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }
}

/// A client with one connection.
struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(proxy: &HttpProxy) -> Client {
        Client(BufReader::new(TcpStream::connect(("127.0.0.1", proxy.port())).unwrap()))
    }

    fn send(&mut self, operation: &str, body: &str) -> Result<()> {
        let head = format!("POST / HTTP/1.1\r\nHost: a\r\nX-Amz-Target: AmazonSQS.{operation}\r\n");
        self.0.get_mut().write_all(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes())
    }

    fn receive(&mut self) -> Result<(u16, String)> {
        let (head, body) = read(&mut self.0)?;
        Ok((head.split(' ').nth(1).unwrap().parse().unwrap(), body))
    }

    fn call(&mut self, operation: &str, body: &str) -> Result<(u16, String)> {
        self.send(operation, body)?;
        self.receive()
    }
}

fn start() -> (Echo, HttpProxy, Client) {
    let echo = Echo::start();
    let proxy = HttpProxy::start(echo.port);
    let client = Client::connect(&proxy);
    (echo, proxy, client)
}

fn ok(body: &str) -> (u16, String) {
    (200, body.into())
}

#[test]
fn requests_are_forwarded_and_counted_on_kept_connections() {
    let (echo, proxy, mut client) = start();
    assert_eq!(proxy.endpoint(), format!("http://127.0.0.1:{}", proxy.port()));
    let long = "x".repeat(1_000_000);
    for (operation, body) in [("SendMessage", "a"), ("ReceiveMessage", ""), ("SendMessage", &long)] {
        assert_eq!(client.call(operation, body).unwrap(), ok(body));
    }
    assert_eq!(proxy.requests(), ["SendMessage", "ReceiveMessage", "SendMessage"]);
    assert_eq!((proxy.count("SendMessage"), proxy.count("Send"), proxy.open()), (2, 0, 1));
    proxy.reset_counts();
    assert!(proxy.requests().is_empty());
    assert_eq!(echo.connections.try_iter().count(), 1);
    drop(client);
    while proxy.open() > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn a_real_server_is_reached() {
    let server = Ministack::start();
    let proxy = HttpProxy::start(server.port());
    let (status, answer) = proxy.try_call("AmazonSQS.CreateQueue", r#"{"QueueName":"letters"}"#).unwrap();
    // Queue URLs of the server contain the proxy's port.
    assert!(status == 200 && answer.contains(&proxy.endpoint()), "{status} {answer}");
    assert!(server.call("AmazonSQS.ListQueues", "{}").contains("letters"));
}

#[test]
fn error_answers_equal_those_of_aws() {
    let (echo, proxy, mut client) = start();
    let fates = [
        (Fate::throttled as fn() -> Fate, 400, "com.amazonaws.sqs#RequestThrottled", "RequestThrottled;Sender"),
        (Fate::table_throttled, 400, "#ThrottlingException", "ThrottlingException;Sender"),
        (Fate::unavailable, 503, "ServiceUnavailable", "ServiceUnavailable;Receiver"),
        (Fate::internal, 500, "InternalFailure", "InternalFailure;Receiver"),
    ];
    for (fate, status, kind, header) in fates {
        proxy.on(move |_| fate());
        client.send("SendMessage", "a").unwrap();
        let (head, body) = read(&mut client.0).unwrap();
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
        assert!(head.contains(&format!("x-amzn-query-error: {header}\r\n")), "{head}");
        assert!(body.contains(&format!("{kind}\"")), "{body}");
    }
    assert!(echo.seen().is_empty());
    proxy.clear_faults();
    assert_eq!(client.call("SendMessage", "b").unwrap(), ok("b"));
    assert_eq!(proxy.count("SendMessage"), 5);
}

#[test]
fn the_hook_sees_requests_and_has_state() {
    let (_echo, proxy, mut client) = start();
    let mut number = 0;
    proxy.on(move |request| {
        number += 1;
        assert!(request.headers.iter().any(|(name, value)| name == "Host" && value == "a"));
        Fate::Rewrite(format!("{number} {} {}", request.operation, request.text()).into())
    });
    assert_eq!(client.call("SendMessage", "a").unwrap(), ok("1 SendMessage a"));
    assert_eq!(client.call("DeleteMessage", "b").unwrap(), ok("2 DeleteMessage b"));
    proxy.on(|_| Fate::RewriteReply(Box::new(|body| [body.as_slice(), b"!"].concat())));
    assert_eq!(client.call("SendMessage", "c").unwrap(), ok("c!"));
}

#[test]
fn a_dropped_request_has_no_effect_and_a_dropped_reply_has() {
    let (echo, proxy, mut client) = start();
    proxy.on(|request| if request.text() == "lost" { Fate::DropRequest } else { Fate::DropReply });
    assert!(client.call("SendMessage", "lost").is_err());
    assert!(echo.seen().is_empty());
    assert!(Client::connect(&proxy).call("SendMessage", "done").is_err());
    assert_eq!(echo.seen(), ["done"]);
    proxy.clear_faults();
    assert_eq!(Client::connect(&proxy).call("SendMessage", "a").unwrap(), ok("a"));
}

#[test]
fn a_stalled_request_is_forwarded_after_clear_faults() {
    let (echo, proxy, mut client) = start();
    proxy.on(|request| match request.operation.as_str() {
        "Before" => Fate::Stall,
        "After" => Fate::StallReply,
        _ => Fate::Pass,
    });
    let mut other = Client::connect(&proxy);
    client.send("Before", "a").unwrap();
    other.send("After", "b").unwrap();
    proxy.wait_for("Before", 1);
    proxy.wait_until_held(2);
    assert_eq!(echo.seen(), ["b"]);
    // Requests on other connections are forwarded.
    assert_eq!(Client::connect(&proxy).call("Else", "c").unwrap(), ok("c"));
    proxy.clear_faults();
    assert_eq!((client.receive().unwrap(), other.receive().unwrap()), (ok("a"), ok("b")));
    assert_eq!(echo.seen(), ["b", "c", "a"]);

    // A held request is lost with its connection.
    proxy.on(|_| Fate::Stall);
    client.send("Before", "d").unwrap();
    proxy.wait_until_held(1);
    proxy.cut();
    assert!(client.receive().is_err() && other.call("Before", "e").is_err());
    proxy.clear_faults();
    assert_eq!(Client::connect(&proxy).call("Else", "f").unwrap(), ok("f"));
    assert_eq!(echo.seen(), ["b", "c", "a", "f"]);
}

#[test]
fn a_stalled_proxy_holds_everything() {
    let (echo, proxy, mut client) = start();
    client.call("SendMessage", "a").unwrap();
    proxy.stall(true);
    client.send("SendMessage", "b").unwrap();
    proxy.wait_until_held(1);
    assert_eq!(echo.seen(), ["a"]);
    proxy.stall(false);
    assert_eq!(client.receive().unwrap(), ok("b"));
}

#[test]
fn a_delay_ends_early_when_its_connection_closes() {
    let (echo, proxy, mut client) = start();
    let delay = Duration::from_millis(50);
    proxy.on(move |_| Fate::Delay(delay));
    let start = Instant::now();
    assert_eq!(client.call("SendMessage", "a").unwrap(), ok("a"));
    assert!(start.elapsed() >= delay);
    proxy.on(|_| Fate::Delay(Duration::from_secs(1000)));
    client.send("SendMessage", "b").unwrap();
    proxy.wait_until_held(1);
    proxy.cut();
    assert!(client.receive().is_err());
    assert_eq!(echo.seen(), ["a"]);
}

#[test]
fn connections_are_cut_and_refused() {
    let (_echo, proxy, mut client) = start();
    client.call("SendMessage", "a").unwrap();
    proxy.cut();
    assert_eq!(proxy.open(), 0);
    assert!(client.call("SendMessage", "b").is_err());
    // This also closes a connection that the proxy has not accepted yet.
    let mut client = Client::connect(&proxy);
    proxy.cut();
    assert!(client.call("SendMessage", "b").is_err());
    let mut client = Client::connect(&proxy);
    proxy.refuse(true);
    let refused = TcpStream::connect(("127.0.0.1", proxy.port())).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    assert_eq!(client.call("SendMessage", "b").unwrap(), ok("b"));
    proxy.refuse(false);
    assert_eq!(Client::connect(&proxy).call("SendMessage", "c").unwrap(), ok("c"));
}

/// Between fork and exec, a new process holds copies of all sockets.
#[test]
fn a_port_is_closed_while_processes_are_started() {
    let (_echo, proxy, _client) = start();
    // The thread ends when this is dropped, also after a failure.
    let running = Arc::new(());
    let watch = Arc::downgrade(&running);
    std::thread::spawn(move || {
        while watch.strong_count() > 0 {
            Command::new("true").process_group(0).status().unwrap();
        }
    });
    for round in 0..50 {
        proxy.refuse(true);
        assert!(TcpStream::connect(("127.0.0.1", proxy.port())).is_err(), "open in round {round}");
        proxy.refuse(false);
    }
}

/// A server that never answers, behind a proxy.
fn silent_server() -> (TcpListener, HttpProxy) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = HttpProxy::start(listener.local_addr().unwrap().port());
    (listener, proxy)
}

#[test]
fn a_cut_and_a_closed_client_close_the_server_connection() {
    let (listener, proxy) = silent_server();
    for leave in [false, true] {
        let mut client = Client::connect(&proxy);
        client.send("ReceiveMessage", "wait").unwrap();
        let mut server = BufReader::new(listener.accept().unwrap().0);
        assert_eq!(read(&mut server).unwrap().1, "wait");
        if leave {
            drop(client);
        } else {
            proxy.cut();
            assert!(client.receive().is_err());
        }
        assert_eq!(read(&mut server).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }
}

#[test]
fn requests_of_a_closed_client_are_forwarded() {
    let (echo, proxy, mut client) = start();
    // The hook returns only after the client has closed its connection.
    let (gone, wait) = mpsc::channel::<()>();
    proxy.on(move |_| {
        wait.recv().unwrap();
        Fate::Pass
    });
    client.send("SendMessage", "a").unwrap();
    proxy.wait_for("SendMessage", 1);
    drop(client);
    while proxy.open() > 0 {
        std::thread::yield_now();
    }
    gone.send(()).unwrap();
    while echo.seen() != ["a"] {
        std::thread::yield_now();
    }
}

#[test]
fn a_killed_server_closes_the_connection() {
    let (listener, proxy) = silent_server();
    drop(listener);
    assert!(Client::connect(&proxy).call("SendMessage", "a").is_err());
    let (first, second) = (Echo::start(), Echo::start());
    proxy.retarget(first.port);
    let mut client = Client::connect(&proxy);
    assert_eq!(client.call("SendMessage", "b").unwrap(), ok("b"));
    // The client's connection stays open.
    proxy.retarget(second.port);
    assert_eq!(client.call("SendMessage", "c").unwrap(), ok("c"));
    assert_eq!((first.seen(), second.seen()), (vec!["b".into()], vec!["c".into()]));
}

#[test]
fn a_panicking_hook_closes_the_connection() {
    let (_echo, proxy, mut client) = start();
    proxy.on(|_| panic!("as the test wants it"));
    assert!(client.call("SendMessage", "a").is_err());
    proxy.on(|_| Fate::Pass);
    assert_eq!(Client::connect(&proxy).call("SendMessage", "b").unwrap(), ok("b"));
}

/// The server sends raw replies, on one connection or on several.
#[test]
fn bodies_come_in_every_form() {
    let (listener, proxy) = silent_server();
    let mut client = Client::connect(&proxy);
    // A chunked request and a chunked reply.
    let head = "POST /path HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
    client
        .0
        .get_mut()
        .write_all(format!("{head}3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\nT: v\r\n\r\n").as_bytes())
        .unwrap();
    let mut server = BufReader::new(listener.accept().unwrap().0);
    let (head, body) = read(&mut server).unwrap();
    assert!(head.starts_with("POST /path HTTP/1.1\r\n") && !head.contains("chunked"), "{head}");
    assert_eq!(body, "abc0123456789");
    assert_eq!(proxy.requests(), ["POST /path HTTP/1.1"]);
    let reply =
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nde\r\n0\r\n\r\n";
    server.get_mut().write_all(reply.as_bytes()).unwrap();
    assert_eq!(client.receive().unwrap(), ok("de"));
    // On the same connection, a reply whose body ends with the connection.
    client.send("SendMessage", "f").unwrap();
    assert_eq!(read(&mut server).unwrap().1, "f");
    server.get_mut().write_all(b"HTTP/1.0 200 OK\r\n\r\ngh").unwrap();
    drop(server);
    assert_eq!(client.receive().unwrap(), ok("gh"));
    // On a new connection, a reply with a length and `connection: close`.
    client.send("SendMessage", "i").unwrap();
    let mut server = BufReader::new(listener.accept().unwrap().0);
    assert_eq!(read(&mut server).unwrap().1, "i");
    let reply = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\nj";
    server.get_mut().write_all(reply.as_bytes()).unwrap();
    assert_eq!(client.receive().unwrap(), ok("j"));
    // An incomplete reply is not forwarded.
    client.send("SendMessage", "k").unwrap();
    let mut server = BufReader::new(listener.accept().unwrap().0);
    assert_eq!(read(&mut server).unwrap().1, "k");
    server.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nl").unwrap();
    drop(server);
    assert!(client.receive().is_err());
}

#[test]
fn many_clients_at_once() {
    let (_echo, proxy, _client) = start();
    std::thread::scope(|scope| {
        for thread in 0..64 {
            let proxy = &proxy;
            scope.spawn(move || {
                let mut client = Client::connect(proxy);
                for number in 0..20 {
                    let body = format!("{thread} {number}");
                    assert_eq!(client.call("SendMessage", &body).unwrap(), ok(&body));
                }
            });
        }
    });
    assert_eq!(proxy.count("SendMessage"), 64 * 20);
}
