//! Locks that are given up without a release: left to their TTL, or for a time.

use std::time::Duration;

use crate::parked::{free, with_other};
use crate::rig::Rig;
use redlatch::engine::{OpId, Outcome, Request};
use redlatch::error::{HeldBy, InputError, LeaveError, Vote};
use redlatch::{Event, ExtendError, HeldLocks, Left, Options, limits};

use crate::{defaults, denied, granted, ms};

fn hold(rig: &mut Rig, ttl_ms: u64) -> OpId {
    let lock = rig.acquire("a", ttl_ms, 0);
    granted(rig);
    lock
}

fn submit_leave(rig: &mut Rig, lock: OpId, rest: Duration) {
    rig.engine.submit(rig.now, Request::LeaveFor { lock, rest }).expect("always taken");
    rig.pump();
}

fn result(rig: &mut Rig) -> Result<Left, LeaveError> {
    match rig.outcome() {
        Some(Outcome::Leave(result)) => result,
        other => panic!("not left, but {other:?}"),
    }
}

fn leave_for(rig: &mut Rig, lock: OpId, rest: Duration) -> Result<Left, LeaveError> {
    submit_leave(rig, lock, rest);
    result(rig)
}

/// All masters have the key for this time, and none has it a moment later.
#[track_caller]
fn assert_ends_after(rig: &mut Rig, time: Duration) {
    rig.run_for(time - ms(5));
    assert_eq!(rig.holder_count("a"), 3, "it lasts");
    rig.run_for(ms(10));
    assert_eq!(rig.holder_count("a"), 0, "it ends");
    let nothing = (rig.engine.operation_count(), rig.engine.claim_count());
    assert_eq!(nothing, (0, 0), "nothing is left behind");
}

// I42
#[test]
fn left_lock_sends_nothing_until_its_ttl() {
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

// I42
#[test]
fn late_grant_belongs_to_the_left_lock() {
    let mut rig = Rig::new(3, defaults);
    rig.stall_replies(2);
    let lock = hold(&mut rig, 5000);
    rig.engine.leave(rig.now, lock).expect("held");
    rig.end_stall(2);
    assert_ends_after(&mut rig, ms(5000));
}

// I42
#[test]
fn waiter_gets_left_lock_after_its_ttl() {
    let mut rig = Rig::new(3, defaults);
    let lock = hold(&mut rig, 3000);
    let waiting = rig.acquire("a", 5000, 60_000);
    rig.engine.leave(rig.now, lock).expect("held");
    rig.run_for(ms(2990));
    assert_eq!(rig.outcome(), None, "it is not handed over");
    rig.run_for(ms(200));
    granted(&mut rig);
    rig.release(waiting, false);
    rig.outcomes.clear();
    // A waiter that gives up earlier learns of a holder that this client has forgotten.
    let lock = hold(&mut rig, 9000);
    rig.acquire("a", 5000, 300);
    rig.engine.leave(rig.now, lock).expect("held");
    rig.run_for(ms(400));
    match denied(&mut rig) {
        redlatch::AcquireError::Contended(denial) => assert_eq!(denial.held_by, HeldBy::AnotherClient),
        other => panic!("{other}"),
    }
}

// I43
#[test]
fn leave_for_sets_the_remaining_time() {
    // Longer and shorter than the rest of the TTL. Fractions of a millisecond are rounded up.
    for (ttl_ms, rest) in [(1000, ms(5000)), (9000, ms(2000)), (9000, Duration::from_micros(700_300))] {
        let mut rig = Rig::new(3, defaults);
        let lock = hold(&mut rig, ttl_ms);
        rig.run_for(ms(300));
        let left = leave_for(&mut rig, lock, rest).expect("confirmed");
        assert!(left.held_until < rig.now + rest && rig.now + rest <= left.latest_end, "{left:?}");
        assert!(left.latest_end < rig.now + rest + ms(60) && left.unanswered == 0, "{left:?}");
        assert_eq!(rig.engine.valid_until(lock), None, "nobody holds it any more");
        assert_ends_after(&mut rig, rest);
        let stats = rig.engine.stats(rig.now);
        assert_eq!((stats.left, stats.released, stats.lost, stats.orphans), (1, 0, 0, 0));
    }
}

// I43
#[test]
fn lock_left_for_no_time_is_released() {
    let mut rig = Rig::new(3, defaults);
    let lock = hold(&mut rig, 5000);
    leave_for(&mut rig, lock, Duration::ZERO).expect("confirmed");
    assert_eq!((rig.holder_count("a"), rig.engine.claim_count()), (0, 0));
}

/// Only their answers show which masters had the key, so any quorum of answers is not enough.
#[test]
fn lock_left_for_zero_awaits_a_quorum() {
    for lost_count in [1, 2] {
        let mut rig = Rig::new(3, defaults);
        let lock = hold(&mut rig, 5000);
        rig.masters[..lost_count].iter_mut().for_each(|master| master.load_keys(Default::default()));
        rig.stall_replies(2);
        submit_leave(&mut rig, lock, Duration::ZERO);
        if lost_count == 1 {
            assert_eq!(rig.outcome(), None, "one had it, and one had not");
            rig.end_stall(2);
            result(&mut rig).expect("two had it");
        } else {
            let Err(LeaveError::Lost(report)) = result(&mut rig) else { panic!("two had it not") };
            assert_eq!(report.votes[2].1, Vote::Pending, "it has time left");
            rig.end_stall(2);
        }
        assert_eq!((rig.holder_count("a"), rig.engine.claim_count()), (0, 0));
    }
}

/// The shortest TTL at the largest drift allowance.
#[test]
fn a_short_rest_lasts_for_six_milliseconds() {
    let ends = [1, 6, 7].map(|rest| {
        let mut rig = Rig::new(3, defaults);
        let lock = hold(&mut rig, 9000);
        let left = leave_for(&mut rig, lock, ms(rest)).expect("confirmed");
        left.latest_end - rig.now
    });
    assert!(ends[0] == ends[1] && ends[1] < ends[2], "{ends:?}");
}

#[test]
fn lock_can_be_left_for_the_longest_ttl() {
    let mut rig = Rig::new(3, defaults);
    let lock = hold(&mut rig, 5000);
    leave_for(&mut rig, lock, ms(30_000)).expect("it is allowed");
    assert_ends_after(&mut rig, ms(30_000));
}

// I43
#[test]
fn failed_leave_does_not_change_the_lock() {
    let mut rig = Rig::new(3, defaults);
    let lock = hold(&mut rig, 5000);
    let too_long = leave_for(&mut rig, lock, ms(30_001));
    assert_eq!(too_long, Err(InputError::TtlTooLong { ttl: ms(30_001), max_ttl: ms(30_000) }.into()));
    assert!(rig.engine.valid_until(lock).is_some_and(|end| rig.now < end));
    rig.run_for(ms(5000));
    assert_eq!(leave_for(&mut rig, lock, ms(1000)), Err(LeaveError::Expired));
    rig.release(lock, true);
    assert!(matches!(rig.outcome(), Some(Outcome::Release(Ok(_)))));
    assert_eq!(leave_for(&mut rig, lock, ms(1000)), Err(LeaveError::NotHeld));
    assert_eq!((rig.engine.operation_count(), rig.engine.claim_count()), (0, 0));
}

// I43
#[test]
fn a_lock_is_left_for_a_time_once() {
    let mut rig = Rig::new(3, defaults);
    let lock = hold(&mut rig, 5000);
    submit_leave(&mut rig, lock, ms(2000));
    assert_eq!(leave_for(&mut rig, lock, ms(0)).map(drop), Ok(()));
    assert_eq!(result(&mut rig), Err(LeaveError::NotHeld));
    rig.extend(lock, 500);
    assert_eq!(rig.outcome(), Some(Outcome::Extend(Err(ExtendError::NotHeld))));
    rig.release(lock, true);
    assert!(matches!(rig.outcome(), Some(Outcome::Release(Ok(it))) if it.was_already_gone()));
    assert_ends_after(&mut rig, ms(2000));
}

/// One master answers the rest after another master, which was away, was sent it.
// I43
#[test]
fn late_shortened_ttl_keeps_an_earlier_one() {
    let mut rig = Rig::new(3, |builder| builder.answer_timeout(ms(5000)));
    let lock = hold(&mut rig, 8000);
    rig.stop_master(0);
    rig.refuse(1, true);
    rig.reset_conn(1);
    submit_leave(&mut rig, lock, ms(3000));
    rig.refuse(1, false);
    rig.run_for(ms(1000));
    assert_eq!(rig.outcome(), None, "the other one may still answer");
    rig.resume_master(0);
    result(&mut rig).expect("all masters have the rest");
    assert_eq!(rig.engine.claim_count(), 0, "nothing is owed");
}

/// The connections of two masters break while an extension is on its way to them.
// I43
#[test]
fn a_broken_shorter_extension_confirms_no_rest() {
    let mut rig = Rig::new(3, defaults);
    let lock = hold(&mut rig, 8000);
    (0..2).for_each(|index| rig.stop_master(index));
    rig.extend(lock, 1500);
    let late: Vec<Vec<u8>> = (0..2).map(|index| rig.break_conn(index)).collect();
    (0..2).for_each(|index| rig.resume_master(index));
    rig.run_for(ms(300));
    assert!(matches!(rig.outcome(), Some(Outcome::Extend(_))));
    submit_leave(&mut rig, lock, ms(5000));
    rig.run_for(ms(200));
    let left = result(&mut rig);
    // The client sends nothing more.
    (0..3).for_each(|index| rig.stop_master(index));
    for (index, bytes) in late.into_iter().enumerate() {
        rig.carry_out(index, bytes);
    }
    rig.run_for(ms(1600));
    assert_eq!(rig.holder_count("a"), 1, "the others carried the extension out after the rest");
    assert!(matches!(left, Err(LeaveError::Unconfirmed { .. })), "{left:?}");
}

#[test]
fn shortened_ttl_after_its_end_blocks_nobody() {
    let mut rig = Rig::new(3, defaults);
    let lock = hold(&mut rig, 8000);
    (0..2).for_each(|index| rig.stop_master(index));
    submit_leave(&mut rig, lock, ms(5000));
    let late: Vec<Vec<u8>> = (0..2).map(|index| rig.break_conn(index)).collect();
    (0..2).for_each(|index| rig.resume_master(index));
    assert!(matches!(result(&mut rig), Err(LeaveError::Unconfirmed { .. })));
    rig.run_for(ms(4000));
    // The first extension is carried out only now, after the rest over the next connection.
    for (index, bytes) in late.into_iter().enumerate() {
        rig.carry_out(index, bytes);
    }
    rig.run_for(ms(1500));
    assert_eq!(rig.holder_count("a"), 0, "released when the time is over");
}

// I43
#[test]
fn an_answered_shorter_extension_confirms_the_rest() {
    let mut rig = Rig::new(3, defaults);
    let lock = hold(&mut rig, 8000);
    (0..2).for_each(|index| rig.stall_replies(index));
    rig.extend(lock, 1500);
    submit_leave(&mut rig, lock, ms(5000));
    (0..2).for_each(|index| rig.end_stall(index));
    assert_eq!(rig.outcome(), Some(Outcome::Extend(Err(ExtendError::NotHeld))));
    result(&mut rig).expect("confirmed");
    assert_ends_after(&mut rig, ms(5000));
}

/// Two masters do not know the extension's script, but know it when the rest comes.
// I43
#[test]
fn an_extension_never_follows_the_rest() {
    let mut rig = Rig::new(3, defaults);
    let lock = hold(&mut rig, 8000);
    (0..2).for_each(|index| rig.stall_replies(index));
    rig.masters.iter_mut().for_each(|master| master.flush_scripts());
    rig.extend(lock, 20_000);
    rig.masters.iter_mut().for_each(|master| master.load_scripts());
    submit_leave(&mut rig, lock, ms(1000));
    (0..2).for_each(|index| rig.end_stall(index));
    assert_ends_after(&mut rig, ms(1000));
}

/// Masters ask for the script at the very moment at which the time ends.
#[test]
fn no_shortened_ttl_is_sent_after_its_end() {
    let mut rig = Rig::new(3, defaults);
    let lock = hold(&mut rig, 8000);
    rig.masters.iter_mut().for_each(|master| master.flush_scripts());
    (0..3).for_each(|index| rig.stall_replies(index));
    submit_leave(&mut rig, lock, ms(1000));
    rig.masters.iter_mut().for_each(|master| drop(master.take_log()));
    rig.jump(ms(1000));
    rig.end_stalls();
    let logs: Vec<_> = rig.masters.iter_mut().map(|master| master.take_log()).collect();
    assert_eq!(logs, vec![["EVALSHA", "EVAL"]; 3], "the release, and nothing else");
    assert_eq!(rig.holder_count("a"), 0);
}

// I43
#[test]
fn latest_end_counts_each_rest_from_its_answer() {
    let mut rig = Rig::new(3, |builder| builder.answer_timeout(ms(500)));
    let lock = hold(&mut rig, 8000);
    rig.refuse(2, true);
    rig.reset_conn(2);
    (0..2).for_each(|index| rig.stop_master(index));
    submit_leave(&mut rig, lock, ms(9000));
    rig.run_for(ms(150));
    (0..2).for_each(|index| rig.resume_master(index));
    let left = result(&mut rig).expect("a quorum has the rest");
    rig.run_for(ms(8999));
    assert_eq!(rig.holder_count("a"), 2);
    assert!(rig.now < left.latest_end, "{:?} too early", rig.now - left.latest_end);
}

/// The third master has another client's key, and this lock's entry behind it.
#[test]
fn latest_end_counts_a_servable_entry() {
    let mut rig = with_other(Rig::new(3, defaults));
    let lock = rig.acquire("a", 8000, 60_000);
    rig.run_for(ms(100));
    (0..2).for_each(|index| free(&mut rig, index));
    rig.pump();
    granted(&mut rig);
    let parked_at = rig.now - ms(100);
    let left = leave_for(&mut rig, lock, ms(1000)).expect("a quorum has the rest");
    assert!(left.latest_end >= parked_at + limits::STAY + ms(8000), "{:?}", left.latest_end - rig.now);
}

/// The answers arrive within the rest's time, but after the lock's validity.
#[test]
fn late_confirmation_of_shortened_ttl_proves_nothing() {
    let mut rig = Rig::new(3, defaults);
    let lock = hold(&mut rig, 8000);
    let valid_until = rig.engine.valid_until(lock).expect("held");
    rig.run_for(valid_until - rig.now - ms(10));
    (0..3).for_each(|index| rig.stall_replies(index));
    submit_leave(&mut rig, lock, ms(2000));
    rig.run_for(ms(20));
    rig.end_stalls();
    assert!(matches!(result(&mut rig), Err(LeaveError::Unconfirmed { .. })));
}

#[test]
fn leave_without_connections_ends_at_once() {
    let mut rig = Rig::new(3, defaults);
    let lock = hold(&mut rig, 8000);
    for index in 0..3 {
        rig.refuse(index, true);
        rig.reset_conn(index);
    }
    assert!(matches!(leave_for(&mut rig, lock, ms(2000)), Err(LeaveError::Unconfirmed { .. })));
}

// I43
#[test]
fn latest_end_counts_a_late_extension() {
    let mut rig = Rig::new(3, defaults);
    let lock = hold(&mut rig, 8000);
    rig.stop_master(0);
    rig.refuse(0, true);
    rig.extend(lock, 30_000);
    let late = rig.break_conn(0);
    assert!(matches!(rig.outcome(), Some(Outcome::Extend(Ok(_)))));
    let left = leave_for(&mut rig, lock, ms(2000)).expect("a quorum has the rest");
    rig.run_for(ms(7900));
    rig.carry_out(0, late);
    rig.run_for(ms(29_900));
    assert_eq!(rig.holder_count("a"), 1);
    assert!(rig.now < left.latest_end, "{:?} too early", rig.now - left.latest_end);
}

// I43
#[test]
fn fair_lock_left_for_no_time_serves_waiter() {
    let mut rig = Rig::new(3, defaults);
    let options = Options::new().ttl(ms(8000)).wait(ms(60_000)).fair();
    let lock = rig.acquire_with("a", options);
    granted(&mut rig);
    rig.acquire_with("a", options);
    rig.run_for(ms(100));
    submit_leave(&mut rig, lock, Duration::ZERO);
    // A master's message to the waiter may arrive before the release's answer.
    granted(&mut rig);
    result(&mut rig).expect("confirmed");
}

/// Cases differ in the rest, and in whether the masters have lost the key.
// I43
#[test]
fn leave_is_counted_by_its_result() {
    for (rest_ms, is_lost, expected) in
        [(0, false, (1, 0, 0)), (1000, false, (0, 1, 0)), (1000, true, (0, 0, 1))]
    {
        let mut rig = Rig::new(3, |builder| builder.on_event(|_| {}));
        let lock = hold(&mut rig, 8000);
        let others = rig.now + ms(1);
        if is_lost {
            rig.masters.iter_mut().for_each(|master| master.put(b"a", b"another value", Some(others)));
        }
        rig.run_for(ms(10));
        assert_eq!(leave_for(&mut rig, lock, ms(rest_ms)).is_err(), is_lost);
        let stats = rig.engine.stats(rig.now);
        assert_eq!((stats.released, stats.left, stats.lost), expected);
        let ends: Vec<(bool, bool, bool)> = std::iter::from_fn(|| rig.engine.poll_event())
            .filter_map(|event| match event {
                Event::Released { held, .. } if held == ms(10) => Some((true, false, false)),
                Event::Left { held, .. } if held == ms(10) => Some((false, true, false)),
                Event::Lost { held, .. } if held == ms(10) => Some((false, false, true)),
                _ => None,
            })
            .collect();
        assert_eq!(ends, [(expected.0 == 1, expected.1 == 1, expected.2 == 1)]);
    }
}

// I43
#[test]
fn lock_lost_on_masters_is_not_left() {
    let mut rig = Rig::new(3, defaults);
    let lock = hold(&mut rig, 8000);
    let others = rig.now + ms(1);
    (0..2).for_each(|index| rig.masters[index].put(b"a", b"another value", Some(others)));
    assert!(matches!(leave_for(&mut rig, lock, ms(2000)), Err(LeaveError::Lost(_))));
    rig.run_for(ms(2010));
    assert_eq!((rig.holder_count("a"), rig.engine.claim_count()), (0, 0));
}

// I43
#[test]
fn waiter_waits_for_a_left_locks_end() {
    let mut rig = Rig::new(3, defaults);
    let lock = hold(&mut rig, 1000);
    rig.acquire("a", 1000, 60_000);
    leave_for(&mut rig, lock, ms(8000)).expect("confirmed");
    rig.run_for(ms(7990));
    assert_eq!(rig.outcome(), None);
    rig.run_for(ms(300));
    granted(&mut rig);
}

// I42
#[test]
fn each_mode_of_a_lock_can_be_left() {
    let plain = Options::new().ttl(ms(2000)).wait(ms(1000));
    for options in [plain, plain.fenced(), plain.fair(), plain.shared()] {
        for rest_ms in [None, Some(5000)] {
            for is_forgotten in [false, true] {
                let mut rig = Rig::new(3, defaults);
                let lock = rig.acquire_with("a", options);
                granted(&mut rig);
                if is_forgotten {
                    rig.masters.iter_mut().for_each(|master| master.flush_scripts());
                }
                match rest_ms {
                    Some(rest_ms) => drop(leave_for(&mut rig, lock, ms(rest_ms)).expect("confirmed")),
                    None => drop(rig.engine.leave(rig.now, lock).expect("held")),
                }
                let nothing = (rig.engine.operation_count(), rig.engine.claim_count());
                assert_eq!(nothing, (0, 0), "{options:?}, {rest_ms:?}");
                rig.run_for(ms(rest_ms.unwrap_or(2000) - 10));
                rig.acquire("a", 1000, 0);
                denied(&mut rig);
                rig.run_for(ms(60));
                rig.acquire("a", 1000, 0);
                granted(&mut rig);
            }
        }
    }
}

// I43
#[test]
fn drain_waits_for_an_owed_rest() {
    for is_back in [true, false] {
        let mut rig = Rig::new(3, defaults);
        let lock = hold(&mut rig, 8000);
        rig.stop_master(0);
        submit_leave(&mut rig, lock, ms(1000));
        rig.run_for(ms(200));
        result(&mut rig).expect("a quorum has the rest");
        rig.engine.submit(rig.now, Request::Drain { held: HeldLocks::Leave, limit: ms(900) }).expect("room");
        if is_back {
            rig.resume_master(0);
        }
        rig.run_for(ms(1000));
        let owed = usize::from(!is_back);
        assert_eq!((rig.outcome(), rig.holder_count("a")), (Some(Outcome::Drained(owed)), owed));
    }
}

/// A master's connection breaks after its answer to the rest.
#[test]
fn master_that_set_the_rest_owes_nothing() {
    let mut rig = Rig::new(3, defaults);
    let lock = hold(&mut rig, 8000);
    rig.stop_master(2);
    (0..2).for_each(|index| rig.stall_replies(index));
    rig.extend(lock, 1500);
    submit_leave(&mut rig, lock, ms(5000));
    rig.end_stall(0);
    rig.refuse(0, true);
    rig.reset_conn(0);
    rig.end_stall(1);
    assert_eq!(rig.outcome(), Some(Outcome::Extend(Err(ExtendError::NotHeld))));
    rig.run_for(ms(200));
    result(&mut rig).expect("masters 0 and 1 have the rest");
}

/// A release waits for the backlog. A leave does not, because its rest shrinks meanwhile.
#[test]
fn leave_ends_at_its_limit_despite_backlog() {
    let mut rig = Rig::new(3, defaults);
    let lock = hold(&mut rig, 10_000);
    (0..3).for_each(|index| rig.stall_replies(index));
    for index in 0..1200 {
        rig.submit_acquire(&index.to_string(), 10_000, 0);
    }
    rig.pump();
    submit_leave(&mut rig, lock, ms(5000));
    (0..3).for_each(|index| rig.deliver_some(index, b"+OK\r\n".len()));
    rig.run_for(ms(30));
    (0..3).for_each(|index| rig.deliver_some(index, b"+OK\r\n".len()));
    rig.run_for(ms(20));
    let is_left = |outcome: &(OpId, Outcome)| matches!(outcome.1, Outcome::Leave(Err(_)));
    assert!(rig.outcomes.iter().any(is_left), "{} outcomes", rig.outcomes.len());
}
