//! The locks of one run, treated as one lock: the shortest validity counts.

use std::time::{Duration, Instant};

#[derive(Debug)]
pub(super) struct Locks(Vec<Lock>);

#[derive(Debug)]
struct Lock {
    name: Vec<u8>,
    valid_until: Instant,
    /// Why the last renewal failed, if it did.
    failure: Option<String>,
}

impl Locks {
    pub(super) fn new<'a>(held: impl IntoIterator<Item = (&'a [u8], Instant)>) -> Self {
        let held = held.into_iter();
        Self(
            held.map(|(name, valid_until)| Lock { name: name.to_vec(), valid_until, failure: None })
                .collect(),
        )
    }

    fn least(&self) -> &Lock {
        self.0.iter().min_by_key(|lock| lock.valid_until).expect("a run has a lock")
    }

    /// End of the shortest validity.
    pub(super) fn valid_until(&self) -> Instant {
        self.least().valid_until
    }

    /// Why the lock with the shortest validity was not extended.
    pub(super) fn failure(&self) -> Option<&str> {
        self.least().failure.as_deref()
    }

    /// Brings each end nearer by the time that the machine slept, which the clock does not count.
    pub(super) fn shift(&mut self, slept: Duration) {
        for lock in &mut self.0 {
            lock.valid_until = lock.valid_until.checked_sub(slept).unwrap_or(lock.valid_until);
        }
    }

    /// Updates each validity that a renewal has extended. Returns whether the shortest validity ends later
    /// now.
    ///
    /// A proven loss ends a guard's validity at once. The command still gets its grace, so an earlier end is
    /// ignored.
    pub(super) fn follow(&mut self, now_valid: impl IntoIterator<Item = Instant>) -> bool {
        let before = self.valid_until();
        for (lock, valid_until) in self.0.iter_mut().zip(now_valid) {
            if valid_until > lock.valid_until {
                (lock.valid_until, lock.failure) = (valid_until, None);
            }
        }
        self.valid_until() > before
    }

    /// Notes a failed renewal. Returns whether the latest renewal of every lock had succeeded before.
    pub(super) fn fail(&mut self, name: &[u8], failure: String) -> bool {
        let is_first = self.0.iter().all(|lock| lock.failure.is_none());
        if let Some(lock) = self.0.iter_mut().find(|lock| lock.name == name) {
            lock.failure = Some(failure);
        }
        is_first
    }
}

/// Locks that are valid for 9 s and 10 s, and the present.
#[cfg(test)]
pub(super) fn two() -> (Locks, Instant) {
    let (now, second) = (Instant::now(), Duration::from_secs(1));
    (Locks::new([(&b"a"[..], now + 9 * second), (b"b", now + 10 * second)]), now)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    // I100
    #[test]
    fn the_least_validity_and_its_failure_count() {
        let (mut locks, now) = two();
        let at = |seconds: u32| now + seconds * SECOND;
        assert!(!locks.follow([at(9), at(12)]), "the other one is the least");
        assert!(locks.follow([at(13), at(12)]) && locks.valid_until() == at(12));
        assert!(locks.fail(b"a", "one".into()) && !locks.fail(b"b", "two".into()));
        assert_eq!(locks.failure(), Some("two"));
        assert!(locks.follow([at(13), at(14)]));
        assert_eq!(locks.failure(), Some("one"));
        assert!(!locks.fail(b"b", "three".into()), "the row goes on");
    }

    // I101
    #[test]
    fn proven_loss_leaves_the_grace() {
        let (mut locks, now) = two();
        assert!(!locks.follow([now, now]));
        assert_eq!(locks.valid_until(), now + 9 * SECOND);
    }

    // I100
    #[test]
    fn a_sleep_of_the_machine_counts_for_each_lock() {
        let (mut locks, now) = two();
        locks.shift(2 * SECOND);
        assert_eq!(locks.valid_until(), now + 7 * SECOND);
        locks.follow([now + 20 * SECOND, now + 8 * SECOND]);
        assert_eq!(locks.valid_until(), now + 8 * SECOND);
    }
}
