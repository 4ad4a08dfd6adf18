//! Sending: letters into batches.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_sqs::types::SendMessageBatchRequestEntry as SendEntry;

use super::fault::{Fault, fault};
use super::lane::Entry;
use super::letter::{Content, Letter, whole_seconds};
use super::queue::{Outcome, Queue, SURE_BYTES};
use super::region::Facts;
use crate::backend::Outgoing;
use crate::error::Error;
use crate::id::MessageId;
use crate::near::Work;
use crate::operation::Answer;
use crate::promise::{Promise, promise};

/// How old what is known of a queue may be when it is held against somebody.
const FRESH: Duration = Duration::from_secs(60);

/// A message that waits to be sent.
pub(super) struct Sending {
    message: Outgoing,
    promise: Promise<MessageId>,
}

impl Entry for Sending {
    fn bytes(&self) -> usize {
        // Attributes are few; where they are not, the request is divided.
        self.message.body.len() + 512
    }
}

impl Queue {
    pub(super) fn send(
        self: &Arc<Self>,
        messages: impl IntoIterator<Item = Outgoing>,
    ) -> Vec<Answer<Result<MessageId, Error>>> {
        let mut answers = Vec::new();
        let entries = messages.into_iter().map(|message| {
            let (promise, sent) = promise(None);
            answers.push(Answer::from_future(sent));
            Sending { message, promise }
        });
        let entries: Vec<_> = entries.collect();
        let request: fn(Arc<Queue>, Vec<Sending>) -> Work =
            |queue, entries| Box::pin(async move { queue.send_all(entries).await });
        self.put(|queue| &queue.sends, entries, request, answers)
    }

    async fn send_all(self: &Arc<Self>, entries: Vec<Sending>) {
        let letters: Vec<Letter> = entries.iter().map(|entry| letter(&entry.message)).collect();
        let largest = letters.iter().map(|letter| letter.size).max().unwrap_or(0);
        let facts = match self.facts_for(largest).await {
            Ok(facts) => facts,
            Err(error) => return entries.iter().for_each(|entry| entry.promise.fulfil(Err(error.clone()))),
        };
        let most_bytes = facts.most.max(SURE_BYTES);
        let (mut part, mut bytes) = (Vec::new(), 0);
        for (entry, letter) in entries.into_iter().zip(letters) {
            if letter.size > facts.most {
                let limit = format!(
                    "up to {} bytes, the MaximumMessageSize of queue {:?}, body and attributes as SQS keeps them",
                    facts.most, self.queue
                );
                entry.promise.fulfil(Err(Error::invalid("message size", format!("{} bytes", letter.size), limit)));
                continue;
            }
            if bytes + letter.size > most_bytes {
                self.send_part(&facts, std::mem::take(&mut part)).await;
                bytes = 0;
            }
            bytes += letter.size;
            part.push((entry, letter));
        }
        self.send_part(&facts, part).await;
    }

    /// What is known of the queue; fresh if a message seems too large for it.
    async fn facts_for(self: &Arc<Self>, bytes: usize) -> Result<Arc<Facts>, Error> {
        let facts = self.facts().await?;
        if bytes <= facts.most || facts.since.elapsed() < FRESH {
            return Ok(facts);
        }
        self.forget();
        self.facts().await
    }

    async fn send_part(&self, facts: &Facts, entries: Vec<(Sending, Letter)>) {
        let results = self.patiently(entries, |entries| self.ask_sends(facts, entries)).await;
        for ((entry, _), result) in results {
            // A message that may be one that was sent before has the queue's own id: that of the first.
            let id = result.map_err(|fault| self.failed(fault)).map(|sent| match deduplicates(&entry.message) {
                true => sent.into(),
                false => entry.message.id.clone(),
            });
            entry.promise.fulfil(id);
        }
    }

    fn ask_sends<'a>(
        &'a self,
        facts: &Facts,
        entries: &[(Sending, Letter)],
    ) -> Pin<Box<dyn Future<Output = Result<Outcome, Fault>> + Send + 'a>> {
        let client = &self.region.client;
        let mut entries: Vec<SendEntry> =
            entries.iter().enumerate().map(|(at, (entry, letter))| self.entry(facts, at, entry, letter)).collect();
        if entries.len() == 1
            && let Some(entry) = entries.pop()
        {
            let request = client
                .send_message()
                .queue_url(&facts.url)
                .message_body(entry.message_body)
                .set_message_attributes(entry.message_attributes)
                .set_delay_seconds(entry.delay_seconds)
                .set_message_group_id(entry.message_group_id)
                .set_message_deduplication_id(entry.message_deduplication_id)
                .send();
            return Box::pin(async move {
                let answer = request.await.map_err(|error| fault(&self.shown(), error))?;
                Ok((vec![(entry.id, answer.message_id.unwrap_or_default())], Vec::new()))
            });
        }
        let request = client.send_message_batch().queue_url(&facts.url).set_entries(Some(entries)).send();
        Box::pin(async move {
            let answer = request.await.map_err(|error| fault(&self.shown(), error))?;
            let sent = answer.successful.into_iter().map(|entry| (entry.id, entry.message_id));
            Ok((sent.collect(), answer.failed))
        })
    }

    fn entry(&self, facts: &Facts, at: usize, entry: &Sending, letter: &Letter) -> SendEntry {
        let message = &entry.message;
        let special = message.special.as_deref();
        let own = || message.id.to_string();
        let (mut group, mut deduplication) = (None, None);
        if self.is_fifo {
            // Without a group it waits for no other.
            let wanted = special.and_then(|special| special.group.clone());
            group = Some(wanted.or_else(|| self.region.manners.group.clone()).unwrap_or_else(own));
            deduplication = special.and_then(|special| special.deduplication.clone());
            if deduplication.is_none() && !facts.by_content {
                deduplication = Some(own());
            }
        }
        SendEntry::builder()
            .id(at.to_string())
            .message_body(&letter.body)
            .set_message_attributes(Some(letter.attributes.clone()))
            .set_delay_seconds((!message.delay.is_zero()).then(|| whole_seconds(message.delay)))
            .set_message_group_id(group)
            .set_message_deduplication_id(deduplication)
            .build()
            .expect("it has an id and a body")
    }
}

/// Whether it may be one that was sent before.
fn deduplicates(message: &Outgoing) -> bool {
    message.special.as_deref().is_some_and(|special| special.deduplication.is_some())
}

fn letter(message: &Outgoing) -> Letter {
    Letter::new(Content {
        id: (!deduplicates(message)).then_some(&message.id),
        body: &message.body,
        content_type: &message.content_type,
        headers: message.headers.as_deref(),
        dead: None,
    })
}
