//! Waiting on a plain thread: spin for a moment, then sleep until woken.

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

/// Wakes the thread that made it.
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
    /// One waker per thread, used again for every wait. Taken out while in use.
    static THREAD_WAKER: Cell<Option<(Arc<ThreadWaker>, Waker)>> = const { Cell::new(None) };
}

/// Polls `future` on this thread until it is ready or `deadline` has passed.
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

/// Polls a future on this thread until it is ready, and sleeps in between.
///
/// Before it sleeps it stays awake for a few microseconds: being put to sleep and woken costs ten times as much, and what is
/// waited for is often on its way.
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

/// Looks while spinning, about a tenth of a microsecond apart.
const SPIN_ROUNDS: u32 = 24;
/// And looks while letting other threads run.
const AWAKE_ROUNDS: u32 = SPIN_ROUNDS + 8;

/// The waker of this thread, taken out while it is in use.
fn take_thread_waker() -> (Arc<ThreadWaker>, Waker) {
    THREAD_WAKER.take().unwrap_or_else(|| {
        let thread_waker = Arc::new(ThreadWaker { thread: thread::current(), woken: AtomicBool::new(false) });
        let waker = Waker::from(Arc::clone(&thread_waker));
        (thread_waker, waker)
    })
}

/// How batch threads can run at once.
fn processors() -> usize {
    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    *PROCESSORS.get_or_init(|| thread::available_parallelism().map_or(1, usize::from))
}

/// How long a thread stays awake before it sleeps.
///
/// Waking a sleeper takes tens of microseconds, and while it wakes the other side runs full or dry and falls asleep
/// in its turn; then each batch pays for two wake-ups. So a thread first spins for about three microseconds, then
/// gives its time slice away again and again: with more threads than processors, that is what lets the other side
/// run. How often is learnt: a sleep that turned out short would have been better spent awake, a long one not.
struct WaitBackoff<'a> {
    round: usize,
    yields: &'a AtomicUsize,
}

impl<'a> WaitBackoff<'a> {
    /// 2^7 - 1 pauses in all.
    const SPIN_ROUNDS: usize = 7;
    const MAX_YIELDS: usize = 96;
    /// A wait shorter than this is not worth a sleep.
    const SHORT_WAIT: Duration = Duration::from_micros(300);

    /// For a mailbox with this batch handles: with more handles than processors, the other side waits for this
    /// processor, so there is no spinning. The first look comes after 2^`first_round` pauses.
    fn new(yields: &'a AtomicUsize, handles: usize, first_round: usize) -> Self {
        let round = if handles > processors() { Self::SPIN_ROUNDS } else { first_round };
        WaitBackoff { round, yields }
    }

    /// Passes some time. `false` when it is time to sleep, or when the time is up.
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

    /// Whether time is nearly up, so that whatever is there must do.
    fn is_yielding(&self) -> bool {
        self.round >= Self::SPIN_ROUNDS
    }

    /// Sleeps until `future` is ready or `deadline` has passed, and learns from how long that took.
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
    /// Takes the next message; the thread waits for one. Inside an async task use [`recv`](Self::recv).
    ///
    /// # Errors
    /// [`Disconnected`](QueueError::Disconnected) when nothing is left and nothing will come.
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
    /// Sends; the thread waits for room if the policy is `Block`. Inside an async task use [`send`](Self::send).
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
            // By itself, so that the place for a message in the outcome is not copied.
            Ok(OfferOutcome::Accepted) => Ok(OfferOutcome::Accepted),
            Ok(outcome) => Ok(outcome.map(O::into_message)),
            Err(refusal) => self.send_slow(refusal, None),
        }
    }

    /// Sends; the thread waits for room, at most as long as `timeout`.
    ///
    /// # Errors
    /// [`Timeout`](QueueError::Timeout) when the time is up, [`Closed`](QueueError::Closed); both with the message.
    pub fn send_timeout(&self, message: M, timeout: Duration) -> Result<OfferOutcome<M>, QueueError<M>> {
        let queue = self.queue().inner();
        match queue.offer(queue.to_item(message)) {
            Ok(outcome) => Ok(outcome.map(O::into_message)),
            Err(refusal) => self.send_slow(refusal, Instant::now().checked_add(timeout)),
        }
    }

    #[cold]
    fn send_slow(
        &self,
        refusal: QueueError<O::Item>,
        deadline: Option<Instant>,
    ) -> Result<OfferOutcome<M>, QueueError<M>> {
        let queue = self.queue().inner();
        let QueueError::Full(mut item) = refusal else {
            return Err(queue.reject(refusal));
        };
        let control = queue.is_control(&item);
        if !queue.can_wait(control) {
            return Err(queue.reject(QueueError::Full(item)));
        }
        // Not for a single place at once: filling that, and waiting again, would make the two sides meet for every
        // message. A moment later there is room for batch.
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
