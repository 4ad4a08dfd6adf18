//! Operations of one kind on one mailbox: one request at a time, with what has gathered while the last one was under
//! way, or a share of it. So a lone task never waits for company, and many share round trips. And a server need only
//! remember the last one.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Of many jobs a request takes so many, or a third of them: while the server is busy with it, the next one gathers.
const SHARE: usize = 24;
/// Where a request takes longer, it is not the server that is busy: then a request takes all.
const NEAR: Duration = Duration::from_millis(2);
/// So many entries are in a request at most, and so many bytes.
const MOST_ENTRIES: usize = 1_000;
const MOST_BYTES: usize = 4 << 20;

pub(super) struct Lane<J> {
    state: Mutex<State<J>>,
    /// All keys of the mailbox, with this lane's own among them.
    pub(super) keys: Vec<String>,
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
}

/// How large a job is: its entries, and their bytes.
pub(super) trait Weight {
    fn weight(&self) -> (usize, usize);
}

impl<J: Weight> Lane<J> {
    pub(super) fn new(keys: Vec<String>) -> Self {
        let state = State { waiting: VecDeque::new(), is_busy: false, last: 0, took: Duration::ZERO };
        Lane { state: Mutex::new(state), keys, takes_turns: true }
    }

    /// One that waits for no other, and that no other waits for.
    pub(super) fn apart(keys: Vec<String>) -> Self {
        Lane { takes_turns: false, ..Self::new(keys) }
    }

    /// Takes a job. Whether the caller has to start the work.
    pub(super) fn push(&self, job: J) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.waiting.push_back(job);
        !std::mem::replace(&mut state.is_busy, true)
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

    /// The request with what was taken last has ended.
    pub(super) fn ended(&self, took: Duration) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).took = took;
    }

    /// What goes into the next request. Nothing: the work has ended.
    pub(super) fn take(&self) -> Vec<J> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let most = if state.took < NEAR { SHARE.max(state.waiting.len() / 3) } else { usize::MAX };
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

    #[test]
    fn a_request_to_a_near_server_takes_a_share_and_one_to_a_far_server_all() {
        let lane = Lane::new(Vec::new());
        let push = |many: usize| {
            for _ in 0..many {
                lane.push(());
            }
        };
        push(20);
        assert_eq!(lane.take().len(), 20);
        push(60);
        assert_eq!(lane.take().len(), SHARE);
        push(300 - 36);
        assert_eq!(lane.take().len(), 100);
        lane.ended(NEAR);
        assert_eq!(lane.take().len(), 200);
        push(MOST_ENTRIES + 1);
        assert_eq!(lane.take().len(), MOST_ENTRIES);
        lane.ended(Duration::ZERO);
        assert_eq!(lane.take().len(), 1);
        assert!(lane.take().is_empty());
    }
}
