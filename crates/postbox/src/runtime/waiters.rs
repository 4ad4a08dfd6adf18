//! Those who wait for something that happens in another place or thread.

use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use postbox_core::{ThreadSafe, Ticket, WaitQueue};

use crate::error::Error;
use crate::mailbox::operation::Answer;
use crate::runtime::cancellation::unless;
use crate::runtime::clock::{Clock, Sleep};
use crate::runtime::{survive, wake};

/// Those who wait, by what they wait for.
pub(crate) struct Hubs<K> {
    hubs: Mutex<HashMap<K, Arc<Hub>>>,
}

impl<K> Default for Hubs<K> {
    fn default() -> Self {
        Hubs { hubs: Mutex::default() }
    }
}

/// Those who wait for one thing. What happens is counted, so that nothing between a look and a wait is missed.
#[derive(Default)]
pub(crate) struct Hub {
    /// How many wait here. Changed under the lock of the map.
    users: AtomicUsize,
    generation: AtomicU64,
    waiting: WaitQueue<ThreadSafe>,
}

impl Hub {
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }
}

impl<K: Clone + Eq + Hash> Hubs<K> {
    fn lock(&self) -> MutexGuard<'_, HashMap<K, Arc<Hub>>> {
        self.hubs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, key: &K) -> Arc<Hub> {
        let mut hubs = self.lock();
        let hub = hubs.entry(key.clone()).or_default();
        hub.users.fetch_add(1, Ordering::Relaxed);
        Arc::clone(hub)
    }

    #[cfg(feature = "redis")]
    pub(crate) fn is_waited_for(&self, key: &K) -> bool {
        self.lock().contains_key(key)
    }

    /// Ends what [`get`](Self::get) began. The last user takes the hub out of the map.
    pub(crate) fn put_back(&self, key: &K, hub: &Hub) {
        let mut hubs = self.lock();
        if hub.users.fetch_sub(1, Ordering::Relaxed) == 1 {
            hubs.remove(key);
        }
    }

    /// Wakes at most this number of the waiters of one key.
    pub(crate) fn wake(&self, key: &K, many: u64) {
        let Some(hub) = self.lock().get(key).cloned() else { return };
        hub.generation.fetch_add(1, Ordering::SeqCst);
        for _ in 0..many {
            match hub.waiting.notify_one() {
                Some(waker) => wake(waker),
                None => break,
            }
        }
    }

    pub(crate) fn wake_all(&self) {
        let hubs: Vec<Arc<Hub>> = self.lock().values().cloned().collect();
        for hub in hubs {
            hub.generation.fetch_add(1, Ordering::SeqCst);
            survive(|| hub.waiting.wake_all());
        }
    }
}

/// A place that has to know whether there are waiters.
pub(crate) trait Watched {
    fn begin_waiting(self: &Arc<Self>);
    fn end_waiting(&self);
}

/// Somebody waits for one thing, until this is dropped.
pub(crate) struct Waits<P: Watched, K: Clone + Eq + Hash> {
    place: Arc<P>,
    hubs: fn(&P) -> &Hubs<K>,
    key: K,
    hub: Option<Arc<Hub>>,
}

impl<P: Watched, K: Clone + Eq + Hash> Waits<P, K> {
    pub(crate) fn begin(place: Arc<P>, hubs: fn(&P) -> &Hubs<K>, key: K) -> Self {
        place.begin_waiting();
        let hub = Some(hubs(&place).get(&key));
        Waits { place, hubs, key, hub }
    }

    pub(crate) fn hub(&self) -> &Arc<Hub> {
        self.hub.as_ref().expect("taken only by the drop")
    }
}

impl<P: Watched, K: Clone + Eq + Hash> Drop for Waits<P, K> {
    fn drop(&mut self) {
        self.place.end_waiting();
        if let Some(hub) = self.hub.take() {
            (self.hubs)(&self.place).put_back(&self.key, &hub);
        }
    }
}

/// Ready when something has happened since `seen`.
pub(crate) struct Happened {
    hub: Arc<Hub>,
    seen: u64,
    ticket: Option<Ticket>,
}

impl Happened {
    pub(crate) const fn since(hub: Arc<Hub>, seen: u64) -> Self {
        Happened { hub, seen, ticket: None }
    }
}

impl Future for Happened {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if this.hub.generation() == this.seen {
            // Registered, then looked at again: a call that counts up after this finds the registration.
            drop(this.hub.waiting.register(&mut this.ticket, context.waker().clone()));
            if this.hub.generation() == this.seen {
                return Poll::Pending;
            }
        }
        // It takes the notification with it: it looks at once.
        drop(this.hub.waiting.remove(&mut this.ticket));
        Poll::Ready(())
    }
}

impl Drop for Happened {
    fn drop(&mut self) {
        if self.ticket.is_some()
            && self.hub.waiting.remove(&mut self.ticket).is_none()
            && let Some(next) = self.hub.waiting.notify_one()
        {
            next.wake();
        }
    }
}

/// Looks until there is something, or the time is up. A look that finds nothing says how long there will be nothing by
/// itself; what happens earlier wakes.
///
/// Whoever knows of a moment, or was told of something and has not seen it yet, and leaves, lets another one look.
pub(crate) async fn look_until<T>(
    hub: &Arc<Hub>,
    clock: &Arc<dyn Clock>,
    wait: Duration,
    mut look: impl FnMut() -> Answer<Result<(Vec<T>, Option<Duration>), Error>>,
) -> Result<Vec<T>, Error> {
    struct PassOn<'a>(&'a Hub, bool);
    impl Drop for PassOn<'_> {
        fn drop(&mut self) {
            if let Some(next) = Some(self.0).filter(|_| self.1).and_then(|hub| hub.waiting.notify_one()) {
                self.0.generation.fetch_add(1, Ordering::SeqCst);
                next.wake();
            }
        }
    }
    clock.start()?;
    let deadline = clock.now().after(wait);
    let mut knows = PassOn(hub, false);
    let mut is_told = false;
    loop {
        // What happens from here on is not missed.
        let seen = hub.generation();
        // A look that is given up or fails may have been for something that is still there: the next one is told.
        let knew = knows.1;
        knows.1 |= is_told;
        let (found, due) = look().await.inspect_err(|_| knows.1 = true)?;
        knows.1 = knew || due.is_some();
        if !found.is_empty() || clock.now() >= deadline {
            return Ok(found);
        }
        let next = due.map_or(deadline, |due| deadline.min(clock.now().after(due)));
        let sleep = Sleep::until(Arc::clone(clock), next);
        is_told = unless(sleep, Happened::since(Arc::clone(hub), seen)).await.is_some();
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
    fn whoever_leaves_last_takes_the_hub_along() {
        let hubs = Hubs::<&str>::default();
        let many = |hubs: &Hubs<&str>| hubs.lock().len();
        let [first, second] = [(); 2].map(|()| hubs.get(&"jobs"));
        // Something else still holds the hub: a wake-up on another thread, for example.
        let held = Arc::clone(&first);
        hubs.put_back(&"jobs", &first);
        assert_eq!(many(&hubs), 1, "somebody waits");
        hubs.put_back(&"jobs", &second);
        assert_eq!(many(&hubs), 0, "an entry for each thing that was ever waited for");
        drop(held);
    }

    type Look = Answer<Result<(Vec<u32>, Option<Duration>), Error>>;

    #[test]
    fn who_is_told_and_leaves_before_it_has_looked_tells_the_next() {
        let hubs = Hubs::<&str>::default();
        let hub = hubs.get(&"jobs");
        // The first look finds nothing, the second does not come to an end.
        let looks = || {
            let mut is_first = true;
            move || -> Look {
                if std::mem::take(&mut is_first) {
                    Answer::ready(Ok((Vec::new(), None)))
                } else {
                    Answer::from_future(std::future::pending())
                }
            }
        };
        let wait = Duration::from_secs(60);
        let clock = SystemClock::shared();
        let [mut first, mut second] = [looks(), looks()].map(|look| Box::pin(look_until(&hub, &clock, wait, look)));
        let flags = [(); 2].map(|()| Arc::new(Flag::default()));
        let wakers = flags.clone().map(Waker::from);
        assert!(first.as_mut().poll(&mut Context::from_waker(&wakers[0])).is_pending());
        assert!(second.as_mut().poll(&mut Context::from_waker(&wakers[1])).is_pending());

        hubs.wake(&"jobs", 1);
        assert!(flags[0].0.load(Ordering::SeqCst), "the one that has waited for longest is told");
        assert!(!flags[1].0.load(Ordering::SeqCst));
        assert!(first.as_mut().poll(&mut Context::from_waker(&wakers[0])).is_pending(), "it looks");
        drop(first);
        assert!(flags[1].0.load(Ordering::SeqCst), "otherwise nobody looks for what is there");
    }
}
