//! What every queue has: its contract, its size, what it does when it is full, and what it answers.

mod backend;
mod error;
mod overflow;
mod size;

pub use self::backend::MailboxQueueBackend;
pub use self::error::{MailboxError, QueueError};
pub use self::overflow::{OfferOutcome, OverflowPolicy};
pub use self::size::QueueSize;
