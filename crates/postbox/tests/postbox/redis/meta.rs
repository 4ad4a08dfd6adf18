//! State that a server stores for a mailbox beside its messages: operations of clients, the end of the next lease, settings,
//! the list of mailboxes.

use std::time::Duration;

use postbox::redis::RedisBackend;
use postbox::redis::client::Client;
use postbox::{Connection, Error, Mailbox};
use postbox_test_servers::{Direction, Proxy, Redis};

use super::{LONG, apart, jobs, until};

const META: &str = "{queue:jobs}:meta";

fn seconds(redis: &Redis) -> u64 {
    redis.command(&["TIME"]).lines().next().and_then(|seconds| seconds.parse().ok()).unwrap()
}

/// Stores the state of a client whose last operation was `ago` seconds ago.
fn plant(redis: &Redis, name: &str, ago: u64) {
    let memory = format!("\0\0\0\0\0\0\0\u{1}{}", seconds(redis) - ago);
    redis.command(&["HSET", META, &format!("op:{name}:0"), &memory]);
}

fn remembered(redis: &Redis) -> Vec<String> {
    redis.command(&["HKEYS", META]).lines().filter(|field| field.starts_with("op:")).map(String::from).collect()
}

#[test]
fn state_of_ended_clients_is_removed_over_time() {
    let redis = Redis::start();
    for number in 0..700 {
        plant(&redis, &format!("gone-{number}"), 700);
    }
    plant(&redis, "here", 500);
    let mut clients = Vec::new();
    until("the end of the memory", || {
        let connection = apart(&redis.url());
        jobs(&connection).send(&1).blocking().unwrap();
        clients.push(connection);
        remembered(&redis).len() == clients.len() + 1
    });
    assert!(clients.len() > 1, "all were looked through at once");
    assert!(remembered(&redis).contains(&"op:here:0".to_string()));
}

#[test]
fn a_running_client_removes_the_state_of_ended_ones() {
    let redis = Redis::start();
    let jobs = jobs(&apart(&redis.url()));
    jobs.send(&1).blocking().unwrap();
    plant(&redis, "gone", 700);
    // This client's last operation was long ago too.
    let own = remembered(&redis).into_iter().find(|name| !name.contains("gone")).unwrap();
    let memory = format!("\0\0\0\0\0\0\0\0{}", seconds(&redis) - 200);
    redis.command(&["HSET", META, &own, &memory]);
    jobs.send(&2).blocking().unwrap();
    assert_eq!(remembered(&redis), [own]);
}

#[test]
fn state_without_a_mailbox_expires_and_state_of_a_mailbox_does_not() {
    let redis = Redis::start();
    let connection = apart(&redis.url());
    let jobs = jobs(&connection);
    let fades = || {
        assert_eq!(connection.list().blocking().unwrap(), []);
        for key in redis.command(&["KEYS", "{queue:jobs}*"]).lines() {
            let left: i64 = redis.command(&["PTTL", key]).parse().unwrap();
            assert!((1..=600_000).contains(&left), "{key} has {left}");
        }
    };
    let stays = || {
        assert_eq!(connection.list().blocking().unwrap(), [jobs.name().clone()]);
        assert_eq!(redis.command(&["PTTL", META]), "-1");
    };
    assert!(jobs.receive().blocking().unwrap().is_empty());
    fades();
    jobs.send(&1).blocking().unwrap();
    stays();
    jobs.receive().blocking().unwrap();
    jobs.delete().blocking().unwrap();
    fades();
    assert!(jobs.receive().blocking().unwrap().is_empty());
    fades();
    jobs.create().blocking().unwrap();
    stays();
}

#[test]
fn a_lease_that_ends_before_older_ones_is_noticed() {
    let redis = Redis::start();
    let jobs = jobs(&apart(&redis.url()));
    for number in 0..4 {
        jobs.send(&number).blocking().unwrap();
    }
    let take = |visibility: Duration| jobs.receive().visibility_timeout(visibility).blocking().unwrap().remove(0);
    let (_long, short) = (take(LONG), take(Duration::from_millis(30)));
    // A message that is given back with a delay and a delayed message are due before the leased ones.
    take(LONG).nack().visibility_timeout(Duration::from_millis(20)).blocking().unwrap();
    jobs.send(&4).delay(Duration::from_millis(10)).blocking().unwrap();
    let mut found = vec![take(LONG).body];
    while found.len() < 4 {
        let more = jobs.receive().wait_time(LONG).visibility_timeout(LONG).blocking().unwrap();
        found.extend(more.iter().map(|message| message.body));
    }
    found.sort_unstable();
    assert_eq!(found, [1, 2, 3, 4]);
    assert!(short.acknowledge().blocking().is_err());
}

/// The number of commands that the server has executed, including those within scripts.
fn commands(redis: &Redis) -> u64 {
    let of = |line: &str| {
        let (name, rest) = line.split_once(":calls=")?;
        let is_own = ["cmdstat_info", "cmdstat_evalsha", "cmdstat_eval"].contains(&name);
        rest.split(',').next()?.parse::<u64>().ok().filter(|_| !is_own)
    };
    redis.info("commandstats").lines().filter_map(of).sum()
}

#[test]
fn a_plain_cycle_takes_seventeen_commands() {
    let redis = Redis::start();
    let jobs = jobs(&apart(&redis.url()));
    let cycle = || {
        let before = commands(&redis);
        jobs.send(&1).blocking().unwrap();
        jobs.receive().blocking().unwrap().remove(0).acknowledge().blocking().unwrap();
        commands(&redis) - before
    };
    // The first cycle creates the mailbox. Some cycles also remove the state of ended clients.
    assert_eq!((0..4).map(|_| cycle()).min(), Some(17));
}

#[test]
fn a_send_that_is_repeated_to_a_full_server_succeeds() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.port());
    let jobs = jobs(&apart(&proxy.url()));
    // Load the script into the server.
    jobs.send(&0).blocking().unwrap();
    proxy.stall(Direction::ToClient);
    let sending = std::thread::spawn(move || jobs.send(&1).blocking());
    until("the message", || redis.command(&["LLEN", "{queue:jobs}:pending"]) == "2");
    redis.configure("maxmemory", "1");
    proxy.cut();
    proxy.resume();
    sending.join().unwrap().unwrap();
    assert_eq!(redis.command(&["LLEN", "{queue:jobs}:pending"]), "2");
}

#[test]
fn a_mailbox_that_a_consumer_creates_is_listed() {
    let redis = Redis::start();
    let connection = apart(&redis.url());
    let jobs: Mailbox<u64, u64> = connection.clone().max_deliveries(3).mailbox("jobs").unwrap();
    assert!(jobs.receive().blocking().unwrap().is_empty());
    assert_eq!(connection.list().blocking().unwrap(), [jobs.name().clone()]);
    jobs.delete().blocking().unwrap();
    // The settings are stored. From now on only a send or a create makes the mailbox.
    assert!(jobs.receive().blocking().unwrap().is_empty());
    assert_eq!(connection.list().blocking().unwrap(), []);
    jobs.create().blocking().unwrap();
    assert_eq!(connection.list().blocking().unwrap(), [jobs.name().clone()]);
}

#[test]
fn a_mailbox_is_listed_if_the_reply_to_its_first_send_is_lost() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.port());
    let connection = apart(&proxy.url());
    // Load the script into the server.
    let others: Mailbox<u64> = connection.mailbox("others").unwrap();
    others.send(&0).blocking().unwrap();
    others.delete().blocking().unwrap();
    proxy.drop_reply("EVALSHA");
    let jobs = jobs(&connection);
    jobs.send(&1).blocking().unwrap();
    assert_eq!(proxy.stats().dropped, 1);
    assert_eq!(connection.list().blocking().unwrap(), [jobs.name().clone()]);
}

#[test]
fn settings_come_back_with_a_mailbox_that_was_removed() {
    let redis = Redis::start();
    let other = jobs(&apart(&redis.url()));
    let small: Mailbox<u64, u64> = apart(&redis.url()).max_size(2).mailbox("jobs").unwrap();
    for remove in [&small, &other] {
        small.send(&1).blocking().unwrap();
        remove.delete().blocking().unwrap();
        small.send(&2).blocking().unwrap();
        small.send(&3).blocking().unwrap();
        assert!(matches!(small.send(&4).blocking(), Err(Error::MailboxFull { .. })));
        small.delete().blocking().unwrap();
    }
}

/// The server expires idle mailboxes by itself and does not know the list, so clients must remove the names.
#[test]
fn removed_mailboxes_leave_the_list() {
    let redis = Redis::start();
    let connection = apart(&redis.url());
    let make = |connection: &Connection, name: String| {
        let mailbox: Mailbox<u64> = connection.mailbox(&name).unwrap();
        mailbox.send(&1).blocking().unwrap();
    };
    let brief = connection.clone().idle_expiry(Duration::from_millis(1));
    for number in 0..500 {
        make(&brief, format!("gone-{number}"));
    }
    let keys = || redis.command(&["KEYS", "{queue:gone-*"]);
    until("the end of the idle mailboxes", || keys().is_empty());
    // The creation of a mailbox checks a few names of the list.
    for number in 0..200 {
        make(&connection, format!("here-{number}"));
    }
    let listed: u64 = redis.command(&["SCARD", "{postbox}:mailboxes"]).parse().unwrap();
    assert!((200..350).contains(&listed), "{listed} names for 200 mailboxes");
    // Listing checks all names.
    assert_eq!(connection.list().blocking().unwrap().len(), 200);
    assert_eq!(redis.command(&["SCARD", "{postbox}:mailboxes"]), "200");
}

#[test]
fn a_mailbox_that_was_idle_is_listed_again_when_it_is_used() {
    let redis = Redis::start();
    let connection = apart(&redis.url());
    let brief: Mailbox<u64> = connection.clone().idle_expiry(Duration::from_secs(3)).mailbox("brief").unwrap();
    for round in 0..2 {
        brief.send(&round).blocking().unwrap();
        assert_eq!(connection.list().blocking().unwrap(), [brief.name().clone()]);
        for key in redis.command(&["KEYS", "{queue:brief}*"]).lines() {
            redis.command(&["PEXPIRE", key, "1"]);
        }
        until("the end of the mailbox", || connection.list().blocking().unwrap().is_empty());
    }
}

/// A connection whose scripts read the time from a key, in half microseconds.
fn on_moved_time(redis: &Redis) -> Connection {
    redis.command(&["SET", "postbox:test:time", "8000000000000000"]);
    let client = Client::open(redis.url()).unwrap();
    Connection::new(RedisBackend::from_client_with_test_time(client).unwrap())
}

#[test]
fn deduplication_ids_are_removed_after_their_window() {
    let redis = Redis::start();
    let connection = on_moved_time(&redis).deduplication_window(Duration::from_secs(1));
    let jobs = jobs(&connection);
    for number in 0..100 {
        jobs.send(&number).deduplication_id(number.to_string()).blocking().unwrap();
    }
    assert_eq!(redis.command(&["HLEN", "{queue:jobs}:dedup"]), "100");
    redis.command(&["INCRBY", "postbox:test:time", "400000000"]);
    let messages = jobs.receive().blocking().unwrap();
    jobs.acknowledge_batch(&messages).blocking().unwrap();
    for key in ["dedup", "dedups"] {
        assert_eq!(redis.command(&["EXISTS", &format!("{{queue:jobs}}:{key}")]), "0", "{key}");
    }
}
