//! PendingSend: letters into batches.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_sqs::types::SendMessageBatchRequestEntry as SendEntry;

use super::client::QueueInfo;
use super::error::AwsError;
use super::message_format::{EncodedMessage, MessageContent, whole_seconds};
use super::queue::{BatchResponse, Queue, SAFE_BATCH_BYTES};
use crate::backend::Outgoing;
use crate::error::Error;
use crate::mailbox::id::MessageId;
use crate::mailbox::operation::Answer;
use crate::runtime::batcher::{Entry, Work, submit};
use crate::runtime::oneshot;

/// How old what is known of a queue may be when it is held against somebody.
const FRESH: Duration = Duration::from_secs(60);

/// A message that waits to be sent.
pub(super) struct PendingSend {
    message: Outgoing,
    /// Whose order it is in.
    group: Option<String>,
    sender: oneshot::Sender<MessageId>,
}

impl Entry for PendingSend {
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
        let entries = messages.into_iter().filter_map(|message| {
            if let Err(error) = self.check(&message) {
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
        let (info, letters) = match self.letters(&entries).await {
            Ok(known) => known,
            Err(error) => return entries.iter().for_each(|entry| entry.sender.send(Err(error.clone()))),
        };
        let most_bytes = info.max_message_size.max(SAFE_BATCH_BYTES);
        let (mut part, mut bytes) = (Vec::new(), 0);
        for (entry, letter) in entries.into_iter().zip(letters) {
            if letter.size > info.max_message_size {
                let limit = format!(
                    "up to {} bytes, the MaximumMessageSize of queue {:?}, body and attributes as SQS keeps them",
                    info.max_message_size, self.queue
                );
                entry.sender.send(Err(Error::invalid("message size", format!("{} bytes", letter.size), limit)));
                continue;
            }
            if bytes + letter.size > most_bytes {
                self.send_part(&info, std::mem::take(&mut part)).await;
                bytes = 0;
            }
            bytes += letter.size;
            part.push((entry, letter));
        }
        self.send_part(&info, part).await;
    }

    /// What is known of the queue, and the messages as it keeps them. Known afresh if one of them seems too large for it.
    async fn letters(
        self: &Arc<Self>,
        entries: &[PendingSend],
    ) -> Result<(Arc<QueueInfo>, Vec<EncodedMessage>), Error> {
        let written = |info: Arc<QueueInfo>| {
            let letters: Vec<_> = entries.iter().map(|entry| letter(&info, &entry.message)).collect();
            (info, letters)
        };
        let (info, letters) = written(self.info().await?);
        let fits = letters.iter().all(|letter| letter.size <= info.max_message_size);
        if fits || info.since.elapsed() < FRESH {
            return Ok((info, letters));
        }
        self.forget();
        Ok(written(self.info().await?))
    }

    /// Whether SQS takes the ids of a message by which it keeps order.
    fn check(&self, message: &Outgoing) -> Result<(), Error> {
        if !self.is_fifo {
            return Ok(());
        }
        let special = message.special.as_deref();
        let (group, once) =
            special.map_or((None, None), |special| (special.group.as_deref(), special.deduplication.as_deref()));
        // It stands for those that are not given.
        let own = (group.is_none() || once.is_none()).then(|| message.id.to_string());
        for (parameter, id) in [("group", group), ("deduplication_id", once), ("id", own.as_deref())] {
            if let Some(id) = id.filter(|id| !is_order_id(id)) {
                return Err(Error::invalid(parameter, format!("{id:?}"), ORDER_IDS));
            }
        }
        Ok(())
    }

    /// The group of a message, on a queue that has them. Without one it waits for no other.
    fn group(&self, message: &Outgoing) -> Option<String> {
        let wanted = || message.special.as_deref().and_then(|special| special.group.clone());
        let usual = || self.client.config.group.clone();
        self.is_fifo.then(|| wanted().or_else(usual).unwrap_or_else(|| message.id.to_string()))
    }

    async fn send_part(&self, info: &QueueInfo, entries: Vec<(PendingSend, EncodedMessage)>) {
        // Messages of one group keep their order.
        let is_before = |one: &(PendingSend, EncodedMessage), other: &(PendingSend, EncodedMessage)| {
            one.0.group.is_some() && one.0.group == other.0.group
        };
        let results =
            self.request_with_retries(entries, |_| Ok(()), is_before, |entries| self.send_request(info, entries)).await;
        for ((entry, _), result) in results {
            // A message that may be one that was sent before has the queue's own id: that of the first.
            let id =
                result.map_err(|aws_error| self.error(aws_error)).map(|sent| match is_once(info, &entry.message) {
                    true => sent.into(),
                    false => entry.message.id.clone(),
                });
            entry.sender.send(id);
        }
    }

    fn send_request<'a>(
        &'a self,
        info: &QueueInfo,
        entries: &[(PendingSend, EncodedMessage)],
    ) -> Pin<Box<dyn Future<Output = Result<BatchResponse, AwsError>> + Send + 'a>> {
        let client = &self.client.sdk;
        let mut entries: Vec<SendEntry> =
            entries.iter().enumerate().map(|(at, (entry, letter))| self.entry(info, at, entry, letter)).collect();
        if entries.len() == 1
            && let Some(entry) = entries.pop()
        {
            let request = client
                .send_message()
                .queue_url(&info.url)
                .message_body(entry.message_body)
                .set_message_attributes(entry.message_attributes)
                .set_delay_seconds(entry.delay_seconds)
                .set_message_group_id(entry.message_group_id)
                .set_message_deduplication_id(entry.message_deduplication_id)
                .send();
            return Box::pin(async move {
                let answer = request.await.map_err(|error| AwsError::from_sdk(&self.describe(), error))?;
                Ok((vec![(entry.id, answer.message_id.unwrap_or_default())], Vec::new()))
            });
        }
        let request = client.send_message_batch().queue_url(&info.url).set_entries(Some(entries)).send();
        Box::pin(async move {
            let answer = request.await.map_err(|error| AwsError::from_sdk(&self.describe(), error))?;
            let sent = answer.successful.into_iter().map(|entry| (entry.id, entry.message_id));
            Ok((sent.collect(), answer.failed))
        })
    }

    fn entry(&self, info: &QueueInfo, at: usize, entry: &PendingSend, letter: &EncodedMessage) -> SendEntry {
        let message = &entry.message;
        let wanted = || message.special.as_deref().and_then(|special| special.deduplication.clone());
        let own = || (!is_once(info, message)).then(|| message.id.to_string());
        let deduplication = if self.is_fifo { wanted().or_else(own) } else { None };
        SendEntry::builder()
            .id(at.to_string())
            .message_body(&letter.body)
            .set_message_attributes(Some(letter.attributes.clone()))
            .set_delay_seconds((!message.delay.is_zero()).then(|| whole_seconds(message.delay)))
            .set_message_group_id(entry.group.clone())
            .set_message_deduplication_id(deduplication)
            .build()
            .expect("it has an id and a body")
    }
}

/// What SQS takes as a group or as an id for deduplication.
pub(super) const ORDER_IDS: &str = "1 to 128 letters, digits and punctuation marks of ASCII on a FIFO queue";

pub(super) fn is_order_id(text: &str) -> bool {
    (1..=128).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Whether it may be one that was sent before: then its id is the queue's own. A request is always new, since whoever asks waits for
/// the reply to this one.
fn is_once(info: &QueueInfo, message: &Outgoing) -> bool {
    let is_request = message.headers.as_ref().is_some_and(|headers| headers.reply.is_some());
    let is_said = message.special.as_deref().is_some_and(|special| special.deduplication.is_some());
    is_said || info.content_based_deduplication && !is_request
}

fn letter(info: &QueueInfo, message: &Outgoing) -> EncodedMessage {
    EncodedMessage::new(MessageContent {
        id: (!is_once(info, message)).then_some(&message.id),
        body: &message.body,
        content_type: &message.content_type,
        headers: message.headers.as_deref(),
        dead: None,
    })
}
