//! The dead letters of a mailbox: messages that no consumer could finish.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::backend::Redrive;
use crate::error::Error;
use crate::mailbox::codec::Decode;
use crate::mailbox::handle::Core;
use crate::mailbox::id::MessageId;
use crate::mailbox::operation::Call;
use crate::mailbox::stored::DeadLetter;

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
/// assert_eq!(letters[0].body.as_ref().ok(), Some(&7));
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

    /// Returns at most `max` dead letters, oldest first. A body that cannot be decoded, which may be why the message is here,
    /// is an error in that letter alone.
    ///
    /// # Errors
    /// [`Connection`](Error::Connection).
    pub fn list(&self, max: usize) -> Call<Result<Vec<DeadLetter<T>>, Error>>
    where
        T: 'static,
        C: Decode<T>,
    {
        let core = Arc::clone(&self.core);
        Call::new(move || {
            core.run("dead_letters", |bytes| bytes.dead_letters(max)).map(move |letters| {
                let letters = core.at_most("dead_letters", max, letters?)?;
                Ok(letters.into_iter().map(DeadLetter::new::<C>).collect())
            })
        })
    }

    /// Returns the number of dead letters.
    ///
    /// # Errors
    /// [`Connection`](Error::Connection).
    pub fn count(&self) -> Call<Result<u64, Error>> {
        let core = Arc::clone(&self.core);
        Call::new(move || core.run("counts", |bytes| bytes.counts()).map(|counts| Ok(counts?.dead)))
    }

    /// Makes at most `max` dead letters visible again, oldest first, as if they had never been delivered. Returns their number.
    ///
    /// # Errors
    /// [`Connection`](Error::Connection).
    pub fn redrive(&self, max: usize) -> Call<Result<u64, Error>> {
        let core = Arc::clone(&self.core);
        Call::new(move || core.run("redrive", |bytes| bytes.redrive(Redrive::UpTo(max))))
    }

    /// Makes one dead letter visible again. Returns `false` if none has this id, or the mailbox is full.
    ///
    /// # Errors
    /// [`Connection`](Error::Connection).
    pub fn redrive_one(&self, id: &MessageId) -> Call<Result<bool, Error>> {
        let (core, which) = (Arc::clone(&self.core), Redrive::One(id.clone()));
        Call::new(move || core.run("redrive", |bytes| bytes.redrive(which)).map(|moved| Ok(moved? > 0)))
    }

    /// Removes all dead letters. Returns their number.
    ///
    /// # Errors
    /// [`Connection`](Error::Connection).
    pub fn purge(&self) -> Call<Result<u64, Error>> {
        let core = Arc::clone(&self.core);
        Call::new(move || core.run("purge_dead_letters", |bytes| bytes.purge_dead_letters()))
    }
}
