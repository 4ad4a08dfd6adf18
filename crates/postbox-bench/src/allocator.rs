//! The system's allocator, with a count of the bytes in use.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Counts only inside [`bytes_of`], because a counter that all threads write to would slow down the other benchmarks.
pub(crate) struct Counting;

static IS_COUNTING: AtomicBool = AtomicBool::new(false);
static IN_USE: AtomicUsize = AtomicUsize::new(0);

fn count(added: usize, removed: usize) {
    if IS_COUNTING.load(Ordering::Relaxed) {
        IN_USE.fetch_add(added.wrapping_sub(removed), Ordering::Relaxed);
    }
}

// SAFETY: every call is forwarded unchanged to the system's allocator.
#[allow(unsafe_code, reason = "a global allocator is unsafe to implement; this one delegates")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller fulfils the contract of `alloc`, and the arguments are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size, layout.size());
        // SAFETY: as above; the pointer came from `System`.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: as above; the pointer came from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Returns the result of `make`, and the number of bytes that it has allocated and not freed. No other thread may run.
pub(crate) fn bytes_of<T>(make: impl FnOnce() -> T) -> (T, usize) {
    IN_USE.store(0, Ordering::Relaxed);
    IS_COUNTING.store(true, Ordering::Relaxed);
    let made = make();
    IS_COUNTING.store(false, Ordering::Relaxed);
    (made, IN_USE.load(Ordering::Relaxed))
}
