//! What is in a mailbox in memory, shared by its handles.

use std::collections::VecDeque;
use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Wake, Waker};
use std::time::Duration;

use postbox_core::Lock as _;
use postbox_core::shared::mailbox::MailboxConcurrency;
use postbox_core::{Ledger, LedgerOptions, ThreadSafe, WaitQueue};
use rand::RngExt as _;
use smallvec::SmallVec;

use super::DEDUPLICATION_WINDOW;
use super::body::Body;
use crate::backend::{Headers, Outgoing};
use crate::mailbox::codec::ContentType;
use crate::resolver::address::MailboxName;
use crate::runtime::clock::{Alarm, Clock, Moment};

/// What is stored of a message; the ledger keeps its id, times and counts.
#[derive(Clone, Debug, Default)]
pub(super) struct Stored {
    pub(super) body: Body,
    pub(super) content_type: ContentType,
    pub(super) headers: Option<Arc<Headers>>,
}

impl Stored {
    /// What is stored of a message. The body is kept if the thread consumes, too; a short one of another thread is copied, and what
    /// is left of it is for the caller to drop.
    #[inline(always)]
    pub(super) fn of(message: &mut Outgoing, by_consumer: bool) -> Self {
        Stored {
            body: match by_consumer {
                true => Body::Shared(std::mem::take(&mut message.body)),
                false => Body::carried(&mut message.body),
            },
            content_type: std::mem::take(&mut message.content_type),
            headers: message.headers.take(),
        }
    }

    /// The content type of a message that has no headers, if it is one of those that need no memory.
    #[inline(always)]
    pub(super) fn plain_type(&self) -> Option<ContentType> {
        match (&self.content_type, &self.headers) {
            (ContentType::Other(_), _) | (_, Some(_)) => None,
            (ContentType::Json, None) => Some(ContentType::Json),
            (ContentType::MessagePack, None) => Some(ContentType::MessagePack),
            (ContentType::Bytes, None) => Some(ContentType::Bytes),
            (ContentType::Unmarked, None) => Some(ContentType::Unmarked),
        }
    }

    /// Takes out what runs code of others or gives memory back when it is dropped, if there is such a thing.
    #[inline(always)]
    pub(super) fn take_heavy(&mut self) -> Option<Stored> {
        let is_light = matches!(self.body, Body::InPlace(_)) && self.plain_type().is_some();
        (!is_light).then(|| std::mem::take(self))
    }
}

/// The mailbox itself, shared by its handles.
///
/// A waiting receiver registers in the critical section that saw nothing to deliver; whoever makes something
/// deliverable notifies one waiter per message, in the same section, and wakes them after it. One alarm, set while
/// somebody waits, rings when the next lease or delay ends.
///
/// The ledger belongs to whoever consumes. A plain message from another thread goes to the inbox, with the moment at which
/// it was sent, so that sender and consumer meet in one short line of memory and not in the ledger. A receive takes the whole
/// inbox when nothing is left of the last one, and stores as many of those messages in the ledger as it needs; an acknowledgement
/// needs none. Every other verb stores them all first, and so do these two when something else may surface: when something
/// is due, or there are groups. So nobody can tell the difference. Locks are taken in the order state, inbox.
pub(super) struct Store {
    pub(super) name: MailboxName,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) state: Apart<Lock<State>>,
    pub(super) inbox: Lock<VecDeque<Entry>>,
    /// How many are in the inbox: written under its lock, read without.
    pub(super) arrived: AtomicUsize,
    /// The thread that used the ledger last: its own sends go there directly.
    pub(super) consumer: AtomicUsize,
    /// Whether sends must ask the ledger: it has a bound.
    pub(super) bounded: AtomicBool,
    pub(super) waiting: WaitQueue<ThreadSafe>,
    pub(super) handles: AtomicUsize,
    /// Not since it was deleted. Written under the lock of the state.
    pub(super) exists: AtomicBool,
}

/// In lines of memory of its own: what the consumer writes is not where senders look.
#[repr(align(128))]
pub(super) struct Apart<T>(T);

/// A message in the inbox.
pub(super) struct Entry {
    id: u128,
    sent_at: u64,
    message: Stored,
}

/// So many in the inbox are taken in by the sender, if nobody consumes.
const INBOX: usize = 2_048;
/// An inbox with room for so many is kept, however few come.
const SMALL: usize = 256;

/// Names the current thread.
fn this_thread() -> usize {
    thread_local!(static PLACE: u8 = const { 0 });
    PLACE.with(|place| std::ptr::from_ref(place).addr())
}

pub(super) struct State {
    pub(super) ledger: Ledger<Stored>,
    /// What was taken out of the inbox and is not in the ledger yet: older than all that is in the inbox.
    arrivals: VecDeque<Entry>,
    pub(super) alarm: Option<(Moment, Alarm)>,
    pub(super) idle_expiry: Option<Duration>,
    /// Since when nobody has a handle. `None` also while the last one is on its way out.
    pub(super) abandoned_at: Option<Moment>,
    /// Whether a task looks after it while it is abandoned.
    pub(super) tidying: bool,
}

/// How long an abandoned store stays.
pub(super) enum Rest {
    Over,
    Until(Moment),
    /// As long as nobody uses it.
    Endless,
}

/// The lock of layer 1: it is held for some hundred nanoseconds, or for as many messages as are taken in, and never while
/// somebody waits for a message.
type Lock<T> = <ThreadSafe as MailboxConcurrency>::Lock<T>;
type Guard<'a, T> = <Lock<T> as postbox_core::Lock<T>>::Guard<'a>;

type Wakers = SmallVec<[Waker; 1]>;

impl Store {
    pub(super) fn new(name: MailboxName, clock: Arc<dyn Clock>) -> Arc<Self> {
        let options = LedgerOptions { deduplication_window: nanos(DEDUPLICATION_WINDOW), ..LedgerOptions::default() };
        Arc::new(Store {
            name,
            clock,
            state: Apart(Lock::new(State {
                ledger: Ledger::new(options).with_numbers_from(rand::rng().random::<u64>() >> 1),
                arrivals: VecDeque::new(),
                alarm: None,
                idle_expiry: None,
                abandoned_at: None,
                tidying: false,
            })),
            inbox: Lock::new(VecDeque::new()),
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
        self.absorb(&mut state, usize::MAX);
        let tally = state.ledger.tally(now.as_nanos());
        let discarded = state.ledger.take_discarded();
        let mut abandoned_at = abandoned_at;
        if tally.delayed + tally.leased > 0
            && let Some(due) = state.ledger.next_due()
        {
            // A delayed or leased message keeps the mailbox in use.
            abandoned_at = abandoned_at.max(Moment::from_nanos(due));
            state.abandoned_at = Some(abandoned_at);
        }
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

    pub(super) fn lock(&self) -> Guard<'_, State> {
        self.state.0.lock()
    }

    /// Does something to the ledger, and wakes who has something to get because of it.
    pub(super) fn act<R>(self: &Arc<Self>, act: impl FnOnce(&mut Ledger<Stored>, u64) -> R) -> R {
        self.act_with(usize::MAX, act)
    }

    /// The same for a verb that lets nothing surface by itself, and to which it makes no difference whether more than so many
    /// messages can be delivered.
    #[inline]
    pub(super) fn act_with<R>(
        self: &Arc<Self>,
        deliverable: usize,
        act: impl FnOnce(&mut Ledger<Stored>, u64) -> R,
    ) -> R {
        let mut state = self.lock();
        let before = state.ledger.surfaced();
        let mut now = self.clock.now().as_nanos();
        let needs_all = state.ledger.is_due(now) || state.ledger.has_groups();
        if self.absorb(&mut state, if needs_all { usize::MAX } else { deliverable }) {
            // Nothing was sent later than now.
            now = self.clock.now().as_nanos();
            if state.ledger.is_due(now) && self.absorb(&mut state, usize::MAX) {
                now = self.clock.now().as_nanos();
            }
        }
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

    /// Stores what was sent before this call in the ledger, until so many messages can be delivered. Whether the inbox was needed for
    /// that. It is emptied once: senders may fill it as fast as this goes on.
    #[inline]
    pub(super) fn absorb(&self, state: &mut State, deliverable: usize) -> bool {
        // Who needs none does not look: senders write there.
        deliverable > state.ledger.deliverable()
            && (!state.arrivals.is_empty() || self.arrived.load(Ordering::Relaxed) > 0)
            && self.absorb_some(state, deliverable)
    }

    fn absorb_some(&self, state: &mut State, deliverable: usize) -> bool {
        let mut was_needed = false;
        while state.ledger.deliverable() < deliverable {
            match state.arrivals.pop_front() {
                Some(Entry { id, sent_at, message }) => state.ledger.absorb(sent_at, id, message),
                None if !was_needed && self.collect(state) => was_needed = true,
                None => break,
            }
        }
        was_needed
    }

    /// Takes what is in the inbox. Whether there was something.
    fn collect(&self, state: &mut State) -> bool {
        let arrived = self.arrived.load(Ordering::Acquire);
        if arrived == 0 {
            return false;
        }
        if state.arrivals.capacity() > SMALL.max(8 * arrived) {
            state.arrivals = VecDeque::new();
        }
        let mut inbox = self.inbox.lock();
        std::mem::swap(&mut *inbox, &mut state.arrivals);
        self.arrived.store(0, Ordering::Release);
        true
    }

    /// Puts a plain message into the inbox, if that will do. Whether it did; what is left of the message then is for the caller to
    /// drop.
    #[inline]
    pub(super) fn post(&self, id: u128, message: &mut Outgoing) -> bool {
        let mut inbox = self.inbox.lock();
        // Whoever waits registered under this lock, and a bound was set under it.
        if self.waiting.is_waiting() || self.bounded.load(Ordering::Relaxed) {
            return false;
        }
        let sent_at = self.clock.now().as_nanos();
        // Made when there is a place for it: so it is written where it stays.
        inbox.extend(iter::once_with(|| Entry { id, sent_at, message: Stored::of(message, false) }));
        let arrived = inbox.len();
        self.arrived.store(arrived, Ordering::Release);
        drop(inbox);
        if arrived >= INBOX
            && let Some(mut state) = self.state.0.try_lock()
        {
            self.absorb(&mut state, usize::MAX);
        }
        true
    }

    /// The current thread consumes: its sends need no inbox.
    #[inline]
    pub(super) fn consumed(&self) {
        if !self.is_consumer() {
            self.consumer.store(this_thread(), Ordering::Relaxed);
        }
    }

    /// Whether the current thread was the last one to consume.
    #[inline]
    pub(super) fn is_consumer(&self) -> bool {
        self.consumer.load(Ordering::Relaxed) == this_thread()
    }

    /// Takes out a waiter for each message that has become deliverable since `before`, and sets the alarm for the others.
    #[cold]
    pub(super) fn notify(self: &Arc<Self>, state: &mut State, before: u64) -> Wakers {
        let news = (state.ledger.surfaced() - before).min(state.ledger.deliverable() as u64);
        let wakers = (0..news).map_while(|_| self.waiting.notify_one()).collect();
        self.set_alarm(state);
        wakers
    }

    /// Lets the alarm ring when the next message becomes deliverable by itself, if somebody waits for that.
    pub(super) fn set_alarm(self: &Arc<Self>, state: &mut State) {
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
        // The alarm may have rung too early, or have been replaced while it rang. It is set again below if it is needed.
        if let Some((_, alarm)) = self.lock().alarm.take() {
            self.clock.cancel_alarm(alarm);
        }
        self.act(|ledger, now| ledger.advance(now));
    }
}

pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
