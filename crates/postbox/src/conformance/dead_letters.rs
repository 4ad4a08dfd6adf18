//! Dead letters.

use super::{Place, assert_expired, receive_all, send_all};
use crate::error::Error;
use crate::mailbox::Mailbox;

pub(super) fn deliveries_are_counted_and_then_it_is_over(place: &Place<'_>) {
    let mailbox: Mailbox<u32, u32> = place.mailbox_with(|options| options.max_deliveries(2));
    let id = mailbox.send(&1).attribute("tenant", "a").blocking().unwrap();
    for _ in 0..2 {
        receive_all(&mailbox, place)[0].nack().blocking().unwrap();
    }
    assert!(receive_all(&mailbox, place).is_empty());
    let letters = mailbox.dead_letters().list(10).blocking().unwrap();
    assert_eq!((letters.len(), &letters[0].id, letters[0].delivery_count), (1, &id, 2));
    assert!(!letters[0].reason.is_empty());
    assert!(letters[0].died_at >= letters[0].enqueued_at);
    assert_eq!(letters[0].attributes["tenant"], "a");
    assert_eq!(letters[0].body.as_ref().unwrap(), &1);
    assert_eq!(mailbox.approximate_count().blocking().unwrap(), 0);
}

pub(super) fn a_crashed_consumer_counts_too(place: &Place<'_>) {
    let mailbox: Mailbox<u32, u32> = place.mailbox_with(|options| options.max_deliveries(2));
    send_all(&mailbox, [1]);
    for _ in 0..2 {
        drop(mailbox.receive().visibility_timeout(place.ticks(2)).blocking().unwrap());
        place.pass(3);
    }
    // Nobody ever said that it failed.
    assert!(receive_all(&mailbox, place).is_empty());
    assert_eq!(mailbox.dead_letters().count().blocking().unwrap(), 1);
}

pub(super) fn a_message_is_dead_lettered_by_request(place: &Place<'_>) {
    let mailbox: Mailbox<u32, u32> = place.mailbox();
    send_all(&mailbox, [1]);
    let message = receive_all(&mailbox, place).remove(0);
    message.dead_letter("no such tenant").blocking().unwrap();
    assert_expired(message.dead_letter("again").blocking());
    assert_expired(message.acknowledge().blocking());
    let letters = mailbox.dead_letters().list(10).blocking().unwrap();
    assert_eq!((letters.len(), &*letters[0].reason), (1, "no such tenant"));
}

pub(super) fn a_request_can_be_dead_lettered_and_answered_after_a_redrive(place: &Place<'_>) {
    let mailbox: Mailbox<u32, u32> = place.mailbox();
    let reply = mailbox.send_expecting_reply(&1).blocking().unwrap();
    receive_all(&mailbox, place)[0].dead_letter("try later").blocking().unwrap();
    assert_eq!(reply.poll().blocking().unwrap(), None, "it stays pending");
    assert_eq!(mailbox.dead_letters().redrive(10).blocking().unwrap(), 1);
    receive_all(&mailbox, place)[0].reply(&2).blocking().unwrap();
    assert_eq!(reply.wait().blocking().unwrap(), 2);
}

pub(super) fn dead_letters_are_redriven_and_purged(place: &Place<'_>) {
    let mailbox: Mailbox<u32, u32> = place.mailbox_with(|options| options.max_deliveries(5));
    let ids: Vec<_> = (0..4).map(|number| mailbox.send(&number).blocking().unwrap()).collect();
    for message in receive_all(&mailbox, place) {
        message.dead_letter(format!("reason {}", message.body)).blocking().unwrap();
    }
    let dead = mailbox.dead_letters();
    assert_eq!(dead.count().blocking().unwrap(), 4);
    assert_eq!(dead.list(2).blocking().unwrap().iter().map(|letter| letter.id.clone()).collect::<Vec<_>>(), ids[..2]);
    assert!(dead.redrive_one(&ids[2]).blocking().unwrap());
    assert!(!dead.redrive_one(&ids[2]).blocking().unwrap());
    assert_eq!(dead.redrive(1).blocking().unwrap(), 1);
    let again = receive_all(&mailbox, place);
    let seen: Vec<_> = again.iter().map(|message| (message.id.clone(), message.delivery_count)).collect();
    assert_eq!(seen, [(ids[2].clone(), 1), (ids[0].clone(), 1)], "as if never delivered");
    assert_eq!(dead.purge().blocking().unwrap(), 2);
    assert_eq!(dead.count().blocking().unwrap(), 0);
    assert_eq!(mailbox.counts().blocking().unwrap().in_flight, 2);
}

pub(super) fn a_body_that_cannot_be_decoded_ends_there(place: &Place<'_>) {
    let mailbox: Mailbox<u32, u32> = place.mailbox_with(|options| options.max_deliveries(2));
    let text: Mailbox<String, ()> = mailbox.untyped().typed();
    let id = text.send("poison").blocking().unwrap();
    for _ in 0..2 {
        mailbox.receive().visibility_timeout(place.ticks(2)).blocking().unwrap_err();
        place.pass(3);
    }
    assert!(receive_all(&mailbox, place).is_empty());
    let letters = mailbox.dead_letters().list(10).blocking().unwrap();
    assert_eq!((letters.len(), &letters[0].id), (1, &id));
    assert!(matches!(&letters[0].body, Err(Error::Serialization { message: Some(bad), .. }) if *bad == id));
    assert_eq!(text.dead_letters().list(10).blocking().unwrap()[0].body.as_ref().unwrap(), "poison");
}

pub(super) fn a_released_message_is_no_dead_letter(place: &Place<'_>) {
    let mailbox: Mailbox<u32, u32> = place.mailbox_with(|options| options.max_deliveries(1));
    send_all(&mailbox, [1]);
    receive_all(&mailbox, place)[0].release().blocking().unwrap();
    if mailbox.limits().exact_deliveries {
        assert_eq!(mailbox.dead_letters().count().blocking().unwrap(), 0);
        let message = receive_all(&mailbox, place).remove(0);
        assert_eq!(message.delivery_count, 1);
        message.nack().blocking().unwrap();
    }
    // It has been delivered as often as it may be.
    assert!(receive_all(&mailbox, place).is_empty());
    assert_eq!(mailbox.dead_letters().count().blocking().unwrap(), 1);
}
