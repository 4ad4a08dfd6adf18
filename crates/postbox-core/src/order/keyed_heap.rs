//! A stable priority queue for arbitrary ranks: a four-way heap of keys, with the messages in a
//! slab.

use core::hint::select_unpredictable;
use core::mem;

use alloc::vec::Vec;

/// Rank, number and slot, packed so that one comparison orders all three.
type Key = u128;

const EMPTY: Key = Key::MAX;

/// Numbers start in the middle, so that a message can also be inserted ahead of its equals.
const FIRST_NUMBER: u32 = 1 << 31;

fn key(rank: i64, number: u32, slot: u32) -> Key {
    // Flipping the sign bit makes signed ranks order as unsigned numbers.
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

/// Messages by rank and then by age. Messages can be popped from both ends.
#[derive(Debug)]
pub(crate) struct KeyedHeap<M> {
    first: Heap,
    /// Created by the first eviction. From then on both heaps contain stale keys, whose messages
    /// have left through the other heap; they are skipped when they come up.
    eviction: Option<EvictionKeys>,
    slots: Vec<Slot<M>>,
    /// The first free slot; past the end of `slots` if there is none.
    free: usize,
    next: u32,
    next_before: u32,
    len: usize,
}

#[derive(Debug)]
enum Slot<M> {
    /// A whole word, like the alignment of most messages, which makes moving an entry one copy.
    Free {
        next: usize,
    },
    Used(M),
}

/// Marks a slot without a message.
const NO_NUMBER: u32 = u32::MAX;

/// The number of messages that can be renumbered, with one number left for the next message.
const MAX_SLOTS: usize = (NO_NUMBER - FIRST_NUMBER) as usize;

impl<M> KeyedHeap<M> {
    pub(crate) fn new() -> Self {
        KeyedHeap {
            first: Heap::default(),
            eviction: None,
            slots: Vec::new(),
            free: usize::MAX,
            next: FIRST_NUMBER,
            next_before: FIRST_NUMBER - 1,
            len: 0,
        }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, rank: i64, message: M, before_equals: bool) {
        if self.next == NO_NUMBER || self.next_before == 0 {
            self.renumber();
        }
        let number = if before_equals {
            self.next_before -= 1;
            self.next_before + 1
        } else {
            self.next += 1;
            self.next - 1
        };
        let key = key(rank, number, self.store(message));
        self.first.push(key);
        if let Some(eviction) = &mut self.eviction {
            eviction.push(key);
        }
        self.len += 1;
    }

    /// The rank of the most urgent message.
    #[inline]
    pub(crate) fn first_rank(&mut self) -> Option<i64> {
        self.first_key().map(rank_of)
    }

    #[inline(always)]
    pub(crate) fn pop_first(&mut self) -> Option<(i64, M)> {
        let key = self.first_key()?;
        // The key is popped first: in a deep heap both are cache misses, and the heap can be
        // repaired while the message is loaded.
        self.first.pop();
        let message = self.take(key);
        self.drop_stale_keys();
        Some((rank_of(key), message))
    }

    /// The rank of the least urgent message.
    pub(crate) fn last_rank(&mut self, oldest: bool) -> Option<i64> {
        self.last_key(oldest).map(rank_of)
    }

    pub(crate) fn pop_last(&mut self, oldest: bool) -> Option<(i64, M)> {
        let key = self.last_key(oldest)?;
        let message = self.take(key);
        self.drop_stale_keys();
        Some((rank_of(key), message))
    }

    /// The key of the most urgent message. Removes stale keys before it from `first`.
    #[inline(always)]
    fn first_key(&mut self) -> Option<Key> {
        if self.len == 0 {
            return None;
        }
        loop {
            let key = self.first.peek();
            if self.eviction.as_ref().is_none_or(|eviction| eviction.is_live(key)) {
                return Some(key);
            }
            self.first.pop();
        }
    }

    /// The key of the least urgent message. Removes stale keys before it from the eviction heap.
    fn last_key(&mut self, oldest: bool) -> Option<Key> {
        if self.len == 0 {
            return None;
        }
        let eviction = self.eviction.get_or_insert_with(|| EvictionKeys::new(&self.first, oldest));
        loop {
            let key = eviction.reverse(eviction.keys.peek());
            if eviction.is_live(key) {
                return Some(key);
            }
            eviction.keys.pop();
        }
    }

    /// Stores a message in a free slot.
    #[inline(always)]
    fn store(&mut self, message: M) -> u32 {
        let slot = self.free;
        if let Some(place @ &mut Slot::Free { next }) = self.slots.get_mut(slot) {
            self.free = next;
            // A free slot owns nothing, and forgetting it avoids the check for a drop.
            mem::forget(mem::replace(place, Slot::Used(message)));
            return slot as u32;
        }
        let slot = self.slots.len();
        assert!(slot < MAX_SLOTS, "too many messages in one priority mailbox");
        self.slots.push(Slot::Used(message));
        slot as u32
    }

    /// Takes the message of a live key out of its slot.
    #[inline(always)]
    fn take(&mut self, key: Key) -> M {
        let slot = slot_of(key);
        if let Some(eviction) = &mut self.eviction {
            eviction.numbers[slot] = NO_NUMBER;
        }
        let Slot::Used(message) = mem::replace(&mut self.slots[slot], Slot::Free { next: self.free }) else {
            unreachable!("a live key has a message");
        };
        self.free = slot;
        self.len -= 1;
        message
    }

    /// Removes stale keys before they outnumber the live ones; frees all memory when the heap is
    /// empty.
    #[inline]
    fn drop_stale_keys(&mut self) {
        if self.len == 0 {
            *self = KeyedHeap::new();
        } else if let Some(eviction) = &mut self.eviction {
            eviction.drop_stale_keys(&mut self.first, 2 * self.len + 64);
        }
    }

    /// Renumbers all messages in their order when the numbers are used up. The eviction heap is
    /// rebuilt on demand.
    #[cold]
    fn renumber(&mut self) {
        let eviction = self.eviction.take();
        let mut keys: Vec<Key> =
            self.first.keys().filter(|&key| eviction.as_ref().is_none_or(|eviction| eviction.is_live(key))).collect();
        keys.sort_unstable();
        self.first = Heap::default();
        self.next = FIRST_NUMBER;
        self.next_before = FIRST_NUMBER - 1;
        for old in keys {
            self.first.push(key(rank_of(old), self.next, slot_of(old) as u32));
            self.next += 1;
        }
    }
}

/// The keys of the same messages, least urgent first, and which keys are still live.
#[derive(Debug)]
struct EvictionKeys {
    /// Reversed keys.
    keys: Heap,
    /// Whether the oldest of equal messages is evicted first, or the newest.
    oldest: bool,
    /// The number of the message in each slot, or [`NO_NUMBER`]. It distinguishes a key from
    /// earlier keys of the same slot.
    numbers: Vec<u32>,
}

impl EvictionKeys {
    fn new(first: &Heap, oldest: bool) -> Self {
        let mut eviction = EvictionKeys { keys: Heap::default(), oldest, numbers: Vec::new() };
        first.keys().for_each(|key| eviction.push(key));
        eviction
    }

    fn push(&mut self, key: Key) {
        let slot = slot_of(key);
        if slot >= self.numbers.len() {
            self.numbers.resize(slot + 1, NO_NUMBER);
        }
        self.numbers[slot] = number_of(key);
        self.keys.push(self.reverse(key));
    }

    fn is_live(&self, key: Key) -> bool {
        self.numbers[slot_of(key)] == number_of(key)
    }

    /// Maps a key to one by which the least urgent message comes first: highest rank, then oldest
    /// or newest. Applied to a reversed key, returns the key.
    fn reverse(&self, key_of_message: Key) -> Key {
        let number = number_of(key_of_message);
        let number = if self.oldest { number } else { !number };
        key(!rank_of(key_of_message), number, slot_of(key_of_message) as u32)
    }

    /// Removes stale keys from each heap that has more than `limit` keys.
    fn drop_stale_keys(&mut self, first: &mut Heap, limit: usize) {
        if first.len > limit {
            first.retain(|key| self.is_live(key));
        }
        if self.keys.len > limit {
            let mut keys = mem::take(&mut self.keys);
            keys.retain(|key| self.is_live(self.reverse(key)));
            self.keys = keys;
        }
    }
}

/// Four keys in one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Group([Key; 4]);

/// A four-way heap of keys without a root: the minimum of group 0 is the minimum of all. The
/// children of key `k` are group `k + 1`, so comparing all children reads one cache line. Unused
/// entries hold [`EMPTY`].
#[derive(Debug, Default)]
struct Heap {
    groups: Vec<Group>,
    len: usize,
}

impl Heap {
    #[inline(always)]
    fn get(&self, index: usize) -> Key {
        self.groups[index / 4].0[index % 4]
    }

    #[inline(always)]
    fn set(&mut self, index: usize, key: Key) {
        self.groups[index / 4].0[index % 4] = key;
    }

    fn keys(&self) -> impl Iterator<Item = Key> + '_ {
        self.groups.iter().flat_map(|group| group.0).take(self.len)
    }

    #[inline]
    fn push(&mut self, key: Key) {
        let index = self.len;
        self.len += 1;
        if index / 4 == self.groups.len() {
            self.groups.push(Group([EMPTY; 4]));
        }
        self.sift_up(index, key);
    }

    /// Puts `key` at `index` and moves it up to its position.
    #[inline]
    fn sift_up(&mut self, mut index: usize, key: Key) {
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

    /// The index and value of the smallest key of a group. Selects without branches, which would be
    /// unpredictable, and without reading the keys again, which would delay the next level.
    #[inline(always)]
    fn min_of_group(&self, group: usize) -> (usize, Key) {
        let keys = self.groups[group].0;
        let left = keys[1] < keys[0];
        let right = keys[3] < keys[2];
        let left_key = select_unpredictable(left, keys[1], keys[0]);
        let right_key = select_unpredictable(right, keys[3], keys[2]);
        let is_right = right_key < left_key;
        let lane = select_unpredictable(is_right, 2 + usize::from(right), usize::from(left));
        (group * 4 + lane, select_unpredictable(is_right, right_key, left_key))
    }

    /// The smallest key of a heap that is not empty.
    #[inline]
    fn peek(&self) -> Key {
        self.min_of_group(0).1
    }

    /// Removes the smallest key of a heap that is not empty.
    #[inline]
    fn pop(&mut self) -> Key {
        let (mut hole, least) = self.min_of_group(0);
        self.len -= 1;
        let moved = self.get(self.len);
        self.set(self.len, EMPTY);
        if self.len.is_multiple_of(4) {
            self.groups.pop();
        }
        if hole != self.len {
            // Moves the hole to the bottom along the smallest children and then sifts the last key
            // up, which rarely rises far.
            while hole + 1 < self.groups.len() {
                let (child, key) = self.min_of_group(hole + 1);
                self.set(hole, key);
                hole = child;
            }
            self.sift_up(hole, moved);
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
    fn what_is_evicted_after_renumbering_is_the_same() {
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
