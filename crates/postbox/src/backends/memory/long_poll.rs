//! A receive that waits.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use postbox_core::Ticket;

use super::mailbox::{MemoryMailbox, take};
use crate::backend::{Delivery, Receive};
use crate::error::Error;
use crate::runtime::clock::{Alarm, Moment};
use crate::runtime::wake;

/// A receive that waits.
pub(super) struct LongPoll {
    pub(super) mailbox: MemoryMailbox,
    pub(super) request: Receive,
    pub(super) deadline: Moment,
    pub(super) ticket: Option<Ticket>,
    /// The end of the wait.
    pub(super) alarm: Option<Alarm>,
}

impl Future for LongPoll {
    type Output = Result<Vec<Delivery>, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let store = &this.mailbox.store;
        let clock = &store.clock;
        // Set before the look, so that a clock that is moved in between is not missed. Set again at each look, since the last
        // alarm may have rung too early.
        let alarm = clock.set_alarm(this.deadline, context.waker().clone());
        if let Some(old) = this.alarm.replace(alarm) {
            clock.cancel_alarm(old);
        }
        let waker = context.waker().clone();
        let mut state = store.lock();
        let before = state.ledger.surfaced();
        let now = clock.now();
        let taken = take(&mut state.ledger, now.as_nanos(), &this.request);
        let is_over = !taken.is_empty() || now >= this.deadline;
        let unneeded = match is_over {
            true => store.waiting.remove(&mut this.ticket),
            false => store.waiting.register(&mut this.ticket, waker),
        };
        // What came up by itself and was not taken is for others; and this one may wait for what is due next.
        let wakers = store.notify(&mut state, before);
        let discarded = state.ledger.take_discarded();
        drop(state);
        wakers.into_iter().for_each(wake);
        drop((unneeded, discarded));
        if is_over { Poll::Ready(Ok(taken)) } else { Poll::Pending }
    }
}

impl Drop for LongPoll {
    fn drop(&mut self) {
        let store = &self.mailbox.store;
        if let Some(alarm) = self.alarm.take() {
            store.clock.cancel_alarm(alarm);
        }
        let had_ticket = self.ticket.is_some();
        if !had_ticket {
            return;
        }
        let mut state = store.lock();
        let waker = store.waiting.remove(&mut self.ticket);
        // This receive was notified, and is dropped before it looked: another one has to look.
        let next = if waker.is_none() && state.ledger.deliverable() > 0 { store.waiting.notify_one() } else { None };
        store.set_alarm(&mut state);
        drop(state);
        drop(waker);
        if let Some(next) = next {
            wake(next);
        }
    }
}
