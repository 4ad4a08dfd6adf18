//! Redis with faults: lost replies, failing networks and servers, errors, addresses, and waits.

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

/// A wait that no test may reach, so that a missed wake-up fails the test.
const LONG: Duration = Duration::from_secs(3_600);

/// The channel that receivers of the mailbox `jobs` subscribe to while they wait.
const JOBS_CHANNEL: &str = "{queue:jobs}:wake";

/// A separate connection, as another process has.
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

/// Polls until a condition holds.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < end, "{what}: it does not come");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The number of connections that subscribe to new messages of `jobs`, on a server or a cluster node.
fn listeners(redis: &Redis) -> usize {
    let many = |command: &str| {
        let reply = redis.command(&["PUBSUB", command, JOBS_CHANNEL]);
        reply.lines().nth(1).and_then(|many| many.parse::<usize>().ok()).expect("a number")
    };
    many("NUMSUB") + many("SHARDNUMSUB")
}

/// The number of mailboxes with waiting receivers.
fn waited_for(redis: &Redis) -> usize {
    redis.command(&["PUBSUB", "CHANNELS", "*}:wake"]).lines().count()
}

/// The server's count of calls of a command.
fn calls(redis: &Redis, command: &str) -> u64 {
    let stats = redis.info("commandstats");
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0)
}

/// Starts a thread that waits for one message of `jobs`.
fn waiting_for_one(connection: &Connection) -> std::thread::JoinHandle<u64> {
    let jobs = jobs(connection);
    std::thread::spawn(move || {
        let message = jobs.receive().wait_time(LONG).blocking().unwrap().remove(0);
        message.acknowledge().blocking().unwrap();
        message.body
    })
}
