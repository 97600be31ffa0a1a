//! `redlatch run --at-least`: a command that runs once per interval.

use std::process::Command;
use std::time::{Duration, Instant};

use redlatch_support::{Fleet, PATIENCE, assert_sooner, eventually};

use crate::harness::{FOREVER, Running, expect, finish, holder_count, trusting};

/// A run with an `--at-least` time within the maximum TTL.
fn run(fleet: &Fleet, at_least: &str, command: &[&str]) -> Command {
    let mut run = trusting(fleet, "run");
    run.args(["--max-ttl", "1h", "--at-least", at_least, "report", "--"]).args(command);
    run
}

// I44
#[test]
fn second_run_in_the_interval_is_refused() {
    for (script, code) in [("true", 0), ("exit 3", 3), ("kill -KILL $$", 137)] {
        let mut fleet = Fleet::start(3);
        let begun = Instant::now();
        expect(&finish(&mut run(&fleet, "10min", &["sh", "-c", script])), code, &[]);
        assert_sooner(begun, Duration::from_secs(500), "a run that stays takes its interval of 10 min");
        expect(&finish(&mut run(&fleet, "10min", &["echo", "again"])), 75, &["held by another client ("]);
        eventually(PATIENCE, "all masters keep it", || holder_count(&mut fleet, "report") == 3);
    }
}

// I44
#[test]
fn signalled_run_keeps_its_interval() {
    let fleet = Fleet::start(3);
    let mut first = Running::start(&mut run(&fleet, "10min", &["sh", "-c", &format!("echo in; {FOREVER}")]));
    assert_eq!(first.line(), "in");
    first.signal("TERM");
    expect(&first.finish(), 143, &[]);
    expect(&finish(&mut run(&fleet, "10min", &["echo", "again"])), 75, &[]);
}

// I44
#[test]
fn the_interval_ends_and_the_next_run_runs() {
    let fleet = Fleet::start(3);
    let begun = Instant::now();
    expect(&finish(&mut run(&fleet, "1500ms", &["true"])), 0, &[]);
    let next = finish(trusting(&fleet, "run").args(["--wait", "30s", "report", "--", "echo", "next"]));
    expect(&next, 0, &[]);
    assert!(
        begun.elapsed() >= Duration::from_millis(1500) && next.stdout == "next\n",
        "{:?}",
        begun.elapsed()
    );
}

#[test]
fn a_command_that_takes_longer_releases_at_once() {
    let mut fleet = Fleet::start(3);
    let mut command = trusting(&fleet, "run");
    command.args(["-v", "--at-least", "50ms", "report", "--", "sleep", "0.2"]);
    expect(&finish(&mut command), 0, &["released"]);
    eventually(PATIENCE, "it is released", || holder_count(&mut fleet, "report") == 0);
}

// I44
#[test]
fn nothing_is_kept_where_no_command_ran() {
    let mut fleet = Fleet::start(3);
    expect(&finish(&mut run(&fleet, "10min", &["/no/such/command"])), 127, &[]);
    eventually(PATIENCE, "it is released", || holder_count(&mut fleet, "report") == 0);
    let too_long = finish(&mut run(&fleet, "25h", &["true"]));
    expect(&too_long, 64, &["--at-least is 25h, above the --max-hold of 24h; ask for less"]);
    let mut longest = trusting(&fleet, "run");
    longest.args(["--max-ttl", "1h", "--max-hold", "30min", "--at-least", "30min", "report", "--", "true"]);
    expect(&finish(&mut longest), 0, &[]);
}

#[test]
fn with_one_lock_gone_the_other_is_kept() {
    let mut fleet = Fleet::start(3);
    let mut command = trusting(&fleet, "run");
    command.args(["--max-ttl", "1h", "--ttl", "1h", "--at-least", "1h", "a", "--also", "b", "--"]);
    let mut run = Running::start_with_stdin(command.args(["sh", "-c", "echo in; read line"]));
    assert_eq!(run.line(), "in");
    eventually(PATIENCE, "all masters have it", || holder_count(&mut fleet, "b") == 3);
    fleet.masters().for_each(|master| drop(master.ask("DEL b")));
    run.send("\n");
    expect(&run.finish(), 76, &[]);
    assert_eq!(holder_count(&mut fleet, "a"), 3, "the other one is kept");
}

#[test]
fn loss_during_the_command_ends_the_interval() {
    let mut fleet = Fleet::start(3);
    let mut command = trusting(&fleet, "run");
    command.args(["--max-ttl", "1h", "--ttl", "2s", "--at-least", "1h", "a", "--also", "b", "--"]);
    let mut run = Running::start(command.args(["sh", "-c", &format!("echo in; {FOREVER}")]));
    assert_eq!(run.line(), "in");
    fleet.masters().for_each(|master| drop(master.ask("DEL a")));
    expect(&run.finish(), 76, &["TERM to the command"]);
    eventually(PATIENCE, "the other one is released", || holder_count(&mut fleet, "b") == 0);
}

/// The time exceeds the maximum TTL, so the program stays until a signal comes.
// I44
#[test]
fn signal_ends_a_stay_beyond_max_ttl() {
    let mut fleet = Fleet::start(3);
    let mut command = trusting(&fleet, "run");
    command.args(["--verbose", "--at-least", "10min", "report", "--", "sh", "-c", "exit 3"]);
    let mut first = Running::start(&mut command);
    first.wait_for_stderr("is held for another");
    expect(&finish(trusting(&fleet, "run").args(["report", "--", "true"])), 75, &[]);
    first.signal("TERM");
    expect(&first.finish(), 3, &["the signal cuts the --at-least time:", "ends in 30s"]);
    expect(&finish(trusting(&fleet, "run").args(["report", "--", "true"])), 75, &[]);
    for master in fleet.masters() {
        eventually(PATIENCE, "it has more than the TTL", || {
            let left_ms: i64 = master.ask("PTTL report").text().parse().expect("a time");
            (10_001..=30_000).contains(&left_ms)
        });
    }
}

/// The signal comes before the stay.
#[test]
fn signalled_run_does_not_stay() {
    let fleet = Fleet::start(3);
    let mut command = trusting(&fleet, "run");
    command.args(["--at-least", "10min", "report", "--", "sh", "-c", &format!("echo in; {FOREVER}")]);
    let mut first = Running::start(&mut command);
    assert_eq!(first.line(), "in");
    first.signal("TERM");
    expect(&first.finish(), 143, &["the signal cuts the --at-least time", "ends in 30s"]);
}

/// The second signal ends the command, but changes nothing else.
#[test]
fn second_signal_changes_nothing() {
    let fleet = Fleet::start(3);
    let mut command = trusting(&fleet, "run");
    let traps = "trap 'echo term' TERM; trap 'exit 3' USR1; echo in; while :; do sleep 0.05; done";
    command.args(["--at-least", "10min", "report", "--", "sh", "-c", traps]);
    let mut first = Running::start(&mut command);
    assert_eq!(first.line(), "in");
    first.signal("TERM");
    assert_eq!(first.line(), "term");
    first.signal("USR1");
    expect(&first.finish(), 3, &["the signal cuts the --at-least time", "ends in 30s"]);
}

// I44
#[test]
fn a_stay_ends_when_the_rest_fits() {
    let fleet = Fleet::start(3);
    let begun = Instant::now();
    let mut command = trusting(&fleet, "run");
    command.args(["--max-ttl", "2s", "--ttl", "1s", "--at-least", "4s", "report", "--", "true"]);
    expect(&finish(&mut command), 0, &[]);
    assert!(begun.elapsed() >= Duration::from_millis(1900), "{:?}", begun.elapsed());
    let next = finish(trusting(&fleet, "run").args(["--wait", "30s", "report", "--", "true"]));
    expect(&next, 0, &[]);
    assert!(begun.elapsed() >= Duration::from_secs(4), "{:?}", begun.elapsed());
}

/// Without the signal, redlatch would stay for an hour.
#[test]
fn a_signal_ends_the_wait_for_silent_masters() {
    let mut fleet = Fleet::start(3);
    let mut command = trusting(&fleet, "run");
    command.args(["--max-ttl", "1h", "--ttl", "1h", "--at-least", "30min", "report", "--"]);
    let mut first = Running::start_with_stdin(command.args(["sh", "-c", "echo in; read line"]));
    assert_eq!(first.line(), "in");
    (0..2).for_each(|index| fleet.master(index).stop());
    first.send("go on\n");
    first.wait_for_stderr(", and sooner if masters answer");
    first.signal("TERM");
    let finished = first.finish();
    (0..2).for_each(|index| fleet.master(index).cont());
    expect(&finished, 0, &[]);
}

// I44
#[test]
fn loss_during_the_stay_is_reported() {
    let mut fleet = Fleet::start(3);
    let mut command = trusting(&fleet, "run");
    command.args(["--verbose", "--ttl", "1s", "--at-least", "10min", "report", "--", "true"]);
    let mut first = Running::start(&mut command);
    first.wait_for_stderr("is held for another");
    fleet.masters().for_each(|master| master.stop());
    first.wait_for_stderr("was lost before its --at-least time");
    fleet.masters().for_each(|master| master.cont());
    expect(&first.finish(), 76, &[]);
}

#[test]
fn loss_of_one_lock_ends_the_stay() {
    let mut fleet = Fleet::start(3);
    let mut command = trusting(&fleet, "run");
    command.args(["--verbose", "--ttl", "1s", "--at-least", "10min", "a", "--also", "b", "--", "true"]);
    let mut first = Running::start(&mut command);
    first.wait_for_stderr("is held for another");
    // The masters refuse commands about `a`, which proves no loss.
    fleet
        .masters()
        .for_each(|master| assert_eq!(master.ask("ACL SETUSER default resetkeys ~*b").text(), "OK"));
    first.wait_for_stderr("was lost before its --at-least time");
    expect(&first.finish(), 76, &[]);
    for master in fleet.masters() {
        assert_eq!(master.ask("EXISTS b").text(), "0", "the other lock is released");
    }
}
