/// What a full queue does with one message more.
///
/// | policy | the message | the caller |
/// |---|---|---|
/// | [`Block`](OverflowPolicy::Block) | waits outside until there is room | `try_…` gives it back as [`Full`](super::QueueError::Full), the futures and the blocking forms wait |
/// | [`DropNewest`](OverflowPolicy::DropNewest) | is refused | gets it back at once |
/// | [`DropOldest`](OverflowPolicy::DropOldest) | goes in, the oldest goes out | gets the evicted one |
/// | [`Grow`](OverflowPolicy::Grow) | goes in, the capacity doubles | learns the new capacity |
///
/// A priority queue that drops, drops the least urgent message: `DropNewest` the newest of the least urgent,
/// `DropOldest` the oldest of them. That may be the incoming message itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OverflowPolicy {
    /// Wait for room.
    #[default]
    Block,
    /// Refuse the incoming message.
    DropNewest,
    /// Evict the oldest message.
    DropOldest,
    /// Double the capacity.
    Grow,
}
