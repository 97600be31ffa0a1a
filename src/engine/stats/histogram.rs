//! A distribution of times in a fixed array: 8 buckets per power of two, from 1 µs to 73 minutes.

use std::time::Duration;

/// Buckets per power of two.
const PER_OCTAVE: usize = 1 << PER_OCTAVE_BITS;
const PER_OCTAVE_BITS: u32 = 3;

/// Times below `2^FIRST_BITS` ns (1.024 µs) share the first bucket.
const FIRST_BITS: u32 = 10;

/// Times from `2^LAST_BITS` ns (4,398 s) share the last bucket.
const LAST_BITS: u32 = 42;

const BUCKET_COUNT: usize = (LAST_BITS - FIRST_BITS) as usize * PER_OCTAVE + 2;

/// Distribution of times, recorded in whole nanoseconds.
///
/// Has 8 buckets per power of two from 1.024 µs to 4,398 s, and one each for shorter and longer times: always
/// 2 KiB. [`Histogram::count`], [`Histogram::sum`] and [`Histogram::max`] are exact.
#[derive(Clone, PartialEq, Eq)]
pub struct Histogram {
    buckets: [u64; BUCKET_COUNT],
    sum_ns: u64,
    max_ns: u64,
}

/// One bucket of a [`Histogram`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Bucket {
    /// Shortest time in the bucket.
    pub from: Duration,
    /// Shortest time above the bucket; [`Duration::MAX`] for the last one.
    pub below: Duration,
    /// Number of recorded times.
    pub count: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl Histogram {
    /// Returns an empty histogram.
    #[must_use]
    pub const fn new() -> Self {
        Self { buckets: [0; BUCKET_COUNT], sum_ns: 0, max_ns: 0 }
    }

    /// Records a time. A time above `u64::MAX` nanoseconds (584 years) counts as this limit.
    #[inline]
    pub fn record(&mut self, time: Duration) {
        let ns = nanoseconds(time);
        self.buckets[place_of(ns)] += 1;
        self.sum_ns = self.sum_ns.saturating_add(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// Returns the number of recorded times.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Returns the sum of the recorded times.
    #[must_use]
    pub const fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_ns)
    }

    /// Returns the longest recorded time; zero if empty.
    #[must_use]
    pub const fn max(&self) -> Duration {
        Duration::from_nanos(self.max_ns)
    }

    /// Returns a time that at least the share `q` of the recorded times do not exceed: the median for 0.5,
    /// the 99th percentile for 0.99. `q` is clamped to 0..=1. `None` if empty.
    ///
    /// The result is never below the true quantile. It exceeds it by at most 12.5 %, or by 1.024 µs if that
    /// is more. For times above 4,398 s it is [`Histogram::max`].
    #[must_use]
    pub fn quantile(&self, q: f64) -> Option<Duration> {
        let count = self.count();
        let rank = rank(q, count)?;
        let mut seen = 0;
        let place = self.buckets.iter().position(|bucket| {
            seen += bucket;
            seen >= rank
        })?;
        // All times in the bucket are below its end.
        Some(Duration::from_nanos(longest_ns(place).min(self.max_ns)))
    }

    /// Returns all buckets, shortest times first, including empty ones.
    pub fn buckets(&self) -> impl Iterator<Item = Bucket> + '_ {
        self.buckets.iter().enumerate().map(|(place, count)| Bucket {
            from: Duration::from_nanos(if place == 0 { 0 } else { end_ns(place - 1) }),
            below: if place + 1 == BUCKET_COUNT {
                Duration::MAX
            } else {
                Duration::from_nanos(end_ns(place))
            },
            count: *count,
        })
    }

    /// Returns for each bucket whether it ends at a power of two. False for the last bucket.
    pub(crate) fn octave_ends() -> impl Iterator<Item = bool> {
        (0..BUCKET_COUNT).map(|place| place % PER_OCTAVE == 0 && place + 1 < BUCKET_COUNT)
    }

    /// Adds the times of another histogram.
    pub fn merge(&mut self, other: &Self) {
        for (bucket, its) in self.buckets.iter_mut().zip(&other.buckets) {
            *bucket = bucket.saturating_add(*its);
        }
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// Returns the times recorded since an earlier snapshot of the same histogram. The maximum is exact if
    /// the longest time of all was recorded since that snapshot. Otherwise it is at most the end of its
    /// bucket.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut since = Self::new();
        for (bucket, (now, before)) in since.buckets.iter_mut().zip(self.buckets.iter().zip(&earlier.buckets))
        {
            *bucket = now.saturating_sub(*before);
        }
        since.sum_ns = self.sum_ns.saturating_sub(earlier.sum_ns);
        let last = since.buckets.iter().rposition(|bucket| *bucket > 0);
        since.max_ns = last.map_or(0, |place| longest_ns(place).min(self.max_ns));
        since
    }
}

impl std::fmt::Debug for Histogram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut it = f.debug_struct("Histogram");
        it.field("count", &self.count()).field("sum", &self.sum()).field("max", &self.max());
        for (name, q) in [("p50", 0.5), ("p99", 0.99)] {
            it.field(name, &self.quantile(q).unwrap_or_default());
        }
        it.finish_non_exhaustive()
    }
}

/// Returns the rank of a quantile among `count` times, from 1; `None` without times.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a share of a count is within the count"
)]
fn rank(q: f64, count: u64) -> Option<u64> {
    // NaN counts as 0.
    let share = if q > 0.0 { q.min(1.0) } else { 0.0 };
    (count > 0).then(|| ((share * count as f64).ceil() as u64).clamp(1, count))
}

#[inline]
fn nanoseconds(time: Duration) -> u64 {
    time.as_secs().saturating_mul(1_000_000_000).saturating_add(u64::from(time.subsec_nanos()))
}

/// Returns the bucket of a time: its highest bit, and the three bits below.
#[inline]
fn place_of(ns: u64) -> usize {
    const LOWEST: u64 = (1 << FIRST_BITS) - 1;
    const HIGHEST: u64 = 1 << LAST_BITS;
    // Shorter times share the bucket before the first octave, longer times the bucket after the last.
    let ns = ns.clamp(LOWEST, HIGHEST);
    let octave = ns.ilog2();
    let eighths = (ns >> (octave - PER_OCTAVE_BITS)) as usize;
    eighths + (octave + 1 - FIRST_BITS) as usize * PER_OCTAVE - (2 * PER_OCTAVE - 1)
}

/// Returns the longest time in a bucket.
const fn longest_ns(place: usize) -> u64 {
    if place + 1 == BUCKET_COUNT { u64::MAX } else { end_ns(place) - 1 }
}

/// Returns the shortest time above a bucket, which must not be the last.
const fn end_ns(place: usize) -> u64 {
    let octave = place / PER_OCTAVE;
    let eighths = (PER_OCTAVE + place % PER_OCTAVE) as u64;
    eighths << (octave + (FIRST_BITS - PER_OCTAVE_BITS) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    /// Returns a random time. All magnitudes are equally likely.
    fn random_ns(rng: &mut StdRng) -> u64 {
        rng.random::<u64>() >> rng.random_range(0..64)
    }

    // I132
    #[test]
    fn each_time_is_within_its_buckets_bounds() {
        let mut rng = StdRng::seed_from_u64(1);
        let edges = (0..64).flat_map(|bit| [(1_u64 << bit) - 1, 1 << bit, (1 << bit) + 1]);
        let times = edges.chain((0..20_000).map(|_| random_ns(&mut rng))).chain([0, u64::MAX]);
        for ns in times.collect::<Vec<_>>() {
            let mut histogram = Histogram::new();
            histogram.record(Duration::from_nanos(ns));
            let hit: Vec<_> = histogram.buckets().filter(|bucket| bucket.count > 0).collect();
            let [Bucket { from, below, count: 1 }] = hit[..] else { panic!("{ns}: {hit:?}") };
            let time = Duration::from_nanos(ns);
            assert!(from <= time && time < below, "{time:?} is not from {from:?} below {below:?}");
            let is_inner = from > Duration::ZERO && below < Duration::MAX;
            assert!(!is_inner || below - from <= from / 8, "{from:?} to {below:?}");
        }
        let buckets: Vec<_> = Histogram::new().buckets().collect();
        assert!(buckets.windows(2).all(|pair| pair[0].below == pair[1].from), "no gap");
        assert_eq!(buckets.len(), BUCKET_COUNT);
    }

    // I132
    #[test]
    fn a_quantile_is_at_most_an_eighth_too_long() {
        let mut rng = StdRng::seed_from_u64(2);
        for round in 0..300 {
            let shift = rng.random_range(22..60);
            let count = rng.random_range(1..400);
            let mut times: Vec<u64> = (0..count).map(|_| rng.random::<u64>() >> shift).collect();
            let mut histogram = Histogram::new();
            times.iter().for_each(|ns| histogram.record(Duration::from_nanos(*ns)));
            times.sort_unstable();
            for q in [0.0, 0.01, 0.5, 0.9, 0.99, 0.999, 1.0, rng.random::<f64>()] {
                let rank = rank(q, count).expect("some");
                let exact = times[usize::try_from(rank - 1).expect("small")];
                let found = histogram.quantile(q).expect("some").as_nanos();
                let most = u128::from(exact + exact / 8).max(1024);
                assert!(
                    u128::from(exact) <= found && found <= most,
                    "round {round}, {q}: {found} of {exact}"
                );
            }
            let sum: u64 = times.iter().sum();
            let exact = (count, Duration::from_nanos(sum), Duration::from_nanos(times[times.len() - 1]));
            assert_eq!((histogram.count(), histogram.sum(), histogram.max()), exact);
        }
    }

    #[test]
    fn extreme_times_and_shares_overflow_nothing() {
        let mut histogram = Histogram::new();
        assert_eq!((histogram.quantile(0.5), histogram.max()), (None, Duration::ZERO));
        for _ in 0..3 {
            histogram.record(Duration::MAX);
        }
        histogram.record(Duration::ZERO);
        let longest = Duration::from_nanos(u64::MAX);
        assert_eq!((histogram.count(), histogram.sum(), histogram.max()), (4, longest, longest));
        assert_eq!(histogram.quantile(1.0), Some(longest));
        // From 1.024 µs to 4,398 s, a time has a bucket of its magnitude.
        let mut buckets = histogram.buckets();
        assert_eq!(buckets.next().expect("the first").below, Duration::from_nanos(1_024));
        assert_eq!(buckets.last().expect("the last").from, Duration::from_nanos(4_398_046_511_104));
        for (q, time) in
            [(f64::NAN, 1023), (f64::NEG_INFINITY, 1023), (-0.0, 1023), (f64::INFINITY, u64::MAX)]
        {
            assert_eq!(histogram.quantile(q), Some(Duration::from_nanos(time)), "{q}");
        }
        let other = histogram.clone();
        histogram.merge(&other);
        assert_eq!((histogram.count(), histogram.sum()), (8, longest));
    }

    #[test]
    fn the_debug_text_sums_up() {
        let mut histogram = Histogram::new();
        (0..2).for_each(|_| histogram.record(Duration::from_secs(8)));
        let text = "Histogram { count: 2, sum: 16s, max: 8s, p50: 8s, p99: 8s, .. }";
        assert_eq!(format!("{histogram:?}"), text);
    }

    #[test]
    fn a_difference_and_its_past_are_the_whole() {
        let mut rng = StdRng::seed_from_u64(3);
        let mut whole = Histogram::new();
        for _ in 0..50 {
            let before = whole.clone();
            let mut added = Histogram::new();
            for _ in 0..rng.random_range(0..20) {
                let time = Duration::from_nanos(random_ns(&mut rng) >> 12);
                whole.record(time);
                added.record(time);
            }
            let since = whole.since(&before);
            assert_eq!((since.buckets, since.sum_ns), (added.buckets, added.sum_ns));
            assert!(since.max() >= added.max() && since.max() <= whole.max());
            let mut merged = before;
            merged.merge(&added);
            assert_eq!(merged, whole);
        }
    }
}
