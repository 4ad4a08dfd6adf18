//! Keeps the network's thread from falling asleep between operations, and a lone caller until its answer is there.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{LazyLock, Once};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::network;
use crate::promise::processors;

/// How long the thread stays awake for the next answer or operation: to be woken takes as long as a server that is near takes to
/// answer.
const AWAKE: Duration = Duration::from_micros(100);
/// After so many answers in a row that took longer, it sleeps instead, for so many operations.
const TOO_FAR: (u32, u32) = (16, 1_000);

/// For so long a lone caller stays awake for an answer, if the last one did not take longer: while it does, no processor falls
/// asleep that the answer would have to wake first, and nobody has to wake the caller.
pub(super) const ALONE: Duration = Duration::from_micros(500);
/// Only while its operations follow each other so closely.
const FOLLOWS: Duration = Duration::from_millis(1);

/// What happens on the thread, counted: an operation begins, or its answer is there.
static EVENTS: AtomicU64 = AtomicU64::new(0);
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);
/// When the last answer came, in nanoseconds since the first one.
static ANSWERED: AtomicU64 = AtomicU64::new(0);
static FIRST: LazyLock<Instant> = LazyLock::new(Instant::now);
static START: Once = Once::new();
static BEGUN: Notify = Notify::const_new();

/// An operation is under way, until this is dropped.
pub(super) struct UnderWay;

impl UnderWay {
    pub(super) fn begin() -> Self {
        START.call_once(|| network::spawn(stay_awake()));
        UNDER_WAY.fetch_add(1, Ordering::Relaxed);
        EVENTS.fetch_add(1, Ordering::Relaxed);
        BEGUN.notify_one();
        UnderWay
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        ANSWERED.store(FIRST.elapsed().as_nanos() as u64, Ordering::Relaxed);
        UNDER_WAY.fetch_sub(1, Ordering::Relaxed);
        EVENTS.fetch_add(1, Ordering::Relaxed);
    }
}

/// Until when a lone caller stays awake that begins an operation now: not at all if another one is under way in this process,
/// or if the last one was a while ago.
pub(super) fn alone_until() -> Option<Instant> {
    if UNDER_WAY.load(Ordering::Relaxed) > 0 || processors() == 1 {
        return None;
    }
    let answered = Duration::from_nanos(ANSWERED.load(Ordering::Relaxed));
    (FIRST.elapsed().saturating_sub(answered) < FOLLOWS).then(|| Instant::now() + ALONE)
}

/// Runs for ever. While operations follow each other, it keeps the thread from falling asleep between them.
async fn stay_awake() {
    let has_others = processors() > 1;
    let (mut too_late, mut rest) = (0, 0);
    loop {
        BEGUN.notified().await;
        if rest > 0 || !has_others {
            rest -= u32::from(rest > 0);
            continue;
        }
        let mut is_awake = true;
        while is_awake {
            let (seen, since) = (EVENTS.load(Ordering::Relaxed), Instant::now());
            is_awake = loop {
                // Whoever answers or asks next may need this very processor.
                std::thread::yield_now();
                tokio::task::yield_now().await;
                if EVENTS.load(Ordering::Relaxed) != seen {
                    too_late = 0;
                    break true;
                }
                if since.elapsed() > AWAKE {
                    break false;
                }
            };
        }
        if !is_awake && UNDER_WAY.load(Ordering::Relaxed) > 0 {
            too_late += 1;
            if too_late >= TOO_FAR.0 {
                (too_late, rest) = (0, TOO_FAR.1);
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
        assert_eq!(alone_until(), None);
    }

    #[test]
    fn nobody_stays_awake_for_operations_that_are_far_apart() {
        drop(UnderWay::begin());
        let long_ago = FIRST.elapsed() + FOLLOWS;
        while FIRST.elapsed() < long_ago {
            std::thread::yield_now();
        }
        assert_eq!(alone_until(), None);
    }
}
