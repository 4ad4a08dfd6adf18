//! A result that another thread brings.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::error::Error;

/// The end of an operation that is waited for.
pub(crate) struct Promise<T>(Arc<Mutex<Slot<T>>>);

/// What becomes of a result that nobody waits for any more.
pub(crate) type Undelivered<T> = Box<dyn FnOnce(T) + Send>;

struct Slot<T> {
    value: Option<Result<T, Error>>,
    waker: Option<Waker>,
    abandoned: bool,
    undelivered: Option<Undelivered<T>>,
}

/// The side that waits.
pub(crate) struct Fulfilled<T>(Arc<Mutex<Slot<T>>>);

pub(crate) fn promise<T>(undelivered: Option<Undelivered<T>>) -> (Promise<T>, Fulfilled<T>) {
    let slot = Arc::new(Mutex::new(Slot { value: None, waker: None, abandoned: false, undelivered }));
    (Promise(Arc::clone(&slot)), Fulfilled(slot))
}

fn lock<T>(slot: &Mutex<Slot<T>>) -> MutexGuard<'_, Slot<T>> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Promise<T> {
    /// Nobody waits for the result any more, and it would have to be undone.
    pub(crate) fn is_void(&self) -> bool {
        let slot = lock(&self.0);
        slot.abandoned && slot.undelivered.is_some()
    }

    pub(crate) fn fulfil(&self, value: Result<T, Error>) {
        self.fulfil_quietly(value).into_iter().for_each(Waker::wake);
    }

    /// The same, and leaves it to the caller to wake whoever waits: of many who get their results together, nobody has to run
    /// before all have them.
    pub(crate) fn fulfil_quietly(&self, value: Result<T, Error>) -> Option<Waker> {
        let mut slot = lock(&self.0);
        if slot.abandoned {
            let undelivered = slot.undelivered.take();
            drop(slot);
            if let (Ok(value), Some(undelivered)) = (value, undelivered) {
                undelivered(value);
            }
            return None;
        }
        slot.value = Some(value);
        slot.waker.take()
    }
}

/// Wakes those who got their results together, when all have them.
#[cfg(any(feature = "sqlite", feature = "redis"))]
pub(crate) fn wake_all(wakers: impl Iterator<Item = Waker>) {
    let wakers: Vec<Waker> = wakers.collect();
    wakers.into_iter().for_each(Waker::wake);
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        let slot = lock(&self.0);
        let is_open = slot.value.is_none() && !slot.abandoned;
        drop(slot);
        if is_open {
            // Whoever was to do it ended before it came to this.
            self.fulfil(Err(Error::connection("the connection is closed")));
        }
    }
}

impl<T> Future for Fulfilled<T> {
    type Output = Result<T, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut slot = lock(&self.0);
        match slot.value.take() {
            Some(value) => {
                slot.abandoned = true;
                Poll::Ready(value)
            }
            None => {
                let old = slot.waker.replace(context.waker().clone());
                drop(slot);
                drop(old);
                Poll::Pending
            }
        }
    }
}

impl<T> Drop for Fulfilled<T> {
    fn drop(&mut self) {
        let mut slot = lock(&self.0);
        slot.abandoned = true;
        let (value, waker) = (slot.value.take(), slot.waker.take());
        // If it is still to come, whoever fulfils it will find that nobody waits.
        let undelivered = if value.is_some() { slot.undelivered.take() } else { None };
        drop(slot);
        drop(waker);
        if let (Some(Ok(value)), Some(undelivered)) = (value, undelivered) {
            undelivered(value);
        }
    }
}
