//! Commands that are interrupted by Ctrl-C lose no message and leave none leased.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStderr, Stdio};

use ::postbox::sqlite::rusqlite::Connection;

use crate::*;

/// Sends SIGINT and waits until the program has printed that it handles the signal.
fn interrupt(child: &mut Child) -> BufReader<ChildStderr> {
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    assert!(line.contains("press Ctrl-C again to exit at once"), "{line:?}");
    stderr
}

fn stats(folder: &Path, url: &str) -> serde_json::Value {
    serde_json::from_str(&ok(folder, &["stats", "--json", "--url", url])).unwrap()
}

/// Waits until `count` messages are leased.
fn until_leased(folder: &Path, url: &str, count: u64) {
    until("messages are leased", || stats(folder, url)["in_flight"] == count);
}

fn numbers(text: &str) -> Vec<u32> {
    text.lines().map(|line| line.trim().parse().unwrap()).collect()
}

/// Receives and acknowledges all messages of a mailbox, which must be visible.
fn drained(folder: &Path, url: &str) -> Vec<u32> {
    let mut all = Vec::new();
    while stats(folder, url)["ready"] != 0 {
        all.extend(numbers(&ok(folder, &["receive", "--ack", "--max", "1000", "--url", url])));
    }
    all
}

const FROM: &str = "sqlite://from.db/jobs";
const TO: &str = "sqlite://to.db/archive";

fn fill(folder: &Path, count: u32) {
    let lines: String = (0..count).map(|number| format!("{number}\n")).collect();
    assert!(piped(folder, &["send", "--lines", "--batch", "1000", "--url", FROM], &lines).status.success());
}

#[test]
fn an_interrupted_move_loses_nothing_and_leaves_nothing_leased() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path(), 1000);
    assert_eq!(ok(folder.path(), &["move", FROM, TO, "--max", "250"]), "250 messages moved\n");
    // The lock on the target makes the move wait after it has leased messages.
    let lock = Connection::open(folder.path().join("to.db")).unwrap();
    lock.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut moving =
        postbox(folder.path()).args(["move", FROM, TO]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until_leased(folder.path(), FROM, 100);
    let mut stderr = interrupt(&mut moving);
    lock.execute_batch("COMMIT").unwrap();
    let status = moving.wait().unwrap();
    let mut printed = String::new();
    stderr.read_to_string(&mut printed).unwrap();
    assert_eq!((status.code(), printed.contains("the same command again")), (Some(130), true), "{printed}");
    // The message that was being sent is in the target.
    let (from, to) = (stats(folder.path(), FROM), stats(folder.path(), TO));
    assert_eq!((&from["ready"], &from["delayed"], &from["in_flight"]), (&749.into(), &0.into(), &0.into()));
    assert_eq!(to["ready"], 251);
    // The same command moves the remaining messages.
    assert_eq!(ok(folder.path(), &["move", FROM, TO]), "749 messages moved\n");
    let all = drained(folder.path(), TO);
    assert_eq!((all.len(), all.into_iter().collect::<BTreeSet<u32>>().len()), (1000, 1000));
}

#[test]
fn a_failed_move_releases_its_messages() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path(), 300);
    ok(folder.path(), &["move", FROM, TO, "--max", "10"]);
    let full = format!("{TO}?max_size=150");
    let failed = run(folder.path(), &["move", FROM, &full]);
    assert_eq!((failed.status.code(), out(&failed).as_str()), (Some(1), "140 messages moved\n"));
    assert!(err(&failed).contains("is full"), "{}", err(&failed));
    let from = stats(folder.path(), FROM);
    assert_eq!((&from["ready"], &from["delayed"], &from["in_flight"]), (&150.into(), &0.into(), &0.into()));
}

#[test]
fn requests_are_not_moved() {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path(), 5);
    let request = postbox(folder.path())
        .args(["request", "six", "--timeout", "60s", "--url", FROM])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    until("the request is sent", || stats(folder.path(), FROM)["ready"] == 6);
    let report: serde_json::Value = serde_json::from_str(&ok(folder.path(), &["move", FROM, TO, "--json"])).unwrap();
    assert_eq!((&report["moved"], &report["requests_left"]), (&5.into(), &1.into()));
    let from = stats(folder.path(), FROM);
    assert_eq!((&from["ready"], &from["delayed"], &from["in_flight"]), (&1.into(), &0.into(), &0.into()));
    ok(folder.path(), &["work", "--max-iterations", "1", "--url", FROM, "--", "cat"]);
    assert_eq!(out(&request.wait_with_output().unwrap()), "six\n");
}

#[test]
fn an_interrupted_worker_finishes_running_programs_and_releases_other_messages() {
    let folder = tempfile::tempdir().unwrap();
    piped(folder.path(), &["send", "--lines"], "1\n2\n3\n");
    let script = "cat > /dev/null; echo started >> log; while [ ! -e go ]; do sleep 0.02; done";
    let mut worker = postbox(folder.path())
        .args(["work", "--concurrency", "1", "--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until("the first program runs", || folder.path().join("log").exists());
    let stderr = interrupt(&mut worker);
    std::fs::write(folder.path().join("go"), "").unwrap();
    assert!(worker.wait().unwrap().success());
    drop(stderr);
    assert_eq!(ok(folder.path(), &["stats"]), "default: 2 ready, 0 delayed, 0 in flight, 0 dead\n");
}

#[test]
fn following_ends_with_ctrl_c_and_loses_no_later_message() {
    let folder = tempfile::tempdir().unwrap();
    ok(folder.path(), &["send", "first"]);
    let mut following = postbox(folder.path())
        .args(["receive", "--follow"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(following.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "first");
    // A message from another process wakes the receiver.
    ok(folder.path(), &["send", "second"]);
    assert_eq!(lines.next().unwrap().unwrap(), "second");
    drop(interrupt(&mut following));
    assert!(following.wait().unwrap().success());
    assert_eq!(ok(folder.path(), &["send", "third"]).lines().count(), 1);
    assert_eq!(ok(folder.path(), &["receive", "--ack"]), "third\n");
}

#[test]
fn an_interrupted_receive_releases_unprinted_messages() {
    let folder = tempfile::tempdir().unwrap();
    // The messages do not fit into a pipe, so the command waits for its reader while it holds leased messages.
    let line = |number: u32| format!("{number:0>20000}\n");
    let lines: String = (0..200).map(line).collect();
    assert!(piped(folder.path(), &["send", "--lines", "--url", FROM], &lines).status.success());
    let mut following = postbox(folder.path())
        .args(["receive", "--follow", "--max", "100", "--url", FROM])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(following.stdout.take().unwrap());
    let mut printed = String::new();
    stdout.read_line(&mut printed).unwrap();
    let stderr = interrupt(&mut following);
    stdout.read_to_string(&mut printed).unwrap();
    assert!(following.wait().unwrap().success());
    drop(stderr);
    let printed = numbers(&printed);
    assert!(!printed.is_empty() && printed.len() < 100, "{} printed", printed.len());
    let left = stats(folder.path(), FROM);
    assert_eq!((&left["delayed"], &left["in_flight"]), (&0.into(), &0.into()));
    let mut all = drained(folder.path(), FROM);
    assert_eq!(all.len() + printed.len(), 200);
    all.extend(printed);
    assert_eq!(all.into_iter().collect::<BTreeSet<u32>>().len(), 200);
}

#[test]
fn an_interrupted_benchmark_deletes_its_mailbox() {
    for signal in ["-INT", "-TERM"] {
        let folder = tempfile::tempdir().unwrap();
        ok(folder.path(), &["send", "mine"]);
        let mut bench = postbox(folder.path())
            .args(["bench", "--time", "1h", "--concurrency", "2"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        until("the benchmark's mailbox exists", || {
            assert!(bench.try_wait().unwrap().is_none(), "the benchmark has ended");
            ok(folder.path(), &["list"]).lines().count() == 2
        });
        assert!(Command::new("kill").args([signal, &bench.id().to_string()]).status().unwrap().success());
        assert_eq!(bench.wait().unwrap().code(), Some(130), "{signal}");
        assert_eq!(ok(folder.path(), &["list"]), "default\n", "{signal}");
        assert_eq!(ok(folder.path(), &["receive"]), "mine\n");
    }
}

#[test]
fn an_interrupted_demo_leaves_no_process_and_no_file() {
    for (name, code) in [("-TERM", Some(130)), ("-INT", Some(130)), ("-KILL", None)] {
        let folder = tempfile::tempdir().unwrap();
        let mut demo = postbox(folder.path())
            .args(["demo", "--requests", "100000000", "--workers", "3"])
            .env("TMPDIR", folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut workers = Vec::new();
        until("three workers run", || {
            let children = Command::new("pgrep").args(["-P", &demo.id().to_string()]).output().unwrap();
            workers = numbers(&out(&children));
            workers.len() == 3
        });
        signal(name, &demo.id().to_string());
        assert_eq!(demo.wait().unwrap().code(), code, "{name}");
        until("the workers end", || !workers.iter().any(|worker| is_running(*worker)));
        if code.is_some() {
            assert_eq!(folder.path().read_dir().unwrap().count(), 0, "{name}");
        }
    }
}
