//! Mailboxes that drop or collect messages, and replies that have come.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::backend::{
    Backend, ByteMailbox, Counts, DeadLetter, Delivery, Limits, MailboxSettings, Outgoing, Receipt, Receive, Redrive,
    Visibility,
};
use crate::backends::memory::MemoryReplyStore;
use crate::error::Error;
use crate::mailbox::codec::{Decode, Encode, Json};
use crate::mailbox::handle::{Core, HandleOptions};
use crate::mailbox::id::{MessageId, ReplyId};
use crate::mailbox::operation::Answer;
use crate::mailbox::{Mailbox, UntypedMailbox};
use crate::reply::Reply;
use crate::reply::store::{Replies, ReplyStore, ReplyValue};
use crate::resolver::address::MailboxName;
use crate::runtime::clock::{Sleep, SystemClock};

/// A backend that accepts messages and never delivers them. It keeps them if it collects.
#[derive(Clone, Debug)]
struct Sink {
    kind: &'static str,
    sent: Option<Arc<Mutex<Vec<Outgoing>>>>,
    replies: Arc<MemoryReplyStore>,
}

impl Sink {
    fn new(kind: &'static str, collects: bool) -> Self {
        Sink { kind, sent: collects.then(Arc::default), replies: Arc::default() }
    }

    fn sent(&self) -> Vec<Outgoing> {
        let sent = self.sent.as_ref().map(|sent| sent.lock().unwrap_or_else(PoisonError::into_inner).clone());
        sent.unwrap_or_default()
    }

    fn mailbox<T, R, C>(&self) -> Mailbox<T, R, C> {
        let name = MailboxName::new(self.kind).expect("the kind is a name");
        Mailbox::from_core(Core::with_bytes(
            Arc::new(self.clone()),
            Arc::new(self.clone()),
            name,
            HandleOptions::default(),
        ))
    }
}

impl Backend for Sink {
    fn kind(&self) -> &'static str {
        self.kind
    }

    fn limits(&self) -> Limits {
        Limits::generous()
    }

    fn mailbox(&self, _: &MailboxName, _: &MailboxSettings) -> Result<Arc<dyn ByteMailbox>, Error> {
        Ok(Arc::new(self.clone()))
    }

    fn replies(&self) -> Option<Arc<dyn ReplyStore>> {
        let replies: Arc<MemoryReplyStore> = Arc::clone(&self.replies);
        Some(replies)
    }
}

/// The result of settling, since no message was delivered.
fn expired(id: MessageId) -> Result<(), Error> {
    Err(Error::ReceiptHandleExpired { id })
}

impl ByteMailbox for Sink {
    fn send(&self, messages: Vec<Outgoing>) -> Answer<Vec<Result<MessageId, Error>>> {
        let ids = messages.iter().map(|message| Ok(message.id.clone())).collect();
        if let Some(sent) = &self.sent {
            sent.lock().unwrap_or_else(PoisonError::into_inner).extend(messages);
        }
        Answer::ready(ids)
    }

    fn receive(&self, request: Receive) -> Answer<Result<Vec<Delivery>, Error>> {
        if request.wait.is_zero() {
            return Answer::ready(Ok(Vec::new()));
        }
        let sleep = Sleep::for_(SystemClock::shared(), request.wait);
        Answer::from_future(async move {
            sleep.await;
            Ok(Vec::new())
        })
    }

    fn acknowledge(&self, receipts: Vec<Receipt>) -> Answer<Vec<Result<(), Error>>> {
        Answer::ready(receipts.into_iter().map(|receipt| expired(receipt.id)).collect())
    }

    fn set_visibility(&self, changes: Vec<(Receipt, Visibility)>) -> Answer<Vec<Result<(), Error>>> {
        Answer::ready(changes.into_iter().map(|(receipt, _)| expired(receipt.id)).collect())
    }

    fn dead_letter(&self, letters: Vec<(Receipt, String)>) -> Answer<Vec<Result<(), Error>>> {
        Answer::ready(letters.into_iter().map(|(receipt, _)| expired(receipt.id)).collect())
    }

    fn purge(&self) -> Answer<Result<u64, Error>> {
        Answer::ready(Ok(0))
    }

    fn identity(&self) -> Answer<Result<String, Error>> {
        Answer::ready(Ok(format!("{:p}", Arc::as_ptr(&self.replies))))
    }

    fn counts(&self) -> Answer<Result<Counts, Error>> {
        Answer::ready(Ok(Counts::default()))
    }

    fn create(&self) -> Answer<Result<(), Error>> {
        Answer::ready(Ok(()))
    }

    fn delete(&self) -> Answer<Result<(), Error>> {
        Answer::ready(Ok(()))
    }

    fn cancel(&self, _: MessageId) -> Answer<Result<bool, Error>> {
        Answer::ready(Ok(false))
    }

    fn peek(&self, _: usize) -> Answer<Result<Vec<Delivery>, Error>> {
        Answer::ready(Ok(Vec::new()))
    }

    fn dead_letters(&self, _: usize) -> Answer<Result<Vec<DeadLetter>, Error>> {
        Answer::ready(Ok(Vec::new()))
    }

    fn redrive(&self, _: Redrive) -> Answer<Result<u64, Error>> {
        Answer::ready(Ok(0))
    }

    fn purge_dead_letters(&self) -> Answer<Result<u64, Error>> {
        Answer::ready(Ok(0))
    }
}

macro_rules! double {
    ($name:ident) => {
        impl<T, R, C> Default for $name<T, R, C> {
            fn default() -> Self {
                Self::new()
            }
        }

        impl<T, R, C> Deref for $name<T, R, C> {
            type Target = Mailbox<T, R, C>;

            fn deref(&self) -> &Self::Target {
                &self.mailbox
            }
        }

        impl<T, R, C> fmt::Debug for $name<T, R, C> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(stringify!($name))
            }
        }

        impl<T, R, C> From<&$name<T, R, C>> for UntypedMailbox {
            fn from(double: &$name<T, R, C>) -> Self {
                double.mailbox.untyped()
            }
        }
    };
}

/// A mailbox that drops every message, and has none to receive. Its replies never come.
///
/// ```
/// use postbox::testing::NullMailbox;
///
/// let mailbox: NullMailbox<String> = NullMailbox::new();
/// mailbox.send("gone").blocking()?;
/// assert!(mailbox.receive().blocking()?.is_empty());
/// assert_eq!(mailbox.approximate_count().blocking()?, 0);
/// # Ok::<(), postbox::Error>(())
/// ```
pub struct NullMailbox<T, R = (), C = Json> {
    mailbox: Mailbox<T, R, C>,
}

impl<T, R, C> NullMailbox<T, R, C> {
    /// A mailbox that drops every message.
    pub fn new() -> Self {
        NullMailbox { mailbox: Sink::new("null", false).mailbox() }
    }
}

double!(NullMailbox);

/// A mailbox that keeps sent messages for a test to check, and has none to receive.
///
/// ```
/// use postbox::testing::CollectingMailbox;
///
/// let mailbox: CollectingMailbox<String> = CollectingMailbox::new();
/// mailbox.send("a").attribute("tenant", "x").blocking()?;
/// assert_eq!(mailbox.sent(), ["a"]);
/// assert_eq!(mailbox.sent_messages()[0].headers.as_ref().unwrap().attributes["tenant"], "x");
/// # Ok::<(), postbox::Error>(())
/// ```
pub struct CollectingMailbox<T, R = (), C = Json> {
    mailbox: Mailbox<T, R, C>,
    sink: Sink,
}

impl<T, R, C> CollectingMailbox<T, R, C> {
    /// A mailbox without messages.
    pub fn new() -> Self {
        let sink = Sink::new("collecting", true);
        CollectingMailbox { mailbox: sink.mailbox(), sink }
    }

    /// The decoded bodies of the sent messages, in order.
    ///
    /// # Panics
    /// If a body cannot be decoded as a `T`.
    pub fn sent(&self) -> Vec<T>
    where
        C: Decode<T>,
    {
        let decode = |message: Outgoing| C::decode(&message.body).unwrap_or_else(|error| panic!("sent: {error}"));
        self.sink.sent().into_iter().map(decode).collect()
    }

    /// The sent messages, in order, with their metadata.
    pub fn sent_messages(&self) -> Vec<Outgoing> {
        self.sink.sent()
    }
}

double!(CollectingMailbox);

impl<T, R, C> Clone for CollectingMailbox<T, R, C> {
    fn clone(&self) -> Self {
        CollectingMailbox { mailbox: self.mailbox.clone(), sink: self.sink.clone() }
    }
}

impl CollectingMailbox<()> {
    /// The same collection with other types.
    pub(super) fn typed<T, R, C>(&self) -> CollectingMailbox<T, R, C> {
        CollectingMailbox { mailbox: self.mailbox.untyped().typed(), sink: self.sink.clone() }
    }
}

/// Constructs replies that have come already.
///
/// ```
/// use postbox::testing::ImmediateReply;
///
/// let reply = ImmediateReply::new(42);
/// assert_eq!(reply.wait().blocking()?, 42);
/// # Ok::<(), postbox::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ImmediateReply;

impl ImmediateReply {
    /// A reply with this answer.
    ///
    /// # Panics
    /// If the answer cannot be encoded.
    #[allow(clippy::new_ret_no_self, reason = "what is made is an ordinary reply")]
    pub fn new<R>(answer: R) -> Reply<R>
    where
        Json: Encode<R>,
    {
        Self::with_codec(&answer)
    }

    /// A reply with this answer, in another codec.
    ///
    /// # Panics
    /// If the answer cannot be encoded.
    pub fn with_codec<R, C: Encode<R>>(answer: &R) -> Reply<R, C> {
        let body = C::encode(answer).unwrap_or_else(|error| panic!("the answer of an ImmediateReply: {error}"));
        let (store, id) = (Arc::new(MemoryReplyStore::new()), ReplyId::new());
        let created = store.create(id.clone(), Duration::from_secs(300)).blocking();
        let resolved = store.resolve(id.clone(), ReplyValue::new(body, C::CONTENT_TYPE)).blocking();
        debug_assert!(created.is_ok() && resolved.is_ok());
        Reply::new(Replies::new("memory", Some(store)), id, SystemClock::shared())
    }
}
