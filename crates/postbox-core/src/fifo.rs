//! First in, first out.

use core::mem;

use alloc::collections::VecDeque;

use crate::order::{Displaced, Order, Store};

/// Messages leave in the order in which they came.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fifo;

impl<M> Order<M> for Fifo {
    type Item = M;
    type Store = FifoStore<M>;

    #[inline(always)]
    fn enclose(&self, message: M) -> M {
        message
    }

    #[inline(always)]
    fn open(item: M) -> M {
        item
    }
}

/// A ring of messages.
#[doc(hidden)]
#[derive(Debug)]
pub struct FifoStore<M>(VecDeque<M>);

/// A ring that was needed for a burst is given back once it is this much larger than what it holds.
const SPARE_FACTOR: usize = 8;
const SPARE_MINIMUM: usize = 4096;

impl<M> Default for FifoStore<M> {
    fn default() -> Self {
        FifoStore(VecDeque::new())
    }
}

impl<M> Store for FifoStore<M> {
    type Item = M;
    const KEEPS_ARRIVAL: bool = true;

    #[inline(always)]
    fn len(&self) -> usize {
        self.0.len()
    }

    #[inline(always)]
    fn pop(&mut self) -> Option<M> {
        self.0.pop_front()
    }

    #[inline(always)]
    fn push(&mut self, item: M) {
        self.0.push_back(item);
    }

    fn absorb(&mut self, arrived: &mut VecDeque<M>) {
        if self.0.is_empty() {
            // The whole batch changes hands without a copy; the two rings take turns.
            mem::swap(&mut self.0, arrived);
            if arrived.capacity() > SPARE_MINIMUM && arrived.capacity() / SPARE_FACTOR > self.0.len() {
                arrived.shrink_to(SPARE_MINIMUM.max(self.0.len() * 2));
            }
        } else {
            self.0.append(arrived);
        }
    }

    fn restore(&mut self, item: M) {
        self.0.push_front(item);
    }

    fn displace(&mut self, incoming: M, oldest: bool) -> Displaced<M> {
        if oldest && let Some(evicted) = self.0.pop_front() {
            self.0.push_back(incoming);
            Displaced::Other(evicted)
        } else {
            Displaced::Incoming(incoming)
        }
    }
}
