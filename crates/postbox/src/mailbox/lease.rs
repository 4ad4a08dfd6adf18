//! The operations on a lease: settling, answering, keeping alive.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;

use crate::backend::{ByteCount, Receipt, Visibility};
use crate::error::Error;
use crate::mailbox::codec::{CodecError, ContentType};
use crate::mailbox::dispatcher::MailboxEvent;
use crate::mailbox::handle::{Core, Settlement};
use crate::mailbox::id::ReplyId;
use crate::mailbox::message::Lease;
use crate::mailbox::operation::{Answer, Verb, awaitable};
use crate::mailbox::ranges::check_duration;
use crate::reply::store::{ReplyState, ReplyValue, Resolved};
use crate::runtime::background;
use crate::runtime::cancellation::{Cancellation, unless};
use crate::runtime::clock::Sleep;

/// Acknowledges, extends, releases or dead-letters one delivery: a method of [`Lease`](crate::Lease).
#[derive(Debug)]
#[must_use = "nothing happens unless it is awaited, or `blocking`"]
pub struct Settle {
    core: Arc<Core>,
    receipt: Receipt,
    settlement: Settlement,
    expects_reply: bool,
}

impl Settle {
    pub(crate) fn new<R, C>(lease: &Lease<R, C>, settlement: Settlement) -> Self {
        let expects_reply = lease.expects_reply() && matches!(settlement, Settlement::Acknowledge);
        Settle { core: Arc::clone(&lease.core), receipt: lease.receipt(), settlement, expects_reply }
    }
}

impl Verb for Settle {
    type Output = Result<(), Error>;

    #[inline]
    fn start(self) -> Answer<Self::Output> {
        let Settle { core, receipt, settlement, expects_reply } = self;
        if expects_reply {
            return Answer::ready(Err(Error::ReplyExpected { id: receipt.id }));
        }
        if let Settlement::Visibility(Visibility::Extend(time) | Visibility::Return(time)) = settlement
            && let Err(error) = check_duration("visibility_timeout", time, core.limits.max_visibility)
        {
            return Answer::ready(Err(error));
        }
        core.settle(receipt, settlement)
    }
}

awaitable!(Settle);

/// Gives a message back: [`Lease::nack`](crate::Lease::nack).
#[derive(Debug)]
#[must_use = "nothing happens unless it is awaited, or `blocking`"]
pub struct Nack(pub(crate) Settle);

impl Nack {
    /// How long the message stays invisible. Default: it is visible at once.
    pub fn visibility_timeout(mut self, timeout: Duration) -> Self {
        self.0.settlement = Settlement::Visibility(Visibility::Return(timeout));
        self
    }
}

impl Verb for Nack {
    type Output = Result<(), Error>;

    #[inline]
    fn start(self) -> Answer<Self::Output> {
        self.0.start()
    }
}

awaitable!(Nack);

/// Answers a message: [`Lease::reply`](crate::Lease::reply).
#[must_use = "nothing happens unless it is awaited, or `blocking`"]
pub struct SendReply {
    core: Arc<Core>,
    receipt: Receipt,
    reply: Option<ReplyId>,
    answer: Result<Bytes, CodecError>,
    content_type: ContentType,
}

/// Without the answer.
impl fmt::Debug for SendReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendReply")
            .field("core", &self.core)
            .field("receipt", &self.receipt)
            .field("reply", &self.reply)
            .field("answer", &self.answer.as_ref().map(|body| ByteCount(body)))
            .field("content_type", &self.content_type)
            .finish()
    }
}

impl SendReply {
    pub(crate) const fn new(
        core: Arc<Core>,
        receipt: Receipt,
        reply: Option<ReplyId>,
        answer: Result<Bytes, CodecError>,
        content_type: ContentType,
    ) -> Self {
        SendReply { core, receipt, reply, answer, content_type }
    }
}

impl Verb for SendReply {
    type Output = Result<(), Error>;

    #[inline]
    fn start(self) -> Answer<Self::Output> {
        let SendReply { core, receipt, reply, answer, content_type } = self;
        let Some(id) = reply else { return Answer::ready(Err(Error::NoReplyChannel { id: receipt.id })) };
        let value = match answer {
            Ok(body) => ReplyValue::new(body, content_type),
            Err(reason) => return Answer::ready(Err(Error::encoding(reason))),
        };
        // The lease is checked, then the answer is stored, then the message is finished. After a crash in between, the message
        // is delivered again, and its next answer is refused because there is one: that finishes the message.
        core.check_lease(receipt.clone()).then(move |checked| match checked {
            Err(error) => Answer::ready(Err(error)),
            Ok(()) => core.replies.call("resolve", |store| store.resolve(id.clone(), value)).then(move |resolved| {
                let refused = match resolved {
                    Err(error) => return Answer::ready(Err(error)),
                    Ok(Resolved::Stored) => None,
                    Ok(Resolved::Refused(state)) => Some(refusal(id.clone(), state)),
                };
                let (about, teller) = (receipt.id.clone(), Arc::clone(&core));
                core.acknowledge_one(&receipt).map(move |acknowledged| match refused {
                    Some(error) => acknowledged.and(Err(error)),
                    None => {
                        teller.meters.replied.increment(1);
                        teller.tell(|mailbox| MailboxEvent::Replied { mailbox, id: about, reply: id });
                        acknowledged
                    }
                })
            }),
        })
    }
}

awaitable!(SendReply);

/// The error for an answer that the store refused.
pub(crate) fn refusal(id: ReplyId, state: Option<ReplyState>) -> Error {
    match state {
        Some(ReplyState::Resolved) => Error::ReplyAlreadySent { id },
        Some(ReplyState::Cancelled) => Error::ReplyCancelled { id },
        _ => Error::ReplyExpired { id },
    }
}

/// Keeps a lease alive until it is dropped: [`Lease::keep_alive`](crate::Lease::keep_alive).
#[derive(Debug)]
#[must_use = "the lease is kept alive only until this is dropped"]
pub struct KeepAlive {
    stop: Cancellation,
    lost: Cancellation,
}

impl KeepAlive {
    pub(crate) fn start(core: Arc<Core>, receipt: Receipt, visibility: Duration, cap: Duration) -> Self {
        let visibility = visibility.min(core.limits.max_visibility);
        let (stop, lost) = (Cancellation::new(), Cancellation::new());
        let (stopped, told) = (stop.clone(), lost.clone());
        if background::start().is_err() {
            lost.cancel();
        }
        background::spawn(async move {
            let beating = AssertUnwindSafe(beat(core, receipt, visibility, cap)).catch_unwind();
            if unless(stopped.cancelled(), beating).await.is_some() {
                told.cancel();
            }
        });
        KeepAlive { stop, lost }
    }

    /// Cancelled when the lease is lost: it ended early, it could not be extended in time, or `cap` is over. The message may be
    /// delivered to another consumer then.
    pub const fn lost(&self) -> &Cancellation {
        &self.lost
    }
}

impl Drop for KeepAlive {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Extends a lease at once, and then three times per `visibility`. Returns when the lease is lost.
async fn beat(core: Arc<Core>, receipt: Receipt, visibility: Duration, cap: Duration) {
    let clock = Arc::clone(&core.clock);
    let end = clock.now().after(cap);
    // An estimate until the first extension, which comes at once.
    let mut lease_ends = clock.now().after(visibility);
    loop {
        let now = clock.now();
        if now >= end || now >= lease_ends {
            break;
        }
        let by = visibility.min(now.until(end));
        let answer = core.settle(receipt.clone(), Settlement::Visibility(Visibility::Extend(by)));
        // The lease ends at its deadline, with or without an answer.
        let Some(answer) = unless(Sleep::until(Arc::clone(&clock), lease_ends), answer).await else { break };
        let next = match answer {
            Ok(()) => {
                lease_ends = now.after(by);
                now.after(visibility / 3)
            }
            Err(Error::ReceiptHandleExpired { .. }) => return,
            // The failure may pass before the lease ends.
            Err(_) => clock.now().after((visibility / 10).max(Duration::from_millis(10))),
        };
        Sleep::until(Arc::clone(&clock), next.min(lease_ends).min(end)).await;
    }
    Sleep::until(clock, lease_ends.min(end)).await;
}
