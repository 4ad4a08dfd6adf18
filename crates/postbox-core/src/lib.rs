//! In-process mailboxes for actors and pipelines: layer 1 of Postbox.
//!
//! A mailbox moves values from producers to consumers. There are three kinds: [`UnboundedMailbox`],
//! [`BoundedMailbox`] and [`PriorityMailbox`]. [`create_mailbox`] creates any of them from a
//! setting. An [`Actor`] handles the messages of a mailbox one at a time; a [`MessageLoop`] feeds
//! it.
//!
//! Each operation has up to three forms:
//!
//! * at once: `try_…`, [`Mailbox::enqueue`], [`Mailbox::dequeue`];
//! * as a future that runs on any executor: `send`, `recv`;
//! * blocking a thread, with or without a timeout: `send_blocking`, `recv_blocking`,
//!   `send_timeout`, `recv_timeout`.
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
//! # Guarantees
//!
//! * **Order.** First in, first out. In a priority mailbox by rank and then by arrival; a lower
//!   rank is more urgent.
//! * **Capacity.** A bounded mailbox accepts no message beyond its capacity, under any number of
//!   threads. Its [overflow policy](shared::mailbox::OverflowPolicy) decides what happens to a
//!   further message.
//! * **No silent loss.** A message that is not accepted is returned to the sender. Closing returns
//!   the messages of waiting senders and lets consumers drain the mailbox. A dropped future has
//!   neither sent nor received a message.
//! * **Control messages** have room of their own and overtake regular messages.
//!
//! # Features
//!
//! `std` (default): blocking forms, a message loop on a thread, panics of handlers become failures,
//! and contended locks yield to the scheduler. Without it the crate is `no_std` and needs `alloc`
//! only.
//!
//! # Modules
//!
//! [`shared::mailbox`] has the traits for runtimes (consumer, producer, factory, signal, queue
//! backend) and their implementations. [`Ledger`] is the state machine of a leased mailbox, on
//! which layer 2 is built.
#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]

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
