//! Locks that are given up and not released: left to the end of their TTL, or for a time.
//!
//! A lock that is left to its TTL sends nothing any more: its claim and its operation are forgotten at
//! once, and late answers find nothing. Its key ends by its TTL. A grant that comes late on a minority is
//! part of it.
//!
//! A lock that is left for a time ends as a released one does, with another command: each master is sent the
//! rest of the time as the key's TTL, over a new connection again, until it has answered. A master that has
//! not answered when the time is over is sent a release. An answer counts if it comes within the answer limit
//! of its sending: later, the master may have counted the rest from later, too, so it is sent what is left.
//!
//! To the other callers of this engine a left lock is like another client's: they ask the masters, and it is
//! not handed over.

use std::time::{Duration, Instant};

use super::fair::{self, Queuing};
use super::leaving::Leaving;
use super::op::{Op, OpState};
use super::slab::Id;
use super::{Engine, Left, OpId, Outcome};
use crate::error::{ExtendError, LeaveError};
use crate::lock::command::answer::ReleaseAnswer;
use crate::lock::{MasterId, MasterSet, Vote};
use crate::mutants::mutant;

impl Engine {
    /// Gives up a held lock without a release, and extends it no more: nothing is sent, and its keys end by
    /// their TTL. Returns the end of its validity, until which nobody else gets the lock. There is no
    /// outcome, and the id finds nothing from now on.
    ///
    /// # Errors
    /// [`LeaveError::Expired`] if its validity has ended: release it. [`LeaveError::NotHeld`] if it is not
    /// held.
    pub fn leave(&mut self, now: Instant, lock: OpId) -> Result<Instant, LeaveError> {
        let (since, valid_until) = self.check_valid(now, lock.0)?;
        self.note_left(lock.0, now.saturating_duration_since(since), false);
        drop(self.give_up(now, lock.0));
        let op = self.ops.get_mut(lock.0);
        let claim_id = op.claim;
        self.ops.free(lock.0);
        if mutant!(LeftReleased) {
            let claim = self.claims.get_mut(claim_id);
            claim.owner = None;
            let due = now + claim.answer_limit;
            self.release_claim(now, due, claim_id);
        } else {
            self.claims.free(claim_id);
        }
        Ok(valid_until)
    }

    pub(super) fn submit_leave_for(&mut self, now: Instant, id: Id, rest: Duration) {
        if let Err(error) = self.leave_for(now, id, rest) {
            self.outcomes.push_back((OpId(id), Outcome::Leave(Err(error))));
        }
    }

    /// After an error the lock is as it was.
    fn leave_for(&mut self, now: Instant, id: Id, rest: Duration) -> Result<(), LeaveError> {
        let held = self.check_valid(now, id)?;
        let leaving = Leaving::new(now, rest, held, &self.config)?;
        // With a rest, masters' answers show whether it was left or lost.
        if rest.is_zero() {
            self.note_ended(now, id);
        }
        let queuing = self.give_up(now, id);
        let op = self.ops.get_mut(id);
        op.state = OpState::Releasing;
        let claim_id = op.claim;
        let left_queue =
            queuing.map(|queuing| fair::Leaving { queuing, key: op.key.clone(), was_held: true });
        // The queue of a fair lock says which waiter is to be notified.
        self.claims.get_mut(claim_id).notifies &= left_queue.is_none();
        if !self.leave_claim(now, claim_id, leaving) {
            self.settle_release(now, claim_id, id);
        }
        if let Some(left_queue) = left_queue {
            fair::leave(&mut self.fleet, &left_queue);
        }
        Ok(())
    }

    /// The answer to the rest of the time. The last master's may be the one that is waited for.
    pub(super) fn handle_rest_answer(&mut self, now: Instant, master: MasterId, id: Id, vote: Vote) {
        let Some(claim) = self.claims.find_mut(id) else { return };
        let answer = match vote {
            Vote::Granted => {
                claim.note_rest_answer(now, master);
                ReleaseAnswer::Deleted
            }
            Vote::Refused { .. } => ReleaseAnswer::Absent,
            Vote::Failed(failure) => ReleaseAnswer::Failed(failure),
            Vote::Pending => unreachable!("it is the vote of a reply"),
        };
        self.take_release_answer(now, master, id, answer);
        self.follow_rest(now, master, id);
    }

    /// A master owes no answer to a rest any more. If the time is over, the release follows at once.
    pub(super) fn follow_rest(&mut self, now: Instant, master: MasterId, id: Id) {
        let Some(claim) = self.claims.find(id) else { return };
        let is_over = claim.leaving().is_some_and(|leaving| leaving.until <= now);
        if is_over && claim.release.is_some_and(|release| release.owed.contains(master)) {
            self.send_end(now, id, MasterSet::only(master));
        }
    }

    /// A lock that was left for a time has its outcome; counts it.
    #[cold]
    #[inline(never)]
    pub(super) fn settle_left(&mut self, now: Instant, claim_id: Id, id: Id) {
        let result = self.left(now, claim_id);
        let claim = self.claims.get(claim_id);
        let (Some(leaving), Some(release)) = (claim.leaving(), &claim.release) else {
            unreachable!("the lock is left for a time")
        };
        // With a rest of zero it was released.
        if leaving.rest.is_some() {
            let held = release.started.saturating_duration_since(leaving.since);
            self.note_left(id, held, matches!(result, Err(LeaveError::Lost(_))));
        }
        self.outcomes.push_back((OpId(id), Outcome::Leave(result)));
    }

    /// How a lock was left for a time.
    fn left(&self, now: Instant, claim_id: Id) -> Result<Left, LeaveError> {
        let claim = self.claims.get(claim_id);
        let (Some(leaving), Some(release)) = (claim.leaving(), claim.release) else {
            unreachable!("the lock is left for a time")
        };
        let latest_end = claim.latest_end(now, self.config.drift);
        // A quorum that was seen to have the key while the lock was valid has had it all the time.
        if claim.confirmed_rest().has(self.fleet.quorum) && now < leaving.valid_until {
            let held_until = leaving.held_until(release.started);
            return Ok(Left { held_until, latest_end, unanswered: release.counts().2 });
        }
        let report = self.release_report(now, claim, &release);
        Err(if release.deleted.union(release.owed).has(self.fleet.quorum) {
            LeaveError::Unconfirmed { report: report.into(), latest_end }
        } else {
            LeaveError::Lost(report)
        })
    }

    /// The time at which a lock was acquired, and the end of its validity, which is to come.
    fn check_valid(&self, now: Instant, id: Id) -> Result<(Instant, Instant), LeaveError> {
        let held = self.ops.find(id).and_then(Op::held).ok_or(LeaveError::NotHeld)?;
        if now >= held.valid_until && !mutant!(ExpiredLeft) {
            return Err(LeaveError::Expired);
        }
        Ok((held.since, held.valid_until))
    }

    /// A lock has no holder any more. An extension under way has no caller. Returns the place of a fair lock
    /// in its queues, which ends with its heartbeat if nobody ends it.
    fn give_up(&mut self, now: Instant, id: Id) -> Option<Box<Queuing>> {
        let held = self.ops.get_mut(id).held_mut().expect("only a held lock is left");
        if held.extension.take().is_some_and(|extension| !extension.is_renewal) {
            self.outcomes.push_back((OpId(id), Outcome::Extend(Err(ExtendError::NotHeld))));
        }
        self.leave_queue(now, id, Duration::ZERO);
        self.ops.get_mut(id).policy.take_queuing()
    }
}
