//! What the SQLite backend stands: power cuts, disks that fail or are full or read-only, locks that others hold.
//!
//! The model of the disk is in `disk.rs`. Short by default; the seeds run on from `POSTBOX_STORAGE_SEED` (0), and
//! `POSTBOX_POWER_CUTS`, `POSTBOX_STORAGE_FAULTS` and `POSTBOX_LOCKS` say how many rounds.

mod disk;
mod faults;
mod locks;
mod power;
mod read_only;
mod vfs;
mod workload;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use postbox::sqlite::rusqlite;
use postbox::*;

use self::disk::Disk;

/// A folder whose disk is under control.
struct Machine {
    folder: tempfile::TempDir,
    disk: Arc<Disk>,
}

impl Machine {
    fn new(seed: u64) -> Self {
        let machine = Machine { folder: tempfile::tempdir().unwrap(), disk: Arc::new(Disk::new(seed)) };
        vfs::control(machine.folder.path(), &machine.disk);
        machine
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("a.db")
    }

    /// Waits until the last connection is gone, and with it the write-ahead log.
    fn wait_until_closed(&self) {
        while self.folder.path().join("a.db-wal").exists() {
            std::thread::yield_now();
        }
    }
}

fn open<T: 'static, R: 'static>(path: &Path) -> Result<Mailbox<T, R>, Error> {
    postbox::open(format!("sqlite://{}/jobs", path.display())).blocking()
}

/// The seeds of a test: as many as the variable says.
fn seeds(variable: &str, default: u64) -> Range<u64> {
    let number = |name: &str| std::env::var(name).ok().map(|number| number.parse::<u64>().expect("a number"));
    let first = number("POSTBOX_STORAGE_SEED").unwrap_or(0);
    first..first + number(variable).unwrap_or(default)
}

/// The file is whole, and what its mailbox counts is there.
pub(super) fn check_file(path: &Path) {
    let connection = rusqlite::Connection::open(path).unwrap();
    let check: String = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(check, "ok");
    let wrong: i64 = connection
        .query_row(
            "SELECT count(*) FROM mailbox b WHERE
                 b.ready <> (SELECT count(*) FROM message WHERE mailbox = b.id AND state IN (0, 1))
                 OR b.delayed <> (SELECT count(*) FROM message WHERE mailbox = b.id AND state IN (2, 3))
                 OR b.leased <> (SELECT count(*) FROM message WHERE mailbox = b.id AND state = 4)
                 OR b.dead <> (SELECT count(*) FROM dead WHERE mailbox = b.id)",
            [],
            |row| row.get(0),
        )
        .unwrap();
    assert_eq!(wrong, 0, "a mailbox counts what is not there");
}
