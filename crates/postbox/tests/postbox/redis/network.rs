//! Connections that are cut, stalled, refused and slow: operations and waiting receivers continue without help.

use std::time::Duration;

use postbox::*;
use postbox_test_servers::{Direction, Proxy, Redis, RedisCluster};

use super::{LONG, apart, apart_in_cluster, calls, jobs, listeners, until, waited_for, waiting_for_one};

#[test]
fn operations_and_waits_continue_after_a_cut() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.port());
    let (near, far) = (apart(&redis.url()), apart(&proxy.url()));
    for round in 0..5 {
        let waiting = waiting_for_one(&far);
        until("a subscription", || listeners(&redis) == 1);
        proxy.cut();
        if round % 2 == 0 {
            until("a subscription after the cut", || listeners(&redis) == 1);
        }
        jobs(&near).send(&round).blocking().unwrap();
        assert_eq!(waiting.join().unwrap(), round);
        proxy.cut();
        jobs(&far).send(&round).blocking().unwrap();
        jobs(&far).receive().blocking().unwrap()[0].acknowledge().blocking().unwrap();
    }
    assert_eq!(jobs(&near).approximate_count().blocking().unwrap(), 0);
}

#[test]
fn operations_and_waits_continue_after_a_cut_in_a_cluster() {
    let cluster = RedisCluster::builder().node_timeout(Duration::from_secs(30)).proxied().start();
    let node = cluster.primary_of_key("{queue:jobs}");
    // This connection does not use the proxies.
    let near = |body: u64| {
        let proxy = cluster.proxy(node).stats().connections;
        jobs(&apart_in_cluster(&cluster)).send(&body).blocking().unwrap();
        assert!(cluster.proxy(node).stats().connections > proxy);
    };
    let far = apart_in_cluster(&cluster);
    for round in 0..3 {
        let waiting = waiting_for_one(&far);
        until("a subscription", || listeners(cluster.node(node)) == 1);
        (0..3).for_each(|node| cluster.proxy(node).cut());
        if round % 2 == 0 {
            until("a subscription after the cut", || listeners(cluster.node(node)) == 1);
        }
        near(round);
        assert_eq!(waiting.join().unwrap(), round);
        cluster.proxy(node).cut();
        jobs(&far).send(&round).blocking().unwrap();
        jobs(&far).receive().blocking().unwrap()[0].acknowledge().blocking().unwrap();
    }
}

/// A wait for a reply continues after a cut.
#[test]
fn a_wait_for_a_reply_continues_after_a_cut() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.port());
    let (near, far) = (apart(&redis.url()), apart(&proxy.url()));
    let reply = jobs(&far).send_expecting_reply(&1).blocking().unwrap();
    let waiting = std::thread::spawn(move || reply.wait().timeout(LONG).blocking());
    let is_heard = || redis.command(&["PUBSUB", "CHANNELS", "*:replies"]).lines().count() == 1;
    until("a subscription", is_heard);
    proxy.cut();
    let message = jobs(&near).receive().blocking().unwrap().remove(0);
    message.reply(&10).blocking().unwrap();
    assert_eq!(waiting.join().unwrap().unwrap(), 10);
}

/// A network whose first connection stalls for ever, and whose later connections work.
struct HalfOpen {
    redis: Redis,
    stalled: Proxy,
    proxy: Proxy,
}

impl HalfOpen {
    fn new() -> Self {
        let redis = Redis::start();
        let stalled = Proxy::start(redis.port());
        let proxy = Proxy::start(stalled.port());
        HalfOpen { redis, stalled, proxy }
    }

    fn stall(&self) {
        self.stalled.stall(Direction::Both);
        self.proxy.retarget(self.redis.port());
    }
}

#[test]
fn waiting_receivers_notice_a_dead_connection() {
    let network = HalfOpen::new();
    let far = apart(&network.proxy.url());
    let waiting = waiting_for_one(&far);
    until("a subscription", || listeners(&network.redis) == 1);
    network.stall();
    jobs(&apart(&network.redis.url())).send(&7).blocking().unwrap();
    assert_eq!(waiting.join().unwrap(), 7);
}

#[test]
fn a_request_that_arrives_late_has_no_second_effect() {
    let network = HalfOpen::new();
    let (near, far) = (jobs(&apart(&network.redis.url())), jobs(&apart(&network.proxy.url())));
    far.send(&0).blocking().unwrap();
    far.receive().blocking().unwrap()[0].acknowledge().blocking().unwrap();
    network.stall();
    // These operations give up the old connection and use a new one. The old connection holds their first attempts.
    far.send(&1).blocking().unwrap();
    far.send(&2).blocking().unwrap();
    let before = calls(&network.redis, "evalsha");
    network.stalled.resume();
    until("the late request", || calls(&network.redis, "evalsha") > before);
    assert_eq!(near.approximate_count().blocking().unwrap(), 2);
    let bodies: Vec<u64> =
        near.receive().max_messages(10).blocking().unwrap().iter().map(|message| message.body).collect();
    assert_eq!(bodies, [1, 2]);
}

#[test]
fn a_removal_that_arrives_late_has_no_effect() {
    let network = HalfOpen::new();
    let far = jobs(&apart(&network.proxy.url()));
    far.send(&0).blocking().unwrap();
    network.stall();
    far.delete().blocking().unwrap();
    far.send(&1).blocking().unwrap();
    let before = calls(&network.redis, "evalsha");
    network.stalled.resume();
    until("the late request", || calls(&network.redis, "evalsha") > before);
    assert_eq!(far.receive().blocking().unwrap()[0].body, 1);
}

#[test]
fn a_stalled_connection_only_delays_operations() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.port());
    let (near, far) = (apart(&redis.url()), apart(&proxy.url()));
    for direction in [Direction::ToServer, Direction::ToClient, Direction::Both] {
        let waiting = waiting_for_one(&far);
        until("a subscription", || listeners(&redis) == 1);
        proxy.stall(direction);
        let sending = std::thread::spawn({
            let other: Mailbox<u64> = far.mailbox("other").unwrap();
            move || other.send(&1).blocking()
        });
        jobs(&near).send(&1).blocking().unwrap();
        proxy.wait_until_held();
        proxy.resume();
        sending.join().unwrap().unwrap();
        assert_eq!(waiting.join().unwrap(), 1);
    }
    assert_eq!(near.mailbox::<u64, (), Json>("other").unwrap().approximate_count().blocking().unwrap(), 3);
}

#[test]
fn a_refused_connection_is_retried() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.port());
    let far = apart(&proxy.url());
    let waiting = waiting_for_one(&far);
    until("a subscription", || listeners(&redis) == 1);
    proxy.refuse();
    proxy.cut();
    let sending = std::thread::spawn({
        let jobs = jobs(&far);
        move || jobs.send(&5).blocking()
    });
    until("a lost subscription", || listeners(&redis) == 0);
    std::thread::sleep(Duration::from_millis(100));
    assert!(!sending.is_finished() && !waiting.is_finished());
    proxy.accept();
    sending.join().unwrap().unwrap();
    assert_eq!(waiting.join().unwrap(), 5);
}

#[test]
fn operations_time_out_during_an_outage_and_succeed_after_it() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.port());
    let jobs: Mailbox<u64> = postbox::open(format!("{}/jobs?timeout=0.1", proxy.url())).blocking().unwrap();
    jobs.send(&1).blocking().unwrap();
    proxy.refuse();
    proxy.cut();
    for _ in 0..2 {
        let error = jobs.send(&2).blocking().unwrap_err();
        assert!(error.is_transient(), "{error:?}");
        assert!(error.to_string().contains("cannot be reached"), "{error}");
        let error = jobs.receive().wait_time(LONG).blocking().unwrap_err();
        assert!(error.is_transient(), "{error:?}");
    }
    proxy.accept();
    assert_eq!(jobs.receive().blocking().unwrap()[0].body, 1);
}

#[test]
fn a_slow_network_only_delays_operations() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.port());
    let (near, far) = (apart(&redis.url()), apart(&proxy.url()));
    proxy.delay(Direction::Both, Duration::from_millis(30));
    let waiting = waiting_for_one(&far);
    jobs(&far).send(&1).blocking().unwrap();
    assert_eq!(waiting.join().unwrap(), 1);
    let waiting = waiting_for_one(&far);
    until("a subscription", || listeners(&redis) == 1);
    jobs(&near).send(&2).blocking().unwrap();
    assert_eq!(waiting.join().unwrap(), 2);
}

/// A receiver that waits repeatedly has one background task.
#[test]
fn many_short_waits_leave_no_task_behind() {
    let redis = Redis::start();
    let connection = apart(&redis.url());
    let before = calls(&redis, "ping");
    for _ in 0..200 {
        assert!(jobs(&connection).receive().wait_time(Duration::from_millis(1)).blocking().unwrap().is_empty());
    }
    let waiting = waiting_for_one(&connection);
    until("a ping", || calls(&redis, "ping") > before);
    // By now, background tasks of the short waits would have sent requests.
    std::thread::sleep(Duration::from_millis(1_500));
    let pings = calls(&redis, "ping") - before;
    jobs(&connection).send(&1).blocking().unwrap();
    waiting.join().unwrap();
    assert!(pings < 20, "{pings} pings");
    until("the end of the subscription", || listeners(&redis) == 0);
}

/// An outage is reported to all waiting receivers at the same time, not to one after the other.
#[test]
fn an_outage_is_reported_to_all_waiting_receivers() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.port());
    let connection = postbox::connect(format!("{}?timeout=1", proxy.url())).blocking().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let waiting: Vec<_> = (0..300)
        .map(|number| {
            let mailbox: Mailbox<u64> = connection.mailbox(&format!("box-{number}")).unwrap();
            runtime.spawn(async move { mailbox.receive().wait_time(LONG).await.map(drop) })
        })
        .collect();
    until("all subscriptions", || waited_for(&redis) == 300);
    proxy.refuse();
    proxy.cut();
    // Reports one after the other would take minutes.
    for waiter in waiting {
        let error = runtime.block_on(waiter).unwrap().unwrap_err();
        assert!(error.is_transient(), "{error:?}");
    }
}

#[test]
fn waiting_receivers_notice_a_dead_connection_to_a_node() {
    let cluster = RedisCluster::builder().node_timeout(Duration::from_secs(30)).proxied().start();
    let node = cluster.primary_of_key("{queue:jobs}");
    let port = cluster.node(node).port();
    let stalled = Proxy::start(port);
    cluster.proxy(node).retarget(stalled.port());
    let waiting = waiting_for_one(&apart_in_cluster(&cluster));
    until("a subscription", || listeners(cluster.node(node)) == 1);
    // The present connections stall for ever. New connections work.
    stalled.stall(Direction::Both);
    cluster.proxy(node).retarget(port);
    jobs(&apart_in_cluster(&cluster)).send(&7).blocking().unwrap();
    assert_eq!(waiting.join().unwrap(), 7);
}
