//! What a request has to do: sends, receives and acts, and what came of them.

use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;

use super::entry::MEMBER;
use super::tray::{IN_ORDER, Job};
use crate::backend::{Batch, Delivery, Outgoing};
use crate::error::Error;
use crate::mailbox::id::MessageId;
use crate::runtime::oneshot::Promise;

pub(super) const ACKNOWLEDGE: &[u8] = b"A";
pub(super) const RETURN: &[u8] = b"R";
pub(super) const EXTEND: &[u8] = b"E";
pub(super) const BURY: &[u8] = b"D";
/// Undoes a delivery that no handler has seen.
pub(super) const RELEASE: &[u8] = b"U";

/// Something to be done.
pub(super) enum Task {
    Send(Sending),
    Receive(Receiving),
    Act(Acting),
}

pub(super) struct Sending {
    pub(super) messages: Batch<Outgoing>,
    pub(super) promise: Promise<Vec<Result<MessageId, Error>>>,
}

pub(super) type Found = (Vec<Delivery>, Option<Duration>);

pub(super) struct Receiving {
    pub(super) max: usize,
    pub(super) visibility: Duration,
    pub(super) promise: Promise<Found>,
}

/// An act's letter, the delivery that it is about, and its argument.
pub(super) type Act = (&'static [u8], [u8; MEMBER], Bytes);

pub(super) struct Acting {
    pub(super) acts: Vec<Act>,
    pub(super) promise: Promise<Vec<bool>>,
}

impl Job for Task {
    fn kind(&self) -> usize {
        match self {
            Task::Send(_) => IN_ORDER,
            Task::Receive(_) => 1,
            Task::Act(_) => 2,
        }
    }

    fn weight(&self) -> (usize, usize) {
        match self {
            Task::Send(Sending { messages, .. }) => {
                (messages.len(), messages.iter().map(|message| message.body.len()).sum())
            }
            Task::Receive(Receiving { max, .. }) => (*max, 0),
            Task::Act(Acting { acts, .. }) => (acts.len(), acts.iter().map(|act| act.2.len()).sum()),
        }
    }
}

/// Whether it can be delivered at once, and nothing else is stored of it.
pub(super) fn is_plain(message: &Outgoing) -> bool {
    message.delay.is_zero() && message.special.is_none()
}

/// The tasks of one request, which are of one kind.
#[derive(Default)]
pub(super) struct Load {
    pub(super) sends: Vec<Sending>,
    pub(super) receives: Vec<Receiving>,
    pub(super) acts: Vec<Acting>,
}

impl Load {
    pub(super) fn of(tasks: Vec<Task>) -> Self {
        let mut load = Load::default();
        for task in tasks {
            match task {
                Task::Send(sending) => load.sends.push(sending),
                // What nobody waits for any more need not be leased.
                Task::Receive(receiving) if receiving.promise.is_void() => {}
                Task::Receive(receiving) => load.receives.push(receiving),
                Task::Act(acting) => load.acts.push(acting),
            }
        }
        load
    }

    pub(super) fn messages(&self) -> impl Iterator<Item = &Outgoing> {
        self.sends.iter().flat_map(|sending| &sending.messages)
    }

    pub(super) fn acts(&self) -> impl Iterator<Item = &Act> {
        self.acts.iter().flat_map(|acting| &acting.acts)
    }

    /// Gives everybody his part. Whom to wake.
    pub(super) fn fulfil(self, results: Results) -> Vec<Waker> {
        let mut wakers = Vec::new();
        let mut sent = results.sent.map(Vec::into_iter);
        for Sending { messages, promise } in self.sends {
            wakers.extend(promise.fulfil_quietly(match &mut sent {
                Ok(sent) => Ok(sent.take(messages.len()).collect()),
                Err(error) => Err(error.clone()),
            }));
        }
        let mut done = results.done.map(Vec::into_iter);
        for Acting { acts, promise } in self.acts {
            wakers.extend(promise.fulfil_quietly(match &mut done {
                Ok(done) => Ok(done.take(acts.len()).map(|byte| byte == b'1').collect()),
                Err(error) => Err(error.clone()),
            }));
        }
        let mut found = results.found.map(Vec::into_iter);
        for Receiving { promise, .. } in self.receives {
            wakers.extend(promise.fulfil_quietly(match &mut found {
                Ok(found) => Ok(found.next().unwrap_or_default()),
                Err(error) => Err(error.clone()),
            }));
        }
        wakers
    }
}

/// What came of a request: of each message, each act, and each who asked for messages.
pub(super) struct Results {
    pub(super) sent: Result<Vec<Result<MessageId, Error>>, Error>,
    pub(super) done: Result<Vec<u8>, Error>,
    pub(super) found: Result<Vec<Found>, Error>,
}

impl Results {
    pub(super) fn all_failed(error: Error) -> Self {
        Results { sent: Err(error.clone()), done: Err(error.clone()), found: Err(error) }
    }
}
