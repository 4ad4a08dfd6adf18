//! Operations on one mailbox that wait for the next request. A few requests are under way at a time; each takes what has
//! gathered of one kind while the others were, or a share of it. So a lone task never waits for company, and many share
//! round trips. And a server need only remember the last request of each slot.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::Notify;

use crate::runtime::busy_poll::MakesWay;
use crate::runtime::cancellation::unless;
use crate::runtime::clock::{Sleep, SystemClock};

/// A lone caller stays awake for an answer for so long, if the last one did not take longer.
pub(super) const ALONE: Duration = Duration::from_micros(500);
/// Of the jobs of a mailbox a request takes at most half, if that is not fewer than these: while the server is busy with it,
/// those who ask are busy with what came before, and the next one gathers.
const FEW: usize = 8;
/// Each request forgets this part of the crowd that was there.
const FORGETS: usize = 32;
/// Where a request takes longer, it is not the server that is busy: then a request takes all.
const NEAR: Duration = Duration::from_millis(2);
/// For so long the next request gathers while another is under way, unless answers are quick.
const GATHERS: Duration = Duration::from_micros(100);
/// Where answers come so quickly, it gathers until the next one is there.
const QUICK: Duration = Duration::from_micros(500);
/// Should that one not come, it gathers no longer than this.
const GATHERS_AT_MOST: Duration = Duration::from_millis(20);
/// So many entries are in a request at most, and so many bytes.
const MOST_ENTRIES: usize = 1_000;
const MOST_BYTES: usize = 4 << 20;

/// What kinds of jobs there are.
pub(super) const KINDS: usize = 3;
/// Jobs of this kind are in one request at a time, so that they arrive in order, whatever has to be repeated.
pub(super) const IN_ORDER: usize = 0;

/// What waits in a tray.
pub(super) trait Job {
    /// Below [`KINDS`].
    fn kind(&self) -> usize;
    /// How large it is: its entries, and their bytes.
    fn weight(&self) -> (usize, usize);
}

/// A request's number, below the number of requests that may be under way at a time.
pub(super) type Slot = usize;

pub(super) struct Tray<J> {
    state: Mutex<State<J>>,
    /// Under these names the server remembers the last request of each slot.
    names: Vec<Bytes>,
    /// As many wait as a request gathers for, or another one has its answer. With two slots one gathers at most while another is
    /// under way.
    gathered: Notify,
}

struct State<J> {
    waiting: [VecDeque<J>; KINDS],
    /// Which kind is next.
    turn: usize,
    /// Those that are not in use.
    free: Vec<Slot>,
    /// Which of them has jobs whose order matters.
    in_order: Option<Slot>,
    /// How many jobs wait or are under way.
    many: usize,
    /// How many there were lately: of a closed circle some are always between two jobs.
    crowd: usize,
    /// How many jobs were in the last request.
    last: usize,
    /// How long it took.
    took: Duration,
    /// How many a request gathers for; more than ever come if none does.
    wanted: usize,
}

impl<J> State<J> {
    fn waits(&self) -> usize {
        self.waiting.iter().map(VecDeque::len).sum()
    }

    fn can_take(&self, kind: usize) -> bool {
        !(self.waiting[kind].is_empty() || kind == IN_ORDER && self.in_order.is_some())
    }

    /// Whether a request is under way.
    fn is_busy(&self) -> bool {
        self.many > self.waits()
    }

    /// How many have asked lately and may be about to do so again, if there is more than one.
    fn wants(&self) -> usize {
        match self.many - self.waits() {
            0 if self.last > 1 => self.last,
            0 => 0,
            under_way => self.share().min(self.crowd.saturating_sub(under_way)),
        }
    }

    /// How many jobs a request takes.
    fn share(&self) -> usize {
        if self.took < NEAR { (self.crowd / 2).max(FEW) } else { usize::MAX }
    }

    /// A slot for whoever has to start, if there is something to do.
    fn start(&mut self) -> Option<Slot> {
        if !(0..KINDS).any(|kind| self.can_take(kind)) {
            return None;
        }
        self.free.pop()
    }
}

impl<J: Job> Tray<J> {
    /// As many requests are under way at most as there are names, which are one or two.
    pub(super) fn new(names: impl Into<Vec<Bytes>>) -> Self {
        let names = names.into();
        let state = State {
            waiting: Default::default(),
            turn: 0,
            free: (0..names.len()).rev().collect(),
            in_order: None,
            many: 0,
            crowd: 0,
            last: 0,
            took: Duration::ZERO,
            wanted: usize::MAX,
        };
        Tray { state: Mutex::new(state), names, gathered: Notify::new() }
    }

    pub(super) fn name(&self, slot: Slot) -> &Bytes {
        &self.names[slot]
    }

    fn lock(&self) -> MutexGuard<'_, State<J>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a job in. The slot in which the caller has to start working, and whether nobody else asks or has asked lately and
    /// the last answer was quick: then it may stay awake for this one.
    pub(super) fn push(&self, job: J) -> (Option<Slot>, bool) {
        let mut state = self.lock();
        let is_alone = state.many == 0 && state.crowd <= 1 && state.took < ALONE;
        state.waiting[job.kind()].push_back(job);
        state.many += 1;
        let has_gathered = state.waits() >= state.wanted;
        if has_gathered {
            state.wanted = usize::MAX;
        }
        let starts = state.start();
        drop(state);
        if has_gathered {
            self.gathered.notify_one();
        }
        (starts, is_alone)
    }

    /// Lets those who are about to ask do so before the next request, where several work at once: while another one is under
    /// way, until enough of them have, or for a while; otherwise as long as more come.
    pub(super) async fn gather(&self) {
        self.gather_for(GATHERS, GATHERS_AT_MOST).await;
    }

    /// For so long at most, and where answers are quick for so long.
    async fn gather_for(&self, at_most: Duration, where_quick: Duration) {
        let since = Instant::now();
        let mut before = None;
        loop {
            let (waits, is_busy, is_quick) = {
                let mut state = self.lock();
                let (waits, is_busy, wanted) = (state.waits(), state.is_busy(), state.wants());
                if waits >= wanted {
                    break;
                }
                state.wanted = if is_busy { wanted } else { usize::MAX };
                (waits, is_busy, state.took < QUICK)
            };
            let at_most = if is_quick { where_quick } else { at_most };
            if is_busy && since.elapsed() >= at_most || !is_busy && before == Some(waits) {
                break;
            }
            if is_busy && is_quick {
                // Asleep, so that those who are to ask have a processor. The server is busy anyway, and its answer comes soon.
                let _makes_way = MakesWay::begin();
                let rest = at_most.saturating_sub(since.elapsed());
                unless(Sleep::for_(SystemClock::shared(), rest), self.gathered.notified()).await;
                // Who has an answer now has not been looked for yet.
                before = None;
                continue;
            }
            before = Some(waits);
            std::thread::yield_now();
            tokio::task::yield_now().await;
        }
        self.lock().wanted = usize::MAX;
    }

    /// What goes into the next request of a slot, all of one kind. Nothing: the work has ended there. And a slot in which the
    /// caller has to start working as well.
    pub(super) fn take(&self, slot: Slot) -> (Vec<J>, Option<Slot>) {
        let mut state = self.lock();
        let before = state.crowd - state.crowd.div_ceil(FORGETS);
        state.crowd = state.many.max(before);
        let most = state.share();
        let mut jobs = Vec::new();
        let (mut entries, mut bytes) = (0, 0);
        // Each kind is first in its turn.
        let turn = state.turn;
        let kind = (0..KINDS).map(|at| (turn + at) % KINDS).find(|kind| state.can_take(*kind));
        if let Some(kind) = kind {
            while let Some(job) = state.waiting[kind].front() {
                let (more, larger) = job.weight();
                let fits = entries + more <= MOST_ENTRIES && bytes + larger <= MOST_BYTES && jobs.len() < most;
                if !jobs.is_empty() && !fits {
                    break;
                }
                (entries, bytes) = (entries + more, bytes + larger);
                jobs.extend(state.waiting[kind].pop_front());
            }
            if kind == IN_ORDER {
                state.in_order = Some(slot);
            }
            state.turn = (kind + 1) % KINDS;
        }
        state.last = jobs.len();
        if jobs.is_empty() {
            state.free.push(slot);
            return (jobs, None);
        }
        let other = state.start();
        (jobs, other)
    }

    /// The request with what was taken last in a slot has its answer. To be said before those who wait for it are told: they
    /// come back.
    pub(super) fn ended(&self, slot: Slot, many: usize, took: Duration) {
        let mut state = self.lock();
        state.many -= many;
        state.took = took;
        if state.wanted != usize::MAX {
            self.gathered.notify_one();
        }
        if state.in_order == Some(slot) {
            state.in_order = None;
        }
    }
}

#[cfg(test)]
mod tests;
