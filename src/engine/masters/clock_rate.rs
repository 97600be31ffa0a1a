//! The rate of a master's clock, by its time at some moments of this client's clock.
//!
//! Exclusion assumes that the rates of all clocks differ by less than the drift allowance. A master reads its
//! time between a question and its answer, so each sample has an error of half a round trip:
//!
//! ```text
//!  offset │                     ┌─ x ── x ──    x: master's time minus this client's, ± half a round trip
//!         │          x ── x ─ x ┘               slope of most intervals: the rate
//!         │  x ── x ┘  step                     an interval far off that slope: a step, or a sleep
//!         └──────────────────────────────► this client's time
//! ```
//!
//! A step changes one interval, a rate all of them. So the median of the intervals' slopes is near the rate,
//! and an interval that differs from it by more than the errors explain is a step. The rate is the change of
//! the offset in all other intervals, over their time. A slow correction of a clock is a rate while it lasts.

use std::time::{Duration, Instant};

use crate::mutants::mutant;

/// Samples that are kept. When they are full, every second one goes, and later ones are taken at their
/// distance.
const SAMPLE_COUNT_MAX: usize = 64;
/// Samples that are left then.
const KEPT_COUNT: i64 = 32;

/// Fewest intervals from which a rate is reported: of three, one may be a step.
const INTERVAL_COUNT_MIN: usize = 3;

/// A difference up to this is noise of the machine and never a step.
const STEP_MIN_US: i64 = 5_000;

/// Rate of one clock against another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ClockRate {
    /// Millionths by which the master's clock is faster than this client's; negative if it is slower.
    pub ppm: i64,
    /// Largest error of `ppm`.
    pub error_ppm: u64,
    /// Time over which it was measured, without steps.
    pub span: Duration,
    /// Steps of either clock in that time; sleeps of this client's machine, too.
    pub steps: u32,
}

impl ClockRate {
    /// Returns whether it surely is at least a tenth of the allowed difference, in millionths.
    #[must_use]
    pub const fn is_suspicious(&self, allowed_ppm: u32) -> bool {
        self.ppm.unsigned_abs().saturating_sub(self.error_ppm) >= allowed_ppm as u64 / 10
    }
}

/// Samples of one process of a master.
#[derive(Debug, Default)]
pub(crate) struct ClockRateMeter {
    samples: Vec<Sample>,
    /// Least distance of a sample from the one before, in microseconds.
    distance_us: i64,
    /// This client's and the master's time at the first sample.
    started: Option<(Instant, u64)>,
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    /// Time of this client since the first sample, in microseconds: the middle of question and answer.
    here_us: i64,
    /// The master's time ahead of that.
    offset_us: i64,
    /// Largest error of the offset.
    error_us: i64,
}

/// The change between two samples.
struct Interval {
    took_us: i64,
    change_us: i64,
    error_us: i64,
}

impl Interval {
    fn ppm(&self) -> i64 {
        self.change_us.saturating_mul(1_000_000) / self.took_us.max(1)
    }

    /// Whether the change is far from that of a clock with this rate.
    fn is_step(&self, ppm: i64) -> bool {
        if mutant!(StepTakenForRate) {
            return false;
        }
        let expected_us = (self.took_us / 1000).saturating_mul(ppm) / 1000;
        self.change_us.saturating_sub(expected_us).saturating_abs()
            > self.error_us.saturating_mul(2).max(STEP_MIN_US)
    }
}

impl ClockRateMeter {
    /// Takes the master's time, in microseconds since 1970, read between two moments of this client.
    pub(crate) fn note(&mut self, asked: Instant, answered: Instant, clock_us: u64) {
        let (started, started_us) = *self.started.get_or_insert((asked, clock_us));
        let took_us = signed_us(answered.saturating_duration_since(asked));
        let here_us = signed_us(asked.saturating_duration_since(started)) + took_us / 2;
        if self.samples.last().is_some_and(|last| here_us - last.here_us < self.distance_us) {
            return;
        }
        let there_us = clock_us.cast_signed().wrapping_sub(started_us.cast_signed());
        if self.samples.len() == SAMPLE_COUNT_MAX {
            let mut is_kept = false;
            self.samples.retain(|_| {
                is_kept = !is_kept;
                is_kept
            });
            // A little less than their mean distance, as samples come when somebody uses the client.
            self.distance_us = here_us / KEPT_COUNT / 10 * 9;
        }
        self.samples.push(Sample {
            here_us,
            offset_us: there_us.saturating_sub(here_us),
            error_us: took_us / 2 + 1,
        });
    }

    /// Forgets what another process reported.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// The rate, once there are enough samples to distinguish it from a step.
    pub(crate) fn rate(&self) -> Option<ClockRate> {
        let intervals: Vec<_> = self.samples.windows(2).map(|pair| interval(pair[0], pair[1])).collect();
        if intervals.len() < INTERVAL_COUNT_MIN {
            return None;
        }
        let mut slopes: Vec<i64> = intervals.iter().map(Interval::ppm).collect();
        slopes.sort_unstable();
        let median = slopes[slopes.len() / 2];
        let mut rate = ClockRate::default();
        let (mut took_us, mut change_us) = (0_i64, 0_i64);
        // Errors within a row of intervals cancel, but for those of its ends.
        let (mut error_us, mut row_end) = (0_i64, None);
        for (interval, samples) in intervals.iter().zip(self.samples.windows(2)) {
            if interval.is_step(median) {
                rate.steps += 1;
                error_us += row_end.take().unwrap_or_default();
                continue;
            }
            took_us += interval.took_us;
            change_us = change_us.saturating_add(interval.change_us);
            error_us += if row_end.is_none() { samples[0].error_us } else { 0 };
            row_end = Some(samples[1].error_us);
        }
        error_us += row_end.unwrap_or_default();
        let took_us = Some(took_us).filter(|took_us| *took_us > 0)?;
        rate.ppm = change_us.saturating_mul(1_000_000) / took_us;
        rate.error_ppm = (error_us.saturating_mul(1_000_000) / took_us).unsigned_abs();
        rate.span = Duration::from_micros(took_us.unsigned_abs());
        Some(rate)
    }
}

fn interval(from: Sample, to: Sample) -> Interval {
    Interval {
        took_us: to.here_us - from.here_us,
        change_us: to.offset_us.saturating_sub(from.offset_us),
        error_us: from.error_us + to.error_us,
    }
}

fn signed_us(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX / 4)
}

#[cfg(test)]
mod tests;
