//! `postbox-bench-omniqueue ENDPOINT QUEUE-URL TASKS`: cycles of omniqueue on SQS, as the suite `sqs` asks for them.
//!
//! For each number of cycles it prints the elapsed nanoseconds, the processor time in nanoseconds, and the number of requests
//! of each kind.

extern crate aws_sdk_sqs; // The included workload file uses this path.

use std::hint::black_box;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use aws_sdk_sqs::config::{BehaviorVersion, Credentials, Region};
use omniqueue::backends::SqsBackend;
use omniqueue::backends::sqs::{SqsConsumer, SqsProducer};
use serde::{Deserialize, Serialize};

#[path = "../../../src/sqs/workload.rs"]
mod workload;

use workload::{Counting, FULL, Queue, REQUESTS, WAIT, cpu, cycles};

/// The same body as in the suite `sqs`.
#[derive(Serialize, Deserialize)]
struct Job {
    number: u64,
    kind: String,
    path: String,
}

#[derive(Clone)]
struct Omniqueue(Arc<(SqsProducer, SqsConsumer)>);

impl Queue for Omniqueue {
    async fn send(&self, numbers: Range<u64>) {
        for number in numbers {
            let job = Job { number, kind: "resize".into(), path: "/images/2024/07/a.png".into() };
            self.0.0.send_serde_json(&job).await.expect("sent");
        }
    }

    async fn receive(&self) -> usize {
        let deliveries = self.0.1.receive_all(FULL, Duration::from_secs(WAIT.into())).await.expect("received");
        let many = deliveries.len();
        for delivery in deliveries {
            let job: Job = delivery.payload_serde_json().expect("it is JSON").expect("not taken yet");
            black_box(job.number);
            delivery.ack().await.map_err(|(error, _)| error).expect("acknowledged");
        }
        many
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [endpoint, url, tasks] = arguments.as_slice() else {
        panic!("usage: postbox-bench-omniqueue ENDPOINT QUEUE-URL TASKS");
    };
    let tasks = tasks.parse().expect("a number of tasks");
    let config = aws_sdk_sqs::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("eu-west-1"))
        .credentials_provider(Credentials::new("test", "test", None, None, "bench"))
        .endpoint_url(endpoint)
        .interceptor(Counting)
        .build();
    let runtime = workload::runtime();
    let pair = runtime.block_on(SqsBackend::builder(url.as_str()).sqs_config(config).build_pair());
    let queue = Omniqueue(Arc::new(pair.expect("a pair")));
    println!("ready");
    for line in std::io::stdin().lines() {
        let many = line.expect("a line").parse().expect("a number of cycles");
        let before = (cpu(), REQUESTS.each_ref().map(|count| count.load(Ordering::Relaxed)));
        // The cycles run in a task on the runtime's worker threads.
        let took = runtime.block_on(runtime.spawn(cycles(queue.clone(), tasks, 1, many))).expect("a task");
        print!("{} {}", took.as_nanos(), cpu() - before.0);
        for (count, before) in REQUESTS.iter().zip(before.1) {
            print!(" {}", count.load(Ordering::Relaxed) - before);
        }
        println!();
    }
}
