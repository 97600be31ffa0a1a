//! The command line as its users meet it: the built `redlatch` against real `redis-server` processes.
//!
//! Each command leads a process group of its own, so that these tests do the same with and without a terminal.

#[path = "masters/fleet.rs"]
mod fleet;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use fleet::{Fleet, Raw, eventually};

/// How long anything may take that is waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// A loop for `sh` that ends only by a signal.
const FOREVER: &str = "while :; do sleep 0.02; done";

/// `redlatch SUBCOMMAND --trust` over all masters of the fleet.
fn trusting(fleet: &Fleet, subcommand: &str) -> Command {
    let mut command = redlatch(&fleet.urls());
    command.args([subcommand, "--trust"]);
    command
}

fn redlatch(urls: &[String]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redlatch"));
    command.env("REDLATCH_MASTERS", urls.join(",")).process_group(0);
    command
}

struct Finished {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

/// Runs to the end.
fn finish(command: &mut Command) -> Finished {
    command.stdin(Stdio::null());
    Running::start(command).finish()
}

/// A `redlatch` under way.
struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    stderr: BufReader<ChildStderr>,
}

impl Running {
    fn start(command: &mut Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("redlatch was built");
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let stderr = BufReader::new(child.stderr.take().expect("piped"));
        Self { child, stdin, stdout, stderr }
    }

    /// The same with a pipe to the command's stdin.
    fn start_with_stdin(command: &mut Command) -> Self {
        Self::start(command.stdin(Stdio::piped()))
    }

    /// The next line of stdout; it ends with the program, so this does not wait for ever.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("stdout is text");
        if line.is_empty() {
            let mut stderr = String::new();
            self.stderr.read_to_string(&mut stderr).expect("stderr is text");
            panic!("redlatch ended early: {stderr}");
        }
        line.trim_end().to_owned()
    }

    /// Reads stderr up to a line with this text.
    fn wait_for_stderr(&mut self, text: &str) {
        let mut line = String::new();
        while !line.contains(text) {
            line.clear();
            let size = self.stderr.read_line(&mut line).expect("stderr is text");
            assert!(size > 0, "redlatch ended without saying {text:?}");
        }
    }

    fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    fn send(&mut self, text: &str) {
        self.stdin.as_mut().expect("piped").write_all(text.as_bytes()).expect("the command reads");
    }

    fn finish(self) -> Finished {
        let Self { mut child, stdin, mut stdout, mut stderr } = self;
        drop(stdin);
        let id = child.id();
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            let error_text = thread::spawn(move || {
                let mut text = String::new();
                stderr.read_to_string(&mut text).expect("stderr is text");
                text
            });
            let mut text = String::new();
            stdout.read_to_string(&mut text).expect("stdout is text");
            let code = child.wait().expect("a child can be waited for").code();
            let stderr = error_text.join().expect("it only reads");
            sender.send(Finished { code, stdout: text, stderr }).ok();
        });
        receiver.recv_timeout(PATIENCE).unwrap_or_else(|_| {
            signal(id, "KILL");
            panic!("redlatch did not end within {PATIENCE:?}")
        })
    }
}

fn signal(pid: u32, name: &str) {
    let status = Command::new("sh").args(["-c", &format!("kill -{name} {pid}")]).status();
    assert!(status.expect("sh runs").success(), "kill -{name} {pid}");
}

fn exists(pid: &str) -> bool {
    let probe = Command::new("sh").args(["-c", &format!("kill -0 {pid} 2>&-")]).status();
    probe.expect("sh runs").success()
}

fn holder_count(fleet: &mut Fleet, key: &str) -> usize {
    fleet
        .masters()
        .map(|master| master.command(&[b"EXISTS", key.as_bytes()]))
        .filter(|raw| *raw == Raw::Int(1))
        .count()
}

#[track_caller]
fn expect(finished: &Finished, code: i32, said: &[&str]) {
    let Finished { code: found, stderr, .. } = finished;
    assert_eq!(*found, Some(code), "{stderr}");
    for text in said {
        assert!(stderr.contains(text), "{text:?} is not in: {stderr}");
    }
}

// ---- run: the command and its lock ----

#[test]
fn the_command_runs_under_the_lock_knows_it_and_its_code_is_passed_on() {
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
            Raw::Bulk(bytes) => hex(&bytes) == token,
            _ => false,
        })
    });
    run.send("7\n");
    let finished = run.finish();
    expect(&finished, 7, &[]);
    assert_eq!(finished.stderr, "", "nothing is said unless asked for");
    assert_eq!(holder_count(&mut fleet, "p:orders:42"), 0, "released before the exit");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_command_ended_by_a_signal_gives_128_and_its_number() {
    let fleet = Fleet::start(1);
    let run =
        trusting(&fleet, "run").args(["r", "--", "sh", "-c", "kill -KILL $$"]).stdin(Stdio::null()).output();
    assert_eq!(run.expect("redlatch was built").status.code(), Some(128 + 9));
}

#[test]
fn a_command_that_cannot_start_gives_126_or_127_and_the_lock_back() {
    let mut fleet = Fleet::start(3);
    for (program, code) in [("/no/such/program", 127), ("no-such-program-in-the-path", 127), ("/", 126)] {
        let run = finish(trusting(&fleet, "run").args(["r", "--", program]));
        expect(&run, code, &["cannot run", program]);
        assert_eq!(holder_count(&mut fleet, "r"), 0);
    }
}

#[test]
fn the_lock_outlives_its_ttl_while_the_command_runs() {
    let mut fleet = Fleet::start(3);
    let command = &mut trusting(&fleet, "run");
    command.args(["--verbose", "--ttl", "300ms", "r", "--", "sh", "-c", "echo ready; read line"]);
    let mut run = Running::start_with_stdin(command);
    run.line();
    for _ in 0..6 {
        run.wait_for_stderr("extended, valid for");
    }
    assert!(holder_count(&mut fleet, "r") >= 2);
    run.send("\n");
    expect(&run.finish(), 0, &["the command ended with code 0", "released on"]);
}

// ---- run: others ----

#[test]
fn a_held_lock_gives_75_or_the_code_asked_for_and_tells_of_the_holder() {
    let fleet = Fleet::start(3);
    let mut holder = Running::start_with_stdin(trusting(&fleet, "run").args([
        "r",
        "--",
        "sh",
        "-c",
        "echo ready; read line",
    ]));
    holder.line();
    let said = ["held by another", "for at most", "of 3 masters granted, 2 needed", &fleet.urls()[0]];
    expect(&finish(trusting(&fleet, "run").args(["r", "--", "echo", "no"])), 75, &said);
    let other = finish(trusting(&fleet, "run").args(["--wait", "100ms", "-E", "9", "r", "--", "echo", "no"]));
    expect(&other, 9, &said);
    assert_eq!(other.stdout, "");
    expect(&finish(trusting(&fleet, "run").args(["s", "--", "true"])), 0, &[]);
    holder.send("\n");
    expect(&holder.finish(), 0, &[]);
}

#[test]
fn a_waiting_client_says_so_and_gets_the_lock_when_it_is_free() {
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
    expect(&waited, 0, &["locked in"]);
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
        expect(&waiter.finish(), code, &["while waiting for the lock"]);
    }
    holder.send("\n");
    expect(&holder.finish(), 0, &[]);
}

#[test]
fn too_few_masters_give_69_and_the_reason_of_each() {
    let mut fleet = Fleet::start(3);
    fleet.master(0).kill();
    expect(&finish(trusting(&fleet, "run").args(["r", "--", "true"])), 0, &[]);
    fleet.master(2).stop();
    let run = finish(trusting(&fleet, "run").args(["--connect-timeout", "100ms", "r", "--", "echo", "no"]));
    let said = ["no quorum", "0 of 3 masters granted, 2 needed", "refused", "no answer to the handshake"];
    expect(&run, 69, &said);
    assert_eq!(run.stdout, "");
}

#[test]
fn the_command_line_counts_the_machines_sleep() {
    const { assert!(cfg!(feature = "suspend")) }; // tests/suspend.rs shows what that does
}

#[test]
fn masters_that_just_started_do_not_count_before_max_ttl_unless_trusted() {
    let fleet = Fleet::start(3);
    let run = finish(redlatch(&fleet.urls()).args(["run", "r", "--", "true"]));
    expect(&run, 69, &["does not count for another"]);
    expect(&finish(trusting(&fleet, "run").args(["r", "--", "true"])), 0, &[]);
    let times = ["--ttl", "1s", "--max-ttl", "1s", "--wait", "20s", "--verbose"];
    let run = finish(redlatch(&fleet.urls()).arg("run").args(times).args(["r", "--", "true"]));
    expect(&run, 0, &["locked in"]);
}

#[test]
fn a_strict_run_waits_until_new_masters_were_watched_and_later_ones_do_not() {
    let mut fleet = Fleet::start(3);
    let options = ["--strict", "--prefix", "p:", "--ttl", "3s", "--max-ttl", "3s", "--answer-timeout", "1s"];
    let start = Instant::now();
    let command = &mut redlatch(&fleet.urls());
    command.arg("run").args(options).args(["-w", "20s", "r", "--", "sh", "-c", "echo ready; read line"]);
    let mut first = Running::start_with_stdin(command);
    first.line();
    assert!(start.elapsed() >= Duration::from_millis(3032), "{:?}", start.elapsed());
    eventually(PATIENCE, "all three masters are marked", || {
        fleet.masters().all(|master| master.ask("EXISTS p:redlatch:mark") == Raw::Int(1))
    });
    first.send("\n");
    expect(&first.finish(), 0, &["waiting", "do not count before max_ttl"]);
    let run = finish(redlatch(&fleet.urls()).arg("run").args(options).args(["-w", "20s", "r", "--", "true"]));
    expect(&run, 0, &[]);
    assert_eq!(run.stderr, "", "nobody has to watch again");
}

#[test]
fn a_strict_run_names_the_masters_that_it_refuses_and_does_not_wait_for_them() {
    let mut fleet = Fleet::start(3);
    for (index, command) in [(0, "CONFIG SET maxmemory-policy allkeys-lru"), (1, "REPLICAOF 127.0.0.1 1")] {
        assert_eq!(fleet.master(index).ask(command).text(), "OK");
    }
    let run = finish(redlatch(&fleet.urls()).args(["run", "--strict", "r", "--", "echo", "no"]));
    expect(&run, 69, &["allkeys-lru", "set noeviction", "list its master", "does not count for another"]);
    assert!(!run.stderr.contains("waiting") && run.stdout.is_empty(), "{}", run.stderr);
}

#[test]
fn a_signal_ends_the_wait_for_masters() {
    let fleet = Fleet::start(1);
    let mut run = Running::start(redlatch(&fleet.urls()).args(["run", "--strict", "r", "--", "echo", "no"]));
    run.wait_for_stderr("waiting");
    run.signal("TERM");
    let run = run.finish();
    expect(&run, 143, &["while waiting for masters"]);
    assert_eq!(run.stdout, "");
}

// ---- run: signals while the command runs ----

#[test]
fn signals_reach_the_command_and_the_lock_is_released_after_it() {
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

#[test]
fn signals_that_end_reach_what_the_command_has_started() {
    let fleet = Fleet::start(1);
    let script = format!("(trap 'echo grandchild ends; exit' TERM; echo ready; {FOREVER}) & wait");
    let mut run = Running::start(trusting(&fleet, "run").args(["r", "--", "sh", "-c", &script]));
    run.line();
    run.signal("TERM");
    let finished = run.finish();
    expect(&finished, 143, &[]);
    assert_eq!(finished.stdout, "grandchild ends\n");
}

#[test]
fn a_signal_that_was_ignored_from_the_start_stays_ignored() {
    let fleet = Fleet::start(1);
    let words = [env!("CARGO_BIN_EXE_redlatch"), "run", "--trust", "r", "--"];
    let script = format!("trap '' HUP; exec {} sh -c 'echo ready; read line; exit 4'", words.join(" "));
    let mut command = Command::new("sh");
    command.args(["-c", &script]).env("REDLATCH_MASTERS", fleet.urls().join(",")).process_group(0);
    let mut run = Running::start_with_stdin(&mut command);
    run.line();
    run.signal("HUP");
    run.send("\n");
    expect(&run.finish(), 4, &[]);
}

#[test]
fn the_exit_code_survives_a_parent_that_ignores_sigchld() {
    let fleet = Fleet::start(1);
    let script =
        format!("trap '' CHLD; exec {} run --trust r -- sh -c 'exit 5'", env!("CARGO_BIN_EXE_redlatch"));
    let mut command = Command::new("sh");
    command.args(["-c", &script]).env("REDLATCH_MASTERS", fleet.urls().join(",")).process_group(0);
    expect(&finish(&mut command), 5, &[]);
}

// ---- run: the lock is lost ----

#[test]
fn a_lost_lock_ends_the_command_with_term() {
    let mut fleet = Fleet::start(3);
    let script = format!("trap 'echo term; exit 0' TERM; echo ready; {FOREVER}");
    let mut run =
        Running::start(trusting(&fleet, "run").args(["--ttl", "600ms", "r", "--", "sh", "-c", &script]));
    run.line();
    fleet.masters().for_each(|master| assert_eq!(master.ask("FLUSHALL").text(), "OK"));
    let finished = run.finish();
    expect(&finished, 76, &["TERM to the command", "the lock is lost", "no longer has this lock"]);
    assert_eq!(finished.stdout, "term\n");
}

#[test]
fn a_lost_lock_ends_a_command_that_ignores_term_and_its_group_with_kill() {
    let mut fleet = Fleet::start(3);
    for script in [
        // The command ignores TERM.
        format!("trap '' TERM; echo $$; {FOREVER}"),
        // It ends at once, and what it has started ignores TERM.
        format!("(trap '' TERM; exec 2>&-; sh -c 'echo $$; {FOREVER}') & wait"),
    ] {
        let options = ["--ttl", "600ms", "--grace", "200ms", "r", "--"];
        let mut run = Running::start(trusting(&fleet, "run").args(options).args(["sh", "-c", &script]));
        let pid = run.line();
        fleet.masters().for_each(|master| assert_eq!(master.ask("FLUSHALL").text(), "OK"));
        expect(&run.finish(), 76, &["TERM to the command", "KILL to the command"]);
        eventually(PATIENCE, "the process is gone", || !exists(&pid));
    }
}

#[test]
fn an_outage_ends_the_command_before_the_validity_does() {
    let mut fleet = Fleet::start(3);
    let ttl = Duration::from_secs(3);
    let script = format!("echo ready; {FOREVER}");
    let mut run =
        Running::start(trusting(&fleet, "run").args(["--ttl", "3s", "r", "--", "sh", "-c", &script]));
    run.line();
    fleet.master(0).stop();
    fleet.master(1).stop();
    let stopped = Instant::now();
    run.wait_for_stderr("trying again");
    run.wait_for_stderr("TERM to the command");
    // Nothing was extended after the stop, so the validity ends within one TTL of it.
    assert!(stopped.elapsed() < ttl, "{:?}", stopped.elapsed());
    expect(&run.finish(), 76, &[]);
}

#[test]
fn an_outage_that_is_over_in_time_harms_nothing() {
    let mut fleet = Fleet::start(3);
    let command = &mut trusting(&fleet, "run");
    command.args(["--verbose", "--ttl", "10s", "r", "--", "sh", "-c", "echo ready; read line; exit 3"]);
    let mut run = Running::start_with_stdin(command);
    run.line();
    fleet.master(0).stop();
    fleet.master(1).stop();
    run.wait_for_stderr("trying again");
    fleet.master(0).cont();
    run.wait_for_stderr("extended, valid for");
    fleet.master(1).cont();
    run.send("\n");
    expect(&run.finish(), 3, &[]);
}

#[test]
fn a_lock_that_was_gone_before_the_command_ended_gives_76() {
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
    expect(&run.finish(), 76, &["gone on", "before the command ended"]);
}

#[test]
fn max_hold_ends_the_command() {
    let fleet = Fleet::start(1);
    let options = ["--ttl", "600ms", "--max-hold", "1s", "r", "--", "sleep", "60"];
    expect(&finish(trusting(&fleet, "run").args(options)), 76, &["TERM to the command", "max_hold"]);
}

// ---- bench ----

#[test]
fn bench_prints_one_json_object_with_its_figures() {
    let fleet = Fleet::start(3);
    for (depth, more) in [(1, &[][..]), (16, &["--no-await-release"][..])] {
        let command = &mut trusting(&fleet, "bench");
        command.args(["--json", "--pairs", "500", "--depth", &depth.to_string()]).args(more);
        let bench = finish(command);
        expect(&bench, 0, &[]);
        let json: serde_json::Value = serde_json::from_str(&bench.stdout).expect("JSON and nothing else");
        for (field, value) in
            [("masters", 3), ("masters_ready", 3), ("quorum", 2), ("depth", depth), ("pairs", 500)]
        {
            assert_eq!(json[field], value, "{field} in {json}");
        }
        let figures = |name: &str| {
            ["min", "p50", "p99", "p99_9", "max"].map(|figure| json[name][figure].as_f64().expect("a number"))
        };
        assert!(figures("acquire_us").is_sorted() && figures("acquire_us")[0] > 1.0, "{json}");
        if more.is_empty() {
            assert!(figures("release_us").is_sorted(), "{json}");
        } else {
            assert!(json["release_us"].is_null(), "{json}");
        }
        let rate = json["pairs"].as_f64().expect("a number") / json["elapsed_s"].as_f64().expect("a number");
        assert!((rate - json["pairs_per_s"].as_f64().expect("a number")).abs() < 1.0, "{json}");
        assert!(json["round_trip_us"]["one"].as_f64() > Some(0.0), "{json}");
        assert_eq!(json["errors"].as_array().map(Vec::len), Some(0), "{json}");
    }
}

#[test]
fn bench_waits_visibly_for_masters_that_just_started_and_leaves_no_key() {
    let mut fleet = Fleet::start(3);
    let mut command = redlatch(&fleet.urls());
    let bench =
        finish(command.args(["bench", "--ttl", "1s", "--max-ttl", "1s", "--time", "200ms", "--depth", "4"]));
    expect(&bench, 0, &["waiting", "restarted lately", "--trust"]);
    assert!(bench.stdout.contains("pairs/s") && bench.stdout.contains("p99.9"), "{}", bench.stdout);
    for master in fleet.masters() {
        assert_eq!(master.ask("DBSIZE"), Raw::Int(0));
    }
}

#[test]
fn bench_without_a_quorum_gives_69_and_an_interrupted_one_its_figures() {
    let mut fleet = Fleet::start(3);
    let mut run = Running::start(trusting(&fleet, "bench").args(["--time", "1h"]));
    run.wait_for_stderr("pairs");
    run.signal("INT");
    let finished = run.finish();
    expect(&finished, 130, &[]);
    assert!(finished.stdout.contains("pairs/s"), "{}", finished.stdout);
    fleet.master(0).kill();
    fleet.master(1).kill();
    expect(
        &finish(&mut trusting(&fleet, "bench")),
        69,
        &["1 of 3 masters count, 2 needed", "is not connected"],
    );
}

// ---- bad input ----

#[test]
fn bad_input_gives_64_and_names_the_problem() {
    let url = "redis://127.0.0.1:1";
    let long = "x".repeat(1025);
    let rows: &[(&[&str], &str)] = &[
        (&["run", "-m", url, "--ttl", "0", "r", "--", "true"], "too short"),
        (&["run", "-m", url, "--ttl", "1ms", "r", "--", "true"], "too short"),
        (&["run", "-m", url, "--ttl", "31s", "--max-ttl", "30s", "r", "--", "true"], "above the maximum"),
        (&["run", "-m", url, "--ttl", "8days", "r", "--", "true"], "max_ttl"),
        (&["run", "-m", url, "--ttl", "99999999999999999999s", "r", "--", "true"], "--ttl"),
        (&["run", "-m", url, "--ttl", "10", "r", "--", "true"], "--ttl"),
        (&["run", "-m", url, "--ttl", "-1s", "r", "--", "true"], "-1"),
        (&["run", "-m", url, "--max-ttl", "0", "r", "--", "true"], "max_ttl"),
        (&["run", "-m", url, "--answer-timeout", "0", "r", "--", "true"], "answer_timeout"),
        (&["run", "-m", url, "--connect-timeout", "2days", "r", "--", "true"], "connect_timeout"),
        (&["run", "-m", url, "--wait", "soon", "r", "--", "true"], "--wait"),
        (&["run", "-m", url, "--strict", "--trust", "r", "--", "true"], "--strict"),
        (&["run", "-m", url, "redlatch:mark", "--", "true"], "redlatch:mark"),
        (&["run", "-m", url, "-E", "256", "r", "--", "true"], "256"),
        (&["run", "-m", url, "", "--", "true"], "empty"),
        (&["run", "-m", url, &long, "--", "true"], "1025 bytes"),
        (&["run", "-m", url, "--prefix", &long, "r", "--", "true"], "prefix"),
        (&["run", "-m", url, "r", "--"], "COMMAND"),
        (&["run", "-m", url, "r", "true"], "true"),
        (&["run", "-m", url, "--", "true"], "RESOURCE"),
        (&["run", "-m", url, "-m", url, "r", "--", "true"], "same server"),
        (&["run", "-m", "redis://127.0.0.1:1,redis://127.0.0.1:1/3", "r", "--", "true"], "same server"),
        (&["run", "-m", "", "r", "--", "true"], "no masters"),
        (&["run", "-m", "redis://127.0.0.1:1,", "r", "--", "true"], "master 1"),
        (&["run", "-m", "127.0.0.1:6379", "r", "--", "true"], "master 0"),
        (&["run", "-m", "http://h", "r", "--", "true"], "unknown scheme"),
        (&["run", "-m", "rediss://h", "r", "--", "true"], "TLS"),
        (&["run", "-m", "redis://h:0", "r", "--", "true"], "port"),
        (&["run", "-m", "redis://h/x", "r", "--", "true"], "database"),
        (&["run", "r", "--", "true"], "no masters"),
        (&["bench"], "no masters"),
        (&["bench", "-m", url, "--depth", "0"], "--depth"),
        (&["bench", "-m", url, "--depth", "99999999"], "--depth"),
        (&["bench", "-m", url, "--depth", "8", "--keys", "7"], "--keys"),
        (&["bench", "-m", url, "--pairs", "0"], "--pairs"),
        (&["bench", "-m", url, "--pairs", "1", "--time", "1s"], "--time"),
        (&["bench", "-m", url, "--time", "0"], "--time"),
        (&["bench", "-m", url, "--ttl", "1ms"], "too short"),
        (&["sprint"], "sprint"),
        (&[], "Usage"),
    ];
    for (args, named) in rows {
        let mut command = redlatch(&[]);
        let finished = finish(command.env_remove("REDLATCH_MASTERS").args(*args));
        let Finished { code, stdout, stderr } = &finished;
        assert_eq!(*code, Some(64), "{args:?}: {stderr}");
        assert!(stderr.contains(named), "{args:?}: {named:?} is not in: {stderr}");
        assert_eq!(stdout, "", "{args:?}");
    }
}

#[test]
fn help_and_version_give_0() {
    for args in [&["--help"][..], &["run", "--help"], &["bench", "--help"], &["run", "-h"], &["--version"]] {
        let finished = finish(redlatch(&[]).args(args));
        expect(&finished, 0, &[]);
        assert!(finished.stdout.contains("redlatch"), "{args:?}");
    }
}

#[test]
fn passwords_are_never_shown() {
    let mut fleet = Fleet::start_with(1, &["--requirepass", "s3cret%/x"]);
    let port = fleet.master(0).port();
    let good = format!("redis://:s3cret%25%2Fx@127.0.0.1:{port}");
    let wrong = format!("redis://me:s3cret@127.0.0.1:{port}");
    let broken = "redis://me:s3cret@127.0.0.1:x".to_owned();
    let cut = "redis://me:s3cret,s3cret@127.0.0.1:1".to_owned();
    let cases: &[(&String, &[&str], i32)] = &[
        (&good, &["run", "-v", "--trust", "r", "--", "true"], 0),
        (&good, &["bench", "--trust", "--pairs", "10"], 0),
        (&wrong, &["run", "-v", "--trust", "r", "--", "true"], 69),
        (&wrong, &["bench", "--trust"], 69),
        (&broken, &["run", "r", "--", "true"], 64),
        (&cut, &["run", "r", "--", "true"], 64),
        (&good, &["run", "--help"], 0),
        (&good, &["run", "r", &wrong, "--", "true"], 64),
        (&good, &["run", "r", "redis://me:s3cret s3cret@h", "--", "true"], 64),
    ];
    for (url, args, code) in cases {
        let Finished { code: found, stdout, stderr } =
            finish(redlatch(&[]).env("REDLATCH_MASTERS", url).args(*args));
        assert_eq!(found, Some(*code), "{args:?}: {stderr}");
        assert!(!format!("{stdout}{stderr}").contains("s3cret"), "{args:?}: {stdout}{stderr}");
    }
}
