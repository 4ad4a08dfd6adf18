//! A ring that grows by whole chunks: a long queue is never copied, and what it needed is given back.

use core::mem;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// First in, first out, in chunks of about [`CHUNK_BYTES`].
///
/// Most queues fit into `head`. A longer one goes on in `rest`, and a chunk that was emptied is used again.
#[derive(Debug)]
#[doc(hidden)]
pub struct ChunkedQueue<T> {
    /// The oldest messages; all of them while `rest` holds none.
    head: VecDeque<T>,
    rest: Option<Box<Rest<T>>>,
}

#[derive(Debug)]
struct Rest<T> {
    /// Full chunks, older than `tail`.
    full: VecDeque<VecDeque<T>>,
    /// The youngest messages. Holds some whenever `full` does.
    tail: VecDeque<T>,
    /// Messages in `full`.
    full_len: usize,
    spare: Vec<VecDeque<T>>,
}

const CHUNK_BYTES: usize = 16 * 1024;
const SPARE_CHUNKS: usize = 4;

impl<T> Default for ChunkedQueue<T> {
    fn default() -> Self {
        ChunkedQueue { head: VecDeque::new(), rest: None }
    }
}

impl<T> ChunkedQueue<T> {
    /// How many messages fill a chunk.
    const CHUNK: usize = {
        let size = if size_of::<T>() == 0 { 1 } else { size_of::<T>() };
        if CHUNK_BYTES / size < 32 { 32 } else { CHUNK_BYTES / size }
    };

    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.head.len() + self.rest.as_ref().map_or(0, |rest| rest.full_len + rest.tail.len())
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        // `head` is only empty when `rest` is: see `pop_front`.
        self.head.is_empty()
    }

    /// The chunk that the next item belongs to, if it needs no memory for it.
    #[inline(always)]
    pub(crate) fn tail_with_spare(&mut self) -> Option<&mut VecDeque<T>> {
        let chunk = self.tail();
        (chunk.len() < Self::CHUNK && chunk.len() < chunk.capacity()).then_some(chunk)
    }

    /// The youngest chunk.
    #[inline(always)]
    fn tail(&mut self) -> &mut VecDeque<T> {
        match &mut self.rest {
            Some(rest) if !rest.tail.is_empty() => &mut rest.tail,
            _ => &mut self.head,
        }
    }

    /// Whether there is one item and no other.
    #[inline(always)]
    pub(crate) fn is_single(&self) -> bool {
        self.head.len() == 1 && self.rest.as_ref().is_none_or(|rest| rest.tail.is_empty())
    }

    /// [`pop_front`](Self::pop_front) where [one item](Self::is_single) is left.
    #[inline(always)]
    pub(crate) fn pop_single(&mut self) -> Option<T> {
        self.head.pop_front()
    }

    #[inline(always)]
    pub(crate) fn push_back(&mut self, item: T) {
        let chunk = self.tail();
        if chunk.len() < Self::CHUNK {
            chunk.push_back(item);
        } else {
            self.push_into_new_chunk(item);
        }
    }

    /// The last chunk is full: a new one takes its place.
    #[cold]
    fn push_into_new_chunk(&mut self, item: T) {
        let rest = self.rest.get_or_insert_with(|| {
            Box::new(Rest { full: VecDeque::new(), tail: VecDeque::new(), full_len: 0, spare: Vec::new() })
        });
        if !rest.tail.is_empty() {
            let next = rest.new_chunk(Self::CHUNK);
            rest.full_len += rest.tail.len();
            rest.full.push_back(mem::replace(&mut rest.tail, next));
        } else if rest.tail.capacity() == 0 {
            rest.tail = rest.new_chunk(Self::CHUNK);
        }
        rest.tail.push_back(item);
    }

    #[inline(always)]
    pub(crate) fn pop_front(&mut self) -> Option<T> {
        if self.head.len() == 1 && self.rest.as_ref().is_some_and(|rest| !rest.tail.is_empty()) {
            return self.pop_and_advance();
        }
        // Nothing comes after this, so the item goes straight to where the caller wants it.
        self.head.pop_front()
    }

    #[cold]
    fn pop_and_advance(&mut self) -> Option<T> {
        let item = self.head.pop_front();
        self.advance();
        item
    }

    /// The head is used up: the next chunk takes its place.
    fn advance(&mut self) {
        let Some(rest) = &mut self.rest else { return };
        let next = match rest.full.pop_front() {
            Some(next) => {
                rest.full_len -= next.len();
                next
            }
            None => mem::take(&mut rest.tail),
        };
        let used = mem::replace(&mut self.head, next);
        if rest.spare.len() < SPARE_CHUNKS && used.capacity() >= Self::CHUNK {
            rest.spare.push(used);
        }
    }

    /// Puts an item before all others.
    pub(crate) fn push_front(&mut self, item: T) {
        self.head.push_front(item);
    }

    /// Moves all items of `other` behind these.
    pub(crate) fn append(&mut self, other: &mut Self) {
        while let Some(item) = other.pop_front() {
            self.push_back(item);
        }
    }
}

impl<T> Rest<T> {
    fn new_chunk(&mut self, capacity: usize) -> VecDeque<T> {
        self.spare.pop().unwrap_or_else(|| VecDeque::with_capacity(capacity))
    }
}

#[cfg(all(test, not(postbox_loom)))]
mod tests {
    use super::*;

    /// Large enough that a few dozen make a chunk.
    type Item = [u64; 64];

    #[test]
    fn order_survives_chunk_borders_and_interleaving() {
        let mut chunks = ChunkedQueue::<Item>::default();
        let (mut next_in, mut next_out) = (0, 0);
        for round in 0..200u64 {
            for _ in 0..round % 71 {
                chunks.push_back([next_in; 64]);
                next_in += 1;
            }
            for _ in 0..round % 67 {
                if let Some(item) = chunks.pop_front() {
                    assert_eq!(item[0], next_out);
                    next_out += 1;
                }
            }
            assert_eq!(chunks.len() as u64, next_in - next_out);
            assert_eq!(chunks.is_empty(), next_in == next_out);
        }
        while let Some(item) = chunks.pop_front() {
            assert_eq!(item[0], next_out);
            next_out += 1;
        }
        assert_eq!(next_in, next_out);
    }

    #[test]
    fn a_burst_leaves_little_memory_behind() {
        let mut chunks = ChunkedQueue::<Item>::default();
        for _ in 0..10_000 {
            chunks.push_back([0; 64]);
        }
        while chunks.pop_front().is_some() {}
        let rest = chunks.rest.as_ref().unwrap();
        assert!(rest.full.is_empty() && rest.spare.len() <= SPARE_CHUNKS);
        assert!(chunks.head.capacity() <= 2 * ChunkedQueue::<Item>::CHUNK);
    }

    #[test]
    fn what_is_put_in_front_leaves_first() {
        let mut chunks = ChunkedQueue::default();
        (0..3).for_each(|n| chunks.push_back(n));
        chunks.push_front(-1);
        let mut more = ChunkedQueue::default();
        more.push_back(3);
        chunks.append(&mut more);
        assert!(more.is_empty());
        assert_eq!(core::iter::from_fn(|| chunks.pop_front()).collect::<Vec<_>>(), [-1, 0, 1, 2, 3]);
    }
}
