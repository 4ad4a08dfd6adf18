//! One queue, as all handles of a mailbox in this process share it.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use aws_sdk_sqs::types::{BatchResultErrorEntry, QueueAttributeName as Attribute};

use super::act::Acting;
use super::desk::Desk;
use super::fault::{Fault, fault};
use super::leases::Leases;
use super::name;
use super::receive::Receiving;
use super::region::{Facts, Region};
use super::send::Sending;
use crate::error::Error;
use crate::resolver::address::{MailboxName, without_secrets};
use crate::runtime::batcher::{BatchLimits, Batcher};
use crate::runtime::clock::{Sleep, SystemClock};
use crate::runtime::io_thread;

/// What every server takes as a batch, in bytes.
pub(super) const SURE_BYTES: usize = 256 << 10;
/// How many entries a request has at most, by SQS's rule.
pub(super) const FULL: usize = 10;
/// How many requests of one kind are under way at once.
const MOST_REQUESTS: usize = 16;
/// How often entries are asked for that a server failed to do.
const ATTEMPTS: u32 = 3;

pub(super) struct Queue {
    pub(super) region: Arc<Region>,
    pub(super) name: MailboxName,
    /// The names of the queue and of the one for its dead letters.
    pub(super) queue: String,
    pub(super) dead: String,
    pub(super) is_fifo: bool,
    /// Where the user said that it is.
    url: Option<String>,
    facts: Mutex<Option<Arc<Facts>>>,
    /// The same of the queue for dead letters.
    pub(super) dead_facts: Mutex<Option<Arc<Facts>>>,
    finding: tokio::sync::Mutex<()>,
    pub(super) max_deliveries: Mutex<Option<u32>>,
    pub(super) sends: Batcher<Sending>,
    pub(super) deletes: Batcher<Acting>,
    pub(super) changes: Batcher<Acting>,
    pub(super) receives: Batcher<Receiving>,
    pub(super) desk: Desk,
    pub(super) leases: Leases,
    pub(super) purged: Mutex<Option<Instant>>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a batch came to: the entries that are done, with what came of them, and those that failed.
pub(super) type Outcome = (Vec<(String, String)>, Vec<BatchResultErrorEntry>);

/// A redrive policy, as SQS writes it.
fn policy(arn: &str, most: u32) -> String {
    serde_json::json!({ "deadLetterTargetArn": arn, "maxReceiveCount": most }).to_string()
}

impl Queue {
    pub(super) fn new(region: Arc<Region>, name: MailboxName, url: Option<String>) -> Result<Arc<Self>, Error> {
        let (queue, dead) = match &url {
            // Its own name is as it is, whatever the mailbox is called here.
            Some(url) => {
                let queue = url.rsplit('/').next().unwrap_or_default().to_string();
                let dead = name::dead(&queue);
                (queue, dead)
            }
            None => name::queues(&name)?,
        };
        let gathers = region.manners.gathers;
        let is_fifo = queue.ends_with(name::FIFO);
        // Without gathering only the order keeps anything back.
        let most = if gathers { MOST_REQUESTS } else { usize::MAX };
        let limits = |gathers, requests| BatchLimits { entries: FULL, requests, gathers };
        Ok(Arc::new(Queue {
            is_fifo,
            queue,
            dead,
            url,
            name,
            facts: Mutex::default(),
            dead_facts: Mutex::default(),
            finding: tokio::sync::Mutex::default(),
            max_deliveries: Mutex::default(),
            // One at a time, so that messages arrive in order.
            sends: Batcher::new(limits(gathers, if is_fifo { 1 } else { most }), SURE_BYTES),
            deletes: Batcher::new(limits(gathers, most), SURE_BYTES),
            changes: Batcher::new(limits(gathers, most), SURE_BYTES),
            // A FIFO queue's answer may be of one group, which is for one receiver.
            receives: Batcher::new(limits(gathers && !is_fifo, if is_fifo { MOST_REQUESTS } else { most }), SURE_BYTES),
            desk: Desk::new(gathers, is_fifo),
            leases: Leases::default(),
            purged: Mutex::default(),
            region,
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
        *lock(&self.dead_facts) = None;
    }

    /// How the queue is called in errors.
    pub(super) fn shown(&self) -> String {
        self.region.shown(Some(&self.queue))
    }

    pub(super) fn missing(&self) -> Error {
        self.forget();
        if let Some(url) = &self.url {
            let reason = format!("there is no queue at {}; correct the URL, or create the queue", without_secrets(url));
            return Error::resolution(&self.shown(), reason);
        }
        if self.region.manners.creates {
            return Error::connection(format!("{} is gone; the next use makes it again", self.shown()));
        }
        let reason = format!(
            "there is no queue {:?} in {}; create it (create(), ?create=true, or as you create other queues)",
            self.queue,
            self.region.shown(None)
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
    pub(super) async fn facts(self: &Arc<Self>) -> Result<Arc<Facts>, Error> {
        if let Some(facts) = lock(&self.facts).clone() {
            return Ok(facts);
        }
        // On the I/O thread, because other operations wait for the result too and this caller's future may be dropped.
        let queue = Arc::clone(self);
        io_thread::ask(async move { queue.find_out().await }).await
    }

    async fn find_out(&self) -> Result<Arc<Facts>, Error> {
        let _one_at_a_time = self.finding.lock().await;
        if let Some(facts) = lock(&self.facts).clone() {
            return Ok(facts);
        }
        let url = self.find().await?;
        match url {
            Some(url) => self.learn(url, self.region.manners.creates).await,
            None if self.region.manners.creates => self.make_plain().await,
            None => Err(self.missing()),
        }
    }

    /// Whose it is, if its URL says so: https://sqs.region.amazonaws.com/account/name.
    pub(super) fn account(&self) -> Option<&str> {
        let account = self.url.as_ref()?.rsplit('/').nth(1)?;
        (account.len() == 12 && account.bytes().all(|byte| byte.is_ascii_digit())).then_some(account)
    }

    /// Where it is, if it is.
    async fn find(&self) -> Result<Option<String>, Error> {
        match &self.url {
            Some(url) => Ok(Some(url.clone())),
            None => self.region.find(&self.queue, None).await.map_err(|fault| fault.error),
        }
    }

    /// Makes the queue if it is not there, and makes it as the handles want it.
    pub(super) async fn create(&self) -> Result<(), Error> {
        let _one_at_a_time = self.finding.lock().await;
        let url = self.find().await?;
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
            Err(error @ Error::InvalidParameter { .. }) => match self.find().await? {
                Some(url) => self.learn(url, true).await,
                None => Err(error),
            },
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
        if let Some(most) = max_deliveries {
            attributes.push((Attribute::RedrivePolicy, self.redrive_policy(most).await?));
        }
        let made = self.region.create(&self.queue, attributes).await;
        let url = made.map_err(|fault| match fault.is("QueueNameExists") || fault.is("QueueAlreadyExists") {
            true => {
                let limit = format!("as queue {:?} has them, which exists; change that one, or delete it", self.queue);
                Error::invalid("queue settings", format!("{settings:?}"), limit)
            }
            // SQS says which of them and why.
            false if fault.is_about_content() => {
                Error::invalid("queue settings", format!("{settings:?}"), fault.error.to_string())
            }
            false => fault.error,
        })?;
        self.learn(url, true).await
    }

    /// Removes the queue, and the one for its dead letters if that is the mailbox's own.
    pub(super) async fn delete(&self) -> Result<(), Error> {
        let own = self.find().await?;
        let dead = self.region.find(&self.dead, self.account()).await.map_err(|fault| fault.error)?;
        for url in own.into_iter().chain(dead) {
            let gone = self.region.client.delete_queue().queue_url(url).send().await;
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
        let failed = |fault: Fault| fault.error;
        let url = match self.find_dead().await? {
            Some(url) => url,
            None => self.make_dead().await?,
        };
        let arn = self.region.look(url).await.map_err(failed)?.arn;
        let arn = arn
            .ok_or_else(|| Error::connection(format!("{} has no ARN for {:?}", self.region.shown(None), self.dead)))?;
        Ok(policy(&arn, most))
    }

    /// Looks at the queue, and whether it is as the handles want it.
    async fn learn(&self, url: String, may_change: bool) -> Result<Arc<Facts>, Error> {
        let mut facts = self.region.look(url).await.map_err(|fault| self.failed(fault))?;
        let (wanted, has) = (*lock(&self.max_deliveries), facts.redrive.as_ref().map(|redrive| redrive.1));
        if let Some(most) = wanted.filter(|most| Some(*most) != has) {
            if !may_change {
                let has = match (has, &facts.arn) {
                    (Some(has), _) => format!("maxReceiveCount = {has}"),
                    (None, Some(_)) => "none".into(),
                    (None, None) => "not known, since GetQueueAttributes is not permitted".into(),
                };
                let limit = format!(
                    "as the redrive policy of queue {:?} says, which is {has}; change that, or call create()",
                    self.queue
                );
                return Err(Error::invalid("max_deliveries", most, limit));
            }
            let wanted = match &facts.redrive {
                Some((arn, _)) => policy(arn, most),
                None => self.redrive_policy(most).await?,
            };
            let request = self.region.client.set_queue_attributes().queue_url(&facts.url);
            let set = request.attributes(Attribute::RedrivePolicy, wanted).send().await;
            set.map_err(|error| self.failed(fault(&self.shown(), error)))?;
            facts = self.region.look(facts.url).await.map_err(|fault| self.failed(fault))?;
        }
        let facts = Arc::new(facts);
        self.sends.set_max_bytes(facts.most.max(SURE_BYTES));
        *lock(&self.facts) = Some(Arc::clone(&facts));
        Ok(facts)
    }

    /// Asks for a batch, and again for the entries that the server failed to do. `is_before` says whether an entry must not be
    /// done after another one, which came later. What is not good any more is not asked for; nor again
    /// what would then be done after something that it goes before.
    pub(super) async fn patiently<J, F>(
        &self,
        entries: Vec<J>,
        check: impl Fn(&J) -> Result<(), Fault>,
        is_before: impl Fn(&J, &J) -> bool,
        ask: impl Fn(&[J]) -> F,
    ) -> Vec<(J, Result<String, Fault>)>
    where
        F: Future<Output = Result<Outcome, Fault>>,
    {
        let mut results = Vec::with_capacity(entries.len());
        let mut parts = vec![entries];
        while let Some(mut left) = parts.pop() {
            let mut attempt = 1;
            loop {
                let mut good = Vec::with_capacity(left.len());
                for entry in left {
                    match check(&entry) {
                        Ok(()) => good.push(entry),
                        Err(fault) => results.push((entry, Err(fault))),
                    }
                }
                left = good;
                if left.is_empty() {
                    break;
                }
                let (done, failed) = match ask(&left).await {
                    Ok(answer) => answer,
                    // What is still good is asked for without the rest.
                    Err(fault) if fault.is_cut() => continue,
                    // One of them may be why, and the others are not to suffer for it.
                    Err(fault) if left.len() > 1 && fault.is_about_content() => {
                        parts.extend(left.into_iter().rev().map(|entry| vec![entry]));
                        break;
                    }
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
                let done: Vec<bool> = outcomes.iter().map(|outcome| matches!(outcome, Some(Ok(_)))).collect();
                let is_overtaken = |at: usize| {
                    let later = left[at + 1..].iter().zip(&done[at + 1..]);
                    later.into_iter().any(|(later, is_done)| *is_done && is_before(&left[at], later))
                };
                let overtaken: Vec<bool> = (0..left.len()).map(is_overtaken).collect();
                let mut again = Vec::new();
                for ((entry, outcome), is_overtaken) in left.into_iter().zip(outcomes).zip(overtaken) {
                    let outcome = outcome.unwrap_or_else(|| Err(Fault::incomplete(&self.shown())));
                    match outcome {
                        Err(fault) if fault.error.is_transient() && attempt < ATTEMPTS && !is_overtaken => {
                            again.push(entry);
                        }
                        // What is done too late was perhaps done to something else.
                        outcome => {
                            let outcome = outcome.and_then(|done| check(&entry).map(|()| done));
                            results.push((entry, outcome));
                        }
                    }
                }
                left = again;
                if !left.is_empty() {
                    Sleep::for_(SystemClock::shared(), crate::mailbox::receive::pause_after(attempt)).await;
                }
                attempt += 1;
            }
        }
        results
    }
}
