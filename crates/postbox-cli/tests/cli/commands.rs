//! Each command in its usual use.

use std::process::Stdio;

use crate::*;

#[test]
fn send_receive_and_stats() {
    let folder = tempfile::tempdir().unwrap();
    let id = ok(folder.path(), &["send", "hello", "--attribute", "tenant=a"]);
    assert!(folder.path().join("postbox.db").exists(), "the default is a file in the current folder");
    let message: serde_json::Value = serde_json::from_str(&ok(folder.path(), &["receive", "--json", "--ack"])).unwrap();
    assert_eq!((message["id"].as_str().unwrap(), message["body"].as_str()), (id.trim(), Some("hello")));
    assert_eq!((message["attributes"]["tenant"].as_str(), message["delivery_count"].as_u64()), (Some("a"), Some(1)));
    let empty = run(folder.path(), &["receive"]);
    assert_eq!(
        (empty.status.code(), err(&empty).as_str()),
        (Some(3), "postbox: there is no message (--wait 20s waits for one)\n")
    );
    assert_eq!(out(&piped(folder.path(), &["send", "--lines", "--batch", "3"], "1\n2\n\n3\n4\n")), "4 messages sent\n");
    assert_eq!(ok(folder.path(), &["stats"]), "default: 4 ready, 0 delayed, 0 in flight, 0 dead\n");
    assert_eq!(ok(folder.path(), &["peek", "--max", "2"]).lines().count(), 2);
    assert_eq!(ok(folder.path(), &["receive", "--max", "3"]), "1\n2\n3\n");
    assert_eq!(ok(folder.path(), &["purge", "--json"]), "{\"purged\":4}\n");
}

#[test]
fn the_exit_status_of_a_program_decides_the_outcome() {
    let folder = tempfile::tempdir().unwrap();
    let url = ["--url", "sqlite://jobs.db/jobs"];
    let mut worker = postbox(folder.path())
        .args(url)
        .args(["work", "--max-iterations", "1", "--", "tr", "a-z", "A-Z"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let reply = run(folder.path(), &[&url[..], &["request", "shout", "--timeout", "30s"]].concat());
    assert_eq!(out(&reply), "SHOUT\n");
    worker.wait().unwrap();

    for body in ["good", "wrong", "flaky"] {
        ok(folder.path(), &[&url[..], &["send", body]].concat());
    }
    let script = r#"read -r x || true; case "$x" in good) exit 0;; wrong) exit 65;; *) exit 1;; esac"#;
    let arguments =
        ["work", "--max-iterations", "4", "--retries", "2", "--backoff", "10ms", "--json", "--", "sh", "-c", script];
    let report: serde_json::Value = serde_json::from_str(&ok(folder.path(), &[&url[..], &arguments].concat())).unwrap();
    assert_eq!(
        (report["succeeded"].as_u64(), report["dead_lettered"].as_u64(), report["retried"].as_u64()),
        (Some(1), Some(2), Some(1))
    );
    let dead = ok(folder.path(), &[&url[..], &["dead", "list"]].concat());
    assert!(dead.contains("exit status 65") && dead.contains("2 deliveries"), "{dead}");
    assert_eq!(
        ok(folder.path(), &[&url[..], &["dead", "redrive", "--max", "1"]].concat()),
        "1 dead letters redriven\n"
    );
    assert_eq!(ok(folder.path(), &[&url[..], &["dead", "purge"]].concat()), "1 dead letters purged\n");
}

#[test]
fn messages_are_moved_between_files() {
    let folder = tempfile::tempdir().unwrap();
    piped(folder.path(), &["send", "--lines"], &(0..250).map(|number| format!("{number}\n")).collect::<String>());
    let (from, to) = ("sqlite://postbox.db/default", "sqlite://other.db/archive");
    assert_eq!(ok(folder.path(), &["move", from, to, "--max", "100"]), "100 messages moved\n");
    assert_eq!(ok(folder.path(), &["move", from, to]), "150 messages moved\n");
    let all = ok(folder.path(), &["--url", to, "receive", "--max", "1000"]);
    assert_eq!(all.lines().map(|line| line.parse::<u32>().unwrap()).collect::<Vec<_>>(), (0..250).collect::<Vec<_>>());
    assert_eq!(ok(folder.path(), &["--url", "sqlite://other.db", "list"]), "archive\n");
    assert_eq!(ok(folder.path(), &["list"]), "default\n");
}

#[cfg(feature = "aws")]
#[test]
fn messages_are_moved_between_all_stores() {
    let folder = tempfile::tempdir().unwrap();
    let name = format!("moved-{}", std::process::id());
    let sqs = format!("sqs://eu-west-1/{name}?create=true&endpoint={}", postbox_test_servers::shared_moto());
    let redis = format!("{}/{name}", postbox_test_servers::shared_redis());
    let run = |arguments: &[&str]| {
        let credentials = [("AWS_ACCESS_KEY_ID", "test"), ("AWS_SECRET_ACCESS_KEY", "test")];
        let output = postbox(folder.path()).envs(credentials).args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", err(&output));
        out(&output)
    };
    piped(folder.path(), &["send", "--lines"], &(0..35).map(|number| format!("{number}\n")).collect::<String>());
    let urls = ["sqlite://postbox.db/default", &redis, &sqs, "sqlite://other.db/archive"];
    for pair in urls.windows(2) {
        assert_eq!(run(&["move", pair[0], pair[1]]), "35 messages moved\n", "{pair:?}");
    }
    let all = run(&["--url", urls[3], "receive", "--max", "1000"]);
    let mut numbers: Vec<u32> = all.lines().map(|line| line.parse().unwrap()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..35).collect::<Vec<_>>());
}

#[test]
fn commands_that_store_nothing_create_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let missing = ["--url", "sqlite://mispelt.db/jobs"];
    for command in [&["stats"][..], &["peek"], &["purge"], &["receive"], &["dead", "list"], &["list"]] {
        let output = run(folder.path(), &[&missing[..], command].concat());
        assert_eq!(output.status.code(), Some(1), "{command:?}");
        assert!(err(&output).contains("there is no file \"mispelt.db\""), "{}", err(&output));
    }
    let moved = run(folder.path(), &["move", missing[1], "sqlite://to.db/jobs"]);
    assert!(err(&moved).contains("there is no file"), "{}", err(&moved));
    assert_eq!(folder.path().read_dir().unwrap().count(), 0, "no file was created");
}

#[test]
fn list_accepts_the_address_of_a_mailbox() {
    let folder = tempfile::tempdir().unwrap();
    let name = format!("listed-{}", std::process::id());
    let redis = format!("{}/{name}", postbox_test_servers::shared_redis());
    ok(folder.path(), &["--url", &redis, "send", "1"]);
    for url in [redis.as_str(), postbox_test_servers::shared_redis()] {
        let names = ok(folder.path(), &["--url", url, "list"]);
        assert!(names.lines().any(|line| line == name), "{names}");
    }
    ok(folder.path(), &["--url", &redis, "receive", "--ack"]);
}

#[test]
fn errors_say_what_to_do_next() {
    let folder = tempfile::tempdir().unwrap();
    let bad = run(folder.path(), &["--url", "gopher://x", "stats"]);
    assert_eq!(bad.status.code(), Some(1));
    assert!(err(&bad).contains("sqlite://file.db/name"), "{}", err(&bad));
    let json = run(folder.path(), &["--url", "gopher://x", "stats", "--json"]);
    let error: serde_json::Value = serde_json::from_str(err(&json).trim()).unwrap();
    assert_eq!((error["error"].as_str(), error["transient"].as_bool()), (Some("resolution"), Some(false)));
    assert_eq!(run(folder.path(), &["send", "x", "--delay", "soon"]).status.code(), Some(2));
    assert!(err(&run(folder.path(), &["send", "x", "--delay", "5 days"])).contains("write 500ms"));
    assert!(ok(folder.path(), &["--help"]).contains("demo"));
    assert!(ok(folder.path(), &["completions", "bash"]).contains("postbox"));
}

#[test]
fn a_benchmark_does_not_touch_other_messages() {
    let folder = tempfile::tempdir().unwrap();
    piped(folder.path(), &["send", "--lines"], "one\ntwo\nthree\n");
    let report = ok(folder.path(), &["bench", "--time", "200ms", "--concurrency", "2", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert!(report["cycles"].as_u64() > Some(0), "{report}");
    assert_eq!(ok(folder.path(), &["list"]), "default\n", "the benchmark's mailbox is deleted");
    assert_eq!(ok(folder.path(), &["stats"]), "default: 3 ready, 0 delayed, 0 in flight, 0 dead\n");
    let message: serde_json::Value = serde_json::from_str(&ok(folder.path(), &["receive", "--json"])).unwrap();
    assert_eq!((message["body"].as_str(), message["delivery_count"].as_u64()), (Some("one"), Some(1)));
}

#[test]
fn a_benchmark_that_fails_deletes_its_mailbox() {
    let folder = tempfile::tempdir().unwrap();
    ok(folder.path(), &["send", "mine"]);
    let file = ::postbox::sqlite::rusqlite::Connection::open(folder.path().join("postbox.db")).unwrap();
    file.execute_batch(
        "CREATE TRIGGER refuses BEFORE INSERT ON message BEGIN SELECT RAISE(ABORT, 'refused by the test'); END",
    )
    .unwrap();
    let failed = run(folder.path(), &["bench", "--time", "1h", "--concurrency", "2"]);
    assert_eq!(failed.status.code(), Some(1));
    assert!(err(&failed).contains("refused by the test"), "{}", err(&failed));
    assert_eq!(ok(folder.path(), &["list"]), "default\n");
}

#[test]
fn the_demo_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let report = ok(folder.path(), &["demo", "--requests", "600", "--workers", "2", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!(
        (report["lost"].as_i64(), report["answered"].as_u64(), report["dead_lettered"].as_u64()),
        (Some(0), Some(599), Some(1))
    );
}
