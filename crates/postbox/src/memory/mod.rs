//! Mailboxes in the memory of this process: a lock, a ledger and a wait queue each.
//!
//! Nothing survives the process. Counts are exact, order is first in, first out, and no mailbox has a thread of its own.

mod mailbox;
mod replies;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use crate::address::MailboxName;
use crate::backend::{Backend, ByteMailbox, Limits, MailboxSettings};
use crate::clock::{Clock, Sleep, SystemClock};
use crate::error::Error;
use crate::operation::Answer;
use crate::reply_store::ReplyStore;
use crate::runtime;

pub(crate) use self::mailbox::MemoryMailbox;
use self::mailbox::Store;
pub use self::replies::MemoryReplyStore;

/// How long a deduplication id is remembered, unless the settings say otherwise.
pub(crate) const DEDUPLICATION_WINDOW: Duration = Duration::from_secs(300);

/// A set of mailboxes in memory. `memory://` is the one that the whole process shares.
///
/// ```
/// use postbox::{Connection, Mailbox, MemoryBackend};
///
/// // A set of one's own: names do not meet those of `memory://`.
/// let connection = Connection::new(MemoryBackend::new());
/// let mailbox: Mailbox<String> = connection.mailbox("requests")?;
/// mailbox.send(&"hello".to_string()).blocking()?;
/// assert_eq!(mailbox.receive().blocking()?[0].body, "hello");
/// # Ok::<(), postbox::Error>(())
/// ```
#[derive(Clone)]
pub struct MemoryBackend {
    space: Arc<Space>,
}

/// Mailboxes by name.
struct Space {
    /// Those with a handle, and those with something in them.
    stores: Mutex<HashMap<MailboxName, Arc<Store>>>,
    replies: Arc<MemoryReplyStore>,
    clock: Arc<dyn Clock>,
}

impl Space {
    fn stores(&self) -> MutexGuard<'_, HashMap<MailboxName, Arc<Store>>> {
        self.stores.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last handle of a store is gone. What is empty goes at once; what is not, after its idle expiry, if it has one.
    fn abandoned(self: &Arc<Self>, store: &Arc<Store>) {
        let mut stores = self.stores();
        if !store.is_abandoned() {
            return;
        }
        if store.is_empty() {
            let gone = stores.remove(store.name());
            drop(stores);
            drop(gone);
            return;
        }
        drop(stores);
        if let Some(idle) = store.idle_expiry() {
            let (space, store) = (Arc::downgrade(self), Arc::downgrade(store));
            let sleep = Sleep::for_(Arc::clone(&self.clock), idle);
            runtime::spawn(async move {
                sleep.await;
                expire(space, store);
            });
        }
    }
}

fn expire(space: Weak<Space>, store: Weak<Store>) {
    let (Some(space), Some(store)) = (space.upgrade(), store.upgrade()) else { return };
    let mut stores = space.stores();
    let gone = if store.is_abandoned() { stores.remove(store.name()) } else { None };
    drop(stores);
    drop(gone);
}

impl MemoryBackend {
    /// A set of mailboxes of its own.
    pub fn new() -> Self {
        Self::with_clock(SystemClock::shared())
    }

    /// A set of mailboxes of its own that live by another clock: tests move it by hand.
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        let replies = Arc::new(MemoryReplyStore::with_clock(Arc::clone(&clock)));
        MemoryBackend { space: Arc::new(Space { stores: Mutex::default(), replies, clock }) }
    }

    /// The set that the process shares.
    pub fn shared() -> Self {
        static SHARED: OnceLock<MemoryBackend> = OnceLock::new();
        SHARED.get_or_init(Self::new).clone()
    }

    pub(crate) fn open(&self, name: &MailboxName, settings: &MailboxSettings) -> MemoryMailbox {
        let mut stores = self.space.stores();
        let store =
            stores.entry(name.clone()).or_insert_with(|| Store::new(name.clone(), Arc::clone(&self.space.clock)));
        let mailbox = MemoryMailbox::new(Arc::clone(store), Arc::clone(&self.space));
        drop(stores);
        mailbox.configure(settings);
        mailbox
    }
}

impl Default for MemoryBackend {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryBackend").field("mailboxes", &self.space.stores().len()).finish()
    }
}

impl Backend for MemoryBackend {
    fn kind(&self) -> &'static str {
        "memory"
    }

    fn limits(&self) -> Limits {
        Limits::generous()
    }

    fn mailbox(&self, name: &MailboxName, settings: &MailboxSettings) -> Result<Arc<dyn ByteMailbox>, Error> {
        Ok(Arc::new(self.open(name, settings)))
    }

    fn replies(&self) -> Option<Arc<dyn ReplyStore>> {
        let replies: Arc<MemoryReplyStore> = Arc::clone(&self.space.replies);
        Some(replies)
    }

    fn list(&self) -> Answer<Result<Vec<MailboxName>, Error>> {
        let mut names: Vec<MailboxName> = self.space.stores().keys().cloned().collect();
        names.sort();
        Answer::ready(Ok(names))
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.space.clock)
    }
}
