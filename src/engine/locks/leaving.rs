//! How a lock is left for a time: the TTL of its keys, and until when an answer is in time.

use std::time::{Duration, Instant};

use crate::config::Config;
use crate::lock::{Drift, InputError, Ttl};

/// Shortest rest for a master: with the largest drift allowance it is the shortest TTL.
const REST_MIN: Duration = Duration::from_millis(6);

/// A lock left for a time. `Release` stores its progress: a master that has the rest counts as one that has
/// deleted the key.
#[derive(Debug)]
pub(crate) struct Leaving {
    /// When the keys must end. A master that did not get the rest in time gets a release then.
    pub(crate) until: Instant,
    /// End of the validity that the caller gave up.
    pub(crate) valid_until: Instant,
    /// When the lock was acquired.
    pub(crate) since: Instant,
    /// TTL of the first command, the longest of all; `None` if that command was a release.
    pub(crate) rest: Option<Ttl>,
    /// When the last command was sent to any master. Later commands keep this time while the answers to this
    /// one are in time.
    sent_at: Instant,
    /// TTL of the last command; `None` for a release.
    pub(crate) rest_sent: Option<Ttl>,
}

impl Leaving {
    /// Leaves a lock for `rest`; zero releases it. The rest is rounded up to whole milliseconds and to the
    /// shortest TTL.
    pub(crate) fn new(
        now: Instant,
        rest: Duration,
        (since, valid_until): (Instant, Instant),
        config: &Config,
    ) -> Result<Self, InputError> {
        if rest > config.max_ttl {
            return Err(InputError::TtlTooLong { ttl: rest, max_ttl: config.max_ttl });
        }
        let until = now + rest;
        let mut leaving = Self { until, valid_until, since, rest: None, sent_at: now, rest_sent: None };
        leaving.rest = leaving.rest_at(now, config);
        Ok(leaving)
    }

    /// Nobody else gets a lock that was left at `now` before this time, if a quorum of masters has the rest.
    /// A key may get a TTL beyond a short rest; a release deletes it then.
    pub(crate) fn held_until(&self, now: Instant) -> Instant {
        let validity = self.rest.map_or(Duration::ZERO, |ttl| ttl.validity());
        (now + validity).min(self.until)
    }

    /// Returns the TTL of a key that ends in time; `None` once the time is over.
    fn rest_at(&self, now: Instant, config: &Config) -> Option<Ttl> {
        let rest = self.until.saturating_duration_since(now);
        let whole = (rest + Duration::from_nanos(999_999)).max(REST_MIN).min(config.max_ttl);
        let ttl = config.ttl(whole).expect("the rest was checked, and gets shorter");
        (!rest.is_zero()).then_some(ttl)
    }

    /// Returns when a key with the rest ends.
    pub(crate) fn gone_at(&self, drift: Drift) -> Instant {
        self.until + REST_MIN + self.rest_sent.map_or(Duration::ZERO, |ttl| drift.of(ttl.as_duration()))
    }

    /// Whether an answer to the last rest would be in time now.
    pub(crate) fn is_in_time(&self, now: Instant, answer_limit: Duration) -> bool {
        self.rest_sent.is_some() && now <= self.sent_at + answer_limit
    }

    /// Prepares the next command. Returns its TTL, or `None` for a release. While answers to the previous
    /// command are in time, its sending time counts for all.
    pub(crate) fn send(&mut self, now: Instant, answer_limit: Duration, config: &Config) -> Option<Ttl> {
        if !self.is_in_time(now, answer_limit) {
            self.sent_at = now;
        }
        self.rest_sent = self.rest_at(now, config);
        self.rest_sent
    }
}
