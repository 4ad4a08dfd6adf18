//! An actor of layer 1 on a leased mailbox.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use postbox_core::{Actor, Directive, Failure};

use crate::error::Error;
use crate::mailbox::Mailbox;
use crate::mailbox::codec::{Codec, Decode, Encode, Json};
use crate::mailbox::operation::Call;
use crate::mailbox::operation::{Answer, Verb};
use crate::runtime::{lock, unpoisoned};
use crate::worker::{Context, HandlerError, HandlerFn, LoopHandle, LoopReport, Worker};

/// Runs an [`Actor`] of layer 1 on a leased mailbox. `Ok` acknowledges the message. An error or a panic goes to
/// [`handle_error`](Actor::handle_error) and gives the message back.
///
/// ```
/// use postbox::actor::Actor;
/// use postbox::{ActorWorker, Mailbox};
///
/// #[derive(Default)]
/// struct Sum(u64);
///
/// impl Actor for Sum {
///     type Message = u64;
///     type Error = String;
///
///     fn receive(&mut self, number: u64) -> Result<(), String> {
///         self.0 += number;
///         Ok(())
///     }
/// }
///
/// # postbox_core::wait_for(async {
/// let numbers: Mailbox<u64> = postbox::open("memory://doc-actor-worker").await?;
/// numbers.send_batch(&[1, 2, 3]).await?;
/// let worker = ActorWorker::new(Sum::default(), &numbers).configure(|worker| worker.max_iterations(3));
/// let (sum, report) = worker.run().await?;
/// assert_eq!((sum.0, report.succeeded), (6, 3));
/// assert_eq!(numbers.approximate_count().await?, 0);
/// # Ok::<(), postbox::Error>(())
/// # }).unwrap();
/// ```
#[must_use = "a worker does nothing unless it is run"]
pub struct ActorWorker<A: Actor, C = Json> {
    actor: Arc<Mutex<A>>,
    worker: Worker<A::Message, (), C>,
}

impl<A, C> ActorWorker<A, C>
where
    A: Actor + Send + 'static,
    A::Message: Send + 'static,
    A::Error: fmt::Debug,
    C: Codec + Encode<()> + Decode<A::Message>,
{
    /// A worker that gives the actor one message at a time.
    pub fn new(actor: A, mailbox: &Mailbox<A::Message, (), C>) -> Self {
        let actor = Arc::new(Mutex::new(actor));
        let (handled, stop) = (Arc::clone(&actor), Arc::new(Mutex::new(None::<LoopHandle>)));
        let stopping = Arc::clone(&stop);
        let handler_fn: HandlerFn<A::Message, ()> = Arc::new(move |message, _context: Context| {
            let result = receive(&handled, message);
            if let Err((_, Directive::Stop)) = &result
                && let Some(handle) = &*lock(&stopping)
            {
                handle.shutdown();
            }
            Box::pin(async move { result.map_err(|(error, _)| error) })
        });
        let worker = Worker::with_handler_fn(mailbox.clone(), handler_fn);
        *lock(&stop) = Some(worker.handle());
        ActorWorker { actor, worker }
    }

    /// Sets options of the loop. The actor still gets one message at a time.
    pub fn configure(mut self, options: impl FnOnce(Worker<A::Message, (), C>) -> Worker<A::Message, (), C>) -> Self {
        self.worker = options(self.worker).concurrency(1);
        // A spawned handler could own the actor for longer than the loop.
        self.worker.options.spawn = None;
        self
    }

    /// Controls the loop while it runs.
    pub fn handle(&self) -> LoopHandle {
        self.worker.handle()
    }

    /// Runs until it is shut down, the mailbox is closed, its iterations are done, or the actor says `Stop`. Gives the
    /// actor back.
    ///
    /// # Errors
    /// As [`Worker::run`].
    pub fn run(self) -> Call<Result<(A, LoopReport), Error>> {
        Call::new(move || {
            let ActorWorker { actor, worker } = self;
            worker.run().start().then(move |report| {
                // All other owners ended with the loop.
                let actor = Arc::into_inner(actor).expect("the loop has ended");
                let mut actor = unpoisoned(actor.into_inner());
                actor.stopped();
                Answer::ready(report.map(|report| (actor, report)))
            })
        })
    }
}

fn receive<A>(actor: &Mutex<A>, message: A::Message) -> Result<(), (HandlerError, Directive)>
where
    A: Actor,
    A::Error: fmt::Debug,
{
    let mut actor = lock(actor);
    let failure = match catch_unwind(AssertUnwindSafe(|| actor.receive(message))) {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(error)) => Failure::Error(error),
        Err(panic) => Failure::Panic(panic),
    };
    let error = HandlerError::transient(format_args!("the actor failed: {failure:?}"));
    let directive = actor.handle_error(failure);
    Err((error, directive))
}

impl<A: Actor, C> fmt::Debug for ActorWorker<A, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ActorWorker").field(&self.worker).finish()
    }
}
