//! A oneshot channel: a result of another thread, sent once and awaited once.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use crate::error::Error;
use crate::runtime::{lock, wake};

/// Sends the result. If it is dropped before, the result is an error.
pub(crate) struct Sender<T>(Arc<Mutex<Slot<T>>>);

/// Awaits the result.
pub(crate) struct Receiver<T>(Arc<Mutex<Slot<T>>>);

/// Gets a result whose receiver was dropped.
pub(crate) type Undelivered<T> = Box<dyn FnOnce(T) + Send>;

struct Slot<T> {
    value: Option<Result<T, Error>>,
    waker: Option<Waker>,
    /// Whether the receiver has its result or was dropped.
    is_closed: bool,
    undelivered: Option<Undelivered<T>>,
}

pub(crate) fn channel<T>(undelivered: Option<Undelivered<T>>) -> (Sender<T>, Receiver<T>) {
    let slot = Arc::new(Mutex::new(Slot { value: None, waker: None, is_closed: false, undelivered }));
    (Sender(Arc::clone(&slot)), Receiver(slot))
}

impl<T> Sender<T> {
    /// Whether the receiver was dropped, and a result would go to `undelivered`. Then the work need not be done.
    pub(crate) fn is_unwanted(&self) -> bool {
        let slot = lock(&self.0);
        slot.is_closed && slot.undelivered.is_some()
    }

    /// Sends the result, and wakes the receiver.
    pub(crate) fn send(&self, value: Result<T, Error>) {
        self.put(value).into_iter().for_each(wake);
    }

    /// Sends the result, and returns the waker of the receiver. So all results of a batch are there before the first
    /// receiver runs.
    pub(crate) fn put(&self, value: Result<T, Error>) -> Option<Waker> {
        let mut slot = lock(&self.0);
        if slot.is_closed {
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

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let slot = lock(&self.0);
        let is_open = slot.value.is_none() && !slot.is_closed;
        drop(slot);
        if is_open {
            self.send(Err(Error::connection("the connection is closed")));
        }
    }
}

impl<T> Future for Receiver<T> {
    type Output = Result<T, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut slot = lock(&self.0);
        if let Some(value) = slot.value.take() {
            slot.is_closed = true;
            return Poll::Ready(value);
        }
        let old = slot.waker.replace(context.waker().clone());
        drop(slot);
        drop(old);
        Poll::Pending
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut slot = lock(&self.0);
        slot.is_closed = true;
        let (value, waker) = (slot.value.take(), slot.waker.take());
        // The sender handles a result that comes later.
        let undelivered = if value.is_some() { slot.undelivered.take() } else { None };
        drop(slot);
        drop(waker);
        if let (Some(Ok(value)), Some(undelivered)) = (value, undelivered) {
            undelivered(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn poll<T>(receiver: &mut Receiver<T>) -> Poll<Result<T, Error>> {
        Pin::new(receiver).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_result_is_delivered_or_handed_to_undelivered() {
        for (is_sent_first, is_polled) in [(true, true), (true, false), (false, true), (false, false)] {
            let undelivered = Arc::new(AtomicUsize::new(0));
            let counted = Arc::clone(&undelivered);
            let count = move |value| _ = counted.fetch_add(value, Ordering::SeqCst);
            let (sender, mut receiver) = channel(Some(Box::new(count)));
            if is_sent_first {
                sender.send(Ok(7));
            }
            if is_polled {
                let polled = poll(&mut receiver);
                assert_eq!(matches!(polled, Poll::Ready(Ok(7))), is_sent_first);
            }
            drop(receiver);
            if !is_sent_first {
                assert!(sender.is_unwanted());
                sender.send(Ok(7));
            }
            let is_delivered = is_sent_first && is_polled;
            assert_eq!(undelivered.load(Ordering::SeqCst), if is_delivered { 0 } else { 7 });
        }
    }

    #[test]
    fn a_sender_that_is_dropped_is_an_error() {
        let (sender, mut receiver) = channel::<u8>(None);
        assert!(poll(&mut receiver).is_pending());
        drop(sender);
        assert!(matches!(poll(&mut receiver), Poll::Ready(Err(error)) if error.is_transient()));
    }
}
