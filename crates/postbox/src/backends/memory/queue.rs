//! The messages of one mailbox in memory: a lock, a ledger and a wait queue. All handles of the mailbox share it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use bytes::Bytes;
use postbox_core::Lock as _;
use postbox_core::shared::mailbox::MailboxConcurrency;
use postbox_core::{Ledger, LedgerMessage, LedgerOptions, ThreadSafe, Ticket, WaitQueue};
use rand::RngExt as _;
use smallvec::SmallVec;

use crate::backend::{Delivery, Headers, MailboxSettings, Outgoing, Receive};
use crate::error::Error;
use crate::mailbox::codec::ContentType;
use crate::mailbox::id::{MessageId, ReceiptHandle};
use crate::resolver::address::MailboxName;
use crate::runtime::clock::{Alarm, Clock, Moment};
use crate::runtime::wake;

/// How long a deduplication id is remembered, unless the settings say otherwise.
const DEDUPLICATION_WINDOW: Duration = Duration::from_secs(300);

/// The part of a message that the ledger does not keep itself: it keeps the id, the times and the counts.
#[derive(Clone, Debug, Default)]
pub(super) struct Stored {
    pub(super) body: Bytes,
    content_type: ContentType,
    headers: Option<Arc<Headers>>,
}

impl Stored {
    /// Moves the content out of a message.
    pub(super) fn take_from(message: &mut Outgoing) -> Self {
        Stored {
            body: std::mem::take(&mut message.body),
            content_type: std::mem::take(&mut message.content_type),
            headers: message.headers.take(),
        }
    }
}

/// A receiver that finds nothing registers in the critical section in which it looked. An operation that makes messages
/// deliverable takes one waiter for each out of the wait queue, in its critical section, and wakes them after it.
/// While a receiver waits, one alarm is set for the next lease or delay that ends.
pub(super) struct Queue {
    name: MailboxName,
    clock: Arc<dyn Clock>,
    state: Lock<State>,
    waiting: WaitQueue<ThreadSafe>,
    handles: AtomicUsize,
    /// `false` from a deletion until the next operation that creates the mailbox. Written under the lock.
    exists: AtomicBool,
}

struct State {
    ledger: Ledger<Stored>,
    alarm: Option<(Moment, Alarm)>,
    idle_expiry: Option<Duration>,
    /// Since when there is no handle. `None` while there is one, and while the last one is being dropped.
    unused_since: Option<Moment>,
    /// Whether a task waits until the queue can be removed.
    has_removal_task: bool,
}

/// How long a queue without handles is kept.
pub(super) enum Retention {
    Over,
    Until(Moment),
    /// Until the queue has had a handle again.
    Unlimited,
}

/// The lock of layer 1. It is held for one operation, and never while a receiver waits.
type Lock<T> = <ThreadSafe as MailboxConcurrency>::Lock<T>;

type Wakers = SmallVec<[Waker; 1]>;

fn default_options() -> LedgerOptions {
    LedgerOptions { deduplication_window: nanos(DEDUPLICATION_WINDOW), ..LedgerOptions::default() }
}

impl Queue {
    pub(super) fn new(name: MailboxName, clock: Arc<dyn Clock>) -> Arc<Self> {
        let first_number = rand::rng().random::<u64>() >> 1;
        let state = State {
            ledger: Ledger::new(default_options()).with_numbers_from(first_number),
            alarm: None,
            idle_expiry: None,
            unused_since: None,
            has_removal_task: false,
        };
        Arc::new(Queue {
            name,
            clock,
            state: Lock::new(state),
            waiting: WaitQueue::new(),
            handles: AtomicUsize::new(0),
            exists: AtomicBool::new(true),
        })
    }

    pub(super) fn name(&self) -> &MailboxName {
        &self.name
    }

    pub(super) fn exists(&self) -> bool {
        self.exists.load(Ordering::SeqCst)
    }

    pub(super) fn add_handle(&self) {
        self.handles.fetch_add(1, Ordering::SeqCst);
        self.state.lock().unused_since = None;
    }

    /// Returns whether it was the last handle.
    pub(super) fn remove_handle(&self) -> bool {
        self.handles.fetch_sub(1, Ordering::SeqCst) == 1
    }

    pub(super) fn has_handles(&self) -> bool {
        self.handles.load(Ordering::SeqCst) > 0
    }

    pub(super) fn set_unused(&self) {
        self.state.lock().unused_since = Some(self.clock.now());
    }

    /// Notes that there is a task which removes the queue. Returns whether there was none.
    pub(super) fn begin_removal_task(&self) -> bool {
        !std::mem::replace(&mut self.state.lock().has_removal_task, true)
    }

    pub(super) fn end_removal_task(&self) {
        self.state.lock().has_removal_task = false;
    }

    pub(super) fn retention(&self) -> Retention {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let Some(mut unused_since) = state.unused_since else { return Retention::Unlimited };
        let counts = state.ledger.counts(now.as_nanos());
        let discarded = state.ledger.take_discarded();
        if counts.delayed + counts.leased > 0
            && let Some(due) = state.ledger.next_due()
        {
            // A delayed or leased message keeps the mailbox in use.
            unused_since = unused_since.max(Moment::from_nanos(due));
            state.unused_since = Some(unused_since);
        }
        let idle_until = state.idle_expiry.map(|idle| unused_since.after(idle));
        let retention = if state.ledger.is_empty() || idle_until.is_some_and(|until| until <= now) {
            Retention::Over
        } else {
            let change = state.ledger.next_change().map(Moment::from_nanos);
            change.into_iter().chain(idle_until).min().map_or(Retention::Unlimited, Retention::Until)
        };
        drop(state);
        drop(discarded);
        retention
    }

    /// Creates the mailbox unless it exists, and applies the settings that are given.
    pub(super) fn configure(&self, settings: &MailboxSettings) {
        let mut state = self.state.lock();
        self.exists.store(true, Ordering::SeqCst);
        let mut options = *state.ledger.options();
        options.max_size = settings.max_size.or(options.max_size);
        options.max_deliveries = settings.max_deliveries.or(options.max_deliveries);
        options.deduplication_window = settings.deduplication_window.map_or(options.deduplication_window, nanos);
        state.ledger.set_options(options);
        state.idle_expiry = settings.idle_expiry.or(state.idle_expiry);
    }

    /// Deletes the mailbox: its messages, dead letters, deduplication ids and settings. The ledger stays, so that no old
    /// receipt is valid for a later delivery.
    pub(super) fn delete(&self) {
        let mut state = self.state.lock();
        let removed = (state.ledger.purge(self.clock.now().as_nanos()), state.ledger.purge_dead());
        state.ledger.forget_deduplication();
        state.ledger.set_options(default_options());
        state.idle_expiry = None;
        self.exists.store(false, Ordering::SeqCst);
        let discarded = state.ledger.take_discarded();
        drop(state);
        drop((removed, discarded));
    }

    /// Runs an operation on the ledger, and wakes one waiting receiver for each message that became deliverable.
    pub(super) fn run<R>(self: &Arc<Self>, operation: impl FnOnce(&mut Ledger<Stored>, u64) -> R) -> R {
        let mut state = self.state.lock();
        let before = state.ledger.became_ready();
        let result = operation(&mut state.ledger, self.clock.now().as_nanos());
        if self.waiting.is_waiting() || state.ledger.has_discarded() {
            // Wakers and the destructors of bodies are code of the caller: they run without the lock.
            let wakers = self.notify(&mut state, before);
            let discarded = state.ledger.take_discarded();
            drop(state);
            wakers.into_iter().for_each(wake);
            drop(discarded);
        }
        result
    }

    /// Takes a waiter out for each message that became deliverable since `before`, and sets the alarm for the others.
    #[cold]
    fn notify(self: &Arc<Self>, state: &mut State, before: u64) -> Wakers {
        let new = (state.ledger.became_ready() - before).min(state.ledger.deliverable() as u64);
        let wakers = (0..new).map_while(|_| self.waiting.notify_one()).collect();
        self.set_alarm(state);
        wakers
    }

    /// Sets the alarm for the next message that becomes deliverable by itself, if a receiver waits.
    fn set_alarm(self: &Arc<Self>, state: &mut State) {
        let due = state.ledger.next_due().filter(|_| self.waiting.is_waiting()).map(Moment::from_nanos);
        if state.alarm.as_ref().map(|(at, _)| *at) != due {
            if let Some((_, alarm)) = state.alarm.take() {
                self.clock.cancel_alarm(alarm);
            }
            state.alarm = due.map(|at| (at, self.clock.set_alarm(at, Waker::from(Arc::clone(self)))));
        }
    }

    /// Waits for messages, up to the wait of the request.
    pub(super) fn long_poll(self: &Arc<Self>, request: Receive) -> Result<LongPoll, Error> {
        self.clock.start()?;
        let deadline = self.clock.now().after(request.wait);
        Ok(LongPoll { queue: Arc::clone(self), request, deadline, ticket: None, alarm: None })
    }
}

/// The alarm of the queue.
impl Wake for Queue {
    fn wake(self: Arc<Self>) {
        // The alarm may be early, or may have been replaced while it rang. If it is still needed, it is set again below.
        if let Some((_, alarm)) = self.state.lock().alarm.take() {
            self.clock.cancel_alarm(alarm);
        }
        self.run(|ledger, now| ledger.advance(now));
    }
}

/// Leases up to `max` messages.
pub(super) fn receive(ledger: &mut Ledger<Stored>, now: u64, request: &Receive) -> Vec<Delivery> {
    ledger.advance(now);
    let mut received = Vec::with_capacity(request.max.min(ledger.deliverable()));
    let deadline = now.saturating_add(nanos(request.visibility));
    ledger.receive(now, request.max, deadline, |entry| received.push(delivery(entry, now)));
    received
}

pub(super) fn delivery(entry: LedgerMessage<'_, Stored>, now: u64) -> Delivery {
    let Stored { body, content_type, headers } = entry.message;
    Delivery {
        id: MessageId::from_u128(entry.id),
        body: body.clone(),
        content_type: content_type.clone(),
        headers: headers.clone(),
        receipt_handle: ReceiptHandle::from_u128(entry.receipt.to_bits()),
        delivery_count: entry.deliveries,
        enqueued_at: Moment::from_nanos(entry.sent_at),
        delivered_at: Moment::from_nanos(now),
    }
}

pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A receive that waits.
pub(super) struct LongPoll {
    queue: Arc<Queue>,
    request: Receive,
    deadline: Moment,
    ticket: Option<Ticket>,
    /// The alarm for the deadline.
    alarm: Option<Alarm>,
}

impl Future for LongPoll {
    type Output = Result<Vec<Delivery>, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let queue = &this.queue;
        // Set before the time is read, so that a clock which is moved in between is not missed. Set at each poll, since
        // the last alarm may have been early.
        let alarm = queue.clock.set_alarm(this.deadline, context.waker().clone());
        if let Some(old) = this.alarm.replace(alarm) {
            queue.clock.cancel_alarm(old);
        }
        let waker = context.waker().clone();
        let mut state = queue.state.lock();
        let before = state.ledger.became_ready();
        let now = queue.clock.now();
        let received = receive(&mut state.ledger, now.as_nanos(), &this.request);
        let is_over = !received.is_empty() || now >= this.deadline;
        let unneeded = match is_over {
            true => queue.waiting.remove(&mut this.ticket),
            false => queue.waiting.register(&mut this.ticket, waker),
        };
        // Messages that became deliverable now and were not received are for other waiters.
        let wakers = queue.notify(&mut state, before);
        let discarded = state.ledger.take_discarded();
        drop(state);
        wakers.into_iter().for_each(wake);
        drop((unneeded, discarded));
        if is_over { Poll::Ready(Ok(received)) } else { Poll::Pending }
    }
}

impl Drop for LongPoll {
    fn drop(&mut self) {
        let queue = &self.queue;
        if let Some(alarm) = self.alarm.take() {
            queue.clock.cancel_alarm(alarm);
        }
        if self.ticket.is_none() {
            return;
        }
        let mut state = queue.state.lock();
        let waker = queue.waiting.remove(&mut self.ticket);
        // This receive was notified of a message, and is dropped before it could take it: another waiter is woken.
        let next = if waker.is_none() && state.ledger.deliverable() > 0 { queue.waiting.notify_one() } else { None };
        queue.set_alarm(&mut state);
        drop(state);
        drop(waker);
        next.into_iter().for_each(wake);
    }
}
