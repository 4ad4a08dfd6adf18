//! The verbs of one mailbox, as tasks of the backend's thread.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use postbox::backend::{
    ByteMailbox, DeadLetter, Delivery, MailboxSettings, Outgoing, Receipt, Receive, Redrive, Visibility,
};
use postbox::operation::Answer;
use postbox::{Counts, Error, MessageId};

use super::store::{Locked, Store};
use super::thread::Thread;

/// What the verbs of one handle share.
pub(super) struct Handle {
    store: Arc<Store>,
    path: PathBuf,
    settings: MailboxSettings,
    /// Whether the settings of this handle have been stored.
    configured: AtomicBool,
}

impl Handle {
    pub(super) const fn new(store: Arc<Store>, path: PathBuf, settings: MailboxSettings) -> Self {
        Handle { store, path, settings, configured: AtomicBool::new(false) }
    }

    /// Runs a verb on the locked mailbox. The first verb stores the settings, and so does one that makes
    /// the mailbox.
    fn run<T>(&self, creates: bool, verb: impl FnOnce(&mut Locked<'_>) -> Result<T, Error>) -> Result<T, Error> {
        let mut mailbox = Locked::new(&self.store, &self.path)?;
        if (creates && !mailbox.exists()) || (mailbox.exists() && !self.configured.load(Ordering::Relaxed)) {
            mailbox.create(&self.settings)?;
            self.configured.store(true, Ordering::Relaxed);
        }
        let result = verb(&mut mailbox)?;
        mailbox.finish()?;
        Ok(result)
    }

    fn release(&self, deliveries: Vec<Delivery>) -> Result<(), Error> {
        self.run(false, |mailbox| {
            for delivery in deliveries {
                let receipt = Receipt::new(delivery.id, delivery.receipt_handle);
                mailbox.set_visibility(&receipt, Visibility::Release)?;
            }
            Ok(())
        })
    }
}

pub(super) struct FolderMailbox {
    pub(super) handle: Arc<Handle>,
    pub(super) thread: Thread,
}

impl FolderMailbox {
    fn verb<T: Send + 'static>(
        &self,
        creates: bool,
        verb: impl FnOnce(&mut Locked<'_>) -> Result<T, Error> + Send + 'static,
    ) -> Answer<Result<T, Error>> {
        let handle = Arc::clone(&self.handle);
        self.thread.answer(Some(&self.handle.path), move || handle.run(creates, verb))
    }

    /// A verb with a result for each entry.
    fn batch<E: Send + 'static, T: Send + 'static>(
        &self,
        creates: bool,
        entries: Vec<E>,
        verb: impl Fn(&mut Locked<'_>, E) -> Result<T, Error> + Send + 'static,
    ) -> Answer<Vec<Result<T, Error>>> {
        let many = entries.len();
        let all = self.verb(creates, move |mailbox| {
            Ok(entries.into_iter().map(|entry| verb(mailbox, entry)).collect::<Vec<_>>())
        });
        all.map(move |results| results.unwrap_or_else(|error| (0..many).map(|_| Err(error.clone())).collect()))
    }
}

impl fmt::Debug for FolderMailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FolderMailbox").field(&self.handle.path).finish()
    }
}

impl ByteMailbox for FolderMailbox {
    fn send(&self, messages: Vec<Outgoing>) -> Answer<Vec<Result<MessageId, Error>>> {
        self.batch(true, messages, |mailbox, message| mailbox.send(&message))
    }

    fn receive(&self, request: Receive) -> Answer<Result<Vec<Delivery>, Error>> {
        let handle = Arc::clone(&self.handle);
        let look = move || handle.run(false, |mailbox| mailbox.receive(request.max, request.visibility));
        let (handle, thread) = (Arc::clone(&self.handle), self.thread.clone());
        let give_back = move |deliveries: Vec<Delivery>| {
            let released = Arc::clone(&handle);
            // Nobody waits for the result. If it is an error, the leases end at their deadlines.
            drop(thread.answer(Some(&handle.path), move || released.release(deliveries)));
        };
        let until = self.handle.store.clock.now().after(request.wait);
        self.thread.receive(&self.handle.path, until, Box::new(look), Arc::new(give_back))
    }

    fn acknowledge(&self, receipts: Vec<Receipt>) -> Answer<Vec<Result<(), Error>>> {
        self.batch(false, receipts, |mailbox, receipt| mailbox.acknowledge(&receipt))
    }

    fn set_visibility(&self, changes: Vec<(Receipt, Visibility)>) -> Answer<Vec<Result<(), Error>>> {
        self.batch(false, changes, |mailbox, (receipt, visibility)| mailbox.set_visibility(&receipt, visibility))
    }

    fn dead_letter(&self, letters: Vec<(Receipt, String)>) -> Answer<Vec<Result<(), Error>>> {
        self.batch(false, letters, |mailbox, (receipt, reason)| mailbox.dead_letter(&receipt, &reason))
    }

    fn purge(&self) -> Answer<Result<u64, Error>> {
        self.verb(false, |mailbox| mailbox.purge())
    }

    fn identity(&self) -> Answer<Result<String, Error>> {
        Answer::ready(Ok(self.handle.path.to_string_lossy().into_owned()))
    }

    fn counts(&self) -> Answer<Result<Counts, Error>> {
        self.verb(false, |mailbox| Ok(mailbox.counts()))
    }

    fn create(&self) -> Answer<Result<(), Error>> {
        self.verb(true, |_| Ok(()))
    }

    fn delete(&self) -> Answer<Result<(), Error>> {
        self.verb(false, |mailbox| mailbox.delete())
    }

    fn cancel(&self, id: MessageId) -> Answer<Result<bool, Error>> {
        self.verb(false, move |mailbox| mailbox.cancel(&id))
    }

    fn peek(&self, max: usize) -> Answer<Result<Vec<Delivery>, Error>> {
        self.verb(false, move |mailbox| mailbox.peek(max))
    }

    fn dead_letters(&self, max: usize) -> Answer<Result<Vec<DeadLetter>, Error>> {
        self.verb(false, move |mailbox| mailbox.dead_letters(max))
    }

    fn redrive(&self, which: Redrive) -> Answer<Result<u64, Error>> {
        self.verb(false, move |mailbox| mailbox.redrive(&which))
    }

    fn purge_dead_letters(&self) -> Answer<Result<u64, Error>> {
        self.verb(false, |mailbox| mailbox.purge_dead_letters())
    }
}
