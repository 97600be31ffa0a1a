//! Values that an engine keeps between acquisitions: the terms of a TTL, and when to time an acquisition.

use std::time::{Duration, Instant};

use crate::config::Config;
use crate::limits;
use crate::lock::command::entry::AcquireTail;
use crate::lock::{InputError, Ttl};

/// Values that all acquisitions of one TTL share, computed only when the TTL changes. Only [`Terms::fit`]
/// returns them: the terms of another TTL would let a key end before its holder knows.
#[derive(Debug)]
pub(crate) struct Terms {
    /// `None` before the first acquisition.
    ttl: Option<Ttl>,
    /// The last requested TTL, and the TTL that it became.
    asked: Option<(Option<Duration>, Ttl)>,
    /// The fleet's round-trip limit for which the values hold.
    round_trip_limit: Duration,
    fitted: Fitted,
}

/// The terms of one TTL.
#[derive(Debug)]
pub(crate) struct Fitted {
    /// Longest wait for the answers of a round.
    pub(crate) answer_limit: Duration,
    pub(crate) tail: AcquireTail,
}

impl Terms {
    pub(crate) const NONE: Self = Self {
        ttl: None,
        asked: None,
        round_trip_limit: Duration::ZERO,
        fitted: Fitted { answer_limit: Duration::ZERO, tail: AcquireTail::EMPTY },
    };

    /// Returns the TTL of an acquisition that asks for this TTL, or for the default.
    #[inline(always)]
    pub(crate) fn ttl_of(&mut self, asked: Option<Duration>, config: &Config) -> Result<Ttl, InputError> {
        match self.asked {
            Some((before, ttl)) if before == asked => Ok(ttl),
            _ => self.check(asked, config),
        }
    }

    #[cold]
    #[inline(never)]
    fn check(&mut self, asked: Option<Duration>, config: &Config) -> Result<Ttl, InputError> {
        let ttl = config.ttl(asked.unwrap_or(limits::TTL_DEFAULT.min(config.max_ttl)))?;
        self.asked = Some((asked, ttl));
        Ok(ttl)
    }

    /// Returns the terms of this TTL, on masters of which a quorum answers within this limit.
    #[inline(always)]
    pub(crate) fn fit(&mut self, ttl: Ttl, round_trip_limit: Duration, config: &Config) -> &Fitted {
        let is_other = self.ttl != Some(ttl) || self.round_trip_limit != round_trip_limit;
        if is_other {
            self.set(ttl, round_trip_limit, config);
        }
        &self.fitted
    }

    #[cold]
    #[inline(never)]
    fn set(&mut self, ttl: Ttl, round_trip_limit: Duration, config: &Config) {
        (self.ttl, self.round_trip_limit) = (Some(ttl), round_trip_limit);
        self.fitted.answer_limit = config.answer_limit_by(ttl, round_trip_limit);
        self.fitted.tail.set(ttl.as_millis());
    }
}

/// When to time an acquisition: each one while there are few, one of many while there are many, so that an
/// ordinary acquisition pays only for a counter.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Number of acquisitions until the next timed one, which it includes.
    left: u32,
    /// The same number, as it was after the last timed acquisition.
    distance: u32,
    /// When an acquisition was last timed.
    timed_at: Instant,
    /// Consecutive timed acquisitions that followed each other quickly.
    busy_count: u32,
    /// When a round trip was last measured.
    sampled_at: Option<Instant>,
    /// Whether an observer makes every acquisition timed.
    is_observed: bool,
}

impl Pace {
    pub(crate) const fn new(now: Instant, is_observed: bool) -> Self {
        Self { left: 1, distance: 1, timed_at: now, busy_count: 0, sampled_at: None, is_observed }
    }

    /// Counts an acquisition. Returns whether to call [`Pace::time`] for it.
    #[inline]
    pub(crate) const fn is_due(&mut self) -> bool {
        self.left -= 1;
        self.left == 0
    }

    /// Notes a timed acquisition. Returns whether to measure its round trip, because none was measured
    /// lately.
    #[cold]
    #[inline(never)]
    pub(crate) fn time(&mut self, now: Instant) -> bool {
        let took = now.saturating_duration_since(self.timed_at);
        let is_busy = took < limits::TIMED_PAUSE * self.distance;
        self.busy_count = if is_busy { self.busy_count.saturating_add(1) } else { 0 };
        let is_skipping = self.busy_count > limits::TIMED_SHARE && !self.is_observed;
        self.distance = if is_skipping { limits::TIMED_SHARE } else { 1 };
        (self.left, self.timed_at) = (self.distance, now);
        let is_recent = |at: Instant| now.saturating_duration_since(at) < limits::ROUND_TRIP_PAUSE;
        let is_sampled = !self.sampled_at.is_some_and(is_recent);
        if is_sampled {
            self.sampled_at = Some(now);
        }
        is_sampled
    }
}
