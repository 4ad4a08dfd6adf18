//! Suite `memory`: leased mailboxes in memory, compared with a queue library and with a minimal queue without leases.
//!
//! A cycle sends, receives and acknowledges one message. Each message has a new body, which is copied or encoded once and
//! read by its receiver.

pub(crate) mod body;
mod queue;
mod requests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use body::{BATCH, Body, Job, MailboxOf, Order, RawBody, Written};
use queue::{Floor, Omniqueue, Postbox, Queue, WAIT, mailbox};
use tokio::runtime::{Builder, Runtime};

use crate::allocator;
use crate::report::{Contender, Settings, measure, print_value};

const SUITE: &str = "memory";

/// Runs the whole suite.
pub(crate) fn run(settings: &Settings) {
    one_task_cycles::<RawBody<64>>(settings, 200_000);
    one_task_cycles::<RawBody<4096>>(settings, 100_000);
    one_task_cycles::<Written<Job>>(settings, 100_000);
    one_task_cycles::<Written<Order>>(settings, 4_000);
    for (shape, each) in [("two-threads", 1), ("four-threads", 2)] {
        shared_cycles::<RawBody<64>>(settings, shape, each, 1_000_000);
        shared_cycles::<RawBody<4096>>(settings, shape, each, 250_000);
    }
    requests::run(settings);
    queued_bytes::<Postbox>(settings);
    queued_bytes::<Omniqueue>(settings);
    queued_bytes::<Floor<false>>(settings);
}

/// A single-threaded runtime on the caller's thread.
fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_time().build().expect("a runtime")
}

/// A runtime with `threads` worker threads.
fn workers(threads: usize) -> Runtime {
    Builder::new_multi_thread().worker_threads(threads).enable_time().build().expect("a runtime with workers")
}

/// Number of messages in a deep mailbox.
fn depth<B: Body>(settings: &Settings) -> usize {
    if settings.quick { 10_000 } else { B::depth() }
}

fn one_task_cycles<B: Body>(settings: &Settings, operations: usize) {
    for depth in [0, depth::<B>(settings)] {
        for batch in [1, BATCH] {
            let scenario = format!("cycle/one-task/{}/batch-{batch}/depth-{depth}", B::name());
            if settings.includes(&scenario) {
                let contenders = vec![
                    one_task::<B, Postbox>(batch, depth),
                    one_task::<B, Omniqueue>(batch, depth),
                    one_task::<B, Floor<false>>(batch, depth),
                ];
                measure(settings, SUITE, &scenario, operations, contenders);
            }
        }
    }
}

async fn fill<B: Body, Q: Queue<B>>(sender: &Q::Sender, depth: usize) {
    let mut body = B::new();
    for first in (0..depth as u64).step_by(BATCH) {
        Q::send_batch(sender, &mut body, first).await;
    }
}

/// One task sends, receives and acknowledges messages, in a queue that contains `depth` other messages.
fn one_task<B: Body, Q: Queue<B>>(batch: usize, depth: usize) -> Contender<'static> {
    let runtime = one_thread();
    let (sender, mut receivers) = Q::open(1);
    let mut receiver = receivers.remove(0);
    runtime.block_on(fill::<B, Q>(&sender, depth));
    let (mut body, mut numbers) = (B::new(), Vec::new());
    let (mut sent, mut received) = (depth as u64, 0);
    Contender::new(Q::NAME, move |operations| {
        runtime.block_on(async {
            let start = Instant::now();
            for _ in 0..operations / batch {
                if batch == 1 {
                    Q::send(&sender, &mut body, sent).await;
                    assert_eq!(Q::receive(&mut receiver).await, received);
                } else {
                    Q::send_batch(&sender, &mut body, sent).await;
                    Q::receive_batch(&mut receiver, &mut numbers).await;
                    assert!(numbers.len() == batch && numbers[0] == received);
                }
                sent += batch as u64;
                received += batch as u64;
            }
            start.elapsed()
        })
    })
}

/// Runs `each` senders and `each` receivers, all on different threads. Receivers take up to a batch at a time. Rounds are long,
/// because the results of rounds of 30 ms differ by a factor of two.
fn shared_cycles<B: Body>(settings: &Settings, shape: &str, each: usize, messages: usize) {
    let scenario = format!("cycle/{shape}/{}", B::name());
    let contenders =
        vec![tasks::<B, Postbox>(each), threads::<B>(each), tasks::<B, Omniqueue>(each), tasks::<B, Floor<true>>(each)];
    measure(settings, SUITE, &scenario, messages, contenders);
}

/// A message with this number ends a receiver.
const STOP: u64 = u64::MAX;

/// The progress of senders and receivers that share a queue.
struct Progress {
    messages: u64,
    senders: u64,
    /// On a separate cache line, because the receivers write it and the senders read the other fields.
    received: Received,
}

#[repr(align(128))]
struct Received(AtomicU64);

impl Progress {
    /// Senders pause while this number of messages is not received. Otherwise the relative speed of senders and receivers
    /// would decide how much memory is used.
    const WINDOW: u64 = 1024;

    fn new(messages: usize, senders: usize) -> Arc<Self> {
        assert_eq!(messages % senders, 0, "each sender has the same share");
        let (messages, senders) = (messages as u64, senders as u64);
        Arc::new(Progress { messages, senders, received: Received(AtomicU64::new(0)) })
    }

    /// The numbers that each sender sends.
    fn numbers(&self) -> std::ops::Range<u64> {
        0..self.messages / self.senders
    }

    /// Whether a sender must wait for receivers before it sends this number. Only every 64th call checks.
    fn is_ahead(&self, number: u64) -> bool {
        number.is_multiple_of(64) && number * self.senders > self.received.0.load(Ordering::Relaxed) + Self::WINDOW
    }

    /// Counts the messages that a receiver has received, and adds their numbers to `sum`.
    fn note(&self, numbers: &[u64], sum: &mut u64) -> Next {
        let messages = numbers.iter().filter(|&&number| number != STOP);
        let count = messages.clone().count();
        *sum += messages.sum::<u64>();
        let all = self.received.0.fetch_add(count as u64, Ordering::Relaxed) + count as u64;
        match (all == self.messages && count > 0, count < numbers.len()) {
            (true, _) => Next::StopOthers,
            (false, true) => Next::Stop,
            (false, false) => Next::Receive,
        }
    }

    /// Checks that the receivers' sums equal the senders' sums.
    fn check(&self, sums: impl Iterator<Item = u64>) {
        let numbers = self.numbers();
        assert_eq!(sums.sum::<u64>(), self.senders * numbers.sum::<u64>(), "messages were lost");
    }
}

/// What a receiver does next.
enum Next {
    Receive,
    /// This receiver has received the last message, so it sends a stop message to each of the others.
    StopOthers,
    Stop,
}

/// Runs the senders and receivers as tasks on a runtime with one worker thread for each.
fn tasks<B: Body, Q: Queue<B>>(each: usize) -> Contender<'static> {
    let runtime = workers(2 * each);
    Contender::new(Q::NAME, move |operations| {
        let (sender, receivers) = Q::open(each);
        let progress = Progress::new(operations, each);
        let start = Instant::now();
        for _ in 0..each {
            let (sender, progress) = (sender.clone(), Arc::clone(&progress));
            runtime.spawn(async move {
                let mut body = B::new();
                for number in progress.numbers() {
                    while progress.is_ahead(number) {
                        tokio::task::yield_now().await;
                    }
                    Q::send(&sender, &mut body, number).await;
                }
            });
        }
        let receiving = receivers.into_iter().map(|mut receiver| {
            let (sender, progress) = (sender.clone(), Arc::clone(&progress));
            runtime.spawn(async move {
                let (mut numbers, mut sum) = (Vec::new(), 0);
                loop {
                    Q::receive_batch(&mut receiver, &mut numbers).await;
                    match progress.note(&numbers, &mut sum) {
                        Next::Receive => {}
                        Next::StopOthers => {
                            for _ in 1..each {
                                Q::send(&sender, &mut B::new(), STOP).await;
                            }
                            return sum;
                        }
                        Next::Stop => return sum,
                    }
                }
            })
        });
        let receiving: Vec<_> = receiving.collect();
        let sums: Vec<_> = receiving.into_iter().map(|task| runtime.block_on(task).expect("a receiver")).collect();
        let took = start.elapsed();
        progress.check(sums.into_iter());
        took
    })
}

/// Runs Postbox's senders and receivers on threads without a runtime.
fn threads<B: Body>(each: usize) -> Contender<'static> {
    Contender::new("postbox-blocking", move |operations| {
        let mailbox = mailbox::<B>();
        let progress = Progress::new(operations, each);
        let start = Instant::now();
        let sums: Vec<_> = thread::scope(|scope| {
            let progress = &*progress;
            for _ in 0..each {
                let mailbox = mailbox.clone();
                scope.spawn(move || {
                    let mut body = B::new();
                    for number in progress.numbers() {
                        while progress.is_ahead(number) {
                            thread::yield_now();
                        }
                        body.send(&mailbox, number).blocking().expect("stored");
                    }
                });
            }
            let receive = |mailbox: MailboxOf<B>| {
                let mut sum = 0;
                loop {
                    let messages = mailbox.receive().max_messages(BATCH).wait_time(WAIT).blocking().expect("received");
                    let numbers: Vec<_> = messages.iter().map(|message| B::number(&message.body)).collect();
                    let results = mailbox.acknowledge_batch(&messages).blocking().expect("a good batch");
                    assert!(results.iter().all(Result::is_ok));
                    match progress.note(&numbers, &mut sum) {
                        Next::Receive => {}
                        Next::StopOthers => {
                            for _ in 1..each {
                                B::new().send(&mailbox, STOP).blocking().expect("stored");
                            }
                            return sum;
                        }
                        Next::Stop => return sum,
                    }
                }
            };
            let receiving: Vec<_> = (0..each)
                .map(|_| {
                    let mailbox = mailbox.clone();
                    scope.spawn(move || receive(mailbox))
                })
                .collect();
            receiving.into_iter().map(|thread| thread.join().expect("a receiver")).collect()
        });
        let took = start.elapsed();
        progress.check(sums.into_iter());
        took
    })
}

/// Measures the memory of a queued message with a body of 64 bytes.
fn queued_bytes<Q: Queue<RawBody<64>>>(settings: &Settings) {
    type B = RawBody<64>;
    let scenario = "queued-bytes/raw/64B";
    if settings.includes(scenario) {
        let runtime = one_thread();
        let messages = depth::<B>(settings);
        let (_queue, bytes) = allocator::bytes_of(|| {
            let queue = Q::open(1);
            runtime.block_on(fill::<B, Q>(&queue.0, messages));
            queue
        });
        print_value(settings, SUITE, scenario, Q::NAME, "bytes", bytes / messages);
    }
}
