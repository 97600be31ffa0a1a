//! Messages about masters in quarantine.

use super::*;

fn quarantined(seconds: u64) -> Vote {
    Vote::Failed(Failure::Quarantined { left: Duration::from_secs(seconds), is_new: false })
}

#[test]
fn a_quarantine_is_named_only_where_it_is_the_cause() {
    let down = || Vote::Failed(Failure::ConnectionLost);
    let quarantine = |votes: &[Vote]| {
        report(Round::Acquire, votes).quarantine().map(|(left, count)| (left.as_secs(), count))
    };
    for (votes, expected) in [
        (vec![quarantined(9), quarantined(7), quarantined(8)], Some((8, 3))),
        (vec![quarantined(9), Vote::Granted, quarantined(8)], Some((8, 2))),
        (vec![quarantined(9), down(), Vote::Pending], Some((9, 1))),
        (vec![quarantined(9), down(), down()], None),
        (vec![Vote::Granted, Vote::Granted, quarantined(9)], None),
        (vec![down(), down(), down()], None),
    ] {
        assert_eq!(quarantine(&votes), expected, "{votes:?}");
    }
}

/// A single new master has joined a fleet, which must not be declared again.
#[test]
fn a_fleet_is_declared_only_where_all_masters_may_be_new() {
    let new = || Vote::Failed(Failure::Quarantined { left: LONG, is_new: true });
    for (votes, is_advised) in [
        ([new(), new(), new()], true),
        ([new(), quarantined(9), quarantined(8)], false),
        ([new(), new(), Vote::Granted], false),
    ] {
        let denial = Denial::new(report(Round::Acquire, &votes));
        let said = AcquireError::NoQuorum(Box::new(denial)).to_string();
        assert_eq!(said.contains("redlatch fleet init"), is_advised, "{said}");
    }
}
