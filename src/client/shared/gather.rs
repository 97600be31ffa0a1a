//! The leader gathers: it yields its core to the callers whose outcomes have come, until they are back with
//! their next requests, and then writes once for all of them.
//!
//! Without this, each of those callers either writes by itself or wakes the leader, which has gone to sleep
//! meanwhile: a system call for each master, or one for the wake-up and a switch between threads.
//!
//! A yield on a busy core may give a whole time slice away. So each yield is timed, and after a slow one the
//! client does not gather for [`REST`].

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// With more callers the leader does not gather: the servers then work on some requests while the others come.
/// (`floor client-tasks 1024`: 0.95 of the pairs per second with any number.)
const CALLER_COUNT_MAX: usize = 64;

/// A gathering ends after this many yields that took this time together. Where cores are free, a yield returns
/// at once, before a caller can have come back.
const YIELD_COUNT: usize = 3;
const YIELD_TIME: Duration = Duration::from_micros(15);

/// Shortest yield after which another program is taken to have had the core.
const SLOW_YIELD: Duration = Duration::from_micros(400);

/// Time without gathering after a slow yield: less than 1 % of the time is then given away in slices.
const REST: Duration = Duration::from_secs(1);

/// Whether and for whom the leader gathers. Used with the client's lock held.
#[derive(Debug, Default)]
pub(super) struct Gathering {
    returning: Arc<AtomicUsize>,
    rests_until: Option<Instant>,
}

/// One gathering, which goes on without the client's lock.
#[derive(Debug)]
pub(super) struct Gather {
    /// Callers whose outcomes have come, and who have not come back.
    returning: Arc<AtomicUsize>,
    begun: Instant,
}

impl Gathering {
    /// Outcomes have come for this many callers.
    pub(super) fn add(&mut self, caller_count: usize) {
        if caller_count > 0 {
            self.set(self.returning.load(Ordering::Relaxed) + caller_count);
        }
    }

    /// A caller has come with a request.
    pub(super) fn remove_one(&mut self) {
        self.set(self.returning.load(Ordering::Relaxed).saturating_sub(1));
    }

    /// The client's lock orders all changes; a leader that gathers only reads.
    fn set(&mut self, count: usize) {
        self.returning.store(count, Ordering::Relaxed);
    }

    /// Begins to gather, unless nobody is to come back, a yield was slow, or there are too many callers: those
    /// and the `waiting_count` whose outcomes have not come.
    pub(super) fn begin(&mut self, now: Instant, waiting_count: usize) -> Option<Gather> {
        let caller_count = self.returning.load(Ordering::Relaxed) + waiting_count;
        if caller_count > CALLER_COUNT_MAX || self.rests_until.is_some_and(|until| now < until) {
            self.set(0);
        }
        let is_anybody = self.returning.load(Ordering::Relaxed) > 0;
        is_anybody.then(|| Gather { returning: self.returning.clone(), begun: now })
    }

    /// Ends a gathering. Who has not come back now is not waited for again.
    pub(super) fn end(&mut self, slow_at: Option<Instant>) {
        self.set(0);
        if let Some(at) = slow_at {
            self.rests_until = Some(at + REST);
        }
    }
}

impl Gather {
    /// Yields until the callers are back, within the bounds above. `yield_core` returns the time. Returns the end
    /// of a slow yield.
    pub(super) fn run(self, mut yield_core: impl FnMut() -> Instant) -> Option<Instant> {
        let is_anybody = || self.returning.load(Ordering::Relaxed) > 0;
        let (mut now, mut yield_count) = (self.begun, 0);
        while is_anybody() && (yield_count < YIELD_COUNT || now - self.begun < YIELD_TIME) {
            let before = now;
            now = yield_core();
            yield_count += 1;
            if now - before >= SLOW_YIELD {
                return Some(now);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    /// Yields of this length, with one caller that comes back in each; returns how many there were.
    fn gather(caller_count: usize, returning_count: usize, length: Duration) -> (usize, Option<Instant>) {
        let (mut gathering, mut now, mut yield_count) = (Gathering::default(), clock::now(), 0);
        gathering.add(caller_count);
        let gather = gathering.begin(now, 0).expect("somebody is to come back");
        let slow_at = gather.run(|| {
            yield_count += 1;
            if yield_count <= returning_count {
                gathering.remove_one();
            }
            now += length;
            now
        });
        (yield_count, slow_at)
    }

    #[test]
    fn a_gathering_ends_when_all_are_back() {
        let short = YIELD_TIME / 100;
        assert_eq!(gather(5, 5, short), (5, None));
        assert_eq!(gather(1, 1, short), (1, None));
    }

    #[test]
    fn many_callers_are_not_gathered() {
        for (waiting_count, is_gathered) in [(CALLER_COUNT_MAX - 1, true), (CALLER_COUNT_MAX, false)] {
            let mut gathering = Gathering::default();
            gathering.add(1);
            assert_eq!(gathering.begin(clock::now(), waiting_count).is_some(), is_gathered);
        }
    }

    #[test]
    fn a_gathering_ends_though_nobody_comes_back() {
        assert_eq!(gather(2, 0, YIELD_TIME), (YIELD_COUNT, None));
        assert_eq!(gather(2, 0, YIELD_TIME / 10), (10, None), "where cores are free");
    }

    #[test]
    fn nobody_gathers_for_a_while_after_a_slow_yield() {
        let (yield_count, slow_at) = gather(5, 0, SLOW_YIELD);
        let slow_at = slow_at.expect("a slow yield");
        assert_eq!(yield_count, 1);
        let mut gathering = Gathering::default();
        gathering.end(Some(slow_at));
        gathering.add(1);
        assert!(gathering.begin(slow_at + REST - Duration::from_nanos(1), 0).is_none());
        assert!(gathering.begin(slow_at + REST, 0).is_none(), "who came meanwhile is forgotten");
        gathering.add(1);
        assert!(gathering.begin(slow_at + REST, 0).is_some());
    }

    #[test]
    fn nobody_is_waited_for_twice() {
        let mut gathering = Gathering::default();
        gathering.remove_one();
        gathering.add(1);
        assert!(gathering.begin(clock::now(), 0).is_some());
        gathering.end(None);
        assert!(gathering.begin(clock::now(), 0).is_none());
    }
}
