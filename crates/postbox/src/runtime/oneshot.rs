//! A result that another thread brings.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use crate::error::Error;
use crate::runtime::wake;

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
pub(crate) struct Fulfilled<T> {
    slot: Arc<Mutex<Slot<T>>>,
    awake_until: Option<Instant>,
}

pub(crate) fn promise<T>(undelivered: Option<Undelivered<T>>) -> (Promise<T>, Fulfilled<T>) {
    let slot = Arc::new(Mutex::new(Slot { value: None, waker: None, abandoned: false, undelivered }));
    (Promise(Arc::clone(&slot)), Fulfilled { slot, awake_until: None })
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
        self.fulfil_quietly(value).into_iter().for_each(wake);
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

/// Those who are still to be woken, of those who got their results together, the next one last.
static LATER: Mutex<Vec<Waker>> = Mutex::new(Vec::new());
static IS_LATER: AtomicBool = AtomicBool::new(false);

/// Wakes those who got their results together, when all have them. Of many, only the first one, who wakes the next one as it
/// takes its result, and so on as long as they are quick. On their own executor that is cheap, whereas from here a thread of
/// it might be woken for each, to fall asleep again before the next. An executor may run the next one after the first on the
/// same thread; so it is done only where there are many more than processors, and somebody waits for a processor anyway.
#[cfg(any(feature = "sqlite", feature = "redis"))]
pub(crate) fn wake_all(wakers: impl Iterator<Item = Waker>) {
    let mut wakers: Vec<Waker> = wakers.collect();
    wakers.reverse();
    if wakers.len() > 2 * processors() {
        let first = wakers.pop();
        later().append(&mut wakers);
        IS_LATER.store(true, Ordering::Release);
        first.into_iter().for_each(wake);
        std::thread::yield_now();
        // Nobody depends on how quick the others are.
        wakers = std::mem::take(&mut *later());
        IS_LATER.store(false, Ordering::Release);
    }
    wakers.into_iter().rev().for_each(wake);
}

/// How many threads can run at once.
pub(crate) fn processors() -> usize {
    static PROCESSORS: std::sync::LazyLock<usize> =
        std::sync::LazyLock::new(|| std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get));
    *PROCESSORS
}

fn later() -> MutexGuard<'static, Vec<Waker>> {
    LATER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whoever takes its result wakes the next one.
fn wake_next() {
    if IS_LATER.load(Ordering::Acquire) {
        let next = later().pop();
        next.into_iter().for_each(wake);
    }
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

#[cfg(any(test, feature = "redis"))]
impl<T> Fulfilled<T> {
    /// Whoever awaits it is polled again and again until then, if there is such a time, and lets the other tasks of its executor
    /// and the other threads of its processor run in between: to be woken takes longer than a result that is nearly there.
    pub(crate) fn awake_until(mut self, until: Option<Instant>) -> Self {
        self.awake_until = until;
        self
    }
}

impl<T> Future for Fulfilled<T> {
    type Output = Result<T, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut slot = lock(&self.slot);
        if let Some(value) = slot.value.take() {
            slot.abandoned = true;
            drop(slot);
            wake_next();
            return Poll::Ready(value);
        }
        let old = slot.waker.replace(context.waker().clone());
        drop(slot);
        drop(old);
        if self.awake_until.is_some_and(|until| Instant::now() < until) {
            std::thread::yield_now();
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

impl<T> Drop for Fulfilled<T> {
    fn drop(&mut self) {
        let mut slot = lock(&self.slot);
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

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;
    use std::time::Duration;

    use super::*;

    #[derive(Default)]
    struct Counting(AtomicUsize);

    impl Wake for Counting {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn wakes_of_a_poll(result: &mut Fulfilled<u8>) -> usize {
        let counting = Arc::new(Counting::default());
        let waker = Waker::from(Arc::clone(&counting));
        assert!(Pin::new(result).poll(&mut Context::from_waker(&waker)).is_pending());
        counting.0.load(Ordering::SeqCst)
    }

    #[test]
    fn whoever_stays_awake_asks_to_be_polled_again_until_the_time_is_over() {
        let (_promise, result) = promise::<u8>(None);
        let mut result = result.awake_until(Some(Instant::now() + Duration::from_secs(3_600)));
        assert_eq!(wakes_of_a_poll(&mut result), 1);
        assert_eq!(wakes_of_a_poll(&mut result), 1);
        let mut result = result.awake_until(Some(Instant::now()));
        assert_eq!(wakes_of_a_poll(&mut result), 0);
    }

    #[test]
    fn whoever_stayed_awake_too_short_is_woken_by_the_result() {
        let (promise, result) = promise::<u8>(None);
        let mut result = result.awake_until(Some(Instant::now()));
        let counting = Arc::new(Counting::default());
        let waker = Waker::from(Arc::clone(&counting));
        assert!(Pin::new(&mut result).poll(&mut Context::from_waker(&waker)).is_pending());
        promise.fulfil(Ok(7));
        assert_eq!(counting.0.load(Ordering::SeqCst), 1);
        let outcome = Pin::new(&mut result).poll(&mut Context::from_waker(&waker));
        assert!(matches!(outcome, Poll::Ready(Ok(7))));
    }

    /// Takes its result as it is woken, as a quick executor does.
    struct Quick {
        result: Mutex<Option<Fulfilled<u8>>>,
        depth: Arc<AtomicUsize>,
        deepest: Arc<AtomicUsize>,
    }

    impl Wake for Quick {
        fn wake(self: Arc<Self>) {
            let depth = self.depth.fetch_add(1, Ordering::SeqCst) + 1;
            self.deepest.fetch_max(depth, Ordering::SeqCst);
            let mut result = self.result.lock().unwrap().take().expect("woken once");
            assert!(Pin::new(&mut result).poll(&mut Context::from_waker(Waker::noop())).is_ready());
            self.depth.fetch_sub(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn those_who_get_their_results_together_wake_each_other() {
        let (depth, deepest) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let many = 2 * processors() + 1;
        let quick = (0..many).map(|_| {
            let (promise, result) = promise::<u8>(None);
            promise.fulfil(Ok(1));
            let result = Mutex::new(Some(result));
            Waker::from(Arc::new(Quick { result, depth: Arc::clone(&depth), deepest: Arc::clone(&deepest) }))
        });
        wake_all(quick);
        assert_eq!(deepest.load(Ordering::SeqCst), many);
    }

    #[test]
    fn those_who_get_their_results_together_are_woken_once_each_if_nobody_takes_one() {
        for many in [1, 2, 2 * processors() + 1] {
            let counting = Arc::new(Counting::default());
            wake_all((0..many).map(|_| Waker::from(Arc::clone(&counting))));
            assert_eq!(counting.0.load(Ordering::SeqCst), many);
        }
    }
}
