//! Sending: the builders of a message, a batch and a request.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use crate::backend::wire::{DecodeError, MAX_HEADER_BYTES, MAX_HEADERS};
use crate::backend::{ByteCount, Headers, Outgoing, Special, wire};
use crate::error::Error;
use crate::mailbox::codec::{CodecError, ContentType};
use crate::mailbox::handle::Core;
use crate::mailbox::id::{MessageId, ReplyId};
use crate::mailbox::operation::{Answer, Verb, awaitable};
use crate::mailbox::ranges::{REPLY_TIMEOUT, check_duration};
use crate::mailbox::trace::{TRACEPARENT, TRACESTATE, TraceContext};
use crate::reply::Reply;

/// The prefix of the attributes that Postbox sets.
pub(crate) const RESERVED: &str = "postbox.";

/// A message that is not sent yet. Its body is encoded when the builder is made; an error shows when it is sent.
pub(crate) struct Draft {
    body: Result<Bytes, CodecError>,
    content_type: ContentType,
    /// Apart, because most messages have none.
    extras: Option<Box<Extras>>,
}

/// Without the body.
impl fmt::Debug for Draft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Draft")
            .field("body", &self.body.as_ref().map(|body| ByteCount(body)))
            .field("content_type", &self.content_type)
            .field("extras", &self.extras)
            .finish()
    }
}

#[derive(Clone, Debug, Default)]
struct Extras {
    id: Option<MessageId>,
    delay: Duration,
    headers: Headers,
    special: Special,
}

impl Draft {
    pub(crate) const fn new(body: Result<Bytes, CodecError>, content_type: ContentType) -> Self {
        Draft { body, content_type, extras: None }
    }

    fn extras(&mut self) -> &mut Extras {
        self.extras.get_or_insert_default()
    }

    /// The message, if all of it is allowed. A plain message takes the short way, which is inlined.
    #[inline(always)]
    fn checked(self, core: &Core) -> Result<Outgoing, Error> {
        let Draft { body, content_type, extras } = self;
        match body {
            Ok(body)
                if extras.is_none()
                    && !matches!(content_type, ContentType::Other(_))
                    && core.limits.max_message_size.is_none_or(|most| body.len() <= most)
                    && !TraceContext::is_set() =>
            {
                Ok(Outgoing::new(body, content_type))
            }
            body => Draft { body, content_type, extras }.all_checked(core),
        }
    }

    fn all_checked(mut self, core: &Core) -> Result<Outgoing, Error> {
        let limits = &core.limits;
        if let Some(extras) = &self.extras {
            check_duration("delay", extras.delay, limits.max_delay)?;
        }
        if let Some(context) = TraceContext::current() {
            // A message that a handler sends belongs to the trace of the message that it handles.
            let attributes = &mut self.extras().headers.attributes;
            if !attributes.contains_key(TRACEPARENT) {
                attributes.insert(TRACEPARENT.into(), context.child().to_string());
                attributes.extend(TraceContext::current_state().map(|state| (TRACESTATE.into(), state)));
            }
        }
        check_headers(&self.content_type, self.extras.as_ref().map(|extras| &extras.headers))?;
        let body = self.body.map_err(Error::encoding)?;
        let mut size = body.len();
        let mut message = Outgoing::new(body, self.content_type);
        if let Some(extras) = self.extras {
            let Extras { id, delay, headers, mut special } = *extras;
            message.delay = delay;
            check_special(core, &special)?;
            headers.attributes.iter().try_for_each(|(name, value)| check_attribute(name, value))?;
            size += headers.attributes.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
            size += headers.reply_to.as_ref().map_or(0, String::len);
            special.own_id = id.is_some();
            message.id = id.unwrap_or(message.id);
            message.headers = (headers != Headers::default()).then(|| Arc::new(headers));
            message.special = (special != Special::default()).then(|| Box::new(special));
        }
        match limits.max_message_size {
            Some(most) if size > most => {
                Err(Error::invalid("message size", format!("{size} bytes"), format!("up to {most} bytes")))
            }
            _ => Ok(message),
        }
    }
}

fn check_special(core: &Core, special: &Special) -> Result<(), Error> {
    let limits = &core.limits;
    for (wanted, allowed, operation) in [
        (special.group.is_some(), limits.groups, "deliver by message group"),
        (special.deduplication.is_some(), limits.deduplication, "deduplicate"),
        (special.expires_in.is_some(), limits.expiry, "let a message expire by itself"),
    ] {
        if wanted && !allowed {
            return Err(core.unsupported(operation));
        }
    }
    if let Some(after) = special.expires_in {
        check_duration("expires_in", after, limits.max_delay)?;
    }
    for (parameter, id) in [("group", &special.group), ("deduplication_id", &special.deduplication)] {
        if let Some(id) = id.as_ref().filter(|id| !(1..=128).contains(&id.len())) {
            return Err(Error::invalid(parameter, format!("{id:?}"), "1 to 128 bytes"));
        }
    }
    Ok(())
}

/// Checks the headers against the limits of the wire format, which readers of every backend enforce.
fn check_headers(content_type: &ContentType, headers: Option<&Headers>) -> Result<(), Error> {
    let limit = || format!("up to {MAX_HEADERS} headers of {MAX_HEADER_BYTES} bytes in all, those of Postbox included");
    wire::check_headers(content_type, headers, 0).map_err(|error| match error {
        DecodeError::TooManyHeaders(many) => Error::invalid("headers", format!("{many} headers"), limit()),
        DecodeError::HeadersTooLarge(size) => Error::invalid("headers", format!("{size} bytes"), limit()),
        other @ DecodeError::UnknownVersion(_) => Error::encoding(other),
    })
}

fn check_attribute(name: &str, value: &str) -> Result<(), Error> {
    const RULE: &str =
        "names have 1 to 256 characters of A-Z a-z 0-9 . _ - and do not start with postbox.; values have up to 256 KiB";
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let is_name = (1..=256).contains(&name.len()) && name.bytes().all(allowed) && !name.starts_with(RESERVED);
    if is_name && value.len() <= 256 * 1024 {
        Ok(())
    } else {
        Err(Error::invalid("attribute", format!("{name:?}"), RULE))
    }
}

/// The options of every send.
macro_rules! options {
    () => {
        /// Keeps the message invisible for this time.
        pub fn delay(mut self, delay: Duration) -> Self {
            self.draft.extras().delay = delay;
            self
        }

        /// The address for an answer: a name, or a URI. The handler of the message resolves it.
        pub fn reply_to(mut self, address: impl Into<String>) -> Self {
            self.draft.extras().headers.reply_to = Some(address.into());
            self
        }

        /// Sets an attribute. Names that start with `postbox.` are reserved. A message has at most
        /// [`MAX_HEADERS`](crate::backend::wire::MAX_HEADERS) headers of at most
        /// [`MAX_HEADER_BYTES`](crate::backend::wire::MAX_HEADER_BYTES) in all, those of Postbox included.
        pub fn attribute(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
            self.draft.extras().headers.attributes.insert(name.into(), value.into());
            self
        }

        /// Puts the message into a group. The messages of a group are delivered in order, one at a time.
        pub fn group(mut self, group: impl Into<String>) -> Self {
            self.draft.extras().special.group = Some(group.into());
            self
        }
    };
}

/// The options of one message, which a batch does not have.
macro_rules! options_of_one {
    () => {
        options!();

        /// Removes the message after this time, unless it is being delivered then.
        pub fn expires_in(mut self, after: Duration) -> Self {
            self.draft.extras().special.expires_in = Some(after);
            self
        }

        /// Sends with the same deduplication id, within the mailbox's window, are one message.
        pub fn deduplication_id(mut self, id: impl Into<String>) -> Self {
            self.draft.extras().special.deduplication = Some(id.into());
            self
        }

        /// Uses this id, preferably a UUID, instead of a new one, so that the send can be retried.
        ///
        /// The id names one message among those that the mailbox holds, dead letters included. A second send of the id with
        /// the same body stores nothing; with another body it is [`InvalidParameter`](Error::InvalidParameter). When the
        /// message is finished, the id is free again. A [deduplication id](Self::deduplication_id) is remembered for longer.
        /// Where [`Limits::own_ids`](crate::Limits::own_ids) is false, both messages are stored.
        pub fn id(mut self, id: impl Into<MessageId>) -> Self {
            self.draft.extras().id = Some(id.into());
            self
        }

        /// Sets the time at which the message was first sent, for a message that is moved from another mailbox.
        pub fn enqueued_at(mut self, time: SystemTime) -> Self {
            self.draft.extras().headers.enqueued_at = Some(time);
            self
        }

        /// Sets the content type, for a body that was encoded elsewhere. Default: that of the mailbox's codec.
        pub fn content_type(mut self, content_type: ContentType) -> Self {
            self.draft.content_type = content_type;
            self
        }

        /// Makes the message part of a trace.
        pub fn trace_context(self, context: TraceContext) -> Self {
            self.attribute(TRACEPARENT, context.to_string())
        }
    };
}

/// A message to send: [`Mailbox::send`](crate::Mailbox::send).
#[derive(Debug)]
#[must_use = "nothing is sent unless it is awaited, or `blocking`"]
pub struct SendMessage {
    core: Arc<Core>,
    draft: Draft,
}

impl SendMessage {
    pub(crate) const fn new(core: Arc<Core>, draft: Draft) -> Self {
        SendMessage { core, draft }
    }

    options_of_one!();
}

#[cfg(feature = "sqlite")]
impl SendMessage {
    /// Sends within a transaction of the caller, on the same SQLite file. The message is stored if and when the transaction
    /// commits, together with everything else in it.
    ///
    /// ```
    /// use postbox::sqlite::rusqlite::Connection;
    /// use postbox::Mailbox;
    ///
    /// # let folder = std::env::temp_dir().join(format!("postbox-outbox-{}", std::process::id()));
    /// # std::fs::create_dir_all(&folder).unwrap();
    /// # let file = folder.join("shop.db");
    /// # let file = file.to_str().unwrap();
    /// let jobs: Mailbox<String> = postbox::open(format!("sqlite://{file}/jobs")).blocking()?;
    /// jobs.create().blocking()?;
    ///
    /// let mut shop = Connection::open(file).unwrap();
    /// shop.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)", []).unwrap();
    /// let order = shop.transaction().unwrap();
    /// order.execute("INSERT INTO orders (item) VALUES ('lamp')", []).unwrap();
    /// jobs.send("ship the lamp").within(&order)?;
    /// order.commit().unwrap(); // the order and the job, or neither
    ///
    /// assert_eq!(jobs.receive().blocking()?[0].body, "ship the lamp");
    /// # std::fs::remove_dir_all(&folder).unwrap();
    /// # Ok::<(), postbox::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of a send; [`Unsupported`](Error::Unsupported) if the mailbox is not in an SQLite file;
    /// [`InvalidParameter`](Error::InvalidParameter) if the connection has not begun a transaction. The caller's
    /// transaction is still open, and should be rolled back.
    pub fn within(self, transaction: &rusqlite::Connection) -> Result<MessageId, Error> {
        let SendMessage { core, draft } = self;
        if core.kind != "sqlite" {
            return Err(core.unsupported("send within a transaction of SQLite"));
        }
        core.check_open()?;
        let message = draft.checked(&core)?;
        crate::backends::sqlite::send_within(transaction, core.backend.clock(), &core.name, &core.settings, &message)
    }
}

impl Verb for SendMessage {
    type Output = Result<MessageId, Error>;

    #[inline]
    fn start(self) -> Answer<Self::Output> {
        match self.draft.checked(&self.core) {
            Ok(message) => self.core.send_one(message),
            Err(error) => Answer::ready(Err(error)),
        }
    }
}

awaitable!(SendMessage);

/// Messages to send at once: [`Mailbox::send_batch`](crate::Mailbox::send_batch).
#[must_use = "nothing is sent unless it is awaited, or `blocking`"]
pub struct SendBatch {
    core: Arc<Core>,
    bodies: Vec<Result<Bytes, CodecError>>,
    /// The options of all messages, with an empty body.
    draft: Draft,
}

/// Without the bodies.
impl fmt::Debug for SendBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendBatch")
            .field("core", &self.core)
            .field(
                "bodies",
                &self.bodies.iter().map(|body| body.as_ref().map(|body| ByteCount(body))).collect::<Vec<_>>(),
            )
            .field("draft", &self.draft)
            .finish_non_exhaustive()
    }
}

impl SendBatch {
    pub(crate) fn new(core: Arc<Core>, bodies: Vec<Result<Bytes, CodecError>>, content_type: ContentType) -> Self {
        SendBatch { core, bodies, draft: Draft::new(Ok(Bytes::new()), content_type) }
    }

    options!();
}

impl Verb for SendBatch {
    type Output = Result<Vec<Result<MessageId, Error>>, Error>;

    #[inline]
    fn start(self) -> Answer<Self::Output> {
        if self.bodies.is_empty() {
            return Answer::ready(self.core.check_open().map(|()| Vec::new()));
        }
        if let Err(error) = self.core.check_batch("batch size", self.bodies.len()).and_then(|()| self.core.check_open())
        {
            return Answer::ready(Err(error));
        }
        // The errors of the messages that cannot be sent, with their places among the results.
        let (mut refused, mut messages) = (Vec::new(), Vec::new());
        for (at, body) in self.bodies.into_iter().enumerate() {
            let draft =
                Draft { body, content_type: self.draft.content_type.clone(), extras: self.draft.extras.clone() };
            match draft.checked(&self.core) {
                Ok(message) => messages.push(message),
                Err(error) => refused.push((at, error)),
            }
        }
        let sent = if messages.is_empty() { Answer::ready(Vec::new()) } else { self.core.send(messages) };
        sent.map(|mut results| {
            for (at, error) in refused {
                results.insert(at, Err(error));
            }
            Ok(results)
        })
    }
}

awaitable!(SendBatch);

/// A request to send: [`Mailbox::send_expecting_reply`](crate::Mailbox::send_expecting_reply).
#[must_use = "nothing is sent unless it is awaited, or `blocking`"]
pub struct SendRequest<R, C> {
    core: Arc<Core>,
    draft: Draft,
    reply_timeout: Duration,
    types: PhantomData<fn() -> (R, C)>,
}

impl<R, C> fmt::Debug for SendRequest<R, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendRequest").field("draft", &self.draft).finish_non_exhaustive()
    }
}

impl<R, C> SendRequest<R, C> {
    /// The default of [`reply_timeout`](Self::reply_timeout).
    pub const REPLY_TIMEOUT: Duration = Duration::from_secs(300);

    pub(crate) const fn new(core: Arc<Core>, draft: Draft) -> Self {
        SendRequest { core, draft, reply_timeout: Self::REPLY_TIMEOUT, types: PhantomData }
    }

    /// How long the reply store keeps the reply. Default: 300 seconds.
    pub fn reply_timeout(mut self, timeout: Duration) -> Self {
        self.reply_timeout = timeout;
        self
    }

    options_of_one!();
}

impl<R: 'static, C: 'static> Verb for SendRequest<R, C> {
    type Output = Result<Reply<R, C>, Error>;

    fn start(mut self) -> Answer<Self::Output> {
        if let Err(error) = REPLY_TIMEOUT.check(self.reply_timeout) {
            return Answer::ready(Err(error));
        }
        let core = self.core;
        // A request that is repeated with the same own id has the same reply.
        let own_id = self.draft.extras().id.clone();
        let is_repeatable = own_id.is_some();
        let id = own_id.map_or_else(ReplyId::new, |own_id| format!("{}/{own_id}", core.name).into());
        self.draft.extras().headers.reply = Some(id.clone());
        let message = match self.draft.checked(&core).and_then(|message| core.check_open().map(|()| message)) {
            Ok(message) => message,
            Err(error) => return Answer::ready(Err(error)),
        };
        let sent_as = message.id.clone();
        let reply = Reply::new(core.replies.clone(), id.clone(), Arc::clone(&core.clock));
        let created = core.replies.call("create", |store| store.create(id.clone(), self.reply_timeout));
        created.then(move |created| match created {
            Err(error) => Answer::ready(Err(error)),
            Ok(false) if !is_repeatable => Answer::ready(Err(Error::ReplyAlreadySent { id })),
            Ok(is_new) => core.send_one(message).then(move |sent| {
                let error = match sent {
                    Ok(stored) if stored == sent_as => return Answer::ready(Ok(reply)),
                    // The request that was sent first has another reply.
                    Ok(first) => Error::DuplicateRequest { id: first },
                    Err(error) => error,
                };
                // An entry of an earlier send may still be answered. A new entry never will be.
                if !is_new {
                    return Answer::ready(Err(error));
                }
                core.replies.call("delete", |store| store.delete(id)).map(|_| Err(error))
            }),
        })
    }
}

awaitable!(SendRequest<R, C> where R: 'static, C: 'static);
