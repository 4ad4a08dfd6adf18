//! An unbounded mailbox: several producers, one consumer, batches.
//!
//! `cargo run --example unbounded_mailbox`

use std::thread;

use postbox_core::shared::mailbox::MailboxProducer;
use postbox_core::{Mailbox, UnboundedMailbox};

fn main() {
    let mailbox = UnboundedMailbox::new();
    let producers: Vec<_> = (0..4)
        .map(|number| {
            let producer = mailbox.producer();
            thread::spawn(move || {
                for line in 0..1000 {
                    producer.try_send(format!("{number}: line {line}")).expect("an unbounded mailbox always accepts");
                }
            })
        })
        .collect();

    // One synchronisation for up to 100 messages.
    let (mut batch, mut batches, mut lines) = (Vec::new(), 0, 0);
    while let Ok(first) = mailbox.recv_blocking() {
        batch.push(first);
        mailbox.drain_into(&mut batch, 99);
        lines += batch.len();
        batches += 1;
        batch.clear();
    }
    for producer in producers {
        producer.join().expect("a producer");
    }
    println!("{lines} lines in {batches} batches; {} messages in the mailbox's life", mailbox.message_count());
    assert_eq!(lines, 4000);
}
