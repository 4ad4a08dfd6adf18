//! `postbox move`: from any mailbox to any other.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use postbox::{Cancellation, Error};
use serde_json::json;

use crate::commands::{on_interrupt, open, open_existing, progress};
use crate::output::{self, Failure};
use crate::plain::{Mailbox, Plain};

type Message = postbox::Message<Bytes, Bytes, Plain>;

/// Whatever ends it, all that it leased and did not move is given back.
pub(crate) fn run(from_url: &str, to_url: &str, max: Option<u64>, json: bool) -> Result<(), Failure> {
    let (from, to) = (open_existing(from_url)?, open(to_url)?);
    if from.name() == to.name() && place(from_url) == place(to_url) {
        return Err(Failure::Other("FROM and TO are the same mailbox; name another one to move to".into()));
    }
    let interrupted = Cancellation::new();
    let token = interrupted.clone();
    on_interrupt("what was not moved is given back; Ctrl-C again ends at once", json, move || token.cancel())?;
    let there = from.counts().blocking()?.ready;
    let progress = progress(max.map_or(there, |max| max.min(there)), "moved");
    let batch = from.limits().max_batch.min(to.limits().max_batch).min(100);
    let (mut moved, mut requests) = (0, 0);
    let (mut kept, mut failure): (Vec<Message>, Option<Error>) = (Vec::new(), None);
    while failure.is_none() && !interrupted.is_cancelled() && max.is_none_or(|max| moved < max) {
        let room = max.map_or(batch, |max| batch.min(usize::try_from(max - moved).unwrap_or(batch)));
        let receive = from.receive().max_messages(room).visibility_timeout(Duration::from_secs(60));
        let messages = match receive.blocking() {
            Ok(messages) if messages.is_empty() => break,
            Ok(messages) => messages,
            Err(error) => {
                failure = Some(error);
                break;
            }
        };
        for message in messages {
            // What wants a reply has it in the store of its own place: it cannot be moved. Given back now, it would come
            // again and again.
            let is_request = message.expects_reply();
            requests += u64::from(is_request);
            if is_request || failure.is_some() || interrupted.is_cancelled() {
                kept.push(message);
            } else if let Err(error) = hand_over(&message, &to) {
                failure = Some(error);
                kept.push(message);
            } else {
                moved += 1;
                progress.set_position(moved);
            }
        }
    }
    for message in kept {
        match message.nack().blocking() {
            // Its lease has ended by itself.
            Ok(()) | Err(Error::ReceiptHandleExpired { .. }) => {}
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    progress.finish_and_clear();
    output::line(match (json, requests) {
        (true, _) => json!({ "moved": moved, "requests_left": requests }).to_string(),
        (false, 0) => format!("{moved} messages moved"),
        (false, _) => format!("{moved} messages moved; {requests} requests stay where their replies are awaited"),
    })?;
    match failure {
        Some(error) => Err(error.into()),
        None if interrupted.is_cancelled() => {
            Err(Failure::Interrupted("interrupted; the same command again goes on with what is left"))
        }
        None => Ok(()),
    }
}

/// Sent first and acknowledged then: interrupted in between a message is in both, never in none.
fn hand_over(message: &Message, to: &Mailbox) -> Result<(), Error> {
    let mut send = to.send(&message.body);
    for (name, value) in &message.attributes {
        send = send.attribute(name, value);
    }
    if let Some(address) = &message.reply_to {
        send = send.reply_to(address);
    }
    send.blocking()?;
    message.acknowledge().blocking()
}

/// Where a mailbox is, without its name: two ways to write the path of a file are one place.
fn place(url: &str) -> PathBuf {
    let url = url.split(['?', '#']).next().unwrap_or(url);
    let place = url.rsplit_once('/').map_or(url, |(place, _)| place);
    let file = place.strip_prefix("sqlite://").and_then(|file| Path::new(file).canonicalize().ok());
    file.unwrap_or_else(|| place.into())
}
