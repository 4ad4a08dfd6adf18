//! Model tests: loom runs every interleaving of small programs.
//!
//! `RUSTFLAGS="--cfg postbox_loom" LOOM_MAX_PREEMPTIONS=2 cargo test --release -p postbox-core --test loom`
#![cfg(postbox_loom)]

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use loom::future::block_on;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use postbox_core::shared::mailbox::*;
use postbox_core::{Actor, BoundedMailbox, MessageLoop, PriorityMailbox, Schedule, Turn, UnboundedMailbox, WaitQueue};

fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn a_slot_freed_during_registration_is_not_missed() {
    loom::model(|| {
        let mailbox = BoundedMailbox::new(1);
        assert!(mailbox.enqueue(1));
        let producer = mailbox.producer();
        let sender = thread::spawn(move || block_on(producer.send(2)).map(|_| ()));
        assert_eq!(mailbox.dequeue(), Some(1));
        assert_eq!(sender.join().unwrap(), Ok(()));
        assert_eq!(mailbox.dequeue(), Some(2));
    });
}

#[test]
fn a_message_sent_during_registration_is_not_missed() {
    loom::model(|| {
        let (mailbox, producer) = ThreadSafe.build_default_mailbox();
        let sender = thread::spawn(move || {
            producer.try_send(1).unwrap();
            producer
        });
        assert_eq!(block_on(mailbox.recv()), Ok(1));
        drop(sender.join().unwrap());
    });
}

#[test]
fn a_control_message_sent_during_registration_is_not_missed() {
    loom::model(|| {
        let (mailbox, producer) = ThreadSafe.build_default_mailbox();
        let sender = thread::spawn(move || {
            producer.try_send_control(1).unwrap();
            producer
        });
        assert_eq!(block_on(mailbox.recv()), Ok(1));
        drop(sender.join().unwrap());
    });
}

#[test]
fn two_senders_share_room_for_one_message() {
    loom::model(|| {
        let mailbox = BoundedMailbox::new(1);
        let senders: Vec<_> = [1, 2]
            .map(|n| {
                let producer = mailbox.producer();
                thread::spawn(move || block_on(producer.send(n)).map(|_| ()).unwrap())
            })
            .into();
        let sum = block_on(mailbox.recv()).unwrap() + block_on(mailbox.recv()).unwrap();
        assert_eq!(sum, 3);
        senders.into_iter().for_each(|sender| sender.join().unwrap());
    });
}

#[test]
fn a_dropped_receiver_passes_its_wake_up_on() {
    loom::model(|| {
        let (mailbox, producer) = ThreadSafe.build_default_mailbox();
        let mut first = mailbox.recv();
        assert!(poll_once(&mut first).is_pending());
        let second = {
            let mailbox = mailbox.clone();
            thread::spawn(move || block_on(mailbox.recv()))
        };
        producer.try_send(1).unwrap();
        drop(first);
        assert_eq!(second.join().unwrap(), Ok(1));
    });
}

/// A priority mailbox, where a push does not take the lock under which receivers wait.
#[test]
fn a_dropped_receiver_of_sorted_messages_passes_its_wake_up_on() {
    loom::model(|| {
        let mailbox = PriorityMailbox::new(|_: &i32| 0);
        let producer = mailbox.producer();
        let mut first = mailbox.recv();
        assert!(poll_once(&mut first).is_pending());
        let second = {
            let mailbox = mailbox.clone();
            thread::spawn(move || block_on(mailbox.recv()))
        };
        let sender = thread::spawn(move || {
            producer.try_send(1).unwrap();
            producer
        });
        drop(first);
        assert_eq!(second.join().unwrap(), Ok(1));
        drop(sender.join().unwrap());
    });
}

#[test]
fn a_dropped_sender_passes_its_wake_up_on() {
    loom::model(|| {
        let mailbox = BoundedMailbox::new(1);
        assert!(mailbox.enqueue(1));
        let producer = mailbox.producer();
        let first_producer = producer.clone();
        let mut first = first_producer.send(2);
        assert!(poll_once(&mut first).is_pending());
        let second = thread::spawn(move || block_on(producer.send(3)).map(|_| ()));
        assert_eq!(mailbox.dequeue(), Some(1));
        drop(first);
        assert_eq!(second.join().unwrap(), Ok(()));
        assert_eq!(mailbox.dequeue(), Some(3));
    });
}

#[test]
fn closing_loses_no_message() {
    loom::model(|| {
        let mailbox = BoundedMailbox::new(1);
        assert!(mailbox.enqueue(1));
        let producer = mailbox.producer();
        let sender = thread::spawn(move || block_on(producer.send(2)).map(|_| ()));
        let mut left = Vec::from_iter(mailbox.dequeue());
        left.extend(mailbox.close_and_drain());
        match sender.join().unwrap() {
            Ok(()) => assert_eq!(left, [1, 2]),
            Err(QueueError::Closed(2)) => assert_eq!(left, [1]),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn disconnected_comes_after_every_accepted_message() {
    loom::model(|| {
        let mailbox = UnboundedMailbox::new();
        let sender = {
            let mailbox = mailbox.clone();
            thread::spawn(move || {
                let accepted = mailbox.enqueue(1);
                mailbox.close();
                accepted
            })
        };
        let first = block_on(mailbox.recv());
        assert!(sender.join().unwrap());
        assert_eq!(first, Ok(1));
        assert_eq!(block_on(mailbox.recv()), Err(QueueError::Disconnected));
    });
}

#[test]
fn dropping_the_last_producer_wakes_the_receiver() {
    loom::model(|| {
        let (mailbox, producer) = ThreadSafe.build_default_mailbox();
        let sender = thread::spawn(move || {
            producer.try_send(1).unwrap();
            drop(producer);
        });
        assert_eq!(block_on(mailbox.recv()), Ok(1));
        assert_eq!(block_on(mailbox.recv()), Err(QueueError::Disconnected));
        sender.join().unwrap();
    });
}

#[test]
fn a_new_producer_keeps_the_mailbox_connected_while_the_last_one_is_dropped() {
    loom::model(|| {
        let (mailbox, producer) = ThreadSafe.build_default_mailbox::<u8>();
        let leaver = thread::spawn(move || drop(producer));
        let comer = mailbox.producer();
        leaver.join().unwrap();
        assert_eq!(mailbox.try_dequeue(), Ok(None));
        drop(comer);
        assert_eq!(mailbox.try_dequeue(), Err(QueueError::Disconnected));
    });
}

#[test]
fn two_new_producers_both_reconnect_the_mailbox() {
    loom::model(|| {
        let (mailbox, producer) = ThreadSafe.build_default_mailbox::<u8>();
        drop(producer);
        let other = {
            let mailbox = mailbox.clone();
            thread::spawn(move || mailbox.producer())
        };
        let mine = mailbox.producer();
        assert_eq!(mailbox.try_dequeue(), Ok(None));
        drop((mine, other.join().unwrap()));
        assert_eq!(mailbox.try_dequeue(), Err(QueueError::Disconnected));
    });
}

/// Three messages make a consumer move the inbox into the store; a fourth arrives meanwhile.
#[test]
fn a_batch_is_shared_without_loss_or_duplicate() {
    loom::model(|| {
        let mailbox = BoundedMailbox::new(4);
        (1..=3).for_each(|n| assert!(mailbox.enqueue(n)));
        let other = {
            let mailbox = mailbox.clone();
            thread::spawn(move || [mailbox.dequeue(), mailbox.dequeue()])
        };
        assert!(mailbox.enqueue(4));
        let mine = [mailbox.dequeue()];
        let theirs = other.join().unwrap();
        assert!(theirs[0] < theirs[1], "in order: {theirs:?}");
        let mut all: Vec<i32> = mine.into_iter().chain(theirs).flatten().collect();
        assert_eq!(mailbox.size(), 4 - all.len());
        all.extend(std::iter::from_fn(|| mailbox.dequeue()));
        all.sort();
        assert_eq!(all, [1, 2, 3, 4]);
    });
}

#[test]
fn draining_and_popping_count_the_same() {
    loom::model(|| {
        let mailbox = BoundedMailbox::new(2);
        assert!(mailbox.enqueue(1));
        let drainer = {
            let mailbox = mailbox.clone();
            thread::spawn(move || {
                let mut batch = Vec::new();
                mailbox.drain_into(&mut batch, 2);
                batch
            })
        };
        let mut all = Vec::from_iter(mailbox.dequeue());
        assert!(mailbox.enqueue(2));
        all.extend(drainer.join().unwrap());
        assert_eq!(mailbox.size(), 2 - all.len());
        all.extend(std::iter::from_fn(|| mailbox.dequeue()));
        all.sort();
        assert_eq!(all, [1, 2]);
    });
}

#[test]
fn a_single_message_does_not_overtake_a_batch() {
    loom::model(|| {
        let mailbox = UnboundedMailbox::new();
        assert!(mailbox.enqueue(1) && mailbox.enqueue(2));
        let drainer = {
            let mailbox = mailbox.clone();
            thread::spawn(move || {
                let mut batch = Vec::new();
                mailbox.drain_into(&mut batch, 1);
                assert!(mailbox.enqueue(3));
                batch
            })
        };
        let mut first = Vec::from_iter(mailbox.dequeue());
        first.extend(drainer.join().unwrap());
        first.sort();
        assert_eq!(first, [1, 2]);
        assert_eq!((mailbox.size(), mailbox.dequeue()), (1, Some(3)));
    });
}

#[test]
fn the_bound_holds_while_both_ends_move() {
    loom::model(|| {
        let mailbox = BoundedMailbox::new(1);
        assert!(mailbox.enqueue(1));
        let sender = {
            let mailbox = mailbox.clone();
            thread::spawn(move || mailbox.enqueue(2))
        };
        let taken = mailbox.dequeue();
        assert_eq!(taken, Some(1));
        let accepted = sender.join().unwrap();
        assert_eq!(mailbox.size(), usize::from(accepted));
        assert!(mailbox.size() <= 1);
    });
}

#[test]
fn eviction_races_with_receiving() {
    loom::model(|| {
        // A priority mailbox, since its message is in the store at once.
        let options = MailboxOptions::with_capacity(1).with_overflow(OverflowPolicy::DropOldest);
        let mailbox = PriorityMailbox::with_options(|_: &i32| 0, options);
        assert!(mailbox.enqueue(1));
        let sender = {
            let mailbox = mailbox.clone();
            thread::spawn(move || mailbox.queue().try_offer(2))
        };
        let first = mailbox.dequeue();
        match sender.join().unwrap() {
            Ok(OfferOutcome::Evicted(1)) => assert_eq!(first, Some(2), "the mailbox was never empty"),
            Ok(OfferOutcome::Accepted) => assert_eq!((first, mailbox.dequeue()), (Some(1), Some(2))),
            other => panic!("{other:?}"),
        }
        assert_eq!(mailbox.dequeue(), None);
    });
}

#[test]
fn a_priority_mailbox_wakes_its_receiver() {
    loom::model(|| {
        let mailbox = PriorityMailbox::new(|n: &i64| *n);
        let sender = {
            let mailbox = mailbox.clone();
            thread::spawn(move || assert!(mailbox.enqueue(2) && mailbox.enqueue(1)))
        };
        let first = block_on(mailbox.recv()).unwrap();
        let second = block_on(mailbox.recv()).unwrap();
        assert_eq!(first + second, 3);
        sender.join().unwrap();
    });
}

#[test]
fn equal_messages_keep_their_order_directly_and_through_the_inbox() {
    loom::model(|| {
        let mailbox = PriorityMailbox::new(|_: &i32| 0);
        assert!(mailbox.enqueue(0));
        let sender = {
            let mailbox = mailbox.clone();
            thread::spawn(move || assert!(mailbox.enqueue(1) && mailbox.enqueue(2)))
        };
        let mut taken: Vec<i32> = mailbox.dequeue().into_iter().collect();
        sender.join().unwrap();
        taken.extend(std::iter::from_fn(|| mailbox.dequeue()));
        assert_eq!(taken, [0, 1, 2]);
        assert_eq!((mailbox.size(), mailbox.message_count()), (0, 3));
    });
}

#[test]
fn direct_pushes_and_draining_count_the_same() {
    loom::model(|| {
        let mailbox = PriorityMailbox::new(|n: &i32| i64::from(*n));
        assert!(mailbox.enqueue(1));
        let senders = [2, 3].map(|n| {
            let mailbox = mailbox.clone();
            thread::spawn(move || assert!(mailbox.enqueue(n)))
        });
        let mut taken = Vec::new();
        mailbox.drain_into(&mut taken, 1);
        assert_eq!(taken, [1]);
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        assert_eq!((mailbox.size(), mailbox.message_count()), (2, 3));
        taken.extend(std::iter::from_fn(|| mailbox.dequeue()));
        assert_eq!(taken, [1, 2, 3]);
    });
}

#[test]
fn closing_a_priority_mailbox_keeps_accepted_messages() {
    loom::model(|| {
        let mailbox = PriorityMailbox::new(|_: &i32| 0);
        let sender = {
            let mailbox = mailbox.clone();
            thread::spawn(move || mailbox.enqueue(1))
        };
        mailbox.close();
        let first = mailbox.try_dequeue();
        let accepted = sender.join().unwrap();
        match first {
            Ok(Some(1)) => assert!(accepted),
            Err(QueueError::Disconnected) => assert!(!accepted, "no message after `Disconnected`"),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn the_signal_of_a_priority_mailbox_announces_a_concurrent_message() {
    loom::model(|| {
        let mailbox = PriorityMailbox::new(|_: &i32| 0);
        let sender = {
            let mailbox = mailbox.clone();
            thread::spawn(move || assert!(mailbox.enqueue(1)))
        };
        let signal = mailbox.signal();
        if mailbox.dequeue().is_none() {
            block_on(signal.wait());
            assert_eq!(mailbox.dequeue(), Some(1));
        }
        sender.join().unwrap();
    });
}

#[test]
fn resuming_wakes_the_receiver() {
    loom::model(|| {
        let mailbox = UnboundedMailbox::new();
        assert!(mailbox.enqueue(1));
        mailbox.suspend();
        let resumer = {
            let mailbox = mailbox.clone();
            thread::spawn(move || assert!(mailbox.resume()))
        };
        assert_eq!(block_on(mailbox.recv()), Ok(1));
        resumer.join().unwrap();
    });
}

#[test]
fn a_ticket_is_either_notified_or_removed() {
    loom::model(|| {
        let queue = Arc::new(WaitQueue::<ThreadSafe>::new());
        let mut ticket = None;
        assert!(queue.register(&mut ticket, Waker::noop().clone()).is_none());
        let notifier = {
            let queue = queue.clone();
            thread::spawn(move || queue.notify_one().is_some())
        };
        let was_notified = queue.remove(&mut ticket).is_none();
        assert_eq!(notifier.join().unwrap(), was_notified);
        assert_eq!(queue.len(), 0);
    });
}

#[test]
fn a_notification_before_or_during_the_wait_is_not_lost() {
    loom::model(|| {
        let signal: Signal = Signal::new();
        let notifier = {
            let signal = signal.clone();
            thread::spawn(move || signal.notify())
        };
        block_on(signal.wait());
        notifier.join().unwrap();
    });
}

/// Mailbox and schedule together: in every interleaving some turn handles the message.
#[test]
fn a_request_at_the_end_of_a_turn_is_not_lost() {
    loom::model(|| {
        let mailbox = UnboundedMailbox::new();
        let schedule = Arc::new(Schedule::new());
        let queued = Arc::new(AtomicUsize::new(1));
        assert!(schedule.request());
        let sender = {
            let (mailbox, schedule, queued) = (mailbox.clone(), schedule.clone(), queued.clone());
            thread::spawn(move || {
                assert!(mailbox.enqueue(1));
                if schedule.request() {
                    queued.fetch_add(1, Ordering::AcqRel);
                }
            })
        };
        let turn = |handled: &mut usize| {
            queued.fetch_sub(1, Ordering::AcqRel);
            schedule.begin();
            *handled += usize::from(mailbox.dequeue().is_some());
            if schedule.finish(false) {
                queued.fetch_add(1, Ordering::AcqRel);
            }
        };
        let mut handled = 0;
        turn(&mut handled);
        sender.join().unwrap();
        while queued.load(Ordering::Acquire) > 0 {
            turn(&mut handled);
        }
        assert_eq!(handled, 1, "idle with a message left behind");
    });
}

struct Count(usize);

impl Actor for Count {
    type Message = usize;
    type Error = ();

    fn receive(&mut self, message: usize) -> Result<(), ()> {
        self.0 += message;
        Ok(())
    }
}

#[test]
fn an_idle_loop_receives_the_next_message() {
    loom::model(|| {
        let mailbox = UnboundedMailbox::new();
        let actor = MessageLoop::new(Count(0), mailbox.clone());
        let sender = thread::spawn(move || {
            assert!(mailbox.enqueue(1));
            mailbox.close();
        });
        let (actor, _mailbox) = block_on(actor.run());
        assert_eq!(actor.0, 1);
        sender.join().unwrap();
    });
}

#[test]
fn an_idle_loop_is_stopped() {
    loom::model(|| {
        let mut actor = MessageLoop::new(Count(0), UnboundedMailbox::new());
        let handle = actor.handle();
        assert_eq!(actor.run_turn(), Turn::Idle);
        let stopper = thread::spawn(move || assert!(handle.stop()));
        block_on(actor.run());
        stopper.join().unwrap();
    });
}
