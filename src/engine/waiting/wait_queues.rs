//! Wait queues: for each key the operations of this engine that hold or want its lock. The holder comes
//! first, then the waiters in order of arrival.
//!
//! Knows operations only by their slots, and keys only by their hash; the caller compares keys. All links are
//! in two arrays, so that joining and leaving allocate nothing once the arrays have reached their largest
//! size.
//!
//! ```text
//!  buckets               spots, one for each slot of an operation
//!  ┌───┐   next_head     ┌────────┐ behind ┌────────┐ behind ┌────────┐
//!  │ ──┼──► of a bucket ►│  head  ├───────►│ waiter ├───────►│ waiter ├──┐
//!  └───┘                 └────────┘        └────────┘        └────────┘  │
//!                             ▲──────────────────────────────────────────┘
//! ```

use rand::Rng;

/// Marks the absence of a place.
const NOBODY: u32 = u32::MAX;

#[derive(Debug)]
pub(crate) struct WaitQueues {
    /// Makes hashes differ from engine to engine, because strangers often choose the names of locks.
    secret: [u64; 2],
    /// The first head of each bucket. Their number is a power of two.
    buckets: Vec<u32>,
    spots: Vec<Spot>,
    queue_count: usize,
}

/// Links of one operation.
#[derive(Debug, Clone, Copy)]
struct Spot {
    hash: u32,
    /// The neighbours in a circle: the head follows the last waiter. `NOBODY` outside any queue.
    ahead: u32,
    behind: u32,
    /// The next head in the bucket, and the length of the queue. Only a head has both.
    next_head: u32,
    count: u32,
    is_head: bool,
}

const OUTSIDE: Spot =
    Spot { hash: 0, ahead: NOBODY, behind: NOBODY, next_head: NOBODY, count: 0, is_head: false };

impl WaitQueues {
    pub(crate) fn new(rng: &mut impl Rng) -> Self {
        // Odd, so that no secret is zero.
        let secret = [rng.next_u64() | 1, rng.next_u64() | 1];
        Self { secret, buckets: vec![NOBODY; 16], spots: Vec::new(), queue_count: 0 }
    }

    /// Returns the hash of a key, given as an encoded bulk string. Each word is mixed in by a multiplication
    /// with a secret.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "a half of the hash is enough")]
    pub(crate) fn hash(&self, key: &[u8]) -> u32 {
        let [first, second] = self.secret;
        let (words, _) = key.as_chunks::<8>();
        let mut hash = first;
        for word in words {
            hash = fold(hash ^ u64::from_le_bytes(*word), second);
        }
        // Some bytes are hashed twice, and no zeros are added at the end, because a key begins with its
        // length.
        let last = match key.last_chunk::<8>() {
            Some(last) => *last,
            None => std::array::from_fn(|index| key.get(index).copied().unwrap_or_default()),
        };
        hash = fold(hash ^ u64::from_le_bytes(last), second);
        (hash ^ (hash >> 32)) as u32
    }

    /// Starts a queue with `place` as its head. False if a queue of the same hash exists: the caller must
    /// compare keys.
    #[inline]
    pub(crate) fn begin_first(&mut self, place: u32, hash: u32) -> bool {
        let mut other = self.buckets[self.bucket(hash)];
        while other != NOBODY {
            let spot = &self.spots[other as usize];
            if spot.hash == hash {
                return false;
            }
            other = spot.next_head;
        }
        self.begin(place, hash);
        true
    }

    /// Ends the queue of `place` if no other operation stands in it. False if others do.
    #[inline]
    pub(crate) fn leave_if_alone(&mut self, place: u32) -> bool {
        let behind = self.spots.get(place as usize).map_or(NOBODY, |spot| spot.behind);
        if behind == place {
            self.leave_bucket(place);
            self.spots[place as usize].behind = NOBODY;
            self.spots[place as usize].is_head = false;
            self.queue_count -= 1;
        }
        behind == place || behind == NOBODY
    }

    /// Returns the head of the queue for a key, if there is one.
    #[inline]
    pub(crate) fn find(&self, hash: u32, mut is_same: impl FnMut(u32) -> bool) -> Option<u32> {
        let mut place = self.buckets[self.bucket(hash)];
        while place != NOBODY {
            let spot = &self.spots[place as usize];
            if spot.hash == hash && is_same(place) {
                return Some(place);
            }
            place = spot.next_head;
        }
        None
    }

    /// Starts a queue with `place` as its head.
    #[inline]
    pub(crate) fn begin(&mut self, place: u32, hash: u32) {
        if place as usize >= self.spots.len() || self.queue_count >= self.buckets.len() {
            self.grow(place);
        }
        assert!(!self.has(place), "it stands in a queue already");
        self.queue_count += 1;
        let bucket = self.bucket(hash);
        let next_head = std::mem::replace(&mut self.buckets[bucket], place);
        self.spots[place as usize] =
            Spot { hash, ahead: place, behind: place, next_head, count: 1, is_head: true };
    }

    /// Adds `place` at the end of a queue.
    pub(crate) fn join(&mut self, place: u32, head: u32) {
        if place as usize >= self.spots.len() {
            self.grow(place);
        }
        assert!(!self.has(place) && self.spots[head as usize].is_head, "a queue is joined once, at its end");
        let Spot { hash, ahead: last, .. } = self.spots[head as usize];
        self.spots[place as usize] = Spot { hash, ahead: last, behind: head, ..OUTSIDE };
        self.spots[last as usize].behind = place;
        let head = &mut self.spots[head as usize];
        (head.ahead, head.count) = (place, head.count + 1);
    }

    /// Makes `place` the head of a queue, in which it may already stand.
    pub(crate) fn lead(&mut self, place: u32, head: u32) {
        if place == head {
            return;
        }
        self.leave(place);
        self.join(place, head);
        // The last place of the circle precedes the head.
        self.pass_head(head, place);
    }

    /// Removes `place` from its queue, if it stands in one. If the head leaves, the next waiter becomes the
    /// head.
    pub(crate) fn leave(&mut self, place: u32) {
        if self.leave_if_alone(place) {
            return;
        }
        let Spot { behind, is_head, .. } = self.spots[place as usize];
        if is_head {
            self.pass_head(place, behind);
        }
        self.unlink(place);
    }

    /// Whether `place` stands in a queue.
    #[inline]
    pub(crate) fn has(&self, place: u32) -> bool {
        self.spots.get(place as usize).is_some_and(|spot| spot.behind != NOBODY)
    }

    /// Whether `place` is the head of its queue.
    pub(crate) fn is_head(&self, place: u32) -> bool {
        self.spots.get(place as usize).is_some_and(|spot| spot.is_head)
    }

    /// Returns the waiter behind `place`.
    #[inline]
    pub(crate) fn behind(&self, place: u32) -> Option<u32> {
        let behind = self.spots.get(place as usize)?.behind;
        (behind != NOBODY && !self.spots[behind as usize].is_head).then_some(behind)
    }

    /// Returns the operation before `place`.
    pub(crate) fn ahead(&self, place: u32) -> Option<u32> {
        let spot = self.spots.get(place as usize)?;
        (spot.behind != NOBODY && !spot.is_head).then_some(spot.ahead)
    }

    /// Returns the length of this head's queue, including the head.
    pub(crate) fn count(&self, head: u32) -> usize {
        self.spots[head as usize].count as usize
    }

    #[inline]
    fn bucket(&self, hash: u32) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }

    /// Removes a waiter that is not the head from its circle.
    fn unlink(&mut self, place: u32) {
        let Spot { ahead, behind, .. } = self.spots[place as usize];
        self.spots[ahead as usize].behind = behind;
        self.spots[behind as usize].ahead = ahead;
        self.spots[place as usize] = OUTSIDE;
        // Only the head has the count. Finds the head by walking both ways, because most waiters leave near
        // an end.
        let (mut before, mut after) = (ahead, behind);
        let head = loop {
            match (&self.spots[before as usize], &self.spots[after as usize]) {
                (spot, _) if spot.is_head => break before,
                (_, spot) if spot.is_head => break after,
                (one, other) => (before, after) = (one.ahead, other.behind),
            }
        };
        self.spots[head as usize].count -= 1;
    }

    /// Makes `to` the head of a queue in place of `from`.
    fn pass_head(&mut self, from: u32, to: u32) {
        self.leave_bucket(from);
        let Spot { hash, count, .. } = self.spots[from as usize];
        self.spots[from as usize].is_head = false;
        let bucket = self.bucket(hash);
        let next_head = std::mem::replace(&mut self.buckets[bucket], to);
        let head = &mut self.spots[to as usize];
        (head.is_head, head.count, head.next_head) = (true, count, next_head);
    }

    #[inline]
    fn leave_bucket(&mut self, head: u32) {
        let Spot { hash, next_head, .. } = self.spots[head as usize];
        let bucket = self.bucket(hash);
        if self.buckets[bucket] == head {
            self.buckets[bucket] = next_head;
            return;
        }
        let mut place = self.buckets[bucket];
        while self.spots[place as usize].next_head != head {
            place = self.spots[place as usize].next_head;
        }
        self.spots[place as usize].next_head = next_head;
    }

    /// Grows the arrays for this place, and for one bucket per head.
    #[cold]
    #[expect(clippy::cast_possible_truncation, reason = "places are 32-bit numbers")]
    fn grow(&mut self, place: u32) {
        let count = (place as usize + 1).max(self.spots.len());
        self.spots.resize(count, OUTSIDE);
        if self.queue_count < self.buckets.len() {
            return;
        }
        self.buckets = vec![NOBODY; self.buckets.len() * 2];
        for index in 0..self.spots.len() {
            if self.spots[index].is_head {
                let bucket = self.bucket(self.spots[index].hash);
                self.spots[index].next_head = std::mem::replace(&mut self.buckets[bucket], index as u32);
            }
        }
    }
}

/// Returns both halves of the product of two words, combined.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the other half is there too")]
const fn fold(word: u64, by: u64) -> u64 {
    let product = (word as u128) * (by as u128);
    (product ^ (product >> 64)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};
    use std::collections::{HashMap, HashSet, VecDeque};

    /// Compares with plain queues by key. Few hashes make the keys share buckets.
    // I41
    #[test]
    fn wait_queues_are_like_plain_queues_by_key() {
        let mut rng = StdRng::seed_from_u64(1);
        let mut queues = WaitQueues::new(&mut rng);
        let (mut oracle, mut keys) = (HashMap::<u32, VecDeque<u32>>::new(), HashMap::<u32, u32>::new());
        for _ in 0..100_000 {
            let (place, key) = (rng.random_range(0..60), rng.random_range(0..12));
            let hash = key % 3;
            let head = queues.find(hash, |place| keys[&place] == key);
            assert_eq!(head, oracle.get(&key).and_then(|queue| queue.front().copied()));
            match (keys.get(&place).copied(), head) {
                (Some(own), _) if own != key || rng.random() => {
                    queues.leave(place);
                    keys.remove(&place);
                    oracle.get_mut(&own).expect("its queue").retain(|it| *it != place);
                    oracle.retain(|_, queue| !queue.is_empty());
                }
                (_, Some(head)) if rng.random_range(0..4) == 0 => {
                    queues.lead(place, head);
                    keys.insert(place, key);
                    let queue = oracle.get_mut(&key).expect("its queue");
                    queue.retain(|it| *it != place);
                    queue.push_front(place);
                }
                (Some(_), _) => {}
                (None, Some(head)) => {
                    queues.join(place, head);
                    keys.insert(place, key);
                    oracle.get_mut(&key).expect("its queue").push_back(place);
                }
                (None, None) => {
                    if !queues.begin_first(place, hash) {
                        queues.begin(place, hash);
                    }
                    keys.insert(place, key);
                    oracle.insert(key, VecDeque::from([place]));
                }
            }
            check(&queues, &oracle);
        }
    }

    #[test]
    fn growing_loses_no_head() {
        let mut queues = WaitQueues::new(&mut StdRng::seed_from_u64(1));
        // The last place is a head whenever the buckets grow.
        (0..100).rev().for_each(|place| queues.begin(place, place));
        for head in 0..100 {
            assert_eq!(queues.find(head, |place| place == head), Some(head));
        }
    }

    fn check(queues: &WaitQueues, oracle: &HashMap<u32, VecDeque<u32>>) {
        assert_eq!(queues.queue_count, oracle.len());
        for queue in oracle.values() {
            assert_eq!(queues.count(queue[0]), queue.len());
            assert_eq!((queues.is_head(queue[0]), queues.ahead(queue[0])), (true, None));
            for pair in queue.iter().zip(queue.iter().skip(1)) {
                assert_eq!((queues.behind(*pair.0), queues.ahead(*pair.1)), (Some(*pair.1), Some(*pair.0)));
            }
            assert_eq!(queues.behind(queue[queue.len() - 1]), None);
        }
        let count: usize = oracle.values().map(VecDeque::len).sum();
        assert_eq!((0..60).filter(|place| queues.has(*place)).count(), count);
    }

    #[test]
    fn hashes_differ_with_every_byte_and_with_the_secret() {
        let queues = |seed| WaitQueues::new(&mut StdRng::seed_from_u64(seed));
        let (own, other) = (queues(1), queues(2));
        let mut seen = HashSet::new();
        for size in 1..40_u8 {
            // Keys begin with their length, too.
            let mut key = [vec![size], vec![0; usize::from(size)]].concat();
            seen.insert(own.hash(&key));
            for index in 1..key.len() {
                key[index] = 1;
                seen.insert(own.hash(&key));
                assert_ne!(own.hash(&key), other.hash(&key));
                key[index] = 0;
            }
        }
        // 819 keys in 2^32 hashes: a collision has a chance of one in ten thousand.
        assert_eq!(seen.len(), 39 + 39 * 20);
    }
}
