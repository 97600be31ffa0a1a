//! The least time of a run's locks (`--at-least`), which its command did not use up.
//!
//! A rest within the maximum TTL becomes the TTL of the keys, which outlives this program. Before that, the
//! program stays and goes on extending the locks. After it, the program stays for as long as a master that
//! has missed the rest may still be reached and block the name.

use std::time::{Duration, Instant};

use redlatch::engine::{OpId, Outcome, Request};
use redlatch::error::LeaveError;
use redlatch::{ExtendError, Left};

use super::session::{Session, TURN_LIMIT};
use crate::message::Message;
use crate::output::say;

/// Leaves locks whose command has ended.
pub(super) struct Leaving<'a> {
    pub(super) session: &'a mut Session,
    pub(super) locks: &'a [OpId],
    /// Whether a signal asked this program to end, which ends each wait.
    pub(super) is_signalled: bool,
}

impl Leaving<'_> {
    /// Gives the locks up, and leaves them until this time. Returns whether all of them were held so far.
    pub(super) fn leave_until(mut self, until: Instant) -> bool {
        let max_ttl = self.session.redlock.config().max_ttl();
        if !self.stay(until, max_ttl) {
            say(Message::LostInStay { lock: &self.session.label });
            self.session.release(self.locks);
            return false;
        }
        let rest = until.saturating_duration_since(Instant::now()).min(max_ttl);
        if rest.is_zero() {
            return self.session.release(self.locks);
        }
        for lock in self.locks {
            let submitted = self.session.redlock.submit(Request::LeaveFor { lock: *lock, rest });
            assert!(submitted.is_ok(), "this is always taken");
        }
        let left = self.session.ends(self.locks, |outcome| match outcome {
            Outcome::Leave(result) => Some(result),
            _ => None,
        });
        if let Some(latest) = left.iter().filter_map(|result| self.describe_rest(result)).max() {
            self.repeat_rest(latest);
        }
        left.iter().all(|result| matches!(result, Ok(_) | Err(LeaveError::Unconfirmed { .. })))
    }

    /// Stays until the time left fits into one TTL. A signal ends that, and shortens the time. False if a
    /// lock's validity has ended meanwhile.
    fn stay(&mut self, until: Instant, max_ttl: Duration) -> bool {
        let left = || until.saturating_duration_since(Instant::now());
        let Self { session, locks, is_signalled } = self;
        let all = left();
        if all > max_ttl && !*is_signalled {
            session.report(Message::Staying { lock: &session.label, left: all });
        }
        while left() > max_ttl {
            if *is_signalled {
                say(Message::LeastTimeCut { lock: &session.label, left: max_ttl });
                break;
            }
            let has_turned = session.redlock.turn(TURN_LIMIT).is_ok();
            let mut is_lost = false;
            while let Some((_, outcome)) = session.redlock.poll_outcome() {
                is_lost |= matches!(outcome, Outcome::Renewal(Err(ExtendError::Lost(_))));
            }
            let now = Instant::now();
            let is_valid = |lock: &OpId| session.redlock.valid_until(*lock).is_some_and(|end| now < end);
            if !has_turned || is_lost || !locks.iter().all(is_valid) {
                return false;
            }
            *is_signalled = session.signals.take().is_some();
        }
        true
    }

    /// Says how a lock was left. Returns its latest end if too few masters have the rest.
    fn describe_rest(&self, result: &Result<Left, LeaveError>) -> Option<Instant> {
        match result {
            Ok(_) => self.session.report(Message::Kept { lock: &self.session.label }),
            Err(error) => say(self.session.described(error)),
        }
        match result {
            Err(LeaveError::Unconfirmed { latest_end, .. }) => Some(*latest_end),
            _ => None,
        }
    }

    /// Too few masters have the rest: stays while one that is reached again gets it, or is released.
    fn repeat_rest(&mut self, latest: Instant) {
        let left = || latest.saturating_duration_since(Instant::now());
        let Self { session, is_signalled, .. } = self;
        say(Message::RestUnconfirmed { lock: &session.label, left: left() });
        while !*is_signalled
            && session.redlock.stats().claims > 0
            && !left().is_zero()
            && session.redlock.turn(TURN_LIMIT).is_ok()
        {
            *is_signalled = session.signals.take().is_some();
        }
    }
}
