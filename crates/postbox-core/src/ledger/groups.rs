//! Message groups: the message at the head of each group, and the messages queued behind it.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;

/// A message queued in its group. If it expires, its entry stays and is skipped later, so that
/// removal takes constant time. `arrival` detects such an entry, since the slot may have been
/// reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Queued {
    pub(super) slot: u32,
    pub(super) arrival: u64,
}

/// A group exists while one of its messages is at the head: ready, leased, or given back with a
/// delay.
#[derive(Debug)]
struct Group {
    head: u32,
    queued: VecDeque<Queued>,
    /// The number of entries in `queued` whose messages have been removed.
    removed: usize,
}

#[derive(Debug)]
pub(super) struct Groups {
    groups: BTreeMap<Arc<str>, Group>,
}

impl Groups {
    pub(super) const fn new() -> Self {
        Groups { groups: BTreeMap::new() }
    }

    /// The shared name of a group.
    pub(super) fn name(&self, name: &str) -> Arc<str> {
        match self.groups.get_key_value(name) {
            Some((name, _)) => Arc::clone(name),
            None => name.into(),
        }
    }

    /// Adds a message to its group. Returns `true` if it is at the head and can be delivered.
    pub(super) fn join(&mut self, name: &Arc<str>, message: Queued) -> bool {
        if let Some(group) = self.groups.get_mut(name) {
            group.queued.push_back(message);
            return false;
        }
        self.groups.insert(Arc::clone(name), Group { head: message.slot, queued: VecDeque::new(), removed: 0 });
        true
    }

    /// Removes a message from its group, and returns the slot of the message that has thereby come
    /// to the head. `is_queued` tells whether the message of an entry is still queued.
    pub(super) fn leave(&mut self, name: &Arc<str>, slot: u32, is_queued: impl Fn(&Queued) -> bool) -> Option<u32> {
        let group = self.groups.get_mut(name)?;
        if group.head != slot {
            group.removed += 1;
            if group.removed > 32 && group.removed * 2 > group.queued.len() {
                group.queued.retain(|queued| is_queued(queued));
                group.removed = 0;
            }
            return None;
        }
        while let Some(next) = group.queued.pop_front() {
            if is_queued(&next) {
                group.head = next.slot;
                return Some(next.slot);
            }
            group.removed = group.removed.saturating_sub(1);
        }
        self.groups.remove(name);
        None
    }

    pub(super) fn clear(&mut self) {
        self.groups.clear();
    }
}
