//! Receiving: a builder, and a stream.

use std::collections::VecDeque;
use std::future::Future;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;
use rand::RngExt as _;
use tracing::warn;

use crate::backend::{Delivery, Receipt, Receive, Visibility};
use crate::error::Error;
use crate::mailbox::codec::{CodecError, ContentType, Decode};
use crate::mailbox::dispatcher::MailboxEvent;
use crate::mailbox::handle::{Core, Settlement};
use crate::mailbox::message::Message;
use crate::mailbox::operation::{Answer, Verb, awaitable, on_waiting_thread};
use crate::mailbox::ranges::check_duration;
use crate::runtime::background;
use crate::runtime::clock::Sleep;

/// After this number of deliveries, a message whose body cannot be decoded becomes a dead letter. For handles that were opened
/// without `max_deliveries`.
pub const UNDECODABLE_DELIVERIES: u32 = 5;

/// A receive: [`Mailbox::receive`](crate::Mailbox::receive).
#[must_use = "nothing is received unless it is awaited, or `blocking`"]
pub struct ReceiveMessages<T, R, C> {
    core: Arc<Core>,
    request: Receive,
    types: PhantomData<fn() -> (T, R, C)>,
}

impl<T, R, C> std::fmt::Debug for ReceiveMessages<T, R, C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReceiveMessages").field("request", &self.request).finish_non_exhaustive()
    }
}

impl<T, R, C> ReceiveMessages<T, R, C> {
    pub(crate) const fn new(core: Arc<Core>) -> Self {
        let request = Receive { max: 1, visibility: Duration::from_secs(30), wait: Duration::ZERO };
        ReceiveMessages { core, request, types: PhantomData }
    }

    /// The most messages. Default: 1.
    pub fn max_messages(mut self, max: usize) -> Self {
        self.request.max = max;
        self
    }

    /// How long the messages are leased. Default: 30 seconds.
    pub fn visibility_timeout(mut self, timeout: Duration) -> Self {
        self.request.visibility = timeout;
        self
    }

    /// How long to wait for a first message. Default: no wait.
    pub fn wait_time(mut self, wait: Duration) -> Self {
        self.request.wait = wait;
        self
    }

    fn check(&self) -> Result<(), Error> {
        let (core, request) = (&self.core, &self.request);
        core.check_batch("max_messages", request.max)?;
        check_duration("visibility_timeout", request.visibility, core.limits.max_visibility)?;
        check_duration("wait_time", request.wait, core.limits.max_wait)
    }
}

impl<T, R, C> Verb for ReceiveMessages<T, R, C>
where
    T: Send + 'static,
    R: 'static,
    C: Decode<T>,
{
    type Output = Result<Vec<Message<T, R, C>>, Error>;

    fn start(self) -> Answer<Self::Output> {
        if let Err(error) = self.check() {
            return Answer::ready(Err(error));
        }
        let core = self.core;
        match core.receive(self.request).split() {
            Ok(Ok(deliveries)) => Answer::ready(decode_all(core, deliveries)),
            Ok(Err(error)) => Answer::ready(Err(error)),
            Err(future) => Answer::from_future(async move {
                // Decoded in the poll that ends the receive, so that no delivery is lost with a dropped future.
                future.await.and_then(|deliveries| decode_all(core, deliveries))
            }),
        }
    }
}

awaitable!(ReceiveMessages<T, R, C> where T: Send + 'static, R: 'static, C: Decode<T>);

fn decode_all<T, R, C: Decode<T>>(
    core: Arc<Core>,
    mut deliveries: Vec<Delivery>,
) -> Result<Vec<Message<T, R, C>>, Error> {
    if let [delivery] = &mut deliveries[..] {
        let body = decode_one::<T, C>(&core, delivery)?;
        let mut message = Message::new(&core, delivery, body);
        message.set_headers(delivery.headers.take());
        return Ok(vec![message]);
    }
    let mut bodies = Vec::with_capacity(deliveries.len());
    let mut bad = None;
    deliveries.retain_mut(|delivery| match decode_one::<T, C>(&core, delivery) {
        Ok(body) => {
            bodies.push(body);
            true
        }
        Err(error) => {
            bad = bad.take().or(Some(error));
            false
        }
    });
    if let Some(error) = bad.filter(|_| bodies.is_empty()) {
        return Err(error);
    }
    // Nothing below can fail, so each message is constructed in place.
    let parts = deliveries.iter().zip(bodies);
    let mut messages: Vec<_> = parts.map(|(delivery, body)| Message::new(&core, delivery, body)).collect();
    for (message, delivery) in messages.iter_mut().zip(&mut deliveries) {
        message.set_headers(delivery.headers.take());
    }
    Ok(messages)
}

/// Decodes the body of a delivery, and takes it out.
#[inline(always)]
fn decode_one<T, C: Decode<T>>(core: &Arc<Core>, delivery: &mut Delivery) -> Result<T, Error> {
    match decode::<T, C>(std::mem::take(&mut delivery.body), &delivery.content_type) {
        Ok(body) => Ok(body),
        Err(reason) => Err(undecodable(core, delivery, reason)),
    }
}

/// Decodes a body. A decoder that panics has failed.
#[inline]
pub(crate) fn decode<T, C: Decode<T>>(body: Bytes, content_type: &ContentType) -> Result<T, String> {
    if !C::reads(content_type) {
        return Err(format!("it is {content_type}, and this mailbox reads {}", C::CONTENT_TYPE));
    }
    let mut decoded = None;
    let _ = catch_unwind(AssertUnwindSafe(|| decoded = Some(C::decode_owned(body))));
    decoded.unwrap_or(Err(CodecError::Borrowed("the decoder panicked"))).map_err(Into::into)
}

/// Reports a body that cannot be decoded. Its message stays leased and is delivered again, or is dead-lettered.
#[cold]
fn undecodable(core: &Arc<Core>, delivery: &Delivery, reason: String) -> Error {
    let (id, delivery_count) = (&delivery.id, delivery.delivery_count);
    let error = Error::decoding(id, &reason);
    core.meters.undecodable.increment(1);
    warn!(mailbox = %core.name, %id, delivery_count, reason, "undecodable");
    core.tell(|mailbox| MailboxEvent::Undecodable { mailbox, id: id.clone(), delivery_count, reason: reason.clone() });
    if delivery_count >= core.settings.max_deliveries.unwrap_or(UNDECODABLE_DELIVERIES) {
        let receipt = Receipt { id: id.clone(), handle: delivery.receipt_handle.clone() };
        in_background(core.settle(receipt, Settlement::DeadLetter(reason)));
    }
    error
}

/// The pause after a number of failures in a row: 50 to 100 ms after the first, doubling up to 30 s, with jitter.
pub(crate) fn pause_after(failures: u32) -> Duration {
    let longest = Duration::from_millis(50).saturating_mul(1 << failures.clamp(1, 10)).min(Duration::from_secs(30));
    longest.mul_f64(rand::rng().random_range(0.5..1.0))
}

/// Completes an operation whose result is not used.
pub(crate) fn in_background<T: Send + 'static>(answer: Answer<T>) {
    if let Err(future) = answer.split() {
        background::spawn(async move {
            future.await;
        });
    }
}

/// An endless stream of messages: [`Mailbox::stream`](crate::Mailbox::stream).
///
/// It ends when the mailbox is closed, or after [`InvalidParameter`](Error::InvalidParameter). After any other error it goes on,
/// and pauses between failures in a row; a caller that sees a permanent error stops polling. Messages that were fetched and not
/// yet returned are released when the stream is dropped.
#[must_use = "a stream does nothing unless it is polled"]
pub struct MessageStream<T, R, C> {
    core: Arc<Core>,
    request: Receive,
    running: Option<Answer<Result<Vec<Message<T, R, C>>, Error>>>,
    fetched: VecDeque<Message<T, R, C>>,
    /// Failures in a row, and the pause after the last one.
    failures: u32,
    pause: Option<Sleep>,
    ended: bool,
}

impl<T, R, C> MessageStream<T, R, C>
where
    T: Send + 'static,
    R: 'static,
    C: Decode<T>,
{
    pub(crate) fn new(core: Arc<Core>) -> Self {
        let wait = Duration::from_secs(20).min(core.limits.max_wait);
        let request = Receive { max: 1, visibility: Duration::from_secs(30), wait };
        MessageStream { core, request, running: None, fetched: VecDeque::new(), failures: 0, pause: None, ended: false }
    }

    /// The most messages that are fetched at once. Their leases run while they wait in the stream. Default: 1.
    pub fn max_messages(mut self, max: usize) -> Self {
        self.request.max = max;
        self
    }

    /// How long each message is leased. Default: 30 seconds.
    pub fn visibility_timeout(mut self, timeout: Duration) -> Self {
        self.request.visibility = timeout;
        self
    }

    /// The same stream as an iterator that blocks this thread.
    ///
    /// ```
    /// # let mailbox: postbox::Mailbox<u32> = postbox::open("memory://doc-stream-blocking").blocking()?;
    /// mailbox.send_batch(&[1, 2, 3]).blocking()?;
    /// let numbers: Result<Vec<u32>, postbox::Error> =
    ///     mailbox.stream().blocking().take(3).map(|message| Ok(message?.body)).collect();
    /// assert_eq!(numbers?, [1, 2, 3]);
    /// # mailbox.purge().blocking()?;
    /// # Ok::<(), postbox::Error>(())
    /// ```
    pub fn blocking(self) -> impl Iterator<Item = Result<Message<T, R, C>, Error>> {
        let mut stream = self;
        std::iter::from_fn(move || {
            on_waiting_thread(|| {
                postbox_core::wait_for(std::future::poll_fn(|context| Pin::new(&mut stream).poll_next(context)))
            })
        })
    }
}

impl<T, R, C> Unpin for MessageStream<T, R, C> {}

impl<T, R, C> Stream for MessageStream<T, R, C>
where
    T: Send + 'static,
    R: 'static,
    C: Decode<T>,
{
    type Item = Result<Message<T, R, C>, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(message) = self.fetched.pop_front() {
                return Poll::Ready(Some(Ok(message)));
            }
            if let Some(pause) = &mut self.pause {
                std::task::ready!(Pin::new(pause).poll(context));
                self.pause = None;
            }
            if self.running.is_none() {
                if self.ended || self.core.closed.is_cancelled() {
                    return Poll::Ready(None);
                }
                let receive =
                    ReceiveMessages { core: Arc::clone(&self.core), request: self.request, types: PhantomData };
                self.running = Some(receive.start());
            }
            let Some(running) = &mut self.running else { continue };
            let result = std::task::ready!(Pin::new(running).poll(context));
            self.running = None;
            match result {
                Ok(messages) => {
                    self.failures = 0;
                    self.fetched.extend(messages);
                    if self.fetched.is_empty() {
                        // A backend that does not wait must not keep this task from yielding.
                        context.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                }
                Err(error) => {
                    self.ended = matches!(error, Error::InvalidParameter { .. });
                    if !matches!(error, Error::Serialization { .. }) {
                        self.failures += 1;
                        let pause = pause_after(self.failures);
                        let clock = &self.core.clock;
                        self.pause = clock.start().is_ok().then(|| Sleep::for_(Arc::clone(clock), pause));
                    }
                    return Poll::Ready(Some(Err(error)));
                }
            }
        }
    }
}

impl<T, R, C> Drop for MessageStream<T, R, C> {
    fn drop(&mut self) {
        if self.fetched.is_empty() {
            return;
        }
        let back = self.fetched.drain(..).map(|message| (message.receipt(), Visibility::Release));
        in_background(self.core.set_visibility(back.collect()));
    }
}

impl<T, R, C> std::fmt::Debug for MessageStream<T, R, C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MessageStream").field("fetched", &self.fetched.len()).finish_non_exhaustive()
    }
}
