//! Dead letters: moving messages there, redriving and purging them.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::collections::VecDeque;

use super::Ledger;
use super::slot::{Extras, Slot, id_from_halves};
use super::types::DeadMessage;

impl<M> Ledger<M> {
    /// The dead letters, oldest first.
    pub fn dead(&self) -> impl Iterator<Item = &DeadMessage<M>> {
        self.dead.iter()
    }

    /// Redrives up to `max` dead letters, oldest first: they become ready, as if never delivered.
    /// Stops when the ledger is full. Returns the number of redriven messages.
    pub fn redrive(&mut self, now: u64, max: usize) -> usize {
        self.advance(now);
        let mut moved = 0;
        while moved < max && self.has_capacity() {
            let Some(dead) = self.dead.pop_front() else { break };
            self.requeue_dead_letter(dead);
            moved += 1;
        }
        moved
    }

    /// Redrives one dead letter. Returns `false` if there is none with this id, or no room.
    pub fn redrive_one(&mut self, now: u64, id: u128) -> bool {
        self.advance(now);
        if !self.has_capacity() {
            return false;
        }
        let index = self.dead.iter().position(|dead| dead.id == id);
        let Some(dead) = index.and_then(|index| self.dead.remove(index)) else { return false };
        self.requeue_dead_letter(dead);
        true
    }

    /// Removes and returns all dead letters.
    pub fn purge_dead(&mut self) -> VecDeque<DeadMessage<M>> {
        if let Some(ids) = &mut self.id_index {
            ids.remove_dead();
        }
        core::mem::take(&mut self.dead)
    }

    pub(super) fn move_to_dead_letters(&mut self, slot: u32, reason: Cow<'static, str>) {
        let removed = self.remove(slot);
        if let Some(ids) = &mut self.id_index {
            ids.mark_dead(id_from_halves(removed.id));
        }
        self.dead.push_back(DeadMessage {
            id: id_from_halves(removed.id),
            message: removed.message,
            deliveries: removed.deliveries,
            sent_at: removed.sent_at,
            died_at: self.now,
            reason,
            group: removed.extras.and_then(|extras| extras.group),
        });
    }

    fn requeue_dead_letter(&mut self, dead: DeadMessage<M>) {
        self.last_number += 1;
        let arrival = self.last_number;
        let extras = dead.group.map(|group| Box::new(Extras { group: Some(group), expires_at: None, arrival }));
        let slot = self.slots.vacant_entry().insert(Slot::new(dead.id, dead.message, dead.sent_at, extras));
        self.index_id(dead.id, slot);
        self.join(slot);
    }
}
