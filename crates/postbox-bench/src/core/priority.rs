//! Priority push+pop at a given depth, against what a program would write by hand: a heap or a map behind a mutex.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::hint::black_box;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use postbox_core::PriorityMailbox;
use postbox_core::shared::mailbox::Mailbox;

use super::SUITE;
use super::channel::{Payload, Words};
use crate::report::{Contender, Settings, measure};

/// A priority queue as a caller sees it.
trait Queue<M> {
    fn push(&mut self, rank: i64, message: M);
    fn pop(&mut self) -> Option<M>;
}

/// A message that carries its own rank, as the priority function sees it.
type Job<M> = (i64, M);

impl<M: Payload> Queue<M> for PriorityMailbox<Job<M>> {
    fn push(&mut self, rank: i64, message: M) {
        assert!(self.enqueue((rank, message)));
    }

    fn pop(&mut self) -> Option<M> {
        self.dequeue().map(|job| job.1)
    }
}

/// Orders by rank and arrival alone.
struct Entry<M>(i64, u64, M);

impl<M> PartialEq for Entry<M> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<M> Eq for Entry<M> {}

impl<M> PartialOrd for Entry<M> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<M> Ord for Entry<M> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

#[derive(Default)]
struct Heap<M>(Mutex<(u64, BinaryHeap<Reverse<Entry<M>>>)>);

impl<M> Queue<M> for Heap<M> {
    fn push(&mut self, rank: i64, message: M) {
        let (next, heap) = &mut *self.0.lock();
        *next += 1;
        heap.push(Reverse(Entry(rank, *next, message)));
    }

    fn pop(&mut self) -> Option<M> {
        self.0.lock().1.pop().map(|entry| entry.0.2)
    }
}

#[derive(Default)]
struct Map<M>(Mutex<(u64, BTreeMap<(i64, u64), M>)>);

impl<M> Queue<M> for Map<M> {
    fn push(&mut self, rank: i64, message: M) {
        let (next, map) = &mut *self.0.lock();
        *next += 1;
        map.insert((rank, *next), message);
    }

    fn pop(&mut self) -> Option<M> {
        self.0.lock().1.pop_first().map(|entry| entry.1)
    }
}

pub fn run(settings: &Settings) {
    for_payload::<Words<1>>(settings);
    for_payload::<Words<8>>(settings);
}

fn for_payload<M: Payload>(settings: &Settings) {
    for depth in [1_000, 1_000_000] {
        for (kind, ranks) in [("8-levels", 8), ("any-key", u64::MAX)] {
            let scenario = format!("priority/{kind}/depth-{depth}/{}B", M::BYTES);
            if settings
                .only
                .as_ref()
                .is_some_and(|only| !scenario.contains(only.as_str()))
            {
                continue;
            }
            let contenders = vec![
                contender(
                    "postbox",
                    PriorityMailbox::new(|job: &Job<M>| job.0),
                    depth,
                    ranks,
                ),
                contender(
                    "mutex-binary-heap",
                    Heap(Mutex::new((0, BinaryHeap::<Reverse<Entry<M>>>::new()))),
                    depth,
                    ranks,
                ),
                contender(
                    "mutex-btree-map",
                    Map(Mutex::new((0, BTreeMap::<(i64, u64), M>::new()))),
                    depth,
                    ranks,
                ),
            ];
            measure(settings, SUITE, &scenario, 1_000_000, contenders);
        }
    }
}

/// Fills the queue to `depth` once; each operation then is one push and one pop.
fn contender<'a, M: Payload>(
    system: &'static str,
    mut queue: impl Queue<M> + 'a,
    depth: usize,
    ranks: u64,
) -> Contender<'a> {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let mut rank = move || (random.next() % ranks) as i64;
    for n in 0..depth {
        queue.push(rank(), M::number(n as u64));
    }
    Contender::new(system, move |operations| -> Duration {
        let start = Instant::now();
        for n in 0..operations {
            queue.push(rank(), black_box(M::number(n as u64)));
            assert!(black_box(queue.pop()).is_some());
        }
        start.elapsed()
    })
}

/// xorshift64: the same ranks for everybody.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}
