//! The scenarios of the shared mailbox specification (L8 to L19): every Then and And is an
//! assertion.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use postbox_core::shared::mailbox::messages::{
    PriorityChannel, PriorityEnvelope, PriorityMessage, SystemMessage, SystemMessageKind,
};
use postbox_core::shared::mailbox::*;

use crate::support::{Wakes, poll_once};

/// Scenario: Downstream module imports mailbox traits once. The glob brings every name in these
/// signatures into scope.
#[test]
fn one_glob_import_suffices() {
    fn use_all<F: MailboxFactory>(factory: &F) -> (F::Mailbox<u8>, F::Producer<u8>)
    where
        F::Concurrency: MailboxConcurrency + MetadataStorageMode,
        F::Signal: MailboxSignal,
        F::Queue<u8>: MailboxQueueBackend<u8>,
    {
        factory.build_default_mailbox()
    }
    fn bounds<M, C: MailboxConsumer<M> + Mailbox<M> + Clone, P: MailboxProducer<M> + Clone>(_: &C, _: &P) {}
    let (mailbox, producer) = use_all(&ThreadSafe);
    bounds(&mailbox, &producer);
    let (mailbox, producer) = use_all(&SingleThread);
    bounds(&mailbox, &producer);
    let _ = (DEFAULT_SYSTEM_RESERVATION, QueueSize::limitless(), OverflowPolicy::Block);
}

/// Scenario: Scheduler performs non-blocking dequeue.
#[test]
fn scheduler_performs_non_blocking_dequeue() {
    let (mailbox, producer) = ThreadSafe.build_default_mailbox();
    producer.try_send(7).unwrap();
    assert_eq!(mailbox.try_dequeue(), Ok(Some(7)));
    assert_eq!(mailbox.try_dequeue(), Ok(None));
    assert_eq!(mailbox.try_dequeue_mailbox(), Ok(None));
    drop(producer);
    assert_eq!(mailbox.try_dequeue(), Err(QueueError::Disconnected));
    assert_eq!(mailbox.try_dequeue_mailbox(), Err(MailboxError::Queue(QueueError::Disconnected)));
}

#[test]
fn disconnected_follows_the_last_message_until_a_new_producer() {
    let (mailbox, producer) = ThreadSafe.build_default_mailbox();
    let second = producer.clone();
    producer.try_send(1).unwrap();
    drop(producer);
    assert_eq!(mailbox.try_dequeue(), Ok(Some(1)));
    assert_eq!(mailbox.try_dequeue(), Ok(None), "one producer is left");
    drop(second);
    assert_eq!(mailbox.try_dequeue(), Err(QueueError::Disconnected));
    let third = mailbox.producer();
    assert_eq!(mailbox.try_dequeue(), Ok(None));
    third.try_send(2).unwrap();
    assert_eq!(mailbox.try_dequeue(), Ok(Some(2)));
    mailbox.close();
    assert_eq!(mailbox.try_dequeue(), Err(QueueError::Disconnected));
}

fn respects_custom_capacity<F: MailboxFactory>(factory: &F) {
    let (mailbox, producer) = factory.build_mailbox(MailboxOptions::with_capacity(128));
    for n in 0..128 {
        assert_eq!(producer.try_send(n), Ok(()));
    }
    assert_eq!(producer.try_send(128), Err(QueueError::Full(128)));
    assert_eq!((mailbox.size(), mailbox.capacity()), (128, Some(128)));
    assert_eq!(mailbox.try_dequeue(), Ok(Some(0)), "the producer sends to this mailbox");
    assert_eq!(producer.try_send(128), Ok(()));
    let (unlimited, _producer) = factory.build_default_mailbox::<u8>();
    assert_eq!(unlimited.capacity(), None, "the default options");
}

/// Scenario: Factory respects custom capacity.
#[test]
fn factory_respects_custom_capacity() {
    respects_custom_capacity(&ThreadSafe);
    respects_custom_capacity(&SingleThread);
}

/// Scenario: Control message keeps metadata intact.
#[test]
fn control_message_keeps_metadata_intact() {
    let message = SystemMessage::new(SystemMessageKind::Custom(1)).with_priority(42);
    let envelope = PriorityEnvelope::from_system(message);
    assert_eq!(envelope.channel(), PriorityChannel::Control);
    assert_eq!(envelope.system_message().unwrap().priority(), 42);
    assert_eq!((envelope.priority(), envelope.get_priority(), envelope.is_control()), (42, Some(42), true));
    let mapped = envelope.map(|system| system.kind());
    assert_eq!(mapped.system_message().unwrap().kind(), SystemMessageKind::Custom(1), "kept besides the new message");
}

#[test]
fn envelope_constructors_set_their_fields() {
    let regular = PriorityEnvelope::new("m", 5);
    assert_eq!((regular.priority(), regular.channel(), regular.is_control()), (5, PriorityChannel::Regular, false));
    assert_eq!(regular.system_message(), None);
    assert_eq!(PriorityEnvelope::control("m", -1).channel(), PriorityChannel::Control);
    assert_eq!(PriorityEnvelope::with_channel("m", 1, PriorityChannel::Control).priority(), 1);
    assert_eq!(PriorityEnvelope::with_default_priority("m").priority(), PriorityEnvelope::<&str>::DEFAULT_PRIORITY);
    let changed = PriorityEnvelope::control("four", 3).map(str::len).map_priority(|priority| priority * 2);
    assert_eq!(changed.message(), &4);
    assert_eq!(changed.clone().into_parts(), (4, 6));
    assert_eq!(changed.into_parts_with_channel(), (4, 6, PriorityChannel::Control));
}

#[test]
fn envelopes_are_send_and_sync_as_their_message() {
    fn send_and_sync<T: Send + Sync>() {}
    send_and_sync::<PriorityEnvelope<u8>>();
    send_and_sync::<PriorityEnvelope<SystemMessage>>();
    send_and_sync::<QueueMailbox<std::cell::Cell<u8>>>();
    send_and_sync::<QueueMailboxProducer<std::cell::Cell<u8>>>();
}

/// Scenario: Default reservation applied.
#[test]
fn default_reservation_applied() {
    let options = MailboxOptions::default();
    assert_eq!(options.priority_capacity_limit(), Some(4));
    assert_eq!(options.capacity_limit(), None);
    assert_eq!(DEFAULT_SYSTEM_RESERVATION, 4);
}

#[test]
fn option_constructors_set_their_fields() {
    let of = |options: MailboxOptions| (options.capacity_limit(), options.priority_capacity_limit());
    assert_eq!(of(MailboxOptions::with_capacity(9)), (Some(9), Some(4)));
    assert_eq!(of(MailboxOptions::with_capacities(QueueSize::limited(2), QueueSize::limitless())), (Some(2), None));
    assert_eq!(of(MailboxOptions::with_capacity(9).with_priority_capacity(QueueSize::limited(1))), (Some(9), Some(1)));
    assert_eq!(of(MailboxOptions::unbounded()), (None, None));
}

/// Scenario: Producer reports backpressure via mailbox error.
#[test]
fn producer_reports_backpressure_via_mailbox_error() {
    let (_mailbox, producer) = ThreadSafe.build_mailbox(MailboxOptions::with_capacity(1));
    producer.try_send_mailbox("first").unwrap();
    assert_eq!(producer.try_send_mailbox("second"), Err(MailboxError::Queue(QueueError::Full("second"))));
}

#[test]
fn the_default_hooks_of_a_producer_do_nothing() {
    #[derive(Clone)]
    struct Void;
    impl MailboxProducer<u8> for Void {
        fn try_send(&self, message: u8) -> Result<(), QueueError<u8>> {
            Err(QueueError::Closed(message))
        }
    }
    Void.set_metrics_sink(None);
    Void.set_scheduler_hook(None);
    assert_eq!(Void.try_send_mailbox(3), Err(MailboxError::Queue(QueueError::Closed(3))));
}

/// Scenario: Receiver waits until notification.
#[test]
fn receiver_waits_until_notification() {
    let signal: Signal = Signal::new();
    let wakes = Wakes::new();
    let mut wait = signal.wait();
    assert!(wakes.poll(&mut wait).is_pending());
    std::thread::scope(|scope| {
        scope.spawn(|| signal.clone().notify());
    });
    assert_eq!(wakes.count(), 1);
    assert!(wakes.poll(&mut wait).is_ready());
}

/// Scenario: OfferFuture suspends until capacity available.
#[test]
fn offer_future_suspends_until_capacity_available() {
    let (mailbox, _producer) = ThreadSafe.build_mailbox(MailboxOptions::with_capacity(2));
    let queue = mailbox.queue();
    assert_eq!(queue.try_offer(1), Ok(OfferOutcome::Accepted));
    assert_eq!(queue.try_offer(2), Ok(OfferOutcome::Accepted));
    let mut third = queue.offer_blocking(3);
    assert!(poll_once(&mut third).is_pending());
    assert_eq!(queue.waiting_senders(), 1, "registered by the first poll");
    assert_eq!(queue.try_poll(), Ok(Some(1)));
    assert_eq!(poll_once(&mut third), Poll::Ready(Ok(OfferOutcome::Accepted)));
    assert_eq!((queue.try_poll(), queue.try_poll()), (Ok(Some(2)), Ok(Some(3))));
}

#[test]
fn poll_future_waits_for_a_message() {
    let (mailbox, producer) = ThreadSafe.build_default_mailbox();
    let wakes = Wakes::new();
    let mut poll = mailbox.queue().poll_blocking();
    assert!(wakes.poll(&mut poll).is_pending());
    assert_eq!(mailbox.queue().waiting_receivers(), 1);
    producer.try_send("it").unwrap();
    assert_eq!(wakes.count(), 1);
    assert_eq!(wakes.poll(&mut poll), Poll::Ready(Ok("it")));
}

/// Scenario: Mailbox with Block policy resumes producer after dequeue.
#[test]
fn mailbox_with_block_policy_resumes_producer_after_dequeue() {
    let (mailbox, producer) = ThreadSafe.build_mailbox(MailboxOptions::with_capacity(2));
    producer.try_send(1).unwrap();
    producer.try_send(2).unwrap();
    let wakes = Wakes::new();
    let mut third = producer.send(3);
    assert!(wakes.poll(&mut third).is_pending());
    let mut context = Context::from_waker(Waker::noop());
    assert_eq!(pin!(mailbox.queue().poll_blocking()).poll(&mut context), Poll::Ready(Ok(1)));
    assert_eq!(wakes.count(), 1, "the producer's task is woken");
    assert_eq!(wakes.poll(&mut third), Poll::Ready(Ok(OfferOutcome::Accepted)));
}

#[test]
fn other_policies_are_ready_on_the_first_poll() {
    for (policy, expected) in [
        (OverflowPolicy::DropNewest, OfferOutcome::Rejected(2)),
        (OverflowPolicy::DropOldest, OfferOutcome::Evicted(1)),
        (OverflowPolicy::Grow, OfferOutcome::Grew(2)),
    ] {
        let (mailbox, producer) = ThreadSafe.build_mailbox(MailboxOptions::with_capacity(1).with_overflow(policy));
        producer.try_send(1).unwrap();
        assert_eq!(poll_once(&mut producer.send(2)), Poll::Ready(Ok(expected)), "{policy:?}");
        assert_eq!(mailbox.queue().waiting_senders(), 0, "{policy:?}");
    }
}

/// Scenario: Dropped Future releases wait registration.
#[test]
fn dropped_future_releases_wait_registration() {
    let (mailbox, producer) = ThreadSafe.build_mailbox(MailboxOptions::with_capacity(1));
    producer.try_send(1).unwrap();
    let wakes = Wakes::new();
    let mut offer = producer.send(2);
    assert!(wakes.poll(&mut offer).is_pending());
    drop(offer);
    assert_eq!(mailbox.queue().waiting_senders(), 0);
    assert_eq!(mailbox.dequeue(), Some(1));
    assert_eq!(wakes.count(), 0, "no unneeded notification");
    assert_eq!(mailbox.dequeue(), None, "a dropped send sends no message");
    assert_eq!(std::sync::Arc::strong_count(&wakes), 1, "no waker is kept");
}

/// L18: control messages have their own room and overtake regular ones.
#[test]
fn control_messages_have_reserved_room_and_overtake() {
    let (mailbox, producer) = ThreadSafe.build_mailbox(MailboxOptions::with_capacity(2));
    producer.try_send("r1").unwrap();
    producer.try_send("r2").unwrap();
    for control in ["c1", "c2", "c3", "c4"] {
        producer.try_send_control(control).unwrap();
    }
    assert_eq!(producer.try_send_control("c5"), Err(QueueError::Full("c5")));
    assert_eq!(producer.try_send("r3"), Err(QueueError::Full("r3")), "the reservation is for control only");
    assert_eq!((mailbox.size(), mailbox.control_size(), mailbox.message_count()), (6, 4, 6));
    assert_eq!(crate::support::drain(&mailbox), ["c1", "c2", "c3", "c4", "r1", "r2"]);
}

#[test]
fn envelopes_are_sent_on_their_own_channel() {
    let (mailbox, producer) = SingleThread.build_priority_mailbox(MailboxOptions::with_capacity(2));
    producer.try_send(PriorityEnvelope::new("late", 9)).unwrap();
    producer.try_send(PriorityEnvelope::new("early", -9)).unwrap();
    assert!(producer.try_send(PriorityEnvelope::new("full", -10)).is_err());
    producer.try_send(PriorityEnvelope::control("second", 1)).unwrap();
    producer.try_send(PriorityEnvelope::control("first", 0)).unwrap();
    let order: Vec<_> = crate::support::drain(&mailbox).into_iter().map(|envelope| envelope.into_parts().0).collect();
    assert_eq!(order, ["first", "second", "early", "late"]);
}

#[test]
fn a_stashed_control_message_returns_to_its_channel() {
    let (mailbox, producer) = ThreadSafe.build_priority_mailbox(MailboxOptions::with_capacity(1));
    producer.try_send(PriorityEnvelope::control("stop", 9)).unwrap();
    let stop = mailbox.dequeue().unwrap();
    mailbox.stash(stop);
    assert_eq!((mailbox.stashed(), mailbox.size(), mailbox.is_full()), (1, 0, false), "it takes up no regular room");
    producer.try_send(PriorityEnvelope::new("work", -9)).unwrap();
    mailbox.suspend();
    assert_eq!((mailbox.unstash(), mailbox.control_size(), mailbox.size()), (1, 1, 2));
    assert_eq!(mailbox.dequeue().map(|envelope| *envelope.message()), Some("stop"));
    assert_eq!(mailbox.message_count(), 2);
}

#[test]
fn without_a_reservation_a_control_message_is_rejected_at_once() {
    let options = MailboxOptions::default().with_priority_capacity(QueueSize::limited(0));
    let (_mailbox, producer) = ThreadSafe.build_priority_mailbox(options);
    assert!(matches!(
        poll_once(&mut producer.send(PriorityEnvelope::control(1, 0))),
        Poll::Ready(Err(QueueError::Full(_)))
    ));
    assert!(matches!(producer.send_blocking(PriorityEnvelope::control(1, 0)), Err(QueueError::Full(_))));
}

#[test]
fn an_offer_waits_for_room_on_the_control_channel() {
    let options = MailboxOptions::with_capacities(QueueSize::limited(1), QueueSize::limited(1));
    let (mailbox, producer) = ThreadSafe.build_priority_mailbox(options);
    producer.try_send(PriorityEnvelope::control(1, 0)).unwrap();
    producer.try_send(PriorityEnvelope::new(10, 0)).unwrap();
    let (control, regular) = (Wakes::new(), Wakes::new());
    let mut second_control = producer.send(PriorityEnvelope::control(2, 0));
    let mut second_regular = producer.send(PriorityEnvelope::new(20, 0));
    assert!(control.poll(&mut second_control).is_pending());
    assert!(regular.poll(&mut second_regular).is_pending());
    assert_eq!(mailbox.dequeue().map(|envelope| *envelope.message()), Some(1));
    assert_eq!((control.count(), regular.count()), (1, 0), "the room belongs to the control channel");
    assert!(control.poll(&mut second_control).is_ready());
    assert_eq!(mailbox.dequeue().map(|envelope| *envelope.message()), Some(2));
    assert_eq!(mailbox.dequeue().map(|envelope| *envelope.message()), Some(10));
    assert_eq!(regular.count(), 1);
    assert!(regular.poll(&mut second_regular).is_ready());
    let mut third = producer.send(PriorityEnvelope::control(3, 0));
    let mut fourth = producer.send(PriorityEnvelope::control(4, 0));
    assert!(poll_once(&mut third).is_ready());
    assert!(control.poll(&mut fourth).is_pending());
    mailbox.close();
    assert_eq!(control.count(), 2, "closing wakes senders of both channels");
    assert!(matches!(control.poll(&mut fourth), Poll::Ready(Err(QueueError::Closed(_)))));
}
