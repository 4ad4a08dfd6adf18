//! An actor: a state that handles one message after the other, and the loop that feeds it.

mod message_loop;
mod schedule;

use core::fmt;

use crate::shared::mailbox::messages::SystemMessage;

pub use self::message_loop::{DEFAULT_THROUGHPUT, LoopHandle, MessageLoop, Turn};
pub use self::schedule::Schedule;

/// A state that handles messages, one at a time.
///
/// ```
/// use postbox_core::{Actor, BoundedMailbox, MessageLoop};
///
/// #[derive(Default)]
/// struct Counter(u64);
///
/// impl Actor for Counter {
///     type Message = u64;
///     type Error = std::convert::Infallible;
///
///     fn receive(&mut self, message: u64) -> Result<(), Self::Error> {
///         self.0 += message;
///         Ok(())
///     }
/// }
///
/// let mut counter = MessageLoop::new(Counter::default(), BoundedMailbox::new(100));
/// assert!(counter.send(2) && counter.send(3));
/// while counter.process_next_message() {}
/// assert_eq!(counter.actor().0, 5);
/// ```
pub trait Actor {
    /// What it is sent.
    type Message;
    /// What a handler fails with.
    type Error;

    /// Handles a message.
    ///
    /// # Errors
    /// Whatever keeps the message from being handled; it goes to [`handle_error`](Self::handle_error).
    fn receive(&mut self, message: Self::Message) -> Result<(), Self::Error>;

    /// Handles a system message that the loop has no meaning for itself: restart, failure and custom ones.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    fn receive_system(&mut self, message: SystemMessage) -> Result<(), Self::Error> {
        let _ = message;
        Ok(())
    }

    /// A handler failed. By default the loop goes on with the next message.
    fn handle_error(&mut self, failure: Failure<Self::Error>) -> Directive {
        let _ = failure;
        Directive::Continue
    }

    /// The loop has ended; nothing more will be received.
    fn stopped(&mut self) {}
}

/// How a handler failed.
#[non_exhaustive]
pub enum Failure<E> {
    /// It returned an error.
    Error(E),
    /// It panicked. The actor's state is as the panic left it.
    #[cfg(feature = "std")]
    Panic(alloc::boxed::Box<dyn core::any::Any + Send>),
}

impl<E> Failure<E> {
    /// What the handler said when it panicked, if it did and said it with a text.
    pub fn panic_message(&self) -> Option<&str> {
        match self {
            Failure::Error(_) => None,
            #[cfg(feature = "std")]
            Failure::Panic(payload) => payload
                .downcast_ref::<&str>()
                .copied()
                .or_else(|| payload.downcast_ref::<alloc::string::String>().map(|text| text.as_str())),
        }
    }
}

impl<E: fmt::Debug> fmt::Debug for Failure<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Error(error) => f.debug_tuple("Error").field(error).finish(),
            #[cfg(feature = "std")]
            Failure::Panic(_) => f.debug_tuple("Panic").field(&self.panic_message()).finish(),
        }
    }
}

/// What the loop does after a failure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Directive {
    /// Go on with the next message.
    #[default]
    Continue,
    /// End.
    Stop,
}
