//! `postbox move`: moves messages from one mailbox to another.

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use postbox::operation::KeepAlive;
use postbox::worker::Cancellation;
use postbox::{Error, MessageId};
use serde_json::json;

use crate::commands::{on_interrupt, open, open_existing, progress};
use crate::output::{self, Failure};
use crate::raw::{Mailbox, RawCodec};

type Message = postbox::Message<Bytes, Bytes, RawCodec>;

/// Length of a lease. Leases of messages that are not moved are renewed.
const LEASE: Duration = Duration::from_secs(60);
/// Maximum total time for which a lease is renewed. A longer move would receive such messages a second time.
const MAX_RENEWAL: Duration = Duration::from_secs(12 * 60 * 60);

/// The state of a move.
#[derive(Default)]
struct Transfer {
    moved: u64,
    /// Number of requests, which stay because their replies are awaited in the store of the source.
    requests: u64,
    /// Number of messages that the target refused.
    refused: u64,
    /// The first refused message, and the target's error.
    refusal: Option<(MessageId, Error)>,
    /// Messages that stay. They are leased until the end: if they were released earlier, they would be received again.
    kept: Vec<(Message, Option<KeepAlive>)>,
    kept_ids: HashSet<MessageId>,
}

/// Runs the command. Messages that were leased and not moved are released, also after an error or an interruption.
pub(crate) fn run(from_url: &str, to_url: &str, max: Option<u64>, json: bool) -> Result<(), Failure> {
    let (from, to) = (open_existing(from_url)?, open(to_url)?);
    if from.is_same_as(&to).blocking()? {
        return Err(Failure::Other("FROM and TO are the same mailbox; choose another target".into()));
    }
    let interrupted = Cancellation::new();
    let token = interrupted.clone();
    let note = "releasing messages that are not moved; press Ctrl-C again to exit at once";
    on_interrupt(note, json, move || token.cancel())?;
    let mut transfer = Transfer::default();
    let moved_all = transfer.move_all(&from, &to, max, &interrupted);
    let released = transfer.release_kept();
    let counts = from.counts().blocking();
    let [delayed, leased] = match &counts {
        Ok(counts) => [Some(counts.delayed), Some(counts.in_flight)],
        Err(_) => [None; 2],
    };
    let Transfer { moved, requests, refused, refusal, .. } = transfer;
    output::line(if json {
        json!({
            "moved": moved, "requests_left": requests, "refused_left": refused, "delayed_left": delayed,
            "in_flight_left": leased,
        })
        .to_string()
    } else {
        let parts = [
            (requests, "requests stay where their replies are awaited"),
            (refused, "messages stay that TO does not take"),
            (delayed.unwrap_or(0), "delayed messages stay"),
            (leased.unwrap_or(0), "leased messages stay"),
        ];
        let parts = parts.iter().filter(|(count, _)| *count > 0);
        parts.fold(format!("{moved} messages moved"), |text, (count, what)| format!("{text}; {count} {what}"))
    })?;
    moved_all.and(released).and(counts.map(drop))?;
    if let Some((id, error)) = refusal {
        return Err(Failure::Other(format!(
            "{refused} messages were not moved and are still in FROM; the first one is {id}: {error}"
        )));
    }
    match interrupted.is_cancelled() {
        true => Err(Failure::Interrupted("interrupted; run the same command again to move the remaining messages")),
        false => Ok(()),
    }
}

impl Transfer {
    fn move_all(
        &mut self,
        from: &Mailbox,
        to: &Mailbox,
        max: Option<u64>,
        interrupted: &Cancellation,
    ) -> Result<(), Error> {
        let ready = from.counts().blocking()?.ready;
        let progress = progress(max.map_or(ready, |max| max.min(ready)), "moved");
        let batch = from.limits().max_batch.min(to.limits().max_batch).min(100);
        while !interrupted.is_cancelled() && max.is_none_or(|max| self.moved < max) {
            let size = max.map_or(batch, |max| batch.min(usize::try_from(max - self.moved).unwrap_or(batch)));
            let messages = from.receive().max_messages(size).visibility_timeout(LEASE).blocking()?;
            if messages.is_empty() {
                break;
            }
            let mut failure = None;
            for message in messages {
                if failure.is_some() || interrupted.is_cancelled() {
                    self.kept.push((message, None));
                } else if let Err(error) = self.move_one(message, to) {
                    failure = Some(error);
                }
                progress.set_position(self.moved);
            }
            failure.map_or(Ok(()), Err)?;
        }
        progress.finish_and_clear();
        Ok(())
    }

    fn move_one(&mut self, message: Message, to: &Mailbox) -> Result<(), Error> {
        // The reply is awaited in the reply store of the source, so a request cannot be moved.
        if message.expects_reply() {
            self.requests += u64::from(self.keep(message));
            return Ok(());
        }
        match send_and_acknowledge(&message, to) {
            Ok(()) => self.moved += 1,
            // The target refuses this message, for example because another message has its id. Go on with the others.
            Err(error @ Error::InvalidParameter { .. }) => {
                let id = message.id.clone();
                if self.keep(message) {
                    self.refused += 1;
                    self.refusal.get_or_insert((id, error));
                }
            }
            Err(error) => {
                self.kept.push((message, None));
                return Err(error);
            }
        }
        Ok(())
    }

    /// Keeps a message leased until the end. Returns `false` if the message was kept before and has lost that lease.
    fn keep(&mut self, message: Message) -> bool {
        let is_new = self.kept_ids.insert(message.id.clone());
        let renewal = message.keep_alive(LEASE, MAX_RENEWAL);
        self.kept.push((message, Some(renewal)));
        is_new
    }

    /// Releases the kept messages: each returns to its old position, and its delivery does not count.
    fn release_kept(&mut self) -> Result<(), Error> {
        let mut failure = Ok(());
        for (message, _renewal) in self.kept.drain(..) {
            match message.release().blocking() {
                // An expired lease has already made the message visible.
                Ok(()) | Err(Error::ReceiptHandleExpired { .. }) => {}
                Err(error) => failure = failure.and(Err(error)),
            }
        }
        failure
    }
}

/// Sends a message to the target, then acknowledges it. If the command is killed in between, both mailboxes have the
/// message. A repeated move sends it with the same id, which stores no second copy.
fn send_and_acknowledge(message: &Message, to: &Mailbox) -> Result<(), Error> {
    let mut send = to
        .send(&message.body)
        .id(message.id.clone())
        .content_type(message.content_type().clone())
        .enqueued_at(message.enqueued_at);
    for (name, value) in &message.attributes {
        send = send.attribute(name, value);
    }
    if let Some(address) = &message.reply_to {
        send = send.reply_to(address);
    }
    send.blocking()?;
    message.acknowledge().blocking()
}
