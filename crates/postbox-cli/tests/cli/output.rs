//! Standard output: bodies are printed byte for byte, and failed writes are errors.

use std::fs::File;
use std::process::Stdio;

use serde_json::Value;

use crate::*;

/// Bodies that parsing as JSON and printing again would change.
const TEXTS: [&str; 6] = [
    r#"{"b":1,"a":12345678901234567890123}"#,
    "{\n  \"z\": 1.0, \"a\": [1,  2]\n}\n",
    r#""quoted""#,
    "007",
    "  \u{2028}é\u{1b}[31m ",
    "",
];

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn bodies(text: &str) -> Vec<String> {
    lines(text).iter().map(|line| line["body"].as_str().unwrap().to_string()).collect()
}

#[test]
fn bodies_are_printed_byte_for_byte() {
    let folder = tempfile::tempdir().unwrap();
    TEXTS.iter().for_each(|text| assert!(piped(folder.path(), &["send"], text).status.success()));
    assert_eq!(bodies(&ok(folder.path(), &["peek", "--json"])), TEXTS);
    assert_eq!(bodies(&ok(folder.path(), &["receive", "--json", "--max", "100", "--visibility", "0s"])), TEXTS);
    ok(folder.path(), &["work", "--max-iterations", "6", "--", "sh", "-c", "exit 65"]);
    let mut dead = bodies(&ok(folder.path(), &["dead", "list", "--json"]));
    let mut texts = TEXTS.map(String::from);
    dead.sort_unstable();
    texts.sort_unstable();
    assert_eq!(dead, texts);
}

#[test]
fn bodies_that_are_not_text_are_in_base64() {
    let folder = tempfile::tempdir().unwrap();
    for (body, base64) in
        [(&b"\xff"[..], "/w=="), (b"\xff\x00", "/wA="), (b"\xfb\xef\xbe", "++++"), (b"\xff\xff\xff!", "////IQ==")]
    {
        std::fs::write(folder.path().join("body"), body).unwrap();
        ok(folder.path(), &["send", "--file", "body"]);
        let peeked = lines(&ok(folder.path(), &["peek", "--json"])).remove(0);
        assert_eq!((&peeked["body_base64"], peeked.get("body")), (&base64.into(), None));
        assert_eq!(run(folder.path(), &["receive", "--ack"]).stdout, [body, b"\n"].concat());
    }
}

#[test]
fn replies_are_printed_byte_for_byte() {
    let folder = tempfile::tempdir().unwrap();
    let mut worker =
        postbox(folder.path()).args(["work", "--", "cat"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    for text in TEXTS {
        let reply = ok(folder.path(), &["request", text, "--json", "--timeout", "60s"]);
        assert_eq!(lines(&reply)[0]["reply"], text);
        let raw = ok(folder.path(), &["request", text, "--timeout", "60s"]);
        assert_eq!(raw, if text.ends_with('\n') { text.to_string() } else { format!("{text}\n") });
    }
    worker.kill().unwrap();
    worker.wait().unwrap();
}

#[test]
fn every_command_shows_the_same_fields_of_a_message() {
    let folder = tempfile::tempdir().unwrap();
    ok(folder.path(), &["send", "x", "--attribute", "tenant=a", "--reply-to", "answers"]);
    let first = |arguments: &[&str]| lines(&ok(folder.path(), arguments)).remove(0);
    let peeked = first(&["peek", "--json"]);
    assert_eq!((&peeked["attributes"]["tenant"], &peeked["reply_to"]), (&"a".into(), &"answers".into()));
    assert_eq!((&peeked["expects_reply"], &peeked["content_type"]), (&false.into(), &"".into()));
    let received = first(&["receive", "--json", "--visibility", "0s"]);
    ok(folder.path(), &["work", "--max-iterations", "1", "--", "sh", "-c", "exit 65"]);
    let dead = first(&["dead", "list", "--json"]);
    for field in ["id", "body", "content_type", "enqueued_at", "attributes", "reply_to", "expects_reply"] {
        assert_eq!((&received[field], &dead[field]), (&peeked[field], &peeked[field]), "{field}");
    }
}

/// Fills mailboxes, and returns a command line of every kind that prints to standard output.
fn printing(folder: &Path) -> Vec<Vec<&'static str>> {
    piped(folder, &["send", "--lines"], &"x\n".repeat(40));
    piped(folder, &["send", "--lines", "--url", "sqlite://dead.db/jobs"], &"x\n".repeat(40));
    ok(
        folder,
        &[
            "work",
            "--concurrency",
            "40",
            "--max-iterations",
            "1",
            "--url",
            "sqlite://dead.db/jobs",
            "--",
            "sh",
            "-c",
            "exit 65",
        ],
    );
    [
        "send x",
        "send x --json",
        "receive --ack",
        "receive --json",
        "receive --follow",
        "work --max-iterations 1 -- true",
        "stats",
        "stats --json",
        "stats --watch",
        "peek",
        "peek --json",
        "list",
        "list --json",
        "dead list --url sqlite://dead.db/jobs",
        "dead list --json --url sqlite://dead.db/jobs",
        "dead redrive --max 1 --url sqlite://dead.db/jobs",
        "dead purge --url sqlite://purged.db/jobs",
        "purge --url sqlite://purged.db/jobs",
        "move sqlite://postbox.db/default sqlite://moved.db/jobs --max 1",
        "bench --time 10ms",
        "demo --requests 10 --workers 1",
        "completions bash",
        "help",
        "--help",
        "send --help",
        "--version",
    ]
    .map(|command| command.split(' ').collect())
    .into()
}

#[cfg(target_os = "linux")]
#[test]
fn a_failed_write_to_standard_output_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    ok(folder.path(), &["send", "x", "--url", "sqlite://purged.db/jobs"]);
    let full = || File::create("/dev/full").unwrap();
    for arguments in printing(folder.path()) {
        let output = postbox(folder.path()).args(&arguments).stdout(full()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", err(&output));
        assert!(
            err(&output).contains("cannot write to standard output: No space left"),
            "{arguments:?}: {}",
            err(&output)
        );
        let status = postbox(folder.path()).args(&arguments).stdout(full()).stderr(full()).status().unwrap();
        assert_eq!(status.code(), Some(1), "{arguments:?}");
    }
    for (arguments, code) in [
        (&["stats", "--url", "gopher://x"][..], 1),
        (&["frobnicate"], 2),
        (&["receive", "--url", "sqlite://purged.db/none"], 3),
    ] {
        for json in [&["--json"][..], &[]] {
            let status = postbox(folder.path()).args(arguments).args(json).stderr(full()).status().unwrap();
            assert_eq!(status.code(), Some(code), "{arguments:?} {json:?}");
        }
    }
}

#[cfg(unix)]
#[test]
fn a_closed_output_is_a_success() {
    let folder = tempfile::tempdir().unwrap();
    ok(folder.path(), &["send", "x", "--url", "sqlite://purged.db/jobs"]);
    for arguments in printing(folder.path()) {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = postbox(folder.path()).args(&arguments).stdout(writer).stderr(Stdio::piped()).output().unwrap();
        assert_eq!((output.status.code(), err(&output).as_str()), (Some(0), ""), "{arguments:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_message_that_could_not_be_printed_is_not_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    piped(folder.path(), &["send", "--lines"], "1\n2\n3\n");
    for options in [&["--ack"][..], &["--follow"], &[]] {
        let full = File::create("/dev/full").unwrap();
        let status = postbox(folder.path())
            .args(["receive", "--max", "3"])
            .args(options)
            .stdout(full)
            .stderr(Stdio::null())
            .status();
        assert_eq!(status.unwrap().code(), Some(1), "{options:?}");
        assert_eq!(ok(folder.path(), &["stats"]), "default: 3 ready, 0 delayed, 0 in flight, 0 dead\n", "{options:?}");
    }
    let first = lines(&ok(folder.path(), &["receive", "--json"])).remove(0);
    assert_eq!((&first["body"], &first["delivery_count"]), (&"1".into(), &1.into()), "earlier deliveries do not count");
}
