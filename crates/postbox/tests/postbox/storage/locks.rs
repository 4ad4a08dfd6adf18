//! Operations wait while another process holds the lock of the file, at any time and for long.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use postbox::sqlite::rusqlite;
use postbox::*;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::disk::Disk;
use super::workload::{Jobs, Workload};
use super::{check_file, open, seeds};

/// Runs only in a child process: executes each input line as a statement, and prints a line when it is done.
#[test]
fn child_of_the_lock_test() {
    let Ok(path) = std::env::var("POSTBOX_TEST_LOCKS") else { return };
    let connection = rusqlite::Connection::open(path).unwrap();
    connection.busy_timeout(Duration::from_secs(3600)).unwrap();
    for statement in std::io::stdin().lines() {
        connection.execute_batch(&statement.unwrap()).unwrap();
        println!("\ndone");
    }
}

/// Another process that uses the same file. It is killed on drop.
struct Other {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Other {
    fn start(path: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "storage::locks::child_of_the_lock_test", "--nocapture"])
            .env("POSTBOX_TEST_LOCKS", path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Other { child, answers }
    }

    /// Executes a statement and waits until it is done.
    fn execute(&mut self, statement: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{statement}").unwrap();
        let mut lines = (&mut self.answers).lines();
        assert!(lines.any(|line| line.unwrap() == "done"), "{statement}");
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The statements by which the other process takes and releases the lock. Without the second one it is killed instead.
const HOLDS: [(&str, Option<&str>); 5] = [
    ("BEGIN IMMEDIATE", Some("COMMIT")),
    ("BEGIN EXCLUSIVE; INSERT INTO theirs VALUES (1)", Some("COMMIT")),
    ("BEGIN IMMEDIATE; INSERT INTO theirs VALUES (2)", Some("ROLLBACK")),
    ("BEGIN IMMEDIATE; INSERT INTO theirs VALUES (3)", None),
    // A reader blocks no operation, and no checkpoint completes while it reads.
    ("BEGIN; SELECT count(*) FROM theirs", Some("COMMIT; PRAGMA wal_checkpoint(TRUNCATE)")),
];

struct Dice {
    random: StdRng,
    other: Other,
    is_held: bool,
}

#[test]
fn operations_wait_for_locks_of_another_process_at_any_time() {
    let holds = AtomicU32::new(0);
    for seed in seeds("POSTBOX_LOCKS", 2) {
        println!("seed {seed}");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        let jobs: Jobs = open(&path).unwrap();
        jobs.create().blocking().unwrap();
        let start = || {
            let mut other = Other::start(&path);
            other.execute("CREATE TABLE IF NOT EXISTS theirs (x)");
            other
        };
        let state = Mutex::new(Dice { random: StdRng::seed_from_u64(seed), other: start(), is_held: false });
        let disk = Disk::new(seed);
        std::thread::scope(|scope| {
            // While the other process holds the lock, operations go on without this step and wait for the lock.
            let (state, start, holds) = (&state, &start, &holds);
            let workload = Workload::new(&disk).after_each(move || {
                let Ok(mut dice) = state.try_lock() else { return };
                if dice.is_held || dice.random.random_bool(0.97) {
                    return;
                }
                let (take, give_up) = HOLDS[dice.random.random_range(0..HOLDS.len())];
                dice.other.execute(take);
                dice.is_held = true;
                holds.fetch_add(1, Ordering::SeqCst);
                let longest = if dice.random.random_bool(0.2) { 3000 } else { 300 };
                let pause = Duration::from_millis(dice.random.random_range(0..longest));
                scope.spawn(move || {
                    std::thread::sleep(pause);
                    let mut dice = state.lock().unwrap();
                    match give_up {
                        Some(statement) => dice.other.execute(statement),
                        None => {
                            dice.other.kill();
                            dice.other = start();
                        }
                    }
                    dice.is_held = false;
                });
            });
            workload.run(&jobs, &path, seed, 4, 60);
            workload.check(&jobs, &path, true);
        });
    }
    println!("{} times", holds.load(Ordering::SeqCst));
    assert!(holds.into_inner() > 0);
}

#[test]
fn a_file_that_another_process_has_locked_can_be_opened() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    // Lock a new file, then one with tables.
    for take in ["BEGIN EXCLUSIVE", "BEGIN IMMEDIATE"] {
        let mut other = Other::start(&path);
        other.execute(take);
        let opening = std::thread::spawn({
            let path = path.clone();
            move || open::<u32, ()>(&path).and_then(|jobs| jobs.send(&1).blocking().map(|_| jobs))
        });
        std::thread::sleep(Duration::from_millis(200));
        assert!(!opening.is_finished(), "it cannot send while the other process holds the lock");
        other.execute("COMMIT");
        drop(opening.join().unwrap().unwrap());
    }
    assert_eq!(open::<u32, ()>(&path).unwrap().approximate_count().blocking().unwrap(), 2);
    check_file(&path);
}

#[test]
fn a_send_within_a_users_transaction_waits_for_the_lock() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let jobs: Mailbox<u32> = open(&path).unwrap();
    jobs.create().blocking().unwrap();
    let mut other = Other::start(&path);
    other.execute("BEGIN IMMEDIATE");
    let sending = std::thread::spawn({
        let (jobs, path) = (jobs.clone(), path.clone());
        move || {
            let mut shop = rusqlite::Connection::open(path).unwrap();
            shop.busy_timeout(Duration::from_secs(3600)).unwrap();
            let order = shop.transaction().unwrap();
            jobs.send(&1).within(&order).map(|_| order.commit().unwrap())
        }
    });
    std::thread::sleep(Duration::from_millis(100));
    other.execute("COMMIT");
    sending.join().unwrap().unwrap();
    assert_eq!(jobs.approximate_count().blocking().unwrap(), 1);
}
