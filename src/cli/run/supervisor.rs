//! What happens between the start of the command and its end: extensions, signals, and the end of a lock that
//! is lost.
//!
//! Each extension that succeeds starts the [`Timeline`] anew. Extending goes on while the command is being
//! ended: as long as it runs, nobody else should work. Of several locks all are extended together, and the
//! one with the least validity, or the worst answer, counts.

use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use redlatch::engine::{OpId, Outcome, Request};
use redlatch::lock::Ttl;
use redlatch::{ExtendError, Redlock};

use super::extension::{Extended, Extension, may_pass};
use super::process::Process;
use super::timeline::{Due, Timeline};
use crate::cli::message::{Message, with_lock};
use crate::cli::options::{Exit, say};

/// How long the connections are left alone at most.
const HOUSEKEEPING_EVERY: Duration = Duration::from_millis(200);

/// How long a signal, or the command's end, may go unnoticed while an extension is under way.
const TURN_LIMIT: Duration = Duration::from_millis(5);

/// How often the descendants of a command that is to end are searched.
const SEARCH_PAUSE: Duration = Duration::from_millis(20);

/// How often adopted processes that have ended are searched, if some may have.
const REAP_PAUSE: Duration = Duration::from_secs(1);

/// The locks of a run, all of the same TTL.
pub(super) struct Locks {
    pub(super) ids: Vec<OpId>,
    /// Them in messages.
    pub(super) label: String,
    pub(super) ttl: Ttl,
}

/// How the command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct End {
    pub(super) code: u8,
    /// Whether the lock was lost before.
    pub(super) is_lost: bool,
}

/// Watches over one command and its lock.
pub(super) struct Supervisor<'a> {
    redlock: &'a mut Redlock,
    process: Process,
    locks: Locks,
    timeline: Timeline,
    extension: Extension,
    verbose: bool,
    /// What the machine had slept when the times were right.
    suspended: Duration,
    /// What the last extension failed of.
    failure: Option<String>,
    /// When to reap, if a child other than the command may have ended.
    reap_at: Option<Instant>,
    /// When to look next what is left of a command that is to end.
    search_at: Instant,
}

impl<'a> Supervisor<'a> {
    pub(super) fn new(
        redlock: &'a mut Redlock,
        process: Process,
        locks: Locks,
        mut timeline: Timeline,
        verbose: bool,
    ) -> Self {
        let suspended = redlock.suspended();
        if let Some(valid_until) = locks.ids.iter().filter_map(|lock| redlock.valid_until(*lock)).min() {
            timeline.renew(valid_until); // a sleep may have been before this
        }
        let extension = Extension::Idle;
        Self {
            redlock,
            process,
            locks,
            timeline,
            extension,
            verbose,
            suspended,
            failure: None,
            reap_at: None,
            search_at: Instant::now(),
        }
    }

    /// Returns when the command has ended; if the lock was lost, when all of its descendants have, too.
    pub(super) fn supervise(&mut self, signals: &Receiver<i32>) -> Result<End, Exit> {
        loop {
            if let Some(signal) = self.next_signal(signals) {
                self.process.pass_on(signal);
                self.reap_at = self.reap_at.or_else(|| Instant::now().checked_add(REAP_PAUSE));
            }
            let is_stopped = self.process.look()? && !self.timeline.is_ending();
            if is_stopped {
                self.process.stop_with_own_group();
                self.turn(Duration::ZERO);
            }
            if let Some(end) = self.end() {
                return Ok(end);
            }
            self.follow_suspend();
            while let Some((lock, outcome)) = self.redlock.poll_outcome() {
                if let (true, Outcome::Extend(result)) = (self.locks.ids.contains(&lock), outcome)
                    && let Some(all) = self.extension.gather(result)
                {
                    self.handle_extension(all);
                }
            }
            self.do_what_is_due(Instant::now());
            // What got KILL must not run again.
            if is_stopped && !self.timeline.is_killed() {
                self.process.resume();
            }
        }
    }

    /// How the command ended, if it has; of a lost lock, if nothing of the command is left. Pursues what is.
    fn end(&mut self) -> Option<End> {
        let is_lost = self.timeline.is_ending();
        let now = Instant::now();
        if self.reap_at.is_some_and(|at| at <= now) {
            self.reap_at = None;
            self.process.reap_adopted();
        }
        if is_lost {
            if now < self.search_at {
                return None;
            }
            if self.timeline.is_killed() {
                self.process.kill();
            } else {
                self.process.end_rest();
            }
            let is_gone = self.process.is_gone();
            self.search_at = Instant::now() + SEARCH_PAUSE;
            if !is_gone {
                return None;
            }
        }
        let code = self.process.code()?;
        Some(End { code, is_lost })
    }

    /// Waits for a signal, at most until something is due; meanwhile lets the connections work.
    fn next_signal(&mut self, signals: &Receiver<i32>) -> Option<i32> {
        self.process.hand_over_terminal();
        let now = Instant::now();
        let limit = self.next_due().map_or(HOUSEKEEPING_EVERY, |due| due.saturating_duration_since(now));
        if self.extension.is_under_way() {
            self.turn(limit.min(TURN_LIMIT));
            return signals.try_recv().ok();
        }
        let limit = if self.timeline.is_ending() { limit.min(SEARCH_PAUSE) } else { limit };
        let signal = signals.recv_timeout(limit.min(HOUSEKEEPING_EVERY)).ok();
        self.turn(Duration::ZERO);
        signal
    }

    fn next_due(&self) -> Option<Instant> {
        let extend_at = self.extension.is_idle().then(|| self.timeline.extend_at());
        self.timeline.next_due().into_iter().chain(extend_at).min()
    }

    fn turn(&mut self, limit: Duration) {
        if self.extension.is_over() {
            return;
        }
        if let Err(error) = self.redlock.turn(limit) {
            self.extension.give_up();
            self.lose(&Message::LoopEnded { lock: &self.locks.label, error: &error }.to_string());
        }
    }

    /// Counts what the machine has slept. Comes before outcomes, whose times know.
    fn follow_suspend(&mut self) {
        let slept = self.redlock.suspended() - self.suspended;
        if !slept.is_zero() {
            self.suspended += slept;
            self.timeline.shift(slept);
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
            Due::Kill => self.kill(now),
        }
        if self.extension.is_idle() && now >= self.timeline.extend_at() {
            self.extend();
        }
    }

    fn extend(&mut self) {
        let Locks { ids, ttl, .. } = &self.locks;
        let mut taken_count = 0;
        for lock in ids {
            // What cannot work has an outcome, too.
            if self.redlock.submit(Request::Extend { lock: *lock, ttl: ttl.as_duration() }).is_ok() {
                taken_count += 1;
            }
        }
        self.extension.begin(ids.len());
        // There was no room for the others.
        for _ in taken_count..ids.len() {
            if let Some(all) = self.extension.gather(Err(ExtendError::Busy)) {
                self.handle_extension(all);
            }
        }
    }

    fn handle_extension(&mut self, result: Extended) {
        let now = Instant::now();
        match result {
            Ok(valid_until) => {
                self.timeline.renew(valid_until);
                self.failure = None;
                if self.verbose {
                    let left = valid_until.saturating_duration_since(now);
                    say(Message::Extended { lock: &self.locks.label, left });
                }
            }
            // A round whose answers came late is called expired, too, though the validity before it goes on.
            Err(error) if may_pass(&error) && self.timeline.is_valid(now) => {
                self.timeline.retry(now);
                let failure = self.described(&error);
                // Said once for each row of failures, and again if the lock is given up.
                if self.failure.is_none() {
                    say(Message::NotExtended { error: &failure });
                }
                self.failure = Some(failure);
            }
            Err(error @ ExtendError::HoldLimit { .. }) => {
                self.extension.give_up();
                self.failure = Some(self.described(&error));
            }
            Err(error) => {
                self.extension.give_up();
                self.lose(&self.described(&error));
            }
        }
    }

    /// The lock is lost, or about to be: ends the command.
    fn lose(&mut self, why: &str) {
        let now = Instant::now();
        if self.timeline.is_ending() {
            return;
        }
        if self.timeline.due(now) == Due::Kill {
            self.failure = Some(why.to_owned());
            return self.kill(now);
        }
        self.process.end();
        say(Message::Term { grace: self.timeline.grace(now), why: &why });
        self.timeline.asked(now);
    }

    /// The grace has passed; or the end of the validity came near while this program did not run.
    fn kill(&mut self, now: Instant) {
        self.process.kill();
        let (lock, left) = (&self.locks.label, self.timeline.remaining(now));
        if self.timeline.is_ending() {
            say(Message::KillAfterGrace { lock, left });
        } else {
            say(Message::KillAtOnce { lock, left, why: &self.why_not_extended() });
        }
        self.timeline.killed();
    }
    /// Why the last extension failed. None failed if this program, or the machine, did not run.
    fn why_not_extended(&self) -> String {
        let lock = &self.locks.label[..];
        self.failure.clone().unwrap_or_else(|| Message::NotExtendedInTime { lock }.to_string())
    }

    /// The error with the lock's name, and with lines for the masters.
    fn described(&self, error: &ExtendError) -> String {
        with_lock(&self.locks.label, format!("{error:#}"))
    }
}
