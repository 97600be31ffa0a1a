//! Proves that the witness can find two holders.

use std::time::{Duration, Instant};

use super::witness::Witness;

// I151
#[test]
fn only_overlapping_visits_of_writers_are_found() {
    let now = Instant::now();
    let at = |ms| now + Duration::from_millis(ms);
    let count = |first: (u64, u64, bool), second: (u64, u64, bool)| {
        let witness = Witness::new(1);
        for (from, until, is_reader) in [first, second] {
            witness.note(0, at(from), at(until), at(until), is_reader);
        }
        assert_eq!(witness.found().visit_count, 2);
        witness.found().overlaps.len()
    };
    assert_eq!(count((0, 10, false), (9, 20, false)), 1);
    assert_eq!(count((9, 20, false), (0, 10, false)), 1, "in whichever order they end");
    assert_eq!(count((0, 10, true), (9, 20, false)), 1);
    assert_eq!(count((0, 10, true), (9, 20, true)), 0);
    assert_eq!(count((0, 10, false), (10, 20, false)), 0);
}

#[test]
fn an_overlap_names_its_lock_and_its_time() {
    let now = Instant::now();
    let at = |ms| now + Duration::from_millis(ms);
    let witness = Witness::new(3);
    for (lock, from) in [(0, 0), (2, 0), (1, 5), (2, 5)] {
        witness.note(lock, at(from), at(10), at(10), false);
    }
    assert_eq!(witness.found().overlaps, ["resource 3: two holders for 5.0ms"]);
    assert_eq!(witness.found().overlap_count, 1);
}

// I152
#[test]
fn a_visit_ends_with_its_validity() {
    let now = Instant::now();
    let at = |ms| now + Duration::from_millis(ms);
    let witness = Witness::new(1);
    // The first holder was stopped, and released its lock after the next holder got it.
    witness.note(0, at(0), at(20), at(10), false);
    witness.note(0, at(10), at(15), at(30), false);
    let found = witness.found();
    assert_eq!((found.visit_count, found.overlap_count, found.outlasted_count), (2, 0, 1));
}

// I152
#[test]
fn work_after_the_lock_ended_is_no_visit() {
    let now = Instant::now();
    let at = |ms| now + Duration::from_millis(ms);
    let witness = Witness::new(1);
    witness.note(0, at(0), at(20), at(20), false);
    witness.note(0, at(10), at(15), at(10), false);
    let found = witness.found();
    assert_eq!((found.visit_count, found.overlap_count, found.outlasted_count), (1, 0, 1));
}

#[test]
fn the_longest_gap_lies_between_two_holders_of_one_lock() {
    let now = Instant::now();
    let at = |ms| now + Duration::from_millis(ms);
    let witness = Witness::new(2);
    for (lock, from, until) in [(0, 0, 10), (1, 90, 95), (0, 17, 20), (0, 22, 30), (1, 99, 100)] {
        witness.note(lock, at(from), at(until), at(until), false);
    }
    assert_eq!(witness.found().longest_gap, Duration::from_millis(7));
}

#[test]
fn late_holder_overlaps_every_later_visit() {
    let now = Instant::now();
    let at = |s| now + Duration::from_secs(s);
    let witness = Witness::new(1);
    witness.begin(0, at(0));
    for from in [10, 45, 90] {
        witness.note(0, at(from), at(from + 1), at(from + 20), false);
    }
    witness.note(0, at(0), at(120), at(20), false);
    let found = witness.found();
    assert_eq!((found.visit_count, found.overlap_count, found.outlasted_count), (4, 1, 2));
    // Old visits are forgotten.
    witness.note(0, at(200), at(201), at(220), false);
    witness.note(0, at(10), at(11), at(20), false);
    assert_eq!(witness.found().overlap_count, 1);
}
