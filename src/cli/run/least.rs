//! The time that is left of `--at-least` when the command has ended.
//!
//! While this rest exceeds the maximum TTL, the program stays and the client extends the locks. A shorter
//! rest becomes the TTL of the keys, which outlives the program. If too few masters confirm the rest, the
//! program stays while a master that missed it may still block the name: the client gives that master the
//! rest, or a release.

use std::convert::Infallible;
use std::time::Instant;

use redlatch::error::LeaveError;
use redlatch::{Guard, Left};

use super::session::{SLEEP_MAX, Session, all, await_unless, sleep};
use crate::message::Message;
use crate::output::say;

pub(super) struct Leaving<'a> {
    pub(super) session: &'a mut Session,
    /// Whether a signal asked this program to end. It ends each wait.
    pub(super) is_signalled: bool,
}

impl Leaving<'_> {
    /// Leaves the locks until this time. Returns whether all of them were held so far.
    pub(super) fn leave_until(mut self, guards: Vec<Guard>, until: Instant) -> bool {
        if !self.stay(&guards, until) {
            say(Message::LostInStay { lock: &self.session.label });
            self.session.release(guards);
            return false;
        }
        let max_ttl = self.session.client.config().max_ttl();
        let rest = until.saturating_duration_since(Instant::now()).min(max_ttl);
        if rest.is_zero() {
            return self.session.release(guards);
        }
        let mut leaving = all(guards.into_iter().map(|guard| guard.leave_for_async(rest)));
        let Ok(left) = await_unless(&mut leaving, |_| None::<Infallible>);
        if let Some(latest) = left.iter().filter_map(|result| self.describe_rest(result)).max() {
            self.repeat_rest(latest);
        }
        left.iter().all(|result| matches!(result, Ok(_) | Err(LeaveError::Unconfirmed { .. })))
    }

    /// Stays until the rest fits into one TTL. A signal ends the stay, and shortens the rest. Returns false
    /// if the validity of a lock has ended.
    fn stay(&mut self, guards: &[Guard], until: Instant) -> bool {
        let left = || until.saturating_duration_since(Instant::now());
        let Self { session, is_signalled } = self;
        let max_ttl = session.client.config().max_ttl();
        let rest = left();
        if rest > max_ttl && !*is_signalled {
            session.report(Message::Staying { lock: &session.label, left: rest });
        }
        while left() > max_ttl {
            if *is_signalled {
                say(Message::LeastTimeCut { lock: &session.label, left: max_ttl });
                break;
            }
            sleep(SLEEP_MAX);
            if !guards.iter().all(|guard| guard.is_valid()) {
                return false;
            }
            *is_signalled = session.signals.take().is_some();
        }
        true
    }

    /// Reports how a lock was left. If too few masters confirmed the remaining time, returns the
    /// lock's latest possible end.
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

    /// Stays while the client delivers an unconfirmed rest, or a release, to the remaining masters.
    fn repeat_rest(&mut self, latest: Instant) {
        let left = || latest.saturating_duration_since(Instant::now());
        let Self { session, is_signalled, .. } = self;
        say(Message::RestUnconfirmed { lock: &session.label, left: left() });
        while !*is_signalled && session.client.stats().claims > 0 && !left().is_zero() {
            sleep(SLEEP_MAX.min(left()));
            *is_signalled = session.signals.take().is_some();
        }
    }
}
