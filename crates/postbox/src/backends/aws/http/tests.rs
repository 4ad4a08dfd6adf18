use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream as Socket};
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;
use std::thread;

use tokio::runtime::{Builder, Runtime};

use super::*;

/// What a server does with a request.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Deed {
    Answers,
    /// In chunks, which come one by one.
    AnswersInChunks,
    /// And says that it closes the connection.
    AnswersForTheLastTime,
    /// And then closes the connection.
    AnswersAndLeaves,
    Leaves,
    /// Until the client leaves.
    Waits,
    /// The same in the middle of its answer.
    AnswersInPart,
}

/// A server that repeats what it is told, and how often somebody connected to it.
struct Server {
    address: String,
    connections: Arc<AtomicUsize>,
    /// Of those who wait: that they came, and that they left.
    news: mpsc::Receiver<()>,
}

impl Server {
    fn start(deed: Deed) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let connections = Arc::new(AtomicUsize::new(0));
        let (sender, news) = mpsc::channel();
        let count = Arc::clone(&connections);
        thread::spawn(move || {
            for socket in listener.incoming() {
                count.fetch_add(1, Ordering::SeqCst);
                let sender = sender.clone();
                thread::spawn(move || serve(socket.unwrap(), deed, &sender));
            }
        });
        Server { address, connections, news }
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    fn request(&self, body: &'static str) -> Request<SdkBody> {
        let uri = format!("http://{}/queue?of=letters", self.address);
        Request::post(uri).header("content-length", body.len()).body(SdkBody::from(body)).unwrap()
    }

    async fn ask(&self, body: &'static str) -> Result<Response<Bytes>, ConnectorError> {
        PATIENT.ask(self.request(body)).await
    }

    fn route(&self) -> Route {
        address(&mut self.request("")).unwrap()
    }
}

const PATIENT: Asking = Asking { to_connect: None, to_answer: None };

fn serve(socket: Socket, deed: Deed, news: &mpsc::Sender<()>) {
    socket.set_nodelay(true).unwrap();
    let mut reader = BufReader::new(socket.try_clone().unwrap());
    let mut writer = socket;
    loop {
        let (mut head, mut length) = (String::new(), 0);
        loop {
            let start = head.len();
            if reader.read_line(&mut head).unwrap_or(0) == 0 {
                return;
            }
            let line = head[start..].trim().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let text = format!("{head}{}", String::from_utf8(body).unwrap());
        let whole = |more: &str| format!("HTTP/1.1 200 OK\r\n{more}content-length: {}\r\n\r\n{text}", text.len());
        match deed {
            Deed::Answers => writer.write_all(whole("").as_bytes()).unwrap(),
            Deed::AnswersInChunks => {
                writer.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").unwrap();
                for part in text.as_bytes().chunks(30).chain([&b""[..]]) {
                    thread::yield_now();
                    writer.write_all(format!("{:x}\r\n", part.len()).as_bytes()).unwrap();
                    writer.write_all(&[part, b"\r\n"].concat()).unwrap();
                }
            }
            Deed::AnswersForTheLastTime => writer.write_all(whole("connection: close\r\n").as_bytes()).unwrap(),
            Deed::AnswersAndLeaves => return writer.write_all(whole("").as_bytes()).unwrap(),
            Deed::Leaves => return,
            Deed::Waits | Deed::AnswersInPart => {
                if deed == Deed::AnswersInPart {
                    writer.write_all(&whole("").as_bytes()[..whole("").len() - 1]).unwrap();
                }
                news.send(()).unwrap();
                assert_eq!(reader.read(&mut [0; 1]).unwrap_or(0), 0, "nothing more is said");
                return news.send(()).unwrap();
            }
        }
    }
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

#[test]
fn a_connection_is_used_again() {
    for deed in [Deed::Answers, Deed::AnswersInChunks] {
        let server = Server::start(deed);
        runtime().block_on(async {
            for body in ["one", "two", "", "four"] {
                let answer = server.ask(body).await.unwrap();
                let text = String::from_utf8(answer.into_body().into()).unwrap();
                assert!(text.starts_with("POST /queue?of=letters HTTP/1.1\r\n"), "{text}");
                assert!(text.contains(&format!("\r\nhost: {}\r\n", server.address)), "{text}");
                assert!(text.ends_with(&format!("\r\n\r\n{body}")), "{text}");
            }
        });
        assert_eq!(server.connections(), 1, "{deed:?}");
    }
}

#[test]
fn those_who_ask_at_once_have_connections_of_their_own() {
    let server = Server::start(Deed::Answers);
    runtime().block_on(async {
        for _ in 0..3 {
            let answers = futures_util::future::join_all((0..5).map(|_| server.ask("x"))).await;
            assert!(answers.iter().all(Result::is_ok));
        }
    });
    assert!(server.connections() <= 5, "{}", server.connections());
}

#[test]
fn a_usual_port_is_not_said() {
    let runtime = runtime();
    let _here = runtime.enter();
    for (uri, host) in [
        ("https://sqs.eu-west-1.amazonaws.com/", "sqs.eu-west-1.amazonaws.com"),
        ("https://sqs.eu-west-1.amazonaws.com:443/", "sqs.eu-west-1.amazonaws.com"),
        ("http://localhost:80/", "localhost"),
        ("https://localhost:80", "localhost:80"),
        ("http://[::1]:4566/", "[::1]:4566"),
    ] {
        let mut request = Request::get(uri).body(SdkBody::empty()).unwrap();
        address(&mut request).unwrap();
        assert_eq!((request.uri().to_string().as_str(), &request.headers()[HOST]), ("/", &host.parse().unwrap()));
    }
    let mut request = Request::get("/nowhere").body(SdkBody::empty()).unwrap();
    assert!(address(&mut request).is_err());
}

#[test]
fn a_connection_that_was_closed_is_not_used() {
    for deed in [Deed::AnswersAndLeaves, Deed::AnswersForTheLastTime] {
        let server = Server::start(deed);
        runtime().block_on(async {
            for many in 1..4 {
                server.ask("x").await.unwrap();
                assert_eq!(server.connections(), many);
                // The news is on its way.
                while let Some(line) = take(&server.route()).await {
                    assert_eq!(deed, Deed::AnswersAndLeaves, "one that will be closed is not kept");
                    put(line);
                    tokio::task::yield_now().await;
                }
            }
        });
    }
}

#[test]
fn no_answer_is_an_error_that_passes() {
    let server = Server::start(Deed::Leaves);
    let error = runtime().block_on(server.ask("x")).unwrap_err();
    assert!(error.is_io() || error.as_other() == Some(ErrorKind::TransientError), "{error:?}");
    assert_eq!(server.connections(), 1, "it may have done what it was told, and is not told again");
}

#[test]
fn nobody_is_waited_for_too_long() {
    let server = Server::start(Deed::Waits);
    runtime().block_on(async {
        let to_answer = Some(Duration::from_millis(10));
        // A connection may be there at once, even in no time.
        for to_connect in [None, Some(Duration::ZERO)] {
            let error = Asking { to_connect, to_answer }.ask(server.request("x")).await.unwrap_err();
            assert!(error.is_timeout() && format!("{error:?}").contains(&server.address), "{error:?}");
        }
    });
    drop(server);
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let request = Request::get(format!("http://{closed}/")).body(SdkBody::empty()).unwrap();
    assert!(runtime().block_on(PATIENT.ask(request)).unwrap_err().is_io(), "nobody is there");
}

#[test]
fn who_leaves_closes_his_connection() {
    let server = Server::start(Deed::Waits);
    let runtime = runtime();
    let asked = runtime.spawn(PATIENT.ask(server.request("x")));
    server.news.recv().unwrap();
    asked.abort();
    server.news.recv().unwrap();
    assert_eq!(server.connections(), 1);
}

#[test]
fn a_connection_stays_on_its_runtime() {
    let server = Server::start(Deed::Answers);
    let (first, second) = (runtime(), runtime());
    for _ in 0..3 {
        first.block_on(server.ask("x")).unwrap();
        second.block_on(server.ask("x")).unwrap();
    }
    assert_eq!(server.connections(), 2);
    let kept = |of: &Runtime| {
        let of = of.handle().id();
        lock(&IDLERS).lines.iter().filter(|(_, line)| line.route.runtime == of).count()
    };
    assert_eq!((kept(&first), kept(&second)), (1, 1));
    let ended = first.handle().clone();
    drop(first);
    assert!(lock(&IDLERS).lines.iter().all(|(_, line)| line.route.runtime != ended.id()), "it is closed");
    assert!(!lock(&IDLERS).kept.contains(&ended.id()));
    second.block_on(server.ask("x")).unwrap();
    assert_eq!(server.connections(), 2);
    runtime().block_on(server.ask("x")).unwrap();
    assert_eq!(server.connections(), 3);
}

/// A runtime ends while somebody connects, and he goes on elsewhere.
#[test]
fn a_connection_that_was_begun_on_another_runtime_is_given_up() {
    let server = Server::start(Deed::Answers);
    let (first, second) = (runtime(), runtime());
    let mut asking = Box::pin(server.ask("x"));
    let mut begin = || asking.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(first.block_on(async { begin() }).is_pending(), "it takes more than a look");
    let error = second.block_on(asking).unwrap_err();
    assert!(error.is_io(), "{error:?}");
    second.block_on(server.ask("x")).unwrap();
}

#[test]
fn an_answer_that_does_not_end_is_too_late() {
    let server = Server::start(Deed::AnswersInPart);
    runtime().block_on(async {
        let hasty = Asking { to_answer: Some(Duration::from_millis(50)), ..PATIENT };
        let error = hasty.ask(server.request("x")).await.unwrap_err();
        assert!(error.is_timeout(), "{error:?}");
        assert!(take(&server.route()).await.is_none(), "its connection is closed");
    });
}

#[test]
fn no_password_is_in_what_is_said_of_a_place() {
    let mut request = Request::post("http://user:s3cret@example.org:81/").body(SdkBody::empty()).unwrap();
    runtime().block_on(async {
        assert_eq!(address(&mut request).unwrap().shown(), "example.org:81");
    });
}

#[test]
fn a_connection_of_which_the_sdk_says_so_is_not_used_again() {
    let server = Server::start(Deed::Answers);
    runtime().block_on(async {
        let capture = CaptureSmithyConnection::new();
        let mut request = server.request("x");
        request.extensions_mut().insert(capture.clone());
        PATIENT.ask(request).await.unwrap();
        server.ask("x").await.unwrap();
        assert_eq!(server.connections(), 1);
        capture.get().unwrap().poison();
        server.ask("x").await.unwrap();
        assert_eq!(server.connections(), 2);
    });
}

#[test]
fn a_connection_that_nobody_used_for_long_is_closed() {
    let server = Server::start(Deed::Answers);
    runtime().block_on(async {
        server.ask("x").await.unwrap();
        let route = server.route();
        let Some(long_ago) = Instant::now().checked_sub(IDLE) else { return };
        for (since, line) in &mut lock(&IDLERS).lines {
            if line.route == route {
                *since = long_ago;
            }
        }
        server.ask("x").await.unwrap();
    });
    assert_eq!(server.connections(), 2);
}

/// A waker that counts.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_bell_calls_nobody_who_is_there() {
    let (bell, count) = (Arc::new(Bell::default()), Arc::new(Count::default()));
    let waker = Waker::from(Arc::clone(&count));
    let calls = || count.0.load(Ordering::SeqCst);
    let mut polls = 0;
    let result = bell.attend(&mut Context::from_waker(&waker), |context| {
        polls += 1;
        if polls < 3 {
            context.waker().wake_by_ref();
        }
        Poll::<()>::Pending
    });
    assert!(result.is_pending());
    assert_eq!((polls, calls()), (3, 0), "he looks again by himself");
    bell.wake_by_ref();
    assert_eq!(calls(), 1);
    assert!(bell.attend(&mut Context::from_waker(&waker), |_| Poll::Ready(())).is_ready());
    bell.wake_by_ref();
    assert_eq!(calls(), 1, "he has gone");
}

#[test]
fn a_bell_that_does_not_cease_lets_others_have_their_turn() {
    let (bell, count) = (Arc::new(Bell::default()), Arc::new(Count::default()));
    let waker = Waker::from(Arc::clone(&count));
    for turn in 1..4 {
        let result = bell.attend(&mut Context::from_waker(&waker), |context| {
            context.waker().wake_by_ref();
            Poll::<()>::Pending
        });
        assert!(result.is_pending());
        assert_eq!(count.0.load(Ordering::SeqCst), turn, "and he comes again");
    }
}

/// On the thread that runs `main`, tokio rings at once when a task has done as much as it may in one turn.
#[test]
fn a_task_that_has_done_as_much_as_it_may_goes_on_in_its_next_turn() {
    let server = Server::start(Deed::Answers);
    runtime().block_on(async {
        server.ask("x").await.unwrap();
        for _ in 0..50 {
            tokio::task::yield_now().await;
            while tokio::task::coop::has_budget_remaining() {
                tokio::task::coop::consume_budget().await;
            }
            server.ask("x").await.unwrap();
        }
    });
    assert_eq!(server.connections(), 1);
}

#[test]
fn no_ring_of_a_bell_is_lost() {
    let runtime = runtime();
    for _ in 0..200 {
        let bell = Arc::new(Bell::default());
        let rings = Arc::new(AtomicUsize::new(0));
        let ringer = thread::spawn({
            let (bell, rings) = (Arc::clone(&bell), Arc::clone(&rings));
            move || {
                for _ in 0..100 {
                    rings.fetch_add(1, Ordering::SeqCst);
                    bell.wake_by_ref();
                }
            }
        });
        runtime.block_on(poll_fn(|context| {
            bell.attend(context, |_| if rings.load(Ordering::SeqCst) == 100 { Poll::Ready(()) } else { Poll::Pending })
        }));
        ringer.join().unwrap();
    }
}
