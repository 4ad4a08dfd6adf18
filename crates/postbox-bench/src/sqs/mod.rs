//! Suite `sqs`: mailboxes on servers that speak for SQS, against the bare SDK and omniqueue.
//!
//! A cycle is one message of 64 bytes of JSON sent, received, read and acknowledged. Such a server is slow and shares the
//! machine; requests per 1 000 messages, which SQS bills, and the client's processor time do not depend on it.

mod queue;
mod workload;

use std::process::Command;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use postbox::aws::sqs as aws_sdk_sqs;
use postbox::aws::sqs::types::QueueAttributeName;
use postbox_test_servers::{AwsServer, Ministack, Moto};
use tokio::runtime::Runtime;

use self::queue::{Batches, Postbox, Sdk, Style, client};
use self::workload::{FULL, KINDS, Queue, REQUESTS, cycles, runtime};
use crate::peer_process::{PeerProcess, build};
use crate::report::{Contender, Meter, Settings, measure_with};

/// What this process has spent on the processors, in nanoseconds.
pub(crate) use self::workload::cpu as client_cpu;

const SUITE: &str = "sqs";

/// The peer that has to be built first: it turns on features of the SDK that Postbox does without, for all who link it.
pub(crate) const PEER: &str = "omniqueue";

/// What programs of their own have spent, in nanoseconds.
static CPU_OUTSIDE: AtomicU64 = AtomicU64::new(0);

/// Runs the whole suite.
pub(crate) fn run(settings: &Settings) {
    on(settings, "moto", Moto::start);
    on(settings, "ministack", Ministack::start);
}

fn on<S: std::ops::Deref<Target = AwsServer>>(settings: &Settings, name: &str, start: impl FnOnce() -> S) {
    // Thousands of requests take a slow server their time, so there are few rounds. With one task the systems are so near each
    // other that it takes many, short ones.
    let scenarios = [(1, 1, 100, 31), (1, FULL, 1_000, 7), (64, 1, 1_280, 7)];
    let scenarios = scenarios.map(|(tasks, batch, many, most_rounds)| {
        (format!("cycle/{name}/tasks-{tasks}/batch-{batch}"), tasks, batch, many, most_rounds)
    });
    if !scenarios.iter().any(|(scenario, ..)| settings.includes(scenario)) {
        return;
    }
    let server = start();
    let meters = meters();
    for (scenario, tasks, batch, many, most_rounds) in scenarios {
        if settings.includes(&scenario) {
            let contenders = contenders(settings, &server.endpoint(), tasks, batch);
            let settings = &Settings { most_rounds, ..settings.clone() };
            measure_with(settings, SUITE, &scenario, many, contenders, &meters);
        }
    }
}

/// Requests of each kind and together, and the client's processor time, here and in programs of their own.
fn meters() -> Vec<Meter<'static>> {
    let count = |kind: usize| REQUESTS[kind].load(Ordering::Relaxed) as f64;
    let mut meters =
        vec![Meter::new("client_cpu_us", || (client_cpu() + CPU_OUTSIDE.load(Ordering::Relaxed)) as f64 / 1e3)];
    for (kind, unit) in KINDS.into_iter().enumerate() {
        meters.push(Meter::new(unit, move || count(kind)).per_thousand());
    }
    meters.push(Meter::new("requests", move || (0..KINDS.len()).map(count).sum()).per_thousand());
    meters
}

fn contenders(settings: &Settings, endpoint: &str, tasks: usize, batch: usize) -> Vec<Contender<'static>> {
    let runtime = runtime();
    let make = runtime.block_on(client(endpoint));
    let new_queue = || {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let name = format!("bench-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        // Nothing comes back while it is measured.
        let request = make.create_queue().queue_name(name).attributes(QueueAttributeName::VisibilityTimeout, "600");
        let made = runtime.block_on(request.send()).expect("a queue");
        made.queue_url.expect("a URL")
    };
    let ours = |gathers| runtime.block_on(Postbox::open(endpoint, &new_queue(), gathers));
    let sdk = |most: usize, style| {
        let client = runtime.block_on(client(endpoint));
        Sdk { client, url: new_queue(), most: most as i32, style }
    };
    if (tasks, batch) == (1, FULL) {
        return vec![
            contender("postbox", Batches(ours(true)), tasks, batch),
            contender("limit-sdk-batches", sdk(FULL, Style::Batches), tasks, batch),
        ];
    }
    let mut contenders = vec![
        contender("postbox", ours(true), tasks, 1),
        contender("postbox-ungathered", ours(false), tasks, 1),
        contender("sdk-one-by-one", sdk(1, Style::Single), tasks, 1),
    ];
    if tasks == 1 {
        contenders.push(contender("limit-same-requests", sdk(1, Style::Same), tasks, 1));
    } else {
        contenders.insert(1, contender("postbox-batches", Batches(ours(true)), tasks, FULL));
        contenders.push(contender("sdk-receive-10", sdk(FULL, Style::Single), tasks, 1));
        contenders.push(contender("limit-sdk-batches", sdk(FULL, Style::Batches), tasks, FULL));
    }
    if settings.peers.iter().any(|peer| peer == PEER) {
        contenders.push(omniqueue(endpoint, &new_queue(), tasks));
    }
    contenders
}

fn contender<Q: Queue>(system: &'static str, queue: Q, tasks: usize, batch: usize) -> Contender<'static> {
    let runtime: Runtime = runtime();
    Contender::new(system, move |many| {
        // On a task of its own: this thread is not one of the runtime's.
        runtime.block_on(runtime.spawn(cycles(queue.clone(), tasks, batch, many))).expect("a task")
    })
}

fn omniqueue(endpoint: &str, url: &str, tasks: usize) -> Contender<'static> {
    let mut peer = PeerProcess::start(Command::new(build(PEER)).args([endpoint, url]).arg(tasks.to_string()));
    Contender::new(PEER, move |many| {
        peer.begin(many);
        let answer = peer.answer();
        let [took, cpu, requests @ ..] = answer.as_slice() else { panic!("{answer:?} is too little") };
        CPU_OUTSIDE.fetch_add(*cpu, Ordering::Relaxed);
        for (count, many) in REQUESTS.iter().zip(requests) {
            count.fetch_add(*many, Ordering::Relaxed);
        }
        Duration::from_nanos(*took)
    })
}
