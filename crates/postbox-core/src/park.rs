//! Waiting on a plain thread: spin for a moment, then sleep until woken.

use core::cell::Cell;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::task::Wake;
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use crate::order::Order;
use crate::shared::mailbox::{QueueMailbox, QueueMailboxProducer};
use crate::shared::queue::{OfferOutcome, QueueError};
use crate::sync::ThreadSafe;

/// Wakes the thread that made it.
struct Unpark {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.woken.swap(true, Ordering::Release) {
            self.thread.unpark();
        }
    }
}

std::thread_local! {
    /// One waker per thread, used again for every wait. Taken out while in use.
    static UNPARK: Cell<Option<(Arc<Unpark>, Waker)>> = const { Cell::new(None) };
}

/// Polls `future` on this thread until it is ready or `deadline` has passed.
pub(crate) fn block_on<F: Future + Unpin>(future: &mut F, deadline: Option<Instant>) -> Option<F::Output> {
    let (unpark, waker) = UNPARK.take().unwrap_or_else(|| {
        let unpark = Arc::new(Unpark { thread: thread::current(), woken: AtomicBool::new(false) });
        let waker = Waker::from(Arc::clone(&unpark));
        (unpark, waker)
    });
    let mut context = Context::from_waker(&waker);
    let answer = 'wait: loop {
        if let Poll::Ready(output) = Pin::new(&mut *future).poll(&mut context) {
            break Some(output);
        }
        while !unpark.woken.swap(false, Ordering::Acquire) {
            match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                None => thread::park(),
                Some(Duration::ZERO) => break 'wait None,
                Some(left) => thread::park_timeout(left),
            }
        }
    };
    UNPARK.set(Some((unpark, waker)));
    answer
}

/// How long a thread spins before it sleeps. Waking a sleeper costs tens of microseconds, so a short wait is worth
/// some spinning; with more threads than processors, whoever spins keeps the other side from running, so the rest
/// of the time is given away.
struct Patience {
    round: u32,
}

impl Patience {
    const SPINS: u32 = 7;
    const YIELDS: u32 = 8;

    fn new() -> Self {
        Patience { round: 0 }
    }

    /// Passes some time. `false` when it is time to sleep.
    fn wait(&mut self) -> bool {
        if self.round < Self::SPINS {
            for _ in 0..1 << self.round {
                core::hint::spin_loop();
            }
        } else if self.round < Self::SPINS + Self::YIELDS {
            thread::yield_now();
        } else {
            return false;
        }
        self.round += 1;
        true
    }
}

impl<M, O: Order<M>> QueueMailbox<M, O, ThreadSafe> {
    /// Takes the next message; the thread waits for one. Inside an async task use [`recv`](Self::recv).
    ///
    /// # Errors
    /// [`Disconnected`](QueueError::Disconnected) when nothing is left and nothing will come.
    pub fn recv_blocking(&self) -> Result<M, QueueError<M>> {
        self.recv_deadline(None)
    }

    /// Takes the next message; the thread waits for one, at most as long as `timeout`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use postbox_core::UnboundedMailbox;
    /// use postbox_core::shared::mailbox::*;
    ///
    /// let mailbox = UnboundedMailbox::<u32>::new();
    /// assert_eq!(mailbox.recv_timeout(Duration::from_millis(1)), Err(QueueError::Empty));
    /// ```
    ///
    /// # Errors
    /// [`Empty`](QueueError::Empty) when the time is up, [`Disconnected`](QueueError::Disconnected).
    pub fn recv_timeout(&self, timeout: Duration) -> Result<M, QueueError<M>> {
        self.recv_deadline(Instant::now().checked_add(timeout))
    }

    #[inline]
    fn recv_deadline(&self, deadline: Option<Instant>) -> Result<M, QueueError<M>> {
        match self.queue().core().try_poll()? {
            Some(message) => Ok(message),
            None => self.recv_patiently(deadline),
        }
    }

    #[cold]
    fn recv_patiently(&self, deadline: Option<Instant>) -> Result<M, QueueError<M>> {
        let core = self.queue().core();
        let mut patience = Patience::new();
        while patience.wait() {
            if core.may_receive()
                && let Some(message) = core.try_poll()?
            {
                return Ok(message);
            }
        }
        block_on(&mut self.recv(), deadline).unwrap_or(Err(QueueError::Empty))
    }
}

impl<M, O: Order<M>> QueueMailboxProducer<M, O, ThreadSafe> {
    /// Sends; the thread waits for room if the policy is `Block`. Inside an async task use [`send`](Self::send).
    ///
    /// ```
    /// use std::thread;
    /// use postbox_core::BoundedMailbox;
    ///
    /// let mailbox = BoundedMailbox::new(1);
    /// let producer = mailbox.producer();
    /// let sender = thread::spawn(move || (0..100).for_each(|n| {
    ///     producer.send_blocking(n).unwrap();
    /// }));
    /// let received: Vec<i32> = std::iter::from_fn(|| mailbox.recv_blocking().ok()).collect();
    /// assert_eq!(received, (0..100).collect::<Vec<_>>());
    /// sender.join().unwrap();
    /// ```
    ///
    /// # Errors
    /// [`Closed`](QueueError::Closed), with the message.
    #[inline]
    pub fn send_blocking(&self, message: M) -> Result<OfferOutcome<M>, QueueError<M>> {
        self.send_deadline(message, None)
    }

    /// Sends; the thread waits for room, at most as long as `timeout`.
    ///
    /// # Errors
    /// [`Timeout`](QueueError::Timeout) when the time is up, [`Closed`](QueueError::Closed); both with the message.
    pub fn send_timeout(&self, message: M, timeout: Duration) -> Result<OfferOutcome<M>, QueueError<M>> {
        self.send_deadline(message, Instant::now().checked_add(timeout))
    }

    #[inline]
    fn send_deadline(&self, message: M, deadline: Option<Instant>) -> Result<OfferOutcome<M>, QueueError<M>> {
        let core = self.queue().core();
        match core.offer(core.enclose(message)) {
            Ok(outcome) => Ok(outcome.map(O::open)),
            Err(QueueError::Full(item)) => self.send_patiently(item, deadline),
            Err(error) => Err(error.map(O::open)),
        }
    }

    #[cold]
    fn send_patiently(
        &self,
        mut item: O::Item,
        deadline: Option<Instant>,
    ) -> Result<OfferOutcome<M>, QueueError<M>> {
        let core = self.queue().core();
        let mut patience = Patience::new();
        while patience.wait() {
            if core.has_room_now() {
                match core.offer(item) {
                    Ok(outcome) => return Ok(outcome.map(O::open)),
                    Err(QueueError::Full(back)) => item = back,
                    Err(error) => return Err(error.map(O::open)),
                }
            }
        }
        let mut offer = self.queue().offer_item(item);
        match block_on(&mut offer, deadline) {
            Some(answer) => answer,
            None => Err(offer.into_message().map_or(QueueError::Disconnected, QueueError::Timeout)),
        }
    }
}
