//! Which process group has the terminal: job control as a shell does it, for the one command of `redlatch
//! run`.
//!
//! ```text
//!   shell's job = this program's group                    the command's group
//!        ├── hand_over ─────────────────────────────────────────► foreground
//!        │                                            Ctrl-Z: stops; TTIN, TTOU: wants it
//!        │◄───────────────────────────────────────────────────────────┤
//!        ├── stops with its whole group; continued by the shell ── hand_over, CONT ──►
//!        │◄── take_back ─────────────────────────────────────────── ended
//! ```

use std::fs::File;
use std::io::{self, IsTerminal};

use rustix::process::{Pid, Signal, getpgrp, kill_current_process_group, kill_process_group, setpgid};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

/// The controlling terminal.
#[derive(Debug)]
pub(super) struct Terminal {
    tty: File,
    /// This program's group.
    own: Pid,
    /// Whether the command gets the foreground when this program's group has it.
    is_wanted: bool,
}

impl Terminal {
    /// `None` without a controlling terminal: cron, systemd, CI.
    ///
    /// In a pipeline another program may read the keyboard, so there the command gets the foreground once it
    /// wants it.
    pub(super) fn open() -> Option<Self> {
        let tty = File::open("/dev/tty").ok()?;
        let is_wanted = io::stdin().is_terminal() && io::stdout().is_terminal();
        Some(Self { tty, own: getpgrp(), is_wanted })
    }

    /// Whether this group has the foreground.
    pub(super) fn has(&self, group: Pid) -> bool {
        tcgetpgrp(&self.tty).is_ok_and(|foreground| foreground == group)
    }

    /// The command was stopped because it wants the foreground.
    pub(super) fn want(&mut self) {
        self.is_wanted = true;
    }

    /// Gives the foreground to the command if this program's group has it and the command wants it.
    pub(super) fn hand_over(&self, group: Pid) {
        if self.is_wanted && self.has(self.own) && tcsetpgrp(&self.tty, group).is_ok() {
            // It may have asked for the terminal before, and been stopped.
            let _ = kill_process_group(group, Signal::CONT);
        }
    }

    /// Takes the foreground back from the command, whose group must still exist. Returns whether the command
    /// had it.
    ///
    /// A process in the background would be stopped by the attempt, and a signal cannot be blocked without
    /// unsafe code; so this one joins the foreground for it.
    pub(super) fn take_back(&self, group: Pid) -> bool {
        if !self.has(group) {
            return false;
        }
        // Refused to the leader of a session, behind which nobody waits for the terminal.
        if setpgid(None, Some(group)).is_ok() {
            let _ = tcsetpgrp(&self.tty, self.own);
            // It is gone where this program was the last of a pipeline. It must not stay in the command's,
            // which may get KILL.
            if setpgid(None, Some(self.own)).is_err() {
                let _ = setpgid(None, None);
            }
        }
        true
    }

    /// Stops this program's group, as the terminal stopped the command's. Returns when it is continued, or at
    /// once if nobody is there to continue it: the kernel then ignores this signal, unlike STOP.
    pub(super) fn stop_own_group() {
        let _ = kill_current_process_group(Signal::TTOU);
    }
}
