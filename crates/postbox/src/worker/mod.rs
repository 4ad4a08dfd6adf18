//! Loops that receive messages and call a handler for each.

pub(crate) mod actor_worker;
mod attempt;
mod backoff;
mod context;
mod engine;
mod fetcher;
mod handler;
mod in_flight;
mod lease_renewal;
pub(crate) mod main_loop;
pub(crate) mod resources;
mod stats;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use postbox_core::{Mailbox as _, UnboundedMailbox};

pub use self::actor_worker::ActorWorker;
pub use self::backoff::Backoff;
pub(crate) use self::context::RequestContext;
pub use self::context::{BudgetExceeded, Context};
pub use self::handler::{Handler, HandlerError};
pub use self::main_loop::{Budget, MainLoop, MainLoopRequest, MainLoopResult, RemoteError};
pub use self::resources::Resources;
use crate::error::Error;
use crate::mailbox::Mailbox;
use crate::mailbox::codec::{Codec, Decode, Encode, Json};
use crate::mailbox::dispatcher::Dispatcher;
use crate::mailbox::id::MessageId;
use crate::mailbox::operation::{Answer, Verb, awaitable};
pub use crate::runtime::cancellation::{Cancellation, Cancelled};

/// Calls a handler for each message of a mailbox. It extends the leases of the messages, sends the answers, and finishes
/// the messages.
///
/// The answer goes to the reply channel if the message has one, else to its `reply_to`, else to
/// [`responses`](Self::responses), else nowhere. If the handler fails or panics, the message is delivered again after a
/// [backoff](Self::backoff). When the [attempts](Self::max_attempts) are used up, it becomes a dead letter.
///
/// ```
/// use postbox::{Context, HandlerError, Mailbox, Worker};
///
/// # postbox_core::wait_for(async {
/// let jobs: Mailbox<String, usize> = postbox::open("memory://doc-worker").await?;
/// let reply = jobs.send_expecting_reply("hello").await?;
/// jobs.send(&String::new()).await?;
///
/// let worker = Worker::new(&jobs, |job: String, _context: Context| async move {
///     if job.is_empty() {
///         return Err(HandlerError::permanent("an empty job"));
///     }
///     Ok(job.len())
/// });
/// let report = worker.concurrency(4).max_iterations(1).run().await?;
///
/// assert_eq!(reply.wait().await?, 5);
/// assert_eq!((report.succeeded, report.dead_lettered), (1, 1));
/// assert_eq!(jobs.dead_letters().list(10).await?[0].reason, "an empty job");
/// # Ok::<(), postbox::Error>(())
/// # }).unwrap();
/// ```
///
/// The loop is one future for any executor, or blocks a thread: `run().blocking()`. Handlers run concurrently within that
/// future, or in parallel with [`spawn_on`](Self::spawn_on). Dropping the future gives back the messages in flight.
#[must_use = "a worker does nothing unless it is run"]
pub struct Worker<T, R = (), C = Json> {
    pub(crate) mailbox: Mailbox<T, R, C>,
    pub(crate) handler: HandlerFn<T, R>,
    pub(crate) options: LoopOptions<R, C>,
    handle: LoopHandle,
}

/// A handler of any type.
pub(crate) type HandlerFn<T, R> =
    Arc<dyn Fn(T, Context) -> Pin<Box<dyn Future<Output = Result<R, HandlerError>> + Send>> + Send + Sync>;

type Substitute<R> = Arc<dyn Fn(&R, &str) -> R + Send + Sync>;

type Spawn = Arc<dyn Fn(Pin<Box<dyn Future<Output = ()> + Send>>) + Send + Sync>;

pub(crate) struct LoopOptions<R, C> {
    pub(crate) concurrency: usize,
    pub(crate) prefetch: usize,
    pub(crate) visibility: Duration,
    pub(crate) wait: Duration,
    pub(crate) max_lease: Duration,
    pub(crate) max_iterations: Option<u64>,
    pub(crate) max_attempts: Option<u32>,
    pub(crate) backoff: Backoff,
    pub(crate) shutdown_timeout: Duration,
    pub(crate) responses: Option<Mailbox<R, (), C>>,
    /// Whether an answer without an address is logged as a warning.
    pub(crate) warns: bool,
    /// Makes the answer that is sent in place of one that cannot be encoded. It gets the reason.
    pub(crate) substitute: Option<Substitute<R>>,
    pub(crate) resources: Resources,
    pub(crate) dispatcher: Option<Dispatcher>,
    pub(crate) spawn: Option<Spawn>,
}

impl<T, R, C> Worker<T, R, C>
where
    T: Send + 'static,
    R: Send + 'static,
    C: Codec + Encode<R> + Decode<T>,
{
    /// Feeds an async function.
    pub fn new<F, A, E>(mailbox: &Mailbox<T, R, C>, handler: F) -> Self
    where
        F: Fn(T, Context) -> A + Send + Sync + 'static,
        A: Future<Output = Result<R, E>> + Send + 'static,
        E: fmt::Display + Send + 'static,
    {
        Self::with_handler(mailbox, handler)
    }

    /// Feeds a [`Handler`].
    pub fn with_handler<H>(mailbox: &Mailbox<T, R, C>, handler: H) -> Self
    where
        H: Handler<T, Output = R>,
    {
        let handler = Arc::new(handler);
        let handler_fn: HandlerFn<T, R> = Arc::new(move |body, context| {
            let handler = Arc::clone(&handler);
            Box::pin(async move { handler.handle(body, context).await.map_err(HandlerError::from_any) })
        });
        Self::with_handler_fn(mailbox.clone(), handler_fn)
    }

    pub(crate) fn with_handler_fn(mailbox: Mailbox<T, R, C>, handler: HandlerFn<T, R>) -> Self {
        let limits = mailbox.limits();
        let options = LoopOptions {
            concurrency: 1,
            prefetch: 0,
            visibility: Duration::from_secs(300).min(limits.max_visibility),
            wait: Duration::from_secs(20).min(limits.max_wait),
            max_lease: Duration::from_secs(12 * 60 * 60),
            max_iterations: None,
            max_attempts: None,
            backoff: Backoff::default(),
            shutdown_timeout: Duration::from_secs(30),
            responses: None,
            warns: false,
            substitute: None,
            resources: Resources::new(),
            dispatcher: mailbox.core.dispatcher.clone(),
            spawn: None,
        };
        Worker { mailbox, handler, options, handle: LoopHandle::new() }
    }
}

/// The options of all loops.
macro_rules! loop_options {
    ($($path:ident).+) => {
        /// How many handlers run at a time. 1 unless it is set.
        pub fn concurrency(mut self, handlers: usize) -> Self {
            self.$($path).+.concurrency = handlers;
            self
        }

        /// How many messages are fetched in advance. Their leases are extended. 0 unless it is set.
        pub fn prefetch(mut self, messages: usize) -> Self {
            self.$($path).+.prefetch = messages;
            self
        }

        /// The lease of each message. It is extended while the handler runs. If the process dies, the message is delivered
        /// again after at most this time. 300 seconds unless it is set.
        pub fn visibility_timeout(mut self, timeout: Duration) -> Self {
            self.$($path).+.visibility = timeout;
            self
        }

        /// How long one receive waits. With zero the loop receives a hundred times a second. 20 seconds unless it is set.
        pub fn wait_time(mut self, wait: Duration) -> Self {
            self.$($path).+.wait = wait;
            self
        }

        /// The longest time for which a lease is extended. Then the [cancellation](Context::cancellation) of the handler
        /// is raised. 12 hours unless it is set.
        pub fn max_lease(mut self, cap: Duration) -> Self {
            self.$($path).+.max_lease = cap;
            self
        }

        /// Ends the loop after this number of receives, empty ones included, when their messages are handled.
        pub fn max_iterations(mut self, receives: u64) -> Self {
            self.$($path).+.max_iterations = Some(receives);
            self
        }

        /// How long a message that could not be handled or answered stays invisible.
        pub fn backoff(mut self, backoff: Backoff) -> Self {
            self.$($path).+.backoff = backoff;
            self
        }

        /// How long handlers may run after a shutdown. Then their messages are given back. 30 seconds unless it is set.
        pub fn shutdown_timeout(mut self, timeout: Duration) -> Self {
            self.$($path).+.shutdown_timeout = timeout;
            self
        }

        /// The resources that handlers find in their [`Context`].
        pub fn resources(mut self, resources: Resources) -> Self {
            self.$($path).+.resources = resources;
            self
        }

        /// The dispatcher for the events of the loop. The one of the mailbox unless it is set.
        pub fn dispatcher(mut self, dispatcher: &Dispatcher) -> Self {
            self.$($path).+.dispatcher = Some(dispatcher.clone());
            self
        }

        /// Runs handlers as tasks of an executor, in parallel: `.spawn_on(|task| { tokio::spawn(task); })`.
        pub fn spawn_on(
            mut self,
            spawn: impl Fn(std::pin::Pin<Box<dyn std::future::Future<Output = ()> + Send>>) + Send + Sync + 'static,
        ) -> Self {
            self.$($path).+.spawn = Some(std::sync::Arc::new(spawn));
            self
        }
    };
}
pub(crate) use loop_options;

impl<T, R, C> Worker<T, R, C> {
    loop_options!(options);

    /// The number of deliveries after which a message becomes a dead letter if its handler fails, or its answer cannot be
    /// sent. The error is the reason.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.options.max_attempts = Some(attempts);
        self
    }

    /// The mailbox for the answers to messages without an address.
    pub fn responses(mut self, responses: &Mailbox<R, (), C>) -> Self {
        self.options.responses = Some(responses.clone());
        self
    }

    /// Controls the loop while it runs.
    pub fn handle(&self) -> LoopHandle {
        self.handle.clone()
    }

    /// Runs until it is shut down, the mailbox is closed, or its iterations are done.
    ///
    /// # Errors
    /// [`InvalidParameter`](Error::InvalidParameter) for an option that the mailbox does not allow. Failures of `receive`
    /// do not end it.
    pub fn run(self) -> RunLoop<T, R, C> {
        RunLoop { worker: self }
    }
}

impl<T, R, C> fmt::Debug for Worker<T, R, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("mailbox", &self.mailbox).finish_non_exhaustive()
    }
}

/// A loop to run: [`Worker::run`].
#[must_use = "a loop does nothing unless it is awaited, or `blocking`"]
pub struct RunLoop<T, R, C> {
    worker: Worker<T, R, C>,
}

impl<T, R, C> fmt::Debug for RunLoop<T, R, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.worker.fmt(f)
    }
}

impl<T, R, C> Verb for RunLoop<T, R, C>
where
    T: Send + 'static,
    R: Send + 'static,
    C: Codec + Encode<R> + Decode<T>,
{
    type Output = Result<LoopReport, Error>;

    fn start(self) -> Answer<Self::Output> {
        Answer::from_future(engine::run(self.worker))
    }
}

awaitable!(RunLoop<T, R, C> where T: Send + 'static, R: Send + 'static, C: Codec + Encode<R> + Decode<T>);

/// A command of a [`LoopHandle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    Pause,
    Resume,
    Shutdown,
}

/// Controls a running loop: [`Worker::handle`]. Commands that come before the loop runs are kept.
///
/// ```
/// # let jobs: postbox::Mailbox<u32> = postbox::open("memory://doc-handle").blocking()?;
/// # use postbox::{Context, Worker};
/// let worker = Worker::new(&jobs, |_: u32, _: Context| async { Ok::<_, String>(()) });
/// let handle = worker.handle();
/// let running = std::thread::spawn(move || worker.run().blocking());
/// handle.shutdown(); // lets running handlers end, gives back the other messages
/// running.join().unwrap()?;
/// # Ok::<(), postbox::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct LoopHandle {
    control: UnboundedMailbox<Control>,
    /// Whether the loop shuts down: then no handler begins.
    is_shut_down: Arc<AtomicBool>,
}

impl LoopHandle {
    fn new() -> Self {
        LoopHandle { control: UnboundedMailbox::new(), is_shut_down: Arc::default() }
    }

    /// Stops fetching. Handlers may run until the shutdown timeout, and the other messages are given back.
    pub fn shutdown(&self) {
        self.is_shut_down.store(true, Ordering::SeqCst);
        self.control.enqueue(Control::Shutdown);
    }

    /// Begins no handler until [`resume`](Self::resume). Running handlers continue.
    pub fn pause(&self) {
        self.control.enqueue(Control::Pause);
    }

    /// Ends a pause.
    pub fn resume(&self) {
        self.control.enqueue(Control::Resume);
    }
}

/// The counts of a loop that has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoopReport {
    /// Receives, empty ones included.
    pub iterations: u64,
    /// Messages that were received.
    pub received: u64,
    /// Messages that were handled and finished.
    pub succeeded: u64,
    /// Messages that will be delivered again, since the handler failed or panicked, or the answer could not be sent.
    pub retried: u64,
    /// Messages that became dead letters.
    pub dead_lettered: u64,
    /// Messages that were given back: not handled, or by [`HandlerError::give_back`] or [`HandlerError::release`].
    pub given_back: u64,
    /// Messages that could not be finished, since the lease was lost or the store could not be reached.
    pub unfinished: u64,
    /// Receives that failed.
    pub receive_errors: u64,
}

/// An event of a loop, for a [`Dispatcher`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the fields say what they are")]
pub enum LoopEvent {
    /// The loop runs.
    Started { mailbox: crate::resolver::address::MailboxName },
    /// A handler succeeded.
    Succeeded { id: MessageId, took: Duration },
    /// A handler failed.
    Failed { id: MessageId, delivery_count: u32, error: String },
    /// An answer could not be sent.
    AnswerFailed { id: MessageId, error: String },
    /// A message could not be finished.
    Unfinished { id: MessageId, error: String },
    /// A receive failed; the loop tries again.
    ReceiveFailed { error: String },
    /// The loop has ended.
    Stopped { report: LoopReport },
}
