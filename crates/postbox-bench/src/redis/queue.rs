//! Postbox and its peers behind one face: send, then receive and acknowledge.

use std::future::Future;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use omniqueue::Delivery;
use omniqueue::backends::redis::{RedisConnectionManager, RedisConsumer, RedisProducer};
use omniqueue::backends::{RedisBackend as OmniqueueBackend, RedisConfig};
use postbox::redis::RedisBackend;
use postbox::redis::client::Client;
use postbox::{Connection, Json, Mailbox};
use postbox_test_servers::Redis;
use rsmq_async::{Rsmq, RsmqConnection as _, RsmqOptions};

use crate::memory::body::{Document, Job};

/// For how long a message is leased, where that can be said. None is kept so long.
pub(crate) const LEASE: Duration = Duration::from_secs(600);

/// How long a receiver waits for a message, where that can be said. None ever waits so long.
pub(crate) const WAIT: Duration = Duration::from_secs(20);

/// A queue as tasks use it.
pub(crate) trait Queue: Sized + Send + 'static {
    const NAME: &'static str;
    /// An empty queue of that name, with a handle for each task.
    fn open(server: &Redis, name: &str, tasks: usize) -> impl Future<Output = Vec<Self>> + Send;
    /// Sends all, as one batch where there are several.
    fn send(&mut self, jobs: &[Job]) -> impl Future<Output = ()> + Send;
    /// Receives at most this number, reads and acknowledges them, and returns how many there were.
    fn receive(&mut self, most: usize) -> impl Future<Output = usize> + Send;
}

/// What every receiver does with a message.
fn read(body: &[u8]) {
    black_box(serde_json::from_slice::<Job>(body).expect("it is JSON").number());
}

pub(crate) type Jobs = Mailbox<Job, (), Json>;

#[derive(Clone)]
pub(crate) struct Postbox(pub(crate) Jobs);

/// All mailboxes of a connection.
pub(crate) fn connection(server: &Redis) -> Connection {
    let client = Client::open(server.url()).expect("a good address");
    Connection::new(RedisBackend::from_client(client).expect("a good client"))
}

impl Queue for Postbox {
    const NAME: &'static str = "postbox";

    async fn open(server: &Redis, name: &str, tasks: usize) -> Vec<Self> {
        vec![Postbox(connection(server).mailbox(name).expect("the name is good")); tasks]
    }

    async fn send(&mut self, jobs: &[Job]) {
        match jobs {
            [job] => drop(self.0.send(job).await.expect("sent")),
            jobs => {
                let results = self.0.send_batch(jobs).await.expect("a good batch");
                assert!(results.iter().all(Result::is_ok));
            }
        }
    }

    async fn receive(&mut self, most: usize) -> usize {
        let messages = self.0.receive().max_messages(most).await.expect("received");
        for message in &messages {
            black_box(message.body.number());
        }
        match &*messages {
            [message] => message.acknowledge().await.expect("acknowledged"),
            messages => {
                let results = self.0.acknowledge_batch(messages).await.expect("a good batch");
                assert!(results.iter().all(Result::is_ok));
            }
        }
        messages.len()
    }
}

/// A port of rsmq: leases and counts of deliveries, ids instead of receipts, batches of sends and receives, none of
/// deletions. It does not wait.
#[derive(Clone)]
pub(crate) struct RsmqQueue {
    rsmq: Rsmq,
    name: String,
}

impl Queue for RsmqQueue {
    const NAME: &'static str = "rsmq_async";

    async fn open(server: &Redis, name: &str, tasks: usize) -> Vec<Self> {
        let options = RsmqOptions { port: server.port(), ..RsmqOptions::default() };
        let mut rsmq = Rsmq::new(options).await.expect("connected");
        rsmq.create_queue(name, Some(LEASE), None, None).await.expect("created");
        vec![RsmqQueue { rsmq, name: name.into() }; tasks]
    }

    async fn send(&mut self, jobs: &[Job]) {
        let rsmq = &mut self.rsmq;
        let mut bodies: Vec<_> = jobs.iter().map(|job| serde_json::to_vec(job).expect("it can be written")).collect();
        match &mut bodies[..] {
            [body] => {
                rsmq.send_message(&self.name, std::mem::take(body), None).await.expect("sent");
            }
            _ => {
                rsmq.send_message_batch(&self.name, bodies, None).await.expect("sent");
            }
        }
    }

    async fn receive(&mut self, most: usize) -> usize {
        let rsmq = &mut self.rsmq;
        if most == 1 {
            let Some(message) = rsmq.receive_message::<Vec<u8>>(&self.name, None).await.expect("received") else {
                return 0;
            };
            read(&message.message);
            assert!(rsmq.delete_message(&self.name, &message.id).await.expect("deleted"));
            return 1;
        }
        let received = rsmq.receive_message_batch::<Vec<u8>>(&self.name, None, most as u32).await;
        let messages = received.expect("received");
        // In one go: the connection sends them one after the other without waiting for answers.
        let deleted = join_all(messages.iter().map(|message| {
            read(&message.message);
            let (mut rsmq, name) = (self.rsmq.clone(), &self.name);
            async move { rsmq.delete_message(name, &message.id).await.expect("deleted") }
        }));
        assert!(deleted.await.into_iter().all(|deleted| deleted));
        messages.len()
    }
}

/// Streams with a consumer group. A batch is sent one by one, at the same time, and acknowledged so. A waiting receiver
/// blocks a connection, and there is a consumer for each task.
pub(crate) struct Omniqueue {
    producer: Arc<RedisProducer<RedisConnectionManager>>,
    pub(crate) consumer: RedisConsumer<RedisConnectionManager>,
}

impl Omniqueue {
    pub(crate) async fn finish(delivery: Delivery) {
        let job: Job = delivery.payload_serde_json().expect("it is JSON").expect("not taken yet");
        black_box(job.number());
        delivery.ack().await.map_err(|(error, _)| error).expect("acknowledged");
    }
}

impl Queue for Omniqueue {
    const NAME: &'static str = "omniqueue";

    async fn open(server: &Redis, name: &str, tasks: usize) -> Vec<Self> {
        server.command(&["XGROUP", "CREATE", name, "bench", "$", "MKSTREAM"]);
        // Two of each pool are for what it does in the background.
        let config = |connections: usize| RedisConfig {
            dsn: server.url(),
            max_connections: connections as u16 + 2,
            reinsert_on_nack: false,
            queue_key: name.into(),
            delayed_queue_key: format!("{name}-delayed"),
            delayed_lock_key: format!("{name}-lock"),
            consumer_group: "bench".into(),
            consumer_name: "bench".into(),
            payload_key: "payload".into(),
            ack_deadline_ms: LEASE.as_millis() as i64,
            dlq_config: None,
            sentinel_config: None,
        };
        let producer = OmniqueueBackend::builder(config(tasks)).build_producer().await;
        let producer = Arc::new(producer.expect("connected"));
        let mut handles = Vec::new();
        for _ in 0..tasks {
            let consumer = OmniqueueBackend::builder(config(1)).build_consumer().await.expect("connected");
            handles.push(Omniqueue { producer: Arc::clone(&producer), consumer });
        }
        handles
    }

    async fn send(&mut self, jobs: &[Job]) {
        let sends = join_all(jobs.iter().map(|job| self.producer.send_serde_json(job)));
        sends.await.into_iter().for_each(|sent| sent.expect("sent"));
    }

    async fn receive(&mut self, most: usize) -> usize {
        if most == 1 {
            Self::finish(self.consumer.receive().await.expect("received")).await;
            return 1;
        }
        let deliveries = self.consumer.receive_all(most, WAIT).await.expect("received");
        let many = deliveries.len();
        join_all(deliveries.into_iter().map(Self::finish)).await;
        many
    }
}
