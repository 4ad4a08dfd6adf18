//! Tests of the crate `postbox`, in one binary.

mod aws;
mod bad_backend;
mod conformance;
mod main_loop;
mod memory;
mod panics;
mod redis;
mod resolver;
mod sqlite;
mod storage;
mod telemetry;
mod wire;
mod worker;

/// A waker that records that it was called.
#[derive(Default)]
struct Flag(std::sync::atomic::AtomicBool);

impl std::task::Wake for Flag {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.store(true, std::sync::atomic::Ordering::SeqCst);
    }
}

/// Asserts that `wait` uses almost no processor time, as a busy loop would. It measures the time of the whole process, so
/// each test that calls it needs a separate process.
fn assert_uses_no_processor_time(wait: impl FnOnce()) {
    let used = || {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        // The unit is a clock tick of 10 ms.
        std::time::Duration::from_millis(10) * (fields[11].parse::<u32>().unwrap() + fields[12].parse::<u32>().unwrap())
    };
    let (before, start) = (used(), std::time::Instant::now());
    wait();
    let (used, wall) = (used() - before, start.elapsed());
    assert!(used * 4 < wall, "{used:?} of {wall:?}");
}
