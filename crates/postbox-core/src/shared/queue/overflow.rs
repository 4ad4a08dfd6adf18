/// What a full queue does with another message.
///
/// | policy | the message | the sender |
/// |---|---|---|
/// | [`Block`](OverflowPolicy::Block) | is not accepted | waits for room; `try_…` returns [`Full`](super::QueueError::Full) with the message |
/// | [`DropNewest`](OverflowPolicy::DropNewest) | is rejected | gets it back: [`Rejected`](OfferOutcome::Rejected) |
/// | [`DropOldest`](OverflowPolicy::DropOldest) | is accepted, and the oldest message is evicted | gets the evicted message: [`Evicted`](OfferOutcome::Evicted) |
/// | [`Grow`](OverflowPolicy::Grow) | is accepted, and the capacity doubles | gets the new capacity: [`Grew`](OfferOutcome::Grew) |
///
/// A full priority queue drops the least urgent message: `DropNewest` the newest of them,
/// `DropOldest` the oldest. That can be the incoming message itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OverflowPolicy {
    /// Wait for room.
    #[default]
    Block,
    /// Reject the incoming message.
    DropNewest,
    /// Evict the oldest message.
    DropOldest,
    /// Double the capacity.
    Grow,
}

/// The outcome of an offer.
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
    /// The message was accepted.
    Accepted,
    /// The message was accepted, and this older or less urgent message was evicted.
    Evicted(M),
    /// The message was rejected; it is returned here.
    Rejected(M),
    /// The message was accepted, and the capacity was increased to this value.
    Grew(usize),
}

impl<M> OfferOutcome<M> {
    /// Whether the message was accepted.
    pub const fn is_accepted(&self) -> bool {
        !matches!(self, OfferOutcome::Rejected(_))
    }

    /// Transforms the message.
    pub(crate) fn map<N>(self, change: impl FnOnce(M) -> N) -> OfferOutcome<N> {
        match self {
            OfferOutcome::Accepted => OfferOutcome::Accepted,
            OfferOutcome::Evicted(message) => OfferOutcome::Evicted(change(message)),
            OfferOutcome::Rejected(message) => OfferOutcome::Rejected(change(message)),
            OfferOutcome::Grew(capacity) => OfferOutcome::Grew(capacity),
        }
    }
}
