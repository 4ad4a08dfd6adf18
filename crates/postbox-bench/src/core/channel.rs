//! Common traits for Postbox and its peers: one for blocking and one for async channels.

use std::future::Future;

use postbox_core::Mailbox;
use postbox_core::shared::mailbox::{
    MailboxFactory, MailboxOptions, MailboxProducer, QueueMailbox, QueueMailboxProducer, ThreadSafe,
};

/// A message with a number. The consumer adds up the numbers, so that a lost message is noticed and no work is optimised
/// away.
pub(crate) trait Payload: Copy + Clone + Default + Send + Sync + std::fmt::Debug + 'static {
    /// Size in bytes, for the scenario's name.
    const BYTES: usize = size_of::<Self>();
    fn number(n: u64) -> Self;
    fn value(&self) -> u64;
}

impl<const N: usize> Payload for Words<N> {
    fn number(n: u64) -> Self {
        Words([n; N])
    }

    fn value(&self) -> u64 {
        self.0[N - 1]
    }
}

/// A payload of `N` words of eight bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words<const N: usize>([u64; N]);

impl<const N: usize> Default for Words<N> {
    fn default() -> Self {
        Words([0; N])
    }
}

/// A blocking channel.
pub(crate) trait Channel {
    const NAME: &'static str;
    type Tx<M: Payload>: Clone + Send + 'static;
    type Rx<M: Payload>: Send + 'static;
    /// Opens a channel. `None` if the library has no channel of this kind, for example an unbounded one.
    fn open<M: Payload>(capacity: Option<usize>) -> Option<(Self::Tx<M>, Self::Rx<M>)>;
    fn send<M: Payload>(tx: &Self::Tx<M>, message: M);
    fn recv<M: Payload>(rx: &mut Self::Rx<M>) -> Option<M>;
    fn try_send<M: Payload>(tx: &Self::Tx<M>, message: M) -> bool;
    fn try_recv<M: Payload>(rx: &mut Self::Rx<M>) -> Option<M>;
    /// A second receiver, if the channel supports several.
    fn share<M: Payload>(rx: &Self::Rx<M>) -> Option<Self::Rx<M>>;
}

/// An async channel.
pub(crate) trait AsyncChannel {
    const NAME: &'static str;
    type Tx<M: Payload>: Clone + Send + Sync + 'static;
    type Rx<M: Payload>: Send + 'static;
    fn open<M: Payload>(capacity: Option<usize>) -> Option<(Self::Tx<M>, Self::Rx<M>)>;
    fn send<M: Payload>(tx: &Self::Tx<M>, message: M) -> impl Future<Output = ()> + Send;
    fn recv<M: Payload>(rx: &mut Self::Rx<M>) -> impl Future<Output = Option<M>> + Send;
}

pub(crate) struct Postbox;

impl Channel for Postbox {
    const NAME: &'static str = "postbox";
    type Tx<M: Payload> = QueueMailboxProducer<M>;
    type Rx<M: Payload> = QueueMailbox<M>;

    fn open<M: Payload>(capacity: Option<usize>) -> Option<(Self::Tx<M>, Self::Rx<M>)> {
        let options = capacity.map_or(MailboxOptions::default(), MailboxOptions::with_capacity);
        let (rx, tx) = ThreadSafe.build_mailbox(options);
        Some((tx, rx))
    }

    fn send<M: Payload>(tx: &Self::Tx<M>, message: M) {
        assert!(tx.send_blocking(message).is_ok());
    }

    fn recv<M: Payload>(rx: &mut Self::Rx<M>) -> Option<M> {
        rx.recv_blocking().ok()
    }

    fn try_send<M: Payload>(tx: &Self::Tx<M>, message: M) -> bool {
        tx.try_send(message).is_ok()
    }

    fn try_recv<M: Payload>(rx: &mut Self::Rx<M>) -> Option<M> {
        rx.dequeue()
    }

    fn share<M: Payload>(rx: &Self::Rx<M>) -> Option<Self::Rx<M>> {
        Some(rx.clone())
    }
}

impl AsyncChannel for Postbox {
    const NAME: &'static str = "postbox";
    type Tx<M: Payload> = QueueMailboxProducer<M>;
    type Rx<M: Payload> = QueueMailbox<M>;

    fn open<M: Payload>(capacity: Option<usize>) -> Option<(Self::Tx<M>, Self::Rx<M>)> {
        <Postbox as Channel>::open(capacity)
    }

    async fn send<M: Payload>(tx: &Self::Tx<M>, message: M) {
        assert!(tx.send(message).await.is_ok());
    }

    async fn recv<M: Payload>(rx: &mut Self::Rx<M>) -> Option<M> {
        rx.recv().await.ok()
    }
}

pub(crate) struct Crossbeam;

impl Channel for Crossbeam {
    const NAME: &'static str = "crossbeam-channel";
    type Tx<M: Payload> = crossbeam_channel::Sender<M>;
    type Rx<M: Payload> = crossbeam_channel::Receiver<M>;

    fn open<M: Payload>(capacity: Option<usize>) -> Option<(Self::Tx<M>, Self::Rx<M>)> {
        Some(capacity.map_or_else(crossbeam_channel::unbounded, crossbeam_channel::bounded))
    }

    fn send<M: Payload>(tx: &Self::Tx<M>, message: M) {
        tx.send(message).unwrap();
    }

    fn recv<M: Payload>(rx: &mut Self::Rx<M>) -> Option<M> {
        rx.recv().ok()
    }

    fn try_send<M: Payload>(tx: &Self::Tx<M>, message: M) -> bool {
        tx.try_send(message).is_ok()
    }

    fn try_recv<M: Payload>(rx: &mut Self::Rx<M>) -> Option<M> {
        rx.try_recv().ok()
    }

    fn share<M: Payload>(rx: &Self::Rx<M>) -> Option<Self::Rx<M>> {
        Some(rx.clone())
    }
}

pub(crate) struct Flume;

impl Channel for Flume {
    const NAME: &'static str = "flume";
    type Tx<M: Payload> = flume::Sender<M>;
    type Rx<M: Payload> = flume::Receiver<M>;

    fn open<M: Payload>(capacity: Option<usize>) -> Option<(Self::Tx<M>, Self::Rx<M>)> {
        Some(capacity.map_or_else(flume::unbounded, flume::bounded))
    }

    fn send<M: Payload>(tx: &Self::Tx<M>, message: M) {
        tx.send(message).unwrap();
    }

    fn recv<M: Payload>(rx: &mut Self::Rx<M>) -> Option<M> {
        rx.recv().ok()
    }

    fn try_send<M: Payload>(tx: &Self::Tx<M>, message: M) -> bool {
        tx.try_send(message).is_ok()
    }

    fn try_recv<M: Payload>(rx: &mut Self::Rx<M>) -> Option<M> {
        rx.try_recv().ok()
    }

    fn share<M: Payload>(rx: &Self::Rx<M>) -> Option<Self::Rx<M>> {
        Some(rx.clone())
    }
}

impl AsyncChannel for Flume {
    const NAME: &'static str = "flume";
    type Tx<M: Payload> = flume::Sender<M>;
    type Rx<M: Payload> = flume::Receiver<M>;

    fn open<M: Payload>(capacity: Option<usize>) -> Option<(Self::Tx<M>, Self::Rx<M>)> {
        <Flume as Channel>::open(capacity)
    }

    async fn send<M: Payload>(tx: &Self::Tx<M>, message: M) {
        tx.send_async(message).await.unwrap();
    }

    async fn recv<M: Payload>(rx: &mut Self::Rx<M>) -> Option<M> {
        rx.recv_async().await.ok()
    }
}

pub(crate) struct Kanal;

impl Channel for Kanal {
    const NAME: &'static str = "kanal";
    type Tx<M: Payload> = kanal::Sender<M>;
    type Rx<M: Payload> = kanal::Receiver<M>;

    fn open<M: Payload>(capacity: Option<usize>) -> Option<(Self::Tx<M>, Self::Rx<M>)> {
        Some(capacity.map_or_else(kanal::unbounded, kanal::bounded))
    }

    fn send<M: Payload>(tx: &Self::Tx<M>, message: M) {
        tx.send(message).unwrap();
    }

    fn recv<M: Payload>(rx: &mut Self::Rx<M>) -> Option<M> {
        rx.recv().ok()
    }

    fn try_send<M: Payload>(tx: &Self::Tx<M>, message: M) -> bool {
        tx.try_send(message).is_ok()
    }

    fn try_recv<M: Payload>(rx: &mut Self::Rx<M>) -> Option<M> {
        rx.try_recv().ok().flatten()
    }

    fn share<M: Payload>(rx: &Self::Rx<M>) -> Option<Self::Rx<M>> {
        Some(rx.clone())
    }
}

impl AsyncChannel for Kanal {
    const NAME: &'static str = "kanal";
    type Tx<M: Payload> = kanal::AsyncSender<M>;
    type Rx<M: Payload> = kanal::AsyncReceiver<M>;

    fn open<M: Payload>(capacity: Option<usize>) -> Option<(Self::Tx<M>, Self::Rx<M>)> {
        Some(capacity.map_or_else(kanal::unbounded_async, kanal::bounded_async))
    }

    async fn send<M: Payload>(tx: &Self::Tx<M>, message: M) {
        tx.send(message).await.unwrap();
    }

    async fn recv<M: Payload>(rx: &mut Self::Rx<M>) -> Option<M> {
        rx.recv().await.ok()
    }
}

pub(crate) struct AsyncChan;

impl Channel for AsyncChan {
    const NAME: &'static str = "async-channel";
    type Tx<M: Payload> = async_channel::Sender<M>;
    type Rx<M: Payload> = async_channel::Receiver<M>;

    fn open<M: Payload>(capacity: Option<usize>) -> Option<(Self::Tx<M>, Self::Rx<M>)> {
        Some(capacity.map_or_else(async_channel::unbounded, async_channel::bounded))
    }

    fn send<M: Payload>(tx: &Self::Tx<M>, message: M) {
        tx.send_blocking(message).unwrap();
    }

    fn recv<M: Payload>(rx: &mut Self::Rx<M>) -> Option<M> {
        rx.recv_blocking().ok()
    }

    fn try_send<M: Payload>(tx: &Self::Tx<M>, message: M) -> bool {
        tx.try_send(message).is_ok()
    }

    fn try_recv<M: Payload>(rx: &mut Self::Rx<M>) -> Option<M> {
        rx.try_recv().ok()
    }

    fn share<M: Payload>(rx: &Self::Rx<M>) -> Option<Self::Rx<M>> {
        Some(rx.clone())
    }
}

impl AsyncChannel for AsyncChan {
    const NAME: &'static str = "async-channel";
    type Tx<M: Payload> = async_channel::Sender<M>;
    type Rx<M: Payload> = async_channel::Receiver<M>;

    fn open<M: Payload>(capacity: Option<usize>) -> Option<(Self::Tx<M>, Self::Rx<M>)> {
        <AsyncChan as Channel>::open(capacity)
    }

    async fn send<M: Payload>(tx: &Self::Tx<M>, message: M) {
        tx.send(message).await.unwrap();
    }

    async fn recv<M: Payload>(rx: &mut Self::Rx<M>) -> Option<M> {
        rx.recv().await.ok()
    }
}

/// Tokio has different types for bounded and unbounded senders.
#[derive(Clone)]
pub(crate) enum TokioTx<M> {
    Bounded(tokio::sync::mpsc::Sender<M>),
    Unbounded(tokio::sync::mpsc::UnboundedSender<M>),
}

pub(crate) enum TokioRx<M> {
    Bounded(tokio::sync::mpsc::Receiver<M>),
    Unbounded(tokio::sync::mpsc::UnboundedReceiver<M>),
}

pub(crate) struct Tokio;

impl Channel for Tokio {
    const NAME: &'static str = "tokio-mpsc";
    type Tx<M: Payload> = TokioTx<M>;
    type Rx<M: Payload> = TokioRx<M>;

    fn open<M: Payload>(capacity: Option<usize>) -> Option<(Self::Tx<M>, Self::Rx<M>)> {
        Some(match capacity {
            Some(capacity) => {
                let (tx, rx) = tokio::sync::mpsc::channel(capacity);
                (TokioTx::Bounded(tx), TokioRx::Bounded(rx))
            }
            None => {
                let (tx, rx) = tokio::sync::mpsc::unbounded_channel();
                (TokioTx::Unbounded(tx), TokioRx::Unbounded(rx))
            }
        })
    }

    fn send<M: Payload>(tx: &Self::Tx<M>, message: M) {
        match tx {
            TokioTx::Bounded(tx) => tx.blocking_send(message).unwrap(),
            TokioTx::Unbounded(tx) => tx.send(message).unwrap(),
        }
    }

    fn recv<M: Payload>(rx: &mut Self::Rx<M>) -> Option<M> {
        match rx {
            TokioRx::Bounded(rx) => rx.blocking_recv(),
            TokioRx::Unbounded(rx) => rx.blocking_recv(),
        }
    }

    fn try_send<M: Payload>(tx: &Self::Tx<M>, message: M) -> bool {
        match tx {
            TokioTx::Bounded(tx) => tx.try_send(message).is_ok(),
            TokioTx::Unbounded(tx) => tx.send(message).is_ok(),
        }
    }

    fn try_recv<M: Payload>(rx: &mut Self::Rx<M>) -> Option<M> {
        match rx {
            TokioRx::Bounded(rx) => rx.try_recv().ok(),
            TokioRx::Unbounded(rx) => rx.try_recv().ok(),
        }
    }

    fn share<M: Payload>(_: &Self::Rx<M>) -> Option<Self::Rx<M>> {
        None
    }
}

impl AsyncChannel for Tokio {
    const NAME: &'static str = "tokio-mpsc";
    type Tx<M: Payload> = TokioTx<M>;
    type Rx<M: Payload> = TokioRx<M>;

    fn open<M: Payload>(capacity: Option<usize>) -> Option<(Self::Tx<M>, Self::Rx<M>)> {
        <Tokio as Channel>::open(capacity)
    }

    async fn send<M: Payload>(tx: &Self::Tx<M>, message: M) {
        match tx {
            TokioTx::Bounded(tx) => tx.send(message).await.unwrap(),
            TokioTx::Unbounded(tx) => tx.send(message).unwrap(),
        }
    }

    async fn recv<M: Payload>(rx: &mut Self::Rx<M>) -> Option<M> {
        match rx {
            TokioRx::Bounded(rx) => rx.recv().await,
            TokioRx::Unbounded(rx) => rx.recv().await,
        }
    }
}

/// The standard library has different types for bounded and unbounded senders.
#[derive(Clone)]
pub(crate) enum StdTx<M> {
    Bounded(std::sync::mpsc::SyncSender<M>),
    Unbounded(std::sync::mpsc::Sender<M>),
}

pub(crate) struct Std;

impl Channel for Std {
    const NAME: &'static str = "std-mpsc";
    type Tx<M: Payload> = StdTx<M>;
    type Rx<M: Payload> = std::sync::mpsc::Receiver<M>;

    fn open<M: Payload>(capacity: Option<usize>) -> Option<(Self::Tx<M>, Self::Rx<M>)> {
        Some(match capacity {
            Some(capacity) => {
                let (tx, rx) = std::sync::mpsc::sync_channel(capacity);
                (StdTx::Bounded(tx), rx)
            }
            None => {
                let (tx, rx) = std::sync::mpsc::channel();
                (StdTx::Unbounded(tx), rx)
            }
        })
    }

    fn send<M: Payload>(tx: &Self::Tx<M>, message: M) {
        match tx {
            StdTx::Bounded(tx) => tx.send(message).unwrap(),
            StdTx::Unbounded(tx) => tx.send(message).unwrap(),
        }
    }

    fn recv<M: Payload>(rx: &mut Self::Rx<M>) -> Option<M> {
        rx.recv().ok()
    }

    fn try_send<M: Payload>(tx: &Self::Tx<M>, message: M) -> bool {
        match tx {
            StdTx::Bounded(tx) => tx.try_send(message).is_ok(),
            StdTx::Unbounded(tx) => tx.send(message).is_ok(),
        }
    }

    fn try_recv<M: Payload>(rx: &mut Self::Rx<M>) -> Option<M> {
        rx.try_recv().ok()
    }

    fn share<M: Payload>(_: &Self::Rx<M>) -> Option<Self::Rx<M>> {
        None
    }
}

pub(crate) struct Thingbuf;

impl Channel for Thingbuf {
    const NAME: &'static str = "thingbuf";
    type Tx<M: Payload> = thingbuf::mpsc::blocking::Sender<M>;
    type Rx<M: Payload> = thingbuf::mpsc::blocking::Receiver<M>;

    fn open<M: Payload>(capacity: Option<usize>) -> Option<(Self::Tx<M>, Self::Rx<M>)> {
        capacity.map(thingbuf::mpsc::blocking::channel)
    }

    fn send<M: Payload>(tx: &Self::Tx<M>, message: M) {
        tx.send(message).unwrap();
    }

    fn recv<M: Payload>(rx: &mut Self::Rx<M>) -> Option<M> {
        rx.recv()
    }

    fn try_send<M: Payload>(tx: &Self::Tx<M>, message: M) -> bool {
        tx.try_send(message).is_ok()
    }

    fn try_recv<M: Payload>(rx: &mut Self::Rx<M>) -> Option<M> {
        rx.try_recv().ok()
    }

    fn share<M: Payload>(_: &Self::Rx<M>) -> Option<Self::Rx<M>> {
        None
    }
}

impl AsyncChannel for Thingbuf {
    const NAME: &'static str = "thingbuf";
    type Tx<M: Payload> = thingbuf::mpsc::Sender<M>;
    type Rx<M: Payload> = thingbuf::mpsc::Receiver<M>;

    fn open<M: Payload>(capacity: Option<usize>) -> Option<(Self::Tx<M>, Self::Rx<M>)> {
        capacity.map(thingbuf::mpsc::channel)
    }

    async fn send<M: Payload>(tx: &Self::Tx<M>, message: M) {
        tx.send(message).await.unwrap();
    }

    async fn recv<M: Payload>(rx: &mut Self::Rx<M>) -> Option<M> {
        rx.recv().await
    }
}
