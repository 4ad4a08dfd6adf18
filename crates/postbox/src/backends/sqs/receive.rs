//! Receives messages: at once, or by a shared long poll.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::lease_tracker::add_duration;
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

/// A server that answers an empty long poll sooner does not wait. The next long poll is then delayed
/// by this time.
const MIN_EMPTY_POLL: Duration = Duration::from_millis(250);

/// A receive without a wait, which waits for its request.
pub(super) struct PendingReceive {
    max: usize,
    visibility: Duration,
    sender: oneshot::Sender<Vec<Delivery>>,
}

impl Entry for PendingReceive {
    fn weight(&self) -> usize {
        self.max
    }

    fn can_join(&self, first: &Self) -> bool {
        self.visibility == first.visibility
    }
}

impl Queue {
    pub(super) fn receive(self: &Arc<Self>, request: Receive) -> Answer<Result<Vec<Delivery>, Error>> {
        let queue = Arc::clone(self);
        let (sender, found) =
            oneshot::channel(Some(Box::new(move |deliveries: Vec<Delivery>| queue.return_deliveries(deliveries))));
        if !request.wait.is_zero() {
            return self.receive_by_long_poll(request, sender, found);
        }
        let entry = PendingReceive { max: request.max, visibility: request.visibility, sender };
        let serve = |queue: Arc<Queue>, entries| -> Work { Box::pin(async move { queue.receive_all(entries).await }) };
        submit(self, |queue| &queue.receives, serve, [entry]);
        Answer::from_future(found)
    }

    async fn receive_all(self: &Arc<Self>, mut entries: Vec<PendingReceive>) {
        entries.retain(|entry| !entry.sender.is_unwanted());
        let Some(visibility) = entries.first().map(|entry| entry.visibility) else { return };
        let max = entries.iter().map(|entry| entry.max).sum();
        match self.request_messages(max, visibility, 0).await {
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

    /// Sends a receive request, and adds the leases to the tracker.
    async fn request_messages(
        self: &Arc<Self>,
        max: usize,
        visibility: Duration,
        wait_seconds: i32,
    ) -> Result<Vec<Delivery>, Error> {
        let info = self.info().await?;
        let sent_at = Instant::now();
        let seconds = whole_seconds(visibility);
        let found = self.client.receive(&info.url, max, seconds, wait_seconds, self.is_fifo, &[]).await;
        let found = found.map_err(|error| self.error(error))?;
        // SQS starts a lease between the request and the response; in a long poll, shortly before
        // the response.
        let start = if wait_seconds > 0 { Instant::now() } else { sent_at };
        let deadline = add_duration(start, Duration::from_secs(seconds.unsigned_abs().into()));
        found.iter().for_each(|received| self.leases.add(received, start, deadline));
        Ok(found.into_iter().map(|received| received.delivery).collect())
    }

    /// Makes deliveries visible again that no receiver takes.
    fn return_deliveries(self: &Arc<Self>, deliveries: Vec<Delivery>) {
        let receipts =
            deliveries.into_iter().map(|delivery| Receipt { id: delivery.id, handle: delivery.receipt_handle });
        let changes: Vec<_> = receipts.map(|receipt| (receipt, Visibility::Return(Duration::ZERO))).collect();
        if !changes.is_empty() {
            drop(self.set_visibility(changes));
        }
    }

    fn receive_by_long_poll(
        self: &Arc<Self>,
        request: Receive,
        sender: oneshot::Sender<Vec<Delivery>>,
        found: oneshot::Receiver<Vec<Delivery>>,
    ) -> Answer<Result<Vec<Delivery>, Error>> {
        let max_response_time = max_response_time(request.wait);
        self.long_polls.add_waiter(request, sender);
        self.start_long_polls();
        Answer::from_future(async move {
            let clock = SystemClock::shared();
            let end = clock.now().after(max_response_time);
            unless(Sleep::until(clock, end), found).await.unwrap_or_else(|| Ok(Vec::new()))
        })
    }

    /// Starts as many long polls as the waiters need.
    fn start_long_polls(self: &Arc<Self>) {
        while let Some(poll) = self.long_polls.next_poll() {
            let queue = Arc::clone(self);
            let task = LongPollTask { queue: Arc::clone(&queue), poll: Some(poll) };
            // Without the I/O thread `task` is dropped, and the waiters get an error.
            let _ = io_thread::spawn(async move {
                let sent_at = Instant::now();
                let found = queue.request_messages(poll.max, poll.visibility, poll.wait_seconds).await;
                let is_empty = found.as_ref().is_ok_and(Vec::is_empty);
                if is_empty && sent_at.elapsed() < MIN_EMPTY_POLL {
                    Sleep::for_(SystemClock::shared(), MIN_EMPTY_POLL).await;
                }
                task.deliver(found);
            });
        }
    }
}

/// A long poll in progress. If it is dropped before its response, its waiters get an error.
struct LongPollTask {
    queue: Arc<Queue>,
    poll: Option<LongPoll>,
}

impl LongPollTask {
    fn deliver(mut self, found: Result<Vec<Delivery>, Error>) {
        if let Some(poll) = self.poll.take() {
            self.queue.return_deliveries(self.queue.long_polls.deliver(poll, found));
            self.queue.start_long_polls();
        }
    }
}

impl Drop for LongPollTask {
    fn drop(&mut self) {
        if let Some(poll) = self.poll.take() {
            self.queue.long_polls.deliver(poll, Err(Error::connection("a long poll ended before its response")));
        }
    }
}
