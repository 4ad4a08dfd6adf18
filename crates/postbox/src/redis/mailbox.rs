//! One mailbox on a server.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use redis::{Value, cmd};

use super::entry::{ENTRY, MEMBER, bytes, delivery, integer, list, member, millis, moment, natural, tag, wishes};
use super::fault::Fault;
use super::lane::{Lane, WHOLE_TURN, Weight};
use super::link::Link;
use super::script::{self, Script};
use crate::address::MailboxName;
use crate::backend::{
    Batch, ByteMailbox, Counts, DeadLetter, Delivery, MailboxSettings, Outgoing, Receipt, Receive, Redrive, Visibility,
};
use crate::clock::SystemClock;
use crate::error::Error;
use crate::hub::{Waits, look_until};
use crate::id::MessageId;
use crate::operation::Answer;
use crate::promise::{Promise, promise};
use crate::receive::in_background;
use crate::wire;

/// The names of all mailboxes.
pub(super) const REGISTRY: &str = "{postbox}:mailboxes";

/// What all handles of one mailbox in this process share.
pub(super) struct Post {
    link: Arc<Link>,
    name: MailboxName,
    channel: String,
    sends: Lane<Sending>,
    receives: Lane<Receiving>,
    acts: Lane<Acting>,
    /// The keys for everything else, of which one is done at a time.
    other: tokio::sync::Mutex<Vec<String>>,
    settings: Mutex<Settings>,
    /// The lanes take turns: while one has its request under way, the others gather more. Requests that are large without
    /// that share a turn.
    turn: tokio::sync::Semaphore,
}

/// What the handles want of the mailbox.
#[derive(Default)]
struct Settings {
    text: String,
    is_written: bool,
    /// The mailbox goes when it is idle: whatever makes it again brings them.
    is_fleeting: bool,
}

struct Sending {
    messages: Batch<Outgoing>,
    promise: Promise<Vec<Result<MessageId, Error>>>,
}

impl Weight for Sending {
    fn weight(&self) -> (usize, usize) {
        (self.messages.len(), self.messages.iter().map(|message| message.body.len()).sum())
    }
}

type Found = (Vec<Delivery>, Option<Duration>);

struct Receiving {
    max: usize,
    visibility: Duration,
    promise: Promise<Found>,
}

impl Weight for Receiving {
    fn weight(&self) -> (usize, usize) {
        (self.max, 0)
    }
}

/// An act's letter, the delivery that it is about, and its argument.
type Act = (&'static [u8], [u8; MEMBER], Bytes);

struct Acting {
    acts: Vec<Act>,
    promise: Promise<Vec<bool>>,
}

impl Weight for Acting {
    fn weight(&self) -> (usize, usize) {
        (self.acts.len(), self.acts.iter().map(|act| act.2.len()).sum())
    }
}

const ACKNOWLEDGE: &[u8] = b"A";
const RETURN: &[u8] = b"R";
const EXTEND: &[u8] = b"E";
const BURY: &[u8] = b"D";

impl Post {
    pub(super) fn new(link: Arc<Link>, name: MailboxName) -> Arc<Self> {
        let tag = tag(&name);
        let keys = |lane: &str| {
            let own = format!("op:{}:{lane}", link.client);
            let names = [
                "meta",
                "pending",
                "invisible",
                "data",
                &own,
                "delayed",
                "special",
                "expiring",
                "behind",
                "heads",
                "dead",
                "graves",
                "dedup",
                "dedups",
            ];
            names.iter().map(|name| format!("{tag}:{name}")).collect::<Vec<_>>()
        };
        Arc::new(Post {
            channel: format!("{tag}:wake"),
            sends: Lane::new(keys("send")),
            receives: Lane::new(keys("receive")),
            acts: Lane::new(keys("act")),
            other: tokio::sync::Mutex::new(keys("other")),
            settings: Mutex::default(),
            turn: tokio::sync::Semaphore::new(WHOLE_TURN as usize),
            name,
            link,
        })
    }

    /// What a handle wants goes with the next operation.
    pub(super) fn configure(&self, settings: &MailboxSettings) {
        let numbers = [
            ("max_size", settings.max_size.map(|most| most as u64)),
            ("max_deliveries", settings.max_deliveries.map(u64::from)),
            ("window", settings.deduplication_window.map(millis)),
            ("idle", settings.idle_expiry.map(millis)),
        ];
        let mut known = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, value) in numbers {
            let Some(text) = value.map(|value| format!("{name} {value} ")) else { continue };
            if !known.text.contains(&text) {
                known.text.push_str(&text);
            }
            known.is_written = false;
            known.is_fleeting |= name == "idle";
        }
    }

    /// The arguments with which every script begins.
    async fn arguments(&self) -> Vec<Bytes> {
        let settings = {
            let known = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
            if known.is_written && !known.is_fleeting { String::new() } else { known.text.clone() }
        };
        let publish = self.link.publish().await;
        let token = Bytes::copy_from_slice(&self.link.token());
        vec![
            token,
            settings.into(),
            Bytes::from_static(publish.as_bytes()),
            Bytes::copy_from_slice(self.channel.as_bytes()),
        ]
    }

    fn settings_are_written(&self, arguments: &[Bytes]) {
        let mut known = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        if known.text.as_bytes() == arguments[1] {
            known.is_written = true;
        }
    }

    async fn run(&self, script: &'static Script, keys: &[String], arguments: &[Bytes]) -> Result<Value, Error> {
        match self.link.run(script.call(keys, arguments)).await {
            Ok(value) => {
                self.settings_are_written(arguments);
                Ok(value)
            }
            Err(fault) => Err(self.error(fault)),
        }
    }

    fn error(&self, fault: Fault) -> Error {
        if fault.is_full() {
            return Error::MailboxFull { mailbox: self.name.to_string(), limit: "the server's maxmemory".into() };
        }
        fault.into_error(&self.link.place)
    }

    /// Everything that is not gathered.
    fn other<T: Send + 'static>(
        self: &Arc<Self>,
        script: &'static Script,
        more: Vec<Bytes>,
        read: impl FnOnce(Value) -> T + Send + 'static,
    ) -> Answer<Result<T, Error>> {
        let post = Arc::clone(self);
        Link::ask(async move {
            let keys = post.other.lock().await;
            let mut arguments = post.arguments().await;
            arguments.extend(more);
            Ok(read(post.run(script, &keys, &arguments).await?))
        })
    }

    /// A new mailbox is listed from now on. A user that may not do that is not listed.
    async fn register(&self) {
        let _ = self.link.command(cmd("SADD").arg(REGISTRY).arg(self.name.to_string())).await;
    }

    fn send(self: &Arc<Self>, messages: Batch<Outgoing>) -> Answer<Result<Vec<Result<MessageId, Error>>, Error>> {
        let (promise, result) = promise(None);
        if self.sends.push(Sending { messages, promise }) {
            let post = Arc::clone(self);
            Link::spawn(async move {
                loop {
                    // The wait for replicas is on a connection of its own: nobody waits for it in turn.
                    let share = if post.link.manners.min_replicas > 0 { 0 } else { post.sends.share() };
                    let _turn = post.turn.acquire_many(share).await;
                    post.sends.gather();
                    let jobs = post.sends.take();
                    if jobs.is_empty() {
                        break;
                    }
                    let sent = post.send_all(&jobs).await;
                    let mut sent = sent.map(Vec::into_iter);
                    let fulfil = |job: &Sending| {
                        job.promise.fulfil_quietly(match &mut sent {
                            Ok(results) => Ok(results.take(job.messages.len()).collect()),
                            Err(error) => Err(error.clone()),
                        })
                    };
                    wake_all(jobs.iter().filter_map(fulfil));
                }
            });
        }
        Answer::from_future(result)
    }

    async fn send_all(&self, jobs: &[Sending]) -> Result<Vec<Result<MessageId, Error>>, Error> {
        let messages: Vec<&Outgoing> = jobs.iter().flat_map(|job| &job.messages).collect();
        let is_plain = messages.iter().all(|message| message.delay.is_zero() && message.special.is_none());
        let mut arguments = self.arguments().await;
        arguments.push(Bytes::from_static(if is_plain { b"1" } else { b"0" }));
        arguments.push(Bytes::copy_from_slice(&rand::random::<[u8; 4]>()));
        for message in &messages {
            let id = message.id.as_u128().expect("checked before it was taken");
            arguments.push(Bytes::copy_from_slice(&id.to_be_bytes()));
            arguments.push(wire::encode(&message.body, &message.content_type, message.headers.as_deref()));
            if !is_plain {
                arguments.push(millis(message.delay).to_string().into());
                arguments.push(message.special.as_deref().map_or_else(Bytes::new, |special| wishes(special).into()));
            }
        }
        let wanted = self.link.manners.min_replicas;
        let (answer, reached) = if wanted == 0 {
            (self.run(&script::SEND, &self.sends.keys, &arguments).await?, 0)
        } else {
            let run = self.link.run_durably(script::SEND.call(&self.sends.keys, &arguments)).await;
            let answer = run.map_err(|fault| self.error(fault))?;
            self.settings_are_written(&arguments);
            answer
        };
        let mut parts = list(answer).into_iter();
        if integer(&parts.next().unwrap_or_default()) == 1 {
            self.register().await;
        }
        let mut results = list(parts.next().unwrap_or_default()).into_iter();
        let of_each = messages.iter().map(|message| match bytes(results.next().unwrap_or_default()).as_slice() {
            [] | [b'=', ..] if reached < wanted => Err(self.not_replicated(&message.id, reached)),
            [] => Ok(message.id.clone()),
            [b'=', first @ ..] => Ok(first
                .try_into()
                .map_or_else(|_| message.id.clone(), |first| MessageId::from_u128(u128::from_be_bytes(first)))),
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
    fn attempt(self: &Arc<Self>, request: Receive) -> Answer<Result<Found, Error>> {
        let back = Arc::clone(self);
        let (promise, result) = promise(Some(Box::new(move |(deliveries, _): Found| {
            let receipts = deliveries.iter().filter_map(|delivery| {
                member(&Receipt { id: delivery.id.clone(), handle: delivery.receipt_handle.clone() })
            });
            let acts: Vec<Act> = receipts.map(|member| (RETURN, member, Bytes::from_static(b"0"))).collect();
            if !acts.is_empty() {
                in_background(back.act(acts));
            }
        })));
        if self.receives.push(Receiving { max: request.max, visibility: request.visibility, promise }) {
            let post = Arc::clone(self);
            Link::spawn(async move {
                loop {
                    let _turn = post.turn.acquire_many(post.receives.share()).await;
                    post.receives.gather();
                    let mut jobs = post.receives.take();
                    if jobs.is_empty() {
                        break;
                    }
                    jobs.retain(|job| !job.promise.is_void());
                    post.receive_all(jobs).await;
                }
            });
        }
        Answer::from_future(result)
    }

    async fn receive_all(&self, jobs: Vec<Receiving>) {
        if jobs.is_empty() {
            return;
        }
        let mut arguments = self.arguments().await;
        for job in &jobs {
            arguments.push(job.max.to_string().into());
            arguments.push(millis(job.visibility).to_string().into());
        }
        let answer = match self.run(&script::RECEIVE, &self.receives.keys, &arguments).await {
            Ok(answer) => answer,
            Err(error) => return jobs.iter().for_each(|job| job.promise.fulfil(Err(error.clone()))),
        };
        let mut parts = list(answer).into_iter();
        let mut part = || parts.next().unwrap_or_default();
        let (now, due, counts, members, bodies) =
            (natural(&part()), integer(&part()), list(part()), bytes(part()), list(part()));
        let due = u64::try_from(due).ok().map(|due| moment(now).until(moment(due)));
        let mut taken =
            members.chunks_exact(MEMBER).zip(bodies).map(|(member, body)| delivery(&member[1..], bytes(body), now));
        wake_all(jobs.iter().zip(&counts).filter_map(|(job, count)| {
            let deliveries: Vec<Delivery> = taken.by_ref().take(natural(count) as usize).collect();
            let due = due.filter(|_| deliveries.is_empty());
            job.promise.fulfil_quietly(Ok((deliveries, due)))
        }));
    }

    fn act(self: &Arc<Self>, acts: Vec<Act>) -> Answer<Result<Vec<bool>, Error>> {
        let (promise, result) = promise(None);
        if self.acts.push(Acting { acts, promise }) {
            let post = Arc::clone(self);
            Link::spawn(async move {
                loop {
                    let _turn = post.turn.acquire_many(post.acts.share()).await;
                    post.acts.gather();
                    let jobs = post.acts.take();
                    if jobs.is_empty() {
                        break;
                    }
                    let done = post.act_all(&jobs).await;
                    let mut done = done.as_ref().map(|done| done.iter());
                    let fulfil = |job: &Acting| {
                        job.promise.fulfil_quietly(match &mut done {
                            Ok(done) => Ok(done.take(job.acts.len()).map(|byte| *byte == b'1').collect()),
                            Err(error) => Err((*error).clone()),
                        })
                    };
                    wake_all(jobs.iter().filter_map(fulfil));
                }
            });
        }
        Answer::from_future(result)
    }

    async fn act_all(&self, jobs: &[Acting]) -> Result<Vec<u8>, Error> {
        let acts = || jobs.iter().flat_map(|job| &job.acts);
        let is_plain = acts().all(|act| act.0 == ACKNOWLEDGE);
        let mut arguments = self.arguments().await;
        arguments.push(Bytes::from_static(if is_plain { b"1" } else { b"0" }));
        for (act, member, argument) in acts() {
            if is_plain {
                arguments.push(Bytes::copy_from_slice(member));
            } else {
                arguments.extend([Bytes::from_static(act), Bytes::copy_from_slice(member), argument.clone()]);
            }
        }
        Ok(bytes(self.run(&script::FINISH, &self.acts.keys, &arguments).await?))
    }
}

/// Wakes when all have their results.
fn wake_all(wakers: impl Iterator<Item = Waker>) {
    let wakers: Vec<Waker> = wakers.collect();
    wakers.into_iter().for_each(Waker::wake);
}

impl Drop for Post {
    fn drop(&mut self) {
        self.link.unsubscribe(self.channel.clone());
    }
}

pub(super) struct RedisMailbox {
    pub(super) post: Arc<Post>,
    /// As long as there is a handle, whoever opens the place again shares its connection.
    pub(super) _backend: Arc<super::Inner>,
}

impl fmt::Debug for RedisMailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisMailbox").field("name", &self.post.name).finish_non_exhaustive()
    }
}

impl RedisMailbox {
    /// A verb with a result for each of its entries.
    fn each<E>(
        &self,
        entries: Batch<E>,
        act: impl Fn(E) -> (Receipt, &'static [u8], Bytes),
    ) -> Answer<Batch<Result<(), Error>>> {
        let mut acts = Vec::with_capacity(entries.len());
        let mut ids: Vec<(MessageId, bool)> = Vec::with_capacity(entries.len());
        for entry in entries {
            let (receipt, letter, argument) = act(entry);
            let member = member(&receipt);
            ids.push((receipt.id, member.is_some()));
            acts.extend(member.map(|member| (letter, member, argument)));
        }
        let ended = |id| Err(Error::ReceiptHandleExpired { id });
        if acts.is_empty() {
            return Answer::ready(ids.into_iter().map(|(id, _)| ended(id)).collect());
        }
        self.post.act(acts).map(move |done| match done {
            Err(error) => ids.iter().map(|_| Err(error.clone())).collect(),
            Ok(done) => {
                let mut done = done.into_iter();
                let mut is_done = |is_ours: bool| is_ours && done.next().unwrap_or(false);
                ids.into_iter().map(|(id, is_ours)| if is_done(is_ours) { Ok(()) } else { ended(id) }).collect()
            }
        })
    }
}

async fn long_poll(post: Arc<Post>, request: Receive) -> Result<Vec<Delivery>, Error> {
    let clock = SystemClock::shared();
    let deadline = clock.now().after(request.wait);
    let (found, _) = post.attempt(request).await?;
    if !found.is_empty() {
        return Ok(found);
    }
    let waits = Waits::begin(Arc::clone(&post.link), |link| &link.hubs, post.channel.clone());
    let look = || {
        let post = Arc::clone(&post);
        if post.link.is_subscribed(&post.channel) {
            return post.attempt(request);
        }
        let subscribing = {
            let post = Arc::clone(&post);
            Link::ask(async move { post.link.subscribe(&post.channel).await })
        };
        subscribing.then(move |subscribed| match subscribed {
            Ok(()) => post.attempt(request),
            Err(error) => Answer::ready(Err(error)),
        })
    };
    look_until(waits.hub(), clock.now().until(deadline), look).await
}

impl ByteMailbox for RedisMailbox {
    fn send(&self, messages: Batch<Outgoing>) -> Answer<Batch<Result<MessageId, Error>>> {
        if let Some(bad) = messages.iter().find(|message| message.id.as_u128().is_none()) {
            let error = Error::invalid("message id", &bad.id, "a UUID");
            return Answer::ready(messages.iter().map(|_| Err(error.clone())).collect());
        }
        let many = messages.len();
        self.post.send(messages).map(move |sent| match sent {
            Ok(results) => results.into(),
            Err(error) => (0..many).map(|_| Err(error.clone())).collect(),
        })
    }

    fn receive(&self, request: Receive) -> Answer<Result<Vec<Delivery>, Error>> {
        if request.wait.is_zero() {
            return self.post.attempt(request).map(|taken| Ok(taken?.0));
        }
        Answer::from_future(long_poll(Arc::clone(&self.post), request))
    }

    fn acknowledge(&self, receipts: Batch<Receipt>) -> Answer<Batch<Result<(), Error>>> {
        self.each(receipts, |receipt| (receipt, ACKNOWLEDGE, Bytes::new()))
    }

    fn set_visibility(&self, changes: Batch<(Receipt, Visibility)>) -> Answer<Batch<Result<(), Error>>> {
        self.each(changes, |(receipt, visibility)| match visibility {
            Visibility::Return(after) => (receipt, RETURN, millis(after).to_string().into()),
            Visibility::Extend(by) => (receipt, EXTEND, millis(by).to_string().into()),
        })
    }

    fn dead_letter(&self, letters: Batch<(Receipt, String)>) -> Answer<Batch<Result<(), Error>>> {
        self.each(letters, |(receipt, reason)| (receipt, BURY, reason.into()))
    }

    fn purge(&self) -> Answer<Result<u64, Error>> {
        self.post.other(&script::PURGE, vec![], |many| natural(&many))
    }

    fn counts(&self) -> Answer<Result<Counts, Error>> {
        self.post.other(&script::COUNTS, vec![], |answer| {
            let counts: Vec<u64> = list(answer).iter().map(natural).collect();
            let count = |at: usize| counts.get(at).copied().unwrap_or(0);
            Counts::new(count(0), count(1), count(2), count(3))
        })
    }

    fn create(&self) -> Answer<Result<(), Error>> {
        let post = Arc::clone(&self.post);
        self.post.other(&script::CREATE, vec![], |_| ()).then(move |made| match made {
            Ok(()) => Link::ask(async move {
                post.register().await;
                Ok(())
            }),
            Err(error) => Answer::ready(Err(error)),
        })
    }

    fn delete(&self) -> Answer<Result<(), Error>> {
        let post = Arc::clone(&self.post);
        self.post.other(&script::DELETE, vec![], |_| ()).then(move |gone| match gone {
            Ok(()) => Link::ask(async move {
                let _ = post.link.command(cmd("SREM").arg(REGISTRY).arg(post.name.to_string())).await;
                Ok(())
            }),
            Err(error) => Answer::ready(Err(error)),
        })
    }

    fn cancel(&self, id: MessageId) -> Answer<Result<bool, Error>> {
        let Some(id) = id.as_u128() else { return Answer::ready(Ok(false)) };
        self.post.other(&script::CANCEL, vec![Bytes::copy_from_slice(&id.to_be_bytes())], |done| integer(&done) == 1)
    }

    fn peek(&self, max: usize) -> Answer<Result<Vec<Delivery>, Error>> {
        self.post.other(&script::PEEK, vec![max.to_string().into()], |answer| {
            let mut parts = list(answer).into_iter();
            let mut part = || parts.next().unwrap_or_default();
            let (now, entries, bodies) = (natural(&part()), bytes(part()), list(part()));
            entries.chunks_exact(ENTRY).zip(bodies).map(|(entry, body)| delivery(entry, bytes(body), now)).collect()
        })
    }

    fn dead_letters(&self, max: usize) -> Answer<Result<Vec<DeadLetter>, Error>> {
        self.post.other(&script::DEAD_LETTERS, vec![max.to_string().into()], |answer| {
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
        let nonce = Bytes::copy_from_slice(&rand::random::<[u8; 4]>());
        let (most, id) = match which {
            Redrive::UpTo(most) => (most.min(i32::MAX as usize), Bytes::new()),
            Redrive::One(id) => match id.as_u128() {
                Some(id) => (1, Bytes::copy_from_slice(&id.to_be_bytes())),
                None => return Answer::ready(Ok(0)),
            },
        };
        self.post.other(&script::REDRIVE, vec![most.to_string().into(), nonce, id], |many| natural(&many))
    }

    fn purge_dead_letters(&self) -> Answer<Result<u64, Error>> {
        self.post.other(&script::PURGE_DEAD_LETTERS, vec![], |many| natural(&many))
    }
}
