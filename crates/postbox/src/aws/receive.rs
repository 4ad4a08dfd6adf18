//! Receiving: at once, or by a long poll that is shared.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::lane::Entry;
use super::leases::after;
use super::letter::whole_seconds;
use super::queue::Queue;
use crate::awake::UnderWay;
use crate::backend::{Delivery, Receipt, Receive, Visibility};
use crate::cancellation::unless;
use crate::clock::{Sleep, SystemClock};
use crate::error::Error;
use crate::network;
use crate::operation::Answer;
use crate::promise::{Promise, promise};

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
        let ready = self.receives.push([entry], usize::MAX);
        self.work(
            |queue| &queue.receives,
            ready,
            |queue, entries| Box::pin(async move { queue.receive_all(entries).await }),
        );
        Answer::from_future(found)
    }

    async fn receive_all(self: &Arc<Self>, mut entries: Vec<Receiving>) {
        entries.retain(|entry| !entry.promise.is_void());
        let Some(visibility) = entries.first().map(|entry| entry.visibility) else { return };
        let max = entries.iter().map(|entry| entry.max).sum();
        match self.lease(max, visibility, 0).await {
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

    /// Asks for messages, and keeps their leases.
    async fn lease(self: &Arc<Self>, max: usize, visibility: Duration, wait: i32) -> Result<Vec<Delivery>, Error> {
        let facts = self.facts().await?;
        let asked = Instant::now();
        let seconds = whole_seconds(visibility);
        let found = {
            let _under_way = UnderWay::begin();
            self.region.receive(&facts.url, max, seconds, wait, self.is_fifo).await
        };
        let found = found.map_err(|fault| self.failed(fault))?;
        // Who does not wait is handed the lease somewhere between question and answer; who waits, near the answer.
        let start = if wait == 0 { asked } else { Instant::now() };
        let until = after(start, Duration::from_secs(seconds.unsigned_abs().into()));
        found.iter().for_each(|received| self.leases.add(received, until));
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
        let late = self.desk.join(request, promise);
        self.poll();
        Answer::from_future(async move {
            let clock = SystemClock::shared();
            let end = clock.now().after(late);
            match unless(Sleep::until(clock, end), found).await {
                Some(found) => found,
                None => Ok(Vec::new()),
            }
        })
    }

    /// Starts as many long polls as those who wait need.
    fn poll(self: &Arc<Self>) {
        while let Some(poll) = self.desk.plan() {
            let queue = Arc::clone(self);
            network::spawn(async move {
                let asked = Instant::now();
                let found = queue.lease(poll.max, poll.visibility, poll.wait).await;
                // A server that does not wait is not asked all the time.
                if matches!(&found, Ok(found) if found.is_empty()) && asked.elapsed() < EARLY {
                    tokio::time::sleep(EARLY).await;
                }
                let left = queue.desk.deliver(poll, found);
                queue.give_back(left);
                queue.poll();
            });
        }
    }
}
