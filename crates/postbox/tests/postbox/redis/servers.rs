//! Servers that are killed, paused and restarted, that get other data, and that forget their scripts.

use std::time::{Duration, Instant};

use postbox::*;
use postbox_test_servers::{Proxy, Redis};

use super::work::Work;
use super::{LONG, apart, jobs, listeners, until, waiting_for_one};

/// The number of rounds: `POSTBOX_REDIS_ROUNDS` or a default.
pub(super) fn rounds(few: usize) -> usize {
    std::env::var("POSTBOX_REDIS_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(few)
}

#[test]
fn a_killed_server_loses_no_confirmed_operation() {
    let redis = Redis::builder().durable().start();
    let mailboxes = [jobs(&apart(&redis.url())), jobs(&apart(&redis.url()))];
    let mut pauses = Vec::new();
    let work = Work::during(&mailboxes, Duration::from_secs(5), |work| {
        for _ in 0..rounds(5) {
            work.goes_on(100);
            redis.kill();
            redis.restart();
            let start = Instant::now();
            work.goes_on(1);
            pauses.push(start.elapsed());
        }
        work.goes_on(100);
    });
    println!("{} sent, consumers went on after {pauses:?}, {:?} errors", work.many_sent(), work.errors);
    assert_eq!(Work::count(&work.came_back), 0, "acknowledged messages came back");
    until("an empty mailbox", || {
        // A send without a reply may have stored its message. Messages of a receive without a reply are delivered again.
        let messages = mailboxes[0].receive().max_messages(100).blocking().unwrap();
        mailboxes[0].acknowledge_batch(&messages).blocking().unwrap();
        mailboxes[0].approximate_count().blocking().unwrap() == 0
    });
}

#[test]
fn waiting_receivers_continue_after_a_restart_of_the_server() {
    let redis = Redis::builder().durable().start();
    let (one, two) = (apart(&redis.url()), apart(&redis.url()));
    let reply = jobs(&one).send_expecting_reply(&1).blocking().unwrap();
    let request = jobs(&two).receive().blocking().unwrap().remove(0);
    let answer = std::thread::spawn(move || reply.wait().timeout(LONG).blocking());
    let waiting = waiting_for_one(&one);
    until("a subscription", || listeners(&redis) == 1);
    redis.kill();
    redis.restart();
    until("a subscription again", || listeners(&redis) == 1);
    jobs(&two).send(&2).blocking().unwrap();
    assert_eq!(waiting.join().unwrap(), 2);
    request.reply(&3).blocking().unwrap();
    assert_eq!(answer.join().unwrap().unwrap(), 3);
}

#[test]
fn a_paused_server_only_delays_operations() {
    let redis = Redis::start();
    let (one, two) = (apart(&redis.url()), apart(&redis.url()));
    let waiting = waiting_for_one(&one);
    until("a subscription", || listeners(&redis) == 1);
    redis.pause();
    let sending = std::thread::spawn({
        let jobs = jobs(&two);
        move || jobs.send(&1).blocking()
    });
    std::thread::sleep(Duration::from_millis(200));
    assert!(!sending.is_finished());
    redis.resume();
    sending.join().unwrap().unwrap();
    assert_eq!(waiting.join().unwrap(), 1);
    assert_eq!(jobs(&one).approximate_count().blocking().unwrap(), 0);
}

/// The server's buffers hold attempts that the client has given up. The server executes them when it resumes.
#[test]
fn repeated_attempts_to_a_paused_server_have_one_effect() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.port());
    let connection = apart(&proxy.url());
    let jobs = jobs(&connection);
    jobs.send(&0).blocking().unwrap();
    let clients = redis.connected_clients();
    let connections = proxy.stats().connections;
    redis.pause();
    let sending = std::thread::spawn({
        let jobs = jobs.clone();
        move || jobs.send(&1).blocking()
    });
    let receiving = std::thread::spawn({
        let jobs = jobs.clone();
        move || jobs.receive().visibility_timeout(LONG).blocking()
    });
    // A new connection means that the first attempt was given up.
    until("a second attempt", || proxy.stats().connections > connections);
    redis.resume();
    sending.join().unwrap().unwrap();
    let received = receiving.join().unwrap().unwrap();
    assert_eq!((received[0].body, received[0].delivery_count), (0, 1));
    let counts = jobs.counts().blocking().unwrap();
    assert_eq!((counts.ready, counts.in_flight), (1, 1));
    until("the end of the old connections", || redis.connected_clients() <= clients);
}

#[test]
fn scripts_that_the_server_forgets_are_loaded_again() {
    let redis = Redis::start();
    let jobs = jobs(&apart(&redis.url()));
    for number in 0..5 {
        redis.command(&["SCRIPT", "FLUSH"]);
        let reply = jobs.send_expecting_reply(&number).blocking().unwrap();
        redis.command(&["SCRIPT", "FLUSH"]);
        let message = jobs.receive().blocking().unwrap().remove(0);
        redis.command(&["SCRIPT", "FLUSH"]);
        message.reply(&number).blocking().unwrap();
        redis.command(&["SCRIPT", "FLUSH"]);
        assert_eq!(reply.wait().timeout(LONG).blocking().unwrap(), number);
        redis.command(&["SCRIPT", "FLUSH"]);
        assert_eq!(jobs.approximate_count().blocking().unwrap(), 0);
    }
}

#[test]
fn the_largest_batch_is_one_request_each_way() {
    let redis = Redis::start();
    let jobs = jobs(&apart(&redis.url()));
    jobs.create().blocking().unwrap();
    let numbers: Vec<u64> = (0..1_000).collect();
    let before = super::calls(&redis, "evalsha") + super::calls(&redis, "eval");
    for sent in jobs.send_batch(&numbers).blocking().unwrap() {
        sent.unwrap();
    }
    let messages = jobs.receive().max_messages(1_000).blocking().unwrap();
    assert_eq!(messages.iter().map(|message| message.body).collect::<Vec<_>>(), numbers);
    for done in jobs.acknowledge_batch(&messages).blocking().unwrap() {
        done.unwrap();
    }
    // Each script is called by hash, which fails, then by source.
    assert_eq!(super::calls(&redis, "evalsha") + super::calls(&redis, "eval"), before + 6);
    assert!(jobs.receive().max_messages(1_001).blocking().unwrap_err().to_string().contains("1000"));
}

#[test]
fn large_bodies_arrive_as_they_were_sent() {
    let redis = Redis::start();
    let connection = apart(&redis.url());
    let texts: Mailbox<String, String> = connection.mailbox("texts").unwrap();
    let text = "0123456789abcdef".repeat(1 << 20);
    let reply = texts.send_expecting_reply(&text).blocking().unwrap();
    texts.send(&text).blocking().unwrap();
    let messages = texts.receive().max_messages(2).blocking().unwrap();
    assert!(messages.iter().all(|message| message.body == text));
    messages[0].reply(&text).blocking().unwrap();
    messages[1].acknowledge().blocking().unwrap();
    assert!(reply.wait().timeout(LONG).blocking().unwrap() == text);
    assert_eq!(texts.approximate_count().blocking().unwrap(), 0);
}

#[test]
fn an_idle_mailbox_is_removed_with_all_keys_and_returns_with_its_settings() {
    let redis = Redis::start();
    let connection = apart(&redis.url());
    let client: Mailbox<u64> = connection.clone().idle_expiry(LONG).max_size(2).mailbox("client").unwrap();
    let others = jobs(&connection);
    others.send(&1).blocking().unwrap();
    client.send(&1).deduplication_id("one").blocking().unwrap();
    client.send(&2).delay(LONG).expires_in(LONG).group("a").blocking().unwrap();
    client.receive().blocking().unwrap();
    let keys = || redis.command(&["KEYS", "{queue:client}*"]);
    // All keys expire together. The mailbox is in use until the delayed message is due.
    for key in keys().lines() {
        let left: i64 = redis.command(&["PTTL", key]).parse().unwrap();
        assert!((3_600_000..=7_200_000).contains(&left), "{key} has {left}");
    }
    for key in keys().lines() {
        redis.command(&["PEXPIRE", key, "1"]);
    }
    until("the end of the mailbox", || keys().is_empty());
    assert_eq!(connection.list().blocking().unwrap(), [others.name().clone()]);
    client.send_batch([&3, &4]).blocking().unwrap().into_iter().for_each(|sent| drop(sent.unwrap()));
    assert!(matches!(client.send(&5).blocking(), Err(Error::MailboxFull { .. })));
}
