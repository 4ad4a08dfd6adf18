//! `receive`: slow readers, requests, and signals.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStdout, Stdio};

use crate::*;

fn receiver(folder: &Path, options: &[&str]) -> (Child, BufReader<ChildStdout>) {
    let mut child =
        postbox(folder).arg("receive").args(options).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let stdout = BufReader::with_capacity(1, child.stdout.take().unwrap());
    (child, stdout)
}

fn line(stdout: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    line
}

/// Interrupts `receive --follow`. Returns its standard error.
fn interrupted(mut child: Child) -> String {
    signal("-INT", &child.id().to_string());
    let mut text = String::new();
    child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(child.wait().unwrap().success(), "{text}");
    text
}

/// Sends a message that does not fit into a pipe, so that printing it waits for the reader, and two small messages.
fn three_messages(folder: &Path) {
    piped(folder, &["send"], &"1".repeat(200_000));
    ok(folder, &["send", "2"]);
    ok(folder, &["send", "3"]);
}

#[test]
fn leases_are_kept_alive_while_the_reader_is_slow() {
    let folder = tempfile::tempdir().unwrap();
    three_messages(folder.path());
    let (child, mut stdout) = receiver(folder.path(), &["--follow", "--max", "3", "--visibility", "3s"]);
    stdout.read_exact(&mut [0]).unwrap();
    // This message becomes visible after the time at which unrenewed leases would have ended.
    ok(folder.path(), &["send", "4", "--delay", "4s"]);
    until("the delayed message is visible", || !ok(folder.path(), &["stats"]).contains(" 1 delayed"));
    assert_eq!(ok(folder.path(), &["stats"]), "default: 1 ready, 0 delayed, 3 in flight, 0 dead\n");
    assert_eq!(line(&mut stdout).len(), 200_000);
    assert_eq!([line(&mut stdout), line(&mut stdout), line(&mut stdout)], ["2\n", "3\n", "4\n"]);
    interrupted(child);
    assert_eq!(ok(folder.path(), &["stats"]), "default: 0 ready, 0 delayed, 0 in flight, 0 dead\n");
}

#[test]
fn messages_whose_leases_expired_are_not_printed() {
    let folder = tempfile::tempdir().unwrap();
    three_messages(folder.path());
    let (child, mut stdout) = receiver(folder.path(), &["--follow", "--max", "3", "--visibility", "1s"]);
    stdout.read_exact(&mut [0]).unwrap();
    signal("-STOP", &child.id().to_string());
    until("the leases end", || ok(folder.path(), &["stats"]).contains("3 ready"));
    assert_eq!(ok(folder.path(), &["receive", "--max", "3", "--ack"]).lines().count(), 3);
    ok(folder.path(), &["send", "4"]);
    signal("-CONT", &child.id().to_string());
    assert_eq!(line(&mut stdout).len(), 200_000, "the message whose printing had begun");
    assert_eq!(line(&mut stdout), "4\n", "another consumer has acknowledged the others");
    let text = interrupted(child);
    assert!(text.contains("ended while it was printed"), "{text}");
}

#[test]
fn requests_are_printed_once_and_released() {
    let folder = tempfile::tempdir().unwrap();
    let request = postbox(folder.path())
        .args(["request", "question", "--timeout", "60s"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (child, mut stdout) = receiver(folder.path(), &["--follow", "--visibility", "2s"]);
    assert_eq!(line(&mut stdout), "question\n");
    // This message becomes visible after the time at which the unrenewed lease of the request would have ended. Then the
    // request would have been printed a second time.
    ok(folder.path(), &["send", "later", "--delay", "3s"]);
    assert_eq!(line(&mut stdout), "later\n");
    let text = interrupted(child);
    assert!(text.contains("is visible again when this command ends"), "{text}");
    assert_eq!(ok(folder.path(), &["stats"]), "default: 1 ready, 0 delayed, 0 in flight, 0 dead\n");
    ok(folder.path(), &["work", "--max-iterations", "1", "--", "cat"]);
    assert_eq!(out(&request.wait_with_output().unwrap()), "question\n");
}

#[test]
fn messages_that_are_acknowledged_need_a_lease() {
    let folder = tempfile::tempdir().unwrap();
    ok(folder.path(), &["send", "x"]);
    let output = run(folder.path(), &["receive", "--ack", "--visibility", "0s"]);
    assert_eq!((output.status.code(), out(&output).as_str()), (Some(1), ""));
    assert!(err(&output).contains("--visibility = 0 s is not allowed"), "{}", err(&output));
}

#[cfg(target_os = "linux")]
#[test]
fn an_interrupted_wait_exits_with_130() {
    for name in ["-INT", "-TERM", "-HUP"] {
        let folder = tempfile::tempdir().unwrap();
        let (mut child, _stdout) = receiver(folder.path(), &["--wait", "600s"]);
        until_it_handles_interrupts(child.id());
        signal(name, &child.id().to_string());
        assert_eq!(child.wait().unwrap().code(), Some(130), "{name}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_hangup_that_is_ignored_stays_ignored() {
    let folder = tempfile::tempdir().unwrap();
    // `nohup` starts a command in the same way.
    let script = r#"trap "" HUP; exec "$0" receive --follow"#;
    let mut child = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_postbox")])
        .current_dir(folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    until_it_handles_interrupts(child.id());
    signal("-HUP", &child.id().to_string());
    ok(folder.path(), &["send", "x"]);
    assert_eq!(line(&mut stdout), "x\n");
    ok(folder.path(), &["send", "y"]);
    assert_eq!(line(&mut stdout), "y\n");
    interrupted(child);
}
