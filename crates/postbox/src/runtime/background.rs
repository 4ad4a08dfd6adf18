//! The background thread of the process: it rings alarms, and runs small tasks that never block.
//!
//! The first alarm or task starts the thread, which ends with the process. If the thread cannot be started, operations
//! that need it fail, and alarms and tasks wait until a later start succeeds.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::{Context, Wake, Waker};

use crate::error::Error;
use crate::runtime::clock::{Alarm, Alarms, Clock, Moment, SystemClock};
use crate::runtime::{catch_panic, lock, unpoisoned, wake};

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    is_running: AtomicBool,
    /// Held while the thread is started.
    starting: Mutex<()>,
}

struct State {
    alarms: Alarms,
    ready: VecDeque<Arc<Task>>,
    /// When the sleep of the thread ends. The thread is not woken for a later alarm.
    sleeps_until: Option<Moment>,
}

static SHARED: Shared = Shared {
    state: Mutex::new(State { alarms: Alarms::new(), ready: VecDeque::new(), sleeps_until: None }),
    changed: Condvar::new(),
    is_running: AtomicBool::new(false),
    starting: Mutex::new(()),
};

fn lock_state() -> MutexGuard<'static, State> {
    lock(&SHARED.state)
}

pub(crate) fn set_alarm(at: Moment, waker: Waker) -> Alarm {
    let mut state = lock_state();
    let is_early = state.sleeps_until.is_none_or(|until| at < until);
    let alarm = state.alarms.set(at, waker);
    drop(state);
    if is_early {
        wake_thread();
    }
    alarm
}

pub(crate) fn cancel_alarm(alarm: Alarm) {
    let waker = lock_state().alarms.cancel(alarm);
    drop(waker);
}

type Background = Pin<Box<dyn Future<Output = ()> + Send>>;

struct Task {
    /// `None` when the task has ended.
    future: Mutex<Option<Background>>,
    is_enqueued: AtomicBool,
}

/// Runs a future on the background thread. It must not block, since all alarms and other tasks would wait.
pub(crate) fn spawn(future: impl Future<Output = ()> + Send + 'static) {
    let task = Task { future: Mutex::new(Some(Box::pin(future))), is_enqueued: AtomicBool::new(false) };
    Arc::new(task).wake();
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        if !self.is_enqueued.swap(true, Ordering::AcqRel) {
            lock_state().ready.push_back(self);
            wake_thread();
        }
    }

    fn wake_by_ref(self: &Arc<Self>) {
        Arc::clone(self).wake();
    }
}

fn wake_thread() {
    if let Err(error) = start() {
        tracing::error!(%error, "alarms and tasks wait until the background thread can be started");
    }
    SHARED.changed.notify_one();
}

/// Starts the thread unless it runs. Operations call this before they wait for an alarm or a task.
///
/// # Errors
/// [`Error::Connection`] if the process cannot start a thread.
pub(crate) fn start() -> Result<(), Error> {
    if SHARED.is_running.load(Ordering::Acquire) {
        return Ok(());
    }
    let _one_at_a_time = lock(&SHARED.starting);
    if SHARED.is_running.load(Ordering::Acquire) {
        return Ok(());
    }
    let thread = std::thread::Builder::new().name("postbox".into());
    thread
        .spawn(|| {
            // No change of the state can panic, so the thread continues after a panic of a task or a waker.
            loop {
                catch_panic(run);
            }
        })
        .map_err(|error| Error::connection(format!("cannot start the background thread: {error}")))?;
    SHARED.is_running.store(true, Ordering::Release);
    Ok(())
}

fn run() {
    let mut state = lock_state();
    loop {
        let due = state.alarms.take_due(SystemClock.now());
        let ready = std::mem::take(&mut state.ready);
        if due.is_empty() && ready.is_empty() {
            // If the first alarm is cancelled, the thread wakes once without need, which costs less than a wake-up at
            // each new alarm.
            let first = state.alarms.first();
            state.sleeps_until = Some(first.unwrap_or(Moment::from_nanos(u64::MAX)));
            state = match first {
                None => unpoisoned(SHARED.changed.wait(state)),
                Some(at) => {
                    let left = SystemClock.now().until(at);
                    unpoisoned(SHARED.changed.wait_timeout(state, left)).0
                }
            };
            state.sleeps_until = None;
            continue;
        }
        drop(state);
        due.into_iter().for_each(wake);
        ready.into_iter().for_each(poll);
        state = lock_state();
    }
}

fn poll(task: Arc<Task>) {
    // Cleared before the poll, so that a wake-up during the poll enqueues the task again.
    task.is_enqueued.store(false, Ordering::Release);
    let waker = Waker::from(Arc::clone(&task));
    let mut future = lock(&task.future);
    let Some(running) = future.as_mut() else { return };
    let mut ended = true;
    catch_panic(|| ended = running.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
    if ended {
        let ended_future = future.take();
        drop(future);
        catch_panic(|| drop(ended_future));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("on purpose");
        }
    }

    /// Panics when it is dropped.
    struct Payload;

    impl Drop for Payload {
        fn drop(&mut self) {
            panic!("on purpose");
        }
    }

    #[test]
    fn tasks_and_wakers_that_panic_do_not_end_the_thread() {
        for _ in 0..3 {
            spawn(async { panic!("on purpose") });
            spawn(async { std::panic::panic_any(Payload) });
            set_alarm(SystemClock.now().after(Duration::from_millis(1)), Waker::from(Arc::new(Panics)));
            let (sender, done) = mpsc::channel();
            spawn(async move {
                crate::runtime::clock::Sleep::for_(SystemClock::shared(), Duration::from_millis(5)).await;
                sender.send(std::thread::current().name().map(String::from)).unwrap();
            });
            assert_eq!(done.recv().unwrap().unwrap(), "postbox");
        }
    }
}
