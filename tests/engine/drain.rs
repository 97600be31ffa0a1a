//! Drains, while renewals and extensions are under way.

use std::time::Duration;

use redlatch::engine::{HandleAct, HolderLabel, OpId, Outcome, Request, Resource, SubmitError};
use redlatch::{AcquireError, ExtendError, HeldLocks, Options};

use crate::rig::Rig;
use crate::{defaults, granted, ms};

const TTL_MS: u64 = 3000;
/// The wall clock, for handles.
const WALL: Duration = Duration::from_secs(1_700_000_000);

fn options() -> Options {
    Options::new().ttl(ms(TTL_MS)).wait(Duration::ZERO)
}

fn hold(rig: &mut Rig, name: &str, options: Options) -> OpId {
    let lock = rig.acquire_with(name, options);
    granted(rig);
    lock
}

fn watch(rig: &mut Rig, lock: OpId) {
    rig.engine.submit(rig.now, Request::NotifyLoss { lock }).expect("always taken");
}

fn drain(rig: &mut Rig, held: HeldLocks) -> OpId {
    rig.engine.submit(rig.now, Request::Drain { held, limit: ms(60_000) }).expect("room")
}

/// The drain needs no master's answer, and none comes.
#[test]
fn a_drain_notifies_watchers_before_any_answer() {
    let mut rig = Rig::new(3, defaults);
    let plain = hold(&mut rig, "a", options());
    let kept = hold(&mut rig, "b", options().auto_extend(ms(600_000)));
    let unwatched = hold(&mut rig, "c", options());
    [plain, kept].into_iter().for_each(|lock| watch(&mut rig, lock));
    (0..3).for_each(|index| rig.stop_master(index));
    drain(&mut rig, HeldLocks::Release);
    while let Some(outcome) = rig.engine.poll_outcome() {
        rig.outcomes.push_back(outcome);
    }
    let lost = Outcome::Lost(rig.now);
    assert_eq!(rig.outcomes, [(plain, lost.clone()), (kept, lost)], "at once, and once");
    for lock in [plain, kept, unwatched] {
        assert_eq!(rig.engine.valid_until(lock), None);
    }
}

/// A lock is kept, extended or neither, and the answer comes or does not.
#[test]
fn a_drain_releases_locks_that_are_being_extended() {
    for is_kept in [false, true] {
        for is_answered in [false, true] {
            let mut rig = Rig::new(3, defaults);
            let options = if is_kept { options().auto_extend(ms(600_000)) } else { options() };
            let lock = hold(&mut rig, "a", options);
            (0..3).for_each(|index| rig.stall_replies(index));
            match is_kept {
                // The renewal is under way.
                true => rig.run_for(ms(TTL_MS / 3)),
                false => rig.extend(lock, TTL_MS),
            }
            let drain = drain(&mut rig, HeldLocks::Release);
            rig.pump();
            let ended = Outcome::Extend(Err(ExtendError::NotHeld));
            let expected = if is_kept { vec![] } else { vec![(lock, ended)] };
            assert_eq!(std::mem::take(&mut rig.outcomes), expected, "kept {is_kept}");
            if is_answered {
                rig.end_stalls();
            } else {
                (0..3).for_each(|index| rig.reset_conn(index));
                (0..3).for_each(|index| rig.end_stall(index));
            }
            rig.run_for(ms(4000));
            assert_eq!(rig.outcomes, [(drain, Outcome::Drained(0))], "kept {is_kept}, {is_answered}");
            let left = (rig.holder_count("a"), rig.engine.operation_count(), rig.engine.claim_count());
            assert_eq!(left, (0, 0, 0), "kept {is_kept}, {is_answered}");
        }
    }
}

#[test]
fn drain_renews_kept_locks_until_release() {
    let mut rig = Rig::new(3, defaults);
    let lock = hold(&mut rig, "a", options().auto_extend(ms(600_000)));
    let drain = drain(&mut rig, HeldLocks::Leave);
    rig.run_for(ms(10 * TTL_MS));
    assert_eq!((rig.outcome(), rig.holder_count("a")), (None, 3));
    assert!(rig.engine.valid_until(lock).is_some_and(|until| until > rig.now), "it is renewed no more");
    rig.release(lock, false);
    rig.run_for(ms(100));
    assert_eq!((rig.outcomes.pop_front(), rig.holder_count("a")), (Some((drain, Outcome::Drained(0))), 0));
}

#[test]
fn a_drain_answers_each_waiter_once() {
    let mut rig = Rig::new(3, defaults);
    rig.masters.iter_mut().for_each(|master| master.put(b"a", b"other", None));
    let waiters = [(); 3].map(|()| rig.acquire("a", TTL_MS, 60_000));
    let attempting = {
        (0..3).for_each(|index| rig.stall_replies(index));
        rig.acquire("b", TTL_MS, 60_000)
    };
    drain(&mut rig, HeldLocks::Leave);
    rig.end_stalls();
    rig.run_for(ms(1000));
    for waiter in waiters.into_iter().chain([attempting]) {
        let mut answers = rig.outcomes.iter().filter(|(lock, _)| *lock == waiter);
        assert!(matches!(answers.next(), Some((_, Outcome::Acquire(Err(AcquireError::Stopped(_)))))));
        assert_eq!(answers.next(), None);
    }
    assert_eq!((rig.holder_count("b"), rig.engine.operation_count()), (0, 0));
}

/// The lock's end also ends the extension that its caller waits for.
#[test]
fn pending_extension_is_answered_when_its_lock_ends() {
    for is_left in [false, true] {
        let mut rig = Rig::new(3, defaults);
        let lock = hold(&mut rig, "a", options());
        (0..3).for_each(|index| rig.stall_replies(index));
        rig.extend(lock, TTL_MS);
        if is_left {
            rig.engine.leave(rig.now, lock).expect("held");
        } else {
            rig.release(lock, false);
        }
        rig.end_stalls();
        let ended = (lock, Outcome::Extend(Err(ExtendError::NotHeld)));
        assert_eq!(std::mem::take(&mut rig.outcomes), [ended], "left {is_left}");
        rig.run_for(ms(1000));
        assert_eq!((rig.outcome(), rig.engine.operation_count()), (None, 0), "left {is_left}");
    }
}

#[test]
fn a_hand_over_carries_the_next_holders_label() {
    let mut rig = Rig::new(3, defaults);
    let submit = |rig: &mut Rig, label: Option<&str>| {
        let resource = Resource::new("a").expect("a valid name");
        let label = label.map(|label| HolderLabel::new(label).expect("a valid label"));
        let options = Options::new().ttl(ms(TTL_MS)).wait(ms(60_000));
        let lock = rig.engine.submit(rig.now, Request::Acquire { resource, options, label }).expect("room");
        rig.pump();
        lock
    };
    let labels = [Some("job 1"), Some("job 2"), None, Some("job 3")];
    let locks = labels.map(|label| submit(&mut rig, label));
    for (lock, label) in locks.into_iter().zip(labels) {
        let grant = granted(&mut rig);
        let label = label.map_or_else(String::new, |label| format!("\t{label}"));
        let expected = [grant.token.as_bytes().as_slice(), label.as_bytes()].concat();
        for master in &rig.masters {
            assert_eq!(master.value(rig.now, b"a"), Some(expected.as_slice()));
        }
        rig.release(lock, false);
    }
    assert_eq!(rig.engine.stats(rig.now).hand_overs, 3, "each was handed over");
    assert_eq!((rig.holder_count("a"), rig.engine.claim_count()), (0, 0));
}

#[test]
fn a_drained_engine_takes_no_handle() {
    for act in [HandleAct::Adopt { auto_extend: None }, HandleAct::Release { awaited: true }] {
        let mut rig = Rig::new(3, defaults);
        let lock = hold(&mut rig, "a", options());
        let handle = rig.engine.pass(rig.now, WALL, lock, ms(TTL_MS)).expect("it is held");
        drain(&mut rig, HeldLocks::Leave);
        rig.pump();
        let submitted = rig.engine.submit(rig.now, Request::ByHandle { handle: &handle, act });
        assert!(matches!(submitted, Err(SubmitError::Stopped(_))), "{submitted:?}");
    }
}

#[test]
fn handle_release_without_connections_ends_at_once() {
    let mut rig = Rig::new(3, defaults);
    let lock = hold(&mut rig, "a", options());
    let handle = rig.engine.pass(rig.now, WALL, lock, ms(TTL_MS)).expect("it is held");
    for index in 0..3 {
        rig.refuse(index, true);
        rig.reset_conn(index);
    }
    let act = HandleAct::Release { awaited: true };
    rig.engine.submit(rig.now, Request::ByHandle { handle: &handle, act }).expect("room");
    let outcome = rig.engine.poll_outcome();
    assert!(matches!(outcome, Some((_, Outcome::Release(Err(_))))), "{outcome:?}");
}

#[test]
fn handle_release_leaves_nothing() {
    for awaited in [true, false] {
        let mut rig = Rig::new(3, defaults);
        let lock = hold(&mut rig, "a", options());
        let handle = rig.engine.pass(rig.now, WALL, lock, ms(TTL_MS)).expect("it is held");
        let act = HandleAct::Release { awaited };
        rig.engine.submit(rig.now, Request::ByHandle { handle: &handle, act }).expect("room");
        rig.run_for(ms(100));
        assert_eq!(rig.outcome().is_some(), awaited);
        let counts = (rig.engine.operation_count(), rig.engine.claim_count());
        assert_eq!((rig.holder_count("a"), counts), (0, (0, 0)), "awaited: {awaited}");
    }
}
