//! Operations of several kinds that wait together: one request does them all, as if each had come alone.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use postbox::*;
use postbox_test_servers::{Direction, Proxy, Redis};
use rand::RngExt as _;

use super::{LONG, apart, calls, jobs, listeners, until, waiting_for_one};

type Jobs = Mailbox<u64, u64>;
type Pending<T> = Pin<Box<dyn Future<Output = Result<T, Error>>>>;

struct Place {
    redis: Redis,
    proxy: Proxy,
    jobs: Jobs,
}

/// What came of a send, a receive of up to three, and an acknowledgement.
struct Outcome {
    sent: Result<MessageId, Error>,
    received: Result<Vec<Message<u64, u64>>, Error>,
    done: Result<(), Error>,
}

impl Place {
    fn new() -> Self {
        let redis = Redis::start();
        let proxy = Proxy::start(redis.port());
        let jobs = jobs(&apart(&proxy.url()));
        let place = Place { redis, proxy, jobs };
        // From here on the server knows the scripts.
        for _ in 0..2 {
            let outcome = place.together(0, || ());
            outcome.sent.unwrap();
            outcome.done.unwrap();
            outcome.received.unwrap()[0].acknowledge().blocking().unwrap();
        }
        place
    }

    fn asked(&self) -> u64 {
        calls(&self.redis, SCRIPT_CALLS)
    }

    fn lease(&self, body: u64) -> Message<u64, u64> {
        self.jobs.send(&body).blocking().unwrap();
        let message = self.jobs.receive().visibility_timeout(LONG).blocking().unwrap().remove(0);
        assert_eq!(message.body, body);
        message
    }

    /// A send, a receive and an acknowledgement that come while as many requests are under way as may be. `trouble` is armed
    /// before they go.
    fn together(&self, body: u64, trouble: impl FnOnce()) -> Outcome {
        let (done, busy) = (self.lease(body + 100), self.lease(body + 200));
        self.proxy.stall(Direction::ToClient);
        let others = [1, 2].map(|times| {
            let (asked, busy) = (self.asked(), busy.extend_visibility(times * LONG));
            let other = std::thread::spawn(move || busy.blocking());
            until("a request", || self.asked() > asked);
            other
        });
        let receive = self.jobs.receive().max_messages(3).visibility_timeout(LONG);
        let mut send: Pending<MessageId> = Box::pin(self.jobs.send(&body).into_future());
        let mut receive: Pending<Vec<Message<u64, u64>>> = Box::pin(receive.into_future());
        let mut finish: Pending<()> = Box::pin(done.acknowledge().into_future());
        let mut context = Context::from_waker(Waker::noop());
        assert!(send.as_mut().poll(&mut context).is_pending());
        assert!(receive.as_mut().poll(&mut context).is_pending());
        assert!(finish.as_mut().poll(&mut context).is_pending());
        trouble();
        self.proxy.resume();
        others.into_iter().for_each(|other| other.join().unwrap().unwrap());
        let outcome =
            smol::block_on(async { Outcome { sent: send.await, received: receive.await, done: finish.await } });
        busy.acknowledge().blocking().unwrap();
        outcome
    }

    /// Leases a message; the lease has ended when this returns, and nothing has noticed.
    fn lease_for_a_moment(&self, jobs: &Jobs) {
        let now = || {
            let time = self.redis.command(&["TIME"]);
            let mut parts = time.lines().map(|part| part.parse::<u64>().unwrap());
            parts.next().unwrap() * 1_000_000 + parts.next().unwrap()
        };
        assert_eq!(jobs.receive().visibility_timeout(Duration::from_millis(1)).blocking().unwrap().len(), 1);
        let leased = now();
        until("the end of a lease", || now() > leased + 1_000);
    }

    /// How many are ready and in flight.
    fn counts(&self) -> (u64, u64) {
        let counts = self.jobs.counts().blocking().unwrap();
        (counts.ready, counts.in_flight)
    }
}

fn bodies(messages: &[Message<u64, u64>]) -> Vec<u64> {
    messages.iter().map(|message| message.body).collect()
}

const SCRIPT: &str = "EVALSHA";
const SCRIPT_CALLS: &str = "evalsha";

#[test]
fn operations_of_every_kind_share_a_request() {
    let place = Place::new();
    let before = place.asked();
    let outcome = place.together(1, || ());
    // Two messages are sent and received, one is extended twice and acknowledged; and the one request.
    assert_eq!(place.asked() - before, 4 + 3 + 1);
    outcome.done.unwrap();
    let received = outcome.received.unwrap();
    assert_eq!((bodies(&received), &received[0].id), (vec![1], &outcome.sent.unwrap()));
    assert_eq!(place.counts(), (0, 1));
    received[0].acknowledge().blocking().unwrap();
    assert_eq!(place.counts(), (0, 0));
}

#[test]
fn a_lost_reply_or_request_of_several_kinds_has_one_effect() {
    let place = Place::new();
    for round in 0..6 {
        let dropped = place.proxy.stats().dropped;
        let outcome = place.together(round, || {
            jobs(&apart(&place.redis.url())).send(&50).blocking().unwrap();
            match round % 2 {
                0 => place.proxy.drop_reply(SCRIPT),
                _ => place.proxy.drop_request(SCRIPT),
            }
        });
        assert_eq!(place.proxy.stats().dropped, dropped + 1);
        outcome.sent.unwrap();
        outcome.done.unwrap();
        let received = outcome.received.unwrap();
        assert_eq!(bodies(&received), [50, round]);
        assert!(received.iter().all(|message| message.delivery_count == 1));
        assert_eq!(place.counts(), (0, 2));
        received.iter().for_each(|message| message.acknowledge().blocking().unwrap());
        assert_eq!(place.counts(), (0, 0));
    }
}

#[test]
fn a_full_server_refuses_the_sends_among_them_and_does_the_rest() {
    let place = Place::new();
    for is_lost in [false, true] {
        let outcome = place.together(1, || {
            // Received by others in the same request.
            jobs(&apart(&place.redis.url())).send(&7).blocking().unwrap();
            place.redis.configure("maxmemory", "1");
            if is_lost {
                place.proxy.drop_reply(SCRIPT);
            }
        });
        let error = outcome.sent.unwrap_err();
        assert!(matches!(&error, Error::MailboxFull { limit, .. } if limit.contains("maxmemory")), "{error:?}");
        assert_eq!(bodies(&outcome.received.unwrap()), [7]);
        outcome.done.unwrap();
        place.redis.configure("maxmemory", "0");
        assert_eq!(place.counts(), (0, 1));
        place.jobs.purge().blocking().unwrap();
    }
}

#[test]
fn a_request_that_is_no_plain_case_is_done_kind_by_kind() {
    let place = Place::new();
    let small: Jobs = apart(&place.redis.url()).max_size(5).mailbox("jobs").unwrap();
    small.receive().blocking().unwrap();
    // The first time it is tried, then not for a while.
    for requests in [1 + 3, 3] {
        let before = place.asked();
        let outcome = place.together(1, || ());
        assert_eq!(place.asked() - before, 4 + 3 + requests);
        outcome.sent.unwrap();
        outcome.done.unwrap();
        // If the receive came before the send, it is still there.
        let mut got = bodies(&outcome.received.unwrap());
        got.extend(bodies(&place.jobs.receive().blocking().unwrap()));
        assert_eq!(got, [1]);
    }
    assert_eq!(place.counts(), (0, 2));
}

#[test]
fn a_request_is_done_kind_by_kind_while_something_is_due() {
    let place = Place::new();
    for is_lost in [false, true] {
        let other = jobs(&apart(&place.redis.url()));
        let before = place.asked();
        let outcome = place.together(1, || {
            other.send(&7).blocking().unwrap();
            place.lease_for_a_moment(&other);
            if is_lost {
                place.proxy.drop_reply(SCRIPT);
            }
        });
        assert!(place.asked() - before > 4 + 3 + 4);
        outcome.sent.unwrap();
        outcome.done.unwrap();
        let received = outcome.received.unwrap();
        let got: Vec<_> = received.iter().map(|message| (message.body, message.delivery_count)).collect();
        // The send goes first, and brings back what is due.
        assert_eq!(got, [(7, 2), (1, 1)]);
        assert_eq!(place.counts(), (0, 2));
        place.jobs.purge().blocking().unwrap();
    }
    // And it is tried again at once.
    let before = place.asked();
    place.together(1, || ()).received.unwrap();
    assert_eq!(place.asked() - before, 4 + 3 + 1);
}

#[test]
fn a_member_of_a_group_that_is_leased_among_others_holds_its_group() {
    let place = Place::new();
    let outcome = place.together(1, || {
        let other = jobs(&apart(&place.redis.url()));
        other.send(&7).group("a").blocking().unwrap();
        other.send(&8).group("a").blocking().unwrap();
    });
    let received = outcome.received.unwrap();
    assert_eq!(bodies(&received), [7, 1]);
    assert!(place.jobs.receive().blocking().unwrap().is_empty());
    received[0].acknowledge().blocking().unwrap();
    assert_eq!(bodies(&place.jobs.receive().blocking().unwrap()), [8]);
}

/// A request that hangs until it has been repeated through another connection, and refused or done there.
#[test]
fn a_late_request_of_several_kinds_has_no_second_effect() {
    for is_refused in [false, true] {
        let redis = Redis::start();
        let slow = Proxy::start(redis.port());
        let proxy = Proxy::start(slow.port());
        let jobs = jobs(&apart(&proxy.url()));
        let place = Place { redis, proxy, jobs };
        place.together(0, || ()).received.unwrap()[0].acknowledge().blocking().unwrap();
        let other = super::jobs(&apart(&place.redis.url()));
        let outcome = place.together(1, || {
            if is_refused {
                // While it is repeated something is due, and afterwards not.
                other.send(&7).blocking().unwrap();
                place.lease_for_a_moment(&other);
            }
            slow.stall(Direction::Both);
            place.proxy.retarget(place.redis.port());
        });
        outcome.sent.unwrap();
        outcome.done.unwrap();
        let received = outcome.received.unwrap();
        assert!(bodies(&received).contains(&1));
        let before = place.counts();
        assert_eq!(before, (0, received.len() as u64));
        let asked = place.asked();
        slow.resume();
        until("the late request", || place.asked() > asked);
        assert_eq!(place.counts(), before);
    }
}

/// One who waits where it is sent gets it with the request that sends it.
#[test]
fn a_message_for_one_who_waits_here_takes_one_request() {
    let redis = Redis::start();
    let connection = apart(&redis.url());
    jobs(&connection).create().blocking().unwrap();
    let mut requests = Vec::new();
    for number in 0..10 {
        let looks = calls(&redis, "lpop");
        let waiting = waiting_for_one(&connection);
        until("a subscription", || listeners(&redis) == 1);
        // One look before the subscription, one after it.
        until("two looks", || calls(&redis, "lpop") >= looks + 2);
        let before = calls(&redis, SCRIPT_CALLS);
        jobs(&connection).send(&number).blocking().unwrap();
        assert_eq!(waiting.join().unwrap(), number);
        requests.push(calls(&redis, SCRIPT_CALLS) - before);
        until("the end of the subscription", || listeners(&redis) == 0);
    }
    // It, and the acknowledgement. One who is not quite ready to wait asks a second time.
    assert_eq!(requests.iter().min(), Some(&2), "{requests:?}");
}

/// Sends that are under way at once arrive in the order in which they were begun, whatever is lost.
#[test]
fn sends_keep_their_order_whatever_is_lost() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.port());
    let jobs = jobs(&apart(&proxy.url()));
    for round in 0..10 {
        for _ in 0..rand::rng().random_range(0..3) {
            let passing = rand::rng().random_range(0..6);
            match rand::rng().random_range(0..3) {
                0 => proxy.drop_request("EVAL"),
                _ => proxy.drop_nth_reply("EVAL", passing),
            }
        }
        let leased = (0..5).map(|_| {
            jobs.send(&100).blocking().unwrap();
            jobs.receive().visibility_timeout(LONG).blocking().unwrap().remove(0)
        });
        let leased: Vec<_> = leased.collect();
        let got = smol::block_on(async {
            let mut sends: Vec<Pending<MessageId>> =
                (0..40).map(|number| Box::pin(jobs.send(&number).into_future()) as Pending<MessageId>).collect();
            let mut acts: Vec<Pending<()>> = Vec::new();
            let mut context = Context::from_waker(Waker::noop());
            for (number, send) in sends.iter_mut().enumerate() {
                let _ = send.as_mut().poll(&mut context);
                if number % 8 == 0 {
                    // In requests beside those of the sends, and among them.
                    acts.push(Box::pin(leased[number / 8].acknowledge().into_future()));
                    let _ = acts.last_mut().expect("it is there").as_mut().poll(&mut context);
                }
            }
            for send in sends {
                send.await.unwrap();
            }
            for act in acts {
                act.await.unwrap();
            }
            let mut got = Vec::new();
            while got.len() < 40 {
                got.extend(jobs.receive().max_messages(10).visibility_timeout(LONG).await.unwrap());
            }
            jobs.acknowledge_batch(&got).await.unwrap().into_iter().for_each(|done| done.unwrap());
            bodies(&got)
        });
        assert_eq!(got, (0..40).collect::<Vec<u64>>(), "round {round}");
    }
}
