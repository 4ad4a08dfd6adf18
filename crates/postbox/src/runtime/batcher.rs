//! Gathers concurrent operations of one kind into requests.
//!
//! A full request is sent at once. Operations that do not fill a request wait until all requests have ended that were in
//! flight when they came. So a lone operation is sent at once, and under load requests are large.

use std::collections::{BTreeSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::runtime::{io_thread, lock};

/// An operation that can share a request with others.
pub(crate) trait Entry: Send + 'static {
    /// The number of entries that it adds to a request.
    fn weight(&self) -> usize {
        1
    }

    /// The number of bytes that it adds to a request.
    fn bytes(&self) -> usize {
        0
    }

    /// Whether it can share a request whose first operation is `_first`.
    fn can_join(&self, _first: &Self) -> bool {
        true
    }
}

/// The limits of a batcher.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchLimits {
    /// The most entries of a request.
    pub(crate) entries: usize,
    /// The most requests in flight. With one, operations arrive in order.
    pub(crate) requests: usize,
    /// Whether operations of different callers share requests.
    pub(crate) gathers: bool,
}

pub(crate) struct Batcher<E> {
    state: Mutex<State<E>>,
    limits: BatchLimits,
    max_bytes: AtomicUsize,
}

struct State<E> {
    waiting: VecDeque<Waiting<E>>,
    /// The numbers of the requests in flight.
    in_flight: BTreeSet<u64>,
    newest_request: u64,
    /// The number of submissions so far.
    pushes: u64,
    /// Whether a worker was started that has not taken a request yet.
    is_starting: bool,
}

struct Waiting<E> {
    /// The number of the newest request when the entry came.
    since: u64,
    /// Entries of one submission have the same number.
    push: u64,
    entry: E,
}

/// The entries of one request.
struct Request<E> {
    number: u64,
    entries: Vec<E>,
}

/// The future of a request.
pub(crate) type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Sends a request with entries.
pub(crate) type Serve<P, E> = fn(Arc<P>, Vec<E>) -> Work;

impl<E: Entry> Batcher<E> {
    pub(crate) fn new(limits: BatchLimits, max_bytes: usize) -> Self {
        let state = State {
            waiting: VecDeque::new(),
            in_flight: BTreeSet::new(),
            newest_request: 0,
            pushes: 0,
            is_starting: false,
        };
        Batcher { state: Mutex::new(state), limits, max_bytes: AtomicUsize::new(max_bytes) }
    }

    #[cfg(any(test, feature = "aws"))]
    /// Sets the most bytes of a request. A larger entry is sent alone.
    pub(crate) fn set_max_bytes(&self, max_bytes: usize) {
        self.max_bytes.store(max_bytes, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, State<E>> {
        lock(&self.state)
    }

    /// Adds entries, and returns whether a worker has to be started.
    fn push(&self, entries: impl IntoIterator<Item = E>) -> bool {
        let mut state = self.lock();
        state.pushes += 1;
        let (since, push) = (state.newest_request, state.pushes);
        state.waiting.extend(entries.into_iter().map(|entry| Waiting { since, push, entry }));
        self.has_to_start(&mut state)
    }

    /// The next request, if one can be sent now, and whether another worker has to be started.
    fn take(&self) -> (Option<Request<E>>, bool) {
        let mut state = self.lock();
        state.is_starting = false;
        let Some(many) = self.ready(&state) else { return (None, false) };
        state.newest_request += 1;
        let number = state.newest_request;
        state.in_flight.insert(number);
        let entries = state.waiting.drain(..many).map(|waiting| waiting.entry).collect();
        (Some(Request { number, entries }), self.has_to_start(&mut state))
    }

    /// A request has ended.
    fn end(&self, number: u64) {
        self.lock().in_flight.remove(&number);
    }

    fn has_to_start(&self, state: &mut State<E>) -> bool {
        let starts = !state.is_starting && self.ready(state).is_some();
        state.is_starting |= starts;
        starts
    }

    /// The number of entries of the next request, if it can be sent now.
    fn ready(&self, state: &State<E>) -> Option<usize> {
        let BatchLimits { entries: most, requests, gathers } = self.limits;
        let max_bytes = self.max_bytes.load(Ordering::Relaxed);
        let first = state.waiting.front().filter(|_| state.in_flight.len() < requests)?;
        let (mut many, mut weight, mut bytes) = (0, 0, 0);
        let mut is_full = false;
        for Waiting { entry, push, .. } in &state.waiting {
            let fits = weight + entry.weight() <= most && bytes + entry.bytes() <= max_bytes;
            let is_together = (gathers || *push == first.push) && entry.can_join(&first.entry);
            if many > 0 && !(fits && is_together) {
                is_full = true;
                break;
            }
            (many, weight, bytes) = (many + 1, weight + entry.weight(), bytes + entry.bytes());
        }
        let is_alone = state.in_flight.first().is_none_or(|oldest| *oldest > first.since);
        (is_full || weight >= most || is_alone || !gathers).then_some(many)
    }
}

/// Adds entries to a batcher of `owner`. Its requests are sent on the I/O thread. If that is not possible, entries are
/// dropped.
pub(crate) fn submit<P: Send + Sync + 'static, E: Entry>(
    owner: &Arc<P>,
    batcher: fn(&P) -> &Batcher<E>,
    serve: Serve<P, E>,
    entries: impl IntoIterator<Item = E>,
) {
    if batcher(owner).push(entries) {
        start(Arc::clone(owner), batcher, serve);
    }
}

fn start<P: Send + Sync + 'static, E: Entry>(owner: Arc<P>, batcher: fn(&P) -> &Batcher<E>, serve: Serve<P, E>) {
    let worker = Worker { owner, batcher, serve, request: None, has_ended: false };
    // If the thread cannot be started, the worker is dropped.
    let _ = io_thread::spawn(worker.run());
}

/// Sends requests until there is none to send.
struct Worker<P: Send + Sync + 'static, E: Entry> {
    owner: Arc<P>,
    batcher: fn(&P) -> &Batcher<E>,
    serve: Serve<P, E>,
    /// The number of the request in flight.
    request: Option<u64>,
    has_ended: bool,
}

impl<P: Send + Sync + 'static, E: Entry> Worker<P, E> {
    async fn run(mut self) {
        loop {
            let (request, starts) = (self.batcher)(&self.owner).take();
            if starts {
                start(Arc::clone(&self.owner), self.batcher, self.serve);
            }
            let Some(Request { number, entries }) = request else { break };
            self.request = Some(number);
            (self.serve)(Arc::clone(&self.owner), entries).await;
            self.end();
            // The callers that have just been answered may submit operations, which join the next request.
            tokio::task::yield_now().await;
        }
        self.has_ended = true;
    }

    fn end(&mut self) {
        if let Some(number) = self.request.take() {
            (self.batcher)(&self.owner).end(number);
        }
    }
}

impl<P: Send + Sync + 'static, E: Entry> Drop for Worker<P, E> {
    /// A request panicked, or the thread could not be started. Entries that wait are dropped, since no other worker may
    /// come.
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        self.end();
        let batcher = (self.batcher)(&self.owner);
        while let (Some(request), _) = batcher.take() {
            batcher.end(request.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    struct One(u32);

    impl Entry for One {
        fn bytes(&self) -> usize {
            100
        }
    }

    fn batcher(requests: usize, gathers: bool) -> Batcher<One> {
        Batcher::new(BatchLimits { entries: 10, requests, gathers }, 10_000)
    }

    /// Adds entries. Returns the requests that can be sent then.
    fn push(batcher: &Batcher<One>, many: u32) -> Vec<Request<One>> {
        let starts = batcher.push((0..many).map(One));
        let ready = take_all(batcher);
        assert_eq!(starts, !ready.is_empty());
        ready
    }

    fn end(batcher: &Batcher<One>, request: &Request<One>) -> Vec<Request<One>> {
        batcher.end(request.number);
        take_all(batcher)
    }

    fn take_all(batcher: &Batcher<One>) -> Vec<Request<One>> {
        std::iter::from_fn(|| batcher.take().0).collect()
    }

    fn sizes(requests: &[Request<One>]) -> Vec<usize> {
        requests.iter().map(|request| request.entries.len()).collect()
    }

    #[test]
    fn a_lone_entry_goes_at_once() {
        let batcher = batcher(16, true);
        for _ in 0..3 {
            let ready = push(&batcher, 1);
            assert_eq!(sizes(&ready), [1]);
            assert!(end(&batcher, &ready[0]).is_empty());
        }
    }

    #[test]
    fn what_comes_meanwhile_is_gathered() {
        let batcher = batcher(16, true);
        let first = push(&batcher, 1);
        for _ in 0..9 {
            assert!(push(&batcher, 1).is_empty(), "it waits for the one under way");
        }
        let full = push(&batcher, 1);
        assert_eq!(sizes(&full), [10], "a full one waits for nothing");
        assert!(push(&batcher, 3).is_empty());
        assert!(end(&batcher, &full[0]).is_empty(), "the first was under way when they came, and still is");
        assert_eq!(sizes(&end(&batcher, &first[0])), [3]);
    }

    #[test]
    fn nothing_waits_for_what_came_later() {
        let batcher = batcher(16, true);
        let first = push(&batcher, 1);
        assert!(push(&batcher, 1).is_empty());
        let later = push(&batcher, 11);
        assert_eq!(sizes(&later), [10], "the one that waited is in it");
        assert_eq!(sizes(&end(&batcher, &first[0])), [2], "the full one went after these had come");
        assert!(end(&batcher, &later[0]).is_empty());
    }

    #[test]
    fn bytes_fill_a_request_too() {
        let batcher = batcher(16, true);
        batcher.set_max_bytes(200);
        assert_eq!(sizes(&push(&batcher, 5)), [2, 2, 1]);
    }

    #[test]
    fn one_at_a_time_keeps_the_order() {
        let batcher = batcher(1, true);
        let first = push(&batcher, 25);
        assert_eq!(sizes(&first), [10]);
        assert_eq!(first[0].entries[9], One(9));
        let second = end(&batcher, &first[0]);
        assert_eq!((sizes(&second), &second[0].entries[0]), (vec![10], &One(10)));
    }

    #[test]
    fn without_gathering_everything_goes_as_it_comes() {
        let all_at_once = batcher(usize::MAX, false);
        for many in [1, 1, 7] {
            assert_eq!(sizes(&push(&all_at_once, many)), [many as usize]);
        }
        let in_order = batcher(1, false);
        let first = push(&in_order, 1);
        assert!(push(&in_order, 2).is_empty() && push(&in_order, 1).is_empty());
        let second = end(&in_order, &first[0]);
        assert_eq!((sizes(&second), sizes(&end(&in_order, &second[0]))), (vec![2], vec![1]));
    }

    /// A owner whose requests panic.
    struct Panics(Batcher<Noted>);

    struct Noted(crate::runtime::oneshot::Sender<()>);

    impl Entry for Noted {}

    #[test]
    fn a_request_that_panics_fails_what_waits_and_the_next_one_is_made() {
        let limits = BatchLimits { entries: 10, requests: 1, gathers: true };
        let owner = Arc::new(Panics(Batcher::new(limits, 10_000)));
        for _ in 0..2 {
            let (noted, done): (Vec<_>, Vec<_>) = (0..25)
                .map(|_| crate::runtime::oneshot::channel(None))
                .map(|(sender, done)| (Noted(sender), done))
                .unzip();
            submit(&owner, |owner| &owner.0, |_, _| Box::pin(async { panic!("on purpose") }), noted);
            for done in done {
                assert!(postbox_core::wait_for(done).is_err());
            }
        }
        let (sender, done) = crate::runtime::oneshot::channel(None);
        let serve: Serve<Panics, Noted> =
            |_, entries| Box::pin(async move { entries.into_iter().for_each(|Noted(sender)| sender.send(Ok(()))) });
        submit(&owner, |owner| &owner.0, serve, [Noted(sender)]);
        postbox_core::wait_for(done).unwrap();
    }
}
