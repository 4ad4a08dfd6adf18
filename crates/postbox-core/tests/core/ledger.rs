//! The rules of the ledger, one by one.

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};

use postbox_core::{
    DELIVERIES_SPENT, LeaseEnded, Ledger, LedgerCounts, LedgerOptions, LedgerRefusal, NewMessage, Receipt, SendOutcome,
};

fn ledger(options: LedgerOptions) -> Ledger<&'static str> {
    Ledger::new(options)
}

/// Receives messages; returns ids, delivery counts and receipts.
pub(crate) fn receive<M>(ledger: &mut Ledger<M>, now: u64, max: usize, until: u64) -> Vec<(u128, u32, Receipt)> {
    let mut taken = Vec::new();
    ledger.receive(now, max, until, |entry| taken.push((entry.id, entry.deliveries, entry.receipt)));
    taken
}

fn ids<M>(ledger: &mut Ledger<M>, now: u64, max: usize, until: u64) -> Vec<u128> {
    receive(ledger, now, max, until).into_iter().map(|(id, ..)| id).collect()
}

#[test]
fn a_returned_message_joins_the_tail() {
    let mut ledger = ledger(LedgerOptions::default());
    for id in 1..=3 {
        ledger.send(0, NewMessage::new(id, "")).unwrap();
    }
    let first = receive(&mut ledger, 0, 1, 10)[0];
    ledger.give_back(1, first.2, 1).unwrap();
    let again = receive(&mut ledger, 2, 9, 50);
    assert_eq!(again.iter().map(|message| (message.0, message.1)).collect::<Vec<_>>(), [(2, 1), (3, 1), (1, 2)]);
}

#[test]
fn every_call_first_handles_due_events_in_order() {
    let mut ledger = ledger(LedgerOptions::default());
    ledger.send(0, NewMessage { visible_at: 20, ..NewMessage::new(1, "") }).unwrap();
    ledger.send(0, NewMessage { visible_at: 10, ..NewMessage::new(2, "") }).unwrap();
    ledger.send(0, NewMessage::new(3, "")).unwrap();
    assert_eq!(ids(&mut ledger, 0, 9, 15), [3]);
    // At 30 all three are due: 2 since 10, 3 since 15, 1 since 20. A message sent at 30 follows
    // them.
    ledger.send(30, NewMessage::new(4, "")).unwrap();
    assert_eq!(ids(&mut ledger, 30, 9, 99), [2, 3, 1, 4]);
}

#[test]
fn a_lease_ends_at_its_deadline_and_its_receipt_with_it() {
    let mut ledger = ledger(LedgerOptions::default());
    ledger.send(0, NewMessage::new(1, "")).unwrap();
    let first = receive(&mut ledger, 0, 1, 10)[0].2;
    assert_eq!(ledger.next_due(), Some(10));
    assert_eq!(ledger.extend(10, first, 99), Err(LeaseEnded));
    assert_eq!(ledger.give_back(10, first, 0), Err(LeaseEnded));
    assert_eq!(ledger.dead_letter(10, first, Cow::Borrowed("")), Err(LeaseEnded));
    assert_eq!(ledger.acknowledge(10, first), Err(LeaseEnded));
    let second = receive(&mut ledger, 10, 1, 20)[0];
    assert_eq!(second.1, 2);
    assert_eq!(ledger.acknowledge(11, first), Err(LeaseEnded));
    assert_eq!(ledger.acknowledge(19, second.2), Ok(""));
    assert_eq!(ledger.acknowledge(19, second.2), Err(LeaseEnded));
    assert!(ledger.is_empty());
}

#[test]
fn a_lease_of_no_length_is_delivered_once_per_call() {
    let mut ledger = ledger(LedgerOptions::default());
    ledger.send(0, NewMessage::new(1, "")).unwrap();
    assert_eq!(ids(&mut ledger, 5, 10, 5), [1]);
    let again = receive(&mut ledger, 5, 10, 5);
    assert_eq!(again.len(), 1);
    assert_eq!(ledger.acknowledge(5, again[0].2), Err(LeaseEnded));
}

/// Fills more than one chunk of slots, empties it in either order, and fills it again.
#[test]
fn slots_are_reused_in_any_order() {
    let mut ledger = ledger(LedgerOptions::default());
    for round in 0..4 {
        for id in 0..200 {
            ledger.send(round, NewMessage::new(id, "")).unwrap();
        }
        let mut leased = receive(&mut ledger, round, 200, 100);
        assert_eq!(leased.iter().map(|message| message.0).collect::<Vec<_>>(), (0..200).collect::<Vec<_>>());
        if round % 2 == 1 {
            leased.reverse();
        }
        for (at, message) in leased.iter().enumerate() {
            assert_eq!(ledger.acknowledge(round, message.2), Ok(""));
            assert_eq!(ledger.acknowledge(round, message.2), Err(LeaseEnded));
            assert_eq!(ledger.counts(round).leased, 199 - at);
        }
        assert!(ledger.is_empty());
    }
}

#[test]
fn an_extension_never_shortens() {
    let mut ledger = ledger(LedgerOptions::default());
    ledger.send(0, NewMessage::new(1, "")).unwrap();
    let receipt = receive(&mut ledger, 0, 1, 100)[0].2;
    ledger.extend(1, receipt, 50).unwrap();
    assert_eq!(ledger.next_due(), Some(100));
    ledger.extend(2, receipt, 150).unwrap();
    assert_eq!(ledger.next_due(), Some(150));
    assert_eq!(ledger.acknowledge(149, receipt), Ok(""));
}

#[test]
fn time_does_not_run_backwards() {
    let mut ledger = ledger(LedgerOptions::default());
    ledger.send(100, NewMessage::new(1, "")).unwrap();
    let receipt = receive(&mut ledger, 100, 1, 110)[0].2;
    assert_eq!(ids(&mut ledger, 110, 1, 120), [1]);
    assert_eq!(ledger.acknowledge(50, receipt), Err(LeaseEnded));
}

#[test]
fn deliveries_are_counted_when_they_happen() {
    let mut ledger = ledger(LedgerOptions { max_deliveries: Some(2), ..Default::default() });
    ledger.send(0, NewMessage::new(1, "poison")).unwrap();
    // The first lease ends by its deadline, the second by `give_back`: both deliveries count.
    receive(&mut ledger, 0, 1, 10);
    let second = receive(&mut ledger, 10, 1, 20)[0];
    ledger.give_back(11, second.2, 11).unwrap();
    assert_eq!(ids(&mut ledger, 12, 1, 20), []);
    let dead: Vec<_> = ledger.dead().map(|dead| (dead.id, dead.deliveries, dead.died_at, &*dead.reason)).collect();
    assert_eq!(dead, [(1, 2, 11, DELIVERIES_SPENT)]);
    assert_eq!(ledger.counts(12), LedgerCounts { dead: 1, ..LedgerCounts::default() });

    // A redriven message starts with a count of 0.
    assert_eq!(ledger.redrive(13, 10), 1);
    assert_eq!(receive(&mut ledger, 13, 1, 20)[0].1, 1);
}

#[test]
fn a_limit_of_zero_deliveries_makes_dead_letters_at_once() {
    let mut ledger = ledger(LedgerOptions { max_deliveries: Some(0), ..LedgerOptions::default() });
    ledger.send(0, NewMessage::new(1, "")).unwrap();
    ledger.send(1, NewMessage::new(2, "")).unwrap();
    assert_eq!(ledger.counts(1), LedgerCounts { dead: 2, ..LedgerCounts::default() });
    assert_eq!(ids(&mut ledger, 1, 9, 60), []);
}

#[test]
fn dead_letters_are_kept_redriven_and_purged() {
    let mut ledger = ledger(LedgerOptions { max_size: Some(2), ..Default::default() });
    for id in 1..=2 {
        ledger.send(0, NewMessage::new(id, "")).unwrap();
    }
    for (_, _, receipt) in receive(&mut ledger, 0, 2, 10) {
        ledger.dead_letter(1, receipt, Cow::Borrowed("no such tenant")).unwrap();
    }
    assert_eq!(ledger.dead().map(|dead| dead.id).collect::<Vec<_>>(), [1, 2]);
    ledger.send(2, NewMessage::new(3, "")).unwrap();
    assert!(ledger.redrive_one(3, 2));
    assert!(!ledger.redrive_one(3, 1), "the ledger is full");
    assert_eq!(ledger.redrive(3, 10), 0, "the ledger is full");
    assert_eq!(ids(&mut ledger, 4, 9, 9), [3, 2]);
    assert_eq!(ledger.purge_dead().len(), 1);
}

#[test]
fn the_bound_counts_all_stored_messages() {
    let mut ledger = ledger(LedgerOptions { max_size: Some(2), ..Default::default() });
    ledger.send(0, NewMessage { visible_at: 50, ..NewMessage::new(1, "") }).unwrap();
    ledger.send(0, NewMessage::new(2, "")).unwrap();
    let receipt = receive(&mut ledger, 0, 1, 10)[0].2;
    assert_eq!(ledger.send(0, NewMessage::new(3, "back")), Err(LedgerRefusal::Full("back")));
    ledger.acknowledge(1, receipt).unwrap();
    assert_eq!(ledger.send(1, NewMessage::new(3, "")), Ok(SendOutcome::Stored));
}

#[test]
fn a_delayed_message_can_be_cancelled_until_it_is_visible() {
    let mut ledger = ledger(LedgerOptions::default());
    for id in 1..=2 {
        ledger.send(0, NewMessage { visible_at: 10, group: Some("g"), ..NewMessage::new(id, "") }).unwrap();
    }
    assert_eq!(ledger.cancel(9, 1), Some(""));
    assert_eq!(ledger.cancel(9, 1), None);
    assert_eq!(ledger.cancel(10, 2), None, "visible now");
    assert_eq!(ids(&mut ledger, 10, 9, 99), [2]);
}

#[test]
fn a_message_expires_unless_it_is_leased() {
    let mut ledger = ledger(LedgerOptions { max_size: Some(3), ..Default::default() });
    for id in 1..=3 {
        ledger.send(0, NewMessage { expires_at: Some(10), ..NewMessage::new(id, "") }).unwrap();
    }
    let leased = receive(&mut ledger, 9, 2, 30);
    assert_eq!(ledger.counts(10), LedgerCounts { leased: 2, ..LedgerCounts::default() });
    assert_eq!(ledger.acknowledge(11, leased[0].2), Ok(""));
    ledger.give_back(11, leased[1].2, 20).unwrap();
    assert_eq!(ledger.counts(11).delayed, 0, "expired before it was given back");
    assert_eq!(ledger.expired(), 2);
    assert!(ledger.is_empty());
}

/// The result does not depend on the time of the next call.
#[test]
fn a_message_returned_after_its_expiry_is_removed() {
    for how in ["returned", "returned with a delay", "released"] {
        let mut ledger = ledger(LedgerOptions { max_deliveries: Some(2), ..Default::default() });
        ledger.send(0, NewMessage { expires_at: Some(5), group: Some("g"), ..NewMessage::new(1, "") }).unwrap();
        ledger.send(0, NewMessage { group: Some("g"), ..NewMessage::new(2, "") }).unwrap();
        let leased = receive(&mut ledger, 0, 1, 30)[0].2;
        ledger.send(0, NewMessage { visible_at: 15, ..NewMessage::new(3, "") }).unwrap();
        match how {
            "returned" => ledger.give_back(10, leased, 10).unwrap(),
            "released" => ledger.release(10, leased).unwrap(),
            _ => ledger.give_back(10, leased, 12).unwrap(),
        }
        assert_eq!(ledger.expired(), 1, "{how}");
        // The next message of the group became ready before the delayed one.
        assert_eq!(ids(&mut ledger, 20, 9, 9), [2, 3], "{how}");
    }
}

#[test]
fn a_deduplication_id_is_remembered_for_the_window() {
    let mut ledger = ledger(LedgerOptions { deduplication_window: 100, max_size: Some(1), ..Default::default() });
    let post = |id| NewMessage { deduplication: Some("order-7"), ..NewMessage::new(id, "") };
    assert_eq!(ledger.send(0, post(1)), Ok(SendOutcome::Stored));
    assert_eq!(ledger.send(99, post(2)), Ok(SendOutcome::Duplicate(1)), "even if the ledger is full");
    let receipt = receive(&mut ledger, 99, 1, 200)[0].2;
    ledger.acknowledge(99, receipt).unwrap();
    assert_eq!(ledger.send(99, post(3)), Ok(SendOutcome::Duplicate(1)), "even if the first message is acknowledged");
    assert_eq!(ledger.send(100, post(4)), Ok(SendOutcome::Stored));
}

#[test]
fn a_changed_deduplication_window_applies_to_later_sends() {
    let mut ledger = ledger(LedgerOptions { deduplication_window: 3600, ..Default::default() });
    let post = |id, name| NewMessage { deduplication: Some(name), ..NewMessage::new(id, "") };
    ledger.send(0, post(1, "x")).unwrap();
    ledger.set_options(LedgerOptions { deduplication_window: 1, ..*ledger.options() });
    ledger.send(0, post(2, "y")).unwrap();
    assert_eq!(ledger.send(10, post(3, "y")), Ok(SendOutcome::Stored));
    assert_eq!(ledger.send(10, post(4, "x")), Ok(SendOutcome::Duplicate(1)));
    assert_eq!(ledger.next_change(), Some(11));
}

#[test]
fn a_group_continues_after_its_head_expires() {
    let mut ledger = ledger(LedgerOptions::default());
    ledger.send(0, NewMessage { group: Some("g"), expires_at: Some(5), ..NewMessage::new(1, "") }).unwrap();
    for id in 2..=80 {
        let expires_at = (id % 2 == 1).then_some(7);
        ledger.send(0, NewMessage { group: Some("g"), expires_at, ..NewMessage::new(id, "") }).unwrap();
    }
    let first = receive(&mut ledger, 0, 9, 3)[0].2;
    ledger.give_back(1, first, 60).unwrap();
    assert_eq!(ledger.next_due(), Some(5), "then the next message of the group becomes ready");
    assert_eq!(ids(&mut ledger, 5, 9, 9), [2]);
    // Messages with odd ids expired while they were queued.
    let mut order = Vec::new();
    while let Some((id, _, receipt)) = receive(&mut ledger, 10, 1, 20).pop() {
        order.push(id);
        ledger.acknowledge(10, receipt).unwrap();
    }
    assert_eq!(order, (2..=80).filter(|id| id % 2 == 0).collect::<Vec<_>>());
    assert!(ledger.is_empty());
    assert_eq!(ledger.take_discarded().len(), 40);
}

#[test]
fn a_receipt_of_another_ledger_is_invalid() {
    let mut one = Ledger::new(LedgerOptions::default()).with_numbers_from(1 << 40);
    let mut other = Ledger::new(LedgerOptions::default()).with_numbers_from(7 << 50);
    one.send(0, NewMessage::new(1, "")).unwrap();
    other.send(0, NewMessage::new(2, "")).unwrap();
    let receipt = receive(&mut one, 0, 1, 10)[0].2;
    receive(&mut other, 0, 1, 10);
    assert_eq!(other.acknowledge(1, receipt), Err(LeaseEnded));
}

#[test]
fn of_two_delayed_messages_with_one_id_the_first_is_cancelled() {
    let mut ledger = ledger(LedgerOptions::default());
    ledger.send(0, NewMessage { visible_at: 10, ..NewMessage::new(1, "first") }).unwrap();
    ledger.send(0, NewMessage { visible_at: 20, ..NewMessage::new(1, "second") }).unwrap();
    assert_eq!(ledger.cancel(1, 1), Some("first"));
    assert_eq!(ledger.counts(1).delayed, 1);
}

#[test]
fn a_group_waits_for_the_message_at_its_head() {
    let mut ledger = ledger(LedgerOptions::default());
    for (id, group) in [(1, "a"), (2, "a"), (3, "b"), (4, "a")] {
        ledger.send(0, NewMessage { group: Some(group), ..NewMessage::new(id, "") }).unwrap();
    }
    ledger.send(0, NewMessage::new(5, "")).unwrap();
    let first = receive(&mut ledger, 0, 9, 10);
    assert_eq!(first.iter().map(|message| message.0).collect::<Vec<_>>(), [1, 3, 5]);
    assert_eq!(ledger.counts(0), LedgerCounts { ready: 2, leased: 3, ..LedgerCounts::default() });
    // Given back with a delay: the group still waits for it.
    ledger.give_back(1, first[0].2, 5).unwrap();
    assert_eq!(ids(&mut ledger, 2, 9, 50), []);
    let again = receive(&mut ledger, 5, 9, 50);
    assert_eq!(again.iter().map(|message| (message.0, message.1)).collect::<Vec<_>>(), [(1, 2)]);
    ledger.acknowledge(6, again[0].2).unwrap();
    let next = receive(&mut ledger, 6, 9, 50);
    assert_eq!(next[0].0, 2);
    ledger.dead_letter(7, next[0].2, Cow::Borrowed("")).unwrap();
    assert_eq!(ids(&mut ledger, 7, 9, 50), [4]);
}

#[test]
fn purge_keeps_dead_letters_and_ends_every_lease() {
    let mut ledger = ledger(LedgerOptions::default());
    for id in 0..200 {
        ledger.send(0, NewMessage { visible_at: (id as u64 % 3) * 5, ..NewMessage::new(id, "") }).unwrap();
    }
    let leased = receive(&mut ledger, 0, 10, 10);
    ledger.dead_letter(0, leased[0].2, Cow::Borrowed("")).unwrap();
    assert_eq!(ledger.purge(1).0, 199);
    assert_eq!(ledger.counts(1), LedgerCounts { dead: 1, ..LedgerCounts::default() });
    for id in 0..20 {
        ledger.send(1, NewMessage::new(id, "")).unwrap();
    }
    receive(&mut ledger, 1, 20, 30);
    assert!(leased.iter().all(|message| ledger.acknowledge(2, message.2) == Err(LeaseEnded)));
}

/// If the callback of `receive` panics, the messages that it leased return later.
#[test]
fn a_panic_during_receive_leaves_the_ledger_consistent() {
    // While a lease that ends later exists, messages are leased one by one.
    for (earlier, rest, again) in [(None, vec![3], vec![1, 2]), (Some(50), vec![2, 3], vec![1])] {
        let mut ledger = ledger(LedgerOptions::default());
        if let Some(until) = earlier {
            ledger.send(0, NewMessage::new(9, "")).unwrap();
            assert_eq!(ids(&mut ledger, 0, 1, until), [9]);
        }
        (1..=3).for_each(|id| assert_eq!(ledger.send(0, NewMessage::new(id, "")), Ok(SendOutcome::Stored)));
        let fails = AssertUnwindSafe(|| ledger.receive(0, 2, 10, |_| panic!("a panic in the callback")));
        assert!(catch_unwind(fails).is_err());
        let mut receipts = Vec::new();
        for (now, expected) in [(1, rest), (10, again)] {
            let messages = receive(&mut ledger, now, 9, 60);
            assert_eq!(messages.iter().map(|message| message.0).collect::<Vec<_>>(), expected);
            receipts.extend(messages.iter().map(|message| message.2));
        }
        assert!(receipts.iter().all(|receipt| ledger.acknowledge(11, *receipt) == Ok("")));
    }
}
