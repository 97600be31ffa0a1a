//! Who was inside when: visits to one resource must not overlap, unless all of them read.
//!
//! A visit lasts from the grant to the release, or to the end of its validity if that is sooner: what a
//! holder does later is its own fault.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// No visit is longer.
const VISIT_MAX: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy)]
struct Visit {
    from: Instant,
    until: Instant,
    is_reader: bool,
}

pub(crate) struct Witness {
    resources: Vec<Mutex<Vec<Visit>>>,
    visit_count: AtomicU64,
    overlaps: Mutex<Vec<String>>,
}

impl Witness {
    pub(crate) fn new(resource_count: usize) -> Self {
        let resources = (0..resource_count).map(|_| Mutex::default()).collect();
        Self { resources, visit_count: AtomicU64::new(0), overlaps: Mutex::default() }
    }

    /// A visit is over.
    pub(crate) fn note(&self, resource: usize, from: Instant, until: Instant, is_reader: bool) {
        if until <= from {
            return;
        }
        self.visit_count.fetch_add(1, Ordering::Relaxed);
        let mut visits = self.resources[resource].lock().expect("no panic");
        visits.retain(|it| it.until + VISIT_MAX > from);
        for other in visits.iter().filter(|it| !(is_reader && it.is_reader)) {
            if other.from < until && from < other.until {
                let both = other.until.min(until).saturating_duration_since(other.from.max(from));
                let found = format!("resource {resource}: two holders for {both:?}");
                self.overlaps.lock().expect("no panic").push(found);
            }
        }
        visits.push(Visit { from, until, is_reader });
    }

    pub(crate) fn visit_count(&self) -> u64 {
        self.visit_count.load(Ordering::Relaxed)
    }

    pub(crate) fn assert_none_inside_twice(&self) {
        let overlaps = self.overlaps.lock().expect("no panic");
        assert!(overlaps.is_empty(), "{overlaps:#?}");
    }
}

/// The witness itself must be able to say no.
pub(crate) fn assert_that_it_sees_overlaps() {
    let now = Instant::now();
    let at = |ms| now + Duration::from_millis(ms);
    let count = |first: (u64, u64, bool), second: (u64, u64, bool)| {
        let witness = Witness::new(1);
        for (from, until, is_reader) in [first, second] {
            witness.note(0, at(from), at(until), is_reader);
        }
        witness.overlaps.into_inner().expect("no panic").len()
    };
    assert_eq!(count((0, 10, false), (9, 20, false)), 1);
    assert_eq!(count((0, 10, true), (9, 20, false)), 1);
    assert_eq!(count((0, 10, true), (9, 20, true)), 0);
    assert_eq!(count((0, 10, false), (10, 20, false)), 0);
}
