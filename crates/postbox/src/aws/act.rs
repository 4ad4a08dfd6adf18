//! Acts on deliveries: finishing, giving back, extending.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aws_sdk_sqs::types::{
    ChangeMessageVisibilityBatchRequestEntry as ChangeEntry, DeleteMessageBatchRequestEntry as DeleteEntry,
};

use super::fault::{Fault, fault};
use super::lane::Entry;
use super::leases::{Begin, after};
use super::letter::whole_seconds;
use super::queue::{Outcome, Queue};
use crate::backend::{Receipt, Visibility};
use crate::error::Error;
use crate::near::Work;
use crate::network;
use crate::operation::Answer;
use crate::promise::{Promise, promise};

/// An act on a delivery, and what it makes of the lease.
pub(super) struct Acting {
    receipt: Receipt,
    /// When it becomes visible again, and whether the lease ends. `None`: it is deleted.
    change: Option<(i32, bool)>,
    promise: Promise<()>,
}

impl Entry for Acting {}

impl Queue {
    pub(super) fn acknowledge(
        self: &Arc<Self>,
        receipts: impl IntoIterator<Item = Receipt>,
    ) -> Vec<Answer<Result<(), Error>>> {
        self.act(receipts.into_iter().map(|receipt| (receipt, None)))
    }

    pub(super) fn set_visibility(
        self: &Arc<Self>,
        changes: impl IntoIterator<Item = (Receipt, Visibility)>,
    ) -> Vec<Answer<Result<(), Error>>> {
        self.act(changes.into_iter().map(|(receipt, visibility)| (receipt, Some(visibility))))
    }

    fn act(
        self: &Arc<Self>,
        acts: impl Iterator<Item = (Receipt, Option<Visibility>)>,
    ) -> Vec<Answer<Result<(), Error>>> {
        let mut begun = Vec::new();
        let answers = acts.map(|(receipt, wish)| match self.leases.begin(&receipt.handle) {
            Begin::Now(until) => {
                let (acting, answer) = self.acting(receipt, wish, until);
                begun.extend(acting);
                answer
            }
            Begin::Never => Answer::ready(Err(Error::ReceiptHandleExpired { id: receipt.id })),
            Begin::Later => {
                let queue = Arc::clone(self);
                network::ask(async move {
                    let Some(until) = queue.leases.begin_after(&receipt.handle).await else {
                        return Err(Error::ReceiptHandleExpired { id: receipt.id });
                    };
                    let (acting, answer) = queue.acting(receipt, wish, until);
                    queue.push_acts(acting, Vec::<Answer<()>>::new());
                    answer.await
                })
            }
        });
        let answers = answers.collect();
        self.push_acts(begun, answers)
    }

    /// Removes a delivery, as the last part of an act that has begun.
    pub(super) async fn finish(self: &Arc<Self>, receipt: Receipt) -> Result<(), Error> {
        let (promise, done) = promise(None);
        self.push_acts([Acting { receipt, change: None, promise }], Vec::<Answer<()>>::new());
        done.await
    }

    /// All of them deletions, or changes, or both; with their answers, if it is all of them.
    fn push_acts<T: Send + 'static>(
        self: &Arc<Self>,
        acts: impl IntoIterator<Item = Acting>,
        answers: Vec<Answer<T>>,
    ) -> Vec<Answer<T>> {
        let work: fn(Arc<Queue>, Vec<Acting>) -> Work =
            |queue, entries| Box::pin(async move { queue.act_all(entries).await });
        let (deletes, changes): (Vec<_>, Vec<_>) = acts.into_iter().partition(|act| act.change.is_none());
        let answers = self.put(|queue| &queue.deletes, deletes, work, answers);
        self.put(|queue| &queue.changes, changes, work, answers)
    }

    /// An act that has begun, and its answer. What needs no request is done.
    fn acting(
        &self,
        receipt: Receipt,
        wish: Option<Visibility>,
        until: Instant,
    ) -> (Option<Acting>, Answer<Result<(), Error>>) {
        let change = match wish {
            None => None,
            // A lease is never made shorter.
            Some(Visibility::Extend(by)) if after(Instant::now(), by) <= until => {
                self.leases.release(&receipt.handle, None);
                return (None, Answer::ready(Ok(())));
            }
            Some(Visibility::Extend(by)) => Some((whole_seconds(by), false)),
            Some(Visibility::Return(by)) => Some((whole_seconds(by), true)),
        };
        let (promise, done) = promise(None);
        (Some(Acting { receipt, change, promise }), Answer::from_future(done))
    }

    /// Acts of one kind, in one request.
    async fn act_all(self: &Arc<Self>, entries: Vec<Acting>) {
        let facts = match self.facts().await {
            Ok(facts) => facts,
            Err(error) => {
                for entry in entries {
                    self.leases.release(&entry.receipt.handle, None);
                    entry.promise.fulfil(Err(error.clone()));
                }
                return;
            }
        };
        let asked = Instant::now();
        // It may have stood in line for longer than its lease lasts.
        let (entries, late): (Vec<_>, Vec<_>) =
            entries.into_iter().partition(|entry| self.leases.lasts(&entry.receipt.handle, asked));
        for Acting { receipt, promise, .. } in late {
            self.leases.end(&receipt.handle);
            promise.fulfil(Err(Error::ReceiptHandleExpired { id: receipt.id }));
        }
        let ask = |entries: &[Acting]| self.ask_acts(&facts.url, entries);
        for (entry, result) in self.patiently(entries, ask).await {
            let handle = &entry.receipt.handle;
            let result = match (result, entry.change) {
                (Ok(_), Some((seconds, false))) => {
                    let until = after(asked, Duration::from_secs(seconds.unsigned_abs().into()));
                    self.leases.release(handle, Some(until));
                    Ok(())
                }
                (Ok(_), _) => {
                    self.leases.end(handle);
                    Ok(())
                }
                (Err(fault), _) if fault.is_stale_receipt() => {
                    self.leases.end(handle);
                    Err(Error::ReceiptHandleExpired { id: entry.receipt.id.clone() })
                }
                (Err(fault), _) => {
                    self.leases.release(handle, None);
                    Err(self.failed(fault))
                }
            };
            entry.promise.fulfil(result);
        }
    }

    fn ask_acts<'a>(
        &'a self,
        url: &str,
        entries: &[Acting],
    ) -> Pin<Box<dyn Future<Output = Result<Outcome, Fault>> + Send + 'a>> {
        let client = &self.region.client;
        let failed = || self.shown();
        if let [Acting { receipt, change, .. }] = entries {
            let handle = receipt.handle.to_string();
            let done = || Ok((vec![("0".into(), String::new())], Vec::new()));
            let Some((seconds, _)) = change else {
                let request = client.delete_message().queue_url(url).receipt_handle(handle).send();
                return Box::pin(async move {
                    request.await.map_err(|error| fault(&failed(), error))?;
                    done()
                });
            };
            let request = client.change_message_visibility().queue_url(url).receipt_handle(handle);
            let request = request.visibility_timeout(*seconds).send();
            return Box::pin(async move {
                request.await.map_err(|error| fault(&failed(), error))?;
                done()
            });
        }
        if entries.iter().all(|entry| entry.change.is_none()) {
            let entries = entries.iter().enumerate().map(|(at, entry)| {
                let entry = DeleteEntry::builder().id(at.to_string()).receipt_handle(entry.receipt.handle.to_string());
                entry.build().expect("it has an id and a receipt")
            });
            let request = client.delete_message_batch().queue_url(url).set_entries(Some(entries.collect())).send();
            return Box::pin(async move {
                let answer = request.await.map_err(|error| fault(&failed(), error))?;
                Ok((answer.successful.into_iter().map(|entry| (entry.id, String::new())).collect(), answer.failed))
            });
        }
        let entries = entries.iter().enumerate().map(|(at, entry)| {
            let entry_builder =
                ChangeEntry::builder().id(at.to_string()).receipt_handle(entry.receipt.handle.to_string());
            let seconds = entry.change.map_or(0, |(seconds, _)| seconds);
            entry_builder.visibility_timeout(seconds).build().expect("it has an id and a receipt")
        });
        let request =
            client.change_message_visibility_batch().queue_url(url).set_entries(Some(entries.collect())).send();
        Box::pin(async move {
            let answer = request.await.map_err(|error| fault(&failed(), error))?;
            Ok((answer.successful.into_iter().map(|entry| (entry.id, String::new())).collect(), answer.failed))
        })
    }
}
