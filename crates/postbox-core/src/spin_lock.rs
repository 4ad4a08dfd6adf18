//! A lock for critical sections of a few nanoseconds: one atomic operation to take it, a plain store to give it
//! back.
//!
//! An OS mutex needs a second atomic read-modify-write to release, because a sleeper might have to be woken. The
//! sections guarded here are a queue push or pop, so nobody sleeps: a contender spins, then (with the `std`
//! feature) yields its time slice to a holder that was preempted, then naps. A thread never
//! waits for a wake-up while it contends; waiting for messages is the wait queue's job.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::fmt;
use core::ops::{Deref, DerefMut};

#[cfg(not(postbox_loom))]
use core::sync::atomic::{AtomicBool, Ordering};
#[cfg(postbox_loom)]
use loom::sync::atomic::{AtomicBool, Ordering};

/// A value that one holder at a time may touch.
// The flag comes first, so that a holder finds the first fields of the value on the line it has just got.
#[repr(C)]
pub struct SpinLock<T> {
    locked: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through a guard, and at most one guard exists at a time (see `try_lock`), so
// sharing the lock moves the value between threads but never shares it.
unsafe impl<T: Send> Sync for SpinLock<T> {}
// SAFETY: sending the lock sends the value in it.
unsafe impl<T: Send> Send for SpinLock<T> {}

/// Proof that the lock is held; gives it back on drop.
pub struct SpinGuard<'a, T> {
    lock: &'a SpinLock<T>,
    // A guard must be dropped by the thread that has it only in so far as `T` demands it; like a `&mut T`.
    _value: core::marker::PhantomData<&'a mut T>,
}

impl<T> SpinLock<T> {
    pub(crate) fn new(value: T) -> Self {
        SpinLock { locked: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    #[inline(always)]
    pub(crate) fn lock(&self) -> SpinGuard<'_, T> {
        match self.try_lock() {
            Some(guard) => guard,
            None => self.lock_slow(),
        }
    }

    #[inline(always)]
    pub(crate) fn try_lock(&self) -> Option<SpinGuard<'_, T>> {
        // Acquire pairs with the Release of the guard's drop: what the last holder wrote is visible.
        match self.locked.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Some(SpinGuard { lock: self, _value: core::marker::PhantomData }),
            Err(_) => None,
        }
    }

    /// Takes the lock after an attempt that failed.
    #[cold]
    pub(crate) fn lock_slow(&self) -> SpinGuard<'_, T> {
        let mut backoff = LockBackoff::new();
        loop {
            backoff.snooze();
            // Look before trying: a read shares the cache line, an attempt would steal it from the holder. (The model
            // checker may let a plain read see an old value for ever.)
            while cfg!(not(postbox_loom)) && self.locked.load(Ordering::Relaxed) {
                backoff.snooze();
            }
            if let Some(guard) = self.try_lock() {
                return guard;
            }
        }
    }
}

impl<T> Deref for SpinGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: this guard is the only one (`try_lock` gave it after it alone turned `locked` from false to
        // true), so no `&mut T` exists but through this guard, which is borrowed shared here.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for SpinGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and this guard is borrowed exclusively.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for SpinGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.lock.locked.store(false, Ordering::Release);
    }
}

impl<T> fmt::Debug for SpinLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpinLock").finish_non_exhaustive()
    }
}

/// How a contender passes the time: briefly on the processor, then off it.
struct LockBackoff {
    rounds: u32,
}

impl LockBackoff {
    /// Looks at doubling distances, up to 2^7 pauses, before the time slice is given up. Long distances are good for
    /// throughput: a holder of the lock that comes back for it soon keeps its cache line meanwhile.
    const SPIN_ROUNDS: u32 = 7;
    /// Yields before naps.
    #[cfg(feature = "std")]
    const YIELD_ROUNDS: u32 = 10_000;

    fn new() -> Self {
        LockBackoff { rounds: 0 }
    }

    #[cfg(postbox_loom)]
    fn snooze(&mut self) {
        loom::thread::yield_now();
    }

    #[cfg(not(postbox_loom))]
    fn snooze(&mut self) {
        self.rounds = self.rounds.saturating_add(1);
        #[cfg(feature = "std")]
        if self.rounds > Self::SPIN_ROUNDS + Self::YIELD_ROUNDS {
            // The holder was preempted and yielding does not reach it: it has a lower priority, say.
            return std::thread::sleep(core::time::Duration::from_micros(50));
        } else if self.rounds > Self::SPIN_ROUNDS {
            return std::thread::yield_now();
        }
        for _ in 0..1 << self.rounds.min(Self::SPIN_ROUNDS) {
            core::hint::spin_loop();
        }
    }
}

#[cfg(all(test, postbox_loom))]
mod tests {
    use super::*;

    /// Without spinning, which the checker cannot follow to its end: a thread that gets the lock has the value for itself
    /// and sees what the last holder did.
    #[test]
    fn one_holder_at_a_time() {
        loom::model(|| {
            // The model checker's cell reports any two accesses that are not ordered by the lock.
            let lock = loom::sync::Arc::new(SpinLock::new(loom::cell::UnsafeCell::new(0)));
            let try_add = |lock: &SpinLock<loom::cell::UnsafeCell<u32>>| {
                let guard = lock.try_lock();
                // SAFETY: the guard is held; loom checks that this is enough.
                guard.map_or(0, |guard| {
                    guard.with_mut(|value| unsafe { *value += 1 });
                    1
                })
            };
            let other = {
                let lock = lock.clone();
                loom::thread::spawn(move || try_add(&lock))
            };
            let added = try_add(&lock) + try_add(&lock) + other.join().unwrap();
            let guard = lock.try_lock().expect("everybody has given it back");
            // SAFETY: as above.
            assert_eq!(guard.with(|value| unsafe { *value }), added);
        });
    }
}
