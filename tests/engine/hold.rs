//! Extensions and releases, also over connections that break.

use std::time::Duration;

use crate::model::Dialect;
use crate::rig::{Rig, id};
use redlatch::engine::{OpId, Outcome, Request};
use redlatch::error::{Failure, Vote};
use redlatch::scripts::SCRIPTS;
use redlatch::{ExtendError, Options, Quarantine, ReleaseError};

use crate::{defaults, granted, ms, no_quorum};

#[test]
fn an_unanswered_set_is_released_after_the_reconnect() {
    let mut rig = Rig::new(3, defaults);
    rig.stall_replies(0);
    rig.masters[1].errors.insert("SET".into(), "OOM x".into());
    rig.masters[2].errors.insert("SET".into(), "OOM x".into());
    rig.acquire("a", 10_000, 0);
    no_quorum(&mut rig);
    // The SET was carried out. Neither its reply nor the release's reply arrived.
    rig.masters[0].errors.insert("EVALSHA".into(), "BUSY x".into());
    rig.reset_conn(0);
    rig.masters[0].errors.clear();
    rig.end_stall(0);
    drop(rig.masters[0].take_log());
    assert_eq!(rig.engine.claim_count(), 1);
    let is_echo = |args: &Vec<Vec<u8>>| args[0] == b"ECHO";
    while !rig.masters[0].log.iter().any(is_echo) {
        rig.run_for(Duration::from_micros(100));
    }
    // At the very moment at which the connection is confirmed.
    let log = rig.masters[0].take_log();
    let echo = log.iter().position(|name| name == "ECHO").expect("a handshake");
    assert_eq!(log[echo + 1..], ["SSUBSCRIBE", "EVALSHA"], "{log:?}");
    assert_eq!(rig.holder_count("a"), 0);
}

#[test]
fn a_lock_without_connections_is_released_everywhere() {
    let mut rig = Rig::new(3, defaults);
    let lock = rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    (0..3).for_each(|index| rig.refuse(index, true));
    (0..3).for_each(|index| rig.reset_conn(index));
    rig.release(lock, true);
    let outcome = rig.outcome();
    assert!(matches!(outcome, Some(Outcome::Release(Err(ReleaseError::Unconfirmed(_))))), "{outcome:?}");
    assert_eq!(rig.holder_count("a"), 3);
    (0..3).for_each(|index| rig.refuse(index, false));
    rig.run_for(ms(2000));
    assert_eq!((rig.holder_count("a"), rig.engine.claim_count()), (0, 0));
}

#[test]
fn a_release_does_not_mind_a_quarantine() {
    let mut rig = Rig::new(3, defaults);
    let lock = rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    let now = rig.now;
    rig.reset_conn(0);
    rig.masters[0].restart("other", now);
    rig.run_for(ms(1000));
    let state = rig.engine.master_status(rig.now, crate::rig::id(0)).state;
    assert!(matches!(state, redlatch::status::MasterState::Quarantined(_)), "{state:?}");
    (0..2).for_each(|index| rig.stop_master(index));
    rig.release(lock, true);
    rig.run_for(ms(50));
    match rig.outcome() {
        Some(Outcome::Release(Err(ReleaseError::Unconfirmed(report)))) => {
            let vote = &report.votes[0].1;
            assert!(
                !matches!(vote, redlatch::error::Vote::Failed(redlatch::error::Failure::Quarantined { .. })),
                "{vote:?}"
            );
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn restarted_master_gets_lock_despite_an_owed_extension() {
    let mut rig = Rig::new(3, |b| b.quarantine(Quarantine::Trust));
    let lock = rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    rig.stop_master(1);
    rig.extend(lock, 2000);
    rig.run_for(ms(10));
    rig.outcomes.clear();
    rig.refuse(1, true);
    rig.reset_conn(1);
    rig.extend(lock, 10_000);
    rig.run_for(ms(10));
    rig.outcomes.clear();
    rig.run_for(ms(1500));
    rig.resume_master(1);
    let now = rig.now;
    rig.masters[1].restart("other", now);
    rig.refuse(1, false);
    rig.run_for(ms(3000));
    assert_eq!((rig.engine.margin(lock), rig.holder_count("a")), (1, 3));
}

// I22
#[test]
fn an_awaited_release_ends_at_its_limit() {
    let mut rig = Rig::new(3, defaults);
    let first = rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    rig.release(first, true);
    assert!(matches!(rig.outcome(), Some(Outcome::Release(Ok(_)))));
    // Its deadline, 50 ms after the release, outlives the operation and meets the second lock in the same
    // slot.
    rig.run_for(ms(20));
    let second = rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    rig.stop_master(0);
    rig.stop_master(1);
    rig.release(second, true);
    rig.run_for(ms(49));
    assert_eq!(rig.outcome(), None);
    rig.run_for(ms(1));
    let outcome = rig.outcome();
    assert!(matches!(outcome, Some(Outcome::Release(Err(ReleaseError::Unconfirmed(_))))), "{outcome:?}");
}

// I22
#[test]
fn a_long_submission_is_no_silence() {
    let mut rig = Rig::new(3, defaults);
    let locks = hold_many(&mut rig, 300);
    (0..3).for_each(|index| rig.stall_replies(index));
    for lock in &locks {
        rig.engine.submit(rig.now, Request::Release { lock: *lock, awaited: true }).expect("always taken");
    }
    // Longer than the answer limit of 50 ms.
    rig.jump(ms(60));
    rig.engine.handle_unread(rig.now);
    rig.pump();
    assert_eq!(rig.outcome(), None);
    rig.run_for(ms(10));
    rig.end_stalls();
    rig.pump();
    for lock in locks {
        let outcome = rig.outcome();
        assert!(matches!(outcome, Some(Outcome::Release(Ok(_)))), "{lock:?}: {outcome:?}");
    }
}

#[test]
fn releases_in_bulk_are_awaited() {
    // The last replies come 46 ms after the answer limit of 50 ms.
    release_in_bulk(ms(8));
}

// I22
#[test]
fn releases_are_awaited_while_masters_answer() {
    // The last replies come 240 ms after the release. The first backlog extends the limit to 190 ms.
    release_in_bulk(ms(20));
}

fn hold_many(rig: &mut Rig, count: usize) -> Vec<OpId> {
    let locks = (0..count).map(|index| rig.acquire(&format!("lock {index}"), 10_000, 0)).collect();
    for _ in 0..count {
        granted(rig);
    }
    locks
}

/// The last release waits for two masters: one has a backlog, and the other never answers.
#[test]
fn release_is_awaited_for_the_longest_backlog() {
    const COUNT: usize = 1200;
    let mut rig = Rig::new(3, defaults);
    let locks = hold_many(&mut rig, COUNT);
    (0..2).for_each(|index| rig.stall_replies(index));
    locks.iter().for_each(|lock| rig.release(*lock, true));
    rig.run_for(ms(20));
    rig.deliver_some(1, b":1\r\n".len() * (COUNT - 1));
    for _ in 0..12 {
        rig.deliver_some(0, b":1\r\n".len() * COUNT / 12);
        rig.run_for(ms(10));
    }
    assert_eq!(rig.outcomes.len(), COUNT);
    assert!(rig.outcomes.iter().all(|(_, outcome)| matches!(outcome, Outcome::Release(Ok(_)))));
}

/// At each step, some of the replies arrive.
fn release_in_bulk(step: Duration) {
    const COUNT: usize = 1200;
    const STEPS: usize = 12;
    let mut rig = Rig::new(3, defaults);
    let locks = hold_many(&mut rig, COUNT);
    (0..3).for_each(|index| rig.stall_replies(index));
    locks.iter().for_each(|lock| rig.release(*lock, true));
    for _ in 0..STEPS {
        rig.run_for(step);
        (0..3).for_each(|index| rig.deliver_some(index, b":1\r\n".len() * COUNT / STEPS));
    }
    for lock in locks {
        let outcome = rig.outcome();
        assert!(matches!(outcome, Some(Outcome::Release(Ok(_)))), "{lock:?}: {outcome:?}");
    }
}

#[test]
fn an_extension_counts_from_its_own_sending() {
    let mut rig = Rig::new(5, defaults);
    let lock = rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    rig.run_for(ms(4000));
    let sent = rig.now;
    (0..5).for_each(|index| rig.stall_replies(index));
    rig.extend(lock, 10_000);
    rig.run_for(ms(40));
    (0..3).for_each(|index| rig.end_stall(index));
    assert_eq!(rig.outcome(), Some(Outcome::Extend(Ok(sent + ms(9898)))));
    rig.run_for(ms(9000));
    assert_eq!(rig.holder_count("a"), 5);
}

#[test]
fn extensions_are_bounded_and_one_at_a_time() {
    let mut rig = Rig::new(1, |builder| builder.max_hold(ms(15_000)));
    let lock = rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    rig.stall_replies(0);
    rig.extend(lock, 10_000);
    rig.extend(lock, 10_000);
    assert_eq!(rig.outcome(), Some(Outcome::Extend(Err(ExtendError::Busy))));
    rig.end_stall(0);
    assert!(matches!(rig.outcome(), Some(Outcome::Extend(Ok(_)))));
    rig.run_for(ms(5001));
    rig.extend(lock, 10_000);
    assert_eq!(rig.outcome(), Some(Outcome::Extend(Err(ExtendError::HoldLimit { max_hold: ms(15_000) }))));
}

#[test]
fn noscript_is_answered_by_the_whole_script() {
    let mut rig = Rig::new(1, defaults);
    let lock = rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    rig.masters[0].flush_scripts();
    drop(rig.masters[0].take_log());
    rig.extend(lock, 20_000);
    assert!(matches!(rig.outcome(), Some(Outcome::Extend(Ok(_)))));
    rig.release(lock, true);
    let outcome = rig.outcome();
    assert!(matches!(outcome, Some(Outcome::Release(Ok(released))) if released.deleted == 1), "{outcome:?}");
    let release = SCRIPTS.iter().find(|script| script.name == "release").expect("there is one");
    assert_eq!(rig.masters[0].log[3][1], release.text.as_bytes(), "it serves nobody");
    assert_eq!(rig.masters[0].take_log(), ["EVALSHA", "EVAL", "EVALSHA", "EVAL"]);
    assert_eq!(rig.holder_count("a"), 0);
}

#[test]
fn each_master_is_released_by_what_it_knows() {
    let mut rig = Rig::unconnected(3, defaults);
    rig.masters[1].dialect = Dialect::Valkey9;
    rig.masters[2].dialect = Dialect::Redis8;
    rig.pump();
    let lock = rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    rig.masters.iter_mut().for_each(|master| drop(master.take_log()));
    rig.extend(lock, 20_000);
    rig.release(lock, true);
    let logs: Vec<_> = rig.masters.iter_mut().map(|master| master.take_log()).collect();
    let expected = [vec!["EVALSHA", "EVALSHA"], vec!["SET", "DELIFEQ"], vec!["SET", "DELEX"]];
    assert_eq!(logs, expected);
    assert_eq!(rig.holder_count("a"), 0);
}

#[test]
fn a_cancelled_acquire_leaves_no_key() {
    let mut rig = Rig::new(3, defaults);
    (0..3).for_each(|index| rig.stop_master(index));
    let lock = rig.acquire("a", 10_000, 0);
    rig.release(lock, false);
    assert_eq!(rig.engine.operation_count(), 0);
    let other = rig.acquire("b", 10_000, 0);
    (0..3).for_each(|index| rig.resume_master(index));
    assert_eq!(rig.outcomes.len(), 1, "a cancelled acquire has no outcome");
    assert_eq!(rig.outcomes[0].0, other);
    granted(&mut rig);
    assert_eq!((rig.holder_count("a"), rig.holder_count("b"), rig.engine.claim_count()), (0, 3, 1));
    assert!((0..3).all(|index| rig.engine.owed_count(id(index)) == 0));
}

#[test]
fn an_acquire_cancelled_between_two_attempts_ends_there() {
    let mut rig = Rig::new(1, defaults);
    let until = rig.now + ms(60_000);
    rig.masters[0].put(b"a", b"other", Some(until));
    let lock = rig.acquire("a", 10_000, 5000);
    rig.release(lock, true);
    assert!(matches!(rig.outcome(), Some(Outcome::Release(Ok(released))) if released.was_already_gone()));
    rig.run_for(ms(1000));
    assert_eq!((rig.outcome(), rig.engine.operation_count(), rig.engine.claim_count()), (None, 0, 0));
}

#[test]
fn releasing_what_is_gone_is_an_answer() {
    let mut rig = Rig::new(3, defaults);
    let lock = rig.acquire("a", 1000, 0);
    granted(&mut rig);
    rig.run_for(ms(1000));
    for expected_absent in [3, 0] {
        rig.release(lock, true);
        let Some(Outcome::Release(Ok(released))) = rig.outcome() else { panic!("an answer") };
        assert!(released.was_already_gone());
        assert!(released.absent <= expected_absent);
    }
    rig.extend(lock, 1000);
    assert_eq!(rig.outcome(), Some(Outcome::Extend(Err(ExtendError::NotHeld))));
}

/// The answer to a release is lost. The repeated release finds no key, which is proof where no `SET` can
/// arrive any more.
// I9
#[test]
fn lost_release_answer_does_not_keep_the_claim() {
    for is_heard in [true, false] {
        let mut rig = Rig::new(3, defaults);
        if !is_heard {
            rig.stall_replies(2);
        }
        let lock = rig.acquire("a", 10_000, 0);
        granted(&mut rig);
        rig.stall_replies(2);
        rig.release(lock, false);
        rig.reset_conn(2);
        rig.end_stall(2);
        rig.run_for(ms(100));
        assert_eq!((rig.holder_count("a"), rig.engine.claim_count()), (0, usize::from(!is_heard)));
    }
}

#[test]
fn a_release_never_deletes_somebody_elses_key() {
    for dialect in Dialect::ALL {
        let mut rig = Rig::unconnected(3, defaults);
        rig.masters.iter_mut().for_each(|master| master.dialect = dialect);
        rig.pump();
        let lock = rig.acquire("a", 1000, 0);
        granted(&mut rig);
        let until = rig.now + ms(5000);
        rig.masters.iter_mut().for_each(|master| master.put(b"a", b"other", Some(until)));
        rig.release(lock, true);
        assert_eq!(rig.holder_count("a"), 3);
    }
}

// I107
#[test]
fn an_absent_master_gets_the_lock_later() {
    let mut rig = Rig::unconnected(3, |b| b.quarantine(Quarantine::Trust));
    rig.refuse(2, true);
    rig.pump();
    let lock = rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    assert_eq!(rig.engine.margin(lock), 0);
    rig.refuse(2, false);
    rig.run_for(ms(4000));
    assert_eq!((rig.engine.margin(lock), rig.holder_count("a")), (1, 3));
    rig.run_for(ms(6000));
    assert_eq!(rig.holder_count("a"), 0, "all three end together");
    rig.release(lock, true);
    rig.pump();
    assert_eq!(rig.engine.claim_count(), 0);
}

#[test]
fn a_silent_master_gets_missed_locks_later() {
    let mut rig = Rig::new(3, defaults);
    rig.stop_master(2);
    rig.acquire("first", 10_000, 0);
    rig.run_for(ms(100));
    let lock = rig.acquire("a", 10_000, 0);
    rig.run_for(ms(100));
    assert_eq!((rig.engine.margin(lock), rig.holder_count("a")), (0, 2));
    rig.resume_master(2);
    assert_eq!((rig.engine.margin(lock), rig.holder_count("a")), (1, 3));
}

#[test]
fn a_repair_recognizes_its_own_key() {
    let mut rig = Rig::new(3, defaults);
    rig.stall_replies(2);
    let lock = rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    // The SET was carried out there, its answer is lost.
    rig.reset_conn(2);
    rig.end_stall(2);
    rig.run_for(ms(1000));
    assert_eq!(rig.engine.margin(lock), 0, "not proven");
    rig.extend(lock, 10_000);
    rig.pump();
    assert_eq!(rig.engine.margin(lock), 1, "proven by the extension");
    rig.release(lock, false);
    rig.pump();
    assert_eq!(rig.holder_count("a"), 0);
}

// I107
#[test]
fn an_ended_lock_is_not_put_back() {
    for early in [Duration::from_nanos(1), Duration::ZERO] {
        let mut rig = Rig::new(3, defaults);
        rig.stop_master(2);
        rig.acquire("first", 10_000, 0);
        granted(&mut rig);
        rig.run_for(ms(100));
        rig.acquire("a", 3000, 0);
        let valid_until = granted(&mut rig).valid_until;
        rig.run_for(valid_until - rig.now - early);
        rig.resume_master(2);
        assert_eq!(
            rig.masters[2].value(rig.now, b"a").is_some(),
            !early.is_zero(),
            "{early:?} before the end"
        );
        assert!(rig.masters[0].value(rig.now, b"a").is_some());
    }
}

// I8
#[test]
fn quarantined_masters_extend_no_repaired_lock() {
    let mut rig = Rig::new(3, |b| b.max_ttl(ms(10_000)));
    let lock = rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    let now = rig.now;
    for index in 1..3 {
        rig.reset_conn(index);
        rig.masters[index].restart("other", now);
        rig.masters[index].run_id = format!("run{index}b");
    }
    rig.run_for(ms(1000));
    assert_eq!(rig.holder_count("a"), 3, "put back");
    rig.extend(lock, 10_000);
    rig.run_for(ms(100));
    let outcome = rig.outcome();
    assert!(matches!(outcome, Some(Outcome::Extend(Err(ExtendError::NoQuorum(_))))), "{outcome:?}");
}

#[test]
fn stats_difference_shows_locks_held_now() {
    let mut rig = Rig::new(3, defaults);
    let locks = ["a", "b", "c"].map(|name| rig.acquire(name, 10_000, 0));
    let before = rig.engine.stats(rig.now);
    rig.release(locks[0], true);
    let since = rig.engine.stats(rig.now).since(&before);
    assert_eq!((since.acquired, since.released, since.held()), (0, 1, 2));
}

#[test]
fn master_listed_twice_counts_one_extension() {
    let options = || Options::new().ttl(ms(10_000)).wait(Duration::ZERO);
    for options in [options().fenced(), options().shared()] {
        extend_at_a_master_listed_twice(options);
    }
}

fn extend_at_a_master_listed_twice(options: Options) {
    let mut rig = Rig::new(3, defaults);
    // The first fenced lock learns the masters' clocks, and the next one needs one attempt.
    rig.acquire_with("first", options);
    granted(&mut rig);
    rig.stop_master(2);
    let lock = rig.acquire_with("a", options);
    granted(&mut rig);
    rig.stall_replies(1);
    rig.extend(lock, 10_000);
    // After the extension's answer comes the answer to the lock's request: the master has the key through
    // another connection.
    rig.receive(2, b"+OWN\r\n");
    rig.receive(2, b":1\r\n");
    rig.pump();
    assert_eq!(rig.outcome(), None, "one server is no quorum");
    rig.end_stall(1);
    let outcome = rig.outcome();
    assert!(matches!(outcome, Some(Outcome::Extend(Ok(_)))), "{outcome:?}");
    assert_eq!(rig.engine.margin(lock), 0);
    rig.masters[1].errors.insert("EVALSHA".into(), "BUSY x".into());
    rig.extend(lock, 10_000);
    let Some(Outcome::Extend(Err(ExtendError::NoQuorum(report)))) = rig.outcome() else { panic!("extended") };
    assert_eq!(report.votes[2].1, Vote::Failed(Failure::SameServer));
}

#[test]
fn a_silent_master_gets_one_release() {
    let mut rig = Rig::new(3, defaults);
    let lock = rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    drop(rig.masters[2].take_log());
    rig.stop_master(2);
    rig.release(lock, false);
    rig.run_for(ms(2000));
    rig.resume_master(2);
    assert_eq!(rig.masters[2].take_log(), ["EVALSHA"]);
    assert_eq!((rig.holder_count("a"), rig.engine.claim_count()), (0, 0));
}
