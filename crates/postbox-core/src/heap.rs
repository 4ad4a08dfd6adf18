//! A stable priority queue for arbitrary ranks: keys in a four-way heap, messages beside it.

use core::hint::select_unpredictable;

use alloc::vec::Vec;

/// A key: rank, then number, then slot, packed so that one comparison orders all three.
type Key = u128;

const NOTHING: Key = Key::MAX;

/// Numbers start in the middle, so that messages can also be put before their equals.
const FIRST_NUMBER: u32 = 1 << 31;

fn key(rank: i64, number: u32, slot: u32) -> Key {
    // Flipping the sign bit makes signed ranks order as unsigned ones.
    let rank = (rank as u64) ^ (1 << 63);
    (u128::from(rank) << 64) | (u128::from(number) << 32) | u128::from(slot)
}

fn rank_of(key: Key) -> i64 {
    ((key >> 64) as u64 ^ (1 << 63)) as i64
}

fn number_of(key: Key) -> u32 {
    (key >> 32) as u32
}

fn slot_of(key: Key) -> usize {
    key as u32 as usize
}

/// The key under which the least wanted message comes first: largest rank, then oldest or newest.
fn reverse(key_of_message: Key, oldest: bool) -> Key {
    let number = number_of(key_of_message);
    key(!rank_of(key_of_message), if oldest { number } else { !number }, slot_of(key_of_message) as u32)
}

/// Messages by rank, and among equals by age. Both ends can be taken from.
#[derive(Debug)]
pub(crate) struct KeyedHeap<M> {
    first: Heap,
    /// The same messages, least wanted first. Exists once something had to be evicted; `first` and `last` then each
    /// hold keys of messages that left by the other end, which are passed over when they come up.
    last: Option<Heap>,
    slots: Vec<Slot<M>>,
    free: Vec<u32>,
    next: u32,
    next_before: u32,
    len: usize,
}

#[derive(Debug)]
struct Slot<M> {
    /// The number under which the message came: tells a key's message from a later one in the same slot.
    number: u32,
    message: Option<M>,
}

impl<M> KeyedHeap<M> {
    pub(crate) fn new() -> Self {
        KeyedHeap {
            first: Heap::default(),
            last: None,
            slots: Vec::new(),
            free: Vec::new(),
            next: FIRST_NUMBER,
            next_before: FIRST_NUMBER - 1,
            len: 0,
        }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn push(&mut self, rank: i64, message: M, before_equals: bool) {
        if self.next == u32::MAX || self.next_before == 0 {
            self.renumber();
        }
        let number = if before_equals {
            self.next_before -= 1;
            self.next_before + 1
        } else {
            self.next += 1;
            self.next - 1
        };
        let content = Slot { number, message: Some(message) };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = content;
                slot
            }
            None => {
                let slot = u32::try_from(self.slots.len()).expect("fewer than 2^32 messages in one mailbox");
                self.slots.push(content);
                slot
            }
        };
        let key = key(rank, number, slot);
        self.first.push(key);
        if let Some(last) = &mut self.last {
            last.push(reverse(key, last.oldest));
        }
        self.len += 1;
    }

    /// The rank of the most wanted message.
    #[inline]
    pub(crate) fn first_rank(&mut self) -> Option<i64> {
        if self.len == 0 {
            return None;
        }
        loop {
            let key = self.first.peek();
            if self.last.is_none() || is_live(&self.slots, key, number_of(key)) {
                return Some(rank_of(key));
            }
            self.first.pop();
        }
    }

    #[inline]
    pub(crate) fn pop_first(&mut self) -> Option<(i64, M)> {
        while self.len > 0 {
            let key = self.first.pop();
            if self.last.is_none() || is_live(&self.slots, key, number_of(key)) {
                return Some((rank_of(key), self.release(slot_of(key))));
            }
        }
        None
    }

    /// The rank of the least wanted message.
    pub(crate) fn last_rank(&mut self, oldest: bool) -> Option<i64> {
        if self.len == 0 {
            return None;
        }
        self.last_key(oldest).map(|key| !rank_of(key))
    }

    pub(crate) fn pop_last(&mut self, oldest: bool) -> Option<(i64, M)> {
        let rank = self.last_rank(oldest)?;
        let key = self.last.as_mut().map(Heap::pop)?;
        Some((rank, self.release(slot_of(key))))
    }

    /// The live key that comes first in `last`, which is made if it is not there.
    fn last_key(&mut self, oldest: bool) -> Option<Key> {
        let (first, slots) = (&self.first, &self.slots);
        let last = self.last.get_or_insert_with(|| {
            let mut last = Heap { oldest, ..Heap::default() };
            first.keys().for_each(|key| last.push(reverse(key, oldest)));
            last
        });
        loop {
            let key = last.peek();
            let number = if oldest { number_of(key) } else { !number_of(key) };
            if is_live(slots, key, number) {
                return Some(key);
            }
            last.pop();
        }
    }

    #[inline]
    fn release(&mut self, slot: usize) -> M {
        let message = self.slots[slot].message.take();
        self.free.push(slot as u32);
        self.len -= 1;
        self.tidy();
        message.expect("a live key has a message")
    }

    /// Drops the keys of messages that are gone, before they outnumber the others; and all memory but a little,
    /// when nothing is left.
    fn tidy(&mut self) {
        if self.len == 0 {
            *self = KeyedHeap { slots: Vec::new(), ..KeyedHeap::new() };
            return;
        }
        let Some(last) = &mut self.last else { return };
        let limit = 2 * self.len + 64;
        let slots = &self.slots;
        if self.first.len > limit {
            self.first.retain(|key| is_live(slots, key, number_of(key)));
        }
        if last.len > limit {
            let oldest = last.oldest;
            last.retain(|key| is_live(slots, key, if oldest { number_of(key) } else { !number_of(key) }));
        }
    }

    /// Numbers are used up: gives all messages new ones, in the same order.
    #[cold]
    fn renumber(&mut self) {
        let slots = &self.slots;
        self.first.retain(|key| is_live(slots, key, number_of(key)));
        let mut keys: Vec<Key> = self.first.keys().collect();
        keys.sort_unstable();
        let last = self.last.take();
        self.first = Heap::default();
        self.next = FIRST_NUMBER;
        self.next_before = FIRST_NUMBER - 1;
        for old in keys {
            let slot = slot_of(old);
            self.slots[slot].number = self.next;
            self.first.push(key(rank_of(old), self.next, slot as u32));
            self.next += 1;
        }
        if let Some(last) = last {
            self.last_key(last.oldest);
        }
    }
}

fn is_live<M>(slots: &[Slot<M>], key: Key, number: u32) -> bool {
    let slot = &slots[slot_of(key)];
    slot.message.is_some() && slot.number == number
}

/// Four keys side by side, in one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Group([Key; 4]);

/// A four-way heap of keys without a root: the least of group 0 is the least of all. The children of key `k` are
/// group `k + 1`, so that looking at all children is looking at one cache line. Unused places hold [`NOTHING`].
#[derive(Debug, Default)]
struct Heap {
    groups: Vec<Group>,
    len: usize,
    /// For a heap of reversed keys: how they were reversed.
    oldest: bool,
}

impl Heap {
    fn get(&self, index: usize) -> Key {
        self.groups[index / 4].0[index % 4]
    }

    fn set(&mut self, index: usize, key: Key) {
        self.groups[index / 4].0[index % 4] = key;
    }

    fn keys(&self) -> impl Iterator<Item = Key> + '_ {
        self.groups.iter().flat_map(|group| group.0).take(self.len)
    }

    fn push(&mut self, key: Key) {
        let index = self.len;
        self.len += 1;
        if index / 4 == self.groups.len() {
            self.groups.push(Group([NOTHING; 4]));
        }
        self.rise(index, key);
    }

    /// Puts `key` at `index`, or higher up where it belongs.
    fn rise(&mut self, mut index: usize, key: Key) {
        while index >= 4 {
            let parent = index / 4 - 1;
            let parent_key = self.get(parent);
            if parent_key <= key {
                break;
            }
            self.set(index, parent_key);
            index = parent;
        }
        self.set(index, key);
    }

    /// The index and value of the least key of a group. Without branches, for which one it is cannot be predicted, and
    /// without a second look at the keys, for which the way down would have to wait.
    #[inline(always)]
    fn least(&self, group: usize) -> (usize, Key) {
        let keys = self.groups[group].0;
        let left = keys[1] < keys[0];
        let right = keys[3] < keys[2];
        let left_key = select_unpredictable(left, keys[1], keys[0]);
        let right_key = select_unpredictable(right, keys[3], keys[2]);
        let is_right = right_key < left_key;
        let lane = select_unpredictable(is_right, 2 + usize::from(right), usize::from(left));
        (group * 4 + lane, select_unpredictable(is_right, right_key, left_key))
    }

    /// The least key. There is one.
    fn peek(&self) -> Key {
        self.least(0).1
    }

    /// Takes the least key out. There is one.
    fn pop(&mut self) -> Key {
        let (mut hole, least) = self.least(0);
        self.len -= 1;
        let moved = self.get(self.len);
        self.set(self.len, NOTHING);
        if self.len.is_multiple_of(4) {
            self.groups.pop();
        }
        if hole != self.len {
            // Down to the bottom along the least children, then up: the moved key comes from the bottom and rarely
            // rises far.
            while hole + 1 < self.groups.len() {
                let (child, key) = self.least(hole + 1);
                self.set(hole, key);
                hole = child;
            }
            self.rise(hole, moved);
        }
        least
    }

    fn retain(&mut self, keep: impl Fn(Key) -> bool) {
        let kept: Vec<Key> = self.keys().filter(|&key| keep(key)).collect();
        self.groups.clear();
        self.len = 0;
        kept.into_iter().for_each(|key| self.push(key));
    }
}

#[cfg(all(test, not(postbox_loom)))]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_used_up_are_given_anew_in_the_same_order() {
        let mut heap = KeyedHeap::new();
        heap.next = u32::MAX - 3;
        for n in 0..8 {
            heap.push(n % 2, n, false);
        }
        heap.push(0, 100, true);
        assert!(heap.next < u32::MAX - 3, "renumbered");
        let order: Vec<i64> = core::iter::from_fn(|| heap.pop_first()).map(|(_, message)| message).collect();
        assert_eq!(order, [100, 0, 2, 4, 6, 1, 3, 5, 7]);
    }

    #[test]
    fn renumbering_keeps_what_eviction_needs() {
        let mut heap = KeyedHeap::new();
        for n in 0..6 {
            heap.push(n, n, false);
        }
        assert_eq!(heap.pop_last(true), Some((5, 5)));
        heap.next = u32::MAX;
        heap.push(9, 9, false);
        assert_eq!(heap.pop_last(true), Some((9, 9)));
        assert_eq!(heap.pop_last(true), Some((4, 4)));
        assert_eq!(heap.pop_first(), Some((0, 0)));
    }

    #[test]
    fn keys_of_the_evicted_do_not_pile_up() {
        let mut heap = KeyedHeap::new();
        for n in 0..100 {
            heap.push(n, n, false);
        }
        for n in 0..10_000 {
            heap.push(n % 50, n, false);
            assert!(heap.pop_last(false).is_some());
        }
        assert!(heap.first.len <= 2 * heap.len() + 65, "{} keys for {}", heap.first.len, heap.len());
        assert!(heap.slots.len() <= 101);
    }
}
