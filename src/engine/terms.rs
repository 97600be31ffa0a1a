//! The terms of acquisitions.

use std::time::Duration;

use crate::config::Config;
use crate::limits;
use crate::lock::command::AcquireTail;
use crate::lock::{InputError, Ttl};

/// What all acquisitions of one TTL share, to be worked out anew only when the TTL changes.
#[derive(Debug)]
pub(super) struct Terms {
    /// `None` before the first acquisition.
    ttl: Option<Ttl>,
    /// The TTL that was asked for last, and what it became.
    asked: Option<(Option<Duration>, Ttl)>,
    /// The limit of the fleet's round trips when this was worked out.
    round_trip_limit: Duration,
    /// How long each round waits for answers.
    pub(super) answer_limit: Duration,
    pub(super) tail: AcquireTail,
}

impl Terms {
    pub(super) const NONE: Self = Self {
        ttl: None,
        asked: None,
        round_trip_limit: Duration::ZERO,
        answer_limit: Duration::ZERO,
        tail: AcquireTail::EMPTY,
    };

    /// The TTL of an acquisition that asks for this one, or for the default.
    #[inline(always)]
    pub(super) fn ttl_of(&mut self, asked: Option<Duration>, config: &Config) -> Result<Ttl, InputError> {
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

    /// Makes them those of this TTL, on masters of which a quorum answers within this limit.
    #[inline(always)]
    pub(super) fn fit(&mut self, ttl: Ttl, round_trip_limit: Duration, config: &Config) {
        if self.ttl != Some(ttl) || self.round_trip_limit != round_trip_limit {
            self.set(ttl, round_trip_limit, config);
        }
    }

    #[cold]
    #[inline(never)]
    fn set(&mut self, ttl: Ttl, round_trip_limit: Duration, config: &Config) {
        (self.ttl, self.round_trip_limit) = (Some(ttl), round_trip_limit);
        self.answer_limit = config.answer_limit_by(ttl, round_trip_limit);
        self.tail.set(ttl.as_millis());
    }
}
