//! One queue, as all handles of a mailbox in this process share it.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::{
    BatchResultErrorEntry, ChangeMessageVisibilityBatchRequestEntry as ChangeEntry,
    DeleteMessageBatchRequestEntry as DeleteEntry, QueueAttributeName as Attribute,
    SendMessageBatchRequestEntry as SendEntry,
};

use super::desk::Desk;
use super::fault::{Fault, fault};
use super::lane::{Entry, Lane, Request};
use super::leases::{Begin, Leases, after};
use super::letter::{Content, Letter, Received, whole_seconds};
use super::name;
use crate::address::MailboxName;
use crate::backend::{Delivery, Outgoing, Receipt, Receive, Visibility};
use crate::clock::{Clock as _, SystemClock};
use crate::error::Error;
use crate::id::{MessageId, ReceiptHandle};
use crate::network;
use crate::operation::Answer;
use crate::promise::{Promise, promise};

/// A region, or a server that does as one, and how to behave there.
pub(super) struct Place {
    pub(super) client: Client,
    /// In errors.
    pub(super) shown: String,
    pub(super) manners: Manners,
}

#[derive(Clone, Debug)]
pub(super) struct Manners {
    /// Makes queues that are not there.
    pub(super) creates: bool,
    /// Gathers concurrent operations into batches.
    pub(super) gathers: bool,
    /// The group of messages without one, on a queue that keeps order.
    pub(super) group: Option<String>,
}

impl Default for Manners {
    fn default() -> Self {
        Manners { creates: false, gathers: true, group: None }
    }
}

/// What is known of a queue.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) url: String,
    pub(super) arn: Option<String>,
    /// The largest message.
    pub(super) most: usize,
    /// Whether it deduplicates by the body.
    by_content: bool,
    /// Where dead letters go, after so many deliveries.
    pub(super) redrive: Option<(String, u32)>,
    since: Instant,
}

/// What SQS takes at most, in a message or in a batch.
pub(super) const MOST_BYTES: usize = 1 << 20;
/// What every server takes as a batch.
const SURE_BYTES: usize = 256 << 10;
/// How old what is known may be when it is held against somebody.
const FRESH: Duration = Duration::from_secs(60);
/// How often entries are asked for that a server failed to do.
const ATTEMPTS: u32 = 3;
/// How long a request may take, beside the time that it waits for messages.
const PATIENCE: Duration = Duration::from_secs(15);

pub(super) struct Queue {
    pub(super) place: Arc<Place>,
    pub(super) name: MailboxName,
    /// The names of the queue and of the one for its dead letters.
    pub(super) queue: String,
    pub(super) dead: String,
    pub(super) is_fifo: bool,
    /// Where the user said that it is.
    url: Option<String>,
    facts: Mutex<Option<Arc<Facts>>>,
    finding: tokio::sync::Mutex<()>,
    pub(super) max_deliveries: Mutex<Option<u32>>,
    most_bytes: AtomicUsize,
    sends: Lane<Sending>,
    deletes: Lane<Acting>,
    changes: Lane<Acting>,
    receives: Lane<Receiving>,
    desk: Desk,
    pub(super) leases: Leases,
    pub(super) purged: Mutex<Option<Instant>>,
}

struct Sending {
    message: Outgoing,
    promise: Promise<MessageId>,
}

impl Entry for Sending {
    fn bytes(&self) -> usize {
        // Attributes are few; where they are not, the request is divided.
        self.message.body.len() + 512
    }
}

/// An act on a delivery, and what it makes of the lease.
struct Acting {
    receipt: Receipt,
    /// When it becomes visible again, and whether the lease ends. `None`: it is deleted.
    change: Option<(i32, bool)>,
    promise: Promise<()>,
}

impl Entry for Acting {}

/// A receive that does not wait.
struct Receiving {
    max: usize,
    visibility: Duration,
    promise: Promise<Vec<Delivery>>,
}

impl Entry for Receiving {
    fn weight(&self) -> usize {
        self.max
    }

    fn goes_with(&self, first: &Self) -> bool {
        self.visibility == first.visibility
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a batch came to: the entries that are done, with what came of them, and those that failed.
type Outcome = (Vec<(String, String)>, Vec<BatchResultErrorEntry>);

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Queue {
    pub(super) fn new(place: Arc<Place>, name: MailboxName, url: Option<String>) -> Result<Arc<Self>, Error> {
        let (queue, dead) = match &url {
            // Its own name is as it is, whatever the mailbox is called here.
            Some(url) => {
                let queue = url.rsplit('/').next().unwrap_or_default().to_string();
                let dead =
                    queue.strip_suffix(name::FIFO).map_or(format!("{queue}-dead"), |base| format!("{base}-dead.fifo"));
                (queue, dead)
            }
            None => name::queues(&name)?,
        };
        let gathers = place.manners.gathers;
        let is_fifo = queue.ends_with(name::FIFO);
        Ok(Arc::new(Queue {
            is_fifo,
            queue,
            dead,
            url,
            name,
            facts: Mutex::default(),
            finding: tokio::sync::Mutex::default(),
            max_deliveries: Mutex::default(),
            most_bytes: AtomicUsize::new(SURE_BYTES),
            sends: if is_fifo { Lane::in_order(gathers) } else { Lane::new(gathers) },
            deletes: Lane::new(gathers),
            changes: Lane::new(gathers),
            receives: Lane::new(gathers),
            desk: Desk::new(gathers),
            leases: Leases::default(),
            purged: Mutex::default(),
            place,
        }))
    }

    /// What a handle wants of it.
    pub(super) fn configure(&self, max_deliveries: Option<u32>) {
        let mut wanted = lock(&self.max_deliveries);
        if max_deliveries.is_some() && *wanted != max_deliveries {
            *wanted = max_deliveries;
            self.forget();
        }
    }

    pub(super) fn forget(&self) {
        *lock(&self.facts) = None;
    }

    /// How the queue is called in errors.
    pub(super) fn shown(&self) -> String {
        format!("{}/{}", self.place.shown, self.queue)
    }

    pub(super) fn missing(&self) -> Error {
        self.forget();
        let reason = format!(
            "there is no queue {:?} in {}; create it (create(), ?create=true, or as you create other queues)",
            self.queue, self.place.shown
        );
        Error::resolution(&self.shown(), reason)
    }

    /// What a request to this queue ended with.
    pub(super) fn failed(&self, fault: Fault) -> Error {
        if fault.is_missing() {
            return self.missing();
        }
        if fault.is_over_limit() {
            let limit = "so many messages of it are leased as SQS allows at once".into();
            return Error::MailboxFull { mailbox: self.name.to_string(), limit };
        }
        fault.error
    }

    /// Finds the queue, or makes it, and looks at it. Later it is known.
    pub(super) async fn facts(&self) -> Result<Arc<Facts>, Error> {
        if let Some(facts) = lock(&self.facts).clone() {
            return Ok(facts);
        }
        let _one_at_a_time = self.finding.lock().await;
        if let Some(facts) = lock(&self.facts).clone() {
            return Ok(facts);
        }
        let url = match &self.url {
            Some(url) => Some(url.clone()),
            None => self.place.find(&self.queue, None).await.map_err(|fault| fault.error)?,
        };
        match url {
            Some(url) => self.learn(url, self.place.manners.creates).await,
            None if self.place.manners.creates => self.make_plain().await,
            None => Err(self.missing()),
        }
    }

    /// Makes the queue if it is not there, and makes it as the handles want it.
    pub(super) async fn create(&self) -> Result<(), Error> {
        let _one_at_a_time = self.finding.lock().await;
        let url = match &self.url {
            Some(url) => Some(url.clone()),
            None => self.place.find(&self.queue, None).await.map_err(|fault| fault.error)?,
        };
        match url {
            Some(url) => self.learn(url, true).await?,
            None => self.make_plain().await?,
        };
        Ok(())
    }

    async fn make_plain(&self) -> Result<Arc<Facts>, Error> {
        let most = *lock(&self.max_deliveries);
        match self.make(Vec::new(), most).await {
            // Somebody else has just made it, otherwise.
            Err(error @ Error::InvalidParameter { .. }) => {
                match self.place.find(&self.queue, None).await.map_err(|fault| fault.error)? {
                    Some(url) => self.learn(url, true).await,
                    None => Err(error),
                }
            }
            made => made,
        }
    }

    /// Makes the queue. Nothing happens if there is one like it; one with other settings is an error.
    pub(super) async fn make(
        &self,
        mut attributes: Vec<(Attribute, String)>,
        max_deliveries: Option<u32>,
    ) -> Result<Arc<Facts>, Error> {
        let settings = attributes.clone();
        if self.is_fifo {
            attributes.push((Attribute::FifoQueue, "true".to_string()));
        }
        if let Some(most) = max_deliveries {
            attributes.push((Attribute::RedrivePolicy, self.redrive_policy(most).await?));
        }
        let made = self.place.create(&self.queue, attributes).await;
        let url = made.map_err(|fault| match fault.is("QueueNameExists") || fault.is("QueueAlreadyExists") {
            true => {
                let limit = format!("as queue {:?} has them, which exists; change that one, or delete it", self.queue);
                Error::invalid("queue settings", format!("{settings:?}"), limit)
            }
            false => fault.error,
        })?;
        self.learn(url, true).await
    }

    /// Removes the queue, and the one for its dead letters if that is the mailbox's own.
    pub(super) async fn delete(&self) -> Result<(), Error> {
        let own = match &self.url {
            Some(url) => Some(url.clone()),
            None => self.place.find(&self.queue, None).await.map_err(|fault| fault.error)?,
        };
        let dead = self.place.find(&self.dead, None).await.map_err(|fault| fault.error)?;
        for url in own.into_iter().chain(dead) {
            let gone = self.place.client.delete_queue().queue_url(url).send().await;
            match gone.map_err(|error| fault(&self.shown(), error)) {
                Err(fault) if !fault.is_missing() => return Err(fault.error),
                _ => {}
            }
        }
        self.forget();
        Ok(())
    }

    /// Where dead letters go after so many deliveries; the queue for them is made.
    async fn redrive_policy(&self, most: u32) -> Result<String, Error> {
        let fifo = self.is_fifo.then(|| (Attribute::FifoQueue, "true".to_string()));
        let failed = |fault: Fault| fault.error;
        let url = match self.place.find(&self.dead, None).await.map_err(failed)? {
            Some(url) => url,
            None => self.place.create(&self.dead, fifo.into_iter().collect()).await.map_err(failed)?,
        };
        let arn = self.place.look(url).await.map_err(failed)?.arn;
        let arn =
            arn.ok_or_else(|| Error::connection(format!("{} has no ARN for {:?}", self.place.shown, self.dead)))?;
        Ok(serde_json::json!({ "deadLetterTargetArn": arn, "maxReceiveCount": most }).to_string())
    }

    /// Looks at the queue, and whether it is as the handles want it.
    async fn learn(&self, url: String, may_change: bool) -> Result<Arc<Facts>, Error> {
        let mut facts = self.place.look(url).await.map_err(|fault| self.failed(fault))?;
        let (wanted, has) = (*lock(&self.max_deliveries), facts.redrive.as_ref().map(|redrive| redrive.1));
        if let Some(most) = wanted.filter(|most| Some(*most) != has) {
            if !may_change {
                let has = has.map_or("none".into(), |has| format!("maxReceiveCount = {has}"));
                let limit = format!(
                    "as the redrive policy of queue {:?} says, which is {has}; change that, or call create()",
                    self.queue
                );
                return Err(Error::invalid("max_deliveries", most, limit));
            }
            let policy = match &facts.redrive {
                Some((arn, _)) => {
                    serde_json::json!({ "deadLetterTargetArn": arn, "maxReceiveCount": most }).to_string()
                }
                None => self.redrive_policy(most).await?,
            };
            let request = self.place.client.set_queue_attributes().queue_url(&facts.url);
            let set = request.attributes(Attribute::RedrivePolicy, policy).send().await;
            set.map_err(|error| self.failed(fault(&self.shown(), error)))?;
            facts = self.place.look(facts.url).await.map_err(|fault| self.failed(fault))?;
        }
        let facts = Arc::new(facts);
        self.most_bytes.store(facts.most.max(SURE_BYTES), Ordering::Relaxed);
        *lock(&self.facts) = Some(Arc::clone(&facts));
        Ok(facts)
    }

    /// Sends what a lane has ready, and then what it has ready by then.
    fn work<J: Entry + Send + 'static>(
        self: &Arc<Self>,
        lane: fn(&Queue) -> &Lane<J>,
        requests: Vec<Request<J>>,
        request: fn(Arc<Queue>, Vec<J>) -> Work,
    ) {
        for (number, entries) in requests {
            let queue = Arc::clone(self);
            network::spawn(async move {
                request(Arc::clone(&queue), entries).await;
                let next = lane(&queue).done(number, queue.most_bytes.load(Ordering::Relaxed));
                queue.work(lane, next, request);
            });
        }
    }

    pub(super) fn send(
        self: &Arc<Self>,
        messages: impl IntoIterator<Item = Outgoing>,
    ) -> Vec<Answer<Result<MessageId, Error>>> {
        let mut answers = Vec::new();
        let entries = messages.into_iter().map(|message| {
            let (promise, sent) = promise(None);
            answers.push(Answer::from_future(sent));
            Sending { message, promise }
        });
        let entries: Vec<_> = entries.collect();
        let ready = self.sends.push(entries, self.most_bytes.load(Ordering::Relaxed));
        self.work(|queue| &queue.sends, ready, |queue, entries| Box::pin(async move { queue.send_all(entries).await }));
        answers
    }

    async fn send_all(&self, entries: Vec<Sending>) {
        let letters: Vec<Letter> = entries.iter().map(|entry| letter(&entry.message)).collect();
        let largest = letters.iter().map(|letter| letter.size).max().unwrap_or(0);
        let facts = match self.facts_for(largest).await {
            Ok(facts) => facts,
            Err(error) => return entries.iter().for_each(|entry| entry.promise.fulfil(Err(error.clone()))),
        };
        let most_bytes = facts.most.max(SURE_BYTES);
        let (mut part, mut bytes) = (Vec::new(), 0);
        for (entry, letter) in entries.into_iter().zip(letters) {
            if letter.size > facts.most {
                let limit = format!(
                    "up to {} bytes, the MaximumMessageSize of queue {:?}, body and attributes as SQS keeps them",
                    facts.most, self.queue
                );
                entry.promise.fulfil(Err(Error::invalid("message size", format!("{} bytes", letter.size), limit)));
                continue;
            }
            if bytes + letter.size > most_bytes {
                self.send_part(&facts, std::mem::take(&mut part)).await;
                bytes = 0;
            }
            bytes += letter.size;
            part.push((entry, letter));
        }
        self.send_part(&facts, part).await;
    }

    /// What is known of the queue; fresh if a message seems too large for it.
    async fn facts_for(&self, bytes: usize) -> Result<Arc<Facts>, Error> {
        let facts = self.facts().await?;
        if bytes <= facts.most || facts.since.elapsed() < FRESH {
            return Ok(facts);
        }
        self.forget();
        self.facts().await
    }

    async fn send_part(&self, facts: &Facts, entries: Vec<(Sending, Letter)>) {
        let ask = |entries: &[(Sending, Letter)]| {
            let entries = entries.iter().enumerate().map(|(at, (entry, letter))| self.entry(facts, at, entry, letter));
            let request = self
                .place
                .client
                .send_message_batch()
                .queue_url(&facts.url)
                .set_entries(Some(entries.collect()))
                .send();
            async {
                let answer = request.await.map_err(|error| fault(&self.shown(), error))?;
                let sent = answer.successful.into_iter().map(|entry| (entry.id, entry.message_id));
                Ok((sent.collect(), answer.failed))
            }
        };
        let results = self.patiently(entries, ask).await;
        for ((entry, _), result) in results {
            // A message that may be one that was sent before has the queue's own id: that of the first.
            let id = result.map_err(|fault| self.failed(fault)).map(|sent| match deduplicates(&entry.message) {
                true => sent.into(),
                false => entry.message.id.clone(),
            });
            entry.promise.fulfil(id);
        }
    }

    fn entry(&self, facts: &Facts, at: usize, entry: &Sending, letter: &Letter) -> SendEntry {
        let message = &entry.message;
        let special = message.special.as_deref();
        let own = || message.id.to_string();
        let (mut group, mut deduplication) = (None, None);
        if self.is_fifo {
            // Without a group it waits for no other.
            let wanted = special.and_then(|special| special.group.clone());
            group = Some(wanted.or_else(|| self.place.manners.group.clone()).unwrap_or_else(own));
            deduplication = special.and_then(|special| special.deduplication.clone());
            if deduplication.is_none() && !facts.by_content {
                deduplication = Some(own());
            }
        }
        SendEntry::builder()
            .id(at.to_string())
            .message_body(&letter.body)
            .set_message_attributes(Some(letter.attributes.clone()))
            .set_delay_seconds((!message.delay.is_zero()).then(|| whole_seconds(message.delay)))
            .set_message_group_id(group)
            .set_message_deduplication_id(deduplication)
            .build()
            .expect("it has an id and a body")
    }

    /// Asks for a batch, and again for the entries that the server failed to do.
    async fn patiently<J, F>(&self, entries: Vec<J>, ask: impl Fn(&[J]) -> F) -> Vec<(J, Result<String, Fault>)>
    where
        F: Future<Output = Result<Outcome, Fault>>,
    {
        let mut results = Vec::with_capacity(entries.len());
        let mut left = entries;
        for attempt in 1.. {
            if left.is_empty() {
                break;
            }
            let (done, failed) = match ask(&left).await {
                Ok(answer) => answer,
                Err(fault) => {
                    results.extend(left.into_iter().map(|entry| (entry, Err(fault.clone()))));
                    break;
                }
            };
            let mut outcomes: Vec<Option<Result<String, Fault>>> = (0..left.len()).map(|_| None).collect();
            let mut note = |id: &str, outcome| {
                if let Some(slot) = id.parse::<usize>().ok().and_then(|at| outcomes.get_mut(at)) {
                    *slot = Some(outcome);
                }
            };
            for (id, value) in done {
                note(&id, Ok(value));
            }
            for entry in failed {
                let id = entry.id.clone();
                note(&id, Err(Fault::of_entry(&self.shown(), entry)));
            }
            let mut again = Vec::new();
            for (entry, outcome) in left.into_iter().zip(outcomes) {
                let outcome = outcome.unwrap_or_else(|| Err(Fault::incomplete(&self.shown())));
                match outcome {
                    Err(fault) if fault.error.is_transient() && attempt < ATTEMPTS => again.push(entry),
                    outcome => results.push((entry, outcome)),
                }
            }
            left = again;
            if !left.is_empty() {
                tokio::time::sleep(crate::receive::pause_after(attempt)).await;
            }
        }
        results
    }

    /// Leases what is there, for others together with this one.
    pub(super) fn receive(self: &Arc<Self>, request: Receive) -> Answer<Result<Vec<Delivery>, Error>> {
        if !request.wait.is_zero() {
            return self.wait(request);
        }
        let back = Arc::clone(self);
        let (promise, found) = promise(Some(Box::new(move |deliveries: Vec<Delivery>| back.give_back(deliveries))));
        let entry = Receiving { max: request.max, visibility: request.visibility, promise };
        let ready = self.receives.push([entry], usize::MAX);
        self.work(
            |queue| &queue.receives,
            ready,
            |queue, entries| Box::pin(async move { queue.receive_all(entries).await }),
        );
        Answer::from_future(found)
    }

    async fn receive_all(self: &Arc<Self>, mut entries: Vec<Receiving>) {
        entries.retain(|entry| !entry.promise.is_void());
        let Some(visibility) = entries.first().map(|entry| entry.visibility) else { return };
        let max = entries.iter().map(|entry| entry.max).sum();
        match self.lease(max, visibility, 0).await {
            Ok(found) => {
                let mut found = found.into_iter();
                for entry in entries {
                    entry.promise.fulfil(Ok(found.by_ref().take(entry.max).collect()));
                }
                self.give_back(found.collect());
            }
            Err(error) => entries.iter().for_each(|entry| entry.promise.fulfil(Err(error.clone()))),
        }
    }

    /// Asks for messages, and keeps their leases.
    async fn lease(self: &Arc<Self>, max: usize, visibility: Duration, wait: i32) -> Result<Vec<Delivery>, Error> {
        let facts = self.facts().await?;
        let asked = Instant::now();
        let seconds = whole_seconds(visibility);
        let found = self.place.receive(&facts.url, max, seconds, wait, self.is_fifo).await;
        let found = found.map_err(|fault| self.failed(fault))?;
        // Who does not wait is handed the lease somewhere between question and answer; who waits, near the answer.
        let start = if wait == 0 { asked } else { Instant::now() };
        let until = after(start, Duration::from_secs(seconds.unsigned_abs().into()));
        found.iter().for_each(|received| self.leases.add(received, until));
        Ok(found.into_iter().map(|received| received.delivery).collect())
    }

    /// Makes visible again what nobody takes.
    pub(super) fn give_back(self: &Arc<Self>, deliveries: Vec<Delivery>) {
        let receipts =
            deliveries.into_iter().map(|delivery| Receipt { id: delivery.id, handle: delivery.receipt_handle });
        let changes = receipts.map(|receipt| (receipt, Visibility::Return(Duration::ZERO))).collect::<Vec<_>>();
        if !changes.is_empty() {
            drop(self.set_visibility(changes));
        }
    }

    pub(super) fn acknowledge(
        self: &Arc<Self>,
        receipts: impl IntoIterator<Item = Receipt>,
    ) -> Vec<Answer<Result<(), Error>>> {
        self.act(receipts.into_iter().map(|receipt| (receipt, None)))
    }

    pub(super) fn set_visibility(
        self: &Arc<Self>,
        changes: impl IntoIterator<Item = (Receipt, Visibility)>,
    ) -> Vec<Answer<Result<(), Error>>> {
        self.act(changes.into_iter().map(|(receipt, visibility)| (receipt, Some(visibility))))
    }

    fn act(
        self: &Arc<Self>,
        acts: impl Iterator<Item = (Receipt, Option<Visibility>)>,
    ) -> Vec<Answer<Result<(), Error>>> {
        let (mut deletes, mut changes) = (Vec::new(), Vec::new());
        let answers = acts.map(|(receipt, wish)| match self.leases.begin(&receipt.handle) {
            Begin::Now(until) => match self.acting(receipt, wish, until) {
                Ok((acting, answer)) => {
                    if acting.change.is_some() { &mut changes } else { &mut deletes }.push(acting);
                    answer
                }
                Err(answer) => answer,
            },
            Begin::Never => Answer::ready(Err(Error::ReceiptHandleExpired { id: receipt.id })),
            Begin::Later => {
                let queue = Arc::clone(self);
                network::ask(async move {
                    match queue.leases.begin_after(&receipt.handle).await {
                        None => Err(Error::ReceiptHandleExpired { id: receipt.id }),
                        Some(until) => match queue.acting(receipt, wish, until) {
                            Ok((acting, answer)) => {
                                if acting.change.is_some() {
                                    queue.push_acts(vec![], vec![acting]);
                                } else {
                                    queue.push_acts(vec![acting], vec![]);
                                }
                                answer.await
                            }
                            Err(answer) => answer.await,
                        },
                    }
                })
            }
        });
        let answers = answers.collect();
        self.push_acts(deletes, changes);
        answers
    }

    fn push_acts(self: &Arc<Self>, deletes: Vec<Acting>, changes: Vec<Acting>) {
        let work: fn(Arc<Queue>, Vec<Acting>) -> Work =
            |queue, entries| Box::pin(async move { queue.act_all(entries).await });
        if !deletes.is_empty() {
            self.work(|queue| &queue.deletes, self.deletes.push(deletes, usize::MAX), work);
        }
        if !changes.is_empty() {
            self.work(|queue| &queue.changes, self.changes.push(changes, usize::MAX), work);
        }
    }

    /// An act that has begun. What needs no request is answered.
    fn acting(
        &self,
        receipt: Receipt,
        wish: Option<Visibility>,
        until: Instant,
    ) -> Result<(Acting, Answer<Result<(), Error>>), Answer<Result<(), Error>>> {
        let change = match wish {
            None => None,
            // A lease is never made shorter.
            Some(Visibility::Extend(by)) if after(Instant::now(), by) <= until => {
                self.leases.release(&receipt.handle, None);
                return Err(Answer::ready(Ok(())));
            }
            Some(Visibility::Extend(by)) => Some((whole_seconds(by), false)),
            Some(Visibility::Return(by)) => Some((whole_seconds(by), true)),
        };
        let (promise, done) = promise(None);
        Ok((Acting { receipt, change, promise }, Answer::from_future(done)))
    }

    /// Acts of one kind, in one request.
    async fn act_all(&self, entries: Vec<Acting>) {
        let facts = match self.facts().await {
            Ok(facts) => facts,
            Err(error) => {
                for entry in entries {
                    self.leases.release(&entry.receipt.handle, None);
                    entry.promise.fulfil(Err(error.clone()));
                }
                return;
            }
        };
        let asked = Instant::now();
        let ask = |entries: &[Acting]| self.ask_acts(&facts.url, entries);
        for (entry, result) in self.patiently(entries, ask).await {
            let handle = &entry.receipt.handle;
            let result = match (result, entry.change) {
                (Ok(_), Some((seconds, false))) => {
                    let until = after(asked, Duration::from_secs(seconds.unsigned_abs().into()));
                    self.leases.release(handle, Some(until));
                    Ok(())
                }
                (Ok(_), _) => {
                    self.leases.end(handle);
                    Ok(())
                }
                (Err(fault), _) if fault.is_stale_receipt() => {
                    self.leases.end(handle);
                    Err(Error::ReceiptHandleExpired { id: entry.receipt.id.clone() })
                }
                (Err(fault), _) => {
                    self.leases.release(handle, None);
                    Err(self.failed(fault))
                }
            };
            entry.promise.fulfil(result);
        }
    }

    fn ask_acts<'a>(
        &'a self,
        url: &str,
        entries: &[Acting],
    ) -> Pin<Box<dyn Future<Output = Result<Outcome, Fault>> + Send + 'a>> {
        let client = &self.place.client;
        let failed = || self.shown();
        if entries.iter().all(|entry| entry.change.is_none()) {
            let entries = entries.iter().enumerate().map(|(at, entry)| {
                let entry = DeleteEntry::builder().id(at.to_string()).receipt_handle(entry.receipt.handle.to_string());
                entry.build().expect("it has an id and a receipt")
            });
            let request = client.delete_message_batch().queue_url(url).set_entries(Some(entries.collect())).send();
            return Box::pin(async move {
                let answer = request.await.map_err(|error| fault(&failed(), error))?;
                Ok((answer.successful.into_iter().map(|entry| (entry.id, String::new())).collect(), answer.failed))
            });
        }
        let entries = entries.iter().enumerate().map(|(at, entry)| {
            let entry_builder =
                ChangeEntry::builder().id(at.to_string()).receipt_handle(entry.receipt.handle.to_string());
            let seconds = entry.change.map_or(0, |(seconds, _)| seconds);
            entry_builder.visibility_timeout(seconds).build().expect("it has an id and a receipt")
        });
        let request =
            client.change_message_visibility_batch().queue_url(url).set_entries(Some(entries.collect())).send();
        Box::pin(async move {
            let answer = request.await.map_err(|error| fault(&failed(), error))?;
            Ok((answer.successful.into_iter().map(|entry| (entry.id, String::new())).collect(), answer.failed))
        })
    }

    /// A receive that waits, on a long poll that it shares.
    fn wait(self: &Arc<Self>, request: Receive) -> Answer<Result<Vec<Delivery>, Error>> {
        let back = Arc::clone(self);
        let (promise, found) = promise(Some(Box::new(move |deliveries: Vec<Delivery>| back.give_back(deliveries))));
        let late = self.desk.join(request, promise);
        self.poll();
        Answer::from_future(async move {
            let clock = SystemClock::shared();
            let end = clock.now().after(late);
            match crate::cancellation::unless(crate::clock::Sleep::until(clock, end), found).await {
                Some(found) => found,
                None => Ok(Vec::new()),
            }
        })
    }

    /// Starts as many long polls as those who wait need.
    fn poll(self: &Arc<Self>) {
        while let Some(poll) = self.desk.plan() {
            let queue = Arc::clone(self);
            network::spawn(async move {
                let found = queue.lease(poll.max, poll.visibility, poll.wait).await;
                let left = queue.desk.deliver(poll, found);
                queue.give_back(left);
                queue.poll();
            });
        }
    }
}

/// Whether it may be one that was sent before.
fn deduplicates(message: &Outgoing) -> bool {
    message.special.as_deref().is_some_and(|special| special.deduplication.is_some())
}

fn letter(message: &Outgoing) -> Letter {
    Letter::new(Content {
        id: (!deduplicates(message)).then_some(&message.id),
        body: &message.body,
        content_type: &message.content_type,
        headers: message.headers.as_deref(),
        dead: None,
    })
}

impl Place {
    /// Where a queue is, if it is. Another account's is asked for by that account.
    pub(super) async fn find(&self, queue: &str, account: Option<&str>) -> Result<Option<String>, Fault> {
        let request = self.client.get_queue_url().queue_name(queue);
        let found = request.set_queue_owner_aws_account_id(account.map(Into::into)).send().await;
        match found.map_err(|error| fault(&self.shown, error)) {
            Ok(found) => Ok(found.queue_url),
            Err(fault) if fault.is_missing() => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    pub(super) async fn create(&self, queue: &str, attributes: Vec<(Attribute, String)>) -> Result<String, Fault> {
        let mut request = self.client.create_queue().queue_name(queue);
        for (attribute, value) in attributes {
            request = request.attributes(attribute, value);
        }
        let made = request.send().await.map_err(|error| fault(&self.shown, error))?;
        Ok(made.queue_url.unwrap_or_default())
    }

    /// What a queue says of itself. Who may not ask knows little, and SQS decides.
    pub(super) async fn look(&self, url: String) -> Result<Facts, Fault> {
        let request = self.client.get_queue_attributes().queue_url(&url).attribute_names(Attribute::All);
        let attributes = match request.send().await.map_err(|error| fault(&self.shown, error)) {
            Ok(answer) => answer.attributes.unwrap_or_default(),
            Err(fault) if fault.is_not_permitted() => Default::default(),
            Err(fault) => return Err(fault),
        };
        let policy = attributes.get(&Attribute::RedrivePolicy);
        let policy = policy.and_then(|text| serde_json::from_str::<serde_json::Value>(text).ok());
        let redrive = policy.and_then(|policy| {
            let most = &policy["maxReceiveCount"];
            let most = most.as_u64().or_else(|| most.as_str()?.parse().ok())?;
            Some((policy["deadLetterTargetArn"].as_str()?.to_string(), u32::try_from(most).ok()?))
        });
        let most = attributes.get(&Attribute::MaximumMessageSize).and_then(|text| text.parse().ok());
        Ok(Facts {
            arn: attributes.get(&Attribute::QueueArn).cloned(),
            most: most.unwrap_or(MOST_BYTES),
            by_content: attributes.get(&Attribute::ContentBasedDeduplication).is_some_and(|text| text == "true"),
            redrive,
            url,
            since: Instant::now(),
        })
    }

    /// Leases messages of a queue.
    pub(super) async fn receive(
        &self,
        url: &str,
        max: usize,
        visibility: i32,
        wait: i32,
        is_fifo: bool,
    ) -> Result<Vec<Received>, Fault> {
        use aws_sdk_sqs::types::MessageSystemAttributeName as Fact;
        let patience = aws_sdk_sqs::config::timeout::TimeoutConfig::builder()
            .operation_attempt_timeout(PATIENCE + Duration::from_secs(wait.unsigned_abs().into()))
            .build();
        let request = self
            .client
            .receive_message()
            .queue_url(url)
            .max_number_of_messages(max.min(10) as i32)
            .visibility_timeout(visibility)
            .wait_time_seconds(wait)
            .message_attribute_names("All")
            .message_system_attribute_names(Fact::ApproximateReceiveCount)
            .message_system_attribute_names(Fact::ApproximateFirstReceiveTimestamp)
            .message_system_attribute_names(Fact::SentTimestamp)
            .message_system_attribute_names(Fact::MessageGroupId)
            // If the answer is lost, the same messages come again.
            .set_receive_request_attempt_id(is_fifo.then(|| crate::id::new_uuid().to_string()));
        let request = request.customize().config_override(aws_sdk_sqs::Config::builder().timeout_config(patience));
        let answer = request.send().await.map_err(|error| fault(&self.shown, error))?;
        let now = SystemClock.now();
        Ok(answer.messages.unwrap_or_default().into_iter().map(|message| Received::new(message, now)).collect())
    }

    /// Makes messages visible again, as far as that goes: what is left over comes by itself.
    pub(super) async fn release(&self, url: &str, handles: impl IntoIterator<Item = ReceiptHandle>) {
        let handles: Vec<_> = handles.into_iter().collect();
        for part in handles.chunks(10) {
            let entries = part.iter().enumerate().map(|(at, handle)| {
                let entry = ChangeEntry::builder().id(at.to_string()).receipt_handle(handle.to_string());
                entry.visibility_timeout(0).build().expect("it has an id and a receipt")
            });
            let request = self.client.change_message_visibility_batch().queue_url(url);
            let _ = request.set_entries(Some(entries.collect())).send().await;
        }
    }
}
