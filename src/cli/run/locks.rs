//! The locks of a run, which count as one: the least of their validities, and why it is not extended.

use std::time::{Duration, Instant};

use redlatch::engine::OpId;

/// The state of each lock.
#[derive(Debug)]
pub(super) struct Locks(Vec<Lock>);

#[derive(Debug)]
struct Lock {
    id: OpId,
    valid_until: Instant,
    /// Why the last renewal failed, if it did.
    failure: Option<String>,
}

impl Locks {
    pub(super) fn new(held: impl IntoIterator<Item = (OpId, Instant)>) -> Self {
        Self(held.into_iter().map(|(id, valid_until)| Lock { id, valid_until, failure: None }).collect())
    }

    fn least(&self) -> &Lock {
        self.0.iter().min_by_key(|lock| lock.valid_until).expect("a run has a lock")
    }

    /// When the first validity ends.
    pub(super) fn valid_until(&self) -> Instant {
        self.least().valid_until
    }

    /// Why the lock whose validity ends first was not extended.
    pub(super) fn failure(&self) -> Option<&str> {
        self.least().failure.as_deref()
    }

    /// The machine slept, which the clock of these times did not count.
    pub(super) fn shift(&mut self, slept: Duration) {
        for lock in &mut self.0 {
            lock.valid_until = lock.valid_until.checked_sub(slept).unwrap_or(lock.valid_until);
        }
    }

    /// A lock was renewed. Returns whether all of them are valid for longer.
    pub(super) fn renew(&mut self, id: OpId, valid_until: Instant) -> bool {
        let before = self.valid_until();
        for lock in self.0.iter_mut().filter(|lock| lock.id == id) {
            (lock.valid_until, lock.failure) = (valid_until, None);
        }
        self.valid_until() > before
    }

    /// A lock was not renewed. Returns whether the renewal before it, of each lock, succeeded.
    pub(super) fn fail(&mut self, id: OpId, failure: String) -> bool {
        let is_first = self.0.iter().all(|lock| lock.failure.is_none());
        if let Some(lock) = self.0.iter_mut().find(|lock| lock.id == id) {
            lock.failure = Some(failure);
        }
        is_first
    }
}

/// Two locks that are valid for 9 s and 10 s, and the present, for tests.
#[cfg(test)]
pub(super) fn two() -> (Locks, [OpId; 2], Instant) {
    use redlatch::engine::{Engine, Request, Resource};
    let (now, second) = (Instant::now(), Duration::from_secs(1));
    let config = redlatch::Config::builder().masters(["redis://h"]).build().expect("valid settings");
    let mut engine = Engine::new(std::sync::Arc::new(config), [7; 32], now);
    let ids = ["a", "b"].map(|name| {
        let (resource, options) = (Resource::new(name).expect("a name"), redlatch::Options::new());
        engine.submit(now, Request::Acquire { resource, options, label: None }).expect("room")
    });
    (Locks::new([(ids[0], now + 9 * second), (ids[1], now + 10 * second)]), ids, now)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_least_validity_and_its_failure_count() {
        let (mut locks, [first, second], now) = two();
        assert!(!locks.renew(second, now + 12 * SECOND), "the other one is the least");
        assert!(locks.renew(first, now + 13 * SECOND) && locks.valid_until() == now + 12 * SECOND);
        assert!(locks.fail(first, "one".into()) && !locks.fail(second, "two".into()));
        assert_eq!(locks.failure(), Some("two"));
        assert!(locks.renew(second, now + 14 * SECOND));
        assert_eq!(locks.failure(), Some("one"));
        assert!(!locks.fail(second, "three".into()), "the row goes on");
    }

    #[test]
    fn a_sleep_of_the_machine_counts_for_each_lock() {
        let (mut locks, [first, _], now) = two();
        locks.shift(2 * SECOND);
        assert_eq!(locks.valid_until(), now + 7 * SECOND);
        locks.renew(first, now + 20 * SECOND);
        assert_eq!(locks.valid_until(), now + 8 * SECOND);
    }
}
