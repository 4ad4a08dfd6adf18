//! Most urgent first, then first in, first out.
//!
//! Programs use few distinct priorities or very many. Up to [`MAX_LEVELS`] priorities are served by
//! one ring each and a bit mask of the occupied rings, in constant time at any depth. Further
//! priorities go to a heap of fixed-size keys, four to a cache line, so that keys move through the
//! heap and messages do not.

use core::mem;

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::keyed_heap::KeyedHeap;
use super::{ChunkedQueue, Evicted, Order, Store};

/// Computes how urgent a message is. A lower number is more urgent.
///
/// Implemented by closures: `|job: &Job| job.deadline`.
pub trait Rank<M> {
    /// The rank of a message. Called once when the message is sent, and once when it is stashed.
    fn rank(&self, message: &M) -> i64;

    /// Whether the message is sent on the control channel. Must be the same for each call with one
    /// message. `false` by default.
    fn is_control(&self, _message: &M) -> bool {
        false
    }
}

impl<M, F: Fn(&M) -> i64> Rank<M> for F {
    fn rank(&self, message: &M) -> i64 {
        self(message)
    }
}

/// An order in which messages leave by rank, and among equal ranks as they arrived.
#[derive(Clone, Copy, Debug, Default)]
pub struct Priority<R>(R);

impl<R> Priority<R> {
    /// An order by the rank that `rank` computes.
    pub const fn new(rank: R) -> Self {
        Priority(rank)
    }
}

/// A message and its rank.
#[doc(hidden)]
#[derive(Debug, PartialEq, Eq)]
pub struct Ranked<M> {
    rank: i64,
    message: M,
}

impl<M, R: Rank<M>> Order<M> for Priority<R> {
    type Item = Ranked<M>;
    type Store = PriorityStore<M>;

    fn to_item(&self, message: M) -> Ranked<M> {
        Ranked { rank: self.0.rank(&message), message }
    }

    fn into_message(item: Ranked<M>) -> M {
        item.message
    }

    fn is_control(&self, item: &Ranked<M>) -> bool {
        self.0.is_control(&item.message)
    }
}

/// The number of ranks that have a ring of their own: the bits of a mask.
const MAX_LEVELS: usize = 64;
/// Up to this many ranks are searched by counting.
const FEW_LEVELS: usize = 16;
/// How many empty rings are kept for reuse, and the largest capacity that a kept ring may have.
const SPARE_RINGS: usize = 8;
const SPARE_CAPACITY: usize = 1024;

/// Messages by rank.
///
/// Invariant: a rank that has a level has no message in the heap. A level is created only while the
/// heap is empty, and while it exists all messages of its rank go to it. So level and heap never
/// compete for the order of one rank.
#[doc(hidden)]
#[derive(Debug)]
pub struct PriorityStore<M> {
    /// The ranks that have a level, in ascending order.
    ranks: Vec<i64>,
    /// The level of each rank, in the same order.
    levels: Vec<VecDeque<M>>,
    /// Bit `i` is set if `levels[i]` is not empty.
    occupied: u64,
    in_levels: usize,
    heap: KeyedHeap<M>,
    spare_rings: Vec<VecDeque<M>>,
}

impl<M> Default for PriorityStore<M> {
    fn default() -> Self {
        PriorityStore {
            ranks: Vec::new(),
            levels: Vec::new(),
            occupied: 0,
            in_levels: 0,
            heap: KeyedHeap::new(),
            spare_rings: Vec::new(),
        }
    }
}

impl<M> PriorityStore<M> {
    /// The level of `rank`, created if that is allowed; `None` if the message belongs in the heap.
    #[inline]
    fn level(&mut self, rank: i64) -> Option<usize> {
        let found = if self.ranks.len() <= FEW_LEVELS {
            // Counting has no branch to mispredict, which costs more than comparing with every
            // rank.
            let index = self.ranks.iter().filter(|&&other| other < rank).count();
            if self.ranks.get(index) == Some(&rank) { Ok(index) } else { Err(index) }
        } else {
            self.ranks.binary_search(&rank)
        };
        match found {
            Ok(index) => Some(index),
            Err(_) if self.heap.len() > 0 => {
                if self.in_levels == 0 && !self.ranks.is_empty() {
                    // The heap is in use and the levels are empty: removing them saves the search.
                    self.remove_empty_levels();
                }
                None
            }
            Err(index) => self.new_level(rank, index),
        }
    }

    #[cold]
    fn new_level(&mut self, rank: i64, index: usize) -> Option<usize> {
        let mut index = index;
        if self.ranks.len() == MAX_LEVELS {
            self.remove_empty_levels();
            if self.ranks.len() == MAX_LEVELS {
                return None;
            }
            index = self.ranks.binary_search(&rank).unwrap_or_else(|index| index);
        }
        self.ranks.insert(index, rank);
        self.levels.insert(index, self.spare_rings.pop().unwrap_or_default());
        let below = (1u64 << index) - 1;
        self.occupied = (self.occupied & below) | ((self.occupied & !below) << 1);
        Some(index)
    }

    fn remove_empty_levels(&mut self) {
        let mut kept = 0;
        for index in 0..self.levels.len() {
            if self.levels[index].is_empty() {
                let ring = mem::take(&mut self.levels[index]);
                if self.spare_rings.len() < SPARE_RINGS && ring.capacity() <= SPARE_CAPACITY {
                    self.spare_rings.push(ring);
                }
            } else {
                self.levels.swap(kept, index);
                self.ranks[kept] = self.ranks[index];
                kept += 1;
            }
        }
        self.levels.truncate(kept);
        self.ranks.truncate(kept);
        self.occupied = if kept == MAX_LEVELS { u64::MAX } else { (1 << kept) - 1 };
    }

    /// The most urgent level that is not empty.
    #[inline]
    fn first(&self) -> Option<usize> {
        (self.occupied != 0).then(|| self.occupied.trailing_zeros() as usize)
    }

    /// The least urgent level that is not empty.
    fn last(&self) -> Option<usize> {
        (self.occupied != 0).then(|| 63 - self.occupied.leading_zeros() as usize)
    }

    fn take_from_level(&mut self, index: usize, oldest: bool) -> Option<Ranked<M>> {
        let level = &mut self.levels[index];
        let message = if oldest { level.pop_front() } else { level.pop_back() }?;
        if level.is_empty() {
            self.occupied &= !(1 << index);
        }
        self.in_levels -= 1;
        Some(Ranked { rank: self.ranks[index], message })
    }

    #[inline(always)]
    fn pop_from_heap(&mut self) -> Option<Ranked<M>> {
        let (rank, message) = self.heap.pop_first()?;
        Some(Ranked { rank, message })
    }

    #[inline(always)]
    fn insert(&mut self, item: Ranked<M>, before_equals: bool) {
        let Ranked { rank, message } = item;
        match self.level(rank) {
            None => self.heap.push(rank, message, before_equals),
            Some(index) => {
                if before_equals {
                    self.levels[index].push_front(message);
                } else {
                    self.levels[index].push_back(message);
                }
                self.occupied |= 1 << index;
                self.in_levels += 1;
            }
        }
    }
}

impl<M> Store for PriorityStore<M> {
    type Item = Ranked<M>;
    const IS_FIFO: bool = false;

    #[inline]
    fn len(&self) -> usize {
        self.in_levels + self.heap.len()
    }

    #[inline(always)]
    fn pop(&mut self) -> Option<Ranked<M>> {
        let Some(index) = self.first() else {
            return self.pop_from_heap();
        };
        match self.heap.first_rank() {
            Some(rank) if rank < self.ranks[index] => self.pop_from_heap(),
            _ => self.take_from_level(index, true),
        }
    }

    #[inline(always)]
    fn push(&mut self, item: Ranked<M>) {
        self.insert(item, false);
    }

    fn append(&mut self, arrived: &mut ChunkedQueue<Ranked<M>>) {
        while let Some(item) = arrived.pop_front() {
            self.insert(item, false);
        }
    }

    fn push_before_equals(&mut self, item: Ranked<M>) {
        self.insert(item, true);
    }

    fn push_evicting(&mut self, incoming: Ranked<M>, oldest: bool) -> Evicted<Ranked<M>> {
        let level = self.last();
        let level_rank = level.map(|index| self.ranks[index]);
        let heap_rank = self.heap.last_rank(oldest);
        let Some(worst) = level_rank.max(heap_rank) else {
            return Evicted::Incoming(incoming);
        };
        if incoming.rank > worst || (incoming.rank == worst && !oldest) {
            return Evicted::Incoming(incoming);
        }
        let evicted = match level {
            Some(index) if level_rank == Some(worst) => self.take_from_level(index, oldest),
            _ => self.heap.pop_last(oldest).map(|(rank, message)| Ranked { rank, message }),
        };
        self.insert(incoming, false);
        match evicted {
            Some(item) => Evicted::Stored(item),
            None => unreachable!("the rank belongs to a message"),
        }
    }
}
