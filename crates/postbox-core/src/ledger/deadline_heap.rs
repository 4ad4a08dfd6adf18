//! Deadlines of messages: a four-way heap that reports the index of each entry, so that any entry
//! can be removed.

use alloc::vec::Vec;

use super::slab::NONE;

/// A deadline of the message in `slot`. Equal deadlines keep the order in which they were set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Deadline {
    pub(super) at: u64,
    pub(super) order: u64,
    pub(super) slot: u32,
}

/// The heap. Its owner stores the current index of each slot, which the callback `moved(slot,
/// index)` reports.
#[derive(Debug, Default)]
pub(super) struct DeadlineHeap {
    heap: Vec<Deadline>,
}

impl DeadlineHeap {
    pub(super) const fn new() -> Self {
        DeadlineHeap { heap: Vec::new() }
    }

    pub(super) fn first(&self) -> Option<Deadline> {
        self.heap.first().copied()
    }

    pub(super) fn get(&self, index: u32) -> Deadline {
        self.heap[index as usize]
    }

    pub(super) fn push(&mut self, due: Deadline, moved: impl FnMut(u32, u32)) {
        self.heap.push(due);
        self.sift_up(self.heap.len() - 1, moved);
    }

    pub(super) fn remove(&mut self, index: u32, mut moved: impl FnMut(u32, u32)) {
        let index = index as usize;
        let removed = self.heap.swap_remove(index);
        moved(removed.slot, NONE);
        if index < self.heap.len() {
            if self.heap[index] < removed {
                self.sift_up(index, moved);
            } else {
                self.sift_down(index, moved);
            }
        }
        if self.heap.is_empty() && self.heap.capacity() > 1024 {
            self.heap = Vec::new();
        }
    }

    pub(super) fn clear(&mut self) {
        self.heap = Vec::new();
    }

    fn sift_up(&mut self, mut index: usize, mut moved: impl FnMut(u32, u32)) {
        let due = self.heap[index];
        while index > 0 {
            let parent = (index - 1) / 4;
            if self.heap[parent] <= due {
                break;
            }
            self.heap[index] = self.heap[parent];
            moved(self.heap[index].slot, index as u32);
            index = parent;
        }
        self.heap[index] = due;
        moved(due.slot, index as u32);
    }

    fn sift_down(&mut self, mut index: usize, mut moved: impl FnMut(u32, u32)) {
        let due = self.heap[index];
        loop {
            let first = index * 4 + 1;
            let children = first..(first + 4).min(self.heap.len());
            let Some(least) = children.min_by_key(|&child| self.heap[child]) else { break };
            if due <= self.heap[least] {
                break;
            }
            self.heap[index] = self.heap[least];
            moved(self.heap[index].slot, index as u32);
            index = least;
        }
        self.heap[index] = due;
        moved(due.slot, index as u32);
    }
}
