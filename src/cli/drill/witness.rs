//! Visits to resources: two holders at once are found, unless both of them read.
//!
//! A visit lasts from the grant to the release, or to the end of its validity if that is sooner: what a
//! holder does later is its own fault. All times are of one clock, that of this process.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// No visit is longer.
const VISIT_MAX: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy)]
struct Visit {
    from: Instant,
    until: Instant,
    is_reader: bool,
}

/// The visits of all holders, by resource.
pub(crate) struct Witness {
    resources: Vec<Mutex<Vec<Visit>>>,
    found: Mutex<Found>,
}

/// Observations of the witness.
#[derive(Debug, Clone, Default)]
pub(crate) struct Found {
    pub(crate) visit_count: u64,
    /// How often two held a lock at once.
    pub(crate) overlap_count: u64,
    /// The first of them, in words.
    pub(crate) overlaps: Vec<String>,
}

/// Overlaps that are kept as text.
const OVERLAP_COUNT_MAX: usize = 100;

impl Witness {
    pub(crate) fn new(resource_count: usize) -> Self {
        Self { resources: (0..resource_count).map(|_| Mutex::default()).collect(), found: Mutex::default() }
    }

    /// Takes a visit that is over.
    pub(crate) fn note(
        &self,
        resource: usize,
        from: Instant,
        released: Instant,
        valid_until: Instant,
        is_reader: bool,
    ) {
        let until = released.min(valid_until);
        if until <= from {
            return;
        }
        let mut visits = locked(&self.resources[resource]);
        visits.retain(|it| it.until + VISIT_MAX > from);
        let rivals = visits.iter().filter(|it| !(is_reader && it.is_reader));
        let overlaps: Vec<Duration> = rivals
            .filter(|it| it.from < until && from < it.until)
            .map(|it| it.until.min(until).saturating_duration_since(it.from.max(from)))
            .collect();
        visits.push(Visit { from, until, is_reader });
        drop(visits);
        let mut found = locked(&self.found);
        found.visit_count += 1;
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

/// The data is still valid after a panic.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
