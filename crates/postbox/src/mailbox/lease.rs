//! Acts on a lease: finishing, giving back, answering, keeping alive.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;

use crate::backend::{Batch, ByteCount, Receipt, Visibility, only};
use crate::error::Error;
use crate::mailbox::codec::{CodecError, ContentType};
use crate::mailbox::dispatcher::MailboxEvent;
use crate::mailbox::handle::Core;
use crate::mailbox::id::ReplyId;
use crate::mailbox::operation::{Answer, Verb, awaitable};
use crate::mailbox::ranges::check_duration;
use crate::reply::store::{ReplyState, ReplyValue, Resolved};
use crate::runtime::background;
use crate::runtime::cancellation::{Cancellation, unless};
use crate::runtime::clock::Sleep;

/// An act on one delivery: acknowledge, extend, release, dead-letter.
#[derive(Debug)]
#[must_use = "nothing happens unless it is awaited, or `blocking`"]
pub struct Finish {
    core: Arc<Core>,
    receipt: Receipt,
    act: Act,
}

#[derive(Debug)]
enum Act {
    Acknowledge { expects_reply: bool },
    Extend(Duration),
    Release,
    DeadLetter(String),
}

impl Finish {
    pub(crate) const fn acknowledge(core: Arc<Core>, receipt: Receipt, expects_reply: bool) -> Self {
        Finish { core, receipt, act: Act::Acknowledge { expects_reply } }
    }

    pub(crate) const fn extend(core: Arc<Core>, receipt: Receipt, by: Duration) -> Self {
        Finish { core, receipt, act: Act::Extend(by) }
    }

    pub(crate) const fn release(core: Arc<Core>, receipt: Receipt) -> Self {
        Finish { core, receipt, act: Act::Release }
    }

    pub(crate) const fn dead_letter(core: Arc<Core>, receipt: Receipt, reason: String) -> Self {
        Finish { core, receipt, act: Act::DeadLetter(reason) }
    }
}

impl Verb for Finish {
    type Output = Result<(), Error>;

    #[inline]
    fn start(self) -> Answer<Self::Output> {
        let Finish { core, receipt, act } = self;
        match act {
            Act::Acknowledge { expects_reply: true } => Answer::ready(Err(Error::ReplyExpected { id: receipt.id })),
            Act::Acknowledge { expects_reply: false } => core.acknowledge_one(&receipt),
            Act::Extend(by) => match check_duration("visibility_timeout", by, core.limits.max_visibility) {
                Ok(()) => core.set_visibility(Batch::from_buf([(receipt, Visibility::Extend(by))])).map(only),
                Err(error) => Answer::ready(Err(error)),
            },
            Act::Release => core.set_visibility(Batch::from_buf([(receipt, Visibility::Release)])).map(only),
            Act::DeadLetter(reason) => core.dead_letter(Batch::from_buf([(receipt, reason)])).map(only),
        }
    }
}

awaitable!(Finish);

/// Gives a message back: [`Message::nack`](crate::Message::nack).
#[derive(Debug)]
#[must_use = "nothing happens unless it is awaited, or `blocking`"]
pub struct Nack {
    core: Arc<Core>,
    receipt: Receipt,
    after: Duration,
}

impl Nack {
    pub(crate) const fn new(core: Arc<Core>, receipt: Receipt) -> Self {
        Nack { core, receipt, after: Duration::ZERO }
    }

    /// How long the message stays invisible. Not at all unless it is set.
    pub const fn visibility_timeout(mut self, timeout: Duration) -> Self {
        self.after = timeout;
        self
    }
}

impl Verb for Nack {
    type Output = Result<(), Error>;

    #[inline]
    fn start(self) -> Answer<Self::Output> {
        if let Err(error) = check_duration("visibility_timeout", self.after, self.core.limits.max_visibility) {
            return Answer::ready(Err(error));
        }
        self.core.set_visibility(Batch::from_buf([(self.receipt, Visibility::Return(self.after))])).map(only)
    }
}

awaitable!(Nack);

/// Answers a message: [`Message::reply`](crate::Message::reply).
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
        let Some(store) = core.replies.clone() else { return Answer::ready(Err(core.unsupported("keep replies"))) };
        let value = match answer {
            Ok(body) => ReplyValue { body, content_type },
            Err(reason) => return Answer::ready(Err(Error::encoding(reason))),
        };
        // First that the lease lives, then the answer, then the end of the message: a crash in between leaves the
        // message to come back, and then it is finished by finding the answer there.
        let check = core.bytes.set_visibility(Batch::from_buf([(receipt.clone(), Visibility::Extend(Duration::ZERO))]));
        check.map(only).then(move |lives| match lives {
            Err(error) => Answer::ready(Err(error)),
            Ok(()) => store.resolve(id.clone(), value).then(move |resolved| {
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

/// Why an answer is not wanted.
pub(crate) fn refusal(id: ReplyId, state: Option<ReplyState>) -> Error {
    match state {
        Some(ReplyState::Resolved) => Error::ReplyAlreadySent { id },
        Some(ReplyState::Cancelled) => Error::ReplyCancelled { id },
        _ => Error::ReplyExpired { id },
    }
}

/// Keeps a lease alive until it is dropped: [`Message::keep_alive`](crate::Message::keep_alive).
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

    /// Cancelled when the lease is lost: it ended behind our back, could not be extended in time, or the cap is reached.
    /// What is being done then may be done by another consumer as well.
    pub const fn lost(&self) -> &Cancellation {
        &self.lost
    }
}

impl Drop for KeepAlive {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Extends a lease at once and then three times per timeout. Returns when the lease is lost.
async fn beat(core: Arc<Core>, receipt: Receipt, visibility: Duration, cap: Duration) {
    let clock = Arc::clone(&core.clock);
    let end = clock.now().after(cap);
    // Unknown until the first extension, which comes at once.
    let mut lease_ends = clock.now().after(visibility);
    loop {
        let now = clock.now();
        if now >= end || now >= lease_ends {
            break;
        }
        let by = visibility.min(now.until(end));
        let answer = core.set_visibility(Batch::from_buf([(receipt.clone(), Visibility::Extend(by))])).map(only);
        // Without an answer the lease ends all the same.
        let Some(answer) = unless(Sleep::until(Arc::clone(&clock), lease_ends), answer).await else { break };
        let next = match answer {
            Ok(()) => {
                lease_ends = now.after(by);
                now.after(visibility / 3)
            }
            Err(Error::ReceiptHandleExpired { .. }) => return,
            // It may pass before the lease ends: look again soon.
            Err(_) => clock.now().after((visibility / 10).max(Duration::from_millis(10))),
        };
        Sleep::until(Arc::clone(&clock), next.min(lease_ends).min(end)).await;
    }
    Sleep::until(clock, lease_ends.min(end)).await;
}
