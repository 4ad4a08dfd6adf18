//! The contract of a backend: byte-level mailboxes in one place.
//!
//! A [`Backend`] is a connection to a place that stores many mailboxes by name; a [`ByteMailbox`] is one of them. Both
//! are object safe and know nothing of the types that programs send. Codecs, limits, tracing, metrics and events are done
//! once, above these traits. The conformance suite (feature `conformance`) checks all that is said here.
//!
//! # Rules for every verb
//!
//! * **Batch first.** A verb takes several entries and answers each with a result of its own, in their order; one
//!   entry's failure says nothing of the others. One is a batch of one.
//! * **Atomic per entry.** A crash, of the client or of the place, leaves each entry done or not done, never in between,
//!   and no message in two places or in none.
//! * **What is due is done first.** Before anything else a verb ends the leases whose deadline has passed and makes
//!   delayed messages visible whose time has come, in the order of those moments. No message waits for a reaper.
//! * **Order.** A mailbox is ordered by the moment at which a message became visible: first deliveries are first in,
//!   first out; what comes back joins the tail. [`Limits::ordering`] says if less is promised.
//! * **Time is the place's.** Never a client's clock.
//! * **Acts are by receipt**, which belongs to one delivery, and the check is atomic with the act.
//! * **Errors.** Every verb may fail with [`Error::Connection`]; what else it may fail with is said there. A client
//!   library's errors are mapped in one place and never leak.

pub(crate) mod null;
pub mod wire;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use smallvec::SmallVec;

use crate::error::Error;
use crate::mailbox::codec::ContentType;
pub use crate::mailbox::id::ReceiptHandle;
use crate::mailbox::id::{MessageId, ReplyId};
use crate::mailbox::operation::Answer;
use crate::reply::store::ReplyStore;
use crate::resolver::address::{MailboxName, shown};
use crate::runtime::clock::{Clock, Moment, SystemClock};

/// Several of something, mostly one.
pub type Batch<T> = SmallVec<[T; 1]>;

/// The answer to a batch of one.
pub(crate) fn only<T>(mut results: Batch<T>) -> T {
    results.pop().expect("a verb answers each entry")
}

/// A place that stores mailboxes.
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// What it is called in errors and metrics: `"memory"`.
    fn kind(&self) -> &'static str;

    /// What it allows and promises.
    fn limits(&self) -> Limits;

    /// What one mailbox allows and promises, where they differ by their names.
    fn limits_of(&self, _name: &MailboxName) -> Limits {
        self.limits()
    }

    /// A mailbox by name. Does no input or output: what cannot be reached shows at the first verb. Mailboxes of one
    /// name are the same mailbox.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a setting that this backend does not have; [`Error::InvalidParameter`] for a value that it
    /// cannot keep.
    fn mailbox(&self, name: &MailboxName, settings: &MailboxSettings) -> Result<Arc<dyn ByteMailbox>, Error>;

    /// Where replies are kept, if it keeps any.
    fn replies(&self) -> Option<Arc<dyn ReplyStore>> {
        None
    }

    /// The names of the mailboxes that exist.
    fn list(&self) -> Answer<Result<Vec<MailboxName>, Error>> {
        Answer::ready(Err(Error::Unsupported { backend: self.kind(), operation: "list mailboxes" }))
    }

    /// The clock for waiting on this side of the wire. Only tests have another than the process's own.
    fn clock(&self) -> Arc<dyn Clock> {
        SystemClock::shared()
    }
}

/// One mailbox, in bytes.
pub trait ByteMailbox: fmt::Debug + Send + Sync + 'static {
    /// Stores messages, in order. A message whose result is `Ok` is stored as durably as the place can.
    ///
    /// Fails with [`Error::MailboxFull`]. A message whose deduplication id was used within the window is not stored;
    /// its result is the id of the first one.
    ///
    /// An id of the caller's own ([`Special::own_id`]) names one message among those that the mailbox holds: ready,
    /// delayed, leased or dead. A second send of that id with the same body stores nothing, and its result is the id. With
    /// another body it fails with [`Error::InvalidParameter`] on `id`. [`Limits::own_ids`] says whether the place can tell.
    fn send(&self, messages: Batch<Outgoing>) -> Answer<Batch<Result<MessageId, Error>>>;

    /// Leases up to `max` messages for `visibility`, and counts their deliveries in the same step.
    ///
    /// With nothing to deliver it waits, up to `wait`, and answers as soon as there is one message: sent, given back,
    /// at the end of its delay or of another consumer's lease. It never waits to fill the batch. Nothing is leased for
    /// an answer that is dropped before it was ready.
    fn receive(&self, request: Receive) -> Answer<Result<Vec<Delivery>, Error>>;

    /// Removes delivered messages for good.
    ///
    /// Fails with [`Error::ReceiptHandleExpired`] from the moment at which the lease ended, whatever ended it.
    fn acknowledge(&self, receipts: Batch<Receipt>) -> Answer<Batch<Result<(), Error>>>;

    /// Ends leases, or makes them longer. A lease is never made shorter: [`Visibility::Extend`] by nothing only checks
    /// that the lease lives. [`Visibility::Release`] undoes the delivery: the message is at its old place in the order, and
    /// its deliveries are as many as before. [`Limits::exact_deliveries`] says whether the place can undo its count.
    ///
    /// Fails with [`Error::ReceiptHandleExpired`] as `acknowledge` does.
    fn set_visibility(&self, changes: Batch<(Receipt, Visibility)>) -> Answer<Batch<Result<(), Error>>>;

    /// Moves delivered messages to the dead letters of this mailbox, with a reason.
    ///
    /// Fails with [`Error::ReceiptHandleExpired`] as `acknowledge` does.
    fn dead_letter(&self, letters: Batch<(Receipt, String)>) -> Answer<Batch<Result<(), Error>>>;

    /// [`send`](Self::send) of one message. Only for speed: it does nothing else.
    fn send_one(&self, message: Outgoing) -> Answer<Result<MessageId, Error>> {
        self.send(Batch::from_buf([message])).map(only)
    }

    /// [`acknowledge`](Self::acknowledge) of one delivery. Only for speed: it does nothing else.
    fn acknowledge_one(&self, receipt: &Receipt) -> Answer<Result<(), Error>> {
        self.acknowledge(Batch::from_buf([receipt.clone()])).map(only)
    }

    /// Removes all messages, leased ones too, but no dead letters. Their receipts are void. Answers how many.
    fn purge(&self) -> Answer<Result<u64, Error>>;

    /// Names the mailbox: two handles give the same text if, and only if, they are of the same mailbox, however its address
    /// was written. For comparison within one kind of backend.
    fn identity(&self) -> Answer<Result<String, Error>>;

    /// How many messages are where.
    fn counts(&self) -> Answer<Result<Counts, Error>>;

    /// Makes the mailbox exist. Nothing happens if it does.
    fn create(&self) -> Answer<Result<(), Error>>;

    /// Removes the mailbox with all that is in it, dead letters too. Nothing happens if there is none.
    fn delete(&self) -> Answer<Result<(), Error>>;

    /// Removes a message that was sent with a delay and is not visible yet. `false` if there is no such message.
    fn cancel(&self, id: MessageId) -> Answer<Result<bool, Error>>;

    /// Shows up to `max` messages that could be delivered now, in order, without delivering them.
    fn peek(&self, max: usize) -> Answer<Result<Vec<Delivery>, Error>>;

    /// Up to `max` dead letters, oldest first.
    fn dead_letters(&self, max: usize) -> Answer<Result<Vec<DeadLetter>, Error>>;

    /// Makes dead letters visible again, as if never delivered: one by its id, or a number of them, oldest first.
    /// Answers how many. Stops early when the mailbox is full.
    fn redrive(&self, which: Redrive) -> Answer<Result<u64, Error>>;

    /// Removes all dead letters. Answers how many.
    fn purge_dead_letters(&self) -> Answer<Result<u64, Error>>;
}

/// Settings of a mailbox that its place keeps. What is `None` stays as it is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MailboxSettings {
    /// How many messages may be stored.
    pub max_size: Option<usize>,
    /// After how many deliveries a message goes to the dead letters.
    pub max_deliveries: Option<u32>,
    /// For how long a deduplication id is remembered.
    pub deduplication_window: Option<Duration>,
    /// After how long without use the mailbox is removed, with what is in it. In memory a handle is use enough; elsewhere,
    /// where no backend knows of all handles, only operations are.
    pub idle_expiry: Option<Duration>,
}

/// A message on its way to a place.
#[derive(Clone)]
#[non_exhaustive]
pub struct Outgoing {
    /// Made by the client, so that a retry can be told from a second message.
    pub id: MessageId,
    /// The body, encoded.
    pub body: Bytes,
    /// How it is encoded.
    pub content_type: ContentType,
    /// What else travels with it; `None` if nothing.
    pub headers: Option<Arc<Headers>>,
    /// How long it stays invisible.
    pub delay: Duration,
    /// What few messages ask for.
    pub special: Option<Box<Special>>,
}

/// What few messages ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Special {
    /// After how long it goes if it was not delivered.
    pub expires_in: Option<Duration>,
    /// The group in whose order it is delivered.
    pub group: Option<String>,
    /// Sends with the same id within the window are one.
    pub deduplication: Option<String>,
    /// The id of the message is the caller's own: the mailbox may hold a message with it already.
    pub own_id: bool,
}

/// Without the body.
impl fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outgoing")
            .field("id", &self.id)
            .field("body", &ByteCount(&self.body))
            .field("content_type", &self.content_type)
            .field("headers", &self.headers)
            .field("delay", &self.delay)
            .field("special", &self.special)
            .finish()
    }
}

/// A body, in what is printed for debugging: how many bytes it has.
pub(crate) struct ByteCount<'a>(pub(crate) &'a [u8]);

impl fmt::Debug for ByteCount<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl Outgoing {
    /// A plain message with a new id.
    #[inline]
    pub fn new(body: Bytes, content_type: ContentType) -> Self {
        Outgoing { id: MessageId::new(), body, content_type, headers: None, delay: Duration::ZERO, special: None }
    }
}

/// What travels with a body.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Headers {
    /// The address for answers.
    pub reply_to: Option<String>,
    /// The reply that is awaited in the reply store.
    pub reply: Option<ReplyId>,
    /// When the message was first sent, if it was moved here from another mailbox.
    pub enqueued_at: Option<SystemTime>,
    /// What the sender wrote on it.
    pub attributes: BTreeMap<String, String>,
}

/// Without the secrets of a URI in `reply_to`, and without the values of attributes.
impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Headers")
            .field("reply_to", &self.reply_to.as_deref().map(shown))
            .field("reply", &self.reply)
            .field("enqueued_at", &self.enqueued_at)
            .field("attributes", &self.attributes.keys())
            .finish()
    }
}

/// What `receive` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receive {
    /// The most messages.
    pub max: usize,
    /// For how long they are leased.
    pub visibility: Duration,
    /// How long to wait if there is none.
    pub wait: Duration,
}

/// A message as a place hands it out.
#[derive(Clone)]
pub struct Delivery {
    /// The message's id.
    pub id: MessageId,
    /// The body, encoded.
    pub body: Bytes,
    /// How it is encoded.
    pub content_type: ContentType,
    /// What came with it.
    pub headers: Option<Arc<Headers>>,
    /// Proof of this delivery.
    pub receipt_handle: ReceiptHandle,
    /// How often it was delivered, this time included.
    pub delivery_count: u32,
    /// When it was sent, by the place's clock.
    pub enqueued_at: Moment,
    /// When it was handed out, by the same clock. Its lease runs from here.
    pub delivered_at: Moment,
}

/// Without the body.
impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("id", &self.id)
            .field("body", &ByteCount(&self.body))
            .field("content_type", &self.content_type)
            .field("headers", &self.headers)
            .field("receipt_handle", &self.receipt_handle)
            .field("delivery_count", &self.delivery_count)
            .field("enqueued_at", &self.enqueued_at)
            .field("delivered_at", &self.delivered_at)
            .finish()
    }
}

/// Which delivery an act is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The message, for errors.
    pub id: MessageId,
    /// The proof.
    pub handle: ReceiptHandle,
}

/// What becomes of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visibility {
    /// It ends; the message is visible again after this long.
    Return(Duration),
    /// It lasts at least so long from now.
    Extend(Duration),
    /// It ends as if the message had not been delivered: the message is visible at its old place, and this delivery does not
    /// count. For a delivery that no handler has seen.
    Release,
}

/// How many messages are where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Counts {
    /// Visible.
    pub ready: u64,
    /// Not yet visible: sent with a delay, or given back with one.
    pub delayed: u64,
    /// Leased.
    pub in_flight: u64,
    /// Dead letters.
    pub dead: u64,
}

impl Counts {
    /// Counts of a mailbox.
    pub const fn new(ready: u64, delayed: u64, in_flight: u64, dead: u64) -> Self {
        Counts { ready, delayed, in_flight, dead }
    }

    /// Visible and invisible, without the dead letters.
    pub const fn total(&self) -> u64 {
        self.ready + self.delayed + self.in_flight
    }
}

/// A message that nobody could finish.
#[derive(Clone)]
#[non_exhaustive]
pub struct DeadLetter {
    /// The message's id.
    pub id: MessageId,
    /// The body, encoded.
    pub body: Bytes,
    /// How it is encoded.
    pub content_type: ContentType,
    /// What came with it.
    pub headers: Option<Arc<Headers>>,
    /// How often it was delivered.
    pub delivery_count: u32,
    /// When it was sent.
    pub enqueued_at: SystemTime,
    /// When it came here.
    pub died_at: SystemTime,
    /// Why.
    pub reason: Cow<'static, str>,
}

/// Without the body.
impl fmt::Debug for DeadLetter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadLetter")
            .field("id", &self.id)
            .field("body", &ByteCount(&self.body))
            .field("content_type", &self.content_type)
            .field("headers", &self.headers)
            .field("delivery_count", &self.delivery_count)
            .field("enqueued_at", &self.enqueued_at)
            .field("died_at", &self.died_at)
            .field("reason", &self.reason)
            .finish()
    }
}

impl DeadLetter {
    /// From a delivery that could not be finished.
    pub fn new(delivery: Delivery, died_at: Moment, reason: Cow<'static, str>) -> Self {
        DeadLetter {
            id: delivery.id,
            body: delivery.body,
            content_type: delivery.content_type,
            headers: delivery.headers,
            delivery_count: delivery.delivery_count,
            enqueued_at: delivery.enqueued_at.into(),
            died_at: died_at.into(),
            reason,
        }
    }
}

/// Which dead letters to bring back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Redrive {
    /// At most this number, oldest first.
    UpTo(usize),
    /// This one.
    One(MessageId),
}

/// In which order messages are delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ordering {
    /// First in, first out.
    Fifo,
    /// First in, first out within each group.
    FifoPerGroup,
    /// Mostly first in, first out.
    BestEffort,
}

/// What a backend allows and promises. Out of range is an error, never a silent clamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The order of first deliveries.
    pub ordering: Ordering,
    /// The largest body and headers, in bytes.
    pub max_message_size: Option<usize>,
    /// The longest delay of a send.
    pub max_delay: Duration,
    /// The longest visibility timeout.
    pub max_visibility: Duration,
    /// The longest wait of a receive.
    pub max_wait: Duration,
    /// The largest batch, of any verb.
    pub max_batch: usize,
    /// Whether counts are exact.
    pub exact_counts: bool,
    /// Whether deliveries are counted exactly. Where they are not, a message that was released, or that came for a wait that had
    /// been dropped, counts as delivered and joins the tail.
    pub exact_deliveries: bool,
    /// How long after a purge another one is refused.
    pub purge_cooldown: Option<Duration>,
    /// Whether a purge voids the receipts of what was leased.
    pub purge_ends_leases: bool,
    /// Whether messages can have a group.
    pub groups: bool,
    /// Whether messages can have a deduplication id.
    pub deduplication: bool,
    /// How long deduplication ids are remembered, where that cannot be set.
    pub deduplication_window: Option<Duration>,
    /// Whether a repeated send with the same id of the caller's own is found. Where it is not, both are stored.
    pub own_ids: bool,
    /// Whether a message can have an expiry of its own.
    pub expiry: bool,
    /// Whether a delayed message can be cancelled.
    pub cancel: bool,
    /// Whether messages can be looked at without being delivered.
    pub peek: bool,
    /// Whether a mailbox can have a maximal size.
    pub max_size: bool,
}

impl Limits {
    /// A year: longer than any use, short enough to add up without overflow.
    pub const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

    /// All there is, exact and in order: a place without limits of its own.
    pub const fn generous() -> Self {
        Limits {
            ordering: Ordering::Fifo,
            max_message_size: None,
            max_delay: Self::LONGEST,
            max_visibility: Self::LONGEST,
            max_wait: Self::LONGEST,
            max_batch: 1_000,
            exact_counts: true,
            exact_deliveries: true,
            purge_cooldown: None,
            purge_ends_leases: true,
            groups: true,
            deduplication: true,
            deduplication_window: None,
            own_ids: true,
            expiry: true,
            cancel: true,
            peek: true,
            max_size: true,
        }
    }

    /// Narrowed to what every backend allows, so that a program that works here works everywhere.
    #[must_use]
    pub fn portable(self) -> Self {
        let seconds = Duration::from_secs;
        Limits {
            max_message_size: Some(self.max_message_size.unwrap_or(usize::MAX).min(256 * 1024)),
            max_delay: self.max_delay.min(seconds(900)),
            max_visibility: self.max_visibility.min(seconds(12 * 60 * 60)),
            max_wait: self.max_wait.min(seconds(20)),
            max_batch: self.max_batch.min(10),
            groups: false,
            deduplication: false,
            own_ids: false,
            expiry: false,
            cancel: false,
            peek: false,
            max_size: false,
            ..self
        }
    }
}
