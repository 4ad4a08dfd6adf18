//! Waits: shared long polls that lose no message.

use std::time::{Duration, Instant};

use postbox_test_servers::Fate;

use super::{HOURS, LONG, TestQueue, assert_passing, begin, end, json, refusal};

#[test]
fn thousands_of_waits_share_long_polls() {
    let queue = TestQueue::moto();
    let jobs = queue.jobs();
    queue.proxy.reset_counts();
    let mut waiting: Vec<_> =
        (0..5_000).map(|_| begin(jobs.receive().wait_time(LONG).visibility_timeout(HOURS))).collect();
    queue.proxy.wait_for("ReceiveMessage", 1);
    assert_eq!(queue.proxy.requests(), ["ReceiveMessage"]);
    assert!(queue.proxy.open() <= 4, "{}", queue.proxy.open());
    let rest = waiting.split_off(40);
    for part in 0..4 {
        queue.others().send_batch(&(part * 10..part * 10 + 10).collect::<Vec<_>>()).blocking().unwrap();
    }
    let mut bodies: Vec<u64> = end(waiting).into_iter().map(|got| got.unwrap()[0].body).collect();
    bodies.sort_unstable();
    assert_eq!(bodies, (0..40).collect::<Vec<_>>(), "the first receivers have them");
    drop(rest);
    // At most sixteen polls run at a time. In the worst case each returns one message.
    assert!(
        queue.proxy.open() <= 16 + 4 && queue.proxy.count("ReceiveMessage") <= 1 + 40 + 16,
        "{:?}",
        queue.proxy.requests()
    );
}

/// Without batching, each receiver has a separate poll and error.
#[test]
fn without_batching_each_waiter_gets_the_error_of_its_poll() {
    let queue = TestQueue::moto();
    queue.jobs();
    let jobs = queue.mailbox(queue.builder().gather(false));
    jobs.counts().blocking().unwrap();
    queue.proxy.reset_counts();
    // A poll that hangs does not affect the others.
    let mut is_first = true;
    queue.proxy.on(move |request| match request.operation == "ReceiveMessage" {
        true if std::mem::take(&mut is_first) => Fate::Stall,
        true => refusal("AccessDenied", "AccessDenied", "not you"),
        false => Fate::Pass,
    });
    let receive = || begin(jobs.receive().wait_time(LONG));
    let mut waiting = vec![receive()];
    queue.proxy.wait_until_held(1);
    waiting.extend([receive(), receive()]);
    // The receiver that has waited longest gets the error, as it would get a message.
    let last = waiting.pop();
    for result in end(waiting) {
        let error = result.unwrap_err();
        assert!(!error.is_transient() && error.to_string().contains("AccessDenied"), "{error:?}");
    }
    assert_eq!(queue.proxy.count("ReceiveMessage"), 3, "no further polls are sent");
    drop(last);
}

/// Sends a message during the poll of a receive that has ended, and asserts that another receiver gets it.
fn assert_given_back(queue: &TestQueue, leave: impl FnOnce()) {
    queue.proxy.wait_for("ReceiveMessage", 1);
    leave();
    let others = queue.others();
    others.send(&7).blocking().unwrap();
    queue.proxy.wait_for("ChangeMessageVisibility", 1);
    let got = others.receive().visibility_timeout(HOURS).wait_time(LONG).blocking().unwrap();
    assert_eq!(got[0].body, 7);
}

#[test]
fn a_dropped_wait_loses_no_message() {
    let queue = TestQueue::moto();
    let jobs = queue.jobs();
    let waiting = begin(jobs.receive().visibility_timeout(HOURS).wait_time(LONG));
    assert_given_back(&queue, || drop(waiting));
}

#[test]
fn a_wait_that_times_out_loses_no_message() {
    let queue = TestQueue::moto();
    let jobs = queue.jobs();
    // The shared poll lasts as long as the longest wait.
    let long = begin(jobs.receive().visibility_timeout(HOURS).wait_time(LONG));
    let short = begin(jobs.receive().visibility_timeout(HOURS).wait_time(Duration::from_millis(100)));
    assert!(end([short]).remove(0).unwrap().is_empty());
    assert_given_back(&queue, || drop(long));
}

#[test]
fn a_closed_mailbox_loses_no_message() {
    let queue = TestQueue::moto();
    let jobs = queue.jobs();
    let waiting = begin(jobs.receive().visibility_timeout(HOURS).wait_time(LONG));
    assert_given_back(&queue, || {
        jobs.close();
        assert!(end([waiting]).remove(0).unwrap().is_empty());
    });
}

#[test]
fn a_dropped_receive_without_a_wait_loses_no_message() {
    let queue = TestQueue::moto();
    let jobs = queue.jobs();
    jobs.send(&7).blocking().unwrap();
    queue.first(1, "ReceiveMessage", || Fate::StallReply);
    let receive = begin(jobs.receive().visibility_timeout(HOURS));
    queue.proxy.wait_until_held(1);
    drop(receive);
    queue.proxy.clear_faults();
    queue.proxy.wait_for("ChangeMessageVisibility", 1);
    let got = queue.others().receive().wait_time(LONG).blocking().unwrap();
    assert_eq!(got[0].body, 7);
}

#[test]
fn each_visibility_has_a_separate_poll() {
    let queue = TestQueue::moto();
    let jobs = queue.jobs();
    let (sender, asked) = std::sync::mpsc::channel();
    queue.proxy.on(move |request| {
        if request.operation == "ReceiveMessage" {
            let _ = sender.send(json(request)["VisibilityTimeout"].as_u64());
        }
        Fate::Pass
    });
    let minutes = Duration::from_secs(300);
    let waiting = [HOURS, minutes, HOURS, minutes]
        .map(|visibility| begin(jobs.receive().visibility_timeout(visibility).wait_time(LONG)));
    let mut first: Vec<_> = [asked.recv().unwrap(), asked.recv().unwrap()].into();
    first.sort_unstable();
    assert_eq!(first, [Some(300), Some(43_200)]);
    assert!(asked.try_recv().is_err(), "four receivers share two polls");
    queue.others().send_batch(&[1, 2, 3, 4]).blocking().unwrap();
    let mut bodies: Vec<u64> = end(waiting).into_iter().map(|got| got.unwrap()[0].body).collect();
    bodies.sort_unstable();
    assert_eq!(bodies, [1, 2, 3, 4]);
}

#[test]
fn a_failed_poll_is_the_error_of_all_waiters_and_the_next_one_works() {
    let queue = TestQueue::moto();
    let jobs = queue.jobs();
    queue.first(usize::MAX, "ReceiveMessage", || Fate::Stall);
    let waiting: Vec<_> = (0..50).map(|_| begin(jobs.receive().wait_time(LONG))).collect();
    queue.proxy.wait_until_held(1);
    queue.first(usize::MAX, "ReceiveMessage", Fate::internal);
    queue.proxy.cut();
    for result in end(waiting) {
        assert_passing(&result.map(drop).unwrap_err(), &queue.name);
    }
    assert_eq!(queue.proxy.count("ReceiveMessage"), 3, "one poll, three attempts");
    queue.proxy.clear_faults();
    jobs.send(&7).blocking().unwrap();
    assert_eq!(jobs.receive().wait_time(LONG).blocking().unwrap()[0].body, 7);
}

/// SQS waits for whole seconds and may answer late. The receive ends in time.
#[test]
fn a_wait_ends_in_time_if_the_poll_does_not() {
    let queue = TestQueue::moto();
    let jobs = queue.jobs();
    queue.first(usize::MAX, "ReceiveMessage", || Fate::Stall);
    let waits = [1, 200, 900, 1_100].map(|millis| begin(jobs.receive().wait_time(Duration::from_millis(millis))));
    for result in end(waits) {
        assert!(result.unwrap().is_empty());
    }
    queue.proxy.wait_until_held(1);
    assert_eq!(queue.proxy.count("ReceiveMessage"), 1, "the poll of them all has not ended");
}

/// A connection may be dead without a sign. The SDK gives it up long after the end of the poll.
#[test]
fn a_poll_that_does_not_end_is_replaced() {
    let queue = TestQueue::moto();
    let jobs = queue.jobs();
    queue.first(1, "ReceiveMessage", || Fate::Stall);
    let wait = || jobs.receive().wait_time(Duration::from_secs(1)).blocking().unwrap();
    assert!(wait().is_empty());
    queue.others().send(&7).blocking().unwrap();
    let got = [wait(), wait()].into_iter().flatten().next().expect("the message");
    assert_eq!(got.body, 7);
    queue.proxy.wait_until_held(1);
}

#[test]
fn a_wait_continues_after_an_empty_poll() {
    let queue = TestQueue::moto();
    let jobs = queue.jobs();
    // The poll of the short receive ends before the wait of the long one.
    let short = begin(jobs.receive().wait_time(Duration::from_secs(1)));
    queue.proxy.wait_for("ReceiveMessage", 1);
    let long = begin(jobs.receive().wait_time(LONG));
    assert!(end([short]).remove(0).unwrap().is_empty());
    queue.proxy.wait_for("ReceiveMessage", 2);
    queue.others().send(&7).blocking().unwrap();
    assert_eq!(end([long]).remove(0).unwrap()[0].body, 7);
}

/// A server or a proxy may answer long polls at once.
#[test]
fn a_server_that_does_not_support_long_polls_is_not_polled_without_pause() {
    let queue = TestQueue::moto();
    let jobs = queue.jobs();
    queue.first(usize::MAX, "ReceiveMessage", || super::answer(200, "{}"));
    let start = Instant::now();
    assert!(jobs.receive().wait_time(Duration::from_secs(2)).blocking().unwrap().is_empty());
    let most = start.elapsed().as_millis() / 250 + 2;
    assert!(queue.proxy.count("ReceiveMessage") as u128 <= most, "{}", queue.proxy.count("ReceiveMessage"));
}
