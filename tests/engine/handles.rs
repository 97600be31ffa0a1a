//! Locks that another process takes over or releases with a handle.

use std::time::Duration;

use redlatch::engine::{HandleAct, OpId, Outcome, Request};
use redlatch::error::HolderTtl;
use redlatch::{AcquireError, LockHandle, Options};

use crate::rig::Rig;
use crate::{defaults, denied, granted, ms};

/// Three masters, and the handle of a lock that was given up for another process.
fn passed(options: Options) -> (Rig, LockHandle) {
    let mut rig = Rig::new(3, defaults);
    let lock = rig.acquire_with("a", options.ttl(ms(10_000)).wait(Duration::ZERO));
    granted(&mut rig);
    let handle = rig.engine.pass(rig.now, ms(1_700_000_000_000), lock, ms(10_000)).expect("it is held");
    (rig, handle)
}

fn submit(rig: &mut Rig, handle: &LockHandle, act: HandleAct) -> OpId {
    rig.engine.submit(rig.now, Request::ByHandle { handle, act }).expect("room")
}

/// The awaited release has ended, and left nothing.
#[track_caller]
fn assert_released(rig: &mut Rig) {
    rig.pump();
    let outcome = rig.outcome();
    assert!(matches!(outcome, Some(Outcome::Release(Ok(_)))), "{outcome:?}");
    assert_eq!((rig.outcome(), rig.engine.operation_count(), rig.engine.claim_count()), (None, 0, 0));
    assert_eq!(rig.holder_count("a"), 0);
}

#[test]
fn a_release_by_a_handle_cannot_be_released() {
    let (mut rig, handle) = passed(Options::new());
    let lock = submit(&mut rig, &handle, HandleAct::Release { awaited: true });
    rig.engine.submit(rig.now, Request::Release { lock, awaited: false }).expect("always taken");
    assert_released(&mut rig);
}

#[test]
fn an_adoption_that_fails_names_no_earlier_holder() {
    let (mut rig, handle) = passed(Options::new());
    let until = rig.now + ms(5000);
    for master in &mut rig.masters {
        [b"a", b"b"].into_iter().for_each(|key| master.put(key, b"other", Some(until)));
    }
    rig.acquire("b", 10_000, 0);
    let holder = |rig: &mut Rig| match denied(rig) {
        AcquireError::Contended(denial) => denial.holder,
        other => panic!("{other}"),
    };
    assert_eq!(holder(&mut rig), HolderTtl::Left(ms(5000)));
    submit(&mut rig, &handle, HandleAct::Adopt { auto_extend: None });
    rig.pump();
    assert_eq!(holder(&mut rig), HolderTtl::Unknown);
}

#[test]
fn an_adoption_ends_at_its_limit() {
    let (mut rig, handle) = passed(Options::new());
    rig.run_for(ms(100));
    (0..2).for_each(|index| rig.stop_master(index));
    submit(&mut rig, &handle, HandleAct::Adopt { auto_extend: None });
    rig.run_for(ms(49));
    assert_eq!(rig.outcome(), None);
    rig.run_for(ms(1));
    assert!(matches!(denied(&mut rig), AcquireError::NoQuorum(_)));
}
