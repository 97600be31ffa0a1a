//! `redlatch run` with several locks.

use std::time::Duration;

use redlatch::limits;
use redlatch_support::{Fleet, PATIENCE, eventually};

use crate::harness::{FOREVER, Running, expect, finish, holder_count, redlatch, trusting};
use crate::hostile::{ANY, Conduct, Hostile};

#[test]
fn a_command_with_several_locks_has_all_tokens() {
    let mut fleet = Fleet::start(3);
    let script =
        "echo \"$REDLATCH_RESOURCE\"; echo \"$REDLATCH_TOKEN\"; echo \"$REDLATCH_FENCING_TOKEN\"; read line";
    let mut run = Running::start_with_stdin(
        trusting(&fleet, "run")
            .args(["--fenced", "b", "--also", "a", "--also", "b", "--", "sh", "-c", script]),
    );
    let lines: Vec<String> = (0..6).map(|_| run.line()).collect();
    assert_eq!(lines[..2], ["b", "a"], "each once, in their order");
    assert!(lines[2] != lines[3] && lines[2].len() == 40 && lines[3].len() == 40, "{lines:?}");
    assert!(lines[4..].iter().all(|token| token.parse::<u64>().is_ok()), "{lines:?}");
    eventually(PATIENCE, "both are held", || ["a", "b"].iter().all(|key| holder_count(&mut fleet, key) == 3));
    run.send("\n");
    expect(&run.finish(), 0, &[]);
    assert_eq!(["a", "b"].map(|key| holder_count(&mut fleet, key)), [0, 0], "released before the exit");
}

#[test]
fn run_takes_as_many_locks_as_a_set() {
    let fleet = Fleet::start(1);
    for (count, code) in [(limits::SET_SIZE_MAX, 0), (limits::SET_SIZE_MAX + 1, 64)] {
        let mut command = trusting(&fleet, "run");
        (1..count).for_each(|index| _ = command.args(["--also", &index.to_string()]));
        expect(&finish(command.args(["0", "--", "true"])), code, &[]);
    }
}

// I100
#[test]
fn several_locks_are_extended_and_lost_together() {
    let mut fleet = Fleet::start(3);
    let script = format!("trap 'echo term; exit 0' TERM; echo ready; {FOREVER}");
    let mut run = Running::start(
        trusting(&fleet, "run").args(["-v", "--ttl", "2s", "a", "--also", "b", "--", "sh", "-c", &script]),
    );
    run.line();
    // Each line shows a renewal of the lock that ends first, at a quarter of the TTL or later.
    for _ in 0..8 {
        run.wait_for_stderr("extended; valid for");
    }
    assert_eq!(["a", "b"].map(|key| holder_count(&mut fleet, key) >= 2), [true, true]);
    fleet.masters().for_each(|master| assert_eq!(master.ask("DEL b").text(), "1"));
    let finished = run.finish();
    expect(&finished, 76, &["TERM to the command", "no longer has this lock"]);
    assert_eq!(finished.stdout, "term\n");
    assert_eq!(holder_count(&mut fleet, "a"), 0);
}

#[test]
fn a_second_lost_lock_is_not_said_again() {
    let mut fleet = Fleet::start(3);
    let mut command = trusting(&fleet, "run");
    command.args(["--ttl", "3s", "a", "--also", "b", "--", "sh", "-c"]);
    let mut run = Running::start(command.arg(format!("trap '' TERM; echo ready; {FOREVER}")));
    run.line();
    fleet.masters().for_each(|master| drop(master.ask("DEL a b")));
    let finished = run.finish();
    expect(&finished, 76, &["KILL to the command"]);
    // On a slow machine, KILL may be due at once, without TERM.
    assert!(finished.stderr.matches("TERM to the command").count() <= 1, "{}", finished.stderr);
}

#[test]
fn one_lock_gone_at_the_end_gives_76() {
    for gone in ["a", "b"] {
        let mut fleet = Fleet::start(3);
        let mut command = trusting(&fleet, "run");
        command.args(["--ttl", "30s", "a", "--also", "b", "--", "sh", "-c", "echo ready; read line"]);
        let mut run = Running::start_with_stdin(&mut command);
        run.line();
        eventually(PATIENCE, "all masters have it", || holder_count(&mut fleet, gone) == 3);
        fleet.masters().for_each(|master| assert_eq!(master.ask(&format!("DEL {gone}")).text(), "1"));
        run.send("\n");
        expect(&run.finish(), 76, &["one of lock", "gone on"]);
        assert_eq!(["a", "b"].map(|key| holder_count(&mut fleet, key)), [0, 0]);
    }
}

/// The signal comes when one lock is granted, and the other is undecided because its masters answer slowly.
#[test]
fn a_signal_between_two_grants_leaves_no_lock() {
    let mut fleet = Fleet::start(3);
    fleet.masters().for_each(|master| assert_eq!(master.ask("SET b other").text(), "OK"));
    let late = Conduct::Late(Duration::from_secs(1));
    let slow: Vec<Hostile> = fleet.addrs().iter().map(|addr| Hostile::start(*addr, ANY, late)).collect();
    let urls: Vec<String> = slow.iter().map(|master| master.url("")).collect();
    let mut command = redlatch(&urls);
    command.args(["run", "--trust", "--answer-timeout", "15s", "--connect-timeout", "30s"]);
    command.args(["--max-ttl", "1h", "--ttl", "1h", "a", "--also", "b", "--", "true"]);
    let run = Running::start(&mut command);
    // The client asks for the holder of `b` after a quorum's answers, including answers about `a`.
    eventually(PATIENCE, "b is refused", || {
        fleet.masters().any(|master| master.ask("INFO commandstats").text().contains("cmdstat_pttl:"))
    });
    run.signal("TERM");
    let code = run.finish().code;
    // On a busy machine, the refusal may have ended the run earlier.
    assert!(matches!(code, Some(143 | 75)), "{code:?}");
    eventually(PATIENCE, "a is released", || holder_count(&mut fleet, "a") == 0);
}

/// The signal comes when the awaited lock is granted. The masters are slow to grant the other lock.
#[test]
fn signal_after_a_wait_leaves_no_lock() {
    let mut fleet = Fleet::start(3);
    fleet.masters().for_each(|master| assert_eq!(master.ask("SET b other").text(), "OK"));
    let late = Conduct::Late(Duration::from_millis(500));
    let slow: Vec<Hostile> = fleet.addrs().iter().map(|addr| Hostile::start(*addr, ANY, late)).collect();
    let urls: Vec<String> = slow.iter().map(|master| master.url("")).collect();
    let mut command = redlatch(&urls);
    command.args(["run", "--trust", "--answer-timeout", "15s", "--connect-timeout", "30s", "--wait", "1h"]);
    command.args(["--max-ttl", "1h", "--ttl", "1h", "a", "--also", "b", "--", "true"]);
    let run = Running::start(&mut command);
    eventually(PATIENCE, "it waits for b", || fleet.masters().any(|master| master.calls("zadd") > 0));
    fleet.masters().for_each(|master| assert_eq!(master.ask("DEL b").text(), "1"));
    eventually(PATIENCE, "it asks for a", || holder_count(&mut fleet, "a") >= 2);
    run.signal("TERM");
    let code = run.finish().code;
    // On a busy machine, the command may have run.
    assert!(matches!(code, Some(143 | 0)), "{code:?}");
    for name in ["a", "b"] {
        eventually(PATIENCE, "it is released", || holder_count(&mut fleet, name) == 0);
    }
}
