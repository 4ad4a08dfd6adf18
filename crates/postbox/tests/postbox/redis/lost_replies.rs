//! After a lost reply or request, an operation has one effect, and its caller gets the result.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use postbox::reply::{ReplyValue, Resolved};
use postbox::*;
use postbox_test_servers::{Proxy, Redis, RedisCluster};
use rand::RngExt as _;

use super::{LONG, apart, apart_in_cluster, jobs};

/// Runs every verb once. Before each, `lose` makes the network lose the next reply or request.
fn every_verb(connection: &Connection, lose: impl Fn()) {
    let jobs = jobs(connection);
    let bodies = |messages: &[Message<u64, u64>]| messages.iter().map(|message| message.body).collect::<Vec<_>>();
    let receive = |max: usize| jobs.receive().max_messages(max).visibility_timeout(LONG);
    let counts = || {
        let counts = jobs.counts().blocking().unwrap();
        [counts.ready, counts.delayed, counts.in_flight, counts.dead]
    };
    lose();
    jobs.create().blocking().unwrap();
    // Sends: single, as a batch, with a delay, in a group, with a deduplication id.
    lose();
    let first = jobs.send(&1).blocking().unwrap();
    lose();
    jobs.send_batch([&2, &3]).blocking().unwrap().into_iter().for_each(|sent| drop(sent.unwrap()));
    lose();
    let delayed = jobs.send(&4).delay(LONG).blocking().unwrap();
    lose();
    jobs.send(&5).group("a").blocking().unwrap();
    lose();
    let once = jobs.send(&6).deduplication_id("six").blocking().unwrap();
    lose();
    assert_eq!(jobs.send(&6).deduplication_id("six").blocking().unwrap(), once);
    assert_eq!(counts(), [5, 1, 0, 0]);
    lose();
    assert_eq!(jobs.peek(10).blocking().unwrap().len(), 5);
    lose();
    assert!(jobs.cancel(&delayed).blocking().unwrap());
    // The retry of a receive gets the same batch.
    lose();
    let messages = receive(3).blocking().unwrap();
    assert_eq!(bodies(&messages), [1, 2, 3]);
    assert!(messages.iter().all(|message| message.delivery_count == 1));
    assert_eq!(messages[0].id, first);
    assert_eq!(counts(), [2, 0, 3, 0]);
    lose();
    let grouped = receive(10).blocking().unwrap();
    assert_eq!(bodies(&grouped), [5, 6]);
    lose();
    assert!(receive(10).blocking().unwrap().is_empty());
    // Settles and extends leases.
    lose();
    messages[0].extend_visibility(2 * LONG).blocking().unwrap();
    lose();
    messages[0].acknowledge().blocking().unwrap();
    lose();
    messages[1].nack().blocking().unwrap();
    lose();
    messages[2].dead_letter("bad").blocking().unwrap();
    lose();
    jobs.acknowledge_batch(&grouped).blocking().unwrap().into_iter().for_each(|done| done.unwrap());
    assert_eq!(counts(), [1, 0, 0, 1]);
    lose();
    assert_eq!(jobs.dead_letters().list(10).blocking().unwrap().len(), 1);
    lose();
    assert_eq!(jobs.dead_letters().redrive(10).blocking().unwrap(), 1);
    assert_eq!(counts(), [2, 0, 0, 0]);
    lose();
    let messages = receive(1).blocking().unwrap();
    assert_eq!((messages[0].body, messages[0].delivery_count), (2, 2));
    lose();
    messages[0].nack().visibility_timeout(LONG).blocking().unwrap();
    receive(1).blocking().unwrap()[0].dead_letter("again").blocking().unwrap();
    lose();
    assert_eq!(jobs.dead_letters().purge().blocking().unwrap(), 1);
    lose();
    assert_eq!(jobs.purge().blocking().unwrap(), 1);
    assert_eq!(counts(), [0; 4]);
    // Replies: created, resolved, consumed, cancelled, deleted.
    lose();
    let reply = jobs.send_expecting_reply(&7).blocking().unwrap();
    let message = receive(1).blocking().unwrap().remove(0);
    lose();
    message.reply(&70).blocking().unwrap();
    lose();
    assert_eq!(reply.wait().timeout(LONG).blocking().unwrap(), 70);
    let store = connection.reply_store().unwrap();
    let value = ReplyValue::new("1".into(), ContentType::from("application/json"));
    let (one, two) = (ReplyId::new(), ReplyId::new());
    for id in [&one, &two] {
        lose();
        assert!(store.create(id.clone(), LONG).blocking().unwrap());
        assert!(!store.create(id.clone(), LONG).blocking().unwrap());
    }
    lose();
    assert!(store.cancel(one.clone()).blocking().unwrap());
    assert!(!store.cancel(one.clone()).blocking().unwrap());
    lose();
    assert_eq!(store.resolve(two.clone(), value.clone()).blocking().unwrap(), Resolved::Stored);
    assert!(matches!(store.resolve(two.clone(), value.clone()).blocking().unwrap(), Resolved::Refused(Some(_))));
    lose();
    assert_eq!(store.consume(two.clone()).blocking().unwrap().unwrap().value, Some(value));
    assert_eq!(store.consume(two).blocking().unwrap(), None);
    lose();
    assert!(store.delete(one.clone()).blocking().unwrap());
    assert!(!store.delete(one).blocking().unwrap());
    lose();
    jobs.delete().blocking().unwrap();
    assert!(!connection.list().blocking().unwrap().contains(jobs.name()));
}

/// Matches scripts that are called by hash or by source.
const SCRIPT: &str = "EVAL";

#[test]
fn a_lost_reply_of_any_verb_has_one_effect() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.port());
    let connection = apart(&proxy.url());
    // At first the server does not know the scripts. Then the reply of the attempt that has an effect is lost.
    for passing in [0, 0, 1] {
        let before = proxy.stats().dropped;
        every_verb(&connection, || proxy.drop_nth_reply(SCRIPT, passing));
        assert!(proxy.stats().dropped > before + 10);
    }
}

#[test]
fn a_lost_request_of_any_verb_has_one_effect() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.port());
    let connection = apart(&proxy.url());
    for _ in 0..2 {
        every_verb(&connection, || proxy.drop_request(SCRIPT));
    }
    assert!(proxy.stats().dropped > 50);
}

#[test]
fn a_lost_reply_of_any_verb_has_one_effect_in_a_cluster() {
    let cluster = RedisCluster::builder().node_timeout(Duration::from_secs(30)).proxied().start();
    let connection = apart_in_cluster(&cluster);
    let dropped = || (0..3).map(|node| cluster.proxy(node).stats().dropped).sum::<usize>();
    for is_reply in [true, false] {
        let before = dropped();
        every_verb(&connection, || {
            // A verb may not use each node. Faults that are left over apply to later verbs.
            for node in 0..3 {
                match is_reply {
                    true => cluster.proxy(node).drop_reply(SCRIPT),
                    false => cluster.proxy(node).drop_request(SCRIPT),
                }
            }
        });
        assert!(dropped() > before + 20);
    }
}

/// Eight tasks send, and eight receive and acknowledge, while `trouble` runs until they are done. Asserts that each message
/// is delivered once and no operation fails.
fn once_each(connection: &Connection, trouble: impl Fn() + Sync) {
    const EACH: u64 = 60;
    let jobs = jobs(connection);
    let is_over = AtomicBool::new(false);
    let mut got = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                trouble();
            }
        });
        let senders: Vec<_> = (0..8)
            .map(|sender| {
                let jobs = &jobs;
                scope.spawn(move || {
                    for number in 0..EACH / 2 {
                        jobs.send(&(sender * EACH + number)).blocking().unwrap();
                    }
                    let rest: Vec<u64> = (EACH / 2..EACH).map(|number| sender * EACH + number).collect();
                    for some in rest.chunks(7) {
                        jobs.send_batch(some).blocking().unwrap().into_iter().for_each(|sent| drop(sent.unwrap()));
                    }
                })
            })
            .collect();
        let receivers: Vec<_> = (1..=8)
            .map(|max| {
                let (jobs, is_over) = (&jobs, &is_over);
                scope.spawn(move || {
                    let mut got = Vec::new();
                    while !is_over.load(Ordering::SeqCst) {
                        let receive = jobs.receive().max_messages(max).visibility_timeout(LONG);
                        for message in receive.wait_time(Duration::from_millis(200)).blocking().unwrap() {
                            assert_eq!(message.delivery_count, 1);
                            message.acknowledge().blocking().unwrap();
                            got.push(message.body);
                        }
                    }
                    got
                })
            })
            .collect();
        let sent = senders.into_iter().map(|sender| sender.join()).collect::<Result<Vec<()>, _>>();
        if sent.is_ok() {
            super::until("an empty mailbox", || jobs.approximate_count().blocking().unwrap() == 0);
        }
        is_over.store(true, Ordering::SeqCst);
        sent.unwrap();
        receivers.into_iter().flat_map(|receiver| receiver.join().unwrap()).collect::<Vec<u64>>()
    });
    got.sort_unstable();
    assert_eq!(got, (0..8 * EACH).collect::<Vec<u64>>());
}

/// Repeatedly loses a request or a reply, with enough forwarded requests in between for progress.
fn lose_at_random(proxy: &Proxy) {
    let random = |below: u32| rand::rng().random_range(0..below) as usize;
    match random(4) {
        0 => proxy.cut(),
        1 => proxy.drop_request(SCRIPT),
        _ => proxy.drop_nth_reply(SCRIPT, random(10)),
    }
    let (before, most) = (proxy.stats().requests, random(60));
    for _ in 0..200 {
        std::thread::sleep(Duration::from_millis(1));
        if proxy.stats().requests > before + most {
            break;
        }
    }
}

#[test]
fn random_losses_of_the_network_lose_and_duplicate_nothing() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.port());
    once_each(&apart(&proxy.url()), || lose_at_random(&proxy));
    assert!(proxy.stats().connections > 5, "{:?}", proxy.stats());
}

#[test]
fn random_losses_of_the_network_lose_and_duplicate_nothing_in_a_cluster() {
    let cluster = RedisCluster::builder().node_timeout(Duration::from_secs(30)).proxied().start();
    let node = cluster.primary_of_key("{queue:jobs}");
    once_each(&apart_in_cluster(&cluster), || lose_at_random(cluster.proxy(node)));
}
