//! The conformance suite on the folder backend, and what is its own: processes, files, crashes.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use postbox::backend::Backend as _;
use postbox::conformance::Harness;
use postbox::testing::ManualClock;
use postbox::{Connection, Error, Mailbox, MemoryBackend};
use postbox_examples::folder::FolderBackend;

/// A folder for each case, whose time the test moves.
struct Folder {
    connection: Connection,
    clock: ManualClock,
    _folder: tempfile::TempDir,
}

impl Folder {
    fn new() -> Self {
        let (folder, clock) = (tempfile::tempdir().unwrap(), ManualClock::new());
        let backend = FolderBackend::without_sync(folder.path(), Arc::new(clock.clone())).unwrap();
        // The suite also has cases of requests. Their replies are kept in memory.
        let replies = MemoryBackend::with_clock(Arc::new(clock.clone())).replies().unwrap();
        Folder { connection: Connection::new(backend).replies(replies), clock, _folder: folder }
    }
}

impl Harness for Folder {
    fn connect(&self) -> Connection {
        self.connection.clone()
    }

    fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    fn tick(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn is_exact(&self) -> bool {
        true
    }
}

mod conformance {
    use super::*;

    postbox::conformance_tests!(Folder::new());

    #[test]
    fn random_operations_do_as_the_ledger() {
        postbox::conformance::property(&Folder::new(), 200);
    }
}

fn jobs(folder: &Path) -> Mailbox<String> {
    Connection::new(FolderBackend::open(folder).unwrap()).mailbox("jobs").unwrap()
}

#[test]
fn another_process_sees_the_messages_and_wakes_a_receive() {
    let folder = tempfile::tempdir().unwrap();
    // Two backends know nothing of each other, as two processes do.
    let (ours, theirs) = (jobs(folder.path()), jobs(folder.path()));
    let waiting = std::thread::spawn(move || theirs.receive().wait_time(Duration::from_secs(30)).blocking());
    ours.send("cat.png").blocking().unwrap();
    let messages = waiting.join().unwrap().unwrap();
    assert_eq!(messages[0].body, "cat.png");
    assert_eq!(ours.counts().blocking().unwrap().in_flight, 1);
    messages[0].acknowledge().blocking().unwrap();
    assert_eq!(ours.counts().blocking().unwrap().total(), 0);
}

#[test]
fn messages_survive_the_program_and_a_half_written_file_is_no_message() {
    let folder = tempfile::tempdir().unwrap();
    jobs(folder.path()).send("cat.png").blocking().unwrap();
    fs::write(folder.path().join("@jobs").join("new"), "half").unwrap();
    let jobs = jobs(folder.path());
    assert_eq!(jobs.counts().blocking().unwrap().total(), 1);
    assert_eq!(jobs.receive().blocking().unwrap()[0].body, "cat.png");
}

#[test]
fn files_of_others_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let backend = FolderBackend::open(folder.path()).unwrap();
    let jobs: Mailbox<String> = Connection::new(backend.clone()).mailbox("jobs").unwrap();
    jobs.send("cat.png").blocking().unwrap();
    fs::create_dir(folder.path().join("notes@two words")).unwrap();
    let strange =
        format!("leased.{:016x}.{max}.{max}.{:08x}.{:032x}.{:016x}.{:032x}", 0, 0, 1, 0, 1, max = "f".repeat(16));
    for name in ["notes.txt", "ready.x.y", &strange] {
        fs::write(folder.path().join("@jobs").join(name), "").unwrap();
    }
    assert_eq!(backend.list().blocking().unwrap().len(), 1);
    assert_eq!(jobs.counts().blocking().unwrap().ready, 2);
    assert!(folder.path().join("@jobs").join("notes.txt").exists());
}

#[test]
fn a_folder_that_cannot_be_used_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let error = FolderBackend::open(file.join("below")).unwrap_err();
    assert!(matches!(&error, Error::Connection { transient: false, .. }), "{error:?}");
}
