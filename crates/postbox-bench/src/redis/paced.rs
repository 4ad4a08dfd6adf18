//! Measures the processor time of one worker that receives 200 messages per second from another process.

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use postbox::redis::RedisBackend;
use postbox::redis::client::Client;
use postbox::{Connection, Context, Worker};
use postbox_test_servers::Redis;

use super::queue::{Jobs, connection};
use super::{SUITE, name, runtime};
use crate::memory::body::{Document, Job};
use crate::report::{Settings, print_value};
use crate::sqs::client_cpu;

/// The first argument of the sender process.
pub(crate) const ROLE: &str = "redis-sender";
const SCENARIO: &str = "worker/200-per-second";
const PAUSE: Duration = Duration::from_millis(5);

/// Prints the processor time for each message, in microseconds.
pub(super) fn run(settings: &Settings, server: &Redis) {
    if !settings.includes(SCENARIO) {
        return;
    }
    let (name, count) = (name(), settings.scale(2_000));
    let jobs: Jobs = connection(server).mailbox(&name).expect("the name is good");
    let (handled, (done, all_done)) = (Arc::new(AtomicUsize::new(0)), mpsc::channel());
    let worker = Worker::new(&jobs, move |job: Job, _: Context| {
        std::hint::black_box(job.number());
        if handled.fetch_add(1, Ordering::Relaxed) + 1 == count {
            done.send(()).expect("awaited");
        }
        async { Ok::<_, String>(()) }
    });
    let handle = worker.handle();
    let runtime = runtime();
    let running = runtime.spawn(worker.run().into_future());
    let program = std::env::current_exe().expect("this program");
    let before = client_cpu();
    let mut sender = Command::new(program)
        .args([ROLE, server.url().as_str(), &name, &count.to_string()])
        .spawn()
        .expect("a process that sends");
    all_done.recv().expect("all messages");
    let spent = (client_cpu() - before) / 1_000 / count as u64;
    assert!(sender.wait().expect("its end").success());
    handle.shutdown();
    runtime.block_on(running).expect("a task").expect("a loop that ends");
    print_value(settings, SUITE, SCENARIO, "postbox", "client_cpu_us", spent as usize);
}

/// Runs the sender process. Its arguments are an address, a mailbox name and the number of messages.
pub(crate) fn process(arguments: &[String]) {
    let [url, name, count] = arguments else { panic!("{ROLE} URL MAILBOX MESSAGES") };
    let client = Client::open(url.as_str()).expect("a good address");
    let connection = Connection::new(RedisBackend::from_client(client).expect("a good client"));
    let jobs: Jobs = connection.mailbox(name).expect("the name is good");
    let start = Instant::now();
    for number in 0..count.parse().expect("a number of messages") {
        std::thread::sleep((PAUSE * number).saturating_sub(start.elapsed()));
        jobs.send(&Job::new()).blocking().expect("sent");
    }
}
