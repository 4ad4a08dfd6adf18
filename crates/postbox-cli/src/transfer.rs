//! `postbox move`: from any mailbox to any other.

use std::time::Duration;

use serde_json::json;

use crate::commands::{interrupted, progress};
use crate::output::{self, Failure};
use crate::plain::Mailbox;

/// A message is sent first and acknowledged then: interrupted in between it is in both, never in none.
pub(crate) fn run(from: &Mailbox, to: &Mailbox, max: Option<u64>, json: bool) -> Result<(), Failure> {
    let interrupted = interrupted()?;
    let there = from.counts().blocking()?.ready;
    let progress = progress(max.map_or(there, |max| max.min(there)), "moved");
    let batch = from.limits().max_batch.min(to.limits().max_batch).min(100);
    let mut moved = 0;
    while !interrupted.is_cancelled() && max.is_none_or(|max| moved < max) {
        let room = max.map_or(batch, |max| batch.min(usize::try_from(max - moved).unwrap_or(batch)));
        let messages = from.receive().max_messages(room).visibility_timeout(Duration::from_secs(60)).blocking()?;
        if messages.is_empty() {
            break;
        }
        for message in messages {
            let mut send = to.send(&message.body);
            for (name, value) in &message.attributes {
                send = send.attribute(name, value);
            }
            if let Some(address) = &message.reply_to {
                send = send.reply_to(address);
            }
            // What wants a reply has it in the store of its own place: it cannot be moved.
            if message.expects_reply() || interrupted.is_cancelled() {
                message.nack().visibility_timeout(Duration::from_secs(1)).blocking()?;
                continue;
            }
            if let Err(error) = send.blocking() {
                message.nack().blocking()?;
                progress.abandon();
                return Err(error.into());
            }
            message.acknowledge().blocking()?;
            moved += 1;
            progress.set_position(moved);
        }
        if from.counts().blocking()?.ready == 0 {
            break;
        }
    }
    progress.finish_and_clear();
    output::line(if json { json!({ "moved": moved }).to_string() } else { format!("{moved} messages moved") })
}
