//! Mailboxes in the memory of this process: a lock, a ledger and a wait queue each.
//!
//! Nothing survives the process. Counts are exact, order is first in, first out, and no mailbox has a thread of its own.

mod long_poll;
mod mailbox;
mod replies;
mod store;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use crate::backend::{Backend, ByteMailbox, Limits, MailboxSettings};
use crate::error::Error;
use crate::mailbox::operation::Answer;
use crate::reply::store::ReplyStore;
use crate::resolver::address::MailboxName;
use crate::runtime::clock::{Clock, Moment, Sleep, SystemClock};
use crate::runtime::{background, lock};

pub(crate) use self::mailbox::MemoryMailbox;
pub use self::replies::MemoryReplyStore;
use self::store::{Rest, Store};

/// How long a deduplication id is remembered, unless the settings say otherwise.
pub(crate) const DEDUPLICATION_WINDOW: Duration = Duration::from_secs(300);

/// A set of mailboxes in memory. `memory://` is the one that the whole process shares.
///
/// ```
/// use postbox::{Connection, Mailbox, MemoryBackend};
///
/// // A set of its own: names do not meet those of `memory://`.
/// let connection = Connection::new(MemoryBackend::new());
/// let mailbox: Mailbox<String> = connection.mailbox("requests")?;
/// mailbox.send("hello").blocking()?;
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
        lock(&self.stores)
    }

    /// The last handle of a store is gone. What is empty goes at once; what may become empty by itself, or has an idle
    /// expiry, is looked at again when its time has come.
    fn abandoned(self: &Arc<Self>, store: &Arc<Store>) {
        let stores = self.stores();
        if !store.is_abandoned() {
            return;
        }
        store.set_abandoned_at(self.clock.now());
        let (gone, next) = self.tidy(stores, store);
        drop(gone);
        if let Some(next) = next
            && store.begin_tidying()
        {
            let (space, store) = (Arc::downgrade(self), Arc::downgrade(store));
            let mut sleep = Sleep::until(Arc::clone(&self.clock), next);
            background::spawn(async move {
                loop {
                    sleep.await;
                    let (Some(space), Some(store)) = (space.upgrade(), store.upgrade()) else { break };
                    let (gone, next) = space.tidy(space.stores(), &store);
                    drop(gone);
                    match next {
                        Some(next) => sleep = Sleep::until(Arc::clone(&space.clock), next),
                        None => break,
                    }
                }
            });
        }
    }

    /// Forgets a store that is abandoned and empty, or idle for too long. Otherwise says when to look again, if ever.
    fn tidy(
        &self,
        mut stores: MutexGuard<'_, HashMap<MailboxName, Arc<Store>>>,
        store: &Arc<Store>,
    ) -> (Option<Arc<Store>>, Option<Moment>) {
        // Another store may have the name by now.
        let is_known = stores.get(store.name()).is_some_and(|known| Arc::ptr_eq(known, store));
        let rest = if is_known && store.is_abandoned() { store.rests_until(self.clock.now()) } else { Rest::Endless };
        match rest {
            Rest::Over => (stores.remove(store.name()), None),
            Rest::Until(next) => (None, Some(next)),
            Rest::Endless => {
                // Looked at again when it is abandoned again.
                store.end_tidying();
                (None, None)
            }
        }
    }
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
        let mailbox = MemoryMailbox::new(Arc::clone(store), Arc::clone(&self.space), settings.clone());
        drop(stores);
        mailbox.configure();
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
        let stores = self.space.stores();
        let mut names: Vec<MailboxName> =
            stores.iter().filter(|(_, store)| store.exists()).map(|(name, _)| name.clone()).collect();
        drop(stores);
        names.sort();
        Answer::ready(Ok(names))
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.space.clock)
    }
}
