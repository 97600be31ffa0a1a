//! Locks that end by themselves: left to the end of their TTL, or released and kept for a least time.
//!
//! A lock that is left sends nothing any more: its claim and its operation are forgotten at once, and late
//! answers find nothing. Its key ends by its TTL. A grant that comes late on a minority is part of it.
//!
//! A lock that is kept stays an operation without a caller. One extension sets the TTL of its keys to the
//! rest of the time, or to `max_ttl` if that is shorter, so that they outlive this process. Renewals go on
//! until an extension covers the whole rest; then the lock is left. To the other callers of this engine a
//! left lock is like another client's: they ask the masters, and it is not handed over.

use std::time::{Duration, Instant};

use super::op::{Kept, OpState};
use super::renewal::Renewal;
use super::slab::Id;
use super::{Engine, OpId, Outcome, Released};
use crate::error::{ExtendError, LeaveError, ReleaseError};
use crate::limits;
use crate::lock::Ttl;
use crate::mutants::mutant;

/// A kept lock lives for at least this: with the largest drift allowance it is the shortest TTL.
const KEPT_TTL_MIN: Duration = Duration::from_millis(6);

/// By how much the rest of a least time is rounded up, to whole milliseconds and to [`KEPT_TTL_MIN`].
pub(super) const KEPT_ROUNDING_MAX: Duration = Duration::from_millis(8);

impl Engine {
    /// Gives up a held lock without a release, and extends it no more: nothing is sent, and its keys end by
    /// their TTL. Returns the end of its validity, until which nobody else gets the lock. There is no
    /// outcome, and the id finds nothing from now on.
    ///
    /// # Errors
    /// [`LeaveError::Expired`] if its validity has ended: release it. [`LeaveError::NotHeld`] if it is not
    /// held.
    pub fn leave(&mut self, now: Instant, lock: OpId) -> Result<Instant, LeaveError> {
        let valid_until = self.valid_until(lock).ok_or(LeaveError::NotHeld)?;
        if now >= valid_until && !mutant!(ExpiredLeft) {
            return Err(LeaveError::Expired);
        }
        self.end_extension(lock.0);
        self.note_left(now, lock.0);
        self.forget(now, lock.0);
        Ok(valid_until)
    }

    /// Releases a lock, but no earlier than `hold_at_least` after the start of the attempt that got it.
    pub(super) fn submit_release_after(
        &mut self,
        now: Instant,
        id: Id,
        hold_at_least: Duration,
        awaited: bool,
    ) {
        let until = match self.ops.find(id).map(|op| (&op.state, op.kept)) {
            Some((OpState::Held { since, valid_until, .. }, Kept::No)) if now < *valid_until => {
                since.checked_add(hold_at_least).unwrap_or(*since + limits::FOREVER)
            }
            _ => now,
        };
        match self.kept_ttl(until.saturating_duration_since(now)) {
            Some(ttl) => self.keep_until(now, id, until, ttl, awaited),
            None => self.submit_release(now, id, awaited),
        }
    }

    /// The TTL of a lock that is to live for so long; `None` for no time.
    fn kept_ttl(&self, rest: Duration) -> Option<Ttl> {
        let (whole, max_ttl) = (rest + Duration::from_nanos(999_999), self.config.max_ttl);
        let ttl = || self.config.ttl(whole.max(KEPT_TTL_MIN).min(max_ttl)).ok();
        if rest.is_zero() { None } else { ttl() }
    }

    fn keep_until(&mut self, now: Instant, id: Id, until: Instant, ttl: Ttl, awaited: bool) {
        self.end_extension(id);
        self.note_left(now, id);
        let op = self.ops.op_mut(id);
        op.kept = if awaited { Kept::Awaited } else { Kept::Yes };
        op.notifies_loss = false;
        // The last of several renewals is cut to whole milliseconds.
        let is_covered = now + ttl.as_duration() >= until;
        let rounding = if is_covered { Duration::ZERO } else { Duration::from_millis(1) };
        op.renewal = Some(Renewal::new(ttl, until + rounding));
        if mutant!(KeptByOldTtl) {
            op.renewal = None;
        } else {
            self.extend_as_renewal(now, id, ttl);
        }
        if self.is_drained {
            self.end_keeping(now, id);
        }
        self.leave_kept(now, id);
        self.arm_op(id);
        // The validity may end sooner now than the next waiter in the queue expects.
        self.tend_queue_of(now, id);
    }

    /// The engine is drained: a kept lock ends by the TTL that it has, or is being given.
    pub(super) fn end_keeping(&mut self, now: Instant, id: Id) {
        if let Some(op) = self.ops.find_mut(id).filter(|op| op.kept != Kept::No) {
            op.renewal = None;
            self.leave_kept(now, id);
        }
    }

    /// Answers the caller that released a lock which is kept, by the first extension.
    pub(super) fn answer_kept(&mut self, id: Id, result: &Result<Instant, ExtendError>) {
        let op = self.ops.op_mut(id);
        if op.kept != Kept::Awaited {
            return;
        }
        op.kept = Kept::Yes;
        let answer = match result {
            Ok(_) => Ok(Released { deleted: 0, absent: 0, unanswered: 0, is_kept: true }),
            Err(ExtendError::Lost(report) | ExtendError::NoQuorum(report)) => {
                Err(ReleaseError::NotKept(report.clone()))
            }
            // It is over, or its longest hold is reached: it ends by its TTL.
            Err(_) => Ok(Released { deleted: 0, absent: 0, unanswered: 0, is_kept: false }),
        };
        self.outcomes.push_back((OpId(id), Outcome::Release(answer)));
    }

    /// Leaves a kept lock for which nothing more is to be sent.
    pub(super) fn leave_kept(&mut self, now: Instant, id: Id) {
        let Some(op) = self.ops.find(id) else { return };
        let OpState::Held { valid_until, extension: None, .. } = op.state else { return };
        let is_covered = op.renewal.and_then(|renewal| renewal.renew_at()).is_none();
        if op.kept != Kept::No && (is_covered || now >= valid_until) {
            self.answer_kept(id, &Err(ExtendError::Expired));
            self.forget(now, id);
        }
    }

    /// An extension under way has no caller any more.
    fn end_extension(&mut self, id: Id) {
        let OpState::Held { extension, .. } = &mut self.ops.op_mut(id).state else {
            unreachable!("only a held lock is left")
        };
        if extension.take().is_some_and(|extension| !extension.is_renewal) {
            self.outcomes.push_back((OpId(id), Outcome::Extend(Err(ExtendError::NotHeld))));
        }
    }

    /// Forgets a lock that ends by its TTL. The ticket of a fair one ends with its heartbeat.
    fn forget(&mut self, now: Instant, id: Id) {
        self.leave_queue(now, id, Duration::ZERO);
        let op = self.ops.op_mut(id);
        drop(op.policy.take_queuing());
        let claim_id = op.claim;
        op.clear_state();
        self.ops.free(id);
        let claim = self.claims.claim_mut(claim_id);
        if mutant!(LeftReleased) {
            claim.owner = None;
            let due = now + claim.answer_limit;
            self.release_claim(now, due, claim_id);
            return;
        }
        self.claims.free(claim_id);
    }
}
