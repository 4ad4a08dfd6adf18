//! Errors of the SQLite backend, and how long it waits for locks.

use std::future::IntoFuture as _;
use std::time::{Duration, Instant};

use postbox::sqlite::{SqliteBackend, SqliteConfig, rusqlite};
use postbox::*;

use super::open;

#[test]
fn waiting_for_a_lock_of_another_connection_has_a_limit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let url = format!("sqlite://{}/jobs?busy_timeout=0.1", path.display());
    let jobs: Mailbox<u32, u32> = postbox::open(&url).blocking().unwrap();
    jobs.create().blocking().unwrap();
    let holder = rusqlite::Connection::open(&path).unwrap();
    holder.execute_batch("BEGIN IMMEDIATE").unwrap();
    let assert_busy = |error: Error| {
        assert!(matches!(error, Error::Connection { transient: true, .. }), "{error:?}");
        for part in ["a.db", "lock", "0.1 s", "busy_timeout"] {
            assert!(error.to_string().contains(part), "{error}");
        }
    };
    assert_busy(jobs.send(&1).blocking().unwrap_err());
    assert_busy(jobs.receive().wait_time(Duration::from_secs(3_600)).blocking().unwrap_err());
    assert_busy(jobs.send_expecting_reply(&1).blocking().unwrap_err());
    // An address with other options opens a separate connection.
    assert_busy(
        postbox::open::<u32, (), Json>(format!("{url}&synchronous=normal"))
            .blocking()
            .and_then(|jobs| jobs.counts().blocking())
            .unwrap_err(),
    );
    // Operations in one transaction wait for the lock at the same time, not one after the other.
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let start = Instant::now();
    runtime.block_on(async {
        let sends: Vec<_> = (0..500).map(|number| tokio::spawn(jobs.send(&number).into_future())).collect();
        for send in sends {
            assert_busy(send.await.unwrap().unwrap_err());
        }
    });
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    holder.execute_batch("COMMIT").unwrap();
    jobs.send(&2).blocking().unwrap();
    assert_eq!(jobs.approximate_count().blocking().unwrap(), 1);
    let wrong = postbox::open::<u32, (), Json>("sqlite://a.db/jobs?busy_timeout=301").blocking().unwrap_err();
    assert!(matches!(wrong, Error::InvalidParameter { parameter: "busy_timeout", .. }), "{wrong}");
}

#[test]
fn a_send_within_needs_a_transaction() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let jobs: Mailbox<u32> = open(&path, "jobs");
    jobs.create().blocking().unwrap();
    let shop = rusqlite::Connection::open(&path).unwrap();
    let refused = jobs.send(&1).within(&shop).unwrap_err();
    assert!(matches!(refused, Error::InvalidParameter { parameter: "connection", .. }), "{refused}");
    assert!(refused.to_string().contains("transaction()"), "{refused}");
    assert_eq!(jobs.approximate_count().blocking().unwrap(), 0);
    shop.execute_batch("BEGIN").unwrap();
    jobs.send(&2).within(&shop).unwrap();
    shop.execute_batch("COMMIT").unwrap();
    assert_eq!(jobs.receive().blocking().unwrap()[0].body, 2);
}

#[test]
fn a_send_within_gives_a_new_mailbox_its_settings() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let url = format!("sqlite://{}/jobs?max_size=1", path.display());
    let jobs: Mailbox<u32> = postbox::open(url).blocking().unwrap();
    let mut shop = rusqlite::Connection::open(&path).unwrap();
    let order = shop.transaction().unwrap();
    jobs.send(&1).within(&order).unwrap();
    assert!(matches!(jobs.send(&2).within(&order), Err(Error::MailboxFull { .. })));
}

#[cfg(unix)]
#[test]
fn only_the_owner_can_read_a_new_file() {
    use std::os::unix::fs::PermissionsExt as _;

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let jobs: Mailbox<u32> = open(&path, "jobs");
    jobs.send(&1).blocking().unwrap();
    let files: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap()).collect();
    assert_eq!(files.len(), 3, "the database, its log, and the index of the log");
    for file in files {
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{file:?}");
    }
    // An existing file keeps its permissions.
    let shared = folder.path().join("shared.db");
    std::fs::write(&shared, "").unwrap();
    std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o640)).unwrap();
    open::<u32, ()>(&shared, "jobs").send(&1).blocking().unwrap();
    assert_eq!(shared.metadata().unwrap().permissions().mode() & 0o777, 0o640);
}

#[test]
fn a_file_that_cannot_be_used_is_not_created() {
    let folder = tempfile::tempdir().unwrap();
    let too_long = SqliteConfig::default().busy_timeout(Duration::from_secs(301));
    assert!(SqliteBackend::open_with(folder.path().join("a.db"), too_long).is_err());
    assert!(SqliteBackend::open(folder.path()).is_err(), "it is a folder");
    assert!(SqliteBackend::open(folder.path().join("none/a.db")).is_err());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
