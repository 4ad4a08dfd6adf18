//! One mailbox, from actor to cloud.
//!
//! A [`Mailbox`] keeps messages until a consumer has finished them: [`send`](Mailbox::send),
//! [`receive`](Mailbox::receive), [`acknowledge`](Message::acknowledge). A message that is received is leased; if its
//! consumer dies, it is delivered again. A request is answered through a [`Reply`] or to the address in
//! [`reply_to`](Message::reply_to). One URI decides where messages are kept.
//!
//! ```
//! use postbox::Mailbox;
//! use std::time::Duration;
//!
//! # postbox_core::wait_for(async {
//! let jobs: Mailbox<String, usize> = postbox::open("memory://doc-crate").await?;
//!
//! // A client asks…
//! let reply = jobs.send_expecting_reply(&"count me".to_string()).await?;
//!
//! // …a worker answers…
//! for message in jobs.receive().max_messages(10).wait_time(Duration::from_secs(20)).await? {
//!     message.reply(&message.body.len()).await?;
//! }
//!
//! // …and the client has it.
//! assert_eq!(reply.wait().timeout(Duration::from_secs(5)).await?, 8);
//! # Ok::<(), postbox::Error>(())
//! # }).unwrap();
//! ```
//!
//! Every operation is awaited, on any executor, or waits on a plain thread: `jobs.send(&job).blocking()`.
//!
//! # What holds, on every backend
//!
//! * **At least once.** A message whose `send` returned is delivered until it is acknowledged, dead-lettered, expired or
//!   purged. Consumers are idempotent, or remember [`Message::id`].
//! * **A lease ends at its deadline.** From then on every act with that receipt is refused, also if nobody has the message
//!   yet.
//! * **Order.** First in, first out by the moment at which a message became visible; what comes back joins the tail.
//!   [`Limits::ordering`] says where less is promised.
//! * **Errors** say whether trying again helps: [`Error::is_transient`].
//!
//! # Layer 1
//!
//! In-process mailboxes without leases, and actors: [`shared::mailbox`] and [`actor`].

mod actor_worker;
mod address;
#[cfg(any(feature = "redis", feature = "aws"))]
#[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "callers stay awake for answers of Redis only"))]
mod awake;
#[cfg(feature = "aws")]
pub mod aws;
mod backend;
mod cancellation;
mod clock;
mod codec;
#[cfg(feature = "conformance")]
pub mod conformance;
mod connection;
mod core;
mod dead_letters;
mod dispatcher;
mod error;
#[cfg(any(feature = "sqlite", feature = "redis"))]
mod hub;
mod id;
mod lease;
mod mailbox;
mod main_loop;
mod memory;
mod message;
#[cfg(feature = "aws")]
mod near;
#[cfg(any(feature = "redis", feature = "aws"))]
mod network;
mod null;
mod operation;
#[cfg(any(feature = "sqlite", feature = "redis", feature = "aws"))]
mod promise;
mod receive;
#[cfg(feature = "redis")]
pub mod redis;
mod reply;
mod reply_store;
pub mod resolver;
mod resources;
mod runtime;
mod send;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(feature = "testing")]
pub mod testing;
mod trace;
pub mod wire;
mod worker;

pub use self::actor_worker::ActorWorker;
pub use self::address::MailboxName;
pub use self::backend::*;
pub use self::cancellation::{Cancellation, Cancelled};
pub use self::clock::{Alarm, Clock, Moment, SystemClock};
#[cfg(feature = "messagepack")]
pub use self::codec::MessagePack;
pub use self::codec::{Codec, CodecError, ContentType, Decode, Encode, Json, Raw};
pub use self::connection::{Connection, Open, connect, open};
pub use self::dead_letters::DeadLetters;
pub use self::dispatcher::{Dispatcher, MailboxEvent, Subscription};
pub use self::error::Error;
pub use self::id::{MessageId, ReceiptHandle, ReplyId};
pub use self::lease::{Finish, KeepAlive, Nack, SendReply};
pub use self::mailbox::{Mailbox, UntypedMailbox};
pub use self::main_loop::{Budget, MainLoop, MainLoopRequest, MainLoopResult, RemoteError};
pub use self::memory::{MemoryBackend, MemoryReplyStore};
pub use self::message::{Lease, Message};
pub use self::operation::{Answer, Call, Operation, Verb};
pub use self::receive::{MessageStream, ReceiveMessages, UNDECODABLE_DELIVERIES};
pub use self::reply::{Reply, ReplyChannel, WaitForReply};
pub use self::reply_store::{ReplyEntry, ReplyState, ReplyStore, ReplyValue, Resolved, SCAN_LIMIT};
pub use self::resolver::{
    CachePolicy, CompositeResolver, MailboxFactory, MailboxResolver, RegistryResolver, ResolverStats, UriMailboxFactory,
};
pub use self::resources::Resources;
pub use self::send::{SendBatch, SendMessage, SendRequest};
#[cfg(feature = "sqlite")]
pub use self::sqlite::{SqliteBackend, SqliteConfig, Synchronous};
pub use self::trace::{InTrace, NotATraceContext, TRACEPARENT, TRACESTATE, TraceContext};
pub use self::worker::{
    Backoff, BudgetExceeded, Context, Handler, HandlerError, LoopEvent, LoopHandle, LoopReport, RunLoop, Worker,
};

/// The library behind [`SqliteBackend`], for transactions of one's own: [`SendMessage::within`].
#[cfg(feature = "sqlite")]
pub use rusqlite;

/// Waits for any future on this thread.
pub use postbox_core::wait_for;

/// Layer 1: in-process mailboxes, their traits and futures.
pub use postbox_core::shared;

/// Layer 1: actors and the mailboxes that feed them.
pub mod actor {
    pub use postbox_core::{
        Actor, BoundedMailbox, DEFAULT_THROUGHPUT, Directive, Failure, InvalidMailbox, Mailbox, MailboxType,
        MessageLoop, PriorityMailbox, Schedule, Turn, UnboundedMailbox, create_mailbox,
    };
}

/// The examples of the README are compiled and run with the doc tests.
#[cfg(all(doctest, feature = "testing", feature = "sqlite"))]
#[doc = include_str!("../../../README.md")]
struct Readme;
