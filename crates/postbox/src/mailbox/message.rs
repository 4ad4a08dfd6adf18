//! A received message, and the lease that comes with it.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::backend::{Delivery, Headers, Receipt, Visibility};
use crate::error::Error;
use crate::mailbox::Mailbox;
use crate::mailbox::codec::{ContentType, Encode, Json};
use crate::mailbox::handle::{Core, Settlement};
use crate::mailbox::id::{MessageId, ReceiptHandle, ReplyId};
use crate::mailbox::lease::{KeepAlive, Nack, SendReply, Settle};
use crate::mailbox::operation::Call;
use crate::mailbox::trace::{TRACEPARENT, TraceContext};
use crate::reply::ReplyChannel;
use crate::resolver::address::shown;

/// A received message: its body, and the [`Lease`] that allows this consumer to settle it.
///
/// A message dereferences to its lease, so the fields and methods of the lease are those of the message:
/// `message.id`, `message.attributes`, `message.acknowledge()`.
///
/// The message is leased until its visibility timeout ends. [`acknowledge`](Lease::acknowledge) it,
/// [`reply`](Lease::reply) to it, or give it back with [`nack`](Lease::nack); otherwise it is delivered again.
/// Dropping a message does nothing: its lease runs on.
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
    /// The decoded body.
    pub body: T,
    /// The right to settle this delivery, with the metadata of the message.
    pub lease: Lease<R, C>,
}

/// The right to settle one delivery of a message, until a deadline.
///
/// A lease is part of its [`Message`]. Where the body must move elsewhere, [`Message::into_parts`] separates the two.
///
/// ```
/// use postbox::Mailbox;
///
/// let mailbox: Mailbox<Vec<u8>> = postbox::open("memory://doc-lease").blocking()?;
/// mailbox.send(&[1, 2, 3][..]).blocking()?;
///
/// let (body, lease) = mailbox.receive().blocking()?.remove(0).into_parts();
/// let sum = std::thread::spawn(move || body.iter().sum::<u8>()).join().unwrap();
/// assert_eq!(sum, 6);
/// lease.acknowledge().blocking()?;
/// # Ok::<(), postbox::Error>(())
/// ```
#[non_exhaustive]
pub struct Lease<R = (), C = Json> {
    /// The id of the message, which is the same for all of its deliveries.
    pub id: MessageId,
    /// How often the message was delivered, this delivery included.
    pub delivery_count: u32,
    /// When the message was sent.
    pub enqueued_at: SystemTime,
    /// The attributes that the sender set.
    pub attributes: BTreeMap<String, String>,
    /// The proof of this delivery.
    pub receipt_handle: ReceiptHandle,
    /// The address for an answer, if the sender set one.
    pub reply_to: Option<String>,
    pub(crate) reply: Option<ReplyId>,
    pub(crate) content_type: ContentType,
    pub(crate) core: Arc<Core>,
    types: PhantomData<fn() -> (R, C)>,
}

impl<T, R, C> Message<T, R, C> {
    /// A message of a delivery, without its headers. Identifiers are cloned, not moved: a move would copy them in pieces of
    /// other sizes than they were written in, which stalls the processor.
    #[inline(always)]
    pub(crate) fn new(core: &Arc<Core>, delivery: &Delivery, body: T) -> Self {
        let lease = Lease {
            enqueued_at: delivery.enqueued_at.into(),
            core: Arc::clone(core),
            id: delivery.id.clone(),
            delivery_count: delivery.delivery_count,
            attributes: BTreeMap::new(),
            receipt_handle: delivery.receipt_handle.clone(),
            reply_to: None,
            reply: None,
            content_type: delivery.content_type.clone(),
            types: PhantomData,
        };
        Message { body, lease }
    }

    /// Sets what the headers of the delivery say. Most messages have none.
    #[inline]
    pub(crate) fn set_headers(&mut self, headers: Option<Arc<Headers>>) {
        if let Some(headers) = headers.map(Arc::unwrap_or_clone) {
            let lease = &mut self.lease;
            (lease.reply_to, lease.reply, lease.attributes) = (headers.reply_to, headers.reply, headers.attributes);
            lease.enqueued_at = headers.enqueued_at.unwrap_or(lease.enqueued_at);
        }
    }

    /// Separates the body from the lease, when the body must move.
    pub fn into_parts(self) -> (T, Lease<R, C>) {
        (self.body, self.lease)
    }
}

impl<T, R, C> Deref for Message<T, R, C> {
    type Target = Lease<R, C>;

    #[inline]
    fn deref(&self) -> &Lease<R, C> {
        &self.lease
    }
}

impl<R, C> Lease<R, C> {
    pub(crate) fn receipt(&self) -> Receipt {
        Receipt { id: self.id.clone(), handle: self.receipt_handle.clone() }
    }

    /// Finishes the message: it is never delivered again.
    ///
    /// # Errors
    /// [`ReceiptHandleExpired`](Error::ReceiptHandleExpired) if the lease has ended;
    /// [`ReplyExpected`](Error::ReplyExpected) if the sender waits for a reply.
    pub fn acknowledge(&self) -> Settle {
        Settle::new(self, Settlement::Acknowledge)
    }

    /// Gives the message back, to be delivered again: at once, or after
    /// [`visibility_timeout`](Nack::visibility_timeout).
    ///
    /// # Errors
    /// [`ReceiptHandleExpired`](Error::ReceiptHandleExpired) if the lease has ended.
    pub fn nack(&self) -> Nack {
        Nack(Settle::new(self, Settlement::Visibility(Visibility::Return(Duration::ZERO))))
    }

    /// Undoes the delivery: the message returns to its old place in the order, and this delivery is not counted. For a
    /// message that no handler has seen. Where [`exact_deliveries`](crate::Limits::exact_deliveries) is false, the
    /// delivery is counted, and the message joins the tail.
    ///
    /// # Errors
    /// [`ReceiptHandleExpired`](Error::ReceiptHandleExpired) if the lease has ended.
    pub fn release(&self) -> Settle {
        Settle::new(self, Settlement::Visibility(Visibility::Release))
    }

    /// The content type of the body, as the sender marked it.
    pub const fn content_type(&self) -> &ContentType {
        &self.content_type
    }

    /// Extends the lease to at least `timeout` from now. A lease is never made shorter.
    ///
    /// # Errors
    /// [`ReceiptHandleExpired`](Error::ReceiptHandleExpired) if the lease has ended.
    pub fn extend_visibility(&self, timeout: Duration) -> Settle {
        Settle::new(self, Settlement::Visibility(Visibility::Extend(timeout)))
    }

    /// Moves the message to the dead letters of its mailbox. A reply that the sender waits for stays pending: a redrive may
    /// still answer it.
    ///
    /// # Errors
    /// [`ReceiptHandleExpired`](Error::ReceiptHandleExpired) if the lease has ended.
    pub fn dead_letter(&self, reason: impl Into<String>) -> Settle {
        Settle::new(self, Settlement::DeadLetter(reason.into()))
    }

    /// Whether the sender waits for a reply in the reply store.
    pub const fn expects_reply(&self) -> bool {
        self.reply.is_some()
    }

    /// Stores the answer in the reply store, then finishes the message.
    ///
    /// # Errors
    /// - [`NoReplyChannel`](Error::NoReplyChannel) if no reply is expected.
    /// - [`ReceiptHandleExpired`](Error::ReceiptHandleExpired) if the lease has ended. Nothing was stored then, unless the
    ///   lease ended between the two steps.
    /// - [`ReplyAlreadySent`](Error::ReplyAlreadySent), [`ReplyCancelled`](Error::ReplyCancelled) or
    ///   [`ReplyExpired`](Error::ReplyExpired) if the answer is not wanted any more. The message is finished.
    /// - After any other error the message stays leased, and is delivered again.
    pub fn reply<B: ?Sized>(&self, answer: &B) -> SendReply
    where
        R: Borrow<B>,
        C: Encode<B>,
    {
        SendReply::new(Arc::clone(&self.core), self.receipt(), self.reply.clone(), C::encode(answer), C::CONTENT_TYPE)
    }

    /// The channel of the reply, to answer and to finish in two steps. `None` if no reply is expected.
    pub fn reply_channel(&self) -> Option<ReplyChannel<R, C>> {
        let replies = Some(&self.core.replies).filter(|replies| replies.is_there())?;
        Some(ReplyChannel::new(replies.clone(), self.reply.clone()?))
    }

    /// The mailbox that `reply_to` names, to send an answer to.
    ///
    /// # Errors
    /// [`ReplyMailboxUnavailable`](Error::ReplyMailboxUnavailable) if there is no `reply_to`, no resolver, or no such
    /// mailbox.
    pub fn reply_mailbox<A>(&self) -> Call<Result<Mailbox<A, (), C>, Error>>
    where
        A: 'static,
        C: 'static,
    {
        crate::resolver::reply_mailbox(self.core.resolver.clone(), self.reply_to.clone())
    }

    /// Keeps the lease alive until the returned value is dropped, for at most `cap`: a background thread extends the lease
    /// to `visibility` again and again. So a handler that blocks its thread keeps its lease too. A `visibility` beyond
    /// [`Limits::max_visibility`](crate::Limits::max_visibility) is that limit.
    pub fn keep_alive(&self, visibility: Duration, cap: Duration) -> KeepAlive {
        KeepAlive::start(Arc::clone(&self.core), self.receipt(), visibility, cap)
    }

    /// The trace that the message belongs to.
    pub fn trace_context(&self) -> Option<TraceContext> {
        self.attributes.get(TRACEPARENT)?.parse().ok()
    }
}

impl<T: fmt::Debug, R, C> fmt::Debug for Message<T, R, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message").field("body", &self.body).field("lease", &self.lease).finish()
    }
}

/// Without the secrets of a URI in `reply_to`.
impl<R, C> fmt::Debug for Lease<R, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("id", &self.id)
            .field("delivery_count", &self.delivery_count)
            .field("attributes", &self.attributes)
            .field("reply_to", &self.reply_to.as_deref().map(shown))
            .field("expects_reply", &self.expects_reply())
            .finish_non_exhaustive()
    }
}
