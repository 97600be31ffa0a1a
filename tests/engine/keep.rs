//! Kept locks, and reports of their loss.

use std::time::{Duration, Instant};

use crate::rig::{Rig, id};
use redlatch::engine::{HandleAct, OpId, Outcome, Request, Resource, SubmitError};
use redlatch::error::{InputError, Vote};
use redlatch::{Event, ExtendError, Options};

use crate::{defaults, granted, ms};

/// Acquires a lock that is kept for at most `max_hold`.
fn keep(rig: &mut Rig, ttl_ms: u64, max_hold: Duration) -> OpId {
    let options = Options::new().ttl(ms(ttl_ms)).wait(Duration::ZERO).auto_extend(max_hold);
    let lock = rig.acquire_with("a", options);
    granted(rig);
    lock
}

/// An engine that reports failed renewals as events, and a kept lock with a TTL of 10 s.
fn keep_observed(max_hold: Duration) -> (Rig, OpId) {
    let mut rig = Rig::new(3, |builder| builder.on_event(|_| unreachable!("an engine calls none")));
    let lock = keep(&mut rig, 10_000, max_hold);
    (rig, lock)
}

/// Why the next renewal failed or will not happen, if an event says so.
fn failure(rig: &mut Rig) -> Option<ExtendError> {
    std::iter::from_fn(|| rig.engine.poll_event()).find_map(|event| match event {
        Event::NotExtended { resource, error } if resource == "a" => Some(error),
        _ => None,
    })
}

/// Result of the next renewal.
fn renewal(rig: &mut Rig, lock: OpId) -> Result<Instant, ExtendError> {
    let before = rig.engine.valid_until(lock).expect("it is held");
    for _ in 0..3000 {
        rig.run_for(ms(10));
        let valid_until = rig.engine.valid_until(lock).expect("it is held");
        if valid_until > before {
            return Ok(valid_until);
        }
        if let Some(error) = failure(rig) {
            return Err(error);
        }
    }
    panic!("no renewal of {lock:?} ended within 30 s");
}

fn watch(rig: &mut Rig, lock: OpId) {
    rig.engine.submit(rig.now, Request::NotifyLoss { lock }).expect("always taken");
}

fn extension_count(rig: &Rig) -> usize {
    rig.masters[0]
        .log
        .iter()
        .filter(|args| args[0] == b"EVALSHA" && !args[3].starts_with(b"redlatch:"))
        .count()
}

#[test]
fn much_longer_ttl_reports_no_loss() {
    for is_answered in [true, false] {
        let mut rig = Rig::new(3, defaults);
        let lock = rig.acquire("a", 1000, 0);
        let valid_until = granted(&mut rig).valid_until;
        watch(&mut rig, lock);
        rig.run_for(ms(100));
        // A tenth of the new validity exceeds the rest of the old one.
        (0..3).for_each(|index| rig.stall_replies(index));
        rig.extend(lock, 30_000);
        rig.run_for(ms(5));
        assert_eq!(rig.outcome(), None);
        assert!(!rig.engine.is_losing(rig.now, lock));
        if is_answered {
            (0..3).for_each(|index| rig.end_stall(index));
            assert!(matches!(rig.outcome(), Some(Outcome::Extend(Ok(_)))));
            rig.run_for(ms(20_000));
            assert_eq!(rig.outcome(), None);
        } else {
            rig.run_for(ms(100));
            assert!(matches!(rig.outcome(), Some(Outcome::Extend(Err(_)))));
            rig.run_for(valid_until - rig.now - ms(99));
            assert_eq!(rig.outcome(), None, "the old validity lasts, and its tenth counts");
            rig.run_for(ms(1));
            assert_eq!(rig.outcome(), Some(Outcome::Lost(valid_until)));
        }
    }
}

#[test]
fn a_kept_lock_survives_a_shorter_extension() {
    for is_answered in [true, false] {
        let mut rig = Rig::new(3, defaults);
        let lock = keep(&mut rig, 10_000, ms(600_000));
        (0..3).for_each(|index| rig.stall_replies(index));
        rig.extend(lock, 500);
        if !is_answered {
            rig.run_for(ms(51));
        }
        (0..3).for_each(|index| rig.end_stall(index));
        let outcome = rig.outcome();
        assert!(
            matches!(outcome, Some(Outcome::Extend(result)) if result.is_ok() == is_answered),
            "one answer"
        );
        rig.run_for(ms(60_000));
        assert!(rig.engine.valid_until(lock).is_some_and(|until| until > rig.now), "{is_answered}");
    }
}

#[test]
fn the_shortest_ttl_is_not_renewed_too_often() {
    for ttl in [100, 40, 20, 6] {
        let mut rig = Rig::new(1, defaults);
        let lock = keep(&mut rig, ttl, ms(600_000));
        rig.stall_replies(0);
        for _ in 0..10_000 {
            rig.run_for(Duration::from_micros(97));
            // An answer, `:1`, takes some time.
            if rig.engine.owed_count(id(0)) > 0 {
                rig.deliver_some(0, 4);
            }
        }
        assert!(rig.engine.valid_until(lock).is_some_and(|until| until > rig.now), "{ttl}");
        let count = extension_count(&rig);
        let limit = usize::try_from(6 * 1000 / ttl).expect("few");
        assert!(count <= limit + 1, "{count} renewals of {ttl} ms in a second");
    }
}

#[test]
fn the_longest_hold_may_be_without_end() {
    let mut rig = Rig::new(3, |builder| builder.max_hold(Duration::MAX));
    let lock = keep(&mut rig, 10_000, Duration::MAX);
    rig.run_for(ms(60_000));
    assert!(rig.engine.valid_until(lock).is_some_and(|until| until > rig.now));
}

#[test]
fn the_longest_hold_is_reached_in_few_renewals() {
    let mut rig = Rig::new(3, defaults);
    let start = rig.now;
    let lock = keep(&mut rig, 10_000, ms(11_000));
    rig.run_for(ms(20_000));
    let until = rig.engine.valid_until(lock).expect("it is not released");
    assert!(until <= start + ms(11_000) && until >= start + ms(10_897), "{:?}", until - start);
    assert!(extension_count(&rig) <= 2, "{}", extension_count(&rig));
}

#[test]
fn superseded_renewal_is_not_resent_after_noscript() {
    let mut rig = Rig::new(1, defaults);
    let lock = keep(&mut rig, 10_000, ms(600_000));
    rig.masters[0].flush_scripts();
    rig.stall_replies(0);
    while rig.engine.owed_count(id(0)) == 0 {
        rig.run_for(ms(1));
    }
    rig.extend(lock, 20_000);
    drop(rig.masters[0].take_log());
    rig.end_stall(0);
    assert!(matches!(rig.outcome(), Some(Outcome::Extend(Ok(_)))));
    assert_eq!(rig.masters[0].take_log().iter().filter(|name| *name == "EVAL").count(), 1);
}

// I96
#[test]
fn a_failed_renewal_says_which_masters_failed() {
    let (mut rig, lock) = keep_observed(ms(600_000));
    let valid_until = rig.engine.valid_until(lock);
    rig.masters[1].errors.insert("EVALSHA".into(), "BUSY x".into());
    rig.stop_master(2);
    let Err(ExtendError::NoQuorum(report)) = renewal(&mut rig, lock) else {
        panic!("one of three is no quorum")
    };
    let votes: Vec<&Vote> = report.votes.iter().map(|(_, vote)| vote).collect();
    assert!(matches!(votes[..], [Vote::Granted, Vote::Failed(_), Vote::Failed(_)]), "{votes:?}");
    assert_eq!(rig.engine.valid_until(lock), valid_until);
    rig.masters[1].errors.clear();
    assert!(renewal(&mut rig, lock).is_ok(), "the next one follows");
}

#[test]
fn failed_renewal_reports_only_its_own_votes() {
    let (mut rig, lock) = keep_observed(ms(600_000));
    let fail = |rig: &mut Rig, failing: [usize; 2]| {
        rig.masters.iter_mut().for_each(|master| master.errors.clear());
        for index in failing {
            rig.masters[index].errors.insert("EVALSHA".into(), "BUSY x".into());
        }
        let Err(ExtendError::NoQuorum(report)) = renewal(rig, lock) else { panic!("one is no quorum") };
        report.votes[2].1.clone()
    };
    assert!(matches!(fail(&mut rig, [1, 2]), Vote::Failed(_)));
    rig.stall_replies(2);
    assert_eq!(fail(&mut rig, [0, 1]), Vote::Pending);
}

// I96
#[test]
fn renewal_reports_a_loss_once() {
    for notifies_loss in [false, true] {
        let (mut rig, lock) = keep_observed(ms(600_000));
        if notifies_loss {
            watch(&mut rig, lock);
        }
        (0..3).for_each(|index| rig.masters[index].load_keys(Default::default()));
        assert!(matches!(renewal(&mut rig, lock), Err(ExtendError::Lost(_))));
        rig.run_for(ms(30_000));
        assert_eq!(rig.outcome().is_some_and(|it| matches!(it, Outcome::Lost(_))), notifies_loss);
        assert_eq!((rig.outcome(), failure(&mut rig)), (None, None));
    }
}

/// The renewal has already failed when the answer comes.
// I96
#[test]
fn loss_proven_by_late_answer_is_reported_once() {
    let (mut rig, lock) = keep_observed(ms(600_000));
    (0..3).for_each(|index| rig.masters[index].load_keys(Default::default()));
    (1..3).for_each(|index| rig.stall_replies(index));
    assert!(matches!(renewal(&mut rig, lock), Err(ExtendError::NoQuorum(_))));
    (1..3).for_each(|index| rig.end_stall(index));
    let Err(ExtendError::Lost(report)) = renewal(&mut rig, lock) else { panic!("two of three prove it") };
    let refused = report.votes.iter().filter(|(_, vote)| matches!(vote, Vote::Refused { .. })).count();
    assert_eq!(refused, 2, "{report}");
    rig.run_for(ms(30_000));
    assert_eq!((rig.outcome(), failure(&mut rig)), (None, None));
}

// I96
#[test]
fn superseded_renewal_is_not_reported() {
    let (mut rig, lock) = keep_observed(ms(600_000));
    (0..3).for_each(|index| rig.stall_replies(index));
    while rig.engine.owed_count(id(0)) == 0 {
        rig.run_for(ms(1));
    }
    rig.extend(lock, 10_000);
    (0..3).for_each(|index| rig.end_stall(index));
    assert!(matches!(rig.outcome(), Some(Outcome::Extend(Ok(_)))));
    assert_eq!((rig.outcome(), failure(&mut rig)), (None, None));
    assert!(renewal(&mut rig, lock).is_ok(), "the next one is");
}

// I96
#[test]
fn longest_hold_is_reported_before_the_end() {
    // The last renewal is cut to the longest hold, or is left out.
    for (max_hold, renewal_count) in [(11_000, 1), (5000, 0)] {
        let (mut rig, lock) = keep_observed(ms(max_hold));
        for _ in 0..renewal_count {
            assert!(renewal(&mut rig, lock).is_ok());
        }
        let limit = ExtendError::HoldLimit { max_hold: ms(max_hold) };
        assert_eq!(renewal(&mut rig, lock), Err(limit));
        assert!(rig.engine.valid_until(lock).is_some_and(|until| until > rig.now));
        rig.run_for(ms(30_000));
        assert_eq!((rig.outcome(), failure(&mut rig)), (None, None));
    }
}

// I96
#[test]
fn renewal_after_long_pause_is_reported_expired() {
    let (mut rig, lock) = keep_observed(ms(600_000));
    rig.jump(ms(20_000));
    assert_eq!(renewal(&mut rig, lock), Err(ExtendError::Expired));
    rig.run_for(ms(30_000));
    assert_eq!((rig.outcome(), failure(&mut rig)), (None, None));
}

#[test]
fn zero_max_hold_refuses_renewal() {
    let mut rig = Rig::new(3, |builder| builder.max_hold(Duration::ZERO));
    let lock = rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    let handle = rig.engine.pass(rig.now, Duration::from_secs(1), lock, ms(10_000)).expect("held");
    let (resource, auto_extend) = (Resource::new("b").expect("valid"), Some(ms(60_000)));
    let options = Options::new().auto_extend(ms(60_000));
    for request in [
        Request::Acquire { resource, options, label: None },
        Request::ByHandle { handle: &handle, act: HandleAct::Adopt { auto_extend } },
    ] {
        let refused = rig.engine.submit(rig.now, request);
        assert_eq!(refused, Err(SubmitError::Input(InputError::MaxHoldZero)));
    }
}

#[test]
fn kept_lock_is_renewed_after_longer_extension() {
    let mut rig = Rig::new(3, defaults);
    let lock = keep(&mut rig, 3000, ms(600_000));
    rig.extend(lock, 30_000);
    assert!(matches!(rig.outcome(), Some(Outcome::Extend(Ok(_)))));
    // A third of the TTL after the moment at which a renewal to 3 s would have given this validity.
    let due = rig.engine.valid_until(lock).expect("it is held") - (ms(3000) - ms(32)) + ms(1000);
    rig.run_for(due - ms(1) - rig.now);
    assert_eq!(extension_count(&rig), 1);
    rig.run_for(ms(1));
    assert_eq!(extension_count(&rig), 2);
    rig.run_for(ms(60_000));
    assert!(rig.engine.valid_until(lock).is_some_and(|until| until > rig.now));
}

#[test]
fn the_configured_longest_hold_is_used_up() {
    let mut rig = Rig::new(3, |builder| builder.max_hold(ms(11_000)));
    let start = rig.now;
    let lock = keep(&mut rig, 10_000, ms(600_000));
    rig.run_for(ms(20_000));
    let until = rig.engine.valid_until(lock).expect("it is not released");
    assert!(until <= start + ms(11_000) && until >= start + ms(10_897), "{:?}", until - start);
}

#[test]
fn a_lock_is_losing_in_its_last_tenth() {
    let mut rig = Rig::new(3, defaults);
    let lock = rig.acquire("a", 10_000, 0);
    let valid_until = granted(&mut rig).valid_until;
    let begin = valid_until - (valid_until - rig.now) / 10;
    let is_losing = |at| rig.engine.is_losing(at, lock);
    assert!(!is_losing(begin - ms(1)) && is_losing(begin) && is_losing(valid_until));
}

#[test]
fn the_longest_hold_counts_from_the_request() {
    let mut rig = Rig::new(3, |builder| builder.on_event(|_| unreachable!("an engine calls none")));
    (0..3).for_each(|index| rig.stall_replies(index));
    let options = Options::new().ttl(ms(10_000)).wait(Duration::ZERO).auto_extend(ms(15_000));
    let lock = rig.acquire_with("a", options);
    rig.run_for(ms(40));
    rig.end_stalls();
    granted(&mut rig);
    let limit = loop {
        if let Err(error) = renewal(&mut rig, lock) {
            break error;
        }
    };
    assert_eq!(limit, ExtendError::HoldLimit { max_hold: ms(15_000) });
}

#[test]
fn locks_acquired_together_are_renewed_apart() {
    let mut rig = Rig::new(1, defaults);
    let options = Options::new().ttl(ms(10_000)).wait(Duration::ZERO).auto_extend(ms(600_000));
    for index in 0..20 {
        rig.acquire_with(&format!("a{index}"), options);
        granted(&mut rig);
    }
    let counts: Vec<usize> = (0..1000)
        .map(|_| {
            let before = extension_count(&rig);
            rig.run_for(ms(4));
            extension_count(&rig) - before
        })
        .collect();
    assert_eq!(counts.iter().sum::<usize>(), 20);
    assert!(counts.iter().all(|count| *count < 10), "{counts:?}");
}
