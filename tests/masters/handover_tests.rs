//! Callers of one client that want the same lock, on real masters: hand-over with one command.

use std::time::{Duration, Instant};

use redlatch::engine::{OpId, Outcome, Request, Resource};
use redlatch::{HeldLocks, Options, limits};
use redlatch_support::{Blocking, Fleet, PATIENCE, Place, valkey_9};

use crate::lock_tests::{TTL, drive, open, settings};
use crate::valkey_tests::Native;

fn submit(redlock: &mut Blocking) -> OpId {
    let ttl = TTL;
    let resource = Resource::new("a").expect("valid");
    let request = Request::Acquire { resource, options: Options::new().ttl(ttl).wait(PATIENCE), label: None };
    redlock.submit(request).expect("room")
}

fn release(redlock: &mut Blocking, lock: OpId) {
    redlock.submit(Request::Release { lock, awaited: false }).expect("always taken");
}

/// The next acquired lock.
fn next_holder(redlock: &mut Blocking) -> OpId {
    let deadline = Instant::now() + PATIENCE;
    loop {
        redlock.turn(Duration::from_millis(5)).expect("the loop runs");
        match redlock.poll_outcome() {
            Some((lock, Outcome::Acquire(Ok(_)))) => return lock,
            Some(other) => panic!("{other:?}"),
            None => assert!(Instant::now() < deadline, "nobody gets the lock"),
        }
    }
}

/// How often a master has carried out each command since its last `CONFIG RESETSTAT`.
fn calls<const N: usize>(fleet: &mut Fleet, index: usize, commands: [&str; N]) -> [u32; N] {
    commands.map(|command| fleet.master(index).calls(command))
}

/// Four callers have the lock in turn. Returns the total duration.
fn pass_it_on(redlock: &mut Blocking) -> Duration {
    let callers: Vec<_> = (0..4).map(|_| submit(redlock)).collect();
    let start = Instant::now();
    for &lock in &callers {
        assert_eq!(next_holder(redlock), lock, "in the order in which they came");
        release(redlock, lock);
    }
    start.elapsed()
}

/// With each server's native commands.
fn a_hand_over_is_one_command_a_master(mut fleet: Fleet) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut redlock = open(settings(&fleet.urls()));
        let count = redlock.masters().len();
        for index in 0..count {
            drive(&mut redlock, "the fleet's record is written", |_| {
                fleet.master(index).ask("EXISTS redlatch:fleet").text() == "1"
            });
        }
        (0..count).for_each(|index| assert_eq!(fleet.master(index).ask("CONFIG RESETSTAT").text(), "OK"));
        let took = pass_it_on(&mut redlock);
        assert_eq!(redlock.drain(PATIENCE, HeldLocks::Leave), 0);
        if took >= limits::HANDOVER_TIME_MAX && Instant::now() < deadline {
            // On a machine this slow, the run ended in between, which proves nothing.
            continue;
        }
        for index in 0..count {
            // One SET, three swaps, one release. Commands inside a script also count.
            let seen = calls(&mut fleet, index, ["set", "evalsha", "eval", "delifeq", "delex", "del"]);
            let Native { set_if_eq, release } = Native::of(fleet.master(index));
            let scripts = if set_if_eq { 0 } else { 3 } + u32::from(release.is_none());
            let by = |name| u32::from(release == name);
            let expected = [4, scripts, 0, by(Some("delifeq")), by(Some("delex")), by(None)];
            assert_eq!(seen, expected, "master {index}");
            assert_eq!(fleet.master(index).key_count(), "0");
        }
        return;
    }
}

// I51
#[test]
fn a_lock_passes_on_in_one_command() {
    for count in [1, 5] {
        a_hand_over_is_one_command_a_master(Fleet::start(count));
    }
}

#[test]
fn valkey_9_hands_over_natively() {
    let Some(valkey) = valkey_9() else { return };
    let mut places = vec![valkey; 2];
    places.resize(3, Place::default());
    a_hand_over_is_one_command_a_master(Fleet::start_at(places));
}
