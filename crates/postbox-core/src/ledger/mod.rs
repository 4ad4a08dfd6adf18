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

mod dead;
mod due;
mod groups;
mod ids;
mod slab;
mod slot;
mod terms;
mod transitions;

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;

use self::due::DueHeap;
use self::groups::Groups;
use self::ids::Ids;
use self::slab::{NONE, Slab};
use self::slot::{Expiry, Extras, List, Slot, State};
pub use self::terms::{
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
    line: List,
    /// How many are ready.
    deliverable: usize,
    /// How many ever became deliverable.
    surfaced: u64,
    /// Delays, and leases that are not in the line.
    due: DueHeap,
    leased: usize,
    delayed: usize,
    groups: Groups,
    /// Messages with an expiry that are not being delivered.
    expiring: BTreeSet<Expiry>,
    /// Messages sent with a delay, by id, until they are visible.
    cancellable: BTreeMap<u128, u32>,
    /// Deduplication ids: the message that had it first, and until when that counts.
    remembered: BTreeMap<Arc<str>, (u128, u64)>,
    forgotten_at: BTreeSet<(u64, Arc<str>)>,
    dead: VecDeque<Dead<M>>,
    /// Messages by id; kept from the first send with an id of the caller's own.
    ids: Option<Ids>,
    now: u64,
    /// Nothing happens by itself before this moment.
    quiet_until: u64,
    /// Numbers deliveries and orders what is due at the same moment.
    counter: u64,
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
            line: List::new(),
            deliverable: 0,
            surfaced: 0,
            due: DueHeap::new(),
            leased: 0,
            delayed: 0,
            groups: Groups::new(),
            expiring: BTreeSet::new(),
            cancellable: BTreeMap::new(),
            remembered: BTreeMap::new(),
            forgotten_at: BTreeSet::new(),
            dead: VecDeque::new(),
            ids: None,
            now: 0,
            quiet_until: u64::MAX,
            counter: 0,
            expired: 0,
            discarded: Vec::new(),
        }
    }

    /// An empty ledger that numbers its deliveries from here on. With a number that no other ledger starts from, a
    /// receipt of another ledger is good for nothing in this one.
    #[must_use]
    pub const fn with_numbers_from(mut self, first: u64) -> Self {
        self.counter = first;
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

    /// Stores a message whose id is new.
    ///
    /// # Errors
    /// [`LedgerRefusal::Full`] with the message, if there is no room.
    pub fn send(&mut self, now: u64, posting: Posting<'_, M>) -> Result<Posted, LedgerRefusal<M>> {
        self.advance(now);
        match self.deduplicated(posting) {
            Ok(posting) => self.store(posting),
            Err(first) => Ok(Posted::Duplicate(first)),
        }
    }

    /// Stores a message whose id the caller chose. If the ledger holds a message with that id, dead letters included, nothing is
    /// stored: with the same content, as `is_same` tells, the answer is that message's id.
    ///
    /// ```
    /// use postbox_core::{Ledger, LedgerRefusal, Posted, Posting};
    ///
    /// let mut ledger = Ledger::new(Default::default());
    /// let send = |ledger: &mut Ledger<_>, message| ledger.send_once(0, Posting::new(7, message), |a, b| a == b);
    /// assert_eq!(send(&mut ledger, "pay"), Ok(Posted::Stored));
    /// assert_eq!(send(&mut ledger, "pay"), Ok(Posted::Duplicate(7)));
    /// assert_eq!(send(&mut ledger, "pay twice"), Err(LedgerRefusal::IdInUse("pay twice")));
    /// assert_eq!(ledger.tally(0).ready, 1);
    /// ```
    ///
    /// # Errors
    /// [`LedgerRefusal::IdInUse`] if the content differs, [`LedgerRefusal::Full`] if there is no room; both with the message.
    pub fn send_once(
        &mut self,
        now: u64,
        posting: Posting<'_, M>,
        is_same: impl FnOnce(&M, &M) -> bool,
    ) -> Result<Posted, LedgerRefusal<M>> {
        self.advance(now);
        let posting = match self.deduplicated(posting) {
            Ok(posting) => posting,
            Err(first) => return Ok(Posted::Duplicate(first)),
        };
        match self.held(posting.id).map(|held| is_same(held, &posting.message)) {
            None => self.store(posting),
            Some(true) => {
                self.discarded.push(posting.message);
                Ok(Posted::Duplicate(posting.id))
            }
            Some(false) => Err(LedgerRefusal::IdInUse(posting.message)),
        }
    }

    /// The posting, or the id of the message that had its deduplication id first.
    fn deduplicated<'a>(&mut self, posting: Posting<'a, M>) -> Result<Posting<'a, M>, u128> {
        match posting.deduplication.and_then(|id| self.remembered.get(id)) {
            Some((first, _)) => {
                self.discarded.push(posting.message);
                Err(*first)
            }
            None => Ok(posting),
        }
    }

    fn store(&mut self, posting: Posting<'_, M>) -> Result<Posted, LedgerRefusal<M>> {
        let now = self.now;
        if !self.is_open() {
            return Err(LedgerRefusal::Full(posting.message));
        }
        if let Some(id) = posting.deduplication {
            let id: Arc<str> = id.into();
            let until = now.saturating_add(self.options.deduplication_window);
            self.forgotten_at.insert((until, Arc::clone(&id)));
            self.quiet_until = self.quiet_until.min(until);
            self.remembered.insert(id, (posting.id, until));
        }
        let extras = (posting.group.is_some() || posting.expires_at.is_some()).then(|| {
            self.counter += 1;
            let group = posting.group.map(|name| self.groups.name(name));
            Box::new(Extras { group, expires_at: posting.expires_at, arrival: self.counter })
        });
        let slot = self.slots.vacancy().fill(Slot::new(posting.id, posting.message, now, extras));
        self.remember_id(posting.id, slot);
        if posting.visible_at > now {
            // Of two with one id the first is the one that can be cancelled.
            self.cancellable.entry(posting.id).or_insert(slot);
            self.delayed += 1;
            self.put_off(slot, posting.visible_at, State::Delayed);
            self.watch_expiry(slot);
        } else {
            self.join(slot);
        }
        Ok(Posted::Stored)
    }

    /// Whether one more message may be stored.
    #[inline]
    pub fn has_room(&mut self, now: u64) -> bool {
        self.advance(now);
        self.is_open()
    }

    /// Stores a plain message that is sent now, or that was taken in before, at `sent_at`, whatever the bound is: a caller that heeds it asks
    /// whether there [is room](Self::has_room). It is behind all that can be
    /// delivered already: a caller that keeps messages back stores them before anything else surfaces, so before something
    /// [is due](Self::is_due), is given back, or leaves a [group](Self::has_groups).
    #[inline(always)]
    pub fn absorb(&mut self, sent_at: u64, id: u128, message: M) {
        self.advance(sent_at);
        let vacancy = self.slots.vacancy();
        if self.options.max_deliveries == Some(0) {
            let slot = vacancy.fill(Slot::new(id, message, sent_at, None));
            self.remember_id(id, slot);
            return self.surface(slot);
        }
        self.surfaced += 1;
        // Made as one that is in the list.
        let (prev, rank) = (self.ready.tail, self.surfaced);
        let linked = Slot { state: State::Ready, prev, rank, ..Slot::new(id, message, sent_at, None) };
        let slot = vacancy.fill(linked);
        self.ready.follow(&mut self.slots, slot);
        self.deliverable += 1;
        self.remember_id(id, slot);
    }

    /// Leases up to `max` messages until `until`, and shows each to `take`, in order. They may all be leased before the first one is
    /// shown: should `take` panic, those that it has not seen come back, too, and were delivered once more.
    #[inline]
    pub fn receive(&mut self, now: u64, max: usize, until: u64, mut take: impl FnMut(Held<'_, M>)) -> usize {
        let now = self.advance(now);
        // Not before now: what ends at once ends with the next call, not within this one.
        let until = until.max(now);
        let first = self.ready.head;
        let taken = match self.slots.get(self.line.tail).is_none_or(|last| last.until <= until) {
            true => self.lease_run(max, until),
            false => return self.lease_singly(max, until, take),
        };
        // Shown when all is in its place: what the caller does with them may fail.
        let mut slot = first;
        for _ in 0..taken {
            let held = self.slot(slot);
            take(held.show(Receipt { slot, number: held.number }));
            slot = held.next;
        }
        taken
    }

    /// Ends a lease and takes the message out, for good. Gives the message, so that it is dropped where it suits.
    ///
    /// # Errors
    /// [`Stale`], and the message stays where it is.
    pub fn acknowledge(&mut self, now: u64, receipt: Receipt) -> Result<M, Stale> {
        self.advance(now);
        let slot = self.leased(receipt)?;
        Ok(self.remove(slot).message)
    }

    /// The same, but the message stays where it is: `take` takes out what it owns. What it leaves there is forgotten, not dropped.
    ///
    /// # Errors
    /// [`Stale`], and the message stays where it is.
    #[inline(always)]
    pub fn acknowledge_in_place(&mut self, now: u64, receipt: Receipt, take: impl FnOnce(&mut M)) -> Result<(), Stale> {
        self.advance(now);
        let slot = receipt.slot;
        let held = self.slots.get_mut(slot).filter(|held| held.is_leased(receipt)).ok_or(Stale)?;
        take(&mut held.message);
        match held {
            Slot { extras: None, place: NONE, prev, next, id, .. } => {
                let (prev, next, id) = (*prev, *next, *id);
                self.forget_id(id, slot);
                self.line.close_gap(&mut self.slots, prev, next);
                self.leased -= 1;
                self.slots.forget(slot);
            }
            _ => core::mem::forget(self.remove(slot).message),
        }
        Ok(())
    }

    /// Ends a lease; the message is visible again at `at`.
    ///
    /// # Errors
    /// [`Stale`], and the message stays where it is.
    pub fn give_back(&mut self, now: u64, receipt: Receipt, at: u64) -> Result<(), Stale> {
        let now = self.advance(now);
        let slot = self.leased(receipt)?;
        self.take_from_due(slot);
        if at > now {
            self.delayed += 1;
            self.put_off(slot, at, State::Returning);
            self.watch_expiry(slot);
        } else {
            self.surface(slot);
        }
        // Its expiry did not count while it was leased, and may have passed.
        self.advance(now);
        Ok(())
    }

    /// Ends a lease as if the message had not been delivered: it is where it was among what can be delivered, and its deliveries
    /// are as many as before.
    ///
    /// ```
    /// use postbox_core::{Ledger, LedgerOptions, Posting};
    ///
    /// let mut ledger = Ledger::new(LedgerOptions { max_deliveries: Some(1), ..Default::default() });
    /// ledger.send(0, Posting::new(1, "first")).unwrap();
    /// ledger.send(0, Posting::new(2, "second")).unwrap();
    /// let mut receipt = None;
    /// ledger.receive(0, 1, 30, |held| receipt = Some(held.receipt));
    /// ledger.release(1, receipt.unwrap()).unwrap();
    /// ledger.receive(2, 1, 30, |held| assert_eq!((*held.message, held.deliveries), ("first", 1)));
    /// ```
    ///
    /// # Errors
    /// [`Stale`], and the message stays where it is.
    pub fn release(&mut self, now: u64, receipt: Receipt) -> Result<(), Stale> {
        self.advance(now);
        let slot = self.leased(receipt)?;
        self.take_from_due(slot);
        let held = self.slot_mut(slot);
        held.deliveries = held.deliveries.saturating_sub(1);
        held.state = State::Ready;
        self.ready.insert_by_rank(&mut self.slots, slot);
        self.deliverable += 1;
        self.surfaced += 1;
        self.watch_expiry(slot);
        self.advance(now);
        Ok(())
    }

    /// Keeps a lease until `until`. It never becomes shorter than it was.
    ///
    /// # Errors
    /// [`Stale`], and the message stays where it is.
    pub fn extend(&mut self, now: u64, receipt: Receipt, until: u64) -> Result<(), Stale> {
        self.advance(now);
        let slot = self.leased(receipt)?;
        if self.due_at(slot) < until {
            self.take_from_due(slot);
            self.leased += 1;
            self.put_off(slot, until, State::Leased);
        }
        Ok(())
    }

    /// Ends a lease and moves the message to the dead letters.
    ///
    /// # Errors
    /// [`Stale`], and the message stays where it is.
    pub fn dead_letter(&mut self, now: u64, receipt: Receipt, reason: Cow<'static, str>) -> Result<(), Stale> {
        self.advance(now);
        let slot = self.leased(receipt)?;
        self.bury(slot, reason);
        Ok(())
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
        let gone = self.slots.len();
        let slots = self.slots.clear();
        self.due.clear();
        self.groups.clear();
        self.expiring.clear();
        self.cancellable.clear();
        if let Some(ids) = &mut self.ids {
            ids.forget_stored();
        }
        (self.ready, self.line) = (List::new(), List::new());
        (self.deliverable, self.leased, self.delayed) = (0, 0, 0);
        (gone, slots)
    }

    /// Forgets every deduplication id.
    pub fn forget_deduplication(&mut self) {
        self.remembered.clear();
        self.forgotten_at.clear();
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
        self.slots.len() == 0 && self.dead.is_empty() && self.remembered.is_empty()
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
        let due = self.first_due().map(|due| due.at);
        let expiry = self.expiring.first().map(|expiry| expiry.0);
        due.into_iter().chain(expiry).min()
    }

    /// When anything changes by itself, the memory of deduplication ids included.
    pub fn next_change(&self) -> Option<u64> {
        self.next_due().into_iter().chain(self.forgotten_at.first().map(|forgotten| forgotten.0)).min()
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
        let mut slot = self.ready.head;
        for _ in 0..max {
            let Some(held) = self.slots.get(slot) else { break };
            show(held.show(Receipt { slot: NONE, number: 0 }));
            slot = held.next;
        }
    }

    /// Whether something changes by itself at `now`, or may.
    #[inline]
    pub const fn is_due(&self, now: u64) -> bool {
        self.quiet_until <= now
    }

    /// Whether a message of a group is there: when it goes, the next one may surface.
    #[inline]
    pub fn has_groups(&self) -> bool {
        !self.groups.is_empty()
    }

    /// Does what is due at `now`.
    #[inline]
    pub fn advance(&mut self, now: u64) -> u64 {
        self.now = self.now.max(now);
        if self.quiet_until <= self.now {
            self.catch_up();
        }
        self.now
    }

    #[cold]
    fn catch_up(&mut self) {
        while let Some(due) = self.first_due()
            && due.at <= self.now
        {
            let first_time = self.slot(due.slot).state == State::Delayed;
            self.take_from_due(due.slot);
            if first_time {
                self.join(due.slot);
            } else {
                self.surface(due.slot);
            }
        }
        while let Some(&(at, _, slot)) = self.expiring.first()
            && at <= self.now
        {
            let gone = self.remove(slot);
            self.discarded.push(gone.message);
            self.expired += 1;
        }
        while let Some((at, _)) = self.forgotten_at.first()
            && *at <= self.now
        {
            if let Some((_, id)) = self.forgotten_at.pop_first() {
                self.remembered.remove(&id);
            }
        }
        self.quiet_until = self.next_change().unwrap_or(u64::MAX);
    }
}
