//! Which acquisitions are timed: all while there are few, and one of many while there are many, so that an
//! ordinary one pays for a counter only.

use std::time::Instant;

use super::op::Op;
use crate::limits;

#[derive(Debug)]
pub(super) struct Pace {
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
    pub(super) const fn new(now: Instant, is_observed: bool) -> Self {
        Self { left: 1, distance: 1, timed_at: now, busy_count: 0, sampled_at: None, is_observed }
    }

    /// Counts an acquisition. Returns whether [`Pace::time`] is to be called for it.
    #[inline]
    pub(super) const fn is_due(&mut self) -> bool {
        self.left -= 1;
        self.left == 0
    }

    /// Has an acquisition timed, and its round trip measured if none was lately.
    #[cold]
    #[inline(never)]
    pub(super) fn time(&mut self, now: Instant, op: &mut Op) {
        let took = now.saturating_duration_since(self.timed_at);
        let is_busy = took < limits::TIMED_PAUSE * self.distance;
        self.busy_count = if is_busy { self.busy_count.saturating_add(1) } else { 0 };
        let is_skipping = self.busy_count > limits::TIMED_SHARE && !self.is_observed;
        self.distance = if is_skipping { limits::TIMED_SHARE } else { 1 };
        (self.left, self.timed_at) = (self.distance, now);
        (op.is_noted, op.is_timed) = (true, true);
        let is_recent = |at: Instant| now.saturating_duration_since(at) < limits::ROUND_TRIP_PAUSE;
        if !self.sampled_at.is_some_and(is_recent) {
            self.sampled_at = Some(now);
            (op.is_sampled, op.is_special) = (true, true);
        }
    }
}
