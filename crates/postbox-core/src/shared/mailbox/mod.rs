//! Mailboxes that depend on no runtime.
//!
//! One glob import brings the traits, the options, the errors, and the two factories [`ThreadSafe`]
//! and [`SingleThread`] into scope. Envelopes and system messages are in [`messages`].
//!
//! ```
//! use postbox_core::shared::mailbox::*;
//!
//! let (mailbox, producer) = ThreadSafe.build_mailbox::<&str>(MailboxOptions::with_capacity(128));
//! producer.try_send("hello").unwrap();
//! assert_eq!(mailbox.try_dequeue(), Ok(Some("hello")));
//! ```

pub mod consumer;
pub mod factory;
mod future;
pub mod messages;
pub mod options;
pub mod producer;
pub mod signal;

pub use self::consumer::*;
pub use self::factory::*;
pub use self::future::{OfferFuture, PollFuture, Until};
pub use self::options::*;
pub use self::producer::*;
pub use self::signal::*;
pub use super::queue::*;
