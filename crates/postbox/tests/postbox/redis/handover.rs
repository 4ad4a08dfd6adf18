//! Messages that are handed to those who wait, with the request that sends them.

use std::thread::JoinHandle;
use std::time::Duration;

use postbox::{Connection, Mailbox, Message};
use postbox_test_servers::{Direction, Proxy, Redis};

use super::{LONG, apart, calls, jobs, until};

const META: &str = "{queue:jobs}:meta";
/// How much the server notes of a process that waits.
const NOTE: usize = 37;

/// How many processes wait to be handed messages at `jobs`.
fn known(redis: &Redis) -> usize {
    redis.command(&["HSTRLEN", META, "waits"]).trim().parse::<usize>().expect("a number") / NOTE
}

type Received = Vec<Message<u64, u64>>;

/// Waits on a thread, for up to so many.
fn waiting(connection: &Connection, max: usize) -> JoinHandle<Received> {
    let jobs = jobs(connection);
    std::thread::spawn(move || {
        jobs.receive().max_messages(max).visibility_timeout(LONG).wait_time(LONG).blocking().unwrap()
    })
}

fn bodies(messages: &[Message<u64, u64>]) -> Vec<(u64, u32)> {
    messages.iter().map(|message| (message.body, message.delivery_count)).collect()
}

fn finish(messages: &[Message<u64, u64>]) {
    messages.iter().for_each(|message| message.acknowledge().blocking().unwrap());
}

#[test]
fn a_message_comes_with_the_request_that_sends_it() {
    let redis = Redis::start();
    let (here, there) = (apart(&redis.url()), apart(&redis.url()));
    // Here he may be told of it before he hears that the server knows him; then he asks as well.
    for (number, sender, most) in [(1, &there, 1), (2, &here, 2), (3, &there, 1)] {
        let waiting = waiting(&here, 1);
        until("somebody who waits", || known(&redis) == 1);
        let before = calls(&redis, "evalsha");
        let id = jobs(sender).send(&number).blocking().unwrap();
        let messages = waiting.join().unwrap();
        let requests = calls(&redis, "evalsha") - before;
        assert!((1..=most).contains(&requests), "{requests} of at most {most}");
        assert_eq!((bodies(&messages), &messages[0].id), (vec![(number, 1)], &id));
        let counts = jobs(&there).counts().blocking().unwrap();
        assert_eq!((counts.ready, counts.in_flight), (0, 1));
        finish(&messages);
        assert_eq!(known(&redis), 0);
    }
    assert_eq!(jobs(&here).counts().blocking().unwrap().in_flight, 0);
}

#[test]
fn each_gets_as_many_as_it_takes_in_turn() {
    let redis = Redis::start();
    let connections = [(); 3].map(|()| apart(&redis.url()));
    let mut waiters = Vec::new();
    for (at, max) in [(0, 2), (1, 1)] {
        waiters.push(waiting(&connections[at], max));
        until("one more", || known(&redis) == at + 1);
    }
    let sent = jobs(&connections[2]).send_batch([&1, &2, &3, &4]).blocking().unwrap();
    assert!(sent.iter().all(Result::is_ok));
    let got: Vec<_> = waiters.into_iter().map(|waiter| bodies(&waiter.join().unwrap())).collect();
    assert_eq!(got, [vec![(1, 1), (2, 1)], vec![(3, 1)]]);
    let rest = jobs(&connections[2]).receive().blocking().unwrap();
    assert_eq!(bodies(&rest), [(4, 1)]);
}

#[test]
fn of_those_who_wait_in_a_process_all_get_something() {
    let redis = Redis::start();
    let (here, there) = (apart(&redis.url()), apart(&redis.url()));
    let waiters: Vec<_> = (0..5).map(|_| waiting(&here, 1)).collect();
    until("one who waits", || known(&redis) == 1);
    for number in 0..5 {
        jobs(&there).send(&number).blocking().unwrap();
    }
    let mut got: Vec<_> = waiters.into_iter().flat_map(|waiter| bodies(&waiter.join().unwrap())).collect();
    got.sort_unstable();
    assert_eq!(got, [(0, 1), (1, 1), (2, 1), (3, 1), (4, 1)]);
}

#[test]
fn what_is_lost_on_the_way_is_asked_for() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.port());
    let (here, there) = (apart(&proxy.url()), apart(&redis.url()));
    for number in 0..5 {
        let waiting = waiting(&here, 1);
        until("somebody who waits", || known(&redis) == 1);
        proxy.stall(Direction::ToClient);
        jobs(&there).send(&number).blocking().unwrap();
        assert_eq!(known(&redis), 0, "it is handed over");
        proxy.cut();
        proxy.resume();
        let messages = waiting.join().unwrap();
        assert_eq!(bodies(&messages), [(number, 1)], "once");
        finish(&messages);
    }
}

#[test]
fn a_message_is_not_handed_to_somebody_who_has_left() {
    let redis = Redis::start();
    let (here, there) = (apart(&redis.url()), apart(&redis.url()));
    let jobs_here = jobs(&here);
    for number in 0..5 {
        let nothing = jobs_here.receive().wait_time(Duration::from_millis(30)).blocking().unwrap();
        assert!(nothing.is_empty());
        assert_eq!(known(&redis), 0, "his time is up, and the server knows");
        // Another one leaves before.
        let mut leaves = Box::pin(jobs_here.receive().wait_time(LONG).into_future());
        until("somebody who waits", || {
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(leaves.as_mut().poll(&mut context).is_pending());
            known(&redis) == 1
        });
        drop(leaves);
        until("he has left", || known(&redis) == 0);
        jobs(&there).send(&number).blocking().unwrap();
        let messages = jobs(&there).receive().blocking().unwrap();
        assert_eq!(bodies(&messages), [(number, 1)]);
        finish(&messages);
    }
}

#[test]
fn what_is_handed_to_somebody_who_leaves_is_put_back() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.port());
    let (here, there) = (apart(&proxy.url()), apart(&redis.url()));
    let jobs_here = jobs(&here);
    for number in 0..5 {
        let mut leaves = Box::pin(jobs_here.receive().visibility_timeout(LONG).wait_time(LONG).into_future());
        until("somebody who waits", || {
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(leaves.as_mut().poll(&mut context).is_pending());
            known(&redis) == 1
        });
        proxy.stall(Direction::ToClient);
        jobs(&there).send(&number).blocking().unwrap();
        assert_eq!(known(&redis), 0, "it is handed over");
        jobs(&there).send(&(number + 100)).blocking().unwrap();
        drop(leaves);
        until("it is put back", || jobs(&there).counts().blocking().unwrap().ready == 2);
        proxy.resume();
        let messages = jobs(&there).receive().max_messages(10).blocking().unwrap();
        assert_eq!(bodies(&messages), [(number, 1), (number + 100, 1)], "as if it had not been");
        finish(&messages);
    }
    assert_eq!(jobs(&there).counts().blocking().unwrap().in_flight, 0);
}

#[test]
fn what_somebody_has_is_not_put_back_when_others_leave() {
    let redis = Redis::start();
    let (here, there) = (apart(&redis.url()), apart(&redis.url()));
    let waiting = waiting(&here, 1);
    until("somebody who waits", || known(&redis) == 1);
    jobs(&there).send(&1).blocking().unwrap();
    let messages = waiting.join().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let jobs_here = jobs(&here);
    runtime.block_on(async {
        // They leave before the server knows them, when it does, and in between.
        for moments in 0..60 {
            let wait = jobs_here.receive().wait_time(LONG).into_future();
            assert!(tokio::time::timeout(Duration::from_micros(50 * moments), wait).await.is_err());
        }
    });
    until("all have left", || known(&redis) == 0);
    let counts = jobs(&there).counts().blocking().unwrap();
    assert_eq!((counts.ready, counts.in_flight), (0, 1));
    finish(&messages);
}

/// A receive whose answer nobody takes is undone: neither the count nor the order shows it.
#[test]
fn what_nobody_gets_is_as_it_was() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.port());
    let (here, there) = (apart(&proxy.url()), apart(&redis.url()));
    let jobs_here = jobs(&here.max_deliveries(1));
    // From here on it is connected, and the server knows the script.
    assert!(jobs_here.receive().blocking().unwrap().is_empty());
    jobs(&there).send_batch([&1, &2]).blocking().unwrap().into_iter().for_each(|sent| drop(sent.unwrap()));
    jobs(&there).send(&3).group("a").blocking().unwrap();
    jobs(&there).send(&4).group("a").blocking().unwrap();
    for _ in 0..3 {
        proxy.stall(Direction::ToClient);
        let mut leaves = Box::pin(jobs_here.receive().max_messages(10).visibility_timeout(LONG).into_future());
        until("it is leased", || {
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(leaves.as_mut().poll(&mut context).is_pending());
            jobs(&there).counts().blocking().unwrap().in_flight == 3
        });
        drop(leaves);
        proxy.resume();
        until("it is there again", || jobs(&there).counts().blocking().unwrap().in_flight == 0);
    }
    let messages = jobs(&there).receive().max_messages(10).blocking().unwrap();
    assert_eq!(bodies(&messages), [(1, 1), (2, 1), (3, 1)]);
    finish(&messages);
    let last = jobs(&there).receive().max_messages(10).blocking().unwrap();
    assert_eq!(bodies(&last), [(4, 1)]);
}

#[test]
fn a_message_stays_if_whoever_waited_is_gone() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.port());
    let (here, there) = (apart(&proxy.url()), apart(&redis.url()));
    let waiting = waiting(&here, 1);
    until("somebody who waits", || known(&redis) == 1);
    proxy.refuse();
    proxy.cut();
    until("the server knows", || {
        let channels = redis.command(&["PUBSUB", "CHANNELS"]);
        !channels.contains("{queue:jobs}")
    });
    jobs(&there).send(&1).blocking().unwrap();
    assert_eq!(known(&redis), 0);
    let counts = jobs(&there).counts().blocking().unwrap();
    assert_eq!((counts.ready, counts.in_flight), (1, 0));
    proxy.accept();
    assert_eq!(bodies(&waiting.join().unwrap()), [(1, 1)]);
}

#[test]
fn large_messages_and_late_ones_come_in_the_usual_way() {
    let redis = Redis::start();
    let (here, there) = (apart(&redis.url()), apart(&redis.url()));
    let texts = |connection: &Connection| -> Mailbox<String> { connection.mailbox("jobs").unwrap() };
    let large = "x".repeat(70_000);
    for delay in [Duration::ZERO, Duration::from_millis(20)] {
        let receiver = texts(&here);
        let waiting = std::thread::spawn(move || {
            let message = receiver.receive().wait_time(LONG).blocking().unwrap().remove(0);
            message.acknowledge().blocking().unwrap();
            message.body
        });
        until("somebody who waits", || known(&redis) == 1);
        texts(&there).send(&large).delay(delay).blocking().unwrap();
        assert_eq!(waiting.join().unwrap(), large);
        until("he has left", || known(&redis) == 0);
    }
}
