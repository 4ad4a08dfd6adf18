//! The typed handle of a mailbox, and the modules of its operations.

pub(crate) mod codec;
pub(crate) mod connection;
pub(crate) mod dead_letters;
pub(crate) mod dispatcher;
pub(crate) mod handle;
pub(crate) mod id;
pub(crate) mod lease;
pub(crate) mod message;
pub(crate) mod operation;
pub(crate) mod ranges;
pub(crate) mod receive;
pub(crate) mod send;
pub(crate) mod stored;
pub(crate) mod trace;

use std::borrow::Borrow;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::backend::{ByteMailbox, Counts, Limits};
use crate::error::Error;
use crate::mailbox::codec::{Decode, Encode, Json};
use crate::mailbox::connection::Connection;
use crate::mailbox::dead_letters::DeadLetters;
use crate::mailbox::dispatcher::MailboxEvent;
use crate::mailbox::handle::Core;
use crate::mailbox::id::{MessageId, ReplyId};
use crate::mailbox::message::Message;
use crate::mailbox::operation::{Answer, Call};
use crate::mailbox::receive::{MessageStream, ReceiveMessages};
use crate::mailbox::send::{Draft, SendBatch, SendMessage, SendRequest};
use crate::mailbox::stored::StoredMessage;
use crate::reply::Reply;
use crate::resolver::address::MailboxName;

/// A mailbox of `T`, whose requests are answered with `R`, in the codec `C`.
///
/// Every operation is a builder. Await it on any executor, or call `.blocking()` on a plain thread; nothing happens before that.
/// Handles are cheap to clone, and shared by threads and tasks. A thread that sends or receives without pause is fastest with a
/// clone of its own.
///
/// ```
/// use postbox::Mailbox;
/// use std::time::Duration;
///
/// # postbox_core::wait_for(async {
/// let mailbox: Mailbox<String> = postbox::open("memory://doc-mailbox").await?;
/// let id = mailbox.send("hello").await?;
///
/// let messages = mailbox.receive().max_messages(10).wait_time(Duration::from_secs(1)).await?;
/// assert_eq!(messages[0].id, id);
/// mailbox.acknowledge_batch(&messages).await?;
/// assert_eq!(mailbox.approximate_count().await?, 0);
/// # Ok::<(), postbox::Error>(())
/// # }).unwrap();
/// ```
pub struct Mailbox<T, R = (), C = Json> {
    pub(crate) core: Arc<Core>,
    types: PhantomData<fn(T) -> (T, R, C)>,
}

impl<T, R, C> Clone for Mailbox<T, R, C> {
    fn clone(&self) -> Self {
        Mailbox { core: Arc::new(Core::clone(&self.core)), types: PhantomData }
    }
}

impl<T, R, C> fmt::Debug for Mailbox<T, R, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.core.fmt(f)
    }
}

impl<T, R, C> Mailbox<T, R, C> {
    pub(crate) const fn from_core(core: Arc<Core>) -> Self {
        Mailbox { core, types: PhantomData }
    }

    /// The name of the mailbox.
    pub fn name(&self) -> &MailboxName {
        &self.core.name
    }

    /// What the mailbox allows and promises.
    pub fn limits(&self) -> &Limits {
        &self.core.limits
    }

    /// Stores a message. The body may be a borrowed form of `T`: a `Mailbox<String>` takes `&str`, a `Mailbox<Vec<u8>>` takes
    /// `&[u8]`.
    ///
    /// ```
    /// use postbox::Mailbox;
    ///
    /// let names: Mailbox<String> = postbox::open("memory://doc-send").blocking()?;
    /// names.send("cat.png").blocking()?;
    /// # names.purge().blocking()?;
    /// # Ok::<(), postbox::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Serialization`](Error::Serialization), [`MailboxFull`](Error::MailboxFull),
    /// [`InvalidParameter`](Error::InvalidParameter), [`Closed`](Error::Closed), [`Connection`](Error::Connection).
    #[inline]
    pub fn send<B: ?Sized>(&self, body: &B) -> SendMessage
    where
        T: Borrow<B>,
        C: Encode<B>,
    {
        SendMessage::new(Arc::clone(&self.core), Draft::new(C::encode(body), C::CONTENT_TYPE))
    }

    /// Stores several messages at once, in order. Each has its own result.
    ///
    /// # Errors
    /// [`InvalidParameter`](Error::InvalidParameter) for more than [`max_batch`](Limits::max_batch) messages,
    /// [`Closed`](Error::Closed).
    pub fn send_batch<'a>(&self, bodies: impl IntoIterator<Item = &'a T>) -> SendBatch
    where
        T: 'a,
        C: Encode<T>,
    {
        SendBatch::new(Arc::clone(&self.core), bodies.into_iter().map(C::encode).collect(), C::CONTENT_TYPE)
    }

    /// Stores a request: a message that is answered through the reply store.
    ///
    /// # Errors
    /// Those of [`send`](Self::send), and [`Unsupported`](Error::Unsupported) if there is no reply store.
    pub fn send_expecting_reply<B: ?Sized>(&self, body: &B) -> SendRequest<R, C>
    where
        T: Borrow<B>,
        C: Encode<B>,
    {
        SendRequest::new(Arc::clone(&self.core), Draft::new(C::encode(body), C::CONTENT_TYPE))
    }

    /// Leases messages. By default one message, for 30 seconds, without waiting.
    ///
    /// A body that cannot be decoded is reported, and its message stays leased. It is delivered again, until it becomes a dead
    /// letter. The call returns the other messages; it fails if there are none.
    ///
    /// # Errors
    /// [`Serialization`](Error::Serialization), [`InvalidParameter`](Error::InvalidParameter),
    /// [`Closed`](Error::Closed), [`Connection`](Error::Connection).
    pub fn receive(&self) -> ReceiveMessages<T, R, C> {
        ReceiveMessages::new(Arc::clone(&self.core))
    }

    /// Returns an endless stream of messages. It ends when the mailbox is closed.
    ///
    /// ```
    /// use postbox::Mailbox;
    /// use smol::stream::StreamExt;
    ///
    /// # postbox_core::wait_for(async {
    /// let mailbox: Mailbox<u32> = postbox::open("memory://doc-stream").await?;
    /// mailbox.send_batch(&[1, 2, 3]).await?;
    /// let mut stream = mailbox.stream().max_messages(10);
    /// let mut sum = 0;
    /// while let Some(message) = stream.next().await {
    ///     let message = message?;
    ///     sum += message.body;
    ///     message.acknowledge().await?;
    ///     if sum == 6 {
    ///         mailbox.close();
    ///     }
    /// }
    /// # Ok::<(), postbox::Error>(())
    /// # }).unwrap();
    /// ```
    pub fn stream(&self) -> MessageStream<T, R, C>
    where
        T: Send + 'static,
        R: 'static,
        C: Decode<T>,
    {
        MessageStream::new(Arc::clone(&self.core))
    }

    /// Acknowledges several messages at once. Each has its own result; a message that expects a reply is refused with
    /// [`ReplyExpected`](Error::ReplyExpected).
    ///
    /// # Errors
    /// [`InvalidParameter`](Error::InvalidParameter) for more than [`max_batch`](Limits::max_batch) messages.
    pub fn acknowledge_batch<'a>(
        &self,
        messages: impl IntoIterator<Item = &'a Message<T, R, C>>,
    ) -> Call<Result<Vec<Result<(), Error>>, Error>>
    where
        T: 'a,
        R: 'a,
        C: 'a,
    {
        let core = Arc::clone(&self.core);
        let (mut refused, mut receipts) = (Vec::new(), Vec::new());
        for (at, message) in messages.into_iter().enumerate() {
            match message.expects_reply() {
                true => refused.push((at, message.id.clone())),
                false => receipts.push(message.receipt()),
            }
        }
        Call::new(move || {
            let many = receipts.len() + refused.len();
            if many == 0 {
                return Answer::ready(Ok(Vec::new()));
            }
            if let Err(error) = core.check_batch("batch size", many) {
                return Answer::ready(Err(error));
            }
            let acknowledged = if receipts.is_empty() { Answer::ready(Vec::new()) } else { core.acknowledge(receipts) };
            acknowledged.map(move |mut results| {
                for (at, id) in refused {
                    results.insert(at, Err(Error::ReplyExpected { id }));
                }
                Ok(results)
            })
        })
    }

    /// Returns the number of messages, visible and invisible, without the dead letters. It is exact where
    /// [`Limits::exact_counts`] says so.
    ///
    /// # Errors
    /// [`Connection`](Error::Connection).
    pub fn approximate_count(&self) -> Call<Result<u64, Error>> {
        self.verb("counts", |bytes| bytes.counts().map(|counts| Ok(counts?.total())))
    }

    /// Whether two handles are of the same mailbox, however their addresses were written. Asks the backend.
    ///
    /// ```
    /// # let mailbox: postbox::Mailbox<u32> = postbox::open("memory://doc-same").blocking()?;
    /// let again: postbox::Mailbox<String> = postbox::open("MEMORY://doc%2Dsame").blocking()?;
    /// assert!(mailbox.is_same_as(&again).blocking()?);
    /// # Ok::<(), postbox::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Connection`](Error::Connection).
    pub fn is_same_as<U, S, D>(&self, other: &Mailbox<U, S, D>) -> Call<Result<bool, Error>> {
        let (core, other) = (Arc::clone(&self.core), Arc::clone(&other.core));
        Call::new(move || {
            if core.kind != other.kind {
                return Answer::ready(Ok(false));
            }
            let identity = |core: &Arc<Core>| core.run("identity", |bytes| bytes.identity());
            identity(&core).then(move |own| match own {
                Ok(own) => identity(&other).map(move |others| Ok(own == others?)),
                Err(error) => Answer::ready(Err(error)),
            })
        })
    }

    /// The connection of this mailbox, to open other mailboxes in the same store. They have the prefix of this mailbox and none
    /// of its other options.
    ///
    /// ```
    /// use postbox::Mailbox;
    ///
    /// let jobs: Mailbox<String> = postbox::open("memory://doc-connection").blocking()?;
    /// let results: Mailbox<String> = jobs.connection().mailbox("doc-connection-results")?;
    /// results.send("done").blocking()?;
    /// # results.purge().blocking()?;
    /// # Ok::<(), postbox::Error>(())
    /// ```
    pub fn connection(&self) -> Connection {
        let connection = Connection::from_arc(Arc::clone(&self.core.backend));
        match self.core.name.prefix() {
            Some(prefix) => connection.prefix(prefix),
            None => connection,
        }
    }

    /// Returns the number of messages in each state.
    ///
    /// # Errors
    /// [`Connection`](Error::Connection).
    pub fn counts(&self) -> Call<Result<Counts, Error>> {
        self.verb("counts", |bytes| bytes.counts())
    }

    /// Removes all messages, leased ones too, but no dead letters. Returns their number.
    ///
    /// # Errors
    /// [`Connection`](Error::Connection), also during a [`purge_cooldown`](Limits::purge_cooldown).
    pub fn purge(&self) -> Call<Result<u64, Error>> {
        let core = Arc::clone(&self.core);
        Call::new(move || {
            core.run("purge", |bytes| bytes.purge()).map(move |purged| {
                if let Ok(messages) = purged {
                    core.tell(|mailbox| MailboxEvent::Purged { mailbox, messages });
                }
                purged
            })
        })
    }

    /// Returns at most `max` messages that could be received now, in order, without leasing them. A body that cannot be decoded
    /// is an error in that message alone.
    ///
    /// ```
    /// # let mailbox: postbox::Mailbox<u32> = postbox::open("memory://doc-peek").blocking()?;
    /// mailbox.send(&1).blocking()?;
    /// for message in mailbox.peek(10).blocking()? {
    ///     println!("{} was sent at {:?}: {}", message.id, message.enqueued_at, message.body?);
    /// }
    /// assert_eq!(mailbox.receive().blocking()?.len(), 1);
    /// # mailbox.purge().blocking()?;
    /// # Ok::<(), postbox::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Unsupported`](Error::Unsupported) where [`Limits::peek`] is false, [`Connection`](Error::Connection).
    pub fn peek(&self, max: usize) -> Call<Result<Vec<StoredMessage<T>>, Error>>
    where
        T: 'static,
        C: Decode<T>,
    {
        let core = Arc::clone(&self.core);
        Call::new(move || {
            if !core.limits.peek {
                return Answer::ready(Err(core.unsupported("show messages without leasing them")));
            }
            core.run("peek", |bytes| bytes.peek(max)).map(move |found| {
                let found = core.at_most("peek", max, found?)?;
                Ok(found.into_iter().map(StoredMessage::new::<C>).collect())
            })
        })
    }

    /// Removes a message that was sent with a delay and is not visible yet. Returns `false` if it is too late.
    ///
    /// ```
    /// # let mailbox: postbox::Mailbox<u32> = postbox::open("memory://doc-cancel").blocking()?;
    /// let id = mailbox.send(&1).delay(std::time::Duration::from_secs(60)).blocking()?;
    /// assert!(mailbox.cancel(&id).blocking()?);
    /// assert_eq!(mailbox.approximate_count().blocking()?, 0);
    /// # Ok::<(), postbox::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Unsupported`](Error::Unsupported) where [`Limits::cancel`] is false, [`Connection`](Error::Connection).
    pub fn cancel(&self, id: &MessageId) -> Call<Result<bool, Error>> {
        let (core, id) = (Arc::clone(&self.core), id.clone());
        Call::new(move || match core.limits.cancel {
            true => core.run("cancel", |bytes| bytes.cancel(id)),
            false => Answer::ready(Err(core.unsupported("cancel a delayed message"))),
        })
    }

    /// The dead letters of this mailbox, to list, redrive or purge.
    pub fn dead_letters(&self) -> DeadLetters<T, C> {
        DeadLetters::new(Arc::clone(&self.core))
    }

    /// A reply that was requested elsewhere: by another process, or before a restart.
    ///
    /// # Errors
    /// Every use of the reply gives [`Unsupported`](Error::Unsupported) if there is no reply store.
    pub fn reply(&self, id: impl Into<ReplyId>) -> Reply<R, C> {
        Reply::new(self.core.replies.clone(), id.into(), Arc::clone(&self.core.clock))
    }

    /// Creates the mailbox if it does not exist, on backends where that is a step of its own.
    ///
    /// # Errors
    /// [`Connection`](Error::Connection).
    pub fn create(&self) -> Call<Result<(), Error>> {
        self.verb("create", |bytes| bytes.create())
    }

    /// Removes the mailbox with all of its messages, dead letters too.
    ///
    /// # Errors
    /// [`Connection`](Error::Connection).
    pub fn delete(&self) -> Call<Result<(), Error>> {
        self.verb("delete", |bytes| bytes.delete())
    }

    /// A verb of the backend that needs no check.
    fn verb<U: Send + 'static>(
        &self,
        operation: &'static str,
        verb: fn(&dyn ByteMailbox) -> Answer<Result<U, Error>>,
    ) -> Call<Result<U, Error>> {
        let core = Arc::clone(&self.core);
        Call::new(move || core.run(operation, verb))
    }

    /// Closes this handle and its clones: waiting receivers return nothing, and later sends and receives fail with
    /// [`Closed`](Error::Closed). Leased messages can still be settled. Other handles stay open.
    pub fn close(&self) {
        self.core.closed.cancel();
    }

    /// Whether this handle, or a clone of it, was closed.
    pub fn is_closed(&self) -> bool {
        self.core.closed.is_cancelled()
    }

    /// The same mailbox without its types.
    pub fn untyped(&self) -> UntypedMailbox {
        UntypedMailbox { core: Arc::clone(&self.core) }
    }
}

/// A mailbox without types: what a resolver returns.
///
/// ```
/// use postbox::Mailbox;
/// use postbox::resolver::UntypedMailbox;
///
/// let mailbox: Mailbox<u32> = postbox::open("memory://doc-untyped").blocking()?;
/// let untyped: UntypedMailbox = mailbox.into();
/// let again: Mailbox<u32> = untyped.typed();
/// again.send(&1).blocking()?;
/// # Ok::<(), postbox::Error>(())
/// ```
pub struct UntypedMailbox {
    pub(crate) core: Arc<Core>,
}

impl Clone for UntypedMailbox {
    fn clone(&self) -> Self {
        UntypedMailbox { core: Arc::new(Core::clone(&self.core)) }
    }
}

impl UntypedMailbox {
    /// The same mailbox with types. Whether they fit shows when a body is decoded.
    pub fn typed<T, R, C>(&self) -> Mailbox<T, R, C> {
        Mailbox::from_core(Arc::clone(&self.core))
    }

    /// The same mailbox by another handle: closing one does not close the other.
    #[must_use]
    pub fn sibling(&self) -> Self {
        UntypedMailbox { core: Arc::new(self.core.sibling()) }
    }

    /// The name of the mailbox.
    pub fn name(&self) -> &MailboxName {
        &self.core.name
    }

    /// Whether the handle is open and its store can be reached.
    pub fn is_healthy(&self) -> Call<bool> {
        let core = Arc::clone(&self.core);
        Call::new(move || match core.closed.is_cancelled() {
            true => Answer::ready(false),
            false => core.run("counts", |bytes| bytes.counts()).map(|counts| counts.is_ok()),
        })
    }
}

impl fmt::Debug for UntypedMailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.core.fmt(f)
    }
}

impl<T, R, C> From<Mailbox<T, R, C>> for UntypedMailbox {
    fn from(mailbox: Mailbox<T, R, C>) -> Self {
        UntypedMailbox { core: mailbox.core }
    }
}

impl<T, R, C> From<&Mailbox<T, R, C>> for UntypedMailbox {
    fn from(mailbox: &Mailbox<T, R, C>) -> Self {
        mailbox.untyped()
    }
}
