//! Messages for tests of handlers.

use std::sync::Arc;
use std::time::SystemTime;

use crate::backends::memory::MemoryBackend;
use crate::mailbox::Mailbox;
use crate::mailbox::codec::{Decode, Encode, Json};
use crate::mailbox::handle::{Core, HandleOptions};
use crate::mailbox::id::MessageId;
use crate::mailbox::message::Message;
use crate::reply::Reply;
use crate::resolver::MailboxResolver;
use crate::resolver::address::MailboxName;

/// Builds a message for a test of a handler. It comes from a real mailbox in memory, so it can be settled once.
///
/// ```
/// use postbox::testing::{FakeMailboxResolver, MessageBuilder};
/// use postbox::{Error, Mailbox, Message};
///
/// let resolver = FakeMailboxResolver::new();
/// let message: Message<String> = MessageBuilder::new("work".to_string())
///     .delivery_count(3)
///     .reply_to("responses")
///     .resolver(resolver.clone())
///     .build();
/// let responses: Mailbox<u32> = message.reply_mailbox().blocking()?;
/// responses.send(&7).blocking()?;
/// message.acknowledge().blocking()?;
/// assert_eq!(resolver.resolution_log(), ["responses"]);
/// assert_eq!(resolver.sent::<u32>("responses"), [7]);
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug)]
#[must_use = "build() makes the message"]
pub struct MessageBuilder<T> {
    body: T,
    id: Option<MessageId>,
    delivery_count: u32,
    enqueued_at: Option<SystemTime>,
    attributes: Vec<(String, String)>,
    reply_to: Option<String>,
    resolver: Option<Arc<dyn MailboxResolver>>,
}

impl<T> MessageBuilder<T> {
    /// A builder of a message with this body.
    pub const fn new(body: T) -> Self {
        MessageBuilder {
            body,
            id: None,
            delivery_count: 1,
            enqueued_at: None,
            attributes: Vec::new(),
            reply_to: None,
            resolver: None,
        }
    }

    /// Sets the id. Default: a new one.
    pub fn id(mut self, id: impl Into<MessageId>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Sets the number of deliveries. Default: 1.
    pub fn delivery_count(mut self, count: u32) -> Self {
        self.delivery_count = count;
        self
    }

    /// Sets the time at which the message was sent. Default: now.
    pub fn enqueued_at(mut self, time: SystemTime) -> Self {
        self.enqueued_at = Some(time);
        self
    }

    /// Sets an attribute.
    pub fn attribute(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.attributes.push((name.into(), value.into()));
        self
    }

    /// Sets the address for an answer.
    pub fn reply_to(mut self, address: impl Into<String>) -> Self {
        self.reply_to = Some(address.into());
        self
    }

    /// Sets the resolver of `reply_to`. Without one, there is no mailbox for an answer.
    pub fn resolver(mut self, resolver: impl MailboxResolver) -> Self {
        self.resolver = Some(Arc::new(resolver));
        self
    }

    fn mailbox<R, C>(&self) -> Mailbox<T, R, C> {
        let options = HandleOptions { resolver: self.resolver.clone(), ..HandleOptions::default() };
        let core = MailboxName::new("test").and_then(|name| Core::new(Arc::new(MemoryBackend::new()), name, options));
        Mailbox::from_core(core.unwrap_or_else(|error| panic!("{error}")))
    }

    fn finish<R, C>(self, mailbox: &Mailbox<T, R, C>) -> Message<T, R, C>
    where
        T: Send + 'static,
        R: 'static,
        C: Decode<T>,
    {
        let received = mailbox.receive().blocking().unwrap_or_else(|error| panic!("the body does not decode: {error}"));
        let mut message = received.into_iter().next().expect("it was sent");
        message.body = self.body;
        let lease = &mut message.lease;
        lease.id = self.id.unwrap_or(lease.id.clone());
        lease.delivery_count = self.delivery_count;
        lease.enqueued_at = self.enqueued_at.unwrap_or(lease.enqueued_at);
        lease.attributes = self.attributes.into_iter().collect();
        lease.reply_to = self.reply_to;
        message
    }

    /// Builds the message.
    ///
    /// # Panics
    /// If the body cannot be encoded, or decoded again.
    pub fn build<R>(self) -> Message<T, R>
    where
        T: Send + 'static,
        R: 'static,
        Json: Encode<T> + Decode<T>,
    {
        let mailbox: Mailbox<T, R, Json> = self.mailbox();
        mailbox.send(&self.body).blocking().unwrap_or_else(|error| panic!("{error}"));
        self.finish(&mailbox)
    }

    /// Builds a message that expects a reply, and the reply.
    ///
    /// # Panics
    /// If the body cannot be encoded, or decoded again.
    pub fn build_request<R>(self) -> (Message<T, R>, Reply<R>)
    where
        T: Send + 'static,
        R: 'static,
        Json: Encode<T> + Decode<T>,
    {
        let mailbox: Mailbox<T, R, Json> = self.mailbox();
        let reply = mailbox.send_expecting_reply(&self.body).blocking().unwrap_or_else(|error| panic!("{error}"));
        (self.finish(&mailbox), reply)
    }
}
