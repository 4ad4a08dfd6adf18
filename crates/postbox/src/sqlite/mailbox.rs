//! One mailbox in a file.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Inner;
use super::desk::{Desk, Stored};
use super::writer::Queue;
use crate::address::MailboxName;
use crate::backend::{
    Batch, ByteMailbox, Counts, DeadLetter, Delivery, MailboxSettings, Outgoing, Receipt, Receive, Redrive, Visibility,
};
use crate::clock::Moment;
use crate::error::Error;
use crate::hub::{Waits, look_until};
use crate::id::MessageId;
use crate::operation::Answer;
use crate::receive::in_background;

pub(super) struct SqliteMailbox {
    inner: Arc<Inner>,
    name: MailboxName,
    settings: MailboxSettings,
    /// Whether the settings were written to the file.
    configured: Arc<AtomicBool>,
}

impl fmt::Debug for SqliteMailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteMailbox").field("name", &self.name).finish_non_exhaustive()
    }
}

impl SqliteMailbox {
    pub(super) fn new(inner: Arc<Inner>, name: MailboxName, settings: MailboxSettings) -> Self {
        let configured = Arc::new(AtomicBool::new(settings == MailboxSettings::default()));
        SqliteMailbox { inner, name, settings, configured }
    }

    fn queue(&self) -> &Arc<Queue> {
        &self.inner.queue
    }

    /// Asks for something to be done in this mailbox. The first one brings the settings along.
    fn ask<T: Send + 'static>(
        &self,
        act: impl FnMut(&mut Desk<'_>, &MailboxName) -> rusqlite::Result<T> + Send + 'static,
    ) -> Answer<Result<T, Error>> {
        self.configured_by(self.queue().ask(self.within(act)))
    }

    fn within<T: Send + 'static>(
        &self,
        mut act: impl FnMut(&mut Desk<'_>, &MailboxName) -> rusqlite::Result<T> + Send + 'static,
    ) -> impl FnMut(&mut Desk<'_>) -> rusqlite::Result<T> + Send + 'static {
        let name = self.name.clone();
        let settings = (!self.configured.load(Ordering::SeqCst)).then(|| self.settings.clone());
        move |desk| {
            if let Some(settings) = &settings {
                desk.configure(&name, settings)?;
            }
            act(desk, &name)
        }
    }

    /// The settings that an operation brought along are in the file when it has succeeded, not before.
    fn configured_by<T: Send + 'static>(&self, answer: Answer<Result<T, Error>>) -> Answer<Result<T, Error>> {
        if self.configured.load(Ordering::SeqCst) {
            return answer;
        }
        let configured = Arc::clone(&self.configured);
        answer.map(move |result| {
            configured.fetch_or(result.is_ok(), Ordering::SeqCst);
            result
        })
    }

    /// A verb with a result for each of its entries.
    fn each<E: Send + 'static>(
        &self,
        entries: Batch<E>,
        receipt: impl Fn(&E) -> &Receipt + Send + 'static,
        act: impl Fn(&mut Desk<'_>, &MailboxName, &E) -> rusqlite::Result<bool> + Send + 'static,
    ) -> Answer<Batch<Result<(), Error>>> {
        let ids: Vec<MessageId> = entries.iter().map(|entry| receipt(entry).id.clone()).collect();
        let done = self.ask(move |desk, name| {
            entries.iter().map(|entry| act(desk, name, entry)).collect::<rusqlite::Result<Vec<bool>>>()
        });
        done.map(move |done| match done {
            Err(error) => ids.iter().map(|_| Err(error.clone())).collect(),
            Ok(done) => {
                let merge = |(id, done)| if done { Ok(()) } else { Err(Error::ReceiptHandleExpired { id }) };
                ids.into_iter().zip(done).map(merge).collect()
            }
        })
    }

    /// Takes what is there. What nobody waits for any more is released.
    fn attempt(&self, request: Receive) -> Answer<Result<(Vec<Delivery>, Option<Moment>), Error>> {
        let act = self.within(move |desk, name| {
            let (deliveries, due) = desk.receive(name, request.max, request.visibility)?;
            Ok((deliveries, due.map(|due| desk.alarm(due))))
        });
        let (queue, name) = (Arc::clone(self.queue()), self.name.clone());
        let taken = self.queue().ask_or(act, move |(deliveries, _)| {
            if deliveries.is_empty() {
                return;
            }
            in_background(queue.ask(move |desk| {
                for delivery in &deliveries {
                    desk.release(&name, &delivery.receipt_handle)?;
                }
                Ok(())
            }));
        });
        self.configured_by(taken)
    }

    fn again(&self) -> Self {
        SqliteMailbox {
            inner: Arc::clone(&self.inner),
            name: self.name.clone(),
            settings: self.settings.clone(),
            configured: Arc::clone(&self.configured),
        }
    }
}

async fn long_poll(mailbox: SqliteMailbox, request: Receive) -> Result<Vec<Delivery>, Error> {
    let waits = Waits::begin(Arc::clone(mailbox.queue()), |queue| &queue.mailboxes, mailbox.name.clone());
    let clock = &mailbox.inner.clock;
    let look = || {
        let clock = Arc::clone(clock);
        mailbox.attempt(request).map(move |taken| {
            let (deliveries, due) = taken?;
            Ok((deliveries, due.map(|due| clock.now().until(due))))
        })
    };
    look_until(waits.hub(), clock, request.wait, look).await
}

impl ByteMailbox for SqliteMailbox {
    fn send(&self, messages: Batch<Outgoing>) -> Answer<Batch<Result<MessageId, Error>>> {
        let (many, mailbox) = (messages.len(), self.name.to_string());
        let ids: Vec<MessageId> = messages.iter().map(|message| message.id.clone()).collect();
        let settings = self.settings.clone();
        let stored = self.ask(move |desk, name| {
            let send = |message| desk.send(name, &settings, message);
            messages.iter().map(send).collect::<rusqlite::Result<Vec<Stored>>>()
        });
        stored.map(move |stored| match stored {
            Err(error) => (0..many).map(|_| Err(error.clone())).collect(),
            Ok(stored) => ids
                .into_iter()
                .zip(stored)
                .map(|(id, stored)| match stored {
                    Stored::Yes(id) => Ok(id),
                    Stored::Full(most) => {
                        Err(Error::MailboxFull { mailbox: mailbox.clone(), limit: format!("max_size = {most}") })
                    }
                    Stored::IdInUse => Err(Error::id_in_use(&id)),
                    Stored::NotAUuid => Err(Error::invalid("message id", id, "a UUID")),
                })
                .collect(),
        })
    }

    fn receive(&self, request: Receive) -> Answer<Result<Vec<Delivery>, Error>> {
        if request.wait.is_zero() {
            return self.attempt(request).map(|taken| Ok(taken?.0));
        }
        Answer::from_future(long_poll(self.again(), request))
    }

    fn acknowledge(&self, receipts: Batch<Receipt>) -> Answer<Batch<Result<(), Error>>> {
        self.each(receipts, |receipt| receipt, |desk, name, receipt| desk.acknowledge(name, &receipt.handle))
    }

    fn set_visibility(&self, changes: Batch<(Receipt, Visibility)>) -> Answer<Batch<Result<(), Error>>> {
        self.each(
            changes,
            |(receipt, _)| receipt,
            |desk, name, (receipt, visibility)| match *visibility {
                Visibility::Return(after) => desk.give_back(name, &receipt.handle, after),
                Visibility::Extend(by) => desk.extend(name, &receipt.handle, by),
                Visibility::Release => desk.release(name, &receipt.handle),
            },
        )
    }

    fn dead_letter(&self, letters: Batch<(Receipt, String)>) -> Answer<Batch<Result<(), Error>>> {
        let act = |desk: &mut Desk<'_>, name: &MailboxName, (receipt, reason): &(Receipt, String)| {
            desk.dead_letter(name, &receipt.handle, reason)
        };
        self.each(letters, |(receipt, _)| receipt, act)
    }

    fn purge(&self) -> Answer<Result<u64, Error>> {
        self.ask(|desk, name| desk.purge(name))
    }

    fn identity(&self) -> Answer<Result<String, Error>> {
        Answer::ready(Ok(format!("{:?}/{}", super::identity(&self.inner.path), self.name)))
    }

    fn counts(&self) -> Answer<Result<Counts, Error>> {
        self.ask(|desk, name| desk.counts(name))
    }

    fn create(&self) -> Answer<Result<(), Error>> {
        let settings = self.settings.clone();
        self.ask(move |desk, name| desk.configure(name, &settings))
    }

    fn delete(&self) -> Answer<Result<(), Error>> {
        self.ask(|desk, name| desk.delete(name))
    }

    fn cancel(&self, id: MessageId) -> Answer<Result<bool, Error>> {
        self.ask(move |desk, name| desk.cancel(name, &id))
    }

    fn peek(&self, max: usize) -> Answer<Result<Vec<Delivery>, Error>> {
        self.ask(move |desk, name| desk.peek(name, max))
    }

    fn dead_letters(&self, max: usize) -> Answer<Result<Vec<DeadLetter>, Error>> {
        self.ask(move |desk, name| desk.dead_letters(name, max))
    }

    fn redrive(&self, which: Redrive) -> Answer<Result<u64, Error>> {
        self.ask(move |desk, name| desk.redrive(name, &which))
    }

    fn purge_dead_letters(&self) -> Answer<Result<u64, Error>> {
        self.ask(|desk, name| desk.purge_dead_letters(name))
    }
}
