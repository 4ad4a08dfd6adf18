//! A bounded mailbox under each overflow policy: what happens to the sixth message of five.
//!
//! `cargo run --example bounded_mailbox`

use postbox_core::shared::mailbox::{MailboxQueueBackend, OverflowPolicy};
use postbox_core::{BoundedMailbox, Mailbox};

fn main() {
    for policy in [OverflowPolicy::Block, OverflowPolicy::DropNewest, OverflowPolicy::DropOldest, OverflowPolicy::Grow]
    {
        let mailbox = BoundedMailbox::with_overflow(5, policy);
        for number in 1..=5 {
            assert!(mailbox.enqueue(number));
        }
        let outcome = mailbox.queue().try_offer(6);
        let left: Vec<i32> = std::iter::from_fn(|| mailbox.dequeue()).collect();
        println!(
            "{policy:?}: {outcome:?}, then in the mailbox: {left:?}, refused or evicted: {}",
            mailbox.rejected_count()
        );
    }
}
