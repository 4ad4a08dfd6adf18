//! SQLite files: several connections and processes, crashes, files of other programs, sends within a transaction.

mod fixtures;
mod refusals;
mod time;

use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future as _, IntoFuture as _};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::pin::Pin;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::Flag;
use postbox::sqlite::{SqliteBackend, rusqlite};
use postbox::*;
use rand::RngExt as _;

/// A wait that no test may reach, so that a missed wake-up fails the test.
const LONG: Duration = Duration::from_secs(3_600);

fn open<T: 'static, R: 'static>(path: &Path, name: &str) -> Mailbox<T, R> {
    postbox::open(format!("sqlite://{}/{name}", path.display())).blocking().unwrap()
}

/// Opens a mailbox with a separate connection and writer thread, as another process does.
fn open_apart<T: 'static, R: 'static>(path: &Path, name: &str) -> Mailbox<T, R> {
    postbox::open(format!("sqlite://{}/{name}?synchronous=normal", path.display())).blocking().unwrap()
}

#[test]
fn messages_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let mailbox: Mailbox<u32, u32> = open(&path, "jobs");
    mailbox.send(&1).attribute("tenant", "a").blocking().unwrap();
    let reply = mailbox.send_expecting_reply(&2).blocking().unwrap().id().clone();
    drop(mailbox);
    let mailbox: Mailbox<u32, u32> = open(&path, "jobs");
    let messages = mailbox.receive().max_messages(10).blocking().unwrap();
    assert_eq!((messages[0].body, messages[0].attributes["tenant"].as_str()), (1, "a"));
    messages[1].reply(&3).blocking().unwrap();
    assert_eq!(mailbox.reply(reply).wait().blocking().unwrap(), 3);
}

#[test]
fn a_stored_message_with_a_million_headers_is_not_decoded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let mailbox: Mailbox<u32, u32> = open(&path, "jobs");
    mailbox.send(&1).blocking().unwrap();
    let mut stored = b"PB\x01\xc0\x84\x3d".to_vec();
    stored.resize(stored.len() + 2_000_000, 0);
    let file = postbox::sqlite::rusqlite::Connection::open(&path).unwrap();
    assert_eq!(file.execute("UPDATE message SET body = ?1", [&stored]).unwrap(), 1);
    let error = mailbox.receive().visibility_timeout(Duration::ZERO).blocking().unwrap_err();
    assert!(matches!(&error, Error::Serialization { reason, .. } if reason.contains("1000000 headers")), "{error}");
    // The raw codec can read the message, so it is not lost.
    let raw: Mailbox<Vec<u8>, (), Raw> = mailbox.untyped().typed();
    assert!(raw.receive().blocking().unwrap()[0].body == stored);
}

#[test]
fn waiting_uses_no_processor_time() {
    let folder = tempfile::tempdir().unwrap();
    let mailbox: Mailbox<u32> = open(&folder.path().join("a.db"), "jobs");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        // Run operations back to back first, because they might leave a thread busy-polling.
        for number in 0..100 {
            mailbox.send(&number).await.unwrap();
            mailbox.receive().await.unwrap()[0].acknowledge().await.unwrap();
        }
    });
    crate::assert_uses_no_processor_time(|| {
        let waited = runtime.block_on(async { mailbox.receive().wait_time(Duration::from_secs(1)).await });
        assert!(waited.unwrap().is_empty());
    });
}

/// SQLite reports no change to the connection that made it, so only the commit can wake this waiter.
#[test]
fn a_commit_wakes_a_waiter_before_the_send_returns() {
    let folder = tempfile::tempdir().unwrap();
    let mailbox: Mailbox<u32> = open(&folder.path().join("a.db"), "jobs");
    let flag = Arc::new(Flag::default());
    let waker = Waker::from(Arc::clone(&flag));
    let mut received = mailbox.receive().wait_time(LONG).into_future();
    let mut poll = || {
        flag.0.store(false, Ordering::SeqCst);
        Pin::new(&mut received).poll(&mut Context::from_waker(&waker))
    };
    // The first poll enqueues an attempt. The poll after its result waits for an event.
    assert!(poll().is_pending());
    while !flag.0.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    assert!(poll().is_pending());
    assert!(!flag.0.load(Ordering::SeqCst), "there is no message yet");
    mailbox.send(&1).blocking().unwrap();
    assert!(flag.0.load(Ordering::SeqCst));
    while poll().is_pending() {
        while !flag.0.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
    }
}

#[test]
fn connections_of_one_file_share_leases_and_wake_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let (one, two): (Mailbox<u32, u32>, Mailbox<u32, u32>) = (open(&path, "jobs"), open_apart(&path, "jobs"));
    let waiting = std::thread::spawn(move || {
        let message = two.receive().wait_time(LONG).blocking().unwrap().remove(0);
        (message, two)
    });
    // The receiver waits already or finds the message at its first look. It must get the message in both cases.
    let reply = one.send_expecting_reply(&1).blocking().unwrap();
    let (message, two) = waiting.join().unwrap();
    assert!(one.receive().blocking().unwrap().is_empty(), "leased through the other connection");
    let answered = std::thread::spawn(move || message.reply(&2).blocking().map(|()| two));
    assert_eq!(reply.wait().timeout(LONG).blocking().unwrap(), 2);
    let two = answered.join().unwrap().unwrap();
    one.send(&3).blocking().unwrap();
    let message = two.receive().blocking().unwrap().remove(0);
    // The receipt is valid on the other connection too.
    one.untyped().typed::<u32, u32, Json>().acknowledge_batch([&message]).blocking().unwrap()[0].clone().unwrap();
    assert_eq!(two.approximate_count().blocking().unwrap(), 0);
}

#[test]
fn changes_of_one_connection_are_visible_to_another_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let (one, two): (Mailbox<u32>, Mailbox<u32>) = (open(&path, "jobs"), open_apart(&path, "jobs"));
    let counts = |of: &Mailbox<u32>| of.counts().blocking().unwrap();
    let bodies = |messages: &[Message<u32>]| messages.iter().map(|message| message.body).collect::<Vec<_>>();
    for (here, there) in [(&one, &two), (&two, &one), (&one, &two)] {
        here.send(&1).blocking().unwrap();
        there.send(&2).blocking().unwrap();
        here.send(&3).blocking().unwrap();
        assert_eq!((counts(here).ready, counts(there).ready), (3, 3));
        let leased = there.receive().max_messages(2).blocking().unwrap();
        assert_eq!(bodies(&leased), [1, 2]);
        assert_eq!((counts(here).ready, counts(here).in_flight), (1, 2));
        leased[0].acknowledge().blocking().unwrap();
        leased[1].nack().blocking().unwrap();
        let rest = here.receive().max_messages(10).blocking().unwrap();
        assert_eq!(bodies(&rest), [3, 2]);
        assert_eq!((counts(there).ready, counts(there).in_flight), (0, 2));
        rest[0].nack().blocking().unwrap();
        let short = here.receive().visibility_timeout(Duration::from_millis(20)).blocking().unwrap();
        let again = there.receive().wait_time(LONG).blocking().unwrap();
        assert_eq!(
            (bodies(&short), bodies(&again)),
            (vec![3], vec![3]),
            "a lease that one gave ends for the other, too"
        );
        assert!(short[0].acknowledge().blocking().is_err());
        here.purge().blocking().unwrap();
        assert_eq!(counts(there).ready + counts(there).in_flight, 0);
    }
}

#[test]
fn a_file_that_waits_for_a_lock_does_not_block_opening_another() {
    let folder = tempfile::tempdir().unwrap();
    let (locked, free) = (folder.path().join("a.db"), folder.path().join("b.db"));
    let holder = rusqlite::Connection::open(&locked).unwrap();
    holder.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let opens = |path: &Path| {
        let files = std::fs::read_dir("/proc/self/fd").unwrap();
        files.filter(|file| std::fs::read_link(file.as_ref().unwrap().path()).is_ok_and(|file| file == path)).count()
    };
    let path = locked.clone();
    let waiting = std::thread::spawn(move || SqliteBackend::open(path).map(drop));
    while opens(&locked) < 2 {
        std::thread::yield_now();
    }
    let (done, is_open) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(SqliteBackend::open(free).map(drop)));
    let opened = is_open.recv_timeout(Duration::from_secs(20));
    assert!(!waiting.is_finished(), "the lock is held");
    holder.execute_batch("ROLLBACK").unwrap();
    waiting.join().unwrap().unwrap();
    opened.expect("opened while the other one waits").unwrap();
}

#[test]
fn a_deleted_file_is_created_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let old: Mailbox<u32> = open(&path, "jobs");
    old.send(&1).blocking().unwrap();
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    let new: Mailbox<u32> = open(&path, "jobs");
    new.send(&2).blocking().unwrap();
    assert_eq!(open_apart::<u32, ()>(&path, "jobs").receive().blocking().unwrap()[0].body, 2);
    assert_eq!(old.receive().blocking().unwrap()[0].body, 1);
}

#[test]
fn an_operation_waits_for_a_lock_of_another_connection() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let mailbox: Mailbox<u32> = open(&path, "jobs");
    mailbox.create().blocking().unwrap();
    let holder = rusqlite::Connection::open(&path).unwrap();
    holder.execute_batch("BEGIN IMMEDIATE").unwrap();
    let sending = std::thread::spawn({
        let mailbox = mailbox.clone();
        move || mailbox.send(&1).blocking()
    });
    std::thread::sleep(Duration::from_millis(300));
    assert!(!sending.is_finished());
    holder.execute_batch("COMMIT").unwrap();
    sending.join().unwrap().unwrap();
}

#[test]
fn concurrent_sends_share_transactions_and_none_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let mailbox: Mailbox<u32> = open(&path, "jobs");
    std::thread::scope(|scope| {
        for start in 0..8 {
            let mailbox = &mailbox;
            scope.spawn(move || {
                for number in 0..50 {
                    mailbox.send(&(start * 50 + number)).blocking().unwrap();
                }
            });
        }
    });
    let mut seen = BTreeSet::new();
    while seen.len() < 400 {
        for message in mailbox.receive().max_messages(100).blocking().unwrap() {
            assert!(seen.insert(message.body));
        }
    }
}

#[test]
fn a_file_of_another_program_is_refused_and_not_changed() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |path: &Path| {
        let error = postbox::open::<u32, (), Json>(format!("sqlite://{}/jobs", path.display())).blocking().unwrap_err();
        assert!(matches!(error, Error::Connection { transient: false, .. }), "{error:?}");
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
        error.to_string()
    };
    let text = folder.path().join("notes.txt");
    std::fs::write(&text, "not a database, and longer than the header of one is: ".repeat(4)).unwrap();
    let before = std::fs::read(&text).unwrap();
    assert!(refused(&text).contains("not a database"));
    assert_eq!(std::fs::read(&text).unwrap(), before);

    let other = folder.path().join("other.db");
    let connection = rusqlite::Connection::open(&other).unwrap();
    connection.execute_batch("CREATE TABLE theirs (x); PRAGMA application_id = 7").unwrap();
    drop(connection);
    let before = std::fs::read(&other).unwrap();
    assert!(refused(&other).contains("another program"));
    assert_eq!(std::fs::read(&other).unwrap(), before);

    let newer = folder.path().join("newer.db");
    drop(open::<u32, ()>(&newer, "jobs").create().blocking());
    let connection = rusqlite::Connection::open(&newer).unwrap();
    connection.execute_batch("PRAGMA user_version = 99").unwrap();
    drop(connection);
    assert!(refused(&newer).contains("version 99"));

    assert!(refused(&folder.path().join("no/such/folder/a.db")).contains("folder"));
    let wrong = postbox::open::<u32, (), Json>("sqlite://a.db/jobs?synchronous=maybe").blocking().unwrap_err();
    assert!(wrong.to_string().contains("full or normal"));
}

#[test]
fn a_file_of_an_older_version_is_migrated() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let jobs: Mailbox<u32> = open(&path, "jobs");
    for number in 7..9 {
        jobs.send(&number).blocking().unwrap();
    }
    let leased = jobs.receive().blocking().unwrap().remove(0);
    // Create the file as version 1 did.
    let file = rusqlite::Connection::open(&path).unwrap();
    let older = "DROP INDEX mailbox_idle; ALTER TABLE mailbox DROP COLUMN idle_at; \
                 DROP INDEX dead_id; ALTER TABLE message DROP COLUMN rank; \
                 ALTER TABLE message DROP COLUMN since; ALTER TABLE deduplication DROP COLUMN since; PRAGMA user_version = 1";
    file.execute_batch(older).unwrap();
    drop(file);
    // Use a separate connection, because the first one is still open.
    let jobs: Mailbox<u32> = open(&path, "jobs?synchronous=normal&idle_expiry=60");
    assert_eq!(jobs.receive().blocking().unwrap()[0].body, 8);
    leased.release().blocking().unwrap();
    assert_eq!(jobs.receive().blocking().unwrap()[0].body, 7);
    let file = rusqlite::Connection::open(&path).unwrap();
    assert_eq!(file.query_row("PRAGMA user_version", [], |row| row.get::<_, i64>(0)).unwrap(), 3);
}

#[test]
fn an_idle_mailbox_is_removed_with_its_messages() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let connection = postbox::connect(format!("sqlite://{}/", path.display())).blocking().unwrap();
    let client: Mailbox<u32> =
        connection.clone().idle_expiry(Duration::from_secs(3_600)).max_size(2).mailbox("client").unwrap();
    let others: Mailbox<u32> = connection.mailbox("jobs").unwrap();
    let file = rusqlite::Connection::open(&path).unwrap();
    let hour_passes = || {
        let earlier = "UPDATE mailbox SET idle_at = idle_at - 3600000";
        file.execute(earlier, []).unwrap()
    };
    client.send(&1).blocking().unwrap();
    others.send(&2).blocking().unwrap();
    // A use restarts the idle time of one hour.
    file.execute("UPDATE mailbox SET idle_at = idle_at - 3500000", []).unwrap();
    assert_eq!(client.approximate_count().blocking().unwrap(), 1);
    file.execute("UPDATE mailbox SET idle_at = idle_at - 3500000", []).unwrap();
    assert_eq!(client.approximate_count().blocking().unwrap(), 1);
    hour_passes();
    assert_eq!(connection.list().blocking().unwrap(), [others.name().clone()]);
    assert_eq!(file.query_row("SELECT count(*) FROM message", [], |row| row.get::<_, i64>(0)).unwrap(), 1);
    // The mailbox is created again with its settings and without its old messages.
    client.send_batch([&3, &4]).blocking().unwrap();
    assert!(matches!(client.send(&5).blocking(), Err(Error::MailboxFull { .. })));
    hour_passes();
    assert_eq!(client.approximate_count().blocking().unwrap(), 0);
    assert_eq!(others.approximate_count().blocking().unwrap(), 1);
}

#[test]
fn removing_a_mailbox_does_not_affect_a_later_one() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/", folder.path().join("a.db").display());
    let connection = postbox::connect(url).blocking().unwrap();
    let idle = Duration::from_millis(5);
    let client: Mailbox<u32> = connection.clone().idle_expiry(idle).mailbox("client").unwrap();
    client.send(&1).blocking().unwrap();
    while !connection.list().blocking().unwrap().is_empty() {
        std::thread::yield_now();
    }
    // The first mailbox was removed, and this one has the same row id.
    let jobs: Mailbox<u32> = connection.mailbox("jobs").unwrap();
    jobs.send(&2).blocking().unwrap();
    assert!(client.receive().blocking().unwrap().is_empty());
    assert_eq!(jobs.receive().blocking().unwrap()[0].body, 2);
}

#[test]
fn a_damaged_file_is_an_error_that_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let mailbox: Mailbox<String> = open(&path, "jobs");
    for _ in 0..20 {
        mailbox.send(&"x".repeat(4000)).blocking().unwrap();
    }
    drop(mailbox);
    // Wait for the writer thread to end. Then the last connection is closed and all data is in the main file.
    let wal = folder.path().join("a.db-wal");
    while wal.exists() {
        std::thread::yield_now();
    }
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[4096..].fill(0xa5);
    std::fs::write(&path, bytes).unwrap();
    let result = postbox::open::<String, (), Json>(format!("sqlite://{}/jobs", path.display()))
        .blocking()
        .and_then(|mailbox| mailbox.receive().blocking());
    match result {
        Err(error @ Error::Connection { transient: false, .. }) => {
            assert!(error.to_string().contains("damaged"), "{error}")
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_send_within_a_users_transaction_is_committed_or_rolled_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shop.db");
    let jobs: Mailbox<u32> = open(&path, "jobs");
    jobs.create().blocking().unwrap();
    let mut shop = rusqlite::Connection::open(&path).unwrap();
    let order = shop.transaction().unwrap();
    jobs.send(&1).within(&order).unwrap();
    order.rollback().unwrap();
    assert_eq!(jobs.approximate_count().blocking().unwrap(), 0);
    // A waiting receiver is woken by the commit.
    let waiting = std::thread::spawn({
        let jobs = jobs.clone();
        move || jobs.receive().wait_time(LONG).blocking().unwrap().remove(0).body
    });
    let order = shop.transaction().unwrap();
    jobs.send(&2).within(&order).unwrap();
    order.commit().unwrap();
    assert_eq!(waiting.join().unwrap(), 2);
    let memory: Mailbox<u32> = Connection::new(MemoryBackend::new()).mailbox("jobs").unwrap();
    let order = shop.transaction().unwrap();
    assert!(matches!(memory.send(&1).within(&order), Err(Error::Unsupported { .. })));
}

// ---------------------------------------------------------------------------------------------------------------------
// Processes: this test binary starts itself, to open one file at the same time, and as producers and consumers to kill.

/// Runs only in a child process: the role that the parent has set.
#[test]
fn child_of_this_test() {
    let Ok(role) = std::env::var("POSTBOX_TEST_ROLE") else { return };
    if role == "opener" {
        return open_at_the_same_time();
    }
    let path = std::env::var("POSTBOX_TEST_FILE").unwrap();
    let mailbox: Mailbox<u64> = open(Path::new(&path), "jobs");
    let mut out = std::io::stdout();
    // Each line is written after its operation has returned and before the next one begins.
    let mut say = |line: String| {
        out.write_all(line.as_bytes()).unwrap();
        out.flush().unwrap();
    };
    if role == "producer" {
        loop {
            let number: u64 = rand::random();
            mailbox.send(&number).blocking().unwrap();
            say(format!("\nsent {number}\n"));
        }
    }
    loop {
        let receive = mailbox.receive().max_messages(5).visibility_timeout(Duration::from_millis(200));
        for message in receive.wait_time(Duration::from_millis(50)).blocking().unwrap() {
            say(format!("\ngot {}\n", message.body));
            if message.acknowledge().blocking().is_ok() {
                say(format!("\ndone {}\n", message.body));
            }
        }
    }
}

fn child(role: &str, path: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "sqlite::child_of_this_test", "--nocapture"])
        .env("POSTBOX_TEST_ROLE", role)
        .env("POSTBOX_TEST_FILE", path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Reads times and paths. Opens each path at its time, sends a message, and prints the result.
fn open_at_the_same_time() {
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let (moment, path) = line.split_once(' ').unwrap();
        let moment = UNIX_EPOCH + Duration::from_nanos(moment.parse().unwrap());
        while SystemTime::now() < moment {
            std::hint::spin_loop();
        }
        let opened = postbox::open::<u32, (), Json>(format!("sqlite://{path}/jobs")).blocking();
        let sent = opened.and_then(|mailbox| mailbox.send(&1).blocking());
        println!("\noutcome {}", sent.map_or_else(|error| error.to_string(), |_| "ok".into()));
    }
}

#[test]
fn processes_may_create_a_file_at_the_same_time() {
    let folder = tempfile::tempdir().unwrap();
    let mut openers: Vec<Child> = (0..4).map(|_| child("opener", Path::new(""))).collect();
    let mut outcomes: Vec<_> = openers
        .iter_mut()
        .map(|opener| BufReader::new(opener.stdout.take().unwrap()).lines().map_while(Result::ok))
        .collect();
    for round in 0..100 {
        let path = folder.path().join(format!("{round}.db"));
        let moment = (SystemTime::now() + Duration::from_millis(2)).duration_since(UNIX_EPOCH).unwrap().as_nanos();
        for opener in &mut openers {
            writeln!(opener.stdin.as_mut().unwrap(), "{moment} {}", path.display()).unwrap();
        }
        for lines in &mut outcomes {
            let outcome = lines.find_map(|line| line.strip_prefix("outcome ").map(str::to_string));
            assert_eq!(outcome.as_deref(), Some("ok"), "round {round}");
        }
        assert_eq!(open::<u32, ()>(&path, "jobs").approximate_count().blocking().unwrap(), 4);
    }
    for opener in &mut openers {
        drop(opener.stdin.take());
        assert!(opener.wait().unwrap().success());
    }
}

#[test]
fn nothing_is_lost_when_processes_are_killed() {
    let rounds: u32 = std::env::var("POSTBOX_CRASH_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(8);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("crash.db");
    let (mut sent, mut done) = (BTreeSet::new(), BTreeSet::new());
    let mut deliveries: BTreeMap<u64, u32> = BTreeMap::new();
    // No message may be delivered after a line says that it is acknowledged. A killed process may miss a line, but no line is
    // written too early.
    for _ in 0..rounds {
        let mut children: Vec<Child> =
            ["producer", "producer", "consumer", "consumer"].iter().map(|role| child(role, &path)).collect();
        let pause = Duration::from_millis(rand::rng().random_range(100..400));
        std::thread::sleep(pause);
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        for child in children {
            for line in BufReader::new(child.stdout.unwrap()).lines().map_while(Result::ok) {
                let mut words = line.split_whitespace();
                let (what, number) = (words.next(), words.next().and_then(|number| number.parse::<u64>().ok()));
                match (what, number) {
                    (Some("sent"), Some(number)) => drop(sent.insert(number)),
                    (Some("got"), Some(number)) => *deliveries.entry(number).or_default() += 1,
                    (Some("done"), Some(number)) => assert!(done.insert(number), "{number} was finished twice"),
                    _ => {}
                }
            }
        }
    }
    assert!(sent.len() > 20 && !done.is_empty(), "{} sent, {} done", sent.len(), done.len());
    // Unfinished messages are delivered again when their leases end. Acknowledged messages are not.
    let mailbox: Mailbox<u64> = open(&path, "jobs");
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut left = BTreeSet::new();
    while mailbox.approximate_count().blocking().unwrap() > 0 {
        assert!(Instant::now() < deadline, "messages do not come back");
        for message in mailbox.receive().max_messages(100).wait_time(Duration::from_secs(1)).blocking().unwrap() {
            assert!(!done.contains(&message.body), "{} was acknowledged and came back", message.body);
            left.insert(message.body);
            message.acknowledge().blocking().unwrap();
        }
    }
    for number in &sent {
        // A consumer may be killed after its acknowledgement and before its line.
        assert!(done.contains(number) || left.contains(number) || deliveries.contains_key(number), "{number} is lost");
    }
    drop(mailbox);
    let check: String =
        rusqlite::Connection::open(&path).unwrap().query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(check, "ok");
}
