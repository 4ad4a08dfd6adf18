//! PendingReceive: at once, or by a long poll that is shared.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::lease_tracker::after;
use super::long_poll::{LongPoll, max_response_time};
use super::message_format::whole_seconds;
use super::queue::Queue;
use crate::backend::{Delivery, Receipt, Receive, Visibility};
use crate::error::Error;
use crate::mailbox::operation::Answer;
use crate::runtime::batcher::{Entry, Work, submit};
use crate::runtime::cancellation::unless;
use crate::runtime::clock::{Sleep, SystemClock};
use crate::runtime::io_thread;
use crate::runtime::oneshot;

/// A poll that brings nothing takes longer, since it waits for a second at least.
const EARLY: Duration = Duration::from_millis(250);

/// A receive that does not wait.
pub(super) struct PendingReceive {
    max: usize,
    visibility: Duration,
    sender: oneshot::Sender<Vec<Delivery>>,
}

impl Entry for PendingReceive {
    fn weight(&self) -> usize {
        self.max
    }

    fn goes_with(&self, first: &Self) -> bool {
        self.visibility == first.visibility
    }
}

impl Queue {
    /// LeaseTracker what is there, for others together with this one.
    pub(super) fn receive(self: &Arc<Self>, request: Receive) -> Answer<Result<Vec<Delivery>, Error>> {
        if !request.wait.is_zero() {
            return self.wait(request);
        }
        let back = Arc::clone(self);
        let (sender, found) =
            oneshot::channel(Some(Box::new(move |deliveries: Vec<Delivery>| back.return_deliveries(deliveries))));
        let entry = PendingReceive { max: request.max, visibility: request.visibility, sender };
        let serve = |queue: Arc<Queue>, entries| -> Work { Box::pin(async move { queue.receive_all(entries).await }) };
        submit(self, |queue| &queue.receives, serve, [entry]);
        Answer::from_future(found)
    }

    async fn receive_all(self: &Arc<Self>, mut entries: Vec<PendingReceive>) {
        entries.retain(|entry| !entry.sender.is_unwanted());
        let Some(visibility) = entries.first().map(|entry| entry.visibility) else { return };
        let max = entries.iter().map(|entry| entry.max).sum();
        match self.lease(max, visibility, None).await {
            Ok(found) => {
                let mut found = found.into_iter();
                for entry in entries {
                    entry.sender.send(Ok(found.by_ref().take(entry.max).collect()));
                }
                self.return_deliveries(found.collect());
            }
            Err(error) => entries.iter().for_each(|entry| entry.sender.send(Err(error.clone()))),
        }
    }

    /// Asks for messages, waits for them for a number of seconds if there is one, and keeps their leases.
    async fn lease(
        self: &Arc<Self>,
        max: usize,
        visibility: Duration,
        wait: Option<i32>,
    ) -> Result<Vec<Delivery>, Error> {
        let info = self.info().await?;
        let asked = Instant::now();
        let seconds = whole_seconds(visibility);
        let found = self.client.receive(&info.url, max, seconds, wait.unwrap_or(0), self.is_fifo, &[]).await;
        let found = found.map_err(|aws_error| self.error(aws_error))?;
        // A lease begins between the request and its answer: shortly before the answer, if the request waited.
        let start = if wait.is_some() { Instant::now() } else { asked };
        let until = after(start, Duration::from_secs(seconds.unsigned_abs().into()));
        found.iter().for_each(|received| self.leases.add(received, start, until));
        Ok(found.into_iter().map(|received| received.delivery).collect())
    }

    /// Makes visible again what nobody takes.
    pub(super) fn return_deliveries(self: &Arc<Self>, deliveries: Vec<Delivery>) {
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
        let (sender, found) =
            oneshot::channel(Some(Box::new(move |deliveries: Vec<Delivery>| back.return_deliveries(deliveries))));
        let late = max_response_time(request.wait);
        self.long_polls.add_waiter(request, sender);
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
        while let Some(poll) = self.long_polls.next_poll() {
            let queue = Arc::clone(self);
            let task = LongPollTask { queue: Arc::clone(&queue), poll: Some(poll) };
            // Without the thread `task` is dropped, which tells the receivers.
            let _ = io_thread::spawn(async move {
                let asked = Instant::now();
                let found = queue.lease(poll.max, poll.visibility, Some(poll.wait)).await;
                pause_if_early(&found, asked).await;
                task.deliver(found);
            });
        }
    }
}

/// A poll that is under way, and one way or another ends.
struct LongPollTask {
    queue: Arc<Queue>,
    poll: Option<LongPoll>,
}

impl LongPollTask {
    /// What it has brought goes to those who wait, who may need another one.
    fn deliver(mut self, found: Result<Vec<Delivery>, Error>) {
        if let Some(poll) = self.poll.take() {
            self.queue.return_deliveries(self.queue.long_polls.deliver(poll, found));
            self.queue.poll();
        }
    }
}

impl Drop for LongPollTask {
    fn drop(&mut self) {
        // The request panicked, or could not be made.
        if let Some(poll) = self.poll.take() {
            self.queue.long_polls.deliver(poll, Err(Error::connection("a long poll ended before its answer")));
        }
    }
}

/// A server that does not wait is not asked all the time.
async fn pause_if_early(found: &Result<Vec<Delivery>, Error>, asked: Instant) {
    if matches!(found, Ok(found) if found.is_empty()) && asked.elapsed() < EARLY {
        Sleep::for_(SystemClock::shared(), EARLY).await;
    }
}
