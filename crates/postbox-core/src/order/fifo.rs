//! First in, first out.

use core::mem;

use super::{Chunks, Displaced, Order, Store};

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

/// Messages by age.
#[doc(hidden)]
#[derive(Debug)]
pub struct FifoStore<M>(Chunks<M>);

impl<M> Default for FifoStore<M> {
    fn default() -> Self {
        FifoStore(Chunks::default())
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

    fn absorb(&mut self, arrived: &mut Chunks<M>) {
        if self.0.is_empty() {
            // The whole batch changes hands without a copy; the two buffers take turns.
            mem::swap(&mut self.0, arrived);
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
