//! Operations on one mailbox that wait for the next request. A few requests are under way at a time; each takes what has
//! gathered while the others were, of every kind, or a share of it. So a lone task never waits for company, and many share
//! round trips. And a server need only remember the last request of each slot.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::Notify;

use crate::awake::MakesWay;
use crate::cancellation::unless;
use crate::clock::{Sleep, SystemClock};

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
    /// Whether it can be in one request with other kinds.
    fn is_plain(&self) -> bool;
    /// How many messages it brings for those who wait.
    fn brings(&self) -> usize;
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
    /// Which kind is next to be first.
    turn: usize,
    /// Those that are not in use.
    free: Vec<Slot>,
    /// Which of them has jobs whose order matters.
    in_order: Option<Slot>,
    /// The one that takes what comes: nobody else takes or starts meanwhile.
    holder: Option<Slot>,
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
        if self.holder.is_some() || !(0..KINDS).any(|kind| self.can_take(kind)) {
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
            holder: None,
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

    /// Holds back the others, if there are messages for those who wait: they can ask for them in the request that comes next in
    /// this slot. How many there are.
    pub(super) fn hold(&self, slot: Slot) -> usize {
        let mut state = self.lock();
        if state.holder.is_some() || !state.can_take(IN_ORDER) {
            return 0;
        }
        let many = state.waiting[IN_ORDER].iter().take_while(|job| job.is_plain()).map(Job::brings).sum();
        state.holder = (many > 0).then_some(slot);
        many
    }

    /// What goes into the next request of a slot: if kinds can be mixed, all kinds, otherwise one. Nothing: the work has ended
    /// there. And a slot in which the caller has to start working as well.
    pub(super) fn take(&self, slot: Slot, mixes: bool) -> (Vec<J>, Option<Slot>) {
        let mut state = self.lock();
        if state.holder.is_some_and(|holder| holder != slot) {
            // That one starts another if there is more than it takes.
            state.free.push(slot);
            return (Vec::new(), None);
        }
        // Those who were told of messages ask for them in this request.
        let first = if state.holder.take().is_some() { IN_ORDER } else { state.turn };
        let before = state.crowd - state.crowd.div_ceil(FORGETS);
        state.crowd = state.many.max(before);
        let most = state.share();
        let mut jobs = Vec::new();
        let (mut entries, mut bytes) = (0, 0);
        for at in 0..KINDS {
            let kind = (first + at) % KINDS;
            if !state.can_take(kind) {
                continue;
            }
            // One that is not plain goes with its own kind alone.
            let is_mixed = mixes && state.waiting[kind][0].is_plain();
            if !is_mixed && !jobs.is_empty() {
                continue;
            }
            let before = jobs.len();
            while let Some(job) = state.waiting[kind].front() {
                let (more, larger) = job.weight();
                let fits = entries + more <= MOST_ENTRIES && bytes + larger <= MOST_BYTES && jobs.len() < most;
                if !(jobs.is_empty() || fits) || is_mixed && !job.is_plain() {
                    break;
                }
                (entries, bytes) = (entries + more, bytes + larger);
                jobs.extend(state.waiting[kind].pop_front());
            }
            if kind == IN_ORDER && jobs.len() > before {
                state.in_order = Some(slot);
            }
            if !is_mixed {
                break;
            }
        }
        state.turn = (state.turn + 1) % KINDS;
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
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Wake, Waker};

    use super::*;

    /// Its kind, its number, whether it is plain.
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Piece(usize, usize, bool);

    impl Job for Piece {
        fn kind(&self) -> usize {
            self.0
        }

        fn weight(&self) -> (usize, usize) {
            (1, 0)
        }

        fn is_plain(&self) -> bool {
            self.2
        }

        fn brings(&self) -> usize {
            usize::from(self.0 == IN_ORDER)
        }
    }

    fn tray(slots: usize) -> Tray<Piece> {
        Tray::new(vec![Bytes::new(); slots])
    }

    fn push(tray: &Tray<Piece>, kind: usize, many: usize) -> Vec<(Option<Slot>, bool)> {
        (0..many).map(|number| tray.push(Piece(kind, number, true))).collect()
    }

    fn kinds(jobs: &[Piece]) -> Vec<usize> {
        jobs.iter().map(|job| job.0).collect()
    }

    #[test]
    fn a_request_takes_the_share_that_suits_the_crowd() {
        for (crowd, shares) in
            [(1, vec![1]), (8, vec![8]), (16, vec![8, 8]), (40, vec![20, 20]), (64, vec![32, 32]), (300, vec![150; 2])]
        {
            let tray = tray(1);
            push(&tray, 1, crowd);
            for share in shares {
                assert_eq!(tray.take(0, true).0.len(), share, "of {crowd}");
            }
            assert!(tray.take(0, true).0.is_empty());
        }
    }

    #[test]
    fn the_crowd_is_that_of_all_kinds_and_is_remembered_for_a_while() {
        let tray = tray(1);
        push(&tray, 1, 30);
        push(&tray, 2, 20);
        assert_eq!(tray.take(0, true).0.len(), 25);
        assert_eq!(tray.take(0, true).0.len(), 25);
        tray.ended(0, 50, Duration::ZERO);
        // All are between two operations; some come back sooner than others.
        push(&tray, 1, 30);
        assert_eq!(tray.take(0, true).0.len(), 24);
        assert_eq!(tray.take(0, true).0.len(), 6);
        tray.ended(0, 30, Duration::ZERO);
        for _ in 0..100 {
            push(&tray, 1, 1);
            assert_eq!(tray.take(0, true).0.len(), 1);
            tray.ended(0, 1, Duration::ZERO);
        }
        push(&tray, 1, 16);
        assert_eq!(tray.take(0, true).0.len(), 8);
    }

    #[test]
    fn who_is_alone_and_has_quick_answers_may_stay_awake() {
        let tray = tray(1);
        let cycle = |many: usize, took: Duration| {
            let pushed = push(&tray, 0, many);
            while !tray.take(0, true).0.is_empty() {
                tray.ended(0, 0, took);
            }
            tray.ended(0, many, took);
            pushed
        };
        assert_eq!(cycle(1, Duration::ZERO), [(Some(0), true)]);
        assert_eq!(cycle(1, ALONE), [(Some(0), true)]);
        assert_eq!(cycle(1, Duration::ZERO), [(Some(0), false)], "the last answer came too late");
        assert_eq!(cycle(2, Duration::ZERO), [(Some(0), true), (None, false)]);
        assert_eq!(cycle(1, Duration::ZERO), [(Some(0), false)], "there were two");
        assert_eq!(cycle(1, Duration::ZERO), [(Some(0), true)]);
    }

    const HOUR: Duration = Duration::from_secs(3_600);

    #[derive(Default)]
    struct Counting(AtomicUsize);

    impl Wake for Counting {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// A tray of 16, of which half are under way and half have just had their answers, which took so long.
    fn half_under_way(took: Duration) -> Tray<Piece> {
        let tray = tray(2);
        push(&tray, 1, 16);
        assert_eq!((tray.take(0, true).0.len(), tray.take(1, true).0.len()), (8, 8));
        tray.ended(1, 8, took);
        tray
    }

    #[test]
    fn a_request_gathers_asleep_until_enough_have_asked_where_answers_are_quick() {
        let tray = half_under_way(Duration::ZERO);
        let counting = Arc::new(Counting::default());
        let waker = Waker::from(Arc::clone(&counting));
        let mut context = Context::from_waker(&waker);
        let mut gathering = pin!(tray.gather_for(Duration::ZERO, HOUR));
        push(&tray, 1, 7);
        assert!(
            gathering.as_mut().poll(&mut context).is_pending(),
            "one of those who had their answers has not asked again"
        );
        assert_eq!(counting.0.load(Ordering::SeqCst), 0, "it does not ask to be polled again");
        push(&tray, 1, 1);
        assert_eq!(counting.0.load(Ordering::SeqCst), 1);
        assert!(gathering.as_mut().poll(&mut context).is_ready());
        assert_eq!(tray.lock().wanted, usize::MAX, "nobody gathers any more");
    }

    #[test]
    fn a_request_gathers_no_longer_than_another_is_under_way() {
        let tray = half_under_way(Duration::ZERO);
        let counting = Arc::new(Counting::default());
        let waker = Waker::from(Arc::clone(&counting));
        let mut context = Context::from_waker(&waker);
        push(&tray, 1, 3);
        let mut gathering = pin!(tray.gather_for(Duration::ZERO, HOUR));
        assert!(gathering.as_mut().poll(&mut context).is_pending());
        tray.ended(0, 8, Duration::ZERO);
        assert_eq!(counting.0.load(Ordering::SeqCst), 1);
        assert!(gathering.as_mut().poll(&mut context).is_pending(), "those who have their answers now may ask at once");
        assert!(gathering.as_mut().poll(&mut context).is_ready(), "nobody did");
    }

    #[test]
    fn a_request_that_found_nobody_lets_those_ask_who_are_answered_while_it_sleeps() {
        let tray = tray(2);
        let mut context = Context::from_waker(Waker::noop());
        push(&tray, 1, 16);
        assert_eq!((tray.take(0, true).0.len(), tray.take(1, true).0.len()), (8, 8));
        tray.ended(0, 8, Duration::ZERO);
        tray.ended(1, 8, Duration::ZERO);
        let mut gathering = pin!(tray.gather_for(Duration::ZERO, HOUR));
        assert!(gathering.as_mut().poll(&mut context).is_pending(), "nothing is under way, and nobody waits");
        push(&tray, 1, 8);
        tray.take(0, true);
        assert!(gathering.as_mut().poll(&mut context).is_pending(), "it sleeps");
        tray.ended(0, 8, Duration::ZERO);
        assert!(gathering.as_mut().poll(&mut context).is_pending(), "they may ask at once");
        push(&tray, 1, 8);
        assert!(gathering.as_mut().poll(&mut context).is_ready());
        assert_eq!(tray.take(1, true).0.len(), 8);
    }

    #[test]
    fn a_request_that_nobody_is_there_for_ends_its_gathering() {
        let tray = half_under_way(Duration::ZERO);
        tray.ended(0, 8, Duration::ZERO);
        let mut context = Context::from_waker(Waker::noop());
        let mut gathering = pin!(tray.gather_for(Duration::ZERO, HOUR));
        assert!(gathering.as_mut().poll(&mut context).is_pending(), "it lets others run");
        assert!(gathering.as_mut().poll(&mut context).is_ready());
    }

    #[test]
    fn a_request_gathers_for_a_while_at_most_where_answers_are_quick() {
        let tray = half_under_way(Duration::ZERO);
        push(&tray, 1, 7);
        let mut context = Context::from_waker(Waker::noop());
        assert!(pin!(tray.gather_for(HOUR, Duration::ZERO)).poll(&mut context).is_ready());
    }

    #[test]
    fn a_request_gathers_for_a_moment_where_answers_are_slow() {
        let tray = half_under_way(QUICK);
        let mut context = Context::from_waker(Waker::noop());
        push(&tray, 1, 7);
        assert!(pin!(tray.gather_for(HOUR, Duration::ZERO)).poll(&mut context).is_pending(), "it lets others run");
        assert!(pin!(tray.gather_for(Duration::ZERO, HOUR)).poll(&mut context).is_ready(), "the moment is over");
        assert_eq!(tray.take(1, true).0.len(), 7);
    }

    #[test]
    fn a_lone_request_does_not_gather() {
        let tray = tray(2);
        let mut context = Context::from_waker(Waker::noop());
        assert!(pin!(tray.gather()).poll(&mut context).is_ready(), "nobody has ever asked");
        push(&tray, 1, 1);
        assert!(pin!(tray.gather()).poll(&mut context).is_ready());
        push(&tray, 1, 15);
        assert!(pin!(tray.gather()).poll(&mut context).is_ready(), "no request is under way yet");
    }

    #[test]
    fn a_request_to_a_far_server_takes_all_that_it_may() {
        let tray = tray(1);
        tray.ended(0, 0, NEAR);
        push(&tray, 1, 300);
        assert_eq!(tray.take(0, true).0.len(), 300);
        push(&tray, 1, MOST_ENTRIES + 1);
        assert_eq!(tray.take(0, true).0.len(), MOST_ENTRIES);
        assert_eq!(tray.take(0, true).0.len(), 1);
        assert!(tray.take(0, true).0.is_empty());
    }

    #[test]
    fn kinds_are_mixed_where_they_can_be() {
        let tray = tray(1);
        let fill = || (0..KINDS).for_each(|kind| drop(push(&tray, kind, 2)));
        fill();
        assert_eq!(kinds(&tray.take(0, true).0), [0, 0, 1, 1, 2, 2]);
        tray.ended(0, 6, Duration::ZERO);
        // Each kind is first in its turn, so none waits for ever.
        fill();
        let alone: Vec<_> = (0..KINDS).map(|_| kinds(&tray.take(0, false).0)).collect();
        assert_eq!(alone, [[1, 1], [2, 2], [0, 0]]);
    }

    #[test]
    fn what_is_not_plain_goes_with_its_own_kind() {
        let tray = tray(1);
        push(&tray, 0, 1);
        tray.push(Piece(0, 9, false));
        push(&tray, 0, 1);
        push(&tray, 1, 1);
        assert_eq!(kinds(&tray.take(0, true).0), [0, 1], "up to the one that is not plain");
        tray.ended(0, 2, Duration::ZERO);
        push(&tray, 2, 1);
        assert_eq!(kinds(&tray.take(0, true).0), [2]);
        tray.ended(0, 1, Duration::ZERO);
        push(&tray, 1, 1);
        assert_eq!(tray.take(0, true).0, [Piece(0, 9, false), Piece(0, 0, true)], "in order, and nothing else");
    }

    #[test]
    fn one_request_at_a_time_has_what_must_arrive_in_order() {
        let tray = tray(2);
        assert_eq!(push(&tray, 0, 1), [(Some(0), true)]);
        assert_eq!(tray.take(0, true).0.len(), 1);
        assert_eq!(push(&tray, 0, 2), [(None, false); 2], "it would have nothing to do");
        assert_eq!(push(&tray, 1, 1), [(Some(1), false)]);
        assert_eq!(kinds(&tray.take(1, true).0), [1]);
        tray.ended(1, 1, Duration::ZERO);
        assert!(tray.take(1, true).0.is_empty());
        tray.ended(0, 1, Duration::ZERO);
        assert_eq!(kinds(&tray.take(0, true).0), [0, 0]);
    }

    #[test]
    fn as_many_work_as_there_are_slots_and_nothing_is_left_to_nobody() {
        let tray = tray(2);
        let starts: Vec<_> = push(&tray, 1, 40).into_iter().filter_map(|(slot, _)| slot).collect();
        assert_eq!(starts, [0, 1]);
        assert_eq!(tray.take(0, true).0.len(), 20);
        assert_eq!(tray.take(1, true).0.len(), 20);
        tray.ended(1, 20, Duration::ZERO);
        assert_eq!(tray.take(1, true), (vec![], None));
        tray.ended(0, 20, Duration::ZERO);
        assert_eq!(tray.take(0, true), (vec![], None));
        // While it is held nobody starts; whoever takes then starts another one, if there is more than its share.
        assert_eq!(push(&tray, 0, 1)[0].0, Some(0));
        assert_eq!(tray.hold(0), 1);
        assert!(push(&tray, 1, 40).iter().all(|(slot, _)| slot.is_none()));
        let (jobs, other) = tray.take(0, true);
        assert_eq!((jobs.len(), other), (20, Some(1)));
    }

    #[test]
    fn who_is_done_meanwhile_takes_nothing_from_the_one_that_holds() {
        let tray = tray(2);
        assert_eq!(push(&tray, 2, 1)[0].0, Some(0));
        assert_eq!(tray.take(0, true).0.len(), 1);
        assert_eq!(push(&tray, 0, 1)[0].0, Some(1));
        assert_eq!(tray.hold(1), 1);
        push(&tray, 1, 1);
        tray.ended(0, 1, Duration::ZERO);
        assert_eq!(tray.hold(0), 0);
        assert_eq!(tray.take(0, true), (vec![], None));
        let (jobs, other) = tray.take(1, true);
        assert_eq!((kinds(&jobs), other), (vec![0, 1], None));
        assert_eq!(push(&tray, 2, 1)[0].0, Some(0));
    }

    #[test]
    fn nothing_is_held_back_for_those_who_wait_if_nothing_comes_for_them() {
        let tray = tray(2);
        assert_eq!(tray.hold(0), 0);
        push(&tray, 1, 1);
        assert_eq!(tray.hold(0), 0);
        assert!(!tray.take(0, true).0.is_empty());
        tray.push(Piece(0, 0, false));
        assert_eq!(tray.hold(0), 0);
        assert!(!tray.take(1, true).0.is_empty());
        tray.ended(1, 1, Duration::ZERO);
        assert!(tray.take(1, true).0.is_empty());
        assert_eq!(push(&tray, 2, 1), [(Some(1), false)], "nobody is held back");
    }
}
