//! An index of messages by id, for sends with ids chosen by callers.

use alloc::collections::BTreeMap;

use super::Ledger;
use super::slot::id_from_halves;

/// The location of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Location {
    Slot(u32),
    Dead,
}

#[derive(Debug, Default)]
pub(super) struct IdIndex {
    locations: BTreeMap<u128, Location>,
}

impl IdIndex {
    /// Records that a message has become a dead letter.
    pub(super) fn mark_dead(&mut self, id: u128) {
        self.locations.insert(id, Location::Dead);
    }

    /// Removes all messages except the dead letters.
    pub(super) fn remove_stored(&mut self) {
        self.locations.retain(|_, location| *location == Location::Dead);
    }

    /// Removes the dead letters.
    pub(super) fn remove_dead(&mut self) {
        self.locations.retain(|_, location| *location != Location::Dead);
    }
}

impl<M> Ledger<M> {
    /// The message with an id. The first call builds the index, which is maintained from then on.
    pub(super) fn find_by_id(&mut self, id: u128) -> Option<&M> {
        let Ledger { id_index, slots, dead, .. } = self;
        let ids = id_index.get_or_insert_with(|| {
            let dead = dead.iter().map(|dead| (dead.id, Location::Dead));
            let stored = slots.iter().map(|(slot, entry)| (id_from_halves(entry.id), Location::Slot(slot)));
            IdIndex { locations: dead.chain(stored).collect() }
        });
        match ids.locations.get(&id)? {
            Location::Slot(slot) => slots.get(*slot).map(|entry| &entry.message),
            Location::Dead => dead.iter().find(|dead| dead.id == id).map(|dead| &dead.message),
        }
    }

    #[inline(always)]
    pub(super) fn index_id(&mut self, id: u128, slot: u32) {
        if let Some(ids) = &mut self.id_index {
            ids.locations.insert(id, Location::Slot(slot));
        }
    }

    #[inline(always)]
    pub(super) fn unindex_id(&mut self, id: [u64; 2], slot: u32) {
        if let Some(ids) = &mut self.id_index
            && ids.locations.get(&id_from_halves(id)) == Some(&Location::Slot(slot))
        {
            ids.locations.remove(&id_from_halves(id));
        }
    }
}
