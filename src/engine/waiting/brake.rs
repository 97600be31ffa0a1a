//! The brake of a waiter: the more overloaded the masters are, the less it sends.

use std::time::Duration;

use rand::{Rng, RngExt};

use crate::limits;

/// Slows a waiter down that lost its place to a full queue, or gave it up because masters were slow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Brake {
    /// Number of pulls, less the rounds that all masters answered since.
    level: u32,
}

impl Brake {
    pub(crate) const OFF: Self = Self { level: 0 };

    pub(crate) const fn is_on(self) -> bool {
        self.level > 0
    }

    /// Masters are overloaded: slows the waiter down. Returns the time after which the waiter asks again.
    pub(crate) fn pull(&mut self, rng: &mut impl Rng) -> Duration {
        let longest = (limits::PARK_PAUSE * (1 << self.level)).min(limits::PARK_PAUSE_MAX);
        if longest < limits::PARK_PAUSE_MAX {
            self.level += 1;
        }
        rng.random_range(longest / 2..=longest)
    }

    /// Notes that all masters answered a round in time.
    pub(crate) const fn ease(&mut self) {
        self.level = self.level.saturating_sub(1);
    }
}
