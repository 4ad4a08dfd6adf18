//! Suite `core`: in-process mailboxes against channels.

mod channel;
mod memory;
mod priority;

use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use channel::{
    AsyncChan, AsyncChannel, Channel, Crossbeam, Flume, Kanal, Payload, Postbox, Std, Thingbuf, Tokio, Words,
};

use crate::report::{Contender, Settings, measure};

const SUITE: &str = "core";
const CAPACITY: usize = 1024;

/// Number of messages of a round between threads or tasks. It takes at least 100 ms. In rounds of 20 ms the initial placement
/// of the threads on processors decides the result.
const MESSAGES: usize = 2_500_000;

/// Number of rounds between threads or tasks.
const ROUNDS: usize = 9;

/// Runs the whole suite.
pub(crate) fn run(settings: &Settings) {
    let settings = &Settings { max_rounds: ROUNDS, ..settings.clone() };
    for_payload::<Words<1>>(settings);
    for_payload::<Words<8>>(settings);
    ping_pong(settings);
    priority::run(settings);
    memory::run(settings);
}

fn for_payload<M: Payload>(settings: &Settings) {
    let name = |scenario: &str| format!("{scenario}/{}B", M::BYTES);
    blocking::<M>(settings, &name("try-pair/bounded"), 1_000_000, |channel| channel.try_pair(Some(CAPACITY)));
    blocking::<M>(settings, &name("try-pair/unbounded"), 1_000_000, |channel| channel.try_pair(None));
    for (kind, capacity) in [("bounded", Some(CAPACITY)), ("unbounded", None)] {
        for (shape, producers, consumers) in [("spsc", 1, 1), ("mpsc", 4, 1), ("mpmc", 2, 2)] {
            let scenario = name(&format!("{shape}/{kind}"));
            blocking::<M>(settings, &scenario, MESSAGES, |channel| channel.threads(capacity, producers, consumers));
        }
        async_mpsc::<M>(settings, &name(&format!("async-mpsc/{kind}")), capacity);
    }
}

/// One channel in all blocking scenarios. A scenario that it does not support is `None`.
struct Subject<M> {
    try_pair: fn(Option<usize>) -> Option<Run>,
    threads: fn(Option<usize>, usize, usize) -> Option<Run>,
    system: &'static str,
    payload: std::marker::PhantomData<M>,
}

type Run = Box<dyn FnMut(usize) -> Duration>;

impl<M: Payload> Subject<M> {
    fn of<T: Channel + 'static>() -> Self {
        Subject {
            try_pair: try_pair::<T, M>,
            threads: threads::<T, M>,
            system: T::NAME,
            payload: std::marker::PhantomData,
        }
    }

    fn try_pair(&self, capacity: Option<usize>) -> Option<Run> {
        (self.try_pair)(capacity)
    }

    fn threads(&self, capacity: Option<usize>, producers: usize, consumers: usize) -> Option<Run> {
        (self.threads)(capacity, producers, consumers)
    }
}

fn blocking<M: Payload>(
    settings: &Settings,
    scenario: &str,
    operations: usize,
    run: impl Fn(&Subject<M>) -> Option<Run>,
) {
    let subjects = [
        Subject::<M>::of::<Postbox>(),
        Subject::of::<Crossbeam>(),
        Subject::of::<Flume>(),
        Subject::of::<Kanal>(),
        Subject::of::<AsyncChan>(),
        Subject::of::<Tokio>(),
        Subject::of::<Std>(),
        Subject::of::<Thingbuf>(),
    ];
    let contenders = subjects
        .iter()
        .filter_map(|subject| run(subject).map(|run| Contender { system: subject.system, run }))
        .collect();
    measure(settings, SUITE, scenario, operations, contenders);
}

/// One thread repeatedly sends a message and receives it.
fn try_pair<T: Channel, M: Payload>(capacity: Option<usize>) -> Option<Run> {
    let (tx, mut rx) = T::open::<M>(capacity)?;
    Some(Box::new(move |operations| {
        let start = Instant::now();
        for n in 0..operations as u64 {
            assert!(T::try_send(&tx, black_box(M::number(n))));
            assert_eq!(T::try_recv(&mut rx).map(|m| black_box(m).value()), Some(n));
        }
        start.elapsed()
    }))
}

/// Each producer thread sends its share of the messages. Consumer threads receive until the channel is closed.
fn threads<T: Channel, M: Payload>(capacity: Option<usize>, producers: usize, consumers: usize) -> Option<Run> {
    let (_, rx) = T::open::<M>(capacity)?;
    if consumers > 1 {
        T::share(&rx)?;
    }
    Some(Box::new(move |operations| {
        let (tx, rx) = T::open::<M>(capacity).expect("opened before");
        let share = operations / producers;
        // The first thread that runs starts the clock, since this thread may be scheduled last.
        let barrier = Barrier::new(producers + consumers);
        let (sum, first, last) = thread::scope(|scope| {
            let senders: Vec<_> = (0..producers)
                .map(|_| {
                    let (tx, barrier) = (tx.clone(), &barrier);
                    scope.spawn(move || {
                        barrier.wait();
                        let start = Instant::now();
                        for n in 0..share as u64 {
                            T::send(&tx, black_box(M::number(n)));
                        }
                        start
                    })
                })
                .collect();
            drop(tx);
            let mut receivers: Vec<_> = (1..consumers).map(|_| T::share(&rx).expect("shared before")).collect();
            receivers.push(rx);
            let receivers: Vec<_> = receivers
                .into_iter()
                .map(|mut rx| {
                    let barrier = &barrier;
                    scope.spawn(move || {
                        barrier.wait();
                        let mut sum = 0u64;
                        while let Some(message) = T::recv(&mut rx) {
                            sum += black_box(message).value();
                        }
                        (sum, Instant::now())
                    })
                })
                .collect();
            let starts = senders.into_iter().map(|sender| sender.join().expect("a producer"));
            let first = starts.min().expect("there is a producer");
            let ends: Vec<_> = receivers.into_iter().map(|receiver| receiver.join().expect("a consumer")).collect();
            let last = ends.iter().map(|end| end.1).max().expect("there is a consumer");
            (ends.iter().map(|end| end.0).sum::<u64>(), first, last)
        });
        let took = last - first;
        assert_eq!(sum, producers as u64 * (share as u64 * (share as u64 - 1) / 2), "messages were lost");
        took
    }))
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime with two workers")
}

/// Four producer tasks and one consumer task on two workers.
fn async_mpsc<M: Payload>(settings: &Settings, scenario: &str, capacity: Option<usize>) {
    fn run<T: AsyncChannel, M: Payload>(capacity: Option<usize>) -> Option<Run> {
        T::open::<M>(capacity)?;
        let runtime = runtime();
        Some(Box::new(move |operations| {
            let (tx, mut rx) = T::open::<M>(capacity).expect("opened before");
            let share = operations / 4;
            let start = Instant::now();
            for _ in 0..4 {
                let tx = tx.clone();
                runtime.spawn(async move {
                    for n in 0..share as u64 {
                        T::send(&tx, black_box(M::number(n))).await;
                    }
                });
            }
            drop(tx);
            let consumer = runtime.spawn(async move {
                let mut sum = 0u64;
                while let Some(message) = T::recv(&mut rx).await {
                    sum += black_box(message).value();
                }
                sum
            });
            let sum = runtime.block_on(consumer).expect("the consumer");
            let took = start.elapsed();
            assert_eq!(sum, 4 * (share as u64 * (share as u64 - 1) / 2), "messages were lost");
            took
        }))
    }
    let contenders = [
        (<Postbox as AsyncChannel>::NAME, run::<Postbox, M>(capacity)),
        (<Flume as AsyncChannel>::NAME, run::<Flume, M>(capacity)),
        (<Kanal as AsyncChannel>::NAME, run::<Kanal, M>(capacity)),
        (<AsyncChan as AsyncChannel>::NAME, run::<AsyncChan, M>(capacity)),
        (<Tokio as AsyncChannel>::NAME, run::<Tokio, M>(capacity)),
        (<Thingbuf as AsyncChannel>::NAME, run::<Thingbuf, M>(capacity)),
    ];
    let contenders =
        contenders.into_iter().filter_map(|(system, run)| run.map(|run| Contender { system, run })).collect();
    measure(settings, SUITE, scenario, MESSAGES, contenders);
}

/// Sends one message back and forth, between two threads and between two tasks.
fn ping_pong(settings: &Settings) {
    type M = Words<1>;

    fn between_threads<T: Channel>() -> Contender<'static> {
        Contender::new(T::NAME, |operations| {
            let (there, mut there_rx) = T::open::<M>(Some(1)).expect("a bounded channel");
            let (back, mut back_rx) = T::open::<M>(Some(1)).expect("a bounded channel");
            let echo = thread::spawn(move || {
                while let Some(message) = T::recv(&mut there_rx) {
                    T::send(&back, message);
                }
            });
            let start = Instant::now();
            for n in 0..operations as u64 {
                T::send(&there, M::number(n));
                assert_eq!(T::recv(&mut back_rx).map(|m| m.value()), Some(n));
            }
            let took = start.elapsed();
            drop(there);
            echo.join().expect("the echo");
            took
        })
    }

    fn between_tasks<T: AsyncChannel>() -> Contender<'static> {
        let runtime = runtime();
        Contender::new(T::NAME, move |operations| {
            let (there, mut there_rx) = T::open::<M>(Some(1)).expect("a bounded channel");
            let (back, mut back_rx) = T::open::<M>(Some(1)).expect("a bounded channel");
            runtime.spawn(async move {
                while let Some(message) = T::recv(&mut there_rx).await {
                    T::send(&back, message).await;
                }
            });
            let caller = runtime.spawn(async move {
                let start = Instant::now();
                for n in 0..operations as u64 {
                    T::send(&there, M::number(n)).await;
                    assert_eq!(T::recv(&mut back_rx).await.map(|m| m.value()), Some(n));
                }
                start.elapsed()
            });
            runtime.block_on(caller).expect("the caller")
        })
    }

    measure(
        settings,
        SUITE,
        "ping-pong/threads",
        10_000,
        vec![
            between_threads::<Postbox>(),
            between_threads::<Crossbeam>(),
            between_threads::<Flume>(),
            between_threads::<Kanal>(),
            between_threads::<AsyncChan>(),
            between_threads::<Tokio>(),
            between_threads::<Std>(),
            between_threads::<Thingbuf>(),
        ],
    );
    measure(
        settings,
        SUITE,
        "ping-pong/tasks",
        200_000,
        vec![
            between_tasks::<Postbox>(),
            between_tasks::<Flume>(),
            between_tasks::<Kanal>(),
            between_tasks::<AsyncChan>(),
            between_tasks::<Tokio>(),
            between_tasks::<Thingbuf>(),
        ],
    );
}
