//! The leader gathers: it wakes the callers whose outcomes have come, yields its core to them until they
//! return with their next requests, and then writes all of these at once.
//!
//! Otherwise the leader sleeps when a caller returns, and the caller must write by itself, with one system call
//! for each master, or wake the leader, with one system call and a switch between threads.
//!
//! A yield on a busy core can give away a whole time slice. So the leader times each yield, and after a slow one
//! the client does not gather for [`REST`].

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Largest number of callers for which the leader gathers. With more, servers can work on the requests of some
/// callers while others return. (`floor client-tasks 1024` without this limit: 0.95 of the pairs per second.)
const CALLER_COUNT_MAX: usize = 64;

/// A gathering ends after this many yields, but not before this time has passed: on a free core a yield returns
/// at once, before any caller can have returned.
const YIELD_COUNT: usize = 3;
const YIELD_TIME: Duration = Duration::from_micros(15);

/// Length from which a yield is slow: a program other than the callers and the servers probably had the core.
const SLOW_YIELD: Duration = Duration::from_micros(400);

/// Time without gathering after a slow yield. It keeps the time slices that are given away below 1 % of the time.
const REST: Duration = Duration::from_secs(1);

/// Decides whether the leader gathers. Used with the client's mutex held.
#[derive(Debug, Default)]
pub(super) struct Gathering {
    returning: Arc<AtomicUsize>,
    rests_until: Option<Instant>,
}

/// One gathering. It runs without the client's mutex.
#[derive(Debug)]
pub(super) struct Gather {
    /// Number of callers whose outcomes have come and who have not returned with another request.
    returning: Arc<AtomicUsize>,
}

impl Gathering {
    /// Notes that outcomes have come for this many callers.
    pub(super) fn add(&mut self, caller_count: usize) {
        if caller_count > 0 {
            self.set(self.returning.load(Ordering::Relaxed) + caller_count);
        }
    }

    /// Notes that a caller has made a request.
    pub(super) fn remove_one(&mut self) {
        self.remove(1);
    }

    /// Notes that this many callers have returned.
    pub(super) fn remove(&mut self, caller_count: usize) {
        self.set(self.returning.load(Ordering::Relaxed).saturating_sub(caller_count));
    }

    /// Writers hold the client's mutex, so a plain store is enough. A leader that gathers only reads.
    fn set(&mut self, count: usize) {
        self.returning.store(count, Ordering::Relaxed);
    }

    /// Whether callers whose outcomes have come are still to return.
    pub(super) fn expects_callers(&self) -> bool {
        self.returning.load(Ordering::Relaxed) > 0
    }

    /// Begins to gather. Returns `None` if no caller is expected, if a yield was slow lately, or if there are too
    /// many callers, counting the `waiting_count` of them whose outcomes have not come.
    pub(super) fn begin(&mut self, now: Instant, waiting_count: usize) -> Option<Gather> {
        let caller_count = self.returning.load(Ordering::Relaxed) + waiting_count;
        if caller_count > CALLER_COUNT_MAX || self.rests_until.is_some_and(|until| now < until) {
            self.set(0);
        }
        let is_anybody = self.returning.load(Ordering::Relaxed) > 0;
        is_anybody.then(|| Gather { returning: self.returning.clone() })
    }

    /// Ends a gathering. The leader does not wait again for callers that have not returned.
    pub(super) fn end(&mut self, slow_at: Option<Instant>) {
        self.set(0);
        if let Some(at) = slow_at {
            self.rests_until = Some(at + REST);
        }
    }
}

impl Gather {
    /// Yields until all callers have returned, within the bounds above. Returns the time at which a slow yield
    /// ended.
    pub(super) fn run(self, now: impl Fn() -> Instant, yield_core: impl Fn()) -> Option<Instant> {
        let is_anybody = || self.returning.load(Ordering::Relaxed) > 0;
        let begun = now();
        let (mut last, mut yield_count) = (begun, 0);
        while is_anybody() && (yield_count < YIELD_COUNT || last - begun < YIELD_TIME) {
            yield_core();
            let yielded = now();
            if yielded - last >= SLOW_YIELD {
                return Some(yielded);
            }
            (last, yield_count) = (yielded, yield_count + 1);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;
    use crate::clock;

    /// Gathers with yields of this length. In each of the first ones one caller returns. Returns the number of
    /// yields, and the end of a slow one.
    fn gather(caller_count: usize, returning_count: usize, length: Duration) -> (usize, Option<Instant>) {
        let (gathering, now, yield_count) =
            (RefCell::new(Gathering::default()), Cell::new(clock::now()), Cell::new(0));
        gathering.borrow_mut().add(caller_count);
        let gather = gathering.borrow_mut().begin(now.get(), 0).expect("callers are expected");
        let yield_core = || {
            now.set(now.get() + length);
            if yield_count.replace(yield_count.get() + 1) < returning_count {
                gathering.borrow_mut().remove_one();
            }
        };
        let slow_at = gather.run(|| now.get(), yield_core);
        (yield_count.get(), slow_at)
    }

    // I125
    #[test]
    fn gathering_ends_when_all_callers_have_returned() {
        let short = YIELD_TIME / 100;
        assert_eq!(gather(5, 5, short), (5, None));
        assert_eq!(gather(1, 1, short), (1, None));
    }

    // I125
    #[test]
    fn leader_does_not_gather_for_many_callers() {
        for (waiting_count, is_gathered) in [(CALLER_COUNT_MAX - 1, true), (CALLER_COUNT_MAX, false)] {
            let mut gathering = Gathering::default();
            gathering.add(1);
            assert_eq!(gathering.begin(clock::now(), waiting_count).is_some(), is_gathered);
        }
    }

    // I125
    #[test]
    fn gathering_ends_when_no_caller_returns() {
        assert_eq!(gather(2, 0, YIELD_TIME), (YIELD_COUNT, None));
        assert_eq!(gather(2, 0, YIELD_TIME / 10), (10, None), "on a free core");
    }

    // I125
    #[test]
    fn leader_does_not_gather_after_a_slow_yield() {
        let (yield_count, slow_at) = gather(5, 0, SLOW_YIELD);
        let slow_at = slow_at.expect("a slow yield");
        assert_eq!(yield_count, 1);
        let mut gathering = Gathering::default();
        gathering.end(Some(slow_at));
        gathering.add(1);
        assert!(gathering.begin(slow_at + REST - Duration::from_nanos(1), 0).is_none());
        assert!(gathering.begin(slow_at + REST, 0).is_none(), "a caller from before the end is forgotten");
        gathering.add(1);
        assert!(gathering.begin(slow_at + REST, 0).is_some());
    }

    // I125
    #[test]
    fn leader_waits_once_for_each_caller() {
        let mut gathering = Gathering::default();
        gathering.remove_one();
        gathering.add(1);
        assert!(gathering.begin(clock::now(), 0).is_some());
        gathering.end(None);
        assert!(gathering.begin(clock::now(), 0).is_none());
    }
}
