//! How many bytes an empty mailbox or channel takes, counted by the allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::SUITE;
use super::channel::{AsyncChan, Channel, Crossbeam, Flume, Kanal, Postbox, Std, Thingbuf, Tokio, Words};
use crate::report::Settings;

/// Counts the bytes that are in use.
pub(crate) struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator unchanged; only a counter is kept beside it.
#[allow(unsafe_code, reason = "a global allocator is unsafe to implement; this one delegates")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        IN_USE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps `alloc`'s contract, and so does this call.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above; the pointer came from `System.alloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

pub(crate) fn run(settings: &Settings) {
    for (kind, capacity) in [("bounded", Some(1024)), ("unbounded", None)] {
        bytes::<Postbox>(settings, kind, capacity);
        bytes::<Crossbeam>(settings, kind, capacity);
        bytes::<Flume>(settings, kind, capacity);
        bytes::<Kanal>(settings, kind, capacity);
        bytes::<AsyncChan>(settings, kind, capacity);
        bytes::<Tokio>(settings, kind, capacity);
        bytes::<Std>(settings, kind, capacity);
        bytes::<Thingbuf>(settings, kind, capacity);
    }
}

fn bytes<T: Channel>(settings: &Settings, kind: &str, capacity: Option<usize>) {
    let scenario = format!("empty-bytes/{kind}");
    if settings.only.as_ref().is_some_and(|only| !scenario.contains(only.as_str())) {
        return;
    }
    let count = 100;
    let before = IN_USE.load(Ordering::Relaxed);
    let channels: Vec<_> = (0..count).map_while(|_| T::open::<Words<1>>(capacity)).collect();
    if channels.is_empty() {
        return;
    }
    // Both handles are in the vector; what they point to is counted, and the handles themselves.
    let bytes = (IN_USE.load(Ordering::Relaxed) - before) / count;
    if settings.json {
        println!("{{\"suite\":\"{SUITE}\",\"scenario\":\"{scenario}\",\"system\":\"{}\",\"bytes\":{bytes}}}", T::NAME);
    } else {
        println!("{scenario:<34} {:<18} {bytes:>9} bytes", T::NAME);
    }
}
