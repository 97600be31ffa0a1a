//! A lock that is released passes to the next in the queue within this engine, in one round trip: each master
//! compares the value and puts the next one's token in its place, with a TTL of its own.
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
//! B's attempt is an attempt like any other but for how a master grants it. A grant means that at one moment
//! the master had no other key than B's there, with its full TTL, set after B's start stamp: a swap replaces
//! nothing but TA, and A's owner has given the lock up before the first swap is queued. So a quorum of grants
//! is one of masters that no other valid lock can count, whether TA was still valid or not; deadline,
//! quarantine and quorum of all masters apply as ever.
//!
//! A key set by a swap is released like one set by `SET`. A's claim owes its release wherever it may hold the
//! key; the answer to the swap is that release's answer: done is `Deleted`, not done is `Absent`. A swap that
//! fails or is not answered leaves TA owed, to be released behind it or over the next connection; and TB too,
//! if B does not get the lock. A swap that may come late over a connection that is gone makes the absence of
//! TB no proof, so B's release is repeated until the key is met or has expired. It cannot bring TB back once
//! TA is gone.
//!
//! A hand-over that gives B no quorum is a failed attempt of B as any other (`acquire.rs`, `fail`).
//!
//! `attempt.rs` sends the swap, and `answers.rs` takes the answer to it.
//!
//! # Others get their turn
//!
//! Other clients see a lock that is never free. So after [`limits::HANDOVER_COUNT_MAX`] turns in a row, or
//! [`limits::HANDOVER_TIME_MAX`], it is really released. The next in the queue parks behind the waiters of
//! other clients. Where masters cannot park it makes its attempt after a pause: without one its `SET` would
//! be right behind the release on the same connections, and no other client would ever be faster. A bounded
//! number of hand-overs within a group is the method of Dice, Marathe and Shavit, "Lock Cohorting" (2012).

use std::time::{Duration, Instant};

use super::{accounting, turns};
use crate::engine::core::{Core, Step};
use crate::engine::ground::Ground;
use crate::engine::locks::Locks;
use crate::engine::locks::attempt::{self, By};
use crate::engine::locks::counting;
use crate::engine::locks::op::{HandoverStreak, Held, OpState};
use crate::engine::locks::slab::Id;
use crate::engine::masters::fleet::Fleet;
use crate::limits;
use crate::lock::Vote;
use crate::lock::command::answer::ReleaseAnswer;

/// A lock is given up for which others of this engine wait: hands it over to the next one. If that cannot be,
/// it leaves the queue and is released.
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
    // The successor leads the queue then.
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

/// The next in the queue, if the lock can and may be handed over to it.
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
    // A swap leaves the fence as it is: those who want a token ask all masters.
    if !op.mode.may_be_handed_over() || !next.mode.may_be_handed_over() {
        return None;
    }
    let waits = matches!(next.state(), OpState::Queued { .. } | OpState::Waiting { .. });
    let streak = HandoverStreak { count: streak.count + 1, ..streak };
    (waits && next.asked.wait_until > Some(now)).then_some((successor, streak))
}

/// How long a turn of the streak that ends with this one was on average, as far as that bears on a pause.
fn turn_time(ground: &Ground, locks: &Locks, id: Id) -> Duration {
    let op = locks.ops.get(id);
    let Some(held) = op.held() else { return Duration::ZERO };
    let streak = op.streak(held.since);
    ((ground.now - streak.since) / (streak.count + 1)).min(ground.config.retry_delay_max)
}

/// The answer to the release of a claim that is handed over, by the answer to a swap, which is a vote.
pub(crate) fn as_release_answer(vote: &Vote) -> ReleaseAnswer {
    match vote {
        Vote::Granted => ReleaseAnswer::Deleted,
        Vote::Refused { .. } => ReleaseAnswer::Absent,
        Vote::Failed(failure) => ReleaseAnswer::Failed(failure.clone()),
        Vote::Pending => unreachable!("it is the vote of a reply"),
    }
}

/// The claim at this place, if it is the one that was handed over to `successor`: it may be gone by now, and
/// another in its place.
pub(crate) fn released_for(locks: &Locks, successor: Id, from: u32) -> Option<Id> {
    let from = locks.claims.occupant(from)?;
    locks.claims.find(from).filter(|claim| claim.has_successor(successor)).map(|_| from)
}
