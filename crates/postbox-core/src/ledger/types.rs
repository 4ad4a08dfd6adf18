//! Options, arguments and results of the ledger.

use alloc::borrow::Cow;
use alloc::sync::Arc;
use core::fmt;

/// The settings of a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerOptions {
    /// The largest number of stored messages, not counting dead letters. `None` for no limit.
    pub max_size: Option<usize>,
    /// The number of deliveries after which a message becomes a dead letter instead of ready.
    /// `None` for no limit.
    pub max_deliveries: Option<u32>,
    /// The number of ticks for which a deduplication id is remembered.
    pub deduplication_window: u64,
}

impl Default for LedgerOptions {
    fn default() -> Self {
        LedgerOptions { max_size: None, max_deliveries: None, deduplication_window: u64::MAX }
    }
}

/// A message to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewMessage<'a, M> {
    /// The id, unique unless it is sent by [`send_once`](super::Ledger::send_once).
    pub id: u128,
    /// The content.
    pub message: M,
    /// The moment at which it becomes visible; at once if that has passed.
    pub visible_at: u64,
    /// The moment at which it is removed, unless it is leased then.
    pub expires_at: Option<u64>,
    /// The group in whose order it is delivered.
    pub group: Option<&'a str>,
    /// Of several sends with one deduplication id within the window, only the first is stored.
    pub deduplication: Option<&'a str>,
}

impl<M> NewMessage<'_, M> {
    /// Creates a message that is visible at once, without a group, an expiry or a deduplication id.
    pub const fn new(id: u128, message: M) -> Self {
        NewMessage { id, message, visible_at: 0, expires_at: None, group: None, deduplication: None }
    }
}

/// The result of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOutcome {
    /// The message is stored.
    Stored,
    /// Nothing was stored, because the ledger has the message already: one with this deduplication
    /// id, or an equal one with the caller's id. This is the id of that message.
    Duplicate(u128),
}

/// Why a message was not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LedgerRefusal<M> {
    /// There is no room. Contains the message.
    Full(M),
    /// Another message has the same id. Contains the new message.
    IdInUse(M),
}

/// Identifies one delivery and proves its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Receipt {
    /// The slot of the message.
    pub(super) slot: u32,
    /// The number of the delivery.
    pub(super) number: u64,
}

impl Receipt {
    /// Encodes the receipt as a number.
    pub const fn to_bits(self) -> u128 {
        ((self.slot as u128) << 64) | self.number as u128
    }

    /// Decodes a number from [`to_bits`](Self::to_bits). Any other number gives an invalid receipt.
    pub const fn from_bits(bits: u128) -> Self {
        Receipt { slot: (bits >> 64) as u32, number: bits as u64 }
    }
}

/// The receipt belongs to a lease that has ended: by a settlement, by its deadline, or by a purge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseEnded;

impl fmt::Display for LeaseEnded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the lease has ended")
    }
}

impl core::error::Error for LeaseEnded {}

/// A message in the ledger.
#[derive(Debug, PartialEq, Eq)]
pub struct LedgerMessage<'a, M> {
    /// The id of the message.
    pub id: u128,
    /// The content.
    pub message: &'a M,
    /// The receipt of this delivery; an invalid one if the message was not delivered.
    pub receipt: Receipt,
    /// The number of deliveries, including this one.
    pub deliveries: u32,
    /// When the message was sent.
    pub sent_at: u64,
}

impl<M> Clone for LedgerMessage<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for LedgerMessage<'_, M> {}

/// A dead letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadMessage<M> {
    /// The id of the message.
    pub id: u128,
    /// The content.
    pub message: M,
    /// The number of deliveries.
    pub deliveries: u32,
    /// When the message was sent.
    pub sent_at: u64,
    /// When the message became a dead letter.
    pub died_at: u64,
    /// Why it became one.
    pub reason: Cow<'static, str>,
    pub(super) group: Option<Arc<str>>,
}

/// The number of messages by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LedgerCounts {
    /// Visible messages, including those queued in a group.
    pub ready: usize,
    /// Messages that are not visible yet: sent or given back with a delay.
    pub delayed: usize,
    /// Messages that are being delivered.
    pub leased: usize,
    /// Dead letters.
    pub dead: usize,
}

/// The reason of dead letters whose deliveries were spent.
pub const DELIVERIES_SPENT: &str = "delivered as often as the mailbox allows, and never acknowledged";
