//! The verbs of one mailbox, as tasks of the backend's thread.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use postbox::backend::{
    Batch, ByteMailbox, DeadLetter, Delivery, MailboxSettings, Outgoing, Receipt, Receive, Redrive, Visibility,
};
use postbox::operation::Answer;
use postbox::{Counts, Error, MailboxName, MessageId};

use super::store::{Locked, Store};
use super::thread::Thread;

pub(super) struct FolderMailbox {
    store: Arc<Store>,
    thread: Thread,
    handle: Arc<Handle>,
}

/// What the verbs of one handle share.
struct Handle {
    path: PathBuf,
    name: MailboxName,
    settings: MailboxSettings,
    /// Whether the settings of this handle have been stored.
    configured: AtomicBool,
}

impl Handle {
    /// Runs a verb on the locked mailbox. The first one, and one that needs the mailbox to exist, stores the settings.
    fn run<T>(
        &self,
        store: &Store,
        creates: bool,
        verb: impl FnOnce(&mut Locked<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut mailbox = Locked::new(store, &self.path)?;
        let is_new = creates && !mailbox.exists();
        if is_new || mailbox.exists() && !self.configured.load(Ordering::Relaxed) {
            mailbox.create(&self.settings)?;
            self.configured.store(true, Ordering::Relaxed);
        }
        let result = verb(&mut mailbox)?;
        mailbox.finish()?;
        Ok(result)
    }
}

impl FolderMailbox {
    pub(super) fn new(
        store: Arc<Store>,
        thread: Thread,
        path: PathBuf,
        name: &MailboxName,
        settings: &MailboxSettings,
    ) -> Self {
        let (name, settings, configured) = (name.clone(), settings.clone(), AtomicBool::new(false));
        FolderMailbox { store, thread, handle: Arc::new(Handle { path, name, settings, configured }) }
    }

    fn verb<T: Send + 'static>(
        &self,
        creates: bool,
        verb: impl FnOnce(&mut Locked<'_>) -> Result<T, Error> + Send + 'static,
    ) -> Answer<Result<T, Error>> {
        let (store, handle) = (Arc::clone(&self.store), Arc::clone(&self.handle));
        self.thread.answer(Some(&self.handle.path), move || handle.run(&store, creates, verb))
    }

    /// A verb with a result for each entry.
    fn batch<E: Send + 'static, T: Send + 'static>(
        &self,
        creates: bool,
        entries: Batch<E>,
        verb: impl Fn(&mut Locked<'_>, E) -> Result<T, Error> + Send + 'static,
    ) -> Answer<Batch<Result<T, Error>>> {
        let many = entries.len();
        let all = self.verb(creates, move |mailbox| {
            Ok(entries.into_iter().map(|entry| verb(mailbox, entry)).collect::<Batch<_>>())
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
    fn send(&self, messages: Batch<Outgoing>) -> Answer<Batch<Result<MessageId, Error>>> {
        let name = self.handle.name.clone();
        self.batch(true, messages, move |mailbox, message| mailbox.send(&message, &name))
    }

    fn receive(&self, request: Receive) -> Answer<Result<Vec<Delivery>, Error>> {
        let (store, handle) = (Arc::clone(&self.store), Arc::clone(&self.handle));
        let look = move || handle.run(&store, false, |mailbox| mailbox.receive(request.max, request.visibility));
        let (store, handle, thread) = (Arc::clone(&self.store), Arc::clone(&self.handle), self.thread.clone());
        let give_back = move |deliveries: Vec<Delivery>| {
            let (store, released, path) = (Arc::clone(&store), Arc::clone(&handle), handle.path.clone());
            // Nobody waits for it. If it fails, the leases end at their deadlines.
            drop(thread.answer(Some(&path), move || {
                released.run(&store, false, |mailbox| {
                    for Delivery { id, receipt_handle: handle, .. } in deliveries {
                        mailbox.set_visibility(&Receipt { id, handle }, Visibility::Release)?;
                    }
                    Ok(())
                })
            }));
        };
        self.thread.receive(&self.handle.path, request, &*self.store.clock, Box::new(look), Arc::new(give_back))
    }

    fn acknowledge(&self, receipts: Batch<Receipt>) -> Answer<Batch<Result<(), Error>>> {
        self.batch(false, receipts, |mailbox, receipt| mailbox.acknowledge(&receipt))
    }

    fn set_visibility(&self, changes: Batch<(Receipt, Visibility)>) -> Answer<Batch<Result<(), Error>>> {
        self.batch(false, changes, |mailbox, (receipt, visibility)| mailbox.set_visibility(&receipt, visibility))
    }

    fn dead_letter(&self, letters: Batch<(Receipt, String)>) -> Answer<Batch<Result<(), Error>>> {
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
