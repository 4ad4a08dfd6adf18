//! A worker under load, with random losses of the network and random failures of the server.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use postbox::*;
use postbox_test_servers::Fate;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::{TestQueue, moto, until};

/// Asserts that each message is handled at least once and none is left, when 40 % of the requests fail.
fn all_are_handled(suffix: &str, seed: u64) {
    const MANY: u64 = 300;
    let queue = TestQueue::new(moto(), suffix);
    let jobs = queue.jobs();
    let mut random = StdRng::seed_from_u64(seed);
    queue.proxy.on(move |_| match random.random_range(0..10) {
        0 => Fate::DropReply,
        1 => Fate::DropRequest,
        2 => Fate::internal(),
        3 => Fate::unavailable(),
        _ => Fate::Pass,
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let handled: Arc<Mutex<BTreeMap<u64, u32>>> = Arc::default();
    // Leases are short, because a lost reply leases messages that no receiver gets.
    let worker = Worker::new(&jobs, {
        let handled = Arc::clone(&handled);
        move |number: u64, _: Context| {
            *handled.lock().unwrap().entry(number).or_default() += 1;
            async { Ok::<_, String>(0u64) }
        }
    })
    .concurrency(8)
    .visibility_timeout(Duration::from_secs(3))
    .wait_time(Duration::from_secs(1));
    let handle = worker.handle();
    let running = runtime.spawn(worker.run().into_future());
    let senders: Vec<_> = (0..8)
        .map(|sender| {
            let jobs = jobs.clone();
            runtime.spawn(async move {
                for number in (sender..MANY).step_by(8) {
                    // After a transient error the message may be stored or not, so it is sent again.
                    while let Err(error) = jobs.send(&number).await {
                        assert!(error.is_transient(), "{error:?}");
                    }
                }
            })
        })
        .collect();
    runtime.block_on(async {
        for sender in senders {
            sender.await.unwrap();
        }
    });
    let others = queue.others();
    until("all to be handled", || handled.lock().unwrap().len() as u64 == MANY);
    until("an empty queue", || others.approximate_count().blocking().unwrap() == 0);
    handle.shutdown();
    runtime.block_on(running).unwrap().unwrap();
    let requests = queue.proxy.requests().len();
    println!("{requests} requests, {} deliveries", handled.lock().unwrap().values().sum::<u32>());
}

#[test]
fn a_worker_loses_nothing_on_a_network_that_loses_at_random() {
    all_are_handled("", 1);
}

#[test]
fn a_worker_loses_nothing_on_a_network_that_loses_at_random_from_a_fifo_queue() {
    all_are_handled(".fifo", 2);
}
