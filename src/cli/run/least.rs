//! The least time of a run's locks (`--at-least`), which its command did not use up.
//!
//! A rest within the maximum TTL becomes the TTL of the keys, which outlives this program. Before that, the
//! program stays and goes on extending the locks. After it, the program stays for as long as a master that
//! has missed the rest may still be reached and block the name.

use std::time::{Duration, Instant};

use redlatch::engine::{OpId, Outcome, Request};
use redlatch::error::LeaveError;
use redlatch::{ExtendError, Left};

use super::{Run, TURN_LIMIT};
use crate::message::{Message, with_lock};
use crate::output::say;

impl Run {
    /// Gives the locks up, and leaves them until this time. Returns whether all of them were held so far. A
    /// signal ends what this waits for.
    pub(super) fn leave_until(&mut self, locks: &[OpId], until: Instant, mut is_signalled: bool) -> bool {
        let max_ttl = self.redlock.config().max_ttl();
        if !self.stay(locks, until, max_ttl, &mut is_signalled) {
            say(Message::LostInStay { lock: &self.label });
            self.release(locks);
            return false;
        }
        let rest = until.saturating_duration_since(Instant::now()).min(max_ttl);
        if rest.is_zero() {
            return self.release(locks);
        }
        for lock in locks {
            let submitted = self.redlock.submit(Request::LeaveFor { lock: *lock, rest });
            assert!(submitted.is_ok(), "this is always taken");
        }
        let left = self.ends(locks, |outcome| match outcome {
            Outcome::Leave(result) => Some(result),
            _ => None,
        });
        let latest = left.iter().filter_map(|result| self.describe_rest(result)).max();
        if let Some(latest) = latest {
            self.repeat_rest(latest, is_signalled);
        }
        left.iter().all(|result| matches!(result, Ok(_) | Err(LeaveError::Unconfirmed { .. })))
    }

    /// Stays until the time left fits into one TTL. A signal ends that, and shortens the time. False if a
    /// lock's validity has ended meanwhile.
    fn stay(&mut self, locks: &[OpId], until: Instant, max_ttl: Duration, is_signalled: &mut bool) -> bool {
        let left = |now: Instant| until.saturating_duration_since(now);
        let all = left(Instant::now());
        if all > max_ttl && !*is_signalled {
            self.report(|run| Message::Staying { lock: &run.label, left: all }.to_string());
        }
        while left(Instant::now()) > max_ttl {
            if *is_signalled {
                say(Message::LeastTimeCut { lock: &self.label, left: max_ttl });
                break;
            }
            let has_turned = self.redlock.turn(TURN_LIMIT).is_ok();
            let outcomes: Vec<Outcome> =
                std::iter::from_fn(|| self.redlock.poll_outcome()).map(|it| it.1).collect();
            let is_lost = |outcome: &Outcome| matches!(outcome, Outcome::Renewal(Err(ExtendError::Lost(_))));
            let now = Instant::now();
            let is_valid = |lock: &OpId| self.redlock.valid_until(*lock).is_some_and(|end| now < end);
            if !has_turned || outcomes.iter().any(is_lost) || !locks.iter().all(is_valid) {
                return false;
            }
            *is_signalled = self.signals.take().is_some();
        }
        true
    }

    /// Says how a lock was left. Returns its latest end if too few masters have the rest.
    fn describe_rest(&self, result: &Result<Left, LeaveError>) -> Option<Instant> {
        let lock = &self.label;
        match result {
            Ok(_) => self.report(|_| Message::Kept { lock }.to_string()),
            Err(error) => say(with_lock(lock, format!("{error:#}"))),
        }
        match result {
            Err(LeaveError::Unconfirmed { latest_end, .. }) => Some(*latest_end),
            _ => None,
        }
    }

    /// Too few masters have the rest: stays while one that is reached again gets it, or is released.
    fn repeat_rest(&mut self, latest: Instant, mut is_signalled: bool) {
        let left = |now: Instant| latest.saturating_duration_since(now);
        say(Message::RestUnconfirmed { lock: &self.label, left: left(Instant::now()) });
        while !is_signalled
            && self.redlock.stats().claims > 0
            && !left(Instant::now()).is_zero()
            && self.redlock.turn(TURN_LIMIT).is_ok()
        {
            is_signalled = self.signals.take().is_some();
        }
    }
}
