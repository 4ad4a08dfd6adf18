//! The contract of a backend: byte-level mailboxes in a store.
//!
//! A [`Backend`] is a connection to a store with many mailboxes; a [`ByteMailbox`] is one of them. Both are object safe
//! and do not know the types that programs send. Codecs, limits, tracing, metrics and events are above these traits, once
//! for all backends. The conformance suite (feature `conformance`) checks this contract.
//!
//! [`Connection::new`](crate::Connection::new) opens mailboxes on a backend. The verbs can also be called directly:
//!
//! ```
//! use postbox::backend::{Backend, MailboxSettings, Outgoing, Receipt, Receive};
//! use postbox::{ContentType, MailboxName, MemoryBackend};
//! use std::time::Duration;
//!
//! let backend = MemoryBackend::new();
//! let mailbox = backend.mailbox(&MailboxName::new("jobs")?, &MailboxSettings::default())?;
//! mailbox.send(vec![Outgoing::new("resize cat.png".into(), ContentType::Unmarked)]).blocking().remove(0)?;
//!
//! let request = Receive::new(10, Duration::from_secs(30), Duration::ZERO);
//! for delivery in mailbox.receive(request).blocking()? {
//!     assert_eq!(delivery.body, "resize cat.png");
//!     mailbox.acknowledge_one(&Receipt::new(delivery.id, delivery.receipt_handle)).blocking()?;
//! }
//! # Ok::<(), postbox::Error>(())
//! ```
//!
//! `docs/writing-a-backend.md` is the guide for further backends.
//!
//! # Rules for every verb
//!
//! * **Batch first.** A verb takes a batch of entries, and returns a result for each, in their order. The failure of an
//!   entry does not affect the others.
//! * **Atomic per entry.** After a crash of the client or of the store each entry is done or not done. No message is lost
//!   or doubled.
//! * **Due messages first.** A verb first ends the leases whose deadline has passed, and makes delayed messages visible
//!   that are due, in due order. No message waits for a background task.
//! * **Order.** Messages are ordered by the moment at which they became visible: first deliveries are first in, first
//!   out, and a message that is returned joins the tail. [`Limits::ordering`] says if a backend promises less.
//! * **Time.** The store's clock decides, never a client's.
//! * **Receipts.** A delivery is settled by its receipt. The check of the receipt is atomic with the operation.
//! * **Errors.** Every verb may fail with [`Error::Connection`]. The verbs name their other errors. A backend maps the
//!   errors of its client library in one place.

mod dead_letter;
mod limits;
pub mod wire;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;

pub use self::dead_letter::{DeadLetter, Redrive};
pub use self::limits::{Limits, Ordering};
use crate::error::Error;
use crate::mailbox::codec::ContentType;
pub use crate::mailbox::id::ReceiptHandle;
use crate::mailbox::id::{MessageId, ReplyId};
use crate::mailbox::operation::Answer;
use crate::reply::store::ReplyStore;
use crate::resolver::address::{MailboxName, shown};
use crate::runtime::clock::{Clock, Moment, SystemClock};

/// The result of a batch of one.
pub(crate) fn only<T>(mut results: Vec<Result<T, Error>>) -> Result<T, Error> {
    let many = results.len();
    match results.pop() {
        Some(result) if many == 1 => result,
        _ => Err(Error::faulty(format!("a backend returned {many} results for one entry"))),
    }
}

/// A connection to a store of mailboxes.
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// The name of the backend in errors and metrics: `"memory"`.
    fn kind(&self) -> &'static str;

    /// What the backend allows and promises.
    fn limits(&self) -> Limits;

    /// What one mailbox allows and promises, if that depends on its name.
    fn limits_of(&self, _name: &MailboxName) -> Limits {
        self.limits()
    }

    /// A mailbox by name, without I/O: if the store cannot be reached, the first verb fails. Two handles with one name are
    /// the same mailbox.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a setting that this backend does not have; [`Error::InvalidParameter`] for a value that it
    /// cannot keep.
    fn mailbox(&self, name: &MailboxName, settings: &MailboxSettings) -> Result<Arc<dyn ByteMailbox>, Error>;

    /// The reply store, if the backend has one.
    fn replies(&self) -> Option<Arc<dyn ReplyStore>> {
        None
    }

    /// The names of the mailboxes that exist.
    fn list(&self) -> Answer<Result<Vec<MailboxName>, Error>> {
        Answer::ready(Err(Error::Unsupported { backend: self.kind(), operation: "list mailboxes" }))
    }

    /// The clock for waits in this process. Tests replace it.
    fn clock(&self) -> Arc<dyn Clock> {
        SystemClock::shared()
    }
}

/// One mailbox. Bodies are bytes.
pub trait ByteMailbox: fmt::Debug + Send + Sync + 'static {
    /// Stores messages, in order. A message whose result is `Ok` is as durable as the store allows.
    ///
    /// Fails with [`Error::MailboxFull`]. A message whose deduplication id was used within the window is not stored, and
    /// its result is the id of the first message.
    ///
    /// An id that the caller chose ([`Special::own_id`]) belongs to one message that the mailbox holds: ready, delayed,
    /// leased or dead. A second send of that id with the same body stores nothing, and its result is the id. With another
    /// body it fails with [`Error::InvalidParameter`] on `id`. [`Limits::own_ids`] says whether the backend checks this.
    fn send(&self, messages: Vec<Outgoing>) -> Answer<Vec<Result<MessageId, Error>>>;

    /// Leases up to `max` messages for `visibility`, and counts their deliveries in the same step.
    ///
    /// If no message is deliverable, it waits up to `wait` for one: for a send, a return, or the end of a delay or of a
    /// lease. It never waits to fill the batch. If the answer is dropped before it is ready, no message stays leased.
    fn receive(&self, request: Receive) -> Answer<Result<Vec<Delivery>, Error>>;

    /// Removes delivered messages.
    ///
    /// Fails with [`Error::ReceiptHandleExpired`] if the lease has ended, for any reason.
    fn acknowledge(&self, receipts: Vec<Receipt>) -> Answer<Vec<Result<(), Error>>>;

    /// Ends or extends leases. An extension never shortens a lease: [`Visibility::Extend`] by zero only checks that the
    /// lease has not ended. [`Visibility::Release`] undoes the delivery: the message returns to its old position, with its
    /// old delivery count. [`Limits::exact_deliveries`] says whether the backend can undo the count.
    ///
    /// Fails with [`Error::ReceiptHandleExpired`] as `acknowledge` does.
    fn set_visibility(&self, changes: Vec<(Receipt, Visibility)>) -> Answer<Vec<Result<(), Error>>>;

    /// Moves delivered messages to the dead letters of this mailbox, with a reason.
    ///
    /// Fails with [`Error::ReceiptHandleExpired`] as `acknowledge` does.
    fn dead_letter(&self, entries: Vec<(Receipt, String)>) -> Answer<Vec<Result<(), Error>>>;

    /// The same as [`send`](Self::send) of one message. A backend implements it for speed.
    fn send_one(&self, message: Outgoing) -> Answer<Result<MessageId, Error>> {
        self.send(vec![message]).map(only)
    }

    /// The same as [`acknowledge`](Self::acknowledge) of one delivery. A backend implements it for speed.
    fn acknowledge_one(&self, receipt: &Receipt) -> Answer<Result<(), Error>> {
        self.acknowledge(vec![receipt.clone()]).map(only)
    }

    /// Removes all messages but the dead letters, and returns their number. Receipts of leased messages expire.
    fn purge(&self) -> Answer<Result<u64, Error>>;

    /// A text that two handles share exactly if they are handles of one mailbox, whatever their addresses. It is compared
    /// within one kind of backend.
    fn identity(&self) -> Answer<Result<String, Error>>;

    /// The number of messages in each state.
    fn counts(&self) -> Answer<Result<Counts, Error>>;

    /// Creates the mailbox unless it exists.
    fn create(&self) -> Answer<Result<(), Error>>;

    /// Deletes the mailbox with its messages and dead letters, if it exists.
    fn delete(&self) -> Answer<Result<(), Error>>;

    /// Removes a delayed message that is not visible yet. `false` if there is no such message.
    fn cancel(&self, id: MessageId) -> Answer<Result<bool, Error>>;

    /// Up to `max` deliverable messages, in order, without delivering them.
    fn peek(&self, max: usize) -> Answer<Result<Vec<Delivery>, Error>>;

    /// Up to `max` dead letters, oldest first.
    fn dead_letters(&self, max: usize) -> Answer<Result<Vec<DeadLetter>, Error>>;

    /// Makes dead letters visible again, as if they had not been delivered: one by its id, or several, oldest first.
    /// Returns their number. Stops early when the mailbox is full.
    fn redrive(&self, which: Redrive) -> Answer<Result<u64, Error>>;

    /// Removes all dead letters, and returns their number.
    fn purge_dead_letters(&self) -> Answer<Result<u64, Error>>;
}

/// Settings of a mailbox, which the store keeps. `None` leaves a setting as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MailboxSettings {
    /// The most messages.
    pub max_size: Option<usize>,
    /// The number of deliveries after which a message becomes a dead letter.
    pub max_deliveries: Option<u32>,
    /// How long a deduplication id is remembered.
    pub deduplication_window: Option<Duration>,
    /// The time without use after which the mailbox is deleted with its messages. In memory a handle counts as use. On
    /// other backends, which do not know all handles, only operations do.
    pub idle_expiry: Option<Duration>,
}

/// A message to send.
#[derive(Clone)]
#[non_exhaustive]
pub struct Outgoing {
    /// The id, which the client chooses. So a repeated send can be told from a second message.
    pub id: MessageId,
    /// The body, encoded.
    pub body: Bytes,
    /// The codec of the body.
    pub content_type: ContentType,
    /// The headers, if there are any.
    pub headers: Option<Arc<Headers>>,
    /// The time until the message becomes visible.
    pub delay: Duration,
    /// Options that few messages have.
    pub special: Option<Box<Special>>,
}

/// Options that few messages have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Special {
    /// The time after which the message is removed, unless it is a dead letter.
    pub expires_in: Option<Duration>,
    /// The message group. Messages of a group are delivered in order, one at a time.
    pub group: Option<String>,
    /// The deduplication id. Two sends with the same id within the window are one message.
    pub deduplication: Option<String>,
    /// Whether the caller chose the id of the message. Then the mailbox may hold a message with this id.
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

/// Shows a body in debug output as its number of bytes.
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

/// The headers of a message.
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Headers {
    /// The address for answers.
    pub reply_to: Option<String>,
    /// The id of the reply for which the sender waits.
    pub reply: Option<ReplyId>,
    /// When the message was first sent, if it comes from another mailbox.
    pub enqueued_at: Option<SystemTime>,
    /// The attributes that the sender set.
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

/// The parameters of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Receive {
    /// The most messages.
    pub max: usize,
    /// The length of the leases.
    pub visibility: Duration,
    /// How long to wait if no message is deliverable.
    pub wait: Duration,
}

impl Receive {
    /// A request for at most `max` messages.
    pub const fn new(max: usize, visibility: Duration, wait: Duration) -> Self {
        Receive { max, visibility, wait }
    }
}

/// A delivered message.
#[derive(Clone)]
#[non_exhaustive]
pub struct Delivery {
    /// The message's id.
    pub id: MessageId,
    /// The body, encoded.
    pub body: Bytes,
    /// The codec of the body.
    pub content_type: ContentType,
    /// The headers, if there are any.
    pub headers: Option<Arc<Headers>>,
    /// The receipt of this delivery.
    pub receipt_handle: ReceiptHandle,
    /// The number of deliveries, this one included.
    pub delivery_count: u32,
    /// When the message was sent, by the store's clock.
    pub enqueued_at: Moment,
    /// When the lease began, by the same clock.
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

impl Delivery {
    /// A first delivery, without headers and without a content type. A backend sets the other fields.
    pub const fn new(
        id: MessageId,
        receipt_handle: ReceiptHandle,
        body: Bytes,
        enqueued_at: Moment,
        delivered_at: Moment,
    ) -> Self {
        let (content_type, headers, delivery_count) = (ContentType::Unmarked, None, 1);
        Delivery { id, body, content_type, headers, receipt_handle, delivery_count, enqueued_at, delivered_at }
    }
}

/// A delivery to settle.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Receipt {
    /// The id of the message, for errors.
    pub id: MessageId,
    /// The receipt handle.
    pub handle: ReceiptHandle,
}

impl Receipt {
    /// The receipt of a delivery.
    pub const fn new(id: MessageId, handle: ReceiptHandle) -> Self {
        Receipt { id, handle }
    }
}

/// A change of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visibility {
    /// Ends the lease. The message is visible again after this time.
    Return(Duration),
    /// Extends the lease to at least this time from now.
    Extend(Duration),
    /// Ends the lease as if the message had not been delivered: the message is visible at its old position, and the
    /// delivery does not count. For a delivery that no handler has seen.
    Release,
}

/// The number of messages in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Counts {
    /// Messages that are visible.
    pub ready: u64,
    /// Messages that were sent or returned with a delay, and are not visible yet.
    pub delayed: u64,
    /// Messages that are leased.
    pub in_flight: u64,
    /// Dead letters.
    pub dead: u64,
}

impl Counts {
    /// Counts of a mailbox.
    pub const fn new(ready: u64, delayed: u64, in_flight: u64, dead: u64) -> Self {
        Counts { ready, delayed, in_flight, dead }
    }

    /// All messages but the dead letters.
    pub const fn total(&self) -> u64 {
        self.ready.saturating_add(self.delayed).saturating_add(self.in_flight)
    }
}
