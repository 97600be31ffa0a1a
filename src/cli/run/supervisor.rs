//! What happens between the start of the command and its end: extensions, signals, and the end of a lock that is lost.
//!
//! ```text
//!   0          1/3                2/3                 validity's end
//!   ├───────────┼──────────────────┼─────────────────────┤
//!   granted     extend, again      TERM if no            KILL
//!               and again          extension succeeded
//! ```
//!
//! Each extension that succeeds starts the line anew. Extending goes on while the command is being ended: as long as it
//! runs, nobody else should work. A sleep of the machine, which the clock of this module does not count, moves what is
//! still to come nearer by as much. Of several locks all are extended together, and the one with the least validity, or the
//! worst answer, counts.

use std::time::{Duration, Instant};

use redlatch::engine::{OpId, Outcome, Request};
use redlatch::lock::Ttl;
use redlatch::{ExtendError, Redlock};
use rustix::process::Signal;

use super::Events;
use super::process::{Event, Process};
use crate::cli::options::{Exit, say};

/// How long the connections are left alone at most.
const HOUSEKEEPING_EVERY: Duration = Duration::from_millis(200);

/// How long a signal or the command's end may go unnoticed while an extension is under way.
const TURN_LIMIT: Duration = Duration::from_millis(5);

/// How often it is looked whether the group of a command that ended is gone.
const GROUP_PAUSE: Duration = Duration::from_millis(10);

/// Bounds of the pause before an extension is tried again; between them it is a twentieth of the TTL.
const RETRY_PAUSE_MIN: Duration = Duration::from_millis(1);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(1);

/// The times of the lock, or of several that are extended together.
#[derive(Debug)]
pub(super) struct Lease {
    locks: Vec<OpId>,
    ttl: Ttl,
    grace: Duration,
    valid_until: Instant,
    /// When to extend next.
    extend_at: Instant,
}

impl Lease {
    /// Locks that were granted with this TTL until then. Without a grace they get a third of the validity.
    pub(super) fn new(locks: Vec<OpId>, ttl: Ttl, valid_until: Instant, grace: Option<Duration>) -> Self {
        let grace = grace.unwrap_or(ttl.validity() / 3);
        let mut lease = Self { locks, ttl, grace, valid_until, extend_at: valid_until };
        lease.renew(valid_until);
        lease
    }

    fn renew(&mut self, valid_until: Instant) {
        self.valid_until = valid_until;
        self.extend_at = valid_until - self.ttl.validity() * 2 / 3;
    }

    fn retry_at(&self, now: Instant) -> Instant {
        now + (self.ttl.as_duration() / 20).clamp(RETRY_PAUSE_MIN, RETRY_PAUSE_MAX)
    }

    /// When the command must be told to end: the grace before the validity does, within bounds.
    fn end_at(&self) -> Instant {
        let validity = self.ttl.validity();
        self.valid_until - self.grace.clamp(validity / 10, validity / 3)
    }
}

/// How the command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct End {
    pub(super) code: u8,
    /// Whether the lock was lost before.
    pub(super) is_lost: bool,
}

/// How far the end of a command whose lock is lost has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    NotWanted,
    /// TERM was sent.
    Asked {
        kill_at: Instant,
    },
    Killed,
}

impl Ending {
    const fn kill_at(&mut self) -> Option<&mut Instant> {
        match self {
            Self::Asked { kill_at } => Some(kill_at),
            Self::NotWanted | Self::Killed => None,
        }
    }
}

/// Watches over one command and its lock.
pub(super) struct Supervisor<'a> {
    redlock: &'a mut Redlock,
    process: Process,
    lease: Lease,
    verbose: bool,
    ending: Ending,
    /// Answers that the extension under way lacks.
    missing_count: usize,
    /// What those that are there came to.
    extended: Result<Instant, ExtendError>,
    /// What the machine had slept when these times were right.
    suspended: Duration,
    /// Whether further extensions make sense.
    can_extend: bool,
    /// What the last extension failed of.
    failure: Option<String>,
}

impl<'a> Supervisor<'a> {
    pub(super) fn new(redlock: &'a mut Redlock, process: Process, mut lease: Lease, verbose: bool) -> Self {
        let suspended = redlock.suspended();
        if let Some(valid_until) = lease.locks.iter().filter_map(|lock| redlock.valid_until(*lock)).min() {
            lease.renew(valid_until); // a sleep may have been before this
        }
        let extended = Ok(lease.valid_until);
        Self {
            redlock,
            suspended,
            process,
            lease,
            verbose,
            ending: Ending::NotWanted,
            missing_count: 0,
            extended,
            can_extend: true,
            failure: None,
        }
    }

    /// Returns when the command has ended; if the lock was lost, when the command's group has.
    pub(super) fn supervise(&mut self, events: &Events) -> Result<End, Exit> {
        loop {
            match self.next_event(events) {
                Some(Event::Ended) => self.process.reap()?,
                Some(Event::Signal(signal)) => self.process.pass_on(signal),
                None => {}
            }
            let is_lost = self.ending != Ending::NotWanted;
            if let Some(code) = self.process.code()
                && (!is_lost || self.process.is_gone() || self.ending == Ending::Killed)
            {
                return Ok(End { code, is_lost });
            }
            self.follow_suspend();
            while let Some((lock, outcome)) = self.redlock.poll_outcome() {
                if let (true, Outcome::Extend(result)) = (self.lease.locks.contains(&lock), outcome) {
                    self.gather_extension(result);
                }
            }
            self.do_what_is_due(Instant::now());
        }
    }

    /// Waits for an event, at most until something is due; meanwhile lets the connections work.
    fn next_event(&mut self, events: &Events) -> Option<Event> {
        let now = Instant::now();
        let limit = self.next_due(now).saturating_duration_since(now);
        if self.missing_count > 0 {
            self.turn(limit.min(TURN_LIMIT));
            return events.try_recv().ok();
        }
        let limit = if self.process.code().is_some() { limit.min(GROUP_PAUSE) } else { limit };
        let event = events.recv_timeout(limit.min(HOUSEKEEPING_EVERY)).ok();
        self.turn(Duration::ZERO);
        event
    }

    fn next_due(&self, now: Instant) -> Instant {
        let ending = match self.ending {
            Ending::NotWanted => self.lease.end_at(),
            Ending::Asked { kill_at } => kill_at,
            Ending::Killed => now + HOUSEKEEPING_EVERY,
        };
        if self.can_extend && self.missing_count == 0 { ending.min(self.lease.extend_at) } else { ending }
    }

    fn turn(&mut self, limit: Duration) {
        if !self.can_extend {
            return;
        }
        if let Err(error) = self.redlock.turn(limit) {
            self.can_extend = false;
            self.lose(&format!("the lock is lost: the event loop stopped: {error}"));
        }
    }

    /// Moves all that is still to come nearer by what the machine has slept. Comes before outcomes, whose times know.
    fn follow_suspend(&mut self) {
        let slept = self.redlock.suspended() - self.suspended;
        if slept.is_zero() {
            return;
        }
        self.suspended += slept;
        let Self { lease, ending, .. } = self;
        for due in [&mut lease.valid_until, &mut lease.extend_at].into_iter().chain(ending.kill_at()) {
            *due = due.checked_sub(slept).unwrap_or_else(Instant::now);
        }
    }

    fn do_what_is_due(&mut self, now: Instant) {
        if self.ending == Ending::NotWanted && now >= self.lease.end_at() {
            let left = self.lease.valid_until.saturating_duration_since(now);
            let why = self.failure.as_deref().unwrap_or("it was not extended in time");
            self.lose(&format!("the lock could not be extended, and is valid for {left:.1?} more: {why}"));
        }
        if let Ending::Asked { kill_at } = self.ending
            && now >= kill_at
        {
            say("the grace has passed: KILL to the command");
            self.process.end(Signal::KILL);
            self.ending = Ending::Killed;
        }
        if self.can_extend && self.missing_count == 0 && now >= self.lease.extend_at {
            let ttl = self.lease.ttl;
            // What cannot work has an outcome, too.
            let is_taken = |lock: &&OpId| self.redlock.submit(Request::Extend { lock: **lock, ttl }).is_ok();
            self.missing_count = self.lease.locks.iter().filter(is_taken).count();
            self.extended = Ok(now + ttl.as_duration());
        }
    }

    fn gather_extension(&mut self, result: Result<Instant, ExtendError>) {
        self.missing_count -= 1;
        let before = std::mem::replace(&mut self.extended, Err(ExtendError::Busy));
        let worst = match (before, result) {
            (Ok(first), Ok(second)) => Ok(first.min(second)),
            (Err(error), Ok(_)) | (Ok(_), Err(error)) => Err(error),
            (Err(first), Err(second)) => Err(if may_pass(&first) { second } else { first }),
        };
        if self.missing_count > 0 {
            self.extended = worst;
        } else {
            self.handle_extension(worst);
        }
    }

    fn handle_extension(&mut self, result: Result<Instant, ExtendError>) {
        let now = Instant::now();
        match result {
            Ok(valid_until) => {
                self.lease.renew(valid_until);
                self.failure = None;
                if self.verbose {
                    let left = valid_until.saturating_duration_since(now);
                    say(&format!("extended, valid for {left:.2?}"));
                }
            }
            // A round whose answers came late is called expired, too, though the validity before it goes on.
            Err(error) if may_pass(&error) && now < self.lease.valid_until => {
                self.lease.extend_at = self.lease.retry_at(now);
                let failure = described(&error);
                // Said once for each row of failures, and again if the lock is given up.
                if self.failure.is_none() {
                    say(&format!("the lock was not extended, trying again: {failure}"));
                }
                self.failure = Some(failure);
            }
            Err(error @ ExtendError::HoldLimit { .. }) => {
                self.can_extend = false;
                self.failure = Some(error.to_string());
            }
            Err(error) => {
                self.can_extend = false;
                self.lose(&format!("the lock is lost: {}", described(&error)));
            }
        }
    }

    /// The lock is lost, or about to be: ends the command.
    fn lose(&mut self, why: &str) {
        if self.ending != Ending::NotWanted {
            return;
        }
        let grace = self.lease.grace;
        say(&format!("TERM to the command now, KILL in {grace:.1?}: {why}"));
        self.process.end(Signal::TERM);
        self.ending = Ending::Asked { kill_at: Instant::now() + grace };
    }
}

/// Whether another extension may succeed while the validity goes on.
const fn may_pass(error: &ExtendError) -> bool {
    matches!(error, ExtendError::NoQuorum(_) | ExtendError::Busy | ExtendError::Expired)
}

/// The error with a line for each master, if it tells of them.
fn described(error: &ExtendError) -> String {
    match error {
        ExtendError::Lost(report) | ExtendError::NoQuorum(report) => format!("{report:#}"),
        other => other.to_string(),
    }
}
