//! Suite `redis`: mailboxes on a dedicated server without persistence, compared with other libraries and with minimal
//! scripts.
//!
//! A cycle sends, receives, decodes and acknowledges one message of 64 bytes of JSON. The server runs on the same machine.

mod bare;
mod latency;
mod paced;
mod queue;

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use bare::{Bare, One, Ten, Variadic};
pub(crate) use paced::{ROLE, process};
use postbox_test_servers::Redis;
use queue::{Jobs, Omniqueue, Postbox, Queue, RsmqQueue, WAIT, connection};
use tokio::runtime::{Builder, Runtime};

use crate::memory::body::{Document, Job};
use crate::report::{Contender, Meter, Settings, measure_with, print_value};
use crate::sqs::client_cpu;

const SUITE: &str = "redis";

/// Runs the whole suite.
pub(crate) fn run(settings: &Settings) {
    let server = Redis::start();
    for (tasks, operations) in [(1, 1_000), (16, 12_800), (64, 6_400)] {
        one_by_one(settings, &server, tasks, operations);
        batches(settings, &server, tasks, operations);
    }
    for (tasks, batch, operations) in [(1, 1, 1_000), (64, 1, 6_400), (64, 10, 12_800)] {
        deep(settings, &server, tasks, batch, operations);
    }
    latency::run(settings, &server);
    paced::run(settings, &server);
    connections(settings);
    redis_benchmark(settings, &server);
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// A new mailbox name.
fn name() -> String {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    format!("bench-{}", NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// The processor time of the server, in microseconds.
fn cpu(server: &Redis) -> f64 {
    let info = server.info("cpu");
    let seconds = |field: &str| -> f64 {
        let value = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        value.and_then(|value| value.trim().parse().ok()).expect("a number of seconds")
    };
    (seconds("used_cpu_user") + seconds("used_cpu_sys")) * 1e6
}

fn measure(
    settings: &Settings,
    server: &Redis,
    scenario: &str,
    operations: usize,
    contenders: impl FnOnce() -> Vec<Contender<'static>>,
) {
    if settings.includes(scenario) {
        let meters =
            [Meter::new("server_cpu_us", || cpu(server)), Meter::new("client_cpu_us", || client_cpu() as f64 / 1e3)];
        measure_with(settings, SUITE, scenario, operations, contenders(), &meters);
        server.command(&["FLUSHALL"]);
    }
}

fn one_by_one(settings: &Settings, server: &Redis, tasks: usize, operations: usize) {
    measure(settings, server, &format!("cycle/tasks-{tasks}/batch-1"), operations, || {
        let mut contenders = vec![
            cycles::<Postbox>(server, tasks, 1, 0),
            cycles::<RsmqQueue>(server, tasks, 1, 0),
            cycles::<Omniqueue>(server, tasks, 1, 0),
            cycles::<Bare<One>>(server, tasks, 1, 0),
        ];
        if tasks == 1 {
            contenders.insert(1, blocking(server));
        }
        contenders
    });
}

fn batches(settings: &Settings, server: &Redis, tasks: usize, operations: usize) {
    measure(settings, server, &format!("cycle/tasks-{tasks}/batch-10"), operations * 2, || {
        vec![
            cycles::<Postbox>(server, tasks, 10, 0),
            cycles::<RsmqQueue>(server, tasks, 10, 0),
            cycles::<Omniqueue>(server, tasks, 10, 0),
            cycles::<Bare<Ten>>(server, tasks, 10, 0),
            cycles::<Bare<Variadic>>(server, tasks, 10, 0),
        ]
    });
}

/// Compares a deep mailbox with an empty one.
fn deep(settings: &Settings, server: &Redis, tasks: usize, batch: usize, operations: usize) {
    let depth = if settings.quick { 2_000 } else { 1_000_000 };
    measure(settings, server, &format!("cycle/tasks-{tasks}/batch-{batch}/depth-{depth}"), operations, || {
        vec![
            cycles::<Postbox>(server, tasks, batch, depth),
            Contender { system: "postbox-depth-0", ..cycles::<Postbox>(server, tasks, batch, 0) },
            cycles::<RsmqQueue>(server, tasks, batch, depth),
            cycles::<Bare<Variadic>>(server, tasks, batch, depth),
        ]
    });
}

fn jobs(count: usize) -> Vec<Job> {
    (0..count).map(|_| Job::new()).collect()
}

/// Each task repeatedly sends a batch, then receives and acknowledges the same number of messages.
fn cycles<Q: Queue>(server: &Redis, tasks: usize, batch: usize, depth: usize) -> Contender<'static> {
    let runtime = runtime();
    let mut handles = runtime.block_on(Q::open(server, &name(), tasks));
    runtime.block_on(async {
        let fill = jobs(500);
        for _ in 0..depth / 500 {
            handles[0].send(&fill).await;
        }
    });
    Contender::new(Q::NAME, move |operations| {
        assert_eq!(operations % (tasks * batch), 0, "each task has the same share");
        let start = Instant::now();
        let running = handles.drain(..).map(|mut queue| {
            runtime.spawn(async move {
                let mut jobs = jobs(batch);
                for number in 0..operations / tasks / batch {
                    jobs.iter_mut().for_each(|job| job.set_number(number as u64));
                    queue.send(&jobs).await;
                    let mut received = 0;
                    while received < batch {
                        received += queue.receive(batch - received).await;
                    }
                }
                queue
            })
        });
        let running: Vec<_> = running.collect();
        handles.extend(running.into_iter().map(|task| runtime.block_on(task).expect("a task")));
        start.elapsed()
    })
}

/// Postbox on one thread without a runtime.
fn blocking(server: &Redis) -> Contender<'static> {
    let jobs: Jobs = connection(server).mailbox(&name()).expect("the name is good");
    let mut job = Job::new();
    Contender::new("postbox-blocking", move |operations| {
        let start = Instant::now();
        for number in 0..operations {
            job.set_number(number as u64);
            jobs.send(&job).blocking().expect("sent");
            let messages = jobs.receive().blocking().expect("received");
            std::hint::black_box(messages[0].body.number());
            messages[0].acknowledge().blocking().expect("acknowledged");
        }
        start.elapsed()
    })
}

/// Counts the open connections while 64 tasks run cycles, and while 1 000 mailboxes wait.
/// Each system has a server of its own, because connections of earlier scenarios may still be closing.
fn connections(settings: &Settings) {
    fn at_work<Q: Queue>(settings: &Settings) {
        let server = Redis::start();
        let before = server.connected_clients();
        let mut contender = cycles::<Q>(&server, 64, 1, 0);
        (contender.run)(settings.scale(6_400));
        let open = server.connected_clients() - before;
        print_value(settings, SUITE, "connections/tasks-64", Q::NAME, "connections", open);
    }
    if settings.includes("connections/tasks-64") {
        at_work::<Postbox>(settings);
        at_work::<RsmqQueue>(settings);
        at_work::<Omniqueue>(settings);
    }
    let scenario = "connections/waiting-mailboxes-1000";
    if settings.includes(scenario) {
        let server = Redis::start();
        let before = server.connected_clients();
        let (runtime, connection) = (runtime(), connection(&server));
        let mailboxes: Vec<Jobs> = (0..1_000).map(|_| connection.mailbox(&name()).expect("the name is good")).collect();
        let waiting: Vec<_> =
            mailboxes.iter().map(|jobs| runtime.spawn(jobs.receive().wait_time(WAIT).into_future())).collect();
        let open = runtime.block_on(async {
            // Send one message to each mailbox. When all receives have returned, all of them have waited.
            let open = server.connected_clients() - before;
            for jobs in &mailboxes {
                jobs.send(&Job::new()).await.expect("sent");
            }
            for task in waiting {
                assert_eq!(task.await.expect("a task").expect("received").len(), 1);
            }
            open.max(server.connected_clients() - before)
        });
        print_value(settings, SUITE, scenario, "postbox", "connections", open);
    }
}

/// The limit of the server: pushes and pops of 64 bytes, on 50 connections with 16 requests in flight on each.
fn redis_benchmark(settings: &Settings, server: &Redis) {
    let scenario = "pipelined/redis-benchmark";
    if !settings.includes(scenario) {
        return;
    }
    let requests = settings.scale(400_000).to_string();
    let port = server.port().to_string();
    let arguments = ["-p", &port, "-P", "16", "-n", &requests, "-d", "64", "-t", "rpush,lpop", "--csv"];
    let Ok(output) = Command::new("redis-benchmark").args(arguments).output() else {
        return eprintln!("postbox-bench: no redis-benchmark");
    };
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let mut fields = line.split(',').map(|field| field.trim_matches('"'));
        let (name, rate) = (fields.next(), fields.next().and_then(|rate| rate.parse::<f64>().ok()));
        match (name, rate) {
            (Some("RPUSH"), Some(rate)) => {
                print_value(settings, SUITE, scenario, "limit-rpush", "per_s", rate as usize)
            }
            (Some("LPOP"), Some(rate)) => print_value(settings, SUITE, scenario, "limit-lpop", "per_s", rate as usize),
            _ => {}
        }
    }
}
