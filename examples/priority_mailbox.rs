//! A priority mailbox: the most urgent first, in order of arrival among equals, and control messages before all.
//!
//! `cargo run --example priority_mailbox`

use postbox_core::{Mailbox, PriorityMailbox};

/// Lower is more urgent.
fn urgency(message: &&str) -> i64 {
    match message.split(':').next() {
        Some("CRITICAL") => 0,
        Some("HIGH") => 5,
        Some("NORMAL") => 10,
        _ => 15,
    }
}

fn main() {
    let mailbox = PriorityMailbox::new(urgency);
    let producer = mailbox.producer();
    for message in ["NORMAL: report", "CRITICAL: fire", "whenever", "HIGH: leak", "CRITICAL: flood"] {
        assert!(mailbox.enqueue(message));
    }
    producer.try_send_control("shift change").expect("there is room for control messages");
    let order: Vec<&str> = std::iter::from_fn(|| mailbox.dequeue()).collect();
    for message in &order {
        println!("{message}");
    }
    assert_eq!(
        order,
        ["shift change", "CRITICAL: fire", "CRITICAL: flood", "HIGH: leak", "NORMAL: report", "whenever"]
    );
}
