//! Addresses: TLS, sockets, databases, users with few permissions, prefixes.

use postbox::*;
use postbox_test_servers::{Certificates, Redis, RedisCluster};

use super::{LONG, apart, apart_in_cluster, until};

/// Asserts that a request is answered and that waiting receivers are woken.
fn works(connection: &Connection) {
    let jobs: Mailbox<u64, u64> = connection.mailbox("jobs").unwrap();
    let waiting = std::thread::spawn({
        let jobs = jobs.clone();
        move || {
            let message = jobs.receive().wait_time(LONG).blocking().unwrap().remove(0);
            message.reply(&(message.body + 1)).blocking().unwrap();
        }
    });
    let reply = jobs.send_expecting_reply(&1).blocking().unwrap();
    assert_eq!(reply.wait().timeout(LONG).blocking().unwrap(), 2);
    waiting.join().unwrap();
    assert_eq!(jobs.approximate_count().blocking().unwrap(), 0);
}

fn connect(uri: impl Into<String>) -> Connection {
    postbox::connect(uri).blocking().unwrap()
}

#[test]
fn tls_with_a_private_authority() {
    let certificates = Certificates::generate();
    let redis = Redis::builder().tls(&certificates).password("s3cret").start();
    let ca = certificates.ca();
    works(&connect(format!("{}?ca={}", redis.url(), ca.display())));
    let as_option = redis.url().replace("rediss://", "redis://");
    works(&connect(format!("{as_option}?tls=true&ca={}", ca.display())));
}

#[test]
fn by_a_unix_socket() {
    let redis = Redis::builder().password("s3cret").start();
    let socket = redis.unix_socket();
    works(&connect(format!("redis+unix://:s3cret@{}", socket.display())));
    let jobs: Mailbox<u64> =
        postbox::open(format!("redis+unix://:s3cret@{}/jobs", socket.display())).blocking().unwrap();
    jobs.send(&1).blocking().unwrap();
    let same: Mailbox<u64> = postbox::open(format!("{}/jobs", redis.url())).blocking().unwrap();
    assert_eq!(same.receive().blocking().unwrap()[0].body, 1);
}

#[test]
fn databases_are_separate() {
    let redis = Redis::start();
    let (zero, three) = (connect(redis.url()), connect(format!("{}?db=3", redis.url())));
    works(&three);
    let jobs: Mailbox<u64> = three.mailbox("jobs").unwrap();
    jobs.send(&1).blocking().unwrap();
    let same_name: Mailbox<u64> = zero.mailbox("jobs").unwrap();
    assert!(same_name.receive().blocking().unwrap().is_empty());
    assert!(zero.list().blocking().unwrap().is_empty());
    // After a reconnect the connection uses the same database.
    redis.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    assert_eq!(jobs.receive().blocking().unwrap()[0].body, 1);
}

#[test]
fn a_password_with_any_characters() {
    let password = "p@ss:w/rd?#%&=";
    let redis = Redis::start();
    redis.command(&["ACL", "SETUSER", "an@na", "on", &format!(">{password}"), "~*", "&*", "+@all"]);
    let encoded: String = password.bytes().map(|byte| format!("%{byte:02X}")).collect();
    works(&connect(format!("redis://an%40na:{encoded}@127.0.0.1:{}", redis.port())));
}

/// The permissions that a tenant needs: the keys and channels of its prefix, and those of replies.
const TENANT: &str = "on >secret resetkeys ~{queue/tenant:* ~{postbox.replies:* resetchannels &{queue/tenant:* \
                      &{postbox.replies:* -@all +@connection +@scripting +@pubsub +@string +@list +@hash +@sortedset \
                      +@keyspace +time";

#[test]
fn a_user_with_permissions_for_one_prefix_can_use_only_that() {
    let redis = Redis::builder().user("tenant", TENANT).start();
    let connection = connect(format!("redis://tenant:secret@127.0.0.1:{}", redis.port()));
    works(&connection.clone().prefix("tenant"));
    for other in [connection.clone(), connection.clone().prefix("tenants"), connection.clone().prefix("tenant:x")] {
        let jobs: Mailbox<u64> = other.mailbox("jobs").unwrap();
        for error in [
            jobs.send(&1).blocking().unwrap_err(),
            jobs.receive().blocking().map(drop).unwrap_err(),
            jobs.receive().wait_time(LONG).blocking().map(drop).unwrap_err(),
            jobs.purge().blocking().map(drop).unwrap_err(),
        ] {
            assert!(!error.is_transient() && error.to_string().contains("does not permit"), "{error:?}");
        }
    }
    assert!(connection.list().blocking().is_err());
}

/// A user without permission to read the server's version wakes other users and is woken by them.
#[test]
fn users_with_few_and_with_all_permissions_wake_each_other_in_a_cluster() {
    let cluster = RedisCluster::builder().node_timeout(std::time::Duration::from_secs(30)).start();
    for node in cluster.nodes() {
        let rules: Vec<&str> = ["ACL", "SETUSER", "tenant"].into_iter().chain(TENANT.split_whitespace()).collect();
        node.command(&rules);
        node.command(&["ACL", "SETUSER", "tenant", "+cluster"]);
    }
    let url = cluster.url().replace("redis+cluster://", "redis+cluster://tenant:secret@");
    let (few, all) = (connect(url).prefix("tenant"), apart_in_cluster(&cluster).prefix("tenant"));
    let node = cluster.node(cluster.primary_of_key("{queue/tenant:jobs}"));
    for (waits, sends) in [(&few, &all), (&all, &few)] {
        let (waits, sends): (Mailbox<u64>, Mailbox<u64>) =
            (waits.mailbox("jobs").unwrap(), sends.mailbox("jobs").unwrap());
        let waiting = std::thread::spawn(move || {
            let message = waits.receive().wait_time(LONG).blocking().unwrap().remove(0);
            message.acknowledge().blocking().unwrap();
        });
        let channels = |command| !node.command(&["PUBSUB", command, "{queue/tenant:jobs}:wake"]).ends_with('0');
        until("a subscription", || channels("NUMSUB") || channels("SHARDNUMSUB"));
        sends.send(&1).blocking().unwrap();
        waiting.join().unwrap();
        until("the end of the subscription", || !channels("NUMSUB") && !channels("SHARDNUMSUB"));
    }
}

#[test]
fn prefixes_and_names_are_kept_apart() {
    let redis = Redis::start();
    let connection = apart(&redis.url());
    let pairs =
        [(Some("a:b"), "c"), (Some("a"), "b:c"), (None, "a:b:c"), (Some("a:b:c"), "c"), (None, "a"), (None, "c")];
    let mailboxes: Vec<Mailbox<u64>> = pairs
        .iter()
        .map(|(prefix, name)| {
            let place = prefix.iter().fold(connection.clone(), |place, prefix| place.prefix(*prefix));
            place.mailbox(name).unwrap()
        })
        .collect();
    for (number, mailbox) in mailboxes.iter().enumerate() {
        mailbox.send(&(number as u64)).blocking().unwrap();
    }
    for (number, mailbox) in mailboxes.iter().enumerate() {
        assert_eq!(mailbox.approximate_count().blocking().unwrap(), 1, "{:?}", mailbox.name());
        assert_eq!(mailbox.receive().blocking().unwrap()[0].body, number as u64);
    }
    let listed =
        |place: Connection| place.list().blocking().unwrap().iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(listed(connection.clone()), ["a", "a:b:c", "c"]);
    assert_eq!(listed(connection.clone().prefix("a")), ["a/b:c"]);
    assert_eq!(listed(connection.prefix("a:b")), ["a:b/c"]);
}
