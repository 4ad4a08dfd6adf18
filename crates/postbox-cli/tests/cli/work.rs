//! `work`: the programs that it runs and their processes.

use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Stdio};
use std::sync::mpsc;

use crate::*;

fn worker(folder: &Path, options: &[&str], script: &str) -> Child {
    postbox(folder)
        .arg("work")
        .args(options)
        .args(["--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // A terminal sends Ctrl-C to a whole process group.
        .process_group(0)
        .spawn()
        .unwrap()
}

/// Waits until a program has written a number to a file, and returns it.
fn written(folder: &Path, file: &str) -> u32 {
    let mut number = None;
    until("a program writes its id", || {
        let text = std::fs::read_to_string(folder.join(file)).unwrap_or_default();
        number = text.strip_suffix('\n').and_then(|number| number.parse().ok());
        number.is_some()
    });
    number.unwrap()
}

fn dead_reasons(folder: &Path) -> Vec<String> {
    let dead = ok(folder, &["dead", "list", "--json"]);
    let reason = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        line["reason"].as_str().unwrap().to_string()
    };
    dead.lines().map(reason).collect()
}

const ALL_DONE: &str = "default: 0 ready, 0 delayed, 0 in flight, 0 dead\n";
const GIVEN_BACK: &str = "default: 1 ready, 0 delayed, 0 in flight, 0 dead\n";

#[test]
fn ctrl_c_in_a_terminal_does_not_reach_the_programs() {
    let folder = tempfile::tempdir().unwrap();
    ok(folder.path(), &["send", "x"]);
    let script = "echo $$ > pid; while [ ! -e go ]; do sleep 0.02; done";
    let worker = worker(folder.path(), &["--retries", "1"], script);
    written(folder.path(), "pid");
    signal("-INT", &format!("-{}", worker.id()));
    std::fs::write(folder.path().join("go"), "").unwrap();
    let output = worker.wait_with_output().unwrap();
    assert_eq!(out(&output), "1 received: 1 finished, 0 to be tried again, 0 dead, 0 given back\n");
    assert_eq!(ok(folder.path(), &["stats"]), ALL_DONE);
}

/// A program that ignores SIGTERM. It starts a process that ignores SIGTERM too.
const STUBBORN: &str = r#"
    trap "" TERM
    (while :; do sleep 0.05; done) & echo $! > child
    echo $$ > pid
    while :; do sleep 0.05; done"#;

#[test]
fn a_program_is_terminated_after_the_shutdown_limit() {
    let folder = tempfile::tempdir().unwrap();
    ok(folder.path(), &["send", "x"]);
    let worker = worker(folder.path(), &["--retries", "1", "--shutdown-limit", "100ms"], STUBBORN);
    let processes = ["pid", "child"].map(|file| written(folder.path(), file));
    signal("-TERM", &worker.id().to_string());
    let output = worker.wait_with_output().unwrap();
    assert!(out(&output).ends_with("0 dead, 1 given back\n"), "{}{}", out(&output), err(&output));
    assert_eq!(ok(folder.path(), &["stats"]), GIVEN_BACK);
    assert_eq!(processes.map(is_running), [false, false]);
}

#[test]
fn a_second_interrupt_ends_the_programs_too() {
    let folder = tempfile::tempdir().unwrap();
    ok(folder.path(), &["send", "x"]);
    let mut worker = worker(folder.path(), &[], STUBBORN);
    let processes = ["pid", "child"].map(|file| written(folder.path(), file));
    let mut stderr = BufReader::new(worker.stderr.take().unwrap());
    signal("-INT", &worker.id().to_string());
    stderr.read_line(&mut String::new()).unwrap();
    signal("-INT", &worker.id().to_string());
    assert_eq!(worker.wait().unwrap().code(), Some(130));
    until("the processes end", || !processes.into_iter().any(is_running));
}

#[test]
fn a_lost_lease_ends_the_program() {
    let folder = tempfile::tempdir().unwrap();
    ok(folder.path(), &["send", "x"]);
    let mut worker = worker(folder.path(), &["--visibility", "1s"], STUBBORN);
    let processes = ["pid", "child"].map(|file| written(folder.path(), file));
    ok(folder.path(), &["purge"]);
    until("the processes end", || !processes.into_iter().any(is_running));
    // The worker still runs.
    assert!(worker.try_wait().unwrap().is_none());
    signal("-INT", &worker.id().to_string());
    assert!(worker.wait().unwrap().success());
}

#[test]
fn a_message_is_released_if_its_program_cannot_be_started() {
    let folder = tempfile::tempdir().unwrap();
    ok(folder.path(), &["send", "x"]);
    let mut worker = postbox(folder.path())
        .args(["work", "--retries", "1", "--backoff", "10ms", "--", "./program"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(worker.stderr.take().unwrap()).lines().map(Result::unwrap);
    for _ in 0..3 {
        let line = lines.next().unwrap();
        assert!(line.contains("delivery 1: cannot start ./program") && line.ends_with("is given back"), "{line}");
    }
    let draft = folder.path().join("draft");
    std::fs::write(&draft, "#!/bin/sh\ncat > received\n").unwrap();
    std::fs::set_permissions(&draft, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    std::fs::rename(draft, folder.path().join("program")).unwrap();
    until("it is handled", || ok(folder.path(), &["stats"]) == ALL_DONE);
    assert_eq!(std::fs::read_to_string(folder.path().join("received")).unwrap(), "x");
    signal("-INT", &worker.id().to_string());
    lines.for_each(drop);
    assert!(worker.wait().unwrap().success());
}

#[test]
fn more_programs_than_the_system_allows_make_no_dead_letters() {
    let folder = tempfile::tempdir().unwrap();
    piped(folder.path(), &["send", "--lines"], &"x\n".repeat(60));
    // Each program needs three pipes, so 60 programs need more open files than the limit allows.
    let script = "ulimit -n 80; exec \"$0\" work --concurrency 60 --retries 1 --backoff 10ms -- cat";
    let worker = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_postbox")])
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until("all are handled", || ok(folder.path(), &["stats"]) == ALL_DONE);
    signal("-INT", &worker.id().to_string());
    let output = worker.wait_with_output().unwrap();
    assert!(err(&output).contains("cannot start cat: Too many open files"), "{}", err(&output));
    let report = out(&output);
    assert!(report.contains(": 60 finished, 0 to be tried again, 0 dead,"), "{report}");
}

#[test]
fn a_process_that_keeps_the_pipes_open_does_not_delay_the_reply() {
    let folder = tempfile::tempdir().unwrap();
    let mut worker =
        worker(folder.path(), &[], "cat; sleep 1000 <&0 & echo $! > child; while [ ! -e go ]; do sleep 0.02; done");
    let (answer, answered) = mpsc::channel();
    let path = folder.path().to_path_buf();
    std::thread::spawn(move || answer.send(run(&path, &["request", "hi", "--timeout", "600s"])));
    let child = written(folder.path(), "child");
    std::fs::write(folder.path().join("go"), "").unwrap();
    let reply = answered.recv_timeout(LONG);
    assert!(is_running(child), "a background process of the program is not terminated");
    signal("-KILL", &child.to_string());
    assert_eq!(out(&reply.expect("a reply")), "hi\n");
    signal("-INT", &worker.id().to_string());
    assert!(worker.wait().unwrap().success());
}

#[test]
fn replies_have_a_size_limit_and_other_output_has_none() {
    let folder = tempfile::tempdir().unwrap();
    ok(folder.path(), &["send", "x"]);
    let worker = worker(folder.path(), &["--concurrency", "2"], "head -c 67108865 /dev/zero");
    until("it is handled", || ok(folder.path(), &["stats"]) == ALL_DONE);
    ok(folder.path(), &["send", "x", "--reply-to", "answers"]);
    until("it is refused", || !dead_reasons(folder.path()).is_empty());
    assert_eq!(dead_reasons(folder.path()), ["the reply is larger than 64 MiB"]);
    signal("-INT", &worker.id().to_string());
    worker.wait_with_output().unwrap();
}

#[test]
fn standard_error_of_a_failed_program_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let script =
        r#"cat > /dev/null; head -c 100000 /dev/zero | tr '\0' x >&2; printf '\033[31mno such\ntenant\n' >&2; exit 65"#;
    for json in [false, true] {
        let id = ok(folder.path(), &["send", "x"]);
        let options: &[&str] = if json { &["--json", "--max-iterations", "1"] } else { &["--max-iterations", "1"] };
        let mut worker = worker(folder.path(), options, script);
        let mut text = String::new();
        worker.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        assert!(worker.wait().unwrap().success());
        if json {
            let note: serde_json::Value = serde_json::from_str(&text).unwrap();
            let stderr = note["stderr"].as_str().unwrap();
            assert!(stderr.ends_with("xxx\u{1b}[31mno such\ntenant\n") && stderr.len() == 4096, "{stderr}");
            assert_eq!(note["id"], id.trim());
        } else {
            // The program's standard error is followed by a note about the exit status.
            assert!(text.len() > 100_000);
            let end = format!("tenant\npostbox: message {}, delivery 1: exit status 65\n", id.trim());
            assert!(text.ends_with(&end), "{}", &text[text.len() - 200..]);
        }
    }
    for reason in dead_reasons(folder.path()) {
        assert!(reason.starts_with("exit status 65: …xxx") && reason.ends_with("xxx [31mno such tenant"), "{reason}");
        assert!(reason.len() < 600, "{reason}");
    }
}
