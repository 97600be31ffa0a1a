//! The session of a run with its masters: the client, the signals that were caught, and how much is said.
//!
//! Owns what lasts from the first connection to the last answer. Releases the locks.

use std::fmt;
use std::time::{Duration, Instant};

use redlatch::engine::{Grant, HandleAct, OpId, Outcome, Request, Resource, Ttl, quorum};
use redlatch::status::MasterState;
use redlatch::{Config, HeldLocks, LockHandle, Options, Quarantine, Redlock, ReleaseError, Released};

use super::process::{self, Signals};
use crate::exit::{Exit, code};
use crate::message::{Message, label, with_lock};
use crate::options::{self, Contradictions, Enough};
use crate::output::say;

/// How long the exit waits for masters that are slow to confirm the release.
const CLOSE_LIMIT: Duration = Duration::from_millis(500);

/// How long one turn of the event loop lasts at most while a signal may come.
pub(super) const TURN_LIMIT: Duration = Duration::from_millis(50);

/// A lock that was acquired.
pub(super) type Held = (OpId, Grant);

/// The verbosity on stderr.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Voice {
    /// Errors.
    Quiet,
    /// Also why it waits, and who holds the lock.
    Usual,
    /// Also each event of the lock.
    Verbose,
}

pub(super) struct Session {
    pub(super) redlock: Redlock,
    /// The locks in messages.
    pub(super) label: String,
    pub(super) ttl: Ttl,
    pub(super) options: Options,
    pub(super) voice: Voice,
    pub(super) signals: Signals,
    contradictions: Contradictions,
}

impl Voice {
    pub(super) const fn new(is_quiet: bool, is_verbose: bool) -> Self {
        match (is_quiet, is_verbose) {
            (true, _) => Self::Quiet,
            (_, true) => Self::Verbose,
            _ => Self::Usual,
        }
    }
}

impl Session {
    /// Connects to the masters, and catches signals.
    pub(super) fn open(
        config: Config,
        ttl: Ttl,
        names: &[Resource<'_>],
        options: Options,
        voice: Voice,
    ) -> Result<Self, Exit> {
        let signals = Signals::catch()?;
        let started = Instant::now();
        let redlock = Redlock::open(config)?;
        signals.wake(&redlock);
        let label = label(names.iter().map(Resource::as_bytes));
        let contradictions = Contradictions::default();
        let mut session = Self { redlock, label, ttl, options, voice, signals, contradictions };
        session.report(session.describe_masters(started));
        session.look();
        Ok(session)
    }

    /// Reports on stderr each new contradiction between the settings and the fleet's record.
    pub(super) fn look(&mut self) {
        self.contradictions.look(&self.redlock);
    }

    /// Waits for the masters of a strict fleet: no master of a new one counts before somebody has stayed to
    /// watch it, whoever asks how often.
    pub(super) fn wait_if_strict(&mut self) -> Result<(), Exit> {
        match self.redlock.config().quarantine() {
            Quarantine::Strict => self.wait_for_masters(),
            _ => Ok(()),
        }
    }

    /// Waits for masters in quarantine if a lock needs their votes. A signal ends the wait.
    fn wait_for_masters(&mut self) -> Result<(), Exit> {
        let Self { redlock, signals, voice, label, .. } = self;
        let mut ended = None;
        let result = options::wait_for_masters(redlock, Enough::Quorum, *voice != Voice::Quiet, || {
            ended = signals.take().map(|signal| ended_by(signal, label));
            ended.is_some()
        });
        match (ended, result) {
            (Some(exit), _) => Err(exit),
            // Too few masters now may be enough when the wait for the lock is over; if not, its own error
            // says so.
            (None, Err(exit)) if exit.code != code::NO_QUORUM => Err(exit),
            (None, _) => Ok(()),
        }
    }

    /// A signal has come before the command started: the end of the program.
    pub(super) fn interrupted(&self) -> Option<Exit> {
        self.signals.take().map(|signal| ended_by(signal, &self.label))
    }

    /// Releases the locks. False if the answers prove that one no longer was held.
    pub(super) fn release(&mut self, locks: &[OpId]) -> bool {
        for lock in locks {
            let submitted = self.redlock.submit(Request::Release { lock: *lock, awaited: true });
            assert!(submitted.is_ok(), "a release is always taken");
        }
        let released = self.ends(locks, |outcome| match outcome {
            Outcome::Release(result) => Some(result),
            _ => None,
        });
        // Each is described, also behind one that is lost.
        released.into_iter().filter(|result| !self.describe_release(result)).count() == 0
    }

    /// Releases a lock that was left under this handle.
    pub(super) fn release_by(&mut self, handle: &LockHandle) {
        let act = HandleAct::Release { awaited: true };
        if let Ok(release) = self.redlock.submit(Request::ByHandle { handle, act }) {
            self.ends(&[release], |outcome| matches!(outcome, Outcome::Release(_)).then_some(()));
        }
    }

    /// Waits for the outcomes by which these locks end. None if the event loop has ended, which it says.
    pub(super) fn ends<T>(&mut self, locks: &[OpId], end_of: impl Fn(Outcome) -> Option<T>) -> Vec<T> {
        let mut ends = Vec::with_capacity(locks.len());
        loop {
            while let Some((id, outcome)) = self.redlock.poll_outcome() {
                ends.extend(end_of(outcome).filter(|_| locks.contains(&id)));
            }
            if ends.len() == locks.len() {
                return ends;
            }
            if let Err(error) = self.redlock.turn(TURN_LIMIT) {
                say(Message::ReleaseUnsent { lock: &self.label, error: &error });
                return Vec::new();
            }
        }
    }

    /// Says how a lock was released. Returns whether it was held so far, as far as is known.
    fn describe_release(&self, result: &Result<Released, ReleaseError>) -> bool {
        let (count, lock) = (self.redlock.config().master_count(), &self.label);
        match result {
            // So many masters no longer had the key that the others cannot be a quorum.
            &Ok(Released { absent, .. }) if count - absent < quorum(count) => {
                say(Message::GoneBefore { lock, absent, count });
                return false;
            }
            &Ok(Released { deleted, .. }) => self.report(Message::Released { lock, deleted, count }),
            Err(error) => say(self.described(error)),
        }
        true
    }

    /// Lets what is under way come to its end, for a bounded time.
    pub(super) fn close(mut self) {
        self.look();
        let is_verbose = self.voice == Voice::Verbose;
        let left = self.redlock.drain(CLOSE_LIMIT, HeldLocks::Leave);
        if left > 0 && is_verbose {
            say(Message::ReleasesUnconfirmed { left });
        }
    }

    /// Says this with `--verbose`.
    pub(super) fn report(&self, what: impl fmt::Display) {
        if self.voice == Voice::Verbose {
            say(what);
        }
    }

    /// The error with the lock's name, and with lines for the masters.
    pub(super) fn described(&self, error: &impl fmt::Display) -> String {
        with_lock(&self.label, format!("{error:#}"))
    }

    pub(super) fn describe_masters(&self, started: Instant) -> String {
        let took = started.elapsed();
        let masters = self.redlock.masters();
        let up = |state: &MasterState| !matches!(state, MasterState::Down(_) | MasterState::Connecting);
        let ready = masters.iter().filter(|master| up(&master.state)).count();
        let count = masters.len();
        let mut lines = vec![Message::Connected { ready, count, needed: quorum(count), took }.to_string()];
        lines.extend(options::doubts(&masters));
        lines.join("\n  ")
    }
}

fn ended_by(signal: i32, lock: &str) -> Exit {
    let name = process::name_of(signal);
    Exit::new(code::of_signal(signal), Message::EndedBySignal { name, lock })
}
