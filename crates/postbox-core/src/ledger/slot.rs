//! A message in the ledger, with its state and its links.

use alloc::boxed::Box;
use alloc::sync::Arc;

use super::slab::NONE;
use super::types::{LedgerMessage, Receipt};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// In the list of ready messages.
    Ready,
    /// Visible, and queued behind another message of its group.
    Queued,
    /// In the heap until it is visible for the first time.
    Delayed,
    /// Given back with a delay; in the heap.
    Returning,
    /// In the list of leases or in the heap until the lease ends.
    Leased,
    /// In no list, between two states.
    Unlinked,
}

#[derive(Debug)]
pub(super) struct Slot<M> {
    pub(super) message: M,
    pub(super) id: [u64; 2],
    pub(super) sent_at: u64,
    /// The number of the current delivery.
    pub(super) number: u64,
    /// The end of the lease, while it is in the list of leases.
    pub(super) until: u64,
    /// Orders ready messages: how often a message had become ready when this one did.
    pub(super) rank: u64,
    pub(super) deliveries: u32,
    /// The index in the heap of deadlines; [`NONE`] if it is not there.
    pub(super) heap_index: u32,
    /// Links in the list of ready messages or of leases.
    pub(super) prev: u32,
    pub(super) next: u32,
    pub(super) state: State,
    pub(super) extras: Option<Box<Extras>>,
}

/// Fields that few messages have.
#[derive(Debug)]
pub(super) struct Extras {
    pub(super) group: Option<Arc<str>>,
    pub(super) expires_at: Option<u64>,
    /// Orders messages that expire at the same moment.
    pub(super) arrival: u64,
}

pub(super) const fn id_to_halves(id: u128) -> [u64; 2] {
    [(id >> 64) as u64, id as u64]
}

pub(super) const fn id_from_halves([high, low]: [u64; 2]) -> u128 {
    ((high as u128) << 64) | low as u128
}

/// Moment, order of arrival, slot.
pub(super) type Expiry = (u64, u64, u32);

impl<M> Slot<M> {
    /// Creates a slot that was never delivered and is in no list.
    #[inline(always)]
    pub(super) fn new(id: u128, message: M, sent_at: u64, extras: Option<Box<Extras>>) -> Self {
        Slot {
            message,
            id: id_to_halves(id),
            sent_at,
            number: 0,
            until: 0,
            rank: 0,
            deliveries: 0,
            heap_index: NONE,
            prev: NONE,
            next: NONE,
            state: State::Unlinked,
            extras,
        }
    }

    pub(super) fn group(&self) -> Option<&Arc<str>> {
        self.extras.as_ref()?.group.as_ref()
    }

    /// The expiry of the message, if it has one.
    pub(super) fn expiry(&self, slot: u32) -> Option<Expiry> {
        let extras = self.extras.as_ref()?;
        Some((extras.expires_at?, extras.arrival, slot))
    }

    /// Whether the receipt belongs to the current lease.
    pub(super) fn is_leased(&self, receipt: Receipt) -> bool {
        self.state == State::Leased && self.number == receipt.number
    }

    pub(super) fn show(&self, receipt: Receipt) -> LedgerMessage<'_, M> {
        LedgerMessage {
            id: id_from_halves(self.id),
            message: &self.message,
            receipt,
            deliveries: self.deliveries,
            sent_at: self.sent_at,
        }
    }
}
