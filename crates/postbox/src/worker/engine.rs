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
use tracing::{Instrument as _, debug, info_span, warn};

use super::context::{Context, Inner};
use super::handler::{HandlerError, Next};
use super::keeper::{Keeper, Keeping};
use super::{Backoff, Control, Handling, LoopEvent, LoopOptions, LoopReport, Worker};
use crate::backend::{Batch, Receipt, Visibility, only};
use crate::cancellation::{Cancellation, unless, yield_now};
use crate::clock::Sleep;
use crate::codec::{Codec, Decode, Encode};
use crate::core::{Core, check_duration};
use crate::error::Error;
use crate::id::MessageId;
use crate::mailbox::Mailbox;
use crate::message::{Lease, Message};
use crate::receive::{in_background, pause_after};
use crate::trace::InTrace;

struct Shared<T, R, C> {
    mailbox: Mailbox<T, R, C>,
    handler: Handling<T, R>,
    options: LoopOptions<R, C>,
    buffer: BoundedMailbox<Item<T, R, C>>,
    keeper: Arc<Keeper>,
    /// Workers that have not ended.
    live: AtomicUsize,
    /// Ends the workers at once.
    abort: Cancellation,
    tally: Arc<Tally>,
    meters: Meters,
}

/// What is going on, and what was done; it outlives the loop for the sake of guards.
#[derive(Default)]
struct Tally {
    /// Fetched and not yet finished.
    outstanding: AtomicUsize,
    /// Being given back.
    returning: AtomicUsize,
    /// Rung when a message is finished or given back, or a worker ends.
    progress: Signal,
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

/// Gives a message back when it is dropped, unless it was finished. In any case it is out of the loop then.
struct GiveBack {
    core: Arc<Core>,
    receipt: Option<Receipt>,
    tally: Arc<Tally>,
}

impl Drop for GiveBack {
    fn drop(&mut self) {
        if let Some(receipt) = self.receipt.take() {
            let tally = Arc::clone(&self.tally);
            tally.returning.fetch_add(1, Ordering::SeqCst);
            let back = self.core.set_visibility(Batch::from_buf([(receipt, Visibility::Return(Duration::ZERO))]));
            in_background(back.map(only).map(move |back| {
                if back.is_ok() {
                    count(&tally.given_back);
                }
                tally.returning.fetch_sub(1, Ordering::SeqCst);
                tally.progress.notify();
            }));
        }
        self.tally.outstanding.fetch_sub(1, Ordering::SeqCst);
        self.tally.progress.notify();
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
    // A batch may have several messages of one group, and handlers that run at once would not keep their order.
    let batch = match core.limits.ordering {
        crate::backend::Ordering::FifoPerGroup if options.concurrency > 1 => 1,
        _ => core.limits.max_batch,
    };
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
        let room = capacity - shared.tally.outstanding.load(Ordering::SeqCst).min(capacity);
        if room == 0 {
            unless(async { told = control.recv().await.ok() }, shared.tally.progress.wait()).await;
            continue;
        }
        let receive = shared
            .mailbox
            .receive()
            .max_messages(room.min(batch))
            .visibility_timeout(options.visibility)
            .wait_time(options.wait);
        let result = unless(async { told = control.recv().await.ok() }, receive.into_future()).await;
        let Some(result) = result else { continue };
        count(&shared.tally.iterations);
        match result {
            Ok(messages) => {
                failures = 0;
                let is_idle = messages.is_empty();
                messages.into_iter().for_each(|message| shared.take_in(message));
                if is_idle && options.wait.is_zero() && options.max_iterations.is_none() {
                    let pause = Sleep::for_(Arc::clone(&core.clock), IDLE);
                    unless(async { told = control.recv().await.ok() }, pause).await;
                }
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
        // A backend may answer at once, time after time: handlers and the executor's other tasks have their turn.
        yield_now().await;
    }
}

/// Between two looks of a loop that does not wait.
const IDLE: Duration = Duration::from_millis(10);

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

    fn take_in(&self, message: Message<T, R, C>) {
        let core = &self.mailbox.core;
        count(&self.tally.received);
        self.tally.outstanding.fetch_add(1, Ordering::SeqCst);
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
            // What the answer is sent with belongs to the trace of the message too.
            let attributes = item.message.attributes.clone();
            InTrace::of(&attributes, self.process(item)).await;
        }
    }

    async fn process(&self, item: Item<T, R, C>) {
        let Item { message, keeping, mut guard } = item;
        if keeping.lost.is_cancelled() {
            // Lost before it was its turn: somebody else may have it.
            guard.receipt = None;
            let error = Error::ReceiptHandleExpired { id: message.id.clone() };
            return self.unfinished(&message.id, &error);
        }
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
        let finishing = async {
            match handled {
                Ok(Ok(answer)) => {
                    self.meters.succeeded.increment(1);
                    self.tell(|| LoopEvent::Succeeded { id: lease.id.clone(), took });
                    self.answer(&lease, answer).await;
                }
                Ok(Err(error)) => self.failed(&lease, error).await,
                Err(panic) => self.failed(&lease, HandlerError::from_panic(&*panic)).await,
            }
        };
        // Encoding the answer and the rule of the backoff are code of the user's, too.
        if let Err(panic) = AssertUnwindSafe(finishing).catch_unwind().await {
            let error = HandlerError::from_panic(&*panic);
            warn!(mailbox = %self.mailbox.name(), id = %lease.id, %error, "finishing failed");
            self.tell(|| LoopEvent::AnswerFailed { id: lease.id.clone(), error: error.to_string() });
            self.retry(&lease, &error.to_string(), Backoff::default().after(lease.delivery_count)).await;
        }
        // Until here an end of the loop would have given it back.
        guard.receipt = None;
        drop(keeping);
    }

    /// Sends the answer to whom it may concern, and finishes the message.
    async fn answer(&self, lease: &Lease<R, C>, answer: R) {
        let (sent, answer) = self.send(lease, answer).await;
        let sent = match (sent, &self.options.substitute) {
            // What cannot be encoded will not be encoded next time either.
            (Err(Error::Serialization { reason, .. }), Some(substitute)) => {
                let instead = substitute(&answer, &reason);
                self.send(lease, instead).await.0
            }
            (sent, _) => sent,
        };
        match sent {
            Ok(true) => count(&self.tally.succeeded),
            Ok(false) => match lease.acknowledge().await {
                Ok(()) => count(&self.tally.succeeded),
                Err(error) => self.unfinished(&lease.id, &error),
            },
            Err(error @ Error::ReceiptHandleExpired { .. }) => self.unfinished(&lease.id, &error),
            Err(error) => {
                warn!(id = %lease.id, %error, "the answer could not be sent");
                self.tell(|| LoopEvent::AnswerFailed { id: lease.id.clone(), error: error.to_string() });
                match error {
                    Error::Serialization { reason, .. } => self.bury(lease, &reason).await,
                    error => {
                        let after = self.options.backoff.after(lease.delivery_count);
                        self.retry(lease, &error.to_string(), after).await;
                    }
                }
            }
        }
    }

    /// Sends the answer, and gives it back. `true` if the message is finished by that.
    async fn send(&self, lease: &Lease<R, C>, answer: R) -> (Result<bool, Error>, R) {
        let sent = if lease.expects_reply() {
            match lease.reply(&answer).await {
                Err(
                    error
                    @ (Error::ReplyAlreadySent { .. } | Error::ReplyCancelled { .. } | Error::ReplyExpired { .. }),
                ) => {
                    debug!(id = %lease.id, %error, "the answer is not wanted any more; the message is finished");
                    Ok(true)
                }
                replied => replied.map(|()| true),
            }
        } else if lease.reply_to.is_some() {
            match lease.reply_mailbox().await {
                Ok(mailbox) => mailbox.send(&answer).await.map(|_| false),
                Err(error) => Err(error),
            }
        } else if let Some(responses) = &self.options.responses {
            responses.send(&answer).await.map(|_| false)
        } else {
            if self.options.warns {
                warn!(id = %lease.id, "the answer has no address: no reply channel, no reply_to, no responses mailbox");
            }
            Ok(false)
        };
        (sent, answer)
    }

    async fn failed(&self, lease: &Lease<R, C>, error: HandlerError) {
        let (id, delivery_count) = (&lease.id, lease.delivery_count);
        self.meters.failed.increment(1);
        warn!(mailbox = %self.mailbox.name(), %id, delivery_count, %error, "the handler failed");
        self.tell(|| LoopEvent::Failed { id: id.clone(), delivery_count, error: error.to_string() });
        match error.next {
            Next::DeadLetter => self.bury(lease, &error.to_string()).await,
            Next::RetryAfter(after) => self.retry(lease, &error.to_string(), after).await,
            Next::Retry => self.retry(lease, &error.to_string(), self.options.backoff.after(delivery_count)).await,
        }
    }

    /// Gives the message back, unless this was its last attempt.
    async fn retry(&self, lease: &Lease<R, C>, reason: &str, after: Duration) {
        if self.options.max_attempts.is_some_and(|most| lease.delivery_count >= most) {
            return self.bury(lease, reason).await;
        }
        let after = after.min(self.mailbox.limits().max_visibility);
        match lease.nack().visibility_timeout(after).await {
            Ok(()) => count(&self.tally.retried),
            Err(error) => self.unfinished(&lease.id, &error),
        }
    }

    async fn bury(&self, lease: &Lease<R, C>, reason: &str) {
        match lease.dead_letter(reason).await {
            Ok(()) => count(&self.tally.dead_lettered),
            Err(error) => self.unfinished(&lease.id, &error),
        }
    }

    fn unfinished(&self, id: &MessageId, error: &Error) {
        count(&self.tally.unfinished);
        warn!(mailbox = %self.mailbox.name(), %id, %error, "the message could not be finished; it will come back");
        self.tell(|| LoopEvent::Unfinished { id: id.clone(), error: error.to_string() });
    }
}
