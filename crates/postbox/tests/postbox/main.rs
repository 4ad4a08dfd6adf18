//! Tests of the crate `postbox`, in one binary.

mod aws;
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

/// Runs something that only waits: a loop that looks again and again would use all of a processor's time meanwhile. By the
/// time of the whole process, so each such test needs a process of its own.
fn assert_uses_no_processor_time(wait: impl FnOnce()) {
    let used = || {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        // In clock ticks of 10 ms.
        std::time::Duration::from_millis(10) * (fields[11].parse::<u32>().unwrap() + fields[12].parse::<u32>().unwrap())
    };
    let (before, start) = (used(), std::time::Instant::now());
    wait();
    let (used, wall) = (used() - before, start.elapsed());
    assert!(used * 4 < wall, "{used:?} of {wall:?}");
}
