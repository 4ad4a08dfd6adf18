//! Fail-over: replicas, nodes of a cluster, primaries that sentinels choose, slot migrations.

use std::time::{Duration, Instant};

use postbox::*;
use postbox_test_servers::{Direction, Redis, RedisCluster, RedisSentinel};

use super::work::Work;
use super::{JOBS_CHANNEL, LONG, apart_in_cluster, jobs, listeners, until, waiting_for_one};

#[test]
fn a_send_waits_for_replicas_and_fails_without_them() {
    let primary = Redis::start();
    let replica = Redis::builder().replica_of(&primary).start();
    let open = |timeout: &str| -> Mailbox<u64> {
        let uri = format!("{}/jobs?min_replicas=1&replica_timeout={timeout}", primary.url());
        postbox::open(uri).blocking().unwrap()
    };
    let (patient, jobs) = (open("60"), open("0.2"));
    patient.send(&1).blocking().unwrap();
    // The replica has the message.
    assert_eq!(replica.command(&["LLEN", "{queue:jobs}:pending"]), "1");
    replica.pause();
    let error = jobs.send(&2).deduplication_id("two").blocking().unwrap_err();
    assert!(error.is_transient(), "{error:?}");
    assert!(error.to_string().contains("is stored, but only 0 of 1 replicas have it"), "{error}");
    let error = jobs.send(&2).deduplication_id("two").blocking().unwrap_err();
    assert!(error.to_string().contains("is stored, but only 0 of 1"), "{error}");
    let errors: Vec<Error> =
        jobs.send_batch([&3, &4]).blocking().unwrap().into_iter().map(|sent| sent.unwrap_err()).collect();
    assert!(errors.iter().all(Error::is_transient));
    assert_eq!(jobs.approximate_count().blocking().unwrap(), 4);
    replica.resume();
    // Repeating the send stores no second message.
    until("an answer", || jobs.send(&2).deduplication_id("two").blocking().is_ok());
    patient.send(&5).blocking().unwrap();
    assert_eq!(jobs.approximate_count().blocking().unwrap(), 5);
    assert_eq!(replica.command(&["LLEN", "{queue:jobs}:pending"]), "5");
}

/// A send that waits for replicas does not block other operations.
#[test]
fn a_send_that_waits_for_replicas_blocks_no_other_operation() {
    let redis = Redis::start();
    let uri = format!("{}/jobs?min_replicas=1&replica_timeout=3", redis.url());
    let jobs: Mailbox<u64> = postbox::open(uri).blocking().unwrap();
    let sending = std::thread::spawn({
        let jobs = jobs.clone();
        move || jobs.send(&1).blocking()
    });
    let messages = jobs.receive().wait_time(LONG).blocking().unwrap();
    messages[0].acknowledge().blocking().unwrap();
    assert!(!sending.is_finished(), "there is no replica");
    assert!(sending.join().unwrap().is_err());
}

fn report(what: &str, work: &Work, pause: Duration) {
    println!(
        "{what}: {} sent, consumers went on after {pause:?}, {:?} errors, {:?} acknowledged came back",
        work.many_sent(),
        work.errors,
        work.came_back,
    );
}

#[test]
fn a_killed_cluster_primary_loses_no_confirmed_operation() {
    let cluster = RedisCluster::start(3, 1);
    let uri = format!("{}/jobs?min_replicas=1&replica_timeout=0.5", cluster.url());
    let mailboxes = [postbox::open(uri).blocking().unwrap()];
    let mut pause = Duration::ZERO;
    // Acknowledgements do not wait for replicas. The last ones may be lost with the primary, and their messages are delivered
    // again.
    let work = Work::during(&mailboxes, Duration::from_secs(10), |work| {
        work.goes_on(100);
        let node = cluster.primary_of_key("{queue:jobs}");
        cluster.kill(node);
        let start = Instant::now();
        work.goes_on(1);
        pause = start.elapsed();
        cluster.wait_until_ok();
        assert_ne!(cluster.primary_of_key("{queue:jobs}"), node);
        cluster.restart(node);
        cluster.wait_until_ok();
        // When the replica has returned, sends succeed again.
        let before = work.many_sent();
        until("sends", || work.many_sent() > before + 50);
        work.goes_on(50);
    });
    report("cluster", &work, pause);
}

#[test]
fn waiting_receivers_in_a_cluster_are_woken_after_a_fail_over() {
    let cluster = RedisCluster::start(3, 1);
    let waiting = waiting_for_one(&apart_in_cluster(&cluster));
    let node = cluster.primary_of_key("{queue:jobs}");
    until("a subscription", || listeners(cluster.node(node)) == 1);
    cluster.kill(node);
    cluster.wait_until_ok();
    let other = cluster.primary_of_key("{queue:jobs}");
    until("a subscription at the new primary", || listeners(cluster.node(other)) == 1);
    jobs(&apart_in_cluster(&cluster)).send(&1).blocking().unwrap();
    assert_eq!(waiting.join().unwrap(), 1);
}

#[test]
fn a_primary_replaced_by_sentinels_loses_no_confirmed_operation() {
    let servers = RedisSentinel::start();
    let hosts: Vec<String> = servers.sentinels().iter().map(|redis| format!("127.0.0.1:{}", redis.port())).collect();
    let uri = format!("redis+sentinel://{}/jobs?primary={}", hosts.join(","), servers.primary_name());
    let jobs: Mailbox<u64, u64> =
        postbox::open(format!("{uri}&min_replicas=1&replica_timeout=0.5")).blocking().unwrap();
    let idle: Mailbox<u64> = postbox::open(uri.replace("/jobs", "/idle")).blocking().unwrap();
    let waiting = std::thread::spawn({
        let idle = idle.clone();
        move || loop {
            // An operation fails with a transient error if the outage takes longer than its timeout.
            match idle.receive().wait_time(LONG).blocking() {
                Ok(messages) => return messages[0].body,
                Err(error) => assert!(error.is_transient(), "{error:?}"),
            }
        }
    });
    let mut pause = Duration::ZERO;
    let work = Work::during(&[jobs], Duration::from_secs(10), |work| {
        work.goes_on(100);
        let old = servers.fail_over();
        let start = Instant::now();
        work.goes_on(1);
        pause = start.elapsed();
        old.restart();
        let before = work.many_sent();
        until("sends", || work.many_sent() > before + 50);
        work.goes_on(50);
    });
    report("sentinel, after the choice", &work, pause);
    idle.send(&7).blocking().unwrap();
    assert_eq!(waiting.join().unwrap(), 7);
}

#[test]
fn a_slot_migration_under_load_loses_and_duplicates_nothing() {
    let cluster = RedisCluster::builder().node_timeout(Duration::from_secs(30)).start();
    // The timeout is longer than the migration takes on a busy machine.
    let open = |timeout: u32| postbox::open(format!("{}/jobs?timeout={timeout}", cluster.url())).blocking().unwrap();
    let mailboxes = [open(60), open(61)];
    let slot = cluster.slot_of("{queue:jobs}");
    let held = || {
        let errors = |node: &Redis| {
            let told = node.info("errorstats");
            let of = |code: &str| {
                let line = told.lines().find_map(|line| line.strip_prefix(&format!("errorstat_{code}:count=")));
                line.and_then(|many| many.trim().parse::<u64>().ok()).unwrap_or(0)
            };
            of("TRYAGAIN") + of("ASK")
        };
        cluster.nodes().iter().map(errors).sum::<u64>()
    };
    let work = Work::during(&mailboxes, LONG, |work| {
        for step in 1..=3 {
            work.goes_on(100);
            let to = (cluster.primary_of_slot(slot) + step % 2 + 1) % 3;
            let migration = cluster.begin_migration(slot, to);
            // The slot is between the nodes, with none, half and all of its keys moved. Each stage lasts until clients of both nodes
            // have used the slot.
            let keys = migration.keys();
            let (first, last) = keys.split_at(keys.len() / 2);
            for some in [&[][..], first, last] {
                some.iter().for_each(|key| migration.move_key(key));
                let before = held();
                until("a redirected request", || held() > before);
            }
            migration.move_keys();
            migration.finish();
        }
        work.goes_on(100);
    });
    assert_eq!(Work::count(&work.came_back), 0);
    assert_eq!(Work::count(&work.delivered_again), 0);
    println!("migration: {} sent, {:?} errors", work.many_sent(), work.errors);
}

#[test]
fn waiting_receivers_are_woken_after_a_slot_migration() {
    let cluster = RedisCluster::builder().node_timeout(Duration::from_secs(30)).start();
    let (one, two) = (apart_in_cluster(&cluster), apart_in_cluster(&cluster));
    jobs(&two).create().blocking().unwrap();
    let slot = cluster.slot_of(JOBS_CHANNEL);
    for number in 0..3 {
        let waiting = waiting_for_one(&one);
        let from = cluster.primary_of_slot(slot);
        until("a subscription", || listeners(cluster.node(from)) == 1);
        let to = (from + 1) % 3;
        let migration = cluster.begin_migration(slot, to);
        migration.move_keys();
        let sending = std::thread::spawn({
            let jobs = jobs(&two);
            move || jobs.send(&number).blocking()
        });
        migration.finish();
        sending.join().unwrap().unwrap();
        assert_eq!(waiting.join().unwrap(), number);
        // Receivers that begin to wait now are woken too.
        let waiting = waiting_for_one(&one);
        until("a subscription at the new node", || listeners(cluster.node(to)) == 1);
        jobs(&two).send(&number).blocking().unwrap();
        assert_eq!(waiting.join().unwrap(), number);
        until("the end of the subscription", || listeners(cluster.node(to)) == 0);
    }
}

/// A node that gives a slot away notifies its subscribers. A client does not mistake the notification for an answer.
#[test]
fn a_slot_migration_is_not_mistaken_for_an_answer() {
    let cluster = RedisCluster::builder().node_timeout(Duration::from_secs(30)).proxied().start();
    let connection = apart_in_cluster(&cluster);
    let slot = cluster.slot_of(JOBS_CHANNEL);
    let from = cluster.primary_of_slot(slot);
    let is_near = |name: &String| cluster.primary_of_key(&format!("{{queue:{name}}}")) == from;
    let name = (0..).map(|number| format!("near-{number}")).find(is_near).unwrap();
    let near: Mailbox<u64> = connection.mailbox(&name).unwrap();
    near.send_batch([&1, &2, &3]).blocking().unwrap();
    let waiting = waiting_for_one(&connection);
    until("a subscription", || listeners(cluster.node(from)) == 1);
    // Requests are under way while the node sends the notification.
    cluster.proxy(from).stall(Direction::ToServer);
    let asking: Vec<_> = (0..3)
        .map(|_| {
            let near = near.clone();
            std::thread::spawn(move || near.approximate_count().blocking())
        })
        .collect();
    cluster.proxy(from).wait_until_held();
    let received = || cluster.proxy(from).stats().bytes_to_client;
    let before = received();
    cluster.migrate_slot(slot, (from + 1) % 3);
    until("the notification", || received() > before);
    cluster.proxy(from).resume();
    for asking in asking {
        assert_eq!(asking.join().unwrap().unwrap(), 3);
    }
    jobs(&connection).send(&4).blocking().unwrap();
    assert_eq!(waiting.join().unwrap(), 4);
}
