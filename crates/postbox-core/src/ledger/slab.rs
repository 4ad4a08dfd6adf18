//! A slab: values with stable indices, in chunks. Growing moves no value, and an empty slab keeps
//! one chunk.

use alloc::boxed::Box;
use alloc::vec::Vec;

const CHUNK: usize = 64;
pub(super) const NONE: u32 = u32::MAX;

#[derive(Debug)]
enum Entry<T> {
    Vacant { next: u32 },
    Occupied(T),
}

/// An array, so that finding an entry takes one bounds check.
type Chunk<T> = Box<[Entry<T>; CHUNK]>;

#[derive(Debug)]
pub(super) struct Slab<T> {
    chunks: Vec<Chunk<T>>,
    free: u32,
    len: usize,
}

/// A vacant entry. The value is constructed after the last fallible step, so it is written in
/// place.
pub(super) struct VacantEntry<'a, T> {
    index: u32,
    entry: &'a mut Entry<T>,
    next: u32,
    free: &'a mut u32,
    len: &'a mut usize,
}

impl<T> VacantEntry<'_, T> {
    #[inline(always)]
    pub(super) fn insert(self, value: T) -> u32 {
        *self.free = self.next;
        *self.len += 1;
        // A vacant entry owns nothing, so there is nothing to drop.
        core::mem::forget(core::mem::replace(self.entry, Entry::Occupied(value)));
        self.index
    }
}

impl<T> Slab<T> {
    pub(super) const fn new() -> Self {
        Slab { chunks: Vec::new(), free: NONE, len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns a vacant entry.
    #[inline(always)]
    pub(super) fn vacant_entry(&mut self) -> VacantEntry<'_, T> {
        if self.free == NONE {
            self.grow();
        }
        let index = self.free;
        let Slab { chunks, free, len } = self;
        let entry = &mut chunks[index as usize / CHUNK][index as usize % CHUNK];
        let Entry::Vacant { next } = *entry else { unreachable!("the free list contains vacant entries only") };
        VacantEntry { index, entry, next, free, len }
    }

    /// Adds a chunk of vacant entries.
    #[cold]
    fn grow(&mut self) {
        let first = self.chunks.len() * CHUNK;
        assert!(first + CHUNK <= NONE as usize, "too many messages in one mailbox");
        self.chunks.push(Self::chunk(first as u32));
        self.free = first as u32;
    }

    fn chunk(first: u32) -> Chunk<T> {
        let end = first + CHUNK as u32;
        let entries: Box<[Entry<T>]> =
            (first + 1..=end).map(|next| Entry::Vacant { next: if next == end { NONE } else { next } }).collect();
        entries.try_into().unwrap_or_else(|_| unreachable!("the iterator yields CHUNK entries"))
    }

    pub(super) fn get(&self, index: u32) -> Option<&T> {
        match self.chunks.get(index as usize / CHUNK)?[index as usize % CHUNK] {
            Entry::Occupied(ref value) => Some(value),
            Entry::Vacant { .. } => None,
        }
    }

    /// All values with their indices.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let entries = self.chunks.iter().flat_map(|chunk| chunk.iter());
        (0u32..).zip(entries).filter_map(|(index, entry)| match entry {
            Entry::Occupied(value) => Some((index, value)),
            Entry::Vacant { .. } => None,
        })
    }

    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        match &mut self.chunks.get_mut(index as usize / CHUNK)?[index as usize % CHUNK] {
            Entry::Occupied(value) => Some(value),
            Entry::Vacant { .. } => None,
        }
    }

    #[inline(always)]
    pub(super) fn remove(&mut self, index: u32) -> Option<T> {
        if self.len == 1 && self.chunks.len() > 1 {
            return self.remove_last(index);
        }
        self.take(index)
    }

    #[inline(always)]
    fn take(&mut self, index: u32) -> Option<T> {
        let entry = &mut self.chunks.get_mut(index as usize / CHUNK)?[index as usize % CHUNK];
        if matches!(entry, Entry::Vacant { .. }) {
            return None;
        }
        let Entry::Occupied(value) = core::mem::replace(entry, Entry::Vacant { next: self.free }) else { return None };
        self.free = index;
        self.len -= 1;
        Some(value)
    }

    #[cold]
    fn remove_last(&mut self, index: u32) -> Option<T> {
        let value = self.take(index)?;
        self.chunks.truncate(1);
        self.chunks[0] = Self::chunk(0);
        self.free = 0;
        Some(value)
    }

    /// Removes everything.
    pub(super) fn clear(&mut self) -> Vec<impl Sized + use<T>> {
        self.free = NONE;
        self.len = 0;
        core::mem::take(&mut self.chunks)
    }
}
