//! Requests and replies. A peer needs two queues for them, one for requests and one for replies.

use std::cell::RefCell;
use std::future::Future;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use omniqueue::backends::{InMemoryConsumer, InMemoryProducer};
use postbox::{Connection, Mailbox, MemoryBackend, Raw, Reply};

use super::body::{Body, RawBody};
use super::queue::{Bodies, Floor, Omniqueue, Postbox, Queue, WAIT, finish, omniqueue_pair};
use super::{SUITE, one_thread, workers};
use crate::report::{Contender, Settings, measure, print_value};

type B = RawBody<64>;

/// A request with this number ends the server.
const STOP: u64 = u64::MAX;

/// A client that sends requests, and a server that answers each with the number of the request.
trait Requests: 'static {
    const NAME: &'static str;
    type Client: Send + 'static;
    type Server: Send + 'static;
    /// The client's state while it waits for an answer.
    type Pending: Send;
    fn open() -> (Self::Client, Self::Server);
    fn request(client: &mut Self::Client, body: &mut B, number: u64) -> impl Future<Output = Self::Pending> + Send;
    /// Answers one request and returns its number.
    fn serve(server: &mut Self::Server, body: &mut B) -> impl Future<Output = u64> + Send;
    /// Waits for the answer and returns its number.
    fn answer(client: &mut Self::Client, pending: Self::Pending) -> impl Future<Output = u64> + Send;
}

type RequestMailbox = Mailbox<Bytes, Bytes, Raw>;

fn mailbox() -> RequestMailbox {
    Connection::new(MemoryBackend::new()).mailbox("bench").expect("the name is good")
}

impl Requests for Postbox {
    const NAME: &'static str = <Postbox as Queue<B>>::NAME;
    type Client = RequestMailbox;
    type Server = RequestMailbox;
    type Pending = Reply<Bytes, Raw>;

    fn open() -> (Self::Client, Self::Server) {
        let mailbox = mailbox();
        (mailbox.clone(), mailbox)
    }

    async fn request(mailbox: &mut RequestMailbox, body: &mut B, number: u64) -> Self::Pending {
        mailbox.send_expecting_reply(&body.bytes(number)).await.expect("stored")
    }

    async fn serve(mailbox: &mut RequestMailbox, body: &mut B) -> u64 {
        let messages = mailbox.receive().wait_time(WAIT).await.expect("received");
        let number = B::number(&messages[0].body);
        messages[0].reply(&body.bytes(number)).await.expect("answered");
        number
    }

    async fn answer(_: &mut RequestMailbox, reply: Self::Pending) -> u64 {
        B::number(&reply.wait().await.expect("an answer"))
    }
}

/// Answers have no ids, so there is one client with one request at a time. Requests do not expire.
impl Requests for Omniqueue {
    const NAME: &'static str = <Omniqueue as Queue<B>>::NAME;
    type Client = (Arc<InMemoryProducer>, InMemoryConsumer);
    type Server = (Arc<InMemoryProducer>, InMemoryConsumer);
    type Pending = ();

    fn open() -> (Self::Client, Self::Server) {
        let (requests, received_requests) = omniqueue_pair();
        let (answers, received_answers) = omniqueue_pair();
        ((requests, received_answers), (answers, received_requests))
    }

    async fn request((requests, _): &mut Self::Client, body: &mut B, number: u64) {
        body.send_to(requests, number).await;
    }

    async fn serve((answers, requests): &mut Self::Server, body: &mut B) -> u64 {
        let request = requests.receive().await.expect("received");
        let number = B::number_of(&request);
        body.send_to(answers, number).await;
        finish(request).await;
        number
    }

    async fn answer((_, answers): &mut Self::Client, (): ()) -> u64 {
        let answer = answers.receive().await.expect("received");
        let number = B::number_of(&answer);
        finish(answer).await;
        number
    }
}

/// Has the limits of omniqueue, and loses a request if its server dies.
impl<const WAITS: bool> Requests for Floor<WAITS> {
    const NAME: &'static str = <Floor<WAITS> as Queue<B>>::NAME;
    type Client = [Arc<Bodies<WAITS>>; 2];
    type Server = [Arc<Bodies<WAITS>>; 2];
    type Pending = ();

    fn open() -> (Self::Client, Self::Server) {
        let both: Self::Client = Default::default();
        (both.clone(), both)
    }

    async fn request([requests, _]: &mut Self::Client, body: &mut B, number: u64) {
        requests.push(body.vec(number));
    }

    async fn serve([requests, replies]: &mut Self::Server, body: &mut B) -> u64 {
        let number = B::number_in(&requests.pop().await);
        replies.push(body.vec(number));
        number
    }

    async fn answer([_, replies]: &mut Self::Client, (): ()) -> u64 {
        B::number_in(&replies.pop().await)
    }
}

pub(crate) fn run(settings: &Settings) {
    let contenders = vec![one_task::<Postbox>(), one_task::<Omniqueue>(), one_task::<Floor<false>>()];
    measure(settings, SUITE, "request-reply/one-task", 50_000, contenders);

    let scenario = "request-reply/two-threads";
    let times: [RefCell<Vec<Duration>>; 4] = Default::default();
    let contenders = vec![
        two_tasks::<Postbox>(&times[0]),
        two_threads(&times[1]),
        two_tasks::<Omniqueue>(&times[2]),
        two_tasks::<Floor<true>>(&times[3]),
    ];
    let names: Vec<_> = contenders.iter().map(|contender| contender.system).collect();
    measure(settings, SUITE, scenario, 20_000, contenders);
    for (name, times) in names.iter().zip(&times) {
        let mut times = times.borrow_mut();
        times.sort_unstable();
        for percent in [50, 99] {
            if let Some(time) = times.get(times.len() * percent / 100) {
                print_value(settings, SUITE, &format!("{scenario}/p{percent}"), name, "ns", time.as_nanos() as usize);
            }
        }
    }
}

/// One task sends a request, answers it and receives the answer.
fn one_task<T: Requests>() -> Contender<'static> {
    let runtime = one_thread();
    let (mut client, mut server) = T::open();
    Contender::new(T::NAME, move |operations| {
        runtime.block_on(async {
            let (mut body, mut answer) = (B::new(), B::new());
            let start = Instant::now();
            for number in 0..operations as u64 {
                let pending = T::request(&mut client, &mut body, number).await;
                T::serve(&mut server, &mut answer).await;
                assert_eq!(T::answer(&mut client, pending).await, number);
            }
            start.elapsed()
        })
    })
}

/// A client and a server on a runtime with two worker threads. The runtime decides which thread runs each.
fn two_tasks<T: Requests>(times: &RefCell<Vec<Duration>>) -> Contender<'_> {
    let runtime = workers(2);
    Contender::new(T::NAME, move |operations| {
        let (mut client, mut server) = T::open();
        runtime.spawn(async move {
            let mut body = B::new();
            while T::serve(&mut server, &mut body).await != STOP {}
        });
        let client = runtime.spawn(async move {
            let mut body = B::new();
            let mut times = Vec::with_capacity(operations);
            for number in 0..operations as u64 {
                let start = Instant::now();
                let pending = T::request(&mut client, &mut body, number).await;
                assert_eq!(T::answer(&mut client, pending).await, number);
                times.push(start.elapsed());
            }
            let pending = T::request(&mut client, &mut body, STOP).await;
            T::answer(&mut client, pending).await;
            times
        });
        keep(times, runtime.block_on(client).expect("the client"))
    })
}

/// Postbox without a runtime: a client and a server on different threads.
fn two_threads(times: &RefCell<Vec<Duration>>) -> Contender<'_> {
    Contender::new("postbox-blocking", move |operations| {
        let mailbox = mailbox();
        let server = thread::spawn({
            let mailbox = mailbox.clone();
            move || {
                let mut body = B::new();
                loop {
                    let messages = mailbox.receive().wait_time(WAIT).blocking().expect("received");
                    let number = B::number(&messages[0].body);
                    messages[0].reply(&body.bytes(number)).blocking().expect("answered");
                    if number == STOP {
                        return;
                    }
                }
            }
        });
        let mut body = B::new();
        let mut request = |number| {
            let reply = mailbox.send_expecting_reply(&body.bytes(number)).blocking().expect("stored");
            assert_eq!(B::number(&reply.wait().blocking().expect("an answer")), number);
        };
        let mut taken = Vec::with_capacity(operations);
        for number in 0..operations as u64 {
            let start = Instant::now();
            request(number);
            taken.push(start.elapsed());
        }
        request(STOP);
        server.join().expect("the server");
        keep(times, taken)
    })
}

/// Stores the times of all requests of a run, and returns their sum.
fn keep(all: &RefCell<Vec<Duration>>, times: Vec<Duration>) -> Duration {
    let took = times.iter().sum();
    all.borrow_mut().extend(times);
    took
}
