//! The synchronization primitives of the crate.
//!
//! A mailbox is written once and compiled for two concurrency modes: [`ThreadSafe`] (atomics and a
//! spin lock) and [`SingleThread`] (cells). Under `--cfg postbox_loom` the thread-safe primitives
//! are those of the model checker.

use core::cell::{Cell, RefCell, RefMut};
use core::fmt::Debug;
use core::ops::{Deref, DerefMut};

use alloc::rc::Rc;
use alloc::sync::Arc;

#[cfg(not(postbox_loom))]
pub(crate) use crate::spin_lock::{SpinGuard, SpinLock};
#[cfg(not(postbox_loom))]
pub(crate) use core::sync::atomic::{AtomicUsize, Ordering};

#[cfg(postbox_loom)]
pub(crate) use self::model::{SpinGuard, SpinLock};
#[cfg(postbox_loom)]
pub(crate) use loom::sync::atomic::{AtomicUsize, Ordering};

/// Mutual exclusion around a value.
#[doc(hidden)]
pub trait Lock<T> {
    type Guard<'a>: DerefMut<Target = T>
    where
        Self: 'a,
        T: 'a;
    fn new(value: T) -> Self;
    fn lock(&self) -> Self::Guard<'_>;
    fn try_lock(&self) -> Option<Self::Guard<'_>>;
    /// The fast path of [`lock`](Lock::lock). After `None`, [`lock_slow`](Lock::lock_slow) is
    /// called.
    fn lock_fast(&self) -> Option<Self::Guard<'_>>;
    fn lock_slow(&self) -> Self::Guard<'_>;
}

/// A machine word that can be read without the lock under which it is written.
#[doc(hidden)]
pub trait Count {
    fn new(value: usize) -> Self;
    /// A relaxed load: for the holder of the lock that protects the writes, or for heuristics.
    fn get(&self) -> usize;
    /// A relaxed store.
    fn set(&self, value: usize);
    /// An acquire load; it synchronizes with the [`store_release`](Count::store_release) that wrote
    /// the value.
    fn load_acquire(&self) -> usize;
    /// A release store.
    fn store_release(&self, value: usize);
    /// Adds one and returns the previous value.
    fn increment(&self) -> usize;
    /// Subtracts one and returns the previous value.
    fn decrement(&self) -> usize;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::ThreadSafe {}
    impl Sealed for super::SingleThread {}
}

/// How the state of a mailbox is protected.
///
/// There are two modes: [`ThreadSafe`] and [`SingleThread`]. The mode is part of the type of a
/// mailbox, so a single-threaded mailbox cannot reach a second thread, and needs no atomic
/// operation.
pub trait MailboxConcurrency: sealed::Sealed + Copy + Debug + Default + 'static {
    #[doc(hidden)]
    type Lock<T>: Lock<T>;
    #[doc(hidden)]
    type Count: Count;
}

/// How the handles of a mailbox share its state and hooks: by an atomic or by a plain reference
/// count.
pub trait MetadataStorageMode: MailboxConcurrency {
    #[doc(hidden)]
    type Shared<T>: Clone + Deref<Target = T>;
    #[doc(hidden)]
    fn share<T>(value: T) -> Self::Shared<T>;
}

/// Mailboxes whose handles can be used from many threads.
///
/// As a [`MailboxFactory`](crate::shared::mailbox::MailboxFactory) it builds mailboxes that are
/// `Send + Sync` whenever their messages are `Send`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadSafe;

/// Mailboxes whose handles stay on one thread, without atomic operations.
///
/// As a [`MailboxFactory`](crate::shared::mailbox::MailboxFactory) it builds mailboxes that are not
/// `Send`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SingleThread;

impl MailboxConcurrency for ThreadSafe {
    type Lock<T> = SpinLock<T>;
    type Count = AtomicUsize;
}

impl MetadataStorageMode for ThreadSafe {
    type Shared<T> = Arc<T>;

    fn share<T>(value: T) -> Arc<T> {
        Arc::new(value)
    }
}

impl MailboxConcurrency for SingleThread {
    type Lock<T> = RefCell<T>;
    type Count = Cell<usize>;
}

impl MetadataStorageMode for SingleThread {
    type Shared<T> = Rc<T>;

    fn share<T>(value: T) -> Rc<T> {
        Rc::new(value)
    }
}

impl<T> Lock<T> for SpinLock<T> {
    type Guard<'a>
        = SpinGuard<'a, T>
    where
        T: 'a;

    fn new(value: T) -> Self {
        SpinLock::new(value)
    }

    #[inline(always)]
    fn lock(&self) -> SpinGuard<'_, T> {
        SpinLock::lock(self)
    }

    #[inline(always)]
    fn try_lock(&self) -> Option<SpinGuard<'_, T>> {
        SpinLock::try_lock(self)
    }

    #[inline(always)]
    fn lock_fast(&self) -> Option<SpinGuard<'_, T>> {
        // The model checker explores fewer states without the distinction.
        if cfg!(postbox_loom) { Some(SpinLock::lock(self)) } else { SpinLock::try_lock(self) }
    }

    fn lock_slow(&self) -> SpinGuard<'_, T> {
        SpinLock::lock_slow(self)
    }
}

impl Count for AtomicUsize {
    fn new(value: usize) -> Self {
        AtomicUsize::new(value)
    }

    #[inline(always)]
    fn get(&self) -> usize {
        self.load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn set(&self, value: usize) {
        self.store(value, Ordering::Relaxed);
    }

    #[inline(always)]
    fn load_acquire(&self) -> usize {
        self.load(Ordering::Acquire)
    }

    #[inline(always)]
    fn store_release(&self, value: usize) {
        self.store(value, Ordering::Release);
    }

    fn increment(&self) -> usize {
        self.fetch_add(1, Ordering::AcqRel)
    }

    fn decrement(&self) -> usize {
        self.fetch_sub(1, Ordering::AcqRel)
    }
}

impl<T> Lock<T> for RefCell<T> {
    type Guard<'a>
        = RefMut<'a, T>
    where
        T: 'a;

    fn new(value: T) -> Self {
        RefCell::new(value)
    }

    #[inline(always)]
    fn lock(&self) -> RefMut<'_, T> {
        self.borrow_mut()
    }

    #[inline(always)]
    fn try_lock(&self) -> Option<RefMut<'_, T>> {
        self.try_borrow_mut().ok()
    }

    #[inline(always)]
    fn lock_fast(&self) -> Option<RefMut<'_, T>> {
        self.try_lock()
    }

    fn lock_slow(&self) -> RefMut<'_, T> {
        self.borrow_mut()
    }
}

impl Count for Cell<usize> {
    fn new(value: usize) -> Self {
        Cell::new(value)
    }

    #[inline(always)]
    fn get(&self) -> usize {
        Cell::get(self)
    }

    #[inline(always)]
    fn set(&self, value: usize) {
        Cell::set(self, value);
    }

    #[inline(always)]
    fn load_acquire(&self) -> usize {
        Cell::get(self)
    }

    #[inline(always)]
    fn store_release(&self, value: usize) {
        Cell::set(self, value);
    }

    fn increment(&self) -> usize {
        self.replace(Cell::get(self).wrapping_add(1))
    }

    fn decrement(&self) -> usize {
        self.replace(Cell::get(self).wrapping_sub(1))
    }
}

/// Aligns a value to a cache line, so that the two ends of a queue do not share one.
#[derive(Debug)]
#[cfg_attr(any(target_arch = "aarch64", target_arch = "powerpc64"), repr(align(128)))]
#[cfg_attr(not(any(target_arch = "aarch64", target_arch = "powerpc64")), repr(align(64)))]
pub(crate) struct Padded<T>(pub(crate) T);

impl<T> Deref for Padded<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

/// The lock under the model checker, with the interface of [`crate::spin_lock`], which has a model
/// of its own.
#[cfg(postbox_loom)]
mod model {
    use core::ops::{Deref, DerefMut};

    use loom::sync::atomic::{AtomicBool, Ordering};

    #[derive(Debug)]
    pub struct SpinLock<T> {
        value: loom::sync::Mutex<T>,
        /// Whether a thread holds the lock. Loom treats neither an unlock nor a failed attempt to
        /// lock as an event that other threads depend on; this flag makes it explore attempts while
        /// the lock is held.
        held: AtomicBool,
    }

    pub struct SpinGuard<'a, T> {
        value: loom::sync::MutexGuard<'a, T>,
        held: &'a AtomicBool,
    }

    impl<T> SpinLock<T> {
        pub(crate) fn new(value: T) -> Self {
            SpinLock { value: loom::sync::Mutex::new(value), held: AtomicBool::new(false) }
        }

        pub(crate) fn lock(&self) -> SpinGuard<'_, T> {
            self.guard(self.value.lock().unwrap())
        }

        pub(crate) fn lock_slow(&self) -> SpinGuard<'_, T> {
            self.lock()
        }

        pub(crate) fn try_lock(&self) -> Option<SpinGuard<'_, T>> {
            if self.held.load(Ordering::Acquire) {
                return None;
            }
            self.value.try_lock().ok().map(|value| self.guard(value))
        }

        fn guard<'a>(&'a self, value: loom::sync::MutexGuard<'a, T>) -> SpinGuard<'a, T> {
            self.held.store(true, Ordering::Release);
            SpinGuard { value, held: &self.held }
        }
    }

    impl<T> Drop for SpinGuard<'_, T> {
        fn drop(&mut self) {
            self.held.store(false, Ordering::Release);
        }
    }

    impl<T> Deref for SpinGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            &self.value
        }
    }

    impl<T> DerefMut for SpinGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            &mut self.value
        }
    }
}
