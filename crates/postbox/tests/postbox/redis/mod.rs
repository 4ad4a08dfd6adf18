//! Redis with faults: replies that are lost, networks and servers that fail, errors, places, and waiting.

mod addresses;
mod errors;
mod failover;
mod fixtures;
mod large;
mod lost_replies;
mod meta;
mod network;
mod servers;
mod versions;
mod waiting;
mod work;

use std::time::{Duration, Instant};

use postbox::redis::RedisBackend;
use postbox::redis::client::Client;
use postbox::redis::client::cluster::ClusterClientBuilder;
use postbox::{Connection, Mailbox};
use postbox_test_servers::{Redis, RedisCluster};

/// Longer than any test may take: what is missed fails the test.
const LONG: Duration = Duration::from_secs(3_600);

/// The channel on which those hear of messages who wait at the mailbox `jobs`.
const JOBS_CHANNEL: &str = "{queue:jobs}:wake";

/// By a connection of its own, as another process has.
fn apart(url: &str) -> Connection {
    Connection::new(RedisBackend::from_client(Client::open(url).unwrap()).unwrap())
}

fn apart_in_cluster(cluster: &RedisCluster) -> Connection {
    let urls = cluster.urls();
    Connection::new(RedisBackend::from_cluster(move || ClusterClientBuilder::new(urls.clone())))
}

fn jobs(connection: &Connection) -> Mailbox<u64, u64> {
    connection.mailbox("jobs").unwrap()
}

/// Waits for something that must come.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < end, "{what}: it does not come");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// How many connections hear of new messages at `jobs`, on one server or on a node.
fn listeners(redis: &Redis) -> usize {
    let many = |command: &str| {
        let reply = redis.command(&["PUBSUB", command, JOBS_CHANNEL]);
        reply.lines().nth(1).and_then(|many| many.parse::<usize>().ok()).expect("a number")
    };
    many("NUMSUB") + many("SHARDNUMSUB")
}

/// At how many mailboxes receivers wait.
fn waited_for(redis: &Redis) -> usize {
    redis.command(&["PUBSUB", "CHANNELS", "*}:wake"]).lines().count()
}

/// How often a command was called, as the server counts.
fn calls(redis: &Redis, command: &str) -> u64 {
    let stats = redis.info("commandstats");
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0)
}

/// Waits on a thread for one message at `jobs`.
fn waiting_for_one(connection: &Connection) -> std::thread::JoinHandle<u64> {
    let jobs = jobs(connection);
    std::thread::spawn(move || {
        let message = jobs.receive().wait_time(LONG).blocking().unwrap().remove(0);
        message.acknowledge().blocking().unwrap();
        message.body
    })
}
