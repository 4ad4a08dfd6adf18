//! Abstractions that mailboxes share, independent of any runtime: [`mailbox`] with the traits and
//! their implementations, and [`queue`] with the contract of a queue. [`mailbox`] re-exports
//! [`queue`].
//!
//! ```
//! use postbox_core::shared::mailbox::*;
//!
//! let (mailbox, producer) = SingleThread.build_mailbox(MailboxOptions::with_capacity(1));
//! assert_eq!(producer.try_send("first"), Ok(()));
//! assert_eq!(producer.try_send("second"), Err(QueueError::Full("second")));
//! assert_eq!(mailbox.dequeue(), Some("first"));
//! ```

pub mod mailbox;
pub mod queue;
