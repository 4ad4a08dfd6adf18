//! A simulated disk that forgets unsynced changes at a power cut.
//!
//! Two views of a folder are kept. What programs see is the folder itself. What is *durable* is here:
//!
//! - A write or a truncation is pending until its file is synced. The contents of a file are those of its last sync.
//! - A name that appears, and a name that goes, is pending until the folder is synced. Syncing a file does not sync its
//!   folder, with one exception, which is what SQLite does on Unix: the first sync of a journal or a write-ahead log
//!   that was opened to be made. A delete syncs the folder if SQLite asks for it. So a file whose name was never synced
//!   does not exist, and a file that was deleted may come back.
//! - What is shared memory (`-shm`) is never durable.
//! - A power cut keeps nothing of what is pending ([`Survivors::None`]), or any part of it ([`Survivors::Some`]): each
//!   sector of 512 bytes of each write, each truncation and each name by chance, whatever the order they were written in.
//!   Bytes next to those written are not damaged: SQLite relies on that, and disks keep to it.
//! - A sync that fails leaves any part of what is pending on the disk. The rest never gets there, even if a later sync
//!   succeeds, unless it is written again: Linux does so.
//! - There is one exception, the database's pages of *earlier* checkpoints: they stay pending. A checkpoint that a reader
//!   keeps from the end of the log is not synced. SQLite does not write its pages again, but relies on the sync of a later
//!   checkpoint (`storage::power::a_checkpoint_beside_a_reader_is_synced_by_the_next_one`). A checkpoint runs on one thread
//!   and begins with a sync of the log, which is how earlier checkpoints are told from the one that fails.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

const SECTOR: usize = 512;

/// An operation on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Write,
    Truncate,
    Sync,
    Delete,
}

/// The operations that a cut or a fault counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    Any,
    /// Operations of one kind.
    Only(Kind),
    /// Operations on the database file. In WAL mode only checkpoints write to it.
    Database,
}

/// The part of unsynced changes that survives a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Survivors {
    None,
    Some,
}

/// When the power is cut: before or after the `nth` counted operation from now, where 0 is the next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    pub(crate) which: Which,
    pub(crate) nth: u64,
    pub(crate) is_after: bool,
    pub(crate) survivors: Survivors,
}

/// How a disk fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// All operations fail.
    Broken,
    /// Writes fail.
    Full,
    /// Writes fail.
    ReadOnly,
}

impl Failure {
    /// The error code of SQLite, if this operation fails.
    fn code(self, kind: Kind) -> Option<i32> {
        use rusqlite::ffi::*;
        match (self, kind) {
            (Failure::Broken, Kind::Write) => Some(SQLITE_IOERR_WRITE),
            (Failure::Broken, Kind::Truncate) => Some(SQLITE_IOERR_TRUNCATE),
            (Failure::Broken, Kind::Sync) => Some(SQLITE_IOERR_FSYNC),
            (Failure::Broken, Kind::Delete) => Some(SQLITE_IOERR_DELETE),
            (Failure::Full, Kind::Write) => Some(SQLITE_FULL),
            (Failure::ReadOnly, Kind::Write) => Some(SQLITE_READONLY),
            (Failure::Full | Failure::ReadOnly, _) => None,
        }
    }
}

/// A fault: the `nth` counted operation from now fails, where 0 is the next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) which: Which,
    pub(crate) nth: u64,
    pub(crate) failure: Failure,
    /// Whether half of the bytes are written before the failure.
    pub(crate) is_partial: bool,
    /// Whether all later operations fail too, until the disk is healed.
    pub(crate) is_lasting: bool,
}

/// The files that cannot be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Protection {
    #[default]
    None,
    /// The database is read-only. Files can be created in its folder.
    File,
    /// No file can be created or deleted.
    Folder,
    /// Both, like a read-only mount.
    All,
}

/// The files of a folder after a power cut.
pub(crate) type Image = BTreeMap<String, Vec<u8>>;

pub(crate) struct Disk {
    state: Mutex<State>,
}

struct State {
    random: StdRng,
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    files: Vec<File>,
    events: u64,
    cut: Option<Cut>,
    image: Option<Image>,
    fault: Option<Fault>,
    failures: u64,
    protection: Protection,
}

#[derive(Default)]
struct File {
    is_database: bool,
    is_log: bool,
    durable: Vec<u8>,
    writes: u64,
    pending: Vec<Pending>,
}

struct Pending {
    change: Change,
    /// The thread that made the change. It is cleared when that thread syncs a log, since then the change belongs to an earlier
    /// checkpoint.
    thread: Option<ThreadId>,
}

enum Change {
    Write(usize, Vec<u8>),
    Truncate(usize),
}

impl File {
    fn push(&mut self, change: Change) {
        self.pending.push(Pending { change, thread: Some(std::thread::current().id()) });
    }
}

impl Change {
    fn apply(&self, contents: &mut Vec<u8>) {
        match self {
            Change::Write(at, bytes) => put(contents, *at, bytes),
            Change::Truncate(size) => contents.truncate(*size),
        }
    }

    /// Applies a random part of the sectors.
    fn apply_in_part(&self, contents: &mut Vec<u8>, random: &mut StdRng, chance: f64) {
        match self {
            Change::Truncate(_) if !random.random_bool(chance) => {}
            Change::Truncate(_) => self.apply(contents),
            Change::Write(at, bytes) => {
                let mut from = 0;
                while from < bytes.len() {
                    let to = bytes.len().min(from + SECTOR - (at + from) % SECTOR);
                    if random.random_bool(chance) {
                        put(contents, at + from, &bytes[from..to]);
                    }
                    from = to;
                }
            }
        }
    }
}

fn put(contents: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    let end = at + bytes.len();
    if contents.len() < end {
        contents.resize(end, 0);
    }
    contents[at..end].copy_from_slice(bytes);
}

/// A random probability, often 0 or 1.
fn chance(random: &mut StdRng) -> f64 {
    [0.0, 0.1, 0.5, 0.9, 1.0][random.random_range(0..5)]
}

impl Which {
    fn counts(self, kind: Kind, is_database: bool) -> bool {
        match self {
            Which::Any => true,
            Which::Only(only) => only == kind,
            Which::Database => is_database,
        }
    }
}

impl Disk {
    pub(crate) fn new(seed: u64) -> Self {
        let state = State {
            random: StdRng::seed_from_u64(seed),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            files: Vec::new(),
            events: 0,
            cut: None,
            image: None,
            fault: None,
            failures: 0,
            protection: Protection::None,
        };
        Disk { state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Plans a power cut. Programs continue without noticing it. The disk takes an image of the durable state at that time.
    pub(crate) fn plan(&self, cut: Cut) {
        self.lock().cut = Some(cut);
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.lock().image.is_some()
    }

    /// Runs `act`, unless the power was cut before. The cut cannot happen during `act`.
    pub(crate) fn unless_cut<T>(&self, act: impl FnOnce() -> T) -> Option<T> {
        let state = self.lock();
        state.image.is_none().then(act)
    }

    /// Writes the files that the power cut left into a folder. If the power was not cut yet, it is cut now.
    pub(crate) fn power_cut(&self, survivors: Survivors, into: &Path) {
        let mut state = self.lock();
        if state.image.is_none() {
            state.take_image(survivors);
        }
        for (name, contents) in state.image.iter().flatten() {
            std::fs::write(into.join(name), contents).unwrap();
        }
    }

    /// Ends the power cut, so that another one can be planned.
    pub(crate) fn power_on(&self) {
        let mut state = self.lock();
        (state.cut, state.image) = (None, None);
    }

    pub(crate) fn break_with(&self, fault: Fault) {
        self.lock().fault = Some(fault);
    }

    pub(crate) fn heal(&self) {
        self.lock().fault = None;
    }

    /// Whether a file has unsynced changes.
    pub(crate) fn is_pending(&self, name: &str) -> bool {
        let state = self.lock();
        state.names.get(name).is_some_and(|file| !state.files[*file].pending.is_empty())
    }

    /// Number of writes to a file.
    pub(crate) fn writes(&self, name: &str) -> u64 {
        let state = self.lock();
        state.names.get(name).map_or(0, |file| state.files[*file].writes)
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.lock().fault.is_some()
    }

    /// Number of failed operations.
    pub(crate) fn failures(&self) -> u64 {
        self.lock().failures
    }

    /// Number of writes, truncations, syncs and deletes.
    pub(crate) fn events(&self) -> u64 {
        self.lock().events
    }

    pub(crate) fn protect(&self, protection: Protection) {
        self.lock().protection = protection;
    }

    pub(crate) fn protection(&self) -> Protection {
        self.lock().protection
    }

    /// Records that a file was opened, and created if it did not exist.
    pub(crate) fn open(&self, name: &str, is_database: bool) -> usize {
        let mut state = self.lock();
        if let Some(known) = state.names.get(name) {
            return *known;
        }
        let file = state.files.len();
        state.files.push(File { is_database, is_log: name.ends_with("-wal"), ..File::default() });
        state.names.insert(name.to_owned(), file);
        file
    }

    pub(crate) fn write(&self, file: usize, at: usize, bytes: &[u8], write: impl Fn(&[u8]) -> i32) -> i32 {
        self.event(Kind::Write, Some(file), |state, fault| {
            let bytes = match fault {
                Some(fault) if fault.is_partial => &bytes[..bytes.len() / 2],
                Some(_) => &[],
                None => bytes,
            };
            let code = if bytes.is_empty() { 0 } else { write(bytes) };
            state.files[file].writes += 1;
            state.files[file].push(Change::Write(at, bytes.to_vec()));
            code
        })
    }

    pub(crate) fn truncate(&self, file: usize, size: usize, truncate: impl FnOnce() -> i32) -> i32 {
        self.event(Kind::Truncate, Some(file), |state, fault| {
            if fault.is_some() {
                return 0;
            }
            state.files[file].push(Change::Truncate(size));
            truncate()
        })
    }

    /// Records a sync. The system's file is not synced, because power cuts are simulated.
    pub(crate) fn sync(&self, file: usize, folder_too: bool) -> i32 {
        self.event(Kind::Sync, Some(file), |state, fault| {
            let State { random, files, .. } = state;
            let (chance, thread) = (chance(random), std::thread::current().id());
            let File { is_database, is_log, durable, pending, .. } = &mut files[file];
            let (is_database, is_log) = (*is_database, *is_log);
            for Pending { change, thread: by } in std::mem::take(pending) {
                match fault {
                    None => change.apply(durable),
                    Some(_) if is_database && by != Some(thread) => pending.push(Pending { change, thread: by }),
                    Some(_) => change.apply_in_part(durable, random, chance),
                }
            }
            if is_log {
                let changes = files.iter_mut().flat_map(|file| &mut file.pending);
                changes.filter(|pending| pending.thread == Some(thread)).for_each(|pending| pending.thread = None);
            }
            if folder_too && fault.is_none() {
                state.durable_names = state.names.clone();
            }
            0
        })
    }

    pub(crate) fn delete(&self, name: &str, folder_too: bool, delete: impl FnOnce() -> i32) -> i32 {
        let file = self.lock().names.get(name).copied();
        self.event(Kind::Delete, file, |state, fault| {
            if fault.is_some() {
                return 0;
            }
            state.names.remove(name);
            if folder_too {
                state.durable_names = state.names.clone();
            }
            delete()
        })
    }

    /// Runs one operation under the lock, so that a cut is before or after it, never within.
    fn event(&self, kind: Kind, file: Option<usize>, act: impl FnOnce(&mut State, Option<Fault>) -> i32) -> i32 {
        let mut state = self.lock();
        let is_database = file.is_some_and(|file| state.files[file].is_database);
        state.events += 1;
        let is_cut = state.is_due(kind, is_database);
        if let Some(cut) = is_cut.filter(|cut| !cut.is_after) {
            state.take_image(cut.survivors);
        }
        let fault = state.fails(kind, is_database);
        let code = act(&mut state, fault);
        if let Some(cut) = is_cut.filter(|cut| cut.is_after) {
            state.take_image(cut.survivors);
        }
        fault.and_then(|fault| fault.failure.code(kind)).unwrap_or(code)
    }
}

impl State {
    fn is_due(&mut self, kind: Kind, is_database: bool) -> Option<Cut> {
        let cut = self.cut.as_mut().filter(|cut| cut.which.counts(kind, is_database))?;
        match cut.nth.checked_sub(1) {
            Some(left) => {
                cut.nth = left;
                None
            }
            None => self.cut.take(),
        }
    }

    fn fails(&mut self, kind: Kind, is_database: bool) -> Option<Fault> {
        let fault = self.fault.as_mut().filter(|fault| fault.which.counts(kind, is_database))?;
        fault.failure.code(kind)?;
        if let Some(left) = fault.nth.checked_sub(1) {
            fault.nth = left;
            return None;
        }
        let fault = *fault;
        self.failures += 1;
        if !fault.is_lasting {
            self.fault = None;
        }
        Some(fault)
    }

    fn take_image(&mut self, survivors: Survivors) {
        let State { random, names, durable_names, files, .. } = self;
        let mut kept = durable_names.clone();
        if survivors == Survivors::Some {
            let chance = chance(random);
            for name in names.keys().chain(durable_names.keys()) {
                if random.random_bool(chance) {
                    match names.get(name) {
                        Some(file) => kept.insert(name.clone(), *file),
                        None => kept.remove(name),
                    };
                }
            }
        }
        let mut contents = |file: usize| {
            let File { durable, pending, .. } = &files[file];
            let mut contents = durable.clone();
            if survivors == Survivors::Some {
                let chance = chance(random);
                pending.iter().for_each(|pending| pending.change.apply_in_part(&mut contents, random, chance));
            }
            contents
        };
        self.image = Some(kept.into_iter().map(|(name, file)| (name, contents(file))).collect());
    }
}
