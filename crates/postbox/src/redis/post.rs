//! What all handles of one mailbox in this process share: its lanes, its keys, its settings.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use redis::{Value, cmd};

use super::awake::alone_until;
use super::entry::{MEMBER, bytes, delivery, integer, list, member, millis, moment, natural, tag, wishes};
use super::fault::Fault;
use super::lane::{Crowd, Lane, Weight};
use super::link::Link;
use super::script::{self, Script};
use crate::address::MailboxName;
use crate::backend::{Batch, Delivery, MailboxSettings, Outgoing, Receipt, Receive};
use crate::error::Error;
use crate::id::MessageId;
use crate::network;
use crate::operation::Answer;
use crate::promise::{Fulfilled, Promise, promise, wake_all};
use crate::receive::in_background;
use crate::wire;

/// The names of all mailboxes.
pub(super) const REGISTRY: &str = "{postbox}:mailboxes";

/// What all handles of one mailbox in this process share.
pub(super) struct Post {
    pub(super) link: Arc<Link>,
    pub(super) name: MailboxName,
    pub(super) channel: String,
    keys: Vec<String>,
    sends: Lane<Sending>,
    receives: Lane<Receiving>,
    acts: Lane<Acting>,
    /// The name of the lane of everything else, of which one is done at a time.
    other: tokio::sync::Mutex<Bytes>,
    settings: Mutex<Settings>,
    /// The lanes take turns: while two have their requests under way, one at the server and one behind it, the third gathers.
    turn: tokio::sync::Semaphore,
}

/// What the handles want of the mailbox.
#[derive(Default)]
struct Settings {
    text: String,
    is_written: bool,
    /// The mailbox goes when it is idle: whatever makes it again brings them.
    is_fleeting: bool,
    /// With them an operation of any kind makes the mailbox: then it has to be listed.
    is_listed: bool,
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

pub(super) type Found = (Vec<Delivery>, Option<Duration>);

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
pub(super) type Act = (&'static [u8], [u8; MEMBER], Bytes);

struct Acting {
    acts: Vec<Act>,
    promise: Promise<Vec<bool>>,
}

impl Weight for Acting {
    fn weight(&self) -> (usize, usize) {
        (self.acts.len(), self.acts.iter().map(|act| act.2.len()).sum())
    }
}

pub(super) const ACKNOWLEDGE: &[u8] = b"A";
pub(super) const RETURN: &[u8] = b"R";
pub(super) const EXTEND: &[u8] = b"E";
pub(super) const BURY: &[u8] = b"D";

impl Post {
    pub(super) fn new(link: Arc<Link>, name: MailboxName) -> Arc<Self> {
        let tag = tag(&name);
        let names = [
            "meta",
            "pending",
            "invisible",
            "data",
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
        let crowd = Crowd::default();
        let lane = |kind: &str| Bytes::from(format!("op:{}:{kind}", link.client));
        Arc::new(Post {
            channel: format!("{tag}:wake"),
            keys: names.iter().map(|name| format!("{tag}:{name}")).collect(),
            // The wait for replicas is on a connection of its own: nobody waits for it in turn.
            sends: if link.manners.min_replicas > 0 {
                Lane::apart(lane("send"), &crowd)
            } else {
                Lane::new(lane("send"), &crowd)
            },
            receives: Lane::new(lane("receive"), &crowd),
            acts: Lane::new(lane("act"), &crowd),
            other: tokio::sync::Mutex::new(lane("other")),
            settings: Mutex::default(),
            turn: tokio::sync::Semaphore::new(2),
            name,
            link,
        })
    }

    fn settings(&self) -> MutexGuard<'_, Settings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a handle wants goes with the next operation.
    pub(super) fn configure(&self, settings: &MailboxSettings) {
        let numbers = [
            ("max_size", settings.max_size.map(|most| most as u64)),
            ("max_deliveries", settings.max_deliveries.map(u64::from)),
            ("window", settings.deduplication_window.map(millis)),
            ("idle", settings.idle_expiry.map(millis)),
        ];
        let mut known = self.settings();
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
    async fn arguments(&self, lane: &Bytes) -> Vec<Bytes> {
        let settings = {
            let known = self.settings();
            if known.is_written && !known.is_fleeting { String::new() } else { known.text.clone() }
        };
        let publish = self.link.publish().await;
        let token = Bytes::copy_from_slice(&self.link.token());
        vec![token, settings.into(), Bytes::from_static(publish.as_bytes()), lane.clone()]
    }

    fn settings_are_written(&self, arguments: &[Bytes]) {
        let mut known = self.settings();
        if known.text.as_bytes() == arguments[1] {
            known.is_written = true;
        }
    }

    /// The mailbox has gone, and its settings with it: the next operation brings them again.
    pub(super) fn settings_are_gone(&self) {
        let mut known = self.settings();
        (known.is_written, known.is_listed) = (false, false);
    }

    async fn run(&self, script: &'static Script, arguments: &[Bytes]) -> Result<Value, Error> {
        let answer = self.read(self.link.run(script.call(&self.keys, arguments)).await, arguments)?;
        let is_listed = arguments[1].is_empty() || {
            let mut known = self.settings();
            std::mem::replace(&mut known.is_listed, true)
        };
        if !is_listed {
            self.register().await;
        }
        Ok(answer)
    }

    fn read<T>(&self, answer: Result<T, Fault>, arguments: &[Bytes]) -> Result<T, Error> {
        let answer = answer.map_err(|fault| self.error(fault))?;
        self.settings_are_written(arguments);
        Ok(answer)
    }

    fn error(&self, fault: Fault) -> Error {
        if fault.is_full() {
            return Error::MailboxFull { mailbox: self.name.to_string(), limit: "the server's maxmemory".into() };
        }
        fault.into_error(&self.link.place)
    }

    /// Everything that is not gathered.
    pub(super) fn other<T: Send + 'static>(
        self: &Arc<Self>,
        script: &'static Script,
        more: Vec<Bytes>,
        read: impl FnOnce(Value) -> T + Send + 'static,
    ) -> Answer<Result<T, Error>> {
        let post = Arc::clone(self);
        network::ask(async move {
            let lane = post.other.lock().await;
            let mut arguments = post.arguments(&lane).await;
            arguments.extend(more);
            Ok(read(post.run(script, &arguments).await?))
        })
    }

    /// A new mailbox is listed from now on. A user that may not do that is not listed.
    pub(super) async fn register(&self) {
        let _ = self.link.command(cmd("SADD").arg(REGISTRY).arg(self.name.to_string())).await;
    }

    /// Works off a lane, request by request, until nothing is left in it. The work ends with what tells those who wait.
    fn drive<J: Weight + Send + 'static, F: Future<Output: FnOnce()> + Send + 'static>(
        self: &Arc<Self>,
        lane: fn(&Post) -> &Lane<J>,
        work: impl Fn(Arc<Post>, Vec<J>) -> F + Send + 'static,
    ) {
        let post = Arc::clone(self);
        network::spawn(async move {
            loop {
                let _turn = post.turn.acquire_many(u32::from(lane(&post).takes_turns)).await;
                lane(&post).gather();
                let jobs = lane(&post).take();
                if jobs.is_empty() {
                    break;
                }
                let (began, many) = (Instant::now(), jobs.len());
                let tell = work(Arc::clone(&post), jobs).await;
                lane(&post).ended(many, began.elapsed());
                tell();
            }
        });
    }

    pub(super) fn send(
        self: &Arc<Self>,
        messages: Batch<Outgoing>,
    ) -> Answer<Result<Vec<Result<MessageId, Error>>, Error>> {
        let (promise, result) = promise(None);
        let (starts, is_brisk) = self.sends.push(Sending { messages, promise });
        // Before its own operation is under way.
        let awake_until = is_brisk.then(alone_until).flatten();
        if starts {
            self.drive(
                |post| &post.sends,
                |post, jobs| async move {
                    let mut sent = post.send_all(&jobs).await.map(Vec::into_iter);
                    move || {
                        let fulfil = |job: &Sending| {
                            job.promise.fulfil_quietly(match &mut sent {
                                Ok(results) => Ok(results.take(job.messages.len()).collect()),
                                Err(error) => Err(error.clone()),
                            })
                        };
                        wake_all(jobs.iter().filter_map(fulfil));
                    }
                },
            );
        }
        Answer::from_future(result.awake_until(awake_until))
    }

    async fn send_all(&self, jobs: &[Sending]) -> Result<Vec<Result<MessageId, Error>>, Error> {
        let messages: Vec<&Outgoing> = jobs.iter().flat_map(|job| &job.messages).collect();
        let is_plain = messages.iter().all(|message| message.delay.is_zero() && message.special.is_none());
        let mut arguments = self.arguments(&self.sends.name).await;
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
        let call = script::SEND.call(&self.keys, &arguments);
        let (answer, reached) = if wanted > 0 {
            self.read(self.link.run_durably(call).await, &arguments)?
        } else {
            // Those who wait in this process ask right behind it, before they hear of it from the server. Should that be too
            // early, they hear of it then.
            let tell = || {
                if is_plain {
                    self.link.hubs.wake(&self.channel, messages.len() as u64);
                }
            };
            (self.read(self.link.run_and_tell(call, tell).await, &arguments)?, 0)
        };
        let mut parts = list(answer).into_iter();
        if integer(&parts.next().unwrap_or_default()) == 1 {
            if arguments[1].is_empty() {
                // Somebody may have removed it since they were written.
                self.settings_are_gone();
            }
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
    pub(super) fn attempt(self: &Arc<Self>, request: Receive) -> Answer<Result<Found, Error>> {
        let (result, awake_until) = self.take(request);
        Answer::from_future(result.awake_until(awake_until))
    }

    /// The same, on the network's own thread: it has more to do than to stay awake for this.
    pub(super) fn look(self: &Arc<Self>, request: Receive) -> Answer<Result<Found, Error>> {
        Answer::from_future(self.take(request).0)
    }

    fn take(self: &Arc<Self>, request: Receive) -> (Fulfilled<Found>, Option<Instant>) {
        let back = Arc::clone(self);
        let (promise, result) = promise(Some(Box::new(move |(deliveries, _): Found| back.give_back(&deliveries))));
        let (starts, is_brisk) =
            self.receives.push(Receiving { max: request.max, visibility: request.visibility, promise });
        // Before its own operation is under way.
        let awake_until = is_brisk.then(alone_until).flatten();
        if starts {
            self.drive(
                |post| &post.receives,
                |post, mut jobs| async move {
                    jobs.retain(|job| !job.promise.is_void());
                    let mut found = post.receive_all(&jobs).await.map(Vec::into_iter);
                    move || {
                        let fulfil = |job: &Receiving| {
                            job.promise.fulfil_quietly(match &mut found {
                                Ok(found) => Ok(found.next().unwrap_or_default()),
                                Err(error) => Err(error.clone()),
                            })
                        };
                        wake_all(jobs.iter().filter_map(fulfil));
                    }
                },
            );
        }
        (result, awake_until)
    }

    /// Makes visible again what nobody takes.
    pub(super) fn give_back(self: &Arc<Self>, deliveries: &[Delivery]) {
        let receipts = deliveries.iter().filter_map(|delivery| {
            member(&Receipt { id: delivery.id.clone(), handle: delivery.receipt_handle.clone() })
        });
        let acts: Vec<Act> = receipts.map(|member| (RETURN, member, Bytes::from_static(b"0"))).collect();
        if !acts.is_empty() {
            in_background(self.act(acts));
        }
    }

    async fn receive_all(&self, jobs: &[Receiving]) -> Result<Vec<Found>, Error> {
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        let mut arguments = self.arguments(&self.receives.name).await;
        for job in jobs {
            arguments.push(job.max.to_string().into());
            arguments.push(millis(job.visibility).to_string().into());
        }
        let mut parts = list(self.run(&script::RECEIVE, &arguments).await?).into_iter();
        let mut part = || parts.next().unwrap_or_default();
        let (now, due, counts, members, bodies) =
            (natural(&part()), integer(&part()), bytes(part()), bytes(part()), list(part()));
        let due = u64::try_from(due).ok().map(|due| moment(now).until(moment(due)));
        let mut taken =
            members.chunks_exact(MEMBER).zip(bodies).map(|(member, body)| delivery(&member[1..], bytes(body), now));
        let counts = String::from_utf8_lossy(&counts);
        let of_each = counts.split(',').map(|count| {
            let deliveries: Vec<Delivery> = taken.by_ref().take(count.parse().unwrap_or(0)).collect();
            let due = due.filter(|_| deliveries.is_empty());
            (deliveries, due)
        });
        Ok(of_each.collect())
    }

    pub(super) fn act(self: &Arc<Self>, acts: Vec<Act>) -> Answer<Result<Vec<bool>, Error>> {
        let (promise, result) = promise(None);
        let (starts, is_brisk) = self.acts.push(Acting { acts, promise });
        // Before its own operation is under way.
        let awake_until = is_brisk.then(alone_until).flatten();
        if starts {
            self.drive(
                |post| &post.acts,
                |post, jobs| async move {
                    let mut done = post.act_all(&jobs).await.map(Vec::into_iter);
                    move || {
                        let fulfil = |job: &Acting| {
                            job.promise.fulfil_quietly(match &mut done {
                                Ok(done) => Ok(done.take(job.acts.len()).map(|byte| byte == b'1').collect()),
                                Err(error) => Err(error.clone()),
                            })
                        };
                        wake_all(jobs.iter().filter_map(fulfil));
                    }
                },
            );
        }
        Answer::from_future(result.awake_until(awake_until))
    }

    async fn act_all(&self, jobs: &[Acting]) -> Result<Vec<u8>, Error> {
        let acts = || jobs.iter().flat_map(|job| &job.acts);
        let is_plain = acts().all(|act| act.0 == ACKNOWLEDGE);
        let mut arguments = self.arguments(&self.acts.name).await;
        arguments.push(Bytes::from_static(if is_plain { b"1" } else { b"0" }));
        for (act, member, argument) in acts() {
            if is_plain {
                arguments.push(Bytes::copy_from_slice(member));
            } else {
                arguments.extend([Bytes::from_static(act), Bytes::copy_from_slice(member), argument.clone()]);
            }
        }
        Ok(bytes(self.run(&script::FINISH, &arguments).await?))
    }
}

impl Drop for Post {
    fn drop(&mut self) {
        self.link.unsubscribe(self.channel.clone());
    }
}
