//! The handlers that loops call for each message.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::time::Duration;

use super::context::Context;

/// Handles messages. An async function of a body and a [`Context`] is one; a type with state implements it.
///
/// ```
/// use postbox::{Context, Mailbox, Worker};
/// use postbox::worker::Handler;
///
/// struct Double;
///
/// impl Handler<u32> for Double {
///     type Output = u32;
///     type Error = std::convert::Infallible;
///
///     async fn handle(&self, number: u32, _context: Context) -> Result<u32, Self::Error> {
///         Ok(number * 2)
///     }
/// }
///
/// let requests: Mailbox<u32, u32> = postbox::open("memory://doc-handler").blocking()?;
/// let reply = requests.send_expecting_reply(&21).blocking()?;
/// Worker::with_handler(&requests, Double).max_iterations(1).run().blocking()?;
/// assert_eq!(reply.wait().blocking()?, 42);
/// # Ok::<(), postbox::Error>(())
/// ```
pub trait Handler<T>: Send + Sync + 'static {
    /// The answer.
    type Output: Send + 'static;
    /// The error. A [`HandlerError`] says what happens to the message; after any other error it is delivered again.
    type Error: fmt::Display + Send + 'static;

    /// Handles a message.
    fn handle(&self, body: T, context: Context) -> impl Future<Output = Result<Self::Output, Self::Error>> + Send;
}

impl<T, F, A, O, E> Handler<T> for F
where
    F: Fn(T, Context) -> A + Send + Sync + 'static,
    A: Future<Output = Result<O, E>> + Send,
    O: Send + 'static,
    E: fmt::Display + Send + 'static,
{
    type Output = O;
    type Error = E;

    fn handle(&self, body: T, context: Context) -> impl Future<Output = Result<O, E>> + Send {
        self(body, context)
    }
}

/// The error of a handler, with what happens to the message.
///
/// ```
/// use postbox::HandlerError;
/// use std::time::Duration;
///
/// let permanent = HandlerError::permanent("no such tenant");   // to the dead letters at once
/// let later = HandlerError::retry_after("rate limited", Duration::from_secs(30));
/// assert_eq!(permanent.to_string(), "no such tenant");
/// # let _ = later;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandlerError {
    message: String,
    pub(crate) next: Next,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// After the loop's backoff, until the attempts are used up.
    Retry,
    /// After this time, until the attempts are used up.
    RetryAfter(Duration),
    /// To the dead letters.
    DeadLetter,
    /// At once, whatever the number of attempts.
    GiveBack,
    /// As if it had not been delivered.
    Release,
}

impl HandlerError {
    /// A failure that may pass: the message is delivered again after the loop's backoff.
    pub fn transient(message: impl fmt::Display) -> Self {
        HandlerError { message: message.to_string(), next: Next::Retry }
    }

    /// A failure that may pass: the message is delivered again after this time, at most after the mailbox's longest
    /// visibility timeout.
    pub fn retry_after(message: impl fmt::Display, after: Duration) -> Self {
        HandlerError { message: message.to_string(), next: Next::RetryAfter(after) }
    }

    /// A failure that will not pass: the message becomes a dead letter.
    pub fn permanent(message: impl fmt::Display) -> Self {
        HandlerError { message: message.to_string(), next: Next::DeadLetter }
    }

    /// The message is not to blame, as when the handler is stopped: the message is visible again at once. The delivery
    /// counts, but the worker does not make a dead letter of the message, even if its attempts are used up.
    ///
    /// ```
    /// use postbox::{Context, HandlerError, Mailbox, Worker};
    ///
    /// let jobs: Mailbox<u32> = postbox::open("memory://doc-give-back").blocking()?;
    /// jobs.send(&1).blocking()?;
    /// let worker = Worker::new(&jobs, |_: u32, _: Context| async {
    ///     Err::<(), _>(HandlerError::give_back("the machine shuts down"))
    /// });
    /// let report = worker.max_attempts(1).max_iterations(1).run().blocking()?;
    /// assert_eq!((report.given_back, report.dead_lettered), (1, 0));
    /// # Ok::<(), postbox::Error>(())
    /// ```
    pub fn give_back(message: impl fmt::Display) -> Self {
        HandlerError { message: message.to_string(), next: Next::GiveBack }
    }

    /// The handler did nothing with the message: it goes back as by [`Lease::release`](crate::Lease::release), and the
    /// delivery does not count. A handler that always does this has the same message again at once, so it should wait first.
    pub fn release(message: impl fmt::Display) -> Self {
        HandlerError { message: message.to_string(), next: Next::Release }
    }

    /// Converts the error of a handler.
    pub(crate) fn from_any<E: fmt::Display + 'static>(error: E) -> Self {
        match (&error as &dyn Any).downcast_ref::<HandlerError>() {
            Some(own) => own.clone(),
            None => HandlerError::transient(error),
        }
    }

    /// Converts the panic of a handler.
    pub(crate) fn from_panic(payload: &(dyn Any + Send)) -> Self {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        HandlerError::transient(format_args!("the handler panicked: {}", text.unwrap_or("(no text)")))
    }
}

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for HandlerError {}
