//! Receiving: at once, or by a long poll that is shared.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::desk::{Poll, patience};
use super::lane::Entry;
use super::leases::after;
use super::letter::whole_seconds;
use super::queue::{Ends, Queue};
use crate::backend::{Delivery, Receipt, Receive, Visibility};
use crate::error::Error;
use crate::mailbox::operation::Answer;
use crate::runtime::cancellation::unless;
use crate::runtime::clock::{Sleep, SystemClock};
use crate::runtime::near::{self, Heard, Work};
use crate::runtime::oneshot::{Promise, promise};

/// A poll that brings nothing takes longer, since it waits for a second at least.
const EARLY: Duration = Duration::from_millis(250);

/// A receive that does not wait.
pub(super) struct Receiving {
    max: usize,
    visibility: Duration,
    promise: Promise<Vec<Delivery>>,
}

impl Entry for Receiving {
    fn weight(&self) -> usize {
        self.max
    }

    fn goes_with(&self, first: &Self) -> bool {
        self.visibility == first.visibility
    }
}

impl Queue {
    /// Leases what is there, for others together with this one.
    pub(super) fn receive(self: &Arc<Self>, request: Receive) -> Answer<Result<Vec<Delivery>, Error>> {
        if !request.wait.is_zero() {
            return self.wait(request);
        }
        let back = Arc::clone(self);
        let (promise, found) = promise(Some(Box::new(move |deliveries: Vec<Delivery>| back.give_back(deliveries))));
        let entry = Receiving { max: request.max, visibility: request.visibility, promise };
        let request: fn(Arc<Queue>, Vec<Receiving>) -> Work =
            |queue, entries| Box::pin(async move { queue.receive_all(entries).await });
        let mut answers = self.put(|queue| &queue.receives, vec![entry], request, vec![Answer::from_future(found)]);
        answers.pop().expect("there is one")
    }

    async fn receive_all(self: &Arc<Self>, mut entries: Vec<Receiving>) {
        entries.retain(|entry| !entry.promise.is_void());
        let Some(visibility) = entries.first().map(|entry| entry.visibility) else { return };
        let max = entries.iter().map(|entry| entry.max).sum();
        match self.lease(max, visibility, None).await {
            Ok(found) => {
                let mut found = found.into_iter();
                for entry in entries {
                    entry.promise.fulfil(Ok(found.by_ref().take(entry.max).collect()));
                }
                self.give_back(found.collect());
            }
            Err(error) => entries.iter().for_each(|entry| entry.promise.fulfil(Err(error.clone()))),
        }
    }

    /// Asks for messages, and keeps their leases. Who waits for them, waits for so many seconds, and says when the answer came.
    async fn lease(
        self: &Arc<Self>,
        max: usize,
        visibility: Duration,
        waits: Option<(i32, &Heard)>,
    ) -> Result<Vec<Delivery>, Error> {
        let facts = self.facts().await?;
        let asked = Instant::now();
        let seconds = whole_seconds(visibility);
        let wait = waits.map_or(0, |waits| waits.0);
        let found = self.region.receive(&facts.url, max, seconds, wait, self.is_fifo, &[]).await;
        let found = found.map_err(|fault| self.failed(fault))?;
        // Who does not wait is handed the lease somewhere between question and answer; who waits, near the answer.
        let start = waits.map_or(asked, |(_, heard)| heard.since());
        let until = after(start, Duration::from_secs(seconds.unsigned_abs().into()));
        found.iter().for_each(|received| self.leases.add(received, start, until));
        Ok(found.into_iter().map(|received| received.delivery).collect())
    }

    /// Makes visible again what nobody takes.
    pub(super) fn give_back(self: &Arc<Self>, deliveries: Vec<Delivery>) {
        let receipts =
            deliveries.into_iter().map(|delivery| Receipt { id: delivery.id, handle: delivery.receipt_handle });
        let changes = receipts.map(|receipt| (receipt, Visibility::Return(Duration::ZERO))).collect::<Vec<_>>();
        if !changes.is_empty() {
            drop(self.set_visibility(changes));
        }
    }

    /// A receive that waits, on a long poll that it shares.
    fn wait(self: &Arc<Self>, request: Receive) -> Answer<Result<Vec<Delivery>, Error>> {
        let back = Arc::clone(self);
        let (promise, found) = promise(Some(Box::new(move |deliveries: Vec<Delivery>| back.give_back(deliveries))));
        let late = patience(request.wait);
        let found = Answer::from_future(found);
        let found = if near::is_home() && self.desk.lend() {
            let queue = Arc::clone(self);
            near::own_listening(
                move |heard| Box::pin(async move { queue.wait_alone(request, promise, &heard).await }),
                found,
            )
        } else {
            self.desk.join(request, promise);
            self.poll();
            found
        };
        Answer::from_future(async move {
            let clock = SystemClock::shared();
            let end = clock.now().after(late);
            match unless(Sleep::until(clock, end), found).await {
                Some(found) => found,
                None => Ok(Vec::new()),
            }
        })
    }

    /// A poll for somebody who is the only one. If it brings nothing in his time, he joins the others.
    async fn wait_alone(self: Arc<Self>, request: Receive, promise: Promise<Vec<Delivery>>, heard: &Heard) {
        let ends = Ends(|| self.desk.take_back());
        let (asked, until) = (Instant::now(), after(Instant::now(), request.wait));
        let poll = Poll::alone(request);
        let found = self.lease(poll.max, poll.visibility, Some((poll.wait, heard))).await;
        drop(ends);
        pause_if_early(&found, asked).await;
        let left = until.saturating_duration_since(Instant::now());
        match found {
            // Others may have come since.
            Ok(found) if promise.is_void() => {
                self.give_back(self.desk.deliver(poll, Ok(found)));
                self.poll();
            }
            Ok(found) if found.is_empty() && !left.is_zero() => {
                self.desk.join(Receive { wait: left, ..request }, promise);
                self.poll();
            }
            found => promise.fulfil(found),
        }
    }

    /// Starts as many long polls as those who wait need.
    fn poll(self: &Arc<Self>) {
        while let Some(poll) = self.desk.plan() {
            let queue = Arc::clone(self);
            near::spawn_listening(move |heard| {
                Box::pin(async move {
                    let polling = Polling { queue, poll: Some(poll) };
                    let asked = Instant::now();
                    let found = polling.queue.lease(poll.max, poll.visibility, Some((poll.wait, &heard))).await;
                    pause_if_early(&found, asked).await;
                    polling.deliver(found);
                })
            });
        }
    }
}

/// A poll that is under way, and one way or another ends.
struct Polling {
    queue: Arc<Queue>,
    poll: Option<Poll>,
}

impl Polling {
    /// What it has brought goes to those who wait, who may need another one.
    fn deliver(mut self, found: Result<Vec<Delivery>, Error>) {
        if let Some(poll) = self.poll.take() {
            self.queue.give_back(self.queue.desk.deliver(poll, found));
            self.queue.poll();
        }
    }
}

impl Drop for Polling {
    fn drop(&mut self) {
        // A panic, as a connection has on a runtime without IO: whoever counts on it is told.
        if let Some(poll) = self.poll.take() {
            self.queue.desk.deliver(poll, Err(Error::connection("a long poll ended before its answer")));
        }
    }
}

/// A server that does not wait is not asked all the time.
async fn pause_if_early(found: &Result<Vec<Delivery>, Error>, asked: Instant) {
    if matches!(found, Ok(found) if found.is_empty()) && asked.elapsed() < EARLY {
        Sleep::for_(SystemClock::shared(), EARLY).await;
    }
}
