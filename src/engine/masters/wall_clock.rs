//! The clock from which fencing tokens are drawn.

use std::time::{Duration, Instant};

use crate::lock::{FencingToken, whole_us};

/// The caller's clock, corrected by the masters' answers. It need not be right: fencing does not rely on it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WallClock {
    read_at: Instant,
    /// Time since 1970 at `read_at`.
    wall: Duration,
    /// Lead of the masters' clocks over the caller's, in microseconds.
    skew_us: i64,
}

impl WallClock {
    pub(crate) const fn unset(now: Instant) -> Self {
        Self { read_at: now, wall: Duration::ZERO, skew_us: 0 }
    }

    pub(crate) const fn set(&mut self, now: Instant, wall: Duration) {
        if self.wall.is_zero() {
            // Without a reading, the learnt skew says nothing about the clock.
            self.skew_us = 0;
        }
        (self.read_at, self.wall) = (now, wall);
    }

    /// The caller's clock at this moment, in microseconds since 1970.
    fn caller_us(&self, now: Instant) -> u64 {
        let passed = now.saturating_duration_since(self.read_at);
        FencingToken::near(whole_us(self.wall.saturating_add(passed))).as_u64()
    }

    /// The masters' clocks at this moment, as far as known, in microseconds since 1970.
    pub(crate) fn masters_us(&self, now: Instant) -> u64 {
        self.caller_us(now).saturating_add_signed(self.skew_us)
    }

    /// Learns the masters' time `time_us` at the moment `now`.
    pub(crate) fn learn(&mut self, now: Instant, time_us: u64) {
        // Both are far below 64 bits.
        self.skew_us = time_us.cast_signed().wrapping_sub(self.caller_us(now).cast_signed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_clock_reading_discards_earlier_estimates() {
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
