//! Data that the previous version wrote to a server is read without loss.
//!
//! `tests/fixtures/redis-before-ranks.rdb` was written by Redis 7.0 just before [`WRITTEN`]. Its keys have no expiry, so the
//! server's own clock removes none. The tests move the time of the scripts.

use std::time::Duration;

use postbox::redis::RedisBackend;
use postbox::redis::client::Client;
use postbox::{Connection, Counts, Error, Mailbox};
use postbox_test_servers::{Redis, RedisVersion};

const DUMP: &[u8] = include_bytes!("../../fixtures/redis-before-ranks.rdb");
/// A time in half microseconds since 1970.
const WRITTEN: u64 = 2 * 1_795_078_243_704_039;
const PENDING: &str = "618318bb-9fc0-4267-b10d-0a2da278d874";
const RESOLVED: &str = "ed1d574d-48a5-4710-ab3c-81ec55da3402";
const CANCELLED: &str = "6efe4932-0df3-47e9-9882-24c9f41b0b1a";

struct Old {
    connection: Connection,
    redis: Redis,
}

impl Old {
    fn open(version: RedisVersion) -> Self {
        let redis = Redis::builder().version(version).start();
        redis.kill();
        std::fs::write(redis.folder().join("dump.rdb"), DUMP).unwrap();
        redis.restart();
        redis.command(&["SET", "postbox:test:time", &WRITTEN.to_string()]);
        let client = Client::open(redis.url()).unwrap();
        let backend = RedisBackend::from_client_with_test_time(client).unwrap();
        Old { connection: Connection::new(backend), redis }
    }

    fn mailbox(&self, name: &str) -> Mailbox<String, String> {
        self.connection.mailbox(name).unwrap()
    }

    fn pass(&self, seconds: u64) {
        self.redis.command(&["INCRBY", "postbox:test:time", &(seconds * 2_000_000).to_string()]);
    }
}

fn counts(mailbox: &Mailbox<String, String>) -> (u64, u64, u64, u64) {
    let Counts { ready, delayed, in_flight, dead, .. } = mailbox.counts().blocking().unwrap();
    (ready, delayed, in_flight, dead)
}

/// Receives and acknowledges all ready messages.
fn drain(mailbox: &Mailbox<String, String>) -> Vec<String> {
    let messages = mailbox.receive().max_messages(200).blocking().unwrap();
    for message in &messages {
        message.acknowledge().blocking().unwrap();
    }
    messages.into_iter().map(|message| message.body).collect()
}

fn messages_are_delivered_in_order(old: &Old) {
    let jobs = old.mailbox("jobs");
    assert_eq!(counts(&jobs), (4, 2, 1, 0));
    jobs.send("once").deduplication_id("once").blocking().unwrap();
    assert_eq!(counts(&jobs), (4, 2, 1, 0), "the id is remembered");
    let ready = jobs.receive().max_messages(10).visibility_timeout(Duration::from_secs(5)).blocking().unwrap();
    let bodies: Vec<&str> = ready.iter().map(|message| message.body.as_str()).collect();
    assert_eq!(bodies, ["expires", "ready 1", "ready 2", "once"]);
    assert_eq!((ready[1].reply_to.as_deref(), ready[1].attributes["tenant"].as_str()), (Some("answers"), "b"));
    for message in &ready {
        message.release().blocking().unwrap();
    }
    jobs.send("new").blocking().unwrap();
    old.pass(22);
    let mut released = drain(&jobs);
    assert_eq!(released.split_off(4), ["new", "delayed"], "the delay has ended");
    released.sort();
    assert_eq!(released, ["expires", "once", "ready 1", "ready 2"]);
    old.pass(10);
    let returned = jobs.receive().blocking().unwrap().remove(0);
    assert_eq!((returned.body.as_str(), returned.delivery_count), ("returned", 2));
    assert_eq!(returned.attributes["tenant"], "a");
    returned.acknowledge().blocking().unwrap();
    old.pass(10);
    let leased = jobs.receive().blocking().unwrap().remove(0);
    assert_eq!((leased.body.as_str(), leased.delivery_count), ("leased", 2));
    leased.acknowledge().blocking().unwrap();
    assert_eq!(counts(&jobs), (0, 0, 0, 0));
    let tenant: Mailbox<String, String> = old.connection.clone().prefix("tenant").mailbox("jobs").unwrap();
    assert_eq!(drain(&tenant), ["theirs"]);
}

#[test]
fn messages_of_the_previous_version_are_delivered_in_order() {
    messages_are_delivered_in_order(&Old::open(RedisVersion::System));
}

#[test]
fn valkey_delivers_messages_of_the_previous_version() {
    messages_are_delivered_in_order(&Old::open(RedisVersion::Valkey9));
}

#[test]
fn a_message_of_the_previous_version_expires() {
    let old = Old::open(RedisVersion::System);
    let jobs = old.mailbox("jobs");
    old.pass(26);
    assert_eq!(drain(&jobs), ["ready 1", "ready 2", "once", "delayed"]);
    assert_eq!(counts(&jobs), (0, 1, 1, 0));
}

/// Messages of the previous version have no rank. If they are released, they come before all newer messages, in any order.
#[test]
fn released_messages_of_the_previous_version_come_before_newer_ones() {
    let old = Old::open(RedisVersion::System);
    let many = old.mailbox("many");
    let first = many.receive().max_messages(30).blocking().unwrap();
    let bodies: Vec<&str> = first.iter().map(|message| message.body.as_str()).collect();
    assert_eq!(bodies, (10..40).map(|number| format!("number {number}")).collect::<Vec<_>>());
    many.send("new").blocking().unwrap();
    for message in first.iter().rev() {
        message.release().blocking().unwrap();
    }
    let mut seen = drain(&many);
    assert_eq!(seen.pop().as_deref(), Some("new"));
    let mut expected: Vec<String> = (0..100).map(|number| format!("number {number}")).collect();
    seen.sort();
    expected.sort();
    assert_eq!(seen, expected);
}

#[test]
fn groups_of_the_previous_version_stay_in_order() {
    let old = Old::open(RedisVersion::System);
    let groups = old.mailbox("groups");
    assert_eq!(counts(&groups), (4, 0, 1, 0));
    assert_eq!([drain(&groups), drain(&groups)], [["b1"], ["b2"]]);
    assert!(drain(&groups).is_empty(), "the head of the other group is leased");
    old.pass(40);
    assert_eq!([drain(&groups), drain(&groups), drain(&groups)], [["a1"], ["a2"], ["a3"]]);
}

#[test]
fn settings_and_dead_letters_of_the_previous_version_are_kept() {
    let old = Old::open(RedisVersion::System);
    let strict = old.mailbox("strict");
    strict.send("second").blocking().unwrap();
    assert!(matches!(strict.send("third").blocking(), Err(Error::MailboxFull { .. })));
    let letters = strict.dead_letters().list(10).blocking().unwrap();
    let reasons: Vec<&str> = letters.iter().map(|letter| letter.reason.as_ref()).collect();
    assert_eq!(reasons, ["delivered as often as the mailbox allows, and never acknowledged", "by hand"]);
    assert_eq!(drain(&strict), ["last", "second"]);
    assert!(strict.dead_letters().redrive_one(&letters[1].id).blocking().unwrap());
    assert_eq!(strict.dead_letters().redrive(10).blocking().unwrap(), 1);
    assert_eq!(drain(&strict), ["buried", "spent"]);
}

#[test]
fn replies_of_the_previous_version_are_answered() {
    let old = Old::open(RedisVersion::System);
    let asked = old.mailbox("asked");
    assert_eq!(asked.reply(RESOLVED).wait().blocking().unwrap(), "yes");
    assert!(matches!(asked.reply(CANCELLED).poll().blocking(), Err(Error::ReplyCancelled { .. })));
    old.pass(40);
    let requests = asked.receive().max_messages(10).blocking().unwrap();
    let pending = requests.iter().find(|message| message.body == "pending").unwrap();
    pending.reply("now").blocking().unwrap();
    assert_eq!(asked.reply(PENDING).wait().blocking().unwrap(), "now");
}
