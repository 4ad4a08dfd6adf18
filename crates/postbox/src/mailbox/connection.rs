//! Opening mailboxes, by URI or on a connection.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Backend, Limits};
use crate::backends::memory::MemoryBackend;
use crate::error::Error;
use crate::mailbox::dispatcher::Dispatcher;
use crate::mailbox::handle::{Core, HandleOptions};
use crate::mailbox::operation::{Answer, Call, Verb, awaitable};
use crate::mailbox::ranges::{DEDUPLICATION_WINDOW, IDLE_EXPIRY, MAX_DELIVERIES, MAX_SIZE};
use crate::mailbox::{Mailbox, UntypedMailbox};
use crate::reply::store::ReplyStore;
use crate::resolver::address::{MailboxName, Uri, decoded};
use crate::resolver::{BackendResolver, MailboxFactory, MailboxResolver};

/// Opens a mailbox. The URI says where its messages are stored.
///
/// | URI | store |
/// |---|---|
/// | `memory://name` | the memory of this process |
/// | `sqlite://path/to/file.db/name` | a file, durable, shared by processes (feature `sqlite`); `docs/sqlite.md` has the options |
/// | `redis://host:6379/name`, `rediss://`, `redis+cluster://`, `redis+sentinel://`, `redis+unix://` | Redis (feature `redis`); `docs/redis.md` has the options |
/// | `sqs://eu-west-1/name` | AWS SQS (feature `aws`); `docs/aws.md` has the options |
///
/// Options of the mailbox are set in the URI (`?max_size=1000&max_deliveries=5`) or on the builder, which takes precedence. An
/// unknown option is an error.
///
/// ```
/// use postbox::Mailbox;
///
/// # postbox_core::wait_for(async {
/// let requests: Mailbox<String> = postbox::open("memory://doc-open").max_size(100).await?;
/// let same: Mailbox<String> = postbox::open("memory://doc-open").await?;
/// requests.send("hello").await?;
/// assert_eq!(same.receive().await?[0].body, "hello");
/// # Ok::<(), postbox::Error>(())
/// # }).unwrap();
/// ```
pub fn open<T, R, C>(uri: impl Into<String>) -> Open<T, R, C> {
    Open { uri: uri.into(), options: HandleOptions::default(), types: PhantomData }
}

/// Connects to a store, to open several of its mailboxes by name.
///
/// ```
/// use postbox::Mailbox;
///
/// # postbox_core::wait_for(async {
/// let connection = postbox::connect("memory://").await?;
/// let mailbox: Mailbox<u32> = connection.mailbox("doc-connect")?;
/// mailbox.send(&1).await?;
/// assert!(connection.list().await?.contains(mailbox.name()));
/// # mailbox.purge().await?;
/// # Ok::<(), postbox::Error>(())
/// # }).unwrap();
/// ```
pub fn connect(uri: impl Into<String>) -> Call<Result<Connection, Error>> {
    let text = uri.into();
    Call::new(move || {
        let parsed = Uri::parse(&text).and_then(|mut uri| {
            // The whole path of a file is the store.
            if !uri.is_path() && uri.take_name().is_some() {
                let reason = "a connection has no mailbox name, and this has one: use open() for a mailbox";
                return Err(Error::resolution(&text, reason));
            }
            let options = options(&text, &uri)?;
            options.check()?;
            Ok((uri, options))
        });
        match parsed {
            Ok((uri, options)) => backend(&text, &uri).map(|backend| Ok(Connection { backend: backend?, options })),
            Err(error) => Answer::ready(Err(error)),
        }
    })
}

/// Opens the backend of a URI whose mailbox name was taken out.
fn backend(text: &str, uri: &Uri) -> Answer<Result<Arc<dyn Backend>, Error>> {
    match uri.scheme.as_str() {
        "memory" => Answer::ready(Ok(Arc::new(MemoryBackend::shared()))),
        #[cfg(feature = "sqlite")]
        "sqlite" => Answer::ready(file(text, uri)),
        #[cfg(feature = "redis")]
        "redis" | "rediss" | "redis+cluster" | "redis+sentinel" | "redis+unix" => {
            let opened = crate::backends::redis::RedisBackend::open(text, uri);
            opened.map(|opened| opened.map(|backend| Arc::new(backend) as Arc<dyn Backend>))
        }
        #[cfg(feature = "aws")]
        "sqs" => {
            let opened = crate::backends::sqs::SqsBackend::open(text, uri);
            opened.map(|opened| opened.map(|backend| Arc::new(backend) as Arc<dyn Backend>))
        }
        _ => Answer::ready(Err(uri.unserved(text))),
    }
}

#[cfg(feature = "sqlite")]
fn file(text: &str, uri: &Uri) -> Result<Arc<dyn Backend>, Error> {
    use crate::backends::sqlite::{SqliteBackend, SqliteConfig, Synchronous};
    use crate::mailbox::ranges::BUSY_TIMEOUT;

    let path = decoded(&uri.location);
    if path.is_empty() {
        return Err(Error::resolution(text, "no file; write sqlite://path/to/file.db/name"));
    }
    if std::path::Path::new(&path).is_dir() {
        let reason = format!("{path} is a folder; write the file and the mailbox, as in sqlite://path/to/file.db/name");
        return Err(Error::resolution(text, reason));
    }
    let mut config = SqliteConfig::default();
    for (option, value) in &uri.options {
        config = match (option.as_str(), value.as_str()) {
            ("synchronous", "full") => config.synchronous(Synchronous::Full),
            ("synchronous", "normal") => config.synchronous(Synchronous::Normal),
            ("synchronous", other) => {
                return Err(Error::invalid("synchronous", format!("{other:?}"), "full or normal"));
            }
            ("busy_timeout", value) => config.busy_timeout(BUSY_TIMEOUT.parse(value)?),
            _ => config,
        };
    }
    Ok(Arc::new(SqliteBackend::open_with(path, config)?))
}

/// Whether the last part of a URI looks like a database file: then the name of the mailbox was probably left out.
fn is_database_name(name: &str) -> bool {
    [".db", ".db3", ".sqlite", ".sqlite3"].iter().any(|end| name.ends_with(end))
}

/// Reads the options that every mailbox has.
fn options(text: &str, uri: &Uri) -> Result<HandleOptions, Error> {
    const KNOWN: &str =
        "max_size, max_deliveries, deduplication_window, idle_expiry (seconds), portable_limits, prefix";
    let mut options = HandleOptions::default();
    for (name, value) in &uri.options {
        let settings = &mut options.settings;
        match name.as_str() {
            "max_size" => settings.max_size = Some(MAX_SIZE.parse(value)?),
            "max_deliveries" => settings.max_deliveries = Some(MAX_DELIVERIES.parse(value)?),
            "deduplication_window" => settings.deduplication_window = Some(DEDUPLICATION_WINDOW.parse(value)?),
            "idle_expiry" => settings.idle_expiry = Some(IDLE_EXPIRY.parse(value)?),
            "portable_limits" => {
                options.portable_limits = value
                    .parse()
                    .map_err(|_| Error::invalid("portable_limits", format!("{value:?}"), "true or false"))?;
            }
            "prefix" => options.prefix = Some(value.clone()),
            // Read by `file`.
            "synchronous" | "busy_timeout" if uri.scheme == "sqlite" => {}
            #[cfg(feature = "redis")]
            name if uri.scheme.starts_with("redis") && crate::backends::redis::OPTIONS.contains(&name) => {}
            #[cfg(feature = "aws")]
            name if uri.scheme == "sqs" && crate::backends::sqs::OPTIONS.contains(&name) => {}
            _ => {
                let own = match uri.scheme.as_str() {
                    "sqlite" => ", synchronous, busy_timeout".into(),
                    #[cfg(feature = "redis")]
                    scheme if scheme.starts_with("redis") => {
                        format!(", {}", crate::backends::redis::OPTIONS.join(", "))
                    }
                    #[cfg(feature = "aws")]
                    "sqs" => format!(", {}", crate::backends::sqs::OPTIONS.join(", ")),
                    _ => String::new(),
                };
                return Err(Error::resolution(text, format!("unknown option {name:?}; there are {KNOWN}{own}")));
            }
        }
    }
    Ok(options)
}

/// The options of [`Open`] and [`Connection`].
macro_rules! options {
    () => {
        /// Sets the resolver of `reply_to` addresses. By default names lead to mailboxes of the same backend, and URIs are refused.
        pub fn resolver(mut self, resolver: impl MailboxResolver) -> Self {
            self.options.resolver = Some(Arc::new(resolver));
            self
        }

        /// Separates mailboxes from those under other prefixes, and from those without one, for example for tenants. No name
        /// under one prefix reaches another, also in `reply_to`. The rules are those of a [`MailboxName`].
        pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
            self.options.prefix = Some(prefix.into());
            self
        }

        /// The most messages that the mailbox holds. A send beyond it fails with [`MailboxFull`](Error::MailboxFull).
        pub fn max_size(mut self, most: usize) -> Self {
            self.options.settings.max_size = Some(most);
            self
        }

        /// The number of deliveries after which a message becomes a dead letter.
        pub fn max_deliveries(mut self, most: u32) -> Self {
            self.options.settings.max_deliveries = Some(most);
            self
        }

        /// How long a deduplication id is remembered. Default: five minutes.
        pub fn deduplication_window(mut self, window: Duration) -> Self {
            self.options.settings.deduplication_window = Some(window);
            self
        }

        /// Removes the mailbox, with its messages, when it was not used for this time. In memory an open handle is a use.
        pub fn idle_expiry(mut self, after: Duration) -> Self {
            self.options.settings.idle_expiry = Some(after);
            self
        }

        /// Narrows the limits to what every backend allows: delays up to 900 s, waits up to 20 s, batches of at most 10 messages.
        pub fn portable_limits(mut self, portable: bool) -> Self {
            self.options.portable_limits = portable;
            self
        }

        /// Sets the reply store, instead of the one of the backend.
        pub fn replies(mut self, store: Arc<dyn ReplyStore>) -> Self {
            self.options.replies = Some(store);
            self
        }

        /// Publishes the events of the mailbox to a dispatcher.
        pub fn dispatcher(mut self, dispatcher: &Dispatcher) -> Self {
            self.options.dispatcher = Some(dispatcher.clone());
            self
        }
    };
}

/// A mailbox to open: [`open`].
#[must_use = "nothing is opened unless it is awaited, or `blocking`"]
pub struct Open<T, R, C> {
    uri: String,
    options: HandleOptions,
    types: PhantomData<fn() -> (T, R, C)>,
}

impl<T, R, C> fmt::Debug for Open<T, R, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Open")
            .field("uri", &crate::resolver::address::without_secrets(&self.uri))
            .finish_non_exhaustive()
    }
}

impl<T, R, C> Open<T, R, C> {
    options!();
}

impl<T: 'static, R: 'static, C: 'static> Verb for Open<T, R, C> {
    type Output = Result<Mailbox<T, R, C>, Error>;

    fn start(self) -> Answer<Self::Output> {
        match Uri::parse(&self.uri) {
            Ok(uri) => open_untyped(self.uri, uri, self.options).map(|mailbox| Ok(mailbox?.typed())),
            Err(error) => Answer::ready(Err(error)),
        }
    }
}

awaitable!(Open<T, R, C> where T: 'static, R: 'static, C: 'static);

/// Opens the mailbox of a URI. Everything that needs no backend is checked first, because opening a backend may create a file.
pub(crate) fn open_untyped(
    text: String,
    mut uri: Uri,
    builder: HandleOptions,
) -> Answer<Result<UntypedMailbox, Error>> {
    let checked = || {
        if !uri.is_served() {
            return Err(uri.unserved(&text));
        }
        let name = uri.take_name();
        let is_missing = |name: &String| {
            uri.scheme == "sqlite" && is_database_name(name) && !std::path::Path::new(&decoded(&uri.location)).is_file()
        };
        let Some(name) = name.filter(|name| !is_missing(name)) else {
            return Err(Error::resolution(&text, format!("no mailbox name; write {}", uri.example())));
        };
        let options = overridden(options(&text, &uri)?, builder);
        // A name with an `@` may have a password in it.
        let hidden = |error| if name.contains('@') { Error::resolution(&text, NAME_WITH_AT) } else { error };
        options.name(&name).map_err(hidden)?;
        options.check()?;
        Ok((name, options))
    };
    match checked() {
        Ok((name, options)) => {
            backend(&text, &uri).map(move |backend| Connection { backend: backend?, options }.untyped(&name))
        }
        Err(error) => Answer::ready(Err(error)),
    }
}

const NAME_WITH_AT: &str = "there is an @ in the mailbox name; this scheme takes no user and no password";

/// The options of the builder take precedence over those of the URI.
fn overridden(uri: HandleOptions, builder: HandleOptions) -> HandleOptions {
    let (mut settings, over) = (uri.settings, builder.settings);
    settings.max_size = over.max_size.or(settings.max_size);
    settings.max_deliveries = over.max_deliveries.or(settings.max_deliveries);
    settings.deduplication_window = over.deduplication_window.or(settings.deduplication_window);
    settings.idle_expiry = over.idle_expiry.or(settings.idle_expiry);
    HandleOptions {
        settings,
        portable_limits: uri.portable_limits || builder.portable_limits,
        prefix: builder.prefix.or(uri.prefix),
        ..builder
    }
}

/// A connection to one store, which opens mailboxes by name: [`connect`], or [`Connection::new`] for a custom backend.
///
/// Its options are those of every mailbox that it opens. It is also a [`MailboxFactory`], for resolvers.
#[derive(Clone)]
pub struct Connection {
    backend: Arc<dyn Backend>,
    options: HandleOptions,
}

impl Connection {
    /// A connection on any backend.
    pub fn new(backend: impl Backend) -> Self {
        Self::from_arc(Arc::new(backend))
    }

    pub(crate) fn from_arc(backend: Arc<dyn Backend>) -> Self {
        Connection { backend, options: HandleOptions::default() }
    }

    options!();

    /// Opens a mailbox by name. Does no input or output.
    ///
    /// # Errors
    /// [`InvalidParameter`](Error::InvalidParameter) for a name or an option that is not allowed.
    pub fn mailbox<T, R, C>(&self, name: &str) -> Result<Mailbox<T, R, C>, Error> {
        Ok(self.untyped(name)?.typed())
    }

    fn untyped(&self, name: &str) -> Result<UntypedMailbox, Error> {
        let name = self.options.name(name)?;
        let mut options = self.options.clone();
        options.resolver.get_or_insert_with(|| {
            // Mailboxes for answers are under the same prefix, and have none of the other options.
            let prefix = self.options.prefix.clone();
            let plain = HandleOptions { prefix, ..HandleOptions::default() };
            Arc::new(BackendResolver::new(Connection { backend: Arc::clone(&self.backend), options: plain }))
        });
        let core = Core::new(Arc::clone(&self.backend), name, options)?;
        Ok(UntypedMailbox { core })
    }

    /// What the backend allows and promises.
    pub fn limits(&self) -> Limits {
        self.backend.limits()
    }

    /// Returns the names of the mailboxes that exist, under the prefix of this connection.
    ///
    /// # Errors
    /// [`Unsupported`](Error::Unsupported) if the backend cannot list, [`Connection`](Error::Connection).
    pub fn list(&self) -> Call<Result<Vec<MailboxName>, Error>> {
        let (backend, prefix) = (Arc::clone(&self.backend), self.options.prefix.clone());
        Call::new(move || {
            let failed = || Err(Error::faulty("the backend panicked in list".into()));
            Answer::caught(|| backend.list(), failed).map(move |names| {
                let mut names = names?;
                names.retain(|name| name.prefix() == prefix.as_deref());
                Ok(names)
            })
        })
    }

    /// The reply store of its mailboxes.
    pub fn reply_store(&self) -> Option<Arc<dyn ReplyStore>> {
        self.options.replies.clone().or_else(|| self.backend.replies())
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("backend", &self.backend.kind()).finish_non_exhaustive()
    }
}

impl MailboxFactory for Connection {
    fn create(&self, identifier: &str) -> Answer<Result<UntypedMailbox, Error>> {
        Answer::ready(self.untyped(identifier))
    }
}
