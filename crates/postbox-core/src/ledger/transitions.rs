//! Transitions of a message from one state to another.

use alloc::borrow::Cow;
use alloc::sync::Arc;

use super::Ledger;
use super::deadline_heap::Deadline;
use super::groups::Queued;
use super::slab::NONE;
use super::slot::{Slot, State, id_from_halves};
use super::types::DELIVERIES_SPENT;

impl<M> Ledger<M> {
    /// Whether there is room for another message after the last call.
    #[inline]
    pub(super) fn has_capacity(&self) -> bool {
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

    /// The first deadline: in the list of leases or in the heap.
    pub(super) fn first_deadline(&self) -> Option<Deadline> {
        let lease = self.slots.get(self.leases.first()).map(|first| Deadline {
            at: first.until,
            order: first.number,
            slot: self.leases.first(),
        });
        lease.into_iter().chain(self.deadlines.first()).min()
    }

    /// The end of the delay or lease of a message.
    pub(super) fn deadline_of(&self, slot: u32) -> u64 {
        match self.slot(slot) {
            Slot { heap_index: NONE, until, .. } => *until,
            Slot { heap_index, .. } => self.deadlines.get(*heap_index).at,
        }
    }

    /// Adds a slot to the heap of deadlines. Returns the number that orders it.
    pub(super) fn schedule(&mut self, slot: u32, at: u64, state: State) -> u64 {
        self.next_event_at = self.next_event_at.min(at);
        self.last_number += 1;
        let order = self.last_number;
        self.slot_mut(slot).state = state;
        let Ledger { deadlines, slots, .. } = self;
        deadlines.push(Deadline { at, order, slot }, |slot, heap_index| {
            if let Some(slot) = slots.get_mut(slot) {
                slot.heap_index = heap_index;
            }
        });
        order
    }

    /// Removes a slot from the list of leases or from the heap.
    #[inline(always)]
    pub(super) fn unschedule(&mut self, slot: u32) {
        let entry = self.slot_mut(slot);
        let (heap_index, state) = (entry.heap_index, core::mem::replace(&mut entry.state, State::Unlinked));
        match state {
            State::Leased => self.leased -= 1,
            State::Delayed => {
                self.delayed -= 1;
                let id = id_from_halves(self.slot(slot).id);
                if self.cancellable.get(&id) == Some(&slot) {
                    self.cancellable.remove(&id);
                }
            }
            _ => self.delayed -= 1,
        }
        let Ledger { deadlines, slots, .. } = self;
        if heap_index == NONE {
            return self.leases.remove(slots, slot);
        }
        deadlines.remove(heap_index, |slot, heap_index| {
            if let Some(slot) = slots.get_mut(slot) {
                slot.heap_index = heap_index;
            }
        });
    }

    /// Makes a message visible for the first time: queues it in its group, or makes it ready.
    pub(super) fn join(&mut self, slot: u32) {
        let arrival = self.slot(slot).extras.as_ref().map_or(0, |extras| extras.arrival);
        if let Some(group) = self.slot(slot).group().cloned()
            && !self.groups.join(&group, Queued { slot, arrival })
        {
            self.slot_mut(slot).state = State::Queued;
            self.schedule_expiry(slot);
            return;
        }
        self.make_ready(slot);
    }

    /// Makes a message ready, unless its deliveries are spent.
    #[inline(always)]
    pub(super) fn make_ready(&mut self, slot: u32) {
        if self.options.max_deliveries.is_some_and(|most| self.slot(slot).deliveries >= most) {
            return self.move_to_dead_letters(slot, Cow::Borrowed(DELIVERIES_SPENT));
        }
        self.became_ready += 1;
        let rank = self.became_ready;
        let entry = self.slot_mut(slot);
        (entry.state, entry.rank) = (State::Ready, rank);
        self.ready.push(&mut self.slots, slot);
        self.deliverable += 1;
        self.schedule_expiry(slot);
    }

    pub(super) fn schedule_expiry(&mut self, slot: u32) {
        if let Some(expiry) = self.slot(slot).expiry(slot) {
            self.next_event_at = self.next_event_at.min(expiry.0);
            self.expiring.insert(expiry);
        }
    }

    /// Removes a slot from the list of ready messages.
    pub(super) fn unlink(&mut self, slot: u32) {
        self.ready.remove(&mut self.slots, slot);
        self.slot_mut(slot).state = State::Unlinked;
        self.deliverable -= 1;
    }

    /// Removes a message in any state, and makes the next message of its group ready.
    pub(super) fn remove(&mut self, slot: u32) -> Slot<M> {
        let state = self.slot(slot).state;
        match state {
            State::Ready => self.unlink(slot),
            State::Queued | State::Unlinked => {}
            State::Delayed | State::Returning | State::Leased => self.unschedule(slot),
        }
        let removed = self.slots.remove(slot).expect("a linked slot is in use");
        self.unindex_id(removed.id, slot);
        if let Some(extras) = &removed.extras {
            if let Some(expiry) = removed.expiry(slot) {
                self.expiring.remove(&expiry);
            }
            // A message that was not visible yet has not joined its group.
            if let Some(group) = &extras.group
                && state != State::Delayed
                && let Some(next) = self.leave_group(group, slot)
            {
                self.make_ready(next);
            }
        }
        removed
    }

    /// Removes a message from its group. Returns the message that has thereby come to the head.
    pub(super) fn leave_group(&mut self, group: &Arc<str>, slot: u32) -> Option<u32> {
        let Ledger { groups, slots, .. } = self;
        groups.leave(group, slot, |queued| {
            slots.get(queued.slot).is_some_and(|slot| {
                slot.state == State::Queued
                    && slot.extras.as_ref().is_some_and(|extras| extras.arrival == queued.arrival)
            })
        })
    }
}
