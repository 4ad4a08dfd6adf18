//! The least and the most that each option takes: 0, 1, the limit, more than the limit, `MAX`.

use std::fmt::Debug;
use std::time::Duration;

use super::{Place, bodies, receive_all};
use crate::backend::wire::{MAX_HEADER_BYTES, MAX_HEADERS};
use crate::backend::{Counts, Limits, Outgoing, Receipt, Receive, Special, Visibility};
use crate::error::Error;
use crate::mailbox::Mailbox;
use crate::mailbox::codec::ContentType;
use crate::mailbox::id::ReplyId;
use crate::reply::store::ReplyState;

/// 0, a limit, more than the limit, and `MAX`. Where time costs nothing, also what lies beside them.
fn durations(place: &Place<'_>, limit: Duration) -> Vec<Duration> {
    let nano = Duration::from_nanos(1);
    let mut durations = vec![Duration::ZERO, limit, limit.saturating_add(nano), Duration::MAX];
    if place.harness.is_exact() {
        durations.extend([nano, Duration::from_millis(1), limit.saturating_sub(nano)]);
    }
    durations
}

/// It is done if the value is within the limit, and refused by name if not.
fn assert_in_limit<T: Debug>(
    outcome: Result<T, Error>,
    parameter: &str,
    value: Duration,
    limit: Duration,
) -> Option<T> {
    match outcome {
        Ok(done) if value <= limit => Some(done),
        Err(Error::InvalidParameter { parameter: named, .. }) if value > limit && named == parameter => None,
        other => panic!("{parameter} = {value:?}, limit {limit:?}: {other:?}"),
    }
}

pub(super) fn sends_take_any_delay_and_expiry_within_their_limits(place: &Place<'_>) {
    let limits = place.limits();
    for delay in durations(place, limits.max_delay) {
        let mailbox: Mailbox<u32, u32> = place.mailbox();
        let sent = mailbox.send(&1).delay(delay).blocking();
        let is_sent = assert_in_limit(sent, "delay", delay, limits.max_delay).is_some();
        let total = mailbox.counts().blocking().unwrap().total();
        assert_eq!(total, u64::from(is_sent), "{delay:?}");
        if is_sent && place.harness.is_exact() {
            let millisecond = Duration::from_millis(1);
            if delay > millisecond {
                place.harness.advance(delay - millisecond);
                assert!(receive_all(&mailbox, place).is_empty(), "{delay:?} are not over");
            }
            place.harness.advance(millisecond * 2);
            assert_eq!(bodies(&receive_all(&mailbox, place)), [1], "{delay:?} are over");
        }
    }
    if !limits.expiry {
        return;
    }
    for expiry in durations(place, limits.max_delay) {
        let mailbox: Mailbox<u32, u32> = place.mailbox();
        let sent = mailbox.send(&1).expires_in(expiry).blocking();
        let is_sent = assert_in_limit(sent, "expires_in", expiry, limits.max_delay).is_some();
        if is_sent && place.harness.is_exact() {
            place.harness.advance(expiry.saturating_add(Duration::from_millis(2)));
            assert!(receive_all(&mailbox, place).is_empty(), "{expiry:?} are over");
        }
        mailbox.send(&2).blocking().unwrap();
        assert_eq!(bodies(&receive_all(&mailbox, place)).last(), Some(&2));
    }
}

pub(super) fn leases_take_any_length_within_their_limit(place: &Place<'_>) {
    let limits = place.limits();
    let limit = limits.max_visibility;
    for length in durations(place, limit) {
        let mailbox: Mailbox<u32, u32> = place.mailbox();
        mailbox.send(&1).blocking().unwrap();
        let received = mailbox.receive().visibility_timeout(length).blocking();
        if assert_in_limit(received, "visibility_timeout", length, limit)
            .is_some_and(|received| length == limit && received.len() == 1)
        {
            assert_eq!(mailbox.counts().blocking().unwrap().in_flight, 1);
        }
        let waits = mailbox.receive().wait_time(length).visibility_timeout(Duration::ZERO);
        if length > limits.max_wait {
            assert_in_limit(waits.blocking(), "wait_time", length, limits.max_wait);
        }
        let other: Mailbox<u32, u32> = place.mailbox();
        other.send(&2).blocking().unwrap();
        let message = receive_all(&other, place).remove(0);
        // SQS counts a lease from the first moment on, with all its extensions.
        for outcome in
            [message.extend_visibility(length).blocking(), message.nack().visibility_timeout(length).blocking()]
        {
            match outcome {
                Err(Error::InvalidParameter { .. }) if length == limit && !limits.exact_deliveries => {}
                outcome => drop(assert_in_limit(outcome, "visibility_timeout", length, limit)),
            }
        }
        assert_eq!(other.counts().blocking().unwrap().total(), 1, "{length:?}");
    }
}

pub(super) fn replies_take_any_time_within_their_limit(place: &Place<'_>) {
    let limit = Limits::LONGEST;
    for time in durations(place, limit) {
        let mailbox: Mailbox<u32, u32> = place.mailbox();
        let sent = mailbox.send_expecting_reply(&1).reply_timeout(time).blocking();
        let Some(reply) = assert_in_limit(sent, "reply_timeout", time, limit) else {
            assert_eq!(mailbox.counts().blocking().unwrap().total(), 0);
            continue;
        };
        let outcome = reply.wait().timeout(Duration::ZERO).blocking();
        assert!(
            matches!(outcome, Err(Error::ReplyTimeout { .. } | Error::ReplyExpired { .. })),
            "{time:?}: {outcome:?}"
        );
    }
    for time in durations(place, limit) {
        let mailbox: Mailbox<u32, u32> = place.mailbox();
        let reply = mailbox.send_expecting_reply(&1).blocking().unwrap();
        receive_all(&mailbox, place)[0].reply(&2).blocking().unwrap();
        let answer = reply.wait().timeout(time).blocking();
        assert!(assert_in_limit(answer, "timeout", time, limit).is_none_or(|answer| answer == 2));
    }
}

pub(super) fn numbers_of_any_size_are_taken(place: &Place<'_>) {
    let limits = place.limits();
    for max in [0, 1, usize::MAX] {
        let mailbox: Mailbox<u32, u32> = place.mailbox_with(|options| options.max_deliveries(1_000));
        mailbox.send(&1).blocking().unwrap();
        receive_all(&mailbox, place)[0].dead_letter("extreme").blocking().unwrap();
        let letters = mailbox.dead_letters();
        assert_eq!(letters.list(max).blocking().unwrap().len(), max.min(1), "{max}");
        assert_eq!(letters.redrive(max).blocking().unwrap(), max.min(1) as u64, "{max}");
        if limits.peek {
            assert_eq!(mailbox.peek(max).blocking().unwrap().len(), max.min(1), "{max}");
        }
        let received = mailbox.receive().max_messages(max).blocking();
        let is_allowed = (1..=limits.max_batch).contains(&max);
        assert_eq!(received.is_ok(), is_allowed, "{max}: {received:?}");
        let store = place.connection.reply_store().expect("the place keeps replies");
        assert!(store.scan_expired(max).blocking().is_ok() && store.cleanup_expired(max).blocking().is_ok(), "{max}");
    }
}

pub(super) fn texts_of_any_kind_are_kept_or_refused(place: &Place<'_>) {
    let limits = place.limits();
    let long = "x".repeat(10_000);
    for text in ["", " ", "0", "nan", "a\0b", "ü{}\"'\\\n", "-", long.as_str()] {
        let mailbox: Mailbox<u32, u32> = place.mailbox();
        let mut stored = 0;
        let mut done = |outcome: Result<crate::mailbox::id::MessageId, Error>, parameter: &str| match outcome {
            Ok(_) => stored += 1,
            Err(Error::InvalidParameter { parameter: named, .. }) => assert_eq!(named, parameter),
            other => panic!("{parameter} = {text:?}: {other:?}"),
        };
        done(mailbox.send(&1).attribute("text", text).blocking(), "attribute");
        if limits.groups {
            done(mailbox.send(&2).group(text).blocking(), "group");
        }
        if limits.deduplication {
            done(mailbox.send(&3).deduplication_id(text).blocking(), "deduplication_id");
        }
        assert_eq!(mailbox.approximate_count().blocking().unwrap(), stored, "{text:?}");
        let received = receive_all(&mailbox, place);
        for message in &received {
            assert!(message.attributes.get("text").is_none_or(|kept| kept == text), "{text:?}: {message:?}");
        }
    }
}

pub(super) fn headers_are_bounded_in_number_and_size(place: &Place<'_>) {
    let mailbox: Mailbox<u32, u32> = place.mailbox();
    // The content type is a header, too.
    let with = |many: usize| (1..many).fold(mailbox.send(&1), |send, at| send.attribute(format!("a{at}"), "x"));
    mailbox.send(&1).delay(Duration::ZERO).blocking().unwrap();
    with(MAX_HEADERS).blocking().unwrap();
    let value = "x".repeat(256 * 1024);
    let large = (0..4).fold(mailbox.send(&1), |send, at| send.attribute(format!("a{at}"), &value));
    let (many, size) = (with(MAX_HEADERS + 1).blocking(), large.blocking());
    let content_type = mailbox.send(&1).content_type("x".repeat(MAX_HEADER_BYTES).as_str().into()).blocking();
    let too_many = format!("{} headers", MAX_HEADERS + 1);
    for (refused, value) in [(many, too_many.as_str()), (size, "1048"), (content_type, "1048")] {
        match refused {
            Err(Error::InvalidParameter { parameter: "headers", value: named, limit }) => {
                assert!(
                    named.contains(value) && limit.contains("256") && limit.contains("1048576"),
                    "{named}, {limit}"
                );
            }
            other => panic!("{value}: {other:?}"),
        }
    }
    let received = receive_all(&mailbox, place);
    let mut many: Vec<usize> = received.iter().map(|message| message.attributes.len()).collect();
    many.sort_unstable();
    assert_eq!(many, [0, MAX_HEADERS - 1]);
}

/// Only a [`Mailbox`] checks durations. A caller of the backend itself can pass any.
pub(super) fn a_backend_without_limits_takes_any_duration(place: &Place<'_>) {
    if place.limits().max_delay < Limits::LONGEST {
        return;
    }
    for long in [Duration::from_millis(i64::MAX as u64), Duration::from_millis(u64::MAX), Duration::MAX] {
        let mailbox: Mailbox<u32, u32> = place.mailbox();
        let bytes = mailbox.core.backend.mailbox(mailbox.name(), &mailbox.core.settings).unwrap();
        let message = || Outgoing::new("1".into(), ContentType::Json);
        bytes.send_one(Outgoing { delay: long, ..message() }).blocking().unwrap();
        let special = Special { expires_in: Some(long), ..Special::default() };
        bytes.send_one(Outgoing { special: Some(Box::new(special)), ..message() }).blocking().unwrap();
        let request = Receive { max: 1, visibility: long, wait: Duration::ZERO };
        let delivery = bytes.receive(request).blocking().unwrap().remove(0);
        let receipt = || Receipt { id: delivery.id.clone(), handle: delivery.receipt_handle.clone() };
        for visibility in [Visibility::Extend(long), Visibility::Return(long)] {
            let changed = bytes.set_visibility(vec![(receipt(), visibility)]).blocking();
            assert!(changed[0].is_ok(), "{visibility:?}: {changed:?}");
        }
        assert_eq!(bytes.counts().blocking().unwrap(), Counts::new(0, 2, 0, 0), "{long:?}");
        // The mailbox still works.
        bytes.send_one(message()).blocking().unwrap();
        assert_eq!(bytes.receive(Receive { visibility: Duration::ZERO, ..request }).blocking().unwrap().len(), 1);
        let replies = place.connection.reply_store().expect("the place keeps replies");
        let id = ReplyId::new();
        assert!(replies.create(id.clone(), long).blocking().unwrap());
        assert!(replies.get(id).blocking().unwrap().is_some_and(|entry| entry.state == ReplyState::Pending));
    }
}
