//! A received message, and the lease that comes with it.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::backend::{Delivery, Headers, Receipt};
use crate::mailbox::Mailbox;
use crate::mailbox::codec::{ContentType, Encode, Json};
use crate::mailbox::handle::Core;
use crate::mailbox::id::{MessageId, ReceiptHandle, ReplyId};
use crate::mailbox::lease::{Finish, KeepAlive, Nack, SendReply};
use crate::mailbox::operation::Call;
use crate::mailbox::trace::{TRACEPARENT, TraceContext};
use crate::reply::ReplyChannel;
use crate::resolver::address::shown;

/// A message that was received, and the right to finish it.
///
/// It is leased until its visibility timeout: [`acknowledge`](Self::acknowledge) it, [`reply`](Self::reply) to it, give
/// it back by [`nack`](Self::nack), or it is delivered again. Dropping it does nothing: the lease runs on.
///
/// ```
/// use postbox::Mailbox;
/// use std::time::Duration;
///
/// # postbox_core::wait_for(async {
/// let mailbox: Mailbox<String> = postbox::open("memory://doc-message").await?;
/// mailbox.send("resize").attribute("tenant", "a").await?;
///
/// let messages = mailbox.receive().visibility_timeout(Duration::from_secs(60)).await?;
/// let message = &messages[0];
/// assert_eq!((message.body.as_str(), message.delivery_count), ("resize", 1));
/// assert_eq!(message.attributes["tenant"], "a");
/// message.acknowledge().await?;
/// # Ok::<(), postbox::Error>(())
/// # }).unwrap();
/// ```
#[non_exhaustive]
pub struct Message<T, R = (), C = Json> {
    /// Unique, and the same for every delivery of the message.
    pub id: MessageId,
    /// What was sent.
    pub body: T,
    /// How often the message was delivered, this time included.
    pub delivery_count: u32,
    /// When it was sent.
    pub enqueued_at: SystemTime,
    /// What the sender wrote on it.
    pub attributes: BTreeMap<String, String>,
    /// Proof of this delivery.
    pub receipt_handle: ReceiptHandle,
    /// Where an answer should go.
    pub reply_to: Option<String>,
    pub(crate) reply: Option<ReplyId>,
    pub(crate) content_type: ContentType,
    pub(crate) core: Arc<Core>,
    types: PhantomData<fn() -> (R, C)>,
}

/// The right to finish a message whose body has moved elsewhere: [`Message::into_parts`].
#[non_exhaustive]
pub struct Lease<R = (), C = Json> {
    /// Unique, and the same for every delivery of the message.
    pub id: MessageId,
    /// How often the message was delivered, this time included.
    pub delivery_count: u32,
    /// When it was sent.
    pub enqueued_at: SystemTime,
    /// What the sender wrote on it.
    pub attributes: BTreeMap<String, String>,
    /// Proof of this delivery.
    pub receipt_handle: ReceiptHandle,
    /// Where an answer should go.
    pub reply_to: Option<String>,
    pub(crate) reply: Option<ReplyId>,
    pub(crate) content_type: ContentType,
    pub(crate) core: Arc<Core>,
    types: PhantomData<fn() -> (R, C)>,
}

impl<T, R, C> Message<T, R, C> {
    /// A message of a delivery, without its headers. Identifiers are copied by words: moved, they would go in other pieces than they
    /// were written in, which stalls the processor.
    #[inline(always)]
    pub(crate) fn new(core: &Arc<Core>, delivery: &Delivery, body: T) -> Self {
        Message {
            enqueued_at: delivery.enqueued_at.into(),
            core: Arc::clone(core),
            id: delivery.id.clone(),
            body,
            delivery_count: delivery.delivery_count,
            attributes: BTreeMap::new(),
            receipt_handle: delivery.receipt_handle.clone(),
            reply_to: None,
            reply: None,
            content_type: delivery.content_type.clone(),
            types: PhantomData,
        }
    }

    /// What the sender wrote on it, which most messages have nothing of.
    #[inline]
    pub(crate) fn set_headers(&mut self, headers: Option<Arc<Headers>>) {
        if let Some(headers) = headers.map(Arc::unwrap_or_clone) {
            (self.reply_to, self.reply, self.attributes) = (headers.reply_to, headers.reply, headers.attributes);
            self.enqueued_at = headers.enqueued_at.unwrap_or(self.enqueued_at);
        }
    }

    /// The body and the lease, when the body must move.
    pub fn into_parts(self) -> (T, Lease<R, C>) {
        let lease = Lease {
            id: self.id,
            delivery_count: self.delivery_count,
            enqueued_at: self.enqueued_at,
            attributes: self.attributes,
            receipt_handle: self.receipt_handle,
            reply_to: self.reply_to,
            reply: self.reply,
            content_type: self.content_type,
            core: self.core,
            types: PhantomData,
        };
        (self.body, lease)
    }
}

/// What can be done with a lease; the same on a message.
macro_rules! acts {
    () => {
        pub(crate) fn receipt(&self) -> Receipt {
            Receipt { id: self.id.clone(), handle: self.receipt_handle.clone() }
        }

        /// Finishes the message: it is never delivered again.
        ///
        /// # Errors
        /// [`ReceiptHandleExpired`](crate::Error::ReceiptHandleExpired) if the lease has ended;
        /// [`ReplyExpected`](crate::Error::ReplyExpected) if the message wants an answer.
        pub fn acknowledge(&self) -> Finish {
            Finish::acknowledge(Arc::clone(&self.core), self.receipt(), self.expects_reply())
        }

        /// Gives the message back, to be delivered again: at once, or after
        /// [`visibility_timeout`](Nack::visibility_timeout).
        ///
        /// # Errors
        /// [`ReceiptHandleExpired`](crate::Error::ReceiptHandleExpired) if the lease has ended.
        pub fn nack(&self) -> Nack {
            Nack::new(Arc::clone(&self.core), self.receipt())
        }

        /// Gives the message back as if it had not been delivered: to its old place, and this delivery does not count. For a
        /// message that nothing was done with. Where [`exact_deliveries`](crate::backend::Limits::exact_deliveries) is false,
        /// it counts, and the message joins the tail.
        ///
        /// # Errors
        /// [`ReceiptHandleExpired`](crate::Error::ReceiptHandleExpired) if the lease has ended.
        pub fn release(&self) -> Finish {
            Finish::release(Arc::clone(&self.core), self.receipt())
        }

        /// How the body is encoded, as the sender marked it.
        pub const fn content_type(&self) -> &ContentType {
            &self.content_type
        }

        /// Keeps the lease for so long from now. A lease is never made shorter.
        ///
        /// # Errors
        /// [`ReceiptHandleExpired`](crate::Error::ReceiptHandleExpired) if the lease has ended.
        pub fn extend_visibility(&self, timeout: Duration) -> Finish {
            Finish::extend(Arc::clone(&self.core), self.receipt(), timeout)
        }

        /// Moves the message to the dead letters of its mailbox. A reply that is awaited stays pending: a redrive may
        /// still answer it.
        ///
        /// # Errors
        /// [`ReceiptHandleExpired`](crate::Error::ReceiptHandleExpired) if the lease has ended.
        pub fn dead_letter(&self, reason: impl Into<String>) -> Finish {
            Finish::dead_letter(Arc::clone(&self.core), self.receipt(), reason.into())
        }

        /// Whether the sender waits for a reply in the reply store.
        pub fn expects_reply(&self) -> bool {
            self.reply.is_some()
        }

        /// Keeps the answer in the reply store, then finishes the message.
        ///
        /// # Errors
        /// [`NoReplyChannel`](crate::Error::NoReplyChannel) if none is expected.
        /// [`ReceiptHandleExpired`](crate::Error::ReceiptHandleExpired) if the lease has ended: then nothing was kept,
        /// unless it ended in the very moment between keeping and finishing.
        /// [`ReplyAlreadySent`](crate::Error::ReplyAlreadySent), [`ReplyCancelled`](crate::Error::ReplyCancelled) or
        /// [`ReplyExpired`](crate::Error::ReplyExpired) if nobody wants the answer any more; then the message is
        /// finished. Any other error: the message stays leased, and comes back.
        pub fn reply<B: ?Sized>(&self, answer: &B) -> SendReply
        where
            R: Borrow<B>,
            C: Encode<B>,
        {
            SendReply::new(
                Arc::clone(&self.core),
                self.receipt(),
                self.reply.clone(),
                C::encode(answer),
                C::CONTENT_TYPE,
            )
        }

        /// Where the answer is written, to answer and to finish in two steps. `None` if none is expected.
        pub fn reply_channel(&self) -> Option<ReplyChannel<R, C>> {
            let store = self.core.replies.clone()?;
            Some(ReplyChannel::new(store, self.reply.clone()?))
        }

        /// The mailbox that `reply_to` names, to send an answer to.
        ///
        /// # Errors
        /// [`ReplyMailboxUnavailable`](crate::Error::ReplyMailboxUnavailable) if there is no `reply_to`, no resolver, or
        /// no such mailbox.
        pub fn reply_mailbox<A>(&self) -> Call<Result<Mailbox<A, (), C>, crate::Error>>
        where
            A: 'static,
            C: 'static,
        {
            crate::resolver::reply_mailbox(self.core.resolver.clone(), self.reply_to.clone())
        }

        /// Keeps the lease alive from now on, by extending it to `visibility` again and again, for at most `cap`, until
        /// what comes back is dropped. The background does it: a handler that blocks its thread keeps its lease too.
        /// A `visibility` beyond [`Limits::max_visibility`](crate::backend::Limits::max_visibility) is that limit.
        pub fn keep_alive(&self, visibility: Duration, cap: Duration) -> KeepAlive {
            KeepAlive::start(Arc::clone(&self.core), self.receipt(), visibility, cap)
        }

        /// The trace that the message belongs to.
        pub fn trace_context(&self) -> Option<TraceContext> {
            self.attributes.get(TRACEPARENT)?.parse().ok()
        }
    };
}

impl<T, R, C> Message<T, R, C> {
    acts!();
}

impl<R, C> Lease<R, C> {
    acts!();
}

impl<T: fmt::Debug, R, C> fmt::Debug for Message<T, R, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("id", &self.id)
            .field("body", &self.body)
            .field("delivery_count", &self.delivery_count)
            .field("attributes", &self.attributes)
            .field("reply_to", &self.reply_to.as_deref().map(shown))
            .field("expects_reply", &self.expects_reply())
            .finish_non_exhaustive()
    }
}

impl<R, C> fmt::Debug for Lease<R, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("id", &self.id)
            .field("delivery_count", &self.delivery_count)
            .field("expects_reply", &self.expects_reply())
            .finish_non_exhaustive()
    }
}
