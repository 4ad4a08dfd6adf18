//! Mailboxes in the memory of this process: a lock, a ledger and a wait queue each.
//!
//! The messages end with the process. Counts are exact, the order is first in, first out, and no mailbox has a thread.

mod mailbox;
mod queue;
mod replies;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use crate::backend::{Backend, ByteMailbox, Limits, MailboxSettings};
use crate::error::Error;
use crate::mailbox::operation::Answer;
use crate::reply::store::ReplyStore;
use crate::resolver::address::MailboxName;
use crate::runtime::clock::{Clock, Moment, Sleep, SystemClock};
use crate::runtime::{background, lock};

pub(crate) use self::mailbox::MemoryMailbox;
use self::queue::{Queue, Retention};
pub use self::replies::MemoryReplyStore;

/// A set of mailboxes in memory. `memory://` is the one that the whole process shares.
///
/// ```
/// use postbox::{Connection, Mailbox, MemoryBackend};
///
/// // A separate set: its names do not collide with those of `memory://`.
/// let connection = Connection::new(MemoryBackend::new());
/// let mailbox: Mailbox<String> = connection.mailbox("requests")?;
/// mailbox.send("hello").blocking()?;
/// assert_eq!(mailbox.receive().blocking()?[0].body, "hello");
/// # Ok::<(), postbox::Error>(())
/// ```
#[derive(Clone)]
pub struct MemoryBackend {
    inner: Arc<Inner>,
}

struct Inner {
    /// The queues that have a handle or a message.
    queues: Mutex<HashMap<MailboxName, Arc<Queue>>>,
    replies: Arc<MemoryReplyStore>,
    clock: Arc<dyn Clock>,
}

impl Inner {
    /// Removes a queue whose last handle is gone, as soon as it may be removed: at once if it is empty, otherwise when it
    /// becomes empty by itself or its idle expiry has passed.
    fn remove_unused(self: &Arc<Self>, queue: &Arc<Queue>) {
        let queues = lock(&self.queues);
        if queue.has_handles() {
            return;
        }
        queue.set_unused();
        let Some(next) = self.try_remove(queues, queue).filter(|_| queue.begin_removal_task()) else { return };
        let (inner, queue) = (Arc::downgrade(self), Arc::downgrade(queue));
        let mut sleep = Sleep::until(Arc::clone(&self.clock), next);
        background::spawn(async move {
            loop {
                sleep.await;
                let (Some(inner), Some(queue)) = (inner.upgrade(), queue.upgrade()) else { break };
                let Some(next) = inner.try_remove(lock(&inner.queues), &queue) else { break };
                sleep = Sleep::until(Arc::clone(&inner.clock), next);
            }
        });
    }

    /// Removes a queue if it has no handle and may be removed. Otherwise returns when to try again, if that is known.
    fn try_remove(
        &self,
        mut queues: MutexGuard<'_, HashMap<MailboxName, Arc<Queue>>>,
        queue: &Arc<Queue>,
    ) -> Option<Moment> {
        // Another queue may have the name by now.
        let is_known = queues.get(queue.name()).is_some_and(|known| Arc::ptr_eq(known, queue));
        let retention = if is_known && !queue.has_handles() { queue.retention() } else { Retention::Unlimited };
        match retention {
            Retention::Over => {
                let removed = queues.remove(queue.name());
                drop(queues);
                drop(removed);
                None
            }
            Retention::Until(next) => Some(next),
            Retention::Unlimited => {
                // The drop of its next last handle tries again.
                queue.end_removal_task();
                None
            }
        }
    }
}

impl MemoryBackend {
    /// A separate set of mailboxes.
    pub fn new() -> Self {
        Self::with_clock(SystemClock::shared())
    }

    /// A separate set of mailboxes with another clock, which tests move by hand.
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        let replies = Arc::new(MemoryReplyStore::with_clock(Arc::clone(&clock)));
        MemoryBackend { inner: Arc::new(Inner { queues: Mutex::default(), replies, clock }) }
    }

    /// The set that the whole process shares.
    pub fn shared() -> Self {
        static SHARED: OnceLock<MemoryBackend> = OnceLock::new();
        SHARED.get_or_init(Self::new).clone()
    }

    pub(crate) fn open(&self, name: &MailboxName, settings: &MailboxSettings) -> MemoryMailbox {
        let mut queues = lock(&self.inner.queues);
        let new = || Queue::new(name.clone(), Arc::clone(&self.inner.clock));
        let queue = Arc::clone(queues.entry(name.clone()).or_insert_with(new));
        let mailbox = MemoryMailbox::new(Arc::clone(&queue), Arc::clone(&self.inner), settings.clone());
        drop(queues);
        queue.configure(settings);
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
        f.debug_struct("MemoryBackend").field("mailboxes", &lock(&self.inner.queues).len()).finish()
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
        let replies: Arc<MemoryReplyStore> = Arc::clone(&self.inner.replies);
        Some(replies)
    }

    fn list(&self) -> Answer<Result<Vec<MailboxName>, Error>> {
        let queues = lock(&self.inner.queues);
        let existing = queues.iter().filter(|(_, queue)| queue.exists());
        let mut names: Vec<MailboxName> = existing.map(|(name, _)| name.clone()).collect();
        drop(queues);
        names.sort();
        Answer::ready(Ok(names))
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.inner.clock)
    }
}
