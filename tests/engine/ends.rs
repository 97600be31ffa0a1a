//! Releases that masters do not answer, refuse, or answer with something else.

use redlatch::engine::{OpId, Outcome};
use redlatch::error::{Failure, Vote};
use redlatch::{Options, ReleaseError};

use crate::model::digest;
use crate::rig::{Rig, id};
use crate::{defaults, granted, ms};

fn hold(rig: &mut Rig) -> OpId {
    let lock = rig.acquire("a", 10_000, 0);
    granted(rig);
    lock
}

/// A lock of 1 s has an answer limit of 20 ms, and a lock of 10 s one of 50 ms.
#[test]
fn awaited_release_has_the_extended_locks_limit() {
    let mut rig = Rig::new(3, defaults);
    let lock = rig.acquire("a", 1000, 0);
    granted(&mut rig);
    rig.extend(lock, 10_000);
    assert!(matches!(rig.outcome(), Some(Outcome::Extend(Ok(_)))));
    (0..2).for_each(|index| rig.stop_master(index));
    rig.release(lock, true);
    rig.run_for(ms(49));
    assert_eq!(rig.outcome(), None);
    rig.run_for(ms(1));
    assert!(matches!(rig.outcome(), Some(Outcome::Release(Err(ReleaseError::Unconfirmed(_))))));
}

/// A master refuses a release over two connections in turn.
#[test]
fn the_latest_failure_of_a_master_is_shown() {
    let mut rig = Rig::new(3, |builder| builder.answer_timeout(ms(1000)));
    let lock = hold(&mut rig);
    rig.masters[0].errors.insert("EVALSHA".into(), "BUSY x".into());
    (1..3).for_each(|index| rig.stop_master(index));
    rig.release(lock, true);
    rig.masters[0].errors.insert("EVALSHA".into(), "OOM x".into());
    rig.reset_conn(0);
    rig.run_for(ms(1000));
    let outcome = rig.outcome();
    let Some(Outcome::Release(Err(ReleaseError::Unconfirmed(report)))) = outcome else {
        panic!("{outcome:?}")
    };
    let vote = &report.votes[0].1;
    assert!(matches!(vote, Vote::Failed(Failure::Replied(text)) if text.starts_with("OOM")), "{vote:?}");
}

/// The master's answer to the release comes before the answer that asks for the attempt's script.
#[test]
fn attempt_is_not_resent_after_its_release() {
    let mut rig = Rig::new(3, defaults);
    (0..2).for_each(|index| rig.masters[index].load_scripts());
    rig.stall_replies(2);
    let lock = rig.acquire_with("a", Options::new().ttl(ms(10_000)).shared());
    granted(&mut rig);
    rig.masters[2].load_scripts();
    (0..2).for_each(|index| rig.stall_replies(index));
    rig.release(lock, true);
    rig.end_stall(2);
    assert!(!rig.masters[2].is_taken(rig.now, b"a"));
}

/// The master stopped at its limit of served waiters, after a release or after another such command.
#[test]
fn master_with_more_waiters_is_asked_again() {
    let mut rig = Rig::new(3, defaults);
    let lock = hold(&mut rig);
    (0..2).for_each(|index| rig.stop_master(index));
    rig.release(lock, false);
    for _ in 0..2 {
        rig.receive(0, b":5\r\n");
        let bytes = rig.engine.send_ready(id(0)).to_vec();
        rig.engine.send_done(id(0), bytes.len());
        assert!(String::from_utf8_lossy(&bytes).contains(digest("serve")));
    }
    rig.receive(0, b":1\r\n");
    assert_eq!(rig.engine.send_ready(id(0)), b"");
}
