//! Waiters for events of other threads and processes, by key, and the long poll of a waiter.

use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use postbox_core::{ThreadSafe, Ticket, WaitQueue};

use crate::error::Error;
use crate::mailbox::operation::Answer;
use crate::runtime::cancellation::unless;
use crate::runtime::clock::{Clock, Sleep};
use crate::runtime::{lock, wake};

/// The waiters of a store, by the key of the event that they wait for.
pub(crate) struct Waiters<K> {
    /// Each list with its number of waiters. The last waiter removes it.
    lists: Mutex<HashMap<K, (usize, Arc<WaitList>)>>,
}

/// The waiters for one event.
#[derive(Default)]
struct WaitList {
    /// The number of events, so that none is missed between an attempt and the wait after it.
    generation: AtomicU64,
    queue: WaitQueue<ThreadSafe>,
}

impl WaitList {
    fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    fn next_generation(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
    }
}

impl<K> Default for Waiters<K> {
    fn default() -> Self {
        Waiters { lists: Mutex::default() }
    }
}

impl<K: Clone + Eq + Hash> Waiters<K> {
    /// Adds a waiter. Also returns whether there was none before, for any key.
    pub(crate) fn add(self: &Arc<Self>, key: K) -> (Waiter<K>, bool) {
        let mut lists = lock(&self.lists);
        let is_first = lists.is_empty();
        let (waiters, list) = lists.entry(key.clone()).or_default();
        *waiters += 1;
        (Waiter { waiters: Arc::clone(self), key, list: Arc::clone(list) }, is_first)
    }

    #[cfg(any(feature = "sqlite", feature = "redis"))]
    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.lists).is_empty()
    }

    #[cfg(feature = "redis")]
    pub(crate) fn contains(&self, key: &K) -> bool {
        lock(&self.lists).contains_key(key)
    }

    /// Wakes at most `count` waiters for an event.
    pub(crate) fn wake(&self, key: &K, count: u64) {
        let Some(list) = lock(&self.lists).get(key).map(|(_, list)| Arc::clone(list)) else { return };
        list.next_generation();
        for _ in 0..count {
            match list.queue.notify_one() {
                Some(waker) => wake(waker),
                None => break,
            }
        }
    }

    /// Wakes all waiters for all events.
    #[cfg(any(feature = "sqlite", feature = "redis"))]
    pub(crate) fn wake_all(&self) {
        let lists: Vec<Arc<WaitList>> = lock(&self.lists).values().map(|(_, list)| Arc::clone(list)).collect();
        for list in lists {
            list.next_generation();
            crate::runtime::catch_panic(|| list.queue.wake_all());
        }
    }
}

/// A waiter, until this is dropped.
pub(crate) struct Waiter<K: Clone + Eq + Hash> {
    waiters: Arc<Waiters<K>>,
    key: K,
    list: Arc<WaitList>,
}

impl<K: Clone + Eq + Hash> Drop for Waiter<K> {
    fn drop(&mut self) {
        let mut lists = lock(&self.waiters.lists);
        if let Some((waiters, _)) = lists.get_mut(&self.key) {
            *waiters -= 1;
            if *waiters == 0 {
                lists.remove(&self.key);
            }
        }
    }
}

/// The outcome of an attempt to take something from a store.
pub(crate) enum Attempt<T> {
    Taken(T),
    /// There is nothing yet. If the store knows when there will be something, this is the time until then.
    Empty(Option<Duration>),
}

#[cfg(any(feature = "sqlite", feature = "redis"))]
impl<T> Attempt<Vec<T>> {
    /// The outcome of a receive.
    pub(crate) fn of_receive(received: Vec<T>, due: Option<Duration>) -> Self {
        if received.is_empty() { Attempt::Empty(due) } else { Attempt::Taken(received) }
    }
}

impl<K: Clone + Eq + Hash> Waiter<K> {
    /// Attempts until something is taken or `wait` is over: at each event, and when an attempt said that there will be
    /// something.
    ///
    /// A waiter that ends after it was woken, or that knows when there will be something, wakes another waiter in its
    /// place.
    pub(crate) async fn long_poll<T>(
        &self,
        clock: &Arc<dyn Clock>,
        wait: Duration,
        mut attempt: impl FnMut() -> Answer<Result<Attempt<T>, Error>>,
    ) -> Result<Option<T>, Error> {
        clock.start()?;
        let deadline = clock.now().after(wait);
        let mut successor = WakeSuccessor { list: &self.list, is_needed: false };
        let mut is_woken = false;
        loop {
            // Read before the attempt, so that an event during the attempt is not missed.
            let seen = self.list.generation();
            let knows_due = successor.is_needed;
            // An attempt that is dropped or fails has taken nothing: another waiter has to be woken for the event.
            successor.is_needed |= is_woken;
            let outcome = attempt().await.inspect_err(|_| successor.is_needed = true)?;
            successor.is_needed = knows_due;
            let due = match outcome {
                Attempt::Taken(taken) => return Ok(Some(taken)),
                Attempt::Empty(due) => due,
            };
            successor.is_needed |= due.is_some();
            if clock.now() >= deadline {
                return Ok(None);
            }
            let next = due.map_or(deadline, |due| deadline.min(clock.now().after(due)));
            let sleep = Sleep::until(Arc::clone(clock), next);
            let event = NextEvent { list: Arc::clone(&self.list), seen, ticket: None };
            is_woken = unless(sleep, event).await.is_some();
        }
    }
}

/// Wakes another waiter when it is dropped, if that is needed.
struct WakeSuccessor<'a> {
    list: &'a WaitList,
    is_needed: bool,
}

impl Drop for WakeSuccessor<'_> {
    fn drop(&mut self) {
        if let Some(next) = Some(self.list).filter(|_| self.is_needed).and_then(|list| list.queue.notify_one()) {
            self.list.next_generation();
            next.wake();
        }
    }
}

/// Ready when there has been an event after the generation `seen`.
struct NextEvent {
    list: Arc<WaitList>,
    seen: u64,
    ticket: Option<Ticket>,
}

impl Future for NextEvent {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if this.list.generation() == this.seen {
            // The generation is read again after the registration: an event after that finds the registration.
            drop(this.list.queue.register(&mut this.ticket, context.waker().clone()));
            if this.list.generation() == this.seen {
                return Poll::Pending;
            }
        }
        // A notification need not be passed on: the attempt that follows is made for it.
        drop(this.list.queue.remove(&mut this.ticket));
        Poll::Ready(())
    }
}

impl Drop for NextEvent {
    fn drop(&mut self) {
        if self.ticket.is_some()
            && self.list.queue.remove(&mut self.ticket).is_none()
            && let Some(next) = self.list.queue.notify_one()
        {
            next.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::sync::atomic::AtomicBool;
    use std::task::{Wake, Waker};

    use crate::runtime::clock::SystemClock;

    #[derive(Default)]
    struct Flag(AtomicBool);

    impl Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    #[test]
    fn the_last_waiter_for_an_event_removes_its_list() {
        let waiters = Arc::new(Waiters::<&str>::default());
        let count = || lock(&waiters.lists).len();
        let (first, is_first) = waiters.add("jobs");
        let (second, is_second_first) = waiters.add("jobs");
        assert!(is_first && !is_second_first);
        // Another owner of the list does not keep it in the map: a wake-up on another thread, for example.
        let held = Arc::clone(&first.list);
        drop(first);
        assert_eq!(count(), 1, "the second waiter is still there");
        drop(second);
        assert_eq!(count(), 0, "the map grows with each event that was ever waited for");
        drop(held);
    }

    type Outcome = Answer<Result<Attempt<u32>, Error>>;

    #[test]
    fn a_waiter_that_is_woken_and_dropped_before_its_attempt_ends_wakes_the_next_one() {
        let waiters = Arc::new(Waiters::<&str>::default());
        let (waiter, _) = waiters.add("jobs");
        // The first attempt finds nothing, the second does not end.
        let attempts = || {
            let mut is_first = true;
            move || -> Outcome {
                if std::mem::take(&mut is_first) {
                    Answer::ready(Ok(Attempt::Empty(None)))
                } else {
                    Answer::from_future(std::future::pending())
                }
            }
        };
        let wait = Duration::from_secs(60);
        let clock = SystemClock::shared();
        let [mut first, mut second] =
            [attempts(), attempts()].map(|attempt| Box::pin(waiter.long_poll(&clock, wait, attempt)));
        let flags = [(); 2].map(|()| Arc::new(Flag::default()));
        let wakers = flags.clone().map(Waker::from);
        assert!(first.as_mut().poll(&mut Context::from_waker(&wakers[0])).is_pending());
        assert!(second.as_mut().poll(&mut Context::from_waker(&wakers[1])).is_pending());

        waiters.wake(&"jobs", 1);
        assert!(flags[0].0.load(Ordering::SeqCst), "the waiter that has waited longest is woken");
        assert!(!flags[1].0.load(Ordering::SeqCst));
        assert!(first.as_mut().poll(&mut Context::from_waker(&wakers[0])).is_pending(), "its attempt does not end");
        drop(first);
        assert!(flags[1].0.load(Ordering::SeqCst), "otherwise no waiter makes an attempt for the event");
    }
}
