//! Locks that their holder gives up without a release: left to the end of their TTL, or for a time.
//!
//! A lock left to its TTL sends nothing more. Its claim and its operation are forgotten at once, late answers
//! find nothing, and its keys end with their TTL, including a key that a minority grants late.
//!
//! A lock left for a time gets another TTL. `release.rs` sends that rest and takes the answers.
//!
//! Other callers of this engine treat a left lock like another client's: they ask the masters, and get no
//! hand-over.

use std::time::{Duration, Instant};

use super::Locks;
use super::leaving::Leaving;
use super::op::{Op, OpState};
use super::slab::Id;
use super::{counting, release};
use crate::engine::core::Core;
use crate::engine::request::Outcome;
use crate::engine::waiting::turns;
use crate::error::{ExtendError, LeaveError};

/// Leaves a held lock to its TTL. Returns the end of its validity.
pub(crate) fn leave(core: &mut Core, id: Id) -> Result<Instant, LeaveError> {
    let Core { ground, locks, .. } = core;
    let (since, valid_until) = check_valid(locks, ground.now, id)?;
    counting::note_left(ground, locks, id, ground.now.saturating_duration_since(since), false);
    give_up(core, id);
    let Core { locks, .. } = core;
    let claim_id = locks.ops.get(id).claim;
    locks.ops.free(id);
    release::forget_replaced(locks, claim_id);
    locks.claims.free(claim_id);
    Ok(valid_until)
}

/// Leaves a held lock for a time. An error changes nothing.
pub(crate) fn leave_for(core: &mut Core, id: Id, rest: Duration) -> Result<(), LeaveError> {
    let Core { ground, locks, .. } = core;
    let held = check_valid(locks, ground.now, id)?;
    let leaving = Leaving::new(ground.now, rest, held, &ground.config)?;
    // With a rest, the masters' answers show whether the lock was left or lost.
    if rest.is_zero() {
        counting::note_ended(ground, locks, id);
    }
    give_up(core, id);
    let Core { locks, .. } = core;
    let op = locks.ops.get_mut(id);
    op.enter(OpState::Releasing);
    let claim_id = op.claim;
    if !release::leave_claim(core, claim_id, leaving) {
        release::settle(core, claim_id);
    }
    Ok(())
}

/// Returns the start and the end of a lock's validity, which must not be over.
fn check_valid(locks: &Locks, now: Instant, id: Id) -> Result<(Instant, Instant), LeaveError> {
    let held = locks.ops.find(id).and_then(Op::held).ok_or(LeaveError::NotHeld)?;
    if now >= held.valid_until {
        return Err(LeaveError::Expired);
    }
    Ok((held.since, held.valid_until))
}

/// The holder gives the lock up. The caller of an extension in progress gets an error.
fn give_up(core: &mut Core, id: Id) {
    let Core { ground, masters, locks } = core;
    let held = locks.ops.get_mut(id).held_mut().expect("only a held lock is left");
    if held.extension.take().is_some_and(|extension| !extension.is_renewal) {
        ground.report_outcome(id, Outcome::Extend(Err(ExtendError::NotHeld)));
    }
    turns::leave_queue(ground, &masters.fleet, locks, id, Duration::ZERO);
}
