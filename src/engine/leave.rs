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
use super::ground::Ground;
use super::leaving::Leaving;
use super::locks::Locks;
use super::masters::Masters;
use super::op::{Op, OpState};
use super::slab::Id;
use super::{Left, Outcome, counting, release, reports, turns};
use crate::error::{ExtendError, LeaveError};
use crate::lock::command::answer::ReleaseAnswer;
use crate::lock::{MasterId, MasterSet, Vote};
use crate::mutants::mutant;

/// Gives up a held lock without a release.
pub(super) fn leave(
    ground: &mut Ground,
    masters: &mut Masters,
    locks: &mut Locks,
    id: Id,
) -> Result<Instant, LeaveError> {
    let (since, valid_until) = check_valid(locks, ground.now, id)?;
    counting::note_left(ground, locks, id, ground.now.saturating_duration_since(since), false);
    drop(give_up(ground, locks, id));
    let claim_id = locks.ops.get(id).claim;
    locks.ops.free(id);
    if mutant!(LeftReleased) {
        let claim = locks.claims.get_mut(claim_id);
        claim.owner = None;
        let due = ground.now + claim.answer_limit;
        release::release_claim(ground, masters, locks, due, claim_id);
    } else {
        locks.claims.free(claim_id);
    }
    Ok(valid_until)
}

pub(super) fn submit_leave_for(
    ground: &mut Ground,
    masters: &mut Masters,
    locks: &mut Locks,
    id: Id,
    rest: Duration,
) {
    if let Err(error) = leave_for(ground, masters, locks, id, rest) {
        ground.report_outcome(id, Outcome::Leave(Err(error)));
    }
}

/// After an error the lock is as it was.
fn leave_for(
    ground: &mut Ground,
    masters: &mut Masters,
    locks: &mut Locks,
    id: Id,
    rest: Duration,
) -> Result<(), LeaveError> {
    let held = check_valid(locks, ground.now, id)?;
    let leaving = Leaving::new(ground.now, rest, held, &ground.config)?;
    // With a rest, masters' answers show whether it was left or lost.
    if rest.is_zero() {
        counting::note_ended(ground, locks, id);
    }
    let queuing = give_up(ground, locks, id);
    let op = locks.ops.get_mut(id);
    op.state = OpState::Releasing;
    let claim_id = op.claim;
    let left_queue = queuing.map(|queuing| fair::Leaving { queuing, key: op.key.clone(), was_held: true });
    // The queue of a fair lock says which waiter is to be notified.
    locks.claims.get_mut(claim_id).notifies &= left_queue.is_none();
    if !release::leave_claim(ground, masters, locks, claim_id, leaving) {
        release::settle_release(ground, masters, locks, claim_id, id);
    }
    if let Some(left_queue) = left_queue {
        fair::leave(&mut masters.fleet, &left_queue);
    }
    Ok(())
}

/// The answer to the rest of the time. The last master's may be the one that is waited for.
pub(super) fn handle_rest_answer(
    ground: &mut Ground,
    masters: &mut Masters,
    locks: &mut Locks,
    master: MasterId,
    id: Id,
    vote: Vote,
) {
    let Some(claim) = locks.claims.find_mut(id) else { return };
    let answer = match vote {
        Vote::Granted => {
            claim.note_rest_answer(ground.now, master);
            ReleaseAnswer::Deleted
        }
        Vote::Refused { .. } => ReleaseAnswer::Absent,
        Vote::Failed(failure) => ReleaseAnswer::Failed(failure),
        Vote::Pending => unreachable!("it is the vote of a reply"),
    };
    release::take_release_answer(ground, masters, locks, master, id, answer);
    follow_rest(ground, masters, locks, master, id);
}

/// A master owes no answer to a rest any more. If the time is over, the release follows at once.
pub(super) fn follow_rest(
    ground: &mut Ground,
    masters: &mut Masters,
    locks: &mut Locks,
    master: MasterId,
    id: Id,
) {
    let Some(claim) = locks.claims.find(id) else { return };
    let is_over = claim.leaving().is_some_and(|leaving| leaving.until <= ground.now);
    if is_over && claim.release.is_some_and(|release| release.owed.contains(master)) {
        release::send_end(ground, masters, locks, id, MasterSet::only(master));
    }
}

/// A lock that was left for a time has its outcome; counts it.
#[cold]
#[inline(never)]
pub(super) fn settle_left(
    ground: &mut Ground,
    masters: &mut Masters,
    locks: &mut Locks,
    claim_id: Id,
    id: Id,
) {
    let result = left(ground, masters, locks, ground.now, claim_id);
    let claim = locks.claims.get(claim_id);
    let (Some(leaving), Some(release)) = (claim.leaving(), &claim.release) else {
        unreachable!("the lock is left for a time")
    };
    // With a rest of zero it was released.
    if leaving.rest.is_some() {
        let held = release.started.saturating_duration_since(leaving.since);
        counting::note_left(ground, locks, id, held, matches!(result, Err(LeaveError::Lost(_))));
    }
    ground.report_outcome(id, Outcome::Leave(result));
}

/// How a lock was left for a time.
fn left(
    ground: &Ground,
    masters: &Masters,
    locks: &Locks,
    now: Instant,
    claim_id: Id,
) -> Result<Left, LeaveError> {
    let claim = locks.claims.get(claim_id);
    let (Some(leaving), Some(release)) = (claim.leaving(), claim.release) else {
        unreachable!("the lock is left for a time")
    };
    let latest_end = claim.latest_end(now, ground.config.drift);
    // A quorum that was seen to have the key while the lock was valid has had it all the time.
    if claim.confirmed_rest().has(masters.fleet.quorum) && now < leaving.valid_until {
        let held_until = leaving.held_until(release.started);
        return Ok(Left { held_until, latest_end, unanswered: release.counts().2 });
    }
    let report = reports::release_report(&masters.fleet, ground.now, claim, &release);
    Err(if release.deleted.union(release.owed).has(masters.fleet.quorum) {
        LeaveError::Unconfirmed { report: report.into(), latest_end }
    } else {
        LeaveError::Lost(report)
    })
}

/// The time at which a lock was acquired, and the end of its validity, which is to come.
fn check_valid(locks: &Locks, now: Instant, id: Id) -> Result<(Instant, Instant), LeaveError> {
    let held = locks.ops.find(id).and_then(Op::held).ok_or(LeaveError::NotHeld)?;
    if now >= held.valid_until && !mutant!(ExpiredLeft) {
        return Err(LeaveError::Expired);
    }
    Ok((held.since, held.valid_until))
}

/// A lock has no holder any more. An extension under way has no caller. Returns the place of a fair lock
/// in its queues, which ends with its heartbeat if nobody ends it.
fn give_up(ground: &mut Ground, locks: &mut Locks, id: Id) -> Option<Box<Queuing>> {
    let held = locks.ops.get_mut(id).held_mut().expect("only a held lock is left");
    if held.extension.take().is_some_and(|extension| !extension.is_renewal) {
        ground.report_outcome(id, Outcome::Extend(Err(ExtendError::NotHeld)));
    }
    turns::leave_queue(ground, locks, id, Duration::ZERO);
    locks.ops.get_mut(id).policy.take_queuing()
}
