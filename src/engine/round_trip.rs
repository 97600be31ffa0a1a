//! How long a master takes to answer: an estimate by the rule of TCP's retransmission timer (RFC 6298), from
//! the handshake and from the acquisitions that are timed.
//!
//! Each reply belongs to its own request, so one that comes after its attempt is over counts, too. So the
//! estimate learns of a slower network without the doubling that TCP needs.

use std::time::Duration;

use crate::limits;
use crate::mutants::mutant;

/// A smoothed mean and a smoothed deviation; zero before the first sample.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RoundTrip {
    mean: Duration,
    deviation: Duration,
}

impl RoundTrip {
    pub(super) fn note(&mut self, sample: Duration) {
        if mutant!(RoundTripUnheard) {
            return;
        }
        if mutant!(SlownessRemembered) && sample < self.mean {
            return;
        }
        if self.mean.is_zero() {
            (self.mean, self.deviation) = (sample, sample / 2);
            return;
        }
        self.deviation = self.deviation / 4 * 3 + self.mean.abs_diff(sample) / 4;
        self.mean = self.mean / 8 * 7 + sample / 8;
    }

    /// Time within which it answers, if nothing is wrong.
    pub(super) fn limit(self) -> Duration {
        self.mean + self.deviation * 4
    }
}

/// A quorum answers within the limit of the slowest of its masters. Zero for a time that is shorter than any
/// answer limit.
pub(super) fn limit_of_quorum(limits: impl Iterator<Item = Duration>, quorum: usize) -> Duration {
    let mut by_master = [Duration::ZERO; limits::MASTER_COUNT_MAX];
    let mut count = 0;
    for (place, limit) in by_master.iter_mut().zip(limits) {
        *place = limit;
        count += 1;
    }
    by_master[..count].sort_unstable();
    let limit = by_master[..count.min(quorum)].last().copied().unwrap_or_default();
    if limit > limits::ANSWER_LIMIT_MIN { limit } else { Duration::ZERO }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_master_of_the_quorum_counts() {
        let limit = |ms: &[u64], quorum| {
            limit_of_quorum(ms.iter().map(|ms| Duration::from_millis(*ms)), quorum).as_millis()
        };
        assert_eq!(limit(&[50, 8, 7, 50, 9], 3), 9);
        assert_eq!(limit(&[50, 8], 3), 50, "all that there are");
        assert_eq!([limit(&[], 3), limit(&[5, 5, 5], 2)], [0, 0], "no answer limit is so short");
    }

    #[test]
    fn the_limit_follows_samples_and_forgets_a_stall() {
        let ms = Duration::from_millis;
        let mut round_trip = RoundTrip::default();
        assert_eq!(round_trip.limit(), Duration::ZERO);
        round_trip.note(ms(80));
        assert_eq!(round_trip.limit(), ms(240));
        for _ in 0..50 {
            round_trip.note(ms(80));
        }
        let steady = round_trip.limit();
        assert!((ms(80)..ms(81)).contains(&steady), "{steady:?}");
        round_trip.note(ms(380));
        assert!(round_trip.limit() > ms(380), "another stall like this fits");
        for _ in 0..50 {
            round_trip.note(ms(80));
        }
        assert!(round_trip.limit() < ms(85), "{:?}", round_trip.limit());
    }
}
