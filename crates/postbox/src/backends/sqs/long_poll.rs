//! Those who wait for messages of one queue, and the long polls that they share.
//!
//! A poll belongs to nobody: what it brings goes to whoever waits when it comes, and back if nobody does. So ten thousand who wait
//! need one connection, and one who leaves strands nothing.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::lease_tracker::after;
use super::message_format::whole_seconds;
use super::queue::{MAX_BATCH, lock};
use crate::backend::{Delivery, Receive};
use crate::error::Error;
use crate::runtime::oneshot;

/// So many polls are under way at once while they bring messages. Nothing comes: one.
const MAX_POLLS: usize = 16;
/// The longest poll, in seconds.
const MAX_WAIT_SECONDS: i32 = 20;
/// How much later than asked an answer may be: SQS counts whole seconds, and its answer takes its time.
const GRACE: Duration = Duration::from_millis(500);

pub(super) struct LongPolls {
    state: Mutex<State>,
    gathers: bool,
    /// Whether what a poll brings is for one, since it may be of one group.
    is_fifo: bool,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Waiter>,
    polls: Vec<LongPoll>,
    /// How many polls there may be.
    max_polls: usize,
}

struct Waiter {
    max: usize,
    visibility: Duration,
    until: Instant,
    sender: oneshot::Sender<Vec<Delivery>>,
}

/// A request that waits for messages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LongPoll {
    pub(super) max: usize,
    pub(super) visibility: Duration,
    pub(super) wait: i32,
    /// From then on nobody counts on it: its connection may be dead.
    overdue_at: Instant,
}

impl LongPoll {
    fn new(max: usize, visibility: Duration, longest: Duration, now: Instant) -> Self {
        let wait = whole_seconds(longest).clamp(1, MAX_WAIT_SECONDS);
        let overdue_at = after(now, Duration::from_secs(wait.unsigned_abs().into()) + GRACE);
        LongPoll { max: max.min(MAX_BATCH), visibility, wait, overdue_at }
    }
}

/// After how long somebody may leave with nothing.
pub(super) fn max_response_time(wait: Duration) -> Duration {
    // A poll for less than a second lasts a second.
    if wait < Duration::from_secs(1) { wait } else { wait.saturating_add(GRACE) }
}

impl LongPolls {
    pub(super) fn new(gathers: bool, is_fifo: bool) -> Self {
        LongPolls { state: Mutex::default(), gathers, is_fifo }
    }

    /// Takes somebody who waits.
    pub(super) fn add_waiter(&self, request: Receive, sender: oneshot::Sender<Vec<Delivery>>) {
        let until = after(Instant::now(), request.wait);
        let waiter = Waiter { max: request.max, visibility: request.visibility, until, sender };
        lock(&self.state).waiting.push_back(waiter);
    }

    /// The next poll, if those who wait need one more.
    pub(super) fn next_poll(&self) -> Option<LongPoll> {
        let mut state = lock(&self.state);
        state.waiting.retain(|waiter| !waiter.sender.is_unwanted());
        let State { waiting, polls, max_polls, .. } = &mut *state;
        let now = Instant::now();
        let mut seen: Vec<Duration> = Vec::new();
        for visibility in waiting.iter().map(|waiter| waiter.visibility) {
            if seen.contains(&visibility) {
                continue;
            }
            seen.push(visibility);
            let alive = || polls.iter().filter(|poll| poll.overdue_at > now);
            let like = || alive().filter(|poll| poll.visibility == visibility);
            if self.gathers && like().count() > 0 && alive().count() >= (*max_polls).max(1) {
                continue;
            }
            let alike = || waiting.iter().filter(|waiter| waiter.visibility == visibility);
            let wanted: usize = alike().map(|waiter| waiter.max).sum();
            let asked: usize = like().map(|poll| poll.max).sum();
            // Where a poll is for one, each has his own.
            let missing = match self.gathers && !self.is_fifo {
                true => wanted.saturating_sub(asked),
                false => alike().nth(like().count()).map_or(0, |waiter| waiter.max),
            };
            if missing == 0 {
                continue;
            }
            let longest = alike().map(|waiter| waiter.until.saturating_duration_since(now)).max().unwrap_or_default();
            let poll = LongPoll::new(missing, visibility, longest, now);
            polls.push(poll);
            return Some(poll);
        }
        None
    }

    /// Hands out what a poll brought. What nobody takes is left.
    pub(super) fn deliver(&self, poll: LongPoll, found: Result<Vec<Delivery>, Error>) -> Vec<Delivery> {
        let mut state = lock(&self.state);
        if let Some(at) = state.polls.iter().position(|other| *other == poll) {
            state.polls.swap_remove(at);
        }
        let mut answers = Vec::new();
        let left = match found {
            Ok(found) => {
                state.max_polls = match found.len() {
                    0 => 1,
                    many if many >= poll.max => (state.max_polls.max(1) * 2).min(MAX_POLLS),
                    _ => state.max_polls.max(1),
                };
                let is_eligible =
                    |waiter: &Waiter| waiter.visibility == poll.visibility && !waiter.sender.is_unwanted();
                // What is for one goes to the first who takes it all, if there is one.
                let takes_all = |waiter: &Waiter| is_eligible(waiter) && waiter.max >= found.len();
                let taker = if self.is_fifo { state.waiting.iter().position(takes_all) } else { None };
                let mut at = taker.unwrap_or(0);
                let mut found = found.into_iter().peekable();
                while found.peek().is_some() && at < state.waiting.len() {
                    if !is_eligible(&state.waiting[at]) {
                        at += 1;
                        continue;
                    }
                    let waiter = state.waiting.remove(at).expect("it is there");
                    answers.push((waiter.sender, Ok(found.by_ref().take(waiter.max).collect())));
                    if self.is_fifo {
                        break;
                    }
                }
                let now = Instant::now();
                let is_over = |waiter: &Waiter| waiter.until <= now;
                for waiter in take_if(&mut state.waiting, is_over) {
                    answers.push((waiter.sender, Ok(Vec::new())));
                }
                found.collect()
            }
            Err(error) => {
                state.max_polls = 1;
                let now = Instant::now();
                let has_other = |other: &LongPoll| other.visibility == poll.visibility && other.overdue_at > now;
                let is_eligible = |waiter: &Waiter| waiter.visibility == poll.visibility;
                let waiters = match state.polls.iter().any(has_other) {
                    // Each has a poll of his own, and this was one of theirs, unless its owner has left.
                    true if !self.gathers => {
                        let polls = state.polls.iter().filter(|other| has_other(other)).count();
                        let is_there = |waiter: &&Waiter| is_eligible(waiter) && !waiter.sender.is_unwanted();
                        let is_owned = state.waiting.iter().filter(is_there).count() > polls;
                        let first = state.waiting.iter().position(|waiter| is_owned && is_there(&waiter));
                        first.and_then(|at| state.waiting.remove(at)).into_iter().collect()
                    }
                    true => Vec::new(),
                    false => take_if(&mut state.waiting, is_eligible),
                };
                for waiter in waiters {
                    answers.push((waiter.sender, Err(error.clone())));
                }
                Vec::new()
            }
        };
        drop(state);
        for (sender, answer) in answers {
            sender.send(answer);
        }
        left
    }
}

fn take_if(waiting: &mut VecDeque<Waiter>, is_so: impl Fn(&Waiter) -> bool) -> Vec<Waiter> {
    let (taken, kept) = std::mem::take(waiting).into_iter().partition(|waiter| is_so(waiter));
    *waiting = kept;
    Vec::from(taken)
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Waker};

    use super::*;
    use crate::runtime::oneshot;

    fn join(long_polls: &LongPolls) -> oneshot::Receiver<Vec<Delivery>> {
        let (sender, found) = oneshot::channel(Some(Box::new(drop)));
        let wait = Duration::from_secs(20);
        long_polls.add_waiter(Receive { max: 1, visibility: Duration::from_secs(30), wait }, sender);
        found
    }

    fn look(found: &mut oneshot::Receiver<Vec<Delivery>>) -> std::task::Poll<Result<Vec<Delivery>, Error>> {
        Pin::new(found).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn without_gathering_the_poll_of_one_who_left_is_nobodys_error() {
        let long_polls = LongPolls::new(false, false);
        let (first, mut second) = (join(&long_polls), join(&long_polls));
        let polls = [long_polls.next_poll().unwrap(), long_polls.next_poll().unwrap()];
        assert_eq!(long_polls.next_poll(), None, "one each");
        drop(first);
        long_polls.deliver(polls[0], Err(Error::connection("refused")));
        assert!(look(&mut second).is_pending(), "his own is under way");
        long_polls.deliver(polls[1], Err(Error::connection("refused")));
        assert!(matches!(look(&mut second), std::task::Poll::Ready(Err(_))));
    }

    #[test]
    fn without_gathering_each_is_told_of_a_poll_that_failed() {
        let long_polls = LongPolls::new(false, false);
        let (mut first, mut second) = (join(&long_polls), join(&long_polls));
        let polls = [long_polls.next_poll().unwrap(), long_polls.next_poll().unwrap()];
        long_polls.deliver(polls[0], Err(Error::connection("refused")));
        assert!(matches!(look(&mut first), std::task::Poll::Ready(Err(_))));
        assert!(look(&mut second).is_pending());
        assert_eq!(long_polls.next_poll(), None, "nobody needs another one");
    }
}
