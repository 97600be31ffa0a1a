//! Output that nobody reads: stderr or stdout is a full pipe. Locks are still extended, faults healed and
//! signals obeyed.

use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Read, Write, pipe};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use redlatch_support::{Fleet, PATIENCE, eventually};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::harness::{FOREVER, Leftovers, exists, expect, finish, holder_count, redlatch, signal, trusting};

/// A program whose stderr nobody reads. Its processes end with this value.
struct Unheard {
    child: Child,
    stdout: BufReader<ChildStdout>,
    /// Both ends, so that neither closes.
    stderr: (PipeReader, PipeWriter),
    _leftovers: Leftovers,
}

impl Unheard {
    fn start(command: &mut Command) -> Self {
        let stderr = pipe().expect("a pipe");
        let leftovers = Leftovers::of(command);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child =
            command.stderr(stderr.1.try_clone().expect("a file")).spawn().expect("redlatch was built");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, stdout, stderr, _leftovers: leftovers }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("stdout is text");
        line.trim_end().to_owned()
    }

    /// Fills the pipe, so that no byte fits into stderr.
    fn fill_stderr(&mut self) {
        fill(&mut self.stderr.1);
    }

    fn code(&mut self) -> Option<i32> {
        let mut status = None;
        eventually(PATIENCE, "redlatch ends", || {
            status = self.child.try_wait().expect("a child can be waited for");
            status.is_some()
        });
        status.and_then(|status| status.code())
    }
}

/// Fills a pipe. Other writers still block.
pub(crate) fn fill(pipe: &mut PipeWriter) {
    let flags = fcntl_getfl(&*pipe).expect("an open file");
    fcntl_setfl(&*pipe, flags | OFlags::NONBLOCK).expect("an open file");
    // Single bytes fill the rest.
    while pipe.write(&[b'x'; 4096]).is_ok() {}
    while pipe.write(b"x").is_ok() {}
    fcntl_setfl(&*pipe, flags).expect("an open file");
}

// I98
#[test]
fn a_lock_is_extended_though_nobody_reads_stderr() {
    let mut fleet = Fleet::start(3);
    let script = format!("echo $$; {FOREVER}");
    let options = ["--verbose", "--ttl", "2s", "r", "--", "sh", "-c", &script];
    let mut first = Unheard::start(trusting(&fleet, "run").args(options));
    let pid = first.line();
    first.fill_stderr();
    // More than twice as long as the TTL.
    let both = format!("kill -0 {pid} && echo both");
    let second = finish(trusting(&fleet, "run").args(["--wait", "5s", "r", "--", "sh", "-c", &both]));
    assert_eq!(second.stdout, "");
    expect(&second, 75, &["is held by another client"]);
    signal(first.child.id(), "TERM");
    assert_eq!(first.code(), Some(143));
    assert_eq!(holder_count(&mut fleet, "r"), 0, "released before the exit");
}

// I98
#[test]
fn lost_lock_ends_command_despite_unread_stderr() {
    let mut fleet = Fleet::start(3);
    let script = format!("trap '' TERM; echo $$; {FOREVER}");
    let options = ["--ttl", "2s", "--grace", "200ms", "r", "--", "sh", "-c", &script];
    let mut run = Unheard::start(trusting(&fleet, "run").args(options));
    let pid = run.line();
    run.fill_stderr();
    fleet.masters().for_each(|master| assert_eq!(master.ask("FLUSHALL").text(), "OK"));
    assert_eq!(run.code(), Some(76));
    assert!(!exists(&pid));
}

// I98
#[test]
fn error_ends_program_despite_unread_stderr() {
    let mut run = Unheard::start(redlatch(&[]).args(["run", "r", "--", "true"]));
    run.fill_stderr();
    assert_eq!(run.code(), Some(64));
}

#[test]
fn acquire_fails_if_the_lock_ends_before_output() {
    let mut fleet = Fleet::start(3);
    let file = std::env::temp_dir().join(format!("redlatch-slow-{}", std::process::id()));
    let (mut reader, mut stdout) = pipe().expect("a pipe");
    fill(&mut stdout);
    let mut command = trusting(&fleet, "acquire");
    command.args(["--fenced", "--ttl", "3s", "r", "--handle"]).arg(&file);
    let leftovers = Leftovers::of(&mut command);
    let child = command.stdout(stdout).stderr(Stdio::piped()).spawn().expect("redlatch was built");
    eventually(PATIENCE, "the handle is written", || file.exists());
    eventually(PATIENCE, "the lock has ended", || holder_count(&mut fleet, "r") == 0);
    drop(command);
    let taken = std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
    let ended = child.wait_with_output().expect("a child can be waited for");
    assert!(taken.join().is_ok_and(|taken| taken.is_ok_and(|size| size > 4096)), "a full pipe was read");
    let stderr = String::from_utf8_lossy(&ended.stderr);
    drop(leftovers);
    assert_eq!(ended.status.code(), Some(76), "{stderr}");
    assert!(stderr.contains("lock \"r\" was gone already") && !file.exists(), "{stderr}");
}

// I98
#[test]
fn a_signal_ends_a_drill_that_nobody_reads() {
    let fleet = Fleet::start(3);
    let log = std::env::temp_dir().join(format!("redlatch-unread-{}", std::process::id()));
    // The hook would block on its own output.
    let hook = format!("head -c 200000 /dev/zero; echo $REDLATCH_FAULT >>{}", log.display());
    let (_reader, mut stdout) = pipe().expect("a pipe");
    fill(&mut stdout);
    let mut command = trusting(&fleet, "drill");
    command.args(["--time", "10min", "--ttl", "1s", "--fault-time", "100ms", "--hook", &hook]);
    let stderr = stdout.try_clone().expect("a file");
    let leftovers = Leftovers::of(&mut command);
    let mut child = command.stdout(stdout).stderr(stderr).spawn().expect("redlatch was built");
    let lines = || std::fs::read_to_string(&log).unwrap_or_default();
    eventually(PATIENCE, "some faults were healed", || lines().matches("end").count() >= 3);
    signal(child.id(), "TERM");
    let mut status = None;
    eventually(PATIENCE, "the drill ends", || {
        status = child.try_wait().expect("a child can be waited for");
        status.is_some()
    });
    let lines = lines();
    std::fs::remove_file(&log).ok();
    drop(leftovers);
    assert_eq!(status.and_then(|status| status.code()), Some(143));
    assert_eq!(lines.matches("begin").count(), lines.matches("end").count(), "{lines}");
}

/// A signal ends the benchmark, whose report waits briefly for its reader. A slow machine may read too late.
#[test]
fn slow_reader_still_gets_the_report() {
    let mut fleet = Fleet::start(1);
    eventually(PATIENCE, "the report is read", || {
        let (mut reader, mut stdout) = pipe().expect("a pipe");
        fill(&mut stdout);
        let mut command = trusting(&fleet, "bench");
        let leftovers = Leftovers::of(command.args(["--time", "1h"]));
        let mut child = command.stdout(stdout).spawn().expect("redlatch was built");
        drop(command);
        let before = fleet.master(0).calls("set");
        eventually(PATIENCE, "it measures", || fleet.master(0).calls("set") > before + 400);
        signal(child.id(), "TERM");
        std::thread::sleep(Duration::from_millis(400));
        let mut shown = String::new();
        reader.read_to_string(&mut shown).expect("it ends");
        assert_eq!(child.wait().expect("a child can be waited for").code(), Some(143));
        drop(leftovers);
        shown.contains("pairs/s")
    });
}

#[test]
fn a_signal_ends_a_watch_that_nobody_reads() {
    let mut fleet = Fleet::start(1);
    let (_reader, mut stdout) = pipe().expect("a pipe");
    fill(&mut stdout);
    let mut command = trusting(&fleet, "inspect");
    let leftovers = Leftovers::of(command.args(["--watch", "--json", "a"]));
    let mut child = command.stdout(stdout).spawn().expect("redlatch was built");
    eventually(PATIENCE, "it has looked", || {
        fleet.master(0).ask("INFO commandstats").text().contains("cmdstat_pttl")
    });
    signal(child.id(), "TERM");
    let mut status = None;
    eventually(PATIENCE, "the watch ends", || {
        status = child.try_wait().expect("a child can be waited for");
        status.is_some()
    });
    drop(leftovers);
    assert_eq!(status.and_then(|status| status.code()), None, "by the signal");
}

#[test]
fn output_that_is_closed_harms_nothing() {
    let fleet = Fleet::start(3);
    let closed = || pipe().expect("a pipe").1;
    let mut run = trusting(&fleet, "run");
    run.args(["--verbose", "r", "--", "sh", "-c", "exit 3"]).stdout(closed()).stderr(closed());
    assert_eq!(run.status().expect("redlatch was built").code(), Some(3));
    let mut bench = trusting(&fleet, "bench");
    bench.args(["--pairs", "10"]).stdout(closed()).stderr(closed());
    assert_eq!(bench.status().expect("redlatch was built").code(), Some(0));
}
