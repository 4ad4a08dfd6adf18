//! One attempt at a message: the handler runs, its answer is sent, and the message is settled.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt as _;
use tracing::{Instrument as _, debug, info_span, warn};

use super::context::{Context, Inner};
use super::engine::Engine;
use super::handler::{HandlerError, Next};
use super::in_flight::InFlight;

use super::{Backoff, LoopEvent, LoopReport};
use crate::error::Error;
use crate::mailbox::codec::{Codec, Decode, Encode};
use crate::mailbox::id::MessageId;
use crate::mailbox::message::Lease;
use crate::mailbox::trace::InTrace;

impl<T, R, C> Engine<T, R, C>
where
    T: Send + 'static,
    R: Send + 'static,
    C: Codec + Encode<R> + Decode<T>,
{
    pub(super) async fn work(&self) {
        while let Ok(in_flight) = self.buffer.recv().await {
            if self.is_shut_down.load(Ordering::SeqCst) {
                // Dropping the message gives it back before a handler sees it.
                continue;
            }
            // The answer belongs to the trace of the message too.
            let attributes = in_flight.message.attributes.clone();
            InTrace::of(&attributes, self.process(in_flight)).await;
        }
    }

    async fn process(&self, in_flight: InFlight<T, R, C>) {
        let InFlight { message, renewal, mut guard } = in_flight;
        if renewal.lost.is_cancelled() {
            // The lease was lost before a handler was free: another consumer may have the message.
            self.unfinished(&message.id, &Error::ReceiptHandleExpired { id: message.id.clone() });
            return guard.finish();
        }
        let context = Context::new(Inner {
            message_id: message.id.clone(),
            delivery_count: message.delivery_count,
            enqueued_at: message.enqueued_at,
            attributes: message.attributes.clone(),
            reply_to: message.reply_to.clone(),
            expects_reply: message.expects_reply(),
            cancellation: renewal.lost.clone(),
            resources: self.options.resources.clone(),
            request: None,
        });
        let span = info_span!(
            "postbox.handle",
            mailbox = %self.mailbox.name(),
            id = %message.id,
            delivery_count = message.delivery_count,
            traceparent = message.attributes.get(crate::mailbox::trace::TRACEPARENT).map(String::as_str),
        );
        guard.begin();
        let clock = &self.mailbox.core.clock;
        let start = clock.now();
        let (body, lease) = message.into_parts();
        let handling = async { (self.handler)(body, context).await };
        let handled = AssertUnwindSafe(handling).catch_unwind().instrument(span).await;
        let took = start.until(clock.now());
        self.metrics.took.record(took.as_secs_f64());
        let finishing = async {
            match handled {
                Ok(Ok(answer)) => {
                    self.metrics.succeeded.increment(1);
                    self.publish(|| LoopEvent::Succeeded { id: lease.id.clone(), took });
                    self.answer(&lease, answer).await;
                }
                Ok(Err(error)) => self.failed(&lease, error).await,
                Err(panic) => self.failed(&lease, HandlerError::from_panic(&*panic)).await,
            }
        };
        // The codec and the rule of the backoff are the user's code, which may panic.
        if let Err(panic) = AssertUnwindSafe(finishing).catch_unwind().await {
            let error = HandlerError::from_panic(&*panic);
            warn!(mailbox = %self.mailbox.name(), id = %lease.id, %error, "finishing failed");
            self.publish(|| LoopEvent::AnswerFailed { id: lease.id.clone(), error: error.to_string() });
            self.retry(&lease, &error.to_string(), Backoff::default().after(lease.delivery_count)).await;
        }
        // Until here the end of the loop would have given the message back.
        drop(renewal);
        guard.finish();
    }

    /// Sends the answer, and finishes the message.
    async fn answer(&self, lease: &Lease<R, C>, answer: R) {
        let (sent, answer) = self.send(lease, answer).await;
        let sent = match (sent, &self.options.substitute) {
            // The answer cannot be encoded the next time either.
            (Err(Error::Serialization { reason, .. }), Some(substitute)) => {
                let instead = substitute(&answer, &reason);
                self.send(lease, instead).await.0
            }
            (sent, _) => sent,
        };
        match sent {
            Ok(true) => self.stats.count(|report| &mut report.succeeded),
            Ok(false) => self.settled(lease, lease.acknowledge().await, |report| &mut report.succeeded),
            Err(error @ Error::ReceiptHandleExpired { .. }) => self.unfinished(&lease.id, &error),
            Err(error) => {
                warn!(id = %lease.id, %error, "the answer could not be sent");
                self.publish(|| LoopEvent::AnswerFailed { id: lease.id.clone(), error: error.to_string() });
                match error {
                    Error::Serialization { reason, .. } => self.dead_letter(lease, &reason).await,
                    error => {
                        let after = self.options.backoff.after(lease.delivery_count);
                        self.retry(lease, &error.to_string(), after).await;
                    }
                }
            }
        }
    }

    /// Sends an answer, and returns it. `true` if that has also finished the message.
    async fn send(&self, lease: &Lease<R, C>, answer: R) -> (Result<bool, Error>, R) {
        let sent = if lease.expects_reply() {
            match lease.reply(&answer).await {
                Err(
                    error
                    @ (Error::ReplyAlreadySent { .. } | Error::ReplyCancelled { .. } | Error::ReplyExpired { .. }),
                ) => {
                    debug!(id = %lease.id, %error, "the requester no longer waits for the answer; the message is finished");
                    Ok(true)
                }
                replied => replied.map(|()| true),
            }
        } else if lease.reply_to.is_some() {
            match lease.reply_mailbox::<R>().await {
                Ok(mailbox) => mailbox.send(&answer).await.map(|_| false),
                Err(error) => Err(error),
            }
        } else if let Some(responses) = &self.options.responses {
            responses.send(&answer).await.map(|_| false)
        } else {
            if self.options.warns {
                warn!(id = %lease.id, "the answer has no address: no reply channel, no reply_to, no responses mailbox");
            }
            Ok(false)
        };
        (sent, answer)
    }

    async fn failed(&self, lease: &Lease<R, C>, error: HandlerError) {
        let (id, delivery_count) = (&lease.id, lease.delivery_count);
        self.metrics.failed.increment(1);
        warn!(mailbox = %self.mailbox.name(), %id, delivery_count, %error, "the handler failed");
        self.publish(|| LoopEvent::Failed { id: id.clone(), delivery_count, error: error.to_string() });
        match error.next {
            Next::DeadLetter => self.dead_letter(lease, &error.to_string()).await,
            Next::RetryAfter(after) => self.retry(lease, &error.to_string(), after).await,
            Next::Retry => self.retry(lease, &error.to_string(), self.options.backoff.after(delivery_count)).await,
            Next::GiveBack => self.settled(lease, lease.nack().await, |report| &mut report.given_back),
            Next::Release => self.settled(lease, lease.release().await, |report| &mut report.given_back),
        }
    }

    /// Gives the message back, unless this was its last attempt.
    async fn retry(&self, lease: &Lease<R, C>, reason: &str, after: Duration) {
        if self.options.max_attempts.is_some_and(|most| lease.delivery_count >= most) {
            return self.dead_letter(lease, reason).await;
        }
        let after = after.min(self.mailbox.limits().max_visibility);
        self.settled(lease, lease.nack().visibility_timeout(after).await, |report| &mut report.retried);
    }

    async fn dead_letter(&self, lease: &Lease<R, C>, reason: &str) {
        self.settled(lease, lease.dead_letter(reason).await, |report| &mut report.dead_lettered);
    }

    /// Counts a message that was settled, or reports that it could not be.
    fn settled(&self, lease: &Lease<R, C>, result: Result<(), Error>, field: impl FnOnce(&mut LoopReport) -> &mut u64) {
        match result {
            Ok(()) => self.stats.count(field),
            Err(error) => self.unfinished(&lease.id, &error),
        }
    }

    fn unfinished(&self, id: &MessageId, error: &Error) {
        self.stats.count(|report| &mut report.unfinished);
        warn!(mailbox = %self.mailbox.name(), %id, %error, "the message could not be finished; it will come back");
        self.publish(|| LoopEvent::Unfinished { id: id.clone(), error: error.to_string() });
    }
}
