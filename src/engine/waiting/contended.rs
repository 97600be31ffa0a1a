//! Locks for which this client waited in the masters' queues within the last second. The next waiter for such
//! a lock parks at once.
//!
//! A lock is known by its key's hash. If two keys share a hash, a waiter may park where a `SET` would do,
//! which is harmless.

use std::time::Instant;

use crate::limits;

/// One spot for each value of a hash's low bits. A newer lock replaces an older one in its spot.
#[derive(Debug)]
pub(crate) struct Contended {
    /// Hash of the key, and when the lock is forgotten.
    spots: [(u32, Instant); limits::CONTENDED_COUNT_MAX],
    /// When the last lock is forgotten.
    ends_at: Instant,
}

impl Contended {
    pub(crate) const fn new(now: Instant) -> Self {
        Self { spots: [(0, now); limits::CONTENDED_COUNT_MAX], ends_at: now }
    }

    /// Whether any lock may be known as contended.
    #[inline]
    pub(crate) fn may_have(&self, now: Instant) -> bool {
        now < self.ends_at
    }

    /// Whether the lock with this hash is known as contended.
    pub(crate) fn has(&self, now: Instant, hash: u32) -> bool {
        let (known, ends_at) = self.spots[spot(hash)];
        known == hash && now < ends_at
    }

    /// Notes that a caller left the masters' queues, after a wait or without one.
    pub(crate) fn note(&mut self, now: Instant, hash: u32, has_waited: bool) {
        if has_waited {
            self.ends_at = now + limits::CONTENDED_KEPT;
            self.spots[spot(hash)] = (hash, self.ends_at);
        } else if self.has(now, hash) {
            self.spots[spot(hash)].1 = now;
        }
    }
}

const fn spot(hash: u32) -> usize {
    hash as usize % limits::CONTENDED_COUNT_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    // I63
    #[test]
    fn locks_that_share_a_spot_are_told_apart() {
        let now = Instant::now();
        let count = u32::try_from(limits::CONTENDED_COUNT_MAX).expect("small");
        let mut contended = Contended::new(now);
        assert!(!contended.may_have(now) && !contended.has(now, 0));
        contended.note(now, 7, true);
        assert!(contended.has(now, 7) && !contended.has(now, 7 + count));
        contended.note(now, 7 + count, false);
        assert!(contended.has(now, 7), "another one was found free");
        contended.note(now, 7 + count, true);
        assert!(contended.has(now, 7 + count) && !contended.has(now, 7), "the latest one is known");
    }
}
