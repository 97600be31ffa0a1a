//! Keeping a lock that is held: its renewals, and the report of its loss.
//!
//! The loss is reported by the local clock, a tenth of the validity before it ends, whatever the masters
//! answer; or at once, when masters that cannot have the key leave no quorum.

use std::time::{Duration, Instant};

use super::op::OpState;
use super::renewal::{Extended, Renewal, loss_lead};
use super::slab::Id;
use super::{Engine, OpId, Outcome};
use crate::error::ExtendError;
use crate::limits;
use crate::lock::Ttl;
use crate::mutants::mutant;

impl Engine {
    /// Keeps a held lock from now on, for `max_hold` in all.
    pub(super) fn begin_renewal(&mut self, now: Instant, id: Id, since: Instant, max_hold: Duration) {
        let op = self.ops.get_mut(id);
        let max_hold = max_hold.min(self.config.max_hold);
        let hold_until = since.checked_add(max_hold).unwrap_or(since + limits::FOREVER);
        let renewal = op.renewal.insert(Renewal::new(op.ttl, hold_until));
        renewal.plan(now, since, op.held_ttl, self.ticks, &mut self.rng);
        self.arm_op(id);
    }

    /// Reports each renewal of a held lock from now on; also that none follows, if the last one was before
    /// this.
    #[cold]
    #[inline(never)]
    pub(super) fn submit_report_renewals(&mut self, now: Instant, id: Id) {
        if let Some(op) = self.ops.find_mut(id)
            && let (Some(renewal), OpState::Held { valid_until, extension, .. }) =
                (&mut op.renewal, &op.state)
        {
            renewal.report();
            if extension.is_none() && now < *valid_until {
                self.report_renewals_end(id);
            }
        }
    }

    /// Reports the loss of a held lock, once.
    pub(super) fn submit_notify_loss(&mut self, id: Id) {
        if let Some(op) = self.ops.find_mut(id)
            && let OpState::Held { .. } = op.state
        {
            op.notifies_loss = true;
            self.arm_op(id);
        }
    }

    /// Whether a lock is over, or so nearly over that its loss is or was reported to the caller that asked
    /// for it.
    #[must_use]
    pub fn is_losing(&self, now: Instant, lock: OpId) -> bool {
        let Some(op) = self.ops.find(lock.0) else { return true };
        match op.state {
            OpState::Held { valid_until, .. } => now + loss_lead(op.held_ttl) >= valid_until,
            _ => true,
        }
    }

    /// Something may be due for a lock that is held.
    pub(super) fn handle_held_timeout(&mut self, now: Instant, id: Id) {
        let OpState::Held { extension, .. } = &self.ops.get(id).state else { unreachable!("a lock is held") };
        if extension.is_some_and(|extension| extension.deadline <= now) {
            self.miss_extend(now, id);
        }
        if self.ops.get(id).warn_at().is_some_and(|at| at <= now) {
            self.tell_loss(now, id);
        }
        let op = self.ops.get(id);
        let is_due = op.renewal.and_then(|renewal| renewal.renew_at()).is_some_and(|at| at <= now);
        if is_due && matches!(op.state, OpState::Held { extension: None, .. }) {
            self.renew(now, id);
        }
    }

    /// Sends an extension whose outcome is reported only if the caller asked for it. It is one like the
    /// caller's own, which replaces it; one that fails is tried again until the validity ends.
    fn renew(&mut self, now: Instant, id: Id) {
        let op = self.ops.get_mut(id);
        let (Some(renewal), OpState::Held { valid_until, .. }) = (&mut op.renewal, &op.state) else {
            unreachable!("only a held lock that is kept is renewed")
        };
        let Some(ttl) = renewal.next_ttl(now, *valid_until, self.config.drift, self.config.max_ttl) else {
            return self.report_renewals_end(id);
        };
        self.extend_as_renewal(now, id, ttl);
    }

    /// Sends an extension that nobody but the keeping of the lock asks for.
    pub(super) fn extend_as_renewal(&mut self, now: Instant, id: Id, ttl: Ttl) {
        if let Err(error) = self.start_extend(now, id, ttl) {
            // The validity has ended, or the longest hold is reached.
            return self.report_renewal(id, &Err(error));
        }
        if let OpState::Held { valid_until, extension: Some(extension), .. } = &mut self.ops.get_mut(id).state
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
        let op = self.ops.get_mut(id);
        let OpState::Held { valid_until, .. } = op.state else { unreachable!("it was held to be extended") };
        let Some(renewal) = &mut op.renewal else { return };
        let extended = Extended { valid_until, ttl: op.ttl, held_ttl: op.held_ttl, is_extended };
        renewal.follow(now, extended, self.config.drift, self.ticks, &mut self.rng);
        if now < valid_until {
            self.report_renewals_end(id);
        }
        self.arm_op(id);
    }

    /// Reports how a renewal ended, if the caller asked for it.
    pub(super) fn report_renewal(&mut self, id: Id, result: &Result<Instant, ExtendError>) {
        if self.ops.get(id).renewal.is_some_and(|renewal| renewal.is_reported()) {
            self.outcomes.push_back((OpId(id), Outcome::Renewal(result.clone())));
        }
    }

    /// Reports that the longest hold lets no renewal follow, if that is so.
    fn report_renewals_end(&mut self, id: Id) {
        let op = self.ops.get(id);
        if let (Some(renewal), OpState::Held { since, .. }) = (&op.renewal, &op.state)
            && renewal.renew_at().is_none()
            && !mutant!(RenewalEndUnreported)
        {
            let limit = renewal.hold_limit(*since);
            self.report_renewal(id, &Err(limit));
        }
    }

    /// Reports, once, that a lock is lost or about to be, and keeps it no longer.
    pub(super) fn tell_loss(&mut self, now: Instant, id: Id) {
        let op = self.ops.get_mut(id);
        let OpState::Held { valid_until, .. } = op.state else { return };
        if std::mem::take(&mut op.notifies_loss) {
            if !mutant!(KeptAfterLoss) {
                op.renewal = None;
            }
            self.outcomes.push_back((OpId(id), Outcome::Lost(valid_until)));
            self.note_near_loss(id, valid_until.saturating_duration_since(now));
        }
    }
}
