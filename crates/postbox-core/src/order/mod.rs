//! The order in which messages leave a mailbox: FIFO or by priority.

mod chunked_queue;
mod fifo;
mod keyed_heap;
mod priority;

pub(crate) use self::chunked_queue::ChunkedQueue;
pub use self::fifo::Fifo;
pub use self::priority::{Priority, Rank};

/// The order of a mailbox: [`Fifo`](crate::order::Fifo) or [`Priority`](crate::order::Priority).
#[doc(hidden)]
pub trait Order<M> {
    /// A message with the data by which it is ordered.
    type Item;
    type Store: Store<Item = Self::Item>;
    /// Wraps a message. Called once, outside all locks, since it runs the user's priority function.
    fn to_item(&self, message: M) -> Self::Item;
    fn into_message(item: Self::Item) -> M;
    /// Whether the message is sent on the control channel.
    #[inline(always)]
    fn is_control(&self, _item: &Self::Item) -> bool {
        false
    }
}

/// The end of a queue from which consumers pop messages.
#[doc(hidden)]
pub trait Store: Default {
    type Item;
    /// Whether later arrivals always leave later. Then the inbox need not be looked at until the
    /// store is empty.
    const IS_FIFO: bool;
    fn len(&self) -> usize;
    fn pop(&mut self) -> Option<Self::Item>;
    fn push(&mut self, item: Self::Item);
    /// Moves all messages from `arrived` into the store.
    fn append(&mut self, arrived: &mut ChunkedQueue<Self::Item>);
    /// Inserts a message ahead of all messages of equal rank.
    fn push_before_equals(&mut self, item: Self::Item);
    /// Pushes `incoming` and evicts the least urgent message, which may be `incoming` itself. Among
    /// equal messages the oldest is evicted if `oldest`, otherwise the newest.
    fn push_evicting(&mut self, incoming: Self::Item, oldest: bool) -> Evicted<Self::Item>;
}

#[doc(hidden)]
#[derive(Debug, PartialEq, Eq)]
pub enum Evicted<I> {
    Incoming(I),
    Stored(I),
}
