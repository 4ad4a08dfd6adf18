//! The contract of a queue, its size, its overflow policy, and its outcomes and errors.
//!
//! ```
//! use postbox_core::shared::mailbox::{MailboxFactory, MailboxOptions, ThreadSafe};
//! use postbox_core::shared::queue::{MailboxQueueBackend, OfferOutcome, QueueError};
//!
//! let (mailbox, _producer) = ThreadSafe.build_mailbox(MailboxOptions::with_capacity(1));
//! let queue = mailbox.queue();
//! assert_eq!(queue.try_offer("first"), Ok(OfferOutcome::Accepted));
//! assert_eq!(queue.try_offer("second"), Err(QueueError::Full("second")));
//! assert_eq!(queue.try_poll(), Ok(Some("first")));
//! ```

mod backend;
mod error;
mod overflow;
mod size;

pub use self::backend::MailboxQueueBackend;
pub use self::error::{MailboxError, QueueError};
pub use self::overflow::{OfferOutcome, OverflowPolicy};
pub use self::size::QueueSize;
