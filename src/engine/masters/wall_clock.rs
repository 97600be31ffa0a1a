//! The clock from which fencing tokens are drawn.

use std::time::{Duration, Instant};

use crate::lock::{FencingToken, whole_us};

/// The clock from which tokens are drawn: the caller's, with what the masters' answers say of it. It may be
/// as wrong as it likes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WallClock {
    read_at: Instant,
    /// Time since 1970 that was read then.
    wall: Duration,
    /// By how much the clocks of the masters are ahead of the caller's, in microseconds.
    skew_us: i64,
}

impl WallClock {
    pub(crate) const fn unset(now: Instant) -> Self {
        Self { read_at: now, wall: Duration::ZERO, skew_us: 0 }
    }

    pub(crate) const fn set(&mut self, now: Instant, wall: Duration) {
        if self.wall.is_zero() {
            // A skew learnt without a reading is no property of the clock.
            self.skew_us = 0;
        }
        (self.read_at, self.wall) = (now, wall);
    }

    /// The caller's clock at this moment, in microseconds since 1970.
    fn caller_us(&self, now: Instant) -> u64 {
        let passed = now.saturating_duration_since(self.read_at);
        FencingToken::near(whole_us(self.wall.saturating_add(passed))).as_u64()
    }

    /// The clocks of the masters at this moment, as far as they are known.
    pub(crate) fn masters_us(&self, now: Instant) -> u64 {
        self.caller_us(now).saturating_add_signed(self.skew_us)
    }

    /// The masters answered at this moment that it is this time.
    pub(crate) fn learn(&mut self, now: Instant, time_us: u64) {
        // Far below 64 bits both.
        self.skew_us = time_us.cast_signed().wrapping_sub(self.caller_us(now).cast_signed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_reading_voids_what_was_learnt_without_one() {
        let now = Instant::now();
        let mut clock = WallClock::unset(now);
        clock.learn(now, 5_000_000);
        assert_eq!(clock.masters_us(now), 5_000_000);
        clock.set(now, Duration::from_secs(7));
        assert_eq!(clock.masters_us(now + Duration::from_secs(1)), 8_000_000);
        clock.learn(now, 9_000_000);
        clock.set(now, Duration::from_secs(8));
        assert_eq!(clock.masters_us(now), 10_000_000);
    }
}
