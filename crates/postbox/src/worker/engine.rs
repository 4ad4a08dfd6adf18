//! How a loop runs.
//!
//! One future fetches, into a bounded layer-1 mailbox; `concurrency` futures take from it and handle. What was fetched and
//! is not finished carries a guard that gives it back, so nothing stays leased behind a loop that ends, however it ends.

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

use super::fetcher::{End, apply, fetch};
use super::item::{GiveBack, Item};
use super::keeper::Keeper;
use super::tally::{Meters, Tally, count};
use super::{Control, Handling, LoopEvent, LoopOptions, LoopReport, Worker};
use crate::error::Error;
use crate::mailbox::Mailbox;
use crate::mailbox::codec::{Codec, Decode, Encode};
use crate::mailbox::message::Message;
use crate::mailbox::ranges::check_duration;
use crate::runtime::background;
use crate::runtime::cancellation::{Cancellation, unless};
use crate::runtime::clock::Sleep;

pub(super) struct Shared<T, R, C> {
    pub(super) mailbox: Mailbox<T, R, C>,
    pub(super) handler: Handling<T, R>,
    pub(super) options: LoopOptions<R, C>,
    pub(super) buffer: BoundedMailbox<Item<T, R, C>>,
    pub(super) is_shut_down: Arc<AtomicBool>,
    keeper: Arc<Keeper>,
    /// Workers that have not ended.
    live: AtomicUsize,
    /// Ends the workers at once.
    abort: Cancellation,
    pub(super) tally: Arc<Tally>,
    pub(super) meters: Meters,
}

pub(super) async fn run<T, R, C>(worker: Worker<T, R, C>) -> Result<LoopReport, Error>
where
    T: Send + 'static,
    R: Send + 'static,
    C: Codec + Encode<R> + Decode<T>,
{
    let Worker { mailbox, handler, options, handle } = worker;
    check(&mailbox, &options)?;
    // It keeps leases alive.
    background::start()?;
    let core = &mailbox.core;
    let shared = Arc::new(Shared {
        buffer: BoundedMailbox::new(options.concurrency + options.prefetch),
        is_shut_down: Arc::clone(&handle.is_shut_down),
        keeper: Keeper::start(Arc::clone(core), options.visibility, options.max_lease),
        live: AtomicUsize::new(options.concurrency),
        abort: Cancellation::new(),
        tally: Arc::default(),
        meters: Meters::new(core),
        handler,
        options,
        mailbox,
    });
    let _stop = StopOnDrop(shared.abort.clone());
    shared.tell(|| LoopEvent::Started { mailbox: shared.mailbox.name().clone() });
    let result = drive(&shared, &handle.control).await;
    shared.wait_for_returns().await;
    let report = shared.tally.report();
    shared.tell(|| LoopEvent::Stopped { report });
    result.map(|()| report)
}

/// Workers that were spawned elsewhere end with the loop.
struct StopOnDrop(Cancellation);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// More handlers, or more messages in advance, than any process has use for.
const MOST: usize = 1_000_000;

/// How long a loop that ends waits until what it gave back is given back.
const RETURN_TIME: Duration = Duration::from_secs(5);

fn check<T, R, C>(mailbox: &Mailbox<T, R, C>, options: &LoopOptions<R, C>) -> Result<(), Error> {
    let limits = mailbox.limits();
    for (parameter, value, least) in [("concurrency", options.concurrency, 1), ("prefetch", options.prefetch, 0)] {
        if !(least..=MOST).contains(&value) {
            return Err(Error::invalid(parameter, value, format!("{least} to {MOST}")));
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

async fn drive<T, R, C>(shared: &Arc<Shared<T, R, C>>, control: &UnboundedMailbox<Control>) -> Result<(), Error>
where
    T: Send + 'static,
    R: Send + 'static,
    C: Codec + Encode<R> + Decode<T>,
{
    let mut workers = Box::pin(all_workers(Arc::clone(shared)).fuse());
    let end = {
        let mut fetching = std::pin::pin!(fetch(shared, control));
        poll_fn(|context| {
            // Workers do not end while there is a fetcher, unless the executor that they were spawned on is gone.
            if workers.as_mut().poll(context).is_ready() {
                return Poll::Ready(End::Shutdown);
            }
            fetching.as_mut().poll(context)
        })
        .await
    };
    let mut deadline = match &end {
        End::Done => {
            shared.buffer.close();
            None
        }
        End::Shutdown | End::Failed(_) => Some(shared.stop()),
    };
    // What is left: handlers that run, and, unless it is a shutdown, messages that wait.
    loop {
        if workers.is_terminated() {
            return outcome(end);
        }
        match deadline.take() {
            None => {
                let mut told = None;
                unless(async { told = control.recv().await.ok() }, workers.as_mut()).await;
                match told {
                    Some(Control::Shutdown) => deadline = Some(shared.stop()),
                    other => apply(shared, other),
                }
            }
            Some(time) => {
                if unless(time, workers.as_mut()).await.is_none() {
                    let running = shared.tally.outstanding.load(Ordering::SeqCst);
                    let mailbox = shared.mailbox.name();
                    warn!(%mailbox, running, "handlers did not end in time; their messages are given back");
                    // Each worker ends at its next poll, and its guard gives the message back. One that blocks a thread
                    // of the user's executor is not waited for: its lease is not kept any more, and runs out.
                    shared.keeper.forget();
                    shared.abort.cancel();
                    let grace = Sleep::for_(Arc::clone(&shared.mailbox.core.clock), Duration::from_secs(1));
                    unless(grace, workers.as_mut()).await;
                    return outcome(end);
                }
            }
        }
    }
}

fn outcome(end: End) -> Result<(), Error> {
    match end {
        End::Failed(error) => Err(error),
        End::Done | End::Shutdown => Ok(()),
    }
}

async fn all_workers<T, R, C>(shared: Arc<Shared<T, R, C>>)
where
    T: Send + 'static,
    R: Send + 'static,
    C: Codec + Encode<R> + Decode<T>,
{
    let worker = || {
        let ended = EndOfWorker(Arc::clone(&shared));
        async move {
            let shared = &ended.0;
            unless(shared.abort.cancelled(), shared.work()).await;
        }
    };
    match &shared.options.spawn {
        None => {
            let mut workers: FuturesUnordered<_> = (0..shared.options.concurrency).map(|_| worker()).collect();
            while workers.next().await.is_some() {}
        }
        Some(spawn) => {
            (0..shared.options.concurrency).for_each(|_| spawn(Box::pin(worker())));
            // One handle for all waits: a notification between the look and the wait is not lost.
            let progress = shared.tally.progress.clone();
            while shared.live.load(Ordering::SeqCst) > 0 {
                progress.wait().await;
            }
        }
    }
}

/// A worker has ended, or its executor has dropped it.
struct EndOfWorker<T, R, C>(Arc<Shared<T, R, C>>);

impl<T, R, C> Drop for EndOfWorker<T, R, C> {
    fn drop(&mut self) {
        self.0.live.fetch_sub(1, Ordering::SeqCst);
        self.0.tally.progress.notify();
    }
}

impl<T, R, C> Shared<T, R, C> {
    pub(super) fn tell(&self, event: impl FnOnce() -> LoopEvent) {
        if let Some(dispatcher) = &self.options.dispatcher {
            dispatcher.publish(&event());
        }
    }

    /// Gives back what was not started. Returns the time that running handlers have.
    fn stop(&self) -> Sleep {
        drop(self.buffer.close_and_drain());
        while self.buffer.resume() {}
        Sleep::for_(Arc::clone(&self.mailbox.core.clock), self.options.shutdown_timeout)
    }

    /// Waits, within limits, until what was given back is back: a program may end right after its loop.
    async fn wait_for_returns(&self) {
        let progress = self.tally.progress.clone();
        let returned = async {
            while self.tally.returning.load(Ordering::SeqCst) > 0 {
                progress.wait().await;
            }
        };
        unless(Sleep::for_(Arc::clone(&self.mailbox.core.clock), RETURN_TIME), returned).await;
    }

    pub(super) fn take_in(&self, message: Message<T, R, C>) {
        let core = &self.mailbox.core;
        count(&self.tally.received);
        self.tally.outstanding.fetch_add(1, Ordering::SeqCst);
        let keeping = self.keeper.keep(message.receipt(), core.clock.now());
        let receipt = Some(message.receipt());
        let guard = GiveBack { core: Arc::clone(core), receipt, is_begun: false, tally: Arc::clone(&self.tally) };
        // There is room: only what fits was fetched.
        self.buffer.enqueue(Item { message, keeping, guard });
    }
}
