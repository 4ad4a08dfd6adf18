//! What a ledger is asked, and what it answers.

use alloc::borrow::Cow;
use alloc::sync::Arc;
use core::fmt;

/// What a ledger is told when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerOptions {
    /// How many messages may be stored at once, dead ones apart. `None`: any number.
    pub max_size: Option<usize>,
    /// After how many deliveries a message that comes back goes to the dead letters. `None`: never.
    pub max_deliveries: Option<u32>,
    /// For how many ticks a deduplication id is deduplicated_ids.
    pub deduplication_window: u64,
}

impl Default for LedgerOptions {
    fn default() -> Self {
        LedgerOptions { max_size: None, max_deliveries: None, deduplication_window: u64::MAX }
    }
}

/// A message on its way into the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posting<'a, M> {
    /// Its id, made by the sender.
    pub id: u128,
    /// What is stored.
    pub message: M,
    /// When it becomes visible; now or a moment in the past means at once.
    pub visible_at: u64,
    /// When it goes unless it is being delivered then.
    pub expires_at: Option<u64>,
    /// The group in whose order it is delivered.
    pub group: Option<&'a str>,
    /// Sends with the same deduplication id within the window are one.
    pub deduplication: Option<&'a str>,
}

impl<M> Posting<'_, M> {
    /// A message that is visible at once and has no group, no expiry and no deduplication id.
    pub const fn new(id: u128, message: M) -> Self {
        Posting { id, message, visible_at: 0, expires_at: None, group: None, deduplication: None }
    }
}

/// What became of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// It is stored.
    Stored,
    /// Nothing was stored: the ledger has a message with this deduplication id, or with the caller's own id and the same
    /// content. This is that message's id.
    Duplicate(u128),
}

/// Why a message was not stored. The message comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LedgerRefusal<M> {
    /// There is no room.
    Full(M),
    /// The ledger holds another message with the same id.
    IdInUse(M),
}

/// Proof of one delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Receipt {
    /// Where the message is.
    pub(super) slot: u32,
    /// Which delivery of all this is.
    pub(super) number: u64,
}

impl Receipt {
    /// The receipt as a number, for handles that are passed around.
    pub const fn to_bits(self) -> u128 {
        ((self.slot as u128) << 64) | self.number as u128
    }

    /// The receipt that [`to_bits`](Self::to_bits) gave. Any other number is a receipt that is good for nothing.
    pub const fn from_bits(bits: u128) -> Self {
        Receipt { slot: (bits >> 64) as u32, number: bits as u64 }
    }
}

/// The receipt is of a lease that has ended: by acknowledgement, by its deadline, by being given back, by a purge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale;

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the lease has ended")
    }
}

impl core::error::Error for Stale {}

/// A message as the ledger shows it.
#[derive(Debug, PartialEq, Eq)]
pub struct Held<'a, M> {
    /// Its id.
    pub id: u128,
    /// What was sent.
    pub message: &'a M,
    /// The proof of this delivery; when the ledger only shows the message, a receipt that is good for nothing.
    pub receipt: Receipt,
    /// How often it was delivered, this time included.
    pub deliveries: u32,
    /// When it was sent.
    pub sent_at: u64,
}

impl<M> Clone for Held<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for Held<'_, M> {}

/// A dead letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dead<M> {
    /// Its id.
    pub id: u128,
    /// What was sent.
    pub message: M,
    /// How often it was delivered.
    pub deliveries: u32,
    /// When it was sent.
    pub sent_at: u64,
    /// When it came here.
    pub died_at: u64,
    /// Why.
    pub reason: Cow<'static, str>,
    pub(super) group: Option<Arc<str>>,
}

/// How many messages are where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Visible, those that wait behind their group included.
    pub ready: usize,
    /// Not yet visible: sent with a delay, or given back with one.
    pub delayed: usize,
    /// Being delivered.
    pub leased: usize,
    /// Dead letters.
    pub dead: usize,
}

/// The reason that a ledger gives for a message whose deliveries are spent.
pub const DELIVERIES_SPENT: &str = "delivered as often as the mailbox allows, and never acknowledged";
