//! Queues of callers that want the same lock, and hand-over between them.

use std::time::Duration;

use redlatch::engine::{OpId, Outcome, Request, Resource, SubmitError};
use redlatch::error::{Denial, Failure, HolderTtl, Vote};
use redlatch::{AcquireError, Event, ExtendError, Options, limits};

use crate::model::{Dialect, digest};
use crate::rig::Rig;
use crate::{defaults, denied, granted, ms, no_quorum};

/// Masters with empty logs, and a held lock.
fn rig_with_holder(count: usize) -> (Rig, OpId) {
    with_holder(Rig::new(count, defaults))
}

/// Like [`rig_with_holder`], with a client that does not park.
fn polling_rig_with_holder(count: usize) -> (Rig, OpId) {
    with_holder(Rig::new(count, |builder| builder.wake_waiters(false)))
}

fn with_holder(mut rig: Rig) -> (Rig, OpId) {
    let lock = rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    forget_logs(&mut rig);
    (rig, lock)
}

fn forget_logs(rig: &mut Rig) {
    rig.masters.iter_mut().for_each(|master| drop(master.take_log()));
}

/// The acquisition that the next outcome grants.
#[track_caller]
fn next_holder(rig: &mut Rig) -> OpId {
    match rig.outcomes.pop_front() {
        Some((lock, Outcome::Acquire(Ok(_)))) => lock,
        other => panic!("no grant but {other:?}"),
    }
}

#[track_caller]
fn contended(rig: &mut Rig) -> Box<Denial> {
    match denied(rig) {
        AcquireError::Contended(denial) => denial,
        other => panic!("{other}"),
    }
}

fn swap_count(rig: &Rig) -> usize {
    rig.masters[0]
        .log
        .iter()
        .filter(|args| args.get(1).is_some_and(|sha| sha == digest("swap").as_bytes()))
        .count()
}

// I41
#[test]
fn queued_callers_follow_in_one_round_trip_each() {
    let (mut rig, mut held) = rig_with_holder(3);
    let waiting: Vec<_> = (0..5).map(|_| rig.acquire("a", 10_000, 60_000)).collect();
    rig.run_for(ms(100));
    assert!(rig.masters[0].log.is_empty(), "nobody in line asks the masters");
    for next in waiting {
        rig.release(held, false);
        assert_eq!(next_holder(&mut rig), next);
        for master in &mut rig.masters {
            assert_eq!(master.take_log(), ["EVALSHA"], "one command hands it over");
        }
        assert_eq!((rig.holder_count("a"), rig.engine.claim_count()), (3, 1));
        held = next;
    }
    rig.release(held, true);
    assert!(matches!(rig.outcome(), Some(Outcome::Release(Ok(_)))));
    assert_eq!((rig.holder_count("a"), rig.engine.claim_count(), rig.engine.operation_count()), (0, 0, 0));
}

#[test]
fn next_caller_has_its_own_token_and_ttl() {
    let (mut rig, held) = rig_with_holder(3);
    rig.acquire("a", 2000, 60_000);
    rig.run_for(ms(500));
    (0..3).for_each(|index| rig.stall_replies(index));
    let start = rig.now;
    rig.release(held, true);
    rig.run_for(ms(20));
    rig.end_stalls();
    // The round that grants the next lock also confirms the last one's release.
    let outcomes: Vec<_> = rig.outcomes.drain(..).map(|(_, outcome)| outcome).collect();
    let [Outcome::Acquire(Ok(grant)), Outcome::Release(Ok(released))] = outcomes.as_slice() else {
        panic!("{outcomes:?}")
    };
    assert_eq!((grant.valid_until, grant.attempts), (start + ms(1978), 1));
    assert_eq!(rig.masters[0].value(rig.now, b"a"), Some(grant.token.as_bytes().as_slice()));
    assert_eq!((released.deleted, released.absent), (2, 0));
    rig.run_for(ms(1980));
    assert_eq!(rig.holder_count("a"), 0, "the TTL is the next one's");
}

#[test]
fn native_servers_hand_over_without_script() {
    let mut rig = Rig::unconnected(1, defaults);
    rig.masters[0].dialect = Dialect::Valkey9;
    rig.pump();
    let held = rig.acquire("a", 10_000, 0);
    let next = rig.acquire("a", 10_000, 60_000);
    granted(&mut rig);
    forget_logs(&mut rig);
    rig.release(held, false);
    assert_eq!((next_holder(&mut rig), rig.masters[0].take_log()), (next, vec!["SET".to_owned()]));
}

#[test]
fn master_without_script_gets_it_whole() {
    let (mut rig, held) = rig_with_holder(1);
    let next = rig.acquire("a", 10_000, 60_000);
    rig.masters[0].flush_scripts();
    rig.release(held, false);
    assert_eq!(next_holder(&mut rig), next);
    assert_eq!(rig.masters[0].take_log(), ["EVALSHA", "EVAL"]);
    rig.release(next, false);
    assert_eq!((rig.holder_count("a"), rig.engine.claim_count()), (0, 0));
}

#[test]
fn queue_skips_callers_that_gave_up() {
    let (mut rig, held) = rig_with_holder(3);
    let waiting: Vec<_> = (0..4).map(|_| rig.acquire("a", 10_000, 60_000)).collect();
    rig.release(waiting[0], true);
    assert!(matches!(rig.outcome(), Some(Outcome::Release(Ok(released))) if released.was_already_gone()));
    rig.release(waiting[2], false);
    rig.release(held, false);
    assert_eq!(next_holder(&mut rig), waiting[1]);
    rig.release(waiting[1], false);
    assert_eq!(next_holder(&mut rig), waiting[3]);
    assert_eq!((rig.outcome(), rig.engine.operation_count()), (None, 1));
}

// I41
#[test]
fn a_wait_ended_in_the_queue_is_answered() {
    let (mut rig, _) = rig_with_holder(3);
    rig.acquire("a", 10_000, 50);
    rig.run_for(ms(49));
    assert_eq!(rig.outcome(), None);
    rig.run_for(ms(1));
    let denial = contended(&mut rig);
    assert_eq!((denial.attempts, denial.took), (0, ms(50)));
    // The rest of the holder's TTL, counted from its own start.
    assert_eq!(denial.holder, HolderTtl::Left(ms(9950)));
    assert!(denial.report.votes.iter().all(|(_, vote)| *vote == Vote::Failed(Failure::Queued)));
    assert_eq!(denial.to_string(), "waited for 50ms, behind unknown (50ms); no master was asked");
    let said = AcquireError::Contended(denial).to_string();
    assert!(said.starts_with("lock \"a\" is held by another caller of this client"), "{said}");
    assert!(!said.contains("of 3 masters"), "it is no outage: {said}");
}

#[test]
fn outage_fails_every_queued_caller() {
    let mut rig = Rig::unconnected(3, defaults);
    (0..3).for_each(|index| rig.refuse(index, true));
    rig.pump();
    rig.acquire("a", 10_000, 1000);
    rig.acquire("a", 10_000, 50);
    rig.run_for(ms(50));
    let denial = no_quorum(&mut rig);
    assert_eq!((denial.attempts, denial.took), (0, ms(50)));
    rig.run_for(ms(950));
    no_quorum(&mut rig);
}

/// The first waiter asks the masters once this client's lock is over.
#[test]
fn outage_after_expiry_fails_every_queued_caller() {
    let mut rig = Rig::new(3, |builder| builder.wake_waiters(false));
    rig.acquire("a", 1000, 0);
    granted(&mut rig);
    (0..2).for_each(|index| drop(rig.masters[index].errors.insert("SET".into(), "OOM x".into())));
    rig.acquire("a", 10_000, 60_000);
    rig.acquire("a", 10_000, 1500);
    rig.run_for(ms(1500));
    assert_eq!(no_quorum(&mut rig).took, ms(1500));
}

#[test]
fn one_caller_asks_for_locks_held_elsewhere() {
    let mut rig = Rig::new(1, |builder| builder.ask_holder(false).wake_waiters(false));
    let until = rig.now + ms(300);
    rig.masters[0].put(b"a", b"other", Some(until));
    forget_logs(&mut rig);
    let waiting: Vec<_> = (0..10).map(|_| rig.acquire("a", 10_000, 5000)).collect();
    assert_eq!(rig.masters[0].take_log(), ["SET"]);
    rig.run_for(ms(500));
    assert_eq!(next_holder(&mut rig), waiting[0]);
    rig.release(waiting[0], false);
    assert_eq!(next_holder(&mut rig), waiting[1]);
}

#[test]
fn an_acquisition_without_wait_passes_the_queue() {
    let (mut rig, held) = rig_with_holder(1);
    let next = rig.acquire("a", 10_000, 60_000);
    rig.acquire("a", 10_000, 0);
    assert_eq!(contended(&mut rig).attempts, 1);
    // The caller gets the free lock, and the queued callers wait for it.
    rig.jump(ms(10_001));
    let quick = rig.submit_acquire("a", 10_000, 0);
    rig.pump();
    assert_eq!(next_holder(&mut rig), quick);
    forget_logs(&mut rig);
    rig.run_for(ms(500));
    assert_eq!((rig.outcome(), rig.masters[0].take_log()), (None, vec![]), "nobody in line asks");
    rig.release(held, false);
    assert_eq!(rig.outcome(), None, "it has nothing to hand over any more");
    rig.release(quick, false);
    assert_eq!(next_holder(&mut rig), next);
}

/// The waiter is no longer the head of its queue when its next attempt is due.
#[test]
fn pausing_waiter_waits_for_quicker_caller() {
    let mut rig = Rig::new(1, |builder| builder.wake_waiters(false));
    rig.masters[0].put(b"a", b"other", None);
    let next = rig.acquire("a", 10_000, 60_000);
    rig.masters[0].load_keys(Default::default());
    let quick = rig.acquire("a", 10_000, 0);
    assert_eq!(next_holder(&mut rig), quick);
    forget_logs(&mut rig);
    rig.run_for(ms(500));
    assert!(rig.masters[0].log.is_empty(), "it asks the masters");
    rig.release(quick, false);
    assert_eq!(next_holder(&mut rig), next);
}

// I41, I130
#[test]
fn full_local_queue_refuses_at_once() {
    let mut rig = Rig::new(1, |builder| builder.on_event(|_| unreachable!("an engine calls none")));
    rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    forget_logs(&mut rig);
    while rig.engine.poll_event().is_some() {}
    for _ in 0..limits::QUEUED_COUNT_MAX {
        rig.submit_acquire("a", 10_000, 60_000);
    }
    let ttl = ms(1000);
    let request = |name| Request::Acquire {
        resource: Resource::new(name).expect("valid"),
        options: Options::new().ttl(ttl).wait(ms(60_000)),
        label: None,
    };
    let count = rig.engine.operation_count();
    assert_eq!(rig.engine.submit(rig.now, request("a")), Err(SubmitError::Overloaded));
    let refused = Event::Denied { resource: "a".into(), error: AcquireError::Overloaded };
    assert_eq!(rig.engine.poll_event(), Some(refused));
    assert_eq!(rig.engine.operation_count(), count);
    assert!(rig.engine.submit(rig.now, request("b")).is_ok());
    assert!(rig.masters[0].log.is_empty());
    // All waiters get an outcome.
    rig.run_for(ms(60_000));
    assert!(rig.outcomes.len() >= limits::QUEUED_COUNT_MAX);
}

// I53
#[test]
fn a_run_of_hand_overs_ends_released() {
    let (mut rig, mut held) = polling_rig_with_holder(1);
    for _ in 0..limits::HANDOVER_COUNT_MAX {
        let next = rig.acquire("a", 10_000, 60_000);
        rig.release(held, false);
        assert_eq!(next_holder(&mut rig), next);
        held = next;
    }
    assert_eq!(swap_count(&rig), limits::HANDOVER_COUNT_MAX as usize);
    let next = rig.acquire("a", 10_000, 60_000);
    rig.release(held, false);
    assert_eq!((rig.outcome(), rig.holder_count("a")), (None, 0));
    rig.run_for(Duration::from_micros(999));
    assert_eq!((rig.outcome(), rig.holder_count("a")), (None, 0), "others may take it");
    rig.run_for(ms(3));
    assert_eq!(next_holder(&mut rig), next);
    // A new run of hand-overs begins.
    let last = rig.acquire("a", 10_000, 60_000);
    rig.release(next, false);
    assert_eq!(next_holder(&mut rig), last);
}

#[test]
fn after_many_hand_overs_the_next_caller_parks() {
    let (mut rig, mut held) = rig_with_holder(3);
    // A fair caller waits in the masters' queues, like another client's caller.
    let other = rig.acquire_with("a", Options::new().ttl(ms(10_000)).wait(ms(60_000)).fair());
    rig.run_for(ms(1));
    for _ in 0..limits::HANDOVER_COUNT_MAX {
        let next = rig.acquire("a", 10_000, 60_000);
        rig.release(held, false);
        assert_eq!(next_holder(&mut rig), next);
        held = next;
    }
    let next = rig.acquire("a", 10_000, 60_000);
    rig.release(held, false);
    rig.pump();
    assert_eq!(next_holder(&mut rig), other);
    assert_eq!(rig.masters[0].parked(rig.now, b"a").len(), 1, "the next of the run parks at once");
    rig.release(other, false);
    assert_eq!(next_holder(&mut rig), next);
}

#[test]
fn a_run_of_hand_overs_ends_in_time() {
    let (mut rig, mut held) = polling_rig_with_holder(1);
    let turn = limits::HANDOVER_TIME_MAX / 10;
    for _ in 0..9 {
        let next = rig.acquire("a", 10_000, 60_000);
        rig.run_for(turn);
        rig.release(held, false);
        assert_eq!(next_holder(&mut rig), next);
        held = next;
    }
    let next = rig.acquire("a", 10_000, 60_000);
    rig.run_for(turn);
    rig.release(held, false);
    rig.run_for(turn - ms(1));
    assert_eq!((rig.outcome(), rig.holder_count("a")), (None, 0), "others may take it");
    rig.run_for(2 * turn + ms(2));
    assert_eq!(next_holder(&mut rig), next);
}

/// The lock reuses the slot of a lock that was handed over.
#[test]
fn lock_from_masters_queue_restarts_hand_overs() {
    let (mut rig, mut held) = rig_with_holder(3);
    for _ in 0..2 {
        let next = rig.acquire("a", 4000, 60_000);
        rig.release(held, false);
        assert_eq!(next_holder(&mut rig), next);
        held = next;
    }
    let next = rig.acquire("a", 10_000, 60_000);
    rig.engine.leave(rig.now, held).expect("it is held");
    rig.run_for(ms(4500));
    assert_eq!(next_holder(&mut rig), next);
    let last = rig.acquire("a", 10_000, 60_000);
    rig.release(next, false);
    assert_eq!((next_holder(&mut rig), rig.engine.stats(rig.now).hand_overs), (last, 3));
}

#[test]
fn a_yielding_pause_does_not_outlast_the_wait() {
    let (mut rig, held) = polling_rig_with_holder(1);
    // A long turn, so the pause would be at least a tenth of a second.
    rig.run_for(limits::HANDOVER_TIME_MAX);
    let next = rig.acquire("a", 10_000, 40);
    rig.release(held, false);
    rig.run_for(ms(19));
    assert_eq!((rig.outcome(), rig.holder_count("a")), (None, 0));
    rig.run_for(ms(1));
    assert_eq!(next_holder(&mut rig), next);
}

#[test]
fn yielding_pause_is_bounded_after_long_holds() {
    let (mut rig, held) = polling_rig_with_holder(1);
    rig.run_for(ms(5000));
    let next = rig.acquire("a", 10_000, 60_000);
    rig.release(held, false);
    // Twice the largest pause between attempts.
    rig.run_for(ms(200));
    assert_eq!(next_holder(&mut rig), next);
}

// I50
#[test]
fn a_holder_that_expires_delays_nobody() {
    let (mut rig, held) = rig_with_holder(3);
    let start = rig.now;
    let next = rig.acquire("a", 10_000, 60_000);
    rig.run_for(ms(5000));
    rig.extend(held, 10_000);
    assert!(matches!(rig.outcome(), Some(Outcome::Extend(Ok(_)))));
    forget_logs(&mut rig);
    rig.run_for(start + ms(5000 + 9890) - rig.now);
    assert!(rig.masters[0].log.is_empty(), "it waits for the extended end");
    rig.run_for(ms(120));
    assert_eq!(next_holder(&mut rig), next);
    // An ended lock has nothing to hand over.
    let last = rig.acquire("a", 10_000, 60_000);
    rig.release(held, false);
    rig.run_for(ms(500));
    assert_eq!((rig.outcome(), rig.holder_count("a")), (None, 3));
    rig.release(next, false);
    assert_eq!(next_holder(&mut rig), last);
}

/// Its validity ends at 988 ms, and its key lives for 1 s.
#[test]
fn polling_waiter_soon_follows_expired_holder() {
    for came_before in [true, false] {
        let mut rig = Rig::new(1, |builder| builder.wake_waiters(false));
        let start = rig.now;
        rig.acquire("a", 1000, 0);
        granted(&mut rig);
        rig.run_for(ms(if came_before { 10 } else { 1001 }));
        let next = rig.acquire("a", 10_000, 60_000);
        rig.run_for(start + ms(1020) - rig.now);
        assert_eq!(next_holder(&mut rig), next);
    }
}

#[test]
fn polling_waiter_soon_follows_lost_lock() {
    let (mut rig, held) = polling_rig_with_holder(1);
    let next = rig.acquire("a", 10_000, 60_000);
    rig.masters[0].load_keys(Default::default());
    rig.extend(held, 10_000);
    assert!(matches!(rig.outcome(), Some(Outcome::Extend(Err(ExtendError::Lost(_))))));
    rig.run_for(ms(10));
    assert_eq!(next_holder(&mut rig), next);
}

#[test]
fn polling_waiter_soon_follows_one_that_gave_up() {
    let mut rig = Rig::new(1, |builder| builder.wake_waiters(false));
    rig.masters[0].put(b"a", b"other", None);
    let options = Options::new().ttl(ms(10_000)).wait(ms(60_000));
    rig.submit_with("a", options.max_attempts(1));
    let next = rig.submit_with("a", options);
    rig.pump();
    contended(&mut rig);
    rig.masters[0].load_keys(Default::default());
    rig.run_for(ms(10));
    assert_eq!(next_holder(&mut rig), next);
}

// I50
#[test]
fn a_shorter_extension_brings_the_next_turn_forward() {
    let (mut rig, held) = rig_with_holder(3);
    let next = rig.acquire("a", 10_000, 60_000);
    rig.extend(held, 500);
    rig.outcomes.clear();
    rig.run_for(ms(600));
    assert_eq!(next_holder(&mut rig), next);
}

#[test]
fn a_hand_over_without_quorum_fails_the_attempt() {
    let (mut rig, held) = rig_with_holder(3);
    let next = rig.acquire("a", 10_000, 60_000);
    let last = rig.acquire("a", 10_000, 60_000);
    for index in 0..2 {
        rig.masters[index].errors.insert("EVALSHA".into(), "OOM no".into());
    }
    rig.release(held, true);
    let released = rig.outcome();
    assert!(matches!(released, Some(Outcome::Release(Err(_)))) || released.is_none(), "{released:?}");
    rig.masters.iter_mut().for_each(|master| master.errors.clear());
    rig.run_for(ms(500));
    rig.outcomes.retain(|(_, outcome)| matches!(outcome, Outcome::Acquire(_)));
    assert_eq!(next_holder(&mut rig), next, "it stays the first in line");
    rig.release(next, false);
    assert_eq!(next_holder(&mut rig), last);
    rig.release(last, false);
    rig.run_for(ms(500));
    assert_eq!((rig.holder_count("a"), rig.engine.claim_count()), (0, 0));
}

#[test]
fn master_that_missed_lock_is_asked_next() {
    let mut rig = Rig::new(3, defaults);
    let until = rig.now + ms(100);
    rig.masters[2].put(b"a", b"other", Some(until));
    let held = rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    rig.run_for(ms(200));
    forget_logs(&mut rig);
    let next = rig.acquire("a", 10_000, 60_000);
    rig.release(held, false);
    assert_eq!(next_holder(&mut rig), next);
    let logs: Vec<_> = rig.masters.iter_mut().map(|master| master.take_log()).collect();
    assert_eq!(logs, [vec!["EVALSHA"], vec!["EVALSHA"], vec!["SET"]]);
    assert_eq!(rig.engine.margin(next), 1);
}

#[test]
fn no_hand_over_without_a_quorum() {
    let (mut rig, held) = rig_with_holder(3);
    rig.acquire("a", 10_000, 60_000);
    (0..2).for_each(|index| rig.refuse(index, true));
    (0..2).for_each(|index| rig.reset_conn(index));
    rig.release(held, false);
    assert_eq!((swap_count(&rig), rig.masters[2].take_log()), (0, vec!["EVALSHA".to_owned()]));
    assert_eq!(rig.masters[2].value(rig.now, b"a"), None);
}

#[test]
fn released_swap_of_unknown_script_is_undone() {
    let (mut rig, held) = rig_with_holder(3);
    let next = rig.acquire("a", 10_000, 60_000);
    rig.masters[0].errors.insert("EVALSHA".into(), "NOSCRIPT x".into());
    rig.stall_replies(0);
    rig.release(held, false);
    granted(&mut rig);
    // The swap is void when the master asks for the script, so the next lock is released, too.
    rig.masters[0].errors.clear();
    rig.release(next, false);
    assert!(rig.masters[0].value(rig.now, b"a").is_some());
    rig.end_stall(0);
    rig.pump();
    assert_eq!(rig.masters[0].value(rig.now, b"a"), None, "the lock of the first holder stays");
}

#[test]
fn resent_swap_is_tracked_longer() {
    let (mut rig, held) = rig_with_holder(3);
    let next = rig.acquire("a", 10_000, 60_000);
    rig.masters[0].errors.insert("EVALSHA".into(), "NOSCRIPT x".into());
    rig.stall_replies(0);
    let begun = rig.now;
    rig.release(held, false);
    granted(&mut rig);
    rig.run_for(ms(40));
    rig.masters[0].errors.clear();
    rig.stop_master(0);
    rig.end_stall(0);
    rig.pump();
    rig.refuse(0, true);
    rig.reset_conn(0);
    rig.release(next, false);
    let drift = ms(102);
    rig.run_for(begun + ms(10_020) + drift - rig.now);
    assert_eq!(rig.engine.claim_count(), 1, "its key may live");
    rig.run_for(ms(30));
    assert_eq!(rig.engine.claim_count(), 0);
}

#[test]
fn release_by_hand_over_reports_each_masters_answer() {
    let (mut rig, held) = rig_with_holder(5);
    rig.acquire("a", 10_000, 60_000);
    // One master has lost the key, and one does not answer.
    rig.masters[0].load_keys(Default::default());
    (0..5).for_each(|index| rig.stall_replies(index));
    rig.release(held, true);
    rig.end_stall(0);
    rig.end_stall(1);
    assert_eq!(rig.outcome(), None);
    rig.end_stall(2);
    let Some(Outcome::Release(Ok(released))) = rig.outcome() else { panic!("a quorum has answered") };
    assert_eq!((released.deleted, released.absent, released.unanswered), (2, 1, 2));
    rig.end_stall(3);
    assert_eq!(granted(&mut rig).granted.count(), 3);
}

#[test]
fn thousands_of_queued_waits_end_together() {
    let (mut rig, _) = rig_with_holder(1);
    for _ in 0..limits::QUEUED_COUNT_MAX {
        rig.submit_acquire("a", 10_000, 100);
    }
    rig.run_for(ms(100));
    assert_eq!((rig.outcomes.len(), rig.engine.operation_count()), (limits::QUEUED_COUNT_MAX, 1));
}

#[test]
fn expired_waiter_gets_no_hand_over() {
    let (mut rig, held) = rig_with_holder(3);
    rig.acquire("a", 10_000, 100);
    // The process was stopped, and its wait has no answer yet.
    rig.jump(ms(200));
    rig.release(held, false);
    contended(&mut rig);
    rig.run_for(ms(100));
    assert_eq!((rig.outcome(), rig.holder_count("a"), rig.engine.operation_count()), (None, 0, 0));
}

#[test]
fn unreleased_claim_outlasts_its_key_on_any_clock() {
    let (mut rig, held) = rig_with_holder(1);
    rig.stop_master(0);
    rig.release(held, false);
    // The TTL of 10 s, and the drift allowance of 1 % plus 2 ms.
    rig.run_for(ms(10_101));
    assert_eq!(rig.engine.claim_count(), 1);
    rig.run_for(ms(1));
    assert_eq!(rig.engine.claim_count(), 0);
}
