//! Leases: receiving messages, and the verbs that take a receipt.

use alloc::borrow::Cow;

use super::Ledger;
use super::slab::NONE;
use super::slot::State;
use super::types::{LeaseEnded, LedgerMessage, Receipt};

impl<M> Ledger<M> {
    /// Leases up to `max` messages until `until` and passes each to `take`, in order. All of them
    /// may be leased before the first call of `take`. If `take` panics, the remaining messages
    /// count as delivered, and return when their leases end.
    #[inline]
    pub fn receive(&mut self, now: u64, max: usize, until: u64, mut take: impl FnMut(LedgerMessage<'_, M>)) -> usize {
        let now = self.advance(now);
        // At least `now`: a lease of no length ends with the next call, not within this one.
        let until = until.max(now);
        let first = self.ready.first();
        let taken = match self.slots.get(self.leases.last()).is_none_or(|last| last.until <= until) {
            true => self.lease_batch(max, until),
            false => return self.lease_one_by_one(max, until, take),
        };
        // The ledger is consistent before `take` runs, since `take` may panic.
        let mut slot = first;
        for _ in 0..taken {
            let entry = self.slot(slot);
            take(entry.show(Receipt { slot, number: entry.number }));
            slot = entry.next;
        }
        taken
    }

    /// Ends a lease and removes the message. Returns the message, so that the caller decides where
    /// it is dropped.
    ///
    /// # Errors
    /// [`LeaseEnded`] if the lease has ended; nothing changes.
    pub fn acknowledge(&mut self, now: u64, receipt: Receipt) -> Result<M, LeaseEnded> {
        self.advance(now);
        let slot = self.leased(receipt)?;
        Ok(self.remove(slot).message)
    }

    /// Ends a lease. The message becomes visible again at `at`.
    ///
    /// # Errors
    /// [`LeaseEnded`] if the lease has ended; nothing changes.
    pub fn give_back(&mut self, now: u64, receipt: Receipt, at: u64) -> Result<(), LeaseEnded> {
        let now = self.advance(now);
        let slot = self.leased(receipt)?;
        self.unschedule(slot);
        if at > now {
            self.delayed += 1;
            self.schedule(slot, at, State::Returning);
            self.schedule_expiry(slot);
        } else {
            self.make_ready(slot);
        }
        // Leased messages do not expire, so the expiry may have passed meanwhile.
        self.advance(now);
        Ok(())
    }

    /// Ends a lease as if the message had not been delivered: it gets its position among the ready
    /// messages and its delivery count back.
    ///
    /// ```
    /// use postbox_core::{Ledger, LedgerOptions, NewMessage};
    ///
    /// let mut ledger = Ledger::new(LedgerOptions { max_deliveries: Some(1), ..Default::default() });
    /// ledger.send(0, NewMessage::new(1, "first")).unwrap();
    /// ledger.send(0, NewMessage::new(2, "second")).unwrap();
    /// let mut receipt = None;
    /// ledger.receive(0, 1, 30, |entry| receipt = Some(entry.receipt));
    /// ledger.release(1, receipt.unwrap()).unwrap();
    /// ledger.receive(2, 1, 30, |entry| assert_eq!((*entry.message, entry.deliveries), ("first", 1)));
    /// ```
    ///
    /// # Errors
    /// [`LeaseEnded`] if the lease has ended; nothing changes.
    pub fn release(&mut self, now: u64, receipt: Receipt) -> Result<(), LeaseEnded> {
        self.advance(now);
        let slot = self.leased(receipt)?;
        self.unschedule(slot);
        let entry = self.slot_mut(slot);
        entry.deliveries = entry.deliveries.saturating_sub(1);
        entry.state = State::Ready;
        self.ready.insert_by_rank(&mut self.slots, slot);
        self.deliverable += 1;
        self.became_ready += 1;
        self.schedule_expiry(slot);
        self.advance(now);
        Ok(())
    }

    /// Extends a lease until `until`. A lease never becomes shorter.
    ///
    /// # Errors
    /// [`LeaseEnded`] if the lease has ended; nothing changes.
    pub fn extend(&mut self, now: u64, receipt: Receipt, until: u64) -> Result<(), LeaseEnded> {
        self.advance(now);
        let slot = self.leased(receipt)?;
        if self.deadline_of(slot) < until {
            self.unschedule(slot);
            self.leased += 1;
            self.schedule(slot, until, State::Leased);
        }
        Ok(())
    }

    /// Ends a lease and moves the message to the dead letters.
    ///
    /// # Errors
    /// [`LeaseEnded`] if the lease has ended; nothing changes.
    pub fn dead_letter(&mut self, now: u64, receipt: Receipt, reason: Cow<'static, str>) -> Result<(), LeaseEnded> {
        self.advance(now);
        let slot = self.leased(receipt)?;
        self.move_to_dead_letters(slot, reason);
        Ok(())
    }

    pub(super) fn leased(&self, receipt: Receipt) -> Result<u32, LeaseEnded> {
        match self.slots.get(receipt.slot) {
            Some(slot) if slot.is_leased(receipt) => Ok(receipt.slot),
            _ => Err(LeaseEnded),
        }
    }

    /// Moves up to `max` ready messages to the end of the list of leases. They are moved as one
    /// run, since both lists are linked through the slots. Returns their number.
    #[inline(always)]
    pub(super) fn lease_batch(&mut self, max: usize, until: u64) -> usize {
        let first = self.ready.first();
        let (mut last, mut next, mut count) = (NONE, first, 0);
        while count < max
            && let Some(entry) = self.slots.get_mut(next)
        {
            if let Some(expiry) = entry.expiry(next) {
                self.expiring.remove(&expiry);
            }
            self.last_number += 1;
            entry.number = self.last_number;
            entry.state = State::Leased;
            entry.until = until;
            entry.deliveries += 1;
            (last, next) = (next, entry.next);
            count += 1;
        }
        if count == 0 {
            return 0;
        }
        self.leases.take_front(&mut self.ready, &mut self.slots, last);
        self.deliverable -= count;
        self.leased += count;
        self.next_event_at = self.next_event_at.min(until);
        count
    }

    /// Leases up to `max` ready messages one by one, each with an entry in the heap of deadlines.
    pub(super) fn lease_one_by_one(
        &mut self,
        max: usize,
        until: u64,
        mut take: impl FnMut(LedgerMessage<'_, M>),
    ) -> usize {
        let mut taken = 0;
        while taken < max && self.ready.first() != NONE {
            let slot = self.ready.first();
            self.unlink(slot);
            if let Some(expiry) = self.slot(slot).expiry(slot) {
                self.expiring.remove(&expiry);
            }
            self.leased += 1;
            let number = self.schedule(slot, until, State::Leased);
            let entry = self.slot_mut(slot);
            entry.number = number;
            entry.until = until;
            entry.deliveries += 1;
            take(entry.show(Receipt { slot, number }));
            taken += 1;
        }
        taken
    }
}
