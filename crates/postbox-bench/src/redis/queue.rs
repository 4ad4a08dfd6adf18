//! A common trait for Postbox and its peers: send, then receive and acknowledge.

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

/// Length of a lease, where the system has such an option. No message is kept that long.
pub(crate) const LEASE: Duration = Duration::from_secs(600);

/// Maximum wait of a receiver, where the system has such an option. No receiver waits that long.
pub(crate) const WAIT: Duration = Duration::from_secs(20);

/// A queue that tasks use.
pub(crate) trait Queue: Sized + Send + 'static {
    const NAME: &'static str;
    /// Opens an empty queue with a handle for each task.
    fn open(server: &Redis, name: &str, tasks: usize) -> impl Future<Output = Vec<Self>> + Send;
    /// Sends all jobs, as a batch if there are several.
    fn send(&mut self, jobs: &[Job]) -> impl Future<Output = ()> + Send;
    /// Receives, decodes and acknowledges at most `max` messages. Returns their number.
    fn receive(&mut self, max: usize) -> impl Future<Output = usize> + Send;
}

/// Decodes a message, as every receiver does.
fn read(body: &[u8]) {
    black_box(serde_json::from_slice::<Job>(body).expect("it is JSON").number());
}

pub(crate) type Jobs = Mailbox<Job, (), Json>;

#[derive(Clone)]
pub(crate) struct Postbox(pub(crate) Jobs);

/// Opens a connection to the server.
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

    async fn receive(&mut self, max: usize) -> usize {
        let messages = self.0.receive().max_messages(max).await.expect("received");
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

/// The crate `rsmq_async`, a port of rsmq. It has leases, delivery counts, and batches of sends and receives. It has no
/// receipts, no batches of deletions, and no waits.
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

    async fn receive(&mut self, max: usize) -> usize {
        let rsmq = &mut self.rsmq;
        if max == 1 {
            let Some(message) = rsmq.receive_message::<Vec<u8>>(&self.name, None).await.expect("received") else {
                return 0;
            };
            read(&message.message);
            assert!(rsmq.delete_message(&self.name, &message.id).await.expect("deleted"));
            return 1;
        }
        let received = rsmq.receive_message_batch::<Vec<u8>>(&self.name, None, max as u32).await;
        let messages = received.expect("received");
        // All deletions are pipelined on one connection.
        let deleted = join_all(messages.iter().map(|message| {
            read(&message.message);
            let (mut rsmq, name) = (self.rsmq.clone(), &self.name);
            async move { rsmq.delete_message(name, &message.id).await.expect("deleted") }
        }));
        assert!(deleted.await.into_iter().all(|deleted| deleted));
        messages.len()
    }
}

/// The crate `omniqueue` on Redis streams with a consumer group. The messages of a batch are sent and acknowledged by
/// concurrent single requests. A waiting receiver blocks a connection, and each task has a consumer.
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
        // Two connections of each pool are used by omniqueue's background tasks.
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

    async fn receive(&mut self, max: usize) -> usize {
        if max == 1 {
            Self::finish(self.consumer.receive().await.expect("received")).await;
            return 1;
        }
        let deliveries = self.consumer.receive_all(max, WAIT).await.expect("received");
        let count = deliveries.len();
        join_all(deliveries.into_iter().map(Self::finish)).await;
        count
    }
}
