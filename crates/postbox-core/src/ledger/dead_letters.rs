//! Dead letters: how messages become them, and how they come back.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::collections::VecDeque;

use super::Ledger;
use super::slot::{Extras, Slot, whole};
use super::types::Dead;

impl<M> Ledger<M> {
    /// The dead letters, oldest first.
    pub fn dead(&self) -> impl Iterator<Item = &Dead<M>> {
        self.dead.iter()
    }

    /// Makes up to `max` dead letters, oldest first, ready again, as if never delivered. Stops when the ledger is full.
    /// Returns how many.
    pub fn redrive(&mut self, now: u64, max: usize) -> usize {
        self.advance(now);
        let mut moved = 0;
        while moved < max && self.is_open() {
            let Some(dead) = self.dead.pop_front() else { break };
            self.revive(dead);
            moved += 1;
        }
        moved
    }

    /// Makes one dead letter ready again. `false` if there is none with this id, or no room.
    pub fn redrive_one(&mut self, now: u64, id: u128) -> bool {
        self.advance(now);
        if !self.is_open() {
            return false;
        }
        let place = self.dead.iter().position(|dead| dead.id == id);
        let Some(dead) = place.and_then(|place| self.dead.remove(place)) else { return false };
        self.revive(dead);
        true
    }

    /// Takes the dead letters out.
    pub fn purge_dead(&mut self) -> VecDeque<Dead<M>> {
        if let Some(ids) = &mut self.ids {
            ids.forget_dead();
        }
        core::mem::take(&mut self.dead)
    }

    pub(super) fn bury(&mut self, slot: u32, reason: Cow<'static, str>) {
        let gone = self.remove(slot);
        if let Some(ids) = &mut self.ids {
            ids.died(whole(gone.id));
        }
        self.dead.push_back(Dead {
            id: whole(gone.id),
            message: gone.message,
            deliveries: gone.deliveries,
            sent_at: gone.sent_at,
            died_at: self.now,
            reason,
            group: gone.extras.and_then(|extras| extras.group),
        });
    }

    fn revive(&mut self, dead: Dead<M>) {
        self.counter += 1;
        let arrival = self.counter;
        let extras = dead.group.map(|group| Box::new(Extras { group: Some(group), expires_at: None, arrival }));
        let slot = self.slots.vacancy().fill(Slot::new(dead.id, dead.message, dead.sent_at, extras));
        self.remember_id(dead.id, slot);
        self.join(slot);
    }
}
