//! The brake of a waiter: the more masters have to do, the less it sends.

use std::time::Duration;

use rand::{Rng, RngExt};

use crate::limits;

/// Slows down a waiter whose place was refused, as a queue was full, or given up, as masters were slow: the
/// slower they are, the less it sends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Brake {
    /// How often it was pulled, less the rounds that were answered since.
    level: u32,
}

impl Brake {
    pub(crate) const OFF: Self = Self { level: 0 };

    pub(crate) const fn is_on(self) -> bool {
        self.level > 0
    }

    /// Masters have too much to do. Returns the time after which the waiter asks again.
    pub(crate) fn pull(&mut self, rng: &mut impl Rng) -> Duration {
        let longest = (limits::PARK_PAUSE * (1 << self.level)).min(limits::PARK_PAUSE_MAX);
        if longest < limits::PARK_PAUSE_MAX {
            self.level += 1;
        }
        rng.random_range(longest / 2..=longest)
    }

    /// All masters answered a round in time.
    pub(crate) const fn ease(&mut self) {
        self.level = self.level.saturating_sub(1);
    }
}
