//! Masters at their memory limit with the policy `noeviction`: commands that need no memory succeed, and the
//! others' errors say why.

use std::time::Duration;

use redlatch::engine::{Outcome, Request, Resource};
use redlatch::{AcquireError, Client, HeldLocks, Options};
use redlatch_support::{Blocking, Fleet, Lease, PATIENCE, Place, Raw, eventually, valkey_9};

use crate::lock_tests::{TTL, drive, open, settings};

#[derive(Debug, Clone, Copy)]
enum Kind {
    Plain,
    Fenced,
    Fair,
    Shared,
}

const KINDS: [Kind; 4] = [Kind::Plain, Kind::Fenced, Kind::Fair, Kind::Shared];

fn acquire(redlock: &mut Blocking, kind: Kind, wait: Duration) -> Result<Lease, AcquireError> {
    match kind {
        Kind::Plain => redlock.lock("a").ttl(TTL).wait(wait).acquire(),
        Kind::Fenced => redlock.lock("a").ttl(TTL).wait(wait).fenced().acquire(),
        Kind::Fair => redlock.lock("a").ttl(TTL).wait(wait).fair().acquire(),
        Kind::Shared => redlock.lock("a").ttl(TTL).wait(wait).shared().acquire(),
    }
}

/// Fleets of the usual server, and of a server with native commands if available.
fn fleets() -> impl Iterator<Item = Fleet> {
    [Some(Place::default()), valkey_9()].into_iter().flatten().map(|place| Fleet::start_at(vec![place; 3]))
}

fn fill(fleet: &mut Fleet, is_full: bool) {
    let line = format!("CONFIG SET maxmemory {}", u8::from(is_full));
    fleet.masters().for_each(|master| assert_eq!(master.ask(&line).text(), "OK"));
}

// I106
#[test]
fn a_full_server_extends_and_releases() {
    for mut fleet in fleets() {
        let mut redlock = open(settings(&fleet.urls()).max_ttl(TTL * 3));
        for kind in KINDS {
            let mut lease = acquire(&mut redlock, kind, PATIENCE).expect("free");
            drive(&mut redlock, "all masters have it", |redlock| redlock.margin(&lease) == 1);
            fill(&mut fleet, true);
            redlock.extend(&mut lease, TTL * 2).unwrap_or_else(|error| panic!("{kind:?}: {error}"));
            drive(&mut redlock, "all masters have extended it", |redlock| redlock.margin(&lease) == 1);
            assert!(lease.remaining() > TTL, "{kind:?}");
            let released = redlock.release(lease).unwrap_or_else(|error| panic!("{kind:?}: {error}"));
            assert!(released.deleted >= 2, "{kind:?}: {released:?}");
            drive(&mut redlock, "all masters have released it", |_| {
                fleet.masters().all(|master| master.ask("EXISTS a") == Raw::Integer(0))
            });
            fill(&mut fleet, false);
        }
        assert_eq!(redlock.drain(PATIENCE, HeldLocks::Leave), 0);
    }
}

// I106
#[test]
fn a_full_server_grants_nothing_and_says_why() {
    for mut fleet in fleets() {
        for kind in KINDS {
            fill(&mut fleet, false);
            let mut redlock = open(settings(&fleet.urls()));
            fill(&mut fleet, true);
            for wait in [Duration::ZERO, Duration::from_millis(30)] {
                let error = acquire(&mut redlock, kind, wait).expect_err("no memory");
                let is_said = error.to_string().contains("OOM command not allowed");
                assert!(matches!(error, AcquireError::NoQuorum(_)) && is_said, "{kind:?}: {error}");
            }
            // Owed releases are given up after the TTL.
            assert_eq!(redlock.drain(TTL / 2, HeldLocks::Leave), 0, "{kind:?}: a release is owed");
            for master in fleet.masters() {
                assert_eq!(master.key_count(), "0", "{kind:?}");
            }
        }
    }
}

// I106
#[test]
fn full_servers_allow_hand_overs() {
    for mut fleet in fleets() {
        let mut redlock = open(settings(&fleet.urls()));
        let (ttl, resource) = (TTL, Resource::new("a").expect("valid"));
        let request =
            Request::Acquire { resource, options: Options::new().ttl(ttl).wait(PATIENCE), label: None };
        let holders = [(); 3].map(|()| redlock.submit(request).expect("room"));
        for lock in holders {
            let mut granted = None;
            drive_outcomes(&mut redlock, |id, outcome| {
                if let Outcome::Acquire(result) = outcome {
                    granted = Some((id, result.expect("handed over").attempts));
                }
                granted.is_some()
            });
            assert_eq!(granted, Some((lock, 1)));
            fill(&mut fleet, true);
            redlock.submit(Request::Release { lock, awaited: false }).expect("always taken");
        }
        assert_eq!(redlock.drain(PATIENCE, HeldLocks::Leave), 0);
        fleet.masters().for_each(|master| assert_eq!(master.ask("EXISTS a"), Raw::Integer(0)));
    }
}

/// Drives the loop up to a given outcome.
fn drive_outcomes(redlock: &mut Blocking, mut is_it: impl FnMut(redlatch::engine::OpId, Outcome) -> bool) {
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        match redlock.poll_outcome() {
            Some((id, outcome)) if is_it(id, outcome.clone()) => return,
            Some(_) => {}
            None => redlock.turn(Duration::from_millis(5)).expect("the loop runs"),
        }
        assert!(std::time::Instant::now() < deadline, "no such outcome in time");
    }
}

// I54, I106
#[test]
fn full_server_serves_waiters_and_forced_unlocks() {
    for mut fleet in fleets() {
        let [mut redlock, mut operator] = [(); 2].map(|()| open(settings(&fleet.urls())));
        let lease = acquire(&mut redlock, Kind::Plain, PATIENCE).expect("free");
        drive(&mut redlock, "all masters have it", |redlock| redlock.margin(&lease) == 1);
        let config = settings(&fleet.urls()).build().expect("valid settings");
        let waiter = Client::open(config).expect("an event loop");
        let waiting = std::thread::spawn(move || waiter.lock("a").ttl(TTL).wait(PATIENCE).acquire());
        for master in fleet.masters() {
            eventually(PATIENCE, "it waits", || master.ask("ZCARD redlatch:wait:a") == Raw::Integer(1));
        }
        fill(&mut fleet, true);
        redlock.release(lease).expect("confirmed");
        let next = waiting.join().expect("no panic").expect("it is served");
        next.release().expect("confirmed");
        fill(&mut fleet, false);
        let lease = acquire(&mut redlock, Kind::Plain, PATIENCE).expect("free");
        drive(&mut redlock, "all masters have it", |redlock| redlock.margin(&lease) == 1);
        fill(&mut fleet, true);
        let resource = Resource::new("a").expect("valid");
        operator.submit(Request::ForceUnlock { resource }).expect("room");
        let mut deleted = 0;
        drive_outcomes(&mut operator, |_, outcome| {
            if let Outcome::ForceUnlock(unlocked) = &outcome {
                deleted = unlocked.deleted();
            }
            deleted > 0
        });
        assert_eq!(deleted, 3);
        assert_eq!(redlock.release(lease).map(|released| released.deleted), Ok(0));
        assert_eq!(redlock.drain(PATIENCE, HeldLocks::Leave), 0);
    }
}
