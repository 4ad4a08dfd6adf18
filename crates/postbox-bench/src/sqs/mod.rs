//! Suite `sqs`: mailboxes on local SQS servers, compared with the bare SDK and omniqueue.
//!
//! A cycle sends, receives, decodes and acknowledges one message of 64 bytes of JSON. The servers are slow and run on the
//! same machine. The requests per 1 000 messages, which SQS bills, and the client's processor time do not depend on that.

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

/// The processor time of this process, in nanoseconds.
pub(crate) use self::workload::cpu as client_cpu;

const SUITE: &str = "sqs";

/// The peer that must be built first. It is a separate program, because it would enable more SDK features for Postbox too.
pub(crate) const PEER: &str = "omniqueue";

/// The processor time of peer processes, in nanoseconds.
static CPU_OUTSIDE: AtomicU64 = AtomicU64::new(0);

/// Runs the whole suite.
pub(crate) fn run(settings: &Settings) {
    on(settings, "moto", Moto::start);
    on(settings, "ministack", Ministack::start);
}

fn on<S: std::ops::Deref<Target = AwsServer>>(settings: &Settings, name: &str, start: impl FnOnce() -> S) {
    // A slow server needs long for thousands of requests, so there are few rounds. With one task the systems are nearly equally
    // fast, so there are many short rounds.
    let scenarios = [(1, 1, 100, 31), (1, FULL, 1_000, 7), (64, 1, 1_280, 7)];
    let scenarios = scenarios.map(|(tasks, batch, count, max_rounds)| {
        (format!("cycle/{name}/tasks-{tasks}/batch-{batch}"), tasks, batch, count, max_rounds)
    });
    if !scenarios.iter().any(|(scenario, ..)| settings.includes(scenario)) {
        return;
    }
    let server = start();
    let meters = meters();
    for (scenario, tasks, batch, count, max_rounds) in scenarios {
        if settings.includes(&scenario) {
            let contenders = contenders(settings, &server.endpoint(), tasks, batch);
            let settings = &Settings { max_rounds, ..settings.clone() };
            measure_with(settings, SUITE, &scenario, count, contenders, &meters);
        }
    }
}

/// Meters of requests of each kind, of all requests, and of the client's processor time, in this and in peer processes.
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
        // Leases are so long that no message is delivered again during the measurement.
        let request = make.create_queue().queue_name(name).attributes(QueueAttributeName::VisibilityTimeout, "600");
        let made = runtime.block_on(request.send()).expect("a queue");
        made.queue_url.expect("a URL")
    };
    let postbox = |gathers| runtime.block_on(Postbox::open(endpoint, &new_queue(), gathers));
    let sdk = |max_messages: usize, style| {
        let client = runtime.block_on(client(endpoint));
        Sdk { client, url: new_queue(), max_messages: max_messages as i32, style }
    };
    if (tasks, batch) == (1, FULL) {
        return vec![
            contender("postbox", Batches(postbox(true)), tasks, batch),
            contender("limit-sdk-batches", sdk(FULL, Style::Batches), tasks, batch),
        ];
    }
    let mut contenders = vec![
        contender("postbox", postbox(true), tasks, 1),
        contender("postbox-ungathered", postbox(false), tasks, 1),
        contender("sdk-one-by-one", sdk(1, Style::Single), tasks, 1),
    ];
    if tasks == 1 {
        contenders.push(contender("limit-same-requests", sdk(1, Style::Same), tasks, 1));
    } else {
        contenders.insert(1, contender("postbox-batches", Batches(postbox(true)), tasks, FULL));
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
    Contender::new(system, move |count| {
        // The cycles run in a task on the runtime's worker threads.
        runtime.block_on(runtime.spawn(cycles(queue.clone(), tasks, batch, count))).expect("a task")
    })
}

fn omniqueue(endpoint: &str, url: &str, tasks: usize) -> Contender<'static> {
    let mut peer = PeerProcess::start(Command::new(build(PEER)).args([endpoint, url]).arg(tasks.to_string()));
    Contender::new(PEER, move |count| {
        peer.begin(count);
        let answer = peer.answer();
        let [took, cpu, requests @ ..] = answer.as_slice() else { panic!("{answer:?} is too little") };
        CPU_OUTSIDE.fetch_add(*cpu, Ordering::Relaxed);
        for (total, count) in REQUESTS.iter().zip(requests) {
            total.fetch_add(*count, Ordering::Relaxed);
        }
        Duration::from_nanos(*took)
    })
}
