//! The brake of a waiter that lost its place in the masters' queues, or got none: it polls for a while before it
//! parks again. The more overloaded the masters are, the less it sends.

use std::time::{Duration, Instant};

use rand::{Rng, RngExt};

use crate::limits;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Brake {
    /// Number of pulls, less the rounds that all masters answered since.
    level: u32,
    /// The waiter does not park before.
    until: Option<Instant>,
}

impl Brake {
    pub(crate) const OFF: Self = Self { level: 0, until: None };

    /// Whether the waiter may park.
    pub(crate) fn may_park(self, now: Instant) -> bool {
        self.until.is_none_or(|until| until <= now)
    }

    /// Returns how long the waiter asks nobody, because masters are overloaded.
    pub(crate) fn time_left(self, now: Instant) -> Duration {
        let until = self.until.filter(|_| self.level > 0);
        until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }

    /// Too few masters park the waiter: it polls for a while.
    pub(crate) fn poll(&mut self, now: Instant) {
        *self = Self { level: 0, until: Some(now + limits::PARK_PAUSE) };
    }

    /// Masters are overloaded: slows the waiter down.
    pub(crate) fn pull(&mut self, now: Instant, rng: &mut impl Rng) {
        let longest = (limits::PARK_PAUSE * (1 << self.level)).min(limits::PARK_PAUSE_MAX);
        if longest < limits::PARK_PAUSE_MAX {
            self.level += 1;
        }
        self.until = Some(now + rng.random_range(longest / 2..=longest));
    }

    /// Notes that all masters answered a round in time.
    pub(crate) const fn ease(&mut self) {
        self.level = self.level.saturating_sub(1);
    }
}
