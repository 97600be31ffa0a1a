//! Locks that are kept: extended again and again while they are held, and told of before they end.
//!
//! A lock that is kept is renewed at a third of its TTL, or somewhat earlier, at a tick that other locks share: what is due
//! together goes out in one write for each master. A renewal is an extension like the caller's own, which replaces it; one
//! that fails is tried again until the validity ends. It stops with the release, after the longest hold and count, and
//! once the loss was told. It never shortens a validity.
//!
//! The loss is told by the local clock, a tenth of the TTL before the validity ends, whatever the masters answer; or at
//! once, when masters that cannot have the key leave no quorum.

use std::time::{Duration, Instant};

use rand::RngExt;

use super::op::{Op, OpState};
use super::slab::Id;
use super::{Engine, OpId, Outcome};
use crate::limits;
use crate::lock::Ttl;
use crate::mutants::mutant;

/// How a held lock is kept.
#[derive(Debug, Clone, Copy)]
pub(super) struct Keep {
    /// What each renewal asks for.
    ttl: Ttl,
    /// `None` once there will be no more.
    renew_at: Option<Instant>,
    /// No renewal goes beyond this.
    hold_until: Instant,
    left_count: u32,
}

const NOT_KEPT: &str = "the lock is kept";

impl Op {
    /// The TTL by which the next renewal is planned: a caller may have extended to a shorter one than renewals ask for.
    fn renewed_ttl(&self) -> Option<Duration> {
        self.keep.map(|keep| keep.ttl.as_duration().min(self.held_ttl.as_duration()))
    }
}

impl Keep {
    /// When the next renewal is due.
    pub(super) const fn renew_at(&self) -> Option<Instant> {
        self.renew_at
    }
}

/// How long before the end of the validity the loss of a lock with this TTL is told.
pub(super) fn loss_lead(ttl: Ttl) -> Duration {
    ttl.validity() / 10
}

impl Engine {
    /// Keeps a held lock from now on, for `max_hold` in all.
    pub(super) fn submit_keep(&mut self, now: Instant, id: Id, max_hold: Duration) {
        let Some(op) = self.ops.find_mut(id) else { return };
        let OpState::Held { since, .. } = op.state else { return };
        let max_hold = max_hold.min(self.config.max_hold);
        let hold_until = since.checked_add(max_hold).unwrap_or(since + limits::FOREVER);
        let left_count = limits::RENEWAL_COUNT_MAX;
        op.keep = Some(Keep { ttl: op.ttl, renew_at: None, hold_until, left_count });
        self.plan_renewal(now, id, since);
    }

    /// Tells of the loss of a held lock, once.
    pub(super) fn submit_watch(&mut self, id: Id) {
        if let Some(op) = self.ops.find_mut(id)
            && let OpState::Held { .. } = op.state
        {
            op.is_watched = true;
            self.arm_op(id);
        }
    }

    /// Whether a lock is over, or so nearly over that its loss is or was told to whoever asked for it.
    #[must_use]
    pub fn is_losing(&self, now: Instant, lock: OpId) -> bool {
        let Some(op) = self.ops.find(lock.0) else { return true };
        match op.state {
            OpState::Held { valid_until, .. } => now + loss_lead(op.held_ttl) >= valid_until,
            _ => true,
        }
    }

    /// The lock was acquired or extended at that time: plans the next renewal.
    fn plan_renewal(&mut self, now: Instant, id: Id, since: Instant) {
        let ttl = self.ops.op(id).renewed_ttl().expect(NOT_KEPT);
        // Not all at once if many were acquired at once.
        let early = self.rng.random_range(Duration::ZERO..=ttl / 12);
        let at = self.tick_before((since + ttl / 3).checked_sub(early).unwrap_or(now));
        // A tick may be longer than a short TTL: no renewal follows right upon the one before.
        let at = at.max(since + ttl / 6).max(now);
        self.ops.op_mut(id).keep.as_mut().expect(NOT_KEPT).renew_at = Some(at);
        self.arm_op(id);
    }

    /// The last moment at which renewals go out together.
    fn tick_before(&self, at: Instant) -> Instant {
        let passed = at.saturating_duration_since(self.started).as_millis();
        let tick = limits::RENEWAL_TICK.as_millis();
        let whole = u64::try_from(passed / tick * tick).unwrap_or(u64::MAX);
        self.started + Duration::from_millis(whole)
    }

    /// Something may be due for a lock that is held.
    pub(super) fn handle_held_timeout(&mut self, now: Instant, id: Id) {
        let OpState::Held { extension, .. } = &self.ops.op(id).state else { unreachable!("a lock is held") };
        if extension.is_some_and(|extension| extension.deadline <= now) {
            self.miss_extend(now, id);
        }
        let op = self.ops.op(id);
        if op.warn_at().is_some_and(|at| at <= now) {
            self.tell_loss(id);
        }
        let op = self.ops.op(id);
        let is_due = op.keep.and_then(|keep| keep.renew_at).is_some_and(|at| at <= now);
        if is_due && matches!(op.state, OpState::Held { extension: None, .. }) {
            self.renew(now, id);
        }
    }

    /// Sends an extension whose outcome nobody is told.
    fn renew(&mut self, now: Instant, id: Id) {
        let op = self.ops.op_mut(id);
        let (Some(keep), OpState::Held { valid_until, .. }) = (&mut op.keep, &op.state) else {
            unreachable!("only a held lock that is kept is renewed")
        };
        let left = keep.hold_until.saturating_duration_since(now);
        let is_capped = keep.ttl.as_duration() > left && !mutant!(RenewalUncapped);
        let ttl = if is_capped {
            Ttl::new(left, self.config.drift, self.config.max_ttl).ok()
        } else {
            Some(keep.ttl)
        };
        // What a caller extended to a longer TTL is not cut short; and the last renewal is shorter than the others.
        let ttl = ttl.filter(|ttl| now + ttl.validity() > *valid_until);
        keep.renew_at = None;
        let Some(ttl) = ttl.filter(|_| keep.left_count > 0) else {
            if !is_capped && keep.left_count > 0 {
                let (since, ttl) = (*valid_until - keep.ttl.validity(), keep.ttl.as_duration());
                // That is to come, as the validity ends later than it would with a renewal now.
                keep.renew_at = Some(since + ttl / 3);
            }
            return;
        };
        keep.left_count -= 1;
        if self.start_extend(now, id, ttl).is_err() {
            // The validity has ended, or the longest hold is reached.
            return;
        }
        if let OpState::Held { valid_until, extension: Some(extension), .. } = &mut self.ops.op_mut(id).state
        {
            extension.is_renewal = true;
            if mutant!(RenewalWithoutLimit) {
                extension.deadline = *valid_until;
            }
        }
        self.decide_extend(now, id);
    }

    /// An extension has its verdict: plans what follows for a lock that is kept.
    pub(super) fn follow_extension(&mut self, now: Instant, id: Id, is_extended: bool) {
        let drift = self.config.drift;
        let op = self.ops.op_mut(id);
        let OpState::Held { valid_until, .. } = op.state else { unreachable!("it was held to be extended") };
        let validity = op.ttl.validity();
        let Some(ttl) = op.renewed_ttl() else { return };
        let Some(keep) = &mut op.keep else { return };
        // The last renewal, which ends with the longest hold, is short of it by its drift allowance.
        let ends_at = valid_until + drift.of(keep.ttl.as_duration());
        if valid_until <= now || keep.hold_until <= ends_at || keep.left_count == 0 {
            keep.renew_at = None;
        } else if is_extended {
            self.plan_renewal(now, id, valid_until - validity);
        } else {
            let pause = (ttl / 20).max(Duration::from_millis(1));
            keep.renew_at = Some(now + pause + self.rng.random_range(Duration::ZERO..=pause));
            self.arm_op(id);
        }
    }

    /// Tells, once, that a lock is lost or about to be, and keeps it no longer.
    pub(super) fn tell_loss(&mut self, id: Id) {
        let op = self.ops.op_mut(id);
        let OpState::Held { valid_until, .. } = op.state else { return };
        if std::mem::take(&mut op.is_watched) {
            if !mutant!(KeptAfterLoss) {
                op.keep = None;
            }
            self.outcomes.push_back((OpId(id), Outcome::Lost(valid_until)));
        }
    }

    /// With defects only: the release of a held lock is told as its loss, or does not end its renewals.
    #[inline(always)]
    pub(super) fn keeps_on(&mut self, id: Id) -> bool {
        if mutant!(ReleaseToldAsLoss) && self.ops.find(id).is_some() {
            self.tell_loss(id);
        }
        mutant!(RenewedAfterRelease) && self.ops.find(id).is_some_and(|op| op.keep.is_some())
    }
}
