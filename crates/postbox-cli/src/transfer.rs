//! `postbox move`: from any mailbox to any other.

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

/// Messages are leased for this long, and longer if they are kept.
const LEASE: Duration = Duration::from_secs(60);
/// No move takes longer. Afterwards the messages that stay are received once more.
const LONGEST: Duration = Duration::from_secs(12 * 60 * 60);

/// What has become of the messages so far.
#[derive(Default)]
struct Report {
    moved: u64,
    /// Requests, whose replies are awaited in the place that they are in.
    requests: u64,
    /// Messages that the target does not take, and why it does not take the first.
    refused: u64,
    refusal: Option<(MessageId, Error)>,
    /// Messages that stay. They are leased until the end: given back before, they would be received again.
    kept: Vec<(Message, Option<KeepAlive>)>,
    kept_ids: HashSet<MessageId>,
}

/// Whatever ends it, all that it leased and did not move is given back.
pub(crate) fn run(from_url: &str, to_url: &str, max: Option<u64>, json: bool) -> Result<(), Failure> {
    let (from, to) = (open_existing(from_url)?, open(to_url)?);
    if from.is_same_as(&to).blocking()? {
        return Err(Failure::Other("FROM and TO are the same mailbox; name another one to move to".into()));
    }
    let interrupted = Cancellation::new();
    let token = interrupted.clone();
    on_interrupt("what was not moved is given back; Ctrl-C again ends at once", json, move || token.cancel())?;
    let mut report = Report::default();
    let moved_all = report.move_all(&from, &to, max, &interrupted);
    let returned = report.give_back();
    let counts = from.counts().blocking();
    let [delayed, leased] = match &counts {
        Ok(counts) => [Some(counts.delayed), Some(counts.in_flight)],
        Err(_) => [None; 2],
    };
    let Report { moved, requests, refused, refusal, .. } = report;
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
        let parts = parts.iter().filter(|(many, _)| *many > 0);
        parts.fold(format!("{moved} messages moved"), |text, (many, what)| format!("{text}; {many} {what}"))
    })?;
    moved_all.and(returned).and(counts.map(drop))?;
    if let Some((id, error)) = refusal {
        return Err(Failure::Other(format!(
            "{refused} messages were not moved, the first of them, {id}, because {error}"
        )));
    }
    match interrupted.is_cancelled() {
        true => Err(Failure::Interrupted("interrupted; the same command again goes on with what is left")),
        false => Ok(()),
    }
}

impl Report {
    fn move_all(
        &mut self,
        from: &Mailbox,
        to: &Mailbox,
        max: Option<u64>,
        interrupted: &Cancellation,
    ) -> Result<(), Error> {
        let there = from.counts().blocking()?.ready;
        let progress = progress(max.map_or(there, |max| max.min(there)), "moved");
        let batch = from.limits().max_batch.min(to.limits().max_batch).min(100);
        while !interrupted.is_cancelled() && max.is_none_or(|max| self.moved < max) {
            let room = max.map_or(batch, |max| batch.min(usize::try_from(max - self.moved).unwrap_or(batch)));
            let messages = from.receive().max_messages(room).visibility_timeout(LEASE).blocking()?;
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
        // What wants a reply has it in the store of its own place: it cannot be moved.
        if message.expects_reply() {
            self.requests += u64::from(self.keep(message));
            return Ok(());
        }
        match hand_over(&message, to) {
            Ok(()) => self.moved += 1,
            // This message is not allowed there, as with an id that another message has. Others may be.
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

    /// Keeps a message to the end. `false` if its lease was lost meanwhile, and this is the same message again.
    fn keep(&mut self, message: Message) -> bool {
        let is_new = self.kept_ids.insert(message.id.clone());
        let alive = message.keep_alive(LEASE, LONGEST);
        self.kept.push((message, Some(alive)));
        is_new
    }

    /// To its old place, and uncounted: no handler has seen it.
    fn give_back(&mut self) -> Result<(), Error> {
        let mut failure = Ok(());
        for (message, _alive) in self.kept.drain(..) {
            match message.release().blocking() {
                // Its lease has ended by itself.
                Ok(()) | Err(Error::ReceiptHandleExpired { .. }) => {}
                Err(error) => failure = failure.and(Err(error)),
            }
        }
        failure
    }
}

/// Sent first and acknowledged then: interrupted in between a message is in both, never in none. Its id makes one of the two
/// when the move is repeated.
fn hand_over(message: &Message, to: &Mailbox) -> Result<(), Error> {
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
