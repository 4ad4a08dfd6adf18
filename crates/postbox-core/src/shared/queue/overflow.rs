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

/// What became of an offered message.
///
/// ```
/// use postbox_core::shared::mailbox::*;
///
/// let options = MailboxOptions::with_capacity(1).with_overflow(OverflowPolicy::DropOldest);
/// let (mailbox, producer) = ThreadSafe.build_mailbox::<&str>(options);
/// assert_eq!(producer.try_offer("first"), Ok(OfferOutcome::Accepted));
/// assert_eq!(producer.try_offer("second"), Ok(OfferOutcome::Evicted("first")));
/// assert_eq!(mailbox.dequeue(), Some("second"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfferOutcome<M> {
    /// It is in the queue.
    Accepted,
    /// It is in the queue, and this older or less urgent one is out.
    Evicted(M),
    /// It is not in the queue; here it is.
    Rejected(M),
    /// It is in the queue, whose capacity is this now.
    Grew(usize),
}

impl<M> OfferOutcome<M> {
    /// Whether the offered message is in the queue.
    pub const fn is_accepted(&self) -> bool {
        !matches!(self, OfferOutcome::Rejected(_))
    }

    /// The same outcome about a message of another type.
    pub(crate) fn map<N>(self, change: impl FnOnce(M) -> N) -> OfferOutcome<N> {
        match self {
            OfferOutcome::Accepted => OfferOutcome::Accepted,
            OfferOutcome::Evicted(message) => OfferOutcome::Evicted(change(message)),
            OfferOutcome::Rejected(message) => OfferOutcome::Rejected(change(message)),
            OfferOutcome::Grew(capacity) => OfferOutcome::Grew(capacity),
        }
    }
}
