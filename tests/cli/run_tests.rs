//! `redlatch run`: the command and its lock, other holders, and signals.

use std::process::Stdio;
use std::time::{Duration, Instant};

use redlatch_support::{Fleet, PATIENCE, Raw, eventually};
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{
    FOREVER, PATIENT, Running, command, expect, finish, holder_count, impatient, redlatch, signal, trusting,
};

// ---- the command and its lock ----

#[test]
fn command_knows_its_lock_and_returns_code() {
    let mut fleet = Fleet::start(3);
    let script = "env; echo ready; read line; exit $line";
    let command = &mut trusting(&fleet, "run");
    command.args(["--ttl", "20s", "--prefix", "p:", "orders:42", "--", "sh", "-c", script]);
    let mut run = Running::start_with_stdin(command);
    let lines: Vec<String> =
        std::iter::repeat_with(|| run.line()).take_while(|line| line != "ready").collect();
    let variable = |name: &str| {
        let prefix = format!("{name}=");
        lines
            .iter()
            .find_map(|line| line.strip_prefix(&prefix))
            .unwrap_or_else(|| panic!("{name} is not set"))
    };
    assert_eq!(variable("REDLATCH_RESOURCE"), "orders:42");
    assert_eq!(variable("REDLATCH_TTL_MS"), "20000");
    let valid_ms: u32 = variable("REDLATCH_VALID_MS").parse().expect("a number");
    assert!((10_000..20_000).contains(&valid_ms), "{valid_ms}");
    let token = variable("REDLATCH_TOKEN").to_owned();
    eventually(PATIENCE, "all three masters hold the token", || {
        fleet.masters().all(|master| match master.ask("GET p:orders:42") {
            // The label follows the token.
            Raw::Text(bytes) => hex(&bytes).starts_with(&token),
            _ => false,
        })
    });
    run.send("7\n");
    let finished = run.finish();
    expect(&finished, 7, &[]);
    assert_eq!(finished.stderr, "", "nothing is said unless asked for");
    assert_eq!(holder_count(&mut fleet, "p:orders:42"), 0, "released before the exit");
}

#[test]
fn a_fencing_token_reaches_only_its_command() {
    let fleet = Fleet::start(3);
    let script = "echo ${REDLATCH_FENCING_TOKEN-none}";
    let token_of = |flags: &[&str], outside: &str| {
        let mut command = trusting(&fleet, "run");
        command.args(flags).args(["r", "--", "sh", "-c", script]).env("REDLATCH_FENCING_TOKEN", outside);
        let output = command.stdin(Stdio::null()).output().expect("redlatch was built");
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text").trim().to_owned()
    };
    assert_eq!(token_of(&[], "7"), "none");
    let first: u64 = token_of(&["--fenced"], "7").parse().expect("a number");
    let second: u64 = token_of(&["--fenced"], "7").parse().expect("a number");
    assert!(7 < first && first < second, "{first}, then {second}");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_signal_that_ends_the_command_adds_128() {
    let fleet = Fleet::start(1);
    let run =
        trusting(&fleet, "run").args(["r", "--", "sh", "-c", "kill -KILL $$"]).stdin(Stdio::null()).output();
    assert_eq!(run.expect("redlatch was built").status.code(), Some(128 + 9));
}

// I102
#[test]
fn a_command_that_cannot_start_frees_the_lock() {
    let mut fleet = Fleet::start(3);
    for (program, code) in [("/no/such/program", 127), ("no-such-program-in-the-path", 127), ("/", 126)] {
        let run = finish(trusting(&fleet, "run").args(["r", "--", program]));
        expect(&run, code, &["cannot run", program]);
        assert_eq!(holder_count(&mut fleet, "r"), 0);
    }
}

// I102
#[test]
fn missing_descriptors_are_not_the_commands_fault() {
    let fleet = Fleet::start(1);
    let codes: Vec<Option<i32>> = (4..40)
        .map(|limit| {
            let mut limited = command("sh");
            limited.args([
                "-c",
                &format!("ulimit -n {limit}; exec \"$@\""),
                "sh",
                env!("CARGO_BIN_EXE_redlatch"),
                "run",
            ]);
            limited.args(PATIENT).args(["--wait", "0", "-m", &fleet.urls()[0], "r", "--", "true"]);
            finish(&mut limited).code
        })
        .collect();
    let expected = [Some(0), Some(69), Some(70)];
    assert!(codes.iter().all(|code| expected.contains(code)), "{codes:?}");
    assert_eq!(codes.last(), Some(&Some(0)), "{codes:?}");
}

#[test]
fn lock_is_renewed_while_the_command_runs() {
    let mut fleet = Fleet::start(3);
    let command = &mut trusting(&fleet, "run");
    command.args(["--verbose", "--ttl", "1s", "r", "--", "sh", "-c", "echo ready; read line"]);
    let mut run = Running::start_with_stdin(command);
    run.line();
    for _ in 0..4 {
        run.wait_for_stderr("extended; valid for");
    }
    assert!(holder_count(&mut fleet, "r") >= 2);
    run.send("\n");
    expect(&run.finish(), 0, &["the command ended with code 0", "released"]);
}

#[test]
fn renewals_are_said_only_if_asked_for() {
    let fleet = Fleet::start(3);
    let command = &mut trusting(&fleet, "run");
    let finished = finish(command.args(["--ttl", "1s", "r", "--", "sleep", "1.5"]));
    expect(&finished, 0, &[]);
    assert!(!finished.stderr.contains("extended; valid for"), "{}", finished.stderr);
}

/// STOP is meant for the command, which keeps its lock.
#[test]
fn a_stopped_command_stays_stopped() {
    let fleet = Fleet::start(1);
    let script = format!("trap 'exit 3' TERM; echo $$; {FOREVER}");
    let mut run = Running::start(trusting(&fleet, "run").args(["r", "--", "sh", "-c", &script]));
    let pid: u32 = run.line().parse().expect("a number");
    let is_stopped = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
    };
    signal(pid, "STOP");
    eventually(PATIENCE, "it is stopped", is_stopped);
    let stopped = Instant::now();
    while stopped.elapsed() < Duration::from_secs(1) {
        assert!(is_stopped());
    }
    signal(pid, "CONT");
    run.signal("TERM");
    expect(&run.finish(), 3, &[]);
}

// ---- others ----

#[test]
fn held_lock_gives_75_and_names_holder() {
    let fleet = Fleet::start(3);
    let mut holder = Running::start_with_stdin(trusting(&fleet, "run").args([
        "r",
        "--",
        "sh",
        "-c",
        "echo ready; read line",
    ]));
    holder.line();
    let said = [
        "lock \"r\" is held by another client (",
        "of 3 masters granted, 2 needed",
        "refused",
        ":sh), for at most ",
    ];
    expect(&finish(trusting(&fleet, "run").args(["r", "--", "echo", "no"])), 75, &said);
    let other = finish(trusting(&fleet, "run").args(["--wait", "100ms", "-E", "9", "r", "--", "echo", "no"]));
    // A short wait may end before the masters report the holder's remaining time.
    expect(&other, 9, &said[..3]);
    assert_eq!(other.stdout, "");
    let begun = Instant::now();
    let waited = finish(trusting(&fleet, "run").args(["-v", "--wait", "1s", "r", "--", "true"]));
    let said = waited.stderr.matches("waiting up to").count();
    assert!(said as u64 <= 1 + begun.elapsed().as_secs() / 10, "each 10 s: {}", waited.stderr);
    expect(&finish(trusting(&fleet, "run").args(["s", "--", "true"])), 0, &[]);
    holder.send("\n");
    expect(&holder.finish(), 0, &[]);
}

/// A caller that is not fair first tries the lock.
#[test]
fn fair_command_queues_from_the_start() {
    let mut fleet = Fleet::start(1);
    fleet.master(0).ask("SET r other");
    let mut attempts_by_set = |extra: &[&str]| {
        let before = fleet.master(0).calls("set");
        expect(&finish(trusting(&fleet, "run").args(extra).args(["r", "--", "true"])), 75, &[]);
        fleet.master(0).calls("set") - before
    };
    attempts_by_set(&[]); // and records the fleet
    assert_eq!(attempts_by_set(&[]), attempts_by_set(&["--fair"]) + 1);
    let both = finish(trusting(&fleet, "run").args(["--fair", "--fenced", "r", "--", "true"]));
    expect(&both, 64, &["--fenced"]);
}

#[test]
fn a_waiting_client_says_so_until_free() {
    let fleet = Fleet::start(3);
    let mut holder = Running::start_with_stdin(trusting(&fleet, "run").args([
        "r",
        "--",
        "sh",
        "-c",
        "echo ready; read line",
    ]));
    holder.line();
    let mut waiter =
        Running::start(trusting(&fleet, "run").args(["-v", "-w", "1h", "r", "--", "echo", "mine"]));
    waiter.wait_for_stderr("waiting up to");
    holder.send("\n");
    expect(&holder.finish(), 0, &[]);
    let waited = waiter.finish();
    expect(&waited, 0, &["acquired in", " by attempt ", " after the first; valid for "]);
    assert_eq!(waited.stdout, "mine\n");
}

#[test]
fn a_signal_ends_the_wait() {
    let fleet = Fleet::start(3);
    let mut holder = Running::start_with_stdin(trusting(&fleet, "run").args([
        "r",
        "--",
        "sh",
        "-c",
        "echo ready; read line",
    ]));
    holder.line();
    for (name, code) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        let mut waiter =
            Running::start(trusting(&fleet, "run").args(["-v", "-w", "1h", "r", "--", "echo", "no"]));
        waiter.wait_for_stderr("waiting up to");
        waiter.signal(name);
        expect(&waiter.finish(), code, &["before the command started"]);
    }
    holder.send("\n");
    expect(&holder.finish(), 0, &[]);
}

#[test]
fn too_few_masters_give_69_and_reasons() {
    let mut fleet = Fleet::start(3);
    fleet.master(0).kill();
    expect(&finish(trusting(&fleet, "run").args(["r", "--", "true"])), 0, &[]);
    fleet.master(2).stop();
    let run = finish(impatient(&fleet).args(["--connect-timeout", "100ms", "r", "--", "echo", "no"]));
    let said = ["no quorum", "0 of 3 masters granted, 2 needed", "refused", "no answer to the handshake"];
    expect(&run, 69, &said);
    assert_eq!(run.stdout, "");
}

#[test]
fn masters_in_quarantine_count_only_if_trusted() {
    let fleet = Fleet::start(3);
    let run = finish(redlatch(&fleet.urls()).args(["run", "r", "--", "true"]));
    expect(&run, 69, &["not counted for another"]);
    expect(&finish(trusting(&fleet, "run").args(["r", "--", "true"])), 0, &[]);
    let times = ["--ttl", "1s", "--max-ttl", "1s", "--wait", "20s", "--verbose"];
    let run = finish(redlatch(&fleet.urls()).arg("run").args(times).args(["r", "--", "true"]));
    expect(&run, 0, &["acquired in"]);
}

#[test]
fn wait_shorter_than_quarantine_makes_one_attempt() {
    let mut fleet = Fleet::start(1);
    let run = finish(redlatch(&fleet.urls()).args(["run", "--verbose", "--wait", "20s", "r", "--", "true"]));
    expect(&run, 69, &["not counted for another"]);
    let sets = fleet.master(0).calls("set");
    // One of the SETs tests whether the server knows `IFEQ`.
    assert!(sets <= 2, "{sets} SETs in a wait that cannot succeed");
    assert_eq!(holder_count(&mut fleet, "r"), 0, "a key is left");
}

#[test]
fn only_the_first_strict_run_waits_for_masters() {
    let mut fleet = Fleet::start(3);
    let options = ["--strict", "--ttl", "3s", "--max-ttl", "3s", "--answer-timeout", "1s", "--prefix", "p:"];
    let mut quiet = redlatch(&fleet.urls());
    quiet.arg("run").args(&options[..options.len() - 1]).args(["q:", "-q", "-w", "20s", "r", "--", "true"]);
    let quiet = Running::start(&mut quiet);
    let start = Instant::now();
    let command = &mut redlatch(&fleet.urls());
    command.arg("run").args(options).args(["-w", "20s", "r", "--", "sh", "-c", "echo ready; read line"]);
    let mut first = Running::start_with_stdin(command);
    first.line();
    assert!(start.elapsed() >= Duration::from_millis(3032), "{:?}", start.elapsed());
    eventually(PATIENCE, "all three masters are marked", || {
        fleet.masters().all(|master| master.ask("EXISTS p:redlatch:mark") == Raw::Integer(1))
    });
    first.send("\n");
    expect(&first.finish(), 0, &["waiting", "may have restarted"]);
    let run = finish(redlatch(&fleet.urls()).arg("run").args(options).args(["-w", "20s", "r", "--", "true"]));
    expect(&run, 0, &[]);
    assert_eq!(run.stderr, "", "nobody has to watch again");
    let quiet = quiet.finish();
    expect(&quiet, 0, &[]);
    assert_eq!(quiet.stderr, "");
}

#[test]
fn a_strict_run_names_refused_masters_without_waiting() {
    let mut fleet = Fleet::start(3);
    for (index, command) in [(0, "CONFIG SET maxmemory-policy allkeys-lru"), (1, "REPLICAOF 127.0.0.1 1")] {
        assert_eq!(fleet.master(index).ask(command).text(), "OK");
    }
    let run = finish(redlatch(&fleet.urls()).args(["run", "--strict", "r", "--", "echo", "no"]));
    expect(
        &run,
        69,
        &["no quorum", "allkeys-lru", "set noeviction", "list its master", "not counted for another"],
    );
    assert!(!run.stderr.contains("waiting") && run.stdout.is_empty(), "{}", run.stderr);
}

#[test]
fn a_signal_ends_the_wait_for_masters() {
    let fleet = Fleet::start(1);
    for options in [&[][..], &["-v"]] {
        let mut command = redlatch(&fleet.urls());
        command.args(["run", "--strict"]).args(options).args(["r", "--", "echo", "no"]);
        let mut run = Running::start(&mut command);
        run.wait_for_stderr("waiting");
        run.signal("TERM");
        let run = run.finish();
        expect(&run, 143, &["before the command started"]);
        assert_eq!(run.stdout, "");
    }
}

// ---- signals while the command runs ----

#[test]
fn signals_reach_the_command_then_the_lock_ends() {
    let mut fleet = Fleet::start(3);
    for name in ["TERM", "INT", "HUP", "QUIT", "USR1", "USR2"] {
        let script = format!("trap 'echo got {name}; exit 9' {name}; echo ready; {FOREVER}");
        let mut run = Running::start(trusting(&fleet, "run").args(["r", "--", "sh", "-c", &script]));
        run.line();
        assert!(holder_count(&mut fleet, "r") >= 2);
        run.signal(name);
        let finished = run.finish();
        expect(&finished, 9, &[]);
        assert_eq!(finished.stdout, format!("got {name}\n"));
        assert_eq!(holder_count(&mut fleet, "r"), 0);
    }
}

/// A signal ends the sleep of the event loop, which may last for 200 ms.
#[test]
fn a_signal_is_passed_on_without_delay() {
    const COUNT: usize = 1000;
    let fleet = Fleet::start(1);
    let script = "trap 'echo got' USR1; echo ready; while :; do read line; done";
    let options = ["--ttl", "30s", "r", "--", "sh", "-c", script];
    let mut run = Running::start_with_stdin(trusting(&fleet, "run").args(options));
    run.line();
    let pid = Pid::from_raw(run.id().try_into().expect("a pid"));
    // A busy machine may sometimes be late.
    eventually(PATIENCE, "none of many waits for the loop", || {
        (0..COUNT).all(|_| {
            let sent = Instant::now();
            kill_process(pid.expect("a pid"), Signal::USR1).expect("it runs");
            assert_eq!(run.line(), "got");
            sent.elapsed() < Duration::from_millis(150)
        })
    });
    run.signal("TERM");
    expect(&run.finish(), 143, &[]);
}

#[test]
fn ending_signals_reach_the_commands_children() {
    let fleet = Fleet::start(1);
    let script = format!("(trap 'echo grandchild ends; exit' TERM; echo ready; {FOREVER}) & wait");
    let mut run = Running::start(trusting(&fleet, "run").args(["r", "--", "sh", "-c", &script]));
    run.line();
    run.signal("TERM");
    let finished = run.finish();
    expect(&finished, 143, &[]);
    assert_eq!(finished.stdout, "grandchild ends\n");
}

// I102
#[test]
fn a_signal_ignored_from_the_start_stays_ignored() {
    let fleet = Fleet::start(1);
    let words = [env!("CARGO_BIN_EXE_redlatch"), "run", "--trust", "r", "--"];
    let script = format!("trap '' HUP; exec {} sh -c 'echo ready; read line; exit 4'", words.join(" "));
    let mut command = command("sh");
    command.args(["-c", &script]).env("REDLATCH_MASTERS", fleet.urls().join(","));
    let mut run = Running::start_with_stdin(&mut command);
    run.line();
    run.signal("HUP");
    run.send("\n");
    expect(&run.finish(), 4, &[]);
}

#[test]
fn exit_code_survives_ignored_sigchld() {
    let fleet = Fleet::start(1);
    let script =
        format!("trap '' CHLD; exec {} run --trust r -- sh -c 'exit 5'", env!("CARGO_BIN_EXE_redlatch"));
    let mut command = command("sh");
    command.args(["-c", &script]).env("REDLATCH_MASTERS", fleet.urls().join(","));
    expect(&finish(&mut command), 5, &[]);
}
