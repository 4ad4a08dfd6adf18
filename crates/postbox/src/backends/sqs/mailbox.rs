//! A mailbox on a queue.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;

use super::queue::{Queue, lock};
use crate::backend::{
    Batch, ByteMailbox, Counts, DeadLetter, Delivery, Outgoing, Receipt, Receive, Redrive, Visibility,
};
use crate::error::Error;
use crate::mailbox::id::MessageId;
use crate::mailbox::operation::Answer;
use crate::runtime::io_thread;

pub(super) struct SqsMailbox {
    pub(super) queue: Arc<Queue>,
}

impl fmt::Debug for SqsMailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqsMailbox").field("queue", &self.queue.describe()).finish()
    }
}

/// The answers to a batch, when all are there.
fn all<T: Send + 'static>(mut answers: Vec<Answer<T>>) -> Answer<Batch<T>> {
    match answers.len() {
        1 => answers.pop().expect("there is one").map(|answer| Batch::from_buf([answer])),
        _ => Answer::from_future(async move { join_all(answers).await.into() }),
    }
}

impl SqsMailbox {
    fn unsupported<T>(&self, operation: &'static str) -> Answer<Result<T, Error>> {
        Answer::ready(Err(Error::Unsupported { backend: super::KIND, operation }))
    }

    fn ask<T: Send + 'static, F: Future<Output = Result<T, Error>> + Send + 'static>(
        &self,
        act: impl FnOnce(Arc<Queue>) -> F,
    ) -> Answer<Result<T, Error>> {
        io_thread::ask(act(Arc::clone(&self.queue)))
    }
}

impl ByteMailbox for SqsMailbox {
    fn send(&self, messages: Batch<Outgoing>) -> Answer<Batch<Result<MessageId, Error>>> {
        // Whoever asks would wait for the reply of a message that was never stored: SQS does not tell a duplicate.
        let is_request_once = |message: &Outgoing| {
            let asks = message.headers.as_ref().is_some_and(|headers| headers.reply.is_some());
            asks && message.special.as_ref().is_some_and(|special| special.deduplication.is_some())
        };
        if messages.iter().any(is_request_once) {
            let operation = "send a request with a deduplication id: SQS does not tell which message was the first";
            let refuse = |_| Err(Error::Unsupported { backend: super::KIND, operation });
            return Answer::ready(messages.iter().map(refuse).collect());
        }
        all(self.queue.send(messages))
    }

    fn receive(&self, request: Receive) -> Answer<Result<Vec<Delivery>, Error>> {
        self.queue.receive(request)
    }

    fn acknowledge(&self, receipts: Batch<Receipt>) -> Answer<Batch<Result<(), Error>>> {
        all(self.queue.acknowledge(receipts))
    }

    fn set_visibility(&self, changes: Batch<(Receipt, Visibility)>) -> Answer<Batch<Result<(), Error>>> {
        all(self.queue.set_visibility(changes))
    }

    fn dead_letter(&self, letters: Batch<(Receipt, String)>) -> Answer<Batch<Result<(), Error>>> {
        let letters = letters
            .into_iter()
            .map(|(receipt, reason)| self.ask(|queue| async move { queue.dead_letter(receipt, reason).await }));
        all(letters.collect())
    }

    fn purge(&self) -> Answer<Result<u64, Error>> {
        self.ask(|queue| async move {
            let info = queue.info().await?;
            let last = *lock(&queue.purged);
            let purged = queue.client.purge(&info.url, last).await.map_err(|aws_error| queue.error(aws_error))?;
            *lock(&queue.purged) = Some(Instant::now());
            Ok(purged)
        })
    }

    fn identity(&self) -> Answer<Result<String, Error>> {
        self.ask(|queue| async move { Ok(queue.info().await?.url.clone()) })
    }

    fn counts(&self) -> Answer<Result<Counts, Error>> {
        self.ask(|queue| async move {
            let info = queue.info().await?;
            let (_, [ready, delayed, in_flight]) =
                queue.client.count(&info.url).await.map_err(|aws_error| queue.error(aws_error))?;
            Ok(Counts::new(ready, delayed, in_flight, queue.count_dead_letters().await?))
        })
    }

    fn create(&self) -> Answer<Result<(), Error>> {
        self.ask(|queue| async move { queue.create().await })
    }

    fn delete(&self) -> Answer<Result<(), Error>> {
        self.ask(|queue| async move { queue.delete().await })
    }

    fn cancel(&self, _: MessageId) -> Answer<Result<bool, Error>> {
        self.unsupported("cancel a delayed message")
    }

    fn peek(&self, _: usize) -> Answer<Result<Vec<Delivery>, Error>> {
        self.unsupported("show messages without delivering them")
    }

    fn dead_letters(&self, max: usize) -> Answer<Result<Vec<DeadLetter>, Error>> {
        self.ask(move |queue| async move { queue.list_dead_letters(max).await })
    }

    fn redrive(&self, which: Redrive) -> Answer<Result<u64, Error>> {
        self.ask(|queue| async move { queue.redrive(which).await })
    }

    fn purge_dead_letters(&self) -> Answer<Result<u64, Error>> {
        self.ask(|queue| async move { queue.purge_dead_letters().await })
    }
}
