//! Requests and replies.
//!
//! A request is a message that expects a reply: [`send_expecting_reply`](crate::Mailbox::send_expecting_reply). The requester
//! waits for a [`Reply`]; the handler answers with [`Lease::reply`](crate::Lease::reply), or through a [`ReplyChannel`]. In
//! between, the answer is in a [`ReplyStore`], where each reply has an entry with a state and a time to live.
//!
//! ```
//! use postbox::reply::ReplyState;
//! use postbox::{Mailbox, Reply};
//!
//! let requests: Mailbox<u32, u32> = postbox::open("memory://doc-replies").blocking()?;
//! let reply = requests.send_expecting_reply(&20).blocking()?;
//! let state = || Ok::<_, postbox::Error>(reply.entry().blocking()?.map(|entry| entry.state));
//! assert_eq!(state()?, Some(ReplyState::Pending));
//!
//! requests.receive().blocking()?[0].reply(&21).blocking()?;
//! assert_eq!(state()?, Some(ReplyState::Resolved));
//!
//! // Another process would wait for the same reply by its id.
//! let same: Reply<u32> = requests.reply(reply.id());
//! assert_eq!(same.wait().blocking()?, 21);
//! # Ok::<(), postbox::Error>(())
//! ```
//!
//! A backend brings its own store. `open(uri).replies(store)` sets another one, for example a [`MemoryReplyStore`].
//! `docs/requests-and-replies.md` is the guide.

pub(crate) mod store;

pub(crate) use self::store::Replies;
pub use self::store::{ReplyEntry, ReplyState, ReplyStore, ReplyValue, Resolved, SCAN_LIMIT};
pub use crate::backends::memory::MemoryReplyStore;
use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::backend::Limits;
use crate::error::Error;
use crate::mailbox::codec::{Decode, Encode, Json};
use crate::mailbox::id::ReplyId;
use crate::mailbox::lease::refusal;
use crate::mailbox::operation::{Answer, Call, Verb, awaitable};
use crate::mailbox::ranges::check_duration;
use crate::runtime::cancellation::yield_now;
use crate::runtime::clock::{Clock, Moment};
use crate::runtime::{background, oneshot};

/// The answer to a request, for the requester: [`Mailbox::send_expecting_reply`](crate::Mailbox::send_expecting_reply).
///
/// The reply is in the reply store, not in this handle. Another process can wait for it by its id, until its time to live is
/// over. The first handle that takes the answer has it, and keeps it for its clones. Dropping a handle cancels nothing.
///
/// ```
/// use postbox::{Mailbox, Reply};
/// use std::time::Duration;
///
/// # postbox_core::wait_for(async {
/// let requests: Mailbox<u32, u32> = postbox::open("memory://doc-reply").await?;
/// let reply: Reply<u32> = requests.send_expecting_reply(&20).reply_timeout(Duration::from_secs(60)).await?;
/// assert_eq!(reply.poll().await?, None);
///
/// // Somewhere else…
/// let message = requests.receive().await?.remove(0);
/// message.reply(&(message.body + 1)).await?;
///
/// assert_eq!(reply.wait().timeout(Duration::from_secs(5)).await?, 21);
/// # Ok::<(), postbox::Error>(())
/// # }).unwrap();
/// ```
pub struct Reply<R, C = Json> {
    replies: Replies,
    id: ReplyId,
    clock: Arc<dyn Clock>,
    kept: Arc<Kept>,
    types: PhantomData<fn() -> (R, C)>,
}

/// What a handle and its clones share.
#[derive(Default)]
struct Kept {
    /// The answer that was taken.
    value: OnceLock<ReplyValue>,
    /// The number of clones that are taking the answer at this moment.
    taking: AtomicUsize,
}

/// One attempt to take the answer. It is counted until it is dropped.
struct Taking(Arc<Kept>);

impl Taking {
    fn begin(kept: &Arc<Kept>) -> Self {
        kept.taking.fetch_add(1, Ordering::SeqCst);
        Taking(Arc::clone(kept))
    }

    /// Keeps the answer, and says whether another clone is taking it too, and so may have it.
    fn settle(self, consumed: &Result<Option<ReplyEntry>, Error>) -> bool {
        if let Ok(Some(ReplyEntry { state: ReplyState::Resolved, value: Some(value), .. })) = consumed {
            let _ = self.0.value.set(value.clone());
        }
        self.0.taking.load(Ordering::SeqCst) > 1
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        self.0.taking.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<R, C> Clone for Reply<R, C> {
    fn clone(&self) -> Self {
        Reply {
            replies: self.replies.clone(),
            id: self.id.clone(),
            clock: Arc::clone(&self.clock),
            kept: Arc::clone(&self.kept),
            types: PhantomData,
        }
    }
}

impl<R, C> fmt::Debug for Reply<R, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply")
            .field("id", &self.id)
            .field("taken", &self.kept.value.get().is_some())
            .finish_non_exhaustive()
    }
}

impl<R, C> Reply<R, C> {
    pub(crate) fn new(replies: Replies, id: ReplyId, clock: Arc<dyn Clock>) -> Self {
        Reply { replies, id, clock, kept: Arc::default(), types: PhantomData }
    }

    /// The id of the reply, for use in this process or in others.
    pub const fn id(&self) -> &ReplyId {
        &self.id
    }

    /// Waits for the answer, and takes it.
    ///
    /// # Errors
    /// [`ReplyTimeout`](Error::ReplyTimeout) at the end of the [`timeout`](WaitForReply::timeout): wait again.
    /// [`ReplyExpired`](Error::ReplyExpired) and [`ReplyCancelled`](Error::ReplyCancelled): it is over.
    pub fn wait(&self) -> WaitForReply<R, C> {
        WaitForReply { reply: self.clone(), timeout: None }
    }

    /// Takes the answer if it has come.
    ///
    /// # Errors
    /// [`ReplyExpired`](Error::ReplyExpired) and [`ReplyCancelled`](Error::ReplyCancelled): it is over.
    pub fn poll(&self) -> Call<Result<Option<R>, Error>>
    where
        R: 'static,
        C: Decode<R>,
    {
        let reply = self.clone();
        Call::new(move || reply.take())
    }

    /// Whether the answer has come. Does not take it.
    ///
    /// # Errors
    /// Those of the reply store.
    pub fn is_ready(&self) -> Call<Result<bool, Error>>
    where
        R: 'static,
        C: 'static,
    {
        self.is_in(ReplyState::Resolved)
    }

    /// Whether the reply was cancelled.
    ///
    /// # Errors
    /// Those of the reply store.
    pub fn is_cancelled(&self) -> Call<Result<bool, Error>>
    where
        R: 'static,
        C: 'static,
    {
        self.is_in(ReplyState::Cancelled)
    }

    fn is_in(&self, state: ReplyState) -> Call<Result<bool, Error>>
    where
        R: 'static,
        C: 'static,
    {
        let reply = self.clone();
        Call::new(move || {
            if reply.kept.value.get().is_some() {
                return Answer::ready(Ok(state == ReplyState::Resolved));
            }
            let entry = reply.replies.call("get", |store| store.get(reply.id));
            entry.map(move |entry| Ok(entry?.is_some_and(|entry| entry.state == state)))
        })
    }

    /// Cancels the reply: an answer is refused from now on. Returns `false` if the reply was answered, cancelled or expired.
    ///
    /// # Errors
    /// Those of the reply store.
    pub fn cancel(&self) -> Call<Result<bool, Error>> {
        let (replies, id) = (self.replies.clone(), self.id.clone());
        Call::new(move || replies.call("cancel", |store| store.cancel(id)))
    }

    /// Returns the entry in the reply store. `None` if it was consumed, deleted or cleaned up.
    ///
    /// # Errors
    /// Those of the reply store.
    pub fn entry(&self) -> Call<Result<Option<ReplyEntry>, Error>> {
        let (replies, id) = (self.replies.clone(), self.id.clone());
        Call::new(move || replies.call("get", |store| store.get(id)))
    }
}

impl<R: 'static, C: Decode<R>> Reply<R, C> {
    fn decode(&self, value: &ReplyValue) -> Result<R, Error> {
        let failed = |reason: String| Error::Serialization {
            message: None,
            reason: format!("cannot decode reply {}: {reason}", self.id),
        };
        if !C::reads(&value.content_type) {
            return Err(failed(format!("it is {}, and this handle reads {}", value.content_type, C::CONTENT_TYPE)));
        }
        C::decode(&value.body).map_err(|reason| failed(reason.into()))
    }

    /// Takes the answer. `None` while the reply is pending.
    fn take(self) -> Answer<Result<Option<R>, Error>> {
        if let Some(value) = self.kept.value.get() {
            return Answer::ready(self.decode(value).map(Some));
        }
        let taking = Taking::begin(&self.kept);
        match self.replies.call("consume", |store| store.consume(self.id.clone())).split() {
            Ok(consumed) => {
                let others = taking.settle(&consumed);
                Answer::ready(consumed.and_then(|entry| self.taken(entry, others)))
            }
            // Completed in the background: the store removes the answer, so a dropped future must not lose it.
            Err(future) => {
                if let Err(error) = background::start() {
                    return Answer::ready(Err(error));
                }
                let (sender, receiver) = oneshot::channel(None);
                background::spawn(async move {
                    let consumed = future.await;
                    let others = taking.settle(&consumed);
                    sender.send(consumed.map(|entry| (entry, others)));
                });
                Answer::from_future(async move {
                    let (entry, others) = receiver.await?;
                    self.taken(entry, others)
                })
            }
        }
    }

    fn taken(&self, entry: Option<ReplyEntry>, others: bool) -> Result<Option<R>, Error> {
        match (self.kept.value.get(), entry.map(|entry| entry.state)) {
            (Some(value), _) => self.decode(value).map(Some),
            (None, Some(ReplyState::Pending)) => Ok(None),
            (None, Some(ReplyState::Resolved)) => {
                Err(Error::faulty(format!("the reply store returned reply {} without its answer", self.id)))
            }
            // A clone has taken the answer and is about to keep it.
            (None, _) if others => Ok(None),
            (None, state) => Err(refusal(self.id.clone(), state)),
        }
    }

    /// Waits until the reply is settled, then takes the answer. One deadline holds for all steps.
    fn wait_until(self, deadline: Option<Moment>) -> Answer<Result<R, Error>>
    where
        R: Send,
    {
        self.clone().take().then(move |taken| match taken {
            Err(error) => Answer::ready(Err(error)),
            Ok(Some(answer)) => Answer::ready(Ok(answer)),
            Ok(None) => Answer::from_future(async move {
                loop {
                    let left = deadline.map_or(Limits::LONGEST, |deadline| self.clock.now().until(deadline));
                    let settled = self.replies.call("settled", |store| store.settled(self.id.clone(), left)).await?;
                    if let Some(answer) = self.clone().take().await? {
                        return Ok(answer);
                    }
                    if deadline.is_some_and(|deadline| self.clock.now() >= deadline) {
                        return Err(Error::ReplyTimeout { id: self.id });
                    }
                    // A clone is taking the settled reply.
                    if settled {
                        yield_now().await;
                    }
                }
            }),
        })
    }
}

/// A wait for an answer: [`Reply::wait`].
#[must_use = "nothing is awaited unless this is, or `blocking`"]
pub struct WaitForReply<R, C> {
    reply: Reply<R, C>,
    timeout: Option<Duration>,
}

impl<R, C> fmt::Debug for WaitForReply<R, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitForReply").field("id", &self.reply.id).field("timeout", &self.timeout).finish()
    }
}

impl<R, C> WaitForReply<R, C> {
    /// How long to wait. Default: until the time to live of the reply is over.
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

impl<R: Send + 'static, C: Decode<R>> Verb for WaitForReply<R, C> {
    type Output = Result<R, Error>;

    fn start(self) -> Answer<Self::Output> {
        if let Some(timeout) = self.timeout
            && let Err(error) = check_duration("timeout", timeout, Limits::LONGEST)
        {
            return Answer::ready(Err(error));
        }
        let deadline = self.timeout.map(|timeout| self.reply.clock.now().after(timeout));
        self.reply.wait_until(deadline)
    }
}

awaitable!(WaitForReply<R, C> where R: Send + 'static, C: Decode<R>);

/// The answer to a request, for its handler: [`Lease::reply_channel`](crate::Lease::reply_channel). It is sent once.
///
/// ```
/// use postbox::{Error, Mailbox};
///
/// # postbox_core::wait_for(async {
/// let requests: Mailbox<u32, u32> = postbox::open("memory://doc-channel").await?;
/// let reply = requests.send_expecting_reply(&1).await?;
/// let message = requests.receive().await?.remove(0);
///
/// let channel = message.reply_channel().expect("a reply is expected");
/// assert!(channel.is_open().await?);
/// channel.send(&2).await?;
/// assert!(!channel.is_open().await?);
/// assert!(matches!(channel.send(&3).await, Err(Error::ReplyAlreadySent { .. })));
/// assert_eq!(reply.wait().await?, 2);
/// # Ok::<(), postbox::Error>(())
/// # }).unwrap();
/// ```
pub struct ReplyChannel<R, C = Json> {
    replies: Replies,
    id: ReplyId,
    types: PhantomData<fn() -> (R, C)>,
}

impl<R, C> fmt::Debug for ReplyChannel<R, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplyChannel").field("id", &self.id).finish_non_exhaustive()
    }
}

impl<R, C> ReplyChannel<R, C> {
    pub(crate) const fn new(replies: Replies, id: ReplyId) -> Self {
        ReplyChannel { replies, id, types: PhantomData }
    }

    /// The id of the reply.
    pub const fn id(&self) -> &ReplyId {
        &self.id
    }

    /// Stores the answer. This does not finish the message.
    ///
    /// # Errors
    /// [`ReplyAlreadySent`](Error::ReplyAlreadySent), [`ReplyCancelled`](Error::ReplyCancelled) or
    /// [`ReplyExpired`](Error::ReplyExpired) if the answer is not wanted any more.
    pub fn send(&self, answer: &R) -> Call<Result<(), Error>>
    where
        C: Encode<R>,
    {
        let (replies, id, body) = (self.replies.clone(), self.id.clone(), C::encode(answer));
        Call::new(move || {
            let value = match body {
                Ok(body) => ReplyValue::new(body, C::CONTENT_TYPE),
                Err(reason) => return Answer::ready(Err(Error::encoding(reason))),
            };
            let resolved = replies.call("resolve", |store| store.resolve(id.clone(), value));
            resolved.map(move |resolved| match resolved? {
                Resolved::Stored => Ok(()),
                Resolved::Refused(state) => Err(refusal(id, state)),
            })
        })
    }

    /// Whether the requester still waits for an answer.
    ///
    /// # Errors
    /// Those of the reply store.
    pub fn is_open(&self) -> Call<Result<bool, Error>> {
        let (replies, id) = (self.replies.clone(), self.id.clone());
        Call::new(move || {
            let entry = replies.call("get", |store| store.get(id));
            entry.map(|entry| Ok(entry?.is_some_and(|entry| entry.state == ReplyState::Pending)))
        })
    }
}
