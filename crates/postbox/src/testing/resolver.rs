//! A resolver with a log.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::doubles::CollectingMailbox;
use crate::error::Error;
use crate::mailbox::UntypedMailbox;
use crate::mailbox::codec::{Decode, Json};
use crate::mailbox::operation::Answer;
use crate::resolver::MailboxResolver;

/// A resolver that keeps a log. An identifier that is not registered resolves to a new [`CollectingMailbox`], unless
/// it is to fail. Clones share their state.
///
/// ```
/// use postbox::testing::FakeMailboxResolver;
/// use postbox::MailboxResolver;
///
/// let resolver = FakeMailboxResolver::new().fail_on("broken");
/// assert!(resolver.resolve("broken").blocking().is_err());
/// let mailbox = resolver.resolve("responses").blocking()?.typed::<u32, (), postbox::Json>();
/// mailbox.send(&1).blocking()?;
/// assert_eq!(resolver.sent::<u32>("responses"), [1]);
/// assert_eq!(resolver.resolution_log(), ["broken", "responses"]);
/// # Ok::<(), postbox::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct FakeMailboxResolver {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    known: BTreeMap<String, UntypedMailbox>,
    collecting: BTreeMap<String, CollectingMailbox<()>>,
    log: Vec<String>,
    fail_on: BTreeSet<String>,
}

impl FakeMailboxResolver {
    /// A resolver without registered mailboxes.
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes this identifier fail.
    #[must_use]
    pub fn fail_on(self, identifier: impl Into<String>) -> Self {
        self.lock().fail_on.insert(identifier.into());
        self
    }

    /// Resolves this identifier to this mailbox.
    #[must_use]
    pub fn with(self, identifier: impl Into<String>, mailbox: impl Into<UntypedMailbox>) -> Self {
        let mailbox = mailbox.into();
        self.lock().known.insert(identifier.into(), mailbox);
        self
    }

    /// The identifiers that were resolved, in order.
    pub fn resolution_log(&self) -> Vec<String> {
        self.lock().log.clone()
    }

    /// All mailboxes, registered or collecting, by identifier.
    pub fn mailboxes(&self) -> BTreeMap<String, UntypedMailbox> {
        let state = self.lock();
        let made = state.collecting.iter().map(|(name, mailbox)| (name.clone(), mailbox.untyped()));
        made.chain(state.known.iter().map(|(name, mailbox)| (name.clone(), mailbox.clone()))).collect()
    }

    /// The collecting mailbox of an identifier that is not registered.
    pub fn collecting<T, R, C>(&self, identifier: &str) -> Option<CollectingMailbox<T, R, C>> {
        self.lock().collecting.get(identifier).map(CollectingMailbox::typed)
    }

    /// The bodies that were sent to an identifier that is not registered.
    ///
    /// # Panics
    /// If a body cannot be decoded as a `T`.
    pub fn sent<T>(&self, identifier: &str) -> Vec<T>
    where
        Json: Decode<T>,
    {
        self.collecting::<T, (), Json>(identifier).map(|mailbox| mailbox.sent()).unwrap_or_default()
    }
}

impl MailboxResolver for FakeMailboxResolver {
    fn resolve(&self, identifier: &str) -> Answer<Result<UntypedMailbox, Error>> {
        let mut state = self.lock();
        state.log.push(identifier.into());
        if state.fail_on.contains(identifier) {
            return Answer::ready(Err(Error::resolution(identifier, "the test said so")));
        }
        if let Some(mailbox) = state.known.get(identifier) {
            return Answer::ready(Ok(mailbox.clone()));
        }
        let mailbox = state.collecting.entry(identifier.into()).or_default();
        Answer::ready(Ok(mailbox.untyped()))
    }
}
