//! Backends that break their contract: callers get errors, and never a panic.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_core::Stream as _;
use postbox::backend::{
    self, Backend, ByteMailbox, Delivery, Headers, MailboxSettings, Outgoing, Receipt, Receive, Redrive, Visibility,
};
use postbox::clock::Moment;
use postbox::operation::Answer;
use postbox::reply::{ReplyEntry, ReplyState, ReplyStore, ReplyValue, Resolved};
use postbox::*;

const SECOND: Duration = Duration::from_secs(1);

/// What a backend does instead of its work.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// It works.
    Nothing,
    /// It returns nothing for a batch, no message, and a reply that is settled for ever.
    TooFew,
    /// It returns more than was asked for.
    TooMany,
    /// It panics in the call.
    Panic,
    /// Its future panics.
    PanicLater,
    /// It returns an answer whose value is gone.
    Spent,
    /// Everything is as large, as late or as early as its type allows.
    Extreme,
}

use Fault::*;

const FAULTS: [Fault; 7] = [Nothing, TooFew, TooMany, Panic, PanicLater, Spent, Extreme];

impl Fault {
    /// Whether no verb has an answer.
    fn is_without_answers(self) -> bool {
        matches!(self, Panic | PanicLater | Spent)
    }

    /// Whether the results of a batch are not those of its entries.
    fn is_without_results(self) -> bool {
        self.is_without_answers() || matches!(self, TooFew | TooMany)
    }
}

#[derive(Clone, Debug)]
struct Bad(Arc<Mutex<Fault>>);

impl Bad {
    fn new(fault: Fault) -> Self {
        Bad(Arc::new(Mutex::new(fault)))
    }

    fn fault(&self) -> Fault {
        *self.0.lock().unwrap()
    }

    fn set(&self, fault: Fault) {
        *self.0.lock().unwrap() = fault;
    }

    /// `good` unless the fault is that there is no answer.
    fn answer<T: Send + 'static>(&self, good: T) -> Answer<T> {
        match self.fault() {
            Panic => panic!("on purpose"),
            PanicLater => Answer::from_future(async { panic!("on purpose") }),
            Spent => {
                let mut spent = Answer::ready(good);
                drop(wait_for(&mut spent));
                spent
            }
            _ => Answer::ready(good),
        }
    }

    fn batch<T: Send + 'static>(&self, entries: usize, one: fn() -> T) -> Answer<Vec<Result<T, Error>>> {
        let many = match self.fault() {
            TooFew => 0,
            TooMany => entries + 1,
            _ => entries,
        };
        self.answer((0..many).map(|_| Ok(one())).collect())
    }

    fn found(&self, max: usize) -> Vec<Delivery> {
        let many = match self.fault() {
            TooFew => 0,
            TooMany => max + 1,
            _ => max.min(1),
        };
        let time = Moment::from_nanos(self.number());
        let delivery = || {
            let mut delivery = Delivery::new("id".into(), "".into(), Bytes::from("7"), time, Moment::from_nanos(0));
            delivery.delivery_count = self.number().try_into().unwrap_or(u32::MAX);
            let mut headers = Headers::default();
            headers.reply = Some("reply".into());
            delivery.headers = Some(Arc::new(headers));
            delivery
        };
        (0..many).map(|_| delivery()).collect()
    }

    fn number(&self) -> u64 {
        if self.fault() == Extreme { u64::MAX } else { 0 }
    }
}

impl Backend for Bad {
    fn kind(&self) -> &'static str {
        "bad"
    }

    fn limits(&self) -> Limits {
        let mut limits = Limits::generous();
        if self.fault() == Extreme {
            (limits.max_batch, limits.max_visibility, limits.max_wait) = (0, Duration::MAX, Duration::MAX);
        }
        limits
    }

    fn mailbox(&self, name: &MailboxName, _: &MailboxSettings) -> Result<Arc<dyn ByteMailbox>, Error> {
        assert_ne!(name.as_str(), "panic", "on purpose");
        Ok(Arc::new(self.clone()))
    }

    fn replies(&self) -> Option<Arc<dyn ReplyStore>> {
        Some(Arc::new(self.clone()))
    }

    fn list(&self) -> Answer<Result<Vec<MailboxName>, Error>> {
        self.answer(Ok(Vec::new()))
    }
}

impl ByteMailbox for Bad {
    fn send(&self, messages: Vec<Outgoing>) -> Answer<Vec<Result<MessageId, Error>>> {
        self.batch(messages.len(), MessageId::new)
    }

    fn receive(&self, request: Receive) -> Answer<Result<Vec<Delivery>, Error>> {
        self.answer(Ok(self.found(request.max)))
    }

    fn acknowledge(&self, receipts: Vec<Receipt>) -> Answer<Vec<Result<(), Error>>> {
        self.batch(receipts.len(), || ())
    }

    fn set_visibility(&self, changes: Vec<(Receipt, Visibility)>) -> Answer<Vec<Result<(), Error>>> {
        self.batch(changes.len(), || ())
    }

    fn dead_letter(&self, letters: Vec<(Receipt, String)>) -> Answer<Vec<Result<(), Error>>> {
        self.batch(letters.len(), || ())
    }

    fn purge(&self) -> Answer<Result<u64, Error>> {
        self.answer(Ok(self.number()))
    }

    fn identity(&self) -> Answer<Result<String, Error>> {
        self.answer(Ok(String::new()))
    }

    fn counts(&self) -> Answer<Result<Counts, Error>> {
        let number = self.number();
        self.answer(Ok(Counts::new(number, number, number, number)))
    }

    fn create(&self) -> Answer<Result<(), Error>> {
        self.answer(Ok(()))
    }

    fn delete(&self) -> Answer<Result<(), Error>> {
        self.answer(Ok(()))
    }

    fn cancel(&self, _: MessageId) -> Answer<Result<bool, Error>> {
        self.answer(Ok(true))
    }

    fn peek(&self, max: usize) -> Answer<Result<Vec<Delivery>, Error>> {
        self.answer(Ok(self.found(max)))
    }

    fn dead_letters(&self, max: usize) -> Answer<Result<Vec<backend::DeadLetter>, Error>> {
        let letter = |delivery| backend::DeadLetter::new(delivery, Moment::from_nanos(self.number()), "why".into());
        self.answer(Ok(self.found(max).into_iter().map(letter).collect()))
    }

    fn redrive(&self, _: Redrive) -> Answer<Result<u64, Error>> {
        self.answer(Ok(self.number()))
    }

    fn purge_dead_letters(&self) -> Answer<Result<u64, Error>> {
        self.answer(Ok(self.number()))
    }
}

impl ReplyStore for Bad {
    fn create(&self, _: ReplyId, _: Duration) -> Answer<Result<bool, Error>> {
        self.answer(Ok(true))
    }

    fn resolve(&self, _: ReplyId, _: ReplyValue) -> Answer<Result<Resolved, Error>> {
        self.answer(Ok(Resolved::Stored))
    }

    fn cancel(&self, _: ReplyId) -> Answer<Result<bool, Error>> {
        self.answer(Ok(true))
    }

    fn get(&self, _: ReplyId) -> Answer<Result<Option<ReplyEntry>, Error>> {
        self.answer(Ok(None))
    }

    fn consume(&self, id: ReplyId) -> Answer<Result<Option<ReplyEntry>, Error>> {
        let mut entry = ReplyEntry::new(id, SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH);
        if self.fault() != TooFew {
            // Without its value.
            entry.state = ReplyState::Resolved;
        }
        self.answer(Ok(Some(entry)))
    }

    fn delete(&self, _: ReplyId) -> Answer<Result<bool, Error>> {
        self.answer(Ok(true))
    }

    fn scan_expired(&self, _: usize) -> Answer<Result<Vec<ReplyId>, Error>> {
        self.answer(Ok(Vec::new()))
    }

    fn cleanup_expired(&self, _: usize) -> Answer<Result<u64, Error>> {
        self.answer(Ok(0))
    }

    fn settled(&self, _: ReplyId, _: Duration) -> Answer<Result<bool, Error>> {
        self.answer(Ok(true))
    }
}

/// An error that is no fault of the caller, cannot pass, and names the backend or its reply store.
fn is_fault(error: &Error) -> bool {
    let text = error.to_string();
    matches!(error, Error::Connection { transient: false, .. })
        && (text.contains("bad") || text.contains("backend") || text.contains("reply store"))
}

/// Fails with a fault, or not at all.
fn check<T: fmt::Debug>(outcome: &Result<T, Error>, has_fault: bool, what: &str, fault: Fault) {
    match outcome {
        Err(error) => assert!(has_fault && is_fault(error), "{what}, {fault:?}: {error:?}"),
        Ok(done) => assert!(!has_fault, "{what}, {fault:?}: {done:?}"),
    }
}

fn open(fault: Fault) -> (Bad, Mailbox<u32, u32>) {
    let bad = Bad::new(fault);
    (bad.clone(), Connection::new(bad).mailbox("jobs").unwrap())
}

#[test]
fn what_a_bad_backend_returns_is_an_error() {
    for fault in FAULTS {
        let (_, jobs) = open(fault);
        let (no_answer, no_results) = (fault.is_without_answers(), fault.is_without_results());
        check(&jobs.send(&1).blocking(), no_results, "send", fault);
        check(&wait_for(async { jobs.send(&1).await }), no_results, "send, awaited", fault);
        match jobs.send_batch(&[1, 2, 3]).blocking() {
            Ok(results) => {
                assert_eq!(results.len(), 3, "{fault:?}");
                results.iter().for_each(|result| check(result, no_results, "send_batch", fault));
            }
            // Three are more than its limit.
            Err(error) => assert!(fault == Extreme && matches!(error, Error::InvalidParameter { .. }), "{error:?}"),
        }
        let no_messages = no_answer || fault == TooMany;
        check(&jobs.receive().blocking(), no_messages, "receive", fault);
        check(&jobs.peek(1).blocking(), no_messages, "peek", fault);
        let letters = jobs.dead_letters();
        check(&letters.list(1).blocking(), no_messages, "list of dead letters", fault);
        check(&letters.count().blocking(), no_answer, "count", fault);
        check(&letters.redrive(1).blocking(), no_answer, "redrive", fault);
        check(&letters.redrive_one(&"id".into()).blocking(), no_answer, "redrive_one", fault);
        check(&letters.purge().blocking(), no_answer, "purge of dead letters", fault);
        check(&jobs.purge().blocking(), no_answer, "purge", fault);
        check(&jobs.counts().blocking(), no_answer, "counts", fault);
        check(&jobs.approximate_count().blocking(), no_answer, "approximate_count", fault);
        check(&jobs.create().blocking(), no_answer, "create", fault);
        check(&jobs.delete().blocking(), no_answer, "delete", fault);
        check(&jobs.cancel(&"id".into()).blocking(), no_answer, "cancel", fault);
        check(&jobs.is_same_as(&jobs).blocking(), no_answer, "is_same_as", fault);
        check(&jobs.connection().list().blocking(), no_answer, "list", fault);
        assert_eq!(jobs.untyped().is_healthy().blocking(), !no_answer, "{fault:?}");
    }
}

#[test]
fn a_mailbox_that_cannot_be_made_is_an_error() {
    let opened = Connection::new(Bad::new(Nothing)).mailbox::<u32, (), Json>("panic");
    check(&opened, true, "mailbox", Panic);
}

#[test]
fn settling_at_a_bad_backend_is_an_error() {
    for fault in FAULTS {
        let (bad, jobs) = open(Nothing);
        let message = jobs.receive().blocking().unwrap().remove(0);
        bad.set(fault);
        let is_bad = fault.is_without_results();
        check(&message.nack().blocking(), is_bad, "nack", fault);
        check(&message.extend_visibility(SECOND).blocking(), is_bad, "extend_visibility", fault);
        check(&message.release().blocking(), is_bad, "release", fault);
        check(&message.dead_letter("why").blocking(), is_bad, "dead_letter", fault);
        check(&message.reply(&1).blocking(), is_bad, "reply", fault);
        // The message expects a reply, so it is not acknowledged.
        assert!(matches!(message.acknowledge().blocking(), Err(Error::ReplyExpected { .. })), "{fault:?}");
        let keep = message.keep_alive(SECOND, SECOND);
        drop(keep);
    }
}

#[test]
fn acknowledging_at_a_bad_backend_is_an_error() {
    for fault in FAULTS {
        let (bad, jobs) = open(Nothing);
        let plain: Mailbox<u32> = Connection::new(MemoryBackend::new()).mailbox("plain").unwrap();
        plain.send(&1).blocking().unwrap();
        let message = plain.receive().blocking().unwrap().remove(0);
        bad.set(fault);
        let jobs: Mailbox<u32> = jobs.untyped().typed();
        let results = jobs.acknowledge_batch([&message]).blocking().unwrap();
        assert_eq!(results.len(), 1, "{fault:?}");
        check(&results[0], fault.is_without_results(), "acknowledge_batch", fault);
    }
}

#[test]
fn a_bad_reply_store_is_an_error() {
    for fault in FAULTS {
        let connection = Connection::new(MemoryBackend::new()).replies(Arc::new(Bad::new(fault)));
        let jobs: Mailbox<u32, u32> = connection.mailbox("jobs").unwrap();
        let no_answer = fault.is_without_answers();
        check(&jobs.send_expecting_reply(&1).blocking(), no_answer, "send_expecting_reply", fault);
        let reply = jobs.reply("id");
        check(&reply.cancel().blocking(), no_answer, "cancel", fault);
        check(&reply.entry().blocking(), no_answer, "entry", fault);
        check(&reply.is_ready().blocking(), no_answer, "is_ready", fault);
        let wait = || reply.wait().timeout(Duration::from_millis(1)).blocking();
        if fault == TooFew {
            assert_eq!(reply.poll().blocking().unwrap(), None);
            assert!(matches!(wait(), Err(Error::ReplyTimeout { .. })));
        } else {
            // The entry is resolved and has no value.
            check(&reply.poll().blocking(), true, "poll", fault);
            check(&wait(), true, "wait", fault);
        }
        if let Some(message) = jobs.receive().blocking().unwrap().first() {
            let channel = message.reply_channel().unwrap();
            check(&channel.is_open().blocking(), no_answer, "is_open", fault);
            check(&channel.send(&1).blocking(), no_answer, "send of an answer", fault);
        }
    }
}

#[test]
fn streams_and_workers_outlive_a_bad_backend() {
    for fault in FAULTS {
        let (_, jobs) = open(fault);
        let mut stream = jobs.stream().max_messages(2);
        let mut next = || {
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            std::pin::Pin::new(&mut stream).poll_next(&mut context)
        };
        match next() {
            Poll::Ready(Some(Err(Error::InvalidParameter { .. }))) => assert_eq!(fault, Extreme),
            Poll::Ready(Some(first)) => check(&first, fault.is_without_answers() || fault == TooMany, "stream", fault),
            // Its receives return nothing at once. The task yields in between.
            other => assert!(fault == TooFew && other.is_pending(), "{fault:?}: {other:?}"),
        }
        let worker = Worker::new(&jobs, async |number: u32, _| Ok::<u32, String>(number));
        worker.concurrency(2).max_iterations(2).run().blocking().unwrap();
    }
}
