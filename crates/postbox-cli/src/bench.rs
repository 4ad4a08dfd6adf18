//! `postbox bench`: how fast a mailbox is, here.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::json;

use crate::output::{self, Failure};
use crate::plain::Mailbox;

pub(crate) fn run(mailbox: &Mailbox, concurrency: usize, time: Duration, json: bool) -> Result<(), Failure> {
    let cycles = AtomicU64::new(0);
    let start = Instant::now();
    let results: Vec<Result<(), postbox::Error>> = std::thread::scope(|scope| {
        let work = || {
            let body = Bytes::from_static(&[b'x'; 64]);
            while start.elapsed() < time {
                mailbox.send(&body).blocking()?;
                for message in mailbox.receive().blocking()? {
                    message.acknowledge().blocking()?;
                    cycles.fetch_add(1, Ordering::Relaxed);
                }
            }
            Ok(())
        };
        let threads: Vec<_> = (0..concurrency.max(1)).map(|_| scope.spawn(work)).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    results.into_iter().collect::<Result<(), _>>()?;
    let (cycles, seconds) = (cycles.into_inner(), start.elapsed().as_secs_f64());
    let rate = cycles as f64 / seconds;
    output::line(if json {
        json!({ "cycles": cycles, "seconds": seconds, "cycles_per_s": rate, "concurrency": concurrency }).to_string()
    } else {
        format!(
            "{cycles} cycles of send, receive, acknowledge in {seconds:.1} s: {rate:.0} a second, {concurrency} at a time"
        )
    })
}
