//! The batched requests of a mailbox: concurrent operations of one kind share a request, which is
//! one call of a script.

use std::iter::Take;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use redis::Value;

use super::message_format::{
    MEMBER, bytes, delivery, flag, id_and_body, integer, list, member, millis, moment, natural, special_options,
};
use super::queue::{Queue, Slot};
use super::script;
use crate::backend::{Delivery, Outgoing, Receipt, Receive};
use crate::error::Error;
use crate::mailbox::id::MessageId;
use crate::mailbox::operation::Answer;
use crate::mailbox::receive::in_background;
use crate::runtime::batcher::{BatchLimits, Batcher, Entry, Serve, submit};
use crate::runtime::{oneshot, wake_all};

/// A message that was received but not taken within this time counts as delivered.
const UNSEEN: Duration = Duration::from_secs(1);
const MAX_ENTRIES: usize = 1_000;
const MAX_BYTES: usize = 4 << 20;

/// One batcher for each kind of request.
pub(super) struct Batchers {
    sends: Batcher<SendOperation>,
    receives: Batcher<ReceiveOperation>,
    settlements: Batcher<SettleOperation>,
}

impl Batchers {
    pub(super) fn new() -> Self {
        Batchers { sends: batcher(), receives: batcher(), settlements: batcher() }
    }
}

/// One request in flight keeps the operations in order, and lets the server remember the last one
/// only.
fn batcher<E: Entry>() -> Batcher<E> {
    Batcher::new(BatchLimits { entries: MAX_ENTRIES, requests: 1, gathers: true }, MAX_BYTES)
}

struct SendOperation {
    messages: Vec<Outgoing>,
    sender: oneshot::Sender<Vec<Result<MessageId, Error>>>,
}

impl Entry for SendOperation {
    fn weight(&self) -> usize {
        self.messages.len()
    }

    fn bytes(&self) -> usize {
        self.messages.iter().map(|message| message.body.len()).sum()
    }
}

/// The messages of a receive. If there are none, the time until the next deadline of the mailbox.
pub(super) type Received = (Vec<Delivery>, Option<Duration>);

/// A receive that does not wait.
struct ReceiveOperation {
    max: usize,
    visibility: Duration,
    sender: oneshot::Sender<Received>,
}

impl Entry for ReceiveOperation {
    fn weight(&self) -> usize {
        self.max
    }
}

/// How to settle a delivery.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SettleKind {
    Acknowledge = b'A' as isize,
    Return = b'R' as isize,
    Extend = b'E' as isize,
    DeadLetter = b'D' as isize,
    /// Undoes a delivery that no handler has seen.
    Release = b'U' as isize,
}

pub(super) struct Settlement {
    pub(super) kind: SettleKind,
    pub(super) member: [u8; MEMBER],
    pub(super) argument: Bytes,
}

struct SettleOperation {
    settlements: Vec<Settlement>,
    sender: oneshot::Sender<Vec<bool>>,
}

impl Entry for SettleOperation {
    fn weight(&self) -> usize {
        self.settlements.len()
    }

    fn bytes(&self) -> usize {
        self.settlements.iter().map(|settlement| settlement.argument.len()).sum()
    }
}

/// Gives each caller the results of its entries. Wakes the callers after all results are there.
fn respond<I: Iterator, T>(
    callers: impl Iterator<Item = (oneshot::Sender<T>, usize)>,
    mut results: Result<I, Error>,
    collect: impl Fn(Take<&mut I>) -> T,
) {
    wake_all(callers.filter_map(|(sender, entries)| {
        sender.put(match &mut results {
            Ok(results) => Ok(collect(results.take(entries))),
            Err(error) => Err(error.clone()),
        })
    }));
}

impl Queue {
    pub(super) fn send(
        self: &Arc<Self>,
        messages: Vec<Outgoing>,
    ) -> Answer<Result<Vec<Result<MessageId, Error>>, Error>> {
        let (sender, result) = oneshot::channel(None);
        let serve: Serve<Queue, _> = |queue, sends| Box::pin(async move { queue.send_all(sends).await });
        submit(self, |queue| &queue.batchers().sends, serve, [SendOperation { messages, sender }]);
        Answer::from_future(result)
    }

    async fn send_all(&self, sends: Vec<SendOperation>) {
        #[cfg(test)]
        assert_ne!(self.name().as_str(), tests::PANICS, "on purpose");
        let results = self.store(&sends).await.map(Vec::into_iter);
        let callers = sends.into_iter().map(|send| (send.sender, send.messages.len()));
        respond(callers, results, |results| results.collect());
    }

    /// Stores the messages of sends. Returns a result for each message.
    async fn store(&self, sends: &[SendOperation]) -> Result<Vec<Result<MessageId, Error>>, Error> {
        let messages = || sends.iter().flat_map(|send| &send.messages);
        let is_plain = messages().all(|message| message.delay.is_zero() && message.special.is_none());
        let wanted = self.client().options().min_replicas;
        let mut arguments = self.arguments(if wanted > 0 { Slot::DurableSend } else { Slot::Send });
        arguments.push(flag(is_plain));
        for message in messages() {
            arguments.extend(id_and_body(message));
            if !is_plain {
                let options = message.special.as_deref().map(special_options).unwrap_or_default();
                arguments.extend([millis(message.delay).to_string().into(), options.into()]);
            }
        }
        let (response, replicas) = self.run_send(&arguments).await?;
        let (is_new, results) = match response {
            Value::Array(parts) => {
                let mut parts = parts.into_iter();
                (parts.next().unwrap_or_default(), list(parts.next().unwrap_or_default()))
            }
            is_new => (is_new, Vec::new()),
        };
        if integer(&is_new) == 1 {
            self.register().await;
        }
        let mut results = results.into_iter();
        let results = messages().map(|message| match bytes(results.next().unwrap_or_default()).as_slice() {
            [] | [b'=', ..] if replicas < wanted => Err(self.not_replicated(&message.id, replicas)),
            [] => Ok(message.id.clone()),
            [b'=', first @ ..] => Ok(first
                .try_into()
                .map_or_else(|_| message.id.clone(), |first| MessageId::from_u128(u128::from_be_bytes(first)))),
            b"id in use" => Err(Error::id_in_use(&message.id)),
            full => {
                let limit = String::from_utf8_lossy(full).replace("full ", "max_size = ");
                Err(Error::MailboxFull { mailbox: self.name().to_string(), limit })
            }
        });
        Ok(results.collect())
    }

    fn not_replicated(&self, id: &MessageId, replicas: u32) -> Error {
        let options = self.client().options();
        let (wanted, timeout) = (options.min_replicas, options.replica_timeout);
        Error::Connection {
            message: format!(
                "message {id} is stored, but only {replicas} of {wanted} replicas have it after {timeout:?}: it would be \
                 lost with the primary; to send it again is safe with the same deduplication id"
            ),
            transient: true,
            source: None,
        }
    }

    /// Leases the messages that are ready. If the caller drops the receive, they are given back.
    pub(super) fn receive(self: &Arc<Self>, request: Receive) -> Answer<Result<Received, Error>> {
        let (queue, since) = (Arc::clone(self), Instant::now());
        let undelivered = move |(deliveries, _): Received| queue.give_back(&deliveries, since);
        let (sender, result) = oneshot::channel(Some(Box::new(undelivered)));
        let operation = ReceiveOperation { max: request.max, visibility: request.visibility, sender };
        let serve: Serve<Queue, _> = |queue, receives| Box::pin(async move { queue.receive_all(receives).await });
        submit(self, |queue| &queue.batchers().receives, serve, [operation]);
        Answer::from_future(result)
    }

    async fn receive_all(&self, mut receives: Vec<ReceiveOperation>) {
        #[cfg(test)]
        assert_ne!(self.name().as_str(), tests::PANICS, "on purpose");
        receives.retain(|receive| !receive.sender.is_unwanted());
        if receives.is_empty() {
            return;
        }
        let mut arguments = self.arguments(Slot::Receive);
        for ReceiveOperation { max, visibility, .. } in &receives {
            arguments.extend([Bytes::from(max.to_string()), millis(*visibility).to_string().into()]);
        }
        let response = self.run(&script::RECEIVE, &arguments).await;
        let received = response.map(|response| parse_received(list(response)).into_iter());
        let callers = receives.into_iter().map(|receive| (receive.sender, 1));
        respond(callers, received, |mut received| received.next().unwrap_or_default());
    }

    /// Gives back messages that no receiver took. After [`UNSEEN`] the delivery counts and the
    /// message joins the tail, because later messages may have been delivered meanwhile.
    pub(super) fn give_back(self: &Arc<Self>, deliveries: &[Delivery], since: Instant) {
        let (kind, argument) = match since.elapsed() < UNSEEN {
            true => (SettleKind::Release, Bytes::new()),
            false => (SettleKind::Return, Bytes::from_static(b"0")),
        };
        let members = deliveries.iter().filter_map(|delivery| {
            member(&Receipt { id: delivery.id.clone(), handle: delivery.receipt_handle.clone() })
        });
        let settlements: Vec<_> =
            members.map(|member| Settlement { kind, member, argument: argument.clone() }).collect();
        if !settlements.is_empty() {
            in_background(self.settle(settlements));
        }
    }

    /// Returns for each settlement whether the lease was still valid.
    pub(super) fn settle(self: &Arc<Self>, settlements: Vec<Settlement>) -> Answer<Result<Vec<bool>, Error>> {
        let (sender, result) = oneshot::channel(None);
        let serve: Serve<Queue, _> = |queue, settles| Box::pin(async move { queue.settle_all(settles).await });
        submit(self, |queue| &queue.batchers().settlements, serve, [SettleOperation { settlements, sender }]);
        Answer::from_future(result)
    }

    async fn settle_all(&self, operations: Vec<SettleOperation>) {
        let settlements = || operations.iter().flat_map(|operation| &operation.settlements);
        let is_plain = settlements().all(|settlement| settlement.kind == SettleKind::Acknowledge);
        let mut arguments = self.arguments(Slot::Settle);
        arguments.push(flag(is_plain));
        for Settlement { kind, member, argument } in settlements() {
            let member = Bytes::copy_from_slice(member);
            if is_plain {
                arguments.push(member);
            } else {
                arguments.extend([Bytes::copy_from_slice(&[*kind as u8]), member, argument.clone()]);
            }
        }
        let response = self.run(&script::SETTLE, &arguments).await;
        let settled = response.map(|response| bytes(response).into_iter());
        let callers = operations.into_iter().map(|operation| (operation.sender, operation.settlements.len()));
        respond(callers, settled, |settled| settled.map(|byte| byte == b'1').collect());
    }
}

/// Parses the response of `lua/receive_plain.lua`.
pub(super) fn parse_received(parts: Vec<Value>) -> Vec<Received> {
    let mut parts = parts.into_iter();
    let mut part = || parts.next().unwrap_or_default();
    let (now, due, leased) = (natural(&part()), integer(&part()), bytes(part()));
    let due = u64::try_from(due).ok().map(|due| moment(now).until(moment(due)));
    let split = leased.iter().position(|byte| *byte == b';').unwrap_or(leased.len());
    let (counts, members) = leased.split_at(split);
    let members = members.get(1..).unwrap_or_default();
    let mut deliveries =
        members.chunks_exact(MEMBER).zip(parts).map(|(member, body)| delivery(&member[1..], bytes(body), now));
    let counts = String::from_utf8_lossy(counts);
    let received = counts.split(',').map(|count| {
        let deliveries: Vec<Delivery> = deliveries.by_ref().take(count.parse().unwrap_or(0)).collect();
        let due = due.filter(|_| deliveries.is_empty());
        (deliveries, due)
    });
    received.collect()
}

#[cfg(test)]
mod tests {
    use redis::Client;

    use super::super::config::{Options, Target};
    use super::super::redis_client::RedisClient;
    use super::super::script::Time;
    use super::*;
    use crate::mailbox::codec::ContentType;
    use crate::resolver::address::MailboxName;

    /// The requests of a mailbox of this name panic.
    pub(super) const PANICS: &str = "panics-on-purpose";

    #[test]
    fn a_panic_of_a_request_fails_what_waits_and_later_requests_are_made() {
        let server = Target::Server(Client::open("redis://127.0.0.1:1").unwrap());
        let client = RedisClient::new("redis://127.0.0.1:1".into(), server, Options::default(), Time::Server);
        let queue = Queue::new(client, MailboxName::new(PANICS).unwrap());
        let message = || Outgoing::new(Bytes::new(), ContentType::Unmarked);
        let receive = Receive { max: 1, visibility: Duration::ZERO, wait: Duration::ZERO };
        for _ in 0..4 {
            // More than one request takes.
            let sends: Vec<_> = (0..40).map(|_| queue.send(vec![message()])).collect();
            let receives: Vec<_> = (0..4).map(|_| queue.receive(receive)).collect();
            for error in sends.into_iter().map(|sent| sent.blocking().unwrap_err()) {
                assert!(matches!(error, Error::Connection { transient: true, .. }), "{error:?}");
            }
            assert!(receives.into_iter().all(|received| received.blocking().is_err()));
        }
    }
}
