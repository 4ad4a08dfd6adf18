#![no_std]
#![doc = "In-process mailboxes for actors and pipelines."]

extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

mod actor;
mod chunks;
mod fifo;
mod heap;
#[cfg(any(not(postbox_loom), test))]
mod lock;
mod mailbox;
mod order;
#[cfg(feature = "std")]
mod park;
mod priority;
pub mod shared;
mod sync;
mod wait;

pub use self::actor::*;
pub use self::fifo::Fifo;
pub use self::mailbox::*;
#[doc(hidden)]
pub use self::order::Order;
pub use self::priority::{Priority, Rank};
pub use self::shared::mailbox::{Mailbox, MailboxConsumer};
pub use self::sync::{SingleThread, ThreadSafe};
pub use self::wait::{Ticket, WaitQueue};
