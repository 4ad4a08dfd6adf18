//! How a loop runs.
//!
//! One future fetches, into a bounded layer-1 mailbox; `concurrency` futures take from it and handle. What was fetched and
//! is not finished carries a guard that gives it back, so nothing stays leased behind a loop that ends, however it ends.

use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::FusedFuture as _;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use metrics::{Counter, Histogram};
use postbox_core::shared::mailbox::{MailboxSignal as _, Signal};
use postbox_core::{BoundedMailbox, Mailbox as _, UnboundedMailbox};
use rand::RngExt as _;
use tracing::{Instrument as _, debug, info_span, warn};

use super::context::{Context, Inner};
use super::handler::{HandlerError, Next};
use super::keeper::{Keeper, Keeping};
use super::{Control, Handling, LoopEvent, LoopOptions, LoopReport, Worker};
use crate::backend::{Batch, Receipt, Visibility};
use crate::cancellation::{Cancellation, unless};
use crate::clock::Sleep;
use crate::codec::{Codec, Decode, Encode};
use crate::core::{Core, check_duration};
use crate::error::Error;
use crate::id::MessageId;
use crate::mailbox::Mailbox;
use crate::message::{Lease, Message};
use crate::receive::in_background;
use crate::trace::InTrace;

struct Shared<T, R, C> {
    mailbox: Mailbox<T, R, C>,
    handler: Handling<T, R>,
    options: LoopOptions<R, C>,
    buffer: BoundedMailbox<Item<T, R, C>>,
    keeper: Arc<Keeper>,
    /// Fetched and not yet finished.
    outstanding: AtomicUsize,
    /// Workers that have not ended.
    live: AtomicUsize,
    /// Rung when a message is finished or a worker ends.
    progress: Signal,
    /// Ends the workers at once.
    abort: Cancellation,
    tally: Arc<Tally>,
    meters: Meters,
}

#[derive(Default)]
struct Tally {
    iterations: AtomicU64,
    received: AtomicU64,
    succeeded: AtomicU64,
    retried: AtomicU64,
    dead_lettered: AtomicU64,
    given_back: AtomicU64,
    unfinished: AtomicU64,
    receive_errors: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Tally {
    fn report(&self) -> LoopReport {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LoopReport {
            iterations: read(&self.iterations),
            received: read(&self.received),
            succeeded: read(&self.succeeded),
            retried: read(&self.retried),
            dead_lettered: read(&self.dead_lettered),
            given_back: read(&self.given_back),
            unfinished: read(&self.unfinished),
            receive_errors: read(&self.receive_errors),
        }
    }
}

struct Meters {
    succeeded: Counter,
    failed: Counter,
    took: Histogram,
}

impl Meters {
    fn new(core: &Core) -> Self {
        let mailbox = core.name.to_string();
        Meters {
            succeeded: metrics::counter!("postbox_handled_total", "mailbox" => mailbox.clone(), "outcome" => "succeeded"),
            failed: metrics::counter!("postbox_handled_total", "mailbox" => mailbox.clone(), "outcome" => "failed"),
            took: metrics::histogram!("postbox_handler_seconds", "mailbox" => mailbox),
        }
    }
}

/// A message that was fetched.
struct Item<T, R, C> {
    message: Message<T, R, C>,
    keeping: Keeping,
    guard: GiveBack,
}

/// Gives a message back when it is dropped, unless it is being finished.
struct GiveBack {
    core: Arc<Core>,
    receipt: Option<Receipt>,
    tally: Arc<Tally>,
}

impl Drop for GiveBack {
    fn drop(&mut self) {
        if let Some(receipt) = self.receipt.take() {
            count(&self.tally.given_back);
            in_background(self.core.set_visibility(Batch::from_buf([(receipt, Visibility::Return(Duration::ZERO))])));
        }
    }
}

/// Why fetching has ended.
enum End {
    /// Everything that was fetched is to be handled.
    Done,
    /// What was not started is to be given back.
    Shutdown,
    Failed(Error),
}

pub(super) async fn run<T, R, C>(worker: Worker<T, R, C>) -> Result<LoopReport, Error>
where
    T: Send + 'static,
    R: Send + 'static,
    C: Codec + Encode<R> + Decode<T>,
{
    let Worker { mailbox, handler, options, handle } = worker;
    check(&mailbox, &options)?;
    let core = &mailbox.core;
    let shared = Arc::new(Shared {
        buffer: BoundedMailbox::new(options.concurrency + options.prefetch),
        keeper: Keeper::start(Arc::clone(core), options.visibility, options.max_lease),
        outstanding: AtomicUsize::new(0),
        live: AtomicUsize::new(options.concurrency),
        progress: Signal::new(),
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

fn check<T, R, C>(mailbox: &Mailbox<T, R, C>, options: &LoopOptions<R, C>) -> Result<(), Error> {
    let limits = mailbox.limits();
    if options.concurrency == 0 {
        return Err(Error::invalid("concurrency", 0, "1 or more"));
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
                    let running = shared.outstanding.load(Ordering::SeqCst);
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

fn apply<T, R, C>(shared: &Shared<T, R, C>, control: Option<Control>) {
    match control {
        Some(Control::Pause) if !shared.buffer.is_suspended() => shared.buffer.suspend(),
        Some(Control::Resume) => while shared.buffer.resume() {},
        _ => {}
    }
}

async fn fetch<T, R, C>(shared: &Arc<Shared<T, R, C>>, control: &UnboundedMailbox<Control>) -> End
where
    T: Send + 'static,
    R: Send + 'static,
    C: Codec + Encode<R> + Decode<T>,
{
    let (options, core) = (&shared.options, &shared.mailbox.core);
    let capacity = options.concurrency + options.prefetch;
    let mut failures = 0;
    let mut told = None;
    loop {
        // What was said goes before what there is to do.
        while let Some(control) = told.take().or_else(|| control.dequeue()) {
            if control == Control::Shutdown {
                return End::Shutdown;
            }
            apply(shared, Some(control));
        }
        if shared.buffer.is_suspended() {
            told = control.recv().await.ok();
            continue;
        }
        if options.max_iterations.is_some_and(|most| shared.tally.iterations.load(Ordering::Relaxed) >= most) {
            return End::Done;
        }
        let room = capacity - shared.outstanding.load(Ordering::SeqCst).min(capacity);
        if room == 0 {
            unless(async { told = control.recv().await.ok() }, shared.progress.wait()).await;
            continue;
        }
        let receive = shared
            .mailbox
            .receive()
            .max_messages(room.min(core.limits.max_batch))
            .visibility_timeout(options.visibility)
            .wait_time(options.wait);
        let result = unless(async { told = control.recv().await.ok() }, receive.into_future()).await;
        let Some(result) = result else { continue };
        count(&shared.tally.iterations);
        match result {
            Ok(messages) => {
                failures = 0;
                messages.into_iter().for_each(|message| shared.take_in(message));
            }
            Err(Error::Closed { .. }) => return End::Done,
            Err(error @ Error::InvalidParameter { .. }) => return End::Failed(error),
            Err(error) => {
                count(&shared.tally.receive_errors);
                warn!(mailbox = %core.name, %error, "receiving failed; trying again");
                shared.tell(|| LoopEvent::ReceiveFailed { error: error.to_string() });
                // A body that cannot be decoded is leased and away; there may be others at once.
                if !matches!(error, Error::Serialization { .. }) {
                    failures += 1;
                    let pause = Sleep::for_(Arc::clone(&core.clock), pause_after(failures));
                    unless(async { told = control.recv().await.ok() }, pause).await;
                }
            }
        }
    }
}

/// From 50 to 100 milliseconds, doubling up to half a minute, and never the same for two loops.
fn pause_after(failures: u32) -> Duration {
    let longest = Duration::from_millis(100).saturating_mul(1 << failures.clamp(1, 9)).min(Duration::from_secs(30));
    longest.mul_f64(rand::rng().random_range(0.5..1.0))
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
            let progress = shared.progress.clone();
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
        self.0.progress.notify();
    }
}

/// A message is out of the loop, however it ended.
struct Finished<'a, T, R, C>(&'a Shared<T, R, C>);

impl<T, R, C> Drop for Finished<'_, T, R, C> {
    fn drop(&mut self) {
        self.0.outstanding.fetch_sub(1, Ordering::SeqCst);
        self.0.progress.notify();
    }
}

impl<T, R, C> Shared<T, R, C> {
    fn tell(&self, event: impl FnOnce() -> LoopEvent) {
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

    fn take_in(&self, message: Message<T, R, C>) {
        let core = &self.mailbox.core;
        count(&self.tally.received);
        self.outstanding.fetch_add(1, Ordering::SeqCst);
        let keeping = self.keeper.keep(message.receipt(), core.clock.now());
        let receipt = Some(message.receipt());
        let guard = GiveBack { core: Arc::clone(core), receipt, tally: Arc::clone(&self.tally) };
        // There is room: only what fits was fetched.
        self.buffer.enqueue(Item { message, keeping, guard });
    }
}

impl<T, R, C> Shared<T, R, C>
where
    T: Send + 'static,
    R: Send + 'static,
    C: Codec + Encode<R> + Decode<T>,
{
    async fn work(&self) {
        while let Ok(item) = self.buffer.recv().await {
            let _finished = Finished(self);
            // What the answer is sent with belongs to the trace of the message too.
            let trace = item.message.trace_context().map(|context| context.child());
            InTrace::new(trace, self.process(item)).await;
        }
    }

    async fn process(&self, item: Item<T, R, C>) {
        let Item { message, keeping, mut guard } = item;
        let context = Context::new(Inner {
            message_id: message.id.clone(),
            delivery_count: message.delivery_count,
            enqueued_at: message.enqueued_at,
            attributes: message.attributes.clone(),
            reply_to: message.reply_to.clone(),
            cancellation: keeping.lost.clone(),
            resources: self.options.resources.clone(),
            request: None,
        });
        let span = info_span!(
            "postbox.handle",
            mailbox = %self.mailbox.name(),
            id = %message.id,
            delivery_count = message.delivery_count,
            traceparent = message.attributes.get(crate::trace::TRACEPARENT).map(String::as_str),
        );
        let clock = &self.mailbox.core.clock;
        let start = clock.now();
        let (body, lease) = message.into_parts();
        let handling = async { (self.handler)(body, context).await };
        let handled = AssertUnwindSafe(handling).catch_unwind().instrument(span).await;
        let took = start.until(clock.now());
        self.meters.took.record(took.as_secs_f64());
        // From here on it is finished, not given back.
        guard.receipt = None;
        match handled {
            Ok(Ok(answer)) => {
                self.meters.succeeded.increment(1);
                self.tell(|| LoopEvent::Succeeded { id: lease.id.clone(), took });
                self.answer(&lease, answer).await;
            }
            Ok(Err(error)) => self.failed(&lease, error).await,
            Err(panic) => self.failed(&lease, HandlerError::from_panic(&*panic)).await,
        }
        drop(keeping);
    }

    /// Sends the answer to whom it may concern, and finishes the message.
    async fn answer(&self, lease: &Lease<R, C>, answer: R) {
        let sent = if lease.expects_reply() {
            match lease.reply(&answer).await {
                // It is acknowledged by this.
                Ok(()) => return count(&self.tally.succeeded),
                Err(
                    error
                    @ (Error::ReplyAlreadySent { .. } | Error::ReplyCancelled { .. } | Error::ReplyExpired { .. }),
                ) => {
                    debug!(id = %lease.id, %error, "the answer is not wanted any more; the message is finished");
                    return count(&self.tally.succeeded);
                }
                Err(error) => Err(error),
            }
        } else if lease.reply_to.is_some() {
            match lease.reply_mailbox().await {
                Ok(mailbox) => mailbox.send(&answer).await.map(|_| ()),
                Err(error) => Err(error),
            }
        } else if let Some(responses) = &self.options.responses {
            responses.send(&answer).await.map(|_| ())
        } else {
            if self.options.warns {
                warn!(id = %lease.id, "the answer has no address: no reply channel, no reply_to, no responses mailbox");
            }
            Ok(())
        };
        match sent {
            Ok(()) => match lease.acknowledge().await {
                Ok(()) => count(&self.tally.succeeded),
                Err(error) => self.unfinished(&lease.id, &error),
            },
            Err(error @ Error::ReceiptHandleExpired { .. }) => self.unfinished(&lease.id, &error),
            Err(error) => {
                warn!(id = %lease.id, %error, "the answer could not be sent; the message is tried again");
                self.tell(|| LoopEvent::AnswerFailed { id: lease.id.clone(), error: error.to_string() });
                self.give_back(lease, self.options.backoff.after(lease.delivery_count)).await;
            }
        }
    }

    async fn failed(&self, lease: &Lease<R, C>, error: HandlerError) {
        let (id, delivery_count) = (&lease.id, lease.delivery_count);
        self.meters.failed.increment(1);
        warn!(mailbox = %self.mailbox.name(), %id, delivery_count, %error, "the handler failed");
        self.tell(|| LoopEvent::Failed { id: id.clone(), delivery_count, error: error.to_string() });
        let is_last = self.options.max_attempts.is_some_and(|most| delivery_count >= most);
        let after = match error.next {
            Next::DeadLetter => None,
            _ if is_last => None,
            Next::RetryAfter(after) => Some(after),
            Next::Retry => Some(self.options.backoff.after(delivery_count)),
        };
        match after {
            Some(after) => self.give_back(lease, after).await,
            None => match lease.dead_letter(error.to_string()).await {
                Ok(()) => count(&self.tally.dead_lettered),
                Err(error) => self.unfinished(id, &error),
            },
        }
    }

    async fn give_back(&self, lease: &Lease<R, C>, after: Duration) {
        let after = after.min(self.mailbox.limits().max_visibility);
        match lease.nack().visibility_timeout(after).await {
            Ok(()) => count(&self.tally.retried),
            Err(error) => self.unfinished(&lease.id, &error),
        }
    }

    fn unfinished(&self, id: &MessageId, error: &Error) {
        count(&self.tally.unfinished);
        warn!(mailbox = %self.mailbox.name(), %id, %error, "the message could not be finished; it will come back");
        self.tell(|| LoopEvent::Unfinished { id: id.clone(), error: error.to_string() });
    }
}
