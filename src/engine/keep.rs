//! Keeping a lock that is held: its renewals, and the report of its loss.
//!
//! The loss is reported by the local clock, a tenth of the validity before it ends, whatever the masters
//! answer; or at once, when masters that cannot have the key leave no quorum.

use std::time::{Duration, Instant};

use super::op::{Held, Op};
use super::renewal::{Extended, Renewal, loss_lead};
use super::slab::Id;
use super::{Engine, OpId, Outcome};
use crate::error::ExtendError;
use crate::limits;
use crate::lock::Ttl;
use crate::mutants::mutant;

impl Engine {
    /// A lock that is held.
    pub(super) fn held(&self, id: Id) -> &Held {
        self.ops.get(id).held().expect("the lock is held")
    }

    /// Keeps a held lock from now on, for `max_hold` in all.
    pub(super) fn begin_renewal(&mut self, now: Instant, id: Id, since: Instant, max_hold: Duration) {
        let held = self.ops.get_mut(id).held_mut().expect("a lock that is kept is held");
        let max_hold = max_hold.min(self.config.max_hold);
        let hold_until = since.checked_add(max_hold).unwrap_or(since + limits::FOREVER);
        let renewal = held.renewal.insert(Renewal::new(held.ttl, hold_until));
        renewal.plan(now, since, held.ttl, self.ticks, &mut self.rng);
        self.arm_op(id);
    }

    /// Reports each renewal of a held lock from now on; also that none follows, if the last one was before
    /// this.
    #[cold]
    #[inline(never)]
    pub(super) fn submit_report_renewals(&mut self, now: Instant, id: Id) {
        if let Some(op) = self.ops.find_mut(id)
            && let Some(Held { renewal: Some(renewal), valid_until, extension, .. }) = op.held_mut()
        {
            renewal.is_reported = true;
            if extension.is_none() && now < *valid_until {
                self.report_renewals_end(id);
            }
        }
    }

    /// Reports the loss of a held lock, once.
    pub(super) fn submit_notify_loss(&mut self, id: Id) {
        if let Some(held) = self.ops.find_mut(id).and_then(Op::held_mut) {
            held.notifies_loss = true;
            self.arm_op(id);
        }
    }

    /// Whether a lock is over, or so nearly over that its loss is or was reported to the caller that asked
    /// for it.
    #[must_use]
    pub fn is_losing(&self, now: Instant, lock: OpId) -> bool {
        let held = self.ops.find(lock.0).and_then(Op::held);
        held.is_none_or(|held| now + loss_lead(held.ttl) >= held.valid_until)
    }

    /// Something may be due for a lock that is held.
    pub(super) fn handle_held_timeout(&mut self, now: Instant, id: Id) {
        let held = self.held(id);
        if held.extension.is_some_and(|extension| extension.deadline <= now) {
            self.miss_extend(now, id);
        }
        if self.held(id).warn_at().is_some_and(|at| at <= now) {
            self.report_loss(now, id);
        }
        let held = self.held(id);
        let is_due = held.renewal.and_then(|renewal| renewal.renew_at).is_some_and(|at| at <= now);
        if is_due && held.extension.is_none() {
            self.renew(now, id);
        }
    }

    /// Sends an extension whose outcome is reported only if the caller asked for it. It is one like the
    /// caller's own, which replaces it; one that fails is tried again until the validity ends.
    fn renew(&mut self, now: Instant, id: Id) {
        let op = self.ops.get_mut(id);
        let Some(Held { renewal: Some(renewal), valid_until, .. }) = op.held_mut() else {
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
        if let Some(Held { valid_until, extension: Some(extension), .. }) = self.ops.get_mut(id).held_mut() {
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
        let ttl = op.asked.ttl;
        let held = op.held_mut().expect("it was held to be extended");
        let (valid_until, held_ttl) = (held.valid_until, held.ttl);
        let Some(renewal) = &mut held.renewal else { return };
        let extended = Extended { valid_until, ttl, held_ttl, is_extended };
        renewal.follow(now, extended, self.config.drift, self.ticks, &mut self.rng);
        if now < valid_until {
            self.report_renewals_end(id);
        }
        self.arm_op(id);
    }

    /// Reports how a renewal ended, if the caller asked for it.
    pub(super) fn report_renewal(&mut self, id: Id, result: &Result<Instant, ExtendError>) {
        if self.held(id).renewal.is_some_and(|renewal| renewal.is_reported) {
            self.outcomes.push_back((OpId(id), Outcome::Renewal(result.clone())));
        }
    }

    /// Reports that the longest hold lets no renewal follow, if that is so.
    fn report_renewals_end(&mut self, id: Id) {
        if let Held { renewal: Some(renewal), since, .. } = self.held(id)
            && renewal.renew_at.is_none()
            && !mutant!(RenewalEndUnreported)
        {
            let limit = ExtendError::HoldLimit { max_hold: renewal.hold_until - *since };
            self.report_renewal(id, &Err(limit));
        }
    }

    /// Reports, once, that a lock is lost or about to be, and keeps it no longer.
    pub(super) fn report_loss(&mut self, now: Instant, id: Id) {
        let Some(held) = self.ops.get_mut(id).held_mut() else { return };
        let valid_until = held.valid_until;
        if std::mem::take(&mut held.notifies_loss) {
            if !mutant!(KeptAfterLoss) {
                held.renewal = None;
            }
            self.outcomes.push_back((OpId(id), Outcome::Lost(valid_until)));
            self.note_near_loss(id, valid_until.saturating_duration_since(now));
        }
    }
}
