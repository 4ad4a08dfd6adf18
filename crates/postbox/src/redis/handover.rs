//! Messages that are handed to somebody who waits, with the request that sends them: they need not be asked for.
//!
//! Of those in a process who wait at a mailbox one is known to the server at a time, by name. A script that stores messages there
//! leases them to him, and pushes them to a channel of his process. What is lost on the way he gets by asking again with the same
//! token; and if he leaves, what was handed to him meanwhile is given back. All this is besides the usual way, by which everybody
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
/// The server forgets somebody after ten minutes.
const RENEWS: Duration = Duration::from_secs(240);
/// For so long somebody whose time is up waits to hear that nothing was handed to him.
const FAREWELL: Duration = Duration::from_millis(100);

/// What a server answers to somebody who waits from now on.
const WAITS: &[u8] = b"W";

/// To whom messages of a mailbox are handed in this process.
pub(super) struct Handover {
    pub(super) channel: String,
    /// The name of the slot for it: whoever has it is the one.
    slot: Arc<tokio::sync::Mutex<Bytes>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    expected: Option<Expected>,
    /// The last one whose messages came in an answer. Should they be pushed as well, they have their owner.
    answered: Bytes,
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
        Handover { channel, slot: Arc::new(tokio::sync::Mutex::new(slot)), state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether somebody here is handed what is sent.
    pub(super) fn is_expected(&self) -> bool {
        self.lock().expected.as_ref().is_some_and(|expected| expected.is_known)
    }

    fn expect(&self, token: Bytes, promise: Promise<Vec<Delivery>>) {
        self.lock().expected = Some(Expected { token, promise, is_known: false });
    }

    /// The server knows whoever waits.
    fn is_known(&self) {
        self.lock().expected.iter_mut().for_each(|expected| expected.is_known = true);
    }

    /// Who expects what is pushed with a token.
    fn take(&self, token: &[u8]) -> Option<Promise<Vec<Delivery>>> {
        let mut state = self.lock();
        state.expected.take_if(|expected| expected.token == token).map(|expected| expected.promise)
    }

    /// What was handed over with a token is in an answer. Whether it has not been pushed.
    fn is_answered(&self, token: &Bytes) -> bool {
        let mut state = self.lock();
        state.answered = token.clone();
        let old = state.expected.take_if(|expected| expected.token == token);
        drop(state);
        old.is_some()
    }
}

impl Post {
    /// What a server pushes to whoever waits here.
    pub(super) fn hand_over(self: &Arc<Self>, pushed: &[u8]) {
        let Some((token, deliveries)) = read(pushed) else { return };
        match self.handover.take(token) {
            Some(promise) => promise.fulfil(Ok(deliveries)),
            None if self.handover.lock().answered == token => {}
            None => self.give_back(&deliveries),
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
    /// With which token he waits, if the server may know him, and what is pushed.
    known: Option<(Bytes, Fulfilled<Vec<Delivery>>)>,
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
                Ok(Some(deliveries)) if !deliveries.is_empty() => return deliveries,
                Ok(Some(_)) => {}
                Ok(None) => Sleep::for_(SystemClock::shared(), AGAIN).await,
                // He waits in the usual way.
                Err(_) => std::future::pending().await,
            }
        }
    }

    /// Waits with one token. Nothing if he has to come again; `None` if the server does not let him.
    async fn wait(&mut self) -> Result<Option<Vec<Delivery>>, Error> {
        let post = Arc::clone(&self.post);
        let Some(slot) = self.turn.as_deref() else { return Ok(None) };
        let mut arguments = post.arguments(slot).await;
        let token = arguments[0].clone();
        arguments.push(post.link.client.clone().into());
        arguments.push(self.request.max.to_string().into());
        arguments.push(millis(self.request.visibility).to_string().into());
        let waits = Waits::begin(Arc::clone(&post.link), |link| &link.hubs, post.handover.channel.clone());
        let until = Instant::now() + RENEWS;
        let back = Arc::clone(&post);
        let (promise, handed) = promise(Some(Box::new(move |deliveries: Vec<Delivery>| back.give_back(&deliveries))));
        post.handover.expect(token.clone(), promise);
        let (_, handed) = self.known.insert((token.clone(), handed));
        loop {
            let seen = waits.hub().generation();
            post.link.subscribe(&post.handover.channel).await?;
            let answer = list(post.run(&script::WAIT, &arguments).await?);
            if answer.get(2).cloned().map(bytes).as_deref() != Some(WAITS) {
                // What was handed to him and has not arrived.
                let missed = deliveries(answer);
                if !post.handover.is_answered(&token) {
                    return handed.await.map(Some);
                }
                self.known = None;
                return Ok(Some(missed).filter(|missed| !missed.is_empty()));
            }
            post.handover.is_known();
            // A connection that is lost: what was on its way there has to be asked for.
            let happened = Happened::since(Arc::clone(waits.hub()), seen);
            let rest = Sleep::for_(SystemClock::shared(), until.saturating_duration_since(Instant::now()));
            match unless(rest, unless(happened, &mut *handed)).await {
                Some(Some(deliveries)) => return deliveries.map(Some),
                Some(None) => {}
                None => return Ok(Some(self.leave().await)),
            }
        }
    }

    /// His time is up: what was handed to him at the last moment.
    pub(super) async fn farewell(mut self) -> Vec<Delivery> {
        let late = Sleep::for_(SystemClock::shared(), FAREWELL);
        unless(late, Box::pin(self.leave())).await.unwrap_or_default()
    }

    /// Lets the server forget him. What was handed to him meanwhile.
    async fn leave(&mut self) -> Vec<Delivery> {
        let (Some(slot), Some((token, handed))) = (self.turn.as_deref(), &mut self.known) else { return Vec::new() };
        let Ok(left) = leave(&self.post, slot).await else { return Vec::new() };
        let left = match self.post.handover.is_answered(token) {
            true => left,
            false => handed.await.unwrap_or_default(),
        };
        self.known = None;
        left
    }
}

async fn leave(post: &Arc<Post>, slot: &Bytes) -> Result<Vec<Delivery>, Error> {
    let mut arguments = post.arguments(slot).await;
    arguments.push(post.link.client.clone().into());
    Ok(deliveries(list(post.run(&script::WAIT, &arguments).await?)))
}

fn deliveries(answer: Vec<Value>) -> Vec<Delivery> {
    found(answer, 0).1.pop().map_or_else(Vec::new, |found| found.0)
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let (Some(turn), Some((token, handed))) = (self.turn.take(), self.known.take()) else { return };
        // What has been pushed and not been taken is given back.
        drop(handed);
        if self.post.handover.take(&token).is_some() {
            let post = Arc::clone(&self.post);
            network::spawn(async move {
                // Until then nobody else is the one.
                let handed = leave(&post, &turn).await;
                post.give_back(&handed.unwrap_or_default());
            });
        }
    }
}
