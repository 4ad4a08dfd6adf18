//! Requests of a mailbox: what waits in its tray goes to the server, each kind by its own script.

use std::future::{Future, poll_fn};
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt as _;
use redis::Value;

use super::entry::{MEMBER, bytes, delivery, integer, list, member, millis, moment, natural, wishes};
use super::load::{
    ACKNOWLEDGE, Act, Acting, Found, Load, RELEASE, RETURN, Receiving, Results, Sending, Task, is_plain,
};
use super::post::Post;
use super::script;
use super::tray::{ALONE, Slot, Tray};
use crate::backend::wire;
use crate::backend::{Batch, Delivery, Outgoing, Receipt, Receive};
use crate::error::Error;
use crate::mailbox::id::MessageId;
use crate::mailbox::operation::Answer;
use crate::mailbox::receive::in_background;
use crate::runtime::busy_poll::alone_until;
use crate::runtime::io_thread;
use crate::runtime::oneshot::{Fulfilled, promise, wake_all};

/// A message that no receiver took within this time counts as delivered.
const UNSEEN: Duration = Duration::from_secs(1);

impl Post {
    /// Takes a task in. Until when whoever asks for it stays awake, if it does.
    fn push(self: &Arc<Self>, tray: fn(&Post) -> &Tray<Task>, task: Task) -> Option<Instant> {
        let (starts, is_brisk) = tray(self).push(task);
        // Before its own operation is under way.
        let awake_until = is_brisk.then(|| alone_until(ALONE)).flatten();
        if let Some(slot) = starts {
            self.drive(tray, slot);
        }
        awake_until
    }

    /// Works in a slot, request by request, until nothing is left to do there.
    fn drive(self: &Arc<Self>, tray: fn(&Post) -> &Tray<Task>, slot: Slot) {
        let working = Working { post: Arc::clone(self), tray, slot, under_way: 0, is_over: false };
        // Without a thread the work is dropped, and its tasks fail.
        let _ = io_thread::spawn(working.run());
    }

    /// Fails all tasks that wait in a tray, and frees the slot.
    fn fail(&self, tray: fn(&Post) -> &Tray<Task>, slot: Slot, error: &Error) {
        let mut slots = vec![slot];
        while let Some(slot) = slots.pop() {
            let (tasks, other) = tray(self).take(slot);
            slots.extend(other);
            if !tasks.is_empty() {
                tray(self).ended(slot, tasks.len(), Duration::ZERO);
                wake_all(Load::of(tasks).fulfil(Results::all_failed(error.clone())).into_iter());
                slots.push(slot);
            }
        }
    }

    /// A panic fails the operations of the request, and the slot goes on.
    async fn serve(&self, load: &Load, slot: &Bytes) -> Results {
        let request = async {
            Results {
                sent: self.send_all(load, slot).await,
                done: self.act_all(load, slot).await,
                found: self.receive_all(load, slot).await,
            }
        };
        let served = AssertUnwindSafe(request).catch_unwind().await;
        served.unwrap_or_else(|_| Results::all_failed(Error::connection("the request failed: a panic in the client")))
    }

    pub(super) fn send(
        self: &Arc<Self>,
        messages: Batch<Outgoing>,
    ) -> Answer<Result<Vec<Result<MessageId, Error>>, Error>> {
        let (promise, result) = promise(None);
        let task = Task::Send(Sending { messages, promise });
        let tray: fn(&Post) -> &Tray<Task> = match self.link.manners.min_replicas {
            0 => |post| &post.tray,
            _ => |post| &post.durable,
        };
        let awake_until = self.push(tray, task);
        Answer::from_future(result.awake_until(awake_until))
    }

    async fn send_all(&self, load: &Load, slot: &Bytes) -> Result<Vec<Result<MessageId, Error>>, Error> {
        if load.sends.is_empty() {
            return Ok(Vec::new());
        }
        let is_plain = load.messages().all(is_plain);
        let mut arguments = self.arguments(slot);
        arguments.push(Bytes::from_static(if is_plain { b"1" } else { b"0" }));
        for message in load.messages() {
            arguments.extend(stored(message));
            if !is_plain {
                arguments.push(millis(message.delay).to_string().into());
                arguments.push(message.special.as_deref().map_or_else(Bytes::new, |special| wishes(special).into()));
            }
        }
        let wanted = self.link.manners.min_replicas;
        let call = script::SEND.call(self.link.time, &self.keys, &arguments);
        let (answer, reached) = if wanted > 0 {
            self.read(self.link.run_durably(call).await, &arguments)?
        } else {
            (self.read(self.link.run(call).await, &arguments)?, 0)
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
        let of_each = load.messages().map(|message| match bytes(results.next().unwrap_or_default()).as_slice() {
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
        let (wanted, timeout) = (self.link.manners.min_replicas, self.link.manners.replica_timeout);
        Error::Connection {
            message: format!(
                "message {id} is stored, but only {reached} of {wanted} replicas have it after {timeout:?}: it would be \
                 lost with the primary; to send it again is safe with the same deduplication id"
            ),
            transient: true,
            source: None,
        }
    }

    /// Takes what is there. What nobody waits for any more is given back.
    pub(super) fn attempt(self: &Arc<Self>, request: Receive) -> Answer<Result<Found, Error>> {
        let (result, awake_until) = self.take(request);
        Answer::from_future(result.awake_until(awake_until))
    }

    /// The same, on the network's own thread: it has more to do than to stay awake for this.
    pub(super) fn look(self: &Arc<Self>, request: Receive) -> Answer<Result<Found, Error>> {
        Answer::from_future(self.take(request).0)
    }

    fn take(self: &Arc<Self>, request: Receive) -> (Fulfilled<Found>, Option<Instant>) {
        let (back, since) = (Arc::clone(self), Instant::now());
        let undelivered = move |(deliveries, _): Found| back.give_back(&deliveries, since);
        let (promise, result) = promise(Some(Box::new(undelivered)));
        let task = Task::Receive(Receiving { max: request.max, visibility: request.visibility, promise });
        let awake_until = self.push(|post| &post.tray, task);
        (result, awake_until)
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
        let acts: Vec<Act> = receipts.map(|member| (act, member, argument.clone())).collect();
        if !acts.is_empty() {
            in_background(self.act(acts));
        }
    }

    async fn receive_all(&self, load: &Load, slot: &Bytes) -> Result<Vec<Found>, Error> {
        if load.receives.is_empty() {
            return Ok(Vec::new());
        }
        let mut arguments = self.arguments(slot);
        load.receives.iter().for_each(|receiving| arguments.extend(wanted(receiving)));
        Ok(found(list(self.run(&script::RECEIVE, &arguments).await?)))
    }

    pub(super) fn act(self: &Arc<Self>, acts: Vec<Act>) -> Answer<Result<Vec<bool>, Error>> {
        let (promise, result) = promise(None);
        let awake_until = self.push(|post| &post.tray, Task::Act(Acting { acts, promise }));
        Answer::from_future(result.awake_until(awake_until))
    }

    async fn act_all(&self, load: &Load, slot: &Bytes) -> Result<Vec<u8>, Error> {
        if load.acts.is_empty() {
            return Ok(Vec::new());
        }
        let is_plain = load.acts().all(|act| act.0 == ACKNOWLEDGE);
        let mut arguments = self.arguments(slot);
        arguments.push(Bytes::from_static(if is_plain { b"1" } else { b"0" }));
        for (act, member, argument) in load.acts() {
            if is_plain {
                arguments.push(Bytes::copy_from_slice(member));
            } else {
                arguments.extend([Bytes::from_static(act), Bytes::copy_from_slice(member), argument.clone()]);
            }
        }
        Ok(bytes(self.run(&script::FINISH, &arguments).await?))
    }
}

/// The work in a slot. If it ends early, by a panic or with its thread, its own tasks and those that wait in the tray fail.
struct Working {
    post: Arc<Post>,
    tray: fn(&Post) -> &Tray<Task>,
    slot: Slot,
    /// How many tasks are in the current request.
    under_way: usize,
    is_over: bool,
}

impl Working {
    async fn run(mut self) {
        let (post, tray, slot) = (Arc::clone(&self.post), self.tray, self.slot);
        loop {
            tray(&post).gather().await;
            let can_tell = post.link.manners.min_replicas == 0 && post.link.hubs.is_waited_for(&post.channel);
            let (tasks, other) = tray(&post).take(slot);
            self.under_way = tasks.len();
            if let Some(other) = other {
                post.drive(tray, other);
            }
            if tasks.is_empty() {
                self.is_over = true;
                break;
            }
            #[cfg(test)]
            assert_ne!(post.name.as_str(), tests::PANICS, "on purpose");
            let (began, many, load) = (Instant::now(), tasks.len(), Load::of(tasks));
            let untold = if can_tell { load.messages().filter(|message| is_plain(message)).count() } else { 0 };
            // Local receivers are woken when the request is on its way, so that theirs is right behind it. One that is too early
            // is woken again by the server.
            let tell = || {
                if untold > 0 {
                    post.link.hubs.wake(&post.channel, untold as u64);
                }
            };
            let results = begun(post.serve(&load, tray(&post).name(slot)), tell).await;
            self.under_way = 0;
            tray(&post).ended(slot, many, began.elapsed());
            wake_all(load.fulfil(results).into_iter());
        }
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        if self.under_way > 0 {
            (self.tray)(&self.post).ended(self.slot, self.under_way, Duration::ZERO);
        }
        let error = Error::connection("the thread for connections to servers could not do the operation");
        self.post.fail(self.tray, self.slot, &error);
    }
}

/// What comes of a future; calls `then` when it was polled once.
async fn begun<T>(future: impl Future<Output = T>, then: impl FnOnce()) -> T {
    let mut future = pin!(future);
    let first = poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await;
    then();
    match first {
        Poll::Ready(output) => output,
        Poll::Pending => future.await,
    }
}

/// A message as scripts take it: its id and its text.
fn stored(message: &Outgoing) -> [Bytes; 2] {
    let id = message.id.as_u128().expect("checked before it was taken");
    let text = wire::encode(&message.body, &message.content_type, message.headers.as_deref());
    [Bytes::copy_from_slice(&id.to_be_bytes()), text]
}

/// How many messages somebody asks for, and for how long.
fn wanted(receiving: &Receiving) -> [Bytes; 2] {
    [receiving.max.to_string().into(), millis(receiving.visibility).to_string().into()]
}

/// What receives get, each: the moment, when to look again, how many each gets and their members, then the messages.
fn found(parts: Vec<Value>) -> Vec<Found> {
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

    use super::super::link::{Link, Manners, Target};
    use super::*;
    use crate::mailbox::codec::ContentType;
    use crate::resolver::address::MailboxName;

    /// Work for a mailbox of this name panics.
    pub(super) const PANICS: &str = "panics-on-purpose";

    #[test]
    fn a_panic_of_the_work_in_a_slot_fails_what_waits_and_what_comes_later() {
        let client = Client::open("redis://127.0.0.1:1").unwrap();
        let link = Link::new("redis://127.0.0.1:1".into(), Target::Server(client), Manners::default());
        let post = Post::new(link, MailboxName::new(PANICS).unwrap());
        let message = || Outgoing::new(Bytes::new(), ContentType::Unmarked);
        let receive = Receive { max: 1, visibility: Duration::ZERO, wait: Duration::ZERO };
        for _ in 0..4 {
            // More tasks than one request takes.
            let sends: Vec<_> = (0..40).map(|_| post.send(Batch::from_buf([message()]))).collect();
            let receives: Vec<_> = (0..4).map(|_| post.attempt(receive)).collect();
            for error in sends.into_iter().map(|sent| sent.blocking().unwrap_err()) {
                assert!(matches!(error, Error::Connection { transient: true, .. }), "{error:?}");
            }
            assert!(receives.into_iter().all(|found| found.blocking().is_err()));
        }
    }
}
