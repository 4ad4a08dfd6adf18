//! The same futures on Tokio, on smol and on a thread (X1), and threads together with tasks.

use std::thread;

use postbox_core::shared::mailbox::*;
use postbox_core::{BoundedMailbox, UnboundedMailbox};

const MESSAGES: u64 = 20_000;

async fn produce(producer: QueueMailboxProducer<u64>) {
    for n in 0..MESSAGES {
        producer.send(n).await.unwrap();
    }
}

async fn consume(mailbox: QueueMailbox<u64>) -> (u64, u64) {
    let (mut count, mut sum) = (0, 0);
    while let Ok(n) = mailbox.recv().await {
        count += 1;
        sum += n;
    }
    (count, sum)
}

const SUM: u64 = MESSAGES * (MESSAGES - 1) / 2;

#[test]
fn tokio_tasks() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    runtime.block_on(async {
        for capacity in [1, 16, 1024] {
            let mailbox = BoundedMailbox::new(capacity);
            let producers: Vec<_> = (0..3).map(|_| tokio::spawn(produce(mailbox.producer()))).collect();
            let consumers: Vec<_> = (0..2).map(|_| tokio::spawn(consume((*mailbox).clone()))).collect();
            for producer in producers {
                producer.await.unwrap();
            }
            let mut total = (0, 0);
            for consumer in consumers {
                let (count, sum) = consumer.await.unwrap();
                total = (total.0 + count, total.1 + sum);
            }
            assert_eq!(total, (3 * MESSAGES, 3 * SUM), "capacity {capacity}");
        }
    });
}

#[test]
fn a_tokio_timer_ends_a_wait() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mailbox = UnboundedMailbox::<u8>::new();
        let timer = Box::pin(tokio::time::sleep(std::time::Duration::from_secs(3600)));
        assert_eq!(mailbox.recv().until(timer).await, Err(QueueError::Empty));
    });
}

#[test]
fn smol_tasks() {
    let executor = smol::Executor::new();
    let mailbox = BoundedMailbox::new(4);
    let producer = executor.spawn(produce(mailbox.producer()));
    let consumer = executor.spawn(consume((*mailbox).clone()));
    smol::block_on(executor.run(async {
        producer.await;
        assert_eq!(consumer.await, (MESSAGES, SUM));
    }));
}

#[test]
fn single_thread_tasks_share_a_mailbox_without_send() {
    let executor = smol::LocalExecutor::new();
    let (mailbox, producer) = SingleThread.build_mailbox(MailboxOptions::with_capacity(4));
    let sender = executor.spawn(async move {
        for n in 0..1000u64 {
            producer.send(std::rc::Rc::new(n)).await.unwrap();
        }
    });
    let receiver = executor.spawn(async move {
        let mut sum = 0;
        while let Ok(n) = mailbox.recv().await {
            sum += *n;
        }
        sum
    });
    smol::block_on(executor.run(async {
        sender.await;
        assert_eq!(receiver.await, 1000 * 999 / 2);
    }));
}

#[test]
fn threads_and_tasks_share_a_mailbox() {
    let mailbox = BoundedMailbox::new(8);
    let producers: Vec<_> = (0..2)
        .map(|_| {
            let producer = mailbox.producer();
            thread::spawn(move || (0..MESSAGES).for_each(|n| assert!(producer.send_blocking(n).is_ok())))
        })
        .collect();
    let plain = {
        let mailbox = mailbox.clone();
        thread::spawn(move || {
            let (mut count, mut sum) = (0, 0);
            while let Ok(n) = mailbox.recv_blocking() {
                count += 1;
                sum += n;
            }
            (count, sum)
        })
    };
    let task = smol::block_on(consume((*mailbox).clone()));
    producers.into_iter().for_each(|producer| producer.join().unwrap());
    let plain = plain.join().unwrap();
    assert_eq!((task.0 + plain.0, task.1 + plain.1), (2 * MESSAGES, 2 * SUM));
}
