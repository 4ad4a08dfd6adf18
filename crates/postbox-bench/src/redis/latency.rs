//! Measures the time from the call of `send` until a waiting receiver has the message, and the time of a `PING`. The receiver
//! shares the sender's connection, or has its own like a receiver in another process.

use std::future::Future;
use std::time::{Duration, Instant};

use postbox::redis::client::cmd;
use postbox_test_servers::Redis;
use tokio::sync::mpsc;

use super::bare::connect;
use super::queue::{Omniqueue, Postbox, Queue, WAIT};
use super::{SUITE, name, runtime};
use crate::memory::body::{Document, Job};
use crate::report::{Settings, print_value};

const SCENARIO: &str = "latency/send-to-waiting-receiver";

/// A sender and a receiver that waits.
struct Pair<Q> {
    sender: Q,
    arrivals: mpsc::UnboundedReceiver<Instant>,
    took: Vec<Duration>,
}

/// A queue whose receivers can wait.
trait Waiting: Queue {
    /// Waits for a message and acknowledges it. Returns the time at which it arrived.
    fn wait(&mut self) -> impl Future<Output = Instant> + Send;
}

impl Waiting for Postbox {
    async fn wait(&mut self) -> Instant {
        let messages = self.0.receive().wait_time(WAIT).await.expect("received");
        let now = Instant::now();
        messages[0].acknowledge().await.expect("acknowledged");
        now
    }
}

impl Waiting for Omniqueue {
    async fn wait(&mut self) -> Instant {
        let delivery = self.consumer.receive().await.expect("received");
        let now = Instant::now();
        Omniqueue::finish(delivery).await;
        now
    }
}

impl<Q: Waiting> Pair<Q> {
    async fn open(server: &Redis) -> Self {
        let mut handles = Q::open(server, &name(), 2).await;
        Self::of(handles.remove(0), handles.remove(0))
    }

    /// Like `open`, with a separate connection for the receiver, as in another process.
    async fn open_apart(server: &Redis) -> Self {
        let name = name();
        Self::of(Q::open(server, &name, 1).await.remove(0), Q::open(server, &name, 1).await.remove(0))
    }

    fn of(mut receiver: Q, sender: Q) -> Self {
        let (arrived, arrivals) = mpsc::unbounded_channel();
        tokio::spawn(async move { while arrived.send(receiver.wait().await).is_ok() {} });
        Pair { sender, arrivals, took: Vec::new() }
    }

    async fn measure_once(&mut self) {
        pause().await;
        let start = Instant::now();
        self.sender.send(&[Job::new()]).await;
        self.took.push(self.arrivals.recv().await.expect("the receiver runs") - start);
    }
}

/// Waits until the receiver waits again and the machine is idle.
async fn pause() {
    tokio::time::sleep(Duration::from_millis(2)).await;
}

/// Prints medians and 99th percentiles. rsmq_async does not wait.
pub(super) fn run(settings: &Settings, server: &Redis) {
    if !settings.includes(SCENARIO) {
        return;
    }
    runtime().block_on(async {
        let mut ping = connect(server).await;
        let (mut shared, mut apart) = (Pair::<Postbox>::open(server).await, Pair::<Postbox>::open_apart(server).await);
        let mut omniqueue = Pair::<Omniqueue>::open(server).await;
        let mut pings = Vec::new();
        for round in 0..settings.scale(3_000) {
            // The order alternates, since the second measurement benefits from warm caches of the server.
            let (first, second) = if round % 2 == 0 { (&mut shared, &mut apart) } else { (&mut apart, &mut shared) };
            first.measure_once().await;
            second.measure_once().await;
            omniqueue.measure_once().await;
            pause().await;
            let start = Instant::now();
            cmd("PING").query_async::<String>(&mut ping).await.expect("an answer");
            pings.push(start.elapsed());
        }
        print(settings, Postbox::NAME, &mut shared.took);
        print(settings, "postbox-apart", &mut apart.took);
        print(settings, Omniqueue::NAME, &mut omniqueue.took);
        print(settings, "limit-ping", &mut pings);
    });
}

fn print(settings: &Settings, system: &str, took: &mut [Duration]) {
    took.sort();
    for (unit, share) in [("p50_ns", 0.5), ("p99_ns", 0.99)] {
        let at = took[(took.len() as f64 * share) as usize];
        print_value(settings, SUITE, SCENARIO, system, unit, at.as_nanos() as usize);
    }
}
