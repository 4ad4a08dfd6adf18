//! The loop that feeds an actor.

use core::fmt;
use core::future::{Future, poll_fn};
use core::task::Poll;

use alloc::sync::Arc;

use super::{Actor, Directive, Failure};
use crate::order::{Priority, Rank};
use crate::shared::mailbox::messages::{SystemMessage, SystemMessageKind};
use crate::shared::mailbox::{
    Mailbox, MailboxConsumer, MailboxOptions, MailboxProducer, MailboxSignal, QueueMailbox, QueueMailboxProducer,
    SchedulerHook, Signal,
};
use crate::shared::queue::QueueError;

/// What a turn of the loop left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Nothing to do now.
    Idle,
    /// The turn's share is used up, and there may be more.
    More,
    /// The loop has ended.
    Stopped,
}

/// How many messages one turn handles unless [`MessageLoop::with_throughput`] says otherwise.
pub const DEFAULT_THROUGHPUT: usize = 64;

/// Feeds an [`Actor`] from a mailbox.
///
/// The same loop is driven by hand ([`process_next_message`](Self::process_next_message),
/// [`run_turn`](Self::run_turn)), by a thread ([`run_blocking`](Self::run_blocking)) or by an async task
/// ([`run`](Self::run)). System messages come before user messages. It ends when it is told to stop, when a
/// failure says so, or when the mailbox is disconnected: closed or without producers, and drained.
///
/// `S` is the mailbox's signal; it follows from `B`.
// No bounds here, and the signal as a parameter: otherwise `Send` of a running loop cannot be proved where the
// message has a lifetime in its type.
pub struct MessageLoop<A, B, S = Signal> {
    actor: A,
    mailbox: B,
    signal: S,
    system: QueueMailbox<SystemMessage, Priority<BySystemPriority>>,
    system_producer: QueueMailboxProducer<SystemMessage, Priority<BySystemPriority>>,
    throughput: usize,
    suspensions: usize,
    ended: bool,
}

/// Ranks system messages by their own priority.
#[derive(Clone, Copy, Debug)]
struct BySystemPriority;

impl Rank<SystemMessage> for BySystemPriority {
    fn rank(&self, message: &SystemMessage) -> i64 {
        i64::from(message.priority())
    }
}

impl<A, B, S> MessageLoop<A, B, S>
where
    A: Actor,
    B: MailboxConsumer<A::Message, Signal = S>,
    S: MailboxSignal,
{
    /// A loop that feeds `actor` from `mailbox`.
    pub fn new(actor: A, mailbox: B) -> Self {
        let system = QueueMailbox::with_order(Priority::new(BySystemPriority), MailboxOptions::default());
        MessageLoop {
            signal: mailbox.signal(),
            system_producer: system.producer(),
            system,
            actor,
            mailbox,
            throughput: DEFAULT_THROUGHPUT,
            suspensions: 0,
            ended: false,
        }
    }

    /// How many messages one turn may handle before others get a chance. 0 counts as 1.
    #[must_use]
    pub fn with_throughput(mut self, throughput: usize) -> Self {
        self.throughput = throughput.max(1);
        self
    }

    /// Sends the actor a message. `false` if the mailbox did not take it.
    pub fn send(&self, message: A::Message) -> bool {
        self.mailbox.enqueue(message)
    }

    /// A handle to send system messages with, from anywhere.
    pub fn handle(&self) -> LoopHandle<S> {
        LoopHandle { system: self.system_producer.clone(), signal: self.signal.clone() }
    }

    /// Sets the callback that is told that a system message has come. A loop that runs on a pool needs it beside the mailbox's own
    /// [`set_scheduler_hook`](QueueMailbox::set_scheduler_hook), with the same hook: otherwise nobody runs the turn in
    /// which it would hear of a stop or a resume.
    pub fn set_scheduler_hook(&self, hook: Option<Arc<dyn SchedulerHook>>) {
        self.system.set_scheduler_hook(hook);
    }

    /// The actor.
    pub fn actor(&self) -> &A {
        &self.actor
    }

    /// The mailbox.
    pub fn mailbox(&self) -> &B {
        &self.mailbox
    }

    /// The actor and its mailbox, with whatever is still in it.
    pub fn into_parts(self) -> (A, B) {
        (self.actor, self.mailbox)
    }

    /// Whether the loop has ended.
    pub fn is_stopped(&self) -> bool {
        self.ended
    }

    /// Handles the next message: a system message if there is one, else a user message. `false` if there was none,
    /// or the loop has ended.
    pub fn process_next_message(&mut self) -> bool {
        matches!(self.step(), Step::Done)
    }

    /// Handles messages until there are none or the turn's share is used up.
    pub fn run_turn(&mut self) -> Turn {
        for _ in 0..self.throughput {
            match self.step() {
                Step::Done => {}
                Step::Nothing => return Turn::Idle,
                Step::Ended => return Turn::Stopped,
            }
        }
        if self.ended { Turn::Stopped } else { Turn::More }
    }

    /// Runs as an async task until the loop ends, then gives the actor and its mailbox back. It yields after each
    /// turn, and needs no particular runtime.
    ///
    /// ```
    /// use postbox_core::{Actor, Mailbox, MessageLoop, UnboundedMailbox};
    ///
    /// struct Sum(i32);
    /// impl Actor for Sum {
    ///     type Message = i32;
    ///     type Error = ();
    ///     fn receive(&mut self, message: i32) -> Result<(), ()> {
    ///         self.0 += message;
    ///         Ok(())
    ///     }
    /// }
    ///
    /// let mailbox = UnboundedMailbox::new();
    /// (1..=4).for_each(|n| assert!(mailbox.enqueue(n)));
    /// mailbox.close(); // the loop ends when the mailbox is drained
    /// let (actor, _mailbox) = smol::block_on(MessageLoop::new(Sum(0), mailbox).run());
    /// assert_eq!(actor.0, 10);
    /// ```
    #[allow(clippy::manual_async_fn, reason = "the crate's futures are named as such, not by `async fn`")]
    pub fn run(mut self) -> impl Future<Output = (A, B)> {
        async move {
            loop {
                match self.run_turn() {
                    Turn::Stopped => return self.into_parts(),
                    Turn::More => yield_once().await,
                    // A notification since the last wait, even before this line, makes it return at once.
                    Turn::Idle => self.signal.wait().await,
                }
            }
        }
    }

    /// Runs on this thread until the loop ends.
    #[cfg(feature = "std")]
    pub fn run_blocking(self) -> (A, B) {
        let mut run = alloc::boxed::Box::pin(self.run());
        match crate::blocking::block_on(&mut run, None) {
            Some(parts) => parts,
            None => unreachable!("without a deadline there is no other end"),
        }
    }

    fn step(&mut self) -> Step {
        if self.ended {
            return Step::Ended;
        }
        if let Some(message) = self.system.dequeue() {
            match message.kind() {
                SystemMessageKind::Stop => return self.end(Step::Done),
                SystemMessageKind::Suspend => self.suspensions += 1,
                SystemMessageKind::Resume => self.suspensions = self.suspensions.saturating_sub(1),
                _ => self.attempt(|actor| actor.receive_system(message)),
            }
            return Step::Done;
        }
        if self.suspensions > 0 {
            return Step::Nothing;
        }
        match self.mailbox.try_dequeue() {
            Ok(Some(message)) => {
                self.attempt(|actor| actor.receive(message));
                Step::Done
            }
            Ok(None) => Step::Nothing,
            Err(_) => self.end(Step::Ended),
        }
    }

    /// Runs a handler; a failure, be it an error or a panic, ends at most the message at hand.
    fn attempt(&mut self, handler: impl FnOnce(&mut A) -> Result<(), A::Error>) {
        let actor = &mut self.actor;
        let failure = match guarded(move || handler(actor)) {
            Ok(Ok(())) => return,
            Ok(Err(error)) => Failure::Error(error),
            Err(panic) => panic,
        };
        let actor = &mut self.actor;
        // A panic in the error handler must not take the loop down either; then it cannot be trusted to go on.
        let directive = guarded::<_, A::Error>(move || actor.handle_error(failure)).unwrap_or(Directive::Stop);
        if directive == Directive::Stop {
            self.end(Step::Done);
        }
    }

    fn end(&mut self, step: Step) -> Step {
        if !self.ended {
            self.ended = true;
            self.system.close();
            let actor = &mut self.actor;
            let _ = guarded::<_, A::Error>(move || actor.stopped());
        }
        step
    }
}

impl<A, B, S> fmt::Debug for MessageLoop<A, B, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageLoop")
            .field("suspensions", &self.suspensions)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

enum Step {
    Done,
    Nothing,
    Ended,
}

/// Runs `work` and turns a panic into a failure. Without `std` a panic goes its own way.
fn guarded<T, E>(work: impl FnOnce() -> T) -> Result<T, Failure<E>> {
    #[cfg(feature = "std")]
    {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).map_err(Failure::Panic)
    }
    #[cfg(not(feature = "std"))]
    {
        Ok(work())
    }
}

/// Lets other tasks run.
fn yield_once() -> impl Future<Output = ()> {
    let mut yielded = false;
    poll_fn(move |context| {
        if core::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
}

/// Sends system messages to a [`MessageLoop`]. They overtake all user messages.
#[derive(Clone, Debug)]
pub struct LoopHandle<S> {
    system: QueueMailboxProducer<SystemMessage, Priority<BySystemPriority>>,
    signal: S,
}

impl<S: MailboxSignal> LoopHandle<S> {
    /// Ends the loop after the message at hand. What is in the mailbox stays there. To let the actor handle all of
    /// it first, close the mailbox instead. `false` if the loop has ended already.
    pub fn stop(&self) -> bool {
        self.system(SystemMessage::new(SystemMessageKind::Stop)).is_ok()
    }

    /// Holds user messages back until as many [`resume`](Self::resume)s have come. `false` if the loop has ended.
    pub fn suspend(&self) -> bool {
        self.system(SystemMessage::new(SystemMessageKind::Suspend)).is_ok()
    }

    /// Takes one [`suspend`](Self::suspend) back. `false` if the loop has ended.
    pub fn resume(&self) -> bool {
        self.system(SystemMessage::new(SystemMessageKind::Resume)).is_ok()
    }

    /// Sends a system message.
    ///
    /// # Errors
    /// [`Closed`](QueueError::Closed) when the loop has ended.
    pub fn system(&self, message: SystemMessage) -> Result<(), QueueError<SystemMessage>> {
        self.system.try_send(message)?;
        self.signal.notify();
        Ok(())
    }

    /// Whether the loop has ended.
    pub fn is_stopped(&self) -> bool {
        self.system.is_closed()
    }
}
