//! What is in a mailbox in memory, shared by its handles.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Wake, Waker};
use std::time::Duration;

use bytes::Bytes;
use postbox_core::Lock as _;
use postbox_core::shared::mailbox::MailboxConcurrency;
use postbox_core::{Ledger, LedgerOptions, ThreadSafe, WaitQueue};
use rand::RngExt as _;
use smallvec::SmallVec;

use super::DEDUPLICATION_WINDOW;
use crate::backend::{Headers, Outgoing};
use crate::mailbox::codec::ContentType;
use crate::resolver::address::MailboxName;
use crate::runtime::clock::{Alarm, Clock, Moment};
use crate::runtime::wake;

/// What is stored of a message; the ledger keeps its id, times and counts.
#[derive(Clone, Debug, Default)]
pub(super) struct Stored {
    pub(super) body: Bytes,
    pub(super) content_type: ContentType,
    pub(super) headers: Option<Arc<Headers>>,
}

impl Stored {
    /// Takes what is stored out of a message.
    pub(super) fn of(message: &mut Outgoing) -> Self {
        Stored {
            body: std::mem::take(&mut message.body),
            content_type: std::mem::take(&mut message.content_type),
            headers: message.headers.take(),
        }
    }
}

/// The mailbox itself, shared by its handles.
///
/// A waiting receiver registers in the critical section that saw nothing to deliver; a call that makes something
/// deliverable notifies one waiter per message, in the same section, and wakes them after it. One alarm, set while
/// a receiver waits, rings when the next lease or delay ends.
pub(super) struct Store {
    pub(super) name: MailboxName,
    pub(super) clock: Arc<dyn Clock>,
    state: Lock<State>,
    pub(super) waiting: WaitQueue<ThreadSafe>,
    pub(super) handles: AtomicUsize,
    /// Not since it was deleted. Written under the lock of the state.
    pub(super) exists: AtomicBool,
}

pub(super) struct State {
    pub(super) ledger: Ledger<Stored>,
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

/// The lock of layer 1. It is held for one operation, and never while a receiver waits.
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
                alarm: None,
                idle_expiry: None,
                abandoned_at: None,
                tidying: false,
            }),
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
        self.state.lock()
    }

    /// Does something to the ledger, and wakes a waiting receiver for each message that became deliverable.
    pub(super) fn act<R>(self: &Arc<Self>, act: impl FnOnce(&mut Ledger<Stored>, u64) -> R) -> R {
        let mut state = self.lock();
        let before = state.ledger.surfaced();
        let result = act(&mut state.ledger, self.clock.now().as_nanos());
        if self.waiting.is_waiting() || state.ledger.has_discarded() {
            // Bodies and wakers run code of others when they are dropped or woken: under no lock.
            let wakers = self.notify(&mut state, before);
            let discarded = state.ledger.take_discarded();
            drop(state);
            wakers.into_iter().for_each(wake);
            drop(discarded);
        }
        result
    }

    /// Takes out a waiter for each message that has become deliverable since `before`, and sets the alarm for the others.
    #[cold]
    pub(super) fn notify(self: &Arc<Self>, state: &mut State, before: u64) -> Wakers {
        let news = (state.ledger.surfaced() - before).min(state.ledger.deliverable() as u64);
        let wakers = (0..news).map_while(|_| self.waiting.notify_one()).collect();
        self.set_alarm(state);
        wakers
    }

    /// Lets the alarm ring when the next message becomes deliverable by itself, if a receiver waits for that.
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
