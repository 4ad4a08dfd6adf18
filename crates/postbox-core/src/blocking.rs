//! Blocking forms for threads: back off for a moment, then park until woken.

use core::cell::Cell;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Wake;
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use crate::order::Order;
use crate::shared::mailbox::{QueueMailbox, QueueMailboxProducer};
use crate::shared::queue::{OfferOutcome, QueueError};
use crate::sync::{AtomicUsize, Count, ThreadSafe};

/// Unparks the thread that created it.
struct ThreadWaker {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for ThreadWaker {
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
    /// The reusable waker of the thread; `None` while in use.
    static THREAD_WAKER: Cell<Option<(Arc<ThreadWaker>, Waker)>> = const { Cell::new(None) };
}

/// Polls `future` on the current thread until it is ready or `deadline` has passed.
pub(crate) fn block_on<F: Future + Unpin>(future: &mut F, deadline: Option<Instant>) -> Option<F::Output> {
    let (thread_waker, waker) = take_thread_waker();
    let mut context = Context::from_waker(&waker);
    let answer = 'wait: loop {
        if let Poll::Ready(output) = Pin::new(&mut *future).poll(&mut context) {
            break Some(output);
        }
        while !thread_waker.woken.swap(false, Ordering::Acquire) {
            match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                None => thread::park(),
                Some(Duration::ZERO) => break 'wait None,
                Some(left) => thread::park_timeout(left),
            }
        }
    };
    THREAD_WAKER.set(Some((thread_waker, waker)));
    answer
}

/// Polls a future on the current thread until it is ready, and parks the thread in between.
///
/// The thread spins and yields for a few microseconds before it parks: parking and unparking costs
/// ten times as much, and the result is often about to arrive.
///
/// ```
/// assert_eq!(postbox_core::wait_for(async { 2 + 2 }), 4);
/// ```
pub fn wait_for<F: Future>(future: F) -> F::Output {
    let mut future = core::pin::pin!(future);
    let (thread_waker, waker) = take_thread_waker();
    let mut context = Context::from_waker(&waker);
    let output = loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            break output;
        }
        let mut round = if processors() > 1 { 0 } else { AWAKE_ROUNDS };
        while !thread_waker.woken.swap(false, Ordering::Acquire) {
            match round {
                0..SPIN_ROUNDS => (0..32).for_each(|_| core::hint::spin_loop()),
                SPIN_ROUNDS..AWAKE_ROUNDS => thread::yield_now(),
                _ => thread::park(),
            }
            round += 1;
        }
    };
    THREAD_WAKER.set(Some((thread_waker, waker)));
    output
}

/// Rounds of spinning, about a tenth of a microsecond each.
const SPIN_ROUNDS: u32 = 24;
/// Rounds of spinning and yielding.
const AWAKE_ROUNDS: u32 = SPIN_ROUNDS + 8;

/// Takes the waker of the current thread out of its slot.
fn take_thread_waker() -> (Arc<ThreadWaker>, Waker) {
    THREAD_WAKER.take().unwrap_or_else(|| {
        let thread_waker = Arc::new(ThreadWaker { thread: thread::current(), woken: AtomicBool::new(false) });
        let waker = Waker::from(Arc::clone(&thread_waker));
        (thread_waker, waker)
    })
}

/// The number of threads that can run at once.
fn processors() -> usize {
    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    *PROCESSORS.get_or_init(|| thread::available_parallelism().map_or(1, usize::from))
}

/// The adaptive backoff of a blocked thread.
///
/// Unparking a thread takes tens of microseconds. Meanwhile the other side runs full or empty and
/// parks too, so every batch pays for two wake-ups. A thread therefore spins for about three
/// microseconds, and then yields repeatedly, which lets the other side run if there are more
/// threads than processors. The number of yields adapts: it grows after a short park, which was not
/// worth it, and shrinks after a long one.
struct WaitBackoff<'a> {
    round: usize,
    yields: &'a AtomicUsize,
}

impl<'a> WaitBackoff<'a> {
    /// 2^7 - 1 spins in total.
    const SPIN_ROUNDS: usize = 7;
    const MAX_YIELDS: usize = 96;
    /// A park shorter than this costs more than the yields that would have avoided it.
    const SHORT_WAIT: Duration = Duration::from_micros(300);

    /// A backoff for a mailbox with `handles` handles. With more handles than processors it skips
    /// spinning, because the other side needs the processor. The first round spins 2^`first_round`
    /// times.
    fn new(yields: &'a AtomicUsize, handles: usize, first_round: usize) -> Self {
        let round = if handles > processors() { Self::SPIN_ROUNDS } else { first_round };
        WaitBackoff { round, yields }
    }

    /// Spins or yields once. Returns `false` when the thread should park or the deadline has
    /// passed.
    fn snooze(&mut self, deadline: Option<Instant>) -> bool {
        if self.round < Self::SPIN_ROUNDS {
            for _ in 0..1 << self.round {
                core::hint::spin_loop();
            }
        } else if self.round < Self::SPIN_ROUNDS + self.yields.get()
            && deadline.is_none_or(|deadline| Instant::now() < deadline)
        {
            thread::yield_now();
        } else {
            return false;
        }
        self.round += 1;
        true
    }

    /// Whether spinning is over, so that room for a single message is enough.
    fn is_yielding(&self) -> bool {
        self.round >= Self::SPIN_ROUNDS
    }

    /// Parks until `future` is ready or `deadline` has passed, and adapts the number of yields.
    fn park<F: Future + Unpin>(&self, future: &mut F, deadline: Option<Instant>) -> Option<F::Output> {
        let start = Instant::now();
        let answer = block_on(future, deadline);
        let yields = self.yields.get();
        self.yields.set(match start.elapsed() < Self::SHORT_WAIT {
            true => (yields * 2 + 8).min(Self::MAX_YIELDS),
            false => yields / 2,
        });
        answer
    }
}

impl<M, O: Order<M>> QueueMailbox<M, O, ThreadSafe> {
    /// Receives the next message, blocking the thread while the mailbox is empty. Use
    /// [`recv`](Self::recv) inside async tasks.
    ///
    /// # Errors
    /// [`Disconnected`](QueueError::Disconnected) when the mailbox is empty and no message can
    /// arrive any more.
    #[inline]
    pub fn recv_blocking(&self) -> Result<M, QueueError<M>> {
        let queue = self.queue().inner();
        if let Some(message) = queue.poll_fast() {
            return Ok(message);
        }
        match queue.poll_gathering(usize::MAX)? {
            Some(message) => Ok(message),
            None => self.recv_slow(None),
        }
    }

    /// Receives the next message, blocking the thread for at most `timeout`.
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
    /// [`Empty`](QueueError::Empty) after the timeout; [`Disconnected`](QueueError::Disconnected)
    /// when the mailbox is empty and no message can arrive any more.
    pub fn recv_timeout(&self, timeout: Duration) -> Result<M, QueueError<M>> {
        match self.queue().inner().try_poll()? {
            Some(message) => Ok(message),
            None => self.recv_slow(Instant::now().checked_add(timeout)),
        }
    }

    #[cold]
    fn recv_slow(&self, deadline: Option<Instant>) -> Result<M, QueueError<M>> {
        let queue = self.queue().inner();
        let mut backoff = WaitBackoff::new(queue.receive_yields(), queue.handles(), 0);
        while backoff.snooze(deadline) {
            if queue.may_receive()
                && let Some(message) = queue.try_poll()?
            {
                return Ok(message);
            }
        }
        backoff.park(&mut self.recv(), deadline).unwrap_or(Err(QueueError::Empty))
    }
}

impl<M, O: Order<M>> QueueMailboxProducer<M, O, ThreadSafe> {
    /// Sends a message, blocking the thread while the mailbox is full under the `Block` policy. Use
    /// [`send`](Self::send) inside async tasks.
    ///
    /// ```
    /// use std::thread;
    /// use postbox_core::BoundedMailbox;
    ///
    /// let mailbox = BoundedMailbox::new(1);
    /// let producer = mailbox.producer();
    /// let sender = thread::spawn(move || (0..100).for_each(|n| {
    ///     assert!(producer.send_blocking(n).is_ok());
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
        let queue = self.queue().inner();
        match queue.offer(queue.to_item(message)) {
            // A separate arm avoids copying the unused message of the outcome.
            Ok(OfferOutcome::Accepted) => Ok(OfferOutcome::Accepted),
            Ok(outcome) => Ok(outcome.map(O::into_message)),
            Err(error) => self.send_slow(error, None),
        }
    }

    /// Sends a message, blocking the thread for at most `timeout`.
    ///
    /// # Errors
    /// [`Timeout`](QueueError::Timeout) after the timeout, [`Closed`](QueueError::Closed); both
    /// with the message.
    pub fn send_timeout(&self, message: M, timeout: Duration) -> Result<OfferOutcome<M>, QueueError<M>> {
        let queue = self.queue().inner();
        match queue.offer(queue.to_item(message)) {
            Ok(outcome) => Ok(outcome.map(O::into_message)),
            Err(error) => self.send_slow(error, Instant::now().checked_add(timeout)),
        }
    }

    #[cold]
    fn send_slow(
        &self,
        error: QueueError<O::Item>,
        deadline: Option<Instant>,
    ) -> Result<OfferOutcome<M>, QueueError<M>> {
        let queue = self.queue().inner();
        let QueueError::Full(mut item) = error else {
            return Err(queue.reject(error));
        };
        let control = queue.is_control(&item);
        if !queue.can_wait(control) {
            return Err(queue.reject(QueueError::Full(item)));
        }
        // Waits for room for a batch: with room for one message, sender and receiver would contend
        // for every message. A moment later there is room for many.
        let batch = (queue.capacity().unwrap_or(1) / 8).clamp(1, 128);
        let first_round = if batch > 8 { WaitBackoff::SPIN_ROUNDS - 2 } else { 0 };
        let mut backoff = WaitBackoff::new(queue.send_yields(), queue.handles(), first_round);
        while backoff.snooze(deadline) {
            let needed = if backoff.is_yielding() { 1 } else { batch };
            if control || queue.free_capacity() >= needed || queue.is_closed() {
                match queue.offer(item) {
                    Ok(outcome) => return Ok(outcome.map(O::into_message)),
                    Err(QueueError::Full(back)) => item = back,
                    Err(error) => return Err(queue.reject(error)),
                }
            }
        }
        let mut offer = self.queue().offer_item(item);
        match backoff.park(&mut offer, deadline) {
            Some(answer) => answer,
            None => Err(offer.into_message().map_or(QueueError::Disconnected, QueueError::Timeout)),
        }
    }
}
