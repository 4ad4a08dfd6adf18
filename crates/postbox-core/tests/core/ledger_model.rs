//! Random operations on the ledger, compared with a simple model.

use postbox_core::{Ledger, LedgerCounts, LedgerOptions, LedgerRefusal, NewMessage, SendOutcome};
use proptest::prelude::*;

use crate::ledger::receive;

#[derive(Clone, Debug)]
enum Operation {
    Send { delay: u64, expiry: Option<u64>, group: Option<u8>, deduplication: Option<u8>, own: Option<(u8, u8)> },
    Receive { max: usize, visibility: u64 },
    Acknowledge(usize),
    GiveBack(usize, u64),
    Release(usize),
    Extend(usize, u64),
    DeadLetter(usize),
    Cancel(u128),
    Redrive(usize),
    Purge,
    Wait(u64),
}

fn operation() -> impl Strategy<Value = Operation> {
    let send = (
        prop_oneof![3 => Just(0), 1 => 0u64..20],
        prop::option::weighted(0.2, 0u64..40),
        prop::option::weighted(0.4, 0u8..3),
        prop::option::weighted(0.2, 0u8..4),
        prop::option::weighted(0.2, (0u8..3, 0u8..2)),
    );
    prop_oneof![
        10 => send.prop_map(|(delay, expiry, group, deduplication, own)| {
            Operation::Send { delay, expiry, group, deduplication, own }
        }),
        8 => (0usize..5, 0u64..20).prop_map(|(max, visibility)| Operation::Receive { max, visibility }),
        6 => any::<usize>().prop_map(Operation::Acknowledge),
        4 => (any::<usize>(), prop_oneof![Just(0), 0u64..20]).prop_map(|(which, at)| Operation::GiveBack(which, at)),
        3 => any::<usize>().prop_map(Operation::Release),
        2 => (any::<usize>(), 0u64..20).prop_map(|(which, by)| Operation::Extend(which, by)),
        1 => any::<usize>().prop_map(Operation::DeadLetter),
        1 => (0u128..60).prop_map(Operation::Cancel),
        1 => (0usize..3).prop_map(Operation::Redrive),
        1 => prop_oneof![9 => Just(Operation::Wait(0)), 1 => Just(Operation::Purge)],
        8 => (0u64..15).prop_map(Operation::Wait),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Where {
    Ready,
    Delayed { fresh: bool },
    Leased(usize),
}

#[derive(Clone, Debug)]
struct Entry {
    id: u128,
    body: u128,
    /// Orders the sends.
    arrival: u64,
    place: Where,
    due: u64,
    /// Orders deadlines at the same moment.
    order: u64,
    /// Orders ready messages. A lease does not change it.
    rank: u64,
    deliveries: u32,
    expiry: Option<u64>,
    group: Option<u8>,
    joined: Option<u64>,
}

/// The rules in their most literal form: a list that is searched.
#[derive(Default)]
struct Model {
    entries: Vec<Entry>,
    dead: Vec<Entry>,
    remembered: Vec<(u8, u128, u64)>,
    counter: u64,
    leases: usize,
}

const WINDOW: u64 = 30;

impl Model {
    fn number(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    /// Whether an older member of the group is still present.
    fn is_blocked(&self, entry: &Entry) -> bool {
        entry.group.is_some()
            && self
                .entries
                .iter()
                .any(|other| other.group == entry.group && other.joined.is_some() && other.joined < entry.joined)
    }

    /// The ready messages in order. A queued message becomes ready when the one before it leaves.
    fn deliverable(&self) -> Vec<usize> {
        let mut found: Vec<usize> = (0..self.entries.len())
            .filter(|&index| self.entries[index].place == Where::Ready && !self.is_blocked(&self.entries[index]))
            .collect();
        found.sort_by_key(|&index| self.entries[index].rank);
        found
    }

    fn remove(&mut self, index: usize) -> Entry {
        let gone = self.entries.remove(index);
        // The next message of the group becomes ready.
        if gone.joined.is_some() {
            let next = (0..self.entries.len())
                .filter(|&index| gone.group.is_some() && self.entries[index].group == gone.group)
                .filter(|&index| self.entries[index].joined.is_some())
                .min_by_key(|&index| self.entries[index].joined);
            if let Some(next) = next
                && self.entries[next].joined > gone.joined
                && self.entries[next].place == Where::Ready
            {
                self.entries[next].rank = self.number();
            }
        }
        gone
    }

    fn surface(&mut self, index: usize, most: Option<u32>) {
        if most.is_some_and(|most| self.entries[index].deliveries >= most) {
            let gone = self.remove(index);
            self.dead.push(gone);
            return;
        }
        let number = self.number();
        let entry = &mut self.entries[index];
        entry.place = Where::Ready;
        entry.rank = number;
        entry.joined = entry.joined.or(Some(number));
    }

    fn advance(&mut self, now: u64, most: Option<u32>) {
        while let Some(index) = (0..self.entries.len())
            .filter(|&index| self.entries[index].place != Where::Ready && self.entries[index].due <= now)
            .min_by_key(|&index| (self.entries[index].due, self.entries[index].order))
        {
            self.surface(index, most);
        }
        while let Some(index) = (0..self.entries.len())
            .filter(|&index| !matches!(self.entries[index].place, Where::Leased(_)))
            .filter(|&index| self.entries[index].expiry.is_some_and(|at| at <= now))
            .min_by_key(|&index| (self.entries[index].expiry, self.entries[index].arrival))
        {
            self.remove(index);
        }
        self.remembered.retain(|remembered| remembered.2 > now);
    }

    fn leased(&self, lease: usize) -> Option<usize> {
        self.entries.iter().position(|entry| entry.place == Where::Leased(lease))
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_ledger_matches_the_model(
        operations in prop::collection::vec(operation(), 0..120),
        max_size in prop::option::of(1usize..12),
        max_deliveries in prop::option::of(1u32..4),
    ) {
        let mut ledger: Ledger<u128> = Ledger::new(LedgerOptions { max_size, max_deliveries, deduplication_window: WINDOW });
        let mut model = Model::default();
        let mut receipts = Vec::new();
        let mut now = 0;
        for (number, operation) in (0u128..).zip(operations) {
            model.advance(now, max_deliveries);
            let is_full = max_size.is_some_and(|most| model.entries.len() >= most);
            match operation {
                Operation::Send { delay, expiry, group, deduplication, own } => {
                    // Ids chosen by the caller are outside the range of generated ids.
                    let (id, body) = own.map_or((number, number), |(id, body)| (1_000 + u128::from(id), u128::from(body)));
                    let (group_name, deduplication_name) =
                        (group.map(|group| group.to_string()), deduplication.map(|id| id.to_string()));
                    let new = NewMessage {
                        id, message: body, visible_at: now + delay, expires_at: expiry.map(|after| now + after),
                        group: group_name.as_deref(), deduplication: deduplication_name.as_deref(),
                    };
                    let answer = match own {
                        Some(_) => ledger.send_once(now, new, |entry, new| entry == new),
                        None => ledger.send(now, new),
                    };
                    let known = model.remembered.iter().find(|known| Some(known.0) == deduplication);
                    let entry = model.entries.iter().chain(&model.dead).find(|entry| own.is_some() && entry.id == id);
                    if let Some(known) = known {
                        prop_assert_eq!(answer, Ok(SendOutcome::Duplicate(known.1)));
                    } else if let Some(entry) = entry {
                        let expected = match entry.body == body {
                            true => Ok(SendOutcome::Duplicate(id)),
                            false => Err(LedgerRefusal::IdInUse(body)),
                        };
                        prop_assert_eq!(answer, expected);
                    } else if is_full {
                        prop_assert_eq!(answer, Err(LedgerRefusal::Full(body)));
                    } else {
                        prop_assert_eq!(answer, Ok(SendOutcome::Stored));
                        model.remembered.extend(deduplication.map(|key| (key, id, now + WINDOW)));
                        let order = model.number();
                        model.entries.push(Entry {
                            id, body, arrival: order, place: Where::Delayed { fresh: true }, due: now + delay, order, rank: 0, deliveries: 0,
                            expiry: expiry.map(|after| now + after), group, joined: None,
                        });
                        if delay == 0 {
                            model.surface(model.entries.len() - 1, max_deliveries);
                        }
                    }
                }
                Operation::Receive { max, visibility } => {
                    let taken = receive(&mut ledger, now, max, now + visibility);
                    let expected: Vec<usize> = model.deliverable().into_iter().take(max).collect();
                    let mut ids = Vec::new();
                    for index in expected {
                        let order = model.number();
                        let entry = &mut model.entries[index];
                        entry.deliveries += 1;
                        entry.place = Where::Leased(model.leases);
                        (entry.due, entry.order) = (now + visibility, order);
                        model.leases += 1;
                        ids.push((entry.id, entry.deliveries));
                    }
                    prop_assert_eq!(taken.iter().map(|message| (message.0, message.1)).collect::<Vec<_>>(), ids);
                    receipts.extend(taken.into_iter().map(|message| message.2));
                }
                Operation::Acknowledge(which) if !receipts.is_empty() => {
                    let lease = which % receipts.len();
                    let found = model.leased(lease);
                    let gone = found.map(|index| model.remove(index).body);
                    prop_assert_eq!(ledger.acknowledge(now, receipts[lease]).ok(), gone);
                }
                Operation::GiveBack(which, after) if !receipts.is_empty() => {
                    let lease = which % receipts.len();
                    let found = model.leased(lease);
                    prop_assert_eq!(ledger.give_back(now, receipts[lease], now + after).is_ok(), found.is_some());
                    if let Some(index) = found {
                        if after == 0 {
                            model.surface(index, max_deliveries);
                        } else {
                            let order = model.number();
                            let entry = &mut model.entries[index];
                            (entry.place, entry.due, entry.order) = (Where::Delayed { fresh: false }, now + after, order);
                        }
                    }
                }
                Operation::Release(which) if !receipts.is_empty() => {
                    let lease = which % receipts.len();
                    let found = model.leased(lease);
                    prop_assert_eq!(ledger.release(now, receipts[lease]).is_ok(), found.is_some());
                    if let Some(index) = found {
                        let entry = &mut model.entries[index];
                        entry.place = Where::Ready;
                        entry.deliveries -= 1;
                    }
                }
                Operation::Extend(which, by) if !receipts.is_empty() => {
                    let lease = which % receipts.len();
                    let found = model.leased(lease);
                    prop_assert_eq!(ledger.extend(now, receipts[lease], now + by).is_ok(), found.is_some());
                    if let Some(index) = found && model.entries[index].due < now + by {
                        let order = model.number();
                        (model.entries[index].due, model.entries[index].order) = (now + by, order);
                    }
                }
                Operation::DeadLetter(which) if !receipts.is_empty() => {
                    let lease = which % receipts.len();
                    let found = model.leased(lease);
                    prop_assert_eq!(ledger.dead_letter(now, receipts[lease], "".into()).is_ok(), found.is_some());
                    if let Some(index) = found {
                        let gone = model.remove(index);
                        model.dead.push(gone);
                    }
                }
                Operation::Cancel(id) => {
                    let found = model.entries.iter().position(|entry| entry.id == id && entry.place == Where::Delayed { fresh: true });
                    prop_assert_eq!(ledger.cancel(now, id).is_some(), found.is_some());
                    if let Some(index) = found {
                        model.remove(index);
                    }
                }
                Operation::Redrive(max) => {
                    let room = max_size.map_or(usize::MAX, |most| most.saturating_sub(model.entries.len()));
                    let moved = max.min(room).min(model.dead.len());
                    prop_assert_eq!(ledger.redrive(now, max), moved);
                    for mut entry in model.dead.drain(..moved).collect::<Vec<_>>() {
                        entry.deliveries = 0;
                        entry.expiry = None;
                        entry.joined = None;
                        entry.arrival = model.number();
                        model.entries.push(entry);
                        model.surface(model.entries.len() - 1, max_deliveries);
                    }
                }
                Operation::Purge => {
                    prop_assert_eq!(ledger.purge(now).0, model.entries.len());
                    model.entries.clear();
                }
                Operation::Wait(time) => now += time,
                _ => {}
            }
            model.advance(now, max_deliveries);
            let leased = model.entries.iter().filter(|entry| matches!(entry.place, Where::Leased(_))).count();
            let ready = model.entries.iter().filter(|entry| entry.place == Where::Ready).count();
            let delayed = model.entries.len() - leased - ready;
            prop_assert_eq!(ledger.counts(now), LedgerCounts { ready, delayed, leased, dead: model.dead.len() });
            prop_assert_eq!(ledger.deliverable(), model.deliverable().len());
            let due = model.entries.iter().filter(|entry| entry.place != Where::Ready).map(|entry| entry.due);
            let waiting = model.entries.iter().filter(|entry| !matches!(entry.place, Where::Leased(_)));
            prop_assert_eq!(ledger.next_due(), due.chain(waiting.filter_map(|entry| entry.expiry)).min());
            let mut shown = Vec::new();
            ledger.peek(now, 100, |entry| shown.push(entry.id));
            prop_assert_eq!(shown, model.deliverable().into_iter().map(|index| model.entries[index].id).collect::<Vec<_>>());
        }
    }
}
