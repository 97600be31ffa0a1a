//! Contests while masters are killed or shut down, and return empty or with saved data.

use redlatch::Quarantine;
use redlatch_support::{Fleet, Raw};

use crate::contest::{Contest, Rules, TTL};
use crate::lockers::{Mode, Way};

const MODES: [Mode; 4] = [Mode::Plain, Mode::Fair, Mode::Fenced, Mode::Shared];
/// After this many contests without two holders, the contest has failed to see the fault.
const GAME_COUNT: usize = 24;

// I8
#[test]
fn empty_masters_give_no_plain_lock_twice() {
    come_back_empty(&Rules::default());
}

#[test]
fn empty_masters_give_sharing_callers_no_lock_twice() {
    come_back_empty(&Rules { way: Way::Client, ..Rules::default() });
}

#[test]
fn empty_masters_give_no_fair_lock_twice() {
    come_back_empty(&Rules { mode: Mode::Fair, ..Rules::default() });
}

#[test]
fn empty_masters_give_no_fenced_lock_twice() {
    come_back_empty(&Rules { mode: Mode::Fenced, ..Rules::default() });
}

fn come_back_empty(rules: &Rules) {
    let mut fleet = Fleet::start(5);
    let mut contest = Contest::start("kill -9, back empty", &fleet.urls(), rules);
    contest.progress("all is well", 10);
    fleet.master(0).kill();
    contest.survives("one is dead", 10);
    fleet.master(0).restart();
    contest.survives("one is in quarantine", 10);
    contest.pass(TTL);
    fleet.master(1).kill();
    fleet.master(2).kill();
    contest.survives("two are dead", 10);
    fleet.master(1).restart();
    fleet.master(2).restart();
    contest.survives("two are in quarantine", 10);
    // A quorum forgets. A lock granted without master 0 is left on two masters.
    for (first, others) in [(0, [1, 2]), (3, [4, 0])] {
        contest.pass(TTL);
        fleet.master(first).kill();
        contest.progress("one is dead", 10);
        fleet.master(first).restart();
        for other in others {
            fleet.master(other).restart();
        }
        contest.recovers("three came back empty");
    }
    contest.finish(&mut fleet);
}

/// Kills three of five masters again and again; they return empty. Returns locks with two holders.
fn lose_a_quorum(fleet: &mut Fleet, rules: &Rules, round_count: usize) -> Vec<String> {
    let contest = Contest::start("kill -9 of three, back empty at once", &fleet.urls(), rules);
    for _ in 0..round_count {
        contest.progress("all is well", 3);
        (0..3).for_each(|index| fleet.master(index).kill());
        (0..3).for_each(|index| fleet.master(index).restart());
        contest.recovers("three came back empty");
    }
    contest.judge(fleet)
}

/// Proves that contests can fail: without the quarantine there are soon two holders.
#[test]
fn contest_detects_masters_trusted_too_early() {
    for mode in MODES {
        let (mut fleet, rules) =
            (Fleet::start(5), Rules { quarantine: Quarantine::Trust, mode, ..Rules::default() });
        let is_seen = (0..GAME_COUNT).any(|_| !lose_a_quorum(&mut fleet, &rules, 4).is_empty());
        assert!(is_seen, "{mode:?}: no lock was held by two in {GAME_COUNT} contests");
    }
}

#[test]
fn an_empty_quorum_gives_no_lock_twice() {
    for mode in MODES {
        let (mut fleet, rules) = (Fleet::start(5), Rules { mode, ..Rules::default() });
        assert_eq!(lose_a_quorum(&mut fleet, &rules, 5), Vec::<String>::new(), "{mode:?}");
    }
}

#[test]
fn an_empty_fleet_gives_no_lock_twice() {
    let mut fleet = Fleet::start(5);
    let mut contest = Contest::start("all gone and back", &fleet.urls(), &Rules::default());
    contest.progress("all is well", 10);
    fleet.masters().for_each(|master| master.kill());
    contest.fails("all are dead", 10);
    fleet.masters().for_each(|master| master.restart());
    contest.recovers("all were killed");
    fleet.masters().for_each(|master| master.shutdown());
    contest.fails("all are shut down", 10);
    fleet.masters().for_each(|master| master.restart());
    contest.recovers("all were shut down");
    contest.finish(&mut fleet);
}

#[test]
fn masters_that_sync_each_write_are_trusted() {
    MODES.into_iter().for_each(come_back_with_data);
}

fn come_back_with_data(mode: Mode) {
    let mut fleet = Fleet::start_with(5, &["--appendonly", "yes", "--appendfsync", "always"]);
    let rules = Rules { quarantine: Quarantine::Trust, mode, ..Rules::default() };
    let mut contest = Contest::start("back from AOF always, trusted", &fleet.urls(), &rules);
    contest.progress("all is well", 10);
    for quorum in [[0, 1, 2], [2, 3, 4], [0, 2, 4]] {
        quorum.iter().for_each(|&index| fleet.master(index).kill());
        quorum.iter().for_each(|&index| fleet.master(index).restart());
        contest.survives("a quorum is back with its file", 10);
    }
    fleet.masters().for_each(|master| master.kill());
    contest.fails("all are dead", 10);
    fleet.masters().for_each(|master| master.restart());
    contest.recovers("all were killed");
    contest.finish(&mut fleet);
}

#[test]
fn masters_that_sync_now_and_then_are_quarantined() {
    let mut fleet = Fleet::start_with(5, &["--appendonly", "yes", "--appendfsync", "everysec"]);
    // One master saves snapshots instead, and shuts down with one.
    fleet.master(4).restart_with(&["--save", "3600 1"]);
    let mut contest = Contest::start("back from AOF everysec and RDB", &fleet.urls(), &Rules::default());
    contest.progress("all is well", 10);
    fleet.master(0).kill();
    contest.survives("one is dead", 10);
    fleet.master(0).restart();
    fleet.master(1).kill();
    fleet.master(1).restart();
    contest.survives("two are back with their files", 10);
    contest.pass(TTL);
    fleet.master(4).ask("SET kept yes");
    fleet.master(4).shutdown();
    fleet.master(2).shutdown();
    contest.survives("two are shut down", 10);
    fleet.master(4).restart();
    fleet.master(2).restart();
    assert_eq!(fleet.master(4).ask("GETDEL kept"), Raw::Text(b"yes".to_vec()));
    contest.survives("two are back with what they kept", 10);
    contest.recovers("all restarts");
    contest.finish(&mut fleet);
}
