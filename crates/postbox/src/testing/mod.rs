//! Test doubles: mailboxes, replies and resolvers that a test controls. Feature `testing`.
//!
//! All of them are real backends behind the real [`Mailbox`](crate::Mailbox), so what a test shows holds. They need no
//! server and no waiting: the [`FakeMailbox`] has a clock that is moved by hand.

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
