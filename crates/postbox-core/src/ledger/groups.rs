//! Message groups: which message is at the head of each, and which wait behind it.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;

/// A message behind another of its group. What has removed meanwhile (expired) is known by its arrival, since its slot may be
/// in use again, and is skipped when its turn comes: leaving is constant time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Behind {
    pub(super) slot: u32,
    pub(super) arrival: u64,
}

/// A group exists while one of its messages is at its head: ready, leased, or on its way back.
#[derive(Debug)]
struct Group {
    head: u32,
    behind: VecDeque<Behind>,
    /// How many of those behind have removed.
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

    /// The name, shared with the other messages of the group.
    pub(super) fn name(&self, name: &str) -> Arc<str> {
        match self.groups.get_key_value(name) {
            Some((name, _)) => Arc::clone(name),
            None => name.into(),
        }
    }

    /// A message joins its group. `true` if it is at the head and can be delivered.
    pub(super) fn join(&mut self, name: &Arc<str>, message: Behind) -> bool {
        if let Some(group) = self.groups.get_mut(name) {
            group.behind.push_back(message);
            return false;
        }
        self.groups.insert(Arc::clone(name), Group { head: message.slot, behind: VecDeque::new(), removed: 0 });
        true
    }

    /// A message leaves its group for good. Whoever is at the head because of it can now be delivered. `is_queued` tells
    /// whether one of those behind is still there.
    pub(super) fn leave(&mut self, name: &Arc<str>, slot: u32, is_queued: impl Fn(&Behind) -> bool) -> Option<u32> {
        let group = self.groups.get_mut(name)?;
        if group.head != slot {
            group.removed += 1;
            if group.removed > 32 && group.removed * 2 > group.behind.len() {
                group.behind.retain(|behind| is_queued(behind));
                group.removed = 0;
            }
            return None;
        }
        while let Some(next) = group.behind.pop_front() {
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
