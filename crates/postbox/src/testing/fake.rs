//! A mailbox with faults on demand.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::clock::ManualClock;
use crate::backend::{
    Backend, ByteMailbox, Counts, DeadLetter, Delivery, Limits, MailboxSettings, Outgoing, Receipt, Receive, Redrive,
    Visibility,
};
use crate::backends::memory::{MemoryBackend, MemoryMailbox};
use crate::error::Error;
use crate::mailbox::codec::Json;
use crate::mailbox::connection::Connection;
use crate::mailbox::id::{MessageId, ReceiptHandle, ReplyId};
use crate::mailbox::operation::Answer;
use crate::mailbox::{Mailbox, UntypedMailbox};
use crate::reply::store::{ReplyEntry, ReplyStore, ReplyValue, Resolved};
use crate::resolver::address::MailboxName;
use crate::runtime::clock::Clock;

/// The faults that a test has set.
#[derive(Debug, Default)]
struct Faults {
    /// The error of every verb.
    connection: Option<Error>,
    /// The errors of entries of the next batch, by their index.
    entries: BTreeMap<usize, Error>,
    /// The number of next deliveries that are repeated.
    duplicates: usize,
}

#[derive(Clone, Debug, Default)]
struct Script(Arc<Mutex<Faults>>);

impl Script {
    fn lock(&self) -> MutexGuard<'_, Faults> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a verb without entries, unless it is to fail.
    fn or<T>(&self, act: impl FnOnce() -> Answer<Result<T, Error>>) -> Answer<Result<T, Error>> {
        let broken = self.lock().connection.clone();
        broken.map_or_else(act, |error| Answer::ready(Err(error)))
    }

    /// Runs a batch verb with the entries that are not to fail.
    fn each<E, T: 'static>(
        &self,
        entries: Vec<E>,
        act: impl FnOnce(Vec<E>) -> Answer<Vec<Result<T, Error>>>,
    ) -> Answer<Vec<Result<T, Error>>> {
        let mut faults = self.lock();
        if let Some(error) = &faults.connection {
            return Answer::ready(entries.iter().map(|_| Err(error.clone())).collect());
        }
        let failing = std::mem::take(&mut faults.entries);
        drop(faults);
        let many = entries.len();
        let good = entries.into_iter().enumerate().filter(|(at, _)| !failing.contains_key(at)).map(|(_, entry)| entry);
        act(good.collect()).map(move |mut results| {
            for (at, error) in failing.into_iter().filter(|(at, _)| *at < many) {
                results.insert(at, Err(error));
            }
            results
        })
    }
}

/// The backend behind a [`FakeMailbox`], for tests of more than one mailbox.
///
/// ```
/// use postbox::testing::FakeBackend;
/// use postbox::{Connection, Error, Mailbox};
///
/// let backend = FakeBackend::new();
/// let mailbox: Mailbox<u32> = Connection::new(backend.clone()).mailbox("requests")?;
/// backend.set_connection_error(Error::connection("the cable is out"));
/// assert!(mailbox.send(&1).blocking().is_err());
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone)]
pub struct FakeBackend {
    memory: MemoryBackend,
    clock: ManualClock,
    script: Script,
    limits: Limits,
}

impl FakeBackend {
    /// A backend without faults, with a clock that stands still.
    pub fn new() -> Self {
        let clock = ManualClock::new();
        let memory = MemoryBackend::with_clock(Arc::new(clock.clone()));
        FakeBackend { memory, clock, script: Script::default(), limits: Limits::generous() }
    }

    /// Declares other limits, to test a program on a backend that allows less.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// The clock of the backend.
    pub fn clock(&self) -> &ManualClock {
        &self.clock
    }

    /// Makes every verb fail with this error, until [`clear_connection_error`](Self::clear_connection_error).
    pub fn set_connection_error(&self, error: Error) {
        self.script.lock().connection = Some(error);
    }

    /// Ends the fault of [`set_connection_error`](Self::set_connection_error).
    pub fn clear_connection_error(&self) {
        self.script.lock().connection = None;
    }

    /// Makes the entries with these indexes fail, in the next batch that is sent or settled.
    pub fn fail_entries(&self, indexes: impl IntoIterator<Item = usize>, error: Error) {
        self.script.lock().entries = indexes.into_iter().map(|index| (index, error.clone())).collect();
    }

    /// Repeats the next deliveries, even of messages that are acknowledged, to test a consumer for "at least once".
    pub fn deliver_twice(&self, deliveries: usize) {
        self.script.lock().duplicates = deliveries;
    }
}

impl Default for FakeBackend {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for FakeBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeBackend").field("memory", &self.memory).field("faults", &*self.script.lock()).finish()
    }
}

impl Backend for FakeBackend {
    fn kind(&self) -> &'static str {
        "fake"
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn mailbox(&self, name: &MailboxName, settings: &MailboxSettings) -> Result<Arc<dyn ByteMailbox>, Error> {
        Ok(Arc::new(FakeBytes { memory: self.memory.open(name, settings), script: self.script.clone() }))
    }

    fn replies(&self) -> Option<Arc<dyn ReplyStore>> {
        let store = self.memory.replies()?;
        Some(Arc::new(FakeReplies { store, script: self.script.clone() }))
    }

    fn list(&self) -> Answer<Result<Vec<MailboxName>, Error>> {
        self.script.or(|| self.memory.list())
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(self.clock.clone())
    }
}

#[derive(Debug)]
struct FakeBytes {
    memory: MemoryMailbox,
    script: Script,
}

impl ByteMailbox for FakeBytes {
    fn send(&self, messages: Vec<Outgoing>) -> Answer<Vec<Result<MessageId, Error>>> {
        self.script.each(messages, |messages| self.memory.send(messages))
    }

    fn receive(&self, request: Receive) -> Answer<Result<Vec<Delivery>, Error>> {
        let (script, memory) = (self.script.clone(), self.memory.clone());
        self.script.or(|| {
            self.memory.receive(request).map(move |deliveries| {
                let deliveries = deliveries?;
                let mut faults = script.lock();
                let twice = faults.duplicates.min(deliveries.len());
                faults.duplicates -= twice;
                drop(faults);
                let copies = deliveries.iter().take(twice).map(|delivery| {
                    let mut copy = Outgoing::new(delivery.body.clone(), delivery.content_type.clone());
                    copy.id = delivery.id.clone();
                    copy.headers = delivery.headers.clone();
                    copy
                });
                drop(memory.send(copies.collect()).blocking());
                Ok(deliveries)
            })
        })
    }

    fn acknowledge(&self, receipts: Vec<Receipt>) -> Answer<Vec<Result<(), Error>>> {
        self.script.each(receipts, |receipts| self.memory.acknowledge(receipts))
    }

    fn set_visibility(&self, changes: Vec<(Receipt, Visibility)>) -> Answer<Vec<Result<(), Error>>> {
        self.script.each(changes, |changes| self.memory.set_visibility(changes))
    }

    fn dead_letter(&self, letters: Vec<(Receipt, String)>) -> Answer<Vec<Result<(), Error>>> {
        self.script.each(letters, |letters| self.memory.dead_letter(letters))
    }

    fn purge(&self) -> Answer<Result<u64, Error>> {
        self.script.or(|| self.memory.purge())
    }

    fn identity(&self) -> Answer<Result<String, Error>> {
        self.script.or(|| self.memory.identity())
    }

    fn counts(&self) -> Answer<Result<Counts, Error>> {
        self.script.or(|| self.memory.counts())
    }

    fn create(&self) -> Answer<Result<(), Error>> {
        self.script.or(|| self.memory.create())
    }

    fn delete(&self) -> Answer<Result<(), Error>> {
        self.script.or(|| self.memory.delete())
    }

    fn cancel(&self, id: MessageId) -> Answer<Result<bool, Error>> {
        self.script.or(|| self.memory.cancel(id))
    }

    fn peek(&self, max: usize) -> Answer<Result<Vec<Delivery>, Error>> {
        self.script.or(|| self.memory.peek(max))
    }

    fn dead_letters(&self, max: usize) -> Answer<Result<Vec<DeadLetter>, Error>> {
        self.script.or(|| self.memory.dead_letters(max))
    }

    fn redrive(&self, which: Redrive) -> Answer<Result<u64, Error>> {
        self.script.or(|| self.memory.redrive(which))
    }

    fn purge_dead_letters(&self) -> Answer<Result<u64, Error>> {
        self.script.or(|| self.memory.purge_dead_letters())
    }
}

#[derive(Debug)]
struct FakeReplies {
    store: Arc<dyn ReplyStore>,
    script: Script,
}

impl ReplyStore for FakeReplies {
    fn create(&self, id: ReplyId, ttl: Duration) -> Answer<Result<bool, Error>> {
        self.script.or(|| self.store.create(id, ttl))
    }

    fn resolve(&self, id: ReplyId, value: ReplyValue) -> Answer<Result<Resolved, Error>> {
        self.script.or(|| self.store.resolve(id, value))
    }

    fn cancel(&self, id: ReplyId) -> Answer<Result<bool, Error>> {
        self.script.or(|| self.store.cancel(id))
    }

    fn get(&self, id: ReplyId) -> Answer<Result<Option<ReplyEntry>, Error>> {
        self.script.or(|| self.store.get(id))
    }

    fn consume(&self, id: ReplyId) -> Answer<Result<Option<ReplyEntry>, Error>> {
        self.script.or(|| self.store.consume(id))
    }

    fn delete(&self, id: ReplyId) -> Answer<Result<bool, Error>> {
        self.script.or(|| self.store.delete(id))
    }

    fn scan_expired(&self, limit: usize) -> Answer<Result<Vec<ReplyId>, Error>> {
        self.script.or(|| self.store.scan_expired(limit))
    }

    fn cleanup_expired(&self, limit: usize) -> Answer<Result<u64, Error>> {
        self.script.or(|| self.store.cleanup_expired(limit))
    }

    fn settled(&self, id: ReplyId, wait: Duration) -> Answer<Result<bool, Error>> {
        self.script.or(|| self.store.settled(id, wait))
    }
}

/// A complete mailbox in memory, with a clock that the test moves, and faults on demand.
///
/// ```
/// use postbox::testing::FakeMailbox;
/// use postbox::Error;
/// use std::time::Duration;
///
/// let mailbox: FakeMailbox<String> = FakeMailbox::new();
/// mailbox.send("one").blocking()?;
///
/// // A slow consumer loses its lease.
/// let message = mailbox.receive().blocking()?.remove(0);
/// mailbox.advance(Duration::from_secs(30));
/// assert!(matches!(message.acknowledge().blocking(), Err(Error::ReceiptHandleExpired { .. })));
///
/// // The connection breaks.
/// mailbox.set_connection_error(Error::connection("Redis is down"));
/// assert!(mailbox.send("two").blocking().is_err());
/// # Ok::<(), Error>(())
/// ```
pub struct FakeMailbox<T, R = (), C = Json> {
    mailbox: Mailbox<T, R, C>,
    backend: FakeBackend,
}

impl<T, R, C> FakeMailbox<T, R, C> {
    /// An empty mailbox.
    pub fn new() -> Self {
        Self::with(|connection| connection)
    }

    /// An empty mailbox with options: `FakeMailbox::with(|options| options.max_size(3))`.
    ///
    /// # Panics
    /// If an option is not allowed.
    pub fn with(options: impl FnOnce(Connection) -> Connection) -> Self {
        let backend = FakeBackend::new();
        let mailbox = options(Connection::new(backend.clone())).mailbox("fake");
        FakeMailbox { mailbox: mailbox.unwrap_or_else(|error| panic!("{error}")), backend }
    }

    /// The backend, to open another mailbox on it.
    pub const fn backend(&self) -> &FakeBackend {
        &self.backend
    }

    /// Moves the clock: leases end, delayed messages become visible, long polls time out.
    pub fn advance(&self, by: Duration) {
        self.backend.clock.advance(by);
    }

    /// Ends a lease at once. Returns `false` if it had ended.
    pub fn expire_handle(&self, handle: &ReceiptHandle) -> bool {
        self.backend.memory.open(self.mailbox.name(), &MailboxSettings::default()).expire(handle)
    }

    /// Makes every operation fail with this error, until [`clear_connection_error`](Self::clear_connection_error).
    pub fn set_connection_error(&self, error: Error) {
        self.backend.set_connection_error(error);
    }

    /// Ends the fault of [`set_connection_error`](Self::set_connection_error).
    pub fn clear_connection_error(&self) {
        self.backend.clear_connection_error();
    }

    /// Makes the entries with these indexes fail, in the next batch that is sent or settled.
    pub fn fail_entries(&self, indexes: impl IntoIterator<Item = usize>, error: Error) {
        self.backend.fail_entries(indexes, error);
    }

    /// Repeats the next deliveries, even of messages that are acknowledged.
    pub fn deliver_twice(&self, deliveries: usize) {
        self.backend.deliver_twice(deliveries);
    }
}

impl<T, R, C> Default for FakeMailbox<T, R, C> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T, R, C> Deref for FakeMailbox<T, R, C> {
    type Target = Mailbox<T, R, C>;

    fn deref(&self) -> &Self::Target {
        &self.mailbox
    }
}

impl<T, R, C> fmt::Debug for FakeMailbox<T, R, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeMailbox").field("backend", &self.backend).finish()
    }
}

impl<T, R, C> From<&FakeMailbox<T, R, C>> for UntypedMailbox {
    fn from(fake: &FakeMailbox<T, R, C>) -> Self {
        fake.mailbox.untyped()
    }
}
