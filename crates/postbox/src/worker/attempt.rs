//! A message is handled once, and what becomes of it.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt as _;
use tracing::{Instrument as _, debug, info_span, warn};

use super::context::{Context, Inner};
use super::engine::Shared;
use super::handler::{HandlerError, Next};
use super::item::Item;
use super::tally::count;
use super::{Backoff, LoopEvent};
use crate::error::Error;
use crate::mailbox::codec::{Codec, Decode, Encode};
use crate::mailbox::id::MessageId;
use crate::mailbox::message::Lease;
use crate::mailbox::trace::InTrace;

impl<T, R, C> Shared<T, R, C>
where
    T: Send + 'static,
    R: Send + 'static,
    C: Codec + Encode<R> + Decode<T>,
{
    pub(super) async fn work(&self) {
        while let Ok(item) = self.buffer.recv().await {
            if self.is_shut_down.load(Ordering::SeqCst) {
                // Dropped, so given back, before a handler sees it.
                continue;
            }
            // What the answer is sent with belongs to the trace of the message too.
            let attributes = item.message.attributes.clone();
            InTrace::of(&attributes, self.process(item)).await;
        }
    }

    async fn process(&self, item: Item<T, R, C>) {
        let Item { message, keeping, mut guard } = item;
        if keeping.lost.is_cancelled() {
            // The lease was lost before it was its turn: another consumer may have the message.
            guard.receipt = None;
            let error = Error::ReceiptHandleExpired { id: message.id.clone() };
            return self.unfinished(&message.id, &error);
        }
        let context = Context::new(Inner {
            message_id: message.id.clone(),
            delivery_count: message.delivery_count,
            enqueued_at: message.enqueued_at,
            attributes: message.attributes.clone(),
            reply_to: message.reply_to.clone(),
            expects_reply: message.expects_reply(),
            cancellation: keeping.lost.clone(),
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
        guard.is_begun = true;
        let clock = &self.mailbox.core.clock;
        let start = clock.now();
        let (body, lease) = message.into_parts();
        let handling = async { (self.handler)(body, context).await };
        let handled = AssertUnwindSafe(handling).catch_unwind().instrument(span).await;
        let took = start.until(clock.now());
        self.meters.took.record(took.as_secs_f64());
        let finishing = async {
            match handled {
                Ok(Ok(answer)) => {
                    self.meters.succeeded.increment(1);
                    self.tell(|| LoopEvent::Succeeded { id: lease.id.clone(), took });
                    self.answer(&lease, answer).await;
                }
                Ok(Err(error)) => self.failed(&lease, error).await,
                Err(panic) => self.failed(&lease, HandlerError::from_panic(&*panic)).await,
            }
        };
        // Encoding the answer and the rule of the backoff are code of the user's, too.
        if let Err(panic) = AssertUnwindSafe(finishing).catch_unwind().await {
            let error = HandlerError::from_panic(&*panic);
            warn!(mailbox = %self.mailbox.name(), id = %lease.id, %error, "finishing failed");
            self.tell(|| LoopEvent::AnswerFailed { id: lease.id.clone(), error: error.to_string() });
            self.retry(&lease, &error.to_string(), Backoff::default().after(lease.delivery_count)).await;
        }
        // Until here an end of the loop would have given it back.
        guard.receipt = None;
        drop(keeping);
    }

    /// Sends the answer to whom it may concern, and finishes the message.
    async fn answer(&self, lease: &Lease<R, C>, answer: R) {
        let (sent, answer) = self.send(lease, answer).await;
        let sent = match (sent, &self.options.substitute) {
            // What cannot be encoded will not be encoded next time either.
            (Err(Error::Serialization { reason, .. }), Some(substitute)) => {
                let instead = substitute(&answer, &reason);
                self.send(lease, instead).await.0
            }
            (sent, _) => sent,
        };
        match sent {
            Ok(true) => count(&self.tally.succeeded),
            Ok(false) => match lease.acknowledge().await {
                Ok(()) => count(&self.tally.succeeded),
                Err(error) => self.unfinished(&lease.id, &error),
            },
            Err(error @ Error::ReceiptHandleExpired { .. }) => self.unfinished(&lease.id, &error),
            Err(error) => {
                warn!(id = %lease.id, %error, "the answer could not be sent");
                self.tell(|| LoopEvent::AnswerFailed { id: lease.id.clone(), error: error.to_string() });
                match error {
                    Error::Serialization { reason, .. } => self.bury(lease, &reason).await,
                    error => {
                        let after = self.options.backoff.after(lease.delivery_count);
                        self.retry(lease, &error.to_string(), after).await;
                    }
                }
            }
        }
    }

    /// Sends the answer, and gives it back. `true` if the message is finished by that.
    async fn send(&self, lease: &Lease<R, C>, answer: R) -> (Result<bool, Error>, R) {
        let sent = if lease.expects_reply() {
            match lease.reply(&answer).await {
                Err(
                    error
                    @ (Error::ReplyAlreadySent { .. } | Error::ReplyCancelled { .. } | Error::ReplyExpired { .. }),
                ) => {
                    debug!(id = %lease.id, %error, "the answer is not wanted any more; the message is finished");
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
        self.meters.failed.increment(1);
        warn!(mailbox = %self.mailbox.name(), %id, delivery_count, %error, "the handler failed");
        self.tell(|| LoopEvent::Failed { id: id.clone(), delivery_count, error: error.to_string() });
        match error.next {
            Next::DeadLetter => self.bury(lease, &error.to_string()).await,
            Next::RetryAfter(after) => self.retry(lease, &error.to_string(), after).await,
            Next::Retry => self.retry(lease, &error.to_string(), self.options.backoff.after(delivery_count)).await,
            Next::GiveBack => self.given_back(lease, lease.nack().await),
            Next::Release => self.given_back(lease, lease.release().await),
        }
    }

    fn given_back(&self, lease: &Lease<R, C>, result: Result<(), Error>) {
        match result {
            Ok(()) => count(&self.tally.given_back),
            Err(error) => self.unfinished(&lease.id, &error),
        }
    }

    /// Gives the message back, unless this was its last attempt.
    async fn retry(&self, lease: &Lease<R, C>, reason: &str, after: Duration) {
        if self.options.max_attempts.is_some_and(|most| lease.delivery_count >= most) {
            return self.bury(lease, reason).await;
        }
        let after = after.min(self.mailbox.limits().max_visibility);
        match lease.nack().visibility_timeout(after).await {
            Ok(()) => count(&self.tally.retried),
            Err(error) => self.unfinished(&lease.id, &error),
        }
    }

    async fn bury(&self, lease: &Lease<R, C>, reason: &str) {
        match lease.dead_letter(reason).await {
            Ok(()) => count(&self.tally.dead_lettered),
            Err(error) => self.unfinished(&lease.id, &error),
        }
    }

    fn unfinished(&self, id: &MessageId, error: &Error) {
        count(&self.tally.unfinished);
        warn!(mailbox = %self.mailbox.name(), %id, %error, "the message could not be finished; it will come back");
        self.tell(|| LoopEvent::Unfinished { id: id.clone(), error: error.to_string() });
    }
}
