//! The command's process: its start, its group, the signals that are passed on to it, its end.
//!
//! A signal is never sent to a process that was already reaped: the waiting thread only looks (`WNOWAIT`), and the main
//! thread, which alone sends signals, reaps.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpgrp, kill_process, kill_process_group, test_kill_process_group,
    waitid,
};
use rustix::termios::tcgetpgrp;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals as SignalStream;

use crate::cli::options::code;

/// What the main thread is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// The program received this signal.
    Signal(i32),
    /// The command has ended and can be reaped.
    Ended,
}

const FORWARDED: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];

/// The signals that the program catches, and where they arrive.
pub(super) struct Signals {
    sender: Sender<Event>,
    events: Receiver<Event>,
}

impl Signals {
    /// Starts to catch. A signal that was ignored from the start (nohup, a background job) stays ignored, for the
    /// command too.
    pub(super) fn catch() -> io::Result<Self> {
        // Were SIGCHLD ignored, the kernel would reap the command, and its exit code would be lost.
        signal_hook::flag::register(SIGCHLD, Arc::new(AtomicBool::new(false)))?;
        let ignored = ignored_signals();
        let mut stream =
            SignalStream::new(FORWARDED.iter().filter(|signal| ignored & (1 << (**signal - 1)) == 0))?;
        let (sender, events) = mpsc::channel();
        let arrivals = sender.clone();
        thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for signal in stream.forever() {
                if arrivals.send(Event::Signal(signal)).is_err() {
                    break;
                }
            }
        })?;
        Ok(Self { sender, events })
    }

    /// A signal that has arrived, before there is a command.
    pub(super) fn take(&self) -> Option<i32> {
        match self.events.try_recv() {
            // These ask the command for something, and there is none yet.
            Ok(Event::Signal(SIGUSR1 | SIGUSR2) | Event::Ended) | Err(_) => None,
            Ok(Event::Signal(signal)) => Some(signal),
        }
    }

    pub(super) const fn events(&self) -> &Receiver<Event> {
        &self.events
    }
}

/// A bit for each signal that this process ignores: bit 0 is signal 1. Zero where the system does not tell.
fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// The exit code of a program that this signal ended.
pub(super) fn code_of(signal: i32) -> u8 {
    u8::try_from(signal).map_or(u8::MAX, |signal| code::SIGNAL_BASE.saturating_add(signal))
}

pub(super) fn name_of(signal: i32) -> &'static str {
    signal_hook::low_level::signal_name(signal).unwrap_or("a signal")
}

/// The running command.
pub(super) struct Process {
    child: Child,
    pid: Pid,
    /// Whether it leads a process group of its own, which then has the same number.
    leads_group: bool,
    /// Set once it is reaped.
    status: Option<ExitStatus>,
}

impl Process {
    /// Starts the command, and the thread that tells its end.
    pub(super) fn spawn(
        words: &[OsString],
        variables: impl IntoIterator<Item = (&'static str, Option<OsString>)>,
        signals: &Signals,
    ) -> io::Result<Self> {
        let (program, arguments) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let leads_group = !is_in_foreground();
        let mut command = Command::new(program);
        command.args(arguments);
        for (name, value) in variables {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        if leads_group {
            command.process_group(0);
        }
        let child = command.spawn()?;
        let process = Self { pid: Pid::from_child(&child), child, leads_group, status: None };
        let (pid, ended) = (process.pid, signals.sender.clone());
        let watching = thread::Builder::new().name("waitid".to_owned()).spawn(move || {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            while matches!(waitid(WaitId::Pid(pid), options), Err(Errno::INTR)) {}
            // Nobody listens any more if the main thread is about to exit.
            let _ = ended.send(Event::Ended);
        });
        if let Err(error) = watching {
            process.end(Signal::KILL);
            return Err(error);
        }
        Ok(process)
    }

    /// Passes a signal on that this program received.
    pub(super) fn pass_on(&self, signal: i32) {
        let Some(signal) = Signal::from_named_raw(signal) else { return };
        match (signal, self.leads_group) {
            // The terminal sent it to the whole foreground group.
            (Signal::INT | Signal::QUIT, false) => {}
            (Signal::USR1 | Signal::USR2, _) => self.send_to_command(signal),
            _ => self.end(signal),
        }
    }

    /// Sends the signal to the command's group, or to the command alone if it shares this program's group.
    pub(super) fn end(&self, signal: Signal) {
        if self.leads_group {
            // A group that is gone needs no signal.
            let _ = kill_process_group(self.pid, signal);
        } else {
            self.send_to_command(signal);
        }
    }

    fn send_to_command(&self, signal: Signal) {
        if self.status.is_none() {
            let _ = kill_process(self.pid, signal);
        }
    }

    /// Reaps the command, which has ended.
    pub(super) fn reap(&mut self) -> io::Result<()> {
        self.status = Some(self.child.wait()?);
        Ok(())
    }

    /// The command's exit code once it is reaped.
    pub(super) fn code(&self) -> Option<u8> {
        let status = self.status?;
        Some(match (status.code(), status.signal()) {
            (Some(code), _) => u8::try_from(code).unwrap_or(u8::MAX),
            (None, Some(signal)) => code_of(signal),
            (None, None) => u8::MAX,
        })
    }

    /// Whether nothing that [`Process::end`] could reach is left.
    pub(super) fn is_gone(&self) -> bool {
        self.status.is_some() && !(self.leads_group && test_kill_process_group(self.pid).is_ok())
    }
}

/// Whether this program is in the foreground of a terminal: then what the terminal sends reaches the command if it
/// stays in the same group, and only there may it read from the terminal.
fn is_in_foreground() -> bool {
    File::open("/dev/tty").is_ok_and(|terminal| tcgetpgrp(&terminal).is_ok_and(|group| group == getpgrp()))
}
