//! The engine of a loop.
//!
//! One future, the fetcher, receives messages into a buffer, which is a bounded mailbox of layer 1. Further futures, the
//! workers, take messages from the buffer and handle them. Each message in flight has a guard that gives it back, so a loop
//! leaves no message leased, however it ends.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::FusedFuture as _;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use postbox_core::shared::mailbox::MailboxSignal as _;
use postbox_core::{BoundedMailbox, Mailbox as _, UnboundedMailbox};
use tracing::warn;

use super::fetcher::{FetchEnd, apply_command, fetch};
use super::in_flight::{InFlight, ReturnGuard};
use super::lease_renewal::LeaseRenewal;
use super::stats::{LoopMetrics, Stats};
use super::{Control, HandlerFn, LoopEvent, LoopOptions, LoopReport, Worker};
use crate::error::Error;
use crate::mailbox::Mailbox;
use crate::mailbox::codec::{Codec, Decode, Encode};
use crate::mailbox::message::Message;
use crate::mailbox::ranges::check_duration;
use crate::runtime::background;
use crate::runtime::cancellation::{Cancellation, unless};
use crate::runtime::clock::Sleep;

pub(super) struct Engine<T, R, C> {
    pub(super) mailbox: Mailbox<T, R, C>,
    pub(super) handler: HandlerFn<T, R>,
    pub(super) options: LoopOptions<R, C>,
    pub(super) buffer: BoundedMailbox<InFlight<T, R, C>>,
    pub(super) is_shut_down: Arc<AtomicBool>,
    renewal: Arc<LeaseRenewal>,
    /// The number of workers that have not ended.
    live: AtomicUsize,
    /// Ends the workers at once.
    abort: Cancellation,
    pub(super) stats: Arc<Stats>,
    pub(super) metrics: LoopMetrics,
}

pub(super) async fn run<T, R, C>(worker: Worker<T, R, C>) -> Result<LoopReport, Error>
where
    T: Send + 'static,
    R: Send + 'static,
    C: Codec + Encode<R> + Decode<T>,
{
    let Worker { mailbox, handler, options, handle } = worker;
    check(&mailbox, &options)?;
    // The background thread extends leases.
    background::start()?;
    let core = &mailbox.core;
    let engine = Arc::new(Engine {
        buffer: BoundedMailbox::new(options.concurrency + options.prefetch),
        is_shut_down: Arc::clone(&handle.is_shut_down),
        renewal: LeaseRenewal::start(Arc::clone(core), options.visibility, options.max_lease),
        live: AtomicUsize::new(options.concurrency),
        abort: Cancellation::new(),
        stats: Arc::default(),
        metrics: LoopMetrics::new(core),
        handler,
        options,
        mailbox,
    });
    let _stop = StopOnDrop(engine.abort.clone());
    engine.publish(|| LoopEvent::Started { mailbox: engine.mailbox.name().clone() });
    let result = engine.drive(&handle.control).await;
    engine.wait_for_returns().await;
    let report = engine.stats.report();
    engine.publish(|| LoopEvent::Stopped { report });
    result.map(|()| report)
}

/// Ends the workers that were spawned on an executor when the loop ends.
struct StopOnDrop(Cancellation);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// The most handlers, and the most messages that are fetched in advance.
const MAX_MESSAGES: usize = 1_000_000;

/// How long a loop that ends waits for the responses to the messages that it gives back.
const RETURN_TIME: Duration = Duration::from_secs(5);

fn check<T, R, C>(mailbox: &Mailbox<T, R, C>, options: &LoopOptions<R, C>) -> Result<(), Error> {
    let limits = mailbox.limits();
    for (parameter, value, least) in [("concurrency", options.concurrency, 1), ("prefetch", options.prefetch, 0)] {
        if !(least..=MAX_MESSAGES).contains(&value) {
            return Err(Error::invalid(parameter, value, format!("{least} to {MAX_MESSAGES}")));
        }
    }
    if options.visibility.is_zero() {
        return Err(Error::invalid("visibility_timeout", "0 s", "more than 0 s: handlers need their lease"));
    }
    check_duration("visibility_timeout", options.visibility, limits.max_visibility)?;
    check_duration("wait_time", options.wait, limits.max_wait)?;
    for (parameter, value) in [("max_lease", options.max_lease), ("shutdown_timeout", options.shutdown_timeout)] {
        check_duration(parameter, value, crate::backend::Limits::LONGEST)?;
    }
    Ok(())
}

impl<T, R, C> Engine<T, R, C>
where
    T: Send + 'static,
    R: Send + 'static,
    C: Codec + Encode<R> + Decode<T>,
{
    /// Runs the fetcher and the workers until the loop ends.
    async fn drive(self: &Arc<Self>, control: &UnboundedMailbox<Control>) -> Result<(), Error> {
        let mut workers = Box::pin(Arc::clone(self).run_workers().fuse());
        let end = {
            let mut fetching = std::pin::pin!(fetch(self, control));
            poll_fn(|context| {
                // While the fetcher runs, workers end only if the executor that they were spawned on ends.
                if workers.as_mut().poll(context).is_ready() {
                    return Poll::Ready(FetchEnd::Shutdown);
                }
                fetching.as_mut().poll(context)
            })
            .await
        };
        let mut deadline = match &end {
            FetchEnd::Done => {
                self.buffer.close();
                None
            }
            FetchEnd::Shutdown | FetchEnd::Failed(_) => Some(self.stop()),
        };
        // Running handlers end. Unless it is a shutdown, the messages in the buffer are handled too.
        loop {
            if workers.is_terminated() {
                return outcome(end);
            }
            match deadline.take() {
                None => {
                    let mut command = None;
                    unless(async { command = control.recv().await.ok() }, workers.as_mut()).await;
                    match command {
                        Some(Control::Shutdown) => deadline = Some(self.stop()),
                        other => apply_command(self, other),
                    }
                }
                Some(time) => {
                    if unless(time, workers.as_mut()).await.is_none() {
                        let running = self.stats.in_flight.load(Ordering::SeqCst);
                        let mailbox = self.mailbox.name();
                        warn!(%mailbox, running, "handlers did not end in time; their messages are given back");
                        // Each worker ends at its next poll, and its guard gives the message back. A worker that blocks its
                        // thread does not end: its lease is no longer extended.
                        self.renewal.abandon_all();
                        self.abort.cancel();
                        let grace = Sleep::for_(Arc::clone(&self.mailbox.core.clock), Duration::from_secs(1));
                        unless(grace, workers.as_mut()).await;
                        return outcome(end);
                    }
                }
            }
        }
    }

    /// Runs the workers until all have ended.
    async fn run_workers(self: Arc<Self>) {
        let worker = || {
            let ended = WorkerEnd(Arc::clone(&self));
            async move {
                let engine = &ended.0;
                unless(engine.abort.cancelled(), engine.work()).await;
            }
        };
        match &self.options.spawn {
            None => {
                let mut workers: FuturesUnordered<_> = (0..self.options.concurrency).map(|_| worker()).collect();
                while workers.next().await.is_some() {}
            }
            Some(spawn) => {
                (0..self.options.concurrency).for_each(|_| spawn(Box::pin(worker())));
                // All waits use one handle, so a notification between the check and the wait is not lost.
                let progress = self.stats.progress.clone();
                while self.live.load(Ordering::SeqCst) > 0 {
                    progress.wait().await;
                }
            }
        }
    }
}

fn outcome(end: FetchEnd) -> Result<(), Error> {
    match end {
        FetchEnd::Failed(error) => Err(error),
        FetchEnd::Done | FetchEnd::Shutdown => Ok(()),
    }
}

/// Dropped when a worker ends, or when its executor drops it.
struct WorkerEnd<T, R, C>(Arc<Engine<T, R, C>>);

impl<T, R, C> Drop for WorkerEnd<T, R, C> {
    fn drop(&mut self) {
        self.0.live.fetch_sub(1, Ordering::SeqCst);
        self.0.stats.progress.notify();
    }
}

impl<T, R, C> Engine<T, R, C> {
    pub(super) fn publish(&self, event: impl FnOnce() -> LoopEvent) {
        if let Some(dispatcher) = &self.options.dispatcher {
            dispatcher.publish(&event());
        }
    }

    /// Gives back the messages that no handler has begun. Returns the time until running handlers must have ended.
    fn stop(&self) -> Sleep {
        drop(self.buffer.close_and_drain());
        while self.buffer.resume() {}
        Sleep::for_(Arc::clone(&self.mailbox.core.clock), self.options.shutdown_timeout)
    }

    /// Waits, within limits, for the responses to the messages that were given back: a program may end right after its loop.
    async fn wait_for_returns(&self) {
        let progress = self.stats.progress.clone();
        let returned = async {
            while self.stats.returning.load(Ordering::SeqCst) > 0 {
                progress.wait().await;
            }
        };
        unless(Sleep::for_(Arc::clone(&self.mailbox.core.clock), RETURN_TIME), returned).await;
    }

    pub(super) fn accept(&self, message: Message<T, R, C>) {
        let core = &self.mailbox.core;
        self.stats.count(|report| &mut report.received);
        let renewal = self.renewal.add(message.receipt(), core.clock.now());
        let guard = ReturnGuard::new(core, message.receipt(), &self.stats);
        // The fetcher has received no more messages than fit.
        self.buffer.enqueue(InFlight { message, renewal, guard });
    }
}
