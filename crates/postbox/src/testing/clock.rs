//! A clock that tests move.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use crate::runtime::background;
use crate::runtime::clock::{Alarm, Alarms, Clock, Moment};

/// A clock that stands still until a test moves it. Alarms ring when it is moved past them.
///
/// ```
/// use postbox::testing::ManualClock;
/// use postbox::clock::Clock;
/// use std::time::Duration;
///
/// let clock = ManualClock::new();
/// let start = clock.now();
/// clock.advance(Duration::from_secs(30));
/// assert_eq!(start.until(clock.now()), Duration::from_secs(30));
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock {
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    now: Moment,
    alarms: Alarms,
}

impl ManualClock {
    /// A clock that shows the second of January, 2030.
    pub fn new() -> Self {
        let now = Moment::from_nanos(1_893_542_400_000_000_000);
        ManualClock { state: Arc::new(Mutex::new(State { now, alarms: Alarms::new() })) }
    }

    /// Moves the clock from alarm to alarm. A task that an alarm wakes reads the time of that alarm, if it reads it at once.
    pub fn advance(&self, by: Duration) {
        let end = self.now().after(by);
        loop {
            let due = {
                let mut state = self.lock();
                let next = state.alarms.first().filter(|first| *first <= end);
                state.now = state.now.max(next.unwrap_or(end));
                let now = state.now;
                if next.is_none() {
                    return;
                }
                state.alarms.take_due(now)
            };
            due.into_iter().for_each(Waker::wake);
        }
    }

    /// The number of alarms that are set: one for each task that waits for a time.
    pub fn alarms(&self) -> usize {
        self.lock().alarms.len()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Moment {
        self.lock().now
    }

    fn set_alarm(&self, at: Moment, waker: Waker) -> Alarm {
        let mut state = self.lock();
        let is_past = at <= state.now;
        let alarm = state.alarms.set(at, waker);
        if is_past {
            // Woken by the background thread, because the caller may hold a lock that the waker takes.
            let waker = state.alarms.cancel(alarm);
            drop(state);
            background::spawn(async move { waker.into_iter().for_each(Waker::wake) });
        }
        alarm
    }

    fn cancel_alarm(&self, alarm: Alarm) {
        let waker = self.lock().alarms.cancel(alarm);
        drop(waker);
    }
}
