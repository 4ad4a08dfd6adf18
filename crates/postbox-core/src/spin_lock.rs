//! A spin lock for critical sections of a few nanoseconds: one atomic operation to lock, a plain
//! store to unlock.
//!
//! An OS mutex needs a second atomic read-modify-write to unlock, since a thread may sleep on it.
//! This lock protects single pushes and pops, so a contending thread spins. With the `std` feature
//! it then yields, for the case that the holder was preempted, and finally sleeps for short
//! intervals. Waiting for messages is done in the [wait queue](crate::wait_queue), never on this
//! lock.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::fmt;
use core::ops::{Deref, DerefMut};

#[cfg(not(postbox_loom))]
use core::sync::atomic::{AtomicBool, Ordering};
#[cfg(postbox_loom)]
use loom::sync::atomic::{AtomicBool, Ordering};

/// A value that one thread at a time can access.
// The flag comes first, so that it shares a cache line with the first fields of the value.
#[repr(C)]
pub struct SpinLock<T> {
    locked: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through a guard, and at most one guard exists at a time (see
// `try_lock`), so sharing the lock moves the value between threads but never shares it.
unsafe impl<T: Send> Sync for SpinLock<T> {}
// SAFETY: sending the lock sends the value in it.
unsafe impl<T: Send> Send for SpinLock<T> {}

/// Access to the value; unlocks on drop.
pub struct SpinGuard<'a, T> {
    lock: &'a SpinLock<T>,
    // Like a `&mut T`: whether the guard is `Send` or `Sync` depends on `T`.
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
        // Acquire pairs with the Release in the guard's drop: the writes of the last holder are
        // visible.
        match self.locked.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Some(SpinGuard { lock: self, _value: core::marker::PhantomData }),
            Err(_) => None,
        }
    }

    /// Locks after a failed attempt.
    #[cold]
    pub(crate) fn lock_slow(&self) -> SpinGuard<'_, T> {
        let mut backoff = LockBackoff::new();
        loop {
            backoff.snooze();
            // Reading shares the cache line; an attempt to lock would take it from the holder.
            // Under the model checker a plain read could return an old value forever.
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
        // SAFETY: this is the only guard (`try_lock` returned it after it alone changed `locked`
        // from false to true), so no `&mut T` exists except through this guard, which is borrowed
        // shared here.
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

/// The backoff of a contending thread: spins, then yields, then sleeps.
struct LockBackoff {
    rounds: u32,
}

impl LockBackoff {
    /// Rounds of spinning, with doubling length, up to 2^7 spins. Long rounds raise throughput: a
    /// holder that locks again soon keeps its cache line.
    const SPIN_ROUNDS: u32 = 7;
    /// Rounds of yielding before sleeping.
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
            // Yielding does not let the preempted holder run; it may have a lower priority.
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

    /// A thread that locks has exclusive access and sees the writes of the last holder. Without
    /// spinning, which the checker cannot follow to its end.
    #[test]
    fn one_holder_at_a_time() {
        loom::model(|| {
            // Loom's cell reports accesses that the lock does not order.
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
            // SAFETY: the guard is held; loom checks that this is enough.
            assert_eq!(guard.with(|value| unsafe { *value }), added);
        });
    }
}
