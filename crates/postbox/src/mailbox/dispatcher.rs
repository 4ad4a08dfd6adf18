//! Events of mailboxes and loops: publish and subscribe within the process.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

use crate::mailbox::id::{MessageId, ReplyId};
use crate::resolver::address::MailboxName;

type Subscriber = Arc<dyn Fn(&dyn Any) + Send + Sync>;

/// Calls all subscribers of an event, in the order in which they subscribed, on the thread of the publisher.
///
/// A mailbox delivers each message to one consumer and stores it until then; a dispatcher broadcasts and stores nothing. With
/// `open(uri).dispatcher(&dispatcher)` it publishes the [`MailboxEvent`]s of that handle. Loops also publish their
/// [`LoopEvent`](crate::events::LoopEvent)s. A subscriber that panics is reported, and the others are called.
///
/// A subscriber must be quick and must not block: the publisher waits for it, and may be the thread that renews leases.
///
/// ```
/// use postbox::Mailbox;
/// use postbox::events::{Dispatcher, MailboxEvent};
/// use std::sync::atomic::{AtomicU32, Ordering};
/// use std::sync::Arc;
///
/// let dispatcher = Dispatcher::new();
/// let sent = Arc::new(AtomicU32::new(0));
/// let count = sent.clone();
/// let subscription = dispatcher.subscribe(move |event: &MailboxEvent| {
///     if matches!(event, MailboxEvent::Sent { .. }) {
///         count.fetch_add(1, Ordering::Relaxed);
///     }
/// });
///
/// let mailbox: Mailbox<u32> = postbox::open("memory://doc-dispatcher").dispatcher(&dispatcher).blocking()?;
/// mailbox.send(&7).blocking()?;
/// assert_eq!(sent.load(Ordering::Relaxed), 1);
/// drop(subscription); // no more events
/// # Ok::<(), postbox::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Dispatcher(Arc<Shared>);

#[derive(Default)]
struct Shared {
    subscribers: RwLock<Subscribers>,
}

#[derive(Default)]
struct Subscribers {
    by_type: HashMap<TypeId, Vec<(u64, Subscriber)>>,
    counter: u64,
}

impl Dispatcher {
    /// A dispatcher without subscribers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Calls `receive` for each event of type `E`, until the subscription is dropped.
    pub fn subscribe<E: 'static>(&self, receive: impl Fn(&E) + Send + Sync + 'static) -> Subscription {
        let subscriber: Subscriber = Arc::new(move |event: &dyn Any| {
            if let Some(event) = event.downcast_ref::<E>() {
                receive(event);
            }
        });
        let mut subscribers = self.0.subscribers.write().unwrap_or_else(PoisonError::into_inner);
        subscribers.counter += 1;
        let number = subscribers.counter;
        subscribers.by_type.entry(TypeId::of::<E>()).or_default().push((number, subscriber));
        Subscription { shared: Arc::downgrade(&self.0), kind: TypeId::of::<E>(), number }
    }

    /// Calls the subscribers of this type of event. Returns their number.
    pub fn publish<E: 'static>(&self, event: &E) -> usize {
        let subscribers: Vec<Subscriber> = {
            let subscribers = self.0.subscribers.read().unwrap_or_else(PoisonError::into_inner);
            let of_type = subscribers.by_type.get(&TypeId::of::<E>());
            of_type.into_iter().flatten().map(|(_, subscriber)| Arc::clone(subscriber)).collect()
        };
        for subscriber in &subscribers {
            if catch_unwind(AssertUnwindSafe(|| subscriber(event))).is_err() {
                tracing::error!(event = std::any::type_name::<E>(), "a subscriber panicked");
            }
        }
        subscribers.len()
    }
}

impl fmt::Debug for Dispatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let subscribers = self.0.subscribers.read().unwrap_or_else(PoisonError::into_inner);
        let many: usize = subscribers.by_type.values().map(Vec::len).sum();
        f.debug_struct("Dispatcher").field("subscribers", &many).finish()
    }
}

/// A subscription, which ends when it is dropped.
#[must_use = "a subscription ends when it is dropped"]
pub struct Subscription {
    shared: Weak<Shared>,
    kind: TypeId,
    number: u64,
}

impl Subscription {
    /// Keeps the subscription for the life of the dispatcher.
    pub fn forever(self) {
        std::mem::forget(self);
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let Some(shared) = self.shared.upgrade() else { return };
        let mut subscribers = shared.subscribers.write().unwrap_or_else(PoisonError::into_inner);
        let gone = subscribers.by_type.get_mut(&self.kind).and_then(|of_type| {
            let place = of_type.iter().position(|(number, _)| *number == self.number)?;
            Some(of_type.remove(place))
        });
        drop(subscribers);
        drop(gone);
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Subscription")
    }
}

/// An operation on a mailbox, through a handle of this process.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the fields say what they are")]
pub enum MailboxEvent {
    /// A message was stored.
    Sent { mailbox: MailboxName, id: MessageId },
    /// A message was leased to this process.
    Received { mailbox: MailboxName, id: MessageId, delivery_count: u32 },
    /// A message was finished.
    Acknowledged { mailbox: MailboxName, id: MessageId },
    /// A message was given back, to be visible after this time.
    Returned { mailbox: MailboxName, id: MessageId, after: Duration },
    /// A message was released: its delivery does not count.
    Released { mailbox: MailboxName, id: MessageId },
    /// A lease was extended.
    Extended { mailbox: MailboxName, id: MessageId, by: Duration },
    /// A message was moved to the dead letters by this process.
    DeadLettered { mailbox: MailboxName, id: MessageId, reason: String },
    /// A body could not be decoded.
    Undecodable { mailbox: MailboxName, id: MessageId, delivery_count: u32, reason: String },
    /// A message was answered, through the reply store.
    Replied { mailbox: MailboxName, id: MessageId, reply: ReplyId },
    /// The mailbox was purged.
    Purged { mailbox: MailboxName, messages: u64 },
    /// An operation failed.
    Failed { mailbox: MailboxName, operation: &'static str, error: String },
}
