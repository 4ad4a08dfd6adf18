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
