//! Operations, which are awaited on any executor, or block a plain thread.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::FutureExt as _;
use postbox_core::wait_for;

/// The result of a backend's verb: a value, without an allocation, or a future.
///
/// ```
/// use postbox::operation::Answer;
///
/// assert_eq!(Answer::ready(1).blocking(), 1);
/// assert_eq!(Answer::from_future(async { 2 }).map(|two| two + 1).blocking(), 3);
/// ```
#[must_use = "an answer does nothing unless it is awaited"]
pub struct Answer<T>(State<T>);

enum State<T> {
    Ready(Option<T>),
    Pending(Pin<Box<dyn Future<Output = T> + Send>>),
}

impl<T> Unpin for Answer<T> {}

impl<T> Answer<T> {
    /// An answer that is ready.
    #[inline]
    pub const fn ready(value: T) -> Self {
        Answer(State::Ready(Some(value)))
    }

    /// An answer that a future computes.
    pub fn from_future(future: impl Future<Output = T> + Send + 'static) -> Self {
        Answer(State::Pending(Box::pin(future)))
    }

    /// Applies a function to the value when it is ready.
    #[inline]
    pub fn map<U>(self, change: impl FnOnce(T) -> U + Send + 'static) -> Answer<U>
    where
        T: 'static,
    {
        match self.0 {
            State::Ready(value) => Answer(State::Ready(value.map(change))),
            State::Pending(future) => Answer::from_future(async move { change(future.await) }),
        }
    }

    /// Starts another operation with the value when it is ready.
    pub fn then<U: Send + 'static>(self, next: impl FnOnce(T) -> Answer<U> + Send + 'static) -> Answer<U>
    where
        T: Send + 'static,
    {
        match self.0 {
            State::Ready(Some(value)) => next(value),
            State::Ready(None) => Answer(State::Ready(None)),
            State::Pending(future) => Answer::from_future(async move { next(future.await).await }),
        }
    }

    /// The answer of code that may panic, in the call or in its future. After a panic it is what `failed` returns.
    #[inline]
    pub(crate) fn caught(call: impl FnOnce() -> Self, failed: impl FnOnce() -> T + Send + 'static) -> Self
    where
        T: Send + 'static,
    {
        match catch_unwind(AssertUnwindSafe(call)) {
            // The value of an answer that was polled before is gone.
            Ok(Answer(State::Ready(None))) | Err(_) => Answer::ready(failed()),
            Ok(Answer(State::Pending(future))) => Answer::from_future(async move {
                AssertUnwindSafe(future).catch_unwind().await.unwrap_or_else(|_| failed())
            }),
            Ok(ready) => ready,
        }
    }

    /// The value, if it is ready.
    #[inline]
    pub(crate) const fn value(&mut self) -> Option<&mut T> {
        match &mut self.0 {
            State::Ready(value) => value.as_mut(),
            State::Pending(_) => None,
        }
    }

    /// Replaces the future, if the answer is one.
    pub(crate) fn later<F>(&mut self, next: impl FnOnce(Pin<Box<dyn Future<Output = T> + Send>>) -> F)
    where
        F: Future<Output = T> + Send + 'static,
    {
        if let State::Pending(future) = std::mem::replace(&mut self.0, State::Ready(None)) {
            *self = Answer::from_future(next(future));
        }
    }

    /// The value if it is ready, otherwise the future.
    #[inline]
    pub(crate) fn split(self) -> Result<T, Pin<Box<dyn Future<Output = T> + Send>>> {
        match self.0 {
            State::Ready(value) => Ok(value.expect("an answer is taken once")),
            State::Pending(future) => Err(future),
        }
    }

    /// Blocks this thread until the value is ready. In an async task, which would block the executor's worker, await instead.
    #[inline]
    pub fn blocking(self) -> T {
        match self.0 {
            State::Ready(value) => value.expect("an answer is taken once"),
            State::Pending(future) => on_waiting_thread(|| wait_for(future)),
        }
    }
}

impl<T> Future for Answer<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        match &mut self.0 {
            State::Ready(value) => Poll::Ready(value.take().expect("polled after it was ready")),
            State::Pending(future) => future.as_mut().poll(context),
        }
    }
}

thread_local! {
    static WAITS: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread blocks for the operation that it starts or polls. If so, the backend may run the operation on it.
#[cfg(feature = "sqlite")]
pub(crate) fn thread_waits() -> bool {
    WAITS.get()
}

#[inline]
pub(crate) fn on_waiting_thread<T>(act: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            WAITS.set(self.0);
        }
    }
    let _restore = Restore(WAITS.replace(true));
    act()
}

impl<T> fmt::Debug for Answer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            State::Ready(_) => "Answer::Ready",
            State::Pending(_) => "Answer::Pending",
        })
    }
}

/// A builder of an operation, which can start it.
pub trait Verb: Sized {
    /// The result of the operation.
    type Output;

    /// Starts the operation.
    fn start(self) -> Answer<Self::Output>;
}

/// A running operation. It starts with the first poll.
#[must_use = "an operation does nothing unless it is awaited"]
pub struct Operation<V: Verb>(Progress<V>);

enum Progress<V: Verb> {
    Described(Option<V>),
    Started(Answer<V::Output>),
}

impl<V: Verb> Unpin for Operation<V> {}

impl<V: Verb> Operation<V> {
    pub(crate) const fn new(verb: V) -> Self {
        Operation(Progress::Described(Some(verb)))
    }
}

impl<V: Verb> Future for Operation<V> {
    type Output = V::Output;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<V::Output> {
        if let Progress::Described(verb) = &mut self.0 {
            match verb.take().expect("polled after it was ready").start().0 {
                State::Ready(output) => return Poll::Ready(output.expect("an answer is taken once")),
                pending => self.0 = Progress::Started(Answer(pending)),
            }
        }
        match &mut self.0 {
            Progress::Started(answer) => Pin::new(answer).poll(context),
            Progress::Described(_) => unreachable!("it was started above"),
        }
    }
}

impl<V: Verb> fmt::Debug for Operation<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Progress::Described(_) => "Operation::Described",
            Progress::Started(_) => "Operation::Started",
        })
    }
}

/// Implements `IntoFuture` and `blocking` for a builder.
macro_rules! awaitable {
    ($name:ident $(<$($parameter:ident),+>)? $(where $($bounds:tt)+)?) => {
        impl $(<$($parameter),+>)? std::future::IntoFuture for $name $(<$($parameter),+>)? $(where $($bounds)+)? {
            type Output = <Self as $crate::mailbox::operation::Verb>::Output;
            type IntoFuture = $crate::mailbox::operation::Operation<Self>;

            #[inline]
            fn into_future(self) -> Self::IntoFuture {
                $crate::mailbox::operation::Operation::new(self)
            }
        }

        impl $(<$($parameter),+>)? $name $(<$($parameter),+>)? $(where $($bounds)+)? {
            /// Runs the operation and blocks this thread until it is done. In an async task, which would block the executor's
            /// worker, await instead.
            ///
            /// # Errors
            /// Those of the awaited operation.
            #[inline]
            pub fn blocking(self) -> <Self as $crate::mailbox::operation::Verb>::Output {
                $crate::mailbox::operation::on_waiting_thread(|| $crate::mailbox::operation::Verb::start(self).blocking())
            }
        }
    };
}
pub(crate) use awaitable;

/// An operation without options. Await it, or call `blocking`; nothing happens before that.
#[must_use = "a call does nothing unless it is awaited"]
pub struct Call<T>(Box<dyn FnOnce() -> Answer<T> + Send>);

impl<T> Call<T> {
    pub(crate) fn new(start: impl FnOnce() -> Answer<T> + Send + 'static) -> Self {
        Call(Box::new(start))
    }
}

impl<T> Verb for Call<T> {
    type Output = T;

    fn start(self) -> Answer<T> {
        (self.0)()
    }
}

awaitable!(Call<T>);

impl<T> fmt::Debug for Call<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Call")
    }
}
