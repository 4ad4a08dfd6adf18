//! Actors, and the loop that feeds them.

mod message_loop;
mod schedule;

use core::fmt;

use crate::shared::mailbox::messages::SystemMessage;

pub use self::message_loop::{DEFAULT_THROUGHPUT, LoopHandle, MessageLoop, Turn};
pub use self::schedule::Schedule;

/// A state that handles messages one at a time.
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
    /// The messages that the actor handles.
    type Message;
    /// The error of a failed handler.
    type Error;

    /// Handles a message.
    ///
    /// # Errors
    /// An error goes to [`handle_error`](Self::handle_error).
    fn receive(&mut self, message: Self::Message) -> Result<(), Self::Error>;

    /// Handles a system message that the loop does not handle itself: restart, failure and custom
    /// messages.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    fn receive_system(&mut self, message: SystemMessage) -> Result<(), Self::Error> {
        let _ = message;
        Ok(())
    }

    /// Handles the failure of a handler. By default the loop continues with the next message.
    fn handle_error(&mut self, failure: Failure<Self::Error>) -> Directive {
        let _ = failure;
        Directive::Continue
    }

    /// Called once when the loop has ended.
    fn stopped(&mut self) {}
}

/// The failure of a handler.
#[non_exhaustive]
pub enum Failure<E> {
    /// The handler returned an error.
    Error(E),
    /// The handler panicked. The actor's state is as the panic left it.
    #[cfg(feature = "std")]
    Panic(alloc::boxed::Box<dyn core::any::Any + Send>),
}

impl<E> Failure<E> {
    /// The message of the panic, if the handler panicked with a text.
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
    /// Continue with the next message.
    #[default]
    Continue,
    /// End the loop.
    Stop,
}
