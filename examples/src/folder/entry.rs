//! The name of a message's file: `STATE.DUE.TURN.RANK.COUNT.ID.SENT.RECEIPT`, numbers in hexadecimal.

/// Where a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Ready,
    Delayed,
    Leased,
    Dead,
}

const WORDS: [(&str, State); 4] =
    [("ready", State::Ready), ("delayed", State::Delayed), ("leased", State::Leased), ("dead", State::Dead)];

/// Everything about a message except its bytes. Times are nanoseconds since 1970.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) state: State,
    /// When the delay or the lease ends, or when the message became a dead letter.
    pub(super) due: u64,
    /// The order in which moments were set, for messages that are due at the same one.
    pub(super) turn: u64,
    /// The place in the order of the mailbox. A leased message keeps it, for a release.
    pub(super) rank: u64,
    /// The number of deliveries.
    pub(super) count: u32,
    pub(super) id: u128,
    pub(super) sent: u64,
    /// The receipt of the current delivery, which no other delivery has; 0 if the message is not leased.
    pub(super) receipt: u128,
}

impl Entry {
    pub(super) fn file_name(&self) -> String {
        let (word, _) = WORDS.iter().find(|(_, state)| *state == self.state).expect("every state has a word");
        let Entry { due, turn, rank, count, id, sent, receipt, .. } = self;
        format!("{word}.{due:016x}.{turn:016x}.{rank:016x}.{count:08x}.{id:032x}.{sent:016x}.{receipt:032x}")
    }

    /// `None` for a file that is not a message.
    pub(super) fn parse(file_name: &str) -> Option<Self> {
        let mut parts = file_name.split('.');
        let word = parts.next()?;
        let (_, state) = WORDS.iter().find(|(known, _)| *known == word)?;
        let mut number = || u128::from_str_radix(parts.next()?, 16).ok();
        Some(Entry {
            state: *state,
            due: u64::try_from(number()?).ok()?,
            turn: u64::try_from(number()?).ok()?,
            rank: u64::try_from(number()?).ok()?,
            count: u32::try_from(number()?).ok()?,
            id: number()?,
            sent: u64::try_from(number()?).ok()?,
            receipt: number()?,
        })
    }
}
