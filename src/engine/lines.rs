//! Who wants the same lock in this engine: for each key a line of operations, the holder first, then the waiters in the
//! order in which they came.
//!
//! Knows operations by the places of their slots only, and keys by their hash; whoever asks compares keys. All links are
//! in two arrays, so that joining and leaving allocate nothing once the arrays are as large as they have ever to be.
//!
//! ```text
//!  heads                 spots, one for each slot of an operation
//!  ┌───┐   next_leader   ┌────────┐ behind ┌────────┐ behind ┌────────┐
//!  │ ──┼──► of a bucket ►│ leader ├───────►│ waiter ├───────►│ waiter ├──┐
//!  └───┘                 └────────┘        └────────┘        └────────┘  │
//!                             ▲──────────────────────────────────────────┘
//! ```

use rand::Rng;

/// Nobody's place.
const NOBODY: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct Lines {
    /// What makes hashes differ from one engine to the next: names of locks are often chosen by others.
    secret: [u64; 2],
    /// The first leader of each bucket. As many as a power of two.
    heads: Vec<u32>,
    spots: Vec<Spot>,
    leader_count: usize,
}

/// Where one operation stands.
#[derive(Debug, Clone, Copy)]
struct Spot {
    hash: u32,
    /// The neighbours; the last one's is the leader. `NOBODY` outside any line.
    ahead: u32,
    behind: u32,
    /// Of a leader: the next one in its bucket, and how many are in the line.
    next_leader: u32,
    count: u32,
    is_leader: bool,
}

const OUTSIDE: Spot =
    Spot { hash: 0, ahead: NOBODY, behind: NOBODY, next_leader: NOBODY, count: 0, is_leader: false };

impl Lines {
    pub(super) fn new(rng: &mut impl Rng) -> Self {
        // Odd, so that no secret is zero.
        let secret = [rng.next_u64() | 1, rng.next_u64() | 1];
        Self { secret, heads: vec![NOBODY; 16], spots: Vec::new(), leader_count: 0 }
    }

    /// The hash of a key, as an encoded bulk string: each word is folded in by a multiplication with a secret.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "a half of the hash is enough")]
    pub(super) fn hash(&self, key: &[u8]) -> u32 {
        let [first, second] = self.secret;
        let (words, _) = key.as_chunks::<8>();
        let mut hash = first;
        for word in words {
            hash = fold(hash ^ u64::from_le_bytes(*word), second);
        }
        // Some bytes go in twice, and no zeros behind the end: such a key begins with its own length.
        let last = match key.last_chunk::<8>() {
            Some(last) => *last,
            None => std::array::from_fn(|index| key.get(index).copied().unwrap_or_default()),
        };
        hash = fold(hash ^ u64::from_le_bytes(last), second);
        (hash ^ (hash >> 32)) as u32
    }

    /// Starts a line with `place` as its leader, unless there may be one for the same key: that is to be looked for.
    #[inline]
    pub(super) fn found_first(&mut self, place: u32, hash: u32) -> bool {
        let mut other = self.heads[self.bucket(hash)];
        while other != NOBODY {
            let spot = &self.spots[other as usize];
            if spot.hash == hash {
                return false;
            }
            other = spot.next_leader;
        }
        self.found(place, hash);
        true
    }

    /// Ends a line of one. False if others stand there, too.
    #[inline]
    pub(super) fn leave_alone(&mut self, place: u32) -> bool {
        let behind = self.spots.get(place as usize).map_or(NOBODY, |spot| spot.behind);
        if behind == place {
            self.leave_bucket(place);
            self.spots[place as usize].behind = NOBODY;
            self.spots[place as usize].is_leader = false;
            self.leader_count -= 1;
        }
        behind == place || behind == NOBODY
    }

    /// The leader of the line for a key, if there is one.
    #[inline]
    pub(super) fn find(&self, hash: u32, mut is_same: impl FnMut(u32) -> bool) -> Option<u32> {
        let mut place = self.heads[self.bucket(hash)];
        while place != NOBODY {
            let spot = &self.spots[place as usize];
            if spot.hash == hash && is_same(place) {
                return Some(place);
            }
            place = spot.next_leader;
        }
        None
    }

    /// Starts a line with `place` as its leader.
    #[inline]
    pub(super) fn found(&mut self, place: u32, hash: u32) {
        if place as usize >= self.spots.len() || self.leader_count >= self.heads.len() {
            self.grow(place);
        }
        assert!(!self.has(place), "it stands in a line already");
        self.leader_count += 1;
        let bucket = self.bucket(hash);
        let next_leader = std::mem::replace(&mut self.heads[bucket], place);
        self.spots[place as usize] =
            Spot { hash, ahead: place, behind: place, next_leader, count: 1, is_leader: true };
    }

    /// Joins a line at its end.
    pub(super) fn join(&mut self, place: u32, leader: u32) {
        if place as usize >= self.spots.len() {
            self.grow(place);
        }
        assert!(
            !self.has(place) && self.spots[leader as usize].is_leader,
            "a line is joined once, at its end"
        );
        let Spot { hash, ahead: last, .. } = self.spots[leader as usize];
        self.spots[place as usize] = Spot { hash, ahead: last, behind: leader, ..OUTSIDE };
        self.spots[last as usize].behind = place;
        let leader = &mut self.spots[leader as usize];
        (leader.ahead, leader.count) = (place, leader.count + 1);
    }

    /// Takes the lead of a line in which it may stand already.
    pub(super) fn lead(&mut self, place: u32, leader: u32) {
        if place == leader {
            return;
        }
        self.leave(place);
        self.join(place, leader);
        // The last of a circle is the one before its first.
        self.pass_lead(leader, place);
    }

    /// Leaves its line, if it stands in one. Behind a leader that leaves, the next one leads.
    pub(super) fn leave(&mut self, place: u32) {
        if self.leave_alone(place) {
            return;
        }
        let Spot { behind, is_leader, .. } = self.spots[place as usize];
        if is_leader {
            self.pass_lead(place, behind);
        }
        self.unlink(place);
    }

    /// Whether it stands in a line.
    #[inline]
    pub(super) fn has(&self, place: u32) -> bool {
        self.spots.get(place as usize).is_some_and(|spot| spot.behind != NOBODY)
    }

    /// Whether it is the first of its line.
    pub(super) fn is_leader(&self, place: u32) -> bool {
        self.spots.get(place as usize).is_some_and(|spot| spot.is_leader)
    }

    /// Who stands behind it.
    #[inline]
    pub(super) fn behind(&self, place: u32) -> Option<u32> {
        let behind = self.spots.get(place as usize)?.behind;
        (behind != NOBODY && !self.spots[behind as usize].is_leader).then_some(behind)
    }

    /// Who stands before it.
    pub(super) fn ahead(&self, place: u32) -> Option<u32> {
        let spot = self.spots.get(place as usize)?;
        (spot.behind != NOBODY && !spot.is_leader).then_some(spot.ahead)
    }

    /// How many stand in the line of this leader, itself included.
    pub(super) fn count(&self, leader: u32) -> usize {
        self.spots[leader as usize].count as usize
    }

    #[inline]
    fn bucket(&self, hash: u32) -> usize {
        hash as usize & (self.heads.len() - 1)
    }

    /// Takes one that does not lead out of its circle.
    fn unlink(&mut self, place: u32) {
        let Spot { ahead, behind, .. } = self.spots[place as usize];
        self.spots[ahead as usize].behind = behind;
        self.spots[behind as usize].ahead = ahead;
        self.spots[place as usize] = OUTSIDE;
        // The count is the leader's, who is found by walking both ways: most leave at an end of the line.
        let (mut before, mut after) = (ahead, behind);
        let leader = loop {
            match (&self.spots[before as usize], &self.spots[after as usize]) {
                (spot, _) if spot.is_leader => break before,
                (_, spot) if spot.is_leader => break after,
                (one, other) => (before, after) = (one.ahead, other.behind),
            }
        };
        self.spots[leader as usize].count -= 1;
    }

    /// Makes one of a line its leader in place of the one before.
    fn pass_lead(&mut self, from: u32, to: u32) {
        self.leave_bucket(from);
        let Spot { hash, count, .. } = self.spots[from as usize];
        self.spots[from as usize].is_leader = false;
        let bucket = self.bucket(hash);
        let next_leader = std::mem::replace(&mut self.heads[bucket], to);
        let leader = &mut self.spots[to as usize];
        (leader.is_leader, leader.count, leader.next_leader) = (true, count, next_leader);
    }

    #[inline]
    fn leave_bucket(&mut self, leader: u32) {
        let Spot { hash, next_leader, .. } = self.spots[leader as usize];
        let bucket = self.bucket(hash);
        if self.heads[bucket] == leader {
            self.heads[bucket] = next_leader;
            return;
        }
        let mut place = self.heads[bucket];
        while self.spots[place as usize].next_leader != leader {
            place = self.spots[place as usize].next_leader;
        }
        self.spots[place as usize].next_leader = next_leader;
    }

    /// Room for this place, and a bucket for each leader.
    #[cold]
    #[expect(clippy::cast_possible_truncation, reason = "places are 32-bit numbers")]
    fn grow(&mut self, place: u32) {
        let count = (place as usize + 1).max(self.spots.len());
        self.spots.resize(count, OUTSIDE);
        if self.leader_count < self.heads.len() {
            return;
        }
        self.heads = vec![NOBODY; self.heads.len() * 2];
        for index in 0..self.spots.len() {
            if self.spots[index].is_leader {
                let bucket = self.bucket(self.spots[index].hash);
                self.spots[index].next_leader = std::mem::replace(&mut self.heads[bucket], index as u32);
            }
        }
    }
}

/// Both halves of a product of two words, in one.
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

    /// Against lines kept as plain queues by key, with few hashes so that buckets are shared.
    #[test]
    fn lines_are_like_plain_queues_by_key() {
        let mut rng = StdRng::seed_from_u64(1);
        let mut lines = Lines::new(&mut rng);
        let (mut oracle, mut keys) = (HashMap::<u32, VecDeque<u32>>::new(), HashMap::<u32, u32>::new());
        for _ in 0..100_000 {
            let (place, key) = (rng.random_range(0..60), rng.random_range(0..12));
            let hash = key % 3;
            let leader = lines.find(hash, |place| keys[&place] == key);
            assert_eq!(leader, oracle.get(&key).and_then(|line| line.front().copied()));
            match (keys.get(&place).copied(), leader) {
                (Some(own), _) if own != key || rng.random() => {
                    lines.leave(place);
                    keys.remove(&place);
                    oracle.get_mut(&own).expect("its line").retain(|it| *it != place);
                    oracle.retain(|_, line| !line.is_empty());
                }
                (_, Some(leader)) if rng.random_range(0..4) == 0 => {
                    lines.lead(place, leader);
                    keys.insert(place, key);
                    let line = oracle.get_mut(&key).expect("its line");
                    line.retain(|it| *it != place);
                    line.push_front(place);
                }
                (Some(_), _) => {}
                (None, Some(leader)) => {
                    lines.join(place, leader);
                    keys.insert(place, key);
                    oracle.get_mut(&key).expect("its line").push_back(place);
                }
                (None, None) => {
                    if !lines.found_first(place, hash) {
                        lines.found(place, hash);
                    }
                    keys.insert(place, key);
                    oracle.insert(key, VecDeque::from([place]));
                }
            }
            check(&lines, &oracle);
        }
    }

    fn check(lines: &Lines, oracle: &HashMap<u32, VecDeque<u32>>) {
        assert_eq!(lines.leader_count, oracle.len());
        for line in oracle.values() {
            assert_eq!(lines.count(line[0]), line.len());
            assert_eq!((lines.is_leader(line[0]), lines.ahead(line[0])), (true, None));
            for pair in line.iter().zip(line.iter().skip(1)) {
                assert_eq!((lines.behind(*pair.0), lines.ahead(*pair.1)), (Some(*pair.1), Some(*pair.0)));
            }
            assert_eq!(lines.behind(line[line.len() - 1]), None);
        }
        let count: usize = oracle.values().map(VecDeque::len).sum();
        assert_eq!((0..60).filter(|place| lines.has(*place)).count(), count);
    }

    #[test]
    fn hashes_differ_with_every_byte_and_with_the_secret() {
        let lines = |seed| Lines::new(&mut StdRng::seed_from_u64(seed));
        let (own, other) = (lines(1), lines(2));
        let mut seen = HashSet::new();
        for size in 1..40_u8 {
            // As keys do, it begins with its length.
            let mut key = [vec![size], vec![0; usize::from(size)]].concat();
            seen.insert(own.hash(&key));
            for index in 1..key.len() {
                key[index] = 1;
                seen.insert(own.hash(&key));
                assert_ne!(own.hash(&key), other.hash(&key));
                key[index] = 0;
            }
        }
        // 819 keys in 2^32 hashes: two of the same are one chance in ten thousand.
        assert_eq!(seen.len(), 39 + 39 * 20);
    }
}
