//! A message in the ledger, and lists of them.

use alloc::boxed::Box;
use alloc::sync::Arc;

use super::slab::NONE;
use super::types::{Held, Receipt};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// In the list of what can be delivered.
    Ready,
    /// Visible, but behind another message of its group.
    Behind,
    /// In the heap, until it is visible for the first time.
    Delayed,
    /// In the heap, given back with a delay.
    Returning,
    /// In the line of leases or in the heap, until its lease ends.
    Leased,
    /// In none of these, on its way from one to another.
    Unlinked,
}

#[derive(Debug)]
pub(super) struct Slot<M> {
    pub(super) message: M,
    pub(super) id: [u64; 2],
    pub(super) sent_at: u64,
    /// The number of the current delivery.
    pub(super) number: u64,
    /// When the lease ends, while it is in the line of leases.
    pub(super) until: u64,
    /// Orders what can be delivered: the number of messages that had become deliverable when this one did.
    pub(super) rank: u64,
    pub(super) deliveries: u32,
    /// Where in the heap, if it is there.
    pub(super) heap_index: u32,
    /// Its neighbours in the list of what can be delivered, or in the line of leases.
    pub(super) prev: u32,
    pub(super) next: u32,
    pub(super) state: State,
    pub(super) extras: Option<Box<Extras>>,
}

/// What few messages have.
#[derive(Debug)]
pub(super) struct Extras {
    pub(super) group: Option<Arc<str>>,
    pub(super) expires_at: Option<u64>,
    /// Messages that expire at the same moment go in the order in which they were sent.
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
    /// Never delivered, and in no list yet.
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

    /// When it goes, and its heap_index among those that go then.
    pub(super) fn expiry(&self, slot: u32) -> Option<Expiry> {
        let extras = self.extras.as_ref()?;
        Some((extras.expires_at?, extras.arrival, slot))
    }

    /// Whether the receipt is of the current delivery.
    pub(super) fn is_leased(&self, receipt: Receipt) -> bool {
        self.state == State::Leased && self.number == receipt.number
    }

    pub(super) fn show(&self, receipt: Receipt) -> Held<'_, M> {
        Held {
            id: id_from_halves(self.id),
            message: &self.message,
            receipt,
            deliveries: self.deliveries,
            sent_at: self.sent_at,
        }
    }
}
