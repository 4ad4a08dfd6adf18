//! First in, first out.

use core::mem;

use super::{ChunkedQueue, Evicted, Order, Store};

/// An order in which messages leave as they arrived.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fifo;

impl<M> Order<M> for Fifo {
    type Item = M;
    type Store = FifoStore<M>;

    #[inline(always)]
    fn to_item(&self, message: M) -> M {
        message
    }

    #[inline(always)]
    fn into_message(item: M) -> M {
        item
    }
}

/// Messages in order of arrival.
#[doc(hidden)]
#[derive(Debug)]
pub struct FifoStore<M>(ChunkedQueue<M>);

impl<M> Default for FifoStore<M> {
    fn default() -> Self {
        FifoStore(ChunkedQueue::default())
    }
}

impl<M> Store for FifoStore<M> {
    type Item = M;
    const IS_FIFO: bool = true;

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

    fn append(&mut self, arrived: &mut ChunkedQueue<M>) {
        if self.0.is_empty() {
            // The whole batch is moved without a copy; the two buffers are swapped.
            mem::swap(&mut self.0, arrived);
        } else {
            self.0.append(arrived);
        }
    }

    fn push_before_equals(&mut self, item: M) {
        self.0.push_front(item);
    }

    fn push_evicting(&mut self, incoming: M, oldest: bool) -> Evicted<M> {
        if oldest && let Some(evicted) = self.0.pop_front() {
            self.0.push_back(incoming);
            Evicted::Stored(evicted)
        } else {
            Evicted::Incoming(incoming)
        }
    }
}
