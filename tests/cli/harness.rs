//! Starts the built `redlatch` and observes how it ends.
//!
//! A test's processes end with the test, however it ends: each carries a mark in its environment.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Once, mpsc};
use std::thread;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;

use redlatch_support::{Fleet, PATIENCE, Raw, eventually};

/// A loop for `sh` that ends only by a signal.
pub(crate) const FOREVER: &str = "while :; do sleep 0.02; done";

/// Options whose limits a busy machine does not exceed.
pub(crate) const PATIENT: [&str; 5] = ["--trust", "--answer-timeout", "5s", "--connect-timeout", "20s"];

/// `redlatch SUBCOMMAND --trust` on all masters of the fleet, with patient limits.
pub(crate) fn trusting(fleet: &Fleet, subcommand: &str) -> Command {
    let mut command = redlatch(&fleet.urls());
    command.arg(subcommand).args(PATIENT);
    command
}

/// `redlatch run --trust` with short limits, for masters that are silent.
pub(crate) fn impatient(fleet: &Fleet) -> Command {
    let mut command = redlatch(&fleet.urls());
    command.args(["run", "--trust"]);
    command
}

pub(crate) fn redlatch(urls: &[String]) -> Command {
    let mut command = command(env!("CARGO_BIN_EXE_redlatch"));
    command.env("REDLATCH_MASTERS", urls.join(","));
    command
}

/// A program in its own process group that ignores no signal, whatever this process inherited.
pub(crate) fn command(program: &str) -> Command {
    static CATCH: Once = Once::new();
    CATCH.call_once(catch_ignored_signals);
    let mut command = Command::new(program);
    command.process_group(0);
    command
}

/// Catches the signals that this process ignores (because of `nohup` or a script's `&`): children inherit
/// ignored signals, but get the default for caught ones. Without `/proc`, no signal is known to be ignored.
fn catch_ignored_signals() {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap_or("0");
    let mask = u64::from_str_radix(mask.trim(), 16).expect("a mask in hexadecimal");
    for signal in (1..32).filter(|signal| mask & (1 << (signal - 1)) != 0) {
        if !signal_hook::consts::FORBIDDEN.contains(&signal) {
            signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false))).expect("it can be caught");
        }
    }
}

/// Kills on drop all processes that carry the mark in their environment.
pub(crate) struct Leftovers(String);

/// Name of the environment variable that has the mark.
const MARK: &str = "REDLATCH_TEST_MARK";

impl Leftovers {
    /// Marks the command.
    pub(crate) fn of(command: &mut Command) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let mark = format!("{}.{}.", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        command.env(MARK, &mark);
        Self(format!("{MARK}={mark}"))
    }

    /// Marked processes that have not ended.
    pub(crate) fn find(&self) -> Vec<u32> {
        let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let is_marked = |pid: &u32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == self.0.as_bytes())
        };
        pids.filter(is_marked).collect()
    }
}

impl Drop for Leftovers {
    fn drop(&mut self) {
        // A found process may have started another.
        loop {
            let pids = self.find();
            if pids.is_empty() {
                break;
            }
            for pid in pids {
                let kill = format!("kill -KILL {pid} 2>&-");
                Command::new("sh").args(["-c", &kill]).status().ok();
            }
        }
    }
}

pub(crate) struct Finished {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs the command to its end.
pub(crate) fn finish(command: &mut Command) -> Finished {
    command.stdin(Stdio::null());
    Running::start(command).finish()
}

/// A running `redlatch`.
pub(crate) struct Running {
    leftovers: Leftovers,
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    stderr: BufReader<ChildStderr>,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let leftovers = Leftovers::of(command);
        let mut child = command.spawn().expect("redlatch was built");
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let stderr = BufReader::new(child.stderr.take().expect("piped"));
        Self { leftovers, child, stdin, stdout, stderr }
    }

    /// Like [`Self::start`], with a pipe to stdin.
    pub(crate) fn start_with_stdin(command: &mut Command) -> Self {
        Self::start(command.stdin(Stdio::piped()))
    }

    /// Next line of stdout, which closes with the program.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("stdout is text");
        if line.is_empty() {
            let mut stderr = String::new();
            self.stderr.read_to_string(&mut stderr).expect("stderr is text");
            panic!("redlatch ended early: {stderr}");
        }
        line.trim_end().to_owned()
    }

    /// Reads stderr up to a line that contains this text. Returns the line.
    pub(crate) fn wait_for_stderr(&mut self, text: &str) -> String {
        let given_up = Instant::now() + PATIENCE;
        let (mut line, mut said) = (String::new(), String::new());
        while !line.contains(text) {
            line.clear();
            if self.stderr.buffer().is_empty() {
                await_bytes(self.stderr.get_ref(), given_up)
                    .unwrap_or_else(|| panic!("{text:?} is not said within {PATIENCE:?}: {said}"));
            }
            let size = self.stderr.read_line(&mut line).expect("stderr is text");
            assert!(size > 0, "redlatch ended without saying {text:?}: {said}");
            said.push_str(&line);
        }
        line
    }

    /// Processes left of the program and its descendants.
    pub(crate) fn left(&self) -> Vec<u32> {
        self.leftovers.find()
    }

    /// Waits for the program's end.
    pub(crate) fn wait_for_exit(&mut self) {
        eventually(PATIENCE, "redlatch ends", || {
            self.child.try_wait().expect("a child can be waited for").is_some()
        });
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    pub(crate) fn send(&mut self, text: &str) {
        self.stdin.as_mut().expect("piped").write_all(text.as_bytes()).expect("the command reads");
    }

    pub(crate) fn finish(self) -> Finished {
        let Self { leftovers, mut child, stdin, mut stdout, mut stderr } = self;
        drop(stdin);
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
        let finished = receiver.recv_timeout(PATIENCE);
        drop(leftovers);
        finished.unwrap_or_else(|_| panic!("redlatch did not end within {PATIENCE:?}"))
    }
}

/// Waits until a read would return at once; `None` after the limit.
fn await_bytes(pipe: impl AsFd, given_up: Instant) -> Option<()> {
    let left = given_up.saturating_duration_since(Instant::now());
    let limit = Timespec::try_from(left).expect("a short time");
    let polled = retry_on_intr(|| poll(&mut [PollFd::new(&pipe, PollFlags::IN)], Some(&limit)));
    let count = polled.expect("a pipe can be polled");
    (count > 0).then_some(())
}

pub(crate) fn signal(pid: u32, name: &str) {
    let status = Command::new("sh").args(["-c", &format!("kill -{name} {pid}")]).status();
    assert!(status.expect("sh runs").success(), "kill -{name} {pid}");
}

pub(crate) fn exists(pid: &str) -> bool {
    let probe = Command::new("sh").args(["-c", &format!("kill -0 {pid} 2>&-")]).status();
    probe.expect("sh runs").success()
}

pub(crate) fn holder_count(fleet: &mut Fleet, key: &str) -> usize {
    fleet
        .masters()
        .map(|master| master.command(&[b"EXISTS", key.as_bytes()]))
        .filter(|raw| *raw == Raw::Integer(1))
        .count()
}

#[track_caller]
pub(crate) fn expect(finished: &Finished, code: i32, said: &[&str]) {
    let Finished { code: found, stderr, .. } = finished;
    assert_eq!(*found, Some(code), "{stderr}");
    for text in said {
        assert!(stderr.contains(text), "{text:?} is not in: {stderr}");
    }
}
