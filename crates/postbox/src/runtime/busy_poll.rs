//! Keeps the network's thread from falling asleep between operations, and a lone caller until its answer is there.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{LazyLock, Once};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::runtime::io_thread;
use crate::runtime::oneshot::processors;

/// How long the thread stays awake for the next answer or operation: to be woken takes as long as a server that is near takes to
/// answer.
const AWAKE: Duration = Duration::from_micros(100);
/// After so many in a row that came later, it sleeps instead, so many times.
const TOO_LATE: u32 = 16;
const RESTS: u32 = 1_000;

/// A lone caller stays awake for its answer only while its operations follow each other so closely.
const FOLLOWS: Duration = Duration::from_millis(1);

/// What happens on the thread, counted: an operation begins, or its answer is there.
static EVENTS: AtomicU64 = AtomicU64::new(0);
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);
/// How many wait on the thread for those who are about to ask.
static MAKING_WAY: AtomicUsize = AtomicUsize::new(0);
/// When the last answer came, in nanoseconds since the first one.
static ANSWERED: AtomicU64 = AtomicU64::new(0);
static FIRST: LazyLock<Instant> = LazyLock::new(Instant::now);
static START: Once = Once::new();
static HAPPENED: Notify = Notify::const_new();

/// An operation is under way, until this is dropped.
pub(crate) struct UnderWay;

impl UnderWay {
    pub(crate) fn begin() -> Self {
        START.call_once(|| drop(io_thread::spawn(stay_awake())));
        UNDER_WAY.fetch_add(1, Ordering::Relaxed);
        EVENTS.fetch_add(1, Ordering::Relaxed);
        HAPPENED.notify_one();
        UnderWay
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        ANSWERED.store(FIRST.elapsed().as_nanos() as u64, Ordering::Relaxed);
        UNDER_WAY.fetch_sub(1, Ordering::Relaxed);
        EVENTS.fetch_add(1, Ordering::Relaxed);
        HAPPENED.notify_one();
    }
}

/// While this lives, the thread falls asleep when it has nothing to do. It waits for others to ask, and these need a processor:
/// a thread that stays awake without need keeps one to itself, however often it yields, and where there are few the others
/// share one with the server.
pub(crate) struct MakesWay;

impl MakesWay {
    pub(crate) fn begin() -> Self {
        MAKING_WAY.fetch_add(1, Ordering::Relaxed);
        MakesWay
    }
}

impl Drop for MakesWay {
    fn drop(&mut self) {
        MAKING_WAY.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Until when a lone caller stays awake that begins an operation now, and whose answer may be there within a time: not at all if
/// another one is under way in this process, or if the last one was a while ago. While it does, no processor falls asleep that
/// the answer would have to wake first, and nobody has to wake the caller.
pub(crate) fn alone_until(within: Duration) -> Option<Instant> {
    if UNDER_WAY.load(Ordering::Relaxed) > 0 || processors() == 1 {
        return None;
    }
    let answered = Duration::from_nanos(ANSWERED.load(Ordering::Relaxed));
    (FIRST.elapsed().saturating_sub(answered) < FOLLOWS).then(|| Instant::now() + within)
}

/// Whether something comes soon enough to stay awake for it, as far as that is known.
#[derive(Default)]
struct Luck {
    too_late: u32,
    rests: u32,
}

impl Luck {
    fn is_worth_it(&mut self) -> bool {
        self.rests = self.rests.saturating_sub(1);
        self.rests == 0
    }

    fn came(&mut self, in_time: bool) {
        self.too_late = if in_time { 0 } else { self.too_late + 1 };
        if self.too_late >= TOO_LATE {
            (self.too_late, self.rests) = (0, RESTS);
        }
    }
}

/// Runs for ever. While operations and their answers follow each other, it keeps the thread from falling asleep between them.
async fn stay_awake() {
    if processors() == 1 {
        return;
    }
    let (mut answers, mut operations) = (Luck::default(), Luck::default());
    loop {
        HAPPENED.notified().await;
        loop {
            let (seen, since) = (EVENTS.load(Ordering::Relaxed), Instant::now());
            let luck = if UNDER_WAY.load(Ordering::Relaxed) > 0 { &mut answers } else { &mut operations };
            if !luck.is_worth_it() {
                break;
            }
            let came = loop {
                // Whoever answers or asks next may need this very processor.
                std::thread::yield_now();
                tokio::task::yield_now().await;
                if MAKING_WAY.load(Ordering::Relaxed) > 0 {
                    break None;
                }
                if EVENTS.load(Ordering::Relaxed) != seen {
                    break Some(true);
                }
                if since.elapsed() > AWAKE {
                    break Some(false);
                }
            };
            came.into_iter().for_each(|in_time| luck.came(in_time));
            if came != Some(true) {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_stays_awake_while_another_operation_is_under_way() {
        let _under_way = UnderWay::begin();
        assert_eq!(alone_until(AWAKE), None);
    }

    #[test]
    fn nobody_stays_awake_for_operations_that_are_far_apart() {
        drop(UnderWay::begin());
        let long_ago = FIRST.elapsed() + FOLLOWS;
        while FIRST.elapsed() < long_ago {
            std::thread::yield_now();
        }
        assert_eq!(alone_until(AWAKE), None);
    }

    #[test]
    fn what_comes_too_late_again_and_again_is_not_waited_for_for_a_while() {
        let mut luck = Luck::default();
        for _ in 0..2 * TOO_LATE {
            assert!(luck.is_worth_it());
            luck.came(false);
            assert!(luck.is_worth_it());
            luck.came(true);
        }
        for _ in 0..TOO_LATE {
            assert!(luck.is_worth_it());
            luck.came(false);
        }
        assert!((1..RESTS).all(|_| !luck.is_worth_it()));
        assert!(luck.is_worth_it());
    }
}
