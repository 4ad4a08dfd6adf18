//! Settles deliveries: acknowledges them, returns them to the queue, or extends their leases.

use std::sync::Arc;
use std::time::{Duration, Instant};

use aws_sdk_sqs::types::{ChangeMessageVisibilityBatchRequestEntry, DeleteMessageBatchRequestEntry};

use super::lease_tracker::{BeginSettle, add_duration};
use super::message_format::whole_seconds;
use super::queue::{BatchRequest, BatchResponse, Queue};
use crate::backend::{Receipt, Visibility};
use crate::backends::aws::error::AwsError;
use crate::error::Error;
use crate::mailbox::id::ReceiptHandle;
use crate::mailbox::operation::Answer;
use crate::runtime::batcher::{Batcher, Entry, submit};
use crate::runtime::cancellation::unless;
use crate::runtime::clock::{Sleep, SystemClock};
use crate::runtime::io_thread;
use crate::runtime::oneshot;

/// The longest lease on SQS, extensions included, in seconds.
const MAX_LEASE_SECONDS: u64 = 12 * 60 * 60;

/// An operation on a delivery that waits for its request.
pub(super) struct PendingSettle {
    guard: SettleGuard,
    action: Action,
    sender: oneshot::Sender<()>,
}

impl Entry for PendingSettle {}

#[derive(Clone, Copy, PartialEq)]
enum Action {
    Delete,
    /// Ends the lease. The message becomes visible after this number of seconds.
    Return(i32),
    /// Extends the lease to this number of seconds from now.
    Extend(i32),
}

impl Action {
    /// The visibility timeout to send. `None` for a deletion.
    fn visibility_seconds(self) -> Option<i32> {
        match self {
            Action::Delete => None,
            Action::Return(seconds) | Action::Extend(seconds) => Some(seconds),
        }
    }
}

fn seconds(number: i32) -> Duration {
    Duration::from_secs(number.unsigned_abs().into())
}

/// An operation on a delivery that has begun. Dropping it lets the next operation begin.
pub(super) struct SettleGuard {
    queue: Arc<Queue>,
    receipt: Receipt,
    has_ended: bool,
}

impl SettleGuard {
    /// The caller has begun the operation in the lease tracker.
    pub(super) fn new(queue: &Arc<Queue>, receipt: Receipt) -> Self {
        SettleGuard { queue: Arc::clone(queue), receipt, has_ended: false }
    }

    fn end_lease(&mut self) {
        self.has_ended = true;
        self.queue.leases.end_lease(&self.receipt.handle);
    }

    fn keep_lease(&mut self, deadline: Option<Instant>) {
        self.has_ended = true;
        self.queue.leases.keep_lease(&self.receipt.handle, deadline);
    }

    fn handle(&self) -> &ReceiptHandle {
        &self.receipt.handle
    }
}

impl Drop for SettleGuard {
    fn drop(&mut self) {
        if !self.has_ended {
            self.keep_lease(None);
        }
    }
}

fn expired(receipt: &Receipt) -> Error {
    Error::ReceiptHandleExpired { id: receipt.id.clone() }
}

impl Queue {
    pub(super) fn acknowledge(
        self: &Arc<Self>,
        receipts: impl IntoIterator<Item = Receipt>,
    ) -> Vec<Answer<Result<(), Error>>> {
        self.settle(receipts.into_iter().map(|receipt| (receipt, None)))
    }

    pub(super) fn set_visibility(
        self: &Arc<Self>,
        changes: impl IntoIterator<Item = (Receipt, Visibility)>,
    ) -> Vec<Answer<Result<(), Error>>> {
        self.settle(changes.into_iter().map(|(receipt, visibility)| (receipt, Some(visibility))))
    }

    /// Deletes deliveries (`None`) or changes their visibility.
    fn settle(
        self: &Arc<Self>,
        operations: impl Iterator<Item = (Receipt, Option<Visibility>)>,
    ) -> Vec<Answer<Result<(), Error>>> {
        let mut pending = Vec::new();
        let answers = operations.map(|(receipt, visibility)| match self.leases.begin(&receipt.handle) {
            BeginSettle::Begun(deadline) => {
                let (entry, answer) = self.prepare(receipt, visibility, deadline);
                pending.extend(entry);
                answer
            }
            BeginSettle::Expired => Answer::ready(Err(expired(&receipt))),
            BeginSettle::Busy => {
                let queue = Arc::clone(self);
                io_thread::ask(async move {
                    let deadline = queue.leases.begin_when_idle(&receipt.handle).await;
                    let deadline = deadline.ok_or_else(|| expired(&receipt))?;
                    let (entry, answer) = queue.prepare(receipt, visibility, deadline);
                    queue.submit_settles(entry);
                    answer.await
                })
            }
        });
        let answers = answers.collect();
        self.submit_settles(pending);
        answers
    }

    /// Deletes a delivery whose operation has begun.
    pub(super) async fn delete_delivery(self: &Arc<Self>, guard: SettleGuard) -> Result<(), Error> {
        let (sender, done) = oneshot::channel(None);
        self.submit_settles([PendingSettle { guard, action: Action::Delete, sender }]);
        done.await
    }

    fn submit_settles(self: &Arc<Self>, entries: impl IntoIterator<Item = PendingSettle>) {
        let (deletes, changes): (Vec<_>, Vec<_>) =
            entries.into_iter().partition(|entry| entry.action == Action::Delete);
        let batchers: [(fn(&Queue) -> &Batcher<PendingSettle>, _); 2] =
            [(|queue| &queue.deletes, deletes), (|queue| &queue.visibility_changes, changes)];
        for (batcher, entries) in batchers {
            submit(self, batcher, |queue, entries| Box::pin(async move { queue.settle_all(entries).await }), entries);
        }
    }

    /// Makes the entry of an operation that has begun, and its answer. There is no entry if the
    /// operation needs no request.
    fn prepare(
        self: &Arc<Self>,
        receipt: Receipt,
        visibility: Option<Visibility>,
        deadline: Instant,
    ) -> (Option<PendingSettle>, Answer<Result<(), Error>>) {
        let guard = SettleGuard::new(self, receipt);
        let action = match visibility {
            None => Action::Delete,
            // An extension never shortens a lease.
            Some(Visibility::Extend(by)) if add_duration(Instant::now(), by) <= deadline => {
                return (None, Answer::ready(Ok(())));
            }
            Some(Visibility::Extend(by)) => Action::Extend(whole_seconds(by)),
            Some(Visibility::Return(by)) => Action::Return(whole_seconds(by)),
            // SQS has no release without counting the delivery, so a release is a return without
            // delay.
            Some(Visibility::Release) => Action::Return(0),
        };
        if let Some(number) = action.visibility_seconds() {
            let age = self.leases.age(guard.handle());
            if age + seconds(number) > Duration::from_secs(MAX_LEASE_SECONDS) {
                let age = age.as_secs_f64();
                let limit = format!(
                    "on SQS a lease ends at most {MAX_LEASE_SECONDS} s after the receive, which was {age:.1} s ago"
                );
                let error = Error::invalid("visibility_timeout", format!("{number} s"), limit);
                return (None, Answer::ready(Err(error)));
            }
        }
        let (sender, done) = oneshot::channel(None);
        (Some(PendingSettle { guard, action, sender }), Answer::from_future(done))
    }

    async fn settle_all(self: &Arc<Self>, entries: Vec<PendingSettle>) {
        let info = match self.info().await {
            Ok(info) => info,
            Err(error) => {
                for PendingSettle { guard, sender, .. } in entries {
                    // The guard is dropped before the caller gets the error, so that the caller can
                    // retry.
                    drop(guard);
                    sender.send(Err(error.clone()));
                }
                return;
            }
        };
        let sent_at = Instant::now();
        let check = |entry: &PendingSettle| match self.leases.remaining(entry.guard.handle()).is_zero() {
            true => Err(AwsError::lease_ended(&self.describe())),
            false => Ok(()),
        };
        let request = |entries: &[PendingSettle]| self.settle_before_expiry(&info.url, entries);
        for (entry, result) in self.request_with_retries(entries, check, |_, _| false, request).await {
            let PendingSettle { mut guard, action, sender } = entry;
            let result = match (result, action) {
                (Ok(_), Action::Extend(number)) => {
                    guard.keep_lease(Some(add_duration(sent_at, seconds(number))));
                    Ok(())
                }
                (Ok(_), _) => {
                    guard.end_lease();
                    Ok(())
                }
                (Err(error), _) if error.is_expired_receipt() => {
                    guard.end_lease();
                    Err(expired(&guard.receipt))
                }
                (Err(error), _) => {
                    guard.keep_lease(None);
                    Err(self.error(error))
                }
            };
            sender.send(result);
        }
    }

    /// Sends a request, and abandons it when the first of its leases ends. The SDK would otherwise
    /// retry it with a receipt that is no longer valid.
    fn settle_before_expiry(&self, url: &str, entries: &[PendingSettle]) -> BatchRequest<'_> {
        let remaining = entries.iter().map(|entry| self.leases.remaining(entry.guard.handle())).min();
        let response = self.request_settles(url, entries);
        Box::pin(async move {
            let end = Sleep::for_(SystemClock::shared(), remaining.unwrap_or_default());
            unless(end, response).await.unwrap_or_else(|| Err(AwsError::abandoned(&self.describe())))
        })
    }

    /// `entries` are all deletions, or all visibility changes.
    fn request_settles(&self, url: &str, entries: &[PendingSettle]) -> BatchRequest<'_> {
        let sdk = &self.client.sdk;
        if let [PendingSettle { guard, action, .. }] = entries {
            let handle = guard.handle().to_string();
            return match action.visibility_seconds() {
                None => {
                    let request = sdk.delete_message().queue_url(url).receipt_handle(handle);
                    self.batch_request(request.send(), |_| BatchResponse::one(String::new()))
                }
                Some(number) => {
                    let request = sdk.change_message_visibility().queue_url(url).receipt_handle(handle);
                    let request = request.visibility_timeout(number);
                    self.batch_request(request.send(), |_| BatchResponse::one(String::new()))
                }
            };
        }
        let complete = "the entry has an id and a receipt";
        if entries.iter().all(|entry| entry.action == Action::Delete) {
            let entries = entries.iter().enumerate().map(|(index, entry)| {
                let builder = DeleteMessageBatchRequestEntry::builder().id(index.to_string());
                builder.receipt_handle(entry.guard.handle().to_string()).build().expect(complete)
            });
            let request = sdk.delete_message_batch().queue_url(url).set_entries(Some(entries.collect()));
            return self.batch_request(request.send(), |response| {
                let succeeded = response.successful.into_iter().map(|entry| (entry.id, String::new()));
                BatchResponse::new(succeeded, response.failed)
            });
        }
        let entries = entries.iter().enumerate().map(|(index, entry)| {
            let builder = ChangeMessageVisibilityBatchRequestEntry::builder().id(index.to_string());
            let builder = builder.set_visibility_timeout(entry.action.visibility_seconds());
            builder.receipt_handle(entry.guard.handle().to_string()).build().expect(complete)
        });
        let request = sdk.change_message_visibility_batch().queue_url(url).set_entries(Some(entries.collect()));
        self.batch_request(request.send(), |response| {
            let succeeded = response.successful.into_iter().map(|entry| (entry.id, String::new()));
            BatchResponse::new(succeeded, response.failed)
        })
    }
}
