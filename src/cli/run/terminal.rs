//! Which process group has the terminal's foreground: job control as in a shell, for the one command of
//! `redlatch run`.
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
    own: Pid,
    /// Whether the command gets the foreground when this program's group has it.
    is_wanted: bool,
}

impl Terminal {
    /// `None` without a controlling terminal: cron, systemd, CI.
    ///
    /// In a pipeline another program may read the keyboard, so the command gets the foreground when it asks.
    pub(super) fn open() -> Option<Self> {
        let tty = File::open("/dev/tty").ok()?;
        let is_wanted = io::stdin().is_terminal() && io::stdout().is_terminal();
        Some(Self { tty, own: getpgrp(), is_wanted })
    }

    pub(super) fn has(&self, group: Pid) -> bool {
        tcgetpgrp(&self.tty).is_ok_and(|foreground| foreground == group)
    }

    /// The command was stopped because it asked for the foreground.
    pub(super) fn want(&mut self) {
        self.is_wanted = true;
    }

    /// Gives the foreground to the command if the command wants it and this program's group has it.
    pub(super) fn hand_over(&self, group: Pid) {
        if self.is_wanted && self.has(self.own) && tcsetpgrp(&self.tty, group).is_ok() {
            // The command may have asked for the terminal earlier, and been stopped.
            let _ = kill_process_group(group, Signal::CONT);
        }
    }

    /// Takes the foreground back from the command's group, which must still exist. Returns whether the group
    /// had it.
    ///
    /// The attempt stops a process in the background, and blocking the signal needs unsafe code. So this
    /// process joins the foreground group for the call.
    pub(super) fn take_back(&self, group: Pid) -> bool {
        if !self.has(group) {
            return false;
        }
        // Fails for a session leader. In that case no shell waits for the terminal.
        if setpgid(None, Some(group)).is_ok() {
            let _ = tcsetpgrp(&self.tty, self.own);
            // The own group no longer exists if this program was the last of a pipeline. The program must not
            // stay in the command's group, which may get KILL.
            if setpgid(None, Some(self.own)).is_err() {
                let _ = setpgid(None, None);
            }
        }
        true
    }

    /// Stops this program's group, as the terminal stopped the command's. Returns when the group is
    /// continued, or at once if no shell can continue it: the kernel then ignores TTOU, but not STOP.
    pub(super) fn stop_own_group() {
        let _ = kill_current_process_group(Signal::TTOU);
    }
}
