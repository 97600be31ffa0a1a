//! Masters that refuse to run scripts, however they word it.

use std::time::Duration;

use redlatch::engine::{HandleAct, OpId, Outcome, Request};
use redlatch::status::Warning;
use redlatch::{Event, Options, Quarantine};

use crate::model::Dialect;
use crate::rig::{Rig, id};
use crate::{defaults, granted, ms};

const NATIVE: [(Dialect, &str); 2] = [(Dialect::Valkey9, "DELIFEQ"), (Dialect::Redis8, "DELEX")];

const REFUSALS: [&str; 5] = [
    "NOPERM User locker has no permissions to run the 'evalsha' command",
    "ERR unknown command 'EVALSHA', with args beginning with: ",
    "ERR unsupported command",
    "ERR Command is not available",
    "ERR Could not find scripting engine 'lua'",
];

/// Three masters of this dialect that refuse scripts from their first connection on.
fn rig_without_scripts(dialect: Dialect, refusal: &str) -> Rig {
    let mut rig = Rig::unconnected(3, |builder| builder.on_event(|_| unreachable!("not by an engine")));
    for master in &mut rig.masters {
        master.dialect = dialect;
        master.refuse_scripts(refusal);
    }
    rig.pump();
    rig
}

/// A lock that was held for this time.
fn held_for(rig: &mut Rig, time: Duration) -> OpId {
    let lock = rig.acquire("a", 10_000, 0);
    granted(rig);
    rig.run_for(time);
    rig.masters.iter_mut().for_each(|master| drop(master.take_log()));
    lock
}

#[track_caller]
fn assert_released(rig: &mut Rig, commands: &[&str]) {
    rig.pump();
    let outcome = rig.outcome();
    let Some(Outcome::Release(Ok(released))) = outcome else { panic!("{outcome:?} for {commands:?}") };
    assert!(released.deleted * 2 > rig.masters.len(), "{released:?}");
    rig.masters.iter_mut().for_each(|master| assert_eq!(master.take_log(), commands));
    assert_eq!((rig.holder_count("a"), rig.engine.claim_count()), (0, 0));
}

#[test]
fn a_lock_is_released_natively_without_scripts() {
    for (dialect, command) in NATIVE {
        for refusal in REFUSALS {
            let mut rig = rig_without_scripts(dialect, refusal);
            for time in [ms(0), ms(10), ms(5000)] {
                let lock = held_for(&mut rig, time);
                rig.release(lock, true);
                assert_released(&mut rig, &[command]);
            }
        }
    }
}

#[test]
fn scripts_refused_later_are_replaced_at_once() {
    for (dialect, command) in NATIVE {
        // Also the refusal of a command inside a script.
        let refusals = REFUSALS.into_iter().chain(["ERR ACL failure in script: x, on @user_script:1."]);
        for (refusal, count) in refusals.flat_map(|refusal| [(refusal, 3), (refusal, 1)]) {
            let mut rig = Rig::unconnected(count, defaults);
            rig.masters.iter_mut().for_each(|master| master.dialect = dialect);
            rig.pump();
            rig.masters.iter_mut().for_each(|master| master.refuse_scripts(refusal));
            for commands in [&["EVALSHA", command][..], &[command]] {
                let lock = held_for(&mut rig, ms(20));
                rig.release(lock, true);
                assert_released(&mut rig, commands);
            }
        }
    }
}

#[test]
fn a_passing_error_keeps_the_scripts() {
    let errors =
        ["BUSY Redis is busy", "OOM command not allowed script: x, on @user_script:1.", "READONLY no"];
    for error in errors {
        let mut rig = Rig::unconnected(1, |builder| builder.quarantine(Quarantine::Trust));
        rig.masters[0].dialect = Dialect::Valkey9;
        rig.pump();
        let lock = held_for(&mut rig, ms(20));
        rig.masters[0].refuse_scripts(error);
        rig.release(lock, false);
        rig.masters[0].errors.clear();
        rig.run_for(ms(1000));
        assert_eq!(rig.holder_count("a"), 0);
        let lock = held_for(&mut rig, ms(20));
        rig.release(lock, false);
        assert_eq!(rig.masters[0].take_log(), ["EVALSHA"], "{error}");
    }
}

#[test]
fn a_master_without_scripts_parks_nobody() {
    for refusal in REFUSALS {
        let mut rig = rig_without_scripts(Dialect::Redis8, refusal);
        let lock = held_for(&mut rig, ms(20));
        rig.acquire_with("a", Options::new().ttl(ms(10_000)).wait(ms(60_000)).fair());
        rig.run_for(ms(2000));
        let log: Vec<_> = rig.masters.iter_mut().flat_map(|master| master.take_log()).collect();
        assert!(!log.iter().any(|name| name.starts_with("EVAL")), "{log:?}");
        let warnings = rig.engine.master_status(rig.now, id(0)).warnings;
        assert!(matches!(&warnings[..], [Warning::NotParking { .. }]), "{warnings:?}");
        rig.release(lock, false);
        rig.run_for(ms(2000));
        granted(&mut rig);
    }
}

/// Only the message and the counter differ: the releases are sent.
#[test]
fn lock_refused_by_masters_is_not_left() {
    let errors = [
        "NOPERM User a has no permissions to run the 'set' command",
        "NOAUTH Authentication required.",
        "READONLY You can't write against a read only replica.",
        "OOM command not allowed when used memory > 'maxmemory'.",
        "MISCONF Redis is configured to save RDB snapshots",
        "NOREPLICAS Not enough good replicas to write.",
        "LOADING Redis is loading the dataset in memory",
        "BUSY Redis is busy running a script.",
        "MASTERDOWN Link with MASTER is down",
        "MOVED 3999 127.0.0.1:6381",
        "REDIRECT 127.0.0.1:6381",
        "CLUSTERDOWN The cluster is down",
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "ERR unknown command 'SET', with args beginning with: ",
    ];
    let others = ["ERR proxy error", "BUSYKEY no", "UNKNOWN"];
    let errors = errors.into_iter().map(|error| (error, 0)).chain(others.map(|error| (error, 1)));
    for (error, left) in errors {
        let mut rig = Rig::new(1, defaults);
        rig.masters[0].errors.insert("SET".into(), error.into());
        rig.masters[0].refuse_scripts(error);
        let lock = rig.acquire("a", 1000, 0);
        rig.release(lock, false);
        rig.pump();
        assert!(rig.masters[0].take_log().contains(&"EVALSHA".to_owned()), "{error}: no release");
        let count = rig.engine.unconfirmed_count();
        rig.run_for(ms(5000));
        let orphans = rig.engine.stats(rig.now).orphans;
        assert_eq!((count, orphans), (left, left as u64), "{error}");
    }
}

/// Redis 7.0 has no native command.
#[test]
fn a_master_that_cannot_release_says_so() {
    let mut rig = rig_without_scripts(Dialect::Redis7, "ERR unsupported command");
    let said = |event: &Event| matches!(event, Event::NoScripts { refusal, .. } if &**refusal == "ERR unsupported command");
    let events: Vec<_> = std::iter::from_fn(|| rig.engine.poll_event()).collect();
    assert_eq!(events.iter().filter(|event| said(event)).count(), 3, "{events:?}");
    let warnings = rig.engine.master_status(rig.now, id(0)).warnings;
    assert_eq!(warnings, [Warning::NoScripts { refusal: "ERR unsupported command".into() }]);
    let mut rig = rig_without_scripts(Dialect::Valkey9, "ERR unsupported command");
    assert!(!std::iter::from_fn(|| rig.engine.poll_event()).any(|event| said(&event)), "it can release");
}

#[test]
fn a_handle_is_adopted_and_released_natively() {
    for (dialect, command) in NATIVE {
        let mut rig = rig_without_scripts(dialect, "ERR unsupported command");
        let wall = ms(1_700_000_000_000);
        for adopts in [false, true] {
            let lock = held_for(&mut rig, ms(20));
            let handle = rig.engine.pass(rig.now, wall, lock, ms(10_000)).expect("it is held");
            if adopts {
                let act = HandleAct::Adopt { auto_extend: None };
                let lock =
                    rig.engine.submit(rig.now, Request::ByHandle { handle: &handle, act }).expect("room");
                rig.pump();
                granted(&mut rig);
                rig.masters.iter_mut().for_each(|master| assert_eq!(master.take_log(), ["SET"]));
                rig.release(lock, true);
            } else {
                let act = HandleAct::Release { awaited: true };
                rig.engine.submit(rig.now, Request::ByHandle { handle: &handle, act }).expect("room");
            }
            assert_released(&mut rig, &[command]);
        }
    }
}

#[test]
fn a_forced_unlock_needs_no_script() {
    for (dialect, _) in NATIVE {
        let mut rig = rig_without_scripts(dialect, REFUSALS[0]);
        rig.masters[0].put(b"a", b"another", None);
        rig.masters[2].put_list(b"a");
        let resource = redlatch::engine::Resource::new("a").expect("a name");
        rig.engine.submit(rig.now, Request::ForceUnlock { resource }).expect("room");
        rig.pump();
        assert!(!rig.masters[0].is_taken(rig.now, b"a"));
        assert!(rig.masters[2].is_taken(rig.now, b"a"), "it is no lock");
        let Some(Outcome::ForceUnlock(done)) = rig.outcome() else { panic!("an answer") };
        assert_eq!((done.deleted(), done.absent(), done.unanswered()), (1, 1, 1));
    }
}
