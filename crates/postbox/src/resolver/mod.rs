//! Resolvers: from an address to a mailbox.
//!
//! A message carries the address for its answer in [`reply_to`](crate::Lease::reply_to): a name or a URI. The resolver of the
//! mailbox that received the message finds the mailbox of that address: [`Lease::reply_mailbox`](crate::Lease::reply_mailbox).
//!
//! | type | what it resolves |
//! |---|---|
//! | the default | names, to mailboxes of the same backend; no URIs |
//! | [`RegistryResolver`] | the names of registered mailboxes |
//! | [`UriMailboxFactory`] | the URIs of an allow-list |
//! | [`CompositeResolver`] | a registry, then a cache, then a factory |
//! | [`MailboxResolver`], [`MailboxFactory`] | the traits, for other resolvers |
//!
//! ```
//! use postbox::{CompositeResolver, Connection, Mailbox, MemoryBackend, UriMailboxFactory};
//!
//! let resolver = CompositeResolver::new().factory(UriMailboxFactory::new().allow("memory://doc-answers-"));
//! let jobs: Mailbox<u32> = Connection::new(MemoryBackend::new()).resolver(resolver).mailbox("jobs")?;
//! jobs.send(&20).reply_to("memory://doc-answers-7").blocking()?;
//!
//! let job = jobs.receive().blocking()?.remove(0);
//! let answers: Mailbox<u32> = job.reply_mailbox().blocking()?;
//! answers.send(&(job.body + 1)).blocking()?;
//! job.acknowledge().blocking()?;
//! # answers.purge().blocking()?;
//!
//! // An address that is not on the allow-list is refused.
//! jobs.send(&20).reply_to("memory://secrets").blocking()?;
//! let job = jobs.receive().blocking()?.remove(0);
//! assert!(job.reply_mailbox::<u32>().blocking().is_err());
//! # Ok::<(), postbox::Error>(())
//! ```

pub(crate) mod address;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use metrics::{Counter, Histogram};

use crate::error::Error;
use crate::mailbox::Mailbox;
pub use crate::mailbox::UntypedMailbox;
use crate::mailbox::connection::{Connection, open_untyped};
use crate::mailbox::handle::HandleOptions;
use crate::mailbox::operation::{Answer, Call};
use crate::resolver::address::{Uri, shown};
use crate::runtime::clock::{Clock, Moment, SystemClock};

/// Finds mailboxes by name or URI.
///
/// The mailboxes are untyped, and get their types where they are used. So one resolver serves many types.
pub trait MailboxResolver: fmt::Debug + Send + Sync + 'static {
    /// Finds a mailbox.
    ///
    /// # Errors
    /// [`Resolution`](Error::Resolution) with the identifier if there is no such mailbox; errors of the backend as they are.
    fn resolve(&self, identifier: &str) -> Answer<Result<UntypedMailbox, Error>>;

    /// Finds a mailbox, or `None` where [`resolve`](Self::resolve) fails with [`Resolution`](Error::Resolution).
    ///
    /// # Errors
    /// All others.
    fn resolve_optional(&self, identifier: &str) -> Answer<Result<Option<UntypedMailbox>, Error>> {
        self.resolve(identifier).map(|found| match found {
            Ok(mailbox) => Ok(Some(mailbox)),
            Err(Error::Resolution { .. }) => Ok(None),
            Err(error) => Err(error),
        })
    }
}

impl<P: MailboxResolver + ?Sized> MailboxResolver for Arc<P> {
    fn resolve(&self, identifier: &str) -> Answer<Result<UntypedMailbox, Error>> {
        (**self).resolve(identifier)
    }

    fn resolve_optional(&self, identifier: &str) -> Answer<Result<Option<UntypedMailbox>, Error>> {
        (**self).resolve_optional(identifier)
    }
}

/// Opens mailboxes by a name or a URI, without a cache.
pub trait MailboxFactory: fmt::Debug + Send + Sync + 'static {
    /// Opens a mailbox.
    ///
    /// # Errors
    /// [`InvalidParameter`](Error::InvalidParameter) or [`Resolution`](Error::Resolution) for a string that is no address,
    /// [`Connection`](Error::Connection) for a store that cannot be reached.
    fn create(&self, identifier: &str) -> Answer<Result<UntypedMailbox, Error>>;
}

impl<P: MailboxFactory + ?Sized> MailboxFactory for Arc<P> {
    fn create(&self, identifier: &str) -> Answer<Result<UntypedMailbox, Error>> {
        (**self).create(identifier)
    }
}

/// Turns the errors of a factory for invalid names into those of a resolver.
fn unresolved(identifier: &str, error: Error) -> Error {
    match error {
        Error::InvalidParameter { .. } => Error::resolution(identifier, error.to_string()),
        other => other,
    }
}

/// Resolves names to mailboxes of one backend, and refuses URIs, because an address may come from a stranger.
#[derive(Clone, Debug)]
pub(crate) struct BackendResolver {
    connection: Connection,
}

impl BackendResolver {
    pub(crate) const fn new(connection: Connection) -> Self {
        BackendResolver { connection }
    }
}

impl MailboxResolver for BackendResolver {
    fn resolve(&self, identifier: &str) -> Answer<Result<UntypedMailbox, Error>> {
        if identifier.contains("://") {
            let reason = "URIs are not followed unless a resolver allows them (UriMailboxFactory::allow)";
            return Answer::ready(Err(Error::resolution(identifier, reason)));
        }
        let about = identifier.to_string();
        self.connection.create(identifier).map(move |made| made.map_err(|error| unresolved(&about, error)))
    }
}

/// A resolver of registered mailboxes.
///
/// ```
/// use postbox::{Mailbox, MailboxResolver, RegistryResolver};
///
/// let responses: Mailbox<u32> = postbox::open("memory://doc-registry").blocking()?;
/// let resolver = RegistryResolver::new().with("responses", &responses);
/// assert!(resolver.resolve("responses").blocking().is_ok());
/// assert!(resolver.resolve_optional("elsewhere").blocking()?.is_none());
/// # Ok::<(), postbox::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct RegistryResolver {
    registry: Arc<RwLock<HashMap<String, UntypedMailbox>>>,
}

impl RegistryResolver {
    /// A resolver without mailboxes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a mailbox, as [`register`](Self::register) does.
    #[must_use]
    pub fn with(self, name: impl Into<String>, mailbox: impl Into<UntypedMailbox>) -> Self {
        self.register(name, mailbox);
        self
    }

    /// Registers a mailbox, and replaces an earlier one of this name. Clones of the resolver share it.
    pub fn register(&self, name: impl Into<String>, mailbox: impl Into<UntypedMailbox>) {
        let mailbox = mailbox.into();
        let old = self.registry.write().unwrap_or_else(PoisonError::into_inner).insert(name.into(), mailbox);
        drop(old);
    }

    /// Removes a mailbox, and returns it.
    pub fn unregister(&self, name: &str) -> Option<UntypedMailbox> {
        self.registry.write().unwrap_or_else(PoisonError::into_inner).remove(name)
    }

    fn get(&self, name: &str) -> Option<UntypedMailbox> {
        self.registry.read().unwrap_or_else(PoisonError::into_inner).get(name).map(UntypedMailbox::sibling)
    }
}

impl MailboxResolver for RegistryResolver {
    fn resolve(&self, identifier: &str) -> Answer<Result<UntypedMailbox, Error>> {
        Answer::ready(self.get(identifier).ok_or_else(|| Error::resolution(identifier, "not registered")))
    }
}

/// Opens mailboxes by URI, if the URI is on an allow-list.
///
/// ```
/// use postbox::{MailboxFactory, UriMailboxFactory};
///
/// let factory = UriMailboxFactory::new().allow("memory://");
/// assert!(factory.create("memory://doc-factory").blocking().is_ok());
/// let error = factory.create("gopher://old").blocking().unwrap_err();
/// assert!(error.to_string().contains("memory://"));
/// ```
#[derive(Clone, Debug, Default)]
pub struct UriMailboxFactory {
    allowed: Vec<String>,
    allows_all: bool,
    options: HandleOptions,
}

impl UriMailboxFactory {
    /// A factory that allows nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Allows URIs of this scheme and host whose path starts with the path of `prefix`. `memory://replies-` allows
    /// `memory://replies-7`; `redis://cache.internal:6379/replies-` allows names on that one server. Options and passwords in an
    /// address are refused.
    ///
    /// An address is normalised before it is compared, and is opened in that form: percent-encoding, `.` and `..` are resolved.
    /// So `sqlite:///data/replies/` allows files in that folder, but not `sqlite:///data/replies/../secret.db/x`. Symbolic
    /// links are followed.
    #[must_use]
    pub fn allow(mut self, prefix: impl Into<String>) -> Self {
        self.allowed.push(prefix.into());
        self
    }

    /// Allows every URI, with options. For programs that get no address from a stranger.
    #[must_use]
    pub fn allow_all(mut self) -> Self {
        self.allows_all = true;
        self
    }

    /// The normalised URI, if it is allowed.
    fn allowed(&self, uri: Uri) -> Option<Uri> {
        if self.allows_all {
            return Some(uri);
        }
        let uri = uri.normalised()?;
        let (host, path) = uri.host_and_path();
        let matches = |prefix: &String| {
            Uri::parse(prefix).ok().and_then(|prefix| prefix.normalised()).is_some_and(|prefix| {
                let (allowed_host, allowed_path) = prefix.host_and_path();
                prefix.scheme == uri.scheme && allowed_host == host && path.starts_with(allowed_path)
            })
        };
        self.allowed.iter().any(matches).then_some(uri)
    }

    /// Sets the resolver of the mailboxes that the factory opens.
    #[must_use]
    pub fn resolver(mut self, resolver: impl MailboxResolver) -> Self {
        self.options.resolver = Some(Arc::new(resolver));
        self
    }
}

impl MailboxFactory for UriMailboxFactory {
    fn create(&self, identifier: &str) -> Answer<Result<UntypedMailbox, Error>> {
        let uri = match Uri::parse(identifier) {
            Ok(uri) => uri,
            Err(error) => return Answer::ready(Err(error)),
        };
        if !uri.is_served() {
            return Answer::ready(Err(uri.unserved(identifier)));
        }
        match self.allowed(uri) {
            Some(uri) => open_untyped(identifier.into(), uri, self.options.clone()),
            None => Answer::ready(Err(Error::resolution(identifier, "not on the allow-list of this factory"))),
        }
    }
}

/// How long a [`CompositeResolver`] caches the mailboxes of its factory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CachePolicy {
    /// Not at all.
    None,
    /// Until it is evicted.
    #[default]
    Unbounded,
    /// At most this number. The least recently used mailbox is evicted first.
    Lru(usize),
    /// Until a mailbox was not used for this time.
    IdleTtl(Duration),
}

/// A resolver that looks in a registry, then in a cache, and then asks a factory.
///
/// A cached mailbox owns no thread and no socket. Each resolution returns another handle, so closing one closes no other, and
/// eviction closes none.
///
/// ```
/// use postbox::{CompositeResolver, MailboxResolver};
/// use postbox::resolver::CachePolicy;
///
/// # postbox_core::wait_for(async {
/// let connection = postbox::connect("memory://").await?;
/// let resolver = CompositeResolver::new().factory(connection).cache(CachePolicy::Lru(1000));
/// resolver.resolve("client-7").await?;
/// assert_eq!(resolver.stats().misses, 1);
/// resolver.resolve("client-7").await?;
/// assert_eq!(resolver.stats().hits, 1);
/// assert!(resolver.evict("client-7"));
/// # Ok::<(), postbox::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct CompositeResolver {
    registry: RegistryResolver,
    factory: Option<Arc<dyn MailboxFactory>>,
    cache: Arc<Cache>,
}

struct Cache {
    policy: CachePolicy,
    state: Mutex<Cached>,
    clock: Arc<dyn Clock>,
    hits: Counter,
    misses: Counter,
    latency: Histogram,
}

#[derive(Default)]
struct Cached {
    mailboxes: HashMap<Arc<str>, (UntypedMailbox, u64)>,
    /// The names, by the number of their last use, with its time.
    uses: BTreeMap<u64, (Arc<str>, Moment)>,
    counter: u64,
    stats: ResolverStats,
}

impl Cached {
    /// Returns a mailbox, and records its use.
    fn used(&mut self, name: &str, now: Moment) -> Option<UntypedMailbox> {
        self.counter += 1;
        let (mailbox, last) = self.mailboxes.get_mut(name)?;
        let (name, _) = self.uses.remove(last)?;
        *last = self.counter;
        self.uses.insert(self.counter, (name, now));
        Some(mailbox.sibling())
    }

    fn insert(&mut self, name: &str, mailbox: UntypedMailbox, now: Moment) {
        self.counter += 1;
        let name: Arc<str> = name.into();
        self.uses.insert(self.counter, (Arc::clone(&name), now));
        self.mailboxes.insert(name, (mailbox, self.counter));
    }

    fn evict(&mut self, name: &str) -> Option<UntypedMailbox> {
        let (mailbox, last) = self.mailboxes.remove(name)?;
        self.uses.remove(&last);
        self.stats.evictions += 1;
        Some(mailbox)
    }

    /// Evicts the least recently used mailbox.
    fn evict_oldest(&mut self) -> Option<UntypedMailbox> {
        let (name, _) = self.uses.first_key_value().map(|(_, used)| used.clone())?;
        self.evict(&name)
    }
}

/// The numbers of a [`CompositeResolver`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResolverStats {
    /// Mailboxes that were found in the registry.
    pub registered: u64,
    /// Mailboxes that were found in the cache.
    pub hits: u64,
    /// Calls of the factory.
    pub misses: u64,
    /// Calls of the factory that failed.
    pub failures: u64,
    /// Mailboxes that were evicted: by the policy, by request, or because they were not healthy.
    pub evictions: u64,
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("Cache")
            .field("policy", &self.policy)
            .field("size", &state.mailboxes.len())
            .finish_non_exhaustive()
    }
}

impl Cache {
    fn new(policy: CachePolicy, clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Cache {
            policy,
            state: Mutex::default(),
            clock,
            hits: metrics::counter!("postbox_resolver_hits_total"),
            misses: metrics::counter!("postbox_resolver_misses_total"),
            latency: metrics::histogram!("postbox_resolver_seconds"),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Cached> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, identifier: &str) -> Option<UntypedMailbox> {
        let now = self.clock.now();
        let mut gone = Vec::new();
        let mut state = self.lock();
        if let CachePolicy::IdleTtl(ttl) = self.policy {
            while state.uses.first_key_value().is_some_and(|(_, (_, at))| at.after(ttl) <= now) {
                gone.extend(state.evict_oldest());
            }
        }
        let found = state.used(identifier, now);
        if found.is_some() {
            state.stats.hits += 1;
            self.hits.increment(1);
        }
        drop(state);
        drop(gone);
        found
    }

    /// Caches a new mailbox. If another call has cached one meanwhile, that one is returned.
    fn put(&self, identifier: &str, mailbox: UntypedMailbox) -> UntypedMailbox {
        if self.policy == CachePolicy::None || self.policy == CachePolicy::Lru(0) {
            return mailbox;
        }
        let now = self.clock.now();
        let mut gone = Vec::new();
        let mut state = self.lock();
        let kept = state.used(identifier, now).unwrap_or_else(|| {
            state.insert(identifier, mailbox.sibling(), now);
            mailbox
        });
        if let CachePolicy::Lru(most) = self.policy {
            while state.mailboxes.len() > most {
                gone.extend(state.evict_oldest());
            }
        }
        drop(state);
        drop(gone);
        kept
    }
}

impl Default for CompositeResolver {
    fn default() -> Self {
        Self::new()
    }
}

impl CompositeResolver {
    /// A resolver with an empty registry, no factory and an unbounded cache.
    pub fn new() -> Self {
        CompositeResolver {
            registry: RegistryResolver::new(),
            factory: None,
            cache: Cache::new(CachePolicy::default(), SystemClock::shared()),
        }
    }

    /// Sets the registry.
    #[must_use]
    pub fn registry(mut self, registry: RegistryResolver) -> Self {
        self.registry = registry;
        self
    }

    /// Sets the factory, for mailboxes that are neither registered nor cached.
    #[must_use]
    pub fn factory(mut self, factory: impl MailboxFactory) -> Self {
        self.factory = Some(Arc::new(factory));
        self
    }

    /// Sets the policy of the cache, which starts empty.
    #[must_use]
    pub fn cache(mut self, policy: CachePolicy) -> Self {
        self.cache = Cache::new(policy, Arc::clone(&self.cache.clock));
        self
    }

    /// Sets another clock, for tests. The cache starts empty.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.cache = Cache::new(self.cache.policy, clock);
        self
    }

    /// Removes a mailbox from the cache. Returns `false` if it was not cached.
    pub fn evict(&self, identifier: &str) -> bool {
        let gone = self.cache.lock().evict(identifier);
        gone.is_some()
    }

    /// The number of cached mailboxes.
    pub fn cached(&self) -> usize {
        self.cache.lock().mailboxes.len()
    }

    /// The numbers so far.
    pub fn stats(&self) -> ResolverStats {
        self.cache.lock().stats
    }

    /// Checks whether the stores of the cached mailboxes can be reached, and evicts the mailboxes of those that cannot. Returns
    /// their names.
    pub fn check_health(&self) -> Call<Vec<String>> {
        let resolver = self.clone();
        Call::new(move || {
            let mailboxes: Vec<(String, UntypedMailbox)> = {
                let state = resolver.cache.lock();
                state.mailboxes.iter().map(|(name, (mailbox, _))| (name.to_string(), mailbox.clone())).collect()
            };
            Answer::from_future(async move {
                let mut sick = Vec::new();
                for (name, mailbox) in mailboxes {
                    if !mailbox.is_healthy().await && resolver.evict(&name) {
                        sick.push(name);
                    }
                }
                sick
            })
        })
    }
}

impl MailboxResolver for CompositeResolver {
    fn resolve(&self, identifier: &str) -> Answer<Result<UntypedMailbox, Error>> {
        if let Some(mailbox) = self.registry.get(identifier) {
            self.cache.lock().stats.registered += 1;
            return Answer::ready(Ok(mailbox));
        }
        if let Some(mailbox) = self.cache.get(identifier) {
            return Answer::ready(Ok(mailbox));
        }
        let Some(factory) = &self.factory else {
            return Answer::ready(Err(Error::resolution(identifier, "not registered, and there is no factory")));
        };
        self.cache.lock().stats.misses += 1;
        self.cache.misses.increment(1);
        let (cache, identifier, start) = (Arc::clone(&self.cache), identifier.to_string(), self.cache.clock.now());
        factory.create(&identifier).map(move |made| {
            cache.latency.record(start.until(cache.clock.now()).as_secs_f64());
            match made {
                Ok(mailbox) => Ok(cache.put(&identifier, mailbox)),
                Err(error) => {
                    cache.lock().stats.failures += 1;
                    Err(unresolved(&identifier, error))
                }
            }
        })
    }
}

/// Resolves the `reply_to` of a message.
pub(crate) fn reply_mailbox<A: 'static, C: 'static>(
    resolver: Option<Arc<dyn MailboxResolver>>,
    reply_to: Option<String>,
) -> Call<Result<Mailbox<A, (), C>, Error>> {
    Call::new(move || {
        let Some(address) = reply_to else {
            let reason = "the message has no reply_to".into();
            return Answer::ready(Err(Error::ReplyMailboxUnavailable { reply_to: None, reason }));
        };
        let Some(resolver) = resolver else {
            let reason = "there is no resolver: open the mailbox with .resolver(…)".into();
            let reply_to = Some(shown(&address));
            return Answer::ready(Err(Error::ReplyMailboxUnavailable { reply_to, reason }));
        };
        resolver.resolve(&address).map(move |found| match found {
            Ok(mailbox) => Ok(mailbox.typed()),
            Err(error @ Error::Resolution { .. }) => {
                let reply_to = Some(shown(&address));
                Err(Error::ReplyMailboxUnavailable { reply_to, reason: error.to_string() })
            }
            Err(other) => Err(other),
        })
    })
}
