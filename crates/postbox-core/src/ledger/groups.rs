//! Message groups: who is at the head of each, and who waits behind it.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;

/// A group exists while one of its messages is at its head: ready, leased, or on its way back.
#[derive(Debug)]
struct Group {
    head: u32,
    behind: VecDeque<u32>,
}

#[derive(Debug)]
pub(super) struct Groups {
    groups: BTreeMap<Arc<str>, Group>,
}

impl Groups {
    pub(super) const fn new() -> Self {
        Groups { groups: BTreeMap::new() }
    }

    /// The name, shared with the other messages of the group.
    pub(super) fn name(&self, name: &str) -> Arc<str> {
        match self.groups.get_key_value(name) {
            Some((name, _)) => Arc::clone(name),
            None => name.into(),
        }
    }

    /// A message joins its group. `true` if it is at the head and can be delivered.
    pub(super) fn join(&mut self, name: &Arc<str>, slot: u32) -> bool {
        if let Some(group) = self.groups.get_mut(name) {
            group.behind.push_back(slot);
            return false;
        }
        self.groups.insert(Arc::clone(name), Group { head: slot, behind: VecDeque::new() });
        true
    }

    /// A message leaves its group for good. Whoever is at the head because of it can now be delivered.
    pub(super) fn leave(&mut self, name: &Arc<str>, slot: u32) -> Option<u32> {
        let group = self.groups.get_mut(name)?;
        if group.head != slot {
            group.behind.retain(|&other| other != slot);
            return None;
        }
        match group.behind.pop_front() {
            Some(next) => {
                group.head = next;
                Some(next)
            }
            None => {
                self.groups.remove(name);
                None
            }
        }
    }

    pub(super) fn clear(&mut self) {
        self.groups.clear();
    }
}
