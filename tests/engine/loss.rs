//! Proof of a lock's loss: so many masters cannot hold it that no quorum is left.

use redlatch::engine::{OpId, Outcome, Request};
use redlatch::error::{Failure, Vote};
use redlatch::status::MasterState;
use redlatch::{ExtendError, Options};

use crate::rig::{Rig, id};
use crate::{defaults, granted, ms};

/// A master loses its data, while its process runs on.
fn empty(rig: &mut Rig, index: usize) {
    rig.masters[index].load_keys(Default::default());
}

/// Another process without data replaces the master, and is connected. It refuses keys, so the lock is not
/// restored.
fn restart(rig: &mut Rig, index: usize) {
    rig.reset_conn(index);
    let now = rig.now;
    rig.masters[index].errors.insert("SET".into(), "OOM x".into());
    rig.masters[index].restart(&format!("run{index}b"), now);
    while !matches!(rig.engine.master_status(rig.now, id(index)).state, MasterState::Quarantined(_)) {
        rig.run_for(ms(1));
    }
}

fn extend(rig: &mut Rig, lock: OpId) -> Result<(), ExtendError> {
    rig.extend(lock, 10_000);
    match rig.outcome() {
        Some(Outcome::Extend(result)) => result.map(|_| ()),
        other => panic!("{other:?}"),
    }
}

// I105
#[test]
fn unasked_master_proves_a_loss() {
    let mut rig = Rig::unconnected(3, defaults);
    rig.refuse(2, true);
    rig.pump();
    let lock = rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    empty(&mut rig, 0);
    let Err(ExtendError::Lost(report)) = extend(&mut rig, lock) else { panic!("one of three may hold it") };
    assert_eq!(report.votes[2].1, Vote::Failed(Failure::NotHeld));
    assert!(rig.engine.valid_until(lock) <= Some(rig.now));
}

// I105
#[test]
fn a_master_granted_later_proves_no_loss() {
    let mut rig = Rig::unconnected(3, defaults);
    rig.refuse(2, true);
    rig.pump();
    let lock = rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    rig.refuse(2, false);
    rig.run_for(ms(2100));
    assert_eq!(rig.engine.margin(lock), 1, "put back");
    empty(&mut rig, 0);
    assert_eq!(extend(&mut rig, lock), Ok(()));
}

// I105
#[test]
fn restarted_and_unasked_masters_prove_a_loss() {
    let mut rig = Rig::unconnected(3, defaults);
    rig.refuse(2, true);
    rig.pump();
    let lock = rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    restart(&mut rig, 0);
    assert!(matches!(extend(&mut rig, lock), Err(ExtendError::Lost(_))), "one of three may hold it");
}

// I105
#[test]
fn empty_quarantined_masters_prove_a_loss() {
    let mut rig = Rig::new(3, defaults);
    let lock = rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    (0..2).for_each(|index| restart(&mut rig, index));
    assert!(matches!(extend(&mut rig, lock), Err(ExtendError::Lost(_))), "one of three may hold it");
}

// I105
#[test]
fn a_renewal_reports_the_kept_locks_loss() {
    let mut rig = Rig::new(3, defaults);
    let lock = rig.acquire_with("a", Options::new().wait(ms(0)).auto_extend(ms(60_000)));
    granted(&mut rig);
    rig.engine.submit(rig.now, Request::NotifyLoss { lock }).expect("always taken");
    (0..2).for_each(|index| restart(&mut rig, index));
    let begun = rig.now;
    while rig.outcomes.is_empty() {
        rig.run_for(ms(10));
    }
    assert!(matches!(rig.outcome(), Some(Outcome::Lost(_))));
    assert!(rig.now < begun + ms(10_000) / 3, "reported {:?} after the restart", rig.now - begun);
}

/// Nobody waits for the second answer when it comes.
// I105
#[test]
fn an_answer_that_comes_late_proves_a_loss() {
    let mut rig = Rig::new(3, defaults);
    let lock = rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    (0..2).for_each(|index| empty(&mut rig, index));
    rig.stall_replies(1);
    rig.refuse(2, true);
    rig.reset_conn(2);
    rig.extend(lock, 10_000);
    rig.run_for(ms(50));
    assert!(matches!(rig.outcome(), Some(Outcome::Extend(Err(ExtendError::NoQuorum(_))))));
    assert!(rig.engine.valid_until(lock) > Some(rig.now), "not proven yet");
    rig.end_stall(1);
    assert!(rig.engine.valid_until(lock) <= Some(rig.now), "proven by two of three");
}

/// The master had confirmed the lock before losing it.
// I105
#[test]
fn an_emptied_master_reconnecting_proves_a_loss() {
    let mut rig = Rig::new(3, defaults);
    let lock = rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    (0..2).for_each(|index| empty(&mut rig, index));
    rig.masters[1].errors.insert("EVALSHA".into(), "BUSY x".into());
    rig.masters[2].errors.insert("EVALSHA".into(), "BUSY x".into());
    assert!(matches!(extend(&mut rig, lock), Err(ExtendError::NoQuorum(_))));
    rig.refuse(0, true);
    rig.reset_conn(0);
    rig.masters[1].errors.clear();
    assert!(matches!(extend(&mut rig, lock), Err(ExtendError::Lost(_))));
}

/// A lost shorter extension could otherwise shorten the key's time later.
#[test]
fn no_extension_follows_one_lost_with_its_connection() {
    let mut rig = Rig::new(3, defaults);
    let lock = rig.acquire("a", 10_000, 0);
    granted(&mut rig);
    (0..2).for_each(|index| rig.stop_master(index));
    rig.extend(lock, 5000);
    (0..2).for_each(|index| drop(rig.break_conn(index)));
    rig.outcomes.clear();
    (0..2).for_each(|index| rig.resume_master(index));
    rig.run_for(ms(200));
    let Err(ExtendError::NoQuorum(report)) = extend(&mut rig, lock) else { panic!("two were not asked") };
    let lost = Vote::Failed(Failure::ConnectionLost);
    assert_eq!([&report.votes[0].1, &report.votes[1].1], [&lost, &lost]);
}
