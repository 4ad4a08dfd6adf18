//! Gathers concurrent operations of one kind into requests of ten.
//!
//! A full request goes at once; what does not fill one goes when all requests have ended that were under way when it came, so
//! at once if there were none. So a lone task never waits for company, and under load nearly all requests are full.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What fits into one request: the entries of it, by SQS's rule.
pub(super) const FULL: usize = 10;
/// So many requests of one kind are under way at once.
const MOST_UNDER_WAY: usize = 16;

/// One operation that can share a request.
pub(super) trait Entry {
    /// How much of the ten it takes.
    fn weight(&self) -> usize {
        1
    }

    /// How many bytes it takes.
    fn bytes(&self) -> usize {
        0
    }

    /// Whether it can be in one request with this one.
    fn goes_with(&self, _: &Self) -> bool {
        true
    }

    /// Whether it must not be done after this one, which came later.
    fn goes_before(&self, _: &Self) -> bool {
        false
    }
}

pub(super) struct Lane<J> {
    state: Mutex<State<J>>,
    gathers: bool,
    most_under_way: usize,
}

struct State<J> {
    waiting: VecDeque<Waiting<J>>,
    under_way: BTreeSet<u64>,
    newest: u64,
    /// How often entries came.
    pushes: u64,
}

struct Waiting<J> {
    /// The number of the newest request when it came.
    since: u64,
    /// What came with it has the same.
    push: u64,
    entry: J,
}

/// Entries that go together, and the number by which the lane is told that they are done.
pub(super) type Request<J> = (u64, Vec<J>);

impl<J: Entry> Lane<J> {
    pub(super) fn new(gathers: bool) -> Self {
        let state = State { waiting: VecDeque::new(), under_way: BTreeSet::new(), newest: 0, pushes: 0 };
        // Without gathering only the order keeps anything back.
        let most_under_way = if gathers { MOST_UNDER_WAY } else { usize::MAX };
        Lane { state: Mutex::new(state), gathers, most_under_way }
    }

    /// A request each, and no more than usual at once.
    pub(super) fn apart() -> Self {
        Lane { most_under_way: MOST_UNDER_WAY, ..Self::new(false) }
    }

    /// One request at a time, so that they arrive in order.
    pub(super) fn in_order(gathers: bool) -> Self {
        Lane { most_under_way: 1, ..Self::new(gathers) }
    }

    fn lock(&self) -> MutexGuard<'_, State<J>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes entries. What the caller has to send now.
    pub(super) fn push(&self, entries: impl IntoIterator<Item = J>, most_bytes: usize) -> Vec<Request<J>> {
        let mut state = self.lock();
        state.pushes += 1;
        let (since, push) = (state.newest, state.pushes);
        state.waiting.extend(entries.into_iter().map(|entry| Waiting { since, push, entry }));
        self.ready(&mut state, most_bytes)
    }

    /// A request is done. What the caller has to send next.
    pub(super) fn done(&self, number: u64, most_bytes: usize) -> Vec<Request<J>> {
        let mut state = self.lock();
        state.under_way.remove(&number);
        self.ready(&mut state, most_bytes)
    }

    fn ready(&self, state: &mut State<J>, most_bytes: usize) -> Vec<Request<J>> {
        let mut ready = Vec::new();
        while let Some(first) = state.waiting.front() {
            if state.under_way.len() >= self.most_under_way {
                break;
            }
            let (mut many, mut weight, mut bytes) = (0, 0, 0);
            let mut is_full = false;
            for Waiting { entry, push, .. } in &state.waiting {
                let fits = weight + entry.weight() <= FULL && bytes + entry.bytes() <= most_bytes;
                let is_together = (self.gathers || *push == first.push) && entry.goes_with(&first.entry);
                if many > 0 && !(fits && is_together) {
                    is_full = true;
                    break;
                }
                (many, weight, bytes) = (many + 1, weight + entry.weight(), bytes + entry.bytes());
            }
            let is_alone = state.under_way.first().is_none_or(|oldest| *oldest > first.since);
            if !(is_full || weight >= FULL || is_alone || !self.gathers) {
                break;
            }
            state.newest += 1;
            let number = state.newest;
            state.under_way.insert(number);
            ready.push((number, state.waiting.drain(..many).map(|waiting| waiting.entry).collect()));
        }
        ready
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    struct One(u32);

    impl Entry for One {
        fn bytes(&self) -> usize {
            100
        }
    }

    fn sizes(requests: &[Request<One>]) -> Vec<usize> {
        requests.iter().map(|(_, entries)| entries.len()).collect()
    }

    fn some(many: u32) -> impl Iterator<Item = One> {
        (0..many).map(One)
    }

    #[test]
    fn a_lone_entry_goes_at_once() {
        let lane = Lane::new(true);
        for _ in 0..3 {
            let ready = lane.push(some(1), 10_000);
            assert_eq!(sizes(&ready), [1]);
            assert!(lane.done(ready[0].0, 10_000).is_empty());
        }
    }

    #[test]
    fn what_comes_meanwhile_is_gathered() {
        let lane = Lane::new(true);
        let first = lane.push(some(1), 10_000);
        for _ in 0..9 {
            assert!(lane.push(some(1), 10_000).is_empty(), "it waits for the one under way");
        }
        let full = lane.push(some(1), 10_000);
        assert_eq!(sizes(&full), [10], "a full one waits for nothing");
        assert!(lane.push(some(3), 10_000).is_empty());
        assert!(lane.done(full[0].0, 10_000).is_empty(), "the first was under way when they came, and still is");
        assert_eq!(sizes(&lane.done(first[0].0, 10_000)), [3]);
    }

    #[test]
    fn nothing_waits_for_what_came_later() {
        let lane = Lane::new(true);
        let first = lane.push(some(1), 10_000);
        assert!(lane.push(some(1), 10_000).is_empty());
        let later = lane.push(some(11), 10_000);
        assert_eq!(sizes(&later), [10], "the one that waited is in it");
        assert_eq!(sizes(&lane.done(first[0].0, 10_000)), [2], "the full one went after these had come");
        assert!(lane.done(later[0].0, 10_000).is_empty());
    }

    #[test]
    fn bytes_fill_a_request_too() {
        let lane = Lane::new(true);
        assert_eq!(sizes(&lane.push(some(5), 200)), [2, 2, 1]);
    }

    #[test]
    fn one_at_a_time_keeps_the_order() {
        let lane = Lane::in_order(true);
        let first = lane.push(some(25), 10_000);
        assert_eq!(sizes(&first), [10]);
        assert_eq!(first[0].1[9], One(9));
        let second = lane.done(first[0].0, 10_000);
        assert_eq!((sizes(&second), &second[0].1[0]), (vec![10], &One(10)));
    }

    #[test]
    fn without_gathering_everything_goes_as_it_comes() {
        let lane = Lane::new(false);
        for many in [1, 1, 7] {
            assert_eq!(sizes(&lane.push(some(many), 10_000)), [many as usize]);
        }
        let lane = Lane::in_order(false);
        let first = lane.push(some(1), 10_000);
        assert!(lane.push(some(2), 10_000).is_empty() && lane.push(some(1), 10_000).is_empty());
        let second = lane.done(first[0].0, 10_000);
        assert_eq!((sizes(&second), sizes(&lane.done(second[0].0, 10_000))), (vec![2], vec![1]));
    }
}
