//! In-process mailboxes for actors and pipelines: the first layer of Postbox.
//!
//! A mailbox moves values from producers to consumers. There are three kinds, [`UnboundedMailbox`],
//! [`BoundedMailbox`] and [`PriorityMailbox`], and one implementation behind them; [`create_mailbox`] makes any of them
//! from a setting. Sending and receiving never waits (`try_…`, [`Mailbox::enqueue`], [`Mailbox::dequeue`]), waits as
//! a future on any executor (`send`, `recv`), or waits as a thread (`send_blocking`, `recv_blocking`, and with a
//! timeout). An [`Actor`] handles the messages of a mailbox one by one; a [`MessageLoop`] feeds it.
//!
//! ```
//! use postbox_core::{BoundedMailbox, Mailbox};
//!
//! let mailbox = BoundedMailbox::new(100);
//! let producer = mailbox.producer();
//! std::thread::spawn(move || producer.send_blocking("hello"));
//! assert_eq!(mailbox.recv_blocking(), Ok("hello"));
//! ```
//!
//! # What holds
//!
//! * **Order.** First in, first out; in a priority mailbox by rank first, and a lower number is more urgent.
//! * **Bound.** A bounded mailbox never takes in more than its capacity, under any number of threads. What happens to
//!   one message more is its [overflow policy](shared::mailbox::OverflowPolicy), and the answer carries the message.
//! * **Nothing is lost silently.** A message that is not taken comes back; closing gives waiting producers theirs and
//!   lets consumers drain the mailbox; a future that is dropped has neither sent nor taken anything.
//! * **Control messages** have room of their own and overtake all others.
//!
//! # Features
//!
//! `std` (on by default): the blocking forms, the loop on a thread, panics of handlers caught, and locks that yield to
//! the scheduler. Without it the crate is `no_std` and needs `alloc` alone.
//!
//! # Modules
//!
//! [`shared::mailbox`] has the traits that a runtime builds on (consumer, producer, factory, signal, queue backend) and
//! their implementations; one glob import of it suffices.
#![no_std]

extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

mod actor;
#[cfg(feature = "std")]
mod blocking;
mod ledger;
mod mailbox;
mod order;
mod queue;
pub mod shared;
#[cfg(any(not(postbox_loom), test))]
mod spin_lock;
mod sync;
mod wait_queue;

pub use self::actor::*;
#[cfg(feature = "std")]
pub use self::blocking::wait_for;
pub use self::ledger::*;
pub use self::mailbox::*;
#[doc(hidden)]
pub use self::order::Order;
pub use self::order::{Fifo, Priority, Rank};
pub use self::shared::mailbox::{Mailbox, MailboxConsumer};
#[doc(hidden)]
pub use self::sync::Lock;
pub use self::sync::{SingleThread, ThreadSafe};
pub use self::wait_queue::{Ticket, WaitQueue};
