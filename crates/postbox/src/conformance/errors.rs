//! Refused parameters. Each error names the parameter, the value and the limit.

use std::time::Duration;

use super::{Target, receive_all, send_all};
use crate::backend::Limits;
use crate::error::Error;
use crate::mailbox::Mailbox;
use crate::mailbox::codec::{Json, Raw};

/// Checks that an error names the parameter, and contains the value and the limit.
fn assert_invalid<T: std::fmt::Debug>(result: Result<T, Error>, about: &str, value: &str, limit: &str) {
    match result {
        Err(Error::InvalidParameter { parameter, value: given, limit: allowed }) => {
            assert_eq!(parameter, about);
            assert!(given.contains(value) && allowed.contains(limit), "{parameter} = {given}: {allowed}");
        }
        other => panic!("{about} = {value}: {other:?}"),
    }
}

fn seconds(duration: Duration) -> String {
    duration.as_secs_f64().to_string()
}

pub(super) fn durations_beyond_the_limit_are_refused(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    let limits = target.limits();
    let more = |longest: Duration| longest + Duration::from_secs(1);
    send_all(&mailbox, [1]);
    let message = receive_all(&mailbox, target).remove(0);
    let longest = limits.max_delay;
    assert_invalid(
        mailbox.send(&1).delay(more(longest)).blocking(),
        "delay",
        &seconds(more(longest)),
        &seconds(longest),
    );
    let longest = limits.max_visibility;
    let (value, limit) = (seconds(more(longest)), seconds(longest));
    assert_invalid(
        mailbox.receive().visibility_timeout(more(longest)).blocking(),
        "visibility_timeout",
        &value,
        &limit,
    );
    assert_invalid(message.nack().visibility_timeout(more(longest)).blocking(), "visibility_timeout", &value, &limit);
    assert_invalid(message.extend_visibility(more(longest)).blocking(), "visibility_timeout", &value, &limit);
    let longest = limits.max_wait;
    let (value, limit) = (seconds(more(longest)), seconds(longest));
    assert_invalid(mailbox.receive().wait_time(more(longest)).blocking(), "wait_time", &value, &limit);
    assert_invalid(mailbox.send(&1).delay(Duration::MAX).blocking(), "delay", "", "");
    assert_eq!(mailbox.approximate_count().blocking().unwrap(), 1, "a refused send stores nothing");
    message.acknowledge().blocking().unwrap();
}

pub(super) fn batches_beyond_the_limit_are_refused(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    let most = target.limits().max_batch;
    let limit = format!("1 to {most}");
    assert_invalid(mailbox.receive().max_messages(0).blocking(), "max_messages", "0", &limit);
    let more = (most + 1).to_string();
    assert_invalid(mailbox.receive().max_messages(most + 1).blocking(), "max_messages", &more, &limit);
    let numbers = vec![0u32; most + 1];
    assert_invalid(mailbox.send_batch(&numbers).blocking(), "batch size", &more, &limit);
    assert_eq!(mailbox.approximate_count().blocking().unwrap(), 0);
}

pub(super) fn messages_beyond_the_limit_are_refused(target: &Target<'_>) {
    // If the backend has no limit, the portable limit applies.
    let typed: Mailbox<u32, u32> =
        target.mailbox_with(|options| options.portable_limits(target.limits().max_message_size.is_none()));
    let most = typed.limits().max_message_size.expect("portable limits have a largest message");
    let mailbox: Mailbox<Vec<u8>, (), Raw> = typed.untyped().typed();
    let (value, limit) = ((most + 1).to_string(), most.to_string());
    assert_invalid(mailbox.send(&vec![0; most + 1]).blocking(), "message size", &value, &limit);
    assert_eq!(mailbox.approximate_count().blocking().unwrap(), 0);
}

pub(super) fn names_and_attributes_are_checked(target: &Target<'_>) {
    let long = "x".repeat(81);
    for name in ["", "two words", "a/b", "{tag}", "ünïcode", "new\nline", long.as_str()] {
        let refused = target.connection.mailbox::<u32, u32, Json>(name);
        assert!(matches!(refused, Err(Error::InvalidParameter { parameter: "mailbox name", .. })), "{name:?}");
    }
    let allowed = "x".repeat(target.harness.longest_name());
    for name in ["a", "A.b_c:d-9", allowed.as_str()] {
        assert!(target.connection.mailbox::<u32, u32, Json>(name).is_ok(), "{name:?}");
    }
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    for name in ["", "two words", "postbox.reply", "ünï"] {
        assert_invalid(mailbox.send(&1).attribute(name, "x").blocking(), "attribute", name, "postbox.");
    }
    assert_eq!(mailbox.approximate_count().blocking().unwrap(), 0);
}

pub(super) fn portable_limits_are_enforced_on_every_backend(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox_with(|options| options.portable_limits(true));
    let longest = mailbox.limits().max_delay;
    assert!(longest <= Duration::from_secs(900));
    let limit = longest.as_secs().to_string();
    assert_invalid(mailbox.send(&1).delay(Duration::from_secs(901)).blocking(), "delay", "901", &limit);
    assert_invalid(mailbox.receive().wait_time(Duration::from_secs(21)).blocking(), "wait_time", "21", "20");
    let hours = Duration::from_secs(12 * 60 * 60);
    let long = mailbox.receive().visibility_timeout(hours + Duration::from_secs(1)).blocking();
    assert_invalid(long, "visibility_timeout", "43201", "43200");
    assert_invalid(mailbox.receive().max_messages(11).blocking(), "max_messages", "11", "10");
    mailbox.send(&1).delay(longest).blocking().unwrap();
    mailbox.receive().max_messages(10).visibility_timeout(hours).blocking().unwrap();
}

pub(super) fn settings_out_of_range_are_refused(target: &Target<'_>) {
    type Change = fn(crate::Connection) -> crate::Connection;
    const LONGEST: Duration = Limits::LONGEST;
    let refused: [(&str, Change); 8] = [
        ("max_size", |options| options.max_size(0)),
        ("max_size", |options| options.max_size(usize::MAX)),
        ("max_deliveries", |options| options.max_deliveries(0)),
        ("max_deliveries", |options| options.max_deliveries(u32::MAX)),
        ("deduplication_window", |options| options.deduplication_window(Duration::MAX)),
        ("deduplication_window", |options| options.deduplication_window(LONGEST + Duration::from_nanos(1))),
        ("idle_expiry", |options| options.idle_expiry(Duration::MAX)),
        ("idle_expiry", |options| options.idle_expiry(Duration::ZERO)),
    ];
    for (name, change) in refused {
        let opened = change(target.connection.clone()).mailbox::<u32, u32, crate::mailbox::codec::Json>(&target.name());
        match opened {
            Err(Error::InvalidParameter { parameter, .. }) => assert_eq!(parameter, name),
            // The backend does not support the setting.
            Err(Error::Unsupported { .. }) => {}
            other => panic!("{name}: {other:?}"),
        }
    }
    let limits = target.limits();
    if !limits.max_size || limits.deduplication_window.is_some() || !limits.deduplication {
        return;
    }
    // The largest allowed values work.
    let mailbox: Mailbox<u32, u32> = target.mailbox_with(|options| {
        options.max_size(1 << 40).max_deliveries(1_000_000).deduplication_window(LONGEST).idle_expiry(LONGEST)
    });
    let first = mailbox.send(&1).deduplication_id("once").blocking().unwrap();
    assert_eq!(mailbox.send(&2).deduplication_id("once").blocking().unwrap(), first);
    assert_eq!(receive_all(&mailbox, target).len(), 1);
}
