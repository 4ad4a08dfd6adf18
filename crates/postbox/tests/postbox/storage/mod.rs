//! The SQLite backend under power cuts, on failing, full and read-only disks, and with locks of other processes.
//!
//! `disk.rs` is the model of the disk. The tests are short by default. `POSTBOX_POWER_CUTS`, `POSTBOX_STORAGE_FAULTS` and
//! `POSTBOX_LOCKS` set the numbers of rounds, and `POSTBOX_STORAGE_SEED` (0) the first seed.

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

/// A folder on a simulated disk.
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

    /// Waits until the last connection is closed and has removed the write-ahead log.
    fn wait_until_closed(&self) {
        while self.folder.path().join("a.db-wal").exists() {
            std::thread::yield_now();
        }
    }
}

fn open<T: 'static, R: 'static>(path: &Path) -> Result<Mailbox<T, R>, Error> {
    postbox::open(format!("sqlite://{}/jobs", path.display())).blocking()
}

/// The seeds of a test. The variable sets their number.
fn seeds(variable: &str, default: u64) -> Range<u64> {
    let number = |name: &str| std::env::var(name).ok().map(|number| number.parse::<u64>().expect("a number"));
    let first = number("POSTBOX_STORAGE_SEED").unwrap_or(0);
    first..first + number(variable).unwrap_or(default)
}

/// Asserts that the file is not damaged and that the counts of its mailbox are right.
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
