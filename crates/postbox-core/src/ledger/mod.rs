//! The ledger: a leased mailbox as a pure state machine.
//!
//! A ledger has no clock, no lock and no I/O: every call takes `now`, in ticks chosen by the
//! caller. The memory backend is a ledger with a lock and a wait queue. The tests of all other
//! backends compare them with a ledger.
//!
//! The states of a message and the transitions between them are drawn in `ARCHITECTURE.md`.
//!
//! # Data structures
//!
//! Messages are in a slab of chunks. Ready messages are a list through the slab. Leases that end in
//! the order in which they began, as nearly all do, are a second list. Other leases and all delays
//! are in a four-way heap whose entries know their index, so an acknowledgement takes at most
//! logarithmic time. A receipt is a slot and the number of a delivery, and no two deliveries share
//! a number. Each message that becomes ready gets a *rank*, which it keeps while it is leased; by
//! its rank a released message finds its old position.
//!
//! # Invariants
//!
//! 1. Every call first handles what is due, in order of time: delayed messages become ready, leases
//!    end, messages expire. So each call sees the exact state at `now`, and no background task is
//!    needed.
//! 2. Time never runs backwards: a `now` before that of an earlier call counts as the earlier one.
//! 3. A message is in one of these states: ready, queued in its group, delayed, leased, dead. Only
//!    `receive` delivers, and only ready messages.
//! 4. A receipt belongs to one delivery. It is valid until the lease ends for any reason, and never
//!    again.
//! 5. At most one message of each group is ready, leased, or given back with a delay; the others
//!    are queued.

mod dead_letters;
mod deadline_heap;
mod groups;
mod id_index;
mod lease;
mod list;
mod send;
mod slab;
mod slot;
mod transitions;
mod types;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;

use self::deadline_heap::DeadlineHeap;
use self::groups::Groups;
use self::id_index::IdIndex;
use self::list::List;
use self::slab::{NONE, Slab};
use self::slot::{Expiry, Slot, State};
pub use self::types::{
    DELIVERIES_SPENT, DeadMessage, LeaseEnded, LedgerCounts, LedgerMessage, LedgerOptions, LedgerRefusal, NewMessage,
    Receipt, SendOutcome,
};

/// A leased mailbox as a state machine.
///
/// Every method first handles the events that are due at `now`. Receipts, options and results are
/// plain data; see [`Receipt`], [`LedgerOptions`], [`LedgerMessage`] and [`LedgerCounts`].
///
/// ```
/// use postbox_core::{Ledger, NewMessage, LeaseEnded};
///
/// let mut ledger = Ledger::new(Default::default());
/// ledger.send(0, NewMessage::new(1, "hello")).unwrap();
///
/// // Leased until 30: hidden from other consumers until then.
/// let mut receipt = None;
/// ledger.receive(0, 10, 30, |entry| receipt = Some(entry.receipt));
/// ledger.receive(29, 10, 60, |_| unreachable!());
///
/// // From 30 on it is delivered again, and the first receipt is invalid.
/// ledger.receive(30, 10, 60, |entry| assert_eq!((*entry.message, entry.deliveries), ("hello", 2)));
/// assert_eq!(ledger.acknowledge(31, receipt.unwrap()), Err(LeaseEnded));
/// ```
#[derive(Debug)]
pub struct Ledger<M> {
    options: LedgerOptions,
    slots: Slab<Slot<M>>,
    /// Ready messages in order of delivery.
    ready: List,
    /// Leases in the order in which they began, as long as each ends no earlier than the one before
    /// it.
    leases: List,
    /// The number of ready messages.
    deliverable: usize,
    /// How often a message has become ready.
    became_ready: u64,
    /// Ends of delays, and of leases that are not in the list.
    deadlines: DeadlineHeap,
    leased: usize,
    delayed: usize,
    groups: Groups,
    /// Expiries of messages that are not leased.
    expiring: BTreeSet<Expiry>,
    /// Messages sent with a delay, by id, until they are visible.
    cancellable: BTreeMap<u128, u32>,
    /// For each deduplication id the first message that had it, and the end of its window.
    deduplicated_ids: BTreeMap<Arc<str>, (u128, u64)>,
    deduplication_ends: BTreeSet<(u64, Arc<str>)>,
    dead: VecDeque<DeadMessage<M>>,
    /// Built by the first send with an id chosen by the caller.
    id_index: Option<IdIndex>,
    now: u64,
    /// No event is due before this moment.
    next_event_at: u64,
    /// The last number given to a delivery or an arrival; orders events that are due at the same
    /// moment.
    last_number: u64,
    expired: u64,
    /// Expired and duplicate messages, which the caller drops.
    discarded: Vec<M>,
}

impl<M> Ledger<M> {
    /// Creates an empty ledger.
    pub const fn new(options: LedgerOptions) -> Self {
        Ledger {
            options,
            slots: Slab::new(),
            ready: List::new(),
            leases: List::new(),
            deliverable: 0,
            became_ready: 0,
            deadlines: DeadlineHeap::new(),
            leased: 0,
            delayed: 0,
            groups: Groups::new(),
            expiring: BTreeSet::new(),
            cancellable: BTreeMap::new(),
            deduplicated_ids: BTreeMap::new(),
            deduplication_ends: BTreeSet::new(),
            dead: VecDeque::new(),
            id_index: None,
            now: 0,
            next_event_at: u64::MAX,
            last_number: 0,
            expired: 0,
            discarded: Vec::new(),
        }
    }

    /// Numbers deliveries from `first`. If no two ledgers number from the same value, a receipt of
    /// one ledger is invalid in every other.
    #[must_use]
    pub const fn with_numbers_from(mut self, first: u64) -> Self {
        self.last_number = first;
        self
    }

    /// The options of the ledger.
    pub const fn options(&self) -> &LedgerOptions {
        &self.options
    }

    /// Sets the options for future calls.
    pub fn set_options(&mut self, options: LedgerOptions) {
        self.options = options;
    }

    /// Removes and returns a message that was sent with a delay and is not visible yet. Returns
    /// `None` if there is none with this id.
    pub fn cancel(&mut self, now: u64, id: u128) -> Option<M> {
        self.advance(now);
        let slot = *self.cancellable.get(&id)?;
        Some(self.remove(slot).message)
    }

    /// Removes everything except the dead letters. Returns the number of removed messages, and the
    /// messages, which the caller drops.
    pub fn purge(&mut self, now: u64) -> (usize, impl Sized + use<M>) {
        self.advance(now);
        let removed = self.slots.len();
        let slots = self.slots.clear();
        self.deadlines.clear();
        self.groups.clear();
        self.expiring.clear();
        self.cancellable.clear();
        if let Some(ids) = &mut self.id_index {
            ids.remove_stored();
        }
        (self.ready, self.leases) = (List::new(), List::new());
        (self.deliverable, self.leased, self.delayed) = (0, 0, 0);
        (removed, slots)
    }

    /// Forgets all deduplication ids.
    pub fn forget_deduplication(&mut self) {
        self.deduplicated_ids.clear();
        self.deduplication_ends.clear();
    }

    /// The number of messages by state.
    pub fn counts(&mut self, now: u64) -> LedgerCounts {
        self.advance(now);
        LedgerCounts {
            ready: self.slots.len() - self.delayed - self.leased,
            delayed: self.delayed,
            leased: self.leased,
            dead: self.dead.len(),
        }
    }

    /// Whether the ledger holds no message, no dead letter and no deduplication id.
    pub fn is_empty(&self) -> bool {
        self.slots.len() == 0 && self.dead.is_empty() && self.deduplicated_ids.is_empty()
    }

    /// The number of ready messages after the last call.
    pub const fn deliverable(&self) -> usize {
        self.deliverable
    }

    /// How often a message has become ready. The difference of two readings is the number of
    /// waiting consumers to wake.
    pub const fn became_ready(&self) -> u64 {
        self.became_ready
    }

    /// The number of messages that have expired.
    pub const fn expired(&self) -> u64 {
        self.expired
    }

    /// The moment at which the next lease, delay or expiry ends, so a message may become ready.
    pub fn next_due(&self) -> Option<u64> {
        let due = self.first_deadline().map(|due| due.at);
        let expiry = self.expiring.first().map(|expiry| expiry.0);
        due.into_iter().chain(expiry).min()
    }

    /// The moment of the next event, including the end of a deduplication window.
    pub fn next_change(&self) -> Option<u64> {
        self.next_due().into_iter().chain(self.deduplication_ends.first().map(|end| end.0)).min()
    }

    /// Removes and returns the messages that expired or were duplicates, so that the caller decides
    /// where they are dropped.
    pub fn take_discarded(&mut self) -> Vec<M> {
        core::mem::take(&mut self.discarded)
    }

    /// Whether [`take_discarded`](Self::take_discarded) would return messages.
    pub const fn has_discarded(&self) -> bool {
        !self.discarded.is_empty()
    }

    /// Passes up to `max` ready messages to `show`, in order of delivery, without delivering them.
    pub fn peek(&mut self, now: u64, max: usize, mut show: impl FnMut(LedgerMessage<'_, M>)) {
        self.advance(now);
        let mut slot = self.ready.first();
        for _ in 0..max {
            let Some(entry) = self.slots.get(slot) else { break };
            show(entry.show(Receipt { slot: NONE, number: 0 }));
            slot = entry.next;
        }
    }

    /// Handles the events that are due at `now`.
    #[inline]
    pub fn advance(&mut self, now: u64) -> u64 {
        self.now = self.now.max(now);
        if self.next_event_at <= self.now {
            self.run_due();
        }
        self.now
    }

    #[cold]
    fn run_due(&mut self) {
        while let Some(due) = self.first_deadline()
            && due.at <= self.now
        {
            let first_time = self.slot(due.slot).state == State::Delayed;
            self.unschedule(due.slot);
            if first_time {
                self.join(due.slot);
            } else {
                self.make_ready(due.slot);
            }
        }
        while let Some(&(at, _, slot)) = self.expiring.first()
            && at <= self.now
        {
            let removed = self.remove(slot);
            self.discarded.push(removed.message);
            self.expired += 1;
        }
        while let Some((at, _)) = self.deduplication_ends.first()
            && *at <= self.now
        {
            if let Some((_, id)) = self.deduplication_ends.pop_first() {
                self.deduplicated_ids.remove(&id);
            }
        }
        self.next_event_at = self.next_change().unwrap_or(u64::MAX);
    }
}
