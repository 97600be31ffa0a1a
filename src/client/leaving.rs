//! Leaving the lock of a [`Guard`] on the masters for a time.

use std::time::Duration;

use super::completions::Question;
use super::guard::Guard;
use super::handle::Client;
use super::pending::{Ask, Pending, future};
use super::shared::{Core, Stopped};
use crate::clock;
use crate::engine::{Left, OpId, Outcome, Request};
use crate::error::LeaveError;

impl Guard {
    /// Gives the lock up, and leaves it on the masters for the rest of a time, counted from now: for jobs
    /// that run once per interval. Sets the TTL of its keys to the rest, which is at most the configured
    /// `max_ttl`, and waits until each master that was asked has answered, for the answer limit at most.
    /// Nobody else gets the lock before [`Left::held_until`], also if this process ends. With a rest of zero
    /// the lock is released.
    ///
    /// A master that misses it gets it again after a reconnect, and a release once the time is over, while
    /// the client lives.
    ///
    /// # Errors
    /// [`LeaveError`]. After [`LeaveError::Unconfirmed`] the lock is left, and masters are asked again in the
    /// background. After [`LeaveError::Stopped`] it ends with its TTL. After any other error it is lost, or
    /// released as if dropped.
    pub fn leave_for(self, rest: Duration) -> Result<Left, LeaveError> {
        Pending::new(Leaving { guard: self, rest }).wait()
    }

    /// Returns the future of [`Guard::leave_for`], for tasks. The rest counts from its first poll.
    ///
    /// Dropping it before its first poll releases the lock. It is cancel-safe afterwards: dropping it leaves
    /// the masters' answers to the background.
    pub fn leave_for_async(
        self,
        rest: Duration,
    ) -> impl Future<Output = Result<Left, LeaveError>> + Send + use<> {
        LeaveFor(Pending::new(Leaving { guard: self, rest }))
    }
}

/// Lock that is being left for a time: [`Guard::leave_for_async`].
#[must_use = "the lock is released if this is not awaited"]
#[derive(Debug)]
struct LeaveFor(Pending<Leaving>);

future!(LeaveFor, Result<Left, LeaveError>);

/// What [`LeaveFor`] asks.
#[derive(Debug)]
struct Leaving {
    guard: Guard,
    rest: Duration,
}

impl Ask for Leaving {
    const QUESTION: Question = Question::Leave;
    type Answer = Left;
    type Error = LeaveError;

    fn client(&self) -> &Client {
        self.guard.client()
    }

    fn submit(&mut self, core: &mut Core) -> Result<OpId, LeaveError> {
        let lock = self.guard.lock();
        if !core.has(lock) {
            self.guard.disarm(core);
            return Err(LeaveError::NotHeld);
        }
        let submitted = core.submit(Request::LeaveFor { lock, rest: self.rest });
        // After an error the guard still has it, and its drop releases it.
        if core.driver.engine.valid_until(lock).is_none() {
            self.guard.disarm(core);
        }
        submitted.map_err(|_| LeaveError::NotHeld)
    }

    fn answer(&mut self, _: OpId, outcome: Outcome) -> Result<Left, LeaveError> {
        match outcome {
            Outcome::Leave(result) => Left::by_clock(result, clock::to_std),
            _ => unreachable!("a lock that is left is answered by its own outcome"),
        }
    }

    fn stopped(why: Stopped) -> LeaveError {
        LeaveError::Stopped(why)
    }
}
