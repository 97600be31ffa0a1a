//! Inspections as text, JSON and changes, from fixed reports.

use redlatch::Config;
use redlatch::error::Failure;

use super::*;

/// Inspection with these reports, in the order of the masters. Its client cannot reach any master.
pub(crate) fn inspection(states: &[KeyState]) -> Inspection {
    let urls = (1..=states.len()).map(|number| format!("unix:///nowhere/{number}"));
    let client =
        Client::open(Config::builder().masters(urls).build().expect("valid")).expect("an event loop");
    let mut inspection = client.inspect("orders:42").expect("a report of each");
    inspection.masters.iter_mut().zip(states).for_each(|((_, place), state)| *place = state.clone());
    inspection
}

pub(crate) fn holds(value: &str, left: HolderTtl) -> KeyState {
    KeyState::Holds { value: value.as_bytes().into(), left }
}

pub(crate) fn ms(ms: u64) -> HolderTtl {
    HolderTtl::Left(Duration::from_millis(ms))
}

pub(crate) fn readers(readers: usize, left: HolderTtl) -> KeyState {
    KeyState::Shared { readers, left }
}

pub(crate) const SILENT: KeyState = KeyState::Failed(Failure::Silent);
pub(crate) const LABELLED: &str = "twenty-bytes-of-tok.\tweb-3:4711";

#[test]
fn inspection_json_matches_its_golden_file() {
    use KeyState::Absent;
    let pages = [
        [Absent, Absent, SILENT],
        [holds(LABELLED, ms(9001)), holds(LABELLED, ms(7002)), Absent],
        [holds("other library", HolderTtl::Never), holds("other library", HolderTtl::Never), SILENT],
        [readers(2, ms(9003)), readers(3, ms(7004)), Absent],
        [holds("a", ms(1)), holds("b", ms(2)), Absent],
        [SILENT, Absent, SILENT],
    ];
    let pages: String = pages
        .iter()
        .map(|states| inspection(states))
        .map(|it| format!("{}{it:#}\n\n", json_line(&json_of(&it))))
        .collect();
    redlatch_support::assert_golden("inspections", &pages);
}

#[test]
fn watch_ignores_a_change_of_remaining_time() {
    use KeyState::Absent;
    let changes = |last: &KeyState, now: &KeyState| {
        is_change(&inspection(std::slice::from_ref(last)), &inspection(std::slice::from_ref(now)))
    };
    let lost = KeyState::Failed(Failure::ConnectionLost);
    let all = [Absent, holds("a", ms(9)), holds("b", ms(9)), readers(1, ms(9)), readers(2, ms(9)), SILENT];
    for (place, last) in all.iter().enumerate() {
        for (other, now) in all.iter().enumerate() {
            assert_eq!(changes(last, now), place != other, "{last:?}, {now:?}");
        }
    }
    assert!(!changes(&holds("a", ms(9)), &holds("a", HolderTtl::Never)));
    assert!(!changes(&readers(1, ms(9)), &readers(1, ms(8))) && !changes(&SILENT, &lost));
}
