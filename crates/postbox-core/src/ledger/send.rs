//! Sending: how messages enter the ledger.

use alloc::boxed::Box;
use alloc::sync::Arc;

use super::Ledger;
use super::slot::{Extras, Slot, State};
use super::types::{LedgerRefusal, NewMessage, SendOutcome};

impl<M> Ledger<M> {
    /// Stores a message. Its id must be new.
    ///
    /// # Errors
    /// [`LedgerRefusal::Full`] with the message if there is no room.
    pub fn send(&mut self, now: u64, new: NewMessage<'_, M>) -> Result<SendOutcome, LedgerRefusal<M>> {
        self.advance(now);
        match self.deduplicated(new) {
            Ok(new) => self.store(new),
            Err(first) => Ok(SendOutcome::Duplicate(first)),
        }
    }

    /// Stores a message whose id the caller chose. If the ledger holds a message with that id (dead
    /// letters included), nothing is stored. If `is_same` finds the two messages equal, the result
    /// is [`SendOutcome::Duplicate`].
    ///
    /// ```
    /// use postbox_core::{Ledger, LedgerRefusal, SendOutcome, NewMessage};
    ///
    /// let mut ledger = Ledger::new(Default::default());
    /// let send = |ledger: &mut Ledger<_>, message| ledger.send_once(0, NewMessage::new(7, message), |a, b| a == b);
    /// assert_eq!(send(&mut ledger, "pay"), Ok(SendOutcome::Stored));
    /// assert_eq!(send(&mut ledger, "pay"), Ok(SendOutcome::Duplicate(7)));
    /// assert_eq!(send(&mut ledger, "pay twice"), Err(LedgerRefusal::IdInUse("pay twice")));
    /// assert_eq!(ledger.counts(0).ready, 1);
    /// ```
    ///
    /// # Errors
    /// [`LedgerRefusal::IdInUse`] if the messages differ, [`LedgerRefusal::Full`] if there is no
    /// room; both with the message.
    pub fn send_once(
        &mut self,
        now: u64,
        new: NewMessage<'_, M>,
        is_same: impl FnOnce(&M, &M) -> bool,
    ) -> Result<SendOutcome, LedgerRefusal<M>> {
        self.advance(now);
        let new = match self.deduplicated(new) {
            Ok(new) => new,
            Err(first) => return Ok(SendOutcome::Duplicate(first)),
        };
        match self.find_by_id(new.id).map(|stored| is_same(stored, &new.message)) {
            None => self.store(new),
            Some(true) => {
                self.discarded.push(new.message);
                Ok(SendOutcome::Duplicate(new.id))
            }
            Some(false) => Err(LedgerRefusal::IdInUse(new.message)),
        }
    }

    /// Returns the message, or the id of the first message with its deduplication id.
    fn deduplicated<'a>(&mut self, new: NewMessage<'a, M>) -> Result<NewMessage<'a, M>, u128> {
        match new.deduplication.and_then(|id| self.deduplicated_ids.get(id)) {
            Some((first, _)) => {
                self.discarded.push(new.message);
                Err(*first)
            }
            None => Ok(new),
        }
    }

    fn store(&mut self, new: NewMessage<'_, M>) -> Result<SendOutcome, LedgerRefusal<M>> {
        let now = self.now;
        if !self.has_capacity() {
            return Err(LedgerRefusal::Full(new.message));
        }
        if let Some(id) = new.deduplication {
            let id: Arc<str> = id.into();
            let until = now.saturating_add(self.options.deduplication_window);
            self.deduplication_ends.insert((until, Arc::clone(&id)));
            self.next_event_at = self.next_event_at.min(until);
            self.deduplicated_ids.insert(id, (new.id, until));
        }
        let extras = (new.group.is_some() || new.expires_at.is_some()).then(|| {
            self.last_number += 1;
            let group = new.group.map(|name| self.groups.name(name));
            Box::new(Extras { group, expires_at: new.expires_at, arrival: self.last_number })
        });
        let slot = self.slots.vacant_entry().insert(Slot::new(new.id, new.message, now, extras));
        self.index_id(new.id, slot);
        if new.visible_at > now {
            // Of two messages with one id the first can be cancelled.
            self.cancellable.entry(new.id).or_insert(slot);
            self.delayed += 1;
            self.schedule(slot, new.visible_at, State::Delayed);
            self.schedule_expiry(slot);
        } else {
            self.join(slot);
        }
        Ok(SendOutcome::Stored)
    }
}
