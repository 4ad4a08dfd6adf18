//! Messages that are handed to somebody who waits, with the request that sends them: they need not be asked for.
//!
//! Of those in a process who wait at a mailbox one is known to the server at a time, by name. A script that stores messages there
//! leases them to him, and pushes them to a channel of his process. What is lost on the way he gets by asking again with the same
//! token; and if he leaves, what was handed to him meanwhile is put back, as if it had not been. All this is besides the usual way, by which everybody
//! who waits is told that there is something: where it fails, that remains.
//!
//! Not in a cluster: when its client subscribes again by itself, to two channels of one slot at once, it takes the second word of
//! the server for the answer to another request.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use redis::Value;
use tokio::sync::OwnedMutexGuard;

use super::entry::{MEMBER, bytes, delivery, list, millis};
use super::post::Post;
use super::request::found;
use super::script;
use crate::backend::{Delivery, Receive};
use crate::cancellation::unless;
use crate::clock::{Sleep, SystemClock};
use crate::error::Error;
use crate::hub::{Happened, Waits};
use crate::network;
use crate::promise::{Fulfilled, Promise, promise};

/// Who has waited for so long is likely to wait for longer, and need not be told by those who send here.
const SETTLES: Duration = Duration::from_millis(1);
/// When it does not come to it, it is tried again after so long.
const AGAIN: Duration = Duration::from_secs(1);
/// So often he waits with a new token: the server remembers one for ten minutes.
const RENEWS: Duration = Duration::from_secs(240);
/// For so long somebody whose time is up waits to hear that nothing was handed to him.
const FAREWELL: Duration = Duration::from_millis(100);

/// After so long the server has forgotten what was handed to somebody.
const FORGETS: Duration = Duration::from_secs(600);

/// Somebody waits; he leaves and takes what was handed to him; he is gone, and nobody takes it.
const WAITS: &[u8] = b"W";
const LEAVES: &[u8] = b"L";
const GONE: &[u8] = b"B";
/// What a server answers, besides that somebody waits from now on: here he will never be handed anything.
const NEVER: &[u8] = b"N";

/// To whom messages of a mailbox are handed in this process.
pub(super) struct Handover {
    pub(super) channel: String,
    /// The name of the slot for it: whoever has it is the one.
    slot: Arc<tokio::sync::Mutex<Bytes>>,
    expected: Mutex<Option<Expected>>,
}

/// Somebody who waits, with a token.
struct Expected {
    token: Bytes,
    promise: Promise<Vec<Delivery>>,
    /// Whether the server knows him.
    is_known: bool,
}

impl Handover {
    pub(super) fn new(channel: String, slot: Bytes) -> Self {
        Handover { channel, slot: Arc::new(tokio::sync::Mutex::new(slot)), expected: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Expected>> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether somebody here is handed what is sent.
    pub(super) fn is_expected(&self) -> bool {
        self.lock().as_ref().is_some_and(|expected| expected.is_known)
    }

    fn expect(&self, token: Bytes, promise: Promise<Vec<Delivery>>) {
        *self.lock() = Some(Expected { token, promise, is_known: false });
    }

    /// The server knows whoever waits.
    fn is_known(&self) {
        self.lock().iter_mut().for_each(|expected| expected.is_known = true);
    }

    /// Who expects what is pushed with a token; from here on nobody does.
    fn take(&self, token: &[u8]) -> Option<Promise<Vec<Delivery>>> {
        self.lock().take_if(|expected| expected.token == token).map(|expected| expected.promise)
    }

    /// What a server pushes to whoever waits here. What nobody expects has its owner by another way, or is put back when he leaves.
    pub(super) fn hand_over(&self, pushed: &[u8]) {
        let Some((token, deliveries)) = read(pushed) else { return };
        if let Some(promise) = self.take(token) {
            promise.fulfil(Ok(deliveries));
        }
    }
}

/// The token with which messages were asked for, and they.
fn read(pushed: &[u8]) -> Option<(&[u8], Vec<Delivery>)> {
    let (token, rest) = pushed.split_at_checked(8)?;
    let (now, mut rest) = rest.split_first_chunk()?;
    let now = u64::from_be_bytes(*now);
    let mut deliveries = Vec::new();
    while !rest.is_empty() {
        let (member, more) = rest.split_at_checked(MEMBER)?;
        let (length, more) = more.split_first_chunk()?;
        let (body, more) = more.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        deliveries.push(delivery(&member[1..], body.to_vec(), now));
        rest = more;
    }
    Some((token, deliveries))
}

/// Somebody who waits to be handed messages.
pub(super) struct Waiter {
    post: Arc<Post>,
    request: Receive,
    /// While he is the one.
    turn: Option<OwnedMutexGuard<Bytes>>,
    known: Option<Known>,
}

/// That the server may know him.
struct Known {
    /// With this he waits.
    token: Bytes,
    /// What is pushed.
    handed: Fulfilled<Vec<Delivery>>,
    /// The arguments with which he leaves. They are the same each time, so that he leaves once.
    leaving: Vec<Bytes>,
}

impl Waiter {
    pub(super) const fn new(post: Arc<Post>, request: Receive) -> Self {
        Waiter { post, request, turn: None, known: None }
    }

    /// What is handed to him. Comes to no end if nothing is.
    pub(super) async fn handed(&mut self) -> Vec<Delivery> {
        Sleep::for_(SystemClock::shared(), SETTLES).await;
        if !self.post.link.hands_to(&self.post) {
            return std::future::pending().await;
        }
        self.turn = Some(Arc::clone(&self.post.handover.slot).lock_owned().await);
        loop {
            match self.wait().await {
                Ok(Some(deliveries)) if !deliveries.is_empty() => {
                    // They are his: nothing is left to be put back.
                    self.known = None;
                    return deliveries;
                }
                Ok(Some(_)) => {}
                Ok(None) => Sleep::for_(SystemClock::shared(), AGAIN).await,
                // He waits in the usual way.
                Err(_) => std::future::pending().await,
            }
        }
    }

    /// Waits with one token. Nothing if he has to come again; `None` if the server does not let him yet.
    async fn wait(&mut self) -> Result<Option<Vec<Delivery>>, Error> {
        let post = Arc::clone(&self.post);
        let Some(slot) = self.turn.as_deref() else { return Ok(None) };
        let mut arguments = post.arguments(slot).await;
        let token = arguments[0].clone();
        arguments.push(post.link.client.clone().into());
        // The token with which he leaves is a later one.
        let mut leaving = post.arguments(slot).await;
        leaving.push(post.link.client.clone().into());
        arguments.push(Bytes::from_static(WAITS));
        arguments.push(self.request.max.to_string().into());
        arguments.push(millis(self.request.visibility).to_string().into());
        let waits = Waits::begin(Arc::clone(&post.link), |link| &link.hubs, post.handover.channel.clone());
        let until = Instant::now() + RENEWS;
        let (promise, handed) = promise(None);
        post.handover.expect(token.clone(), promise);
        let known = self.known.insert(Known { token: token.clone(), handed, leaving });
        loop {
            let seen = waits.hub().generation();
            post.link.subscribe(&post.handover.channel).await?;
            let answer = list(post.run(&script::WAIT, &arguments).await?);
            let told = answer.get(2).cloned().map(bytes).unwrap_or_default();
            if told != WAITS {
                // What was handed to him and has not arrived.
                let missed = deliveries(answer);
                if post.handover.take(&token).is_none() {
                    return (&mut known.handed).await.map(Some);
                }
                self.known = None;
                return match told == NEVER {
                    true => std::future::pending().await,
                    false => Ok(Some(missed).filter(|missed| !missed.is_empty())),
                };
            }
            post.handover.is_known();
            // A connection that is lost: what was on its way there has to be asked for.
            let happened = Happened::since(Arc::clone(waits.hub()), seen);
            let rest = Sleep::for_(SystemClock::shared(), until.saturating_duration_since(Instant::now()));
            match unless(rest, unless(happened, &mut known.handed)).await {
                Some(Some(deliveries)) => return deliveries.map(Some),
                Some(None) => {}
                None => return self.leave().await.map(Some),
            }
        }
    }

    /// His time is up: what was handed to him at the last moment.
    pub(super) async fn farewell(mut self) -> Vec<Delivery> {
        let late = Sleep::for_(SystemClock::shared(), FAREWELL);
        unless(late, Box::pin(self.leave())).await.and_then(Result::ok).unwrap_or_default()
    }

    /// Lets the server forget him. What was handed to him meanwhile.
    async fn leave(&mut self) -> Result<Vec<Delivery>, Error> {
        let Some(known) = &mut self.known else { return Ok(Vec::new()) };
        let left = leave(&self.post, known, LEAVES).await?;
        let left = match self.post.handover.take(&known.token) {
            Some(_) => left,
            None => (&mut known.handed).await?,
        };
        self.known = None;
        Ok(left)
    }
}

async fn leave(post: &Arc<Post>, known: &Known, how: &'static [u8]) -> Result<Vec<Delivery>, Error> {
    let mut arguments = known.leaving.clone();
    arguments.extend([Bytes::from_static(how), known.token.clone()]);
    Ok(deliveries(list(post.run(&script::WAIT, &arguments).await?)))
}

fn deliveries(answer: Vec<Value>) -> Vec<Delivery> {
    found(answer, 0).1.pop().map_or_else(Vec::new, |found| found.0)
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let (Some(turn), Some(known)) = (self.turn.take(), self.known.take()) else { return };
        let _unexpected = self.post.handover.take(&known.token);
        let post = Arc::clone(&self.post);
        network::spawn(async move {
            // Until then nobody else is the one.
            let _turn = turn;
            let since = Instant::now();
            loop {
                match leave(&post, &known, GONE).await {
                    // In the answer to an attempt to leave before this one.
                    Ok(deliveries) => return post.give_back(&deliveries),
                    Err(error) if error.is_transient() && since.elapsed() < FORGETS => {}
                    Err(_) => return,
                }
                Sleep::for_(SystemClock::shared(), AGAIN).await;
            }
        });
    }
}
