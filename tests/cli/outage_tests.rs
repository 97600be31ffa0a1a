//! `redlatch run` before it has its lock: it retries after a short outage, but not after contention.

use redlatch_support::{Fleet, Master, PATIENCE, eventually};

use crate::harness::{Finished, Running, expect, finish, redlatch, trusting};

/// A run whose first attempts meet two stopped masters. Another holder's key, if any, expires this long after
/// the masters resume.
fn run_through_a_stall(fleet: &mut Fleet, held_ms: Option<u32>) -> Finished {
    for index in 0..2 {
        assert_eq!(fleet.master(index).ask("CLIENT PAUSE 600000 WRITE").text(), "OK");
    }
    let mut command = redlatch(&fleet.urls());
    command.args(["run", "--trust", "--connect-timeout", "20s", "-v", "r", "--", "echo", "ran"]);
    let mut run = Running::start(&mut command);
    run.wait_for_stderr("no quorum");
    for index in 0..2 {
        assert_eq!(fleet.master(index).ask("CLIENT UNPAUSE").text(), "OK");
    }
    if let Some(held_ms) = held_ms {
        fleet.masters().for_each(|master| _ = master.ask(&format!("PEXPIRE r {held_ms}")));
    }
    run.finish()
}

// I99
#[test]
fn stall_of_two_masters_ends_no_run() {
    let mut fleet = Fleet::start(3);
    let finished = run_through_a_stall(&mut fleet, None);
    expect(&finished, 0, &[]);
    assert_eq!(finished.stdout, "ran\n");
}

// I99
#[test]
fn contention_after_a_stall_ends_a_run() {
    let mut fleet = Fleet::start(3);
    // The lock becomes free before the outage's time limit. A slow machine may ask for it only then.
    eventually(PATIENCE * 4, "a run finds the lock taken", || {
        for master in fleet.masters() {
            assert_eq!(master.ask("SET r other PX 600000").text(), "OK");
        }
        let finished = run_through_a_stall(&mut fleet, Some(600));
        let is_taken = finished.code == Some(75);
        if is_taken {
            expect(&finished, 75, &["is held by another client"]);
            assert_eq!(finished.stdout, "");
        }
        is_taken
    });
}

// I99
#[test]
fn contention_after_a_quarantine_ends_a_run() {
    let mut fleet = Fleet::start(3);
    // A quarantine of one to two seconds. A slow machine's run may miss it, and gets the lock.
    eventually(PATIENCE, "a run finds the lock taken", || {
        fleet.masters().for_each(Master::restart);
        let mut command = redlatch(&fleet.urls());
        command.args(["run", "--max-ttl", "1s", "--ttl", "1s", "--answer-timeout", "5s"]);
        let run = Running::start(command.args(["r", "--", "true"]));
        for master in fleet.masters() {
            let is_asked =
                |master: &mut Master| master.ask("INFO commandstats").text().contains("cmdstat_set:");
            eventually(PATIENCE, "an attempt", || is_asked(master));
            assert_eq!(master.ask("SET r other PX 600000").text(), "OK");
        }
        let finished = run.finish();
        let is_taken = finished.code == Some(75);
        assert!(!is_taken || finished.stderr.contains("is held by another client"), "{}", finished.stderr);
        is_taken
    });
}

// I99
#[test]
fn lasting_outage_gives_69_after_the_grace() {
    let mut fleet = Fleet::start(3);
    (0..2).for_each(|index| fleet.master(index).kill());
    let run = |wait: &[&str]| {
        finish(redlatch(&fleet.urls()).args(["run", "--trust", "-v"]).args(wait).args(["r", "--", "true"]))
    };
    let lasting = run(&[]);
    expect(&lasting, 69, &["waiting up to", "no quorum"]);
    let (_, left) = lasting.stderr.split_once("waiting up to ").expect("it is said");
    assert!(left.starts_with("1.") || !left[..6].contains("s m"), "more than the grace: {}", lasting.stderr);
    // Unless an option says otherwise.
    let once = run(&["--wait", "0"]);
    expect(&once, 69, &["no quorum"]);
    assert!(!once.stderr.contains("waiting"), "{}", once.stderr);
}

// I99
#[test]
fn a_held_lock_ends_a_run_at_once() {
    let mut fleet = Fleet::start(3);
    fleet.masters().for_each(|master| drop(master.ask("SET r other PX 600000")));
    let refused = finish(trusting(&fleet, "run").args(["-v", "r", "--", "true"]));
    expect(&refused, 75, &["1 attempt in"]);
    assert!(!refused.stderr.contains("waiting"), "{}", refused.stderr);
}

#[test]
fn waiting_run_does_not_advise_to_wait() {
    let mut fleet = Fleet::start(3);
    fleet.masters().for_each(|master| drop(master.ask("SET r other PX 600000")));
    let waits = ["-v", "--wait", "3s", "r", "--", "true"];
    let refused = finish(trusting(&fleet, "run").args(waits));
    expect(&refused, 75, &["wait longer, or retry later"]);
    let lines: Vec<_> = refused.stderr.lines().filter(|line| line.contains("waiting")).collect();
    assert!(!lines.is_empty() && lines.iter().all(|line| !line.contains("wait longer")), "{lines:?}");
    // On a slow machine, a short wait may become long.
    eventually(PATIENCE, "nothing is said of a short wait", || {
        let short = finish(trusting(&fleet, "run").args(["-v", "--wait", "100ms", "r", "--", "true"]));
        expect(&short, 75, &[]);
        !short.stderr.contains("waiting")
    });
}
