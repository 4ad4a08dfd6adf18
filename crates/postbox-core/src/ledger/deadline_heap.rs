//! What is due when: a four-way heap whose entries know their place, so that any of them can leave.

use alloc::vec::Vec;

use super::slab::NONE;

/// A moment at which something happens to a message. Equal moments keep the order in which they were set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Due {
    pub(super) at: u64,
    pub(super) order: u64,
    pub(super) slot: u32,
}

/// The heap. Whoever owns the messages keeps, for each slot, the place that `moved` tells.
#[derive(Debug, Default)]
pub(super) struct DueHeap {
    heap: Vec<Due>,
}

impl DueHeap {
    pub(super) const fn new() -> Self {
        DueHeap { heap: Vec::new() }
    }

    pub(super) fn first(&self) -> Option<Due> {
        self.heap.first().copied()
    }

    pub(super) fn get(&self, place: u32) -> Due {
        self.heap[place as usize]
    }

    pub(super) fn push(&mut self, due: Due, moved: impl FnMut(u32, u32)) {
        self.heap.push(due);
        self.rise(self.heap.len() - 1, moved);
    }

    pub(super) fn remove(&mut self, place: u32, mut moved: impl FnMut(u32, u32)) {
        let place = place as usize;
        let gone = self.heap.swap_remove(place);
        moved(gone.slot, NONE);
        if place < self.heap.len() {
            if self.heap[place] < gone {
                self.rise(place, moved);
            } else {
                self.sink(place, moved);
            }
        }
        if self.heap.is_empty() && self.heap.capacity() > 1024 {
            self.heap = Vec::new();
        }
    }

    pub(super) fn clear(&mut self) {
        self.heap = Vec::new();
    }

    fn rise(&mut self, mut place: usize, mut moved: impl FnMut(u32, u32)) {
        let due = self.heap[place];
        while place > 0 {
            let parent = (place - 1) / 4;
            if self.heap[parent] <= due {
                break;
            }
            self.heap[place] = self.heap[parent];
            moved(self.heap[place].slot, place as u32);
            place = parent;
        }
        self.heap[place] = due;
        moved(due.slot, place as u32);
    }

    fn sink(&mut self, mut place: usize, mut moved: impl FnMut(u32, u32)) {
        let due = self.heap[place];
        loop {
            let first = place * 4 + 1;
            let children = first..(first + 4).min(self.heap.len());
            let Some(least) = children.min_by_key(|&child| self.heap[child]) else { break };
            if due <= self.heap[least] {
                break;
            }
            self.heap[place] = self.heap[least];
            moved(self.heap[place].slot, place as u32);
            place = least;
        }
        self.heap[place] = due;
        moved(due.slot, place as u32);
    }
}
