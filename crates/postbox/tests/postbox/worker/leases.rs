//! Leases that are renewed while handlers run, and leases that are lost.

use super::*;

/// Repeatedly advances the clock by a third of a lease, when an extension is due, and waits until the loop has extended the
/// lease. So there is one extension for each step.
fn keep_alive_for(mailbox: &FakeMailbox<u32, u32>, dispatcher: &Dispatcher, steps: usize, third: Duration) {
    let (extended, extensions) = mpsc::channel();
    let _subscription = dispatcher.subscribe(move |event: &MailboxEvent| {
        if matches!(event, MailboxEvent::Extended { .. }) {
            let _ = extended.send(());
        }
    });
    for _ in 0..steps {
        rest(mailbox);
        mailbox.advance(third);
        extensions.recv().unwrap();
    }
    rest(mailbox);
}

#[test]
fn a_lease_is_kept_alive_while_its_handler_runs() {
    let dispatcher = Dispatcher::new();
    let mailbox: FakeMailbox<u32, u32> = FakeMailbox::with(|options| options.dispatcher(&dispatcher));
    mailbox.send(&1).blocking().unwrap();
    let (gate, starts, release) = gate();
    let worker = Worker::with_handler(&mailbox, gate).visibility_timeout(seconds(30)).max_iterations(1);
    let running = thread::spawn(move || worker.run().blocking().unwrap());
    let context = starts.recv().unwrap();
    // The handler runs ten times as long as the lease.
    keep_alive_for(&mailbox, &dispatcher, 30, seconds(10));
    assert!(mailbox.receive().blocking().unwrap().is_empty(), "the message is still leased");
    assert!(!context.cancellation().is_cancelled());
    release.cancel();
    assert_eq!(running.join().unwrap().succeeded, 1);
    assert_eq!(mailbox.approximate_count().blocking().unwrap(), 0);
}

#[test]
fn a_lease_is_renewed_up_to_its_cap_then_the_handler_is_cancelled() {
    let dispatcher = Dispatcher::new();
    let mailbox: FakeMailbox<u32, u32> = FakeMailbox::with(|options| options.dispatcher(&dispatcher));
    mailbox.send(&1).blocking().unwrap();
    let (gate, starts, release) = gate();
    let worker =
        Worker::with_handler(&mailbox, gate).visibility_timeout(seconds(30)).max_lease(seconds(60)).max_iterations(1);
    let running = thread::spawn(move || worker.run().blocking().unwrap());
    let context = starts.recv().unwrap();
    keep_alive_for(&mailbox, &dispatcher, 5, seconds(10));
    mailbox.advance(seconds(10));
    postbox_core::wait_for(context.cancellation().cancelled());
    // After the cap the message is delivered to another consumer.
    assert_eq!(mailbox.receive().blocking().unwrap()[0].delivery_count, 2);
    release.cancel();
    assert_eq!(running.join().unwrap().unfinished, 1);
}

#[test]
fn a_lost_lease_cancels_the_handler() {
    let mailbox: FakeMailbox<u32, u32> = FakeMailbox::new();
    mailbox.send(&1).blocking().unwrap();
    let (gate, starts, release) = gate();
    let worker = Worker::with_handler(&mailbox, gate).visibility_timeout(seconds(30)).max_iterations(1);
    let running = thread::spawn(move || worker.run().blocking().unwrap());
    let context = starts.recv().unwrap();
    mailbox.purge().blocking().unwrap();
    rest(&mailbox);
    mailbox.advance(seconds(15));
    postbox_core::wait_for(context.cancellation().cancelled());
    release.cancel();
    assert_eq!(running.join().unwrap().unfinished, 1);
}

#[test]
fn a_message_is_kept_alive_by_hand_too() {
    let mailbox: FakeMailbox<u32> = FakeMailbox::new();
    mailbox.send(&1).blocking().unwrap();
    let message = mailbox.receive().visibility_timeout(seconds(10)).blocking().unwrap().remove(0);
    let alive = message.keep_alive(seconds(30), seconds(100));
    // The first extension is immediate.
    rest(&mailbox);
    mailbox.advance(seconds(9));
    assert!(!alive.lost().is_cancelled());
    mailbox.expire_handle(&message.receipt_handle);
    mailbox.advance(seconds(20));
    postbox_core::wait_for(alive.lost().cancelled());
}

#[test]
fn a_message_whose_lease_is_lost_in_the_buffer_is_not_handled() {
    let mailbox: FakeMailbox<u32, u32> = FakeMailbox::new();
    mailbox.send_batch(&[1, 2]).blocking().unwrap();
    let (gate, starts, release) = gate();
    let worker = Worker::with_handler(&mailbox, gate).prefetch(1).visibility_timeout(seconds(30)).max_iterations(1);
    let running = thread::spawn(move || worker.run().blocking().unwrap());
    let context = starts.recv().unwrap();
    mailbox.purge().blocking().unwrap();
    rest(&mailbox);
    mailbox.advance(seconds(15));
    postbox_core::wait_for(context.cancellation().cancelled());
    // One renewal reports both lost leases. The second message is still in the buffer.
    release.cancel();
    let report = running.join().unwrap();
    assert_eq!((report.unfinished, report.succeeded), (2, 0));
    assert!(starts.try_recv().is_err(), "the second was not handled");
}

#[test]
fn a_cap_shorter_than_a_round_is_kept_to_the_moment() {
    let mailbox: FakeMailbox<u32, u32> = FakeMailbox::new();
    mailbox.send(&1).blocking().unwrap();
    let (gate, starts, release) = gate();
    let worker =
        Worker::with_handler(&mailbox, gate).visibility_timeout(seconds(300)).max_lease(seconds(10)).max_iterations(1);
    let running = thread::spawn(move || worker.run().blocking().unwrap());
    let context = starts.recv().unwrap();
    for _ in 0..2 {
        rest(&mailbox);
        mailbox.advance(seconds(5));
    }
    postbox_core::wait_for(context.cancellation().cancelled());
    release.cancel();
    running.join().unwrap();
}
