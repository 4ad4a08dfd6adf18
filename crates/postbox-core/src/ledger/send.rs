//! Sending: how messages enter the ledger.

use alloc::boxed::Box;
use alloc::sync::Arc;

use super::Ledger;
use super::slot::{Extras, Slot, State};
use super::types::{LedgerRefusal, Posted, Posting};

impl<M> Ledger<M> {
    /// Stores a message. Its id must be new.
    ///
    /// # Errors
    /// [`LedgerRefusal::Full`] with the message if there is no room.
    pub fn send(&mut self, now: u64, posting: Posting<'_, M>) -> Result<Posted, LedgerRefusal<M>> {
        self.advance(now);
        match self.deduplicated(posting) {
            Ok(posting) => self.store(posting),
            Err(first) => Ok(Posted::Duplicate(first)),
        }
    }

    /// Stores a message whose id the caller chose. If the ledger holds a message with that id (dead
    /// letters included), nothing is stored. If `is_same` finds the two messages equal, the result
    /// is [`Posted::Duplicate`].
    ///
    /// ```
    /// use postbox_core::{Ledger, LedgerRefusal, Posted, Posting};
    ///
    /// let mut ledger = Ledger::new(Default::default());
    /// let send = |ledger: &mut Ledger<_>, message| ledger.send_once(0, Posting::new(7, message), |a, b| a == b);
    /// assert_eq!(send(&mut ledger, "pay"), Ok(Posted::Stored));
    /// assert_eq!(send(&mut ledger, "pay"), Ok(Posted::Duplicate(7)));
    /// assert_eq!(send(&mut ledger, "pay twice"), Err(LedgerRefusal::IdInUse("pay twice")));
    /// assert_eq!(ledger.tally(0).ready, 1);
    /// ```
    ///
    /// # Errors
    /// [`LedgerRefusal::IdInUse`] if the messages differ, [`LedgerRefusal::Full`] if there is no
    /// room; both with the message.
    pub fn send_once(
        &mut self,
        now: u64,
        posting: Posting<'_, M>,
        is_same: impl FnOnce(&M, &M) -> bool,
    ) -> Result<Posted, LedgerRefusal<M>> {
        self.advance(now);
        let posting = match self.deduplicated(posting) {
            Ok(posting) => posting,
            Err(first) => return Ok(Posted::Duplicate(first)),
        };
        match self.find_by_id(posting.id).map(|stored| is_same(stored, &posting.message)) {
            None => self.store(posting),
            Some(true) => {
                self.discarded.push(posting.message);
                Ok(Posted::Duplicate(posting.id))
            }
            Some(false) => Err(LedgerRefusal::IdInUse(posting.message)),
        }
    }

    /// Returns the posting, or the id of the first message with its deduplication id.
    fn deduplicated<'a>(&mut self, posting: Posting<'a, M>) -> Result<Posting<'a, M>, u128> {
        match posting.deduplication.and_then(|id| self.deduplicated_ids.get(id)) {
            Some((first, _)) => {
                self.discarded.push(posting.message);
                Err(*first)
            }
            None => Ok(posting),
        }
    }

    fn store(&mut self, posting: Posting<'_, M>) -> Result<Posted, LedgerRefusal<M>> {
        let now = self.now;
        if !self.has_capacity() {
            return Err(LedgerRefusal::Full(posting.message));
        }
        if let Some(id) = posting.deduplication {
            let id: Arc<str> = id.into();
            let until = now.saturating_add(self.options.deduplication_window);
            self.deduplication_ends.insert((until, Arc::clone(&id)));
            self.next_event_at = self.next_event_at.min(until);
            self.deduplicated_ids.insert(id, (posting.id, until));
        }
        let extras = (posting.group.is_some() || posting.expires_at.is_some()).then(|| {
            self.last_number += 1;
            let group = posting.group.map(|name| self.groups.name(name));
            Box::new(Extras { group, expires_at: posting.expires_at, arrival: self.last_number })
        });
        let slot = self.slots.vacant_entry().insert(Slot::new(posting.id, posting.message, now, extras));
        self.index_id(posting.id, slot);
        if posting.visible_at > now {
            // Of two messages with one id the first can be cancelled.
            self.cancellable.entry(posting.id).or_insert(slot);
            self.delayed += 1;
            self.schedule(slot, posting.visible_at, State::Delayed);
            self.schedule_expiry(slot);
        } else {
            self.join(slot);
        }
        Ok(Posted::Stored)
    }
}
