//! Attempts: when they are decided, what they leave behind, when they end.

use std::time::{Duration, Instant};

use crate::rig::{Rig, id, operation_count_max};
use redlatch::engine::{OpId, Outcome, Request, Resource, SubmitError};
use redlatch::error::{Failure, HeldBy, HolderTtl, InputError, Vote};
use redlatch::{AcquireError, Event, Options, limits};

use crate::{defaults, denied, granted, ms, no_quorum};

#[test]
fn a_quorum_decides_and_late_grants_add_margin() {
    let mut rig = Rig::new(5, defaults);
    (0..5).for_each(|index| rig.stall_replies(index));
    let lock = rig.acquire("a", 10_000, 0);
    rig.end_stall(0);
    rig.end_stall(1);
    assert_eq!(rig.outcome(), None, "two of five are no quorum");
    rig.end_stall(2);
    assert_eq!(granted(&mut rig).granted.count(), 3);
    assert_eq!(rig.engine.margin(lock), 0);
    rig.end_stall(3);
    rig.end_stall(4);
    assert_eq!(rig.engine.margin(lock), 2);
}

#[test]
fn the_deadline_counts_from_the_start() {
    let mut rig = Rig::new(5, |builder| builder.answer_timeout(ms(5000)));
    (0..5).for_each(|index| rig.stall_replies(index));
    let start = rig.now;
    rig.acquire("a", 10_000, 0);
    rig.run_for(ms(3000));
    (0..3).for_each(|index| rig.end_stall(index));
    assert_eq!(granted(&mut rig).valid_until, start + ms(9898));
}

#[test]
fn the_default_ttl_keeps_to_the_longest() {
    for (max_ttl, ttl) in [(2000, 2000), (60_000, 10_000)] {
        let mut rig = Rig::new(1, |builder| builder.max_ttl(ms(max_ttl)));
        rig.acquire_with("a", Options::new().wait(Duration::ZERO));
        let validity = ms(ttl - ttl / 100 - 2);
        assert_eq!(granted(&mut rig).valid_until, rig.now + validity);
    }
}

#[test]
fn the_asked_for_validity_must_be_left() {
    let mut rig = Rig::new(1, |builder| builder.answer_timeout(ms(5000)));
    let ttl = ms(1000);
    let request = |min| Request::Acquire {
        resource: Resource::new("a").expect("valid"),
        options: Options::new().ttl(ttl).wait(Duration::ZERO).min_validity(min),
        label: None,
    };
    let refused = rig.engine.submit(rig.now, request(ms(988)));
    assert!(matches!(refused, Err(SubmitError::Input(InputError::MinValidityTooLong { .. }))), "{refused:?}");
    // Only the first acquisition in a while is measured.
    for is_measured in [true, false] {
        if !is_measured {
            rig.acquire("b", 1000, 0);
            granted(&mut rig);
        }
        rig.stall_replies(0);
        rig.engine.submit(rig.now, request(ms(900))).expect("room");
        rig.pump();
        rig.jump(ms(88));
        rig.end_stall(0);
        assert!(matches!(denied(&mut rig), AcquireError::Expired(_)));
    }
}

#[test]
fn a_refusal_needs_a_quorum_ruled_out() {
    let mut rig = Rig::new(5, |builder| builder.ask_holder(false));
    let until = rig.now + ms(5000);
    (0..3).for_each(|index| rig.masters[index].put(b"a", b"other", Some(until)));
    (0..5).for_each(|index| rig.stall_replies(index));
    rig.acquire("a", 10_000, 0);
    (0..5).for_each(|index| drop(rig.masters[index].take_log()));
    rig.end_stall(3);
    rig.end_stall(0);
    rig.end_stall(1);
    assert_eq!(rig.outcome(), None, "a quorum is still possible");
    rig.end_stall(2);
    let AcquireError::Contended(denial) = denied(&mut rig) else { panic!("contention has its own error") };
    assert_eq!(denial.report.votes[4].1, Vote::Pending);
    rig.end_stall(4);
    // Master 3 granted and master 4 had not answered, so both are released. Masters that refused are left
    // alone.
    let logs: Vec<_> = rig.masters.iter_mut().map(|master| master.take_log()).collect();
    assert_eq!(logs, [vec![], vec![], vec![], vec!["EVALSHA"], vec!["EVALSHA"]]);
    assert_eq!((rig.holder_count("a"), rig.engine.claim_count()), (3, 0));
}

#[test]
fn a_denial_says_when_a_quorum_is_free() {
    let mut rig = Rig::new(5, defaults);
    for (index, left) in [(0, 700), (1, 300), (2, 500), (3, 900)] {
        let until = rig.now + ms(left);
        rig.masters[index].put(b"a", b"other", Some(until));
    }
    rig.acquire("a", 10_000, 0);
    let AcquireError::Contended(denial) = denied(&mut rig) else { panic!("contention") };
    // Known at the decision: masters 0 to 2 refused. Two other masters may be free, so one of these three
    // must become free.
    assert_eq!(denial.holder, HolderTtl::Left(ms(300)));
    for (index, left) in [(0, 700), (1, 300), (2, 500)] {
        let holder = HolderTtl::Left(ms(left));
        assert_eq!(denial.report.votes[index].1, Vote::Refused { holder }, "{denial}");
    }
    let mut rig = Rig::new(1, defaults);
    rig.masters[0].put(b"a", b"stuck", None);
    rig.acquire("a", 10_000, 0);
    let error = denied(&mut rig);
    assert!(error.to_string().contains("without a TTL"), "{error}");
}

#[test]
fn a_denial_knows_the_latest_holder_only() {
    let plain = Options::new().ttl(ms(10_000)).wait(ms(1500));
    for (is_woken, options) in
        [(true, plain), (false, plain), (false, plain.fenced()), (false, plain.shared())]
    {
        let mut rig = Rig::new(3, |builder| builder.wake_waiters(is_woken));
        let hold = |rig: &mut Rig, time| {
            let until = rig.now + time;
            rig.masters.iter_mut().for_each(|master| master.put(b"a", b"other", Some(until)));
        };
        hold(&mut rig, ms(2000));
        rig.acquire_with("a", options);
        rig.run_for(ms(500));
        // The lock passes to a holder with more time.
        hold(&mut rig, ms(60_000));
        rig.run_for(ms(1000));
        let AcquireError::Contended(denial) = denied(&mut rig) else { panic!("contention") };
        assert!(matches!(denial.holder, HolderTtl::Left(left) if left > ms(50_000)), "{denial}");
    }
}

/// One more attempt would begin a round in the masters' queues.
#[test]
fn single_attempt_joins_no_queue() {
    let mut rig = Rig::new(3, defaults);
    rig.masters.iter_mut().for_each(|master| master.put(b"a", b"other", None));
    rig.acquire_with("a", Options::new().wait(ms(30_000)).max_attempts(1));
    let AcquireError::Contended(denial) = denied(&mut rig) else { panic!("contention") };
    assert_eq!((denial.attempts, denial.took), (1, Duration::ZERO));
}

/// Masters that refuse a reader report the remaining time of the key in the way, and are asked only for its
/// label.
#[test]
fn reported_holder_time_counts_down() {
    let mut rig = Rig::new(3, defaults);
    let until = rig.now + ms(700);
    for master in &mut rig.masters {
        master.load_scripts();
        master.put(b"a", b"other", Some(until));
    }
    (0..3).for_each(|index| rig.stall_replies(index));
    rig.acquire_with("a", Options::new().ttl(ms(10_000)).wait(Duration::ZERO).shared());
    (0..3).for_each(|index| rig.stop_master(index));
    rig.end_stalls();
    rig.run_for(ms(30));
    (0..3).for_each(|index| rig.resume_master(index));
    let AcquireError::Contended(denial) = denied(&mut rig) else { panic!("contention") };
    assert_eq!(denial.holder, HolderTtl::Left(ms(670)));
}

#[test]
fn a_denial_names_this_client_as_holder() {
    let fair = |rig: &mut Rig, wait| {
        rig.acquire_with("f", Options::new().ttl(ms(10_000)).wait(wait).fair());
    };
    let mut rig = Rig::new(3, defaults);
    rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    fair(&mut rig, Duration::ZERO);
    granted(&mut rig);
    let held_by = |rig: &mut Rig| match denied(rig) {
        AcquireError::Contended(denial) => (denial.held_by, denial.report.resource.to_vec()),
        other => panic!("{other}"),
    };
    rig.acquire("a", 10_000, 0);
    assert_eq!(held_by(&mut rig), (HeldBy::ThisClient, b"a".to_vec()), "one attempt");
    rig.acquire("a", 10_000, 500);
    rig.run_for(ms(500));
    assert_eq!(held_by(&mut rig), (HeldBy::ThisClient, b"a".to_vec()), "a wait");
    fair(&mut rig, Duration::ZERO);
    assert_eq!(held_by(&mut rig), (HeldBy::ThisClient, b"f".to_vec()), "a fair attempt");
    fair(&mut rig, ms(500));
    rig.run_for(ms(500));
    assert_eq!(held_by(&mut rig), (HeldBy::ThisClient, b"f".to_vec()), "a fair wait");
    let until = rig.now + ms(5000);
    rig.masters.iter_mut().for_each(|master| master.put(b"b", b"other", Some(until)));
    rig.acquire("b", 10_000, 0);
    assert_eq!(held_by(&mut rig), (HeldBy::AnotherClient, b"b".to_vec()));
    rig.acquire_with("b", Options::new().ttl(ms(10_000)).wait(Duration::ZERO).fair());
    assert_eq!(held_by(&mut rig), (HeldBy::AnotherClient, b"b".to_vec()), "it holds others");
}

#[test]
fn an_error_reply_is_released_and_no_refusal() {
    let mut rig = Rig::new(3, defaults);
    for index in 0..2 {
        rig.masters[index].errors.insert("SET".into(), "OOM command not allowed".into());
    }
    rig.acquire("a", 10_000, 0);
    let denial = no_quorum(&mut rig);
    assert!(
        matches!(&denial.report.votes[0].1, Vote::Failed(Failure::Replied(text)) if text.starts_with("OOM"))
    );
    for master in &mut rig.masters {
        assert_eq!(master.take_log().last().map(String::as_str), Some("EVALSHA"));
    }
    // An error of a minority only shows in the report.
    rig.masters[1].errors.clear();
    rig.acquire("a", 10_000, 0);
    granted(&mut rig);
}

#[test]
fn missing_rights_pause_a_wait_for_a_second() {
    let attempts = |refusing: usize, error: &str, wakes| {
        let mut rig = Rig::new(3, |builder| builder.wake_waiters(wakes));
        for master in &mut rig.masters[..refusing] {
            for command in ["SET", "EVALSHA", "EVAL"] {
                master.errors.insert(command.into(), error.into());
            }
        }
        let until = rig.now + ms(60_000);
        rig.masters[2].put(b"a", b"other", Some(until));
        rig.acquire("a", 10_000, 5000);
        rig.run_for(ms(5200));
        denied(&mut rig);
        rig.masters[0].log.iter().filter(|args| args[0] == b"SET" && args[1] == b"a").count()
    };
    for wakes in [true, false] {
        let rights = "NOPERM No permissions to access a key";
        let count = attempts(2, rights, wakes);
        let others = attempts(2, "MISCONF no", wakes);
        assert!((4..=6).contains(&count) && others > 30, "{wakes}: {count} and {others} attempts in 5 s");
    }
    let script = "ERR ACL failure in script: No permissions to access a key script: on @user_script:1.";
    let count = attempts(2, script, false);
    assert!((4..=6).contains(&count), "{count} attempts in 5 s");
    // The other masters may grant it.
    assert!(attempts(1, "NOPERM No permissions to access a key", false) > 10);
}

#[test]
fn freed_lock_is_acquired_with_a_new_token() {
    let mut rig = Rig::new(3, |builder| builder.wake_waiters(false));
    let until = rig.now + ms(300);
    (0..2).for_each(|index| rig.masters[index].put(b"a", b"other", Some(until)));
    rig.acquire("a", 10_000, 2000);
    rig.run_for(until - rig.now + ms(3));
    let grant = granted(&mut rig);
    assert!(grant.attempts > 1);
    let sets: Vec<_> =
        rig.masters[2].log.iter().filter(|args| args[0] == b"SET" && args[1] == b"a").collect();
    assert_eq!(sets.len(), grant.attempts as usize);
    assert!(sets.windows(2).all(|pair| pair[0][2] != pair[1][2]), "each attempt has its own token");
    // Between two attempts the partial key was released.
    let own = rig.masters[2].log.iter().filter(|args| args.contains(&b"a".to_vec()));
    let after: Vec<_> = own.map(|args| args[0].clone()).collect();
    assert_eq!(after[..3], [b"SET".to_vec(), b"EVALSHA".to_vec(), b"SET".to_vec()]);
}

#[test]
fn a_waiting_acquisition_says_how_it_failed() {
    let mut rig = Rig::new(3, |builder| builder.wake_waiters(false));
    let until = rig.now + ms(5000);
    (0..2).for_each(|index| rig.masters[index].put(b"a", b"other", Some(until)));
    (0..2).for_each(|index| rig.stall_replies(index));
    let lock = rig.acquire("a", 10_000, 60_000);
    assert_eq!(rig.engine.last_failure(rig.now, lock), None, "no attempt has failed");
    (0..2).for_each(|index| rig.deliver_some(index, b"$-1\r\n".len()));
    assert_eq!(rig.engine.last_failure(rig.now, lock), None, "the holder is asked for");
    rig.end_stalls();
    let error = rig.engine.last_failure(rig.now, lock);
    let Some(AcquireError::Contended(denial)) = error else { panic!("{error:?}") };
    assert_eq!((denial.attempts, denial.holder), (1, HolderTtl::Left(ms(5000))));
    rig.run_for(ms(6000));
    granted(&mut rig);
}

#[test]
fn acquire_ends_by_its_deadline_with_any_masters() {
    for up in 0..=1 {
        for wait in [0, 1, 7, 1000] {
            let mut rig = Rig::unconnected(3, defaults);
            (up..3).for_each(|index| rig.refuse(index, true));
            rig.pump();
            let start = rig.now;
            rig.acquire("a", 10_000, wait);
            while rig.outcomes.is_empty() {
                assert!(rig.now <= start + ms(wait.max(50)), "{up} up, wait {wait}: no answer in time");
                rig.run_for(Duration::from_micros(100));
            }
            no_quorum(&mut rig);
        }
    }
}

#[test]
fn query_for_the_holder_extends_no_wait() {
    let mut rig = Rig::new(1, defaults);
    let until = rig.now + ms(60_000);
    rig.masters[0].put(b"a", b"other", Some(until));
    let start = rig.now;
    rig.acquire("a", 10_000, 20);
    while rig.outcomes.is_empty() {
        // After the first refusal, the master answers no more PTTL.
        rig.masters[0].errors.insert("PTTL".into(), "BUSY x".into());
        rig.run_for(Duration::from_micros(100));
        assert!(rig.now <= start + ms(20), "the wait was over");
    }
    assert!(matches!(denied(&mut rig), AcquireError::Contended(_)));
}

#[test]
fn contention_in_a_cut_attempt_is_no_outage() {
    let mut rig = Rig::new(3, defaults);
    let until = rig.now + ms(60_000);
    rig.masters.iter_mut().for_each(|master| master.put(b"a", b"other", Some(until)));
    rig.acquire("a", 10_000, 200);
    // From here on, replies are slow: the last attempt cannot be answered before the wait ends.
    rig.run_for(ms(150));
    (0..3).for_each(|index| rig.stall_replies(index));
    rig.run_for(ms(50));
    let error = denied(&mut rig);
    let AcquireError::Contended(denial) = &error else { panic!("{error}") };
    assert!(denial.attempts > 1 && denial.holder != HolderTtl::Unknown, "{error}");
}

#[test]
fn a_wait_ended_in_a_pause_starts_nothing() {
    for wakes in [true, false] {
        let mut rig = Rig::new(1, |builder| builder.wake_waiters(wakes));
        let until = rig.now + ms(60_000);
        rig.masters[0].put(b"a", b"other", Some(until));
        rig.acquire("a", 10_000, 1000);
        let set_count = |rig: &Rig| rig.masters[0].log.iter().filter(|args| args[0] == b"SET").count();
        let before = set_count(&rig);
        rig.jump(ms(5000));
        rig.pump();
        assert!(matches!(denied(&mut rig), AcquireError::Contended(_)));
        assert_eq!(set_count(&rig), before);
    }
}

#[test]
fn retries_are_jittered_and_bounded() {
    let mut rig = Rig::new(1, |builder| builder.ask_holder(false).wake_waiters(false));
    let until = rig.now + ms(60_000);
    rig.masters[0].put(b"a", b"other", Some(until));
    rig.acquire("a", 10_000, 5000);
    let (mut times, mut seen): (Vec<Instant>, usize) = (Vec::new(), 0);
    for _ in 0..6000 {
        rig.run_for(ms(1));
        let sets = rig.masters[0].log.iter().filter(|args| args[0] == b"SET").count();
        if sets > seen {
            seen = sets;
            times.push(rig.now);
        }
    }
    assert!(matches!(denied(&mut rig), AcquireError::Contended(_)));
    let pauses: Vec<_> = times.windows(2).map(|pair| (pair[1] - pair[0]).as_millis()).skip(10).collect();
    assert!((30..150).contains(&times.len()), "{} attempts in 5 s", times.len());
    let different: std::collections::HashSet<_> = pauses.iter().collect();
    assert!(different.len() > 10, "random pauses: {pauses:?}");
}

// I130
#[test]
fn the_table_of_locks_is_bounded() {
    let mut rig = Rig::unconnected(1, |builder| builder.on_event(|_| unreachable!("an engine calls none")));
    rig.pump();
    rig.stop_master(0);
    while rig.engine.poll_event().is_some() {}
    let mut last = None;
    for count in 1..=operation_count_max() {
        last = Some(rig.submit_acquire("a", 10_000, 0));
        if count % 10_000 == 0 {
            rig.pump();
        }
    }
    let ttl = ms(1000);
    let resource = Resource::new("b").expect("valid");
    let request =
        Request::Acquire { resource, options: Options::new().ttl(ttl).wait(Duration::ZERO), label: None };
    assert_eq!(rig.engine.submit(rig.now, request), Err(SubmitError::Overloaded));
    let refused = Event::Denied { resource: "b".into(), error: AcquireError::Overloaded };
    assert_eq!(rig.engine.poll_event(), Some(refused));
    rig.resume_master(0);
    rig.release(last.expect("some"), false);
    assert!(rig.engine.submit(rig.now, request).is_ok());
}

/// Requests locks until one is refused for overload, without writing anything. Returns the accepted
/// operations.
fn fill(rig: &mut Rig, prefix: &str) -> Vec<OpId> {
    let mut taken = Vec::new();
    let width = limits::RESOURCE_SIZE_MAX - prefix.len();
    for count in 0.. {
        let lock = rig.submit_acquire(&format!("{prefix}{count:0width$}"), 10_000, 5_000);
        match rig.engine.poll_outcome() {
            None => taken.push(lock),
            Some((its, Outcome::Acquire(Err(AcquireError::Overloaded)))) if its == lock => return taken,
            other => panic!("{other:?}"),
        }
    }
    unreachable!("the queues are bounded")
}

// I130
#[test]
fn an_acquisition_without_room_is_overloaded_at_once() {
    let mut rig = Rig::new(3, |builder| builder.answer_timeout(ms(4000)));
    let count = fill(&mut rig, "a").len();
    assert!(count > limits::OUTBOX_SIZE_MAX / (2 * limits::RESOURCE_SIZE_MAX), "{count}");
    assert_eq!(rig.engine.stats(rig.now).overloaded, 1);
    assert_eq!((rig.engine.operation_count(), rig.engine.claim_count()), (count, count));
    // All accepted operations go on, and there is room again.
    rig.pump();
    assert!((0..count).all(|_| granted(&mut rig).granted.count() == 2));
    rig.acquire("b", 10_000, 0);
    granted(&mut rig);
}

/// A release is longer than its `SET`, so the outbox lacks room for all. No release waits for the answer
/// limit.
#[test]
fn queued_releases_are_sent_when_room_returns() {
    let mut rig = Rig::new(3, |builder| builder.answer_timeout(ms(4000)));
    let held = fill(&mut rig, "a");
    rig.pump();
    rig.run_for(ms(10));
    held.iter().for_each(|lock| {
        granted(&mut rig);
        let release = Request::Release { lock: *lock, awaited: false };
        rig.engine.submit(rig.now, release).expect("always taken");
    });
    rig.pump();
    assert_eq!(rig.engine.claim_count(), 0, "released everywhere");
}

/// Also a release with waiters behind it, because the swap has no room either.
#[test]
fn queued_release_is_answered_when_room_returns() {
    let name = "n".repeat(limits::RESOURCE_SIZE_MAX);
    for waits in [false, true] {
        let mut rig = Rig::new(3, |builder| builder.answer_timeout(ms(4000)));
        let lock = rig.acquire(&name, 10_000, 0);
        granted(&mut rig);
        if waits {
            rig.acquire(&name, 10_000, 60_000);
        }
        fill(&mut rig, "a");
        rig.engine.submit(rig.now, Request::Release { lock, awaited: true }).expect("always taken");
        rig.pump();
        let outcome = rig.outcomes.iter().find(|(its, _)| *its == lock).map(|(_, outcome)| outcome);
        assert!(
            matches!(outcome, Some(Outcome::Release(Ok(_)))),
            "behind it one waits: {waits}, {outcome:?}"
        );
    }
}

#[test]
fn overload_error_names_its_lock() {
    let mut rig = Rig::new(3, |builder| builder.answer_timeout(ms(4000)).on_event(|_| {}));
    fill(&mut rig, "a");
    while rig.engine.poll_event().is_some() {}
    for wait_ms in [0, 5_000] {
        rig.submit_acquire("b", 10_000, wait_ms);
        let event = rig.engine.poll_event();
        let is_b = matches!(&event, Some(Event::Denied { resource, error }) if resource == "b" && *error == AcquireError::Overloaded);
        assert!(is_b, "{event:?}");
    }
}

#[test]
fn grants_without_a_quorums_room_are_released() {
    let mut rig = Rig::new(3, |builder| builder.answer_timeout(ms(4000)));
    let count = fill(&mut rig, "a").len();
    // The first master reads all its bytes.
    let master = id(0);
    let mut bytes = rig.engine.send_ready(master).to_vec();
    rig.engine.send_done(master, bytes.len());
    let mut replies = Vec::new();
    rig.masters[0].handle(rig.now, &mut bytes, &mut replies);
    rig.receive(0, &replies);
    let lock = rig.submit_acquire("b", 10_000, 5_000);
    let refused = rig.engine.poll_outcome();
    assert_eq!(refused, Some((lock, Outcome::Acquire(Err(AcquireError::Overloaded)))));
    assert_eq!((rig.engine.operation_count(), rig.engine.claim_count()), (count, count + 1));
    rig.pump();
    assert_eq!((rig.engine.claim_count(), rig.holder_count("b")), (count, 0));
}

// I84
#[test]
fn no_more_attempts_are_made_than_asked_for() {
    for (masters_up, count, made) in [(3, 1, 1), (3, 3, 3), (0, 0, 1), (0, 2, 2)] {
        let mut rig = Rig::new(3, |builder| builder.wake_waiters(false));
        let until = rig.now + ms(60_000);
        rig.masters.iter_mut().for_each(|master| master.put(b"a", b"other", Some(until)));
        (masters_up..3).for_each(|index| {
            rig.refuse(index, true);
            rig.reset_conn(index);
        });
        rig.acquire_with("a", Options::new().wait(ms(30_000)).max_attempts(count));
        rig.run_for(ms(2000));
        let error = denied(&mut rig);
        let (AcquireError::Contended(denial) | AcquireError::NoQuorum(denial)) = error else {
            panic!("{error}")
        };
        assert_eq!(denial.attempts, made);
        assert!(denial.took < ms(2000) && rig.engine.operation_count() == 0);
        // The slot's next operation has no limit of its own.
        (masters_up..3).for_each(|index| rig.refuse(index, false));
        rig.masters.iter_mut().for_each(|master| master.put(b"a", b"other", Some(rig.now + ms(3000))));
        rig.acquire("a", 10_000, 30_000);
        rig.run_for(ms(10_000));
        assert!(granted(&mut rig).attempts > 3);
    }
}

// I84
#[test]
fn a_callers_delay_is_a_random_lower_bound() {
    let sent_count = |rig: &Rig| rig.masters[0].log.iter().filter(|args| args[0] == b"SET").count();
    let delays = |seen: fn(u32) -> Duration| {
        let mut rig =
            Rig::new(1, |builder| builder.ask_holder(false).wake_waiters(false).retry_delay_by(seen));
        rig.masters[0].put(b"a", b"other", None);
        rig.acquire("a", 10_000, 60_000);
        let (mut times, mut count) = (vec![rig.now], sent_count(&rig));
        while times.len() < 7 {
            rig.run_for(Duration::from_micros(100));
            let now_count = sent_count(&rig);
            if now_count > count {
                (count, times) = (now_count, [times, vec![rig.now]].concat());
            }
        }
        times.windows(2).map(|pair| pair[1] - pair[0]).collect::<Vec<_>>()
    };
    // Each pause is a tenth of a second longer than the last.
    let grown = delays(|failed| ms(100) * failed);
    for (delay, failed) in grown.iter().zip(1..) {
        assert!((ms(100) * failed..=ms(100) * failed + ms(2)).contains(delay), "{grown:?}");
    }
    let none = delays(|_| Duration::ZERO);
    assert!(none.iter().all(|it| (ms(1)..=ms(3)).contains(it)), "{none:?}");
    assert!(none.windows(2).any(|pair| pair[0] != pair[1]), "they would meet again and again: {none:?}");
}

#[test]
fn denial_before_answers_still_asks_masters() {
    let mut rig = Rig::new(3, defaults);
    for index in [1, 2] {
        rig.refuse(index, true);
        rig.reset_conn(index);
    }
    rig.acquire("a", 10_000, 0);
    let denial = no_quorum(&mut rig);
    assert!(denial.took.is_zero());
    rig.pump();
    assert!(rig.masters[0].log.iter().any(|args| args[0] == b"SET"), "the one that was there was asked");
    let text = denial.to_string();
    assert!(text.starts_with("1 attempt, decided before any answer: 0 of 3"), "{text}");
}

#[test]
fn a_second_lock_of_one_key_is_contention() {
    let mut rig = Rig::new(3, defaults);
    let first = rig.acquire("a", 10_000, 0);
    let token = granted(&mut rig).token;
    rig.acquire("a", 10_000, 0);
    let AcquireError::Contended(denial) = denied(&mut rig) else { panic!("it is held") };
    assert_eq!(denial.holder, HolderTtl::Left(ms(10_000)));
    let now = rig.now;
    assert!(rig.masters.iter().all(|it| it.value(now, b"a") == Some(token.as_bytes().as_slice())));
    // Both are queued before either is sent, so at most one gets the lock.
    rig.release(first, true);
    rig.outcomes.clear();
    rig.submit_acquire("a", 10_000, 0);
    rig.submit_acquire("a", 10_000, 0);
    rig.pump();
    let won = rig.outcomes.iter().filter(|(_, it)| matches!(it, Outcome::Acquire(Ok(_)))).count();
    assert_eq!((won, rig.outcomes.len()), (1, 2));
}
