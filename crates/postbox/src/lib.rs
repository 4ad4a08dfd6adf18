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
//! let reply = jobs.send_expecting_reply("count me").await?;
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
#[cfg(feature = "sqlite")]
pub use self::backends::sqlite::SqliteBackend;
pub use self::error::Error;
pub use self::mailbox::Mailbox;
#[cfg(feature = "messagepack")]
pub use self::mailbox::codec::MessagePack;
pub use self::mailbox::codec::{ContentType, Json, Raw};
pub use self::mailbox::connection::{Connection, connect, open};
pub use self::mailbox::dead_letters::DeadLetters;
pub use self::mailbox::id::{MessageId, ReplyId};
pub use self::mailbox::message::{Lease, Message};
pub use self::reply::{Reply, ReplyChannel};
pub use self::resolver::address::MailboxName;
pub use self::resolver::{CompositeResolver, MailboxFactory, MailboxResolver, RegistryResolver, UriMailboxFactory};
pub use self::worker::{ActorWorker, Backoff, Context, HandlerError, MainLoop, Worker};

/// Mailboxes on AWS SQS, and replies in DynamoDB. Feature `aws`; `docs/aws.md` is the guide.
#[cfg(feature = "aws")]
pub mod aws {
    pub use {aws_config as config, aws_sdk_dynamodb as dynamodb, aws_sdk_sqs as sqs};

    pub use crate::backends::aws::defaults;
    pub use crate::backends::dynamodb::DynamoDbReplyStore;
    pub use crate::backends::sqs::{QueueSettings, SqsBackend, SqsBuilder};
}

/// Time, as backends and tests see it.
pub mod clock {
    pub use crate::runtime::clock::{Alarm, Clock, Moment, SystemClock};
}

/// How bodies become bytes: traits for codecs of your own.
pub mod codec {
    pub use crate::mailbox::codec::{Codec, CodecError, Decode, Encode};
}

/// Events of mailboxes and loops, and who hears of them.
pub mod events {
    pub use crate::mailbox::dispatcher::{Dispatcher, MailboxEvent, Subscription};
    pub use crate::worker::LoopEvent;
}

/// Operations before they are awaited, and how backends answer them.
pub mod operation {
    pub use crate::mailbox::connection::Open;
    pub use crate::mailbox::lease::{Finish, KeepAlive, Nack, SendReply};
    pub use crate::mailbox::operation::{Answer, Call, Operation, Verb};
    pub use crate::mailbox::receive::{MessageStream, ReceiveMessages, UNDECODABLE_DELIVERIES};
    pub use crate::mailbox::send::{SendBatch, SendMessage, SendRequest};
    pub use crate::reply::WaitForReply;
}

/// Mailboxes in a SQLite file.
#[cfg(feature = "sqlite")]
pub mod sqlite {
    /// The library behind [`SqliteBackend`], for transactions of your own:
    /// [`SendMessage::within`](crate::operation::SendMessage::within).
    pub use rusqlite;

    pub use crate::backends::sqlite::{SqliteBackend, SqliteConfig, Synchronous};
}

/// W3C trace context of messages.
pub mod trace {
    pub use crate::mailbox::trace::{InTrace, NotATraceContext, TRACEPARENT, TRACESTATE, TraceContext};
}

/// Layer 1: in-process mailboxes, their traits and futures.
pub use postbox_core::shared;

/// Layer 1: actors and the mailboxes that feed them.
pub mod actor {
    pub use postbox_core::{
        Actor, BoundedMailbox, DEFAULT_THROUGHPUT, Directive, Failure, InvalidMailbox, Mailbox, MailboxType,
        MessageLoop, PriorityMailbox, Schedule, Turn, UnboundedMailbox, create_mailbox,
    };
}

/// The examples of the README and of the guide are compiled and run with the doc tests.
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
