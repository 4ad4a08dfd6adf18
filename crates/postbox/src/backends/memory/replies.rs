//! Replies in memory.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use postbox_core::{ThreadSafe, Ticket, WaitQueue};

use crate::error::Error;
use crate::mailbox::id::ReplyId;
use crate::mailbox::operation::Answer;
use crate::reply::store::{ReplyEntry, ReplyState, ReplyStore, ReplyValue, Resolved};
use crate::runtime::background;
use crate::runtime::cancellation::{Cancellation, unless};
use crate::runtime::clock::{Clock, Moment, Sleep, SystemClock};

/// How long an expired entry can still be told from one that never was.
const GRACE: Duration = Duration::from_secs(60);

/// Entries whose time of grace ends this close together are cleared up together.
const SWEEP: Duration = Duration::from_secs(1);

/// Keeps replies in the memory of this process. A waiter costs no thread and no polling.
pub struct MemoryReplyStore {
    inner: Arc<Inner>,
}

struct Inner {
    state: Mutex<Replies>,
    clock: Arc<dyn Clock>,
}

#[derive(Default)]
struct Replies {
    entries: HashMap<ReplyId, Entry>,
    /// When each entry ends.
    expiries: BTreeSet<(Moment, ReplyId)>,
    /// When a task clears up what has expired, if one waits for that, and what ends its wait.
    sweep: Option<(Moment, Cancellation)>,
}

struct Entry {
    value: Option<ReplyValue>,
    cancelled: bool,
    created_at: Moment,
    expires_at: Moment,
    resolved_at: Option<Moment>,
    /// Those who wait for it to settle; made when the first one comes.
    waiting: Option<Arc<WaitQueue<ThreadSafe>>>,
}

impl Entry {
    fn state(&self, now: Moment) -> ReplyState {
        match self {
            _ if now >= self.expires_at => ReplyState::Expired,
            Entry { cancelled: true, .. } => ReplyState::Cancelled,
            Entry { value: Some(_), .. } => ReplyState::Resolved,
            _ => ReplyState::Pending,
        }
    }

    fn show(&self, id: ReplyId, now: Moment) -> ReplyEntry {
        let state = self.state(now);
        ReplyEntry {
            id,
            value: self.value.clone().filter(|_| state == ReplyState::Resolved),
            state,
            created_at: self.created_at.into(),
            expires_at: self.expires_at.into(),
            resolved_at: self.resolved_at.map(Into::into),
        }
    }
}

/// Somebody to be told, once no lock is held.
type Told = Option<Arc<WaitQueue<ThreadSafe>>>;

fn tell(told: Told) {
    if let Some(waiting) = told {
        waiting.wake_all();
    }
}

impl Replies {
    fn remove(&mut self, id: &ReplyId) -> Option<Entry> {
        let entry = self.entries.remove(id)?;
        self.expiries.remove(&(entry.expires_at, id.clone()));
        Some(entry)
    }
}

impl MemoryReplyStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::with_clock(SystemClock::shared())
    }

    /// An empty store that lives by another clock.
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        MemoryReplyStore { inner: Arc::new(Inner { state: Mutex::default(), clock }) }
    }

    /// How many entries there are, in any state.
    pub fn len(&self) -> usize {
        self.lock().0.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> (MutexGuard<'_, Replies>, Moment) {
        self.inner.lock()
    }
}

impl Inner {
    /// Makes sure that an entry which expires then is cleared up. Not for each entry by itself: what expires within a second is
    /// cleared up together.
    fn sweep_after(self: &Arc<Self>, state: &mut Replies, expiry: Moment) {
        let at = expiry.after(GRACE + SWEEP);
        if state.sweep.as_ref().is_some_and(|(earlier, _)| *earlier <= at.after(SWEEP)) {
            return;
        }
        let cancelled = Cancellation::new();
        if let Some((_, later)) = state.sweep.replace((at, cancelled.clone())) {
            later.cancel();
        }
        let (inner, sleep) = (Arc::downgrade(self), Sleep::until(Arc::clone(&self.clock), at));
        background::spawn(async move {
            if unless(cancelled.cancelled(), sleep).await.is_some() {
                sweep(&inner, &cancelled);
            }
        });
    }

    fn lock(&self) -> (MutexGuard<'_, Replies>, Moment) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        (state, self.clock.now())
    }
}

/// Forgets entries some time after they have expired, and comes back while there are any.
fn sweep(inner: &Weak<Inner>, cancelled: &Cancellation) {
    let Some(inner) = inner.upgrade() else { return };
    let mut gone = Vec::new();
    let (mut state, now) = inner.lock();
    if cancelled.is_cancelled() {
        // An earlier one has taken its place.
        return;
    }
    state.sweep = None;
    while let Some((at, id)) = state.expiries.first()
        && at.after(GRACE) <= now
    {
        let id = id.clone();
        gone.extend(state.remove(&id));
    }
    if let Some(next) = state.expiries.first().map(|(at, _)| *at) {
        inner.sweep_after(&mut state, next);
    }
    drop(state);
    gone.into_iter().for_each(|entry| tell(entry.waiting));
}

impl Default for MemoryReplyStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryReplyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryReplyStore").field("entries", &self.len()).finish()
    }
}

impl ReplyStore for MemoryReplyStore {
    fn create(&self, id: ReplyId, ttl: Duration) -> Answer<Result<bool, Error>> {
        let (mut state, now) = self.lock();
        let is_new = !state.entries.contains_key(&id);
        if is_new {
            let expires_at = now.after(ttl);
            state.expiries.insert((expires_at, id.clone()));
            let entry =
                Entry { value: None, cancelled: false, created_at: now, expires_at, resolved_at: None, waiting: None };
            state.entries.insert(id, entry);
        }
        if is_new {
            self.inner.sweep_after(&mut state, now.after(ttl));
        }
        drop(state);
        Answer::ready(Ok(is_new))
    }

    fn resolve(&self, id: ReplyId, value: ReplyValue) -> Answer<Result<Resolved, Error>> {
        let (mut state, now) = self.lock();
        let Some(entry) = state.entries.get_mut(&id) else { return Answer::ready(Ok(Resolved::Refused(None))) };
        let before = entry.state(now);
        if before != ReplyState::Pending {
            return Answer::ready(Ok(Resolved::Refused(Some(before))));
        }
        entry.value = Some(value);
        entry.resolved_at = Some(now);
        let told = entry.waiting.take();
        drop(state);
        tell(told);
        Answer::ready(Ok(Resolved::Stored))
    }

    fn cancel(&self, id: ReplyId) -> Answer<Result<bool, Error>> {
        let (mut state, now) = self.lock();
        let Some(entry) = state.entries.get_mut(&id).filter(|entry| entry.state(now) == ReplyState::Pending) else {
            return Answer::ready(Ok(false));
        };
        entry.cancelled = true;
        let told = entry.waiting.take();
        drop(state);
        tell(told);
        Answer::ready(Ok(true))
    }

    fn get(&self, id: ReplyId) -> Answer<Result<Option<ReplyEntry>, Error>> {
        let (state, now) = self.lock();
        Answer::ready(Ok(state.entries.get(&id).map(|entry| entry.show(id, now))))
    }

    fn consume(&self, id: ReplyId) -> Answer<Result<Option<ReplyEntry>, Error>> {
        let (mut state, now) = self.lock();
        let shown = state.entries.get(&id).map(|entry| entry.show(id.clone(), now));
        if shown.as_ref().is_some_and(|entry| entry.state == ReplyState::Resolved) {
            let gone = state.remove(&id);
            drop(state);
            drop(gone);
        }
        Answer::ready(Ok(shown))
    }

    fn delete(&self, id: ReplyId) -> Answer<Result<bool, Error>> {
        let gone = self.lock().0.remove(&id);
        let was_there = gone.is_some();
        tell(gone.and_then(|entry| entry.waiting));
        Answer::ready(Ok(was_there))
    }

    fn scan_expired(&self, limit: usize) -> Answer<Result<Vec<ReplyId>, Error>> {
        let (state, now) = self.lock();
        let expired = state.expiries.iter().take_while(|(at, _)| *at <= now).take(limit).map(|(_, id)| id.clone());
        Answer::ready(Ok(expired.collect()))
    }

    fn cleanup_expired(&self, limit: usize) -> Answer<Result<u64, Error>> {
        let mut gone = Vec::new();
        {
            let (mut state, now) = self.lock();
            while gone.len() < limit
                && let Some((at, id)) = state.expiries.first()
                && *at <= now
            {
                let id = id.clone();
                gone.extend(state.remove(&id));
            }
        }
        let many = gone.len() as u64;
        gone.into_iter().for_each(|entry| tell(entry.waiting));
        Answer::ready(Ok(many))
    }

    fn settled(&self, id: ReplyId, wait: Duration) -> Answer<Result<bool, Error>> {
        let (state, now) = self.lock();
        let Some(entry) = state.entries.get(&id).filter(|entry| entry.state(now) == ReplyState::Pending) else {
            return Answer::ready(Ok(true));
        };
        if wait.is_zero() {
            return Answer::ready(Ok(false));
        }
        if let Err(error) = self.inner.clock.start() {
            return Answer::ready(Err(error));
        }
        // Woken by the call that settles it, or by the first of its expiry and the end of the wait.
        let sleep = Sleep::until(Arc::clone(&self.inner.clock), entry.expires_at.min(now.after(wait)));
        drop(state);
        let inner = Arc::clone(&self.inner);
        Answer::from_future(Settled { inner, id, deadline: now.after(wait), sleep, place: None })
    }
}

struct Settled {
    inner: Arc<Inner>,
    id: ReplyId,
    deadline: Moment,
    sleep: Sleep,
    place: Option<(Arc<WaitQueue<ThreadSafe>>, Option<Ticket>)>,
}

impl Future for Settled {
    type Output = Result<bool, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let _ = Pin::new(&mut this.sleep).poll(context);
        let waker = context.waker().clone();
        let mut unneeded: Option<Waker> = None;
        let answer = {
            let (mut state, now) = this.inner.lock();
            match state.entries.get_mut(&this.id) {
                Some(entry) if entry.state(now) == ReplyState::Pending => {
                    if now >= this.deadline {
                        Some(false)
                    } else {
                        let waiting = entry.waiting.get_or_insert_default();
                        // Deleted and made anew: the old ticket is of another queue.
                        if this.place.as_ref().is_some_and(|(queue, _)| !Arc::ptr_eq(queue, waiting)) {
                            this.place = None;
                        }
                        let (_, ticket) = this.place.get_or_insert_with(|| (Arc::clone(waiting), None));
                        unneeded = waiting.register(ticket, waker);
                        None
                    }
                }
                _ => Some(true),
            }
        };
        drop(unneeded);
        answer.map_or(Poll::Pending, |settled| Poll::Ready(Ok(settled)))
    }
}

impl Drop for Settled {
    fn drop(&mut self) {
        if let Some((waiting, ticket)) = &mut self.place {
            // Everybody is woken at once, so there is no notification to pass on.
            drop(waiting.remove(ticket));
        }
    }
}
