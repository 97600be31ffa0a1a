//! How a lock is left for a time: the TTL that its keys get, and until when an answer is in time.

use std::time::{Duration, Instant};

use crate::config::Config;
use crate::lock::{Drift, InputError, Ttl};

/// The shortest rest that a master gets: with the largest drift allowance it is the shortest TTL.
const REST_MIN: Duration = Duration::from_millis(6);

/// How a lock is left for a time. Its progress is in its `Release`: a master that has the rest counts as
/// one that has deleted the key.
#[derive(Debug)]
pub(crate) struct Leaving {
    /// Keys are to end at this time. A master that has not got the rest in time is sent a release then.
    pub(crate) until: Instant,
    /// The validity that its caller gave up.
    pub(crate) valid_until: Instant,
    /// When the lock was acquired.
    pub(crate) since: Instant,
    /// The TTL that the first command set, the longest of all; `None` if that was a release.
    pub(crate) rest: Option<Ttl>,
    /// When the last command was sent to any master.
    sent_at: Instant,
    /// The TTL that it set; `None` for a release.
    pub(crate) rest_sent: Option<Ttl>,
}

impl Leaving {
    /// A lock that is left for so long; with zero it is released. The rest is rounded up to whole
    /// milliseconds and to the shortest TTL.
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

    /// Nobody else gets a lock that was left at `now` before this, if a quorum of masters has the rest. The
    /// shortest TTL is longer than some rests, behind which the key is deleted.
    pub(crate) fn held_until(&self, now: Instant) -> Instant {
        let validity = self.rest.map_or(Duration::ZERO, |ttl| ttl.validity());
        (now + validity).min(self.until)
    }

    /// The TTL of a key that is to end in time; `None` once it is over.
    fn rest_at(&self, now: Instant, config: &Config) -> Option<Ttl> {
        let rest = self.until.saturating_duration_since(now);
        let whole = (rest + Duration::from_nanos(999_999)).max(REST_MIN).min(config.max_ttl);
        let ttl = config.ttl(whole).expect("the rest was checked, and gets shorter");
        (!rest.is_zero()).then_some(ttl)
    }

    /// When a key ends that was given the rest.
    pub(crate) fn gone_at(&self, drift: Drift) -> Instant {
        self.until + REST_MIN + self.rest_sent.map_or(Duration::ZERO, |ttl| drift.of(ttl.as_duration()))
    }

    /// Whether the answer to a rest that is under way comes in time now.
    pub(crate) fn is_in_time(&self, now: Instant, answer_limit: Duration) -> bool {
        self.rest_sent.is_some() && now <= self.sent_at + answer_limit
    }

    /// The next command is about to be sent. Returns the TTL that it is to set, or `None` if it is to be a
    /// release. As long as answers to the one before come in time, all are judged by that one's sending.
    pub(crate) fn send(&mut self, now: Instant, answer_limit: Duration, config: &Config) -> Option<Ttl> {
        if !self.is_in_time(now, answer_limit) {
            self.sent_at = now;
        }
        self.rest_sent = self.rest_at(now, config);
        self.rest_sent
    }
}
