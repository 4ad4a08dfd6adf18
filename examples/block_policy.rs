//! The Block policy: a fast producer waits for a slow consumer, on tokio and on smol, with the same code.
//!
//! `cargo run --example block_policy`

use postbox_core::BoundedMailbox;
use postbox_core::shared::mailbox::{QueueMailbox, QueueMailboxProducer};

const MESSAGES: u32 = 1000;

async fn produce(producer: QueueMailboxProducer<u32>) {
    for number in 0..MESSAGES {
        // The third message finds the mailbox full: the task parks until the consumer has taken one.
        producer.send(number).await.expect("the consumer is there");
    }
}

async fn consume(mailbox: QueueMailbox<u32>, executor: &str) {
    let (mut received, mut most) = (0, 0);
    while let Ok(number) = mailbox.recv().await {
        assert_eq!(number, received, "in order");
        received += 1;
        most = most.max(postbox_core::Mailbox::size(&mailbox));
    }
    println!("{executor}: received {received}, never more than {most} waiting");
    assert!(received == MESSAGES && most <= 2);
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a tokio runtime");
    let mailbox = BoundedMailbox::new(2);
    runtime.spawn(produce(mailbox.producer()));
    let consumer = (*mailbox).clone();
    runtime.block_on(consume(consumer, "tokio"));

    let mailbox = BoundedMailbox::new(2);
    smol::spawn(produce(mailbox.producer())).detach();
    let consumer = (*mailbox).clone();
    smol::block_on(consume(consumer, "smol"));
}
