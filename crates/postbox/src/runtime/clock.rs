//! Time: what it is now, and being woken later.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, LazyLock, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::error::Error;
use crate::runtime::background;

/// A point in time: nanoseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// From nanoseconds since the Unix epoch.
    pub const fn from_nanos(nanos: u64) -> Self {
        Moment(nanos)
    }

    /// Nanoseconds since the Unix epoch.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Later by a duration; the end of time if that is too late.
    #[must_use]
    #[inline]
    pub fn after(self, duration: Duration) -> Self {
        Moment(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// How long until `later`; zero if it has passed.
    pub const fn until(self, later: Moment) -> Duration {
        Duration::from_nanos(later.0.saturating_sub(self.0))
    }
}

impl From<Moment> for SystemTime {
    fn from(moment: Moment) -> Self {
        UNIX_EPOCH + Duration::from_nanos(moment.0)
    }
}

impl From<SystemTime> for Moment {
    fn from(time: SystemTime) -> Self {
        Moment(0).after(time.duration_since(UNIX_EPOCH).unwrap_or_default())
    }
}

/// An alarm that was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Alarm {
    at: Moment,
    number: u64,
}

/// Tells the time and wakes tasks. The [`SystemClock`] does for everybody except tests, which move time by hand.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// What time it is. Never earlier than it was.
    fn now(&self) -> Moment;

    /// What the clock on the wall shows, for comparison with times that come from elsewhere.
    fn wall(&self) -> SystemTime {
        self.now().into()
    }

    /// Wakes `waker` when it is `at`, or soon if that has passed; never before this returns, because the caller may hold
    /// a lock.
    fn set_alarm(&self, at: Moment, waker: Waker) -> Alarm;

    /// Takes an alarm back. One that has rung is not missed.
    fn cancel_alarm(&self, alarm: Alarm);

    /// Makes sure that alarms ring. Called before something waits for one.
    ///
    /// # Errors
    /// [`Error::Connection`] if they cannot.
    fn start(&self) -> Result<(), Error> {
        Ok(())
    }
}

/// The process's own clock: monotonic, and anchored to the wall clock when it was first read.
///
/// One thread, started with the first alarm, serves all of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

/// The processor's own counter where that is reliable: three reads of it are in every message's way.
static ANCHOR: LazyLock<(quanta::Clock, u64, Moment)> = LazyLock::new(|| {
    let clock = quanta::Clock::new();
    let raw = clock.raw();
    (clock, raw, SystemTime::now().into())
});

impl SystemClock {
    /// The clock, to be shared.
    pub fn shared() -> Arc<dyn Clock> {
        static SHARED: OnceLock<Arc<dyn Clock>> = OnceLock::new();
        Arc::clone(SHARED.get_or_init(|| Arc::new(SystemClock)))
    }
}

impl Clock for SystemClock {
    fn wall(&self) -> SystemTime {
        SystemTime::now()
    }

    fn now(&self) -> Moment {
        let (clock, start, moment) = &*ANCHOR;
        Moment(moment.0.saturating_add(clock.delta_as_nanos(*start, clock.raw())))
    }

    fn set_alarm(&self, at: Moment, waker: Waker) -> Alarm {
        background::set_alarm(at, waker)
    }

    fn cancel_alarm(&self, alarm: Alarm) {
        background::cancel_alarm(alarm);
    }

    fn start(&self) -> Result<(), Error> {
        background::start()
    }
}

/// Alarms that were set, in order.
#[derive(Debug, Default)]
pub(crate) struct Alarms {
    wakers: BTreeMap<Alarm, Waker>,
    number: u64,
}

impl Alarms {
    pub(crate) const fn new() -> Self {
        Alarms { wakers: BTreeMap::new(), number: 0 }
    }

    pub(crate) fn set(&mut self, at: Moment, waker: Waker) -> Alarm {
        self.number += 1;
        let alarm = Alarm { at, number: self.number };
        self.wakers.insert(alarm, waker);
        alarm
    }

    /// What comes back is dropped when no lock is held.
    pub(crate) fn cancel(&mut self, alarm: Alarm) -> Option<Waker> {
        self.wakers.remove(&alarm)
    }

    #[cfg(feature = "testing")]
    pub(crate) fn len(&self) -> usize {
        self.wakers.len()
    }

    pub(crate) fn first(&self) -> Option<Moment> {
        self.wakers.first_key_value().map(|(alarm, _)| alarm.at)
    }

    /// Takes out what is due. The caller wakes them when it holds no lock.
    pub(crate) fn take_due(&mut self, now: Moment) -> Vec<Waker> {
        let mut due = Vec::new();
        while let Some(first) = self.wakers.first_entry()
            && first.key().at <= now
        {
            due.push(first.remove());
        }
        due
    }
}

/// Ready when it is `at`.
#[derive(Debug)]
pub(crate) struct Sleep {
    clock: Arc<dyn Clock>,
    at: Moment,
    /// The waker that it wakes.
    alarm: Option<(Alarm, Waker)>,
}

impl Sleep {
    pub(crate) const fn until(clock: Arc<dyn Clock>, at: Moment) -> Self {
        Sleep { clock, at, alarm: None }
    }

    pub(crate) fn for_(clock: Arc<dyn Clock>, duration: Duration) -> Self {
        let at = clock.now().after(duration);
        Self::until(clock, at)
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let is_set = self.alarm.as_ref().is_some_and(|(_, waker)| waker.will_wake(context.waker()));
        // One that was to ring so soon may have done so, by a clock that is a little ahead of this one.
        if !is_set || self.clock.now().until(self.at) < Duration::from_millis(1) {
            // The alarm is set before the look, so that a clock moved in between is not missed.
            let alarm = self.clock.set_alarm(self.at, context.waker().clone());
            if let Some((old, _)) = self.alarm.replace((alarm, context.waker().clone())) {
                self.clock.cancel_alarm(old);
            }
        }
        if self.clock.now() >= self.at { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some((alarm, _)) = self.alarm.take() {
            self.clock.cancel_alarm(alarm);
        }
    }
}
