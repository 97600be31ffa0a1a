//! The terms of acquisitions.

use std::time::Duration;

use crate::config::Config;
use crate::lock::Ttl;
use crate::lock::command::AcquireTail;

/// What all acquisitions of one TTL share, to be worked out anew only when the TTL changes.
#[derive(Debug)]
pub(super) struct Terms {
    /// `None` before the first acquisition.
    pub(super) ttl: Option<Ttl>,
    /// How long each round waits for answers.
    pub(super) answer_limit: Duration,
    pub(super) tail: AcquireTail,
}

impl Terms {
    pub(super) const NONE: Self = Self { ttl: None, answer_limit: Duration::ZERO, tail: AcquireTail::EMPTY };

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
        self.answer_limit = config.answer_limit(ttl);
        self.tail.set(ttl.as_millis());
    }
}
