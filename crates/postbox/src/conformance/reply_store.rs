//! The verbs of the reply store, called directly.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;

use super::{Target, Waiting};
use crate::mailbox::codec::ContentType;
use crate::mailbox::id::ReplyId;
use crate::reply::store::{ReplyState, ReplyStore, ReplyValue, Resolved};

fn store(target: &Target<'_>) -> Arc<dyn ReplyStore> {
    target.connection.reply_store().expect("the suite of replies needs a reply store")
}

fn value(text: &'static str) -> ReplyValue {
    ReplyValue { body: Bytes::from(text), content_type: ContentType::Json }
}

fn created(store: &Arc<dyn ReplyStore>, ttl: Duration) -> ReplyId {
    let id = ReplyId::new();
    assert!(store.create(id.clone(), ttl).blocking().unwrap());
    id
}

fn state(store: &Arc<dyn ReplyStore>, id: &ReplyId) -> Option<ReplyState> {
    store.get(id.clone()).blocking().unwrap().map(|entry| entry.state)
}

pub(super) fn an_entry_is_created_once(target: &Target<'_>) {
    let store = store(target);
    let id = created(&store, target.ticks(20));
    assert!(!store.create(id.clone(), target.ticks(20)).blocking().unwrap());
    let entry = store.get(id.clone()).blocking().unwrap().unwrap();
    assert_eq!((&entry.id, entry.state, entry.value, entry.resolved_at), (&id, ReplyState::Pending, None, None));
    assert_eq!(entry.expires_at.duration_since(entry.created_at).unwrap(), target.ticks(20));
    assert_eq!(store.get(ReplyId::new()).blocking().unwrap(), None);
}

pub(super) fn an_entry_is_resolved_once(target: &Target<'_>) {
    let store = store(target);
    let id = created(&store, target.ticks(20));
    assert_eq!(store.resolve(id.clone(), value("1")).blocking().unwrap(), Resolved::Stored);
    let again = store.resolve(id.clone(), value("2")).blocking().unwrap();
    assert_eq!(again, Resolved::Refused(Some(ReplyState::Resolved)));
    let entry = store.get(id).blocking().unwrap().unwrap();
    assert_eq!((entry.state, entry.value), (ReplyState::Resolved, Some(value("1"))));
    assert!(entry.resolved_at.unwrap() >= entry.created_at);
    assert_eq!(store.resolve(ReplyId::new(), value("1")).blocking().unwrap(), Resolved::Refused(None));
}

pub(super) fn a_cancelled_entry_refuses_an_answer(target: &Target<'_>) {
    let store = store(target);
    let id = created(&store, target.ticks(20));
    assert!(store.cancel(id.clone()).blocking().unwrap());
    assert!(!store.cancel(id.clone()).blocking().unwrap());
    let refused = store.resolve(id.clone(), value("1")).blocking().unwrap();
    assert_eq!(refused, Resolved::Refused(Some(ReplyState::Cancelled)));
    assert_eq!(state(&store, &id), Some(ReplyState::Cancelled));
    let resolved = created(&store, target.ticks(20));
    store.resolve(resolved.clone(), value("1")).blocking().unwrap();
    assert!(!store.cancel(resolved).blocking().unwrap());
    assert!(!store.cancel(ReplyId::new()).blocking().unwrap());
}

pub(super) fn a_resolved_entry_is_consumed_once(target: &Target<'_>) {
    let store = store(target);
    let id = created(&store, target.ticks(20));
    // Consuming a pending entry returns it and does not remove it.
    let pending = store.consume(id.clone()).blocking().unwrap().unwrap();
    assert_eq!(pending.state, ReplyState::Pending);
    store.resolve(id.clone(), value("1")).blocking().unwrap();
    assert_eq!(store.consume(id.clone()).blocking().unwrap().unwrap().value, Some(value("1")));
    assert_eq!(store.consume(id.clone()).blocking().unwrap(), None);
    assert_eq!(store.get(id).blocking().unwrap(), None);
}

pub(super) fn an_expired_entry_refuses_an_answer(target: &Target<'_>) {
    let store = store(target);
    let id = created(&store, target.ticks(5));
    let waiting = Waiting::start(store.settled(id.clone(), Duration::from_secs(100_000)));
    target.pass(6);
    assert!(waiting.finish().unwrap());
    let refused = store.resolve(id.clone(), value("1")).blocking().unwrap();
    // The store may have removed the expired entry.
    assert!(matches!(refused, Resolved::Refused(Some(ReplyState::Expired) | None)), "{refused:?}");
    assert!(!store.cancel(id.clone()).blocking().unwrap());
    assert!(matches!(state(&store, &id), Some(ReplyState::Expired) | None));
}

pub(super) fn resolved_and_cancelled_entries_expire_too(target: &Target<'_>) {
    let store = store(target);
    let (resolved, cancelled) = (created(&store, target.ticks(5)), created(&store, target.ticks(5)));
    store.resolve(resolved.clone(), value("1")).blocking().unwrap();
    store.cancel(cancelled.clone()).blocking().unwrap();
    target.pass(6);
    for id in [resolved, cancelled] {
        assert!(matches!(state(&store, &id), Some(ReplyState::Expired) | None));
        let entry = store.consume(id).blocking().unwrap();
        assert!(entry.is_none_or(|entry| entry.value.is_none()), "an expired answer is not returned");
    }
}

pub(super) fn an_entry_is_deleted(target: &Target<'_>) {
    let store = store(target);
    let id = created(&store, target.ticks(50));
    let waiting = Waiting::start(store.settled(id.clone(), Duration::from_secs(100_000)));
    assert!(store.delete(id.clone()).blocking().unwrap());
    assert!(waiting.finish().unwrap(), "deleting an entry wakes its waiters");
    assert!(!store.delete(id.clone()).blocking().unwrap());
    assert_eq!(state(&store, &id), None);
}

pub(super) fn expired_entries_are_scanned_and_cleaned_up(target: &Target<'_>) {
    // A server may remove expired entries by itself, as DynamoDB does, before the scan. One of
    // three attempts must find all of them.
    let mut counts = (0..3).map(|_| scanned_and_cleaned_up(target));
    assert!(counts.any(|counts| counts == (5, 2)), "no scan found all five entries, or no clean-up removed two");
}

/// Creates five entries that expire. Returns how many a scan found, and how many a clean-up with
/// limit 2 removed.
fn scanned_and_cleaned_up(target: &Target<'_>) -> (usize, u64) {
    let store = store(target);
    let alive = created(&store, target.ticks(100));
    let ids: Vec<ReplyId> = (0..5).map(|_| created(&store, target.ticks(3))).collect();
    target.pass(4);
    let scanned = store.scan_expired(1000).blocking().unwrap();
    assert!(!scanned.contains(&alive));
    let found = ids.iter().filter(|id| scanned.contains(id)).count();
    assert!(
        ids.iter().all(|id| scanned.contains(id) || state(&store, id).is_none()),
        "a scan finds every expired entry that exists"
    );
    assert!(store.scan_expired(2).blocking().unwrap().len() <= 2);
    let cleaned = store.cleanup_expired(2).blocking().unwrap();
    assert!(cleaned <= 2);
    while store.cleanup_expired(100).blocking().unwrap() > 0 {}
    assert!(ids.iter().all(|id| state(&store, id).is_none()));
    assert_eq!(state(&store, &alive), Some(ReplyState::Pending));
    (found, cleaned)
}

pub(super) fn an_unknown_entry_is_settled(target: &Target<'_>) {
    let store = store(target);
    assert!(store.settled(ReplyId::new(), Duration::from_secs(100)).blocking().unwrap());
    let id = created(&store, target.ticks(50));
    assert!(!store.settled(id.clone(), Duration::ZERO).blocking().unwrap());
    let waiting = Waiting::start(store.settled(id.clone(), target.ticks(3)));
    target.pass(4);
    assert!(!waiting.finish().unwrap(), "the wait timed out while the entry was pending");
    store.resolve(id.clone(), value("1")).blocking().unwrap();
    assert!(store.settled(id, Duration::from_secs(100)).blocking().unwrap());
}

pub(super) fn one_of_many_consumers_gets_the_answer(target: &Target<'_>) {
    let store = store(target);
    let id = created(&store, target.ticks(1000));
    store.resolve(id.clone(), value("1")).blocking().unwrap();
    let got = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                if store.consume(id.clone()).blocking().unwrap().is_some() {
                    got.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    });
    assert_eq!(got.into_inner(), 1);
}
