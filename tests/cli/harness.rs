//! Starts the built `redlatch` and sees how it ends.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::fleet::{Fleet, Raw};

/// How long anything may take that is waited for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A loop for `sh` that ends only by a signal.
pub(crate) const FOREVER: &str = "while :; do sleep 0.02; done";

/// `redlatch SUBCOMMAND --trust` over all masters of the fleet.
pub(crate) fn trusting(fleet: &Fleet, subcommand: &str) -> Command {
    let mut command = redlatch(&fleet.urls());
    command.args([subcommand, "--trust"]);
    command
}

pub(crate) fn redlatch(urls: &[String]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redlatch"));
    command.env("REDLATCH_MASTERS", urls.join(",")).process_group(0);
    command
}

pub(crate) struct Finished {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs to the end.
pub(crate) fn finish(command: &mut Command) -> Finished {
    command.stdin(Stdio::null());
    Running::start(command).finish()
}

/// A `redlatch` under way.
pub(crate) struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    stderr: BufReader<ChildStderr>,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("redlatch was built");
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let stderr = BufReader::new(child.stderr.take().expect("piped"));
        Self { child, stdin, stdout, stderr }
    }

    /// The same with a pipe to the command's stdin.
    pub(crate) fn start_with_stdin(command: &mut Command) -> Self {
        Self::start(command.stdin(Stdio::piped()))
    }

    /// The next line of stdout; it ends with the program, so this does not wait for ever.
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

    /// Reads stderr up to a line with this text.
    pub(crate) fn wait_for_stderr(&mut self, text: &str) {
        let mut line = String::new();
        while !line.contains(text) {
            line.clear();
            let size = self.stderr.read_line(&mut line).expect("stderr is text");
            assert!(size > 0, "redlatch ended without saying {text:?}");
        }
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    pub(crate) fn send(&mut self, text: &str) {
        self.stdin.as_mut().expect("piped").write_all(text.as_bytes()).expect("the command reads");
    }

    pub(crate) fn finish(self) -> Finished {
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
        .filter(|raw| *raw == Raw::Int(1))
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
