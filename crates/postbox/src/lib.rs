//! One mailbox, from actor to cloud.
//!
//! A [`Mailbox`] stores messages until a consumer has finished them: [`send`](Mailbox::send), [`receive`](Mailbox::receive),
//! [`acknowledge`](Lease::acknowledge). A received message is leased to its consumer, and is delivered again if the consumer
//! dies. A request is answered through a [`Reply`], or to the address in [`reply_to`](Lease::reply_to). One URI decides where
//! messages are stored.
//!
//! ```
//! use postbox::Mailbox;
//! use std::time::Duration;
//!
//! # postbox_core::wait_for(async {
//! let jobs: Mailbox<String, usize> = postbox::open("memory://doc-crate").await?;
//!
//! // A client sends a request…
//! let reply = jobs.send_expecting_reply("count me").await?;
//!
//! // …a worker answers it…
//! for message in jobs.receive().max_messages(10).wait_time(Duration::from_secs(20)).await? {
//!     message.reply(&message.body.len()).await?;
//! }
//!
//! // …and the client has the answer.
//! assert_eq!(reply.wait().timeout(Duration::from_secs(5)).await?, 8);
//! # Ok::<(), postbox::Error>(())
//! # }).unwrap();
//! ```
//!
//! Every operation is awaited on any executor, or blocks a plain thread: `jobs.send(&job).blocking()`.
//!
//! # Backends
//!
//! | backend | URI | cargo feature |
//! |---|---|---|
//! | memory | `memory://jobs` | |
//! | a SQLite file | `sqlite://jobs.db/jobs` | `sqlite` |
//! | Redis | `redis://host:6379/jobs` | `redis` |
//! | AWS SQS, with replies in DynamoDB | `sqs://eu-west-1/jobs` | `aws` |
//!
//! [`open`] has all forms of URIs. [`connect`] opens one connection for many mailboxes, and [`Connection::new`] takes a backend
//! that the program has constructed. The module [`backend`] is for writers of further backends.
//!
//! # Guarantees
//!
//! These hold on every backend:
//!
//! * **At least once.** A message whose `send` returned is delivered until it is acknowledged, dead-lettered, expired or
//!   purged. Consumers are idempotent, or remember [`Lease::id`].
//! * **A lease ends at its deadline.** From then on its receipt is refused, even if the message was not delivered again yet.
//! * **Order.** First in, first out, by the time at which a message became visible. A message that is given back joins the
//!   tail. [`Limits::ordering`] says where less is promised.
//! * **Errors** say whether a retry helps: [`Error::is_transient`].
//!
//! # Modules
//!
//! The root has the names that most programs use. [`worker`] has the loops that run handlers, [`reply`] and [`resolver`] the
//! details of requests, `testing` (a cargo feature) the test doubles. [`shared::mailbox`] and [`actor`] are layer 1: mailboxes within a process,
//! without leases, and actors.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod backend;
mod backends;
#[cfg(feature = "conformance")]
pub mod conformance;
mod error;
mod mailbox;
pub mod reply;
pub mod resolver;
mod runtime;
#[cfg(feature = "testing")]
pub mod testing;
pub mod worker;

pub use postbox_core::wait_for;

pub use self::backend::{Counts, Limits};
pub use self::backends::memory::MemoryBackend;
#[cfg(feature = "redis")]
pub use self::backends::redis;
pub use self::error::Error;
pub use self::mailbox::Mailbox;
#[cfg(feature = "messagepack")]
pub use self::mailbox::codec::MessagePack;
pub use self::mailbox::codec::{ContentType, Json, Raw};
pub use self::mailbox::connection::{Connection, connect, open};
pub use self::mailbox::dead_letters::DeadLetters;
pub use self::mailbox::id::{MessageId, ReplyId};
pub use self::mailbox::message::{Lease, Message};
pub use self::mailbox::stored::{DeadLetter, StoredMessage};
pub use self::reply::{Reply, ReplyChannel};
pub use self::resolver::address::MailboxName;
pub use self::resolver::{CompositeResolver, MailboxFactory, MailboxResolver, RegistryResolver, UriMailboxFactory};
pub use self::worker::{ActorWorker, Backoff, Context, HandlerError, MainLoop, Worker};

/// Mailboxes on AWS SQS, and replies in DynamoDB. Feature `aws`.
///
/// `postbox::open("sqs://eu-west-1/jobs")` needs none of these names. They are for programs that bring the client of the AWS SDK,
/// or queues with settings.
///
/// ```no_run
/// use postbox::aws::{SqsBackend, config, sqs};
/// use postbox::{Connection, Mailbox};
///
/// # async fn example() -> Result<(), postbox::Error> {
/// let client = sqs::Client::new(&config::load_from_env().await);
/// let jobs: Mailbox<String> = Connection::new(SqsBackend::from_client(client)).mailbox("jobs")?;
/// jobs.send("resize cat.png").await?;
/// # Ok(())
/// # }
/// ```
///
/// `docs/aws.md` is the guide.
#[cfg(feature = "aws")]
pub mod aws {
    pub use {aws_config as config, aws_sdk_dynamodb as dynamodb, aws_sdk_sqs as sqs};

    pub use crate::backends::aws::defaults;
    pub use crate::backends::dynamodb::DynamoDbReplyStore;
    pub use crate::backends::sqs::{QueueSettings, SqsBackend, SqsBuilder};
}

/// Time: the clock of a backend, which tests replace by a [`ManualClock`](crate::testing::ManualClock).
///
/// ```
/// use postbox::clock::{Clock, SystemClock};
/// use std::time::Duration;
///
/// let now = SystemClock.now();
/// assert_eq!(now.until(now.after(Duration::from_secs(1))), Duration::from_secs(1));
/// ```
///
/// [`Backend::clock`](crate::backend::Backend::clock) returns the clock of a backend.
pub mod clock {
    pub use crate::runtime::clock::{Alarm, Clock, Moment, SystemClock};
}

/// The traits of codecs: how bodies become bytes.
///
/// [`Json`], [`MessagePack`] and [`Raw`] are at the root. A codec is the third parameter of a [`Mailbox`].
///
/// ```
/// use postbox::codec::{Bytes, Codec, CodecError, Decode, Encode};
/// use postbox::{ContentType, Mailbox};
///
/// /// Numbers as decimal text.
/// struct Decimal;
///
/// impl Codec for Decimal {
///     const CONTENT_TYPE: ContentType = ContentType::Unmarked;
/// }
///
/// impl Encode<u64> for Decimal {
///     fn encode(value: &u64) -> Result<Bytes, CodecError> {
///         Ok(value.to_string().into())
///     }
/// }
///
/// impl Decode<u64> for Decimal {
///     fn decode(body: &Bytes) -> Result<u64, CodecError> {
///         let text = std::str::from_utf8(body).map_err(|error| error.to_string())?;
///         Ok(text.parse().map_err(|error: std::num::ParseIntError| error.to_string())?)
///     }
/// }
///
/// let numbers: Mailbox<u64, (), Decimal> = postbox::open("memory://doc-codec").blocking()?;
/// numbers.send(&42).blocking()?;
/// assert_eq!(numbers.receive().blocking()?[0].body, 42);
/// # numbers.purge().blocking()?;
/// # Ok::<(), postbox::Error>(())
/// ```
pub mod codec {
    pub use bytes::Bytes;

    pub use crate::mailbox::codec::{Codec, CodecError, Decode, Encode};
}

/// Events of mailboxes and loops, for subscribers in the same process.
///
/// A [`Dispatcher`](events::Dispatcher) is given to `open`, to a [`Connection`] or to a [`Worker`], and publishes what happens there.
///
/// ```
/// use postbox::Mailbox;
/// use postbox::events::{Dispatcher, MailboxEvent};
///
/// let dispatcher = Dispatcher::new();
/// let _subscription = dispatcher.subscribe(|event: &MailboxEvent| println!("{event:?}"));
/// let mailbox: Mailbox<u32> = postbox::open("memory://doc-events").dispatcher(&dispatcher).blocking()?;
/// mailbox.send(&7).blocking()?;
/// # mailbox.purge().blocking()?;
/// # Ok::<(), postbox::Error>(())
/// ```
///
/// Metrics and spans are always there: `docs/telemetry.md`.
pub mod events {
    pub use crate::mailbox::dispatcher::{Dispatcher, MailboxEvent, Subscription};
    pub use crate::worker::LoopEvent;
}

/// The builders of operations, and the answers of backends.
///
/// Every method of a [`Mailbox`], a [`Lease`] or a [`Reply`] that talks to a store returns a builder. Programs seldom name its type:
/// they set options, and then await it or call `blocking`.
///
/// ```
/// use postbox::Mailbox;
/// use postbox::operation::SendMessage;
/// use std::time::Duration;
///
/// # postbox_core::wait_for(async {
/// let mailbox: Mailbox<u32> = postbox::open("memory://doc-operation").await?;
/// let send: SendMessage = mailbox.send(&1).attribute("tenant", "a");
/// send.await?;
/// mailbox.send(&2).delay(Duration::from_secs(5)).blocking()?;
/// # mailbox.purge().await?;
/// # Ok::<(), postbox::Error>(())
/// # }).unwrap();
/// ```
///
/// [`Answer`](operation::Answer), [`Call`](operation::Call) and [`Verb`](operation::Verb) are for writers of
/// [backends](crate::backend).
pub mod operation {
    pub use crate::mailbox::connection::Open;
    pub use crate::mailbox::lease::{KeepAlive, Nack, SendReply, Settle};
    pub use crate::mailbox::operation::{Answer, Call, Operation, Verb};
    pub use crate::mailbox::receive::{MessageStream, ReceiveMessages, UNDECODABLE_DELIVERIES};
    pub use crate::mailbox::send::{SendBatch, SendMessage, SendRequest};
    pub use crate::reply::WaitForReply;
}

/// Mailboxes in a SQLite file. Feature `sqlite`.
///
/// `postbox::open("sqlite://jobs.db/jobs")` needs none of these names. They are for options without a URI, and for
/// transactions of the program.
///
/// ```
/// use postbox::sqlite::{SqliteBackend, SqliteConfig, Synchronous};
/// use postbox::{Connection, Mailbox};
///
/// # let folder = std::env::temp_dir().join(format!("postbox-doc-sqlite-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder).unwrap();
/// # let file = folder.join("jobs.db");
/// let config = SqliteConfig::default().synchronous(Synchronous::Normal);
/// let jobs: Mailbox<String> = Connection::new(SqliteBackend::open_with(file, config)?).mailbox("jobs")?;
/// jobs.send("resize cat.png").blocking()?;
/// # std::fs::remove_dir_all(&folder).unwrap();
/// # Ok::<(), postbox::Error>(())
/// ```
///
/// `docs/sqlite.md` is the guide.
#[cfg(feature = "sqlite")]
pub mod sqlite {
    /// The library behind [`SqliteBackend`], for [`SendMessage::within`](crate::operation::SendMessage::within).
    pub use rusqlite;

    pub use crate::backends::sqlite::{SqliteBackend, SqliteConfig, Synchronous};
}

/// W3C trace context: the trace that a message belongs to.
///
/// ```
/// use postbox::Mailbox;
/// use postbox::trace::TraceContext;
///
/// let mailbox: Mailbox<u32> = postbox::open("memory://doc-trace").blocking()?;
/// let context = TraceContext::new();
/// mailbox.send(&1).trace_context(context).blocking()?;
/// let message = mailbox.receive().blocking()?.remove(0);
/// assert_eq!(message.trace_context().unwrap().trace_id(), context.trace_id());
/// # mailbox.purge().blocking()?;
/// # Ok::<(), postbox::Error>(())
/// ```
///
/// `docs/telemetry.md` is the guide.
pub mod trace {
    pub use crate::mailbox::trace::{InTrace, NotATraceContext, TRACEPARENT, TRACESTATE, TraceContext};
}

/// Layer 1: in-process mailboxes, their traits and futures.
pub use postbox_core::shared;

/// Layer 1: actors, and the mailboxes that feed them.
///
/// ```
/// use postbox::actor::{BoundedMailbox, Mailbox};
///
/// let mailbox = BoundedMailbox::new(2);
/// assert!(mailbox.enqueue("first") && mailbox.enqueue("second"));
/// assert!(!mailbox.enqueue("third"), "it is full");
/// assert_eq!(mailbox.dequeue(), Some("first"));
/// ```
///
/// [`shared::mailbox`] has consumers, producers and futures. `docs/actors.md` is the guide.
pub mod actor {
    pub use postbox_core::{
        Actor, BoundedMailbox, DEFAULT_THROUGHPUT, Directive, Failure, InvalidMailbox, Mailbox, MailboxType,
        MessageLoop, PriorityMailbox, Schedule, Turn, UnboundedMailbox, create_mailbox,
    };
}

/// The examples of the README and of the guide, as doc tests.
#[cfg(all(doctest, feature = "testing", feature = "sqlite"))]
mod guide {
    #[doc = include_str!("../../../README.md")]
    struct Readme;
    #[doc = include_str!("../../../docs/actors.md")]
    struct Actors;
    #[doc = include_str!("../../../docs/dead-letters.md")]
    struct DeadLetters;
    #[doc = include_str!("../../../docs/errors.md")]
    struct Errors;
    #[doc = include_str!("../../../docs/getting-started.md")]
    struct GettingStarted;
    #[doc = include_str!("../../../docs/memory.md")]
    struct Memory;
    #[doc = include_str!("../../../docs/operating.md")]
    struct Operating;
    #[doc = include_str!("../../../docs/requests-and-replies.md")]
    struct RequestsAndReplies;
    #[doc = include_str!("../../../docs/sqlite.md")]
    struct Sqlite;
    #[doc = include_str!("../../../docs/telemetry.md")]
    struct Telemetry;
    #[doc = include_str!("../../../docs/testing.md")]
    struct Testing;
    #[doc = include_str!("../../../docs/workers.md")]
    struct Workers;
    #[cfg(feature = "conformance")]
    #[doc = include_str!("../../../docs/writing-a-backend.md")]
    struct WritingABackend;
}
