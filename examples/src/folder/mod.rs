//! Messages in a folder of files. Several processes may share the folder.
//!
//! # On the disk
//!
//! ```text
//! ROOT/lock                        locked by the process that runs a verb
//! ROOT/PREFIX@NAME/max_deliveries  a setting of one mailbox
//! ROOT/PREFIX@NAME/reason.ID       why a message is a dead letter
//! ROOT/PREFIX@NAME/STATE.DUE.…     one message: its state is the name, its bytes are the content
//! ```
//!
//! A message changes its state by a rename of its file, which is atomic. So a crash leaves every
//! message in exactly one state. `entry.rs` has the format of the name.
//!
//! # What survives a power cut
//!
//! A send syncs the file, then the folder. Every other verb that changes something syncs the folder
//! before it returns, except `receive`, extensions and releases: after a power cut such a message may be
//! ready again, with a lower delivery count. [`FolderBackend::without_sync`] leaves all syncs out.
//!
//! # Limits
//!
//! Each verb reads the names of all files of the mailbox, so its cost grows with the number of
//! messages. Groups, deduplication ids, ids of the caller's own, expiry and `max_size` are not supported,
//! which [`limits`](Backend::limits) says. There is no reply store. Time is the clock of the process:
//! when the clocks of two processes differ, a lease may end early or late by that much. A waiting
//! receive notices changes by other processes, and deadlines, within 20 ms.

mod entry;
mod mailbox;
mod store;
mod thread;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use postbox::backend::{Backend, ByteMailbox, MailboxSettings};
use postbox::clock::{Clock, SystemClock};
use postbox::operation::Answer;
use postbox::{Error, Limits, MailboxName};

use self::mailbox::{FolderMailbox, Handle};
use self::store::Store;
use self::thread::Thread;

/// Mailboxes in a folder.
///
/// ```
/// use postbox::{Connection, Mailbox};
/// use postbox_examples::folder::FolderBackend;
///
/// let folder = tempfile::tempdir().unwrap();
/// let jobs: Mailbox<String> = Connection::new(FolderBackend::open(folder.path())?).mailbox("jobs")?;
/// jobs.send("resize cat.png").blocking()?;
/// # Ok::<(), postbox::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct FolderBackend {
    store: Arc<Store>,
    thread: Thread,
}

impl FolderBackend {
    /// Opens a folder, and makes it if there is none.
    ///
    /// # Errors
    /// [`Error::Connection`] if the folder cannot be made or written.
    pub fn open(root: impl AsRef<Path>) -> Result<Self, Error> {
        Self::with(root.as_ref(), SystemClock::shared(), true)
    }

    /// As [`open`](Self::open), without syncs and with another clock: for tests.
    ///
    /// # Errors
    /// [`Error::Connection`] if the folder cannot be made or written.
    pub fn without_sync(root: impl AsRef<Path>, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        Self::with(root.as_ref(), clock, false)
    }

    fn with(root: &Path, clock: Arc<dyn Clock>, sync: bool) -> Result<Self, Error> {
        let open = || -> io::Result<(PathBuf, File)> {
            fs::create_dir_all(root)?;
            let root = root.canonicalize()?;
            let lock = File::options().create(true).truncate(false).write(true).open(root.join("lock"))?;
            Ok((root, lock))
        };
        let (root, lock) = open().map_err(|error| failed(root, error))?;
        let store = Arc::new(Store { root, lock, clock: Arc::clone(&clock), sync });
        let thread = Thread::start(clock).map_err(|error| failed(&store.root, error))?;
        Ok(FolderBackend { store, thread })
    }
}

impl Backend for FolderBackend {
    fn kind(&self) -> &'static str {
        "folder"
    }

    fn limits(&self) -> Limits {
        let mut limits = Limits::generous();
        limits.groups = false;
        limits.deduplication = false;
        limits.expiry = false;
        limits.max_size = false;
        limits.own_ids = false;
        limits
    }

    fn mailbox(&self, name: &MailboxName, settings: &MailboxSettings) -> Result<Arc<dyn ByteMailbox>, Error> {
        if settings.idle_expiry.is_some() {
            return Err(Error::Unsupported { backend: self.kind(), operation: "remove a mailbox when it is idle" });
        }
        if settings.deduplication_window.is_some() {
            return Err(Error::Unsupported { backend: self.kind(), operation: "remember deduplication ids" });
        }
        let path = self.store.root.join(format!("{}@{}", name.prefix().unwrap_or_default(), name.as_str()));
        let handle = Handle::new(Arc::clone(&self.store), path, settings.clone());
        Ok(Arc::new(FolderMailbox { handle: Arc::new(handle), thread: self.thread.clone() }))
    }

    fn list(&self) -> Answer<Result<Vec<MailboxName>, Error>> {
        let store = Arc::clone(&self.store);
        self.thread.answer(None, move || store.list())
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.store.clock)
    }
}

/// The error of Postbox for an error of the file system. A full disk or an interruption may pass.
fn failed(path: &Path, error: io::Error) -> Error {
    use io::ErrorKind::{Interrupted, QuotaExceeded, ResourceBusy, StorageFull, TimedOut, WouldBlock};
    let transient =
        matches!(error.kind(), Interrupted | QuotaExceeded | ResourceBusy | StorageFull | TimedOut | WouldBlock);
    Error::Connection {
        message: format!("the folder {}: {error}", path.display()),
        transient,
        source: Some(Arc::new(error)),
    }
}
