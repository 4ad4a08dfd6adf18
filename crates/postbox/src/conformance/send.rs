//! Sending.

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use super::{Target, bodies, can_delay, receive_all, send_all};
use crate::error::Error;
use crate::mailbox::Mailbox;
use crate::mailbox::codec::Raw;
use crate::mailbox::id::MessageId;

pub(super) fn a_message_arrives_as_it_was_sent(target: &Target<'_>) {
    let mailbox: Mailbox<String, ()> = target.mailbox();
    let send = mailbox.send("héllo").attribute("tenant", "a").attribute("empty-ish", " ").reply_to("responses");
    let id = send.blocking().unwrap();
    let message = mailbox.receive().blocking().unwrap().remove(0);
    assert_eq!((message.id.clone(), message.body.as_str(), message.delivery_count), (id, "héllo", 1));
    assert_eq!(message.attributes["tenant"], "a");
    assert_eq!(message.attributes["empty-ish"], " ");
    assert_eq!((message.attributes.len(), message.reply_to.as_deref()), (2, Some("responses")));
    assert!(!message.expects_reply() && !message.receipt_handle.to_string().is_empty());
    if !target.harness.is_exact() {
        let age = SystemTime::now().duration_since(message.enqueued_at).unwrap_or_default();
        assert!(age < Duration::from_secs(60), "sent {age:?} ago");
    }
    message.acknowledge().blocking().unwrap();
}

pub(super) fn ids_are_unique_and_deliveries_have_them(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    let mut ids = HashSet::new();
    for number in 0..20 {
        assert!(ids.insert(mailbox.send(&number).blocking().unwrap()));
    }
    for _ in 0..20 {
        let message = mailbox.receive().visibility_timeout(target.ticks(100)).blocking().unwrap().remove(0);
        assert!(ids.remove(&message.id), "{:?} was delivered twice, or was never sent", message.id);
    }
}

pub(super) fn first_deliveries_are_in_order(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    send_all(&mailbox, 0..30);
    let mut received = Vec::new();
    while received.len() < 30 {
        let batch = receive_all(&mailbox, target);
        assert!(!batch.is_empty());
        received.extend(bodies(&batch));
    }
    if target.limits().ordering != crate::backend::Ordering::Fifo {
        received.sort_unstable();
    }
    assert_eq!(received, (0..30).collect::<Vec<_>>());
}

pub(super) fn a_delayed_message_is_invisible_until_its_time(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    if !can_delay(&mailbox, target) {
        return;
    }
    mailbox.send(&1).delay(target.ticks(4)).blocking().unwrap();
    assert!(receive_all(&mailbox, target).is_empty());
    assert_eq!(mailbox.approximate_count().blocking().unwrap(), 1, "a delayed message counts");
    target.pass(2);
    assert!(receive_all(&mailbox, target).is_empty());
    target.pass(3);
    assert_eq!(bodies(&receive_all(&mailbox, target)), [1]);
}

pub(super) fn messages_are_ordered_by_the_moment_they_become_visible(target: &Target<'_>) {
    if target.limits().ordering != crate::backend::Ordering::Fifo {
        return assert_ne!(target.limits().ordering, crate::backend::Ordering::Fifo);
    }
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    mailbox.send(&3).delay(target.ticks(9)).blocking().unwrap();
    mailbox.send(&1).delay(target.ticks(3)).blocking().unwrap();
    mailbox.send(&2).blocking().unwrap();
    let leased = mailbox.receive().visibility_timeout(target.ticks(6)).blocking().unwrap();
    assert_eq!(bodies(&leased), [2]);
    target.pass(12);
    // Message 1 became visible first, then 2, whose lease ended, then 3. Message 4 is sent last.
    mailbox.send(&4).blocking().unwrap();
    assert_eq!(bodies(&receive_all(&mailbox, target)), [1, 2, 3, 4]);
}

pub(super) fn large_empty_and_binary_bodies_arrive_unchanged(target: &Target<'_>) {
    let typed: Mailbox<u32, u32> = target.mailbox();
    let mailbox: Mailbox<Vec<u8>, (), Raw> = typed.untyped().typed();
    let all_bytes: Vec<u8> = (0..=255).collect();
    let large: Vec<u8> = (0..200 * 1024u32).map(|number| ((number * 7919) >> 8) as u8).collect();
    for body in [Vec::new(), all_bytes, large, b"\r\n{}\0".to_vec()] {
        mailbox.send(&body).blocking().unwrap();
        let message = mailbox.receive().blocking().unwrap().remove(0);
        assert!(message.body == body, "a body of {} bytes changed", body.len());
        message.acknowledge().blocking().unwrap();
    }
}

pub(super) fn all_codecs_work(target: &Target<'_>) {
    fn check<C>(mailbox: &Mailbox<String, (), C>)
    where
        C: crate::codec::Encode<str> + crate::codec::Decode<String>,
    {
        mailbox.send("text").blocking().unwrap();
        let message = mailbox.receive().blocking().unwrap().remove(0);
        assert_eq!(message.body, "text");
        message.acknowledge().blocking().unwrap();
    }
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    check::<crate::Json>(&mailbox.untyped().typed());
    check::<Raw>(&mailbox.untyped().typed());
    #[cfg(feature = "messagepack")]
    check::<crate::MessagePack>(&mailbox.untyped().typed());
}

pub(super) fn a_full_mailbox_refuses_until_there_is_room(target: &Target<'_>) {
    if !target.limits().max_size {
        let refused = target.connection.clone().max_size(2).mailbox::<u32, u32, crate::Json>(&target.name());
        return assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
    }
    let mailbox: Mailbox<u32, u32> = target.mailbox_with(|options| options.max_size(2));
    send_all(&mailbox, 0..2);
    let message = mailbox.receive().blocking().unwrap().remove(0);
    let error = mailbox.send(&2).blocking().unwrap_err();
    assert!(matches!(error, Error::MailboxFull { .. }) && error.is_transient(), "leased messages count: {error:?}");
    assert!(error.to_string().contains('2'), "the error does not name the limit: {error}");
    message.acknowledge().blocking().unwrap();
    mailbox.send(&3).blocking().unwrap();
    assert_eq!(mailbox.approximate_count().blocking().unwrap(), 2);
}

pub(super) fn a_batch_is_sent_in_order_with_a_result_for_each_message(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    let numbers: Vec<u32> = (0..target.limits().max_batch.min(10) as u32).collect();
    let ids = mailbox.send_batch(&numbers).attribute("kind", "batch").blocking().unwrap();
    assert_eq!(ids.len(), numbers.len());
    let received = receive_all(&mailbox, target);
    let mut pairs: Vec<_> = received.iter().map(|message| (message.body, message.id.clone())).collect();
    if target.limits().ordering != crate::backend::Ordering::Fifo {
        pairs.sort();
    }
    let expected: Vec<_> = numbers.into_iter().zip(ids.into_iter().map(Result::unwrap)).collect();
    assert_eq!(pairs, expected);
    assert!(received.iter().all(|message| message.attributes["kind"] == "batch"));
    assert_eq!(mailbox.send_batch([]).blocking().unwrap().len(), 0);
}

pub(super) fn a_body_that_cannot_be_encoded_is_not_sent(target: &Target<'_>) {
    #[derive(Clone, Debug)]
    struct Odd(bool);
    impl serde::Serialize for Odd {
        fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            match self.0 {
                true => Err(serde::ser::Error::custom("odd")),
                false => serializer.serialize_u32(1),
            }
        }
    }
    let mailbox: Mailbox<Odd, ()> = target.mailbox();
    let error = mailbox.send(&Odd(true)).blocking().unwrap_err();
    assert!(
        matches!(error, Error::Serialization { message: None, .. }) && error.to_string().contains("odd"),
        "{error:?}"
    );
    let results = mailbox.send_batch(&[Odd(false), Odd(true), Odd(false)]).blocking().unwrap();
    assert_eq!(results.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
    assert_eq!(mailbox.approximate_count().blocking().unwrap(), 2);
}

/// Sends with an id that the caller chooses. Returns the id of the stored message.
fn send_with_id(mailbox: &Mailbox<u32, u32>, id: &MessageId, number: u32) -> Result<MessageId, Error> {
    mailbox.send(&number).id(id).blocking()
}

pub(super) fn a_repeated_id_is_the_same_send(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    let id = MessageId::new();
    assert_eq!(send_with_id(&mailbox, &id, 1).unwrap(), id);
    if !mailbox.limits().own_ids {
        assert_eq!(receive_all(&mailbox, target)[0].id, id);
        return;
    }
    let again = |state| {
        assert_eq!(send_with_id(&mailbox, &id, 1).unwrap(), id, "{state}");
        let delayed = mailbox.send(&1).id(&id).delay(target.ticks(3)).attribute("other", "x").blocking();
        assert_eq!(delayed.unwrap(), id, "{state}: only the body is compared");
        let counts = mailbox.counts().blocking().unwrap();
        assert_eq!(counts.total() + counts.dead, 1, "{state}: {counts:?}");
    };
    again("ready");
    let message = receive_all(&mailbox, target).remove(0);
    again("leased");
    message.dead_letter("no use").blocking().unwrap();
    again("dead");
    assert_eq!(mailbox.dead_letters().redrive(10).blocking().unwrap(), 1);
    again("redriven");
    let message = receive_all(&mailbox, target).remove(0);
    message.nack().visibility_timeout(target.ticks(3)).blocking().unwrap();
    again("returning");
    target.pass(4);
    receive_all(&mailbox, target)[0].acknowledge().blocking().unwrap();
    // After the acknowledgement the id can be used again, with another body too.
    assert_eq!(mailbox.send(&2).id(&id).delay(target.ticks(3)).blocking().unwrap(), id);
    assert!(matches!(send_with_id(&mailbox, &id, 1), Err(Error::InvalidParameter { parameter: "id", .. })));
    target.pass(4);
    assert_eq!(receive_all(&mailbox, target)[0].body, 2);
    assert_eq!(mailbox.purge().blocking().unwrap(), 1);
    assert_eq!(send_with_id(&mailbox, &id, 3).unwrap(), id);
    assert_eq!(receive_all(&mailbox, target)[0].body, 3);
}

pub(super) fn an_id_in_use_with_another_body_is_refused(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox_with(|options| match target.limits().max_size {
        true => options.max_size(1),
        false => options,
    });
    if !mailbox.limits().own_ids {
        return a_repeated_id_is_the_same_send(target);
    }
    // The rule is the same for an id that the mailbox generated.
    let id = mailbox.send(&1).blocking().unwrap();
    let refused = |state| {
        let error = send_with_id(&mailbox, &id, 2).unwrap_err();
        assert!(matches!(error, Error::InvalidParameter { parameter: "id", .. }), "{state}: {error:?}");
        assert!(error.to_string().contains(&id.to_string()), "{state}: {error}");
    };
    refused("ready");
    assert_eq!(send_with_id(&mailbox, &id, 1).unwrap(), id, "a repeated send needs no room in a full mailbox");
    let message = receive_all(&mailbox, target).remove(0);
    assert_eq!(message.body, 1);
    refused("leased");
    message.dead_letter("no use").blocking().unwrap();
    refused("dead");
    assert_eq!(mailbox.dead_letters().purge().blocking().unwrap(), 1);
    assert_eq!(send_with_id(&mailbox, &id, 2).unwrap(), id);
    assert_eq!(receive_all(&mailbox, target)[0].body, 2);
}

pub(super) fn a_moved_message_keeps_its_times_and_its_content_type(target: &Target<'_>) {
    let mailbox: Mailbox<u32, u32> = target.mailbox();
    let then = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_nanos(1_600_000_000_123_456_789);
    mailbox.send(&1).enqueued_at(then).content_type("application/json".into()).blocking().unwrap();
    let message = receive_all(&mailbox, target).remove(0);
    assert_eq!(message.enqueued_at, then);
    assert_eq!(message.content_type().as_str(), "application/json");
    message.acknowledge().blocking().unwrap();
}
