//! A second fault during or after the repair of the first: lost again, lost elsewhere, or silent.

use redlatch::engine::{OpId, Outcome, Request};
use redlatch::status::MasterState;
use redlatch::{AcquireError, ExtendError, Options, Quarantine};

use crate::rig::{Rig, id};
use crate::{defaults, denied, granted, ms};

/// A master loses its data, while its process runs on.
fn empty(rig: &mut Rig, index: usize) {
    rig.masters[index].load_keys(Default::default());
}

/// Makes new keys fail on this master, or succeed again.
fn fill(rig: &mut Rig, index: usize, is_full: bool) {
    rig.masters[index].errors.clear();
    if is_full {
        rig.masters[index].errors.insert("SET".into(), "OOM x".into());
    }
}

fn hold(rig: &mut Rig) -> OpId {
    let lock = rig.acquire("a", 10_000, 0);
    granted(rig);
    lock
}

#[track_caller]
fn extend(rig: &mut Rig, lock: OpId) -> Result<(), ExtendError> {
    rig.extend(lock, 10_000);
    match rig.outcome() {
        Some(Outcome::Extend(result)) => result.map(drop),
        other => panic!("no answer to an extension but {other:?}"),
    }
}

/// All masters hold the lock, and the client knows it.
#[track_caller]
fn assert_whole(rig: &Rig, lock: OpId) {
    assert_eq!((rig.engine.margin(lock), rig.holder_count("a")), (1, 3));
}

#[test]
fn losses_in_turn_prove_no_loss() {
    let mut rig = Rig::new(3, defaults);
    let lock = hold(&mut rig);
    for index in [0, 1, 0, 2, 2, 1] {
        empty(&mut rig, index);
        assert_eq!(extend(&mut rig, lock), Ok(()), "one of three lost it, after others had it put back");
        assert_whole(&rig, lock);
    }
    assert_eq!(rig.engine.stats(rig.now).repairs, 6);
}

#[test]
fn second_loss_on_one_master_proves_loss() {
    let mut rig = Rig::new(3, defaults);
    let lock = hold(&mut rig);
    empty(&mut rig, 0);
    assert_eq!(extend(&mut rig, lock), Ok(()));
    assert_whole(&rig, lock);
    // Lost again, without a quorum that knows better. Then the master cannot be asked.
    empty(&mut rig, 0);
    (1..3).for_each(|index| drop(rig.masters[index].errors.insert("EVALSHA".into(), "BUSY x".into())));
    assert!(matches!(extend(&mut rig, lock), Err(ExtendError::NoQuorum(_))));
    rig.refuse(0, true);
    rig.reset_conn(0);
    empty(&mut rig, 1);
    rig.masters[1].errors.clear();
    assert!(matches!(extend(&mut rig, lock), Err(ExtendError::Lost(_))), "one of three may hold it");
}

/// A silent master is sent the lock again, twice, so it owes two repair answers when the first one arrives. The
/// connection breaks, and the second `SET` arrives after the release.
// I9
#[test]
fn late_second_repair_is_released() {
    let mut rig = Rig::new(3, defaults);
    let lock = hold(&mut rig);
    rig.stall_replies(0);
    assert_eq!(extend(&mut rig, lock), Ok(()));
    rig.acquire("b", 10_000, 0);
    granted(&mut rig);
    rig.run_for(ms(50));
    rig.deliver_some(0, b":1\r\n".len());
    assert_eq!(extend(&mut rig, lock), Ok(()));
    rig.acquire("c", 10_000, 0);
    granted(&mut rig);
    rig.run_for(ms(50));
    rig.stop_master(0);
    rig.end_stall(0);
    let late = rig.break_conn(0);
    rig.resume_master(0);
    rig.release(lock, false);
    rig.run_for(ms(100));
    assert_eq!(rig.holder_count("a"), 0);
    rig.carry_out(0, late);
    assert_eq!(rig.holder_count("a"), 1, "it was the second repair");
    rig.run_for(ms(5000));
    assert_eq!(rig.holder_count("a"), 0);
}

/// The connection leads to another server without the key for a while, and then back.
// I9
#[test]
fn returning_server_is_released_after_another_answered() {
    let mut rig = Rig::new(3, |builder| builder.quarantine(Quarantine::Trust));
    let lock = hold(&mut rig);
    let keys = rig.masters[0].keys().clone();
    let lead_to = |rig: &mut Rig, name: &str, keys| {
        let now = rig.now;
        rig.masters[0].restart(name, now - ms(3_600_000));
        rig.masters[0].load_keys(keys);
        rig.refuse(0, false);
        rig.run_for(ms(1000));
    };
    rig.refuse(0, true);
    rig.reset_conn(0);
    rig.release(lock, false);
    lead_to(&mut rig, "another", Default::default());
    assert_eq!((rig.holder_count("a"), rig.engine.claim_count()), (0, 1));
    // The other server restarts, which ends its copy, but not the first server's.
    rig.refuse(0, true);
    rig.reset_conn(0);
    let now = rig.now;
    rig.masters[0].restart("a third", now);
    rig.refuse(0, false);
    rig.run_for(ms(1000));
    assert_eq!((rig.holder_count("a"), rig.engine.claim_count()), (0, 1));
    rig.refuse(0, true);
    rig.reset_conn(0);
    lead_to(&mut rig, "the first", keys);
    assert_eq!(rig.holder_count("a"), 0, "the first is released, too");
}

/// A copy of the key is deleted on another server, which had replaced the first.
// I9
#[test]
fn deletion_on_a_copied_server_ends_no_release() {
    let mut rig = Rig::new(3, |builder| builder.quarantine(Quarantine::Trust));
    let lock = hold(&mut rig);
    let keys = rig.masters[0].keys().clone();
    for name in ["a copy", "the first"] {
        rig.refuse(0, true);
        rig.reset_conn(0);
        rig.release(lock, false);
        let now = rig.now;
        rig.masters[0].restart(name, now - ms(3_600_000));
        rig.masters[0].load_keys(keys.clone());
        rig.refuse(0, false);
        rig.run_for(ms(1000));
        assert_eq!((rig.holder_count("a"), rig.engine.claim_count()), (0, 1), "{name}");
    }
}

/// The answer that asks for the script arrives after the lock's end.
// I9
#[test]
fn attempt_is_not_resent_for_an_ended_lock() {
    let mut rig = Rig::new(3, defaults);
    rig.stall_replies(0);
    let lock = rig.acquire_with("a", Options::new().ttl(ms(1000)).shared());
    granted(&mut rig);
    rig.run_for(ms(1100));
    rig.end_stall(0);
    rig.run_for(ms(100));
    assert!(!rig.masters[0].is_taken(rig.now, b"a"));
    rig.release(lock, false);
}

/// A silent master owes the answer to a reader's first attempt. It answers another lock's command and is sent
/// the lock; then it says that it did not know the attempt's script.
#[test]
fn scripts_lost_with_a_connection_are_resent() {
    let mut rig = Rig::new(3, defaults);
    let options = Options::new().ttl(ms(10_000)).fenced();
    // The first attempts learn the masters' time.
    rig.acquire_with("b", options);
    granted(&mut rig);
    for _ in 0..2 {
        rig.masters[0].flush_scripts();
        rig.masters[0].take_log();
        rig.stall_replies(0);
        let lock = rig.acquire_with("a", options);
        granted(&mut rig);
        rig.deliver_some(0, b"-NOSCRIPT No matching script. Please use EVAL.\r\n".len());
        assert_eq!(rig.masters[0].take_log()[..3], ["EVALSHA", "EVAL", "SCRIPT"]);
        rig.reset_conn(0);
        rig.end_stall(0);
        rig.release(lock, false);
        rig.run_for(redlatch::limits::BACKOFF_MAX);
    }
}

#[test]
fn attempt_is_not_resent_after_its_repair() {
    let mut rig = Rig::new(3, defaults);
    rig.stall_replies(0);
    rig.acquire("x", 10_000, 0);
    granted(&mut rig);
    let lock = rig.acquire_with("a", Options::new().ttl(ms(10_000)).shared());
    granted(&mut rig);
    rig.run_for(ms(50));
    rig.deliver_some(0, b"+OK\r\n".len());
    rig.end_stall(0);
    assert_eq!(rig.engine.margin(lock), 1, "all three have it");
}

/// The refusal of an earlier round arrives together with the end of a silence, for which the lock is
/// repaired.
#[test]
fn an_absence_from_before_the_repair_proves_nothing() {
    let mut rig = Rig::new(3, defaults);
    let lock = hold(&mut rig);
    empty(&mut rig, 0);
    rig.stall_replies(0);
    assert_eq!(extend(&mut rig, lock), Ok(()));
    rig.stall_replies(1);
    rig.acquire("b", 10_000, 0);
    rig.run_for(ms(50));
    assert!(matches!(denied(&mut rig), AcquireError::NoQuorum(_)), "masters 0 and 1 are silent");
    rig.end_stall(1);
    assert_eq!(extend(&mut rig, lock), Ok(()), "without the silent master 0");
    rig.end_stall(0);
    assert_whole(&rig, lock);
    empty(&mut rig, 1);
    assert_eq!(extend(&mut rig, lock), Ok(()), "master 0 has it again");
}

#[test]
fn master_with_restored_data_holds_the_lock() {
    let mut rig = Rig::new(3, |builder| builder.quarantine(Quarantine::Trust));
    let lock = hold(&mut rig);
    let data = rig.masters[0].keys().clone();
    empty(&mut rig, 0);
    (1..3).for_each(|index| drop(rig.masters[index].errors.insert("EVALSHA".into(), "BUSY x".into())));
    assert!(matches!(extend(&mut rig, lock), Err(ExtendError::NoQuorum(_))), "master 0 has nothing");
    (1..3).for_each(|index| rig.masters[index].errors.clear());
    fill(&mut rig, 0, true);
    rig.reset_conn(0);
    let now = rig.now;
    rig.masters[0].restart("from its disk", now);
    rig.masters[0].load_keys(data);
    rig.run_for(ms(2000));
    empty(&mut rig, 1);
    assert_eq!(extend(&mut rig, lock), Ok(()), "masters 0 and 2 hold it");
}

/// The repair is carried out with the old validity, and its answer arrives after a longer extension.
#[test]
fn repair_before_an_extension_adds_no_margin() {
    let mut rig = Rig::new(3, defaults);
    let lock = hold(&mut rig);
    empty(&mut rig, 0);
    rig.stall_replies(0);
    assert_eq!(extend(&mut rig, lock), Ok(()));
    rig.deliver_some(0, b":0\r\n".len());
    assert_eq!(rig.holder_count("a"), 3, "it is put back");
    rig.masters[0].errors.insert("EVALSHA".into(), "BUSY x".into());
    rig.run_for(ms(3000));
    rig.extend(lock, 10_000);
    assert!(matches!(rig.outcome(), Some(Outcome::Extend(Ok(_)))));
    rig.end_stall(0);
    assert_eq!(rig.engine.margin(lock), 0, "master 0 lets it go earlier");
}

#[test]
fn a_master_that_refused_is_not_asked_again() {
    let mut rig = Rig::new(3, defaults);
    rig.masters[2].put(b"a", b"other", None);
    let lock = hold(&mut rig);
    let put_count = |rig: &Rig| {
        rig.masters[2].log.iter().filter(|args| args.starts_with(&[b"SET".to_vec(), b"a".to_vec()])).count()
    };
    rig.reset_conn(2);
    rig.run_for(ms(2000));
    assert_eq!(extend(&mut rig, lock), Ok(()));
    assert_eq!(put_count(&rig), 1);
}

/// A late answer proves the loss of a lock that nothing renews.
#[test]
fn loss_proven_late_is_reported() {
    let mut rig = Rig::new(3, defaults);
    let lock = hold(&mut rig);
    let next = rig.acquire("a", 10_000, 60_000);
    rig.engine.submit(rig.now, Request::NotifyLoss { lock }).expect("always taken");
    (0..2).for_each(|index| empty(&mut rig, index));
    rig.stall_replies(1);
    rig.masters[2].errors.insert("EVALSHA".into(), "BUSY x".into());
    rig.extend(lock, 10_000);
    rig.run_for(ms(50));
    assert!(matches!(rig.outcome(), Some(Outcome::Extend(Err(ExtendError::NoQuorum(_))))));
    rig.masters[2].load_keys(Default::default());
    rig.end_stall(1);
    assert_eq!(rig.outcome(), Some(Outcome::Lost(rig.now)));
    rig.run_for(ms(10));
    let granted = rig.outcomes.pop_front();
    assert!(matches!(granted, Some((lock, Outcome::Acquire(Ok(_)))) if lock == next), "{granted:?}");
}

#[test]
fn one_absence_reported_late_proves_no_loss() {
    let mut rig = Rig::new(3, |builder| builder.quarantine(Quarantine::Trust));
    let lock = hold(&mut rig);
    // Master 2's state is unknown, so the lock is not restored on master 1 either.
    let now = rig.now;
    rig.reset_conn(2);
    rig.masters[2].restart_from_snapshot("from its disk", now);
    fill(&mut rig, 2, true);
    rig.run_for(ms(2000));
    empty(&mut rig, 1);
    rig.stall_replies(1);
    rig.masters[2].errors.insert("EVALSHA".into(), "BUSY x".into());
    rig.extend(lock, 10_000);
    rig.run_for(ms(50));
    assert!(matches!(rig.outcome(), Some(Outcome::Extend(Err(ExtendError::NoQuorum(_))))));
    rig.end_stall(1);
    rig.masters[2].errors.clear();
    assert!(rig.engine.valid_until(lock) > Some(rig.now));
    assert_eq!(extend(&mut rig, lock), Ok(()), "masters 0 and 2 hold it");
}

#[test]
fn masters_that_miss_an_extension_are_silent() {
    let mut rig = Rig::new(3, defaults);
    let lock = hold(&mut rig);
    (1..3).for_each(|index| rig.stop_master(index));
    rig.extend(lock, 10_000);
    rig.run_for(ms(50));
    assert!(matches!(rig.outcome(), Some(Outcome::Extend(Err(ExtendError::NoQuorum(_))))));
    for index in 1..3 {
        assert_eq!(rig.engine.master_status(rig.now, id(index)).state, MasterState::Silent);
    }
}

#[test]
fn lock_survives_connection_loss_during_repair() {
    let mut rig = Rig::new(3, defaults);
    let lock = hold(&mut rig);
    empty(&mut rig, 0);
    // The repair's answer is lost, once before and once after the master has carried the repair out.
    rig.stall_replies(0);
    extend(&mut rig, lock).expect("two of three");
    rig.deliver_some(0, 4);
    rig.stop_master(0);
    rig.pump();
    drop(rig.break_conn(0));
    rig.resume_master(0);
    rig.end_stall(0);
    rig.run_for(ms(2000));
    assert_eq!(extend(&mut rig, lock), Ok(()));
    assert_whole(&rig, lock);
    empty(&mut rig, 1);
    assert_eq!(extend(&mut rig, lock), Ok(()));
    assert_whole(&rig, lock);
    rig.release(lock, true);
    assert_eq!(rig.holder_count("a"), 0);
    // The lost one of two repairs may arrive late, until it could no longer live.
    rig.run_for(ms(11_000));
    assert_eq!(rig.engine.claim_count(), 0);
}

/// The fate of one lock's extensions does not affect the next lock.
#[test]
fn failed_extensions_do_not_affect_the_next_lock() {
    let mut rig = Rig::new(3, defaults);
    let lock = hold(&mut rig);
    // A shorter extension is lost on its way to master 0, and master 1 reports that it has no key.
    rig.stall_replies(0);
    empty(&mut rig, 1);
    fill(&mut rig, 1, true);
    rig.masters[2].errors.insert("EVALSHA".into(), "BUSY x".into());
    rig.extend(lock, 1000);
    rig.run_for(ms(50));
    assert!(matches!(rig.outcome(), Some(Outcome::Extend(Err(ExtendError::NoQuorum(_))))));
    rig.reset_conn(0);
    (1..3).for_each(|index| rig.masters[index].errors.clear());
    rig.end_stall(0);
    rig.run_for(ms(2000));
    rig.release(lock, false);
    rig.run_for(ms(12_000));
    assert_eq!((rig.holder_count("a"), rig.engine.claim_count()), (0, 0));
    let next = hold(&mut rig);
    // Also with masters that get a shorter TTL and then a longer one.
    for ttl_ms in [1000, 10_000] {
        rig.extend(next, ttl_ms);
        assert!(matches!(rig.outcome(), Some(Outcome::Extend(Ok(_)))), "{ttl_ms}");
        assert_whole(&rig, next);
    }
    empty(&mut rig, 2);
    assert_eq!(extend(&mut rig, next), Ok(()), "masters 0 and 1 hold it");
}

/// The lost extension may still arrive, and gives the key the same TTL as the next one.
#[test]
fn lost_extension_does_not_block_an_equal_one() {
    let mut rig = Rig::new(3, defaults);
    let lock = hold(&mut rig);
    (0..2).for_each(|index| rig.stop_master(index));
    rig.extend(lock, 10_000);
    for index in 0..2 {
        drop(rig.break_conn(index));
        rig.resume_master(index);
    }
    assert!(matches!(rig.outcome(), Some(Outcome::Extend(Err(ExtendError::NoQuorum(_))))));
    rig.run_for(ms(200));
    assert_eq!(extend(&mut rig, lock), Ok(()));
}

#[test]
fn answered_extension_outlives_its_connection() {
    let mut rig = Rig::new(3, defaults);
    let lock = hold(&mut rig);
    rig.extend(lock, 1000);
    assert!(matches!(rig.outcome(), Some(Outcome::Extend(Ok(_)))));
    (0..2).for_each(|index| rig.reset_conn(index));
    rig.run_for(ms(200));
    assert_eq!(extend(&mut rig, lock), Ok(()), "no shorter one is under way");
}

/// A master asks late for an attempt's or an extension's script, and then the connection breaks.
#[test]
fn claim_is_kept_after_a_resent_script() {
    for is_extension in [false, true] {
        let mut rig = Rig::new(3, |builder| builder.answer_timeout(ms(2000)));
        let sent_at = rig.now;
        let lock = if is_extension {
            let lock = hold(&mut rig);
            rig.masters[0].flush_scripts();
            rig.stall_replies(0);
            assert_eq!(extend(&mut rig, lock), Ok(()));
            lock
        } else {
            rig.stall_replies(0);
            let lock = rig.acquire_with("a", Options::new().ttl(ms(10_000)).wait(ms(0)).shared());
            granted(&mut rig);
            lock
        };
        rig.run_for(ms(1500));
        rig.stop_master(0);
        rig.end_stall(0);
        rig.refuse(0, true);
        assert!(!rig.break_conn(0).is_empty(), "the script is on its way");
        rig.release(lock, false);
        rig.run_for(sent_at + ms(11_500) - rig.now);
        assert_eq!(rig.engine.claim_count(), 1, "it may be there for 10 s: extension: {is_extension}");
        rig.run_for(ms(20_000));
        assert_eq!(rig.engine.claim_count(), 0);
    }
}

fn keep(rig: &mut Rig) -> OpId {
    let options = Options::new().ttl(ms(3000)).wait(ms(0)).auto_extend(ms(600_000));
    let lock = rig.acquire_with("a", options);
    granted(rig);
    lock
}

fn renewal_count(rig: &Rig) -> usize {
    rig.masters[0].log.iter().filter(|args| args[0] == b"EVALSHA").count()
}

#[test]
fn kept_lock_survives_consecutive_faults() {
    let mut rig = Rig::new(3, defaults);
    let lock = keep(&mut rig);
    rig.engine.submit(rig.now, Request::NotifyLoss { lock }).expect("always taken");
    for round in 0..6 {
        let index = round % 3;
        match round % 2 {
            0 => empty(&mut rig, index),
            _ => rig.reset_conn(index),
        }
        rig.run_for(ms(4000));
        assert!(rig.engine.valid_until(lock).is_some_and(|until| until > rig.now), "fault {round}");
        assert_eq!((rig.outcome(), rig.holder_count("a")), (None, 3), "fault {round}");
    }
}

/// Renewals fail, succeed again, and fail for good.
#[test]
fn failed_kept_lock_leaves_nothing() {
    for is_dropped in [false, true] {
        let mut rig = Rig::new(3, defaults);
        let lock = keep(&mut rig);
        rig.engine.submit(rig.now, Request::NotifyLoss { lock }).expect("always taken");
        for is_failing in [true, false, true] {
            (0..2).for_each(|index| match is_failing {
                true => drop(rig.masters[index].errors.insert("EVALSHA".into(), "BUSY x".into())),
                false => rig.masters[index].errors.clear(),
            });
            rig.run_for(ms(2000));
        }
        rig.run_for(ms(1000));
        let Some(Outcome::Lost(valid_until)) = rig.outcome() else { panic!("its loss is not reported") };
        assert_eq!(rig.outcome(), None);
        rig.run_for(valid_until.saturating_duration_since(rig.now));
        (0..2).for_each(|index| rig.masters[index].errors.clear());
        let count = renewal_count(&rig);
        rig.run_for(ms(20_000));
        assert_eq!((renewal_count(&rig), rig.outcome()), (count, None), "a lock that is over is renewed");
        rig.release(lock, !is_dropped);
        let answered = matches!(rig.outcome(), Some(Outcome::Release(Ok(it))) if it.was_already_gone());
        assert_eq!(answered, !is_dropped);
        assert_eq!((rig.engine.operation_count(), rig.engine.claim_count()), (0, 0), "it is forgotten");
        let stats = rig.engine.stats(rig.now);
        assert_eq!((stats.lost, stats.released, stats.held()), (1, 0, 0));
        // Nothing is scheduled for it any more.
        let is_quiet = |rig: &Rig| rig.engine.next_timeout().is_none_or(|(at, _)| at > rig.now);
        rig.run_for(ms(20_000));
        assert!(is_quiet(&rig) && rig.engine.owed_count(id(0)) == 0);
    }
}

/// The next lock in the slot is kept only by its own options.
#[test]
fn lock_after_a_kept_one_is_unkept() {
    let mut rig = Rig::new(3, defaults);
    let lock = keep(&mut rig);
    rig.engine.submit(rig.now, Request::NotifyLoss { lock }).expect("always taken");
    rig.extend(lock, 4000);
    assert!(matches!(rig.outcome(), Some(Outcome::Extend(Ok(_)))));
    rig.release(lock, false);
    let lock = hold(&mut rig);
    let validity = rig.engine.validity(lock).expect("held");
    let granted_until = rig.engine.valid_until(lock).expect("held");
    assert_eq!(validity.until(granted_until), granted_until);
    let count = renewal_count(&rig);
    rig.run_for(ms(9950));
    assert_eq!((renewal_count(&rig), rig.outcome()), (count, None), "neither renewed nor watched");
    assert_eq!(rig.engine.valid_until(lock), Some(granted_until));
}

/// A repair is lost with its connection, and the master is sent no other: no quorum has the lock.
#[test]
fn lost_repair_proves_a_loss() {
    let mut rig = Rig::new(3, |builder| builder.quarantine(Quarantine::Trust));
    let lock = hold(&mut rig);
    empty(&mut rig, 0);
    rig.stall_replies(0);
    assert_eq!(extend(&mut rig, lock), Ok(()));
    rig.stop_master(0);
    rig.deliver_some(0, b":0\r\n".len());
    rig.refuse(0, true);
    assert!(!rig.break_conn(0).is_empty(), "the repair is on its way");
    rig.resume_master(0);
    rig.end_stall(0);
    let now = rig.now;
    rig.reset_conn(2);
    rig.masters[2].restart_from_snapshot("from its disk", now);
    fill(&mut rig, 2, true);
    rig.run_for(ms(1000));
    rig.refuse(0, false);
    rig.run_for(ms(2500));
    (1..3).for_each(|index| drop(rig.masters[index].errors.insert("EVALSHA".into(), "BUSY x".into())));
    assert!(matches!(extend(&mut rig, lock), Err(ExtendError::NoQuorum(_))), "master 0 has nothing");
    rig.refuse(0, true);
    rig.reset_conn(0);
    empty(&mut rig, 1);
    rig.masters[1].errors.clear();
    assert!(matches!(extend(&mut rig, lock), Err(ExtendError::Lost(_))), "one of three may hold it");
}
