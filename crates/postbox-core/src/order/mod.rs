//! In which order messages leave: what differs between a FIFO and a priority mailbox.

mod chunked_queue;
mod fifo;
mod keyed_heap;
mod priority;

pub(crate) use self::chunked_queue::ChunkedQueue;
pub use self::fifo::Fifo;
pub use self::priority::{Priority, Rank};

/// The order of a mailbox. [`Fifo`](crate::order::Fifo) and [`Priority`](crate::order::Priority) are the two.
#[doc(hidden)]
pub trait Order<M> {
    /// A message with what the order needs to know about it.
    type Item;
    type Store: Store<Item = Self::Item>;
    /// Looks at the message once, before any lock is taken: foreign code never runs in a critical section.
    fn to_item(&self, message: M) -> Self::Item;
    fn into_message(item: Self::Item) -> M;
    /// Whether the message belongs to the control lane.
    #[inline(always)]
    fn is_control(&self, _item: &Self::Item) -> bool {
        false
    }
}

/// The consumers' end of a queue: messages in the order in which they leave.
#[doc(hidden)]
pub trait Store: Default {
    type Item;
    /// Whether what arrives later always leaves later. Then the messages that wait at the producers' end
    /// need not be looked at until this end is empty.
    const IS_FIFO: bool;
    fn len(&self) -> usize;
    fn pop(&mut self) -> Option<Self::Item>;
    fn push(&mut self, item: Self::Item);
    /// Moves in all that has arrived. Leaves `arrived` empty.
    fn append(&mut self, arrived: &mut ChunkedQueue<Self::Item>);
    /// Puts a message back that had left: before its equals.
    fn push_before_equals(&mut self, item: Self::Item);
    /// Takes `incoming` in and gives the least wanted out, which may be `incoming` itself.
    /// Among equals it is the oldest that goes if `oldest`, else the newest.
    fn push_evicting(&mut self, incoming: Self::Item, oldest: bool) -> Evicted<Self::Item>;
}

#[doc(hidden)]
#[derive(Debug, PartialEq, Eq)]
pub enum Evicted<I> {
    Incoming(I),
    Stored(I),
}
