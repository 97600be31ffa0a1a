//! A released lock passes to the next waiter in this engine's queue, in one round trip: each master compares
//! the value, and replaces it with the next holder's token and a new TTL.
//!
//! ```text
//!   A: claim with token TA ── release ──┐ swap TA → TB where A may have the key ─► B's vote, A's answer
//!                                       │ SET TB NX     where A does not hold it ──► vote for B
//!                                       └ release TA    where a master is not usable ► answer to A's release
//!   B: claim with token TB, Acquiring; its validity counts from before all this
//! ```
//!
//! # Why this is safe
//!
//! B's attempt differs from other attempts only in how a master grants it. A grant means that at one moment
//! the master had B's key and no other, with its full TTL, set after B's start stamp. A swap replaces only
//! TA, and A's owner has given the lock up before the first swap is queued. So no other valid lock can count
//! a master of B's quorum, whether TA was still valid or not. Deadline, quarantine and the quorum of all
//! masters apply as usual.
//!
//! A key set by a swap is released like a key set by `SET`. A's claim owes its release wherever it may hold
//! the key, and the answer to the swap counts as the answer to that release: `Deleted` if the swap was done,
//! `Absent` if not. After a failed or unanswered swap, TA stays owed: it is released after the swap, or over
//! the next connection. TB is released too if B does not get the lock. A swap may still arrive late over a
//! broken connection, so the absence of TB is no proof: B's release is repeated until it meets the key or the
//! key has expired. A late swap cannot bring TB back once TA is gone.
//!
//! A hand-over without a quorum for B is a failed attempt of B (`next.rs`).
//!
//! `attempt.rs` sends the swap, and `answers.rs` takes the answer to it.
//!
//! # Others get their turn
//!
//! Other clients see a lock that is never free. So after [`limits::HANDOVER_COUNT_MAX`] consecutive
//! hand-overs, or [`limits::HANDOVER_TIME_MAX`], the lock is really released. The next waiter parks behind
//! the waiters of other clients. Where masters cannot park, it pauses first: otherwise its `SET` would follow
//! the release on the same connections, and no other client would ever be faster. Bounded hand-overs within a
//! group come from Dice, Marathe and Shavit, "Lock Cohorting" (2012).

use std::time::{Duration, Instant};

use super::{accounting, turns};
use crate::engine::core::{Core, Step};
use crate::engine::ground::Ground;
use crate::engine::locks::Locks;
use crate::engine::locks::attempt;
use crate::engine::locks::counting;
use crate::engine::locks::next::By;
use crate::engine::locks::op::{HandoverStreak, Held, OpState};
use crate::engine::locks::slab::Id;
use crate::engine::masters::fleet::Fleet;
use crate::limits;
use crate::lock::Vote;
use crate::lock::command::answer::ReleaseAnswer;

/// A caller gives up a lock that other callers of this engine wait for: hands it over to the next waiter. If
/// that is impossible, the operation leaves the queue and the lock is released.
#[cold]
pub(crate) fn pass_on(core: &mut Core, id: Id, awaited: bool) -> Step {
    let Core { ground, masters, locks } = core;
    let Some((successor, streak)) = successor_of(&masters.fleet, locks, ground.now, id) else {
        let took = turn_time(ground, locks, id);
        turns::leave_queue(ground, &masters.fleet, locks, id, took);
        return Step::Release { id, awaited };
    };
    counting::note_ended(ground, locks, id);
    accounting::note_handover(locks, id, successor);
    // The successor becomes the head.
    locks.queues.leave(id.index);
    let op = locks.ops.get_mut(id);
    let claim_id = op.claim;
    if awaited {
        op.enter(OpState::Releasing);
    } else {
        locks.claims.get_mut(claim_id).is_owned = false;
        locks.ops.free(id);
    }
    ground.stats.hand_overs += 1;
    let step = attempt::begin(core, successor, By::Swap(claim_id), None);
    core.locks.ops.get_mut(successor).tries.streak = Some(streak);
    step
}

/// Returns the next waiter, if the lock can and may be handed over to it.
fn successor_of(fleet: &Fleet, locks: &Locks, now: Instant, id: Id) -> Option<(Id, HandoverStreak)> {
    let op = locks.ops.get(id);
    let &Held { since, valid_until, .. } = op.held()?;
    let streak = op.streak(since);
    let is_spent =
        streak.count >= limits::HANDOVER_COUNT_MAX || now - streak.since >= limits::HANDOVER_TIME_MAX;
    let holders = locks.claims.get(op.claim).holders();
    let can_be_asked = holders.intersection(fleet.usable).has(fleet.quorum) && !locks.claims.is_full();
    if now >= valid_until || !can_be_asked || is_spent {
        return None;
    }
    let successor = locks.ops.id_at(locks.queues.behind(id.index)?);
    let next = locks.ops.get(successor);
    // A swap does not raise the fence, so a fenced acquisition must ask all masters.
    if !op.mode.may_be_handed_over() || !next.mode.may_be_handed_over() {
        return None;
    }
    let waits = matches!(next.state(), OpState::Queued { .. } | OpState::Waiting { .. });
    let streak = HandoverStreak { count: streak.count + 1, ..streak };
    (waits && next.asked.wait_until > Some(now)).then_some((successor, streak))
}

/// Returns the average turn of the current streak, at most the longest retry delay.
fn turn_time(ground: &Ground, locks: &Locks, id: Id) -> Duration {
    let op = locks.ops.get(id);
    let Some(held) = op.held() else { return Duration::ZERO };
    let streak = op.streak(held.since);
    ((ground.now - streak.since) / (streak.count + 1)).min(ground.config.retry_delay_max)
}

/// Returns the answer to the release of a claim that is handed over, from the vote in the answer to the swap.
pub(crate) fn as_release_answer(vote: &Vote) -> ReleaseAnswer {
    match vote {
        Vote::Granted => ReleaseAnswer::Deleted,
        Vote::Refused { .. } => ReleaseAnswer::Absent,
        Vote::Failed(failure) => ReleaseAnswer::Failed(failure.clone()),
        Vote::Pending => unreachable!("it is the vote of a reply"),
    }
}

/// Returns the claim in this slot, if it was handed over to `successor`. The claim may be gone, and the slot
/// have another occupant.
pub(crate) fn released_for(locks: &Locks, successor: Id, from: u32) -> Option<Id> {
    let from = locks.claims.occupant(from)?;
    locks.claims.find(from).filter(|claim| claim.has_successor(successor)).map(|_| from)
}
