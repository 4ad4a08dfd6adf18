//! Workers: answers, failures, leases, shutdown.

mod answers;
mod ending;
mod leases;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use postbox::actor::{Actor, Directive, Failure};
use postbox::events::{Dispatcher, LoopEvent, MailboxEvent};
use postbox::testing::{CollectingMailbox, FakeMailbox, FakeMailboxResolver};
use postbox::trace::{TRACEPARENT, TraceContext};
use postbox::worker::{Cancellation, Handler, Resources};
use postbox::*;

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A handler that reports its start and ends on a signal.
struct Gate {
    started: mpsc::Sender<Context>,
    release: Cancellation,
}

impl Handler<u32> for Gate {
    type Output = u32;
    type Error = String;

    async fn handle(&self, number: u32, context: Context) -> Result<u32, String> {
        self.started.send(context).unwrap();
        self.release.cancelled().await;
        Ok(number)
    }
}

fn gate() -> (Gate, mpsc::Receiver<Context>, Cancellation) {
    let (started, starts) = mpsc::channel();
    let release = Cancellation::new();
    (Gate { started, release: release.clone() }, starts, release)
}

fn echo(mailbox: &Mailbox<u32, u32>) -> Worker<u32, u32> {
    Worker::new(mailbox, |number: u32, _| async move { Ok::<_, String>(number) })
}

/// Waits until a background task has set an alarm.
fn rest<T, R>(mailbox: &FakeMailbox<T, R>) {
    while mailbox.backend().clock().alarms() == 0 {
        thread::yield_now();
    }
}

#[test]
fn a_message_of_a_failing_handler_is_retried_until_its_attempts_are_used_up() {
    let mailbox: FakeMailbox<u32> = FakeMailbox::new();
    let id = mailbox.send(&7).blocking().unwrap();
    for attempt in 1..=3 {
        let worker = Worker::new(&mailbox, |_: u32, context: Context| async move {
            Err::<(), _>(format!("attempt {} failed", context.delivery_count()))
        });
        let report =
            worker.max_attempts(3).backoff(Backoff::fixed(seconds(5))).max_iterations(1).run().blocking().unwrap();
        assert_eq!((report.retried, report.dead_lettered), if attempt < 3 { (1, 0) } else { (0, 1) });
        mailbox.advance(seconds(5));
    }
    let letters = mailbox.dead_letters().list(10).blocking().unwrap();
    assert_eq!((&letters[0].id, &*letters[0].reason, letters[0].delivery_count), (&id, "attempt 3 failed", 3));
    assert_eq!(mailbox.approximate_count().blocking().unwrap(), 0);
}

#[test]
fn the_error_of_a_handler_decides_the_outcome_of_its_message() {
    let mailbox: FakeMailbox<u32> = FakeMailbox::new();
    mailbox.send_batch(&[0, 1]).blocking().unwrap();
    let worker = Worker::new(&mailbox, |number: u32, _| async move {
        Err::<(), _>(match number {
            0 => HandlerError::permanent("never"),
            _ => HandlerError::retry_after("busy", seconds(7)),
        })
    });
    let report = worker.concurrency(2).max_iterations(1).run().blocking().unwrap();
    assert_eq!((report.retried, report.dead_lettered), (1, 1));
    mailbox.advance(seconds(7));
    assert_eq!(mailbox.receive().blocking().unwrap()[0].body, 1);
}

#[test]
fn a_handler_gives_a_message_back_whatever_its_attempts() {
    let mailbox: FakeMailbox<u32> = FakeMailbox::new();
    mailbox.send_batch(&[0, 1]).blocking().unwrap();
    let worker = Worker::new(&mailbox, |number: u32, context: Context| async move {
        assert!(!context.expects_reply());
        Err::<(), _>(match number {
            0 => HandlerError::give_back("stopped"),
            _ => HandlerError::release("not begun"),
        })
    });
    let report = worker.concurrency(2).max_attempts(1).max_iterations(1).run().blocking().unwrap();
    assert_eq!((report.given_back, report.retried, report.dead_lettered), (2, 0, 0));
    let messages = mailbox.receive().max_messages(2).blocking().unwrap();
    let mut counts: Vec<(u32, u32)> = messages.iter().map(|message| (message.body, message.delivery_count)).collect();
    counts.sort_unstable();
    assert_eq!(counts, [(0, 2), (1, 1)], "what was not begun does not count");
}

#[test]
fn a_panic_is_caught_and_the_loop_goes_on() {
    let mailbox: FakeMailbox<u32, u32> = FakeMailbox::new();
    mailbox.send(&0).blocking().unwrap();
    let reply = mailbox.send_expecting_reply(&5).blocking().unwrap();
    let worker = Worker::new(&mailbox, |number: u32, _| async move {
        assert_ne!(number, 0, "no zero please");
        Ok::<_, String>(number)
    });
    let report = worker.max_iterations(2).max_attempts(1).run().blocking().unwrap();
    assert_eq!((report.succeeded, report.dead_lettered), (1, 1));
    assert_eq!(reply.wait().blocking().unwrap(), 5);
    assert!(mailbox.dead_letters().list(1).blocking().unwrap()[0].reason.contains("no zero please"));
}

#[test]
fn concurrency_and_prefetch_limit_running_and_fetched_messages() {
    let mailbox: FakeMailbox<u32, u32> = FakeMailbox::new();
    mailbox.send_batch(&(0..10).collect::<Vec<_>>()).blocking().unwrap();
    let (gate, starts, release) = gate();
    let worker = Worker::with_handler(&mailbox, gate).concurrency(3).prefetch(2);
    let handle = worker.handle();
    let running = thread::spawn(move || worker.run().blocking().unwrap());
    for _ in 0..3 {
        starts.recv().unwrap();
    }
    // Three handlers run and two messages are buffered. The other messages are available to other consumers.
    assert_eq!(mailbox.counts().blocking().unwrap().in_flight, 5);
    assert!(starts.try_recv().is_err());
    release.cancel();
    for _ in 3..10 {
        starts.recv().unwrap();
    }
    handle.shutdown();
    let report = running.join().unwrap();
    assert_eq!(report.succeeded + report.given_back, 10);
}

#[test]
fn failures_of_receive_do_not_end_the_loop() {
    let mailbox: FakeMailbox<u32, u32> = FakeMailbox::new();
    let dispatcher = Dispatcher::new();
    let (failed, failures) = mpsc::channel();
    let _subscription = dispatcher.subscribe(move |event: &LoopEvent| {
        if let LoopEvent::ReceiveFailed { error } = event {
            failed.send(error.clone()).unwrap();
        }
    });
    mailbox.set_connection_error(Error::connection("the cable is out"));
    let worker = echo(&mailbox).dispatcher(&dispatcher);
    let handle = worker.handle();
    let running = thread::spawn(move || worker.run().blocking().unwrap());
    for _ in 0..3 {
        assert_eq!(failures.recv().unwrap(), "the cable is out");
        // The loop waits longer after each failure.
        while mailbox.backend().clock().alarms() < 2 {
            thread::yield_now();
        }
        mailbox.advance(seconds(30));
    }
    mailbox.clear_connection_error();
    let reply = mailbox.send_expecting_reply(&9).reply_timeout(seconds(1_000_000)).blocking().unwrap();
    let mut answer = reply.poll().blocking().unwrap();
    while answer.is_none() {
        mailbox.advance(seconds(30));
        thread::yield_now();
        answer = reply.poll().blocking().unwrap();
    }
    assert_eq!(answer, Some(9));
    handle.shutdown();
    assert!(running.join().unwrap().receive_errors >= 3);
}

#[test]
fn a_paused_loop_starts_nothing_until_it_is_resumed() {
    let mailbox: FakeMailbox<u32, u32> = FakeMailbox::new();
    let worker = echo(&mailbox);
    let handle = worker.handle();
    handle.pause();
    let running = thread::spawn(move || worker.run().blocking().unwrap());
    let reply = mailbox.send_expecting_reply(&1).blocking().unwrap();
    handle.pause();
    assert_eq!(mailbox.counts().blocking().unwrap().ready, 1);
    handle.resume();
    assert_eq!(reply.wait().blocking().unwrap(), 1);
    handle.shutdown();
    running.join().unwrap();
}

#[test]
fn a_body_that_cannot_be_decoded_does_not_end_the_loop() {
    let mailbox: FakeMailbox<u32, u32> = FakeMailbox::new();
    let raw: Mailbox<String, (), Raw> = mailbox.untyped().typed();
    let other: Mailbox<String> = mailbox.untyped().typed();
    raw.send("not a number").blocking().unwrap();
    other.send("not a number either").blocking().unwrap();
    let reply = mailbox.send_expecting_reply(&1).blocking().unwrap();
    let report = echo(&mailbox).max_iterations(3).run().blocking().unwrap();
    assert_eq!((report.receive_errors, report.succeeded), (2, 1));
    assert_eq!(reply.wait().blocking().unwrap(), 1);
}

#[test]
fn an_option_that_is_not_allowed_is_refused_at_once() {
    let mailbox: FakeMailbox<u32, u32> = FakeMailbox::new();
    for worker in [
        echo(&mailbox).concurrency(0),
        echo(&mailbox).visibility_timeout(Duration::ZERO),
        echo(&mailbox).visibility_timeout(Duration::MAX),
        echo(&mailbox).wait_time(Duration::MAX),
    ] {
        assert!(matches!(worker.run().blocking(), Err(Error::InvalidParameter { .. })));
    }
}

#[test]
fn the_trace_is_passed_from_sender_to_handler_to_sent_messages() {
    let resolver = FakeMailboxResolver::new();
    let mailbox: FakeMailbox<u32, u32> = FakeMailbox::with(|options| options.resolver(resolver.clone()));
    let next: CollectingMailbox<u32> = CollectingMailbox::new();
    let trace = TraceContext::new();
    mailbox.send(&1).trace_context(trace).reply_to("answers").blocking().unwrap();
    let forward = next.clone();
    let worker = Worker::new(&mailbox, move |number: u32, context: Context| {
        let forward = forward.clone();
        async move {
            let current = TraceContext::current().expect("a handler is in the trace of its message");
            let sent: TraceContext = context.attributes()[TRACEPARENT].parse().unwrap();
            assert_eq!((current.trace_id(), sent.trace_id()), (trace.trace_id(), trace.trace_id()));
            forward.send(&number).await?;
            Ok::<_, Error>(number)
        }
    });
    assert_eq!(worker.max_iterations(1).run().blocking().unwrap().succeeded, 1);
    assert_eq!(TraceContext::current(), None);
    let answers = resolver.collecting::<u32, (), Json>("answers").unwrap().sent_messages();
    for sent in next.sent_messages().iter().chain(&answers) {
        let context: TraceContext = sent.headers.as_ref().unwrap().attributes[TRACEPARENT].parse().unwrap();
        assert_eq!(context.trace_id(), trace.trace_id());
        assert_ne!(context.span_id(), trace.span_id());
    }
    assert_eq!(answers.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_run_in_parallel_on_an_executor() {
    let mailbox: Mailbox<u32, u32> = Connection::new(MemoryBackend::new()).mailbox("parallel").unwrap();
    let meeting = Arc::new(std::sync::Barrier::new(2));
    let worker = Worker::new(&mailbox, move |number: u32, _| {
        let meeting = Arc::clone(&meeting);
        async move {
            // Each handler blocks a thread until the other one has started, so they finish only if they run in parallel.
            tokio::task::block_in_place(|| meeting.wait());
            Ok::<_, String>(number)
        }
    });
    let worker = worker.concurrency(2).spawn_on(|task| {
        tokio::spawn(task);
    });
    let handle = worker.handle();
    let running = tokio::spawn(async move { worker.run().await });
    let one = mailbox.send_expecting_reply(&1).await.unwrap();
    let two = mailbox.send_expecting_reply(&2).await.unwrap();
    assert_eq!((one.wait().await.unwrap(), two.wait().await.unwrap()), (1, 2));
    handle.shutdown();
    assert_eq!(running.await.unwrap().unwrap().succeeded, 2);
}

#[test]
fn a_loop_runs_on_smol_and_handlers_find_their_resources() {
    let mailbox: Mailbox<u32, u32> = Connection::new(MemoryBackend::new()).mailbox("smol").unwrap();
    let seen = Arc::new(AtomicUsize::new(0));
    let resolver: Arc<dyn MailboxResolver> = Arc::new(RegistryResolver::new().with("notifications", &mailbox));
    let resources = Resources::new().with(Arc::clone(&seen)).with(resolver);
    let worker = Worker::new(&mailbox, |number: u32, context: Context| async move {
        context.resource::<Arc<AtomicUsize>>().ok_or("no counter")?.fetch_add(1, Ordering::SeqCst);
        let resolver = context.resource::<Arc<dyn MailboxResolver>>().ok_or("no resolver")?;
        resolver.resolve("notifications").await.map_err(|_| "no mailbox")?;
        Ok::<_, &str>(number)
    });
    smol::block_on(async {
        let reply = mailbox.send_expecting_reply(&4).await.unwrap();
        worker.resources(resources).max_iterations(1).run().await.unwrap();
        assert_eq!(reply.wait().await.unwrap(), 4);
    });
    assert_eq!(seen.load(Ordering::SeqCst), 1);
}

#[derive(Default)]
struct Account {
    balance: i64,
    failures: Vec<String>,
    stopped: bool,
}

impl Actor for Account {
    type Message = i64;
    type Error = String;

    fn receive(&mut self, amount: i64) -> Result<(), String> {
        assert_ne!(amount, 13, "unlucky");
        if self.balance + amount < 0 {
            return Err("overdrawn".into());
        }
        self.balance += amount;
        Ok(())
    }

    fn handle_error(&mut self, failure: Failure<String>) -> Directive {
        self.failures.push(format!("{failure:?}"));
        if self.failures.len() == 2 { Directive::Stop } else { Directive::Continue }
    }

    fn stopped(&mut self) {
        self.stopped = true;
    }
}

#[test]
fn an_actor_is_driven_by_a_leased_mailbox_without_change() {
    let mailbox: FakeMailbox<i64> = FakeMailbox::new();
    mailbox.send_batch(&[5, -100, 2, 13, 50]).blocking().unwrap();
    let worker = ActorWorker::new(Account::default(), &mailbox);
    let (account, report) = worker.run().blocking().unwrap();
    assert_eq!((account.balance, account.stopped, report.succeeded, report.retried), (7, true, 2, 2));
    assert!(account.failures[0].contains("overdrawn") && account.failures[1].contains("unlucky"));
    // The failed message is visible again, and messages that were not handled are still in the mailbox.
    assert_eq!(mailbox.counts().blocking().unwrap(), Counts::new(1, 2, 0, 0));
}

#[test]
fn events_describe_each_step_of_the_loop() {
    let dispatcher = Dispatcher::new();
    let mailbox: FakeMailbox<u32> = FakeMailbox::with(|options| options.dispatcher(&dispatcher));
    let log = Arc::new(Mutex::new(Vec::new()));
    let (loops, mailboxes) = (Arc::clone(&log), Arc::clone(&log));
    let name = |debug: String| debug.split([' ', '{']).next().unwrap().to_string();
    let _loops = dispatcher.subscribe(move |event: &LoopEvent| loops.lock().unwrap().push(name(format!("{event:?}"))));
    let _mailboxes =
        dispatcher.subscribe(move |event: &MailboxEvent| mailboxes.lock().unwrap().push(name(format!("{event:?}"))));
    let _bad = dispatcher.subscribe(|_: &MailboxEvent| panic!("a failing subscriber does not affect others"));
    mailbox.send_batch(&[0, 1]).blocking().unwrap();
    let worker = Worker::new(&mailbox, |number: u32, _| async move { if number == 0 { Err("zero") } else { Ok(()) } });
    worker.max_attempts(1).max_iterations(2).run().blocking().unwrap();
    assert_eq!(
        *log.lock().unwrap(),
        [
            "Sent",
            "Sent",
            "Started",
            "Received",
            "Failed",
            "DeadLettered",
            "Received",
            "Succeeded",
            "Acknowledged",
            "Stopped"
        ]
    );
}

#[test]
fn a_loop_that_does_not_wait_lets_its_handlers_run() {
    let mailbox: Mailbox<u32, u32> = Connection::new(MemoryBackend::new()).mailbox("eager").unwrap();
    let reply = mailbox.send_expecting_reply(&1).blocking().unwrap();
    let worker = Worker::new(&mailbox, |number: u32, _| async move {
        // The handler is pending at first.
        smol::Timer::after(Duration::from_millis(5)).await;
        Ok::<_, String>(number)
    });
    let worker = worker.concurrency(2).wait_time(Duration::ZERO);
    let handle = worker.handle();
    let running = thread::spawn(move || worker.run().blocking().unwrap());
    assert_eq!(reply.wait().blocking().unwrap(), 1);
    handle.shutdown();
    assert_eq!(running.join().unwrap().succeeded, 1);
}
