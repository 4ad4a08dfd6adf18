//! One mailbox in memory.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use postbox_core::{Held, Ledger, LedgerOptions, LedgerRefusal, Posted, Posting, Stale};

use super::long_poll::LongPoll;
use super::store::{Store, Stored, nanos};
use super::{DEDUPLICATION_WINDOW, Space};
use crate::backend::{
    Batch, ByteMailbox, Counts, DeadLetter, Delivery, MailboxSettings, Outgoing, Receipt, Receive, Redrive, Visibility,
};
use crate::error::Error;
use crate::mailbox::id::{MessageId, ReceiptHandle};
use crate::mailbox::operation::Answer;
use crate::runtime::clock::Moment;

/// A handle of a mailbox in memory.
pub(crate) struct MemoryMailbox {
    pub(super) store: Arc<Store>,
    space: Arc<Space>,
    /// In force again when this handle makes the mailbox after it was deleted.
    settings: MailboxSettings,
}

impl Clone for MemoryMailbox {
    fn clone(&self) -> Self {
        MemoryMailbox::new(Arc::clone(&self.store), Arc::clone(&self.space), self.settings.clone())
    }
}

impl Drop for MemoryMailbox {
    fn drop(&mut self) {
        if self.store.handles.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.space.abandoned(&self.store);
        }
    }
}

impl fmt::Debug for MemoryMailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryMailbox").field("name", &self.store.name).finish_non_exhaustive()
    }
}

impl MemoryMailbox {
    pub(super) fn new(store: Arc<Store>, space: Arc<Space>, settings: MailboxSettings) -> Self {
        store.handles.fetch_add(1, Ordering::SeqCst);
        store.lock().abandoned_at = None;
        MemoryMailbox { store, space, settings }
    }

    /// Makes the mailbox, with the settings of this handle, if it was deleted.
    #[inline]
    fn make(&self) {
        if !self.store.exists() {
            self.configure();
        }
    }

    pub(super) fn configure(&self) {
        let settings = &self.settings;
        let mut state = self.store.lock();
        self.store.exists.store(true, Ordering::SeqCst);
        let mut options = *state.ledger.options();
        options.max_size = settings.max_size.or(options.max_size);
        options.max_deliveries = settings.max_deliveries.or(options.max_deliveries);
        if let Some(window) = settings.deduplication_window {
            options.deduplication_window = nanos(window);
        }
        state.ledger.set_options(options);
        state.idle_expiry = settings.idle_expiry.or(state.idle_expiry);
    }

    /// Ends a lease at once, as if its time were up.
    #[cfg(feature = "testing")]
    pub(crate) fn expire(&self, handle: &ReceiptHandle) -> bool {
        let receipt = receipt_of(handle);
        self.store.act(|ledger, now| ledger.give_back(now, receipt, now).is_ok())
    }

    /// What is left of the message, and what is put into `refused`, is dropped after the lock is released.
    fn store_one(
        &self,
        ledger: &mut Ledger<Stored>,
        now: u64,
        message: &mut Outgoing,
        refused: &mut Vec<Stored>,
    ) -> Result<MessageId, Error> {
        let Some(id) = message.id.as_u128() else {
            return Err(Error::invalid("message id", &message.id, "a UUID"));
        };
        let stored = Stored::of(message);
        let special = message.special.as_deref();
        let posting = Posting {
            id,
            message: stored,
            visible_at: if message.delay.is_zero() { 0 } else { now.saturating_add(nanos(message.delay)) },
            expires_at: special.and_then(|special| special.expires_in).map(|after| now.saturating_add(nanos(after))),
            group: special.and_then(|special| special.group.as_deref()),
            deduplication: special.and_then(|special| special.deduplication.as_deref()),
        };
        let posted = match special.is_some_and(|special| special.own_id) {
            true => ledger.send_once(now, posting, |held, new| held.body == new.body),
            false => ledger.send(now, posting),
        };
        match posted {
            Ok(Posted::Stored) => Ok(message.id.clone()),
            Ok(Posted::Duplicate(first)) => Ok(MessageId::from_u128(first)),
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
        Error::MailboxFull { mailbox: self.store.name.to_string(), limit: format!("max_size = {most}") }
    }

    fn each<T>(
        &self,
        entries: Batch<T>,
        mut act: impl FnMut(&mut Ledger<Stored>, u64, T) -> Result<(), Error>,
    ) -> Answer<Batch<Result<(), Error>>> {
        Answer::ready(self.store.act(|ledger, now| entries.into_iter().map(|entry| act(ledger, now, entry)).collect()))
    }
}

fn receipt_of(handle: &ReceiptHandle) -> postbox_core::Receipt {
    // A handle of another backend is good for nothing here.
    postbox_core::Receipt::from_bits(handle.as_u128().unwrap_or(u128::MAX))
}

fn expired(receipt: Receipt) -> impl FnOnce(Stale) -> Error {
    move |Stale| Error::ReceiptHandleExpired { id: receipt.id }
}

fn delivery(held: Held<'_, Stored>, now: u64) -> Delivery {
    let Stored { body, content_type, headers } = held.message;
    Delivery {
        id: MessageId::from_u128(held.id),
        body: body.clone(),
        content_type: content_type.clone(),
        headers: headers.clone(),
        receipt_handle: ReceiptHandle::from_u128(held.receipt.to_bits()),
        delivery_count: held.deliveries,
        enqueued_at: Moment::from_nanos(held.sent_at),
        delivered_at: Moment::from_nanos(now),
    }
}

impl ByteMailbox for MemoryMailbox {
    fn send(&self, mut messages: Batch<Outgoing>) -> Answer<Batch<Result<MessageId, Error>>> {
        self.make();
        let mut refused = Vec::new();
        let results = self.store.act(|ledger, now| {
            messages.iter_mut().map(|message| self.store_one(ledger, now, message, &mut refused)).collect()
        });
        Answer::ready(results)
    }

    fn send_one(&self, mut message: Outgoing) -> Answer<Result<MessageId, Error>> {
        self.make();
        let mut refused = Vec::new();
        Answer::ready(self.store.act(|ledger, now| self.store_one(ledger, now, &mut message, &mut refused)))
    }

    fn receive(&self, request: Receive) -> Answer<Result<Vec<Delivery>, Error>> {
        let deliveries = self.store.act(|ledger, now| take(ledger, now, &request));
        if !deliveries.is_empty() || request.wait.is_zero() {
            return Answer::ready(Ok(deliveries));
        }
        if let Err(error) = self.store.clock.start() {
            return Answer::ready(Err(error));
        }
        let deadline = self.store.clock.now().after(request.wait);
        Answer::from_future(LongPoll { mailbox: self.clone(), request, deadline, ticket: None, alarm: None })
    }

    fn acknowledge(&self, receipts: Batch<Receipt>) -> Answer<Batch<Result<(), Error>>> {
        // What was stored is dropped after the lock is released.
        let mut gone: Vec<Stored> = Vec::with_capacity(receipts.len());
        let results = self.store.act(|ledger, now| {
            let acknowledge = |receipt: &Receipt| match ledger.acknowledge(now, receipt_of(&receipt.handle)) {
                Ok(message) => {
                    gone.push(message);
                    Ok(())
                }
                Err(Stale) => Err(Error::ReceiptHandleExpired { id: receipt.id.clone() }),
            };
            receipts.iter().map(acknowledge).collect()
        });
        Answer::ready(results)
    }

    fn acknowledge_one(&self, receipt: &Receipt) -> Answer<Result<(), Error>> {
        // What was stored is dropped after the lock is released.
        match self.store.act(|ledger, now| ledger.acknowledge(now, receipt_of(&receipt.handle))) {
            Ok(_) => Answer::ready(Ok(())),
            Err(Stale) => Answer::ready(Err(Error::ReceiptHandleExpired { id: receipt.id.clone() })),
        }
    }

    fn set_visibility(&self, changes: Batch<(Receipt, Visibility)>) -> Answer<Batch<Result<(), Error>>> {
        self.each(changes, |ledger, now, (receipt, visibility)| {
            let handle = receipt_of(&receipt.handle);
            match visibility {
                Visibility::Return(after) => ledger.give_back(now, handle, now.saturating_add(nanos(after))),
                Visibility::Extend(by) => ledger.extend(now, handle, now.saturating_add(nanos(by))),
                Visibility::Release => ledger.release(now, handle),
            }
            .map_err(expired(receipt))
        })
    }

    fn dead_letter(&self, letters: Batch<(Receipt, String)>) -> Answer<Batch<Result<(), Error>>> {
        self.each(letters, |ledger, now, (receipt, reason)| {
            ledger.dead_letter(now, receipt_of(&receipt.handle), Cow::Owned(reason)).map_err(expired(receipt))
        })
    }

    fn purge(&self) -> Answer<Result<u64, Error>> {
        let (many, gone) = self.store.act(|ledger, now| ledger.purge(now));
        drop(gone);
        Answer::ready(Ok(many as u64))
    }

    fn identity(&self) -> Answer<Result<String, Error>> {
        // The space lives as long as the handle.
        Answer::ready(Ok(format!("{:p}/{}", Arc::as_ptr(&self.space), self.store.name)))
    }

    fn counts(&self) -> Answer<Result<Counts, Error>> {
        let tally = self.store.act(|ledger, now| ledger.tally(now));
        let [ready, delayed, in_flight, dead] =
            [tally.ready, tally.delayed, tally.leased, tally.dead].map(|many| many as u64);
        Answer::ready(Ok(Counts::new(ready, delayed, in_flight, dead)))
    }

    fn create(&self) -> Answer<Result<(), Error>> {
        self.make();
        Answer::ready(Ok(()))
    }

    fn delete(&self) -> Answer<Result<(), Error>> {
        let gone = {
            let mut state = self.store.lock();
            let options =
                LedgerOptions { deduplication_window: nanos(DEDUPLICATION_WINDOW), ..LedgerOptions::default() };
            // A receipt of before must not be good for a delivery of after: purged, not made anew.
            let now = self.store.clock.now().as_nanos();
            let gone = (state.ledger.purge(now), state.ledger.purge_dead());
            state.ledger.forget_deduplication();
            state.ledger.set_options(options);
            state.idle_expiry = None;
            self.store.exists.store(false, Ordering::SeqCst);
            (gone, state.ledger.take_discarded())
        };
        drop(gone);
        Answer::ready(Ok(()))
    }

    fn cancel(&self, id: MessageId) -> Answer<Result<bool, Error>> {
        let gone = id.as_u128().and_then(|id| self.store.act(|ledger, now| ledger.cancel(now, id)));
        Answer::ready(Ok(gone.is_some()))
    }

    fn peek(&self, max: usize) -> Answer<Result<Vec<Delivery>, Error>> {
        let mut shown = Vec::new();
        self.store.act(|ledger, now| ledger.peek(now, max, |held| shown.push(delivery(held, now))));
        Answer::ready(Ok(shown))
    }

    fn dead_letters(&self, max: usize) -> Answer<Result<Vec<DeadLetter>, Error>> {
        let letters = self.store.act(|ledger, now| {
            ledger.advance(now);
            let shown = ledger.dead().take(max).map(|dead| {
                let receipt = postbox_core::Receipt::from_bits(u128::MAX);
                let (deliveries, sent_at) = (dead.deliveries, dead.sent_at);
                let held = Held { id: dead.id, message: &dead.message, receipt, deliveries, sent_at };
                DeadLetter::new(delivery(held, now), Moment::from_nanos(dead.died_at), dead.reason.clone())
            });
            shown.collect()
        });
        Answer::ready(Ok(letters))
    }

    fn redrive(&self, which: Redrive) -> Answer<Result<u64, Error>> {
        let moved = self.store.act(|ledger, now| match &which {
            Redrive::UpTo(max) => ledger.redrive(now, *max) as u64,
            Redrive::One(id) => id.as_u128().map_or(0, |id| u64::from(ledger.redrive_one(now, id))),
        });
        Answer::ready(Ok(moved))
    }

    fn purge_dead_letters(&self) -> Answer<Result<u64, Error>> {
        let gone = self.store.act(|ledger, now| {
            ledger.advance(now);
            ledger.purge_dead()
        });
        Answer::ready(Ok(gone.len() as u64))
    }
}

pub(super) fn take(ledger: &mut Ledger<Stored>, now: u64, request: &Receive) -> Vec<Delivery> {
    ledger.advance(now);
    let mut taken = Vec::with_capacity(request.max.min(ledger.deliverable()));
    let until = now.saturating_add(nanos(request.visibility));
    ledger.receive(now, request.max, until, |held| taken.push(delivery(held, now)));
    taken
}
