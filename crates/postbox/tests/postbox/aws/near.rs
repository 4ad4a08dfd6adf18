//! Operations of somebody on a runtime that runs by itself: who is alone makes his requests himself.

use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use postbox::{Error, Mailbox};
use postbox_test_servers::Fate;
use tokio::runtime::Builder;

use super::{Begun, HOURS, LONG, Place, begin, end, ministack, stay_on_a_runtime, take_all, until};

/// Whether it has ended, if it is looked at.
fn look<T>(begun: &mut Begun<T>) -> Option<T> {
    match begun.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

fn bodies(jobs: &Mailbox<u64, u64>) -> Vec<u64> {
    let mut bodies: Vec<_> = take_all(jobs).iter().map(|message| message.body).collect();
    bodies.sort_unstable();
    bodies
}

#[test]
fn a_lone_operation_is_one_request() {
    stay_on_a_runtime();
    for suffix in ["", ".fifo"] {
        let place = Place::new(ministack(), suffix);
        let jobs = place.jobs();
        for _ in 0..3 {
            place.proxy.reset_counts();
            jobs.send(&1).blocking().unwrap();
            let message = jobs.receive().blocking().unwrap().remove(0);
            message.nack().blocking().unwrap();
            let message = jobs.receive().wait_time(LONG).blocking().unwrap().remove(0);
            message.acknowledge().blocking().unwrap();
            let requests =
                ["SendMessage", "ReceiveMessage", "ChangeMessageVisibility", "ReceiveMessage", "DeleteMessage"];
            assert_eq!(place.proxy.requests(), requests);
        }
        assert!(place.proxy.open() <= 4, "{}", place.proxy.open());
    }
}

/// Somebody who makes his request himself need not look after it.
#[test]
fn nobody_waits_for_one_who_does_not_look() {
    stay_on_a_runtime();
    let place = Place::moto();
    let jobs = place.jobs();
    place.first(1, "SendMessage", || Fate::StallReply);
    let mut idle = begin(jobs.send(&0));
    until("its request", || {
        assert!(look(&mut idle).is_none());
        place.proxy.count("SendMessage") == 1
    });
    place.proxy.wait_until_held(1);
    let others: Vec<_> = (1..=64).map(|number| begin(jobs.send(&number))).collect();
    end(others).into_iter().for_each(|sent| drop(sent.unwrap()));
    assert!(place.proxy.count("SendMessage") <= 2 + 8, "the others share requests: {:?}", place.proxy.requests());

    let messages = take_all(&jobs);
    assert_eq!(messages.len(), 65);
    place.first(1, "DeleteMessage", || Fate::StallReply);
    let mut also_idle = begin(messages[0].acknowledge());
    until("its request", || {
        assert!(look(&mut also_idle).is_none());
        place.proxy.count("DeleteMessage") == 1
    });
    let others: Vec<_> = messages[1..].iter().map(|message| begin(message.acknowledge())).collect();
    end(others).into_iter().for_each(|done| done.unwrap());

    place.proxy.reset_counts();
    place.first(1, "ReceiveMessage", || Fate::StallReply);
    let mut waits = begin(jobs.receive().visibility_timeout(HOURS).wait_time(LONG));
    until("its request", || {
        assert!(look(&mut waits).is_none());
        place.proxy.count("ReceiveMessage") == 1
    });
    let other = begin(jobs.receive().visibility_timeout(HOURS).wait_time(LONG));
    place.others().send_batch(&[100, 101]).blocking().unwrap();
    assert!((100..=101).contains(&end([other]).remove(0).unwrap()[0].body));

    place.proxy.calm();
    end([idle]).remove(0).unwrap();
    end([also_idle]).remove(0).unwrap();
    assert!((100..=101).contains(&end([waits]).remove(0).unwrap()[0].body));
}

#[test]
fn who_leaves_has_it_done_all_the_same() {
    stay_on_a_runtime();
    let place = Place::moto();
    let jobs = place.jobs();
    for fate in [|| Fate::Stall, || Fate::StallReply] {
        place.first(1, "SendMessage", fate);
        let mut sends = begin(jobs.send(&1));
        until("its request", || {
            assert!(look(&mut sends).is_none());
            place.proxy.count("SendMessage") == 1
        });
        drop(sends);
        place.proxy.calm();
        place.proxy.reset_counts();
        let message = jobs.receive().wait_time(LONG).blocking().unwrap().remove(0);
        place.first(1, "DeleteMessage", fate);
        let mut done = begin(message.acknowledge());
        until("its request", || {
            assert!(look(&mut done).is_none());
            place.proxy.count("DeleteMessage") == 1
        });
        drop(done);
        place.proxy.calm();
        until("it is gone", || place.others().approximate_count().blocking().unwrap() == 0);
        place.proxy.reset_counts();
    }
}

/// What comes for somebody who has left goes to whoever waits by then, and back if nobody does.
#[test]
fn a_wait_that_is_left_strands_nothing() {
    stay_on_a_runtime();
    for has_other in [true, false] {
        let place = Place::moto();
        let jobs = place.jobs();
        jobs.send(&7).blocking().unwrap();
        place.proxy.reset_counts();
        place.first(1, "ReceiveMessage", || Fate::StallReply);
        let mut waits = begin(jobs.receive().visibility_timeout(HOURS).wait_time(LONG));
        until("its request", || {
            assert!(look(&mut waits).is_none());
            place.proxy.count("ReceiveMessage") == 1
        });
        place.proxy.wait_until_held(1);
        drop(waits);
        let mailbox = if has_other { jobs } else { place.others() };
        let other = begin(mailbox.receive().visibility_timeout(HOURS).wait_time(LONG));
        place.proxy.calm();
        let got = end([other]).remove(0).unwrap();
        assert_eq!((got[0].body, got[0].delivery_count), (7, if has_other { 1 } else { 2 }));
    }
}

/// A lease is counted from when the answer came, not from when somebody looked at it.
#[test]
fn a_lease_begins_when_the_answer_comes() {
    stay_on_a_runtime();
    let place = Place::moto();
    let jobs = place.jobs();
    jobs.send(&1).blocking().unwrap();
    place.proxy.reset_counts();
    place.first(1, "ReceiveMessage", || Fate::StallReply);
    let mut waits = begin(jobs.receive().visibility_timeout(Duration::from_secs(2)).wait_time(LONG));
    until("its request", || {
        assert!(look(&mut waits).is_none());
        place.proxy.count("ReceiveMessage") == 1
    });
    place.proxy.wait_until_held(1);
    let (sender, told) = mpsc::channel();
    let waker = Waker::from(Arc::new(Told(sender)));
    assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    place.proxy.calm();
    told.recv_timeout(LONG).unwrap();
    std::thread::sleep(Duration::from_millis(2_100));
    let message = end([waits]).remove(0).unwrap().remove(0);
    let result = message.acknowledge().blocking();
    assert!(matches!(result, Err(Error::ReceiptHandleExpired { .. })), "{result:?}");
    assert_eq!(bodies(&place.others()), [1]);
}

struct Told(mpsc::Sender<()>);

impl Wake for Told {
    fn wake(self: Arc<Self>) {
        let _ = self.0.send(());
    }
}

/// Requests and connections of a runtime that ends go on elsewhere.
#[test]
fn a_runtime_that_ends_takes_nothing_with_it() {
    let place = Place::moto();
    let jobs = place.jobs();
    for fate in [|| Fate::Stall, || Fate::StallReply] {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        place.proxy.reset_counts();
        let waits = [1, 2].map(|many| {
            // The server may lease to them what comes when their connections are gone.
            let waits = jobs.receive().visibility_timeout(Duration::from_secs(1)).wait_time(LONG);
            let waits = runtime.spawn(waits.into_future());
            place.proxy.wait_for("ReceiveMessage", many);
            waits
        });
        place.first(1, "SendMessage", fate);
        let sends = runtime.spawn(jobs.send(&1).into_future());
        place.proxy.wait_until_held(1);
        runtime.shutdown_background();
        place.proxy.calm();
        jobs.send(&2).blocking().unwrap();
        let mut got = Vec::new();
        while !(got.contains(&1) && got.contains(&2)) {
            let messages = jobs.receive().visibility_timeout(HOURS).wait_time(LONG).blocking().unwrap();
            got.extend(messages.iter().map(|message| message.body));
            jobs.acknowledge_batch(&messages).blocking().unwrap().into_iter().for_each(|done| done.unwrap());
        }
        drop((sends, waits));
        // One that was sent again because its connection was gone.
        take_all(&jobs);
    }
}
