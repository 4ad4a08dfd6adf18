//! Places for values, used again, in chunks: growing moves nothing, and an empty slab keeps one chunk.

use alloc::boxed::Box;
use alloc::vec::Vec;

const CHUNK: usize = 64;
pub(super) const NONE: u32 = u32::MAX;

#[derive(Debug)]
enum Place<T> {
    Free { next: u32 },
    Used(T),
}

/// As arrays, so that a place is found with one check of bounds.
type Chunk<T> = Box<[Place<T>; CHUNK]>;

#[derive(Debug)]
pub(super) struct Slab<T> {
    chunks: Vec<Chunk<T>>,
    free: u32,
    len: usize,
}

/// A place that is free. What goes there is made only now, when nothing can go wrong any more: so it is written where it stays.
pub(super) struct Vacancy<'a, T> {
    index: u32,
    place: &'a mut Place<T>,
    next: u32,
    free: &'a mut u32,
    len: &'a mut usize,
}

impl<T> Vacancy<'_, T> {
    #[inline(always)]
    pub(super) fn fill(self, value: T) -> u32 {
        *self.free = self.next;
        *self.len += 1;
        // It was free: there is nothing to drop.
        core::mem::forget(core::mem::replace(self.place, Place::Used(value)));
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

    /// A free place.
    #[inline(always)]
    pub(super) fn vacancy(&mut self) -> Vacancy<'_, T> {
        if self.free == NONE {
            self.grow();
        }
        let index = self.free;
        let Slab { chunks, free, len } = self;
        let place = &mut chunks[index as usize / CHUNK][index as usize % CHUNK];
        let Place::Free { next } = *place else { unreachable!("the list of free places leads to free places") };
        Vacancy { index, place, next, free, len }
    }

    /// Adds a chunk of free places.
    #[cold]
    fn grow(&mut self) {
        let first = self.chunks.len() * CHUNK;
        assert!(first + CHUNK <= NONE as usize, "fewer than 2^32 - 64 messages are in one mailbox");
        self.chunks.push(Self::chunk(first as u32));
        self.free = first as u32;
    }

    fn chunk(first: u32) -> Chunk<T> {
        let end = first + CHUNK as u32;
        let places: Box<[Place<T>]> =
            (first + 1..=end).map(|next| Place::Free { next: if next == end { NONE } else { next } }).collect();
        places.try_into().unwrap_or_else(|_| unreachable!("a chunk has as many places as a chunk"))
    }

    pub(super) fn get(&self, index: u32) -> Option<&T> {
        match self.chunks.get(index as usize / CHUNK)?[index as usize % CHUNK] {
            Place::Used(ref value) => Some(value),
            Place::Free { .. } => None,
        }
    }

    /// Every value, with its place.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let places = self.chunks.iter().flat_map(|chunk| chunk.iter());
        (0u32..).zip(places).filter_map(|(index, place)| match place {
            Place::Used(value) => Some((index, value)),
            Place::Free { .. } => None,
        })
    }

    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        match &mut self.chunks.get_mut(index as usize / CHUNK)?[index as usize % CHUNK] {
            Place::Used(value) => Some(value),
            Place::Free { .. } => None,
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
        let place = &mut self.chunks.get_mut(index as usize / CHUNK)?[index as usize % CHUNK];
        if matches!(place, Place::Free { .. }) {
            return None;
        }
        let Place::Used(value) = core::mem::replace(place, Place::Free { next: self.free }) else { return None };
        self.free = index;
        self.len -= 1;
        Some(value)
    }

    /// Frees a place. What is in it is not dropped: it must own nothing any more.
    #[inline(always)]
    pub(super) fn forget(&mut self, index: u32) {
        if self.len == 1 && self.chunks.len() > 1 {
            core::mem::forget(self.remove_last(index));
            return;
        }
        let Some(chunk) = self.chunks.get_mut(index as usize / CHUNK) else { return };
        let place = &mut chunk[index as usize % CHUNK];
        if matches!(place, Place::Used(_)) {
            let next = core::mem::replace(&mut self.free, index);
            self.len -= 1;
            core::mem::forget(core::mem::replace(place, Place::Free { next }));
        }
    }

    #[cold]
    fn remove_last(&mut self, index: u32) -> Option<T> {
        let value = self.take(index)?;
        self.chunks.truncate(1);
        self.chunks[0] = Self::chunk(0);
        self.free = 0;
        Some(value)
    }

    /// Takes everything out.
    pub(super) fn clear(&mut self) -> Vec<impl Sized + use<T>> {
        self.free = NONE;
        self.len = 0;
        core::mem::take(&mut self.chunks)
    }
}
