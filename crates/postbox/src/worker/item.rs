//! A message that a loop has fetched and not finished.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use postbox_core::shared::mailbox::MailboxSignal as _;

use super::keeper::Keeping;
use super::tally::{Tally, count};
use crate::backend::{Receipt, Visibility};
use crate::mailbox::handle::{Core, Settlement};
use crate::mailbox::message::Message;
use crate::mailbox::receive::in_background;

/// A message that was fetched.
pub(super) struct Item<T, R, C> {
    pub(super) message: Message<T, R, C>,
    pub(super) keeping: Keeping,
    pub(super) guard: GiveBack,
}

/// Gives a message back when it is dropped, unless it was finished: uncounted if no handler has begun. In any case it is out of
/// the loop then.
pub(super) struct GiveBack {
    pub(super) core: Arc<Core>,
    pub(super) receipt: Option<Receipt>,
    /// Whether a handler has begun: then the delivery counts.
    pub(super) is_begun: bool,
    pub(super) tally: Arc<Tally>,
}

impl Drop for GiveBack {
    fn drop(&mut self) {
        if let Some(receipt) = self.receipt.take() {
            let tally = Arc::clone(&self.tally);
            tally.returning.fetch_add(1, Ordering::SeqCst);
            let back = if self.is_begun { Visibility::Return(Duration::ZERO) } else { Visibility::Release };
            let back = self.core.settle(receipt, Settlement::Visibility(back));
            in_background(back.map(move |back| {
                if back.is_ok() {
                    count(&tally.given_back);
                }
                tally.returning.fetch_sub(1, Ordering::SeqCst);
                tally.progress.notify();
            }));
        }
        self.tally.outstanding.fetch_sub(1, Ordering::SeqCst);
        self.tally.progress.notify();
    }
}
