//! A handle of a mailbox in a file.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Inner;
use super::mailbox_state::{MailboxState, SendOutcome};
use super::transaction::{Event, Transaction};
use super::writer::Writer;
use crate::backend::{
    ByteMailbox, Counts, DeadLetter, Delivery, MailboxSettings, Outgoing, Receipt, Receive, Redrive, Visibility,
};
use crate::error::Error;
use crate::mailbox::id::MessageId;
use crate::mailbox::operation::Answer;
use crate::mailbox::receive::in_background;
use crate::resolver::address::MailboxName;
use crate::runtime::clock::Moment;
use crate::runtime::waiters::Attempt;

#[derive(Clone)]
pub(super) struct SqliteMailbox {
    inner: Arc<Inner>,
    name: MailboxName,
    settings: MailboxSettings,
    /// Whether the settings are in the file.
    is_configured: Arc<AtomicBool>,
}

impl fmt::Debug for SqliteMailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteMailbox").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The result of a send.
pub(super) fn send_result(outcome: SendOutcome, id: &MessageId, mailbox: &MailboxName) -> Result<MessageId, Error> {
    match outcome {
        SendOutcome::Stored(id) => Ok(id),
        SendOutcome::Full(most) => {
            Err(Error::MailboxFull { mailbox: mailbox.to_string(), limit: format!("max_size = {most}") })
        }
        SendOutcome::IdInUse => Err(Error::id_in_use(id)),
        SendOutcome::NotAUuid => Err(Error::invalid("message id", id, "a UUID")),
    }
}

impl SqliteMailbox {
    pub(super) fn new(inner: Arc<Inner>, name: MailboxName, settings: MailboxSettings) -> Self {
        let is_configured = Arc::new(AtomicBool::new(settings == MailboxSettings::default()));
        SqliteMailbox { inner, name, settings, is_configured }
    }

    fn writer(&self) -> &Arc<Writer> {
        &self.inner.writer
    }

    /// Runs an operation in a transaction. The handle's first operation also writes its settings.
    fn submit<T: Send + 'static>(
        &self,
        act: impl FnMut(&mut Transaction<'_>, &MailboxName) -> rusqlite::Result<T> + Send + 'static,
    ) -> Answer<Result<T, Error>> {
        self.note_configured(self.writer().submit(self.with_settings(act)))
    }

    /// Runs an operation on the mailbox. If the mailbox does not exist, the result is the default value.
    fn submit_to_mailbox<T: Default + Send + 'static>(
        &self,
        mut act: impl FnMut(&mut MailboxState<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Answer<Result<T, Error>> {
        self.submit(move |transaction, name| Ok(transaction.with_mailbox(name, &mut act)?.unwrap_or_default()))
    }

    fn with_settings<T: Send + 'static>(
        &self,
        mut act: impl FnMut(&mut Transaction<'_>, &MailboxName) -> rusqlite::Result<T> + Send + 'static,
    ) -> impl FnMut(&mut Transaction<'_>) -> rusqlite::Result<T> + Send + 'static {
        let name = self.name.clone();
        let settings = (!self.is_configured.load(Ordering::SeqCst)).then(|| self.settings.clone());
        move |transaction| {
            if let Some(settings) = &settings {
                configure(transaction, &name, settings)?;
            }
            act(transaction, &name)
        }
    }

    /// Notes that the settings are in the file, if the operation that writes them has succeeded.
    fn note_configured<T: Send + 'static>(&self, answer: Answer<Result<T, Error>>) -> Answer<Result<T, Error>> {
        if self.is_configured.load(Ordering::SeqCst) {
            return answer;
        }
        let is_configured = Arc::clone(&self.is_configured);
        answer.map(move |result| {
            is_configured.fetch_or(result.is_ok(), Ordering::SeqCst);
            result
        })
    }

    /// A verb that settles deliveries, with a result for each.
    fn settle<E: Send + 'static>(
        &self,
        entries: Vec<E>,
        receipt: impl Fn(&E) -> &Receipt + Send + 'static,
        settle: impl Fn(&mut MailboxState<'_>, &E) -> rusqlite::Result<bool> + Send + 'static,
    ) -> Answer<Vec<Result<(), Error>>> {
        let ids: Vec<MessageId> = entries.iter().map(|entry| receipt(entry).id.clone()).collect();
        let done = self.submit_to_mailbox(move |mailbox| {
            entries.iter().map(|entry| settle(mailbox, entry)).collect::<rusqlite::Result<Vec<bool>>>()
        });
        done.map(move |done| match done {
            Err(error) => ids.iter().map(|_| Err(error.clone())).collect(),
            // If the mailbox does not exist, no delivery was settled.
            Ok(done) => {
                let mut done = done.into_iter();
                let mut result = |id| match done.next() {
                    Some(true) => Ok(()),
                    _ => Err(Error::ReceiptHandleExpired { id }),
                };
                ids.into_iter().map(&mut result).collect()
            }
        })
    }

    /// Leases messages. If there are none, also returns when to try again. Deliveries are released if the caller has
    /// stopped waiting for them.
    fn try_receive(&self, request: Receive) -> Answer<Result<(Vec<Delivery>, Option<Moment>), Error>> {
        let receive = self.with_settings(move |transaction, name| {
            let receive = |mailbox: &mut MailboxState<'_>| mailbox.receive(request.max, request.visibility);
            let (deliveries, due) = transaction.with_mailbox(name, receive)?.unwrap_or_default();
            Ok((deliveries, due.map(|due| transaction.alarm(due))))
        });
        let (writer, name) = (Arc::clone(self.writer()), self.name.clone());
        let undelivered = move |(deliveries, _): (Vec<Delivery>, _)| {
            if deliveries.is_empty() {
                return;
            }
            in_background(writer.submit(move |transaction| {
                let release = |mailbox: &mut MailboxState<'_>| {
                    deliveries.iter().try_for_each(|delivery| mailbox.release(&delivery.receipt_handle).map(drop))
                };
                transaction.with_mailbox(&name, release).map(drop)
            }));
        };
        self.note_configured(self.writer().submit_or(receive, Some(Box::new(undelivered))))
    }
}

fn configure(
    transaction: &mut Transaction<'_>,
    name: &MailboxName,
    settings: &MailboxSettings,
) -> rusqlite::Result<()> {
    transaction.with_new_mailbox(name, settings, |mailbox| {
        mailbox.row.configure(settings);
        Ok(())
    })
}

async fn long_poll(mailbox: SqliteMailbox, request: Receive) -> Result<Vec<Delivery>, Error> {
    let waiter = mailbox.writer().add_waiter(Event::Message(mailbox.name.clone()));
    let clock = &mailbox.inner.clock;
    let attempt = || {
        let clock = Arc::clone(clock);
        mailbox.try_receive(request).map(move |received| {
            let (deliveries, due) = received?;
            Ok(Attempt::of_receive(deliveries, due.map(|due| clock.now().until(due))))
        })
    };
    Ok(waiter.long_poll(clock, request.wait, attempt).await?.unwrap_or_default())
}

impl ByteMailbox for SqliteMailbox {
    fn send(&self, messages: Vec<Outgoing>) -> Answer<Vec<Result<MessageId, Error>>> {
        let ids: Vec<MessageId> = messages.iter().map(|message| message.id.clone()).collect();
        let (settings, mailbox) = (self.settings.clone(), self.name.clone());
        let sent = self.submit(move |transaction, name| {
            transaction.with_new_mailbox(name, &settings, |mailbox| {
                messages.iter().map(|message| mailbox.send(message)).collect::<rusqlite::Result<Vec<SendOutcome>>>()
            })
        });
        sent.map(move |sent| match sent {
            Err(error) => ids.iter().map(|_| Err(error.clone())).collect(),
            Ok(sent) => ids.iter().zip(sent).map(|(id, outcome)| send_result(outcome, id, &mailbox)).collect(),
        })
    }

    fn receive(&self, request: Receive) -> Answer<Result<Vec<Delivery>, Error>> {
        if request.wait.is_zero() {
            return self.try_receive(request).map(|received| Ok(received?.0));
        }
        Answer::from_future(long_poll(self.clone(), request))
    }

    fn acknowledge(&self, receipts: Vec<Receipt>) -> Answer<Vec<Result<(), Error>>> {
        self.settle(receipts, |receipt| receipt, |mailbox, receipt| mailbox.acknowledge(&receipt.handle))
    }

    fn set_visibility(&self, changes: Vec<(Receipt, Visibility)>) -> Answer<Vec<Result<(), Error>>> {
        self.settle(
            changes,
            |(receipt, _)| receipt,
            |mailbox, (receipt, visibility)| match *visibility {
                Visibility::Return(after) => mailbox.nack(&receipt.handle, after),
                Visibility::Extend(by) => mailbox.extend(&receipt.handle, by),
                Visibility::Release => mailbox.release(&receipt.handle),
            },
        )
    }

    fn dead_letter(&self, entries: Vec<(Receipt, String)>) -> Answer<Vec<Result<(), Error>>> {
        self.settle(
            entries,
            |(receipt, _)| receipt,
            |mailbox, (receipt, reason)| mailbox.dead_letter(&receipt.handle, reason),
        )
    }

    fn purge(&self) -> Answer<Result<u64, Error>> {
        self.submit_to_mailbox(|mailbox| mailbox.purge())
    }

    fn identity(&self) -> Answer<Result<String, Error>> {
        Answer::ready(Ok(format!("{:?}/{}", super::identity(&self.inner.path), self.name)))
    }

    fn counts(&self) -> Answer<Result<Counts, Error>> {
        self.submit_to_mailbox(|mailbox| Ok(mailbox.counts()))
    }

    fn create(&self) -> Answer<Result<(), Error>> {
        let settings = self.settings.clone();
        self.submit(move |transaction, name| configure(transaction, name, &settings))
    }

    fn delete(&self) -> Answer<Result<(), Error>> {
        self.submit(|transaction, name| transaction.delete(name))
    }

    fn cancel(&self, id: MessageId) -> Answer<Result<bool, Error>> {
        self.submit_to_mailbox(move |mailbox| mailbox.cancel(&id))
    }

    fn peek(&self, max: usize) -> Answer<Result<Vec<Delivery>, Error>> {
        self.submit_to_mailbox(move |mailbox| mailbox.peek(max))
    }

    fn dead_letters(&self, max: usize) -> Answer<Result<Vec<DeadLetter>, Error>> {
        self.submit_to_mailbox(move |mailbox| mailbox.dead_letters(max))
    }

    fn redrive(&self, which: Redrive) -> Answer<Result<u64, Error>> {
        self.submit_to_mailbox(move |mailbox| mailbox.redrive(&which))
    }

    fn purge_dead_letters(&self) -> Answer<Result<u64, Error>> {
        self.submit_to_mailbox(|mailbox| mailbox.purge_dead_letters())
    }
}
