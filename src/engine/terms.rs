//! The terms of acquisitions.

use std::time::Duration;

use crate::config::{AnswerBounds, Config};
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
    /// Bounds of the time that each round waits for answers.
    pub(super) answer_bounds: AnswerBounds,
    pub(super) tail: AcquireTail,
}

impl Terms {
    pub(super) const NONE: Self =
        Self { ttl: None, asked: None, answer_bounds: AnswerBounds::NONE, tail: AcquireTail::EMPTY };

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

    /// Makes them those of this TTL.
    #[inline(always)]
    pub(super) fn fit(&mut self, ttl: Ttl, config: &Config) {
        if self.ttl != Some(ttl) {
            self.set(ttl, config);
        }
    }

    #[cold]
    #[inline(never)]
    fn set(&mut self, ttl: Ttl, config: &Config) {
        self.ttl = Some(ttl);
        self.answer_bounds = config.answer_bounds(ttl);
        self.tail.set(ttl.as_millis());
    }
}
