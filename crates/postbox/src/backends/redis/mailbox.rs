//! One mailbox on a server.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use redis::{Value, cmd};

use super::error::RequestError;
use super::message_format::{ENTRY, bytes, delivery, integer, list, member, millis, moment, natural};
use super::queue::{IDENTITY, Queue, REGISTRY};
use super::requests::{ACKNOWLEDGE, DEAD_LETTER, EXTEND, RELEASE, RETURN};
use super::script;
use crate::backend::{
    Batch, ByteMailbox, Counts, DeadLetter, Delivery, Outgoing, Receipt, Receive, Redrive, Visibility,
};
use crate::error::Error;
use crate::mailbox::id::{MessageId, new_uuid};
use crate::mailbox::operation::Answer;
use crate::runtime::clock::{Clock as _, Moment, SystemClock};
use crate::runtime::io_thread;
use crate::runtime::waiters::{Waits, look_until};

pub(super) struct RedisMailbox {
    pub(super) queue: Arc<Queue>,
    /// As long as there is a handle, whoever opens the address again shares its connection.
    pub(super) _backend: Arc<super::Inner>,
}

impl fmt::Debug for RedisMailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisMailbox").field("name", &self.queue.name).finish_non_exhaustive()
    }
}

impl RedisMailbox {
    /// A verb with a result for each of its entries.
    fn each<E>(
        &self,
        entries: Batch<E>,
        act: impl Fn(E) -> (Receipt, &'static [u8], Bytes),
    ) -> Answer<Batch<Result<(), Error>>> {
        let mut settlements = Vec::with_capacity(entries.len());
        let mut ids: Vec<(MessageId, bool)> = Vec::with_capacity(entries.len());
        for entry in entries {
            let (receipt, letter, argument) = act(entry);
            let member = member(&receipt);
            ids.push((receipt.id, member.is_some()));
            settlements.extend(member.map(|member| (letter, member, argument)));
        }
        let ended = |id| Err(Error::ReceiptHandleExpired { id });
        if settlements.is_empty() {
            return Answer::ready(ids.into_iter().map(|(id, _)| ended(id)).collect());
        }
        self.queue.settle(settlements).map(move |done| match done {
            Err(error) => ids.iter().map(|_| Err(error.clone())).collect(),
            Ok(done) => {
                let mut done = done.into_iter();
                let mut is_done = |is_ours: bool| is_ours && done.next().unwrap_or(false);
                ids.into_iter().map(|(id, is_ours)| if is_done(is_ours) { Ok(()) } else { ended(id) }).collect()
            }
        })
    }
}

/// A number of messages, as scripts take it: more than a mailbox holds is as good as the largest number.
pub(super) fn at_most(many: usize) -> Bytes {
    many.min(i32::MAX as usize).to_string().into()
}

/// Takes what comes until the deadline. It looks and waits where the connection is: what the server tells of is asked for at once,
/// and the receiver is woken when it is there.
async fn long_poll(queue: Arc<Queue>, request: Receive, deadline: Moment) -> Result<Vec<Delivery>, Error> {
    let waits = Waits::begin(Arc::clone(&queue.client), |client| &client.waiters, queue.channel.clone());
    let look = || {
        let queue = Arc::clone(&queue);
        if queue.client.is_subscribed(&queue.channel) {
            return queue.receive(request);
        }
        let subscribing = {
            let queue = Arc::clone(&queue);
            io_thread::ask(async move { queue.client.subscribe(&queue.channel).await })
        };
        subscribing.then(move |subscribed| match subscribed {
            Ok(()) => queue.receive(request),
            Err(error) => Answer::ready(Err(error)),
        })
    };
    look_until(waits.hub(), &SystemClock::shared(), SystemClock.now().until(deadline), look).await
}

impl ByteMailbox for RedisMailbox {
    fn send(&self, messages: Batch<Outgoing>) -> Answer<Batch<Result<MessageId, Error>>> {
        if let Some(bad) = messages.iter().find(|message| message.id.as_u128().is_none()) {
            let error = Error::invalid("message id", &bad.id, "a UUID");
            return Answer::ready(messages.iter().map(|_| Err(error.clone())).collect());
        }
        let many = messages.len();
        self.queue.send(messages).map(move |sent| match sent {
            Ok(results) => results.into(),
            Err(error) => (0..many).map(|_| Err(error.clone())).collect(),
        })
    }

    fn receive(&self, request: Receive) -> Answer<Result<Vec<Delivery>, Error>> {
        if request.wait.is_zero() {
            return self.queue.receive(request).map(|taken| Ok(taken?.0));
        }
        let queue = Arc::clone(&self.queue);
        let deadline = SystemClock.now().after(request.wait);
        self.queue.receive(request).then(move |first| match first {
            Ok((found, _)) if found.is_empty() => {
                let back = Arc::clone(&queue);
                let undelivered = move |(found, since): (Vec<Delivery>, Instant)| back.give_back(&found, since);
                let found = async move {
                    let found = long_poll(queue, request, deadline).await?;
                    Ok((found, Instant::now()))
                };
                io_thread::wait(found, Some(Box::new(undelivered))).map(|found| Ok(found?.0))
            }
            first => Answer::ready(first.map(|(found, _)| found)),
        })
    }

    fn acknowledge(&self, receipts: Batch<Receipt>) -> Answer<Batch<Result<(), Error>>> {
        self.each(receipts, |receipt| (receipt, ACKNOWLEDGE, Bytes::new()))
    }

    fn set_visibility(&self, changes: Batch<(Receipt, Visibility)>) -> Answer<Batch<Result<(), Error>>> {
        self.each(changes, |(receipt, visibility)| match visibility {
            Visibility::Return(after) => (receipt, RETURN, millis(after).to_string().into()),
            Visibility::Extend(by) => (receipt, EXTEND, millis(by).to_string().into()),
            Visibility::Release => (receipt, RELEASE, Bytes::new()),
        })
    }

    fn dead_letter(&self, letters: Batch<(Receipt, String)>) -> Answer<Batch<Result<(), Error>>> {
        self.each(letters, |(receipt, reason)| (receipt, DEAD_LETTER, reason.into()))
    }

    fn purge(&self) -> Answer<Result<u64, Error>> {
        self.queue.run_alone(&script::PURGE, vec![], |many| natural(&many))
    }

    fn identity(&self) -> Answer<Result<String, Error>> {
        let queue = Arc::clone(&self.queue);
        io_thread::ask(async move {
            let failed = |error: RequestError| error.into_error(&queue.client.address);
            let new = new_uuid().to_string();
            queue.client.command(cmd("SET").arg(IDENTITY).arg(new).arg("NX")).await.map_err(failed)?;
            let database = queue.client.command(cmd("GET").arg(IDENTITY)).await.map_err(failed)?;
            Ok(format!("{}/{}", String::from_utf8_lossy(&bytes(database)), queue.name))
        })
    }

    fn counts(&self) -> Answer<Result<Counts, Error>> {
        self.queue.run_alone(&script::COUNTS, vec![], |answer| {
            let counts: Vec<u64> = list(answer).iter().map(natural).collect();
            let count = |at: usize| counts.get(at).copied().unwrap_or(0);
            Counts::new(count(0), count(1), count(2), count(3))
        })
    }

    fn create(&self) -> Answer<Result<(), Error>> {
        let queue = Arc::clone(&self.queue);
        self.queue.run_alone(&script::CREATE, vec![], |_| ()).then(move |made| match made {
            Ok(()) => io_thread::ask(async move {
                queue.register().await;
                Ok(())
            }),
            Err(error) => Answer::ready(Err(error)),
        })
    }

    fn delete(&self) -> Answer<Result<(), Error>> {
        let queue = Arc::clone(&self.queue);
        self.queue.run_alone(&script::DELETE, vec![], |_| ()).then(move |gone| match gone {
            Ok(()) => io_thread::ask(async move {
                queue.is_gone();
                let _ = queue.client.command(cmd("SREM").arg(REGISTRY).arg(queue.name.to_string())).await;
                Ok(())
            }),
            Err(error) => Answer::ready(Err(error)),
        })
    }

    fn cancel(&self, id: MessageId) -> Answer<Result<bool, Error>> {
        let Some(id) = id.as_u128() else { return Answer::ready(Ok(false)) };
        self.queue
            .run_alone(&script::CANCEL, vec![Bytes::copy_from_slice(&id.to_be_bytes())], |done| integer(&done) == 1)
    }

    fn peek(&self, max: usize) -> Answer<Result<Vec<Delivery>, Error>> {
        self.queue.run_alone(&script::PEEK, vec![at_most(max)], |answer| {
            let mut parts = list(answer).into_iter();
            let mut part = || parts.next().unwrap_or_default();
            let (now, entries, bodies) = (natural(&part()), bytes(part()), list(part()));
            entries.chunks_exact(ENTRY).zip(bodies).map(|(entry, body)| delivery(entry, bytes(body), now)).collect()
        })
    }

    fn dead_letters(&self, max: usize) -> Answer<Result<Vec<DeadLetter>, Error>> {
        self.queue.run_alone(&script::DEAD_LETTERS, vec![at_most(max)], |answer| {
            let read = |letter: Value| {
                let mut parts = list(letter).into_iter();
                let mut part = || parts.next().unwrap_or_default();
                let (entry, died_at, reason, body) = (bytes(part()), natural(&part()), bytes(part()), bytes(part()));
                let is_whole = entry.len() == ENTRY;
                is_whole.then(|| {
                    let reason = String::from_utf8_lossy(&reason).into_owned();
                    DeadLetter::new(delivery(&entry, body, died_at), moment(died_at), reason.into())
                })
            };
            list(answer).into_iter().filter_map(read).collect()
        })
    }

    fn redrive(&self, which: Redrive) -> Answer<Result<u64, Error>> {
        let (most, id) = match which {
            Redrive::UpTo(most) => (at_most(most), Bytes::new()),
            Redrive::One(id) => match id.as_u128() {
                Some(id) => (at_most(1), Bytes::copy_from_slice(&id.to_be_bytes())),
                None => return Answer::ready(Ok(0)),
            },
        };
        self.queue.run_alone(&script::REDRIVE, vec![most, id], |many| natural(&many))
    }

    fn purge_dead_letters(&self) -> Answer<Result<u64, Error>> {
        self.queue.run_alone(&script::PURGE_DEAD_LETTERS, vec![], |many| natural(&many))
    }
}
