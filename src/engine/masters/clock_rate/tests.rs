use super::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const MINUTE: Duration = Duration::from_secs(60);
const EPOCH_US: u64 = 1_700_000_000_000_000;

/// A master's clock, read each minute over a network whose round trips are up to `jitter_us` long.
struct Series {
    meter: ClockRateMeter,
    start: Instant,
    here: Duration,
    there_us: f64,
    rng: StdRng,
    jitter_us: u64,
}

impl Series {
    fn new(jitter_us: u64) -> Self {
        let start = Instant::now();
        let rng = StdRng::seed_from_u64(jitter_us);
        Self { meter: ClockRateMeter::default(), start, here: Duration::ZERO, there_us: 0.0, rng, jitter_us }
    }

    /// So many minutes at this rate.
    fn run(&mut self, minutes: u32, ppm: f64) -> &mut Self {
        for _ in 0..minutes {
            let (out, back) = (self.delay(), self.delay());
            let asked = self.start + self.here;
            let read_us = self.there_us + f64::from(out);
            let answered = asked + Duration::from_micros(u64::from(out + back));
            #[expect(clippy::cast_possible_truncation, reason = "far below 63 bits")]
            self.meter.note(asked, answered, EPOCH_US.saturating_add_signed(read_us as i64));
            self.here += MINUTE;
            self.there_us += 60e6 * (1.0 + ppm / 1e6);
        }
        self
    }

    fn delay(&mut self) -> u32 {
        u32::try_from(self.rng.random_range(1..=self.jitter_us / 2)).expect("small")
    }

    /// The master's clock is set.
    fn step(&mut self, us: f64) -> &mut Self {
        self.there_us += us;
        self
    }

    /// This machine sleeps, and its clock stands still meanwhile.
    fn sleep(&mut self, time: Duration) -> &mut Self {
        self.there_us += time.as_secs_f64() * 1e6;
        self
    }

    #[track_caller]
    fn is_near(&self, ppm: i64, steps: u32) {
        let rate = self.meter.rate().expect("enough samples");
        assert!(rate.ppm.abs_diff(ppm) <= rate.error_ppm + 1, "{rate:?} is not {ppm} ppm");
        assert_eq!(rate.steps, steps, "{rate:?}");
    }
}

#[test]
fn a_rate_is_measured_through_noise() {
    for ppm in [-20_000, -1000, -50, 0, 30, 900, 1100, 20_000] {
        for jitter_us in [200, 2000, 100_000] {
            for minutes in [4, 30, 600] {
                Series::new(jitter_us).run(minutes, f64::from(ppm)).is_near(i64::from(ppm), 0);
            }
        }
    }
    let rate = Series::new(2000).run(240, 40.0).meter.rate().expect("hours");
    assert!(rate.error_ppm <= 2 && rate.span >= 200 * MINUTE, "{rate:?}");
}

#[test]
fn a_step_is_no_rate() {
    for us in [-3_600e6, -60e3, 60e3, 1e6, 3_600e6] {
        Series::new(2000).run(10, 20.0).step(us).run(10, 20.0).is_near(20, 1);
        // Also where a step is most of what is known.
        Series::new(2000).run(2, 20.0).step(us).run(3, 20.0).is_near(20, 1);
    }
    Series::new(2000).run(9, 0.0).step(1e6).run(9, 0.0).step(-2e6).run(9, 0.0).is_near(0, 2);
}

#[test]
fn a_rate_is_no_step() {
    // 300 ms each minute, as a step of that size would look for once.
    Series::new(2000).run(20, 5000.0).is_near(5000, 0);
}

#[test]
fn a_sleep_of_this_machine_is_a_step() {
    Series::new(2000).run(20, 10.0).sleep(Duration::from_secs(7200)).run(20, 10.0).is_near(10, 1);
}

#[test]
fn too_little_is_no_rate() {
    let mut series = Series::new(2000);
    assert_eq!(series.run(3, 0.0).meter.rate(), None, "one of two intervals may be a step");
    assert!(series.run(1, 0.0).meter.rate().is_some());
    series.meter.clear();
    assert_eq!(series.meter.rate(), None);
}

#[test]
fn samples_are_bounded_and_span_more_time() {
    let mut series = Series::new(2000);
    series.run(5000, 100.0).is_near(100, 0);
    assert!(series.meter.samples.len() <= SAMPLE_COUNT_MAX);
    assert!(series.meter.rate().expect("many").span > 4000 * MINUTE);
}

#[test]
fn a_tenth_of_the_assumption_is_suspicious() {
    let rate = |ppm, error_ppm| ClockRate { ppm, error_ppm, ..ClockRate::default() };
    for (rate, expected) in [
        (rate(999, 0), false),
        (rate(1000, 0), true),
        (rate(-1000, 0), true),
        (rate(1000, 1), false),
        (rate(5000, 4000), true),
    ] {
        assert_eq!(rate.is_suspicious(10_000), expected, "{rate:?}");
    }
}

/// Half of each round trip, and what rounding takes away, at both ends.
#[test]
fn the_error_is_that_of_the_round_trips_at_the_ends() {
    let start = Instant::now();
    let mut meter = ClockRateMeter::default();
    for second in 0..4 {
        let asked = start + Duration::from_secs(second);
        meter.note(asked, asked + Duration::from_millis(1), EPOCH_US + second * 1_000_000);
    }
    let rate = meter.rate().expect("enough samples");
    assert_eq!((rate.ppm, rate.error_ppm, rate.steps), (0, (501 + 501) / 3, 0));
}

/// Twice the errors of both ends, and 5 ms at least, are noise.
#[test]
fn a_change_beyond_the_noise_is_a_step() {
    for (round_trip_ms, change_us, steps) in [(10, 20_004, 0), (10, 20_005, 1), (0, 5000, 0), (0, 5001, 1)] {
        let start = Instant::now();
        let mut meter = ClockRateMeter::default();
        for second in 0..6 {
            let asked = start + Duration::from_secs(second);
            let set = if second < 3 { 0 } else { change_us };
            let answered = asked + Duration::from_millis(round_trip_ms);
            meter.note(asked, answered, EPOCH_US + second * 1_000_000 + set);
        }
        assert_eq!(meter.rate().expect("enough samples").steps, steps, "{change_us} µs");
    }
}

/// Each row of intervals has the errors of its own ends.
#[test]
fn the_error_behind_a_step_is_that_of_two_rows() {
    let start = Instant::now();
    let mut meter = ClockRateMeter::default();
    for second in 0..6 {
        let asked = start + Duration::from_secs(second);
        let set = if second < 3 { 0 } else { 60_000 };
        meter.note(asked, asked + Duration::from_millis(1), EPOCH_US + second * 1_000_000 + set);
    }
    let rate = meter.rate().expect("enough samples");
    assert_eq!((rate.ppm, rate.error_ppm, rate.steps), (0, 4 * 501 / 4, 1));
}

#[test]
fn the_first_sample_is_kept_when_others_go() {
    let mut series = Series::new(2);
    series.run(1000, 0.0);
    let first = series.meter.samples[0];
    assert_eq!(first.here_us, 1, "half of a round trip");
}
