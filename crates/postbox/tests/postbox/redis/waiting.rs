//! Waits: few connections, no polling, the server's clock.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use postbox::*;
use postbox_test_servers::{Redis, RedisCluster};

use super::{LONG, apart, apart_in_cluster, calls, jobs, listeners, until, waited_for, waiting_for_one};

/// Starts `each` receivers at each of `many` mailboxes on each connection, and asserts that every receiver gets a message.
fn assert_all_are_woken(connections: &[Connection], many: usize, each: usize, meanwhile: impl FnOnce()) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let name = |number: usize| format!("box-{number}");
    let mut waiting = Vec::new();
    for connection in connections {
        for number in 0..many {
            let mailbox: Mailbox<usize> = connection.mailbox(&name(number)).unwrap();
            for _ in 0..each {
                let mailbox = mailbox.clone();
                waiting.push(runtime.spawn(async move {
                    let message = mailbox.receive().wait_time(LONG).await?.remove(0);
                    message.acknowledge().await?;
                    Ok::<_, Error>(message.body)
                }));
            }
        }
    }
    meanwhile();
    let bodies: Vec<usize> = (0..each * connections.len()).collect();
    for number in 0..many {
        let mailbox: Mailbox<usize> = connections[0].mailbox(&name(number)).unwrap();
        mailbox.send_batch(&bodies).blocking().unwrap().into_iter().for_each(|sent| drop(sent.unwrap()));
    }
    let woken = runtime.block_on(async {
        let mut woken = 0;
        for waiter in waiting {
            woken += waiter.await.unwrap().unwrap();
        }
        woken
    });
    assert_eq!(woken, many * bodies.iter().sum::<usize>());
}

#[test]
fn waiting_uses_no_processor_time() {
    let redis = Redis::start();
    let jobs = jobs(&apart(&redis.url()));
    // Run operations back to back first, because they might leave a thread busy-polling.
    for number in 0..100 {
        jobs.send(&number).blocking().unwrap();
        jobs.receive().blocking().unwrap()[0].acknowledge().blocking().unwrap();
    }
    crate::assert_uses_no_processor_time(|| {
        assert!(jobs.receive().wait_time(Duration::from_secs(1)).blocking().unwrap().is_empty());
    });
}

#[test]
fn thousands_of_waits_use_two_connections_per_process() {
    let redis = Redis::start();
    let connections = [apart(&redis.url()), apart(&redis.url())];
    assert_all_are_woken(&connections, 300, 5, || {
        until("all subscriptions", || {
            waited_for(&redis) == 300 && redis.command(&["PUBSUB", "NUMSUB", "{queue:box-299}:wake"]).ends_with('2')
        });
        assert_eq!(redis.connected_clients(), 4);
    });
    assert_eq!(redis.connected_clients(), 4);
}

#[test]
fn thousands_of_waits_use_two_connections_per_process_and_node() {
    let cluster = RedisCluster::builder().node_timeout(Duration::from_secs(30)).start();
    let connections = [apart_in_cluster(&cluster), apart_in_cluster(&cluster)];
    let connected = || cluster.nodes().iter().map(Redis::connected_clients).collect::<Vec<_>>();
    assert_all_are_woken(&connections, 150, 5, || {
        let heard = |node: &Redis| {
            node.command(&["PUBSUB", "SHARDCHANNELS", "*"]).lines().filter(|line| !line.is_empty()).count()
        };
        until("all subscriptions", || cluster.nodes().iter().map(heard).sum::<usize>() == 150);
        println!("connections at each node: {:?}", connected());
        assert!(connected().iter().all(|many| *many <= 4), "{:?}", connected());
    });
    assert!(connected().iter().all(|many| *many <= 4), "{:?}", connected());
}

#[test]
fn waiting_receivers_send_no_commands() {
    let redis = Redis::start();
    let connection = apart(&redis.url());
    jobs(&connection).create().blocking().unwrap();
    let store = connection.reply_store().unwrap();
    let reply = ReplyId::new();
    store.create(reply.clone(), LONG).blocking().unwrap();
    let asked = || calls(&redis, "evalsha") + calls(&redis, "eval");
    let before = asked();
    let waiting: Vec<_> = (0..4).map(|_| waiting_for_one(&connection)).collect();
    let answer = std::thread::spawn({
        let (store, reply) = (Arc::clone(&store), reply.clone());
        move || store.settled(reply, LONG).blocking()
    });
    until("a subscription", || listeners(&redis) == 1);
    std::thread::sleep(Duration::from_secs(2));
    // Each receiver looks for messages before and after it subscribes. The first call also sends the script's source.
    assert!(asked() - before <= 4 * 2 + 1 + 2 * 2, "{} script calls", asked() - before);
    jobs(&connection).send_batch([&1, &2, &3, &4]).blocking().unwrap();
    for waiting in waiting {
        waiting.join().unwrap();
    }
    assert!(store.cancel(reply).blocking().unwrap());
    assert!(answer.join().unwrap().unwrap());
}

/// The server has forgotten the script, so the send is repeated with the script's source.
#[test]
fn a_send_that_is_repeated_wakes_a_wait() {
    let redis = Redis::start();
    let connection = apart(&redis.url()).max_size(10);
    let waiting = waiting_for_one(&connection);
    until("a subscription", || listeners(&redis) == 1);
    redis.command(&["SCRIPT", "FLUSH"]);
    // The server has loaded the script of receives again, and not the script of sends.
    assert!(jobs(&connection).receive().blocking().unwrap().is_empty());
    jobs(&connection).send(&1).blocking().unwrap();
    assert_eq!(waiting.join().unwrap(), 1);
}

#[test]
fn a_wait_wakes_for_what_another_client_delayed_or_leased() {
    let redis = Redis::start();
    let (one, two) = (apart(&redis.url()), apart(&redis.url()));
    let soon = Duration::from_millis(300);
    for is_first in [true, false] {
        // The receiver waits before the send, and after it.
        let waiting = is_first.then(|| {
            let waiting = waiting_for_one(&one);
            until("a subscription", || listeners(&redis) == 1);
            waiting
        });
        jobs(&two).send(&1).delay(soon).blocking().unwrap();
        let waiting = waiting.unwrap_or_else(|| waiting_for_one(&one));
        assert_eq!(waiting.join().unwrap(), 1);
    }
    jobs(&two).send(&2).blocking().unwrap();
    let leased = jobs(&two).receive().visibility_timeout(soon).blocking().unwrap();
    let again = jobs(&one).receive().wait_time(LONG).blocking().unwrap();
    assert_eq!((again[0].body, again[0].delivery_count), (2, 2));
    assert!(matches!(leased[0].acknowledge().blocking(), Err(Error::ReceiptHandleExpired { .. })));
    again[0].acknowledge().blocking().unwrap();
    // A message is given back with a delay while another receiver waits.
    jobs(&two).send(&3).blocking().unwrap();
    let leased = jobs(&two).receive().blocking().unwrap();
    let waiting = waiting_for_one(&one);
    until("a subscription", || listeners(&redis) == 1);
    leased[0].nack().visibility_timeout(soon).blocking().unwrap();
    assert_eq!(waiting.join().unwrap(), 3);
}

#[test]
fn a_mailbox_with_a_waiting_receiver_is_not_idle() {
    let redis = Redis::start();
    let connection = apart(&redis.url()).idle_expiry(Duration::from_millis(500));
    jobs(&connection).send(&1).delay(Duration::from_secs(1)).blocking().unwrap();
    jobs(&connection).send(&2).group("a").blocking().unwrap();
    let leased = jobs(&connection).receive().visibility_timeout(LONG).blocking().unwrap();
    assert_eq!(leased[0].body, 2);
    assert_eq!(waiting_for_one(&connection).join().unwrap(), 1);
    // Three times the idle time passes with nothing but a leased message and a waiting receiver.
    let nothing = jobs(&connection).receive().wait_time(Duration::from_millis(1_500)).blocking().unwrap();
    assert!(nothing.is_empty());
    leased[0].nack().blocking().unwrap();
    assert_eq!(jobs(&connection).receive().blocking().unwrap()[0].body, 2);
}

// ---------------------------------------------------------------------------------------------------------------------
// Clocks: this test binary starts itself with a clock that is hours off.

/// Runs only in a child process.
#[test]
fn child_of_the_clock_test() {
    let Ok(url) = std::env::var("POSTBOX_TEST_CLOCK") else { return };
    let jobs = jobs(&apart(&url));
    println!("\nclock {}\n", SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs());
    // The parent's messages are there. Lease them for an hour.
    let leased = jobs.receive().visibility_timeout(LONG).blocking().unwrap();
    assert_eq!((leased[0].body, leased[0].delivery_count), (1, 1));
    jobs.send(&2).blocking().unwrap();
    jobs.send(&3).delay(LONG).blocking().unwrap();
    jobs.send(&4).expires_in(LONG).blocking().unwrap();
    jobs.send(&5).delay(Duration::from_millis(200)).blocking().unwrap();
    let reply = jobs.send_expecting_reply(&6).reply_timeout(LONG).blocking().unwrap();
    assert!(matches!(reply.wait().timeout(Duration::from_millis(50)).blocking(), Err(Error::ReplyTimeout { .. })));
    for body in [2, 4, 6, 5] {
        let message = jobs.receive().wait_time(LONG).blocking().unwrap().remove(0);
        assert_eq!(message.body, body);
        // A short lease ends soon, and a long lease does not end.
        match body {
            2 => {
                message.extend_visibility(LONG).blocking().unwrap();
                message.acknowledge().blocking().unwrap();
            }
            6 => message.reply(&60).blocking().unwrap(),
            _ => message.nack().visibility_timeout(LONG).blocking().unwrap(),
        }
    }
    assert_eq!(reply.wait().timeout(LONG).blocking().unwrap(), 60);
    println!("\nall is well\n");
}

#[test]
fn a_clock_that_is_hours_off_changes_nothing() {
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    for hours in [7_i64, -7] {
        let redis = Redis::start();
        let jobs = jobs(&apart(&redis.url()));
        jobs.send(&1).blocking().unwrap();
        let child = Command::new("faketime")
            .args(["-f", &format!("{hours:+}h")])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "redis::waiting::child_of_the_clock_test", "--nocapture"])
            .env("POSTBOX_TEST_CLOCK", redis.url())
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .output()
            .unwrap_or_else(|error| panic!("faketime: {error}; run ./test, which installs it"));
        let said = String::from_utf8_lossy(&child.stdout).into_owned() + &String::from_utf8_lossy(&child.stderr);
        assert!(child.status.success() && said.contains("all is well"), "{said}");
        let clock = said.lines().find_map(|line| line.strip_prefix("clock ")?.parse::<u64>().ok()).unwrap();
        assert!(clock.abs_diff(now()) > 6 * 3_600, "{clock} is the right time");
        // By the parent's clock, the leases still hold, and the messages were sent just now.
        let counts = jobs.counts().blocking().unwrap();
        assert_eq!((counts.ready, counts.delayed, counts.in_flight), (0, 3, 1));
        jobs.send(&7).blocking().unwrap();
        let message = jobs.receive().blocking().unwrap().remove(0);
        assert_eq!(message.body, 7);
        let sent = message.enqueued_at.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        assert!(sent.abs_diff(now()) < 3_600);
        // The scores are set by the server's clock: within an hour of its time, in half microseconds.
        let time: u64 = redis.command(&["TIME"]).lines().next().unwrap().parse().unwrap();
        let leases = redis.command(&["ZRANGE", "{queue:jobs}:invisible", "0", "-1", "WITHSCORES"]);
        let scores = leases.lines().filter_map(|line| line.parse::<f64>().ok()).map(|score| (score / 2e6) as u64);
        assert!(scores.filter(|score| score.abs_diff(time) < 2 * 3_600).count() >= 4, "{leases}");
    }
}
