//! Compares help and error output with the files in `tests/snapshots`. `POSTBOX_UPDATE_SNAPSHOTS=1` updates the files:
//! review the difference before you commit it.

use std::fmt::Write as _;
use std::path::Path;

use crate::*;

/// Compares `text` with a snapshot, which does not contain the addresses that need the feature `aws`.
fn assert_snapshot(name: &str, text: &str) {
    let text = &text.replace(", sqs://eu-west-1/name", "");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots").join(name);
    if std::env::var_os("POSTBOX_UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        *text == expected,
        "{name} is different; POSTBOX_UPDATE_SNAPSHOTS=1 updates it\n--- expected\n{expected}\n--- found\n{text}"
    );
}

/// Removes the spaces at the ends of lines, which clap prints between paragraphs.
fn trimmed(text: &str) -> String {
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

#[test]
fn help() {
    let folder = tempfile::tempdir().unwrap();
    assert_snapshot("help.txt", &trimmed(&ok(folder.path(), &["--help"])));
    assert_snapshot("help-short.txt", &trimmed(&ok(folder.path(), &["-h"])));
    let commands = [
        "send",
        "receive",
        "request",
        "work",
        "stats",
        "peek",
        "purge",
        "dead",
        "dead list",
        "dead redrive",
        "dead purge",
        "list",
        "move",
        "demo",
        "bench",
        "completions",
    ];
    for command in commands {
        let arguments: Vec<&str> = command.split(' ').chain(["--help"]).collect();
        let name = format!("help-{}.txt", command.replace(' ', "-"));
        assert_snapshot(&name, &trimmed(&ok(folder.path(), &arguments)));
    }
}

#[test]
fn help_does_not_show_a_password() {
    let folder = tempfile::tempdir().unwrap();
    let output =
        postbox(folder.path()).env("POSTBOX_URL", "redis://me:secret@host/jobs").arg("--help").output().unwrap();
    assert!(!out(&output).contains("secret"), "{}", out(&output));
}

/// Runs commands and returns their output and exit statuses, as on a terminal.
fn transcript(folder: &Path, commands: &[&[&str]]) -> String {
    let mut text = String::new();
    for arguments in commands {
        let output = run(folder, arguments);
        let quoted = |argument: &&str| match argument {
            word if !word.is_empty() && !word.contains([' ', '?', '&']) => word.to_string(),
            other => format!("'{other}'"),
        };
        let arguments: Vec<String> = arguments.iter().map(quoted).collect();
        writeln!(text, "$ postbox {}", arguments.join(" ")).unwrap();
        write!(text, "{}{}", out(&output), trimmed(&err(&output))).unwrap();
        writeln!(text, "[exit status {}]\n", output.status.code().unwrap()).unwrap();
    }
    text
}

#[test]
fn errors_of_addresses() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("notes.txt"), "not a database, and longer than the header of one: ".repeat(4))
        .unwrap();
    std::fs::create_dir(folder.path().join("folder")).unwrap();
    let other = ::postbox::sqlite::rusqlite::Connection::open(folder.path().join("other.db")).unwrap();
    other.execute_batch("CREATE TABLE theirs (x)").unwrap();
    ok(folder.path(), &["send", "x"]);
    let commands: [&[&str]; 15] = [
        &["stats", "--url", "gopher://jobs"],
        &["stats", "--url", "gopher://jobs", "--json"],
        &["stats", "--url", "postbox.db"],
        &["stats", "--url", ""],
        &["stats", "--url", "sqlite://postbox.db"],
        &["stats", "--url", "sqlite:///jobs"],
        &["stats", "--url", "sqlite://postbox.db/two words"],
        &["stats", "--url", "sqlite://postbox.db/jobs?synchronous=maybe"],
        &["stats", "--url", "sqlite://postbox.db/jobs?sync=full"],
        &["stats", "--url", "sqlite://no/such/folder/postbox.db/jobs"],
        &["stats", "--url", "sqlite://folder/jobs"],
        &["stats", "--url", "sqlite://notes.txt/jobs"],
        &["stats", "--url", "sqlite://other.db/jobs"],
        &["move", "sqlite://postbox.db/default", "sqlite://./postbox.db/default"],
        &["move", "postbox.db", "other.db"],
    ];
    assert_snapshot("errors-addresses.txt", &transcript(folder.path(), &commands));
}

#[test]
fn errors_of_arguments() {
    let folder = tempfile::tempdir().unwrap();
    let commands: [&[&str]; 24] = [
        &["frobnicate"],
        &["snd", "x"],
        &["dead", "lst"],
        &["send", "x", "--delay", "soon"],
        &["send", "x", "--delay", "5days"],
        &["send", "x", "--delay", "9999h"],
        &["send", "x", "--attribute", "tenant"],
        &["send", "x", "--attribute", "=x"],
        &["send", "x", "y"],
        &["send", "x", "--file", "y"],
        &["send", "--file", "missing.txt"],
        &["receive"],
        &["receive", "--visibility", "long"],
        &["receive", "--visibility", "9999h"],
        &["receive", "--wait", "9999h"],
        &["receive", "--max", "0"],
        &["receive", "--max", "many"],
        &["request", "x", "--timeout", "1ms"],
        &["work"],
        &["work", "cat"],
        &["work", "--concurrency", "0", "--", "cat"],
        &["work", "--visibility", "0s", "--", "cat"],
        &["move", "sqlite://postbox.db/default"],
        &["demo", "--workers", "0"],
    ];
    assert_snapshot("errors-arguments.txt", &transcript(folder.path(), &commands));
}
