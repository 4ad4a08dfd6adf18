//! A file that the previous version wrote can be opened and loses nothing.
//!
//! `tests/fixtures/version-2.sqlite` was written half a minute before the start time of a [`ManualClock`], so its leases
//! and delays have not ended.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use postbox::sqlite::{SqliteBackend, Synchronous};
use postbox::testing::ManualClock;
use postbox::*;

const VERSION_2: &[u8] = include_bytes!("../../fixtures/version-2.sqlite");
const PENDING: &str = "08ff00c3-f262-4843-959e-8275a90b437a";
const RESOLVED: &str = "585b4301-91ef-4f6d-861e-b02ae82d87fe";
const CANCELLED: &str = "5df22988-20d1-48ec-a6c5-0532987c716d";

struct Old {
    connection: Connection,
    clock: ManualClock,
    folder: tempfile::TempDir,
}

impl Old {
    fn open() -> Self {
        let (folder, clock) = (tempfile::tempdir().unwrap(), ManualClock::new());
        let path = folder.path().join("old.db");
        std::fs::write(&path, VERSION_2).unwrap();
        let backend = SqliteBackend::open_with_clock(&path, Synchronous::Normal, Arc::new(clock.clone())).unwrap();
        Old { connection: Connection::new(backend), clock, folder }
    }

    fn mailbox(&self, name: &str) -> Mailbox<String, String> {
        self.connection.mailbox(name).unwrap()
    }

    fn pass(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
    }
}

fn counts(mailbox: &Mailbox<String, String>) -> (u64, u64, u64, u64) {
    let Counts { ready, delayed, in_flight, dead, .. } = mailbox.counts().blocking().unwrap();
    (ready, delayed, in_flight, dead)
}

/// Receives and acknowledges all ready messages.
fn drain(mailbox: &Mailbox<String, String>) -> Vec<String> {
    let messages = mailbox.receive().max_messages(10).blocking().unwrap();
    for message in &messages {
        message.acknowledge().blocking().unwrap();
    }
    messages.into_iter().map(|message| message.body).collect()
}

#[test]
fn messages_of_version_2_are_delivered_in_order_and_none_is_lost() {
    let old = Old::open();
    let jobs = old.mailbox("jobs");
    assert_eq!(counts(&jobs), (4, 2, 1, 0));
    jobs.send("once").deduplication_id("once").blocking().unwrap();
    assert_eq!(counts(&jobs), (4, 2, 1, 0), "the id is remembered");
    let ready = jobs.receive().max_messages(10).visibility_timeout(Duration::from_secs(5)).blocking().unwrap();
    let bodies: Vec<&str> = ready.iter().map(|message| message.body.as_str()).collect();
    assert_eq!(bodies, ["expires", "ready 1", "ready 2", "once"]);
    assert_eq!(ready[1].reply_to.as_deref(), Some("answers"));
    for message in &ready {
        message.release().blocking().unwrap();
    }
    assert_eq!(jobs.receive().blocking().unwrap()[0].body, "expires");
    old.pass(15);
    // One message's delay and another message's lease have ended.
    assert_eq!(drain(&jobs), ["ready 1", "ready 2", "once", "delayed"]);
    old.pass(10);
    let returned = jobs.receive().blocking().unwrap().remove(0);
    assert_eq!((returned.body.as_str(), returned.delivery_count), ("returned", 2));
    assert_eq!(returned.attributes["tenant"], "a");
    returned.acknowledge().blocking().unwrap();
    old.pass(10);
    assert_eq!(drain(&jobs), ["leased"]);
    assert_eq!(counts(&jobs), (0, 0, 0, 0), "the other one has expired");
    let tenant: Mailbox<String, String> = old.connection.clone().prefix("tenant").mailbox("jobs").unwrap();
    assert_eq!(drain(&tenant), ["theirs"]);
}

#[test]
fn groups_of_version_2_stay_in_order() {
    let old = Old::open();
    let groups = old.mailbox("groups");
    assert_eq!(counts(&groups), (4, 0, 1, 0));
    assert_eq!([drain(&groups), drain(&groups)], [["b1"], ["b2"]]);
    assert!(drain(&groups).is_empty(), "the head of the other group is leased");
    old.pass(40);
    assert_eq!([drain(&groups), drain(&groups), drain(&groups)], [["a1"], ["a2"], ["a3"]]);
}

#[test]
fn settings_and_dead_letters_of_version_2_are_kept() {
    let old = Old::open();
    let strict = old.mailbox("strict");
    strict.send("second").blocking().unwrap();
    assert!(matches!(strict.send("third").blocking(), Err(Error::MailboxFull { .. })));
    let letters = strict.dead_letters().list(10).blocking().unwrap();
    let reasons: Vec<&str> = letters.iter().map(|letter| letter.reason.as_ref()).collect();
    assert_eq!(reasons, ["delivered as often as the mailbox allows, and never acknowledged", "by hand"]);
    assert_eq!(drain(&strict), ["last", "second"]);
    assert!(strict.dead_letters().redrive_one(&letters[1].id).blocking().unwrap());
    assert_eq!(strict.dead_letters().redrive(10).blocking().unwrap(), 1);
    assert_eq!(drain(&strict), ["buried", "spent"].map(|body| body.to_string()));
    let names = |old: &Old| -> BTreeSet<String> {
        old.connection.list().blocking().unwrap().iter().map(|name| name.to_string()).collect()
    };
    assert!(names(&old).contains("idle"));
    old.pass(70);
    assert!(!names(&old).contains("idle"), "its idle time has passed");
}

#[test]
fn replies_of_version_2_are_answered() {
    let old = Old::open();
    let asked = old.mailbox("asked");
    assert_eq!(asked.reply(RESOLVED).wait().blocking().unwrap(), "yes");
    assert!(matches!(asked.reply(CANCELLED).poll().blocking(), Err(Error::ReplyCancelled { .. })));
    old.pass(40);
    let requests = asked.receive().max_messages(10).blocking().unwrap();
    let pending = requests.iter().find(|message| message.body == "pending").unwrap();
    pending.reply("now").blocking().unwrap();
    assert_eq!(asked.reply(PENDING).wait().blocking().unwrap(), "now");
}

#[test]
fn a_file_of_version_2_counts_as_it_should_after_the_migration() {
    let old = Old::open();
    old.mailbox("jobs").counts().blocking().unwrap();
    crate::storage::check_file(&old.folder.path().join("old.db"));
}
