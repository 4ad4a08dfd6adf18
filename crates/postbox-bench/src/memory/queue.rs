//! A common trait for Postbox and its peers: send, receive, acknowledge.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use omniqueue::Delivery;
use omniqueue::backends::{InMemoryBackend, InMemoryConsumer, InMemoryProducer};
use parking_lot::Mutex;
use postbox::{Connection, MemoryBackend};
use tokio::sync::Notify;

use super::body::{BATCH, Body, MailboxOf};

/// Maximum wait of a receiver, where the system has such an option. No receiver waits that long.
pub(crate) const WAIT: Duration = Duration::from_secs(20);

/// A queue that tasks use.
pub(crate) trait Queue<B: Body> {
    const NAME: &'static str;
    type Sender: Clone + Send + Sync + 'static;
    type Receiver: Send + 'static;
    /// Opens an empty queue with this number of receivers.
    fn open(receivers: usize) -> (Self::Sender, Vec<Self::Receiver>);
    fn send(sender: &Self::Sender, body: &mut B, number: u64) -> impl Future<Output = ()> + Send;
    /// Sends a batch with the numbers from `first` on.
    fn send_batch(sender: &Self::Sender, body: &mut B, first: u64) -> impl Future<Output = ()> + Send;
    /// Receives one message, reads its number, and acknowledges it.
    fn receive(receiver: &mut Self::Receiver) -> impl Future<Output = u64> + Send;
    /// Receives up to a batch and at least one, reads their numbers, and acknowledges them.
    fn receive_batch(receiver: &mut Self::Receiver, numbers: &mut Vec<u64>) -> impl Future<Output = ()> + Send;
}

pub(crate) struct Postbox;

pub(crate) fn mailbox<B: Body>() -> MailboxOf<B> {
    Connection::new(MemoryBackend::new()).mailbox("bench").expect("the name is good")
}

impl<B: Body> Queue<B> for Postbox {
    const NAME: &'static str = "postbox";
    type Sender = MailboxOf<B>;
    type Receiver = MailboxOf<B>;

    fn open(receivers: usize) -> (Self::Sender, Vec<Self::Receiver>) {
        let mailbox = mailbox::<B>();
        (mailbox.clone(), vec![mailbox; receivers])
    }

    async fn send(mailbox: &Self::Sender, body: &mut B, number: u64) {
        body.send(mailbox, number).await.expect("stored");
    }

    async fn send_batch(mailbox: &Self::Sender, body: &mut B, first: u64) {
        let results = body.send_batch(mailbox, first).await.expect("a good batch");
        assert!(results.iter().all(Result::is_ok));
    }

    async fn receive(mailbox: &mut Self::Receiver) -> u64 {
        let messages = mailbox.receive().await.expect("received");
        let number = B::number(&messages[0].body);
        messages[0].acknowledge().await.expect("acknowledged");
        number
    }

    async fn receive_batch(mailbox: &mut Self::Receiver, numbers: &mut Vec<u64>) {
        let messages = mailbox.receive().max_messages(BATCH).wait_time(WAIT).await.expect("received");
        numbers.clear();
        numbers.extend(messages.iter().map(|message| B::number(&message.body)));
        let results = mailbox.acknowledge_batch(&messages).await.expect("a good batch");
        assert!(results.iter().all(Result::is_ok));
    }
}

/// The crate `omniqueue` in memory: a Tokio channel with acknowledgements. Messages have no id, lease, delivery count or time.
/// A message that is neither acknowledged nor given back is lost. A queue has no counts and one receiver. The messages of a
/// batch are sent one by one.
pub(crate) struct Omniqueue;

/// One receiver, or one that several tasks share behind a lock, which is held while a task waits.
pub(crate) enum Consumer {
    Own(InMemoryConsumer),
    Shared(Arc<tokio::sync::Mutex<InMemoryConsumer>>),
}

/// Creates both ends of a queue. The builder's future is ready at once.
pub(crate) fn omniqueue_pair() -> (Arc<InMemoryProducer>, InMemoryConsumer) {
    let (producer, consumer) =
        postbox_core::wait_for(InMemoryBackend::builder().build_pair()).expect("it cannot fail in memory");
    (Arc::new(producer), consumer)
}

pub(crate) async fn finish(delivery: Delivery) {
    delivery.ack().await.map_err(|(error, _)| error).expect("acknowledged");
}

impl<B: Body> Queue<B> for Omniqueue {
    const NAME: &'static str = "omniqueue";
    type Sender = Arc<InMemoryProducer>;
    type Receiver = Consumer;

    fn open(receivers: usize) -> (Self::Sender, Vec<Self::Receiver>) {
        let (producer, consumer) = omniqueue_pair();
        if receivers == 1 {
            return (producer, vec![Consumer::Own(consumer)]);
        }
        let shared = Arc::new(tokio::sync::Mutex::new(consumer));
        (producer, (0..receivers).map(|_| Consumer::Shared(Arc::clone(&shared))).collect())
    }

    async fn send(producer: &Self::Sender, body: &mut B, number: u64) {
        body.send_to(producer, number).await;
    }

    async fn send_batch(producer: &Self::Sender, body: &mut B, first: u64) {
        for number in first..first + BATCH as u64 {
            body.send_to(producer, number).await;
        }
    }

    async fn receive(consumer: &mut Self::Receiver) -> u64 {
        let delivery = match consumer {
            Consumer::Own(consumer) => consumer.receive().await,
            Consumer::Shared(consumer) => consumer.lock().await.receive().await,
        };
        let delivery = delivery.expect("received");
        let number = B::number_of(&delivery);
        finish(delivery).await;
        number
    }

    async fn receive_batch(consumer: &mut Self::Receiver, numbers: &mut Vec<u64>) {
        let deliveries = match consumer {
            Consumer::Own(consumer) => consumer.receive_all(BATCH, WAIT).await,
            Consumer::Shared(consumer) => consumer.lock().await.receive_all(BATCH, WAIT).await,
        };
        numbers.clear();
        for delivery in deliveries.expect("received") {
            numbers.push(B::number_of(&delivery));
            finish(delivery).await;
        }
    }
}

/// A minimal hand-written queue without acknowledgements, leases, ids or counts: a deque behind a mutex.
///
/// With `WAITS`, a receiver waits for a message with Tokio's `Notify`. A single task never has to wait.
pub(crate) struct Floor<const WAITS: bool>;

#[derive(Default)]
pub(crate) struct Bodies<const WAITS: bool> {
    queue: Mutex<VecDeque<Vec<u8>>>,
    filled: Notify,
}

impl<const WAITS: bool> Bodies<WAITS> {
    pub(crate) fn push(&self, body: Vec<u8>) {
        self.queue.lock().push_back(body);
        if WAITS {
            self.filled.notify_one();
        }
    }

    pub(crate) async fn pop(&self) -> Vec<u8> {
        loop {
            let popped = self.queue.lock().pop_front();
            match popped {
                Some(body) => return body,
                None => self.wait().await,
            }
        }
    }

    async fn pop_batch(&self, bodies: &mut Vec<Vec<u8>>) {
        loop {
            {
                let mut queue = self.queue.lock();
                let count = queue.len().min(BATCH);
                bodies.extend(queue.drain(..count));
            }
            if !bodies.is_empty() {
                return;
            }
            self.wait().await;
        }
    }

    async fn wait(&self) {
        assert!(WAITS, "the queue is empty");
        self.filled.notified().await;
    }
}

impl<B: Body, const WAITS: bool> Queue<B> for Floor<WAITS> {
    const NAME: &'static str = "limit-mutex-vecdeque";
    type Sender = Arc<Bodies<WAITS>>;
    type Receiver = (Arc<Bodies<WAITS>>, Vec<Vec<u8>>);

    fn open(receivers: usize) -> (Self::Sender, Vec<Self::Receiver>) {
        let bodies = Self::Sender::default();
        let receivers = (0..receivers).map(|_| (Arc::clone(&bodies), Vec::new())).collect();
        (bodies, receivers)
    }

    async fn send(bodies: &Self::Sender, body: &mut B, number: u64) {
        bodies.push(body.vec(number));
    }

    async fn send_batch(bodies: &Self::Sender, body: &mut B, first: u64) {
        let batch: [Vec<u8>; BATCH] = std::array::from_fn(|n| body.vec(first + n as u64));
        bodies.queue.lock().extend(batch);
        if WAITS {
            bodies.filled.notify_one();
        }
    }

    async fn receive((bodies, _): &mut Self::Receiver) -> u64 {
        B::number_in(&bodies.pop().await)
    }

    async fn receive_batch((bodies, taken): &mut Self::Receiver, numbers: &mut Vec<u64>) {
        bodies.pop_batch(taken).await;
        numbers.clear();
        numbers.extend(taken.drain(..).map(|body| B::number_in(&body)));
    }
}
