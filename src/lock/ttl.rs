//! TTL of a lock on the masters, and the part of it that its holder may rely on.

use std::time::Duration;

use super::input_error::InputError;
use crate::limits;

/// Allowance for clock differences while a lock is held: a share of the TTL in parts per million, plus 2 ms.
///
/// The 2 ms cover the masters' expiry granularity of 1 ms and rounding on both sides. The assumption of
/// bounded clock drift comes from Gray and Cheriton, "Leases: An Efficient Fault-Tolerant Mechanism for
/// Distributed File Cache Consistency" (1989).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drift {
    ppm: u32,
}

impl Drift {
    const FIXED: Duration = Duration::from_millis(2);

    /// The customary 1 % of the TTL.
    pub const DEFAULT: Self = Self { ppm: 10_000 };

    /// Returns a drift of `ppm` parts per million of the TTL, plus the fixed 2 ms.
    ///
    /// # Errors
    /// [`InputError::DriftTooLarge`] above [`limits::DRIFT_PPM_MAX`].
    pub const fn from_ppm(ppm: u32) -> Result<Self, InputError> {
        if ppm > limits::DRIFT_PPM_MAX { Err(InputError::DriftTooLarge { ppm }) } else { Ok(Self { ppm }) }
    }

    /// The share of the TTL, in parts per million.
    pub(crate) const fn ppm(self) -> u32 {
        self.ppm
    }

    /// Returns the allowance for a TTL, rounded up to the nanosecond.
    #[must_use]
    pub fn of(&self, ttl: Duration) -> Duration {
        let share = (ttl.as_nanos() * u128::from(self.ppm)).div_ceil(1_000_000);
        // A TTL is at most a week, so its share fits 64 bits. A larger argument gets the largest allowance.
        Duration::from_nanos(u64::try_from(share).unwrap_or(u64::MAX)).saturating_add(Self::FIXED)
    }
}

/// Time to live of a lock on the masters: whole milliseconds, at least 1 ms more than the drift allowance.
///
/// Stores its validity (TTL minus drift), so the deadline of an attempt is one addition.
#[derive(Debug, Clone, Copy)]
pub struct Ttl {
    ms: u64,
    validity: Duration,
    drift: Drift,
}

impl PartialEq for Ttl {
    /// The validity follows from the two.
    fn eq(&self, other: &Self) -> bool {
        self.ms == other.ms && self.drift == other.drift
    }
}

impl Eq for Ttl {}

impl Ttl {
    /// Checks a TTL against the drift and the agreed maximum. Truncates to whole milliseconds.
    ///
    /// # Errors
    /// [`InputError::TtlTooShort`] if less than 1 ms would remain after the drift. [`InputError::TtlTooLong`]
    /// above `max_ttl`: a restarted master votes again after `max_ttl`, so no lock may live longer.
    pub fn new(ttl: Duration, drift: Drift, max_ttl: Duration) -> Result<Self, InputError> {
        if ttl > max_ttl {
            return Err(InputError::TtlTooLong { ttl, max_ttl });
        }
        let ms = u64::try_from(ttl.as_millis()).map_err(|_| InputError::TtlTooLong { ttl, max_ttl })?;
        let whole = Duration::from_millis(ms);
        match whole.checked_sub(drift.of(whole)) {
            Some(validity) if validity >= Duration::from_millis(1) => Ok(Self { ms, validity, drift }),
            _ => Err(InputError::TtlTooShort { ttl, drift: drift.of(whole) }),
        }
    }

    /// Returns the TTL in milliseconds, as sent to the masters.
    #[must_use]
    pub const fn as_millis(&self) -> u64 {
        self.ms
    }

    /// Returns the TTL.
    #[must_use]
    pub const fn as_duration(&self) -> Duration {
        Duration::from_millis(self.ms)
    }

    /// Returns TTL minus drift: how long a lock is valid after its first byte was queued.
    #[must_use]
    pub const fn validity(&self) -> Duration {
        self.validity
    }
}

/// The time in whole milliseconds, rounded down.
#[inline]
pub(crate) fn whole_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The time in whole microseconds, rounded down.
#[inline]
pub(crate) fn whole_us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ttls_reach_from_the_drift_to_the_maximum() {
        let max = Duration::from_secs(30);
        let ttl = |ms| Ttl::new(Duration::from_millis(ms), Drift::DEFAULT, max);
        for ms in 0..=3 {
            assert!(matches!(ttl(ms), Err(InputError::TtlTooShort { .. })), "{ms} ms");
        }
        assert_eq!(ttl(4).map(|ttl| ttl.validity()), Ok(Duration::from_micros(1960)));
        let least = Ttl::new(Duration::from_millis(3), Drift::from_ppm(0).expect("none is allowed"), max);
        assert_eq!(least.map(|ttl| ttl.validity()), Ok(Duration::from_millis(1)));
        assert_eq!(ttl(10_000).map(|ttl| ttl.validity()), Ok(Duration::from_millis(9898)));
        assert!(ttl(30_000).is_ok());
        assert!(matches!(ttl(30_001), Err(InputError::TtlTooLong { .. })));
        assert!(matches!(Ttl::new(Duration::MAX, Drift::DEFAULT, max), Err(InputError::TtlTooLong { .. })));
        let huge = Duration::from_millis(i64::MAX.unsigned_abs());
        assert!(matches!(Ttl::new(huge, Drift::DEFAULT, max), Err(InputError::TtlTooLong { .. })));
    }

    #[test]
    fn ttl_cuts_off_fractions_of_a_millisecond() {
        let ttl = Ttl::new(Duration::from_micros(99_999), Drift::DEFAULT, Duration::from_secs(1));
        assert_eq!(ttl.map(|ttl| ttl.as_millis()), Ok(99));
    }

    #[test]
    fn drift_never_wraps() {
        let drift = Drift::from_ppm(limits::DRIFT_PPM_MAX).expect("the maximum is allowed");
        assert!(drift.of(Duration::MAX) > Duration::from_secs(1_000_000));
        assert!(Drift::from_ppm(limits::DRIFT_PPM_MAX + 1).is_err());
    }
}
