//! Clocks, alarms and sleeps.

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

    /// The moment a duration later. The last moment that can be represented if the sum overflows.
    #[must_use]
    #[inline]
    pub fn after(self, duration: Duration) -> Self {
        Moment(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// The time until `later`. Zero if `later` is not later.
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

/// An alarm of a [`Clock`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Alarm {
    at: Moment,
    number: u64,
}

/// Tells the time and wakes tasks. Programs use the [`SystemClock`]; tests have clocks that they move by hand.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The present moment. It never goes back.
    fn now(&self) -> Moment;

    /// The time of the wall clock, for comparison with times of other programs.
    fn wall(&self) -> SystemTime {
        self.now().into()
    }

    /// Wakes `waker` at a moment, or soon if that has passed. Never before this returns, because the caller may hold a
    /// lock.
    fn set_alarm(&self, at: Moment, waker: Waker) -> Alarm;

    /// Cancels an alarm. Nothing happens if it has rung.
    fn cancel_alarm(&self, alarm: Alarm);

    /// Makes sure that alarms will ring. Called before a wait for one.
    ///
    /// # Errors
    /// [`Error::Connection`] if they cannot.
    fn start(&self) -> Result<(), Error> {
        Ok(())
    }
}

/// The clock of the process. It is monotonic, and was set to the wall clock when it was first read.
///
/// One thread, which the first alarm starts, rings all alarms.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

/// The cycle counter of the processor, where it is reliable: each message reads the clock three times.
static ANCHOR: LazyLock<(quanta::Clock, u64, Moment)> = LazyLock::new(|| {
    let clock = quanta::Clock::new();
    let raw = clock.raw();
    (clock, raw, SystemTime::now().into())
});

impl SystemClock {
    /// A shared reference to the clock.
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

/// Alarms in the order in which they ring.
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

    /// The caller drops the waker without a lock.
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

    /// Takes out the wakers that are due. The caller wakes them without a lock.
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

/// Ready at a moment.
#[derive(Debug)]
pub(crate) struct Sleep {
    clock: Arc<dyn Clock>,
    at: Moment,
    /// The alarm, and the waker that it wakes.
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
        // An alarm for a moment within a millisecond may have rung early, since the clock of the thread may be ahead.
        if !is_set || self.clock.now().until(self.at) < Duration::from_millis(1) {
            // The alarm is set before the time is read, so that a clock which is moved in between is not missed.
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
