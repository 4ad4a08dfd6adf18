//! `postbox bench`: measures a store.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use postbox::worker::Cancellation;
use postbox::{Error, MessageId};
use serde_json::json;

use crate::commands::on_interrupt;
use crate::output::{self, Failure};
use crate::raw::Mailbox;

/// Measures the store of `mailbox`, in a mailbox that is created for the benchmark and deleted at its end.
pub(crate) fn run(mailbox: &Mailbox, concurrency: usize, time: Duration, json: bool) -> Result<(), Failure> {
    let scratch: Mailbox = mailbox.connection().mailbox(&scratch_name(mailbox.name().as_str()))?;
    let stop = Cancellation::new();
    let token = stop.clone();
    on_interrupt("deleting the benchmark's mailbox; press Ctrl-C again to exit at once", json, move || token.cancel())?;
    let measured =
        scratch.create().blocking().map_err(Failure::from).and_then(|()| measure(&scratch, concurrency, time, &stop));
    let deleted = scratch.delete().blocking().map_err(|error| {
        Failure::Other(format!("cannot delete the benchmark's mailbox {}: {error}; delete it by hand", scratch.name()))
    });
    let (cycles, seconds) = measured?;
    deleted?;
    if stop.is_cancelled() {
        return Err(Failure::Interrupted("interrupted before the measurement was complete"));
    }
    let rate = cycles as f64 / seconds;
    output::line(if json {
        json!({ "cycles": cycles, "seconds": seconds, "cycles_per_s": rate, "concurrency": concurrency }).to_string()
    } else {
        format!(
            "{cycles} cycles of send, receive, acknowledge in {seconds:.1} s: {rate:.0} a second, {concurrency} at a time"
        )
    })
}

/// A new mailbox name: `name`, shortened if necessary, with random digits appended.
fn scratch_name(name: &str) -> String {
    let (name, suffix) = match name.strip_suffix(".fifo") {
        Some(name) => (name, ".fifo"),
        None => (name, ""),
    };
    let id = MessageId::new().to_string();
    let random = &id[id.len() - 12..];
    format!("{}-bench-{random}{suffix}", &name[..name.len().min(50)])
}

/// Runs cycles of send, receive and acknowledge until `time` has passed or `stop` is cancelled.
/// Returns the number of cycles and the elapsed seconds.
fn measure(mailbox: &Mailbox, concurrency: usize, time: Duration, stop: &Cancellation) -> Result<(u64, f64), Failure> {
    let (cycles, failed, start) = (AtomicU64::new(0), Cancellation::new(), Instant::now());
    let cycle = |body: &Bytes| -> Result<(), Error> {
        mailbox.send(body).blocking()?;
        for message in mailbox.receive().blocking()? {
            message.acknowledge().blocking()?;
            cycles.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    };
    let work = || {
        let body = Bytes::from_static(&[b'x'; 64]);
        while start.elapsed() < time && !stop.is_cancelled() && !failed.is_cancelled() {
            cycle(&body).inspect_err(|_| failed.cancel())?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for number in 0..concurrency.max(1) {
            threads.push(thread::Builder::new().spawn_scoped(scope, work).map_err(|error| {
                failed.cancel();
                Failure::Other(format!(
                    "cannot start thread {} of --concurrency {concurrency}: {error}; use a lower number",
                    number + 1
                ))
            })?);
        }
        threads
            .into_iter()
            .filter_map(|thread| thread.join().ok())
            .collect::<Result<(), Error>>()
            .map_err(Failure::from)
    })?;
    Ok((cycles.into_inner(), start.elapsed().as_secs_f64()))
}
