//! Locks that end by themselves: left to their TTL, or kept for a least time.

use std::time::Duration;

use crate::rig::Rig;
use redlatch::engine::{OpId, Outcome, Request, SubmitError};
use redlatch::{Event, ExtendError, HeldBy, HeldLocks, InputError, LeaveError, Options, ReleaseError};

use crate::{defaults, denied, granted, ms};

fn hold(rig: &mut Rig, ttl_ms: u64) -> OpId {
    let lock = rig.acquire("a", ttl_ms, 0);
    granted(rig);
    lock
}

fn release_after(rig: &mut Rig, lock: OpId, hold_at_least: Duration) {
    let request = Request::ReleaseAfter { lock, hold_at_least, awaited: true };
    rig.engine.submit(rig.now, request).expect("always taken");
    rig.pump();
}

/// The key is on all masters so long, and on none a moment later.
#[track_caller]
fn assert_ends_after(rig: &mut Rig, time: Duration) {
    rig.advance(time - ms(5));
    assert_eq!(rig.holder_count("a"), 3, "it lasts");
    rig.advance(ms(10));
    assert_eq!(rig.holder_count("a"), 0, "it ends");
    let nothing = (rig.engine.operation_count(), rig.engine.claim_count());
    assert_eq!(nothing, (0, 0), "nothing is left behind");
}

#[test]
fn a_left_lock_sends_nothing_and_ends_by_its_ttl() {
    let mut rig = Rig::new(3, |builder| builder.on_event(|_| {}));
    let options = Options::new().ttl(ms(9000)).wait(Duration::ZERO).auto_extend(Duration::from_secs(60));
    let lock = rig.acquire_with("a", options);
    granted(&mut rig);
    rig.masters.iter_mut().for_each(|master| drop(master.take_log()));
    let valid_until = rig.engine.valid_until(lock);
    assert_eq!(rig.engine.leave(rig.now, lock).ok(), valid_until);
    assert_eq!((rig.engine.valid_until(lock), rig.engine.operation_count()), (None, 0));
    assert_eq!(rig.engine.leave(rig.now, lock), Err(LeaveError::NotHeld));
    assert_ends_after(&mut rig, ms(9000));
    let sent: Vec<String> = rig.masters.iter_mut().flat_map(|master| master.take_log()).collect();
    let is_about_locks =
        |line: &&String| line.contains("SET") || line.contains("EVAL") || line.contains("DEL");
    assert_eq!(sent.iter().find(is_about_locks), None, "neither a release nor a renewal");
    let stats = rig.engine.stats(rig.now);
    assert_eq!((stats.left, stats.released, stats.lost, stats.held()), (1, 0, 0, 0));
    let is_left = |event: Event| matches!(event, Event::Left { resource, .. } if resource == "a");
    assert!(std::iter::from_fn(|| rig.engine.poll_event()).any(is_left));
}

#[test]
fn a_lost_lock_cannot_be_left() {
    let mut rig = Rig::new(3, defaults);
    let lock = hold(&mut rig, 1000);
    rig.advance(ms(1100));
    assert_eq!(rig.engine.leave(rig.now, lock), Err(LeaveError::Expired));
    rig.release(lock, true);
    assert!(matches!(rig.outcome(), Some(Outcome::Release(Ok(it))) if it.was_already_gone()));
    assert_eq!((rig.engine.stats(rig.now).lost, rig.engine.stats(rig.now).left), (1, 0));
    assert_eq!((rig.engine.operation_count(), rig.engine.claim_count()), (0, 0));
}

#[test]
fn a_grant_that_comes_after_the_leave_is_part_of_the_lock() {
    let mut rig = Rig::new(3, defaults);
    rig.hold(2);
    let lock = hold(&mut rig, 5000);
    rig.engine.leave(rig.now, lock).expect("held");
    rig.deliver(2);
    assert_ends_after(&mut rig, ms(5000));
}

#[test]
fn a_waiter_gets_a_left_lock_after_its_ttl() {
    let mut rig = Rig::new(3, defaults);
    let lock = hold(&mut rig, 3000);
    let waiting = rig.acquire("a", 5000, 60_000);
    rig.engine.leave(rig.now, lock).expect("held");
    rig.advance(ms(2990));
    assert_eq!(rig.outcome(), None, "it is not handed over");
    rig.advance(ms(200));
    granted(&mut rig);
    rig.release(waiting, false);
    rig.outcomes.clear();
    // A waiter that gives up before hears of a holder that this client does not know any more.
    let lock = hold(&mut rig, 9000);
    rig.acquire("a", 5000, 300);
    rig.engine.leave(rig.now, lock).expect("held");
    rig.advance(ms(400));
    match denied(&mut rig) {
        redlatch::AcquireError::Contended(denial) => assert_eq!(denial.held_by, HeldBy::AnotherClient),
        other => panic!("{other}"),
    }
}

#[test]
fn a_lock_is_held_for_its_least_time() {
    for (ttl_ms, used_ms, least_ms) in
        [(1000, 300, 5000), (9000, 300, 2000), (9000, 300, 303), (1000, 0, 1000)]
    {
        let mut rig = Rig::new(3, defaults);
        let lock = hold(&mut rig, ttl_ms);
        rig.advance(ms(used_ms));
        release_after(&mut rig, lock, ms(least_ms));
        let Some(Outcome::Release(Ok(released))) = rig.outcome() else { panic!("no answer") };
        assert!(released.is_kept && !released.was_already_gone());
        assert_eq!(rig.engine.valid_until(lock), None, "nobody holds it any more");
        // The shortest TTL is 6 ms.
        assert_ends_after(&mut rig, ms(least_ms - used_ms).max(ms(6)));
        assert_eq!((rig.engine.stats(rig.now).left, rig.engine.stats(rig.now).lost), (1, 0));
    }
}

#[test]
fn a_lock_used_for_longer_is_released_at_once() {
    for least_ms in [0, 200, 300] {
        let mut rig = Rig::new(3, defaults);
        let lock = hold(&mut rig, 5000);
        rig.advance(ms(300));
        release_after(&mut rig, lock, ms(least_ms));
        let Some(Outcome::Release(Ok(released))) = rig.outcome() else { panic!("no answer") };
        assert!(!released.is_kept && released.deleted >= 2, "{released:?}");
        assert_eq!(rig.holder_count("a"), 0);
    }
}

#[test]
fn a_least_time_beyond_max_ttl_is_renewed() {
    let mut rig = Rig::new(3, |builder| builder.max_ttl(ms(3000)));
    let lock = hold(&mut rig, 1000);
    release_after(&mut rig, lock, ms(20_000));
    assert!(matches!(rig.outcome(), Some(Outcome::Release(Ok(it))) if it.is_kept));
    rig.advance(ms(10_000));
    assert_eq!((rig.holder_count("a"), rig.engine.operation_count()), (3, 1));
    assert_eq!(rig.outcome(), None, "nobody is told of renewals");
    assert_ends_after(&mut rig, ms(10_000));
}

#[test]
fn a_least_time_survives_masters_that_fail_for_a_while() {
    let mut rig = Rig::new(3, |builder| builder.max_ttl(ms(3000)));
    let lock = hold(&mut rig, 2000);
    [0, 1].into_iter().for_each(|master| rig.stop(master));
    release_after(&mut rig, lock, ms(20_000));
    rig.advance(ms(200));
    let answer = rig.outcome();
    assert!(matches!(answer, Some(Outcome::Release(Err(ReleaseError::NotKept(_))))), "{answer:?}");
    [0, 1].into_iter().for_each(|master| rig.resume(master));
    assert_ends_after(&mut rig, ms(19_800));
}

#[test]
fn a_kept_lock_can_be_released_at_last() {
    let mut rig = Rig::new(3, |builder| builder.max_ttl(ms(3000)));
    let lock = hold(&mut rig, 1000);
    release_after(&mut rig, lock, ms(20_000));
    rig.outcomes.clear();
    rig.extend(lock, 500);
    assert_eq!(rig.outcome(), Some(Outcome::Extend(Err(ExtendError::NotHeld))));
    rig.release(lock, true);
    assert!(matches!(rig.outcome(), Some(Outcome::Release(Ok(it))) if it.deleted >= 2));
    let stats = rig.engine.stats(rig.now);
    assert_eq!((stats.left, stats.released, stats.lost, rig.holder_count("a")), (1, 0, 0, 0));
}

#[test]
fn a_waiter_behind_a_kept_lock_waits_for_its_end() {
    let mut rig = Rig::new(3, |builder| builder.max_ttl(ms(3000)));
    let lock = hold(&mut rig, 1000);
    rig.acquire("a", 1000, 60_000);
    release_after(&mut rig, lock, ms(8000));
    rig.outcomes.clear();
    rig.advance(ms(7990));
    assert_eq!(rig.outcome(), None);
    rig.advance(ms(300));
    granted(&mut rig);
}

#[test]
fn a_least_time_may_be_the_longest_hold() {
    for (max_ttl, at_least) in [(20_000, 10_000), (3000, 10_000)] {
        let mut rig = Rig::new(3, |builder| builder.max_ttl(ms(max_ttl)).max_hold(ms(at_least)));
        let lock = hold(&mut rig, 1000);
        // The rest is no whole number of milliseconds, and is rounded up.
        rig.advance(Duration::from_micros(100_300));
        release_after(&mut rig, lock, ms(at_least));
        assert!(matches!(rig.outcome(), Some(Outcome::Release(Ok(it))) if it.is_kept));
        assert_ends_after(&mut rig, ms(at_least) - Duration::from_micros(100_300));
    }
}

#[test]
fn a_least_time_above_max_hold_is_refused() {
    let mut rig = Rig::new(3, |builder| builder.max_hold(ms(60_000)));
    let options = Options::new().hold_at_least(ms(60_001));
    let resource = redlatch::engine::Resource::new("a").expect("valid");
    let refused = rig.engine.submit(rig.now, Request::Acquire { resource, options, label: None });
    let expected = InputError::HoldAtLeastTooLong { asked: ms(60_001), max_hold: ms(60_000) };
    assert_eq!(refused, Err(SubmitError::Input(expected)));
}

#[test]
fn each_mode_of_a_lock_can_be_left_and_kept() {
    let plain = Options::new().ttl(ms(2000)).wait(ms(1000));
    for options in [plain, plain.fenced(), plain.fair(), plain.shared()] {
        for is_kept in [false, true] {
            let mut rig = Rig::new(3, defaults);
            let lock = rig.acquire_with("a", options);
            granted(&mut rig);
            if is_kept {
                release_after(&mut rig, lock, ms(5000));
                assert!(matches!(rig.outcome(), Some(Outcome::Release(Ok(it))) if it.is_kept));
            } else {
                rig.engine.leave(rig.now, lock).expect("held");
            }
            assert_eq!(rig.engine.operation_count(), 0, "{options:?}, kept: {is_kept}");
            let lasts_ms = if is_kept { 4990 } else { 1990 };
            rig.advance(ms(lasts_ms));
            rig.acquire("a", 1000, 0);
            denied(&mut rig);
            rig.advance(ms(60));
            rig.acquire("a", 1000, 0);
            granted(&mut rig);
        }
    }
}

#[test]
fn a_drain_leaves_kept_locks_to_their_ttl() {
    for is_released_first in [true, false] {
        let mut rig = Rig::new(3, |builder| builder.max_ttl(ms(3000)));
        let lock = hold(&mut rig, 1000);
        let drain = Request::Drain { held: HeldLocks::Leave, limit: ms(2000) };
        if is_released_first {
            release_after(&mut rig, lock, ms(20_000));
            rig.engine.submit(rig.now, drain).expect("room");
        } else {
            rig.engine.submit(rig.now, drain).expect("room");
            release_after(&mut rig, lock, ms(20_000));
        }
        rig.outcomes.clear();
        rig.advance(ms(500));
        assert!(matches!(rig.outcome(), Some(Outcome::Drained(0))), "it holds nobody up");
        assert_ends_after(&mut rig, ms(2500));
    }
}
