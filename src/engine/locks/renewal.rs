//! The renewals of one held lock: when the next one is due, and which TTL it asks for.
//!
//! A lock is renewed after a third of its TTL, or somewhat earlier, at a tick that other locks share. So
//! renewals due together leave in one write for each master. A renewal never shortens a validity. Renewals
//! stop after the longest hold, or after a maximum number.

use std::time::{Duration, Instant};

use rand::{Rng, RngExt};

use crate::limits;
use crate::lock::{Drift, Ttl};

/// Renewals of a held lock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Renewal {
    /// TTL that each renewal asks for.
    ttl: Ttl,
    /// When the next renewal is due; `None` if no renewal follows.
    pub(crate) renew_at: Option<Instant>,
    /// No renewal extends the lock beyond this time.
    pub(crate) hold_until: Instant,
    left_count: u32,
}

/// The clock that groups the renewals of one engine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ticks {
    /// When the engine was made.
    pub(crate) started: Instant,
}

impl Ticks {
    /// Returns the last tick before a time.
    fn before(self, at: Instant) -> Instant {
        let passed = at.saturating_duration_since(self.started).as_millis();
        let tick = limits::RENEWAL_TICK.as_millis();
        let whole = u64::try_from(passed / tick * tick).unwrap_or(u64::MAX);
        self.started + Duration::from_millis(whole)
    }
}

impl Renewal {
    pub(crate) const fn new(ttl: Ttl, hold_until: Instant) -> Self {
        Self { ttl, renew_at: None, hold_until, left_count: limits::RENEWAL_COUNT_MAX }
    }

    /// Returns the TTL from which the next renewal is planned. A caller may have extended the lock to a
    /// shorter TTL than renewals ask for.
    fn planned_ttl(&self, held_ttl: Ttl) -> Duration {
        self.ttl.as_duration().min(held_ttl.as_duration())
    }

    /// Plans the next renewal of a lock that was acquired or extended at `since`.
    pub(crate) fn plan(
        &mut self,
        now: Instant,
        since: Instant,
        held_ttl: Ttl,
        ticks: Ticks,
        rng: &mut impl Rng,
    ) {
        let ttl = self.planned_ttl(held_ttl);
        // Spreads the renewals of locks that were acquired together.
        let early = rng.random_range(Duration::ZERO..=ttl / 12);
        let at = ticks.before((since + ttl / 3).checked_sub(early).unwrap_or(now));
        // A tick may be longer than a short TTL: renewals keep a distance of a sixth of the TTL.
        self.renew_at = Some(at.max(since + ttl / 6).max(now));
    }

    /// Returns the TTL of the renewal that is due now, if any. A renewal never shortens a longer extension by
    /// the caller, and the last renewal ends with the longest hold.
    pub(crate) fn next_ttl(
        &mut self,
        now: Instant,
        valid_until: Instant,
        drift: Drift,
        max_ttl: Duration,
    ) -> Option<Ttl> {
        let left = self.hold_until.saturating_duration_since(now);
        let is_capped = self.ttl.as_duration() > left;
        let ttl = if is_capped { Ttl::new(left, drift, max_ttl).ok() } else { Some(self.ttl) };
        let ttl = ttl.filter(|ttl| now + ttl.validity() > valid_until && self.left_count > 0);
        self.renew_at = None;
        if ttl.is_some() {
            self.left_count -= 1;
        } else if !is_capped && self.left_count > 0 {
            let (since, ttl) = (valid_until - self.ttl.validity(), self.ttl.as_duration());
            // This time is in the future, because the validity ends later than after a renewal now.
            self.renew_at = Some(since + ttl / 3);
        }
        ttl
    }

    /// Plans what follows the verdict of an extension to `ttl`.
    pub(crate) fn follow(
        &mut self,
        now: Instant,
        extended: Extended,
        drift: Drift,
        ticks: Ticks,
        rng: &mut impl Rng,
    ) {
        let Extended { valid_until, ttl, held_ttl, is_extended } = extended;
        // The last renewal ends with the longest hold, less its drift allowance.
        let ends_at = valid_until + drift.of(self.ttl.as_duration());
        if valid_until <= now || self.hold_until <= ends_at || self.left_count == 0 {
            self.renew_at = None;
        } else if is_extended {
            self.plan(now, valid_until - ttl.validity(), held_ttl, ticks, rng);
        } else {
            let pause = (self.planned_ttl(held_ttl) / 20)
                .clamp(limits::RENEWAL_PAUSE_MIN, limits::RENEWAL_PAUSE_MAX / 2);
            self.renew_at = Some(now + pause + rng.random_range(Duration::ZERO..=pause));
        }
    }
}

/// Result of an extension.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extended {
    pub(crate) valid_until: Instant,
    /// TTL that the extension asked for.
    pub(crate) ttl: Ttl,
    /// TTL of the current validity.
    pub(crate) held_ttl: Ttl,
    pub(crate) is_extended: bool,
}

/// Returns how long before the end of the validity the loss of a lock with this TTL is reported.
pub(crate) fn loss_lead(ttl: Ttl) -> Duration {
    ttl.validity() / 10
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    /// A pause is a twentieth of the TTL within its bounds, plus a random time up to as long.
    #[test]
    fn a_failed_renewal_is_tried_again_after_a_pause() {
        let (now, ms, mut rng) = (Instant::now(), Duration::from_millis, StdRng::seed_from_u64(1));
        let hold_until = now + Duration::from_secs(3600);
        for (ttl, pause) in [(ms(10), ms(1)), (ms(4000), ms(200)), (ms(60_000), ms(500))] {
            let ttl = Ttl::new(ttl, Drift::DEFAULT, limits::MAX_TTL_MAX).expect("valid");
            let mut renewal = Renewal::new(ttl, hold_until);
            let extended =
                Extended { valid_until: now + ttl.validity(), ttl, held_ttl: ttl, is_extended: false };
            let mut pauses: Vec<_> = (0..1000)
                .map(|_| {
                    renewal.follow(now, extended, Drift::DEFAULT, Ticks { started: now }, &mut rng);
                    renewal.renew_at.expect("another follows") - now
                })
                .collect();
            pauses.sort_unstable();
            let (shortest, longest) = (pauses[0], pauses[999]);
            assert!((pause..pause * 41 / 40).contains(&shortest), "{shortest:?} of {pause:?}");
            assert!((pause * 79 / 40..=pause * 2).contains(&longest), "{longest:?} of {pause:?}");
        }
    }
}
