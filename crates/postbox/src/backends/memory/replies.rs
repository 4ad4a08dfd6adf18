//! Replies in memory.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use crate::error::Error;
use crate::mailbox::id::ReplyId;
use crate::mailbox::operation::Answer;
use crate::reply::store::{ReplyEntry, ReplyState, ReplyStore, ReplyValue, Resolved};
use crate::runtime::cancellation::{Cancellation, unless};
use crate::runtime::clock::{Clock, Moment, Sleep, SystemClock};
use crate::runtime::waiters::{Attempt, Waiters};
use crate::runtime::{background, lock};

/// How long an expired entry is kept, so that it can be told from one that never existed.
const GRACE: Duration = Duration::from_secs(60);

/// Entries that can be removed within this time of each other are removed together.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Keeps replies in the memory of this process. A waiter costs no thread and no polling.
pub struct MemoryReplyStore {
    inner: Arc<Inner>,
}

struct Inner {
    state: Mutex<Replies>,
    waiters: Arc<Waiters<ReplyId>>,
    clock: Arc<dyn Clock>,
}

#[derive(Default)]
struct Replies {
    entries: HashMap<ReplyId, Entry>,
    /// The entries in the order in which they expire.
    expiries: BTreeSet<(Moment, ReplyId)>,
    /// When the next sweep begins, if one is planned, and the token that cancels it.
    sweep: Option<(Moment, Cancellation)>,
}

struct Entry {
    value: Option<ReplyValue>,
    cancelled: bool,
    created_at: Moment,
    expires_at: Moment,
    resolved_at: Option<Moment>,
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

impl Replies {
    fn remove(&mut self, id: &ReplyId) -> Option<Entry> {
        let entry = self.entries.remove(id)?;
        self.expiries.remove(&(entry.expires_at, id.clone()));
        Some(entry)
    }

    /// Removes up to `limit` entries that had expired at a moment. The caller drops them without the lock.
    fn remove_expired(&mut self, by: Moment, limit: usize) -> Vec<Entry> {
        let expired = self.expiries.iter().take_while(|(at, _)| *at <= by).take(limit);
        let ids: Vec<ReplyId> = expired.map(|(_, id)| id.clone()).collect();
        ids.iter().filter_map(|id| self.remove(id)).collect()
    }
}

impl MemoryReplyStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::with_clock(SystemClock::shared())
    }

    /// An empty store with another clock.
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        MemoryReplyStore { inner: Arc::new(Inner { state: Mutex::default(), waiters: Arc::default(), clock }) }
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
    /// Plans a sweep for an entry that expires at a moment, unless one is planned for that time or earlier.
    fn sweep_after(self: &Arc<Self>, state: &mut Replies, expiry: Moment) {
        let at = expiry.after(GRACE + SWEEP_INTERVAL);
        if state.sweep.as_ref().is_some_and(|(earlier, _)| *earlier <= at.after(SWEEP_INTERVAL)) {
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
        let state = lock(&self.state);
        (state, self.clock.now())
    }

    /// When a pending reply expires. `None` if it is not pending.
    fn pending_until(&self, id: &ReplyId) -> Option<Moment> {
        let (state, now) = self.lock();
        state.entries.get(id).filter(|entry| entry.state(now) == ReplyState::Pending).map(|entry| entry.expires_at)
    }

    /// Wakes all waiters for a reply.
    fn wake(&self, id: &ReplyId) {
        self.waiters.wake(id, u64::MAX);
    }
}

/// Removes entries that have expired some time ago, and plans the next sweep if entries are left.
fn sweep(inner: &Weak<Inner>, cancelled: &Cancellation) {
    let Some(inner) = inner.upgrade() else { return };
    let (mut state, now) = inner.lock();
    if cancelled.is_cancelled() {
        // An earlier sweep has replaced this one.
        return;
    }
    state.sweep = None;
    let gone =
        state.remove_expired(Moment::from_nanos(now.as_nanos().saturating_sub(GRACE.as_nanos() as u64)), usize::MAX);
    if let Some(next) = state.expiries.first().map(|(at, _)| *at) {
        inner.sweep_after(&mut state, next);
    }
    drop(state);
    drop(gone);
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
            let entry = Entry { value: None, cancelled: false, created_at: now, expires_at, resolved_at: None };
            state.entries.insert(id, entry);
            self.inner.sweep_after(&mut state, expires_at);
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
        drop(state);
        self.inner.wake(&id);
        Answer::ready(Ok(Resolved::Stored))
    }

    fn cancel(&self, id: ReplyId) -> Answer<Result<bool, Error>> {
        let (mut state, now) = self.lock();
        let Some(entry) = state.entries.get_mut(&id).filter(|entry| entry.state(now) == ReplyState::Pending) else {
            return Answer::ready(Ok(false));
        };
        entry.cancelled = true;
        drop(state);
        self.inner.wake(&id);
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
        self.inner.wake(&id);
        Answer::ready(Ok(gone.is_some()))
    }

    fn scan_expired(&self, limit: usize) -> Answer<Result<Vec<ReplyId>, Error>> {
        let (state, now) = self.lock();
        let expired = state.expiries.iter().take_while(|(at, _)| *at <= now).take(limit).map(|(_, id)| id.clone());
        Answer::ready(Ok(expired.collect()))
    }

    fn cleanup_expired(&self, limit: usize) -> Answer<Result<u64, Error>> {
        let (mut state, now) = self.lock();
        let gone = state.remove_expired(now, limit);
        drop(state);
        Answer::ready(Ok(gone.len() as u64))
    }

    fn settled(&self, id: ReplyId, wait: Duration) -> Answer<Result<bool, Error>> {
        let inner = Arc::clone(&self.inner);
        let expires_at = inner.pending_until(&id);
        if expires_at.is_none() || wait.is_zero() {
            return Answer::ready(Ok(expires_at.is_none()));
        }
        Answer::from_future(async move {
            let (waiter, _) = inner.waiters.add(id.clone());
            let attempt = || {
                let left = inner.pending_until(&id).map(|expires_at| inner.clock.now().until(expires_at));
                Answer::ready(Ok(left.map_or(Attempt::Taken(()), |left| Attempt::Empty(Some(left)))))
            };
            Ok(waiter.long_poll(&inner.clock, wait, attempt).await?.is_some())
        })
    }
}
