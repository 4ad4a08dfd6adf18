//! What the typed handles of a mailbox share. Every verb goes through here: limits are checked, and what happens is
//! counted, traced and told, in one place.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use metrics::{Counter, Histogram};
use tracing::{debug, debug_span, trace, warn};

use crate::backend::{
    Backend, Batch, ByteMailbox, Delivery, Limits, MailboxSettings, Outgoing, Receipt, Receive, Visibility,
};
use crate::error::Error;
use crate::mailbox::dispatcher::{Dispatcher, MailboxEvent};
use crate::mailbox::id::MessageId;
use crate::mailbox::operation::Answer;
use crate::mailbox::ranges::check_settings;
use crate::reply::store::ReplyStore;
use crate::resolver::MailboxResolver;
use crate::resolver::address::MailboxName;
use crate::runtime::cancellation::{Cancellation, unless};
use crate::runtime::clock::Clock;

/// What a handle is made with, beside the mailbox's own settings.
#[derive(Clone, Debug, Default)]
pub(crate) struct HandleOptions {
    pub(crate) settings: MailboxSettings,
    pub(crate) portable_limits: bool,
    pub(crate) prefix: Option<String>,
    pub(crate) resolver: Option<Arc<dyn MailboxResolver>>,
    pub(crate) replies: Option<Arc<dyn ReplyStore>>,
    pub(crate) dispatcher: Option<Dispatcher>,
}

impl HandleOptions {
    /// The name of a mailbox, under the prefix if there is one.
    pub(crate) fn name(&self, name: &str) -> Result<MailboxName, Error> {
        let name = MailboxName::new(name)?;
        match &self.prefix {
            Some(prefix) => name.with_prefix(prefix),
            None => Ok(name),
        }
    }

    /// Whether every option is in its range, as far as that is the same for all backends.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if let Some(most) = self.settings.max_size.filter(|_| self.portable_limits) {
            return Err(Error::invalid(
                "max_size",
                most,
                "not together with portable_limits: not every backend has a bound",
            ));
        }
        self.prefix.as_deref().map_or(Ok(()), MailboxName::check_prefix)?;
        check_settings(&self.settings)
    }
}

/// A handle, shared by what comes of it: operations and messages. Each clone of a mailbox has one of its own, so that threads
/// with a clone each count references in a line of memory of their own.
#[derive(Clone)]
#[repr(align(128))]
pub(crate) struct Core {
    pub(crate) closed: Cancellation,
    shared: Arc<Shared>,
}

/// What all handles that were opened together have in common.
pub(crate) struct Shared {
    pub(crate) bytes: Arc<dyn ByteMailbox>,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) name: MailboxName,
    pub(crate) limits: Limits,
    pub(crate) resolver: Option<Arc<dyn MailboxResolver>>,
    pub(crate) replies: Option<Arc<dyn ReplyStore>>,
    pub(crate) settings: MailboxSettings,
    pub(crate) dispatcher: Option<Dispatcher>,
    pub(crate) meters: Meters,
}

/// Handles of the metrics of one mailbox. Made once, when the mailbox is opened: the recorder of metrics has to be installed before.
pub(crate) struct Meters {
    pub(crate) sent: Counter,
    pub(crate) received: Counter,
    pub(crate) redelivered: Counter,
    pub(crate) acknowledged: Counter,
    pub(crate) returned: Counter,
    pub(crate) extended: Counter,
    pub(crate) released: Counter,
    pub(crate) dead_lettered: Counter,
    pub(crate) undecodable: Counter,
    pub(crate) replied: Counter,
    pub(crate) queue_time: Histogram,
}

impl Meters {
    fn new(backend: &'static str, mailbox: &MailboxName) -> Self {
        let counter = |name| metrics::counter!(name, "backend" => backend, "mailbox" => mailbox.to_string());
        Meters {
            sent: counter("postbox_sent_total"),
            received: counter("postbox_received_total"),
            redelivered: counter("postbox_redelivered_total"),
            acknowledged: counter("postbox_acknowledged_total"),
            returned: counter("postbox_returned_total"),
            extended: counter("postbox_extended_total"),
            released: counter("postbox_released_total"),
            dead_lettered: counter("postbox_dead_lettered_total"),
            undecodable: counter("postbox_undecodable_total"),
            replied: counter("postbox_replied_total"),
            queue_time: metrics::histogram!(
                "postbox_queue_time_seconds", "backend" => backend, "mailbox" => mailbox.to_string()
            ),
        }
    }
}

impl Deref for Core {
    type Target = Shared;

    #[inline]
    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox")
            .field("backend", &self.backend.kind())
            .field("name", &self.name)
            .field("closed", &self.closed.is_cancelled())
            .finish_non_exhaustive()
    }
}

impl Core {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        name: MailboxName,
        options: HandleOptions,
    ) -> Result<Arc<Self>, Error> {
        let limits = backend.limits_of(&name);
        options.check()?;
        let settings = &options.settings;
        if settings.max_size.is_some() && !limits.max_size {
            return Err(Error::Unsupported { backend: backend.kind(), operation: "bound a mailbox by max_size" });
        }
        let bytes = backend.mailbox(&name, settings)?;
        Ok(Self::with_bytes(backend, bytes, name, options))
    }

    pub(crate) fn with_bytes(
        backend: Arc<dyn Backend>,
        bytes: Arc<dyn ByteMailbox>,
        name: MailboxName,
        options: HandleOptions,
    ) -> Arc<Self> {
        let limits = backend.limits_of(&name);
        let shared = Arc::new(Shared {
            clock: backend.clock(),
            limits: if options.portable_limits { limits.portable() } else { limits },
            replies: options.replies.or_else(|| backend.replies()),
            settings: options.settings,
            dispatcher: options.dispatcher,
            meters: Meters::new(backend.kind(), &name),
            resolver: options.resolver,
            bytes,
            backend,
            name,
        });
        Arc::new(Core { closed: Cancellation::new(), shared })
    }

    /// The same mailbox, closed apart.
    pub(crate) fn sibling(&self) -> Self {
        Core { closed: Cancellation::new(), shared: Arc::clone(&self.shared) }
    }

    pub(crate) fn unsupported(&self, operation: &'static str) -> Error {
        Error::Unsupported { backend: self.backend.kind(), operation }
    }

    #[inline]
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        if self.closed.is_cancelled() { Err(Error::Closed { mailbox: self.name.to_string() }) } else { Ok(()) }
    }

    #[inline]
    pub(crate) fn check_batch(&self, parameter: &'static str, size: usize) -> Result<(), Error> {
        if size > self.limits.max_batch || size == 0 {
            return Err(Error::invalid(parameter, size, format!("1 to {}", self.limits.max_batch)));
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn tell(&self, event: impl FnOnce(MailboxName) -> MailboxEvent) {
        if let Some(dispatcher) = &self.dispatcher {
            dispatcher.publish(&event(self.name.clone()));
        }
    }

    #[cold]
    fn failed(&self, operation: &'static str, error: &Error) {
        let (backend, mailbox) = (self.backend.kind(), self.name.as_str());
        metrics::counter!(
            "postbox_errors_total",
            "backend" => backend, "mailbox" => mailbox.to_string(), "operation" => operation, "error" => error.kind()
        )
        .increment(1);
        debug!(backend, mailbox, operation, %error, "failed");
        self.tell(|mailbox| MailboxEvent::Failed { mailbox, operation, error: error.to_string() });
    }

    pub(crate) fn send(self: &Arc<Self>, messages: Batch<Outgoing>) -> Answer<Batch<Result<MessageId, Error>>> {
        if let Err(error) = self.check_open() {
            return Answer::ready(messages.iter().map(|_| Err(error.clone())).collect());
        }
        let _span = debug_span!("postbox.send", mailbox = %self.name, messages = messages.len()).entered();
        let mut answer = self.bytes.send(messages);
        self.then(&mut answer, |core, results| results.iter().for_each(|result| core.sent(result)));
        answer
    }

    #[inline]
    pub(crate) fn send_one(self: &Arc<Self>, message: Outgoing) -> Answer<Result<MessageId, Error>> {
        if let Err(error) = self.check_open() {
            return Answer::ready(Err(error));
        }
        let _span = debug_span!("postbox.send", mailbox = %self.name, messages = 1).entered();
        let mut answer = self.bytes.send_one(message);
        self.then(&mut answer, |core, result| core.sent(result));
        answer
    }

    #[inline]
    fn sent(&self, result: &Result<MessageId, Error>) {
        match result {
            Ok(id) => {
                self.meters.sent.increment(1);
                trace!(mailbox = %self.name, %id, "sent");
                self.tell(|mailbox| MailboxEvent::Sent { mailbox, id: id.clone() });
            }
            Err(error) => self.failed("send", error),
        }
    }

    /// Looks at the answer of a verb when it is there. Nothing is cloned, and nothing moved, for one that is there at once.
    #[inline]
    fn then<T: Send + 'static>(
        self: &Arc<Self>,
        answer: &mut Answer<T>,
        look: impl FnOnce(&Arc<Self>, &T) + Send + 'static,
    ) {
        if let Some(value) = answer.value() {
            return look(self, value);
        }
        let core = Arc::clone(self);
        answer.later(|future| async move {
            let value = future.await;
            look(&core, &value);
            value
        });
    }

    /// Nothing when the handle is closed while it waits.
    pub(crate) fn receive(self: &Arc<Self>, request: Receive) -> Answer<Result<Vec<Delivery>, Error>> {
        if let Err(error) = self.check_open() {
            return Answer::ready(Err(error));
        }
        let span = debug_span!("postbox.receive", mailbox = %self.name, max = request.max);
        let mut answer = span.in_scope(|| self.bytes.receive(request));
        match answer.value() {
            Some(result) => self.received(result),
            None => {
                let core = Arc::clone(self);
                answer.later(|future| async move {
                    let result = unless(core.closed.cancelled(), future).await.unwrap_or_else(|| Ok(Vec::new()));
                    core.received(&result);
                    result
                });
            }
        }
        answer
    }

    #[inline]
    fn received(&self, result: &Result<Vec<Delivery>, Error>) {
        match result {
            Ok(deliveries) if deliveries.is_empty() => {}
            Ok(deliveries) => {
                self.meters.received.increment(deliveries.len() as u64);
                for delivery in deliveries {
                    let (id, delivery_count) = (&delivery.id, delivery.delivery_count);
                    if delivery_count > 1 {
                        self.meters.redelivered.increment(1);
                    } else {
                        let waited = delivery.enqueued_at.until(delivery.delivered_at);
                        self.meters.queue_time.record(waited.as_secs_f64());
                    }
                    trace!(mailbox = %self.name, %id, delivery_count, "received");
                    self.tell(|mailbox| MailboxEvent::Received { mailbox, id: id.clone(), delivery_count });
                }
            }
            Err(error) => self.failed("receive", error),
        }
    }

    pub(crate) fn acknowledge(self: &Arc<Self>, receipts: Batch<Receipt>) -> Answer<Batch<Result<(), Error>>> {
        let about = self.about(&receipts, |receipt| receipt);
        let _span = debug_span!("postbox.acknowledge", mailbox = %self.name, messages = receipts.len()).entered();
        let mut answer = self.bytes.acknowledge(receipts);
        self.then(&mut answer, move |core, results| {
            core.finished("acknowledge", &core.meters.acknowledged, results, |at| {
                if let Some(about) = &about {
                    core.tell(|mailbox| MailboxEvent::Acknowledged { mailbox, id: about[at].clone() });
                }
            });
        });
        answer
    }

    #[inline]
    pub(crate) fn acknowledge_one(self: &Arc<Self>, receipt: &Receipt) -> Answer<Result<(), Error>> {
        let about = self.dispatcher.as_ref().map(|_| receipt.id.clone());
        let _span = debug_span!("postbox.acknowledge", mailbox = %self.name, messages = 1).entered();
        let mut answer = self.bytes.acknowledge_one(receipt);
        self.then(&mut answer, move |core, result| {
            core.finished("acknowledge", &core.meters.acknowledged, std::slice::from_ref(result), |_| {
                if let Some(id) = &about {
                    core.tell(|mailbox| MailboxEvent::Acknowledged { mailbox, id: id.clone() });
                }
            });
        });
        answer
    }

    pub(crate) fn set_visibility(
        self: &Arc<Self>,
        changes: Batch<(Receipt, Visibility)>,
    ) -> Answer<Batch<Result<(), Error>>> {
        let about = self.about(&changes, |(receipt, _)| receipt);
        let what: Batch<Visibility> = changes.iter().map(|(_, visibility)| *visibility).collect();
        let mut answer = self.bytes.set_visibility(changes);
        self.then(&mut answer, move |core, results| {
            for (at, visibility) in what.iter().enumerate() {
                let one = &results[at..=at];
                let (verb, meter) = match visibility {
                    Visibility::Return(_) => ("nack", &core.meters.returned),
                    Visibility::Extend(_) => ("extend_visibility", &core.meters.extended),
                    Visibility::Release => ("release", &core.meters.released),
                };
                core.finished(verb, meter, one, |_| {
                    let Some(about) = &about else { return };
                    let id = about[at].clone();
                    core.tell(|mailbox| match *visibility {
                        Visibility::Return(after) => MailboxEvent::Returned { mailbox, id, after },
                        Visibility::Extend(by) => MailboxEvent::Extended { mailbox, id, by },
                        Visibility::Release => MailboxEvent::Released { mailbox, id },
                    });
                });
            }
        });
        answer
    }

    pub(crate) fn dead_letter(self: &Arc<Self>, letters: Batch<(Receipt, String)>) -> Answer<Batch<Result<(), Error>>> {
        let about: Batch<(MessageId, String)> =
            letters.iter().map(|(receipt, reason)| (receipt.id.clone(), reason.clone())).collect();
        let mut answer = self.bytes.dead_letter(letters);
        self.then(&mut answer, move |core, results| {
            core.finished("dead_letter", &core.meters.dead_lettered, results, |at| {
                let (id, reason) = about[at].clone();
                warn!(mailbox = %core.name, %id, reason, "moved to the dead letters");
                core.tell(|mailbox| MailboxEvent::DeadLettered { mailbox, id, reason });
            });
        });
        answer
    }

    /// The ids of what an act is about, if anybody is told of them.
    fn about<T>(&self, entries: &Batch<T>, receipt: impl Fn(&T) -> &Receipt) -> Option<Batch<MessageId>> {
        self.dispatcher.as_ref().map(|_| entries.iter().map(|entry| receipt(entry).id.clone()).collect())
    }

    #[inline]
    fn finished(
        &self,
        operation: &'static str,
        meter: &Counter,
        results: &[Result<(), Error>],
        mut done: impl FnMut(usize),
    ) {
        for (at, result) in results.iter().enumerate() {
            match result {
                Ok(()) => {
                    meter.increment(1);
                    done(at);
                }
                Err(error) => self.failed(operation, error),
            }
        }
    }
}
