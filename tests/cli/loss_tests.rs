//! `redlatch run` with a lost lock: the command ends before the validity does.

use std::time::{Duration, Instant};

use redlatch::env::parse_time;
use redlatch_support::{Fleet, PATIENCE, assert_sooner, eventually};

use crate::harness::{FOREVER, Running, exists, expect, finish, holder_count, impatient, trusting};

#[test]
fn a_lost_lock_ends_the_command_with_term() {
    let mut fleet = Fleet::start(3);
    let script = format!("trap 'echo term; exit 0' TERM; echo ready; {FOREVER}");
    let mut run =
        Running::start(trusting(&fleet, "run").args(["--ttl", "2s", "r", "--", "sh", "-c", &script]));
    run.line();
    fleet.masters().for_each(|master| assert_eq!(master.ask("FLUSHALL").text(), "OK"));
    let finished = run.finish();
    expect(&finished, 76, &["TERM to the command", "lock \"r\" is lost", "no longer has this lock"]);
    assert_eq!(finished.stdout, "term\n");
}

/// After one late command, KILL is due earlier from then on.
#[test]
fn late_run_shortens_the_grace() {
    let mut fleet = Fleet::start(3);
    let script = format!("trap '' TERM; echo ready; {FOREVER}");
    let options = ["-v", "--ttl", "4s", "--grace", "1h", "r", "--", "sh", "-c", &script];
    // On a machine that was even later, less time is left at KILL.
    eventually(PATIENCE * 2, "KILL comes a sixth before the end, not a twentieth", || {
        let mut run = Running::start(trusting(&fleet, "run").args(options));
        run.wait_for_stderr("extended; valid for");
        run.signal("STOP");
        std::thread::sleep(Duration::from_millis(700));
        fleet.masters().for_each(|master| assert_eq!(master.ask("FLUSHALL").text(), "OK"));
        run.signal("CONT");
        let finished = run.finish();
        expect(&finished, 76, &["KILL to the command"]);
        let grace = finished.stderr.split_once("KILL in ").and_then(|(_, rest)| rest.split_once("s:"));
        let seconds = grace.and_then(|(seconds, _)| seconds.parse::<f64>().ok()).unwrap_or_default();
        // The loss shows at a quarter of the validity or later, and KILL is due a sixth before its end.
        assert!(seconds <= 4.0 * (3.0 / 4.0 - 1.0 / 6.0), "{}", finished.stderr);
        left_at_kill(&finished.stderr) > Duration::from_millis(400)
    });
}

#[test]
fn a_lost_lock_kills_what_ignores_term() {
    let mut fleet = Fleet::start(3);
    for script in [
        // The command ignores TERM.
        format!("trap '' TERM; echo $$; {FOREVER}"),
        // The command ends at once; its descendant ignores TERM.
        format!("(trap '' TERM; exec 2>&-; sh -c 'echo $$; {FOREVER}') & wait"),
    ] {
        let options = ["--ttl", "2s", "--grace", "200ms", "r", "--"];
        let mut run = Running::start(trusting(&fleet, "run").args(options).args(["sh", "-c", &script]));
        let pid = run.line();
        fleet.masters().for_each(|master| assert_eq!(master.ask("FLUSHALL").text(), "OK"));
        let finished = run.finish();
        expect(&finished, 76, &["TERM to the command"]);
        assert_eq!(finished.stderr.matches("KILL to the command").count(), 1, "{}", finished.stderr);
        eventually(PATIENCE, "the process is gone", || !exists(&pid));
    }
}

#[test]
fn outage_ends_command_before_its_validity() {
    let mut fleet = Fleet::start(3);
    let ttl = Duration::from_secs(3);
    let script = format!("echo ready; {FOREVER}");
    let mut run = Running::start(impatient(&fleet).args(["--ttl", "3s", "r", "--", "sh", "-c", &script]));
    run.line();
    fleet.master(0).stop();
    fleet.master(1).stop();
    let stopped = Instant::now();
    let mut said = String::new();
    while !said.contains("TERM to the command") {
        said += &run.wait_for_stderr("\n");
    }
    assert_eq!(said.matches("trying again").count(), 1, "once for a row of failures: {said}");
    // Nothing was extended after the stop, so the validity ends within one TTL.
    assert_sooner(stopped, ttl, "an extension behind the stop lasts longer");
    expect(&run.finish(), 76, &[]);
}

#[test]
fn short_outage_harms_nothing() {
    let mut fleet = Fleet::start(3);
    let command = &mut impatient(&fleet);
    command.args(["--verbose", "--ttl", "10s", "r", "--", "sh", "-c", "echo ready; read line; exit 3"]);
    let mut run = Running::start_with_stdin(command);
    run.line();
    fleet.master(0).stop();
    fleet.master(1).stop();
    run.wait_for_stderr("trying again");
    fleet.master(0).cont();
    run.wait_for_stderr("extended; valid for");
    fleet.master(1).cont();
    run.send("\n");
    expect(&run.finish(), 3, &[]);
}

#[test]
fn a_lock_gone_before_the_end_gives_76() {
    let mut fleet = Fleet::start(3);
    let mut run = Running::start_with_stdin(trusting(&fleet, "run").args([
        "--ttl",
        "30s",
        "r",
        "--",
        "sh",
        "-c",
        "echo ready; read line",
    ]));
    run.line();
    fleet.masters().for_each(|master| assert_eq!(master.ask("FLUSHALL").text(), "OK"));
    run.send("\n");
    expect(&run.finish(), 76, &["gone on", "before its release"]);
}

#[test]
fn unconfirmed_release_is_reported() {
    let mut fleet = Fleet::start(3);
    let mut run =
        Running::start_with_stdin(impatient(&fleet).args(["r", "--", "sh", "-c", "echo ready; read line"]));
    run.line();
    (0..2).for_each(|index| fleet.master(index).stop());
    run.send("\n");
    expect(&run.finish(), 0, &["the release of lock \"r\" is not confirmed; it ends with its TTL"]);
}

#[test]
fn max_hold_ends_the_command() {
    let fleet = Fleet::start(1);
    let options = ["--ttl", "2s", "--max-hold", "1s", "r", "--", "sleep", "60"];
    expect(&finish(trusting(&fleet, "run").args(options)), 76, &["TERM to the command", "max_hold"]);
}

// I101
#[test]
fn a_validity_ended_in_a_pause_gives_kill() {
    let mut fleet = Fleet::start(3);
    let script = format!("trap '' TERM; echo $$; {FOREVER}");
    let options = ["--ttl", "1s", "--grace", "1h", "r", "--", "sh", "-c", &script];
    let mut run = Running::start(trusting(&fleet, "run").args(options));
    let pid = run.line();
    run.signal("STOP");
    eventually(PATIENCE, "the keys have expired, and the validity before them", || {
        holder_count(&mut fleet, "r") == 0
    });
    assert!(exists(&pid));
    run.signal("CONT");
    let finished = run.finish();
    expect(&finished, 76, &["KILL to the command at once", "is no longer valid"]);
    assert!(!finished.stderr.contains("TERM to the command"), "{}", finished.stderr);
}

// I101
#[test]
fn overlong_grace_ends_before_the_validity() {
    let mut fleet = Fleet::start(3);
    let script = format!("trap '' TERM; echo ready; {FOREVER}");
    for grace in ["1h", "9999999999years"] {
        let options = ["--ttl", "3s", "--grace", grace, "r", "--", "sh", "-c", &script];
        // A machine that ran the command late gets KILL earlier.
        eventually(PATIENCE * 2, "KILL comes a twentieth before the end", || {
            let mut run = Running::start(trusting(&fleet, "run").args(options));
            run.line();
            fleet.masters().for_each(|master| assert_eq!(master.ask("FLUSHALL").text(), "OK"));
            let finished = run.finish();
            expect(&finished, 76, &["TERM to the command", "KILL to the command: its grace is over"]);
            grace != "1h" || left_at_kill(&finished.stderr) < Duration::from_millis(420)
        });
    }
}

/// Validity left when the command got KILL.
fn left_at_kill(said: &str) -> Duration {
    let (_, left) = said.split_once("KILL to the command").expect("it is said");
    let left = left.split_once(" has ").and_then(|(_, left)| left.split_once(" of validity left"));
    left.map_or(Duration::ZERO, |(left, _)| parse_time(left).expect("a time"))
}
