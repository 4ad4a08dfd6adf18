//! A handle of a mailbox in memory.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use postbox_core::{LeaseEnded, Ledger, LedgerMessage, LedgerRefusal, NewMessage, SendOutcome};

use super::Inner;
use super::queue::{Queue, Stored, delivery, nanos, receive};
use crate::backend::{
    ByteMailbox, Counts, DeadLetter, Delivery, MailboxSettings, Outgoing, Receipt, Receive, Redrive, Visibility,
};
use crate::error::Error;
use crate::mailbox::id::{MessageId, ReceiptHandle};
use crate::mailbox::operation::Answer;
use crate::runtime::clock::Moment;

pub(crate) struct MemoryMailbox {
    queue: Arc<Queue>,
    backend: Arc<Inner>,
    /// Applied again when this handle creates the mailbox after a deletion.
    settings: MailboxSettings,
}

impl Clone for MemoryMailbox {
    fn clone(&self) -> Self {
        MemoryMailbox::new(Arc::clone(&self.queue), Arc::clone(&self.backend), self.settings.clone())
    }
}

impl Drop for MemoryMailbox {
    fn drop(&mut self) {
        if self.queue.remove_handle() {
            self.backend.remove_unused(&self.queue);
        }
    }
}

impl fmt::Debug for MemoryMailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryMailbox").field("name", self.queue.name()).finish_non_exhaustive()
    }
}

impl MemoryMailbox {
    pub(super) fn new(queue: Arc<Queue>, backend: Arc<Inner>, settings: MailboxSettings) -> Self {
        queue.add_handle();
        MemoryMailbox { queue, backend, settings }
    }

    /// Creates the mailbox if it was deleted.
    #[inline]
    fn create_if_deleted(&self) {
        if !self.queue.exists() {
            self.queue.configure(&self.settings);
        }
    }

    /// Ends a lease as if its deadline had passed.
    #[cfg(feature = "testing")]
    pub(crate) fn expire(&self, handle: &ReceiptHandle) -> bool {
        let receipt = receipt_of(handle);
        self.queue.run(|ledger, now| ledger.give_back(now, receipt, now).is_ok())
    }

    /// Stores a message. The caller drops the message and `refused` without the lock.
    fn store(
        &self,
        ledger: &mut Ledger<Stored>,
        now: u64,
        message: &mut Outgoing,
        refused: &mut Vec<Stored>,
    ) -> Result<MessageId, Error> {
        let Some(id) = message.id.as_u128() else {
            return Err(Error::invalid("message id", &message.id, "a UUID"));
        };
        let stored = Stored::take_from(message);
        let special = message.special.as_deref();
        let new = NewMessage {
            id,
            message: stored,
            visible_at: if message.delay.is_zero() { 0 } else { now.saturating_add(nanos(message.delay)) },
            expires_at: special.and_then(|special| special.expires_in).map(|after| now.saturating_add(nanos(after))),
            group: special.and_then(|special| special.group.as_deref()),
            deduplication: special.and_then(|special| special.deduplication.as_deref()),
        };
        let posted = match special.is_some_and(|special| special.own_id) {
            true => ledger.send_once(now, new, |entry, new| entry.body == new.body),
            false => ledger.send(now, new),
        };
        match posted {
            Ok(SendOutcome::Stored) => Ok(message.id.clone()),
            Ok(SendOutcome::Duplicate(first)) => Ok(MessageId::from_u128(first)),
            Err(LedgerRefusal::Full(message)) => {
                refused.push(message);
                Err(self.full(ledger))
            }
            Err(LedgerRefusal::IdInUse(stored)) => {
                refused.push(stored);
                Err(Error::id_in_use(&message.id))
            }
        }
    }

    #[cold]
    fn full(&self, ledger: &Ledger<Stored>) -> Error {
        let most = ledger.options().max_size.unwrap_or_default();
        Error::MailboxFull { mailbox: self.queue.name().to_string(), limit: format!("max_size = {most}") }
    }

    /// Runs an operation for each entry of a batch.
    fn run_each<T>(
        &self,
        entries: Vec<T>,
        mut operation: impl FnMut(&mut Ledger<Stored>, u64, T) -> Result<(), Error>,
    ) -> Answer<Vec<Result<(), Error>>> {
        Answer::ready(
            self.queue.run(|ledger, now| entries.into_iter().map(|entry| operation(ledger, now, entry)).collect()),
        )
    }
}

fn receipt_of(handle: &ReceiptHandle) -> postbox_core::Receipt {
    // A receipt of another backend is valid for no delivery.
    postbox_core::Receipt::from_bits(handle.as_u128().unwrap_or(u128::MAX))
}

fn expired(receipt: Receipt) -> impl FnOnce(LeaseEnded) -> Error {
    move |LeaseEnded| Error::ReceiptHandleExpired { id: receipt.id }
}

impl ByteMailbox for MemoryMailbox {
    fn send(&self, mut messages: Vec<Outgoing>) -> Answer<Vec<Result<MessageId, Error>>> {
        self.create_if_deleted();
        let mut refused = Vec::new();
        let results = self.queue.run(|ledger, now| {
            messages.iter_mut().map(|message| self.store(ledger, now, message, &mut refused)).collect()
        });
        Answer::ready(results)
    }

    fn send_one(&self, mut message: Outgoing) -> Answer<Result<MessageId, Error>> {
        self.create_if_deleted();
        let mut refused = Vec::new();
        Answer::ready(self.queue.run(|ledger, now| self.store(ledger, now, &mut message, &mut refused)))
    }

    fn receive(&self, request: Receive) -> Answer<Result<Vec<Delivery>, Error>> {
        let deliveries = self.queue.run(|ledger, now| receive(ledger, now, &request));
        if !deliveries.is_empty() || request.wait.is_zero() {
            return Answer::ready(Ok(deliveries));
        }
        match self.queue.long_poll(request) {
            Ok(long_poll) => {
                // The mailbox is in use while a receive waits.
                let mailbox = self.clone();
                Answer::from_future(async move {
                    let _mailbox = mailbox;
                    long_poll.await
                })
            }
            Err(error) => Answer::ready(Err(error)),
        }
    }

    fn acknowledge(&self, receipts: Vec<Receipt>) -> Answer<Vec<Result<(), Error>>> {
        // Messages are dropped without the lock.
        let mut removed: Vec<Stored> = Vec::with_capacity(receipts.len());
        let results = self.queue.run(|ledger, now| {
            let acknowledge = |receipt: &Receipt| match ledger.acknowledge(now, receipt_of(&receipt.handle)) {
                Ok(message) => {
                    removed.push(message);
                    Ok(())
                }
                Err(LeaseEnded) => Err(Error::ReceiptHandleExpired { id: receipt.id.clone() }),
            };
            receipts.iter().map(acknowledge).collect()
        });
        Answer::ready(results)
    }

    fn acknowledge_one(&self, receipt: &Receipt) -> Answer<Result<(), Error>> {
        // Messages are dropped without the lock.
        match self.queue.run(|ledger, now| ledger.acknowledge(now, receipt_of(&receipt.handle))) {
            Ok(_) => Answer::ready(Ok(())),
            Err(LeaseEnded) => Answer::ready(Err(Error::ReceiptHandleExpired { id: receipt.id.clone() })),
        }
    }

    fn set_visibility(&self, changes: Vec<(Receipt, Visibility)>) -> Answer<Vec<Result<(), Error>>> {
        self.run_each(changes, |ledger, now, (receipt, visibility)| {
            let handle = receipt_of(&receipt.handle);
            match visibility {
                Visibility::Return(after) => ledger.give_back(now, handle, now.saturating_add(nanos(after))),
                Visibility::Extend(by) => ledger.extend(now, handle, now.saturating_add(nanos(by))),
                Visibility::Release => ledger.release(now, handle),
            }
            .map_err(expired(receipt))
        })
    }

    fn dead_letter(&self, entries: Vec<(Receipt, String)>) -> Answer<Vec<Result<(), Error>>> {
        self.run_each(entries, |ledger, now, (receipt, reason)| {
            ledger.dead_letter(now, receipt_of(&receipt.handle), Cow::Owned(reason)).map_err(expired(receipt))
        })
    }

    fn purge(&self) -> Answer<Result<u64, Error>> {
        let (count, _messages) = self.queue.run(|ledger, now| ledger.purge(now));
        Answer::ready(Ok(count as u64))
    }

    fn identity(&self) -> Answer<Result<String, Error>> {
        // The handle owns the backend, so no other backend has this address.
        Answer::ready(Ok(format!("{:p}/{}", Arc::as_ptr(&self.backend), self.queue.name())))
    }

    fn counts(&self) -> Answer<Result<Counts, Error>> {
        let counts = self.queue.run(|ledger, now| ledger.counts(now));
        let [ready, delayed, in_flight, dead] =
            [counts.ready, counts.delayed, counts.leased, counts.dead].map(|many| many as u64);
        Answer::ready(Ok(Counts::new(ready, delayed, in_flight, dead)))
    }

    fn create(&self) -> Answer<Result<(), Error>> {
        self.create_if_deleted();
        Answer::ready(Ok(()))
    }

    fn delete(&self) -> Answer<Result<(), Error>> {
        self.queue.delete();
        Answer::ready(Ok(()))
    }

    fn cancel(&self, id: MessageId) -> Answer<Result<bool, Error>> {
        let gone = id.as_u128().and_then(|id| self.queue.run(|ledger, now| ledger.cancel(now, id)));
        Answer::ready(Ok(gone.is_some()))
    }

    fn peek(&self, max: usize) -> Answer<Result<Vec<Delivery>, Error>> {
        let mut shown = Vec::new();
        self.queue.run(|ledger, now| ledger.peek(now, max, |entry| shown.push(delivery(entry, now))));
        Answer::ready(Ok(shown))
    }

    fn dead_letters(&self, max: usize) -> Answer<Result<Vec<DeadLetter>, Error>> {
        let letters = self.queue.run(|ledger, now| {
            ledger.advance(now);
            let shown = ledger.dead().take(max).map(|dead| {
                let receipt = postbox_core::Receipt::from_bits(u128::MAX);
                let (deliveries, sent_at) = (dead.deliveries, dead.sent_at);
                let entry = LedgerMessage { id: dead.id, message: &dead.message, receipt, deliveries, sent_at };
                DeadLetter::new(delivery(entry, now), Moment::from_nanos(dead.died_at), dead.reason.clone())
            });
            shown.collect()
        });
        Answer::ready(Ok(letters))
    }

    fn redrive(&self, which: Redrive) -> Answer<Result<u64, Error>> {
        let moved = self.queue.run(|ledger, now| match &which {
            Redrive::UpTo(max) => ledger.redrive(now, *max) as u64,
            Redrive::One(id) => id.as_u128().map_or(0, |id| u64::from(ledger.redrive_one(now, id))),
        });
        Answer::ready(Ok(moved))
    }

    fn purge_dead_letters(&self) -> Answer<Result<u64, Error>> {
        let gone = self.queue.run(|ledger, now| {
            ledger.advance(now);
            ledger.purge_dead()
        });
        Answer::ready(Ok(gone.len() as u64))
    }
}
