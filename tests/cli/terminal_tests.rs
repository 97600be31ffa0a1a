//! `redlatch run` in a terminal: keys, job control, and a lost lock.

use std::time::{Duration, Instant};

use redlatch_support::{Fleet, PATIENCE, eventually};

use crate::harness::{FOREVER, PATIENT, exists, holder_count, signal};
use crate::terminal::Session;

// A shell that starts a program cannot be stopped before that program runs (`vfork`), so the stopped commands
// here start no programs.

/// Ctrl-S and Ctrl-Q.
const STOP_OUTPUT: &str = "\x13";
const CONTINUE_OUTPUT: &str = "\x11";

/// `redlatch run`, as a word of a script.
fn run(ttl: &str, command: &str) -> String {
    format!("\"$REDLATCH\" run {} --ttl {ttl} r -- {command}", PATIENT.join(" "))
}

/// Whether the kernel reports that this process is stopped.
fn is_stopped(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
}

/// Whether this process leads the terminal's foreground group. The program then continues it once.
fn has_terminal(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // Fields: state, parent, group, session, terminal, foreground group.
    stat.rsplit(')').next().is_some_and(|rest| rest.split_ascii_whitespace().nth(5) == Some(pid))
}

// I103
#[test]
fn in_a_terminal_a_lost_lock_ends_everything() {
    let mut fleet = Fleet::start(3);
    let steps = format!("sh -c \"sh -c 'echo first \\$\\$; {FOREVER}'; echo second\"");
    let script = format!("{}; echo ended $?", run("2s", &steps));
    let Some(session) = Session::start(&fleet.urls(), &script) else { return };
    let first = session.wait_for("first ");
    fleet.masters().for_each(|master| assert_eq!(master.ask("FLUSHALL").text(), "OK"));
    assert_eq!(session.wait_for("ended "), "76");
    let (_, screen) = session.finish();
    assert!(!screen.contains("second"), "{screen}");
    assert!(!exists(&first), "{screen}");
}

/// The foreground may move between the check and a write, which would then stop the program.
// I103
#[test]
fn tostop_terminal_gets_messages_after_the_command() {
    let mut fleet = Fleet::start(3);
    // The command keeps the foreground for a while after the message.
    let command = format!("sh -c 'trap \"sleep 0.3; exit\" TERM; echo ready; {FOREVER}'");
    let script = format!("stty tostop; {}; echo ended $?", run("2s", &command));
    let Some(session) = Session::start(&fleet.urls(), &script) else { return };
    session.wait_for("ready");
    fleet.masters().for_each(|master| assert_eq!(master.ask("FLUSHALL").text(), "OK"));
    session.wait_for("redlatch: TERM to the command");
    assert_eq!(session.wait_for("ended "), "76");
    session.finish();
}

/// On a terminal that stops background writers, no message appears while the command runs. If output is
/// stopped, the command waits briefly for earlier messages.
#[test]
fn a_command_starts_behind_the_messages_before_it() {
    let fleet = Fleet::start(1);
    let begun = std::env::temp_dir().join(format!("redlatch-begun-{}", std::process::id()));
    let verbose = run("30s", &format!("mkdir {}", begun.display())).replacen(" r ", " -v r ", 1);
    let script = format!("stty tostop; echo ready; read line; {verbose}; echo ended $?");
    let Some(mut session) = Session::start(&fleet.urls(), &script) else { return };
    session.wait_for("ready");
    session.type_in(STOP_OUTPUT);
    let started = Instant::now();
    session.type_in("go\n");
    eventually(PATIENCE, "the command runs", || begun.exists());
    let waited = started.elapsed();
    std::fs::remove_dir(&begun).expect("it is there");
    session.type_in(CONTINUE_OUTPUT);
    assert_eq!(session.wait_for("ended "), "0");
    session.finish();
    assert!(waited >= Duration::from_secs(1), "{waited:?}");
}

#[test]
fn background_job_is_not_stopped_by_its_message() {
    let fleet = Fleet::start(1);
    let script = format!("set -m; stty tostop; {} & wait $!; echo ended $?", run("10s", "/no/such/command"));
    let Some(session) = Session::start(&fleet.urls(), &script) else { return };
    assert_eq!(session.wait_for("ended "), "127");
    session.finish();
}

#[test]
fn colours_are_for_terminals_that_want_them() {
    let fleet = Fleet::start(1);
    let doctor = format!("\"$REDLATCH\" doctor {}", PATIENT[1..].join(" "));
    let inspect = "\"$REDLATCH\" inspect --trust --answer-timeout 5s r";
    let script = |settings: &str| {
        format!("{settings} {doctor}; {settings} {doctor} | cat; {settings} {inspect}; echo ended")
    };
    for (settings, count) in [("NO_COLOR= TERM=xterm", 1), ("NO_COLOR=1 TERM=xterm", 0), ("TERM=dumb", 0)] {
        let Some(session) = Session::start(&fleet.urls(), &script(settings)) else { return };
        session.wait_for("ended");
        let (_, screen) = session.finish();
        assert_eq!(
            screen.matches("WARNING too-few-masters").count(),
            if count == 1 { 1 } else { 2 },
            "{screen}"
        );
        assert_eq!(screen.matches("\x1b[1;33mWARNING\x1b[0m too-few-masters").count(), count, "{screen}");
        assert_eq!(screen.matches("\x1b[1;32mfree\x1b[0m on 1").count(), count, "{screen}");
    }
}

#[test]
fn list_highlights_a_lock_without_a_quorum() {
    let mut fleet = Fleet::start(3);
    for (index, holder) in ["one", "another", "a-third"].iter().enumerate() {
        fleet.master(index).ask(&format!("SET orders:42 {holder} PX 600000"));
    }
    let script = "TERM=xterm NO_COLOR= \"$REDLATCH\" ls --trust --answer-timeout 5s; echo ended";
    for columns in [40, 120] {
        let Some(session) = Session::start_with_width(&fleet.urls(), script, columns) else { return };
        session.wait_for("ended");
        let (_, screen) = session.finish();
        assert!(screen.contains("\x1b[1;33msplit\x1b[0m"), "{screen}");
    }
}

#[test]
fn pipelined_command_leaves_others_the_foreground() {
    let fleet = Fleet::start(1);
    let shows = run("10s", "sh -c 'echo state $(ps -o stat= -p $$)'");
    for pipeline in [format!("{shows} | cat"), format!("true | {shows}")] {
        let Some(session) = Session::start(&fleet.urls(), &format!("{pipeline}; echo ended")) else { return };
        let state = session.wait_for("state ");
        session.wait_for("ended");
        session.finish();
        assert!(!state.contains('+'), "{pipeline}: {state}");
    }
}

#[test]
fn a_command_gets_the_foreground_without_reading() {
    let fleet = Fleet::start(1);
    let look = "until ps -o stat= -p \\$\\$ | grep -q +; do sleep 0.02; done; echo in front";
    // A process that loses the race for the foreground is stopped although it already has it.
    let late = "kill -TTIN \\$\\$; echo goes on";
    let script = format!("{}; echo ended", run("10s", &format!("sh -c \"{look}; {late}\"")));
    let Some(session) = Session::start(&fleet.urls(), &script) else { return };
    session.wait_for("in front");
    session.wait_for("goes on");
    session.wait_for("ended");
    session.finish();
}

#[test]
fn the_terminal_returns_after_the_command() {
    let fleet = Fleet::start(1);
    let reads = run("10s", "sh -c 'echo ready; read line; echo got $line'");
    let script = format!("{reads}; echo next; read line; echo then $line");
    let Some(mut session) = Session::start(&fleet.urls(), &script) else { return };
    session.wait_for("ready");
    session.type_in("one\n");
    assert_eq!(session.wait_for("got "), "one");
    session.wait_for("next");
    session.type_in("two\n");
    assert_eq!(session.wait_for("then "), "two");
    assert_eq!(session.finish().0, Some(0));
}

#[test]
fn a_pipelined_command_gets_the_terminal_on_demand() {
    let fleet = Fleet::start(1);
    // First the pipe's other end reads the keyboard, then the command.
    let reads = run("10s", "sh -c 'read line; echo data; read line </dev/tty; echo got $line'");
    let script = format!(
        "mkfifo \"$0\"; {reads} <\"$0\" | {{ exec 3>\"$0\"; echo ready; read key </dev/tty; echo key $key; echo >&3; cat; }}"
    );
    let fifo = std::env::temp_dir().join(format!("redlatch-fifo-{}", std::process::id()));
    let script = script.replace("\"$0\"", fifo.to_str().expect("text"));
    let session = Session::start(&fleet.urls(), &script);
    let Some(mut session) = session else { return };
    session.wait_for("ready");
    session.type_in("k\n");
    assert_eq!(session.wait_for("key "), "k");
    session.wait_for("data");
    session.type_in("line\n");
    assert_eq!(session.wait_for("got "), "line");
    session.finish();
    std::fs::remove_file(&fifo).ok();
}

#[test]
fn the_last_of_a_pipeline_survives_its_command() {
    let mut fleet = Fleet::start(3);
    let command =
        run("2s", &format!("sh -c 'trap \"\" TERM; read line </dev/tty; echo got $line; {FOREVER}'"));
    // The pipeline's group has no other process by then, and disappears when this program leaves it.
    let script = format!("set -m; true | {{ sleep 0.3; exec {command}; }}; echo ended $?");
    let Some(mut session) = Session::start(&fleet.urls(), &script) else { return };
    session.type_in("line\n");
    assert_eq!(session.wait_for("got "), "line");
    fleet.masters().for_each(|master| assert_eq!(master.ask("FLUSHALL").text(), "OK"));
    assert_eq!(session.wait_for("ended "), "76");
    session.wait_for("redlatch: KILL to the command");
    session.finish();
}

#[test]
fn an_interrupt_ends_command_and_surrounding_script() {
    let mut fleet = Fleet::start(1);
    let script = format!("{}; echo after $?", run("10s", &format!("sh -c 'echo ready; {FOREVER}'")));
    let Some(mut session) = Session::start(&fleet.urls(), &script) else { return };
    session.wait_for("ready");
    session.type_in("\x03");
    let (_, screen) = session.finish();
    assert!(!screen.contains("after"), "{screen}");
    assert_eq!(holder_count(&mut fleet, "r"), 0, "released before the exit");
}

#[test]
fn a_stopped_command_continues_with_its_lock() {
    let fleet = Fleet::start(1);
    // A process in the command's group that ignores the terminal's stop, and one in a separate session.
    let deaf = "sh -c \"trap \\\"\\\" TSTP; echo deaf \\$\\$; exec sleep 600\" &";
    let away = "setsid sh -c \"echo away \\$\\$; exec sleep 600\" &";
    // A process that was stopped before.
    let idle = "setsid sh -c \"echo idle \\$\\$; kill -STOP \\$\\$; exec sleep 600\" &";
    let command =
        format!("sh -c '{deaf} {away} {idle} echo ready; read line; echo got $line; read line; exit 7'");
    let script = format!("set -m; {}; echo stopped $?; read line; fg; echo ended $?", run("30s", &command));
    let Some(mut session) = Session::start(&fleet.urls(), &script) else { return };
    session.wait_for("ready");
    let others = [session.wait_for("deaf "), session.wait_for("away ")];
    let idle = session.wait_for("idle ");
    eventually(PATIENCE, "it is stopped", || is_stopped(&idle));
    session.type_in("\x1a");
    // 128 and the number of the signal that stopped the job.
    assert!(session.wait_for("stopped ").parse::<u32>().expect("a number") > 128);
    for other in &others {
        eventually(PATIENCE, "it is stopped, too", || is_stopped(other));
    }
    session.type_in("go\n");
    session.type_in("line\n");
    assert_eq!(session.wait_for("got "), "line");
    for other in &others {
        eventually(PATIENCE, "it goes on, too", || exists(other) && !is_stopped(other));
    }
    session.type_in("end\n");
    assert_eq!(session.wait_for("ended "), "7");
    assert!(is_stopped(&idle), "it was not stopped with the command");
    // The other processes outlive the command and keep the terminal.
    others.iter().chain([&idle]).for_each(|other| signal(other.parse().expect("a number"), "KILL"));
    session.finish();
}

// I103
#[test]
fn a_stopped_command_whose_lock_ended_gets_kill() {
    let mut fleet = Fleet::start(1);
    // A descendant in a separate session gets no signals from the terminal. It would report being continued.
    let away = "trap \\\"echo woken\\\" CONT; echo away \\$\\$; while :; do :; done";
    let command = format!("sh -c 'setsid sh -c \"{away}\" & echo ready; read line'");
    let script = format!("set -m; {}; echo stopped $?; read line; fg; echo ended $?", run("1s", &command));
    let Some(mut session) = Session::start(&fleet.urls(), &script) else { return };
    session.wait_for("ready");
    let away = session.wait_for("away ");
    session.type_in("\x1a");
    session.wait_for("stopped ");
    eventually(PATIENCE, "the descendant is stopped", || is_stopped(&away));
    eventually(PATIENCE, "the lock has ended", || holder_count(&mut fleet, "r") == 0);
    assert!(is_stopped(&away), "without the lock");
    session.type_in("go\n");
    assert_eq!(session.wait_for("ended "), "76");
    session.wait_for("redlatch: KILL to the command at once");
    assert!(!exists(&away));
    let (_, screen) = session.finish();
    assert!(screen.lines().all(|line| line != "woken"), "without the lock: {screen}");
}

#[test]
fn ending_command_stops_no_other_process() {
    let mut fleet = Fleet::start(3);
    let command = "sh -c 'trap \"\" TERM; echo ready; while :; do read line; done'";
    let script = format!("set -m; {}; echo ended $?", run("6s", command));
    let Some(mut session) = Session::start(&fleet.urls(), &script) else { return };
    session.wait_for("ready");
    fleet.masters().for_each(|master| assert_eq!(master.ask("FLUSHALL").text(), "OK"));
    session.wait_for("redlatch: TERM to the command");
    session.type_in("\x1a");
    assert_eq!(session.wait_for("ended "), "76");
    session.wait_for("redlatch: KILL to the command");
    session.finish();
}

/// In a terminal, too, STOP is meant for the command.
#[test]
fn command_stopped_alone_keeps_its_lock() {
    let mut fleet = Fleet::start(1);
    let command = "sh -c 'trap \"exit 3\" TERM; echo ready $$; while :; do read line; done'";
    let script = format!("set -m; {}; echo ended $?", run("2s", command));
    let Some(session) = Session::start(&fleet.urls(), &script) else { return };
    let pid = session.wait_for("ready ");
    eventually(PATIENCE, "it has the terminal", || has_terminal(&pid));
    signal(pid.parse().expect("a number"), "STOP");
    eventually(PATIENCE, "it is stopped", || is_stopped(&pid));
    let left_ms = |fleet: &mut Fleet| fleet.master(0).ask("PTTL r").text().parse::<i64>().expect("a time");
    for _ in 0..2 {
        eventually(PATIENCE, "the lock grows old", || left_ms(&mut fleet) < 1500);
        eventually(PATIENCE, "it is extended", || left_ms(&mut fleet) > 1500);
    }
    assert!(is_stopped(&pid));
    ["TERM", "CONT"].iter().for_each(|name| signal(pid.parse().expect("a number"), name));
    assert_eq!(session.wait_for("ended "), "3");
    session.finish();
}

#[test]
fn foreground_job_gets_the_terminal() {
    let fleet = Fleet::start(1);
    let command = "sh -c 'echo ready; read line </dev/tty; echo got $line'";
    let script = format!("set -m; {} & echo job $!; read line; fg; echo ended $?", run("30s", command));
    let Some(mut session) = Session::start(&fleet.urls(), &script) else { return };
    let job = session.wait_for("job ");
    eventually(PATIENCE, "the job wants the terminal", || is_stopped(&job));
    session.type_in("go\n");
    session.type_in("line\n");
    assert_eq!(session.wait_for("got "), "line");
    assert_eq!(session.wait_for("ended "), "0");
    session.finish();
}

#[test]
fn a_stop_that_nobody_could_undo_is_undone() {
    let fleet = Fleet::start(1);
    let command = "sh -c 'echo ready; while read line; do echo got $line; done'";
    // The program leads the session, so no shell could continue it.
    let script = format!("exec {}", run("30s", command));
    let Some(mut session) = Session::start(&fleet.urls(), &script) else { return };
    session.wait_for("ready");
    session.type_in("\x1a");
    session.type_in("line\n");
    assert_eq!(session.wait_for("got "), "line");
    session.type_in("\x03");
    assert_eq!(session.finish().0, Some(130));
}

#[test]
fn a_wait_can_be_stopped_and_continued() {
    let mut fleet = Fleet::start(1);
    fleet.master(0).ask("SET r other");
    let waits = run("10s", "echo done").replacen(" r ", " -v --wait 1h r ", 1);
    let script = format!("set -m; {waits}; echo stopped $?; read line; fg; echo ended $?");
    let Some(mut session) = Session::start(&fleet.urls(), &script) else { return };
    session.wait_for("redlatch: waiting up to");
    session.type_in("\x1a");
    session.wait_for("stopped ");
    fleet.master(0).ask("DEL r");
    session.type_in("go\n");
    session.wait_for("done");
    assert_eq!(session.wait_for("ended "), "0");
    session.finish();
}

#[test]
fn messages_break_between_words_on_a_narrow_terminal() {
    let mut fleet = Fleet::start(1);
    fleet.master(0).ask("SET r other PX 600000");
    let session = Session::start_with_width(&fleet.urls(), &run("10s", "true"), 40);
    let Some(session) = session else { return };
    let (code, screen) = session.finish();
    assert_eq!(code, Some(75));
    let text = screen.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("is held by another client, for at most"), "{screen}");
    assert!(screen.lines().all(|line| line.trim_end().chars().count() <= 40), "{screen}");
}

#[test]
fn a_wait_shows_its_progress_in_one_line() {
    let mut fleet = Fleet::start(1);
    fleet.master(0).ask("SET r other");
    let waits = run("10s", "sh -c 'read line'").replacen(" r ", " --wait 1h r ", 1);
    let session = Session::start_with_width(&fleet.urls(), &format!("{waits}; echo ended $?"), 40);
    let Some(mut session) = session else { return };
    // The line is rewritten in place.
    eventually(PATIENCE, "the wait counts down", || {
        let screen = session.screen();
        let lines = screen.split("\r\x1b[K").filter(|line| line.starts_with("redlatch: waiting up to"));
        let mut lines: Vec<_> = lines.collect();
        lines.dedup();
        assert!(lines.iter().all(|line| line.chars().count() < 40), "{screen}");
        lines.len() >= 2
    });
    fleet.master(0).ask("DEL r");
    eventually(PATIENCE, "the command finds its line free", || session.screen().ends_with("\r\x1b[K"));
    session.type_in("\n");
    session.wait_for("ended 0");
    session.finish();
}
