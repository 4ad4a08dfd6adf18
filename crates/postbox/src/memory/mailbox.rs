//! One mailbox in memory.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use bytes::Bytes;
use postbox_core::Lock as _;
use postbox_core::shared::mailbox::MailboxConcurrency;
use postbox_core::{Held, Ledger, LedgerFull, LedgerOptions, Posted, Posting, Stale, ThreadSafe, Ticket, WaitQueue};
use rand::RngExt as _;
use smallvec::SmallVec;

use super::{DEDUPLICATION_WINDOW, Space};
use crate::address::MailboxName;
use crate::backend::{
    Batch, ByteMailbox, Counts, DeadLetter, Delivery, Headers, MailboxSettings, Outgoing, Receipt, Receive, Redrive,
    Visibility,
};
use crate::clock::{Alarm, Clock, Moment};
use crate::codec::ContentType;
use crate::error::Error;
use crate::id::{MessageId, ReceiptHandle};
use crate::operation::Answer;

/// What is stored of a message; the ledger keeps its id, times and counts.
#[derive(Clone, Debug)]
struct Stored {
    body: Bytes,
    content_type: ContentType,
    headers: Option<Arc<Headers>>,
}

/// The mailbox itself, shared by its handles.
///
/// A waiting receiver registers in the critical section that saw nothing to deliver; whoever makes something
/// deliverable notifies one waiter per message, in the same section, and wakes them after it. One alarm, set while
/// somebody waits, rings when the next lease or delay ends.
///
/// The ledger belongs to whoever consumes. A plain message from another thread goes to the inbox, with the moment at which
/// it was sent, so that sender and consumer meet in one short line of memory and not in the ledger; every verb first
/// takes the inbox in, at those moments, so nobody can tell the difference. Locks are taken in the order state, inbox.
pub(super) struct Store {
    name: MailboxName,
    clock: Arc<dyn Clock>,
    state: Lock<State>,
    inbox: Lock<Vec<Entry>>,
    /// How many are in the inbox: written under its lock, read without.
    arrived: AtomicUsize,
    /// The thread that used the ledger last: its own sends go there directly.
    consumer: AtomicUsize,
    /// Whether sends must ask the ledger: it has a bound.
    bounded: AtomicBool,
    waiting: WaitQueue<ThreadSafe>,
    handles: AtomicUsize,
    /// Not since it was deleted.
    exists: AtomicBool,
}

/// A message in the inbox.
struct Entry {
    id: u128,
    sent_at: u64,
    message: Stored,
}

/// So many in the inbox are taken in by the sender, if nobody consumes.
const INBOX: usize = 256;

/// Names the current thread.
fn this_thread() -> usize {
    thread_local!(static PLACE: u8 = const { 0 });
    PLACE.with(|place| std::ptr::from_ref(place).addr())
}

struct State {
    ledger: Ledger<Stored>,
    /// The inbox of the last time, empty, to be used again.
    spare: Vec<Entry>,
    alarm: Option<(Moment, Alarm)>,
    idle_expiry: Option<Duration>,
    /// Since when nobody has a handle. `None` also while the last one is on its way out.
    abandoned_at: Option<Moment>,
    /// Whether a task looks after it while it is abandoned.
    tidying: bool,
}

/// How long an abandoned store stays.
pub(super) enum Rest {
    Over,
    Until(Moment),
    /// As long as nobody uses it.
    Endless,
}

/// The lock of layer 1: it is held for some hundred nanoseconds and never while somebody waits for a message.
type Lock<T> = <ThreadSafe as MailboxConcurrency>::Lock<T>;
type Guard<'a, T> = <Lock<T> as postbox_core::Lock<T>>::Guard<'a>;

type Wakers = SmallVec<[Waker; 1]>;

impl Store {
    pub(super) fn new(name: MailboxName, clock: Arc<dyn Clock>) -> Arc<Self> {
        let options = LedgerOptions { deduplication_window: nanos(DEDUPLICATION_WINDOW), ..LedgerOptions::default() };
        Arc::new(Store {
            name,
            clock,
            state: Lock::new(State {
                ledger: Ledger::new(options).with_numbers_from(rand::rng().random::<u64>() >> 1),
                spare: Vec::new(),
                alarm: None,
                idle_expiry: None,
                abandoned_at: None,
                tidying: false,
            }),
            inbox: Lock::new(Vec::new()),
            arrived: AtomicUsize::new(0),
            consumer: AtomicUsize::new(0),
            bounded: AtomicBool::new(false),
            waiting: WaitQueue::new(),
            handles: AtomicUsize::new(0),
            exists: AtomicBool::new(true),
        })
    }

    pub(super) fn name(&self) -> &MailboxName {
        &self.name
    }

    pub(super) fn is_abandoned(&self) -> bool {
        self.handles.load(Ordering::SeqCst) == 0
    }

    pub(super) fn exists(&self) -> bool {
        self.exists.load(Ordering::SeqCst)
    }

    pub(super) fn set_abandoned_at(&self, now: Moment) {
        self.lock().abandoned_at = Some(now);
    }

    pub(super) fn begin_tidying(&self) -> bool {
        !std::mem::replace(&mut self.lock().tidying, true)
    }

    pub(super) fn end_tidying(&self) {
        self.lock().tidying = false;
    }

    /// How long it stays, if nobody uses it.
    pub(super) fn rests_until(&self, now: Moment) -> Rest {
        let mut state = self.lock();
        let Some(abandoned_at) = state.abandoned_at else { return Rest::Endless };
        self.absorb(&mut state);
        state.ledger.advance(now.as_nanos());
        let discarded = state.ledger.take_discarded();
        let idle_until = state.idle_expiry.map(|idle| abandoned_at.after(idle));
        let rest = if state.ledger.is_empty() || idle_until.is_some_and(|until| until <= now) {
            Rest::Over
        } else {
            let change = state.ledger.next_change().map(Moment::from_nanos);
            change.into_iter().chain(idle_until).min().map_or(Rest::Endless, Rest::Until)
        };
        drop(state);
        drop(discarded);
        rest
    }

    fn lock(&self) -> Guard<'_, State> {
        self.state.lock()
    }

    /// Does something to the ledger, and wakes who has something to get because of it.
    #[inline]
    fn act<R>(self: &Arc<Self>, act: impl FnOnce(&mut Ledger<Stored>, u64) -> R) -> R {
        let mut state = self.lock();
        let before = state.ledger.surfaced();
        self.absorb(&mut state);
        let now = self.clock.now().as_nanos();
        let result = act(&mut state.ledger, now);
        if self.waiting.is_waiting() || state.ledger.has_discarded() {
            // Bodies and wakers run code of others when they are dropped or woken: under no lock.
            let wakers = self.notify(&mut state, before);
            let discarded = state.ledger.take_discarded();
            drop(state);
            wakers.into_iter().for_each(Waker::wake);
            drop(discarded);
        }
        result
    }

    /// Takes the inbox in.
    #[inline]
    fn absorb(&self, state: &mut State) {
        if self.arrived.load(Ordering::Acquire) != 0 {
            self.absorb_all(state);
        }
    }

    fn absorb_all(&self, state: &mut State) {
        let mut inbox = self.inbox.lock();
        std::mem::swap(&mut *inbox, &mut state.spare);
        self.arrived.store(0, Ordering::Release);
        drop(inbox);
        let State { ledger, spare, .. } = state;
        for entry in spare.drain(..) {
            ledger.absorb(entry.sent_at, entry.id, entry.message);
        }
        if spare.capacity() > 4 * INBOX {
            *spare = Vec::new();
        }
    }

    /// Puts a plain message into the inbox, if that will do. Otherwise gives it back.
    fn post(&self, id: u128, message: Stored) -> Result<(), Stored> {
        let mut inbox = self.inbox.lock();
        // Whoever waits registered under this lock, and a bound was set under it.
        if self.waiting.is_waiting() || self.bounded.load(Ordering::Relaxed) {
            return Err(message);
        }
        inbox.push(Entry { id, sent_at: self.clock.now().as_nanos(), message });
        let arrived = inbox.len();
        self.arrived.store(arrived, Ordering::Release);
        drop(inbox);
        if arrived >= INBOX
            && let Some(mut state) = self.state.try_lock()
        {
            self.absorb_all(&mut state);
        }
        Ok(())
    }

    /// The current thread consumes: its sends need no inbox.
    #[inline]
    fn consumed(&self) {
        let this = this_thread();
        if self.consumer.load(Ordering::Relaxed) != this {
            self.consumer.store(this, Ordering::Relaxed);
        }
    }

    /// Takes out a waiter for each message that has become deliverable since `before`, and sets the alarm for the others.
    #[cold]
    fn notify(self: &Arc<Self>, state: &mut State, before: u64) -> Wakers {
        let news = (state.ledger.surfaced() - before).min(state.ledger.deliverable() as u64);
        let wakers = (0..news).map_while(|_| self.waiting.notify_one()).collect();
        self.set_alarm(state);
        wakers
    }

    /// Lets the alarm ring when the next message becomes deliverable by itself, if somebody waits for that.
    fn set_alarm(self: &Arc<Self>, state: &mut State) {
        let due = state.ledger.next_due().filter(|_| self.waiting.is_waiting()).map(Moment::from_nanos);
        if state.alarm.as_ref().map(|(at, _)| *at) != due {
            if let Some((_, alarm)) = state.alarm.take() {
                self.clock.cancel_alarm(alarm);
            }
            state.alarm = due.map(|at| (at, self.clock.set_alarm(at, Waker::from(Arc::clone(self)))));
        }
    }
}

/// The alarm rings.
impl Wake for Store {
    fn wake(self: Arc<Self>) {
        let mut state = self.lock();
        // It may have been set anew, for later, while it rang.
        if state.alarm.as_ref().is_some_and(|(at, _)| *at <= self.clock.now()) {
            state.alarm = None;
        }
        drop(state);
        self.act(|ledger, now| ledger.advance(now));
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A handle of a mailbox in memory.
pub(crate) struct MemoryMailbox {
    store: Arc<Store>,
    space: Arc<Space>,
}

impl Clone for MemoryMailbox {
    fn clone(&self) -> Self {
        MemoryMailbox::new(Arc::clone(&self.store), Arc::clone(&self.space))
    }
}

impl Drop for MemoryMailbox {
    fn drop(&mut self) {
        if self.store.handles.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.space.abandoned(&self.store);
        }
    }
}

impl fmt::Debug for MemoryMailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryMailbox").field("name", &self.store.name).finish_non_exhaustive()
    }
}

impl MemoryMailbox {
    pub(super) fn new(store: Arc<Store>, space: Arc<Space>) -> Self {
        store.handles.fetch_add(1, Ordering::SeqCst);
        store.lock().abandoned_at = None;
        MemoryMailbox { store, space }
    }

    pub(super) fn configure(&self, settings: &MailboxSettings) {
        self.store.exists.store(true, Ordering::SeqCst);
        let mut state = self.store.lock();
        self.store.absorb(&mut state);
        let mut options = *state.ledger.options();
        options.max_size = settings.max_size.or(options.max_size);
        options.max_deliveries = settings.max_deliveries.or(options.max_deliveries);
        if let Some(window) = settings.deduplication_window {
            options.deduplication_window = nanos(window);
        }
        state.ledger.set_options(options);
        // What was posted before the bound stands; what comes after asks the ledger.
        let inbox = self.store.inbox.lock();
        self.store.bounded.store(options.max_size.is_some(), Ordering::Relaxed);
        drop(inbox);
        state.idle_expiry = settings.idle_expiry.or(state.idle_expiry);
    }

    /// Ends a lease at once, as if its time were up.
    #[cfg(feature = "testing")]
    pub(crate) fn expire(&self, handle: &ReceiptHandle) -> bool {
        let receipt = receipt_of(handle);
        self.store.act(|ledger, now| ledger.give_back(now, receipt, now).is_ok())
    }

    fn each<T>(
        &self,
        entries: Batch<T>,
        mut act: impl FnMut(&mut Ledger<Stored>, u64, T) -> Result<(), Error>,
    ) -> Answer<Batch<Result<(), Error>>> {
        Answer::ready(self.store.act(|ledger, now| entries.into_iter().map(|entry| act(ledger, now, entry)).collect()))
    }
}

fn receipt_of(handle: &ReceiptHandle) -> postbox_core::Receipt {
    // A handle of another backend is good for nothing here.
    postbox_core::Receipt::from_bits(handle.as_u128().unwrap_or(u128::MAX))
}

fn expired(receipt: Receipt) -> impl FnOnce(Stale) -> Error {
    move |Stale| Error::ReceiptHandleExpired { id: receipt.id }
}

#[inline(always)]
fn delivery(held: Held<'_, Stored>, now: u64) -> Delivery {
    Delivery {
        id: MessageId::from_u128(held.id),
        body: held.message.body.clone(),
        content_type: held.message.content_type.clone(),
        headers: held.message.headers.clone(),
        receipt_handle: ReceiptHandle::from_u128(held.receipt.to_bits()),
        delivery_count: held.deliveries,
        enqueued_at: Moment::from_nanos(held.sent_at),
        delivered_at: Moment::from_nanos(now),
    }
}

/// What is refused is put into `refused`, to be dropped after the lock is released.
fn store_one(
    ledger: &mut Ledger<Stored>,
    now: u64,
    name: &MailboxName,
    message: Outgoing,
    refused: &mut Option<Stored>,
) -> Result<MessageId, Error> {
    let Some(id) = message.id.as_u128() else {
        return Err(Error::invalid("message id", &message.id, "a UUID"));
    };
    let special = message.special.as_deref();
    let posting = Posting {
        id,
        message: Stored { body: message.body, content_type: message.content_type, headers: message.headers },
        visible_at: if message.delay.is_zero() { 0 } else { now.saturating_add(nanos(message.delay)) },
        expires_at: special.and_then(|special| special.expires_in).map(|after| now.saturating_add(nanos(after))),
        group: special.and_then(|special| special.group.as_deref()),
        deduplication: special.and_then(|special| special.deduplication.as_deref()),
    };
    match ledger.send(now, posting) {
        Ok(Posted::Stored) => Ok(message.id),
        Ok(Posted::Duplicate(first)) => Ok(MessageId::from_u128(first)),
        Err(LedgerFull(message)) => {
            *refused = Some(message);
            let most = ledger.options().max_size.unwrap_or_default();
            Err(Error::MailboxFull { mailbox: name.to_string(), limit: format!("max_size = {most}") })
        }
    }
}

impl ByteMailbox for MemoryMailbox {
    fn send(&self, messages: Batch<Outgoing>) -> Answer<Batch<Result<MessageId, Error>>> {
        self.store.exists.store(true, Ordering::SeqCst);
        let mut refused: Vec<Stored> = Vec::new();
        Answer::ready(self.store.act(|ledger, now| {
            let store = |message| {
                let mut back = None;
                let result = store_one(ledger, now, &self.store.name, message, &mut back);
                refused.extend(back);
                result
            };
            messages.into_iter().map(store).collect()
        }))
    }

    fn send_one(&self, message: Outgoing) -> Answer<Result<MessageId, Error>> {
        if !self.store.exists() {
            self.store.exists.store(true, Ordering::SeqCst);
        }
        let mut message = message;
        if message.special.is_none()
            && message.delay.is_zero()
            && self.store.consumer.load(Ordering::Relaxed) != this_thread()
            && let Some(id) = message.id.as_u128()
        {
            let Outgoing { body, content_type, headers, .. } = message;
            match self.store.post(id, Stored { body, content_type, headers }) {
                Ok(()) => return Answer::ready(Ok(message.id)),
                Err(back) => {
                    message =
                        Outgoing { body: back.body, content_type: back.content_type, headers: back.headers, ..message }
                }
            }
        }
        let mut refused = None;
        let mut result = None;
        self.store.act(|ledger, now| result = Some(store_one(ledger, now, &self.store.name, message, &mut refused)));
        Answer::ready(result.expect("it was stored or refused"))
    }

    fn receive(&self, request: Receive) -> Answer<Result<Vec<Delivery>, Error>> {
        self.store.consumed();
        let mut deliveries = Vec::new();
        self.store.act(|ledger, now| take(ledger, now, &request, &mut deliveries));
        if !deliveries.is_empty() || request.wait.is_zero() {
            return Answer::ready(Ok(deliveries));
        }
        let deadline = self.store.clock.now().after(request.wait);
        Answer::from_future(LongPoll {
            mailbox: self.clone(),
            request,
            deadline,
            ticket: None,
            alarm: None,
            looks: LOOKS,
        })
    }

    fn acknowledge(&self, receipts: Batch<Receipt>) -> Answer<Batch<Result<(), Error>>> {
        // What was stored is dropped after the lock is released.
        let mut gone: Vec<Stored> = Vec::with_capacity(receipts.len());
        let mut results = Batch::with_capacity(receipts.len());
        self.store.act(|ledger, now| {
            for receipt in &receipts {
                match ledger.acknowledge(now, receipt_of(&receipt.handle)) {
                    Ok(message) => {
                        gone.push(message);
                        results.push(Ok(()));
                    }
                    Err(Stale) => results.push(Err(Error::ReceiptHandleExpired { id: receipt.id.clone() })),
                }
            }
        });
        Answer::ready(results)
    }

    fn acknowledge_one(&self, receipt: &Receipt) -> Answer<Result<(), Error>> {
        let handle = receipt_of(&receipt.handle);
        // Dropped after the lock is released.
        let mut gone = None;
        self.store.act(|ledger, now| gone = ledger.acknowledge(now, handle).ok());
        match gone {
            Some(_) => Answer::ready(Ok(())),
            None => Answer::ready(Err(Error::ReceiptHandleExpired { id: receipt.id.clone() })),
        }
    }

    fn set_visibility(&self, changes: Batch<(Receipt, Visibility)>) -> Answer<Batch<Result<(), Error>>> {
        self.each(changes, |ledger, now, (receipt, visibility)| {
            let handle = receipt_of(&receipt.handle);
            match visibility {
                Visibility::Return(after) => ledger.give_back(now, handle, now.saturating_add(nanos(after))),
                Visibility::Extend(by) => ledger.extend(now, handle, now.saturating_add(nanos(by))),
            }
            .map_err(expired(receipt))
        })
    }

    fn dead_letter(&self, letters: Batch<(Receipt, String)>) -> Answer<Batch<Result<(), Error>>> {
        self.each(letters, |ledger, now, (receipt, reason)| {
            ledger.dead_letter(now, receipt_of(&receipt.handle), Cow::Owned(reason)).map_err(expired(receipt))
        })
    }

    fn purge(&self) -> Answer<Result<u64, Error>> {
        let (many, gone) = self.store.act(|ledger, now| ledger.purge(now));
        drop(gone);
        Answer::ready(Ok(many as u64))
    }

    fn counts(&self) -> Answer<Result<Counts, Error>> {
        let tally = self.store.act(|ledger, now| ledger.tally(now));
        let [ready, delayed, in_flight, dead] =
            [tally.ready, tally.delayed, tally.leased, tally.dead].map(|many| many as u64);
        Answer::ready(Ok(Counts::new(ready, delayed, in_flight, dead)))
    }

    fn create(&self) -> Answer<Result<(), Error>> {
        self.store.exists.store(true, Ordering::SeqCst);
        Answer::ready(Ok(()))
    }

    fn delete(&self) -> Answer<Result<(), Error>> {
        let gone = {
            let mut state = self.store.lock();
            let options =
                LedgerOptions { deduplication_window: nanos(DEDUPLICATION_WINDOW), ..LedgerOptions::default() };
            // A receipt of before must not be good for a delivery of after: purged, not made anew.
            let now = self.store.clock.now().as_nanos();
            let gone = (state.ledger.purge(now), state.ledger.purge_dead());
            state.ledger.forget_deduplication();
            state.ledger.set_options(options);
            self.store.bounded.store(false, Ordering::Relaxed);
            state.idle_expiry = None;
            (gone, state.ledger.take_discarded())
        };
        self.store.exists.store(false, Ordering::SeqCst);
        drop(gone);
        Answer::ready(Ok(()))
    }

    fn cancel(&self, id: MessageId) -> Answer<Result<bool, Error>> {
        let gone = id.as_u128().and_then(|id| self.store.act(|ledger, now| ledger.cancel(now, id)));
        Answer::ready(Ok(gone.is_some()))
    }

    fn peek(&self, max: usize) -> Answer<Result<Vec<Delivery>, Error>> {
        let mut shown = Vec::new();
        self.store.act(|ledger, now| ledger.peek(now, max, |held| shown.push(delivery(held, now))));
        Answer::ready(Ok(shown))
    }

    fn dead_letters(&self, max: usize) -> Answer<Result<Vec<DeadLetter>, Error>> {
        let letters = self.store.act(|ledger, now| {
            ledger.advance(now);
            let shown = ledger.dead().take(max).map(|dead| {
                let receipt = postbox_core::Receipt::from_bits(u128::MAX);
                let (deliveries, sent_at) = (dead.deliveries, dead.sent_at);
                let held = Held { id: dead.id, message: &dead.message, receipt, deliveries, sent_at };
                DeadLetter::new(delivery(held, now), Moment::from_nanos(dead.died_at), dead.reason.clone())
            });
            shown.collect()
        });
        Answer::ready(Ok(letters))
    }

    fn redrive(&self, which: Redrive) -> Answer<Result<u64, Error>> {
        let moved = self.store.act(|ledger, now| match &which {
            Redrive::UpTo(max) => ledger.redrive(now, *max) as u64,
            Redrive::One(id) => id.as_u128().map_or(0, |id| u64::from(ledger.redrive_one(now, id))),
        });
        Answer::ready(Ok(moved))
    }

    fn purge_dead_letters(&self) -> Answer<Result<u64, Error>> {
        let gone = self.store.act(|ledger, now| {
            ledger.advance(now);
            ledger.purge_dead()
        });
        Answer::ready(Ok(gone.len() as u64))
    }
}

fn take(ledger: &mut Ledger<Stored>, now: u64, request: &Receive, taken: &mut Vec<Delivery>) {
    ledger.advance(now);
    taken.reserve_exact(request.max.min(ledger.deliverable()));
    ledger.receive(now, request.max, now.saturating_add(nanos(request.visibility)), |held| {
        taken.push(delivery(held, now))
    });
}

/// A receive that waits.
struct LongPoll {
    mailbox: MemoryMailbox,
    request: Receive,
    deadline: Moment,
    ticket: Option<Ticket>,
    /// The end of the wait, with the waker that it wakes.
    alarm: Option<(Alarm, Waker)>,
    /// How often it may still look again before it sleeps.
    looks: u32,
}

/// Being put to sleep and woken costs far more than looking again, and a message may be on its way: a receiver lets others
/// run a few times first.
const LOOKS: u32 = 6;

/// Between two looks: one that looks all the time keeps the sender from its memory. Many more of them would delay whoever waits for
/// one message.
const PAUSES: u32 = 8;

impl Future for LongPoll {
    type Output = Result<Vec<Delivery>, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let store = &this.mailbox.store;
        let clock = &store.clock;
        if this.looks > 0 {
            this.looks -= 1;
            (0..PAUSES).for_each(|_| std::hint::spin_loop());
            let mut taken = Vec::new();
            store.act(|ledger, now| take(ledger, now, &this.request, &mut taken));
            if !taken.is_empty() {
                return Poll::Ready(Ok(taken));
            }
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        // Set before the look, so that a clock that is moved in between is not missed.
        if this.alarm.as_ref().is_none_or(|(_, waker)| !waker.will_wake(context.waker())) {
            let alarm = clock.set_alarm(this.deadline, context.waker().clone());
            if let Some((old, _)) = this.alarm.replace((alarm, context.waker().clone())) {
                clock.cancel_alarm(old);
            }
        }
        let waker = context.waker().clone();
        let mut state = store.lock();
        let before = state.ledger.surfaced();
        let mut taken = Vec::new();
        let (is_over, unneeded) = loop {
            store.absorb(&mut state);
            let now = clock.now();
            take(&mut state.ledger, now.as_nanos(), &this.request, &mut taken);
            if !taken.is_empty() || now >= this.deadline {
                break (true, store.waiting.remove(&mut this.ticket));
            }
            // Registered under the inbox's lock, with nothing in it: whoever sends next sees that somebody waits.
            let inbox = store.inbox.lock();
            if inbox.is_empty() {
                break (false, store.waiting.register(&mut this.ticket, waker));
            }
        };
        // What came up by itself and was not taken is for others; and this one may wait for what is due next.
        let wakers = store.notify(&mut state, before);
        let discarded = state.ledger.take_discarded();
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        drop((unneeded, discarded));
        if is_over { Poll::Ready(Ok(taken)) } else { Poll::Pending }
    }
}

impl Drop for LongPoll {
    fn drop(&mut self) {
        let store = &self.mailbox.store;
        if let Some((alarm, _)) = self.alarm.take() {
            store.clock.cancel_alarm(alarm);
        }
        let had_ticket = self.ticket.is_some();
        if !had_ticket {
            return;
        }
        let mut state = store.lock();
        let waker = store.waiting.remove(&mut self.ticket);
        // It was notified and did not come to look: somebody else must.
        let next = if waker.is_none() && state.ledger.deliverable() > 0 { store.waiting.notify_one() } else { None };
        store.set_alarm(&mut state);
        drop(state);
        drop(waker);
        if let Some(next) = next {
            next.wake();
        }
    }
}
