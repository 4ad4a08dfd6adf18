//! How loops end.

use super::*;
use postbox::worker::LoopReport;

#[test]
fn a_shutdown_finishes_running_handlers_and_gives_back_other_messages() {
    let mailbox: FakeMailbox<u32, u32> = FakeMailbox::new();
    mailbox.send_batch(&[1, 2, 3]).blocking().unwrap();
    let (gate, starts, release) = gate();
    let worker = Worker::with_handler(&mailbox, gate).prefetch(2);
    let handle = worker.handle();
    let running = thread::spawn(move || worker.run().blocking().unwrap());
    starts.recv().unwrap();
    handle.shutdown();
    // The two buffered messages are given back at once, not when their leases end.
    let mut back = mailbox.receive().max_messages(10).wait_time(seconds(1)).blocking().unwrap();
    while back.len() < 2 {
        back.extend(mailbox.receive().max_messages(10).wait_time(seconds(1)).blocking().unwrap());
    }
    assert_eq!(back.iter().map(|message| message.body).collect::<Vec<_>>(), [2, 3]);
    release.cancel();
    let report = running.join().unwrap();
    assert_eq!((report.succeeded, report.given_back), (1, 2));
}

#[test]
fn a_shutdown_does_not_count_deliveries_that_no_handler_saw() {
    let mailbox: FakeMailbox<u32, u32> = FakeMailbox::with(|options| options.max_deliveries(1));
    mailbox.send_batch(&[1, 2, 3, 4]).blocking().unwrap();
    let (gate, starts, release) = gate();
    let worker = Worker::with_handler(&mailbox, gate).prefetch(3);
    let handle = worker.handle();
    let running = thread::spawn(move || worker.run().blocking().unwrap());
    starts.recv().unwrap();
    while mailbox.counts().blocking().unwrap().in_flight < 4 {
        thread::yield_now();
    }
    // From now on no handler starts, although one ends before the loop has seen the shutdown.
    handle.shutdown();
    release.cancel();
    assert_eq!(running.join().unwrap().given_back, 3);
    assert_eq!(mailbox.dead_letters().count().blocking().unwrap(), 0);
    let again = mailbox.receive().max_messages(10).blocking().unwrap();
    let seen: Vec<_> = again.iter().map(|message| (message.body, message.delivery_count)).collect();
    assert_eq!(seen, [(2, 1), (3, 1), (4, 1)]);
}

#[test]
fn a_message_of_a_handler_that_exceeds_the_shutdown_timeout_is_given_back() {
    let mailbox: FakeMailbox<u32, u32> = FakeMailbox::new();
    mailbox.send(&1).blocking().unwrap();
    let (gate, starts, _release) = gate();
    let worker = Worker::with_handler(&mailbox, gate).shutdown_timeout(seconds(5));
    let handle = worker.handle();
    let running = thread::spawn(move || worker.run().blocking().unwrap());
    let context = starts.recv().unwrap();
    // Wait for the alarm of the lease renewal, then also for the alarm of the deadline.
    rest(&mailbox);
    handle.shutdown();
    while mailbox.backend().clock().alarms() < 2 {
        thread::yield_now();
    }
    mailbox.advance(seconds(5));
    assert_eq!(running.join().unwrap().given_back, 1);
    assert!(context.cancellation().is_cancelled());
    assert_eq!(mailbox.receive().blocking().unwrap()[0].delivery_count, 2);
}

#[test]
fn a_shutdown_before_the_start_is_not_forgotten() {
    let mailbox: FakeMailbox<u32, u32> = FakeMailbox::new();
    mailbox.send(&1).blocking().unwrap();
    let worker = echo(&mailbox);
    worker.handle().shutdown();
    assert_eq!(worker.run().blocking().unwrap(), LoopReport::default());
    assert_eq!(mailbox.counts().blocking().unwrap().ready, 1);
}

#[test]
fn a_dropped_loop_gives_back_its_messages() {
    let mailbox: FakeMailbox<u32, u32> = FakeMailbox::new();
    mailbox.send_batch(&[1, 2, 3]).blocking().unwrap();
    let (gate, starts, _release) = gate();
    let worker = Worker::with_handler(&mailbox, gate).prefetch(2);
    let mut running = Box::pin(worker.run().into_future());
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    for _ in 0..3 {
        assert!(running.as_mut().poll(&mut context).is_pending());
    }
    starts.recv().unwrap();
    assert_eq!(mailbox.counts().blocking().unwrap().in_flight, 3);
    drop(running);
    assert_eq!(mailbox.counts().blocking().unwrap().ready, 3);
}

#[test]
fn iterations_count_receives_and_empty_ones_too() {
    let mailbox: FakeMailbox<u32, u32> = FakeMailbox::new();
    mailbox.send_batch(&[1, 2]).blocking().unwrap();
    let report = echo(&mailbox).wait_time(Duration::ZERO).max_iterations(5).run().blocking().unwrap();
    assert_eq!((report.iterations, report.received, report.succeeded), (5, 2, 2));
}

#[test]
fn a_closed_mailbox_ends_the_loop() {
    let mailbox: FakeMailbox<u32, u32> = FakeMailbox::new();
    let reply = mailbox.send_expecting_reply(&1).blocking().unwrap();
    let worker = echo(&mailbox);
    let running = thread::spawn(move || worker.run().blocking().unwrap());
    assert_eq!(reply.wait().blocking().unwrap(), 1);
    mailbox.close();
    assert_eq!(running.join().unwrap().succeeded, 1);
}
