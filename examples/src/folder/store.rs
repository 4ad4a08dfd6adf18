//! The mailboxes on the disk. Every verb runs on a [`Locked`] mailbox.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use postbox::backend::{
    DeadLetter, Delivery, MailboxSettings, Outgoing, Receipt, ReceiptHandle, Redrive, Visibility, wire,
};
use postbox::clock::{Clock, Moment};
use postbox::{ContentType, Counts, Error, MailboxName, MessageId};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::entry::{Entry, State};
use super::failed;

/// How long a verb waits for another process to finish its own.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// What all mailboxes of a folder share.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) root: PathBuf,
    /// Locked while a verb runs. The system unlocks it when its process dies.
    pub(super) lock: File,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) sync: bool,
}

/// Unlocks when it is dropped.
struct Guard<'a>(&'a File);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let _ = rustix::fs::flock(self.0, FlockOperation::Unlock);
    }
}

impl Store {
    fn lock(&self) -> Result<Guard<'_>, Error> {
        let end = Instant::now() + LOCK_TIMEOUT;
        loop {
            match rustix::fs::flock(&self.lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Guard(&self.lock)),
                Err(Errno::WOULDBLOCK) if Instant::now() < end => std::thread::sleep(Duration::from_millis(1)),
                Err(error) => return Err(failed(&self.root.join("lock"), error.into())),
            }
        }
    }

    pub(super) fn list(&self) -> Result<Vec<MailboxName>, Error> {
        let mut names = Vec::new();
        for file in names_in(&self.root)? {
            // Other files are not ours.
            let Some((prefix, name)) = file.split_once('@') else { continue };
            let name = MailboxName::new(name);
            names.extend(if prefix.is_empty() { name } else { name.and_then(|name| name.with_prefix(prefix)) });
        }
        Ok(names)
    }

    /// Makes changes to names in a folder durable.
    fn sync(&self, folder: &Path) -> Result<(), Error> {
        if self.sync { File::open(folder).and_then(|folder| folder.sync_all()).at(folder) } else { Ok(()) }
    }

    fn write(&self, path: &Path, content: &[u8]) -> Result<(), Error> {
        let write = || {
            let mut file = File::create(path)?;
            file.write_all(content)?;
            if self.sync { file.sync_all() } else { Ok(()) }
        };
        write().at(path)
    }
}

/// Adds the path to an error of the file system.
trait At<T> {
    fn at(self, path: &Path) -> Result<T, Error>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, path: &Path) -> Result<T, Error> {
        self.map_err(|error| failed(path, error))
    }
}

fn names_in(folder: &Path) -> Result<Vec<String>, Error> {
    let files = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        files => files.at(folder)?,
    };
    let name = |file: io::Result<fs::DirEntry>| Ok(file?.file_name().into_string().ok());
    files.filter_map(|file| name(file).transpose()).collect::<io::Result<_>>().at(folder)
}

/// A file that is not there is as good as removed.
fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        result => result.at(path),
    }
}

/// A mailbox while no other process changes it. What was due when it was locked is done.
pub(super) struct Locked<'a> {
    store: &'a Store,
    path: &'a Path,
    now: Moment,
    exists: bool,
    entries: Vec<Entry>,
    max_deliveries: Option<u32>,
    /// Whether names have changed that have to be durable when the verb returns.
    changed: bool,
    _guard: Guard<'a>,
}

impl<'a> Locked<'a> {
    pub(super) fn new(store: &'a Store, path: &'a Path) -> Result<Self, Error> {
        let guard = store.lock()?;
        let entries = names_in(path)?.iter().filter_map(|name| Entry::parse(name)).collect();
        let max_deliveries = match fs::read_to_string(path.join("max_deliveries")) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            text => text.at(path)?.parse().ok(),
        };
        let mut mailbox = Locked {
            store,
            path,
            now: store.clock.now(),
            exists: path.is_dir(),
            entries,
            max_deliveries,
            changed: false,
            _guard: guard,
        };
        mailbox.do_what_is_due()?;
        Ok(mailbox)
    }

    /// Makes the changes of the verb durable.
    pub(super) fn finish(self) -> Result<(), Error> {
        if self.changed { self.store.sync(self.path) } else { Ok(()) }
    }

    pub(super) const fn exists(&self) -> bool {
        self.exists
    }

    /// Makes the mailbox, if there is none, and keeps the settings that are given.
    pub(super) fn create(&mut self, settings: &MailboxSettings) -> Result<(), Error> {
        if !self.exists {
            fs::create_dir_all(self.path).at(self.path)?;
            self.store.sync(&self.store.root)?;
            self.exists = true;
        }
        if let Some(max) = settings.max_deliveries.filter(|max| Some(*max) != self.max_deliveries) {
            self.put("max_deliveries", max.to_string().as_bytes())?;
            self.max_deliveries = Some(max);
        }
        Ok(())
    }

    /// Removes the mailbox: first its name, so that a crash leaves it whole or gone.
    pub(super) fn delete(&mut self) -> Result<(), Error> {
        let gone = self.store.root.join("gone");
        if gone.exists() {
            fs::remove_dir_all(&gone).at(&gone)?;
        }
        if self.exists {
            fs::rename(self.path, &gone).at(self.path)?;
            self.store.sync(&self.store.root)?;
            fs::remove_dir_all(&gone).at(&gone)?;
        }
        self.changed = false;
        Ok(())
    }

    /// Writes a file as a whole or not at all.
    fn put(&mut self, name: &str, content: &[u8]) -> Result<(), Error> {
        let new = self.path.join("new");
        self.store.write(&new, content)?;
        fs::rename(&new, self.path.join(name)).at(&new)?;
        self.changed = true;
        Ok(())
    }

    /// Changes the state of a message, in one step.
    fn change(&mut self, at: usize, to: Entry) -> Result<(), Error> {
        let from = self.path.join(self.entries[at].file_name());
        fs::rename(&from, self.path.join(to.file_name())).at(&from)?;
        self.entries[at] = to;
        Ok(())
    }

    /// A number above all ranks and turns.
    fn next(&self) -> u64 {
        self.entries.iter().map(|entry| entry.rank.max(entry.turn).saturating_add(1)).max().unwrap_or(0)
    }

    /// Where the messages in some states are in `entries`, in the order of `key`.
    fn sorted<K: Ord>(&self, states: &[State], key: impl Fn(&Entry) -> K) -> Vec<usize> {
        let is_wanted = |at: &usize| states.contains(&self.entries[*at].state);
        let mut found: Vec<usize> = (0..self.entries.len()).filter(is_wanted).collect();
        found.sort_by_key(|at| key(&self.entries[*at]));
        found
    }

    fn ready(&self) -> Vec<usize> {
        self.sorted(&[State::Ready], |entry| entry.rank)
    }

    fn dead(&self) -> Vec<usize> {
        self.sorted(&[State::Dead], |entry| entry.turn)
    }

    /// Ends delays and leases whose moment has passed, in the order of those moments.
    fn do_what_is_due(&mut self) -> Result<(), Error> {
        for at in self.sorted(&[State::Delayed, State::Leased], |entry| (entry.due, entry.turn)) {
            if self.entries[at].due > self.now.as_nanos() {
                break;
            }
            self.make_visible(at, Duration::ZERO, Moment::from_nanos(self.entries[at].due))?;
        }
        Ok(())
    }

    /// Ends a delay or a lease. A message that would be visible after its last delivery is a dead letter.
    fn make_visible(&mut self, at: usize, delay: Duration, now: Moment) -> Result<(), Error> {
        let count = self.entries[at].count;
        let is_spent = self.max_deliveries.is_some_and(|max| count >= max);
        let (state, due) = match delay.is_zero() {
            true if is_spent => return self.bury(at, &format!("delivered {count} times"), now),
            true => (State::Ready, 0),
            false => (State::Delayed, now.after(delay).as_nanos()),
        };
        let next = self.next();
        self.change(at, Entry { state, due, turn: next, rank: next, receipt: 0, ..self.entries[at].clone() })
    }

    /// The reason is stored first, so that a dead letter always has one.
    fn bury(&mut self, at: usize, reason: &str, died: Moment) -> Result<(), Error> {
        let entry = self.entries[at].clone();
        self.put(&format!("reason.{:032x}", entry.id), reason.as_bytes())?;
        self.change(at, Entry { state: State::Dead, due: died.as_nanos(), turn: self.next(), receipt: 0, ..entry })
    }

    pub(super) fn send(&mut self, message: &Outgoing) -> Result<MessageId, Error> {
        let id = message.id.as_u128().ok_or_else(|| Error::InvalidParameter {
            parameter: "id",
            value: message.id.to_string(),
            limit: "a UUID".into(),
        })?;
        let bytes = wire::encode(&message.body, &message.content_type, message.headers.as_deref());
        let (state, due) = match message.delay.is_zero() {
            true => (State::Ready, 0),
            false => (State::Delayed, self.now.after(message.delay).as_nanos()),
        };
        let (next, sent) = (self.next(), self.now.as_nanos());
        let entry = Entry { state, due, turn: next, rank: next, count: 0, id, sent, receipt: 0 };
        self.put(&entry.file_name(), &bytes)?;
        self.entries.push(entry);
        Ok(message.id.clone())
    }

    /// Leases the first messages that are ready.
    pub(super) fn receive(&mut self, max: usize, visibility: Duration) -> Result<Vec<Delivery>, Error> {
        let mut deliveries = Vec::new();
        for at in self.ready().into_iter().take(max) {
            let leased = Entry {
                state: State::Leased,
                due: self.now.after(visibility).as_nanos(),
                turn: self.next(),
                count: self.entries[at].count.saturating_add(1),
                receipt: MessageId::new().as_u128().expect("a new id is a UUID"),
                ..self.entries[at].clone()
            };
            let delivery = self.delivery(at, &leased)?;
            self.change(at, leased)?;
            deliveries.push(delivery);
        }
        Ok(deliveries)
    }

    /// The message at `at`, with the count and the receipt of `entry`.
    fn delivery(&self, at: usize, entry: &Entry) -> Result<Delivery, Error> {
        let (body, content_type, headers) = self.read(&self.entries[at])?;
        let (id, receipt) = (MessageId::from_u128(entry.id), ReceiptHandle::from_u128(entry.receipt));
        let mut delivery = Delivery::new(id, receipt, body, Moment::from_nanos(entry.sent), self.now);
        delivery.content_type = content_type;
        delivery.headers = headers;
        delivery.delivery_count = entry.count;
        Ok(delivery)
    }

    /// Bytes that cannot be decoded are a body whose content type says why, so that no codec reads them.
    fn read(&self, entry: &Entry) -> Result<wire::Parts, Error> {
        let path = self.path.join(entry.file_name());
        let bytes = Bytes::from(fs::read(&path).at(&path)?);
        let unread = |error: wire::DecodeError| (bytes.clone(), ContentType::from(error.to_string().as_str()), None);
        Ok(wire::decode(bytes.clone()).unwrap_or_else(unread))
    }

    /// The message whose current delivery has this receipt.
    fn leased(&self, receipt: &Receipt) -> Result<usize, Error> {
        let (id, handle) = (receipt.id.as_u128(), receipt.handle.as_u128());
        let is_it =
            |entry: &Entry| entry.state == State::Leased && Some(entry.id) == id && Some(entry.receipt) == handle;
        let found = self.entries.iter().position(is_it);
        found.ok_or_else(|| Error::ReceiptHandleExpired { id: receipt.id.clone() })
    }

    fn remove_at(&mut self, at: usize) -> Result<(), Error> {
        let entry = &self.entries[at];
        remove(&self.path.join(entry.file_name()))?;
        if entry.state == State::Dead {
            remove(&self.path.join(format!("reason.{:032x}", entry.id)))?;
        }
        self.entries.swap_remove(at);
        self.changed = true;
        Ok(())
    }

    fn remove_all(&mut self, is_dead: bool) -> Result<u64, Error> {
        let mut removed = 0;
        for at in (0..self.entries.len()).rev() {
            if (self.entries[at].state == State::Dead) == is_dead {
                self.remove_at(at)?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    pub(super) fn acknowledge(&mut self, receipt: &Receipt) -> Result<(), Error> {
        let at = self.leased(receipt)?;
        self.remove_at(at)
    }

    pub(super) fn set_visibility(&mut self, receipt: &Receipt, visibility: Visibility) -> Result<(), Error> {
        let at = self.leased(receipt)?;
        let entry = self.entries[at].clone();
        match visibility {
            Visibility::Return(delay) => {
                self.changed = true;
                self.make_visible(at, delay, self.now)
            }
            Visibility::Extend(by) => match self.now.after(by).as_nanos() {
                until if until <= entry.due => Ok(()),
                until => self.change(at, Entry { due: until, turn: self.next(), ..entry }),
            },
            Visibility::Release => self.change(
                at,
                Entry { state: State::Ready, due: 0, count: entry.count.saturating_sub(1), receipt: 0, ..entry },
            ),
        }
    }

    pub(super) fn dead_letter(&mut self, receipt: &Receipt, reason: &str) -> Result<(), Error> {
        let at = self.leased(receipt)?;
        self.bury(at, reason, self.now)
    }

    pub(super) fn dead_letters(&self, max: usize) -> Result<Vec<DeadLetter>, Error> {
        let dead = self.dead().into_iter().take(max);
        dead.map(|at| {
            let entry = &self.entries[at];
            let path = self.path.join(format!("reason.{:032x}", entry.id));
            let reason = fs::read_to_string(&path).at(&path)?;
            Ok(DeadLetter::new(self.delivery(at, entry)?, Moment::from_nanos(entry.due), reason.into()))
        })
        .collect()
    }

    pub(super) fn redrive(&mut self, which: &Redrive) -> Result<u64, Error> {
        let dead = self.dead().into_iter();
        let chosen: Vec<usize> = match which {
            Redrive::UpTo(max) => dead.take(*max).collect(),
            Redrive::One(id) => dead.filter(|at| Some(self.entries[*at].id) == id.as_u128()).collect(),
        };
        for at in &chosen {
            let entry = self.entries[*at].clone();
            self.changed = true;
            self.change(*at, Entry { state: State::Ready, due: 0, rank: self.next(), count: 0, ..entry })?;
            remove(&self.path.join(format!("reason.{:032x}", self.entries[*at].id)))?;
        }
        Ok(chosen.len() as u64)
    }

    pub(super) fn purge(&mut self) -> Result<u64, Error> {
        self.remove_all(false)
    }

    pub(super) fn purge_dead_letters(&mut self) -> Result<u64, Error> {
        self.remove_all(true)
    }

    /// Removes a message that was never visible.
    pub(super) fn cancel(&mut self, id: &MessageId) -> Result<bool, Error> {
        let is_it = |entry: &Entry| entry.state == State::Delayed && entry.count == 0 && Some(entry.id) == id.as_u128();
        let found = self.entries.iter().position(is_it);
        found.map(|at| self.remove_at(at)).transpose().map(|removed| removed.is_some())
    }

    pub(super) fn peek(&self, max: usize) -> Result<Vec<Delivery>, Error> {
        self.ready().into_iter().take(max).map(|at| self.delivery(at, &self.entries[at])).collect()
    }

    pub(super) fn counts(&self) -> Counts {
        let count = |state| self.entries.iter().filter(|entry| entry.state == state).count() as u64;
        Counts::new(count(State::Ready), count(State::Delayed), count(State::Leased), count(State::Dead))
    }
}
