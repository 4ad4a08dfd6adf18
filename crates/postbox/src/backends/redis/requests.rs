//! Requests of a mailbox: concurrent operations of one kind share a request, which is one call of a script.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use redis::Value;

use super::message_format::{MEMBER, bytes, delivery, integer, list, member, millis, moment, natural, special_options};
use super::queue::Queue;
use super::script;
use crate::backend::wire;
use crate::backend::{Batch, Delivery, Outgoing, Receipt, Receive};
use crate::error::Error;
use crate::mailbox::id::MessageId;
use crate::mailbox::operation::Answer;
use crate::mailbox::receive::in_background;
use crate::runtime::batcher::{BatchLimits, Batcher, Entry, Work, submit};
use crate::runtime::{oneshot, wake_all};

/// A message that no receiver took within this time counts as delivered.
const UNSEEN: Duration = Duration::from_secs(1);
/// The most entries of a request, and the most bytes.
const MAX_ENTRIES: usize = 1_000;
const MAX_BYTES: usize = 4 << 20;

/// A batcher with one request under way, so that operations of its kind arrive in order, and the server need only remember
/// the last request of each kind.
pub(super) fn batcher<E: Entry>() -> Batcher<E> {
    Batcher::new(BatchLimits { entries: MAX_ENTRIES, requests: 1, gathers: true }, MAX_BYTES)
}

/// What becomes of a delivery, as scripts take it.
pub(super) const ACKNOWLEDGE: &[u8] = b"A";
pub(super) const RETURN: &[u8] = b"R";
pub(super) const EXTEND: &[u8] = b"E";
pub(super) const DEAD_LETTER: &[u8] = b"D";
/// Undoes a delivery that no handler has seen.
pub(super) const RELEASE: &[u8] = b"U";

/// A send of one or several messages.
pub(super) struct SendOperation {
    messages: Batch<Outgoing>,
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

/// The messages of a receive, and after how long the next one is due if there are none.
pub(super) type Received = (Vec<Delivery>, Option<Duration>);

/// A receive that does not wait.
pub(super) struct ReceiveOperation {
    max: usize,
    visibility: Duration,
    sender: oneshot::Sender<Received>,
}

impl Entry for ReceiveOperation {
    fn weight(&self) -> usize {
        self.max
    }
}

/// An act's letter, the delivery that it is about, and its argument.
pub(super) type Settlement = (&'static [u8], [u8; MEMBER], Bytes);

/// Acts on deliveries: acknowledge, return, extend, release or bury.
pub(super) struct SettleOperation {
    settlements: Vec<Settlement>,
    sender: oneshot::Sender<Vec<bool>>,
}

impl Entry for SettleOperation {
    fn weight(&self) -> usize {
        self.settlements.len()
    }

    fn bytes(&self) -> usize {
        self.settlements.iter().map(|act| act.2.len()).sum()
    }
}

/// Whether it can be delivered at once, and nothing else is stored of it.
fn is_plain(message: &Outgoing) -> bool {
    message.delay.is_zero() && message.special.is_none()
}

/// Gives all callers their results, and wakes them after that.
fn answer<T>(results: impl Iterator<Item = (oneshot::Sender<T>, Result<T, Error>)>) {
    wake_all(results.filter_map(|(sender, result)| sender.put(result)));
}

impl Queue {
    pub(super) fn send(
        self: &Arc<Self>,
        messages: Batch<Outgoing>,
    ) -> Answer<Result<Vec<Result<MessageId, Error>>, Error>> {
        let (sender, result) = oneshot::channel(None);
        let sending = [SendOperation { messages, sender }];
        if self.client.options.min_replicas == 0 {
            let serve =
                |queue: Arc<Queue>, sends| -> Work { Box::pin(async move { queue.send_all(sends, "0").await }) };
            submit(self, |queue| &queue.sends, serve, sending);
        } else {
            let serve =
                |queue: Arc<Queue>, sends| -> Work { Box::pin(async move { queue.send_all(sends, "durable").await }) };
            submit(self, |queue| &queue.durable_sends, serve, sending);
        }
        Answer::from_future(result)
    }

    async fn send_all(&self, sends: Vec<SendOperation>, slot: &str) {
        #[cfg(test)]
        assert_ne!(self.name.as_str(), tests::PANICS, "on purpose");
        let mut stored = self.store(&sends, slot).await.map(Vec::into_iter);
        answer(sends.into_iter().map(|SendOperation { messages, sender }| {
            let of_this = match &mut stored {
                Ok(stored) => Ok(stored.take(messages.len()).collect()),
                Err(error) => Err(error.clone()),
            };
            (sender, of_this)
        }));
    }

    /// Stores the messages of sends, and returns a result for each message.
    async fn store(&self, sends: &[SendOperation], slot: &str) -> Result<Vec<Result<MessageId, Error>>, Error> {
        let messages = || sends.iter().flat_map(|sending| &sending.messages);
        let is_plain = messages().all(is_plain);
        let mut arguments = self.arguments(slot);
        arguments.push(Bytes::from_static(if is_plain { b"1" } else { b"0" }));
        for message in messages() {
            arguments.extend(stored(message));
            if !is_plain {
                arguments.push(millis(message.delay).to_string().into());
                arguments.push(
                    message.special.as_deref().map_or_else(Bytes::new, |special| special_options(special).into()),
                );
            }
        }
        let wanted = self.client.options.min_replicas;
        let call = script::SEND.call(self.client.time, &self.keys, &arguments);
        let (answer, reached) = if wanted > 0 {
            self.read(self.client.run_durably(call).await, &arguments)?
        } else {
            (self.read(self.client.run(call).await, &arguments)?, 0)
        };
        // A number if all is simply stored.
        let (is_new, results) = match answer {
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
        let of_each = messages().map(|message| match bytes(results.next().unwrap_or_default()).as_slice() {
            [] | [b'=', ..] if reached < wanted => Err(self.not_replicated(&message.id, reached)),
            [] => Ok(message.id.clone()),
            [b'=', first @ ..] => Ok(first
                .try_into()
                .map_or_else(|_| message.id.clone(), |first| MessageId::from_u128(u128::from_be_bytes(first)))),
            b"id in use" => Err(Error::id_in_use(&message.id)),
            full => {
                let most = String::from_utf8_lossy(full).replace("full ", "max_size = ");
                Err(Error::MailboxFull { mailbox: self.name.to_string(), limit: most })
            }
        });
        Ok(of_each.collect())
    }

    fn not_replicated(&self, id: &MessageId, reached: u32) -> Error {
        let (wanted, timeout) = (self.client.options.min_replicas, self.client.options.replica_timeout);
        Error::Connection {
            message: format!(
                "message {id} is stored, but only {reached} of {wanted} replicas have it after {timeout:?}: it would be \
                 lost with the primary; to send it again is safe with the same deduplication id"
            ),
            transient: true,
            source: None,
        }
    }

    /// Takes the messages that are ready. Those whose receive was dropped are given back.
    pub(super) fn receive(self: &Arc<Self>, request: Receive) -> Answer<Result<Received, Error>> {
        let (queue, since) = (Arc::clone(self), Instant::now());
        let undelivered = move |(deliveries, _): Received| queue.give_back(&deliveries, since);
        let (sender, result) = oneshot::channel(Some(Box::new(undelivered)));
        let receiving = ReceiveOperation { max: request.max, visibility: request.visibility, sender };
        let serve =
            |queue: Arc<Queue>, receives| -> Work { Box::pin(async move { queue.receive_all(receives).await }) };
        submit(self, |queue| &queue.receives, serve, [receiving]);
        Answer::from_future(result)
    }

    async fn receive_all(&self, mut receives: Vec<ReceiveOperation>) {
        #[cfg(test)]
        assert_ne!(self.name.as_str(), tests::PANICS, "on purpose");
        receives.retain(|receiving| !receiving.sender.is_unwanted());
        if receives.is_empty() {
            return;
        }
        let mut arguments = self.arguments("1");
        for ReceiveOperation { max, visibility, .. } in &receives {
            arguments.extend([Bytes::from(max.to_string()), millis(*visibility).to_string().into()]);
        }
        let mut taken = self.run(&script::RECEIVE, &arguments).await.map(|answer| found(list(answer)).into_iter());
        answer(receives.into_iter().map(|receiving| {
            let of_this = match &mut taken {
                Ok(taken) => Ok(taken.next().unwrap_or_default()),
                Err(error) => Err(error.clone()),
            };
            (receiving.sender, of_this)
        }));
    }

    /// Makes visible again what no receiver takes, as if it had not been delivered; unless it was there for a while: later messages
    /// may have been delivered since, and the count says why this one is not before them.
    pub(super) fn give_back(self: &Arc<Self>, deliveries: &[Delivery], since: Instant) {
        let (act, argument) = match since.elapsed() < UNSEEN {
            true => (RELEASE, Bytes::new()),
            false => (RETURN, Bytes::from_static(b"0")),
        };
        let receipts = deliveries.iter().filter_map(|delivery| {
            member(&Receipt { id: delivery.id.clone(), handle: delivery.receipt_handle.clone() })
        });
        let settlements: Vec<Settlement> = receipts.map(|member| (act, member, argument.clone())).collect();
        if !settlements.is_empty() {
            in_background(self.settle(settlements));
        }
    }

    pub(super) fn settle(self: &Arc<Self>, settlements: Vec<Settlement>) -> Answer<Result<Vec<bool>, Error>> {
        let (sender, result) = oneshot::channel(None);
        let serve =
            |queue: Arc<Queue>, settlements| -> Work { Box::pin(async move { queue.settle_all(settlements).await }) };
        submit(self, |queue| &queue.settlements, serve, [SettleOperation { settlements, sender }]);
        Answer::from_future(result)
    }

    async fn settle_all(&self, entries: Vec<SettleOperation>) {
        let settlements = || entries.iter().flat_map(|acting| &acting.settlements);
        let is_plain = settlements().all(|act| act.0 == ACKNOWLEDGE);
        let mut arguments = self.arguments("2");
        arguments.push(Bytes::from_static(if is_plain { b"1" } else { b"0" }));
        for (act, member, argument) in settlements() {
            if is_plain {
                arguments.push(Bytes::copy_from_slice(member));
            } else {
                arguments.extend([Bytes::from_static(act), Bytes::copy_from_slice(member), argument.clone()]);
            }
        }
        let mut done = self.run(&script::SETTLE, &arguments).await.map(|answer| bytes(answer).into_iter());
        answer(entries.into_iter().map(|SettleOperation { settlements, sender }| {
            let of_this = match &mut done {
                Ok(done) => Ok(done.take(settlements.len()).map(|byte| byte == b'1').collect()),
                Err(error) => Err(error.clone()),
            };
            (sender, of_this)
        }));
    }
}

/// A message as scripts take it: its id and its text.
fn stored(message: &Outgoing) -> [Bytes; 2] {
    let id = message.id.as_u128().expect("checked before it was taken");
    let text = wire::encode(&message.body, &message.content_type, message.headers.as_deref());
    [Bytes::copy_from_slice(&id.to_be_bytes()), text]
}

/// What receives get, each: the moment, when to look again, how many each gets and their members, then the messages.
fn found(parts: Vec<Value>) -> Vec<Received> {
    let mut parts = parts.into_iter();
    let mut part = || parts.next().unwrap_or_default();
    let (now, due, leased) = (natural(&part()), integer(&part()), bytes(part()));
    let due = u64::try_from(due).ok().map(|due| moment(now).until(moment(due)));
    let split = leased.iter().position(|byte| *byte == b';').unwrap_or(leased.len());
    let (counts, members) = leased.split_at(split);
    let members = members.get(1..).unwrap_or_default();
    let mut taken =
        members.chunks_exact(MEMBER).zip(parts).map(|(member, body)| delivery(&member[1..], bytes(body), now));
    let counts = String::from_utf8_lossy(counts);
    let of_each = counts.split(',').map(|count| {
        let deliveries: Vec<Delivery> = taken.by_ref().take(count.parse().unwrap_or(0)).collect();
        let due = due.filter(|_| deliveries.is_empty());
        (deliveries, due)
    });
    of_each.collect()
}

#[cfg(test)]
mod tests {
    use redis::Client;

    use super::super::redis_client::{Options, RedisClient, Target};
    use super::*;
    use crate::mailbox::codec::ContentType;
    use crate::resolver::address::MailboxName;

    /// Work for a mailbox of this name panics.
    pub(super) const PANICS: &str = "panics-on-purpose";

    #[test]
    fn a_panic_of_a_request_fails_what_waits_and_later_requests_are_made() {
        let client = Client::open("redis://127.0.0.1:1").unwrap();
        let client = RedisClient::new("redis://127.0.0.1:1".into(), Target::Server(client), Options::default());
        let queue = Queue::new(client, MailboxName::new(PANICS).unwrap());
        let message = || Outgoing::new(Bytes::new(), ContentType::Unmarked);
        let receive = Receive { max: 1, visibility: Duration::ZERO, wait: Duration::ZERO };
        for _ in 0..4 {
            // More than one request takes.
            let sends: Vec<_> = (0..40).map(|_| queue.send(Batch::from_buf([message()]))).collect();
            let receives: Vec<_> = (0..4).map(|_| queue.receive(receive)).collect();
            for error in sends.into_iter().map(|sent| sent.blocking().unwrap_err()) {
                assert!(matches!(error, Error::Connection { transient: true, .. }), "{error:?}");
            }
            assert!(receives.into_iter().all(|found| found.blocking().is_err()));
        }
    }
}
