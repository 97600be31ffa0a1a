//! Supervision of the command from start to end: validities, signals, and the loss of a lock.
//!
//! This thread reads the validities from the guards, and sends TERM and KILL when the [`Timeline`] says so.
//! It needs no reply, event or mutex of the client for that, and sends a signal before it prints the message.
//! The client extends the locks on another thread, even while the command is being ended: nobody else should
//! work before the command has ended. Each successful extension restarts the timeline. Of several locks the
//! shortest validity counts, and the loss of any.

use std::time::{Duration, Instant};

use redlatch::{ExtendError, Guard};

use super::locks::Locks;
use super::process::{self, Process};
use super::session::{Session, sleep};
use super::timeline::{Due, Timeline};
use crate::exit::{Exit, code};
use crate::message::Message;
use crate::output::say;

/// How often to look whether the machine has slept.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Pause between searches for descendants of a command that must end.
const SEARCH_PAUSE: Duration = Duration::from_millis(20);

/// Delay of the search for adopted zombies after a signal.
const REAP_PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct End {
    /// Exit code, or why it is unknown.
    pub(super) code: Result<u8, Exit>,
    /// Whether the lock was lost before the command ended, as far as is known.
    pub(super) is_lost: bool,
    /// Whether a signal asked this program to end.
    pub(super) is_signalled: bool,
    /// Whether the lock was lost, and a process of the command runs on that this program may not end.
    pub(super) is_left: bool,
}

impl End {
    /// Exit code of a program that ends with its command.
    pub(super) fn exit_code(self) -> Result<u8, Exit> {
        self.code.map(|code| if self.is_lost { code::LOST } else { code })
    }
}

pub(super) struct Supervisor<'a> {
    session: &'a mut Session,
    guards: &'a [Guard],
    process: Process,
    locks: Locks,
    timeline: Timeline,
    /// The machine's sleep that the timeline already includes.
    suspended: Duration,
    /// Whether a signal asked this program to end.
    is_signalled: bool,
    /// When to look for adopted zombies, if there may be any.
    reap_at: Option<Instant>,
    /// When to search next for the remaining descendants of a command that must end.
    search_at: Instant,
    /// Planned end of the current sleep.
    wake_by: Instant,
}

impl<'a> Supervisor<'a> {
    pub(super) fn new(
        session: &'a mut Session,
        process: Process,
        guards: &'a [Guard],
        grace: Option<Duration>,
    ) -> Self {
        let suspended = session.client.suspended();
        let locks = Locks::new(guards.iter().map(|guard| (guard.resource(), guard.valid_until())));
        let now = Instant::now();
        Self {
            timeline: Timeline::new(session.ttl, grace, locks.valid_until()),
            session,
            guards,
            process,
            locks,
            suspended,
            is_signalled: false,
            reap_at: None,
            search_at: now,
            wake_by: now,
        }
    }

    /// Returns when the command has ended. After a loss, waits for all descendants that this program may end,
    /// too. Fails if the command never ran.
    pub(super) fn supervise(mut self) -> Result<End, Exit> {
        loop {
            if let Some(signal) = self.next_signal() {
                self.process.pass_on(signal);
                self.is_signalled |= process::is_end(signal);
                self.reap_at = self.reap_at.or_else(|| Instant::now().checked_add(REAP_PAUSE));
            }
            let is_stopped = match self.process.look() {
                Ok(is_stopped) => is_stopped && !self.timeline.is_ending(),
                Err(error) => {
                    let code = Err(error.into());
                    return Ok(End { code, is_lost: false, is_signalled: true, is_left: false });
                }
            };
            if is_stopped {
                self.process.stop_with_own_group();
                self.wake_by = Instant::now();
            }
            if let Some(end) = self.end() {
                return end;
            }
            self.follow_suspend();
            while let Some((name, error)) = self.session.failed_renewal() {
                self.handle_failure(&name, &error);
            }
            self.follow_renewals();
            let now = Instant::now();
            self.timeline.run_late(now.saturating_duration_since(self.wake_by));
            self.do_what_is_due(now);
            if is_stopped && !self.timeline.is_killed() {
                self.process.resume();
            }
            // It waits for the client's mutex, and KILL must wait for nothing.
            if !self.timeline.is_ending() {
                self.session.look();
            }
        }
    }

    /// Returns the command's end, once it has ended. After a loss, pursues the remaining processes and
    /// returns when none is left.
    fn end(&mut self) -> Option<Result<End, Exit>> {
        let is_lost = self.timeline.is_ending();
        let now = Instant::now();
        if self.reap_at.is_some_and(|at| at <= now) {
            self.reap_at = None;
            self.process.search();
        }
        if is_lost && self.search_at <= now {
            self.search_at = now + SEARCH_PAUSE;
            self.process.search();
        }
        let found = self.process.found();
        if is_lost && !self.process.pursue(found?, self.timeline.is_killed()) {
            return None;
        }
        let (is_signalled, is_left) = (self.is_signalled, self.process.is_left);
        let end = |code| End { code: Ok(code), is_lost, is_signalled, is_left };
        Some(self.process.take_end()?.map(end))
    }

    /// Waits for a signal, until the next deadline.
    fn next_signal(&mut self) -> Option<i32> {
        self.process.hand_over_terminal();
        let now = Instant::now();
        let due = self.timeline.next_due().map_or(LOOK_EVERY, |due| due.saturating_duration_since(now));
        let longest = if self.timeline.is_ending() { SEARCH_PAUSE } else { LOOK_EVERY };
        let limit = due.min(longest);
        self.wake_by = now + limit;
        let arrivals = &self.session.signals.arrivals;
        arrivals.try_recv().ok().or_else(|| {
            sleep(limit);
            arrivals.try_recv().ok()
        })
    }

    /// Counts the machine's sleep. Must precede the reading of the guards, whose times include the sleep.
    fn follow_suspend(&mut self) {
        let slept = self.session.client.suspended() - self.suspended;
        if !slept.is_zero() {
            self.suspended += slept;
            shift(&mut self.timeline, &mut self.locks, slept);
        }
    }

    fn do_what_is_due(&mut self, now: Instant) {
        match self.timeline.due(now) {
            Due::Nothing => {}
            Due::Term => {
                let left = self.timeline.remaining(now);
                let why = self.why_not_extended();
                self.lose(&Message::LossNear { left, why: &why }.to_string());
            }
            Due::Kill => self.kill(now, None),
        }
    }

    /// Takes over validities that renewals have moved.
    fn follow_renewals(&mut self) {
        if self.locks.follow(self.guards.iter().map(|guard| guard.valid_until())) {
            self.timeline.renew(self.locks.valid_until());
            let left = self.timeline.remaining(Instant::now());
            self.session.report(Message::Extended { lock: &self.session.label, left });
        }
    }

    /// Handles a failed renewal, or the notice that no renewal will follow.
    fn handle_failure(&mut self, name: &[u8], error: &ExtendError) {
        let failure = self.session.described(error);
        match error {
            ExtendError::Lost(_) => self.lose(&failure),
            ExtendError::HoldLimit { .. } => {
                self.locks.fail(name, failure);
            }
            // This program ran too late, and KILL is due.
            _ if !self.timeline.is_valid(Instant::now()) => {}
            // Printed once for each series of failures, and again when the lock is given up.
            _ if self.locks.fail(name, failure.clone()) => say(Message::NotExtended { error: &failure }),
            _ => {}
        }
    }

    /// Ends the command, because the lock is lost or about to be.
    fn lose(&mut self, why: &str) {
        let now = Instant::now();
        if self.timeline.is_ending() {
            return;
        }
        if self.timeline.due(now) == Due::Kill {
            return self.kill(now, Some(why));
        }
        self.process.end();
        say(Message::Term { grace: self.timeline.grace(now), why: &why });
        self.timeline.asked(now);
    }

    /// Kills the command: the grace has passed, or this program ran again only near the validity's end.
    fn kill(&mut self, now: Instant, why: Option<&str>) {
        self.process.kill();
        let (lock, left) = (&self.session.label, self.timeline.remaining(now));
        if self.timeline.is_ending() {
            say(Message::KillAfterGrace { lock, left });
        } else {
            let why = why.map_or_else(|| self.why_not_extended(), ToOwned::to_owned);
            say(Message::KillAtOnce { lock, left, why: &why });
        }
        self.timeline.killed();
    }

    /// Why the last extension failed. If none failed, this program or the machine did not run.
    fn why_not_extended(&self) -> String {
        let lock = &self.session.label[..];
        let in_time = || Message::NotExtendedInTime { lock }.to_string();
        self.locks.failure().map_or_else(in_time, ToOwned::to_owned)
    }
}

/// Brings all deadlines nearer by the time that the machine slept.
fn shift(timeline: &mut Timeline, locks: &mut Locks, slept: Duration) {
    timeline.shift(slept);
    locks.shift(slept);
}

#[cfg(test)]
mod tests {
    use super::super::locks::two;
    use super::*;

    #[test]
    fn a_sleep_counts_for_the_locks_and_for_the_next_signal() {
        let second = Duration::from_secs(1);
        let (mut locks, now) = two();
        let config = redlatch::Config::builder().masters(["redis://h"]).build().expect("valid settings");
        let ttl = config.ttl(10 * second).expect("a valid TTL");
        let mut timeline = Timeline::new(ttl, None, locks.valid_until());
        shift(&mut timeline, &mut locks, 2 * second);
        assert_eq!((timeline.remaining(now), locks.valid_until()), (7 * second, now + 7 * second));
        assert!(locks.follow([now + 20 * second, now]), "the other one has 8 s");
        assert_eq!(locks.valid_until(), now + 8 * second);
    }
}
