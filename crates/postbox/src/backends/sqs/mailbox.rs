//! A mailbox of SQS: the verbs of [`ByteMailbox`], on its [`Queue`].

use std::fmt;
use std::sync::Arc;

use futures_util::future::join_all;

use super::queue::Queue;
use crate::backend::{ByteMailbox, Counts, DeadLetter, Delivery, Outgoing, Receipt, Receive, Redrive, Visibility};
use crate::error::Error;
use crate::mailbox::id::MessageId;
use crate::mailbox::operation::Answer;
use crate::runtime::io_thread;

pub(super) struct SqsMailbox {
    queue: Arc<Queue>,
}

impl fmt::Debug for SqsMailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqsMailbox").field("queue", &self.queue.describe()).finish()
    }
}

/// Waits for the results of a batch.
fn join<T: Send + 'static>(mut answers: Vec<Answer<T>>) -> Answer<Vec<T>> {
    match answers.len() {
        1 => answers.pop().expect("the length is one").map(|answer| vec![answer]),
        _ => Answer::from_future(async move { join_all(answers).await }),
    }
}

impl SqsMailbox {
    pub(super) fn new(queue: Arc<Queue>) -> Self {
        SqsMailbox { queue }
    }

    fn unsupported<T>(&self, operation: &'static str) -> Answer<Result<T, Error>> {
        Answer::ready(Err(Error::Unsupported { backend: super::KIND, operation }))
    }

    /// Runs an operation on the I/O thread.
    fn run<T: Send + 'static, F: Future<Output = Result<T, Error>> + Send + 'static>(
        &self,
        operation: impl FnOnce(Arc<Queue>) -> F,
    ) -> Answer<Result<T, Error>> {
        io_thread::ask(operation(Arc::clone(&self.queue)))
    }
}

impl ByteMailbox for SqsMailbox {
    fn send(&self, messages: Vec<Outgoing>) -> Answer<Vec<Result<MessageId, Error>>> {
        // SQS does not tell a duplicate from the first message. The reply to a duplicate would never
        // come.
        let is_deduplicated_request = |message: &Outgoing| {
            message.headers.as_ref().is_some_and(|headers| headers.reply.is_some())
                && message.special.as_ref().is_some_and(|special| special.deduplication.is_some())
        };
        if messages.iter().any(is_deduplicated_request) {
            let operation = "send a request with a deduplication id: SQS does not tell which message was the first";
            let refuse = |_| Err(Error::Unsupported { backend: super::KIND, operation });
            return Answer::ready(messages.iter().map(refuse).collect());
        }
        join(self.queue.send(messages))
    }

    fn receive(&self, request: Receive) -> Answer<Result<Vec<Delivery>, Error>> {
        self.queue.receive(request)
    }

    fn acknowledge(&self, receipts: Vec<Receipt>) -> Answer<Vec<Result<(), Error>>> {
        join(self.queue.acknowledge(receipts))
    }

    fn set_visibility(&self, changes: Vec<(Receipt, Visibility)>) -> Answer<Vec<Result<(), Error>>> {
        join(self.queue.set_visibility(changes))
    }

    fn dead_letter(&self, entries: Vec<(Receipt, String)>) -> Answer<Vec<Result<(), Error>>> {
        let entries = entries
            .into_iter()
            .map(|(receipt, reason)| self.run(|queue| async move { queue.dead_letter(receipt, reason).await }));
        join(entries.collect())
    }

    fn purge(&self) -> Answer<Result<u64, Error>> {
        self.run(|queue| async move { queue.purge().await })
    }

    fn identity(&self) -> Answer<Result<String, Error>> {
        self.run(|queue| async move { Ok(queue.info().await?.url.clone()) })
    }

    fn counts(&self) -> Answer<Result<Counts, Error>> {
        self.run(|queue| async move {
            let [ready, delayed, in_flight] = queue.counts().await?;
            Ok(Counts::new(ready, delayed, in_flight, queue.count_dead_letters().await?))
        })
    }

    fn create(&self) -> Answer<Result<(), Error>> {
        self.run(|queue| async move { queue.create().await })
    }

    fn delete(&self) -> Answer<Result<(), Error>> {
        self.run(|queue| async move { queue.delete().await })
    }

    fn cancel(&self, _: MessageId) -> Answer<Result<bool, Error>> {
        self.unsupported("cancel a delayed message")
    }

    fn peek(&self, _: usize) -> Answer<Result<Vec<Delivery>, Error>> {
        self.unsupported("show messages without delivering them")
    }

    fn dead_letters(&self, max: usize) -> Answer<Result<Vec<DeadLetter>, Error>> {
        self.run(move |queue| async move { queue.list_dead_letters(max).await })
    }

    fn redrive(&self, which: Redrive) -> Answer<Result<u64, Error>> {
        self.run(|queue| async move { queue.redrive(which).await })
    }

    fn purge_dead_letters(&self) -> Answer<Result<u64, Error>> {
        self.run(|queue| async move { queue.purge_dead_letters().await })
    }
}
