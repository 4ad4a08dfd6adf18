//! The runtime that the backends share: timers, the I/O thread, batchers, waiters and oneshot results.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{LockResult, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

pub(crate) mod background;
#[cfg(any(feature = "redis", feature = "aws"))]
pub(crate) mod batcher;
pub(crate) mod cancellation;
pub(crate) mod clock;
#[cfg(any(feature = "redis", feature = "aws"))]
pub(crate) mod io_thread;
#[cfg_attr(
    not(any(feature = "sqlite", feature = "redis", feature = "aws")),
    expect(dead_code, reason = "only these backends undo results that are not delivered")
)]
pub(crate) mod oneshot;
#[cfg(any(feature = "sqlite", feature = "redis", feature = "aws"))]
pub(crate) mod open_stores;
pub(crate) mod waiters;

/// Locks a mutex, also if a thread panicked while it held the lock.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    unpoisoned(mutex.lock())
}

/// The result of a lock, also if a thread panicked while it held the lock.
pub(crate) fn unpoisoned<T>(result: LockResult<T>) -> T {
    result.unwrap_or_else(PoisonError::into_inner)
}

/// Runs code of the caller, such as a waker. A panic is caught, so that it does not end a shared thread.
pub(crate) fn catch_panic(code: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(code)) {
        // The destructor of the payload is code of the caller too.
        std::mem::forget(panic);
        tracing::error!("a task or a waker panicked; its thread continues");
    }
}

/// Wakes a task. The waker is code of the executor, which may panic.
pub(crate) fn wake(waker: Waker) {
    catch_panic(|| waker.wake());
}

/// Wakes tasks after all wakers are collected, so that no task runs before all results are there.
#[cfg(any(feature = "sqlite", feature = "redis"))]
pub(crate) fn wake_all(wakers: impl Iterator<Item = Waker>) {
    let wakers: Vec<Waker> = wakers.collect();
    wakers.into_iter().for_each(wake);
}
