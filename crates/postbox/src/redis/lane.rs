//! Operations of one kind on one mailbox: one request at a time, with what has gathered while the last one was under
//! way, or a share of it. So a lone task never waits for company, and many share round trips. And a server need only
//! remember the last one.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use super::awake::ALONE;

/// Of the jobs of a mailbox a request takes at most half, if that is not fewer than these: while the server is busy with it,
/// those who ask are busy with what came before, and the next one gathers.
const FEW: usize = 8;
/// Each request forgets this part of the crowd that was there.
const FORGETS: usize = 32;
/// Where a request takes longer, it is not the server that is busy: then a request takes all.
const NEAR: Duration = Duration::from_millis(2);
/// So many entries are in a request at most, and so many bytes.
const MOST_ENTRIES: usize = 1_000;
const MOST_BYTES: usize = 4 << 20;

/// How many jobs of a mailbox wait in its lanes or are under way.
#[derive(Clone, Default)]
pub(super) struct Crowd(Arc<AtomicUsize>);

pub(super) struct Lane<J> {
    state: Mutex<State<J>>,
    /// Under this name the server remembers its last operation.
    pub(super) name: Bytes,
    crowd: Crowd,
    /// Whether it takes turns with the mailbox's other lanes.
    pub(super) takes_turns: bool,
}

struct State<J> {
    waiting: VecDeque<J>,
    is_busy: bool,
    /// How many jobs were in the last request.
    last: usize,
    /// How long it took.
    took: Duration,
    /// How large the crowd was lately: of a closed circle some are always between two jobs.
    crowd: usize,
}

/// How large a job is: its entries, and their bytes.
pub(super) trait Weight {
    fn weight(&self) -> (usize, usize);
}

impl<J: Weight> Lane<J> {
    pub(super) fn new(name: Bytes, crowd: &Crowd) -> Self {
        let state = State { waiting: VecDeque::new(), is_busy: false, last: 0, took: Duration::ZERO, crowd: 0 };
        Lane { state: Mutex::new(state), name, crowd: crowd.clone(), takes_turns: true }
    }

    /// One that waits for no other, and that no other waits for.
    pub(super) fn apart(name: Bytes, crowd: &Crowd) -> Self {
        Lane { takes_turns: false, ..Self::new(name, crowd) }
    }

    /// Takes a job. Whether the caller has to start the work, and whether nobody else asks or has asked lately and the last
    /// answer was quick: then it may stay awake for this one.
    pub(super) fn push(&self, job: J) -> (bool, bool) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.waiting.push_back(job);
        let is_alone = self.crowd.0.fetch_add(1, Ordering::Relaxed) == 0 && state.crowd <= 1;
        let starts = !std::mem::replace(&mut state.is_busy, true);
        (starts, is_alone && state.took < ALONE)
    }

    /// Where several work at once, lets them run before the next request as long as that brings more. Where nobody else wants
    /// the processor it takes no time.
    pub(super) fn gather(&self) {
        let look = || {
            let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            (state.waiting.len(), state.last)
        };
        let (mut many, last) = look();
        while last > 1 && many < last {
            std::thread::yield_now();
            let (more, _) = look();
            if more == many {
                break;
            }
            many = more;
        }
    }

    /// The request with what was taken last has its answer. To be said before those who wait for it are told: they come back.
    pub(super) fn ended(&self, many: usize, took: Duration) {
        self.crowd.0.fetch_sub(many, Ordering::Relaxed);
        self.state.lock().unwrap_or_else(PoisonError::into_inner).took = took;
    }

    /// What goes into the next request. Nothing: the work has ended.
    pub(super) fn take(&self) -> Vec<J> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let before = state.crowd - state.crowd.div_ceil(FORGETS);
        state.crowd = self.crowd.0.load(Ordering::Relaxed).max(before);
        let share = (state.crowd / 2).max(FEW);
        let most = if state.took < NEAR { share } else { usize::MAX };
        let (mut entries, mut bytes, mut many) = (0, 0, 0);
        for job in state.waiting.iter().take(most) {
            let (more, larger) = job.weight();
            if many > 0 && (entries + more > MOST_ENTRIES || bytes + larger > MOST_BYTES) {
                break;
            }
            (entries, bytes, many) = (entries + more, bytes + larger, many + 1);
        }
        state.is_busy = many > 0;
        state.last = many;
        state.waiting.drain(..many).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Weight for () {
        fn weight(&self) -> (usize, usize) {
            (1, 0)
        }
    }

    fn lane(crowd: &Crowd) -> Lane<()> {
        Lane::new(Bytes::new(), crowd)
    }

    fn push(lane: &Lane<()>, many: usize) {
        for _ in 0..many {
            lane.push(());
        }
    }

    #[test]
    fn a_request_takes_the_share_that_suits_the_crowd() {
        for (crowd, shares) in
            [(1, vec![1]), (8, vec![8]), (16, vec![8, 8]), (40, vec![20, 20]), (64, vec![32, 32]), (300, vec![150; 2])]
        {
            let lane = lane(&Crowd::default());
            push(&lane, crowd);
            for share in shares {
                assert_eq!(lane.take().len(), share, "of {crowd}");
            }
            assert!(lane.take().is_empty());
        }
    }

    #[test]
    fn the_crowd_is_that_of_all_lanes_and_is_remembered_for_a_while() {
        let crowd = Crowd::default();
        let (lane, other) = (lane(&crowd), lane(&crowd));
        push(&other, 30);
        push(&lane, 20);
        assert_eq!(lane.take().len(), 20);
        lane.ended(20, Duration::ZERO);
        other.ended(30, Duration::ZERO);
        // All are between two operations; some come back sooner than others.
        push(&lane, 20);
        assert_eq!(lane.take().len(), 20);
        lane.ended(20, Duration::ZERO);
        for _ in 0..100 {
            push(&lane, 1);
            assert_eq!(lane.take().len(), 1);
            lane.ended(1, Duration::ZERO);
        }
        push(&lane, 16);
        assert_eq!(lane.take().len(), 8);
    }

    #[test]
    fn who_is_alone_and_has_quick_answers_may_stay_awake() {
        let lane = lane(&Crowd::default());
        let cycle = |many: usize, took: Duration| {
            let pushed: Vec<_> = (0..many).map(|_| lane.push(())).collect();
            while !lane.take().is_empty() {}
            lane.ended(many, took);
            pushed
        };
        assert_eq!(cycle(1, Duration::ZERO), [(true, true)]);
        assert_eq!(cycle(1, ALONE), [(true, true)]);
        assert_eq!(cycle(1, Duration::ZERO), [(true, false)], "the last answer came too late");
        assert_eq!(cycle(2, Duration::ZERO), [(true, true), (false, false)]);
        assert_eq!(cycle(1, Duration::ZERO), [(true, false)], "there were two");
        assert_eq!(cycle(1, Duration::ZERO), [(true, true)]);
    }

    #[test]
    fn a_request_to_a_far_server_takes_all_that_it_may() {
        let lane = lane(&Crowd::default());
        lane.ended(0, NEAR);
        push(&lane, 300);
        assert_eq!(lane.take().len(), 300);
        push(&lane, MOST_ENTRIES + 1);
        assert_eq!(lane.take().len(), MOST_ENTRIES);
        assert_eq!(lane.take().len(), 1);
        assert!(lane.take().is_empty());
    }
}
