//! Messages by id, for sends with an id of the caller's own.

use alloc::collections::BTreeMap;

use super::Ledger;
use super::slot::whole;

/// Where the message with an id is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Slot(u32),
    Dead,
}

#[derive(Debug, Default)]
pub(super) struct Ids {
    places: BTreeMap<u128, Place>,
}

impl Ids {
    /// The message with this id is a dead letter now.
    pub(super) fn died(&mut self, id: u128) {
        self.places.insert(id, Place::Dead);
    }

    /// Every message is gone, except the dead letters.
    pub(super) fn forget_stored(&mut self) {
        self.places.retain(|_, place| *place == Place::Dead);
    }

    /// The dead letters are gone.
    pub(super) fn forget_dead(&mut self) {
        self.places.retain(|_, place| *place != Place::Dead);
    }
}

impl<M> Ledger<M> {
    /// The message with an id. The first call looks at every message; from then on the ids are kept.
    pub(super) fn held(&mut self, id: u128) -> Option<&M> {
        let Ledger { ids, slots, dead, .. } = self;
        let ids = ids.get_or_insert_with(|| {
            let dead = dead.iter().map(|dead| (dead.id, Place::Dead));
            let stored = slots.iter().map(|(slot, held)| (whole(held.id), Place::Slot(slot)));
            Ids { places: dead.chain(stored).collect() }
        });
        match ids.places.get(&id)? {
            Place::Slot(slot) => slots.get(*slot).map(|held| &held.message),
            Place::Dead => dead.iter().find(|dead| dead.id == id).map(|dead| &dead.message),
        }
    }

    #[inline(always)]
    pub(super) fn remember_id(&mut self, id: u128, slot: u32) {
        if let Some(ids) = &mut self.ids {
            ids.places.insert(id, Place::Slot(slot));
        }
    }

    #[inline(always)]
    pub(super) fn forget_id(&mut self, id: [u64; 2], slot: u32) {
        if let Some(ids) = &mut self.ids
            && ids.places.get(&whole(id)) == Some(&Place::Slot(slot))
        {
            ids.places.remove(&whole(id));
        }
    }
}
