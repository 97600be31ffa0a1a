//! The command's process: start, group, descendants, forwarded signals, and end.
//!
//! One thread reaps children and sends signals, so no signal reaches a reused process id. The command
//! itself is reaped last: until then no other group can get its number.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, getpid, kill_current_process_group, kill_process,
    kill_process_group, test_kill_process_group, waitid, waitpgid, waitpid,
};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals as SignalStream;

use super::descendants::{self, Descendant, Ended, Found, Identity, Search};
use super::stage::{self, Failure};
use super::terminal::Terminal;
use crate::exit::{Exit, code};
use crate::message::Message;
use crate::output::say;

const FORWARDED: [i32; 7] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGTSTP];

/// Whether the signal asks the program to end.
pub(super) const fn is_end(signal: i32) -> bool {
    matches!(signal, SIGHUP | SIGINT | SIGQUIT | SIGTERM)
}

/// Limit on the searches for descendants that start while the command is being stopped.
const SEARCH_COUNT_MAX: usize = 20;

/// Caught signals. `SIGCHLD` only says that a child may have ended or stopped.
pub(super) struct Signals {
    pub(super) arrivals: Receiver<i32>,
}

impl Signals {
    /// Starts catching signals. Each arrival wakes the calling thread. A signal that was ignored from the
    /// start (nohup, a background job) stays ignored, for the command too.
    pub(super) fn catch() -> io::Result<Self> {
        let ignored = ignored_signals();
        let forwarded = FORWARDED.into_iter().filter(|signal| ignored & (1 << (signal - 1)) == 0);
        // If SIGCHLD were ignored, the kernel would reap the command, and its exit code would be lost.
        let mut stream = SignalStream::new(forwarded.chain([SIGCHLD]))?;
        let (sender, arrivals) = mpsc::channel();
        let sleeper = thread::current();
        thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for signal in stream.forever() {
                if sender.send(signal).is_err() {
                    break;
                }
                sleeper.unpark();
            }
        })?;
        Ok(Self { arrivals })
    }

    /// Returns an arrived signal that ends the program. For the time without a command.
    pub(super) fn take(&self) -> Option<i32> {
        match self.arrivals.try_recv() {
            Ok(SIGTSTP) => {
                // Catching TSTP disabled its default action, so stop here. The rest of the group got TSTP
                // from the terminal.
                let _ = kill_process(getpid(), Signal::TTOU);
                None
            }
            // They are meant for the command, which does not run yet.
            Ok(SIGUSR1 | SIGUSR2 | SIGCHLD) | Err(_) => None,
            Ok(signal) => Some(signal),
        }
    }
}

/// One bit for each signal that this process ignores: bit 0 is signal 1. Zero if the system does not say.
fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

pub(super) fn name_of(signal: i32) -> &'static str {
    signal_hook::low_level::signal_name(signal).unwrap_or("a signal")
}

/// The command: a process that leads its own group, and everything that it has started.
pub(super) struct Process {
    /// Number of the process and of its group.
    pid: Pid,
    program: String,
    terminal: Option<Terminal>,
    /// Exit code, once the command has ended.
    code: Option<u8>,
    /// Receives the stage's error if the command cannot run.
    failure: Option<Failure>,
    search: Search,
    /// Descendants of this program that existed before the command.
    strangers: Arc<HashSet<Identity>>,
    ended: Ended,
    /// Descendants outside the command's group in the latest search.
    known: Vec<Identity>,
    /// Whether no search has finished since TERM.
    is_first_search: bool,
    /// Processes outside the command's group that got TERM.
    asked: HashSet<Identity>,
    /// Processes outside the command's group that were stopped with it.
    paused: HashSet<Identity>,
    /// Processes that this program may not signal.
    unreachable: HashSet<Identity>,
    /// Whether nothing but unreachable processes runs on.
    pub(super) is_left: bool,
}

impl Process {
    /// Starts the command. Must run on the main thread, because the kernel kills the command when the thread
    /// that started it ends. The error has the exit code for a refusal by the system, or for a command that
    /// cannot run.
    pub(super) fn spawn(
        words: &[OsString],
        variables: impl IntoIterator<Item = (&'static str, Option<OsString>)>,
    ) -> Result<Self, Exit> {
        let program = words.first().map(|program| program.to_string_lossy()).unwrap_or_default();
        let (mut command, failure) = stage::command(words)?;
        command.process_group(0);
        for (name, value) in variables {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        // A script that became this program may have started descendants. An earlier command of `elect` may
        // have left others, and nobody else reaps their zombies.
        let strangers = descendants::list(&HashSet::new()).unwrap_or_default();
        strangers.iter().filter(|it| it.is_zombie()).for_each(reap_adopted);
        let strangers: Arc<HashSet<_>> = Arc::new(strangers.into_iter().map(|it| it.id).collect());
        let search = Search::start(strangers.clone())?;
        descendants::adopt();
        let terminal = Terminal::open();
        let child = command.spawn().map_err(|error| match error.kind() {
            // The stage is this program, so the command is not to blame for a failed start.
            kind if failure.is_some() && kind != io::ErrorKind::ArgumentListTooLong => error.into(),
            _ => cannot_start(&program, &error),
        })?;
        let pid = Pid::from_child(&child);
        Ok(Self {
            pid,
            program: program.into_owned(),
            terminal,
            code: None,
            failure,
            search,
            strangers,
            ended: Ended::default(),
            known: Vec::new(),
            is_first_search: false,
            asked: HashSet::new(),
            paused: HashSet::new(),
            unreachable: HashSet::new(),
            is_left: false,
        })
    }

    pub(super) fn pass_on(&self, signal: i32) {
        match Signal::from_named_raw(signal) {
            None | Some(Signal::CHILD) => {}
            Some(signal @ (Signal::USR1 | Signal::USR2)) => {
                let _ = kill_process(self.pid, signal);
            }
            Some(signal) => self.send_to_group(signal),
        }
    }

    fn send_to_group(&self, signal: Signal) {
        let _ = kill_process_group(self.pid, signal);
    }

    /// Gives the command the foreground if this program has it: `fg` brings the foreground without a signal.
    pub(super) fn hand_over_terminal(&self) {
        if let (Some(terminal), None) = (&self.terminal, self.code) {
            terminal.hand_over(self.pid);
        }
    }

    /// Notes the command's end. Returns whether the terminal has stopped the command, so that this program
    /// must stop, too.
    pub(super) fn look(&mut self) -> io::Result<bool> {
        if self.code.is_some() {
            return Ok(false);
        }
        let look =
            WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let Some(seen) = waitid(WaitId::Pid(self.pid), look)? else { return Ok(false) };
        if let Some(signal) = seen.stopping_signal() {
            // Consumes the stop, so that it is seen once.
            let taken = waitid(WaitId::Pid(self.pid), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG)?;
            return Ok(taken.is_some() && self.is_stopped_by_terminal(signal));
        }
        let had_terminal = self.terminal.as_ref().is_some_and(|terminal| terminal.take_back(self.pid));
        let signal = seen.terminating_signal();
        self.code = Some(match (seen.exit_status(), signal) {
            (Some(code), _) => u8::try_from(code).unwrap_or(u8::MAX),
            (None, Some(signal)) => code::of_signal(signal),
            (None, None) => u8::MAX,
        });
        if had_terminal
            && let Some(signal @ (SIGINT | SIGQUIT)) = signal
            && let Some(signal) = Signal::from_named_raw(signal)
        {
            // Ctrl-C reached the command only. A script around this program must end, too.
            let _ = kill_current_process_group(signal);
        }
        Ok(false)
    }

    /// Whether this program must stop, too. STOP does not ask for it: STOP is meant for the command alone,
    /// which keeps its lock.
    fn is_stopped_by_terminal(&mut self, signal: i32) -> bool {
        let Some(terminal) = &mut self.terminal else { return false };
        match Signal::from_named_raw(signal) {
            Some(Signal::TSTP) => true,
            Some(Signal::TTIN | Signal::TTOU) => {
                terminal.want();
                terminal.hand_over(self.pid);
                let has_terminal = terminal.has(self.pid);
                if has_terminal {
                    self.send_to_group(Signal::CONT);
                }
                !has_terminal
            }
            _ => false,
        }
    }

    /// Stops the command and its descendants, then this program's group. Returns when the group is continued;
    /// the command stays stopped.
    pub(super) fn stop_with_own_group(&mut self) {
        self.send_to_group(Signal::STOP);
        let mut ended = Ended::default();
        for _ in 0..SEARCH_COUNT_MAX {
            let found = descendants::list(&self.strangers).unwrap_or_default();
            let may_miss_one = ended.follow(&found);
            let running = found.iter().filter(|it| {
                self.is_outside(it) && !(it.is_zombie() || it.is_stopped() || self.paused.contains(&it.id))
            });
            let running: Vec<_> = running.map(|it| it.id).collect();
            if running.is_empty() && !may_miss_one {
                break;
            }
            for id in running {
                self.send(id, Signal::STOP);
                self.paused.insert(id);
            }
        }
        Terminal::stop_own_group();
    }

    pub(super) fn resume(&mut self) {
        self.hand_over_terminal();
        self.send_to_group(Signal::CONT);
        for id in std::mem::take(&mut self.paused) {
            self.send(id, Signal::CONT);
        }
    }

    /// Sends TERM to the command's group, and CONT so that stopped processes can end. [`Self::pursue`]
    /// signals the descendants outside the group.
    pub(super) fn end(&mut self) {
        self.send_to_group(Signal::TERM);
        self.send_to_group(Signal::CONT);
        self.is_first_search = true;
        self.search.begin_anew();
    }

    /// Sends KILL to the command's group and to the known processes outside it. [`Self::pursue`] sends it to
    /// the processes that the next search finds.
    pub(super) fn kill(&mut self) {
        self.send_to_group(Signal::KILL);
        for id in std::mem::take(&mut self.known) {
            self.send(id, Signal::KILL);
        }
        self.search.begin_anew();
    }

    pub(super) fn search(&mut self) {
        self.search.begin();
    }

    /// Result of a search, once. Reaps zombies that this program adopted.
    pub(super) fn found(&mut self) -> Option<Found> {
        let found = self.search.take()?;
        let ended = found.iter().flatten().filter(|it| it.is_zombie() && it.id.pid != self.pid);
        ended.for_each(reap_adopted);
        Some(found)
    }

    /// Sends TERM or KILL to the found processes that did not get it. Returns whether the command has ended
    /// and no process is left that this program may signal.
    pub(super) fn pursue(&mut self, found: Found, is_killed: bool) -> bool {
        if is_killed {
            self.send_to_group(Signal::KILL);
        }
        let Some(mut found) = found else {
            // The command's own entry would keep the group in existence.
            return self.code.is_some() && {
                self.reap();
                test_kill_process_group(self.pid).is_err()
            };
        };
        let may_miss_one = self.ended.follow(&found);
        found.retain(|it| !it.is_zombie());
        let is_first_search = std::mem::take(&mut self.is_first_search);
        let outside: Vec<_> = found.iter().filter(|it| self.is_outside(it)).copied().collect();
        self.known = outside.iter().map(|it| it.id).collect();
        if is_killed {
            // Members of the group, too: a signal to the group does not report which members it missed.
            found.iter().for_each(|it| self.send(it.id, Signal::KILL));
        } else {
            for it in outside {
                if (is_first_search || it.is_child()) && self.asked.insert(it.id) {
                    // After the first search only adopted processes get TERM. They were started while TERM
                    // was being sent, by parents that have ended. Children of a living parent are left to
                    // the parent's own shutdown.
                    self.send(it.id, Signal::TERM);
                    self.send(it.id, Signal::CONT);
                }
            }
        }
        if found.iter().any(|it| it.id.pid == self.pid && self.unreachable.contains(&it.id)) {
            // This program cannot end the command, so nobody waits for the exit code.
            self.code.get_or_insert(code::LOST);
        }
        let is_over = !may_miss_one && found.iter().all(|it| self.unreachable.contains(&it.id));
        self.is_left = is_over && !found.is_empty();
        self.code.is_some() && is_over
    }

    fn send(&mut self, id: Identity, signal: Signal) {
        if descendants::exists(id)
            && kill_process(id.pid, signal) == Err(Errno::PERM)
            && self.unreachable.insert(id)
        {
            let pid = id.pid;
            say(Message::CannotKill { pid: &pid });
        }
    }

    fn is_outside(&self, it: &Descendant) -> bool {
        it.group != Some(self.pid)
    }

    /// Reaps the command if it has ended. Returns its exit code, or why it never ran.
    pub(super) fn take_end(&mut self) -> Option<Result<u8, Exit>> {
        let code = self.code?;
        let failure = self.failure.as_mut().and_then(Failure::take);
        self.reap();
        Some(failure.map_or(Ok(code), |error| Err(cannot_start(&self.program, &error))))
    }

    /// Reaps the ended command, and adopted zombies of its group. From now on its number may be reused.
    fn reap(&self) {
        while let Ok(Some(_)) = waitpgid(self.pid, WaitOptions::NOHANG) {}
        let _ = waitpid(Some(self.pid), WaitOptions::NOHANG);
    }
}

impl Drop for Process {
    /// Kills a running command, because nobody supervises it now.
    fn drop(&mut self) {
        if self.code.is_none() {
            self.kill();
        }
    }
}

/// Reaps a zombie if this program is its parent.
fn reap_adopted(it: &Descendant) {
    if it.is_child() {
        let _ = waitpid(Some(it.id.pid), WaitOptions::NOHANG);
    }
}

fn cannot_start(program: &str, error: &io::Error) -> Exit {
    let code = match error.kind() {
        io::ErrorKind::NotFound => code::NOT_FOUND,
        _ => code::NOT_EXECUTABLE,
    };
    Exit::new(code, Message::CannotRun { program: &program, error })
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
