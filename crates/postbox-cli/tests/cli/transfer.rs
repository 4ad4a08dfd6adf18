//! `move`: which messages and metadata are moved, and which stay.

use serde_json::Value;

use crate::*;

const FROM: &str = "sqlite://from.db/jobs";
const TO: &str = "sqlite://to.db/archive";

fn messages(folder: &Path, url: &str) -> Vec<Value> {
    let shown = ok(folder, &["peek", "--max", "1000", "--json", "--url", url]);
    shown.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn open(folder: &Path, file: &str) -> ::postbox::Mailbox<String> {
    ::postbox::open(format!("sqlite://{}/{file}", folder.display())).blocking().unwrap()
}

#[test]
fn a_mailbox_is_not_moved_onto_itself_with_any_form_of_its_address() {
    let folder = tempfile::tempdir().unwrap();
    ok(folder.path(), &["send", "x", "--url", FROM]);
    std::os::unix::fs::symlink("from.db", folder.path().join("link.db")).unwrap();
    let redis = postbox_test_servers::shared_redis();
    let port = redis.rsplit_once(':').unwrap().1;
    let name = format!("same-{}", std::process::id());
    let url = format!("{redis}/{name}");
    let same_redis = [format!("REDIS://localhost:{port}/{name}"), format!("{url}?db=0"), format!("{url}?timeout=5")];
    ok(folder.path(), &["send", "x", "--url", &url]);
    let same_file =
        ["SQLITE://from.db/jobs", "sqlite://from%2Edb/jobs", "sqlite://./from.db/jobs", "sqlite://link.db/jobs"];
    let pairs =
        same_file.map(|to| (FROM, to)).into_iter().chain(same_redis.iter().map(|to| (url.as_str(), to.as_str())));
    for (from, to) in pairs.chain([(FROM, FROM), (&url, &url)]) {
        let mut moving = postbox(folder.path())
            .args(["move", from, to])
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let start = Instant::now();
        while moving.try_wait().unwrap().is_none() && start.elapsed() < LONG {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = moving.kill();
        let output = moving.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{to}: {}", err(&output));
        assert!(err(&output).contains("are the same mailbox"), "{to}: {}", err(&output));
    }
    ok(folder.path(), &["receive", "--ack", "--url", &url]);
}

#[test]
fn mailboxes_in_different_databases_or_prefixes_are_different() {
    let folder = tempfile::tempdir().unwrap();
    let name = format!("two-{}", std::process::id());
    let url = |options: &str| format!("{}/{name}?{options}", postbox_test_servers::shared_redis());
    let urls = [url("db=0"), url("db=1"), url("db=1&prefix=a"), url("db=1&prefix=b")];
    ok(folder.path(), &["send", "x", "--url", &urls[0]]);
    for pair in urls.windows(2) {
        assert_eq!(ok(folder.path(), &["move", &pair[0], &pair[1]]), "1 messages moved\n", "{pair:?}");
    }
    assert_eq!(ok(folder.path(), &["receive", "--ack", "--url", &urls[3]]), "x\n");
}

#[test]
fn a_move_keeps_ids_bodies_and_metadata() {
    let folder = tempfile::tempdir().unwrap();
    // A message that was sent by a Rust program has the content type JSON.
    let jobs = open(folder.path(), "from.db/jobs");
    let send = jobs.send("hello").attribute("tenant", "a").reply_to("answers");
    send.id("0193a5b0-0000-7000-8000-000000000001").blocking().unwrap();
    let before = messages(folder.path(), FROM);
    assert_eq!(before[0]["content_type"], "application/json");
    // Wait until the store's clock has advanced, so that a move that sets a new time of sending would be seen.
    let sent = before[0]["enqueued_at"].as_u64().unwrap();
    until("another millisecond has begun", || {
        ok(folder.path(), &["send", "now", "--url", "sqlite://clock.db/clock"]);
        messages(folder.path(), "sqlite://clock.db/clock").iter().any(|now| now["enqueued_at"].as_u64() > Some(sent))
    });
    assert_eq!(ok(folder.path(), &["move", FROM, TO]), "1 messages moved\n");
    assert_eq!(messages(folder.path(), TO), before);
}

#[test]
fn a_message_whose_id_is_taken_is_not_moved_and_others_are() {
    let folder = tempfile::tempdir().unwrap();
    let (jobs, archive) = (open(folder.path(), "from.db/jobs"), open(folder.path(), "to.db/archive"));
    let id = |number: u32| format!("0193a5b0-0000-7000-8000-00000000000{number}");
    for number in 1..=4 {
        jobs.send(&format!("from {number}")).id(id(number)).blocking().unwrap();
    }
    // An earlier move was killed after it sent message 2 and before it acknowledged it.
    archive.send("from 2").id(id(2)).blocking().unwrap();
    archive.send("another").id(id(3)).blocking().unwrap();
    for _ in 0..2 {
        let moved = run(folder.path(), &["move", FROM, TO]);
        assert_eq!(moved.status.code(), Some(1));
        assert!(out(&moved).ends_with(" messages moved; 1 messages stay that TO does not take\n"), "{}", out(&moved));
        assert!(err(&moved).contains(&id(3)), "{}", err(&moved));
    }
    let bodies = |url| messages(folder.path(), url).iter().map(|message| message["body"].clone()).collect::<Vec<_>>();
    assert_eq!(bodies(FROM), ["\"from 3\""]);
    assert_eq!(messages(folder.path(), FROM)[0]["delivery_count"], 0, "released, not counted");
    let mut there = bodies(TO);
    there.sort_by_key(ToString::to_string);
    assert_eq!(there, ["\"another\"", "\"from 1\"", "\"from 2\"", "\"from 4\""]);
}

#[test]
fn a_move_reports_messages_that_were_not_moved() {
    let folder = tempfile::tempdir().unwrap();
    let from = ["--url", FROM];
    for options in
        [&["send", "1"][..], &["receive", "--visibility", "10m"], &["send", "2", "--delay", "10m"], &["send", "3"]]
    {
        ok(folder.path(), &[options, &from].concat());
    }
    let report = ok(folder.path(), &["move", FROM, TO]);
    assert_eq!(report, "1 messages moved; 1 delayed messages stay; 1 leased messages stay\n");
    let report: Value = serde_json::from_str(&ok(folder.path(), &["move", FROM, TO, "--json"])).unwrap();
    let left = ["moved", "requests_left", "refused_left", "delayed_left", "in_flight_left"].map(|field| &report[field]);
    assert_eq!(left, [0, 0, 0, 1, 1]);
}

#[test]
fn messages_that_were_not_moved_do_not_count_as_delivered() {
    let folder = tempfile::tempdir().unwrap();
    let from = format!("{FROM}?max_deliveries=1");
    piped(folder.path(), &["send", "--lines", "--url", &from], "1\n2\n3\n");
    let failed = run(folder.path(), &["move", FROM, &format!("{TO}?max_size=1")]);
    assert_eq!(failed.status.code(), Some(1));
    assert_eq!(ok(folder.path(), &["stats", "--url", FROM]), "jobs: 2 ready, 0 delayed, 0 in flight, 0 dead\n");
    assert_eq!(ok(folder.path(), &["receive", "--max", "2", "--url", FROM]), "2\n3\n");
}
