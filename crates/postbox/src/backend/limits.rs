//! The limits of backends.

use std::time::Duration;

/// The order in which messages are delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ordering {
    /// First in, first out.
    Fifo,
    /// First in, first out within each group.
    FifoPerGroup,
    /// Mostly first in, first out.
    BestEffort,
}

/// What a backend allows and promises. A value out of range is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The order of first deliveries.
    pub ordering: Ordering,
    /// The largest body and headers, in bytes.
    pub max_message_size: Option<usize>,
    /// The longest delay of a send.
    pub max_delay: Duration,
    /// The longest visibility timeout.
    pub max_visibility: Duration,
    /// The longest wait of a receive.
    pub max_wait: Duration,
    /// The largest batch, of any verb.
    pub max_batch: usize,
    /// Whether counts are exact.
    pub exact_counts: bool,
    /// Whether deliveries are counted exactly. If not, a delivery that was released, or that no receiver took, counts, and
    /// the message joins the tail.
    pub exact_deliveries: bool,
    /// The time after a purge in which another one is refused.
    pub purge_cooldown: Option<Duration>,
    /// Whether a purge ends the leases of the messages that it removes.
    pub purge_ends_leases: bool,
    /// Whether messages can have a group.
    pub groups: bool,
    /// Whether messages can have a deduplication id.
    pub deduplication: bool,
    /// How long deduplication ids are remembered, if that cannot be set.
    pub deduplication_window: Option<Duration>,
    /// Whether a repeated send with an id that the caller chose is recognised. If not, both messages are stored.
    pub own_ids: bool,
    /// Whether a message can have an expiry.
    pub expiry: bool,
    /// Whether a delayed message can be cancelled.
    pub cancel: bool,
    /// Whether messages can be shown without delivering them.
    pub peek: bool,
    /// Whether a mailbox can have a maximum size.
    pub max_size: bool,
}

impl Limits {
    /// A year, the longest duration of any setting. Sums of such durations do not overflow.
    pub const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

    /// The limits of a backend that supports everything, exactly and in order.
    pub const fn generous() -> Self {
        Limits {
            ordering: Ordering::Fifo,
            max_message_size: None,
            max_delay: Self::LONGEST,
            max_visibility: Self::LONGEST,
            max_wait: Self::LONGEST,
            max_batch: 1_000,
            exact_counts: true,
            exact_deliveries: true,
            purge_cooldown: None,
            purge_ends_leases: true,
            groups: true,
            deduplication: true,
            deduplication_window: None,
            own_ids: true,
            expiry: true,
            cancel: true,
            peek: true,
            max_size: true,
        }
    }

    /// Limits with which the layer above can calculate: at least one entry a batch, and durations whose sums do not overflow.
    pub(crate) fn bounded(self) -> Self {
        let at_most = |time: Duration| time.min(Self::LONGEST);
        Limits {
            max_delay: at_most(self.max_delay),
            max_visibility: at_most(self.max_visibility),
            max_wait: at_most(self.max_wait),
            max_batch: self.max_batch.max(1),
            ..self
        }
    }

    /// The part of these limits that every backend allows. A program that keeps to it works on every backend.
    #[must_use]
    pub fn portable(self) -> Self {
        let seconds = Duration::from_secs;
        Limits {
            max_message_size: Some(self.max_message_size.unwrap_or(usize::MAX).min(256 * 1024)),
            max_delay: self.max_delay.min(seconds(900)),
            max_visibility: self.max_visibility.min(seconds(12 * 60 * 60)),
            max_wait: self.max_wait.min(seconds(20)),
            max_batch: self.max_batch.min(10),
            groups: false,
            deduplication: false,
            own_ids: false,
            expiry: false,
            cancel: false,
            peek: false,
            max_size: false,
            ..self
        }
    }
}
