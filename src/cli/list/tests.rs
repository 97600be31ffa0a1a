//! Lines, JSON and kinds of listed locks, from fixed reports of masters.

use super::*;
use crate::inspect::tests::{LABELLED, SILENT, holds, inspection, ms, readers};

fn replied(text: &str) -> KeyState {
    KeyState::Failed(Failure::Replied(text.into()))
}

fn quarantined() -> KeyState {
    KeyState::Failed(Failure::Quarantined { left: Duration::from_secs(9), is_new: false })
}

#[test]
fn list_output_matches_its_golden_file() {
    use KeyState::Absent;
    let none = Extras::default();
    let fenced = Extras { is_fenced: true, queued: Some(0) };
    let listed = |name: &str, states: [KeyState; 3], extras| Listed {
        name: name.as_bytes().to_vec(),
        inspection: inspection(&states),
        extras,
    };
    let two = |state: KeyState| [state.clone(), state, Absent];
    let all = [
        listed("orders:42", two(holds(LABELLED, ms(9001))), Extras { is_fenced: false, queued: Some(3) }),
        listed("fenced", two(holds("twelve-bytes", ms(59_000))), fenced),
        listed("long", two(holds("thirteen-byte", ms(3_600_000))), none),
        listed("for ever", two(holds("x", HolderTtl::Never)), none),
        listed("read", [readers(2, ms(9)), readers(2, ms(9)), readers(2, ms(9))], fenced),
        listed("read by two", two(readers(2, ms(9))), none),
        listed("split", [holds("a", ms(9)), holds("b", ms(9)), Absent], none),
        listed("unknown", [holds("a", ms(9)), SILENT, SILENT], none),
        listed("redlatch:slot:3:pool a", two(holds(LABELLED, ms(9001))), none),
        listed("redlatch:door:pool", [holds("a", ms(9)), Absent, Absent], none),
    ];
    let mut page = HEADER.to_owned();
    for width in [None, Some(WIDE), Some(WIDE - 1), Some(30)] {
        page.extend(all.iter().map(|lock| lock.text(width)));
        page.push('\n');
    }
    page.extend(all.iter().map(|lock| json_line(&lock.json())));
    redlatch_support::assert_golden("list", &page);
}

#[test]
fn terminal_says_that_there_are_no_locks() {
    assert_eq!(table(&[], Some(80), true), "no locks\n");
    assert_eq!(table(&[], None, false), "");
}

#[test]
fn each_name_has_its_kind() {
    use KeyState::Absent;
    let (lock, other, forever) = (holds("a", ms(9)), replied("WRONGTYPE no"), holds("a", HolderTtl::Never));
    for (states, expected) in [
        ([Absent, Absent, Absent], What::Gone),
        ([Absent, Absent, SILENT], What::Gone),
        ([Absent, SILENT, SILENT], What::Lock),
        ([lock.clone(), Absent, Absent], What::Lock),
        ([Absent, Absent, readers(1, ms(9))], What::Lock),
        ([lock.clone(), other.clone(), forever.clone()], What::Lock),
        ([forever.clone(), Absent, Absent], What::Other),
        ([readers(1, HolderTtl::Never), Absent, Absent], What::Other),
        ([other.clone(), Absent, Absent], What::Other),
        ([other, SILENT, SILENT], What::Other),
    ] {
        assert_eq!(what_is(&inspection(&states)), expected, "{states:?}");
    }
}

#[test]
fn failures_are_those_that_hide_something() {
    use KeyState::Absent;
    let failures = |states: [KeyState; 3]| {
        let mut failures = Failures::default();
        add_failures(&mut failures, &inspection(&states));
        failures.lines(3)
    };
    assert_eq!(failures([Absent, Absent, quarantined()]), [""; 0]);
    assert_eq!(failures([Absent, Absent, replied("WRONGTYPE no")]), [""; 0]);
    assert_eq!(failures([Absent, Absent, replied("NOPERM no")]).len(), 1);
    let unknown = failures([Absent, quarantined(), SILENT]);
    assert_eq!(unknown.len(), 2, "{unknown:?}");
    assert!(unknown[0].starts_with("unix:///nowhere/2: not counted for another 9s"), "{unknown:?}");
}

#[test]
fn a_list_says_that_there_are_more_names() {
    let names = |range: std::ops::Range<usize>| -> Vec<Vec<u8>> {
        range.map(|number| number.to_string().into_bytes()).collect()
    };
    for (one, other, is_cut_there, count, is_cut) in [
        (0..3, 1..5, false, 5, false),
        (0..3, 1..5, true, 5, true),
        (0..NAME_COUNT_MAX, 0..NAME_COUNT_MAX, false, NAME_COUNT_MAX, false),
        (0..NAME_COUNT_MAX, 1..NAME_COUNT_MAX + 1, false, NAME_COUNT_MAX, true),
    ] {
        let (found, is_found_cut) = all_names(vec![(names(one), false), (names(other), is_cut_there)]);
        assert_eq!((found.len(), is_found_cut), (count, is_cut));
    }
    let said = |others, cut_at| remarks(others, cut_at).map(|it| it.to_string()).collect::<Vec<_>>();
    let others = "not listed: 2 keys with the prefix that cannot be locks";
    let cut = "there are more than 9 names; give a narrower PATTERN";
    assert_eq!(said(0, None), [""; 0]);
    assert_eq!(said(2, None), [others]);
    assert_eq!(said(2, Some(9)), [others, cut]);
}
