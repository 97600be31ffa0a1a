//! Strict mode on real servers: which masters' votes count, and which servers are refused.

use std::time::{Duration, Instant};

use redlatch::status::MasterState;
use redlatch::{Config, ConfigBuilder, Quarantine};
use redlatch_support::{Blocking, Fleet, PATIENCE};

use crate::lock_tests::{ANSWER_TIMEOUT, drive, open, state};

const MAX_TTL: Duration = Duration::from_secs(1);

/// The quarantine for this `max_ttl`: 1 % and 2 ms more.
const WATCH: Duration = Duration::from_millis(1012);

fn strict(urls: &[String]) -> ConfigBuilder {
    Config::builder()
        .masters(urls)
        .quarantine(Quarantine::Strict)
        .max_ttl(MAX_TTL)
        .answer_timeout(ANSWER_TIMEOUT)
        .prefix("p:")
}

/// Drives the loop until all masters' votes count.
fn wait_for_all(redlock: &mut Blocking) {
    drive(redlock, "all masters count", |redlock| {
        redlock.masters().iter().all(|master| master.state == MasterState::Ready)
    });
}

/// State of a master once it is connected.
fn connected(redlock: &mut Blocking, index: usize) -> MasterState {
    let is_up = |redlock: &Blocking| {
        matches!(state(redlock, index), MasterState::Ready | MasterState::Quarantined(_))
    };
    drive(redlock, "it is connected", is_up);
    state(redlock, index)
}

fn mark(fleet: &mut Fleet, index: usize) -> String {
    fleet.master(index).ask("GET p:redlatch:mark").text()
}

/// Drives the loop until each master has its mark.
fn wait_for_marks(redlock: &mut Blocking, fleet: &mut Fleet) {
    let run_ids: Vec<_> = redlock.masters().into_iter().map(|master| master.run_id.expect("told")).collect();
    for (index, run_id) in run_ids.iter().enumerate() {
        drive(redlock, "the mark is there", |_| {
            let mark = mark(fleet, index);
            mark.starts_with(&format!("{run_id} - ")) && mark.ends_with(" 1012")
        });
    }
}

#[test]
fn a_watched_fleet_counts_for_all_clients() {
    let mut fleet = Fleet::start(3);
    let start = Instant::now();
    let mut first = open(strict(&fleet.urls()));
    let lease = first.lock("a").ttl(MAX_TTL).wait(PATIENCE).acquire().expect("watched");
    assert!(start.elapsed() >= WATCH, "{:?}", start.elapsed());
    first.release(lease).expect("confirmed");
    wait_for_marks(&mut first, &mut fleet);
    for index in 0..3 {
        assert_eq!(fleet.master(index).ask("PTTL p:redlatch:mark").text(), "-1", "it stays");
    }
    let mut second = open(strict(&fleet.urls()));
    let states: Vec<_> = (0..3).map(|index| connected(&mut second, index)).collect();
    assert_eq!(states, [MasterState::Ready, MasterState::Ready, MasterState::Ready]);
    drop(second.lock("a").ttl(MAX_TTL).wait(PATIENCE).acquire().expect("free"));
}

#[test]
fn an_old_mark_in_the_log_is_worthless() {
    for (args, is_kept) in [(&[][..], false), (&["--appendonly", "yes", "--appendfsync", "always"], true)] {
        let mut fleet = Fleet::start_with(1, args);
        let mut first = open(strict(&fleet.urls()));
        wait_for_all(&mut first);
        wait_for_marks(&mut first, &mut fleet);
        let old = mark(&mut fleet, 0);
        let old_run_id = first.masters()[0].run_id.clone();
        fleet.master(0).kill();
        let restarted = Instant::now();
        fleet.master(0).restart();
        assert_eq!(mark(&mut fleet, 0) == old, is_kept);
        let mut second = open(strict(&fleet.urls()));
        drive(&mut first, "the new process is known", |redlock| {
            matches!(state(redlock, 0), MasterState::Quarantined(_) | MasterState::Ready)
                && redlock.masters()[0].run_id != old_run_id
        });
        wait_for_all(&mut first);
        assert!(restarted.elapsed() >= WATCH, "{:?}", restarted.elapsed());
        let warnings = first.masters().swap_remove(0).warnings;
        assert!(warnings.iter().any(|it| it.to_string().contains("replaced once, last")), "{warnings:?}");
        wait_for_all(&mut second);
        wait_for_marks(&mut first, &mut fleet);
        assert_ne!(mark(&mut fleet, 0), old);
    }
}

#[test]
fn unfit_masters_are_refused_until_mended() {
    let mut fleet = Fleet::start(3);
    let primary = fleet.master(0).port();
    assert_eq!(fleet.master(1).ask(&format!("REPLICAOF 127.0.0.1 {primary}")).text(), "OK");
    assert_eq!(fleet.master(2).ask("CONFIG SET maxmemory-policy allkeys-lru").text(), "OK");
    assert_eq!(fleet.master(0).ask("ACL SETUSER default -info").text(), "OK");
    let mut redlock = open(strict(&fleet.urls()));
    let error = redlock.lock("a").ttl(MAX_TTL).try_acquire().expect_err("none is fit").to_string();
    for said in ["list its master instead", "allkeys-lru", "set noeviction", "NOPERM", "grant +info"] {
        assert!(error.contains(said), "{said:?} is not in: {error}");
    }
    assert_eq!(fleet.master(0).ask("ACL SETUSER default +info").text(), "OK");
    assert_eq!(fleet.master(1).ask("REPLICAOF NO ONE").text(), "OK");
    assert_eq!(fleet.master(2).ask("CONFIG SET maxmemory-policy noeviction").text(), "OK");
    let mended = Instant::now();
    wait_for_all(&mut redlock);
    assert!(mended.elapsed() >= WATCH, "{:?}", mended.elapsed());
    drop(redlock.lock("a").ttl(MAX_TTL).wait(PATIENCE).acquire().expect("free"));
}
