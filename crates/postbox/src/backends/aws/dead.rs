//! Dead letters: in the queue that the redrive policy names, or in one of the mailbox's own.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_sqs::types::{MessageSystemAttributeName as Fact, QueueAttributeName as Attribute};

use super::act::Busy;
use super::fault::{Fault, fault};
use super::letter::{Content, Dead, Letter, Received, as_millis};
use super::name;
use super::queue::{Queue, lock};
use super::region::Facts;
use crate::backend::{DeadLetter, Delivery, Receipt, Redrive};
use crate::error::Error;
use crate::mailbox::id::{MessageId, ReceiptHandle};
use crate::runtime::clock::{Clock as _, SystemClock};

/// For how long letters are taken out to be looked at, in seconds. They are put back when that is done.
const LOOK: i32 = 60;
/// What is asked of letters besides: when one died that SQS itself has buried, and where.
const FACTS: [Fact; 2] = [Fact::ApproximateFirstReceiveTimestamp, Fact::DeadLetterQueueSourceArn];
/// For how long letters are kept, in seconds: as long as SQS does, which counts from when a message was first sent.
const RETENTION: u32 = 14 * 24 * 60 * 60;
/// How long to look for a letter that should be there, in seconds.
const SEARCH: i32 = 1;
/// How often to ask how far a move is.
const ASK: (Duration, Duration) = (Duration::from_millis(25), Duration::from_secs(1));

impl Queue {
    /// The queue of the dead letters, if there is one.
    pub(super) async fn dead_queue(self: &Arc<Self>) -> Result<Option<Arc<Facts>>, Error> {
        let facts = self.facts().await?;
        if let Some(dead) = lock(&self.dead_facts).clone() {
            return Ok(Some(dead));
        }
        let url = match &facts.redrive {
            Some((arn, _)) => {
                // arn:aws:sqs:region:account:name
                let mut parts = arn.rsplit(':');
                let (queue, account) = (parts.next().unwrap_or_default(), parts.next());
                self.region.find(queue, account).await.map_err(|fault| fault.error)?
            }
            None => self.find_dead().await?,
        };
        match url {
            Some(url) => self.learn_dead(url).await.map(Some),
            None => Ok(None),
        }
    }

    /// The mailbox's own queue for dead letters: with a queue of another account it is there or, since it can be made only there, here.
    pub(super) async fn find_dead(&self) -> Result<Option<String>, Error> {
        let find = async |account| self.region.find(&self.dead, account).await.map_err(|fault| fault.error);
        match find(self.account()).await? {
            None if self.account().is_some() => find(None).await,
            found => Ok(found),
        }
    }

    async fn learn_dead(&self, url: String) -> Result<Arc<Facts>, Error> {
        let dead = Arc::new(self.region.look(url).await.map_err(|fault| fault.error)?);
        *lock(&self.dead_facts) = Some(Arc::clone(&dead));
        Ok(dead)
    }

    /// What a request to the queue of the dead letters ended with.
    fn dead_failed(&self, fault: Fault) -> Error {
        if fault.is_missing() {
            *lock(&self.dead_facts) = None;
        }
        fault.error
    }

    async fn dead_queue_to_write(self: &Arc<Self>) -> Result<Arc<Facts>, Error> {
        if let Some(dead) = self.dead_queue().await? {
            return Ok(dead);
        }
        if let Some((arn, _)) = &self.facts().await?.redrive
            && arn.rsplit(':').next() != Some(&self.dead)
        {
            let reason = format!(
                "the redrive policy of queue {:?} names {arn}, and there is no such queue; create it",
                self.queue
            );
            return Err(Error::resolution(&self.shown(), reason));
        }
        if !self.region.manners.creates {
            let reason = format!(
                "queue {:?} has no redrive policy, and there is no queue {:?} for its dead letters; create one of the two \
                 (max_deliveries with create(), or ?create=true)",
                self.queue, self.dead
            );
            return Err(Error::resolution(&self.shown(), reason));
        }
        let url = self.make_dead().await?;
        self.learn_dead(url).await
    }

    /// Makes the mailbox's own queue for dead letters.
    pub(super) async fn make_dead(&self) -> Result<String, Error> {
        if self.dead.len() > name::LONGEST {
            let limit = format!(
                "up to {} characters where it has dead letters, whose queue would be {:?}",
                name::LONGEST_WITH_DEAD,
                self.dead
            );
            return Err(Error::invalid("mailbox name", format!("{:?}", self.queue), limit));
        }
        let retention = (Attribute::MessageRetentionPeriod, RETENTION.to_string());
        self.region.create(&self.dead, vec![retention]).await.map_err(|fault| fault.error)
    }

    /// Whether a queue of dead letters is this mailbox's alone, and all in it can be moved or removed at once.
    async fn owns(&self, dead: &Facts) -> bool {
        if dead.url.rsplit('/').next() == Some(&self.dead) {
            return true;
        }
        let sources = self.region.client.list_dead_letter_source_queues().queue_url(&dead.url).send().await;
        let is_this = |url: &String| url.rsplit('/').next() == Some(&self.queue);
        sources.is_ok_and(|sources| sources.queue_urls.len() == 1 && sources.queue_urls.iter().all(is_this))
    }

    /// Moves a delivery there: written first, then removed here. A crash in between leaves it in both, never in none.
    pub(super) async fn bury(self: &Arc<Self>, receipt: Receipt, reason: String) -> Result<(), Error> {
        let gone = || Error::ReceiptHandleExpired { id: receipt.id.clone() };
        self.leases.begin_after(&receipt.handle).await.ok_or_else(gone)?;
        let busy = Busy::new(self, receipt.clone());
        let Some((delivery, group)) = self.leases.content(&receipt.handle) else { return Err(gone()) };
        self.write(&delivery, group, reason).await?;
        self.finish(busy).await
    }

    async fn write(self: &Arc<Self>, delivery: &Delivery, group: Option<String>, reason: String) -> Result<(), Error> {
        let dead = self.dead_queue_to_write().await?;
        let source = self.facts().await?.arn.clone();
        let letter = |reason: &str| {
            let dead = Dead {
                reason: reason.to_string(),
                at: as_millis(SystemClock.wall().into()),
                enqueued_at: as_millis(delivery.enqueued_at),
                delivery_count: delivery.delivery_count,
                source: source.clone(),
            };
            Letter::new(Content { dead: Some(dead), ..Content::of(delivery) })
        };
        // A reason that is cut is better than a letter that cannot be written.
        let room = reason.len().saturating_sub(letter(&reason).size.saturating_sub(dead.most));
        let end = (0..=room).rev().find(|at| reason.is_char_boundary(*at)).unwrap_or(0);
        let letter = letter(&reason[..end]);
        // The same for each attempt at it, and another one when it has been back in the queue: SQS remembers it for five minutes.
        let once = format!("dead-{:.100}-{}", delivery.id.to_string(), as_millis(delivery.enqueued_at));
        self.region.put(&dead.url, letter, self.is_fifo, group, &once).await.map_err(|fault| self.dead_failed(fault))
    }

    pub(super) async fn count_dead(self: &Arc<Self>) -> Result<u64, Error> {
        let Some(dead) = self.dead_queue().await? else { return Ok(0) };
        match self.region.count(&dead.url).await {
            Ok((_, counts)) => Ok(counts.iter().sum()),
            // Somebody has removed it.
            Err(fault) if fault.is_missing() => {
                *lock(&self.dead_facts) = None;
                Ok(0)
            }
            Err(fault) => Err(fault.error),
        }
    }

    /// Takes dead letters out, up to so many, or the one with an id. Also the receipts of others that came with it: whoever calls
    /// this puts them back.
    async fn browse(
        self: &Arc<Self>,
        dead: &Facts,
        most: usize,
        which: Option<&MessageId>,
    ) -> Result<(Vec<Received>, Vec<ReceiptHandle>), Error> {
        let own = self.facts().await?.arn.clone();
        let (there, _) = self.region.count(&dead.url).await.map_err(|fault| self.dead_failed(fault))?;
        let there = usize::try_from(there).unwrap_or(usize::MAX);
        let (mut taken, mut others) = (Vec::new(), Vec::new());
        let mut seen = HashSet::new();
        loop {
            let left = most.saturating_sub(taken.len());
            if left == 0 {
                break;
            }
            // What is said to be there is waited for; SQS does not find everything at the first look, nor knows at once how much there is.
            let wait = if seen.is_empty() || seen.len() < there { SEARCH } else { 0 };
            let many = if which.is_some() { 10 } else { left.min(10) };
            let found = self.region.receive(&dead.url, many, LOOK, wait, self.is_fifo, &FACTS).await;
            let found = match found {
                Ok(found) => found,
                Err(fault) => {
                    others.extend(taken.iter().map(|letter: &Received| letter.delivery.receipt_handle.clone()));
                    self.region.release(&dead.url, others).await;
                    return Err(self.dead_failed(fault));
                }
            };
            let known = seen.len();
            for letter in found {
                let is_new = seen.insert(letter.sqs_id.clone());
                if let Some(before) = taken.iter_mut().find(|before: &&mut Received| before.sqs_id == letter.sqs_id) {
                    // It has come back, and is good by its new receipt only.
                    *before = letter;
                    continue;
                }
                let is_wanted = letter.is_of(own.as_deref()) && which.is_none_or(|id| letter.delivery.id == *id);
                if is_new && is_wanted && taken.len() < most {
                    taken.push(letter);
                } else {
                    others.push(letter.delivery.receipt_handle.clone());
                }
            }
            // Nothing, or only what has come back by now.
            if seen.len() == known {
                break;
            }
        }
        Ok((taken, others))
    }

    pub(super) async fn list_dead(self: &Arc<Self>, most: usize) -> Result<Vec<DeadLetter>, Error> {
        let Some(dead) = self.dead_queue().await? else { return Ok(Vec::new()) };
        let limit = self.facts().await?.redrive.as_ref().map(|redrive| redrive.1);
        let (letters, others) = self.browse(&dead, most, None).await?;
        let all = letters.iter().map(|letter| letter.delivery.receipt_handle.clone()).chain(others);
        self.region.release(&dead.url, all).await;
        Ok(letters.into_iter().map(|letter| letter.into_dead_letter(limit)).collect())
    }

    pub(super) async fn redrive(self: &Arc<Self>, which: Redrive) -> Result<u64, Error> {
        let Some(dead) = self.dead_queue().await? else { return Ok(0) };
        let facts = self.facts().await?;
        let most = match which {
            Redrive::One(id) => {
                let taken = self.browse(&dead, 1, Some(&id)).await?;
                let (moved, failure) = self.move_back(&dead, &facts, taken).await;
                return failure.map_or(Ok(moved), Err);
            }
            Redrive::UpTo(most) => most,
        };
        let (there, _) = self.region.count(&dead.url).await.map_err(|fault| self.dead_failed(fault))?;
        if usize::try_from(there).is_ok_and(|there| there > 0 && most >= there)
            && self.owns(&dead).await
            && let Some(moved) = self.move_all(&dead, &facts).await?
        {
            return Ok(moved);
        }
        // A few at a time: none waits for its turn until its lease ends, and what is behind them in their group comes.
        let mut all = 0;
        while let left @ 1.. = most.saturating_sub(all) {
            let (moved, failure) = match self.browse(&dead, left.min(10), None).await {
                Ok(taken) => self.move_back(&dead, &facts, taken).await,
                Err(error) => (0, Some(error)),
            };
            all += usize::try_from(moved).unwrap_or(usize::MAX);
            match failure {
                Some(error) if all == 0 => return Err(error),
                None if moved > 0 => {}
                _ => break,
            }
        }
        Ok(all as u64)
    }

    /// Moves letters that were taken out back to where they came from. How many, and why no more.
    async fn move_back(
        self: &Arc<Self>,
        dead: &Facts,
        facts: &Facts,
        (letters, mut back): (Vec<Received>, Vec<ReceiptHandle>),
    ) -> (u64, Option<Error>) {
        let (mut moved, mut failure) = (0, None);
        for letter in letters {
            let handle = letter.delivery.receipt_handle.clone();
            if failure.is_some() {
                back.push(handle);
                continue;
            }
            let again = Letter::new(Content::of(&letter.delivery));
            let deduplication = format!("redrive-{handle}");
            let deduplication = &deduplication[..deduplication.len().min(128)];
            let sent = self.region.put(&facts.url, again, self.is_fifo, letter.group.clone(), deduplication).await;
            let gone = match sent {
                Ok(()) => self.region.remove(&dead.url, &handle).await,
                Err(fault) => Err(fault),
            };
            match gone {
                Ok(()) => moved += 1,
                Err(fault) => {
                    failure = Some(fault.error);
                    back.push(handle);
                }
            }
        }
        self.region.release(&dead.url, back).await;
        (moved, failure)
    }

    /// Has SQS move all of them. `None`: this server cannot, or not from that queue.
    async fn move_all(&self, dead: &Facts, facts: &Facts) -> Result<Option<u64>, Error> {
        let (Some(source), Some(destination)) = (&dead.arn, &facts.arn) else { return Ok(None) };
        let client = &self.region.client;
        let started = client.start_message_move_task().source_arn(source).destination_arn(destination).send().await;
        match started.map_err(|error| fault(&self.shown(), error)) {
            Ok(_) => {}
            Err(fault) if fault.is_answer => return Ok(None),
            Err(fault) => return Err(fault.error),
        }
        let mut pause = ASK.0;
        loop {
            let tasks = client.list_message_move_tasks().source_arn(source).send().await;
            let tasks = tasks.map_err(|error| fault(&self.shown(), error).error)?;
            let Some(task) = tasks.results.unwrap_or_default().into_iter().next() else { return Ok(Some(0)) };
            let moved = u64::try_from(task.approximate_number_of_messages_moved).unwrap_or(0);
            match task.status.as_deref() {
                Some("RUNNING" | "CANCELLING") => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(ASK.1);
                }
                Some("FAILED") => {
                    let why = task.failure_reason.unwrap_or_default();
                    return Err(Error::connection(format!(
                        "{} could not move all dead letters, only {moved}: {why}",
                        self.shown()
                    )));
                }
                _ => return Ok(Some(moved)),
            }
        }
    }

    pub(super) async fn purge_dead(self: &Arc<Self>) -> Result<u64, Error> {
        let Some(dead) = self.dead_queue().await? else { return Ok(0) };
        if self.owns(&dead).await {
            return self.region.purge(&dead.url, None).await.map_err(|fault| self.dead_failed(fault));
        }
        // Letters of other queues stay.
        let mut all = 0;
        loop {
            let (letters, others) = self.browse(&dead, 10, None).await?;
            let mut gone = Ok(());
            let many = letters.len() as u64;
            for letter in letters {
                gone = gone.and(self.region.remove(&dead.url, &letter.delivery.receipt_handle).await);
            }
            self.region.release(&dead.url, others).await;
            gone.map_err(|fault| self.dead_failed(fault))?;
            all += many;
            if many == 0 {
                return Ok(all);
            }
        }
    }
}
