//! Dead letters: the messages that could not be finished.

use std::borrow::Cow;

use crate::backend::Delivery;
use crate::mailbox::id::MessageId;
use crate::runtime::clock::Moment;

/// A message that could not be finished, as a backend lists it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeadLetter {
    /// The message. Its receipt is not used.
    pub delivery: Delivery,
    /// When the message became a dead letter.
    pub died_at: Moment,
    /// The reason, which a consumer or the backend gave.
    pub reason: Cow<'static, str>,
}

impl DeadLetter {
    /// A dead letter with the content of a delivery.
    pub const fn new(delivery: Delivery, died_at: Moment, reason: Cow<'static, str>) -> Self {
        DeadLetter { delivery, died_at, reason }
    }
}

/// The dead letters to make visible again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Redrive {
    /// At most this number, oldest first.
    UpTo(usize),
    /// The one with this id.
    One(MessageId),
}
