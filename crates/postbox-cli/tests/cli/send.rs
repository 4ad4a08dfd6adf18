//! `send --lines`: when lines are sent, and how many are reported.

use std::process::Stdio;

use crate::*;

fn sender(folder: &Path, options: &[&str]) -> std::process::Child {
    postbox(folder)
        .args(["send", "--lines"])
        .args(options)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn until_sent(folder: &Path, count: u32) {
    until("lines are sent", || out(&run(folder, &["stats"])).starts_with(&format!("default: {count} ready")));
}

#[test]
fn lines_are_sent_as_they_come() {
    let folder = tempfile::tempdir().unwrap();
    let mut sender = sender(folder.path(), &[]);
    let mut lines = sender.stdin.take().unwrap();
    lines.write_all(b"one\ntw").unwrap();
    until_sent(folder.path(), 1);
    lines.write_all(b"o\n\nthree").unwrap();
    until_sent(folder.path(), 2);
    drop(lines);
    assert_eq!(out(&sender.wait_with_output().unwrap()), "3 messages sent\n");
    assert_eq!(ok(folder.path(), &["receive", "--max", "9"]), "one\ntwo\nthree\n");
}

#[test]
fn lines_of_a_file_are_sent() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("lines.txt"), "one\n\ntwo").unwrap();
    assert_eq!(ok(folder.path(), &["send", "--lines", "--file", "lines.txt"]), "2 messages sent\n");
    let missing = run(folder.path(), &["send", "--lines", "--file", "missing.txt"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(err(&missing).contains("cannot read missing.txt"), "{}", err(&missing));
}

#[test]
fn a_failure_reports_how_many_lines_were_sent() {
    let folder = tempfile::tempdir().unwrap();
    for (batch, json) in [("1", false), ("2", true), ("100", false)] {
        let url = format!("sqlite://full-{batch}.db/jobs?max_size=3");
        let mut arguments = vec!["send", "--lines", "--batch", batch, "--url", &url];
        arguments.extend(json.then_some("--json"));
        let output = piped(folder.path(), &arguments, "1\n2\n3\n4\n5\n");
        let report = if json { "{\"sent\":3}\n" } else { "3 messages sent\n" };
        assert_eq!((output.status.code(), out(&output).as_str()), (Some(1), report));
        assert!(err(&output).contains("is full"), "{}", err(&output));
    }
}

#[test]
fn an_interruption_reports_how_many_lines_were_sent() {
    let folder = tempfile::tempdir().unwrap();
    let mut sender = sender(folder.path(), &[]);
    let mut lines = sender.stdin.take().unwrap();
    lines.write_all(b"one\ntwo\n").unwrap();
    until_sent(folder.path(), 2);
    signal("-INT", &sender.id().to_string());
    let output = sender.wait_with_output().unwrap();
    assert_eq!((output.status.code(), out(&output).as_str()), (Some(130), "2 messages sent\n"));
    drop(lines);
}
