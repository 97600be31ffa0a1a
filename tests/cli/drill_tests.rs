//! `redlatch drill` finds two holders where they exist, and none where masters keep their promise.

use std::process::Command;
use std::time::{Duration, Instant};

use redlatch_support::{Fleet, PATIENCE, eventually};
use rustix::time::{ClockId, clock_gettime};

use crate::harness::{Running, expect, finish, trusting};

fn drill(fleet: &Fleet, time: &str) -> Command {
    let mut command = trusting(fleet, "drill");
    command.args(["--time", time, "--ttl", "1s", "--json"]);
    command
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).expect("JSON and nothing else")
}

// I151
#[test]
fn a_drill_with_faults_finds_no_two_holders() {
    let mut fleet = Fleet::start(5);
    let pids: Vec<String> = fleet.masters().map(|master| master.pid().to_string()).collect();
    // Stops a master's process, then continues it.
    let hook = format!(
        "case $REDLATCH_MASTER in redis://127.0.0.1:*) ;; *) exit 3 ;; esac; set -- {}; shift $((REDLATCH_MASTER_NUMBER - 1)); [ $REDLATCH_FAULT = begin ] && kill -STOP $1 || kill -CONT $1",
        pids.join(" ")
    );
    let mut command = drill(&fleet, "4s");
    command.args(["--pause", "--fault-time", "300ms", "--hook", &hook]);
    let finished = finish(&mut command);
    expect(&finished, 0, &[]);
    let progress = finished.stderr.matches(" of 4s: ").count();
    assert!((1..=4).contains(&progress), "its progress is shown, each second: {}", finished.stderr);
    let report = json(&finished.stdout);
    assert_eq!(report["two_holders"], serde_json::json!([]), "{report}");
    assert!(report["locks"].as_u64() > Some(10), "{report}");
    assert_eq!(report["visits"], report["locks"], "{report}");
    let faults = &report["faults"];
    assert!(faults["pauses"].as_u64() > Some(0) && faults["hooks"].as_u64() > Some(0), "{report}");
    assert_eq!(faults["failed"], 0, "{report}");
    for master in fleet.masters() {
        eventually(PATIENCE, "the keys are released", || master.keys() == "[]");
    }
}

// I151
#[test]
fn drill_finds_two_holders_of_forgetful_fleet() {
    let mut fleet = Fleet::start(3);
    let ports: Vec<String> = fleet.masters().map(|master| master.port().to_string()).collect();
    // All masters lose their keys, as after a restart without a file, and are trusted.
    let flush = "exec 3<>/dev/tcp/127.0.0.1/$port; echo FLUSHALL >&3; read -r line <&3";
    let hook = format!("bash -c 'for port in {}; do {flush}; done'", ports.join(" "));
    let mut command = drill(&fleet, "8s");
    command.args(["--resources", "1", "--fault-time", "50ms", "--hook", &hook]);
    let finished = finish(&mut command);
    expect(&finished, 1, &[]);
    assert!(!json(&finished.stdout)["two_holders"].as_array().expect("a list").is_empty());
}

// I151
#[test]
fn drill_refuses_names_in_use() {
    let mut fleet = Fleet::start(3);
    let first = Running::start(&mut drill(&fleet, "10min"));
    eventually(PATIENCE, "it holds its lock", || {
        fleet.masters().all(|master| master.ask("EXISTS redlatch-drill:own").text() == "1")
    });
    expect(&finish(&mut drill(&fleet, "1s")), 75, &["another drill runs", "--prefix"]);
    first.signal("TERM");
    assert_eq!(first.finish().code, Some(143));
    for master in fleet.masters() {
        eventually(PATIENCE, "the keys are released", || master.keys() == "[]");
    }
    fleet.master(1).ask("SET redlatch-drill:2 somebody");
    eventually(PATIENCE, "a refusal is quick", || {
        let begun = Instant::now();
        expect(&finish(&mut drill(&fleet, "1s")), 75, &["redlatch-drill:2", "--prefix"]);
        begun.elapsed() < Duration::from_secs(3)
    });
    assert_eq!(fleet.master(1).ask("GET redlatch-drill:2").text(), "somebody");
    let other = finish(drill(&fleet, "1s").args(["--prefix", "mine:"]));
    expect(&other, 0, &[]);
    assert!(!other.stderr.contains("not confirmed"), "{}", other.stderr);
}

#[test]
fn locks_on_a_master_that_hangs_are_left() {
    let mut fleet = Fleet::start(3);
    let hook = format!("kill -STOP {}", fleet.master(0).pid());
    let mut command = trusting(&fleet, "drill");
    // The TTL outlasts the wait for the releases.
    command.args(["--time", "2s", "--ttl", "10s", "--fault-time", "50ms", "--hook", &hook, "--json"]);
    let finished = finish(&mut command);
    fleet.master(0).cont();
    expect(&finished, 0, &["1 release not confirmed"]);
    assert!(json(&finished.stdout)["unreleased"].as_u64() > Some(0), "{}", finished.stdout);
}

// I151
#[test]
fn a_drill_without_masters_or_sense_says_so() {
    let mut fleet = Fleet::start(3);
    for bad in [
        ["--contenders", "1"],
        ["--contenders", "101"],
        ["--resources", "0"],
        ["--resources", "1001"],
        ["--fault-time", "0s"],
    ] {
        expect(&finish(drill(&fleet, "1s").args(bad)), 64, &[bad[0]]);
    }
    let failing = finish(drill(&fleet, "2s").args(["--fault-time", "50ms", "--hook", "exit 3"]));
    expect(&failing, 2, &["the hook with REDLATCH_FAULT=begin", "exit status: 3"]);
    let faults = &json(&failing.stdout)["faults"];
    assert_eq!(
        (&faults["hooks"], &faults["failed"]),
        (&0.into(), &4.into()),
        "one fault, healed three times in vain"
    );
    assert!(
        faults["unhealed"].as_str().is_some_and(|name| name.starts_with("redis://127.0.0.1:")),
        "{faults}"
    );
    (0..2).for_each(|index| fleet.master(index).kill());
    expect(&finish(&mut drill(&fleet, "1s")), 69, &["1 of 3"]);
}

#[test]
fn a_drill_without_its_faults_gives_2() {
    let fleet = Fleet::start(3);
    // No fault fits into the drill's time.
    let short = finish(drill(&fleet, "1s").args(["--pause", "--fault-time", "1h"]));
    expect(&short, 2, &["there was no pause, so the drill proves nothing about it"]);
}

#[test]
fn progress_of_a_drill_stays_on_one_line() {
    let fleet = Fleet::start(3);
    let script = "\"$REDLATCH\" drill --trust --time 4s --ttl 1s";
    let Some(session) = crate::terminal::Session::start(&fleet.urls(), script) else { return };
    let (_, screen) = session.finish();
    let progress = screen.lines().filter(|line| line.contains(" of 4s: ") && !line.contains('\r')).count();
    assert!(screen.contains(" of 4s: ") && progress == 0, "{screen:?}");
}

#[test]
fn signalled_drill_heals_its_fault_first() {
    let fleet = Fleet::start(3);
    let healed = std::env::temp_dir().join(format!("redlatch-drill-{}", std::process::id()));
    // The hook's output goes to stderr: stdout holds only the report.
    let hook = format!(
        "echo $REDLATCH_FAULT $(date +%s%3N); if [ $REDLATCH_FAULT = end ]; then sleep 0.3; echo x >>{}; fi",
        healed.display()
    );
    let mut command = drill(&fleet, "10min");
    let mut run = Running::start(command.args(["--fault-time", "200ms", "--hook", &hook]));
    // A fault lasts for a random part of the longest fault time.
    let is_long = |run: &mut Running| {
        let mut at_ms =
            |word| run.wait_for_stderr(word).split(' ').nth(1).and_then(|ms| ms.trim().parse().ok());
        let [begin, end]: [u64; 2] = ["begin ", "end "].map(|word| at_ms(word).expect("a time"));
        end >= begin + 100
    };
    assert!((0..40).any(|_| is_long(&mut run)), "no fault lasts");
    run.wait_for_stderr("begin");
    run.signal("INT");
    let finished = run.finish();
    expect(&finished, 130, &[]);
    let text = std::fs::read_to_string(&healed).unwrap_or_default();
    std::fs::remove_file(&healed).ok();
    let report = json(&finished.stdout);
    assert!(report["seconds"].as_f64().is_some_and(|seconds| seconds < 600.0), "as long as it ran: {report}");
    let faults = &report["faults"];
    assert_eq!(faults["hooks"].as_u64(), Some(text.lines().count() as u64), "each fault was ended: {faults}");
    assert_eq!(faults["failed"], 0, "{faults}");
}

#[test]
fn a_pause_that_a_master_refuses_is_counted() {
    let mut fleet = Fleet::start(3);
    // All connections of the drill use the default user.
    fleet.masters().for_each(|master| drop(master.ask("ACL SETUSER default -client|pause")));
    let finished = finish(drill(&fleet, "2s").args(["--pause", "--fault-time", "50ms"]));
    expect(&finished, 2, &["CLIENT PAUSE on redis://127.0.0.1:", "NOPERM", "there was no pause"]);
    let faults = &json(&finished.stdout)["faults"];
    assert_eq!((&faults["pauses"], &faults["unhealed"]), (&0.into(), &serde_json::Value::Null));
    let said = finished.stderr.lines().filter(|line| line.contains("CLIENT PAUSE on ")).count();
    assert_eq!(faults["failed"].as_u64(), Some(said as u64), "{}", finished.stderr);
}

/// A drill whose contenders run this shell script.
fn foreign(fleet: &Fleet, program: &str) -> Command {
    let mut command = drill(fleet, "1s");
    command.args(["--contenders", "2", "--resources", "1", "--contender", program]);
    command
}

// I152
#[test]
fn contender_without_locks_is_found_out() {
    let fleet = Fleet::start(3);
    // The last visit ends with the program.
    let liar = "for visit in 1 2 3 4 5; do echo acquired; sleep 0.1; [ $visit = 5 ] || echo released; done";
    let finished = finish(&mut foreign(&fleet, liar));
    expect(&finished, 1, &[]);
    let report = json(&finished.stdout);
    assert_eq!(report["locks"], 10, "{report}");
    assert!(!report["two_holders"].as_array().expect("a list").is_empty(), "{report}");
}

#[test]
fn a_drill_leaves_the_processor_to_its_contenders() {
    let fleet = Fleet::start(1);
    let mut command = trusting(&fleet, "drill");
    let mut run = Running::start(command.args(["--time", "10s", "--contender", "exec sleep 60"]));
    // The progress is shown each second.
    run.wait_for_stderr(" of 10s: ");
    let before = cpu_time(run.id());
    run.wait_for_stderr(" of 10s: ");
    run.wait_for_stderr(" of 10s: ");
    let took = cpu_time(run.id()).saturating_sub(before);
    run.signal("INT");
    // A loop without a pause takes more even on a busy machine.
    assert!(took < Duration::from_millis(500), "it ran for {took:?} of 2 s");
    expect(&run.finish(), 130, &[]);
}

/// The time for which the threads of a process have run so far.
fn cpu_time(pid: u32) -> Duration {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs").flatten();
    let times = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("schedstat")).ok());
    let ran = |times: String| times.split_whitespace().next().and_then(|ran| ran.parse().ok());
    times.map(|times| Duration::from_nanos(ran(times).expect("a number"))).sum()
}

/// The last calls may take two TTLs after the drill.
#[test]
fn a_contender_may_end_after_the_drill() {
    let fleet = Fleet::start(1);
    let mut command = trusting(&fleet, "drill");
    command.args(["--time", "100ms", "--ttl", "10s", "--json", "--contender"]);
    // The last line counts even without a line break.
    let finished = finish(command.arg("sleep 1.8; printf refused"));
    expect(&finished, 69, &[]);
    let report = json(&finished.stdout);
    assert_eq!((&report["contended"], &report["other_errors"]), (&6.into(), &0.into()), "{report}");
}

// I152
#[test]
fn contenders_own_times_count() {
    let fleet = Fleet::start(3);
    let first = std::env::temp_dir().join(format!("redlatch-drill-first-{}", std::process::id()));
    // Milliseconds on the clock that all programs share: within the drill, however late it starts.
    let base = clock_gettime(ClockId::Monotonic).tv_sec * 1000 + 2500;
    // Each contender holds for 1 ms, the second one 1 ms later. Their locks end before their work.
    let taker = format!(
        "mkdir {0} 2>/dev/null && n=$(({base} + 1)) || n=$(({base} + 2)); echo asked ${{n}}000000; \
         echo a library speaks; echo acquired ${{n}}000000 ${{n}}900000; sleep 0.3; \
         echo released $((n + 1))100000",
        first.display()
    );
    let finished = finish(&mut foreign(&fleet, &taker));
    std::fs::remove_dir(&first).ok();
    // One contender after the other reports a hold for the same time.
    let together = format!(
        "mkdir {} 2>/dev/null || sleep 0.3; echo acquired {base}000000 {base}900000; \
         echo released $(({base} + 1))000000",
        first.display()
    );
    let found = finish(&mut foreign(&fleet, &together));
    std::fs::remove_dir(&first).ok();
    expect(&found, 1, &[]);
    assert_eq!(
        json(&found.stdout)["two_holders"],
        serde_json::json!(["resource 1: two holders for 900.0µs"])
    );
    expect(&finished, 0, &[]);
    let report = json(&finished.stdout);
    assert_eq!((&report["locks"], &report["two_holders"]), (&2.into(), &serde_json::json!([])), "{report}");
    assert_eq!(report["ended_early"], 2, "{report}");
    assert_eq!(report["outlasted_beside_a_holder"], 1, "{report}");
    assert_eq!(report["latest_call_ms"], 0.0, "{report}");
}

// I152
#[test]
fn hanging_contender_is_killed() {
    let fleet = Fleet::start(3);
    let program = r#"
        [ "$REDLATCH_DRILL_NAME" = mine:redlatch-drill:1 ] && [ "$REDLATCH_DRILL_TTL_MS" = 1000 ] &&
            [ "$REDLATCH_DRILL_TIME_MS" -le 1000 ] && [ "$REDLATCH_MASTERS" = "$EXPECTED" ] || exit 3
        echo asked; echo refused; echo asked; mkdir "$FIRST" 2>/dev/null && sleep 60; sleep 60 &
        setsid sleep 60 2>/dev/null &"#;
    let mut command = foreign(&fleet, program);
    let first = std::env::temp_dir().join(format!("redlatch-drill-hang-{}", std::process::id()));
    command.env("EXPECTED", fleet.urls().join(",")).env("FIRST", &first).args(["--prefix", "mine:"]);
    let begun = Instant::now();
    let finished = finish(&mut command);
    std::fs::remove_dir(&first).ok();
    // The drill, two calls, and the end.
    assert!(begun.elapsed() >= Duration::from_secs(1 + 2 + 1), "killed after {:?}", begun.elapsed());
    // One contender hangs. Two processes of the other hold its stdout, and one of them cannot be killed.
    let said =
        [1, 2].map(|number| format!("contender {number} failed (it outlasted the drill, and was killed)"));
    expect(&finished, 69, &[&said[0], &said[1]]);
    let report = json(&finished.stdout);
    assert_eq!((&report["contended"], &report["other_errors"]), (&2.into(), &2.into()), "{report}");
    assert!(report["latest_call_ms"].as_f64() > Some(1000.0), "the call that hung: {report}");
    assert_eq!(report["unreleased"], serde_json::Value::Null, "{report}");
}
