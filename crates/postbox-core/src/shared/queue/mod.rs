//! What every queue has: its contract, its size, what it does when it is full, and what it answers.

mod backend;
mod error;
mod outcome;
mod policy;
mod size;

pub use self::backend::MailboxQueueBackend;
pub use self::error::{MailboxError, QueueError};
pub use self::outcome::OfferOutcome;
pub use self::policy::OverflowPolicy;
pub use self::size::QueueSize;
