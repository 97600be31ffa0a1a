//! Input that cannot work, in the library, on real masters: the error's variant and text, no lost state, and
//! a client that works afterwards.
//!
//! Elsewhere: one server under two names, an even number of masters (`tests/cli/bad_input_tests.rs`); servers
//! that send garbage (`lock_tests.rs`); leases of other clients (`lease_tests.rs`); replies that no server
//! should send (`tests/engine/bad_input.rs`).

use std::time::Duration;

use redlatch::error::{Failure, HolderTtl, InputError, Report, Vote};
use redlatch::{AcquireError, ExtendError, ReleaseError, limits};
use redlatch_support::{Blocking, Fleet, PATIENCE, eventually};

use crate::lock_tests::{TTL, open, settings};

/// This client can acquire and release a lock, and the master holds nothing else.
#[track_caller]
fn check_works(fleet: &mut Fleet, redlock: &mut Blocking) {
    let lease = redlock.lock("check").ttl(TTL).wait(PATIENCE).acquire().expect("free");
    assert_eq!(redlock.release(lease).map(|released| released.was_already_gone()), Ok(false));
    eventually(PATIENCE, "no key is left", || {
        redlock.turn(Duration::from_millis(1)).expect("the loop runs");
        fleet.masters().all(|master| master.key_count() == "0")
    });
}

#[track_caller]
fn check_says(error: &dyn std::fmt::Display, said: &[&str]) {
    let text = error.to_string();
    for part in said {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

#[test]
fn impossible_ttls_are_refused_before_sending() {
    type Check = fn(&InputError) -> bool;
    let short: Check = |error| matches!(error, InputError::TtlTooShort { .. });
    let long: Check = |error| matches!(error, InputError::TtlTooLong { .. });
    let ms = Duration::from_millis;
    let rows: [(Duration, Check, &[&str]); 8] = [
        (
            Duration::ZERO,
            short,
            &["a TTL of 0s is too short", "more than 1ms beyond the drift allowance of 2ms"],
        ),
        (Duration::from_nanos(999_999), short, &["1ms is too short"]),
        (ms(1), short, &["a TTL of 1ms is too short"]),
        (ms(3), short, &["a TTL of 3ms is too short"]),
        (Duration::from_nanos(30_000_000_001), long, &["above the maximum of 30s", "raise max_ttl"]),
        (limits::MAX_TTL_MAX, long, &["168h is 604770s above the maximum", "ask for less"]),
        (ms(i64::MAX.unsigned_abs()), long, &["9223372036854776s is"]),
        (Duration::MAX, long, &["above the maximum of 30s"]),
    ];
    let mut fleet = Fleet::start(1);
    let mut redlock = open(settings(&fleet.urls()));
    let mut lease = redlock.lock("held").ttl(TTL).wait(PATIENCE).acquire().expect("free");
    let (valid_until, sets) = (lease.valid_until(), fleet.master(0).calls("set"));
    for (ttl, is_right, said) in rows {
        let AcquireError::Input(error) = redlock.lock("a").ttl(ttl).try_acquire().expect_err("bad TTL")
        else {
            panic!("{ttl:?}: the TTL is at fault")
        };
        assert!(is_right(&error), "{ttl:?}: {error:?}");
        check_says(&error, said);
        assert_eq!(
            redlock.lock("a").ttl(ttl).wait(Duration::MAX).acquire().err(),
            Some(AcquireError::Input(error.clone()))
        );
        assert_eq!(redlock.extend(&mut lease, ttl), Err(ExtendError::Input(error)));
        assert!(lease.valid_until() == valid_until && lease.is_valid());
    }
    assert_eq!(fleet.master(0).calls("set"), sets, "nothing was sent");
    redlock.release(lease).expect("held all the while");
    check_works(&mut fleet, &mut redlock);
}

#[test]
fn waits_range_from_none_to_endless() {
    let mut fleet = Fleet::start(3);
    let mut redlock = open(settings(&fleet.urls()));
    fleet.masters().for_each(|master| assert_eq!(master.ask("SET a other PX 600000").text(), "OK"));
    let error = redlock.lock("a").ttl(TTL).try_acquire().expect_err("held");
    let AcquireError::Contended(denial) = &error else { panic!("{error}") };
    assert_eq!(denial.attempts, 1);
    assert!(matches!(denial.holder, HolderTtl::Left(_)), "{error}");
    fleet.masters().for_each(|master| assert_eq!(master.ask("PEXPIRE a 200").text(), "1"));
    let lease = redlock.lock("a").ttl(TTL).wait(Duration::MAX).acquire().expect("free in a while");
    redlock.release(lease).expect("confirmed");
    check_works(&mut fleet, &mut redlock);
}

/// The only master's vote.
fn vote(report: &Report) -> &Vote {
    &report.votes[0].1
}

#[test]
fn a_key_of_another_type_is_left_alone() {
    let mut fleet = Fleet::start(1);
    let mut redlock = open(settings(&fleet.urls()));
    let mut lease = redlock.lock("a").ttl(TTL).wait(PATIENCE).acquire().expect("free");
    fleet.master(0).ask("DEL a");
    fleet.master(0).ask("RPUSH a x");
    let is_wrong_type =
        |vote: &Vote| matches!(vote, Vote::Failed(Failure::Replied(text)) if text.contains("WRONGTYPE"));
    // A server with native commands may report a mismatch instead of an error. Neither is a grant.
    match redlock.extend(&mut lease, TTL).expect_err("a list") {
        ExtendError::NoQuorum(report) => assert!(is_wrong_type(vote(&report)), "{report}"),
        ExtendError::Lost(_) => {}
        other => panic!("{other}"),
    }
    match redlock.release(lease) {
        Err(ReleaseError::Unconfirmed(_)) => {}
        Ok(released) => assert!(released.was_already_gone(), "{released:?}"),
        Err(other) => panic!("{other}"),
    }
    assert_eq!(fleet.master(0).ask("LRANGE a 0 -1").text(), "[x]");
    fleet.master(0).ask("DEL a");
    check_works(&mut fleet, &mut redlock);
}

#[test]
fn a_lease_may_outlive_its_client() {
    let mut fleet = Fleet::start(1);
    let mut redlock = open(settings(&fleet.urls()));
    let lease = redlock.lock("a").ttl(Duration::from_secs(2)).wait(PATIENCE).acquire().expect("free");
    drop(redlock);
    drop(lease);
    eventually(PATIENCE, "the key ends with its TTL", || fleet.master(0).ask("EXISTS a").text() == "0");
    let mut next = open(settings(&fleet.urls()));
    check_works(&mut fleet, &mut next);
}
