//! Finds two simultaneous holders of a resource, unless both are readers.
//!
//! A visit lasts from the grant to the release, or to the end of the validity if that is earlier. What a
//! holder does later is its own fault, and is counted separately. All times are from one clock.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Longest visit of a holder that did not announce its [beginning](Witness::begin).
const VISIT_MAX: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy)]
struct Visit {
    from: Instant,
    until: Instant,
    /// End of the work, possibly after the validity's end.
    worked_until: Instant,
    is_reader: bool,
}

impl Visit {
    fn excludes(&self, other: &Self) -> bool {
        !(self.is_reader && other.is_reader)
    }

    /// How long both held the lock.
    fn shared(&self, other: &Self) -> Option<Duration> {
        let (from, until) = (self.from.max(other.from), self.until.min(other.until));
        (from < until).then(|| until - from)
    }

    fn worked_beside(&self, other: &Self) -> bool {
        self.from.max(other.from) < self.worked_until.min(other.worked_until)
    }
}

/// Visits to one resource.
#[derive(Default)]
struct Visits {
    latest: Vec<Visit>,
    /// Beginnings of announced visits that are not noted yet.
    open: Vec<Instant>,
    /// End of the last holder's lock.
    held_until: Option<Instant>,
}

pub(crate) struct Witness {
    resources: Vec<Mutex<Visits>>,
    found: Mutex<Found>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Found {
    pub(crate) visit_count: u64,
    /// How often two holders had a lock at once.
    pub(crate) overlap_count: u64,
    /// The first overlaps, in words.
    pub(crate) overlaps: Vec<String>,
    /// How often two holders worked at once because one outlasted its lock. No lock prevents that.
    pub(crate) outlasted_count: u64,
    /// Longest time from one holder of a lock to the next.
    pub(crate) longest_gap: Duration,
}

/// Largest number of overlaps that are kept as text.
const OVERLAP_COUNT_MAX: usize = 100;

impl Witness {
    pub(crate) fn new(resource_count: usize) -> Self {
        Self { resources: (0..resource_count).map(|_| Mutex::default()).collect(), found: Mutex::default() }
    }

    /// Announces a visit whose holder may be stopped for long. Until the visit is noted, all visits since its
    /// beginning are kept.
    pub(crate) fn begin(&self, resource: usize, from: Instant) {
        locked(&self.resources[resource]).open.push(from);
    }

    /// Notes a finished visit.
    pub(crate) fn note(
        &self,
        resource: usize,
        from: Instant,
        released: Instant,
        valid_until: Instant,
        is_reader: bool,
    ) {
        let visit = Visit { from, until: released.min(valid_until), worked_until: released, is_reader };
        let mut visits = locked(&self.resources[resource]);
        let earliest = visits.open.iter().fold(from, |earliest, open| earliest.min(*open));
        visits.latest.retain(|it| it.worked_until + VISIT_MAX > earliest);
        if let Some(at) = visits.open.iter().position(|open| *open == from) {
            visits.open.swap_remove(at);
        }
        let meets = |it: &&Visit| it.excludes(&visit) && it.worked_beside(&visit);
        let rivals: Vec<Visit> = visits.latest.iter().filter(meets).copied().collect();
        visits.latest.push(visit);
        let is_held = from < visit.until;
        let gap = visits.held_until.filter(|_| is_held).map(|until| from.saturating_duration_since(until));
        if is_held {
            visits.held_until = visits.held_until.max(Some(visit.until));
        }
        drop(visits);
        let mut found = locked(&self.found);
        found.visit_count += u64::from(is_held);
        found.longest_gap = found.longest_gap.max(gap.unwrap_or_default());
        let overlaps: Vec<Duration> = rivals.iter().filter_map(|it| it.shared(&visit)).collect();
        found.outlasted_count += u64::try_from(rivals.len() - overlaps.len()).unwrap_or(0);
        for both in overlaps {
            found.overlap_count += 1;
            if found.overlaps.len() < OVERLAP_COUNT_MAX {
                found.overlaps.push(format!("resource {}: two holders for {both:.1?}", resource + 1));
            }
        }
    }

    pub(crate) fn found(&self) -> Found {
        locked(&self.found).clone()
    }
}

/// Locks the mutex. The data is valid even after a panic.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
