//! The mailbox of this backend.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use redis::{Value, cmd};

use super::message_format::{
    ENTRY, bytes, delivery, integer, list, max_argument, member, millis, moment, natural, text,
};
use super::queue::Queue;
use super::requests::{SettleKind, Settlement};
use super::script::{self, Script};
use crate::backend::{ByteMailbox, Counts, DeadLetter, Delivery, Outgoing, Receipt, Receive, Redrive, Visibility};
use crate::error::Error;
use crate::mailbox::id::{MessageId, new_uuid};
use crate::mailbox::operation::Answer;
use crate::runtime::clock::{Clock as _, Moment, SystemClock};
use crate::runtime::io_thread;
use crate::runtime::waiters::Attempt;

/// Holds a random id, by which two addresses of one database are recognized. Written when two
/// mailboxes are first compared.
const DATABASE_ID: &str = "{postbox}:identity";

pub(super) struct RedisMailbox {
    queue: Arc<Queue>,
    /// While a mailbox is open, a second open of the URI shares its connections.
    _backend: Arc<super::Inner>,
}

impl fmt::Debug for RedisMailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisMailbox").field("name", self.queue.name()).finish_non_exhaustive()
    }
}

impl RedisMailbox {
    pub(super) fn new(queue: Arc<Queue>, backend: Arc<super::Inner>) -> Self {
        RedisMailbox { queue, _backend: backend }
    }

    /// Runs a script that is not batched.
    fn run<T: Send + 'static>(
        &self,
        script: &'static Script,
        arguments: Vec<Bytes>,
        parse: impl FnOnce(Value) -> T + Send + 'static,
    ) -> Answer<Result<T, Error>> {
        let queue = Arc::clone(&self.queue);
        io_thread::ask(async move { Ok(parse(queue.run_other(script, arguments).await?)) })
    }

    fn settle<E>(
        &self,
        entries: Vec<E>,
        parse: impl Fn(E) -> (Receipt, SettleKind, Bytes),
    ) -> Answer<Vec<Result<(), Error>>> {
        let mut settlements = Vec::with_capacity(entries.len());
        let mut ids: Vec<(MessageId, bool)> = Vec::with_capacity(entries.len());
        for entry in entries {
            let (receipt, kind, argument) = parse(entry);
            let member = member(&receipt);
            ids.push((receipt.id, member.is_some()));
            settlements.extend(member.map(|member| Settlement { kind, member, argument }));
        }
        let expired = |id| Err(Error::ReceiptHandleExpired { id });
        if settlements.is_empty() {
            return Answer::ready(ids.into_iter().map(|(id, _)| expired(id)).collect());
        }
        self.queue.settle(settlements).map(move |settled| match settled {
            Err(error) => ids.iter().map(|_| Err(error.clone())).collect(),
            Ok(settled) => {
                let mut settled = settled.into_iter();
                let mut is_settled = |is_known: bool| is_known && settled.next().unwrap_or(false);
                ids.into_iter().map(|(id, is_known)| if is_settled(is_known) { Ok(()) } else { expired(id) }).collect()
            }
        })
    }
}

/// Receives until there is a message or the deadline. It runs on the I/O thread, so a published
/// message starts the next receive without waking the caller first.
async fn long_poll(queue: Arc<Queue>, request: Receive, deadline: Moment) -> Result<Vec<Delivery>, Error> {
    let waiter = queue.client().add_waiter(queue.channel().to_string());
    let attempt = || {
        let queue = Arc::clone(&queue);
        Answer::from_future(async move {
            if !queue.client().subscriptions().contains(queue.channel()) {
                // As a task of its own, which ends also if this receive is dropped.
                let queue = Arc::clone(&queue);
                io_thread::ask(async move { queue.client().subscribe(queue.channel()).await }).await?;
            }
            let (deliveries, due) = queue.receive(request).await?;
            Ok(Attempt::of_receive(deliveries, due))
        })
    };
    let wait = SystemClock.now().until(deadline);
    Ok(waiter.long_poll(&SystemClock::shared(), wait, attempt).await?.unwrap_or_default())
}

impl ByteMailbox for RedisMailbox {
    fn send(&self, messages: Vec<Outgoing>) -> Answer<Vec<Result<MessageId, Error>>> {
        if let Some(bad) = messages.iter().find(|message| message.id.as_u128().is_none()) {
            let error = Error::invalid("message id", &bad.id, "a UUID");
            return Answer::ready(messages.iter().map(|_| Err(error.clone())).collect());
        }
        let count = messages.len();
        self.queue.send(messages).map(move |sent| match sent {
            Ok(results) => results,
            Err(error) => (0..count).map(|_| Err(error.clone())).collect(),
        })
    }

    fn receive(&self, request: Receive) -> Answer<Result<Vec<Delivery>, Error>> {
        if request.wait.is_zero() {
            return self.queue.receive(request).map(|received| Ok(received?.0));
        }
        let queue = Arc::clone(&self.queue);
        let deadline = SystemClock.now().after(request.wait);
        self.queue.receive(request).then(move |first| match first {
            Ok((deliveries, _)) if deliveries.is_empty() => {
                let owner = Arc::clone(&queue);
                let undelivered =
                    move |(deliveries, since): (Vec<Delivery>, Instant)| owner.give_back(&deliveries, since);
                let received = async move {
                    let deliveries = long_poll(queue, request, deadline).await?;
                    Ok((deliveries, Instant::now()))
                };
                io_thread::wait(received, Some(Box::new(undelivered))).map(|received| Ok(received?.0))
            }
            first => Answer::ready(first.map(|(deliveries, _)| deliveries)),
        })
    }

    fn acknowledge(&self, receipts: Vec<Receipt>) -> Answer<Vec<Result<(), Error>>> {
        self.settle(receipts, |receipt| (receipt, SettleKind::Acknowledge, Bytes::new()))
    }

    fn set_visibility(&self, changes: Vec<(Receipt, Visibility)>) -> Answer<Vec<Result<(), Error>>> {
        self.settle(changes, |(receipt, visibility)| match visibility {
            Visibility::Return(after) => (receipt, SettleKind::Return, millis(after).to_string().into()),
            Visibility::Extend(by) => (receipt, SettleKind::Extend, millis(by).to_string().into()),
            Visibility::Release => (receipt, SettleKind::Release, Bytes::new()),
        })
    }

    fn dead_letter(&self, receipts: Vec<(Receipt, String)>) -> Answer<Vec<Result<(), Error>>> {
        self.settle(receipts, |(receipt, reason)| (receipt, SettleKind::DeadLetter, reason.into()))
    }

    fn purge(&self) -> Answer<Result<u64, Error>> {
        self.run(&script::PURGE, vec![], |count| natural(&count))
    }

    fn identity(&self) -> Answer<Result<String, Error>> {
        let queue = Arc::clone(&self.queue);
        io_thread::ask(async move {
            let client = queue.client();
            let get_or_set = async {
                client.command(cmd("SET").arg(DATABASE_ID).arg(new_uuid().to_string()).arg("NX")).await?;
                client.command(cmd("GET").arg(DATABASE_ID)).await
            };
            let database = get_or_set.await.map_err(|error| client.error(error))?;
            Ok(format!("{}/{}", text(database), queue.name()))
        })
    }

    fn counts(&self) -> Answer<Result<Counts, Error>> {
        self.run(&script::COUNTS, vec![], |response| {
            let counts: Vec<u64> = list(response).iter().map(natural).collect();
            let count = |at: usize| counts.get(at).copied().unwrap_or(0);
            Counts::new(count(0), count(1), count(2), count(3))
        })
    }

    fn create(&self) -> Answer<Result<(), Error>> {
        let queue = Arc::clone(&self.queue);
        io_thread::ask(async move {
            queue.run_other(&script::CREATE, vec![]).await?;
            queue.register().await;
            Ok(())
        })
    }

    fn delete(&self) -> Answer<Result<(), Error>> {
        let queue = Arc::clone(&self.queue);
        io_thread::ask(async move {
            queue.run_other(&script::DELETE, vec![]).await?;
            queue.unregister().await;
            Ok(())
        })
    }

    fn cancel(&self, id: MessageId) -> Answer<Result<bool, Error>> {
        let Some(id) = id.as_u128() else { return Answer::ready(Ok(false)) };
        let id = Bytes::copy_from_slice(&id.to_be_bytes());
        self.run(&script::CANCEL, vec![id], |is_cancelled| integer(&is_cancelled) == 1)
    }

    fn peek(&self, max: usize) -> Answer<Result<Vec<Delivery>, Error>> {
        self.run(&script::PEEK, vec![max_argument(max)], |response| {
            let mut parts = list(response).into_iter();
            let mut part = || parts.next().unwrap_or_default();
            let (now, entries, bodies) = (natural(&part()), bytes(part()), list(part()));
            entries.chunks_exact(ENTRY).zip(bodies).map(|(entry, body)| delivery(entry, bytes(body), now)).collect()
        })
    }

    fn dead_letters(&self, max: usize) -> Answer<Result<Vec<DeadLetter>, Error>> {
        self.run(&script::DEAD_LETTERS, vec![max_argument(max)], |response| {
            let parse = |letter: Value| {
                let mut parts = list(letter).into_iter();
                let mut part = || parts.next().unwrap_or_default();
                let (entry, died_at, reason, body) = (bytes(part()), natural(&part()), text(part()), bytes(part()));
                let is_whole = entry.len() == ENTRY;
                is_whole.then(|| DeadLetter::new(delivery(&entry, body, died_at), moment(died_at), reason.into()))
            };
            list(response).into_iter().filter_map(parse).collect()
        })
    }

    fn redrive(&self, which: Redrive) -> Answer<Result<u64, Error>> {
        let (max, id) = match which {
            Redrive::UpTo(max) => (max_argument(max), Bytes::new()),
            Redrive::One(id) => match id.as_u128() {
                Some(id) => (max_argument(1), Bytes::copy_from_slice(&id.to_be_bytes())),
                None => return Answer::ready(Ok(0)),
            },
        };
        self.run(&script::REDRIVE, vec![max, id], |count| natural(&count))
    }

    fn purge_dead_letters(&self) -> Answer<Result<u64, Error>> {
        self.run(&script::PURGE_DEAD_LETTERS, vec![], |count| natural(&count))
    }
}
