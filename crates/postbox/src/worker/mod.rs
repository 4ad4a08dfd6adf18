//! The loop that feeds a handler from a mailbox.

pub(crate) mod actor_worker;
mod attempt;
mod backoff;
mod context;
mod engine;
mod fetcher;
mod handler;
mod item;
mod keeper;
pub(crate) mod main_loop;
pub(crate) mod resources;
mod tally;

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

/// Feeds a handler from a mailbox: takes messages, keeps their leases alive, runs the handler, sends its answer, finishes
/// the message.
///
/// The answer goes to the reply channel if the message has one, else to its `reply_to`, else to
/// [`responses`](Self::responses), else nowhere. A handler that fails or panics has its message tried again after a
/// [backoff](Self::backoff), and dead-lettered when the [attempts](Self::max_attempts) are used up.
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
/// It runs as one future on any executor, or on a thread: `run().blocking()`. Handlers run concurrently within it; to
/// run them in parallel, hand in the executor's spawn: [`spawn_on`](Self::spawn_on). Dropping the future gives back what
/// was fetched.
#[must_use = "a worker does nothing unless it is run"]
pub struct Worker<T, R = (), C = Json> {
    pub(crate) mailbox: Mailbox<T, R, C>,
    pub(crate) handler: Handling<T, R>,
    pub(crate) options: LoopOptions<R, C>,
    handle: LoopHandle,
}

/// A handler of any type.
pub(crate) type Handling<T, R> =
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
    /// Whether an answer without an address is worth a warning.
    pub(crate) warns: bool,
    /// What to send instead of an answer that cannot be encoded, with the reason.
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
        let handling: Handling<T, R> = Arc::new(move |body, context| {
            let handler = Arc::clone(&handler);
            Box::pin(async move { handler.handle(body, context).await.map_err(HandlerError::from_any) })
        });
        Self::with_handling(mailbox.clone(), handling)
    }

    pub(crate) fn with_handling(mailbox: Mailbox<T, R, C>, handler: Handling<T, R>) -> Self {
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

/// The options of every loop.
macro_rules! loop_options {
    ($($path:ident).+) => {
        /// How many handlers run at a time. 1 unless it is set.
        pub fn concurrency(mut self, handlers: usize) -> Self {
            self.$($path).+.concurrency = handlers;
            self
        }

        /// How many messages are fetched beyond those that handlers can take at the moment. Their leases are kept alive. None unless
        /// it is set.
        pub fn prefetch(mut self, messages: usize) -> Self {
            self.$($path).+.prefetch = messages;
            self
        }

        /// For how long messages are leased. The lease is extended while a handler runs, so this is how soon a message
        /// comes back when the process dies. 300 seconds unless it is set.
        pub fn visibility_timeout(mut self, timeout: Duration) -> Self {
            self.$($path).+.visibility = timeout;
            self
        }

        /// How long one receive waits. 20 seconds unless it is set. With zero the loop looks a hundred times a second.
        pub fn wait_time(mut self, wait: Duration) -> Self {
            self.$($path).+.wait = wait;
            self
        }

        /// For how long the lease of one message is kept alive at most; then the handler's
        /// [cancellation](Context::cancellation) is raised. 12 hours unless it is set.
        pub fn max_lease(mut self, cap: Duration) -> Self {
            self.$($path).+.max_lease = cap;
            self
        }

        /// Ends after this number of receives, empty ones too, when what they brought is handled.
        pub fn max_iterations(mut self, receives: u64) -> Self {
            self.$($path).+.max_iterations = Some(receives);
            self
        }

        /// How long a message stays away that could not be handled or answered.
        pub fn backoff(mut self, backoff: Backoff) -> Self {
            self.$($path).+.backoff = backoff;
            self
        }

        /// How long running handlers have to end after a shutdown. What is not done then is given back. 30 seconds unless
        /// it is set.
        pub fn shutdown_timeout(mut self, timeout: Duration) -> Self {
            self.$($path).+.shutdown_timeout = timeout;
            self
        }

        /// What handlers find in their [`Context`].
        pub fn resources(mut self, resources: Resources) -> Self {
            self.$($path).+.resources = resources;
            self
        }

        /// Tells a dispatcher what the loop does. That of the mailbox unless it is set.
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

    /// After how many deliveries a message whose handler fails, or whose answer cannot be sent, goes to the dead letters,
    /// with the error as the reason.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.options.max_attempts = Some(attempts);
        self
    }

    /// Where answers go whose message says nothing.
    pub fn responses(mut self, responses: &Mailbox<R, (), C>) -> Self {
        self.options.responses = Some(responses.clone());
        self
    }

    /// Steers the loop from elsewhere.
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

/// What a loop is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    Pause,
    Resume,
    Shutdown,
}

/// Steers a running loop: [`Worker::handle`]. What is said before it runs is kept.
///
/// ```
/// # let jobs: postbox::Mailbox<u32> = postbox::open("memory://doc-handle").blocking()?;
/// # use postbox::{Context, Worker};
/// let worker = Worker::new(&jobs, |_: u32, _: Context| async { Ok::<_, String>(()) });
/// let handle = worker.handle();
/// let running = std::thread::spawn(move || worker.run().blocking());
/// handle.shutdown(); // stops fetching, finishes what runs, gives back what was not started
/// running.join().unwrap()?;
/// # Ok::<(), postbox::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct LoopHandle {
    control: UnboundedMailbox<Control>,
    /// Whether the loop was told to shut down: from then on no handler begins.
    is_shut_down: Arc<AtomicBool>,
}

impl LoopHandle {
    fn new() -> Self {
        LoopHandle { control: UnboundedMailbox::new(), is_shut_down: Arc::default() }
    }

    /// Stops fetching, finishes what runs within the loop's deadline, gives back what was not started.
    pub fn shutdown(&self) {
        self.is_shut_down.store(true, Ordering::SeqCst);
        self.control.enqueue(Control::Shutdown);
    }

    /// Starts nothing new until [`resume`](Self::resume). What runs goes on.
    pub fn pause(&self) {
        self.control.enqueue(Control::Pause);
    }

    /// Goes on.
    pub fn resume(&self) {
        self.control.enqueue(Control::Resume);
    }
}

/// What a loop has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoopReport {
    /// How often it received, empty times too.
    pub iterations: u64,
    /// How many messages it got.
    pub received: u64,
    /// How many were handled and finished.
    pub succeeded: u64,
    /// How many handlers failed, or panicked, or could not be answered for, and will be tried again.
    pub retried: u64,
    /// How many went to the dead letters.
    pub dead_lettered: u64,
    /// How many were given back: not handled, or by [`HandlerError::give_back`] or [`HandlerError::release`].
    pub given_back: u64,
    /// How many could not be finished, because their lease was lost or the place was away.
    pub unfinished: u64,
    /// How often receiving failed.
    pub receive_errors: u64,
}

/// What happens in a loop, for a [`Dispatcher`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the fields say what they are")]
pub enum LoopEvent {
    /// It runs.
    Started { mailbox: crate::resolver::address::MailboxName },
    /// A handler was successful.
    Succeeded { id: MessageId, took: Duration },
    /// A handler failed.
    Failed { id: MessageId, delivery_count: u32, error: String },
    /// An answer could not be sent.
    AnswerFailed { id: MessageId, error: String },
    /// A message could not be finished.
    Unfinished { id: MessageId, error: String },
    /// A receive failed; the loop tries again.
    ReceiveFailed { error: String },
    /// It has ended.
    Stopped { report: LoopReport },
}
