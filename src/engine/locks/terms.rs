//! Values that an engine keeps between acquisitions: the terms of a TTL, and which acquisitions are timed.

use std::time::{Duration, Instant};

use crate::config::Config;
use crate::limits;
use crate::lock::command::entry::AcquireTail;
use crate::lock::{InputError, Ttl};

/// Values that all acquisitions of one TTL share, to be worked out anew only when the TTL changes. They are
/// had by [`Terms::fit`] alone: those of another lock's TTL would let a key end before its holder knows.
#[derive(Debug)]
pub(crate) struct Terms {
    /// `None` before the first acquisition.
    ttl: Option<Ttl>,
    /// The TTL that was asked for last, and what it became.
    asked: Option<(Option<Duration>, Ttl)>,
    /// The limit of the fleet's round trips when this was worked out.
    round_trip_limit: Duration,
    fitted: Fitted,
}

/// The terms of one TTL.
#[derive(Debug)]
pub(crate) struct Fitted {
    /// How long each round waits for answers.
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

    /// The TTL of an acquisition that asks for this one, or for the default.
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

    /// Those of this TTL, on masters of which a quorum answers within this limit.
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

/// Which acquisitions are timed: all while there are few, and one of many while there are many, so that an
/// ordinary one pays for a counter only.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Acquisitions until the next one that is timed, and that one.
    left: u32,
    /// As many followed the last one that was timed, the next one included.
    distance: u32,
    /// When one was last timed.
    timed_at: Instant,
    /// Timed acquisitions in a row that came so soon after each other as only many do.
    busy_count: u32,
    /// When a round trip was last measured.
    sampled_at: Option<Instant>,
    /// Whether each acquisition is noted: somebody observes.
    is_observed: bool,
}

impl Pace {
    pub(crate) const fn new(now: Instant, is_observed: bool) -> Self {
        Self { left: 1, distance: 1, timed_at: now, busy_count: 0, sampled_at: None, is_observed }
    }

    /// Counts an acquisition. Returns whether [`Pace::time`] is to be called for it.
    #[inline]
    pub(crate) const fn is_due(&mut self) -> bool {
        self.left -= 1;
        self.left == 0
    }

    /// An acquisition is timed. Returns whether its round trip is to be measured, as none was lately.
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
