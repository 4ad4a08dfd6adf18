//! Sends messages, in batches.

use std::sync::Arc;
use std::time::Duration;

use aws_sdk_sqs::types::SendMessageBatchRequestEntry;

use super::client::QueueInfo;
use super::message_format::{EncodedMessage, MessageContent, whole_seconds};
use super::queue::{BatchRequest, BatchResponse, Queue, SAFE_BATCH_BYTES};
use crate::backend::Outgoing;
use crate::error::Error;
use crate::mailbox::id::MessageId;
use crate::mailbox::operation::Answer;
use crate::runtime::batcher::{Entry, Work, submit};
use crate::runtime::oneshot;

/// Attributes of a queue that are older are read again before a message is refused for its size.
const MAX_INFO_AGE: Duration = Duration::from_secs(60);

/// A message that waits to be sent.
pub(super) struct PendingSend {
    message: Outgoing,
    /// The message group. `None` on standard queues.
    group: Option<String>,
    sender: oneshot::Sender<MessageId>,
}

impl Entry for PendingSend {
    fn bytes(&self) -> usize {
        // An estimate of the attributes. `send_all` divides a request that is too large.
        self.message.body.len() + 512
    }
}

impl Queue {
    pub(super) fn send(
        self: &Arc<Self>,
        messages: impl IntoIterator<Item = Outgoing>,
    ) -> Vec<Answer<Result<MessageId, Error>>> {
        let mut answers = Vec::new();
        let entries = messages.into_iter().filter_map(|message| {
            if let Err(error) = self.check_ids(&message) {
                answers.push(Answer::ready(Err(error)));
                return None;
            }
            let (sender, sent) = oneshot::channel(None);
            answers.push(Answer::from_future(sent));
            Some(PendingSend { group: self.group(&message), message, sender })
        });
        let entries: Vec<_> = entries.collect();
        let serve = |queue: Arc<Queue>, entries| -> Work { Box::pin(async move { queue.send_all(entries).await }) };
        submit(self, |queue| &queue.sends, serve, entries);
        answers
    }

    async fn send_all(self: &Arc<Self>, entries: Vec<PendingSend>) {
        let (info, encoded) = match self.encode(&entries).await {
            Ok(encoded) => encoded,
            Err(error) => return entries.iter().for_each(|entry| entry.sender.send(Err(error.clone()))),
        };
        let max_bytes = info.max_message_size.max(SAFE_BATCH_BYTES);
        let (mut batch, mut bytes) = (Vec::new(), 0);
        for (entry, encoded) in entries.into_iter().zip(encoded) {
            if encoded.size > info.max_message_size {
                let limit = format!(
                    "up to {} bytes, the MaximumMessageSize of queue {:?}, body and attributes as SQS keeps them",
                    info.max_message_size, self.name
                );
                entry.sender.send(Err(Error::invalid("message size", format!("{} bytes", encoded.size), limit)));
                continue;
            }
            if bytes + encoded.size > max_bytes {
                self.send_batch(&info, std::mem::take(&mut batch)).await;
                bytes = 0;
            }
            bytes += encoded.size;
            batch.push((entry, encoded));
        }
        self.send_batch(&info, batch).await;
    }

    /// Encodes messages. If one is too large, the limit of the queue is read again, since it may
    /// have changed.
    async fn encode(self: &Arc<Self>, entries: &[PendingSend]) -> Result<(Arc<QueueInfo>, Vec<EncodedMessage>), Error> {
        let encode_all =
            |info: &QueueInfo| -> Vec<_> { entries.iter().map(|entry| encode(info, &entry.message)).collect() };
        let info = self.info().await?;
        let encoded = encode_all(&info);
        let fits = encoded.iter().all(|encoded| encoded.size <= info.max_message_size);
        if fits || info.read_at.elapsed() < MAX_INFO_AGE {
            return Ok((info, encoded));
        }
        self.forget_info();
        let info = self.info().await?;
        let encoded = encode_all(&info);
        Ok((info, encoded))
    }

    /// Checks the ids by which a FIFO queue orders and deduplicates.
    fn check_ids(&self, message: &Outgoing) -> Result<(), Error> {
        if !self.is_fifo {
            return Ok(());
        }
        let special = message.special.as_deref();
        let group = special.and_then(|special| special.group.as_deref());
        let deduplication = special.and_then(|special| special.deduplication.as_deref());
        // The id of the message stands in for a missing one.
        let own = (group.is_none() || deduplication.is_none()).then(|| message.id.to_string());
        for (parameter, id) in [("group", group), ("deduplication_id", deduplication), ("id", own.as_deref())] {
            if let Some(id) = id.filter(|id| !is_fifo_id(id)) {
                return Err(Error::invalid(parameter, format!("{id:?}"), FIFO_ID_RULE));
            }
        }
        Ok(())
    }

    /// The message group on a FIFO queue. A message without one is a group by itself.
    fn group(&self, message: &Outgoing) -> Option<String> {
        let given = || message.special.as_deref().and_then(|special| special.group.clone());
        let default = || self.client.config.default_group.clone();
        self.is_fifo.then(|| given().or_else(default).unwrap_or_else(|| message.id.to_string()))
    }

    async fn send_batch(&self, info: &QueueInfo, entries: Vec<(PendingSend, EncodedMessage)>) {
        let is_same_group = |first: &(PendingSend, EncodedMessage), second: &(PendingSend, EncodedMessage)| {
            first.0.group.is_some() && first.0.group == second.0.group
        };
        let request = |entries: &[(PendingSend, EncodedMessage)]| self.request_sends(info, entries);
        for ((entry, _), result) in self.request_with_retries(entries, |_| Ok(()), is_same_group, request).await {
            let id = result.map_err(|error| self.error(error)).map(|sqs_id| match has_sqs_id(info, &entry.message) {
                true => sqs_id.into(),
                false => entry.message.id.clone(),
            });
            entry.sender.send(id);
        }
    }

    fn request_sends(&self, info: &QueueInfo, entries: &[(PendingSend, EncodedMessage)]) -> BatchRequest<'_> {
        let sdk = &self.client.sdk;
        let mut entries: Vec<_> = entries
            .iter()
            .enumerate()
            .map(|(index, (entry, encoded))| self.request_entry(info, index, entry, encoded))
            .collect();
        if entries.len() == 1
            && let Some(entry) = entries.pop()
        {
            let request = sdk
                .send_message()
                .queue_url(&info.url)
                .message_body(entry.message_body)
                .set_message_attributes(entry.message_attributes)
                .set_delay_seconds(entry.delay_seconds)
                .set_message_group_id(entry.message_group_id)
                .set_message_deduplication_id(entry.message_deduplication_id);
            return self
                .batch_request(request.send(), |response| BatchResponse::one(response.message_id.unwrap_or_default()));
        }
        let request = sdk.send_message_batch().queue_url(&info.url).set_entries(Some(entries));
        self.batch_request(request.send(), |response| {
            let succeeded = response.successful.into_iter().map(|entry| (entry.id, entry.message_id));
            BatchResponse::new(succeeded, response.failed)
        })
    }

    fn request_entry(
        &self,
        info: &QueueInfo,
        index: usize,
        entry: &PendingSend,
        encoded: &EncodedMessage,
    ) -> SendMessageBatchRequestEntry {
        let message = &entry.message;
        let given = || message.special.as_deref().and_then(|special| special.deduplication.clone());
        let own = || (!has_sqs_id(info, message)).then(|| message.id.to_string());
        SendMessageBatchRequestEntry::builder()
            .id(index.to_string())
            .message_body(&encoded.body)
            .set_message_attributes(Some(encoded.attributes.clone()))
            .set_delay_seconds((!message.delay.is_zero()).then(|| whole_seconds(message.delay)))
            .set_message_group_id(entry.group.clone())
            .set_message_deduplication_id(if self.is_fifo { given().or_else(own) } else { None })
            .build()
            .expect("the entry has an id and a body")
    }
}

/// What SQS accepts as a message group or as a deduplication id.
pub(super) const FIFO_ID_RULE: &str = "1 to 128 letters, digits and punctuation marks of ASCII on a FIFO queue";

pub(super) fn is_fifo_id(text: &str) -> bool {
    (1..=128).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Whether SQS's id is the id of the message, because SQS may deduplicate it: a repeated send then
/// returns the id of the first. A request is never deduplicated by content, because each request
/// has a separate reply.
fn has_sqs_id(info: &QueueInfo, message: &Outgoing) -> bool {
    let is_request = message.headers.as_ref().is_some_and(|headers| headers.reply.is_some());
    let has_deduplication_id = message.special.as_deref().is_some_and(|special| special.deduplication.is_some());
    has_deduplication_id || info.content_based_deduplication && !is_request
}

fn encode(info: &QueueInfo, message: &Outgoing) -> EncodedMessage {
    EncodedMessage::new(MessageContent {
        id: (!has_sqs_id(info, message)).then_some(&message.id),
        body: &message.body,
        content_type: &message.content_type,
        headers: message.headers.as_deref(),
        dead_letter: None,
    })
}
