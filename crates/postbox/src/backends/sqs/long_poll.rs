//! The receivers that wait for messages of one queue, and the long polls that they share.
//!
//! A long poll belongs to no receiver. Its messages go to the receivers that wait when the response
//! arrives, and back to the queue if there are none. So 10 000 receivers need one connection, and a
//! dropped receive leaves no message leased.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::lease_tracker::add_duration;
use super::message_format::whole_seconds;
use super::queue::MAX_BATCH;
use crate::backend::{Delivery, Receive};
use crate::error::Error;
use crate::runtime::lock;
use crate::runtime::oneshot;

/// The most concurrent long polls while they return messages. An empty response reduces them to
/// one.
const MAX_POLLS: usize = 16;
/// The longest wait that SQS allows.
const MAX_WAIT_SECONDS: i32 = 20;
/// How much later than the wait a response may arrive.
const GRACE: Duration = Duration::from_millis(500);

pub(super) struct LongPolls {
    state: Mutex<State>,
    /// Whether receivers share long polls.
    gathers: bool,
    /// On a FIFO queue the messages of one long poll go to one receiver, since they may be of one
    /// group.
    is_fifo: bool,
}

#[derive(Default)]
struct State {
    waiters: VecDeque<Waiter>,
    polls: Vec<LongPoll>,
    /// How many long polls may be in progress. Zero counts as one.
    max_polls: usize,
}

/// A receiver that waits.
struct Waiter {
    max: usize,
    visibility: Duration,
    deadline: Instant,
    sender: oneshot::Sender<Vec<Delivery>>,
}

/// A waiter, and its result at the end of a long poll.
type Answer = (oneshot::Sender<Vec<Delivery>>, Result<Vec<Delivery>, Error>);

impl Waiter {
    fn accepts(&self, poll: &LongPoll) -> bool {
        self.visibility == poll.visibility && !self.sender.is_unwanted()
    }
}

/// A receive request that waits for messages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LongPoll {
    pub(super) max: usize,
    pub(super) visibility: Duration,
    pub(super) wait_seconds: i32,
    /// From then on it is replaced: its connection may be dead.
    overdue_at: Instant,
}

impl LongPoll {
    fn new(max: usize, visibility: Duration, wait: Duration, now: Instant) -> Self {
        let wait_seconds = whole_seconds(wait).clamp(1, MAX_WAIT_SECONDS);
        let overdue_at = add_duration(now, Duration::from_secs(wait_seconds.unsigned_abs().into()) + GRACE);
        LongPoll { max: max.min(MAX_BATCH), visibility, wait_seconds, overdue_at }
    }
}

/// The time after which a receiver returns without messages.
pub(super) fn max_response_time(wait: Duration) -> Duration {
    // The shortest long poll takes a second. A receiver with a shorter wait does not wait for its
    // end.
    if wait < Duration::from_secs(1) { wait } else { wait.saturating_add(GRACE) }
}

impl LongPolls {
    pub(super) fn new(gathers: bool, is_fifo: bool) -> Self {
        LongPolls { state: Mutex::default(), gathers, is_fifo }
    }

    pub(super) fn add_waiter(&self, request: Receive, sender: oneshot::Sender<Vec<Delivery>>) {
        let deadline = add_duration(Instant::now(), request.wait);
        let waiter = Waiter { max: request.max, visibility: request.visibility, deadline, sender };
        lock(&self.state).waiters.push_back(waiter);
    }

    /// The next long poll to start, if the waiters need one more.
    pub(super) fn next_poll(&self) -> Option<LongPoll> {
        let mut state = lock(&self.state);
        state.waiters.retain(|waiter| !waiter.sender.is_unwanted());
        let State { waiters, polls, max_polls } = &mut *state;
        let now = Instant::now();
        let mut seen: Vec<Duration> = Vec::new();
        // A long poll serves waiters with the same visibility timeout.
        for visibility in waiters.iter().map(|waiter| waiter.visibility) {
            if seen.contains(&visibility) {
                continue;
            }
            seen.push(visibility);
            let live_polls = || polls.iter().filter(|poll| poll.overdue_at > now);
            let same_polls = || live_polls().filter(|poll| poll.visibility == visibility);
            let same_waiters = || waiters.iter().filter(|waiter| waiter.visibility == visibility);
            if self.gathers && same_polls().count() > 0 && live_polls().count() >= (*max_polls).max(1) {
                continue;
            }
            let missing = match self.gathers && !self.is_fifo {
                true => {
                    let wanted: usize = same_waiters().map(|waiter| waiter.max).sum();
                    wanted.saturating_sub(same_polls().map(|poll| poll.max).sum())
                }
                // One long poll per waiter.
                false => same_waiters().nth(same_polls().count()).map_or(0, |waiter| waiter.max),
            };
            if missing == 0 {
                continue;
            }
            let wait = same_waiters().map(|waiter| waiter.deadline.saturating_duration_since(now)).max();
            let poll = LongPoll::new(missing, visibility, wait.unwrap_or_default(), now);
            polls.push(poll);
            return Some(poll);
        }
        None
    }

    /// Ends a long poll and hands its messages out. Returns the messages that no waiter takes.
    pub(super) fn deliver(&self, poll: LongPoll, found: Result<Vec<Delivery>, Error>) -> Vec<Delivery> {
        let mut state = lock(&self.state);
        if let Some(index) = state.polls.iter().position(|other| *other == poll) {
            state.polls.swap_remove(index);
        }
        let (answers, left) = match found {
            Ok(found) => self.hand_out(&mut state, &poll, found),
            Err(error) => {
                let failed = self.take_failed(&mut state, &poll).into_iter();
                (failed.map(|waiter| (waiter.sender, Err(error.clone()))).collect(), Vec::new())
            }
        };
        drop(state);
        for (sender, answer) in answers {
            sender.send(answer);
        }
        left
    }

    /// Hands messages out. Returns the answers of the waiters, and the messages that no waiter
    /// takes.
    fn hand_out(&self, state: &mut State, poll: &LongPoll, found: Vec<Delivery>) -> (Vec<Answer>, Vec<Delivery>) {
        state.max_polls = match found.len() {
            0 => 1,
            count if count >= poll.max => (state.max_polls.max(1) * 2).min(MAX_POLLS),
            _ => state.max_polls.max(1),
        };
        // On a FIFO queue all go to the first waiter that takes them all, if there is one.
        let takes_all = |waiter: &Waiter| waiter.accepts(poll) && waiter.max >= found.len();
        let first = if self.is_fifo { state.waiters.iter().position(takes_all) } else { None };
        let mut index = first.unwrap_or(0);
        let mut answers: Vec<Answer> = Vec::new();
        let mut found = found.into_iter().peekable();
        while found.peek().is_some() && index < state.waiters.len() {
            if !state.waiters[index].accepts(poll) {
                index += 1;
                continue;
            }
            let waiter = state.waiters.remove(index).expect("the index is in range");
            answers.push((waiter.sender, Ok(found.by_ref().take(waiter.max).collect())));
            if self.is_fifo {
                break;
            }
        }
        let now = Instant::now();
        let expired = take_if(&mut state.waiters, |waiter| waiter.deadline <= now);
        answers.extend(expired.into_iter().map(|waiter| (waiter.sender, Ok(Vec::new()))));
        (answers, found.collect())
    }

    /// Takes the waiters that get the error of a long poll.
    fn take_failed(&self, state: &mut State, poll: &LongPoll) -> Vec<Waiter> {
        state.max_polls = 1;
        let now = Instant::now();
        let is_same = |other: &&LongPoll| other.visibility == poll.visibility && other.overdue_at > now;
        let polls = state.polls.iter().filter(is_same).count();
        if polls == 0 {
            return take_if(&mut state.waiters, |waiter| waiter.visibility == poll.visibility);
        }
        // The waiters still have another long poll.
        if self.gathers || state.waiters.iter().filter(|waiter| waiter.accepts(poll)).count() <= polls {
            return Vec::new();
        }
        let first = state.waiters.iter().position(|waiter| waiter.accepts(poll));
        first.and_then(|index| state.waiters.remove(index)).into_iter().collect()
    }
}

fn take_if(waiters: &mut VecDeque<Waiter>, is_taken: impl Fn(&Waiter) -> bool) -> Vec<Waiter> {
    let (taken, kept) = std::mem::take(waiters).into_iter().partition(|waiter| is_taken(waiter));
    *waiters = kept;
    Vec::from(taken)
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn add_waiter(polls: &LongPolls) -> oneshot::Receiver<Vec<Delivery>> {
        let (sender, found) = oneshot::channel(Some(Box::new(drop)));
        let wait = Duration::from_secs(20);
        polls.add_waiter(Receive { max: 1, visibility: Duration::from_secs(30), wait }, sender);
        found
    }

    fn poll(found: &mut oneshot::Receiver<Vec<Delivery>>) -> Poll<Result<Vec<Delivery>, Error>> {
        Pin::new(found).poll(&mut Context::from_waker(Waker::noop()))
    }

    fn refused() -> Result<Vec<Delivery>, Error> {
        Err(Error::connection("refused"))
    }

    #[test]
    fn without_gathering_no_waiter_gets_the_error_of_a_dropped_waiters_poll() {
        let polls = LongPolls::new(false, false);
        let (first, mut second) = (add_waiter(&polls), add_waiter(&polls));
        let [first_poll, second_poll] = [polls.next_poll().unwrap(), polls.next_poll().unwrap()];
        assert_eq!(polls.next_poll(), None, "one long poll per waiter");
        drop(first);
        polls.deliver(first_poll, refused());
        assert!(poll(&mut second).is_pending(), "the second long poll is in progress");
        polls.deliver(second_poll, refused());
        assert!(matches!(poll(&mut second), Poll::Ready(Err(_))));
    }

    #[test]
    fn without_gathering_one_waiter_gets_the_error_of_a_poll() {
        let polls = LongPolls::new(false, false);
        let (mut first, mut second) = (add_waiter(&polls), add_waiter(&polls));
        let first_poll = polls.next_poll().unwrap();
        polls.next_poll().unwrap();
        polls.deliver(first_poll, refused());
        assert!(matches!(poll(&mut first), Poll::Ready(Err(_))));
        assert!(poll(&mut second).is_pending());
        assert_eq!(polls.next_poll(), None, "the second waiter has its long poll");
    }
}
