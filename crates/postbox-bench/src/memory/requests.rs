//! Requests and replies, against what a program would do with a peer: one queue there and one back.

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

/// Tells the server to end.
const STOP: u64 = u64::MAX;

/// One task sends a request, another answers with the number in it.
trait Requests: 'static {
    const NAME: &'static str;
    type Client: Send + 'static;
    type Server: Send + 'static;
    /// What is awaited.
    type Asked: Send;
    fn open() -> (Self::Client, Self::Server);
    fn ask(client: &mut Self::Client, body: &mut B, number: u64) -> impl Future<Output = Self::Asked> + Send;
    /// Answers one request, and tells its number.
    fn serve(server: &mut Self::Server, body: &mut B) -> impl Future<Output = u64> + Send;
    /// The number in the answer.
    fn answer(client: &mut Self::Client, asked: Self::Asked) -> impl Future<Output = u64> + Send;
}

type Asking = Mailbox<Bytes, Bytes, Raw>;

fn mailbox() -> Asking {
    Connection::new(MemoryBackend::new()).mailbox("bench").expect("the name is good")
}

impl Requests for Postbox {
    const NAME: &'static str = <Postbox as Queue<B>>::NAME;
    type Client = Asking;
    type Server = Asking;
    type Asked = Reply<Bytes, Raw>;

    fn open() -> (Self::Client, Self::Server) {
        let mailbox = mailbox();
        (mailbox.clone(), mailbox)
    }

    async fn ask(mailbox: &mut Asking, body: &mut B, number: u64) -> Self::Asked {
        mailbox.send_expecting_reply(&body.bytes(number)).await.expect("stored")
    }

    async fn serve(mailbox: &mut Asking, body: &mut B) -> u64 {
        let messages = mailbox.receive().wait_time(WAIT).await.expect("received");
        let number = B::number(&messages[0].body);
        messages[0].reply(&body.bytes(number)).await.expect("answered");
        number
    }

    async fn answer(_: &mut Asking, reply: Self::Asked) -> u64 {
        B::number(&reply.wait().await.expect("an answer"))
    }
}

/// Answers have no name: only one client may ask, and one request at a time. None expires.
impl Requests for Omniqueue {
    const NAME: &'static str = <Omniqueue as Queue<B>>::NAME;
    type Client = (Arc<InMemoryProducer>, InMemoryConsumer);
    type Server = (Arc<InMemoryProducer>, InMemoryConsumer);
    type Asked = ();

    fn open() -> (Self::Client, Self::Server) {
        let (ask, asked) = omniqueue_pair();
        let (answer, answered) = omniqueue_pair();
        ((ask, answered), (answer, asked))
    }

    async fn ask((ask, _): &mut Self::Client, body: &mut B, number: u64) {
        body.send_to(ask, number).await;
    }

    async fn serve((answer, asked): &mut Self::Server, body: &mut B) -> u64 {
        let request = asked.receive().await.expect("received");
        let number = B::number_of(&request);
        body.send_to(answer, number).await;
        finish(request).await;
        number
    }

    async fn answer((_, answered): &mut Self::Client, (): ()) -> u64 {
        let answer = answered.receive().await.expect("received");
        let number = B::number_of(&answer);
        finish(answer).await;
        number
    }
}

/// As above, and a request whose server dies is lost.
impl<const WAITS: bool> Requests for Floor<WAITS> {
    const NAME: &'static str = <Floor<WAITS> as Queue<B>>::NAME;
    type Client = [Arc<Bodies<WAITS>>; 2];
    type Server = [Arc<Bodies<WAITS>>; 2];
    type Asked = ();

    fn open() -> (Self::Client, Self::Server) {
        let both: Self::Client = Default::default();
        (both.clone(), both)
    }

    async fn ask([there, _]: &mut Self::Client, body: &mut B, number: u64) {
        there.push(body.vec(number));
    }

    async fn serve([there, back]: &mut Self::Server, body: &mut B) -> u64 {
        let number = B::number_in(&there.pop().await);
        back.push(body.vec(number));
        number
    }

    async fn answer([_, back]: &mut Self::Client, (): ()) -> u64 {
        B::number_in(&back.pop().await)
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

/// One task asks, answers and has the answer.
fn one_task<T: Requests>() -> Contender<'static> {
    let runtime = one_thread();
    let (mut client, mut server) = T::open();
    Contender::new(T::NAME, move |operations| {
        runtime.block_on(async {
            let (mut body, mut answer) = (B::new(), B::new());
            let start = Instant::now();
            for number in 0..operations as u64 {
                let asked = T::ask(&mut client, &mut body, number).await;
                T::serve(&mut server, &mut answer).await;
                assert_eq!(T::answer(&mut client, asked).await, number);
            }
            start.elapsed()
        })
    })
}

/// A client and a server on a runtime with two workers: where they run is up to the runtime.
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
                let asked = T::ask(&mut client, &mut body, number).await;
                assert_eq!(T::answer(&mut client, asked).await, number);
                times.push(start.elapsed());
            }
            let asked = T::ask(&mut client, &mut body, STOP).await;
            T::answer(&mut client, asked).await;
            times
        });
        keep(times, runtime.block_on(client).expect("the client"))
    })
}

/// Ours without a runtime: a client and a server on threads of their own.
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
        let mut ask = |number| {
            let reply = mailbox.send_expecting_reply(&body.bytes(number)).blocking().expect("stored");
            assert_eq!(B::number(&reply.wait().blocking().expect("an answer")), number);
        };
        let mut taken = Vec::with_capacity(operations);
        for number in 0..operations as u64 {
            let start = Instant::now();
            ask(number);
            taken.push(start.elapsed());
        }
        ask(STOP);
        server.join().expect("the server");
        keep(times, taken)
    })
}

/// Keeps the times of all requests of a run; the run took their sum.
fn keep(all: &RefCell<Vec<Duration>>, times: Vec<Duration>) -> Duration {
    let took = times.iter().sum();
    all.borrow_mut().extend(times);
    took
}
