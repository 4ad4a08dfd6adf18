//! Measures a priority push and pop at a given depth. The peers are a heap and a map behind a mutex.

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

/// A priority queue.
trait Queue<M> {
    fn push(&mut self, rank: i64, message: M);
    fn pop(&mut self) -> Option<(i64, M)>;
}

/// A rank and a message. The priority function reads the rank.
type Job<M> = (i64, M);

impl<M: Payload> Queue<M> for PriorityMailbox<Job<M>> {
    fn push(&mut self, rank: i64, message: M) {
        assert!(self.enqueue((rank, message)));
    }

    fn pop(&mut self) -> Option<(i64, M)> {
        self.dequeue()
    }
}

/// A rank, an arrival number and a message. Only the first two define the order.
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

    fn pop(&mut self) -> Option<(i64, M)> {
        self.0.lock().1.pop().map(|Reverse(entry)| (entry.0, entry.2))
    }
}

#[derive(Default)]
struct Map<M>(Mutex<NumberedMap<M>>);

/// The next arrival number, and the messages by rank and arrival number.
type NumberedMap<M> = (u64, BTreeMap<(i64, u64), M>);

impl<M> Queue<M> for Map<M> {
    fn push(&mut self, rank: i64, message: M) {
        let (next, map) = &mut *self.0.lock();
        *next += 1;
        map.insert((rank, *next), message);
    }

    fn pop(&mut self) -> Option<(i64, M)> {
        self.0.lock().1.pop_first().map(|((rank, _), message)| (rank, message))
    }
}

pub(crate) fn run(settings: &Settings) {
    for_payload::<Words<1>>(settings);
    for_payload::<Words<8>>(settings);
}

fn for_payload<M: Payload>(settings: &Settings) {
    for depth in [1_000, 1_000_000] {
        for (kind, levels) in [("8-levels", Some(8)), ("any-key", None)] {
            let scenario = format!("priority/{kind}/depth-{depth}/{}B", M::BYTES);
            if !settings.includes(&scenario) {
                continue;
            }
            let contenders = vec![
                contender("postbox", PriorityMailbox::new(|job: &Job<M>| job.0), depth, levels),
                contender(
                    "mutex-binary-heap",
                    Heap(Mutex::new((0, BinaryHeap::<Reverse<Entry<M>>>::new()))),
                    depth,
                    levels,
                ),
                contender("mutex-btree-map", Map(Mutex::new((0, BTreeMap::<(i64, u64), M>::new()))), depth, levels),
            ];
            measure(settings, SUITE, &scenario, 300_000, contenders);
        }
    }
}

/// Fills the queue to `depth` once. Each operation is one push and one pop.
///
/// With few levels, each rank is a random level. With arbitrary keys, each rank is the rank of the last pop plus a random
/// number, like a deadline. Otherwise the queue would soon contain only large keys, and each push would be popped at once.
fn contender<'a, M: Payload>(
    system: &'static str,
    mut queue: impl Queue<M> + 'a,
    depth: usize,
    levels: Option<u64>,
) -> Contender<'a> {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let mut rank = move |last: i64| match levels {
        Some(levels) => (random.next() % levels) as i64,
        None => last + (random.next() >> 32) as i64,
    };
    let mut last = 0;
    for n in 0..depth {
        queue.push(rank(last), M::number(n as u64));
    }
    Contender::new(system, move |operations| -> Duration {
        let start = Instant::now();
        for n in 0..operations {
            queue.push(rank(last), black_box(M::number(n as u64)));
            let (taken, message) = queue.pop().expect("the queue is never empty");
            last = taken;
            black_box(message);
        }
        start.elapsed()
    })
}

/// The generator xorshift64 with a fixed seed: all systems get the same ranks.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}
