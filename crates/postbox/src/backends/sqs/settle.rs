//! Acts on deliveries: finishing, giving back, extending.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aws_sdk_sqs::types::{
    ChangeMessageVisibilityBatchRequestEntry as ChangeEntry, DeleteMessageBatchRequestEntry as DeleteEntry,
};

use super::error::AwsError;
use super::lease_tracker::{BeginSettle, after};
use super::message_format::whole_seconds;
use super::queue::{BatchResponse, Queue};
use crate::backend::{Receipt, Visibility};
use crate::error::Error;
use crate::mailbox::id::ReceiptHandle;
use crate::mailbox::operation::Answer;
use crate::runtime::batcher::{Batcher, Entry, submit};
use crate::runtime::cancellation::unless;
use crate::runtime::clock::{Sleep, SystemClock};
use crate::runtime::io_thread;
use crate::runtime::oneshot;

/// For so many seconds SQS leases a message, with all extensions.
const MAX_LEASE_SECONDS: u64 = 12 * 60 * 60;

/// An act on a delivery, and what it makes of the lease.
pub(super) struct PendingSettle {
    guard: SettleGuard,
    /// When it becomes visible again, and whether the lease ends. `None`: it is deleted.
    change: Option<(i32, bool)>,
    sender: oneshot::Sender<()>,
}

impl Entry for PendingSettle {}

fn deletes_of(queue: &Queue) -> &Batcher<PendingSettle> {
    &queue.deletes
}

fn changes_of(queue: &Queue) -> &Batcher<PendingSettle> {
    &queue.changes
}

/// An act on a delivery has begun. When this is dropped the next one may, whatever has become of it.
pub(super) struct SettleGuard {
    queue: Arc<Queue>,
    receipt: Receipt,
    has_ended: bool,
}

impl SettleGuard {
    pub(super) fn new(queue: &Arc<Queue>, receipt: Receipt) -> Self {
        SettleGuard { queue: Arc::clone(queue), receipt, has_ended: false }
    }

    /// The lease has ended.
    fn end(&mut self) {
        self.has_ended = true;
        self.queue.leases.end(&self.receipt.handle);
    }

    /// The lease has not, and lasts until then, if that has changed.
    fn release(&mut self, until: Option<Instant>) {
        self.has_ended = true;
        self.queue.leases.release(&self.receipt.handle, until);
    }

    fn handle(&self) -> &ReceiptHandle {
        &self.receipt.handle
    }

    fn gone(&self) -> Error {
        Error::ReceiptHandleExpired { id: self.receipt.id.clone() }
    }
}

impl Drop for SettleGuard {
    fn drop(&mut self) {
        if !self.has_ended {
            self.release(None);
        }
    }
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

    fn settle(
        self: &Arc<Self>,
        acts: impl Iterator<Item = (Receipt, Option<Visibility>)>,
    ) -> Vec<Answer<Result<(), Error>>> {
        let mut begun = Vec::new();
        let answers = acts.map(|(receipt, wish)| match self.leases.begin(&receipt.handle) {
            BeginSettle::Begun(until) => {
                let (prepare, answer) = self.prepare(receipt, wish, until);
                begun.extend(prepare);
                answer
            }
            BeginSettle::Expired => Answer::ready(Err(Error::ReceiptHandleExpired { id: receipt.id })),
            BeginSettle::Busy => {
                let queue = Arc::clone(self);
                io_thread::ask(async move {
                    let Some(until) = queue.leases.begin_after(&receipt.handle).await else {
                        return Err(Error::ReceiptHandleExpired { id: receipt.id });
                    };
                    let (prepare, answer) = queue.prepare(receipt, wish, until);
                    queue.submit_settles(prepare);
                    answer.await
                })
            }
        });
        let answers = answers.collect();
        self.submit_settles(begun);
        answers
    }

    /// Removes a delivery, as the last part of an act that has begun.
    pub(super) async fn finish(self: &Arc<Self>, guard: SettleGuard) -> Result<(), Error> {
        let (sender, done) = oneshot::channel(None);
        self.submit_settles([PendingSettle { guard, change: None, sender }]);
        done.await
    }

    /// Puts deletions and changes into their batchers.
    fn submit_settles(self: &Arc<Self>, acts: impl IntoIterator<Item = PendingSettle>) {
        let (deletes, changes): (Vec<_>, Vec<_>) = acts.into_iter().partition(|act| act.change.is_none());
        for (batcher, acts) in [(deletes_of as fn(&Queue) -> &Batcher<PendingSettle>, deletes), (changes_of, changes)] {
            submit(self, batcher, |queue, entries| Box::pin(async move { queue.settle_all(entries).await }), acts);
        }
    }

    /// An act that has begun, and its answer. What needs no request is done.
    fn prepare(
        self: &Arc<Self>,
        receipt: Receipt,
        wish: Option<Visibility>,
        until: Instant,
    ) -> (Option<PendingSettle>, Answer<Result<(), Error>>) {
        let guard = SettleGuard::new(self, receipt);
        let change = match wish {
            None => None,
            // A lease is never made shorter.
            Some(Visibility::Extend(by)) if after(Instant::now(), by) <= until => return (None, Answer::ready(Ok(()))),
            Some(Visibility::Extend(by)) => Some((whole_seconds(by), false)),
            Some(Visibility::Return(by)) => Some((whole_seconds(by), true)),
            // SQS cannot take a delivery back from its count.
            Some(Visibility::Release) => Some((0, true)),
        };
        if let Some((seconds, _)) = change {
            let age = self.leases.age(guard.handle());
            if age + Duration::from_secs(seconds.unsigned_abs().into()) > Duration::from_secs(MAX_LEASE_SECONDS) {
                let age = age.as_secs_f64();
                let limit =
                    format!("{MAX_LEASE_SECONDS} s in all since it was received, on SQS, which was {age:.1} s ago");
                let error = Error::invalid("visibility_timeout", format!("{seconds} s"), limit);
                return (None, Answer::ready(Err(error)));
            }
        }
        let (sender, done) = oneshot::channel(None);
        (Some(PendingSettle { guard, change, sender }), Answer::from_future(done))
    }

    /// Acts of one kind, in one request.
    async fn settle_all(self: &Arc<Self>, entries: Vec<PendingSettle>) {
        let info = match self.info().await {
            Ok(info) => info,
            Err(error) => {
                for PendingSettle { guard, sender, .. } in entries {
                    drop(guard);
                    sender.send(Err(error.clone()));
                }
                return;
            }
        };
        let asked = Instant::now();
        // It may have stood in line, or been asked for again, for longer than its lease lasts.
        let check = |entry: &PendingSettle| match self.leases.lasts(entry.guard.handle(), Instant::now()) {
            true => Ok(()),
            false => Err(AwsError::lease_ended(&self.describe())),
        };
        let ask = |entries: &[PendingSettle]| self.settle_before_expiry(&info.url, entries);
        for (entry, result) in self.request_with_retries(entries, check, |_, _| false, ask).await {
            let PendingSettle { mut guard, change, sender } = entry;
            let result = match (result, change) {
                (Ok(_), Some((seconds, false))) => {
                    guard.release(Some(after(asked, Duration::from_secs(seconds.unsigned_abs().into()))));
                    Ok(())
                }
                (Ok(_), _) => {
                    guard.end();
                    Ok(())
                }
                (Err(aws_error), _) if aws_error.is_stale_receipt() => {
                    guard.end();
                    Err(guard.gone())
                }
                (Err(aws_error), _) => {
                    guard.release(None);
                    Err(self.error(aws_error))
                }
            };
            sender.send(result);
        }
    }

    /// Asks until the first of the leases has ended: nothing is asked for with a receipt that is not good any more.
    fn settle_before_expiry<'a>(
        &'a self,
        url: &str,
        entries: &[PendingSettle],
    ) -> impl Future<Output = Result<BatchResponse, AwsError>> + Send + use<'a> {
        let left = entries.iter().map(|entry| self.leases.left(entry.guard.handle())).min().unwrap_or_default();
        let answer = self.settle_request(url, entries);
        async move {
            let answer = unless(Sleep::for_(SystemClock::shared(), left), answer).await;
            answer.unwrap_or_else(|| Err(AwsError::abandoned(&self.describe())))
        }
    }

    fn settle_request<'a>(
        &'a self,
        url: &str,
        entries: &[PendingSettle],
    ) -> Pin<Box<dyn Future<Output = Result<BatchResponse, AwsError>> + Send + 'a>> {
        let client = &self.client.sdk;
        let failed = || self.describe();
        if let [PendingSettle { guard, change, .. }] = entries {
            let handle = guard.handle().to_string();
            let done = || Ok((vec![("0".into(), String::new())], Vec::new()));
            let Some((seconds, _)) = change else {
                let request = client.delete_message().queue_url(url).receipt_handle(handle).send();
                return Box::pin(async move {
                    request.await.map_err(|error| AwsError::from_sdk(&failed(), error))?;
                    done()
                });
            };
            let request = client.change_message_visibility().queue_url(url).receipt_handle(handle);
            let request = request.visibility_timeout(*seconds).send();
            return Box::pin(async move {
                request.await.map_err(|error| AwsError::from_sdk(&failed(), error))?;
                done()
            });
        }
        if entries.iter().all(|entry| entry.change.is_none()) {
            let entries = entries.iter().enumerate().map(|(at, entry)| {
                let entry = DeleteEntry::builder().id(at.to_string()).receipt_handle(entry.guard.handle().to_string());
                entry.build().expect("it has an id and a receipt")
            });
            let request = client.delete_message_batch().queue_url(url).set_entries(Some(entries.collect())).send();
            return Box::pin(async move {
                let answer = request.await.map_err(|error| AwsError::from_sdk(&failed(), error))?;
                Ok((answer.successful.into_iter().map(|entry| (entry.id, String::new())).collect(), answer.failed))
            });
        }
        let entries = entries.iter().enumerate().map(|(at, entry)| {
            let entry_builder =
                ChangeEntry::builder().id(at.to_string()).receipt_handle(entry.guard.handle().to_string());
            let seconds = entry.change.map_or(0, |(seconds, _)| seconds);
            entry_builder.visibility_timeout(seconds).build().expect("it has an id and a receipt")
        });
        let request =
            client.change_message_visibility_batch().queue_url(url).set_entries(Some(entries.collect())).send();
        Box::pin(async move {
            let answer = request.await.map_err(|error| AwsError::from_sdk(&failed(), error))?;
            Ok((answer.successful.into_iter().map(|entry| (entry.id, String::new())).collect(), answer.failed))
        })
    }
}
