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
    let (unpark, waker) = this_thread();
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
    let (unpark, waker) = this_thread();
    let mut context = Context::from_waker(&waker);
    let output = loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            break output;
        }
        let mut round = if processors() > 1 { 0 } else { AWAKE };
        while !unpark.woken.swap(false, Ordering::Acquire) {
            match round {
                0..SPINS => (0..32).for_each(|_| core::hint::spin_loop()),
                SPINS..AWAKE => thread::yield_now(),
                _ => thread::park(),
            }
            round += 1;
        }
    };
    UNPARK.set(Some((unpark, waker)));
    output
}

/// Looks while spinning, about a tenth of a microsecond apart.
const SPINS: u32 = 24;
/// And looks while letting other threads run.
const AWAKE: u32 = SPINS + 8;

/// The waker of this thread, taken out while it is in use.
fn this_thread() -> (Arc<Unpark>, Waker) {
    UNPARK.take().unwrap_or_else(|| {
        let unpark = Arc::new(Unpark { thread: thread::current(), woken: AtomicBool::new(false) });
        let waker = Waker::from(Arc::clone(&unpark));
        (unpark, waker)
    })
}

/// How many threads can run at once.
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
struct Patience<'a> {
    round: usize,
    yields: &'a AtomicUsize,
}

impl<'a> Patience<'a> {
    /// 2^7 - 1 pauses in all.
    const SPINS: usize = 7;
    const MOST_YIELDS: usize = 96;
    /// A wait shorter than this is not worth a sleep.
    const SHORT: Duration = Duration::from_micros(300);

    /// For a mailbox with this many handles: with more handles than processors, the other side waits for this
    /// processor, so there is no spinning. The first look comes after 2^`first_look` pauses.
    fn new(yields: &'a AtomicUsize, handles: usize, first_look: usize) -> Self {
        let round = if handles > processors() { Self::SPINS } else { first_look };
        Patience { round, yields }
    }

    /// Passes some time. `false` when it is time to sleep, or when the time is up.
    fn wait(&mut self, deadline: Option<Instant>) -> bool {
        if self.round < Self::SPINS {
            for _ in 0..1 << self.round {
                core::hint::spin_loop();
            }
        } else if self.round < Self::SPINS + self.yields.get()
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
    fn is_ending(&self) -> bool {
        self.round >= Self::SPINS
    }

    /// Sleeps until `future` is ready or `deadline` has passed, and learns from how long that took.
    fn sleep<F: Future + Unpin>(&self, future: &mut F, deadline: Option<Instant>) -> Option<F::Output> {
        let start = Instant::now();
        let answer = block_on(future, deadline);
        let yields = self.yields.get();
        self.yields.set(match start.elapsed() < Self::SHORT {
            true => (yields * 2 + 8).min(Self::MOST_YIELDS),
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
        let core = self.queue().core();
        if let Some(message) = core.poll_batch() {
            return Ok(message);
        }
        match core.poll_leisurely(usize::MAX)? {
            Some(message) => Ok(message),
            None => self.recv_patiently(None),
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
        match self.queue().core().try_poll()? {
            Some(message) => Ok(message),
            None => self.recv_patiently(Instant::now().checked_add(timeout)),
        }
    }

    #[cold]
    fn recv_patiently(&self, deadline: Option<Instant>) -> Result<M, QueueError<M>> {
        let core = self.queue().core();
        let mut patience = Patience::new(&core.receive_patience, core.handles(), 0);
        while patience.wait(deadline) {
            if core.may_receive()
                && let Some(message) = core.try_poll()?
            {
                return Ok(message);
            }
        }
        patience.sleep(&mut self.recv(), deadline).unwrap_or(Err(QueueError::Empty))
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
        let core = self.queue().core();
        match core.offer(core.enclose(message)) {
            // By itself, so that the place for a message in the outcome is not copied.
            Ok(OfferOutcome::Accepted) => Ok(OfferOutcome::Accepted),
            Ok(outcome) => Ok(outcome.map(O::open)),
            Err(refusal) => self.send_patiently(refusal, None),
        }
    }

    /// Sends; the thread waits for room, at most as long as `timeout`.
    ///
    /// # Errors
    /// [`Timeout`](QueueError::Timeout) when the time is up, [`Closed`](QueueError::Closed); both with the message.
    pub fn send_timeout(&self, message: M, timeout: Duration) -> Result<OfferOutcome<M>, QueueError<M>> {
        let core = self.queue().core();
        match core.offer(core.enclose(message)) {
            Ok(outcome) => Ok(outcome.map(O::open)),
            Err(refusal) => self.send_patiently(refusal, Instant::now().checked_add(timeout)),
        }
    }

    #[cold]
    fn send_patiently(
        &self,
        refusal: QueueError<O::Item>,
        deadline: Option<Instant>,
    ) -> Result<OfferOutcome<M>, QueueError<M>> {
        let core = self.queue().core();
        let QueueError::Full(mut item) = refusal else {
            return Err(core.refuse(refusal));
        };
        let control = core.is_control(&item);
        if !core.may_wait(control) {
            return Err(core.refuse(QueueError::Full(item)));
        }
        // Not for a single place at once: filling that, and waiting again, would make the two sides meet for every
        // message. A moment later there is room for many.
        let many = (core.capacity().unwrap_or(1) / 8).clamp(1, 128);
        let first_look = if many > 8 { Patience::SPINS - 2 } else { 0 };
        let mut patience = Patience::new(&core.send_patience, core.handles(), first_look);
        while patience.wait(deadline) {
            let enough = if patience.is_ending() { 1 } else { many };
            if control || core.room_now() >= enough || core.is_closed() {
                match core.offer(item) {
                    Ok(outcome) => return Ok(outcome.map(O::open)),
                    Err(QueueError::Full(back)) => item = back,
                    Err(error) => return Err(core.refuse(error)),
                }
            }
        }
        let mut offer = self.queue().offer_item(item);
        match patience.sleep(&mut offer, deadline) {
            Some(answer) => answer,
            None => Err(offer.into_message().map_or(QueueError::Disconnected, QueueError::Timeout)),
        }
    }
}
