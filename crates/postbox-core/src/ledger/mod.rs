//! The ledger: the pure state machine of one leased mailbox.
//!
//! No clock, no lock, no input or output: every call takes `now`, in ticks of the caller's choice. A backend that keeps
//! messages in memory is this plus a lock and a wait queue; for every other backend it is the oracle of the tests.
//!
//! Invariants:
//!
//! 1. Every call first does what is due, in due order: delayed messages become ready, leases end, messages past their
//!    expiry go. So what a call sees is exact at `now`, and nothing waits for a reaper.
//! 2. Time does not run backwards: a `now` before an earlier one counts as that.
//! 3. A message is in one of these places: ready, waiting behind its group, delayed, leased, dead. Only `receive`
//!    delivers, and only what is ready.
//! 4. A receipt belongs to one delivery. It is good until that lease ends, by whatever cause, and never again.
//! 5. Of each group at most one message is ready or leased or on its way back; the others wait behind it.

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
    DELIVERIES_SPENT, Dead, Held, LedgerOptions, LedgerRefusal, Posted, Posting, Receipt, Stale, Tally,
};

/// One leased mailbox, as a state machine.
///
/// ```
/// use postbox_core::{Ledger, Posting, Stale};
///
/// let mut ledger = Ledger::new(Default::default());
/// ledger.send(0, Posting::new(1, "hello")).unwrap();
///
/// // Leased until 30: nobody else sees it…
/// let mut receipt = None;
/// ledger.receive(0, 10, 30, |held| receipt = Some(held.receipt));
/// ledger.receive(29, 10, 60, |_| unreachable!());
///
/// // …and from 30 on it is delivered again, and the first receipt is good for nothing.
/// ledger.receive(30, 10, 60, |held| assert_eq!((*held.message, held.deliveries), ("hello", 2)));
/// assert_eq!(ledger.acknowledge(31, receipt.unwrap()), Err(Stale));
/// ```
#[derive(Debug)]
pub struct Ledger<M> {
    options: LedgerOptions,
    slots: Slab<Slot<M>>,
    /// What can be delivered, in order.
    ready: List,
    /// Leases in the order in which they were given, as long as each ends no earlier than the one before it: mostly all of
    /// them. They come and go in constant time.
    leases: List,
    /// How many are ready.
    deliverable: usize,
    /// How many ever became deliverable.
    surfaced: u64,
    /// Delays, and leases that are not in the line.
    deadlines: DeadlineHeap,
    leased: usize,
    delayed: usize,
    groups: Groups,
    /// Messages with an expiry that are not being delivered.
    expiring: BTreeSet<Expiry>,
    /// Messages sent with a delay, by id, until they are visible.
    cancellable: BTreeMap<u128, u32>,
    /// Deduplication ids: the message that had it first, and until when that counts.
    deduplicated_ids: BTreeMap<Arc<str>, (u128, u64)>,
    deduplication_ends: BTreeSet<(u64, Arc<str>)>,
    dead: VecDeque<Dead<M>>,
    /// Messages by id; kept from the first send with an id of the caller's own.
    id_index: Option<IdIndex>,
    now: u64,
    /// Nothing happens by itself before this moment.
    next_event_at: u64,
    /// Numbers deliveries and orders what is due at the same moment.
    last_number: u64,
    expired: u64,
    /// Messages that went by themselves, for the caller to drop where it suits.
    discarded: Vec<M>,
}

impl<M> Ledger<M> {
    /// An empty ledger.
    pub const fn new(options: LedgerOptions) -> Self {
        Ledger {
            options,
            slots: Slab::new(),
            ready: List::new(),
            leases: List::new(),
            deliverable: 0,
            surfaced: 0,
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

    /// An empty ledger that numbers its deliveries from here on. With a number that no other ledger starts from, a
    /// receipt of another ledger is good for nothing in this one.
    #[must_use]
    pub const fn with_numbers_from(mut self, first: u64) -> Self {
        self.last_number = first;
        self
    }

    /// The settings.
    pub const fn options(&self) -> &LedgerOptions {
        &self.options
    }

    /// Other settings, for what happens from now on.
    pub fn set_options(&mut self, options: LedgerOptions) {
        self.options = options;
    }

    /// Takes a message out that was sent with a delay and is not visible yet. `None` if there is none with this id.
    pub fn cancel(&mut self, now: u64, id: u128) -> Option<M> {
        self.advance(now);
        let slot = *self.cancellable.get(&id)?;
        Some(self.remove(slot).message)
    }

    /// Takes everything out except the dead letters. Returns how many those were, and them, to be dropped.
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

    /// Forgets every deduplication id.
    pub fn forget_deduplication(&mut self) {
        self.deduplicated_ids.clear();
        self.deduplication_ends.clear();
    }

    /// How many messages are where.
    pub fn tally(&mut self, now: u64) -> Tally {
        self.advance(now);
        Tally {
            ready: self.slots.len() - self.delayed - self.leased,
            delayed: self.delayed,
            leased: self.leased,
            dead: self.dead.len(),
        }
    }

    /// Whether nothing is stored: no message, no dead letter, no deduplication id.
    pub fn is_empty(&self) -> bool {
        self.slots.len() == 0 && self.dead.is_empty() && self.deduplicated_ids.is_empty()
    }

    /// How many messages a `receive` could deliver, as of the last call.
    pub const fn deliverable(&self) -> usize {
        self.deliverable
    }

    /// How many times a message became deliverable, ever. The difference of two readings says how many waiting
    /// consumers have something to get.
    pub const fn surfaced(&self) -> u64 {
        self.surfaced
    }

    /// How many messages went because of their expiry.
    pub const fn expired(&self) -> u64 {
        self.expired
    }

    /// When the next message may become deliverable by itself: a lease or a delay ends, or a message at the head of its
    /// group expires.
    pub fn next_due(&self) -> Option<u64> {
        let due = self.first_deadline().map(|due| due.at);
        let expiry = self.expiring.first().map(|expiry| expiry.0);
        due.into_iter().chain(expiry).min()
    }

    /// When anything changes by itself, the memory of deduplication ids included.
    pub fn next_change(&self) -> Option<u64> {
        self.next_due().into_iter().chain(self.deduplication_ends.first().map(|end| end.0)).min()
    }

    /// Messages that went by themselves since the last call: expired ones and duplicates. To be dropped where it suits.
    pub fn take_discarded(&mut self) -> Vec<M> {
        core::mem::take(&mut self.discarded)
    }

    /// Whether there is something to [take](Self::take_discarded).
    pub const fn has_discarded(&self) -> bool {
        !self.discarded.is_empty()
    }

    /// Shows up to `max` messages that are ready, in the order of delivery, and delivers none.
    pub fn peek(&mut self, now: u64, max: usize, mut show: impl FnMut(Held<'_, M>)) {
        self.advance(now);
        let mut slot = self.ready.first();
        for _ in 0..max {
            let Some(held) = self.slots.get(slot) else { break };
            show(held.show(Receipt { slot: NONE, number: 0 }));
            slot = held.next;
        }
    }

    /// Does what is due at `now`.
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
