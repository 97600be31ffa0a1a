//! The clock of all deadlines: monotonic, and with the feature `suspend` it advances while the machine
//! sleeps.
//!
//! On Linux and Android, [`Instant`] stands still while the machine is suspended, but locks on the masters
//! expire. There the feature compares the kernel's two monotonic clocks:
//!
//! ```text
//!  CLOCK_BOOTTIME   ──────────────┬─────────────┬──────────►   advances during sleep
//!  CLOCK_MONOTONIC  ──────────────┤    sleep    ├──────────►   stands still: what Instant::now() reads
//!                                 └─────────────┘
//!                                    suspended: added to now(), from its first call afterwards
//! ```
//!
//! Otherwise [`now`] is [`Instant::now`]. [`now`] never goes back, and equals [`Instant::now`] until the
//! machine sleeps. The wall clock, [`wall`], is different: fencing tokens start from it, and no deadline may.

use std::time::{Duration, Instant, SystemTime};

/// The present.
#[inline]
pub(crate) fn now() -> Instant {
    let (awake, suspended) = shown();
    awake + suspended
}

/// Converts a time of [`now`] to [`Instant::now`]; correct until the machine sleeps again.
pub(crate) fn to_std(at: Instant) -> Instant {
    let (awake, suspended) = shown();
    // A time that an `Instant` cannot represent is in the past anyway.
    at.checked_sub(suspended).unwrap_or(awake)
}

/// The wall clock: time since 1970, or zero if earlier. It may jump and be wrong; it is only a starting point
/// for fencing tokens, which the masters' clocks decide.
pub(crate) fn wall() -> Duration {
    #[cfg(all(unix, feature = "simulator"))]
    if let Some((_, wall)) = SIMULATED.get() {
        return wall;
    }
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()
}

/// How long the machine was suspended since the first call.
pub(crate) fn suspended() -> Duration {
    shown().1
}

#[cfg(all(unix, feature = "simulator"))]
thread_local! {
    /// Both clocks of a simulated client, while this thread runs its calls.
    static SIMULATED: std::cell::Cell<Option<(Instant, Duration)>> = const { std::cell::Cell::new(None) };
}

/// Shows these times to this thread in place of the present: of [`now`], and of [`wall`]. `None` ends that.
#[cfg(all(unix, feature = "simulator"))]
pub(crate) fn simulate(times: Option<(Instant, Duration)>) {
    SIMULATED.set(times);
}

/// [`Instant::now`], and how long the machine was suspended since the first call; or the simulated present.
#[inline]
fn shown() -> (Instant, Duration) {
    #[cfg(all(unix, feature = "simulator"))]
    if let Some((now, _)) = SIMULATED.get() {
        return (now, Duration::ZERO);
    }
    read()
}

/// [`Instant::now`], and how long the machine was suspended since the first call.
#[cfg(not(all(feature = "suspend", any(target_os = "linux", target_os = "android"))))]
#[inline]
fn read() -> (Instant, Duration) {
    (Instant::now(), Duration::ZERO)
}

#[cfg(all(feature = "suspend", any(target_os = "linux", target_os = "android")))]
use suspend::read;

#[cfg(all(feature = "suspend", any(target_os = "linux", target_os = "android")))]
mod suspend {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::{Duration, Instant};

    use rustix::time::{ClockId, clock_gettime};

    /// A smaller difference comes from reading the clocks, not from sleep. The drift allowance covers a
    /// shorter sleep.
    const SUSPEND_MIN: Duration = Duration::from_millis(1);

    /// Number of first readings, of which the best is kept.
    const FIRST_READING_COUNT: usize = 4;

    /// [`Instant::now`], and how long the machine was suspended since the first call.
    pub(super) fn read() -> (Instant, Duration) {
        static FIRST: OnceLock<Reading> = OnceLock::new();
        static SUSPENDED: Suspended = Suspended::not();
        let first = FIRST.get_or_init(|| Reading::best_of(Reading::take));
        let reading = Reading::take();
        (reading.awake, SUSPENDED.note(reading.suspended_since(*first)))
    }

    /// Both clocks, first the clock that counts sleep. If the thread or machine pauses in between, a sleep
    /// looks shorter, and the next reading corrects it. The opposite order would invent a sleep.
    #[derive(Debug, Clone, Copy)]
    struct Reading {
        /// Time since boot.
        boot: Duration,
        awake: Instant,
    }

    impl Reading {
        fn take() -> Self {
            let boot = clock_gettime(ClockId::Boottime);
            let boot = Duration::try_from(boot).expect("time since the boot is not negative");
            Self { boot, awake: Instant::now() }
        }

        /// The reading with the shortest pause in between: here a pause would make every later sleep look
        /// longer.
        fn best_of(mut take: impl FnMut() -> Self) -> Self {
            let mut best = take();
            for _ in 1..FIRST_READING_COUNT {
                let reading = take();
                if !reading.suspended_since(best).is_zero() {
                    best = reading;
                }
            }
            best
        }

        /// Lead of the clock that counts sleep.
        fn suspended_since(self, earlier: Self) -> Duration {
            let passed = self.boot.saturating_sub(earlier.boot);
            passed.saturating_sub(self.awake.saturating_duration_since(earlier.awake))
        }
    }

    /// Longest suspended time noticed so far, in nanoseconds.
    struct Suspended(AtomicU64);

    impl Suspended {
        const fn not() -> Self {
            Self(AtomicU64::new(0))
        }

        /// The suspended time that counts, after this reading.
        fn note(&self, read: Duration) -> Duration {
            let noticed = Duration::from_nanos(self.0.load(Ordering::Relaxed));
            if read < noticed + SUSPEND_MIN {
                return noticed;
            }
            let nanos = u64::try_from(read.as_nanos()).unwrap_or(u64::MAX);
            Duration::from_nanos(self.0.fetch_max(nanos, Ordering::Relaxed).max(nanos))
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        const fn us(us: u64) -> Duration {
            Duration::from_micros(us)
        }

        fn reading(boot_us: u64, awake: Instant) -> Reading {
            Reading { boot: us(boot_us), awake }
        }

        // I111
        #[test]
        fn only_a_sleep_makes_the_clocks_differ() {
            let start = Instant::now();
            let first = reading(7_000, start);
            assert_eq!(first.suspended_since(first), Duration::ZERO);
            assert_eq!(reading(8_000, start + us(1_000)).suspended_since(first), Duration::ZERO);
            assert_eq!(reading(9_000, start + us(1_000)).suspended_since(first), us(1_000));
            // A pause between the clocks; and both clocks earlier, as another thread may have read them.
            assert_eq!(reading(8_000, start + us(5_000)).suspended_since(first), Duration::ZERO);
            assert_eq!(reading(6_000, start - us(1_000)).suspended_since(first), Duration::ZERO);
        }

        #[test]
        fn noticed_sleep_stays_below_a_millisecond_is_none() {
            let suspended = Suspended::not();
            let ms = Duration::from_millis;
            let rows = [(us(0), us(0)), (us(999), us(0)), (ms(1), ms(1)), (us(0), ms(1)), (us(1_999), ms(1))];
            for (read, counted) in rows {
                assert_eq!(suspended.note(read), counted, "{read:?}");
            }
            assert_eq!(suspended.note(Duration::from_secs(3_600)), Duration::from_secs(3_600));
            assert_eq!(suspended.note(ms(2)), Duration::from_secs(3_600));
            assert_eq!(suspended.note(Duration::MAX), Duration::from_nanos(u64::MAX));
        }

        #[test]
        fn the_first_reading_is_the_least_delayed() {
            let start = Instant::now();
            let mut readings = [(10, 90), (20, 21), (30, 35), (40, 41)].into_iter();
            let best = Reading::best_of(|| {
                let (boot_us, awake_us) = readings.next().expect("no more than four");
                reading(boot_us, start + us(awake_us))
            });
            assert_eq!(best.boot, us(20));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_converts_to_std_and_back() {
        let mut last = now();
        for _ in 0..10_000 {
            let next = now();
            assert!(next >= last);
            last = next;
        }
        assert!(to_std(last) <= Instant::now());
    }
}
