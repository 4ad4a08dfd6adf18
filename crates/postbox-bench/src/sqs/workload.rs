//! What tasks do with a queue, and what it costs the client: requests, processor time. The peers that are programs of their
//! own do it by this file too.

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

/// The most that SQS takes or gives in one request.
pub(crate) const FULL: usize = 10;

/// How long a receiver waits for a message, in seconds. Not longer, since the last ones of a round wait in vain.
pub(crate) const WAIT: u16 = 1;

/// How many messages are sent and not acknowledged: producers wait for room. Servers for tests slow down with each message that they keep.
const ROOM: usize = 640;

/// No round takes so long.
const STUCK: Duration = Duration::from_secs(300);

/// A queue as tasks use it.
pub(crate) trait Queue: Clone + Send + Sync + 'static {
    /// Sends a message for each number, as one batch where there are several.
    fn send(&self, numbers: Range<u64>) -> impl Future<Output = ()> + Send;
    /// Receives, reads and acknowledges what comes. Says how many there were.
    fn receive(&self) -> impl Future<Output = usize> + Send;
}

pub(crate) fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// So many messages through the queue, sent in batches of a size. One task sends, receives and acknowledges in turn; of many
/// half send, half receive and acknowledge. How long it took until the last was acknowledged.
pub(crate) async fn cycles<Q: Queue>(queue: Q, tasks: usize, batch: usize, many: usize) -> Duration {
    let work = async {
        match tasks {
            1 => in_turn(queue, batch, many).await,
            _ => at_once(queue, tasks / 2, batch, many).await,
        }
    };
    tokio::time::timeout(STUCK, work).await.expect("all messages come")
}

async fn in_turn<Q: Queue>(queue: Q, batch: usize, many: usize) -> Duration {
    let start = Instant::now();
    for number in (0..many).step_by(batch) {
        queue.send(number as u64..(number + batch) as u64).await;
        let mut received = 0;
        while received < batch {
            received += queue.receive().await;
        }
    }
    start.elapsed()
}

async fn at_once<Q: Queue>(queue: Q, pairs: usize, batch: usize, many: usize) -> Duration {
    let next = Arc::new(AtomicUsize::new(0));
    let done = Arc::new(AtomicUsize::new(0));
    let room = Arc::new(Semaphore::new(ROOM));
    let end = Arc::new(OnceLock::new());
    let start = Instant::now();
    let mut running = Vec::new();
    for _ in 0..pairs {
        let (queue_, next, room_) = (queue.clone(), Arc::clone(&next), Arc::clone(&room));
        running.push(tokio::spawn(async move {
            loop {
                let number = next.fetch_add(batch, Ordering::Relaxed);
                if number >= many {
                    break;
                }
                room_.acquire_many(batch as u32).await.expect("it is open").forget();
                queue_.send(number as u64..(number + batch) as u64).await;
            }
        }));
        let (queue, done, room, end) = (queue.clone(), Arc::clone(&done), Arc::clone(&room), Arc::clone(&end));
        running.push(tokio::spawn(async move {
            while done.load(Ordering::Relaxed) < many {
                let received = queue.receive().await;
                room.add_permits(received);
                if received > 0 && done.fetch_add(received, Ordering::Relaxed) + received == many {
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

/// Requests that went out, with those that were repeated.
pub(crate) static REQUESTS: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];

/// What [`REQUESTS`] are about.
#[allow(dead_code, reason = "the programs of peers only count")]
pub(crate) const KINDS: [&str; 4] = ["sends", "receives", "deletes", "other_requests"];

/// Counts them.
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

/// What this process has spent on the processors, in nanoseconds.
pub(crate) fn cpu() -> u64 {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    spent.tv_sec as u64 * 1_000_000_000 + spent.tv_nsec as u64
}
