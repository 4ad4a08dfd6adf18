//! What could not be finished.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::backend::{DeadLetter, Redrive};
use crate::error::Error;
use crate::mailbox::codec::Decode;
use crate::mailbox::handle::Core;
use crate::mailbox::id::MessageId;
use crate::mailbox::operation::Call;

/// The dead letters of a mailbox: [`Mailbox::dead_letters`](crate::Mailbox::dead_letters).
///
/// ```
/// use postbox::Mailbox;
///
/// let mailbox: Mailbox<u32> = postbox::open("memory://doc-dead").max_deliveries(3).blocking()?;
/// mailbox.send(&7).blocking()?;
/// mailbox.receive().blocking()?[0].dead_letter("no such tenant").blocking()?;
///
/// let dead = mailbox.dead_letters();
/// let letters = dead.list(10).blocking()?;
/// assert_eq!(letters[0].reason, "no such tenant");
/// assert_eq!(dead.body(&letters[0])?, 7);
/// assert_eq!(dead.redrive(10).blocking()?, 1); // back in the mailbox, as if never delivered
/// # mailbox.purge().blocking()?;
/// # Ok::<(), postbox::Error>(())
/// ```
pub struct DeadLetters<T, C> {
    core: Arc<Core>,
    types: PhantomData<fn() -> (T, C)>,
}

impl<T, C> fmt::Debug for DeadLetters<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadLetters").field("mailbox", &self.core.name).finish_non_exhaustive()
    }
}

impl<T, C> DeadLetters<T, C> {
    pub(crate) const fn new(core: Arc<Core>) -> Self {
        DeadLetters { core, types: PhantomData }
    }

    /// Up to `max` of them, oldest first.
    ///
    /// # Errors
    /// [`Connection`](Error::Connection).
    pub fn list(&self, max: usize) -> Call<Result<Vec<DeadLetter>, Error>> {
        let core = Arc::clone(&self.core);
        Call::new(move || core.bytes.dead_letters(max))
    }

    /// The body of one, decoded.
    ///
    /// # Errors
    /// [`Serialization`](Error::Serialization): perhaps that is why it is here.
    pub fn body(&self, letter: &DeadLetter) -> Result<T, Error>
    where
        C: Decode<T>,
    {
        C::decode(&letter.body).map_err(|reason| Error::Serialization {
            message: Some(letter.id.clone()),
            reason: format!("cannot decode dead letter {}: {reason}", letter.id),
        })
    }

    /// How many there are.
    ///
    /// # Errors
    /// [`Connection`](Error::Connection).
    pub fn count(&self) -> Call<Result<u64, Error>> {
        let core = Arc::clone(&self.core);
        Call::new(move || core.bytes.counts().map(|counts| Ok(counts?.dead)))
    }

    /// Makes up to `max` of them visible again, oldest first, as if never delivered. Answers how many.
    ///
    /// # Errors
    /// [`Connection`](Error::Connection).
    pub fn redrive(&self, max: usize) -> Call<Result<u64, Error>> {
        let core = Arc::clone(&self.core);
        Call::new(move || core.bytes.redrive(Redrive::UpTo(max)))
    }

    /// Makes one of them visible again. `false` if there is none with this id, or no room.
    ///
    /// # Errors
    /// [`Connection`](Error::Connection).
    pub fn redrive_one(&self, id: &MessageId) -> Call<Result<bool, Error>> {
        let (core, id) = (Arc::clone(&self.core), id.clone());
        Call::new(move || core.bytes.redrive(Redrive::One(id)).map(|moved| Ok(moved? > 0)))
    }

    /// Removes all of them. Answers how many.
    ///
    /// # Errors
    /// [`Connection`](Error::Connection).
    pub fn purge(&self) -> Call<Result<u64, Error>> {
        let core = Arc::clone(&self.core);
        Call::new(move || core.bytes.purge_dead_letters())
    }
}
