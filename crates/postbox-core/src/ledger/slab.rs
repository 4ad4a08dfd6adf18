//! Places for values, used again, in chunks: growing moves nothing, and an empty slab keeps one chunk.

use alloc::vec::Vec;

const CHUNK: usize = 64;
pub(super) const NONE: u32 = u32::MAX;

#[derive(Debug)]
enum Place<T> {
    Free { next: u32 },
    Used(T),
}

#[derive(Debug)]
pub(super) struct Slab<T> {
    chunks: Vec<Vec<Place<T>>>,
    free: u32,
    len: usize,
}

impl<T> Slab<T> {
    pub(super) const fn new() -> Self {
        Slab { chunks: Vec::new(), free: NONE, len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn insert(&mut self, value: T) -> u32 {
        self.len += 1;
        let index = self.free;
        if index == NONE {
            return self.append(value);
        }
        let place = &mut self.chunks[index as usize / CHUNK][index as usize % CHUNK];
        if let Place::Free { next } = *place {
            self.free = next;
        }
        *place = Place::Used(value);
        index
    }

    fn append(&mut self, value: T) -> u32 {
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        let number = self.chunks.len() - 1;
        let chunk = &mut self.chunks[number];
        let index = u32::try_from(number * CHUNK + chunk.len()).ok().filter(|&index| index != NONE);
        chunk.push(Place::Used(value));
        index.expect("fewer than 2^32 - 1 messages are in one mailbox")
    }

    pub(super) fn get(&self, index: u32) -> Option<&T> {
        match self.chunks.get(index as usize / CHUNK)?.get(index as usize % CHUNK)? {
            Place::Used(value) => Some(value),
            Place::Free { .. } => None,
        }
    }

    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        match self.chunks.get_mut(index as usize / CHUNK)?.get_mut(index as usize % CHUNK)? {
            Place::Used(value) => Some(value),
            Place::Free { .. } => None,
        }
    }

    pub(super) fn remove(&mut self, index: u32) -> Option<T> {
        let place = self.chunks.get_mut(index as usize / CHUNK)?.get_mut(index as usize % CHUNK)?;
        if matches!(place, Place::Free { .. }) {
            return None;
        }
        let Place::Used(value) = core::mem::replace(place, Place::Free { next: self.free }) else { return None };
        self.free = index;
        self.len -= 1;
        if self.len == 0 && self.chunks.len() > 1 {
            self.chunks.truncate(1);
            self.chunks[0].clear();
            self.free = NONE;
        }
        Some(value)
    }

    /// Takes everything out.
    pub(super) fn clear(&mut self) -> Vec<Vec<impl Sized + use<T>>> {
        self.free = NONE;
        self.len = 0;
        core::mem::take(&mut self.chunks)
    }
}
