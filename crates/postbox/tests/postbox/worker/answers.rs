//! Addresses of answers, and answers that cannot be sent.

use super::*;
use postbox::worker::MainLoopRequest;
use postbox::worker::MainLoopResult;

#[test]
fn an_answer_goes_to_the_channel_then_to_reply_to_then_to_responses() {
    let resolver = FakeMailboxResolver::new();
    let mailbox: FakeMailbox<u32, u32> = FakeMailbox::with(|options| options.resolver(resolver.clone()));
    let responses: CollectingMailbox<u32> = CollectingMailbox::new();
    let reply = mailbox.send_expecting_reply(&1).reply_to("elsewhere").blocking().unwrap();
    mailbox.send(&2).reply_to("elsewhere").blocking().unwrap();
    mailbox.send(&3).blocking().unwrap();
    let report = echo(&mailbox).responses(&responses).max_iterations(3).run().blocking().unwrap();
    assert_eq!(reply.wait().blocking().unwrap(), 1);
    assert_eq!(resolver.sent::<u32>("elsewhere"), [2]);
    assert_eq!(responses.sent(), [3]);
    assert_eq!((report.received, report.succeeded), (3, 3));
    assert_eq!(mailbox.approximate_count().blocking().unwrap(), 0);
}

#[test]
fn an_answer_without_an_address_is_acknowledged() {
    let mailbox: FakeMailbox<u32, u32> = FakeMailbox::new();
    mailbox.send(&1).blocking().unwrap();
    assert_eq!(echo(&mailbox).max_iterations(1).run().blocking().unwrap().succeeded, 1);
    assert_eq!(mailbox.approximate_count().blocking().unwrap(), 0);
}

#[test]
fn an_answer_that_cannot_be_sent_is_tried_again_with_the_backoff() {
    let resolver = FakeMailboxResolver::new().fail_on("nowhere");
    let mailbox: FakeMailbox<u32, u32> = FakeMailbox::with(|options| options.resolver(resolver));
    mailbox.send(&1).reply_to("nowhere").blocking().unwrap();
    for (round, delay) in [60, 120, 180].into_iter().enumerate() {
        let report = echo(&mailbox).max_iterations(1).run().blocking().unwrap();
        assert_eq!((report.retried, report.succeeded), (1, 0), "round {round}");
        mailbox.advance(seconds(delay) - Duration::from_millis(1));
        assert_eq!(mailbox.counts().blocking().unwrap().ready, 0);
        mailbox.advance(Duration::from_millis(1));
        assert_eq!(mailbox.counts().blocking().unwrap().ready, 1);
    }
}

/// A body or an answer whose serialization panics.
#[derive(Debug)]
struct Explosive(u32);

impl serde::Serialize for Explosive {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            13 => panic!("cannot write 13"),
            7 => Err(serde::ser::Error::custom("will not write 7")),
            number => serializer.serialize_u32(number),
        }
    }
}

impl<'de> serde::Deserialize<'de> for Explosive {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = <u32 as serde::Deserialize>::deserialize(deserializer)?;
        assert_ne!(number, 13, "cannot read 13");
        Ok(Explosive(number))
    }
}

#[test]
fn a_decoder_that_panics_is_a_decoder_that_fails() {
    let mailbox: FakeMailbox<Explosive> = FakeMailbox::with(|options| options.max_deliveries(2));
    mailbox.untyped().typed::<u32, (), Json>().send_batch(&[13, 1]).blocking().unwrap();
    let worker = || Worker::new(&mailbox, |_: Explosive, _| async move { Ok::<_, String>(()) });
    let report = worker().max_iterations(2).run().blocking().unwrap();
    assert_eq!((report.receive_errors, report.succeeded), (1, 1));
    mailbox.advance(seconds(300));
    worker().max_iterations(1).run().blocking().unwrap();
    assert_eq!(mailbox.dead_letters().list(1).blocking().unwrap()[0].reason, "the decoder panicked");
}

#[test]
fn an_answer_that_cannot_be_written_is_not_computed_for_ever() {
    let mailbox: FakeMailbox<u32, Explosive> = FakeMailbox::new();
    let runs = Arc::new(AtomicUsize::new(0));
    mailbox.send_expecting_reply(&7).blocking().unwrap();
    mailbox.send_expecting_reply(&13).blocking().unwrap();
    for _ in 0..3 {
        let runs = Arc::clone(&runs);
        let worker = Worker::new(&mailbox, move |number: u32, _| {
            runs.fetch_add(1, Ordering::SeqCst);
            async move { Ok::<_, String>(Explosive(number)) }
        });
        worker.max_attempts(2).max_iterations(2).wait_time(Duration::ZERO).run().blocking().unwrap();
        mailbox.advance(seconds(900));
    }
    // 7 fails permanently. 13 panics and is retried once.
    assert_eq!(runs.load(Ordering::SeqCst), 3);
    let reasons: Vec<_> =
        mailbox.dead_letters().list(9).blocking().unwrap().iter().map(|letter| letter.reason.to_string()).collect();
    assert!(reasons[0].contains("will not write 7") && reasons[1].contains("cannot write 13"), "{reasons:?}");
}

#[test]
fn an_output_that_cannot_be_written_is_an_error_result() {
    let requests: FakeMailbox<MainLoopRequest<u32>, MainLoopResult<Explosive>> = FakeMailbox::new();
    let reply = requests.send_expecting_reply(&MainLoopRequest::new(7)).blocking().unwrap();
    let main_loop = MainLoop::new(&requests, |number: u32, _| async move { Ok::<_, String>(Explosive(number)) });
    assert_eq!(main_loop.max_iterations(1).run().blocking().unwrap().succeeded, 1);
    assert!(reply.wait().blocking().unwrap().error.unwrap().contains("will not write 7"));
}
