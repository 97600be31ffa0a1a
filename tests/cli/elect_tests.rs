//! `redlatch elect`: one leader at a time, and another one after its end.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use redlatch_support::{Fleet, PATIENCE, eventually};

use crate::harness::{FOREVER, Finished, Running, expect, finish, holder_count, redlatch, signal, trusting};

/// `redlatch elect leader`, with a TTL of some seconds, for a shell that prints its term and runs the script.
fn elect(fleet: &Fleet, script: &str) -> Command {
    let mut command = trusting(fleet, "elect");
    add_script(command.args(["--ttl", "3s"]), script);
    command
}

fn add_script(command: &mut Command, script: &str) {
    command.args(["leader", "--", "sh", "-c", &format!("echo $REDLATCH_FENCING_TOKEN; {script}")]);
}

/// The term that the next leader's command prints.
fn term(elect: &mut Running) -> u64 {
    elect.line().parse().expect("a fencing token")
}

fn terminate(elect: Running) -> Finished {
    elect.signal("TERM");
    elect.finish()
}

// I115
#[test]
fn another_candidate_leads_after_the_leaders_death() {
    let fleet = Fleet::start(3);
    let mut first = Running::start(&mut elect(&fleet, FOREVER));
    first.wait_for_stderr("campaigning for lock \"leader\"");
    let term_of_first = term(&mut first);
    first.wait_for_stderr(&format!("leading by lock \"leader\", term {term_of_first}"));
    let mut second = Running::start(&mut elect(&fleet, FOREVER));
    second.wait_for_stderr("campaigning for lock");
    signal(first.id(), "KILL");
    first.wait_for_exit();
    assert!(term(&mut second) > term_of_first);
    let ended = terminate(second);
    // The shell received TERM.
    expect(&ended, 128 + 15, &["leading by lock \"leader\""]);
}

#[test]
fn a_candidate_leads_when_the_leader_resigns() {
    let fleet = Fleet::start(3);
    let mut first = Running::start(&mut elect(&fleet, FOREVER));
    let term_of_first = term(&mut first);
    let mut second = Running::start(&mut elect(&fleet, FOREVER));
    second.wait_for_stderr("campaigning for lock");
    expect(&terminate(first), 128 + 15, &[]);
    assert!(term(&mut second) > term_of_first);
    // A signal also ends a waiting candidate.
    let mut waiting = Running::start(&mut elect(&fleet, "exit 9"));
    waiting.wait_for_stderr("campaigning for lock");
    expect(&terminate(waiting), 128 + 15, &["SIGTERM came before the command started"]);
}

#[test]
fn releases_that_a_hanging_master_owes_are_counted() {
    let mut fleet = Fleet::start(3);
    let mut command = trusting(&fleet, "elect");
    // The TTL outlasts the wait for the release.
    add_script(command.args(["-v", "--ttl", "20s"]), &format!("exec sh -c '{FOREVER}'"));
    let mut elect = Running::start(&mut command);
    term(&mut elect);
    eventually(PATIENCE, "all masters have it", || holder_count(&mut fleet, "leader") == 3);
    fleet.master(0).stop();
    let ended = terminate(elect);
    fleet.master(0).cont();
    expect(&ended, 128 + 15, &["1 release not confirmed by all masters"]);
}

// I115
#[test]
fn signal_ends_command_and_releases_lock() {
    let mut fleet = Fleet::start(3);
    let script = format!("trap 'echo bye; exit 5' TERM; echo ready; {FOREVER}");
    let mut elect = Running::start(&mut elect(&fleet, &script));
    term(&mut elect);
    assert_eq!(elect.line(), "ready");
    let ended = terminate(elect);
    expect(&ended, 5, &[]);
    assert_eq!(ended.stdout, "bye\n");
    assert_eq!(holder_count(&mut fleet, "leader"), 0);
}

// I115
#[test]
fn short_command_runs_again_after_a_pause() {
    let mut fleet = Fleet::start(3);
    // Processes that the command leaves behind are reaped.
    let mut elect = Running::start(&mut elect(&fleet, "sleep 0.01 & exit 3"));
    let began = Instant::now();
    let first = term(&mut elect);
    elect.wait_for_stderr("the command ended with code 3; campaigning again in 1s");
    assert_eq!(holder_count(&mut fleet, "leader"), 0, "others can lead in the pause");
    let second = term(&mut elect);
    elect.wait_for_stderr("campaigning again in 2s");
    let third = term(&mut elect);
    assert!(began.elapsed() >= Duration::from_secs(3), "{:?}", began.elapsed());
    assert!(first < second && second < third, "{first}, {second}, {third}");
    let ended = zombies(elect.id());
    assert!(ended <= 1, "{ended} processes that ended are left");
    elect.wait_for_stderr("campaigning again in 4s");
    expect(&terminate(elect), 128 + 15, &["SIGTERM came before the command started"]);
}

/// Number of this process's children that have ended but are not reaped.
fn zombies(parent: u32) -> usize {
    let stats = fs::read_dir("/proc").into_iter().flatten().flatten();
    let stats = stats.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
    let of_parent = format!(" Z {parent} ");
    stats.filter(|stat| stat.contains(&of_parent)).count()
}

// I115
#[test]
fn lost_lock_ends_command_and_campaigns_again() {
    let mut fleet = Fleet::start(3);
    let script = format!("trap 'echo term; exit 0' TERM; echo ready; {FOREVER}");
    let mut elect = Running::start(&mut elect(&fleet, &script));
    let first = term(&mut elect);
    assert_eq!(elect.line(), "ready");
    fleet.masters().for_each(|master| drop(master.ask("DEL leader")));
    elect.wait_for_stderr("TERM to the command");
    assert_eq!(elect.line(), "term");
    elect.wait_for_stderr("not leading by lock \"leader\": the lock was lost; campaigning again in 1s");
    assert!(term(&mut elect) > first);
    assert_eq!(elect.line(), "ready");
    expect(&terminate(elect), 0, &[]);
}

// I115
#[test]
fn an_outage_is_waited_out() {
    let mut fleet = Fleet::start(3);
    // With limits that a master soon exceeds.
    let mut command = redlatch(&fleet.urls());
    add_script(command.args(["elect", "--trust", "--ttl", "2s"]), FOREVER);
    let mut elect = Running::start(&mut command);
    let first = term(&mut elect);
    (0..2).for_each(|index| fleet.master(index).stop());
    elect.wait_for_stderr("TERM to the command");
    elect.wait_for_stderr("not leading by lock \"leader\": the lock was lost");
    elect.wait_for_stderr("campaigning for lock \"leader\"");
    (0..2).for_each(|index| fleet.master(index).cont());
    assert!(term(&mut elect) > first);
    expect(&terminate(elect), 128 + 15, &[]);
}

#[test]
fn a_command_that_cannot_start_ends_the_election() {
    let mut fleet = Fleet::start(1);
    let program =
        |program: &str| finish(trusting(&fleet, "elect").args(["--quiet", "leader", "--", program]));
    expect(&program("/no/such/program"), 127, &["cannot run"]);
    expect(&program("/"), 126, &["cannot run"]);
    eventually(PATIENCE, "it is released", || holder_count(&mut fleet, "leader") == 0);
}

#[test]
fn a_quiet_election_says_nothing() {
    let fleet = Fleet::start(1);
    let mut command = trusting(&fleet, "elect");
    add_script(command.arg("-q"), &format!("trap 'exit 0' TERM; echo ready; {FOREVER}"));
    let mut elect = Running::start(&mut command);
    term(&mut elect);
    assert_eq!(elect.line(), "ready");
    let ended = terminate(elect);
    expect(&ended, 0, &[]);
    // The shell itself may report that TERM ended its child.
    assert!(!ended.stderr.contains("redlatch"), "{}", ended.stderr);
}
