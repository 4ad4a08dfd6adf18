//! Message bodies: each body contains a number, is new for each message, and is raw or JSON. Receivers read the number.

use std::array;
use std::future::Future;

use bytes::Bytes;
use omniqueue::Delivery;
use omniqueue::backends::InMemoryProducer;
use postbox::codec::{Decode, Encode};
use postbox::operation::{SendBatch, SendMessage};
use postbox::{Json, Mailbox, Raw};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Number of messages in a batch.
pub(crate) const BATCH: usize = 10;

/// How each system sends and reads one kind of body.
pub(crate) trait Body: Send + 'static {
    /// The message type of a Postbox mailbox.
    type Message: Send + 'static;
    type Codec: Encode<Self::Message> + Decode<Self::Message>;

    fn new() -> Self;
    /// Kind and size, for the scenario's name.
    fn name() -> String;
    /// Number of messages in a deep mailbox.
    fn depth() -> usize;

    fn send(&mut self, mailbox: &MailboxOf<Self>, number: u64) -> SendMessage;
    /// Sends a batch with the numbers from `first` on.
    fn send_batch(&mut self, mailbox: &MailboxOf<Self>, first: u64) -> SendBatch;
    fn number(message: &Self::Message) -> u64;

    fn send_to(&mut self, producer: &InMemoryProducer, number: u64) -> impl Future<Output = ()> + Send;
    fn number_of(delivery: &Delivery) -> u64;

    fn vec(&mut self, number: u64) -> Vec<u8>;
    fn number_in(bytes: &[u8]) -> u64;
}

pub(crate) type MailboxOf<B> = Mailbox<<B as Body>::Message, (), <B as Body>::Codec>;

/// A body of `N` raw bytes. Each system copies them once to send them.
pub(crate) struct RawBody<const N: usize>([u8; N]);

impl<const N: usize> RawBody<N> {
    fn numbered(&mut self, number: u64) -> &[u8; N] {
        self.0[..8].copy_from_slice(&number.to_le_bytes());
        &self.0
    }

    pub(crate) fn bytes(&mut self, number: u64) -> Bytes {
        Bytes::copy_from_slice(self.numbered(number))
    }
}

impl<const N: usize> Body for RawBody<N> {
    type Message = Bytes;
    type Codec = Raw;

    fn new() -> Self {
        RawBody([0xA5; N])
    }

    fn name() -> String {
        if N < 1024 { format!("raw/{N}B") } else { format!("raw/{}KiB", N / 1024) }
    }

    fn depth() -> usize {
        if N < 1024 { 1_000_000 } else { LARGE_DEPTH }
    }

    fn send(&mut self, mailbox: &MailboxOf<Self>, number: u64) -> SendMessage {
        mailbox.send(&self.bytes(number))
    }

    fn send_batch(&mut self, mailbox: &MailboxOf<Self>, first: u64) -> SendBatch {
        let bodies: [Bytes; BATCH] = array::from_fn(|n| self.bytes(first + n as u64));
        mailbox.send_batch(&bodies)
    }

    fn number(message: &Bytes) -> u64 {
        Self::number_in(message)
    }

    async fn send_to(&mut self, producer: &InMemoryProducer, number: u64) {
        producer.send_raw(self.numbered(number)).await.expect("the queue is open");
    }

    fn number_of(delivery: &Delivery) -> u64 {
        Self::number_in(delivery.borrow_payload().expect("not taken yet"))
    }

    fn vec(&mut self, number: u64) -> Vec<u8> {
        self.numbered(number).to_vec()
    }

    fn number_in(bytes: &[u8]) -> u64 {
        assert_eq!(bytes.len(), N);
        u64::from_le_bytes(array::from_fn(|at| bytes[at]))
    }
}

/// Depth with large bodies: a million bodies of 4 KiB would take 4 GiB for each system.
const LARGE_DEPTH: usize = 100_000;

/// A value that each system encodes as JSON and decodes again.
pub(crate) trait Document: Serialize + DeserializeOwned + Send + Sync + 'static {
    const NAME: &'static str;
    const DEPTH: usize;
    fn new() -> Self;
    fn number(&self) -> u64;
    fn set_number(&mut self, number: u64);
}

/// The values of a batch, and a buffer in which [`Floor`](super::queue::Floor) encodes before it copies the bytes. Without
/// the buffer, its vectors would keep unused capacity.
pub(crate) struct Written<D>([D; BATCH], Vec<u8>);

impl<D: Document> Written<D> {
    fn numbered(&mut self, number: u64) -> &D {
        self.0[0].set_number(number);
        &self.0[0]
    }
}

impl<D: Document> Body for Written<D> {
    type Message = D;
    type Codec = Json;

    fn new() -> Self {
        Written(array::from_fn(|_| D::new()), Vec::new())
    }

    fn name() -> String {
        D::NAME.to_string()
    }

    fn depth() -> usize {
        D::DEPTH
    }

    fn send(&mut self, mailbox: &MailboxOf<Self>, number: u64) -> SendMessage {
        mailbox.send(self.numbered(number))
    }

    fn send_batch(&mut self, mailbox: &MailboxOf<Self>, first: u64) -> SendBatch {
        self.0.iter_mut().zip(first..).for_each(|(value, number)| value.set_number(number));
        mailbox.send_batch(&self.0)
    }

    fn number(message: &D) -> u64 {
        message.number()
    }

    async fn send_to(&mut self, producer: &InMemoryProducer, number: u64) {
        producer.send_serde_json(self.numbered(number)).await.expect("the queue is open");
    }

    fn number_of(delivery: &Delivery) -> u64 {
        delivery.payload_serde_json::<D>().expect("it is JSON").expect("not taken yet").number()
    }

    fn vec(&mut self, number: u64) -> Vec<u8> {
        let mut buffer = std::mem::take(&mut self.1);
        buffer.clear();
        serde_json::to_writer(&mut buffer, self.numbered(number)).expect("it can be written");
        self.1 = buffer;
        self.1.clone()
    }

    fn number_in(bytes: &[u8]) -> u64 {
        serde_json::from_slice::<D>(bytes).expect("it is JSON").number()
    }
}

/// A value of about 64 bytes in JSON.
#[derive(Serialize, Deserialize)]
pub(crate) struct Job {
    number: u64,
    kind: String,
    path: String,
}

impl Document for Job {
    const NAME: &'static str = "json/64B";
    const DEPTH: usize = 1_000_000;

    fn new() -> Self {
        Job { number: 0, kind: "resize".into(), path: "/images/2024/07/a.png".into() }
    }

    fn number(&self) -> u64 {
        self.number
    }

    fn set_number(&mut self, number: u64) {
        self.number = number;
    }
}

/// A value of about 4 KiB in JSON.
#[derive(Serialize, Deserialize)]
pub(crate) struct Order {
    number: u64,
    customer: String,
    lines: Vec<Line>,
}

#[derive(Serialize, Deserialize)]
struct Line {
    article: String,
    amount: u32,
    cents: u64,
}

impl Document for Order {
    const NAME: &'static str = "json/4KiB";
    const DEPTH: usize = LARGE_DEPTH;

    fn new() -> Self {
        let line = |n: u32| Line { article: format!("article {n:04}"), amount: n, cents: 1000 + u64::from(n) };
        Order { number: 0, customer: "a customer".into(), lines: (0..78).map(line).collect() }
    }

    fn number(&self) -> u64 {
        self.number
    }

    fn set_number(&mut self, number: u64) {
        self.number = number;
    }
}
