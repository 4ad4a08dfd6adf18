//! How a message goes from one place of the ledger to another.

use alloc::borrow::Cow;
use alloc::sync::Arc;

use super::Ledger;
use super::deadline_heap::Due;
use super::groups::Behind;
use super::slab::NONE;
use super::slot::{Slot, State, whole};
use super::types::DELIVERIES_SPENT;

impl<M> Ledger<M> {
    /// Whether there is room, as of the last call.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.options.max_size.is_none_or(|most| self.slots.len() < most)
    }

    #[inline]
    pub(super) fn slot(&self, slot: u32) -> &Slot<M> {
        self.slots.get(slot).expect("a linked slot is in use")
    }

    #[inline]
    pub(super) fn slot_mut(&mut self, slot: u32) -> &mut Slot<M> {
        self.slots.get_mut(slot).expect("a linked slot is in use")
    }

    /// What is due first of all: in the line of leases, or in the heap.
    pub(super) fn first_due(&self) -> Option<Due> {
        let line = self.slots.get(self.line.head).map(|first| Due {
            at: first.until,
            order: first.number,
            slot: self.line.head,
        });
        line.into_iter().chain(self.due.first()).min()
    }

    /// When a delay or a lease ends.
    pub(super) fn due_at(&self, slot: u32) -> u64 {
        match self.slot(slot) {
            Slot { place: NONE, until, .. } => *until,
            Slot { place, .. } => self.due.get(*place).at,
        }
    }

    /// Puts a slot into the heap. Returns the number that was used up for it.
    pub(super) fn put_off(&mut self, slot: u32, at: u64, state: State) -> u64 {
        self.quiet_until = self.quiet_until.min(at);
        self.counter += 1;
        let order = self.counter;
        self.slot_mut(slot).state = state;
        let Ledger { due, slots, .. } = self;
        due.push(Due { at, order, slot }, |slot, place| {
            if let Some(slot) = slots.get_mut(slot) {
                slot.place = place;
            }
        });
        order
    }

    /// Takes a slot out of the line of leases, or out of the heap.
    #[inline(always)]
    pub(super) fn take_from_due(&mut self, slot: u32) {
        let held = self.slot_mut(slot);
        let (place, state) = (held.place, core::mem::replace(&mut held.state, State::Loose));
        match state {
            State::Leased => self.leased -= 1,
            State::Delayed => {
                self.delayed -= 1;
                let id = whole(self.slot(slot).id);
                if self.cancellable.get(&id) == Some(&slot) {
                    self.cancellable.remove(&id);
                }
            }
            _ => self.delayed -= 1,
        }
        let Ledger { due, slots, .. } = self;
        if place == NONE {
            return self.line.remove(slots, slot);
        }
        due.remove(place, |slot, place| {
            if let Some(slot) = slots.get_mut(slot) {
                slot.place = place;
            }
        });
    }

    /// A message is visible for the first time: it joins its group, or what can be delivered.
    pub(super) fn join(&mut self, slot: u32) {
        let arrival = self.slot(slot).extras.as_ref().map_or(0, |extras| extras.arrival);
        if let Some(group) = self.slot(slot).group().cloned()
            && !self.groups.join(&group, Behind { slot, arrival })
        {
            self.slot_mut(slot).state = State::Behind;
            self.watch_expiry(slot);
            return;
        }
        self.surface(slot);
    }

    /// A message can be delivered, unless its deliveries are spent.
    #[inline(always)]
    pub(super) fn surface(&mut self, slot: u32) {
        if self.options.max_deliveries.is_some_and(|most| self.slot(slot).deliveries >= most) {
            return self.bury(slot, Cow::Borrowed(DELIVERIES_SPENT));
        }
        self.surfaced += 1;
        let rank = self.surfaced;
        let held = self.slot_mut(slot);
        (held.state, held.rank) = (State::Ready, rank);
        self.ready.push(&mut self.slots, slot);
        self.deliverable += 1;
        self.watch_expiry(slot);
    }

    pub(super) fn watch_expiry(&mut self, slot: u32) {
        if let Some(expiry) = self.slot(slot).expiry(slot) {
            self.quiet_until = self.quiet_until.min(expiry.0);
            self.expiring.insert(expiry);
        }
    }

    /// Takes a slot out of what can be delivered.
    pub(super) fn unlink(&mut self, slot: u32) {
        self.ready.remove(&mut self.slots, slot);
        self.slot_mut(slot).state = State::Loose;
        self.deliverable -= 1;
    }

    /// Takes a message out, wherever it is, and lets its group go on.
    pub(super) fn remove(&mut self, slot: u32) -> Slot<M> {
        let state = self.slot(slot).state;
        match state {
            State::Ready => self.unlink(slot),
            State::Behind | State::Loose => {}
            State::Delayed | State::Returning | State::Leased => self.take_from_due(slot),
        }
        let gone = self.slots.remove(slot).expect("a linked slot is in use");
        self.forget_id(gone.id, slot);
        if let Some(extras) = &gone.extras {
            if let Some(expiry) = gone.expiry(slot) {
                self.expiring.remove(&expiry);
            }
            // One that was not visible yet has not joined its group.
            if let Some(group) = &extras.group
                && state != State::Delayed
                && let Some(next) = self.next_of_group(group, slot)
            {
                self.surface(next);
            }
        }
        gone
    }

    /// A message has left its group. Whoever is at the head because of it.
    pub(super) fn next_of_group(&mut self, group: &Arc<str>, slot: u32) -> Option<u32> {
        let Ledger { groups, slots, .. } = self;
        groups.leave(group, slot, |behind| {
            slots.get(behind.slot).is_some_and(|slot| {
                slot.state == State::Behind
                    && slot.extras.as_ref().is_some_and(|extras| extras.arrival == behind.arrival)
            })
        })
    }
}
