//! `redlatch run` and the descendants of its command. With a lost lock, descendants end even outside the
//! command's group. The command itself ends with redlatch.

use std::fs::File;
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use redlatch_support::{Fleet, PATIENCE, eventually};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::harness::{
    FOREVER, PATIENT, Running, command, exists, expect, finish, holder_count, signal, trusting,
};

/// A command whose descendant, in a separate session, prints its process id.
fn start(fleet: &Fleet, options: &[&str], script: &str) -> Running {
    let command = &mut trusting(fleet, "run");
    Running::start(command.args(options).args(["r", "--", "sh", "-c", script]))
}

fn lose_lock(fleet: &mut Fleet) {
    fleet.masters().for_each(|master| assert_eq!(master.ask("FLUSHALL").text(), "OK"));
}

// I103
#[test]
fn descendants_outside_the_group_end_with_the_lock() {
    let mut fleet = Fleet::start(3);
    for script in [
        // A separate session below the command.
        format!("setsid sh -c 'echo $$; {FOREVER}' & wait"),
        // The same, orphaned: its parent has ended.
        format!("(setsid sh -c 'echo $$; {FOREVER}' &); {FOREVER}"),
        // The command ends at TERM, and its orphan leaves another orphan.
        format!("(setsid sh -c 'echo $$; setsid sh -c \"{FOREVER}\" & wait' &); {FOREVER}"),
    ] {
        // The grace is a third of the TTL, which a busy machine must not use up.
        let mut run = start(&fleet, &["--ttl", "15s"], &script);
        let pid = run.line();
        lose_lock(&mut fleet);
        let finished = run.finish();
        expect(&finished, 76, &["TERM to the command"]);
        assert!(!finished.stderr.contains("KILL to the command"), "{script}: {}", finished.stderr);
        assert!(!exists(&pid), "{script}");
    }
}

// I103
#[test]
fn descendants_ignoring_term_end_before_the_program() {
    let mut fleet = Fleet::start(3);
    for script in [
        format!("setsid sh -c 'trap \"\" TERM; echo $$; {FOREVER}' & wait"),
        format!("(setsid sh -c 'trap \"\" TERM; echo $$; {FOREVER}' &); {FOREVER}"),
        // Starts processes as fast as possible, each in a separate session.
        "trap '' TERM; echo $$; while :; do setsid sleep 60 & sleep 0.002; done".to_owned(),
    ] {
        let mut run = start(&fleet, &["--ttl", "2s", "--grace", "200ms"], &script);
        let pid = run.line();
        lose_lock(&mut fleet);
        run.wait_for_exit();
        assert_eq!(run.left(), [0; 0], "{script}");
        expect(&run.finish(), 76, &["KILL to the command"]);
        assert!(!exists(&pid), "{script}");
    }
}

/// At TERM, each process starts the next one, and ends once that process waits for TERM.
const CHAIN: &str = r#"
    trap 'next=$(($1 + 1))
        if test $next = 4; then echo end; exit; fi
        setsid sh -c "$CHAIN" sh $next &
        until test -e "$PLACE/$next"; do sleep 0.01; done
        exit' TERM
    : >"$PLACE/$1"
    while :; do sleep 0.02; done"#;

/// Each process gets TERM soon, so all end within the grace.
#[test]
fn late_descendants_get_term_one_by_one() {
    let mut fleet = Fleet::start(3);
    let place = std::env::temp_dir().join(format!("redlatch-chain-{}", std::process::id()));
    // A busy machine may use up the grace.
    eventually(PATIENCE * 2, "the last one got TERM", || {
        std::fs::create_dir(&place).expect("a folder");
        let mut run = trusting(&fleet, "run");
        run.args(["--ttl", "6s", "r", "--", "sh", "-c", CHAIN, "sh", "0"]);
        let run = Running::start(run.env("CHAIN", CHAIN).env("PLACE", &place));
        eventually(PATIENCE, "the command runs", || place.join("0").exists());
        lose_lock(&mut fleet);
        let finished = run.finish();
        expect(&finished, 76, &["TERM to the command"]);
        std::fs::remove_dir_all(&place).expect("a folder of its own");
        finished.stdout == "end\n"
    });
}

#[test]
fn a_descendants_own_end_is_not_cut_short() {
    let mut fleet = Fleet::start(3);
    let cleanup = "trap \"sleep 0.3; echo cleaned; exit\" TERM";
    let script = format!("(setsid sh -c '{cleanup}; echo ready; {FOREVER}' &); {FOREVER}");
    let mut run = start(&fleet, &["--ttl", "6s"], &script);
    run.line();
    lose_lock(&mut fleet);
    let finished = run.finish();
    expect(&finished, 76, &["TERM to the command"]);
    assert_eq!(finished.stdout, "cleaned\n");
}

#[test]
fn background_descendants_go_on_after_a_normal_end() {
    let mut fleet = Fleet::start(3);
    let script = format!(
        "sh -c '{FOREVER}' >/dev/null 2>&1 & echo $!; setsid sh -c 'echo $$; exec >/dev/null 2>&1; {FOREVER}' & sleep 0.1"
    );
    let mut run = start(&fleet, &["--ttl", "10s"], &script);
    let pids = [run.line(), run.line()];
    run.wait_for_exit();
    assert_eq!(holder_count(&mut fleet, "r"), 0, "released before the exit");
    assert!(pids.iter().all(|pid| exists(pid)), "they go on without the lock");
    expect(&run.finish(), 0, &[]);
}

#[test]
fn adopted_processes_that_have_ended_are_reaped() {
    let fleet = Fleet::start(1);
    let script = format!("(sh -c 'echo $$; exec sleep 0.1' &); echo ready; {FOREVER}");
    let mut run = start(&fleet, &["--ttl", "10s"], &script);
    let mut lines = [run.line(), run.line()];
    lines.sort();
    let stat = format!("/proc/{}/stat", lines[0]);
    eventually(PATIENCE, "the orphan is gone, not a zombie", || !std::path::Path::new(&stat).exists());
    run.signal("TERM");
    expect(&run.finish(), 143, &[]);
}

// I102
#[test]
fn a_killed_redlatch_ends_its_command() {
    let fleet = Fleet::start(3);
    // The command ignores every signal that can be ignored, and leads its own group.
    let mut run = start(&fleet, &["--ttl", "10s"], &format!("trap '' TERM HUP; echo $$; {FOREVER}"));
    let pid = run.line();
    run.signal("KILL");
    eventually(PATIENCE, "the command has ended", || !exists(&pid));
}

// I102
#[test]
fn the_command_has_the_files_that_redlatch_has() {
    let fleet = Fleet::start(1);
    let script = ["sh", "-c", "cat; ls /proc/self/fd"];
    let output_of = |command: &mut Command| {
        let mut run = Running::start_with_stdin(command);
        run.send("line\n");
        run.finish().stdout
    };
    let direct = output_of(command(script[0]).args(&script[1..]));
    assert_eq!(output_of(trusting(&fleet, "run").args(["r", "--"]).args(script)), direct);
    assert!(direct.starts_with("line\n0\n1\n"), "{direct}");
}

/// A program with the set-user-ID bit starts the process as root.
#[test]
fn unkillable_process_is_named_and_not_awaited() {
    let mut fleet = Fleet::start(3);
    let folder = std::env::temp_dir().join(format!("redlatch-rights-{}", std::process::id()));
    let path = |name: &str| folder.join(name).display().to_string();
    let prepare = format!(
        "mkdir -m 0755 {0} && cp {1} {0}/redlatch && cp $(command -v setpriv) {0}/setpriv && chown 0:0 {0}/* && \
         chmod 0755 {0}/redlatch && chmod 4755 {0}/setpriv && {0}/setpriv --reuid 65534 --clear-groups {0}/setpriv --reuid 0 true",
        folder.display(),
        env!("CARGO_BIN_EXE_redlatch"),
    );
    let prepared = Command::new("sh").args(["-c", &prepare]).output().expect("sh runs");
    if !prepared.status.success() {
        let why = String::from_utf8_lossy(&prepared.stderr).into_owned();
        std::fs::remove_dir_all(&folder).ok();
        // Not `println`, which the test harness hides.
        writeln!(std::io::stderr(), "skipped: this user cannot start a program of another one: {why}").ok();
        return;
    }
    let roots = format!("{} --reuid 0 sh -c 'echo $$; trap \"\" TERM; {FOREVER}'", path("setpriv"));
    // A process beside the command in its group, and the command itself.
    for (subcommand, script) in [
        ("run", format!("{roots} & wait")),
        ("run", format!("exec {roots}")),
        ("elect", format!("exec {roots}")),
    ] {
        let mut run = command(&path("setpriv"));
        run.args([
            "--reuid",
            "65534",
            "--clear-groups",
            &path("redlatch"),
            subcommand,
            "--ttl",
            "2s",
            "--grace",
            "200ms",
        ]);
        run.args(PATIENT)
            .args(["r", "--", "sh", "-c", &script])
            .env("REDLATCH_MASTERS", fleet.urls().join(","));
        let mut run = Running::start(&mut run);
        let pid = run.line();
        lose_lock(&mut fleet);
        run.wait_for_stderr(&format!("no permission to end process {pid} of the command"));
        run.wait_for_exit();
        assert!(exists(&pid), "{script}");
        signal(pid.parse().expect("a number"), "KILL");
        let finished = run.finish();
        expect(&finished, 76, &[]);
        assert!(!finished.stderr.contains("release"), "the lock is left to its TTL: {}", finished.stderr);
    }
    std::fs::remove_dir_all(&folder).expect("a folder of its own");
}

/// The test hides `/proc` in a mount namespace.
#[test]
fn command_ends_with_its_lock_without_proc() {
    let mut fleet = Fleet::start(3);
    let hidden = |words: &[&str]| {
        let mut run = command("unshare");
        run.args(["--mount", "sh", "-c", "mount -t tmpfs none /proc && exec \"$@\"", "sh"]).args(words);
        run.env("REDLATCH_MASTERS", fleet.urls().join(","));
        run
    };
    if !hidden(&["true"]).stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
        writeln!(std::io::stderr(), "skipped: this user cannot hide /proc").ok();
        return;
    }
    let redlatch = |script: &str| {
        let program = env!("CARGO_BIN_EXE_redlatch");
        let words = [&[program, "run", "--ttl", "2s", "--grace", "200ms"][..], &PATIENT].concat();
        hidden(&[&words[..], &["r", "--", "sh", "-c", script]].concat())
    };
    let words = [env!("CARGO_BIN_EXE_redlatch"), "run", "--trust", "r", "--", "/no/such/command"];
    expect(&finish(&mut hidden(&words)), 127, &["cannot run /no/such/command"]);
    let mut run = Running::start_with_stdin(&mut redlatch("read line; echo got $line; exit 3"));
    run.send("it\n");
    let finished = run.finish();
    expect(&finished, 3, &[]);
    assert_eq!(finished.stdout, "got it\n");
    let mut run = Running::start(&mut redlatch(&format!("trap '' TERM; echo $$; {FOREVER}")));
    let pid = run.line();
    lose_lock(&mut fleet);
    expect(&run.finish(), 76, &["KILL to the command"]);
    assert!(!exists(&pid));
}

/// The stage before the command starts nothing once its parent has changed.
#[test]
fn a_stage_without_its_parent_starts_nothing() {
    for (parent, code, said, number) in
        [(std::process::id(), 0, "ran\n", None), (1, 126, "", Some(Errno::SRCH.raw_os_error()))]
    {
        let (mut own, other) = UnixStream::pair().expect("a pair");
        let stdin = File::open("/dev/null").expect("a file");
        let files = [stdin.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&files));
        sendmsg(&own, &[IoSlice::new(&[0])], &mut control, SendFlags::empty()).expect("room");
        let mut stage = command(env!("CARGO_BIN_EXE_redlatch"));
        stage.args(["__stage", &parent.to_string(), "echo", "ran"]).stdin(OwnedFd::from(other));
        let ended = stage.output().expect("redlatch was built");
        assert_eq!(
            (ended.status.code(), String::from_utf8_lossy(&ended.stdout).as_ref()),
            (Some(code), said)
        );
        // Reads the report up to its end.
        drop(stage);
        let mut report = Vec::new();
        own.read_to_end(&mut report).expect("the stage has ended");
        assert_eq!(report, number.map_or(Vec::new(), |it| it.to_ne_bytes().to_vec()));
    }
}
