//! Requests and replies through a mailbox and its reply store.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{Target, Waiting, assert_expired, receive_all, send_all};
use crate::error::Error;
use crate::mailbox::Mailbox;
use crate::mailbox::id::ReplyId;
use crate::mailbox::operation::Answer;
use crate::reply::Reply;
use crate::reply::store::{ReplyEntry, ReplyState, ReplyStore, ReplyValue, Resolved};

fn request(target: &Target<'_>) -> (Mailbox<u32, u32>, Reply<u32>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    let reply = mailbox.send_expecting_reply(&1).reply_timeout(target.ticks(50)).blocking().unwrap();
    (mailbox, reply)
}

pub(super) fn a_request_is_answered(target: &Target<'_>) {
    let (mailbox, reply) = request(target);
    assert!(!reply.is_ready().blocking().unwrap());
    let message = receive_all(&mailbox, target).remove(0);
    assert!(message.expects_reply());
    message.reply(&2).blocking().unwrap();
    assert!(reply.is_ready().blocking().unwrap());
    assert!(!reply.is_cancelled().blocking().unwrap());
    assert_eq!(reply.wait().blocking().unwrap(), 2);
    assert_eq!(mailbox.approximate_count().blocking().unwrap(), 0, "a reply acknowledges the message");
    assert_expired(message.reply(&3).blocking());
}

pub(super) fn a_wait_wakes_when_the_reply_arrives(target: &Target<'_>) {
    let (mailbox, reply) = request(target);
    let waiting = Waiting::start(reply.wait());
    receive_all(&mailbox, target)[0].reply(&2).blocking().unwrap();
    assert_eq!(waiting.finish().unwrap(), 2);
}

pub(super) fn a_wait_times_out_and_can_be_repeated(target: &Target<'_>) {
    let (mailbox, reply) = request(target);
    let waiting = Waiting::start(reply.wait().timeout(target.ticks(5)));
    target.pass(6);
    let error = waiting.finish().unwrap_err();
    assert!(matches!(error, Error::ReplyTimeout { ref id } if id == reply.id()) && error.is_transient(), "{error:?}");
    assert!(matches!(reply.wait().timeout(Duration::ZERO).blocking(), Err(Error::ReplyTimeout { .. })));
    receive_all(&mailbox, target)[0].reply(&2).blocking().unwrap();
    assert_eq!(reply.wait().timeout(Duration::ZERO).blocking().unwrap(), 2);
}

pub(super) fn a_reply_is_polled_and_kept_by_the_handle(target: &Target<'_>) {
    let (mailbox, reply) = request(target);
    assert_eq!(reply.poll().blocking().unwrap(), None);
    receive_all(&mailbox, target)[0].reply(&2).blocking().unwrap();
    let other = mailbox.reply(reply.id());
    assert_eq!(reply.poll().blocking().unwrap(), Some(2));
    // The handle that has consumed the reply keeps it. For other handles it no longer exists.
    assert_eq!(reply.poll().blocking().unwrap(), Some(2));
    assert_eq!(reply.clone().wait().blocking().unwrap(), 2);
    assert!(reply.is_ready().blocking().unwrap());
    assert!(matches!(other.poll().blocking(), Err(Error::ReplyExpired { .. })));
}

pub(super) fn a_reply_expires(target: &Target<'_>) {
    let (mailbox, reply) = request(target);
    let message = receive_all(&mailbox, target).remove(0);
    target.pass(51);
    assert!(matches!(reply.poll().blocking(), Err(Error::ReplyExpired { .. })));
    assert!(matches!(reply.wait().blocking(), Err(Error::ReplyExpired { .. })));
    assert!(!reply.cancel().blocking().unwrap());
    // A reply after the expiry acknowledges the message, and is an error for the handler.
    assert!(matches!(message.reply(&2).blocking(), Err(Error::ReplyExpired { .. })));
    assert_eq!(mailbox.approximate_count().blocking().unwrap(), 0);
}

pub(super) fn a_wait_does_not_sleep_past_the_expiry(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    let reply = mailbox.send_expecting_reply(&1).reply_timeout(target.ticks(5)).blocking().unwrap();
    let waiting = Waiting::start(reply.wait().timeout(Duration::from_secs(100_000)));
    target.pass(6);
    assert!(matches!(waiting.finish(), Err(Error::ReplyExpired { .. })));
}

pub(super) fn a_reply_is_cancelled(target: &Target<'_>) {
    let (_mailbox, reply) = request(target);
    assert!(reply.cancel().blocking().unwrap());
    assert!(!reply.cancel().blocking().unwrap());
    assert!(reply.is_cancelled().blocking().unwrap() && !reply.is_ready().blocking().unwrap());
    assert!(matches!(reply.wait().blocking(), Err(Error::ReplyCancelled { .. })));
    assert!(matches!(reply.poll().blocking(), Err(Error::ReplyCancelled { .. })));
}

pub(super) fn a_wait_wakes_when_the_reply_is_cancelled(target: &Target<'_>) {
    let (mailbox, reply) = request(target);
    let waiting = Waiting::start(reply.wait());
    mailbox.reply(reply.id()).cancel().blocking().unwrap();
    assert!(matches!(waiting.finish(), Err(Error::ReplyCancelled { .. })));
}

pub(super) fn a_reply_is_found_again_by_its_id(target: &Target<'_>) {
    let (mailbox, reply) = request(target);
    // The requester drops its handle and keeps only the id.
    let id = reply.id().to_string();
    drop(reply);
    receive_all(&mailbox, target)[0].reply(&2).blocking().unwrap();
    let other: Mailbox<u32, u32> = target.connection.mailbox(mailbox.name().as_str()).unwrap();
    let reply: Reply<u32> = other.reply(id.as_str());
    assert_eq!(reply.wait().blocking().unwrap(), 2);
    let never: Reply<u32> = mailbox.reply("never-asked");
    assert!(matches!(never.wait().blocking(), Err(Error::ReplyExpired { .. })));
}

pub(super) fn a_request_is_not_acknowledged_without_an_answer(target: &Target<'_>) {
    let (mailbox, _reply) = request(target);
    let message = receive_all(&mailbox, target).remove(0);
    assert!(matches!(message.acknowledge().blocking(), Err(Error::ReplyExpected { ref id }) if *id == message.id));
    assert_eq!(mailbox.approximate_count().blocking().unwrap(), 1);
    message.nack().blocking().unwrap();
    assert_eq!(receive_all(&mailbox, target)[0].delivery_count, 2);
}

pub(super) fn a_message_that_expects_no_reply_refuses_one(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    send_all(&mailbox, [1]);
    let message = receive_all(&mailbox, target).remove(0);
    assert!(message.reply_channel().is_none());
    assert!(matches!(message.reply(&2).blocking(), Err(Error::NoReplyChannel { .. })));
    message.acknowledge().blocking().unwrap();
}

pub(super) fn a_reply_after_the_end_of_the_lease_is_refused(target: &Target<'_>) {
    let (mailbox, reply) = request(target);
    let late = mailbox.receive().visibility_timeout(target.ticks(3)).blocking().unwrap().remove(0);
    target.pass(4);
    assert_expired(late.reply(&666).blocking());
    assert_eq!(reply.poll().blocking().unwrap(), None);
    receive_all(&mailbox, target)[0].reply(&2).blocking().unwrap();
    assert_eq!(reply.wait().blocking().unwrap(), 2);
}

pub(super) fn an_answer_after_a_cancel_acknowledges_the_message(target: &Target<'_>) {
    let (mailbox, reply) = request(target);
    let message = receive_all(&mailbox, target).remove(0);
    reply.cancel().blocking().unwrap();
    assert!(matches!(message.reply(&2).blocking(), Err(Error::ReplyCancelled { .. })));
    assert_eq!(mailbox.approximate_count().blocking().unwrap(), 0);
}

pub(super) fn a_second_answer_acknowledges_the_message(target: &Target<'_>) {
    let (mailbox, reply) = request(target);
    // The first handler stores its answer, and crashes before it acknowledges the message.
    let first = mailbox.receive().visibility_timeout(target.ticks(3)).blocking().unwrap().remove(0);
    first.reply_channel().unwrap().send(&2).blocking().unwrap();
    drop(first);
    target.pass(4);
    let second = receive_all(&mailbox, target).remove(0);
    assert!(matches!(second.reply(&3).blocking(), Err(Error::ReplyAlreadySent { .. })));
    assert_eq!(mailbox.approximate_count().blocking().unwrap(), 0);
    assert_eq!(reply.wait().blocking().unwrap(), 2);
}

pub(super) fn a_failed_request_leaves_no_reply_entry(target: &Target<'_>) {
    let Some(store) = target.connection.reply_store() else { panic!("the suite of replies needs a reply store") };
    if !target.limits().max_size {
        let mailbox: Mailbox<u32, u32> = target.mailbox();
        let refused = mailbox.send_expecting_reply(&1).delay(Duration::MAX).blocking();
        return assert!(matches!(refused, Err(Error::InvalidParameter { .. })));
    }
    let recording = Arc::new(RecordingStore { store: Arc::clone(&store), created: Mutex::default() });
    let replies: Arc<dyn ReplyStore> = Arc::clone(&recording) as _;
    let mailbox: Mailbox<u32, u32> = target.mailbox_with(|options| options.max_size(1).replies(replies));
    send_all(&mailbox, [1]);
    for _ in 0..3 {
        let refused = mailbox.send_expecting_reply(&2).reply_timeout(target.ticks(20)).blocking();
        assert!(matches!(refused, Err(Error::MailboxFull { .. })));
    }
    let created = recording.created.lock().unwrap().clone();
    assert_eq!(created.len(), 3);
    for id in created {
        assert_eq!(store.get(id).blocking().unwrap(), None, "a failed request left its reply entry");
    }
}

/// A reply store that records the ids of the entries created through it. Other tests may share the
/// store behind it.
#[derive(Debug)]
struct RecordingStore {
    store: Arc<dyn ReplyStore>,
    created: Mutex<Vec<ReplyId>>,
}

impl ReplyStore for RecordingStore {
    fn create(&self, id: ReplyId, ttl: Duration) -> Answer<Result<bool, Error>> {
        self.created.lock().unwrap().push(id.clone());
        self.store.create(id, ttl)
    }

    fn resolve(&self, id: ReplyId, value: ReplyValue) -> Answer<Result<Resolved, Error>> {
        self.store.resolve(id, value)
    }

    fn cancel(&self, id: ReplyId) -> Answer<Result<bool, Error>> {
        self.store.cancel(id)
    }

    fn get(&self, id: ReplyId) -> Answer<Result<Option<ReplyEntry>, Error>> {
        self.store.get(id)
    }

    fn consume(&self, id: ReplyId) -> Answer<Result<Option<ReplyEntry>, Error>> {
        self.store.consume(id)
    }

    fn delete(&self, id: ReplyId) -> Answer<Result<bool, Error>> {
        self.store.delete(id)
    }

    fn scan_expired(&self, limit: usize) -> Answer<Result<Vec<ReplyId>, Error>> {
        self.store.scan_expired(limit)
    }

    fn cleanup_expired(&self, limit: usize) -> Answer<Result<u64, Error>> {
        self.store.cleanup_expired(limit)
    }

    fn settled(&self, id: ReplyId, wait: Duration) -> Answer<Result<bool, Error>> {
        self.store.settled(id, wait)
    }
}

pub(super) fn a_reply_channel_accepts_one_answer(target: &Target<'_>) {
    let (mailbox, reply) = request(target);
    let message = receive_all(&mailbox, target).remove(0);
    let channel = message.reply_channel().unwrap();
    assert!(channel.is_open().blocking().unwrap());
    assert_eq!(channel.id(), reply.id());
    channel.send(&2).blocking().unwrap();
    assert!(!channel.is_open().blocking().unwrap());
    assert!(matches!(channel.send(&3).blocking(), Err(Error::ReplyAlreadySent { .. })));
    let entry = reply.entry().blocking().unwrap().unwrap();
    assert_eq!(entry.state, ReplyState::Resolved);
    assert_eq!(reply.wait().blocking().unwrap(), 2);
}

pub(super) fn a_repeated_request_awaits_the_same_reply(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    if !mailbox.limits().own_ids {
        return a_request_is_answered(target);
    }
    let id = crate::mailbox::id::MessageId::new();
    let ask = |body| mailbox.send_expecting_reply(&body).id(&id).reply_timeout(target.ticks(50)).blocking();
    let (first, second) = (ask(1).unwrap(), ask(1).unwrap());
    assert_eq!(first.id(), second.id());
    // A request with another body is refused, and does not change the reply of the first request.
    assert!(matches!(ask(2), Err(Error::InvalidParameter { parameter: "id", .. })));
    assert_eq!(mailbox.approximate_count().blocking().unwrap(), 1);
    receive_all(&mailbox, target)[0].reply(&3).blocking().unwrap();
    assert_eq!(second.wait().blocking().unwrap(), 3);
}
