//! Test doubles. Feature `testing`.
//!
//! | double | what it is |
//! |---|---|
//! | [`FakeMailbox`], [`FakeBackend`] | complete mailboxes in memory, with a [`ManualClock`] and faults on demand |
//! | [`NullMailbox`], [`CollectingMailbox`] | mailboxes that drop messages, or keep them for the test |
//! | [`MessageBuilder`] | a message for a test of a handler |
//! | [`ImmediateReply`] | a reply that has come |
//! | [`FakeMailboxResolver`] | a resolver with a log |
//!
//! All are backends behind the real [`Mailbox`](crate::Mailbox), so tests run the code of production. They need no server,
//! and no sleeps: the test moves the clock.
//!
//! ```
//! use postbox::Error;
//! use postbox::testing::FakeMailbox;
//! use std::time::Duration;
//!
//! let jobs: FakeMailbox<String> = FakeMailbox::new();
//! jobs.send("resize cat.png").blocking()?;
//! let first = jobs.receive().blocking()?.remove(0);
//!
//! // The consumer is too slow, and the job is delivered again.
//! jobs.advance(Duration::from_secs(30));
//! assert!(matches!(first.acknowledge().blocking(), Err(Error::ReceiptHandleExpired { .. })));
//! assert_eq!(jobs.receive().blocking()?[0].delivery_count, 2);
//!
//! // The store fails.
//! jobs.set_connection_error(Error::connection("the network is down"));
//! assert!(jobs.send("resize dog.png").blocking().unwrap_err().is_transient());
//! # Ok::<(), Error>(())
//! ```
//!
//! `docs/testing.md` is the guide.

mod clock;
mod doubles;
mod fake;
#[doc(hidden)]
pub mod fuzz;
mod message;
mod resolver;

pub use self::clock::ManualClock;
pub use self::doubles::{CollectingMailbox, ImmediateReply, NullMailbox};
pub use self::fake::{FakeBackend, FakeMailbox};
pub use self::message::MessageBuilder;
pub use self::resolver::FakeMailboxResolver;
