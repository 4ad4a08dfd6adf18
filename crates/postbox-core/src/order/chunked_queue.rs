//! A FIFO queue that grows by whole chunks, so a long queue is never copied and its memory is freed
//! again.

use core::mem;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// A FIFO queue of chunks of about [`CHUNK_BYTES`].
///
/// Most queues fit into `head`. A longer queue continues in `rest`, which keeps a few empty chunks
/// for reuse.
#[derive(Debug)]
#[doc(hidden)]
pub struct ChunkedQueue<T> {
    /// The oldest items; all items if `rest` is empty.
    head: VecDeque<T>,
    rest: Option<Box<Rest<T>>>,
}

#[derive(Debug)]
struct Rest<T> {
    /// Full chunks, older than `tail`.
    full: VecDeque<VecDeque<T>>,
    /// The youngest items. Not empty unless `full` is empty.
    tail: VecDeque<T>,
    /// The number of items in `full`.
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
    /// The number of items in a full chunk.
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
        // `pop_front` refills `head`, so an empty `head` implies an empty `rest`.
        self.head.is_empty()
    }

    /// The chunk for the next item, if it has room without an allocation.
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

    /// Whether the queue holds exactly one item.
    #[inline(always)]
    pub(crate) fn is_single(&self) -> bool {
        self.head.len() == 1 && self.rest.as_ref().is_none_or(|rest| rest.tail.is_empty())
    }

    /// [`pop_front`](Self::pop_front) for a queue with [exactly one item](Self::is_single).
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

    /// Pushes into a new chunk, after the last one has become full.
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
        // A tail call lets the item be written directly to its destination.
        self.head.pop_front()
    }

    #[cold]
    fn pop_and_advance(&mut self) -> Option<T> {
        let item = self.head.pop_front();
        self.advance();
        item
    }

    /// Replaces the empty head by the next chunk.
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

    /// Puts an item in front of all others.
    pub(crate) fn push_front(&mut self, item: T) {
        self.head.push_front(item);
    }

    /// Moves all items of `other` to the end.
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

    /// Large, so that a few dozen items fill a chunk.
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
