//! Callers that drop operations, do not poll them or end their runtime, and users' own clients.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use postbox::aws::SqsBackend;
use postbox::aws::sqs::Client;
use postbox::aws::sqs::config::interceptors::BeforeTransmitInterceptorContextRef;
use postbox::aws::sqs::config::{ConfigBag, Intercept, RuntimeComponents};
use postbox::aws::sqs::error::BoxError;
use postbox::{Error, Mailbox};
use postbox_test_servers::Fate;
use tokio::runtime::Builder;

use super::{Begun, HOURS, LONG, TestQueue, begin, end, moto, take_all, until};

/// Polls an operation once.
fn look<T>(begun: &mut Begun<T>) -> Option<T> {
    match begun.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

/// Polls an operation until its request has reached the proxy.
fn ask<T>(queue: &TestQueue, begun: &mut Begun<T>, operation: &str) {
    until("its request", || {
        assert!(look(begun).is_none());
        queue.proxy.count(operation) == 1
    });
}

fn bodies(jobs: &Mailbox<u64, u64>) -> Vec<u64> {
    let mut bodies: Vec<_> = take_all(jobs).iter().map(|message| message.body).collect();
    bodies.sort_unstable();
    bodies
}

#[test]
fn a_settle_waits_for_another_no_longer_than_its_lease() {
    let queue = TestQueue::moto();
    let jobs = queue.jobs();
    jobs.send(&1).blocking().unwrap();
    let message = jobs.receive().visibility_timeout(Duration::from_secs(2)).blocking().unwrap().remove(0);
    queue.first(1, "DeleteMessage", || Fate::StallReply);
    let mut idle = begin(message.acknowledge());
    ask(&queue, &mut idle, "DeleteMessage");
    let result = message.nack().blocking();
    assert!(matches!(result, Err(Error::ReceiptHandleExpired { .. })), "{result:?}");
    queue.proxy.clear_faults();
    // The server did it, but the caller polled too late to know whether the lease still held.
    let result = end([idle]).remove(0);
    assert!(matches!(result, Err(Error::ReceiptHandleExpired { .. })), "{result:?}");
    assert_eq!(jobs.approximate_count().blocking().unwrap(), 0);
}

/// An interceptor that records the threads that make requests.
#[derive(Clone, Debug, Default)]
struct Threads(Arc<Mutex<BTreeSet<String>>>);

impl Threads {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap()).into_iter().collect()
    }
}

impl Intercept for Threads {
    fn name(&self) -> &'static str {
        "Threads"
    }

    fn read_before_transmit(
        &self,
        _: &BeforeTransmitInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        self.0.lock().unwrap().insert(std::thread::current().name().unwrap_or_default().into());
        Ok(())
    }
}

async fn cycle(jobs: Mailbox<u64, u64>) {
    jobs.send(&1).await.unwrap();
    jobs.send_batch(&[2, 3]).await.unwrap().into_iter().for_each(|sent| drop(sent.unwrap()));
    let mut left = 3;
    while left > 0 {
        let messages = jobs.receive().max_messages(3).wait_time(LONG).await.unwrap();
        left -= messages.len();
        for message in messages {
            message.acknowledge().await.unwrap();
        }
    }
}

#[test]
fn interceptors_of_the_users_client_see_every_request() {
    for suffix in ["", ".fifo"] {
        let queue = TestQueue::new(moto(), suffix);
        let threads = Threads::default();
        let config = queue.client().config().to_builder().interceptor(threads.clone()).build();
        let backend = SqsBackend::builder(Client::from_conf(config)).create_missing(true);
        let jobs = queue.mailbox(backend);
        jobs.create().blocking().unwrap();
        assert_eq!(threads.take(), ["postbox-network"]);

        let several = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        several.block_on(several.spawn(cycle(jobs.clone()))).unwrap();
        // The caller's runtime needs no I/O.
        Builder::new_current_thread().build().unwrap().block_on(cycle(jobs.clone()));
        // A blocking call within an async task works too.
        let waits = several.spawn({
            let jobs = jobs.clone();
            async move {
                jobs.send(&1).blocking().unwrap();
                let message = jobs.stream().blocking().next().unwrap().unwrap();
                message.acknowledge().blocking().unwrap();
            }
        });
        several.block_on(waits).unwrap();
        assert_eq!(threads.take(), ["postbox-network"]);
    }
}

#[test]
fn operations_of_dropped_callers_are_completed() {
    let queue = TestQueue::moto();
    let jobs = queue.jobs();
    for fate in [|| Fate::Stall, || Fate::StallReply] {
        queue.first(1, "SendMessage", fate);
        let mut sends = begin(jobs.send(&1));
        ask(&queue, &mut sends, "SendMessage");
        drop(sends);
        queue.proxy.clear_faults();
        queue.proxy.reset_counts();
        let message = jobs.receive().wait_time(LONG).blocking().unwrap().remove(0);
        queue.first(1, "DeleteMessage", fate);
        let mut done = begin(message.acknowledge());
        ask(&queue, &mut done, "DeleteMessage");
        drop(done);
        queue.proxy.clear_faults();
        until("it is gone", || queue.others().approximate_count().blocking().unwrap() == 0);
        queue.proxy.reset_counts();
    }
}

/// The messages of a dropped receive go to another receiver, or are released if there is none.
#[test]
fn a_dropped_receive_loses_no_message() {
    for has_other in [true, false] {
        let queue = TestQueue::moto();
        let jobs = queue.jobs();
        jobs.send(&7).blocking().unwrap();
        queue.proxy.reset_counts();
        queue.first(1, "ReceiveMessage", || Fate::StallReply);
        let mut waits = begin(jobs.receive().visibility_timeout(HOURS).wait_time(LONG));
        ask(&queue, &mut waits, "ReceiveMessage");
        queue.proxy.wait_until_held(1);
        drop(waits);
        let mailbox = if has_other { jobs } else { queue.others() };
        let other = begin(mailbox.receive().visibility_timeout(HOURS).wait_time(LONG));
        queue.proxy.clear_faults();
        let got = end([other]).remove(0).unwrap();
        assert_eq!((got[0].body, got[0].delivery_count), (7, if has_other { 1 } else { 2 }));
    }
}

/// A lease starts when the response arrives, not when the caller polls.
#[test]
fn a_lease_begins_when_the_answer_comes() {
    let lease = Duration::from_secs(2);
    let queue = TestQueue::moto();
    let jobs = queue.jobs();
    jobs.send(&1).blocking().unwrap();
    queue.proxy.reset_counts();
    queue.first(1, "ReceiveMessage", || Fate::StallReply);
    let mut waits = begin(jobs.receive().visibility_timeout(lease).wait_time(LONG));
    ask(&queue, &mut waits, "ReceiveMessage");
    queue.proxy.wait_until_held(1);
    let (sender, woken) = mpsc::channel();
    let waker = Waker::from(Arc::new(WakeSender(sender)));
    assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    queue.proxy.clear_faults();
    woken.recv_timeout(LONG).unwrap();
    let came = Instant::now();
    until("its lease has ended", || came.elapsed() > lease);
    let message = end([waits]).remove(0).unwrap().remove(0);
    let result = message.acknowledge().blocking();
    assert!(matches!(result, Err(Error::ReceiptHandleExpired { .. })), "{result:?}");
    assert_eq!(bodies(&queue.others()), [1]);
}

struct WakeSender(mpsc::Sender<()>);

impl Wake for WakeSender {
    fn wake(self: Arc<Self>) {
        let _ = self.0.send(());
    }
}

#[test]
fn the_end_of_a_callers_runtime_loses_no_operation() {
    let queue = TestQueue::moto();
    let jobs = queue.jobs();
    for fate in [|| Fate::Stall, || Fate::StallReply] {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        queue.proxy.reset_counts();
        // The shared long poll may return messages for receivers that have ended.
        let waits = [(); 2].map(|()| {
            let waits = jobs.receive().visibility_timeout(Duration::from_secs(1)).wait_time(LONG);
            runtime.spawn(waits.into_future())
        });
        queue.proxy.wait_for("ReceiveMessage", 1);
        queue.first(1, "SendMessage", fate);
        let sends = runtime.spawn(jobs.send(&1).into_future());
        queue.proxy.wait_until_held(1);
        runtime.shutdown_background();
        queue.proxy.clear_faults();
        jobs.send(&2).blocking().unwrap();
        let mut got = Vec::new();
        while !(got.contains(&1) && got.contains(&2)) {
            let messages = jobs.receive().visibility_timeout(HOURS).wait_time(LONG).blocking().unwrap();
            got.extend(messages.iter().map(|message| message.body));
            jobs.acknowledge_batch(&messages).blocking().unwrap().into_iter().for_each(|done| done.unwrap());
        }
        drop((sends, waits));
        // A message may be there twice: its send was repeated because its connection had ended.
        take_all(&jobs);
    }
}
