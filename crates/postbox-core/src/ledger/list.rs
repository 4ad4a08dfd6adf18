//! Doubly linked lists through the slots of the slab.

use super::slab::{NONE, Slab};
use super::slot::Slot;

/// A list; [`NONE`] is the end.
#[derive(Debug)]
pub(super) struct List {
    head: u32,
    tail: u32,
}

impl List {
    pub(super) const fn new() -> Self {
        List { head: NONE, tail: NONE }
    }

    #[inline(always)]
    pub(super) fn first(&self) -> u32 {
        self.head
    }

    #[inline(always)]
    pub(super) fn last(&self) -> u32 {
        self.tail
    }

    /// Appends a slot.
    pub(super) fn push<M>(&mut self, slots: &mut Slab<Slot<M>>, slot: u32) {
        if let Some(new) = slots.get_mut(slot) {
            (new.prev, new.next) = (self.tail, NONE);
        }
        self.push_linked(slots, slot);
    }

    /// Appends a slot whose own links are set already.
    #[inline(always)]
    pub(super) fn push_linked<M>(&mut self, slots: &mut Slab<Slot<M>>, slot: u32) {
        let tail = core::mem::replace(&mut self.tail, slot);
        match slots.get_mut(tail) {
            Some(last) => last.next = slot,
            None => self.head = slot,
        }
    }

    /// Moves the slots of `other`, from its first one up to `last`, to the end of this list.
    #[inline(always)]
    pub(super) fn take_front<M>(&mut self, other: &mut List, slots: &mut Slab<Slot<M>>, last: u32) {
        let first = other.head;
        let Some(next) = slots.get_mut(last).map(|last| core::mem::replace(&mut last.next, NONE)) else { return };
        other.head = next;
        match slots.get_mut(next) {
            Some(next) => next.prev = NONE,
            None => other.tail = NONE,
        }
        if let Some(first) = slots.get_mut(first) {
            first.prev = self.tail;
        }
        self.push_linked(slots, first);
        self.tail = last;
    }

    /// Inserts a slot before the first slot of a higher rank. Searches from the head.
    pub(super) fn insert_by_rank<M>(&mut self, slots: &mut Slab<Slot<M>>, slot: u32) {
        let Some(rank) = slots.get(slot).map(|slot| slot.rank) else { return };
        let (mut before, mut queued) = (NONE, self.head);
        while let Some(next) = slots.get(queued).filter(|next| next.rank < rank) {
            (before, queued) = (queued, next.next);
        }
        if let Some(new) = slots.get_mut(slot) {
            (new.prev, new.next) = (before, queued);
        }
        match slots.get_mut(before) {
            Some(before) => before.next = slot,
            None => self.head = slot,
        }
        match slots.get_mut(queued) {
            Some(queued) => queued.prev = slot,
            None => self.tail = slot,
        }
    }

    /// Removes a slot.
    pub(super) fn remove<M>(&mut self, slots: &mut Slab<Slot<M>>, slot: u32) {
        let Some(&Slot { prev, next, .. }) = slots.get(slot) else { return };
        match slots.get_mut(prev) {
            Some(before) => before.next = next,
            None => self.head = next,
        }
        match slots.get_mut(next) {
            Some(queued) => queued.prev = prev,
            None => self.tail = prev,
        }
    }
}
