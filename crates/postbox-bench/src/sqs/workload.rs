//! The workload of tasks on a queue, and its cost for the client: requests and processor time. Peer processes include this
//! file too.

use std::future::Future;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;

use super::aws_sdk_sqs::config::interceptors::BeforeTransmitInterceptorContextRef;
use super::aws_sdk_sqs::config::{ConfigBag, Intercept, RuntimeComponents};
use super::aws_sdk_sqs::error::BoxError;

/// Maximum number of messages in one SQS request.
pub(crate) const FULL: usize = 10;

/// Maximum wait of a receiver, in seconds. It is short, because at the end of a round receivers wait without a message.
pub(crate) const WAIT: u16 = 1;

/// Maximum number of messages that are sent and not acknowledged; senders wait when it is reached. Local servers slow down
/// with each stored message.
const MAX_UNACKNOWLEDGED: usize = 640;

/// Upper limit for a round.
const ROUND_LIMIT: Duration = Duration::from_secs(300);

/// A queue that tasks use.
pub(crate) trait Queue: Clone + Send + Sync + 'static {
    /// Sends a message for each number, as a batch if there are several.
    fn send(&self, numbers: Range<u64>) -> impl Future<Output = ()> + Send;
    /// Receives, decodes and acknowledges messages. Returns their number.
    fn receive(&self) -> impl Future<Output = usize> + Send;
}

pub(crate) fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// Sends `count` messages in batches, and receives and acknowledges them. A single task does all three in turn. Of several
/// tasks, one half sends and the other half receives. Returns the time until the last message is acknowledged.
pub(crate) async fn cycles<Q: Queue>(queue: Q, tasks: usize, batch: usize, count: usize) -> Duration {
    let work = async {
        match tasks {
            1 => in_turn(queue, batch, count).await,
            _ => at_once(queue, tasks / 2, batch, count).await,
        }
    };
    tokio::time::timeout(ROUND_LIMIT, work).await.expect("all messages come")
}

async fn in_turn<Q: Queue>(queue: Q, batch: usize, count: usize) -> Duration {
    let start = Instant::now();
    for number in (0..count).step_by(batch) {
        queue.send(number as u64..(number + batch) as u64).await;
        let mut received = 0;
        while received < batch {
            received += queue.receive().await;
        }
    }
    start.elapsed()
}

async fn at_once<Q: Queue>(queue: Q, pairs: usize, batch: usize, count: usize) -> Duration {
    let next = Arc::new(AtomicUsize::new(0));
    let done = Arc::new(AtomicUsize::new(0));
    let room = Arc::new(Semaphore::new(MAX_UNACKNOWLEDGED));
    let end = Arc::new(OnceLock::new());
    let start = Instant::now();
    let mut running = Vec::new();
    for _ in 0..pairs {
        let (queue_, next, room_) = (queue.clone(), Arc::clone(&next), Arc::clone(&room));
        running.push(tokio::spawn(async move {
            loop {
                let number = next.fetch_add(batch, Ordering::Relaxed);
                if number >= count {
                    break;
                }
                room_.acquire_many(batch as u32).await.expect("it is open").forget();
                queue_.send(number as u64..(number + batch) as u64).await;
            }
        }));
        let (queue, done, room, end) = (queue.clone(), Arc::clone(&done), Arc::clone(&room), Arc::clone(&end));
        running.push(tokio::spawn(async move {
            while done.load(Ordering::Relaxed) < count {
                let received = queue.receive().await;
                room.add_permits(received);
                if received > 0 && done.fetch_add(received, Ordering::Relaxed) + received == count {
                    end.set(start.elapsed()).expect("one is the last");
                }
            }
        }));
    }
    for task in running {
        task.await.expect("a task");
    }
    *end.get().expect("all came, each once")
}

/// Number of sent requests of each of [`KINDS`], including retries.
pub(crate) static REQUESTS: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];

/// The kinds of requests.
#[allow(dead_code, reason = "the programs of peers only count")]
pub(crate) const KINDS: [&str; 4] = ["sends", "receives", "deletes", "other_requests"];

/// An interceptor that counts requests.
#[derive(Debug)]
pub(crate) struct Counting;

impl Intercept for Counting {
    fn name(&self) -> &'static str {
        "Counting"
    }

    fn read_before_transmit(
        &self,
        context: &BeforeTransmitInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let target = context.request().headers().get("x-amz-target").unwrap_or_default();
        let kinds = ["AmazonSQS.SendMessage", "AmazonSQS.ReceiveMessage", "AmazonSQS.DeleteMessage"];
        let kind = kinds.iter().position(|kind| target.starts_with(kind)).unwrap_or(kinds.len());
        REQUESTS[kind].fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// The processor time of this process, in nanoseconds.
pub(crate) fn cpu() -> u64 {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    spent.tv_sec as u64 * 1_000_000_000 + spent.tv_nsec as u64
}
