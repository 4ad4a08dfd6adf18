//! What the typed handles of a mailbox share. Every verb goes through here: the backend's answer is checked, and the operation
//! is counted, traced and told to a dispatcher, in one place.

use std::fmt;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use metrics::{Counter, Histogram};
use tracing::{debug, debug_span, trace, warn};

use crate::backend::{
    Backend, ByteMailbox, Delivery, Limits, MailboxSettings, Outgoing, Receipt, Receive, Visibility, only,
};
use crate::error::Error;
use crate::mailbox::dispatcher::{Dispatcher, MailboxEvent};
use crate::mailbox::id::MessageId;
use crate::mailbox::operation::Answer;
use crate::mailbox::ranges::check_settings;
use crate::reply::store::{Replies, ReplyStore};
use crate::resolver::MailboxResolver;
use crate::resolver::address::MailboxName;
use crate::runtime::cancellation::{Cancellation, unless};
use crate::runtime::clock::Clock;

/// The options of a handle.
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

    /// Checks the ranges that are the same for all backends.
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

/// A handle. Its operations and messages share it. Each clone of a mailbox has its own, so that threads with a clone each count
/// references in different cache lines.
#[derive(Clone)]
#[repr(align(128))]
pub(crate) struct Core {
    pub(crate) closed: Cancellation,
    shared: Arc<Shared>,
}

/// What a handle and its clones share.
pub(crate) struct Shared {
    /// Called by [`Core`] alone, which checks the answers.
    bytes: Arc<dyn ByteMailbox>,
    pub(crate) kind: &'static str,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) name: MailboxName,
    pub(crate) limits: Limits,
    pub(crate) resolver: Option<Arc<dyn MailboxResolver>>,
    pub(crate) replies: Replies,
    pub(crate) settings: MailboxSettings,
    pub(crate) dispatcher: Option<Dispatcher>,
    pub(crate) meters: Meters,
}

/// The metrics of one mailbox. They are registered when it is opened, so the program installs its recorder before that.
pub(crate) struct Meters {
    sent: Counter,
    received: Counter,
    redelivered: Counter,
    acknowledged: Counter,
    returned: Counter,
    extended: Counter,
    released: Counter,
    dead_lettered: Counter,
    pub(crate) undecodable: Counter,
    pub(crate) replied: Counter,
    queue_time: Histogram,
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
            .field("backend", &self.kind)
            .field("name", &self.name)
            .field("closed", &self.closed.is_cancelled())
            .finish_non_exhaustive()
    }
}

/// How a delivery is settled.
#[derive(Clone, Debug)]
pub(crate) enum Settlement {
    Acknowledge,
    Visibility(Visibility),
    DeadLetter(String),
}

impl Core {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        name: MailboxName,
        options: HandleOptions,
    ) -> Result<Arc<Self>, Error> {
        options.check()?;
        let panicked = || Error::faulty(format!("the backend panicked when mailbox {name} was opened"));
        let opened = AssertUnwindSafe(|| {
            let settings = &options.settings;
            if settings.max_size.is_some() && !backend.limits_of(&name).max_size {
                return Err(Error::Unsupported { backend: backend.kind(), operation: "bound a mailbox by max_size" });
            }
            let bytes = backend.mailbox(&name, settings)?;
            Ok(Self::with_bytes(Arc::clone(&backend), bytes, name.clone(), options))
        });
        catch_unwind(opened).unwrap_or_else(|_| Err(panicked()))
    }

    pub(crate) fn with_bytes(
        backend: Arc<dyn Backend>,
        bytes: Arc<dyn ByteMailbox>,
        name: MailboxName,
        options: HandleOptions,
    ) -> Arc<Self> {
        let (kind, limits) = (backend.kind(), backend.limits_of(&name).bounded());
        let shared = Arc::new(Shared {
            kind,
            clock: backend.clock(),
            limits: if options.portable_limits { limits.portable() } else { limits },
            replies: Replies::new(kind, options.replies.or_else(|| backend.replies())),
            settings: options.settings,
            dispatcher: options.dispatcher,
            meters: Meters::new(kind, &name),
            resolver: options.resolver,
            bytes,
            backend,
            name,
        });
        Arc::new(Core { closed: Cancellation::new(), shared })
    }

    /// The same mailbox by a handle that is closed apart from this one.
    pub(crate) fn sibling(&self) -> Self {
        Core { closed: Cancellation::new(), shared: Arc::clone(&self.shared) }
    }

    pub(crate) fn unsupported(&self, operation: &'static str) -> Error {
        Error::Unsupported { backend: self.kind, operation }
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
        let (backend, mailbox) = (self.kind, self.name.as_str());
        metrics::counter!(
            "postbox_errors_total",
            "backend" => backend, "mailbox" => mailbox.to_string(), "operation" => operation, "error" => error.kind()
        )
        .increment(1);
        debug!(backend, mailbox, operation, %error, "failed");
        self.tell(|mailbox| MailboxEvent::Failed { mailbox, operation, error: error.to_string() });
    }

    /// Calls a verb that has one result, and counts its failure.
    pub(crate) fn run<T: Send + 'static>(
        self: &Arc<Self>,
        operation: &'static str,
        verb: impl FnOnce(&dyn ByteMailbox) -> Answer<Result<T, Error>>,
    ) -> Answer<Result<T, Error>> {
        let mut answer = self.call(operation, verb);
        self.then(&mut answer, move |core, result| {
            if let Err(error) = result {
                core.failed(operation, error);
            }
        });
        answer
    }

    /// Calls a verb that has one result. A backend that panics has failed.
    #[inline]
    fn call<T: Send + 'static>(
        &self,
        operation: &'static str,
        verb: impl FnOnce(&dyn ByteMailbox) -> Answer<Result<T, Error>>,
    ) -> Answer<Result<T, Error>> {
        let kind = self.kind;
        Answer::caught(|| verb(&*self.bytes), move || Err(Error::panicked(kind, operation)))
    }

    /// Calls a verb that has a result for each entry. If the backend panics, or returns another number of results, each entry has
    /// failed.
    fn call_batch<T: Send + 'static>(
        &self,
        operation: &'static str,
        entries: usize,
        verb: impl FnOnce(&dyn ByteMailbox) -> Answer<Vec<Result<T, Error>>>,
    ) -> Answer<Vec<Result<T, Error>>> {
        let kind = self.kind;
        let every = move |error: Error| std::iter::repeat_with(|| Err(error.clone())).take(entries).collect();
        let answer = Answer::caught(|| verb(&*self.bytes), move || every(Error::panicked(kind, operation)));
        answer.map(move |results: Vec<_>| match results.len() {
            many if many == entries => results,
            many => {
                every(Error::faulty(format!("{kind} returned {many} results of {operation} for {entries} entries")))
            }
        })
    }

    /// Returns what the backend listed, unless it is more than was asked for.
    pub(crate) fn at_most<T>(&self, operation: &str, max: usize, found: Vec<T>) -> Result<Vec<T>, Error> {
        let (kind, many) = (self.kind, found.len());
        if many > max {
            return Err(Error::faulty(format!(
                "{kind} returned {many} messages of {operation}, and at most {max} were asked for"
            )));
        }
        Ok(found)
    }

    /// Looks at the answer of a verb when it is there. Clones and moves nothing if it is there at once.
    #[inline]
    fn then<T: Send + 'static>(
        self: &Arc<Self>,
        answer: &mut Answer<T>,
        look: impl FnOnce(&Arc<Self>, &mut T) + Send + 'static,
    ) {
        if let Some(value) = answer.value() {
            return look(self, value);
        }
        let core = Arc::clone(self);
        answer.later(|future| async move {
            let mut value = future.await;
            look(&core, &mut value);
            value
        });
    }

    pub(crate) fn send(self: &Arc<Self>, messages: Vec<Outgoing>) -> Answer<Vec<Result<MessageId, Error>>> {
        if let Err(error) = self.check_open() {
            return Answer::ready(messages.iter().map(|_| Err(error.clone())).collect());
        }
        let entries = messages.len();
        let _span = debug_span!("postbox.send", mailbox = %self.name, messages = entries).entered();
        let mut answer = self.call_batch("send", entries, |bytes| bytes.send(messages));
        self.then(&mut answer, |core, results| results.iter().for_each(|result| core.sent(result)));
        answer
    }

    #[inline]
    pub(crate) fn send_one(self: &Arc<Self>, message: Outgoing) -> Answer<Result<MessageId, Error>> {
        if let Err(error) = self.check_open() {
            return Answer::ready(Err(error));
        }
        let _span = debug_span!("postbox.send", mailbox = %self.name, messages = 1).entered();
        let mut answer = self.call("send", |bytes| bytes.send_one(message));
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

    /// Returns nothing if the handle is closed while the receive waits.
    pub(crate) fn receive(self: &Arc<Self>, request: Receive) -> Answer<Result<Vec<Delivery>, Error>> {
        if let Err(error) = self.check_open() {
            return Answer::ready(Err(error));
        }
        let max = request.max;
        let span = debug_span!("postbox.receive", mailbox = %self.name, max);
        let mut answer = span.in_scope(|| self.call("receive", |bytes| bytes.receive(request)));
        match answer.value() {
            Some(result) => self.received(max, result),
            None => {
                let core = Arc::clone(self);
                answer.later(|future| async move {
                    let result = unless(core.closed.cancelled(), future).await;
                    let mut result = result.unwrap_or_else(|| Ok(Vec::new()));
                    core.received(max, &mut result);
                    result
                });
            }
        }
        answer
    }

    #[inline]
    fn received(&self, max: usize, result: &mut Result<Vec<Delivery>, Error>) {
        if let Ok(deliveries) = result
            && deliveries.len() > max
        {
            *result = self.at_most("receive", max, std::mem::take(deliveries));
        }
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

    pub(crate) fn acknowledge(self: &Arc<Self>, receipts: Vec<Receipt>) -> Answer<Vec<Result<(), Error>>> {
        let ids: Vec<_> = receipts.iter().map(|receipt| receipt.id.clone()).collect();
        let _span = debug_span!("postbox.acknowledge", mailbox = %self.name, messages = ids.len()).entered();
        let mut answer = self.call_batch("acknowledge", ids.len(), |bytes| bytes.acknowledge(receipts));
        self.then(&mut answer, move |core, results| {
            for (id, result) in ids.into_iter().zip(results) {
                core.settled(Some(id), Settlement::Acknowledge, result);
            }
        });
        answer
    }

    #[inline]
    pub(crate) fn acknowledge_one(self: &Arc<Self>, receipt: &Receipt) -> Answer<Result<(), Error>> {
        let id = self.dispatcher.as_ref().map(|_| receipt.id.clone());
        let _span = debug_span!("postbox.acknowledge", mailbox = %self.name, messages = 1).entered();
        let mut answer = self.call("acknowledge", |bytes| bytes.acknowledge_one(receipt));
        self.then(&mut answer, move |core, result| core.settled(id, Settlement::Acknowledge, result));
        answer
    }

    pub(crate) fn set_visibility(
        self: &Arc<Self>,
        changes: Vec<(Receipt, Visibility)>,
    ) -> Answer<Vec<Result<(), Error>>> {
        let changed: Vec<_> = changes.iter().map(|(receipt, visibility)| (receipt.id.clone(), *visibility)).collect();
        let mut answer = self.call_batch("set_visibility", changed.len(), |bytes| bytes.set_visibility(changes));
        self.then(&mut answer, move |core, results| {
            for ((id, visibility), result) in changed.into_iter().zip(results) {
                core.settled(Some(id), Settlement::Visibility(visibility), result);
            }
        });
        answer
    }

    /// Settles one delivery.
    #[inline]
    pub(crate) fn settle(self: &Arc<Self>, receipt: Receipt, settlement: Settlement) -> Answer<Result<(), Error>> {
        match settlement {
            Settlement::Acknowledge => self.acknowledge_one(&receipt),
            Settlement::Visibility(visibility) => self.set_visibility(vec![(receipt, visibility)]).map(only),
            Settlement::DeadLetter(reason) => {
                let (id, entry) = (receipt.id.clone(), vec![(receipt, reason.clone())]);
                let mut answer = self.call_batch("dead_letter", 1, |bytes| bytes.dead_letter(entry)).map(only);
                self.then(&mut answer, move |core, result| {
                    core.settled(Some(id), Settlement::DeadLetter(reason), result);
                });
                answer
            }
        }
    }

    /// Fails if a lease has ended. Neither counted nor told.
    pub(crate) fn check_lease(&self, receipt: Receipt) -> Answer<Result<(), Error>> {
        let check = vec![(receipt, Visibility::Extend(Duration::ZERO))];
        self.call_batch("set_visibility", 1, |bytes| bytes.set_visibility(check)).map(only)
    }

    /// Counts a settlement, and tells the dispatcher if the id is known.
    #[inline]
    fn settled(&self, id: Option<MessageId>, settlement: Settlement, result: &Result<(), Error>) {
        let meters = &self.meters;
        let (operation, meter) = match &settlement {
            Settlement::Acknowledge => ("acknowledge", &meters.acknowledged),
            Settlement::Visibility(Visibility::Return(_)) => ("nack", &meters.returned),
            Settlement::Visibility(Visibility::Extend(_)) => ("extend_visibility", &meters.extended),
            Settlement::Visibility(Visibility::Release) => ("release", &meters.released),
            Settlement::DeadLetter(_) => ("dead_letter", &meters.dead_lettered),
        };
        if let Err(error) = result {
            return self.failed(operation, error);
        }
        meter.increment(1);
        let Some(id) = id else { return };
        if let Settlement::DeadLetter(reason) = &settlement {
            warn!(mailbox = %self.name, %id, reason, "moved to the dead letters");
        }
        self.tell(|mailbox| match settlement {
            Settlement::Acknowledge => MailboxEvent::Acknowledged { mailbox, id },
            Settlement::Visibility(Visibility::Return(after)) => MailboxEvent::Returned { mailbox, id, after },
            Settlement::Visibility(Visibility::Extend(by)) => MailboxEvent::Extended { mailbox, id, by },
            Settlement::Visibility(Visibility::Release) => MailboxEvent::Released { mailbox, id },
            Settlement::DeadLetter(reason) => MailboxEvent::DeadLettered { mailbox, id, reason },
        });
    }
}
