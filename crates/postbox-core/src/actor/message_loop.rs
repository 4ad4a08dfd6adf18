//! The loop that feeds an actor from a mailbox.

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

/// The result of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// No message is left.
    Idle,
    /// The turn has handled as many messages as it may; more may be left.
    More,
    /// The loop has ended.
    Stopped,
}

/// The default number of messages that a turn handles; see [`MessageLoop::with_throughput`].
pub const DEFAULT_THROUGHPUT: usize = 64;

/// Feeds an [`Actor`] with the messages of a mailbox.
///
/// A loop is driven by hand ([`process_next_message`](Self::process_next_message),
/// [`run_turn`](Self::run_turn)), by a thread ([`run_blocking`](Self::run_blocking)) or by an async
/// task ([`run`](Self::run)). System messages are handled before user messages. The loop ends when
/// it is told to stop, when the actor returns [`Directive::Stop`], or when the mailbox is
/// disconnected: closed or without producers, and empty.
///
/// `S` is the signal type of the mailbox `B`.
// Without bounds, and with the signal as a parameter: otherwise the compiler cannot prove that a
// running loop is `Send` if the message type has a lifetime.
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

/// Ranks system messages by their priority.
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
    /// Creates a loop that feeds `actor` from `mailbox`.
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

    /// Sets how many messages a turn handles at most. 0 counts as 1.
    #[must_use]
    pub fn with_throughput(mut self, throughput: usize) -> Self {
        self.throughput = throughput.max(1);
        self
    }

    /// Sends a message to the actor. Returns `false` if the mailbox did not accept it.
    pub fn send(&self, message: A::Message) -> bool {
        self.mailbox.enqueue(message)
    }

    /// A handle that sends system messages, for use from any thread.
    pub fn handle(&self) -> LoopHandle<S> {
        LoopHandle { system: self.system_producer.clone(), signal: self.signal.clone() }
    }

    /// Sets the hook that is called when a system message arrives. A loop on a pool needs it
    /// besides the hook of the [mailbox](QueueMailbox::set_scheduler_hook), so that a stop or a
    /// resume leads to a turn.
    pub fn set_scheduler_hook(&self, hook: Option<Arc<dyn SchedulerHook>>) {
        self.system.set_scheduler_hook(hook);
    }

    /// The actor of the loop.
    pub fn actor(&self) -> &A {
        &self.actor
    }

    /// The mailbox of the loop.
    pub fn mailbox(&self) -> &B {
        &self.mailbox
    }

    /// Returns the actor and its mailbox, with the messages left in it.
    pub fn into_parts(self) -> (A, B) {
        (self.actor, self.mailbox)
    }

    /// Whether the loop has ended.
    pub fn is_stopped(&self) -> bool {
        self.ended
    }

    /// Handles the next message: a system message if there is one, else a user message. Returns
    /// `false` if there was no message or the loop has ended.
    pub fn process_next_message(&mut self) -> bool {
        matches!(self.step(), Step::Done)
    }

    /// Handles messages until the mailbox is empty or the limit of the turn is reached.
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

    /// Runs as an async task until the loop ends, then returns the actor and its mailbox. The task
    /// yields after each turn and runs on any executor.
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
    #[allow(clippy::manual_async_fn, reason = "the signature names the future")]
    pub fn run(mut self) -> impl Future<Output = (A, B)> {
        async move {
            loop {
                match self.run_turn() {
                    Turn::Stopped => return self.into_parts(),
                    Turn::More => yield_once().await,
                    // Completes at once after a notification that came between the last turn and
                    // this wait.
                    Turn::Idle => self.signal.wait().await,
                }
            }
        }
    }

    /// Runs on the current thread until the loop ends, then returns the actor and its mailbox.
    #[cfg(feature = "std")]
    pub fn run_blocking(self) -> (A, B) {
        let mut run = alloc::boxed::Box::pin(self.run());
        match crate::blocking::block_on(&mut run, None) {
            Some(parts) => parts,
            None => unreachable!("without a deadline the wait ends with an output"),
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

    /// Runs a handler and reports its error or panic to the actor.
    fn attempt(&mut self, handler: impl FnOnce(&mut A) -> Result<(), A::Error>) {
        let actor = &mut self.actor;
        let failure = match guarded(move || handler(actor)) {
            Ok(Ok(())) => return,
            Ok(Err(error)) => Failure::Error(error),
            Err(panic) => panic,
        };
        let actor = &mut self.actor;
        // After a panic in the error handler the loop cannot continue safely.
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

/// Runs `work` and turns a panic into a failure. Without `std`, panics propagate.
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

/// Completes at the second poll, so that other tasks can run.
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

/// Sends system messages to a [`MessageLoop`]. They overtake user messages.
#[derive(Clone, Debug)]
pub struct LoopHandle<S> {
    system: QueueMailboxProducer<SystemMessage, Priority<BySystemPriority>>,
    signal: S,
}

impl<S: MailboxSignal> LoopHandle<S> {
    /// Ends the loop after the current message, leaving the other messages in the mailbox. To have
    /// them handled first, close the mailbox instead. Returns `false` if the loop has ended
    /// already.
    pub fn stop(&self) -> bool {
        self.system(SystemMessage::new(SystemMessageKind::Stop)).is_ok()
    }

    /// Withholds user messages until [`resume`](Self::resume) was called as often. Returns `false`
    /// if the loop has ended.
    pub fn suspend(&self) -> bool {
        self.system(SystemMessage::new(SystemMessageKind::Suspend)).is_ok()
    }

    /// Undoes one [`suspend`](Self::suspend). Returns `false` if the loop has ended.
    pub fn resume(&self) -> bool {
        self.system(SystemMessage::new(SystemMessageKind::Resume)).is_ok()
    }

    /// Sends a system message.
    ///
    /// # Errors
    /// [`Closed`](QueueError::Closed) if the loop has ended.
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
