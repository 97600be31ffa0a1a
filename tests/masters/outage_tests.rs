//! Contests while masters hang.

use redlatch_support::Fleet;

use crate::contest::{Contest, Rules, TTL};
use crate::lockers::{Mode, Way};

#[test]
fn masters_stopped_beyond_the_ttl_harm_nobody() {
    stand_still(&Rules::default());
}

#[test]
fn stopped_masters_harm_no_sharing_caller() {
    stand_still(&Rules { way: Way::Client, ..Rules::default() });
}

#[test]
fn stopped_masters_harm_no_fair_waiter() {
    stand_still(&Rules { mode: Mode::Fair, ..Rules::default() });
}

#[test]
fn stopped_masters_harm_no_fenced_lock() {
    stand_still(&Rules { mode: Mode::Fenced, ..Rules::default() });
}

fn stand_still(rules: &Rules) {
    let mut fleet = Fleet::start_with(5, &["--enable-debug-command", "yes"]);
    let mut contest = Contest::start("SIGSTOP, DEBUG SLEEP, CLIENT PAUSE", &fleet.urls(), rules);
    fleet.master(0).stop();
    contest.survives("one is stopped", 10);
    contest.pass(TTL);
    fleet.master(1).stop();
    contest.survives("two are stopped", 10);
    contest.pass(TTL.mul_f64(1.2));
    fleet.master(0).cont();
    fleet.master(1).cont();
    contest.recovers("two go on");
    for index in [2, 3, 4] {
        fleet.master(index).stop();
    }
    contest.fails("three are stopped", 10);
    contest.pass(TTL.mul_f64(1.2));
    for index in [2, 3, 4] {
        fleet.master(index).cont();
    }
    contest.recovers("three go on");
    // The test does not wait for this reply, and the server serves nobody meanwhile.
    let _sleep = fleet.master(0).send(&[b"DEBUG", b"SLEEP", b"1.2"]);
    assert_eq!(fleet.master(1).ask("CLIENT PAUSE 1200 ALL").text(), "OK");
    contest.survives("one sleeps and one has paused its clients", 10);
    contest.recovers("both go on");
    contest.finish(&mut fleet);
}
