//! Releases: of a lock that is held, of an acquisition that is given up, and of what a failed attempt left.
//!
//! A release goes to every master that may hold the key, behind whatever was sent before, and again until
//! each has answered or the key has expired (I9). So does the rest of the time that a lock is left for.

use std::time::Instant;

use super::claim::{Counted, Course, NO_RELEASE};
use super::fair::{self, Leaving as LeavingQueues};
use super::ground::Ground;
use super::groups::Notify;
use super::leaving::Leaving;
use super::link::Predecessor;
use super::locks::Locks;
use super::masters::Masters;
use super::mode::{send_release, send_rest};
use super::op::OpState;
use super::slab::Id;
use super::timers::claim_timer;
use super::{Outcome, Released, acquire, counting, defects, handover, leave, reports, turns, waiting};
use crate::error::{ExtendError, ReleaseError};
use crate::lock::command::answer::ReleaseAnswer;
use crate::lock::command::scripts::Script;
use crate::lock::{MasterId, MasterSet};
use crate::mutants::mutant;

/// State of an operation that a release ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ends {
    Query,
    Attempt,
    Lock,
    /// A lock that is over, or of which more is to be noted than its release.
    NotedLock,
}

pub(super) fn submit_release(
    ground: &mut Ground,
    masters: &mut Masters,
    locks: &mut Locks,
    id: Id,
    awaited: bool,
) {
    let now = ground.now;
    if defects::keeps_on(ground, locks, id) {
        return;
    }
    let Some(op) = locks.ops.find_mut(id) else {
        // Released before: the answer is that nothing was left to release.
        if awaited {
            let nothing = Released { deleted: 0, absent: 0, unanswered: 0 };
            ground.report_outcome(id, Outcome::Release(Ok(nothing)));
        }
        return;
    };
    let ends = match &mut op.state {
        OpState::Releasing => return,
        OpState::Held(held) if mutant!(ExpiredKeptForever) && now >= held.valid_until => return,
        _ if op.policy.queuing().is_some() => return release_fair(ground, masters, locks, id, awaited),
        OpState::Held(held) => {
            let under_way = held.extension.take();
            let is_noted = op.is_noted || now >= held.valid_until;
            if under_way.is_some_and(|extension| !extension.is_renewal) {
                ground.report_outcome(id, Outcome::Extend(Err(ExtendError::NotHeld)));
            }
            if is_noted { Ends::NotedLock } else { Ends::Lock }
        }
        _ if op.tries.is_subscribed || op.reservation.is_some() => {
            // It was still waiting for the lock.
            waiting::withdraw_reservation(masters, locks, id, false);
            waiting::unwatch(ground, masters, locks, id);
            return submit_release(ground, masters, locks, id, awaited);
        }
        OpState::Query => Ends::Query,
        _ => Ends::Attempt,
    };
    let claim_id = op.claim;
    let Some(claim) = locks.claims.find_mut(claim_id).filter(|claim| claim.owner == Some(id)) else {
        // In a queue, or between two attempts: the last one's claim is being released already.
        ground.stats.abandoned += u64::from(ends == Ends::Attempt);
        turns::end_op(ground, masters, locks, id);
        return submit_release(ground, masters, locks, id, awaited);
    };
    if !locks.queues.leave_alone(id.index) {
        if !handover::release_queued(ground, masters, locks, id, awaited) {
            submit_release(ground, masters, locks, id, awaited);
        }
        return;
    }
    let (op, claim) = if ends == Ends::Lock {
        ground.stats.released += 1;
        (op, claim)
    } else {
        counting::note_ended(ground, locks, id);
        (locks.ops.get_mut(id), locks.claims.get_mut(claim_id))
    };
    let due = now + claim.answer_limit;
    if awaited {
        op.state = OpState::Releasing;
    } else {
        claim.owner = None;
        locks.ops.free(id);
    }
    let is_under_way = release_claim(ground, masters, locks, due, claim_id);
    if awaited && !is_under_way {
        settle_release(ground, masters, locks, claim_id, id);
    }
}

/// The release of a fair lock is as ever, and so is the end of its acquisition; behind it the operation
/// leaves the queues.
#[cold]
#[inline(never)]
fn release_fair(ground: &mut Ground, masters: &mut Masters, locks: &mut Locks, id: Id, awaited: bool) {
    waiting::unwatch(ground, masters, locks, id);
    let op = locks.ops.get_mut(id);
    let queuing = op.policy.take_queuing().expect("the lock is fair");
    // One that does not wait leaves no ticket, but may have been in somebody's way.
    let is_in_the_way = matches!(op.state, OpState::Acquiring { .. }) && !queuing.waits();
    let was_held = is_in_the_way || op.held().is_some();
    let leaving = LeavingQueues { queuing, key: op.key.clone(), was_held };
    // Between two attempts the claim may be gone.
    if let Some(claim) = locks.claims.find_mut(op.claim) {
        // The queue says which waiter is to be notified.
        claim.notifies = false;
    }
    submit_release(ground, masters, locks, id, awaited);
    fair::leave(&mut masters.fleet, &leaving);
}

/// Starts to release a claim on every master that may hold its key, behind whatever was sent before; a
/// silent one will come to it in order. Answers are `due` at that time; before it nothing has to be done
/// for this claim. False if none will come.
// Inlined, for it is the better part of submitting a release.
#[inline(always)]
pub(super) fn release_claim(
    ground: &mut Ground,
    masters: &mut Masters,
    locks: &mut Locks,
    due: Instant,
    id: Id,
) -> bool {
    let claim = locks.claims.get_mut(id);
    if claim.release.is_some() {
        return true;
    }
    let owed = claim.holders();
    claim.failures.clear();
    if mutant!(LabelForgotten) {
        let key = claim.entry.key().to_vec();
        claim.entry.set_key(&key, &claim.token);
    }
    if !claim.publishers.is_empty() {
        let among = claim.publishers.intersection(claim.tally.granted);
        claim.publishers = masters.fleet.publisher(among, &claim.token);
    }
    let sent = send_release(&mut masters.fleet, owed, id, claim);
    claim.begin_release(ground.now, owed, sent);
    ground.timers.arm(claim_timer(id), due);
    if owed.is_empty() {
        free_if_done(locks, id);
    }
    if mutant!(ReleaseOnOtherConnection) {
        defects::release_on_other_connection(ground, masters, locks, id);
    }
    !sent.is_empty()
}

/// Gives a held lock up for a time: each master that may hold its key is sent the rest, behind whatever
/// was sent before. As [`Engine::release_claim`] otherwise.
pub(super) fn leave_claim(
    ground: &mut Ground,
    masters: &mut Masters,
    locks: &mut Locks,
    id: Id,
    leaving: Leaving,
) -> bool {
    let claim = locks.claims.get_mut(id);
    let owed = claim.holders();
    claim.failures.clear();
    claim.course = Course::Left(Box::new(leaving));
    claim.begin_release(ground.now, owed, MasterSet::EMPTY);
    ground.timers.arm(claim_timer(id), ground.now + claim.answer_limit);
    send_end(ground, masters, locks, id, owed);
    !locks.claims.get_mut(id).release_mut().sent.is_empty()
}

/// Queues the release, or the rest of the time, on those of `masters` that owe no answer to the last one.
pub(super) fn send_end(
    ground: &mut Ground,
    masters: &mut Masters,
    locks: &mut Locks,
    id: Id,
    owing: MasterSet,
) {
    let claim = locks.claims.get_mut(id);
    // Whatever became of the script, a message to all waiters is as good.
    claim.publishers = MasterSet::EMPTY;
    let under_way = claim.release_mut().sent;
    let mut to = owing.without(under_way);
    if mutant!(RestSentOnce) && claim.leaving().is_some_and(|leaving| leaving.rest_sent.is_some()) {
        to = MasterSet::EMPTY;
    }
    let is_in_time = claim.is_rest_in_time(ground.now);
    let rest = claim.next_rest(ground.now, &ground.config);
    let sent = match rest {
        Some(ttl) => send_rest(&mut masters.fleet, to, id, claim, ttl, Script::Sha),
        None if mutant!(RestWithoutEnd) && claim.leaving().is_some() => MasterSet::EMPTY,
        None => send_release(&mut masters.fleet, to, id, claim),
    };
    let mut unproven = claim.unproven();
    if rest.is_some() && !is_in_time && !mutant!(LateRestCounts) {
        // Their rest was sent too early for an answer to come in time.
        unproven = unproven.union(under_way);
    }
    let release = claim.release_mut();
    release.unproven = unproven;
    release.sent = under_way.union(sent);
}

/// Any answer to a release.
pub(super) fn handle_release_answer(
    ground: &mut Ground,
    masters: &mut Masters,
    locks: &mut Locks,
    master: MasterId,
    id: Id,
    answer: ReleaseAnswer,
) {
    // A master that has lost the key has published nothing either.
    if let ReleaseAnswer::Failed(_) | ReleaseAnswer::Absent = answer {
        publish_without(masters, locks, master, id);
    }
    take_release_answer(ground, masters, locks, master, id, answer);
}

/// Takes the answer of a master to a release or a rest, and settles the awaited release that it ends.
pub(super) fn take_release_answer(
    ground: &mut Ground,
    masters: &mut Masters,
    locks: &mut Locks,
    master: MasterId,
    id: Id,
    answer: ReleaseAnswer,
) {
    let Some(claim) = locks.claims.find_mut(id) else { return };
    let needed = claim.needed_answers(&masters.fleet);
    let release = claim.release.as_mut().expect(NO_RELEASE);
    match answer {
        ReleaseAnswer::Deleted => {
            return match (claim.count_deleted(master, needed), claim.owner) {
                (Counted::Decides, Some(op)) => settle_release(ground, masters, locks, id, op),
                (Counted::Done, _) => locks.claims.free(id),
                _ => {}
            };
        }
        ReleaseAnswer::Absent => {
            release.absent.insert(master);
            // On the connection that carried the SET, its absence is proof; elsewhere the SET may come
            // later.
            if !claim.doubts.connection_lost.contains(master) || mutant!(AbsentIsProof) {
                release.owed.remove(master);
            }
        }
        ReleaseAnswer::Failed(_) if mutant!(ReleaseErrorIsDone) => release.owed.remove(master),
        ReleaseAnswer::Failed(failure) => claim.failures.push((master, failure)),
    }
    release.sent.remove(master);
    match claim.owner {
        Some(op) if release.is_settled(needed) => settle_release(ground, masters, locks, id, op),
        _ => free_if_done(locks, id),
    }
}

/// Something may be due for a claim whose release is under way: notes masters that have not answered in
/// time, and sends again what is owed, or gives up once the key has expired everywhere.
pub(super) fn handle_claim_timeout(ground: &mut Ground, masters: &mut Masters, locks: &mut Locks, id: Id) {
    let now = ground.now;
    let claim = locks.claims.get(id);
    // Without one the deadline is of the claim before in this slot.
    let Some(release) = claim.release else { return };
    let (limit, due, owner) = (claim.answer_limit, release.started + claim.answer_limit, claim.owner);
    if now < due {
        return ground.timers.arm(claim_timer(id), due);
    }
    for master in release.sent.iter() {
        masters.fleet.note_missed(ground, master, limit);
        publish_without(masters, locks, master, id);
    }
    // Nor does the caller wait any longer.
    if let Some(op) = owner {
        settle_release(ground, masters, locks, id, op);
    }
    // The claim may have ended with its operation.
    let Some(release) = locks.claims.find(id).and_then(|claim| claim.release) else { return };
    send_end(ground, masters, locks, id, release.owed);
    let (claim, drift) = (locks.claims.get(id), ground.config.drift);
    if now >= claim.gone_at(drift) && claim.owner.is_none() {
        forget_claim(ground, locks, id);
    } else if let Some(at) = claim.release_deadline(now, drift) {
        ground.timers.arm(claim_timer(id), at);
    }
}

/// Ends an awaited release if nothing more is to be waited for.
pub(super) fn check_release(
    ground: &mut Ground,
    masters: &mut Masters,
    locks: &mut Locks,
    claim_id: Id,
    id: Id,
) {
    let claim = locks.claims.get(claim_id);
    if claim.release.is_some_and(|release| release.is_settled(claim.needed_answers(&masters.fleet))) {
        settle_release(ground, masters, locks, claim_id, id);
    }
}

/// Ends an awaited release, or a lock that is left for a time, with what has been heard; what is owed
/// goes on without the caller.
pub(super) fn settle_release(
    ground: &mut Ground,
    masters: &mut Masters,
    locks: &mut Locks,
    claim_id: Id,
    id: Id,
) {
    let claim = locks.claims.get_mut(claim_id);
    claim.owner = None;
    let is_left = claim.leaving().is_some();
    let release = claim.release_mut();
    let ((deleted, absent, unanswered), is_over) = (release.counts(), release.owed.is_empty());
    if is_left {
        leave::settle_left(ground, masters, locks, claim_id, id);
    } else if unanswered <= masters.fleet.spare() {
        // Each branch queues its own outcome: built here and moved, one took 28 instructions more.
        let released = Released { deleted, absent, unanswered };
        ground.report_outcome(id, Outcome::Release(Ok(released)));
    } else {
        settle_unconfirmed(ground, masters, locks, claim_id, id);
    }
    locks.ops.free(id);
    if is_over {
        locks.claims.free(claim_id);
    }
}

#[cold]
#[inline(never)]
fn settle_unconfirmed(ground: &mut Ground, masters: &Masters, locks: &mut Locks, claim_id: Id, id: Id) {
    let release = *locks.claims.get_mut(claim_id).release_mut();
    let report = reports::release_report(&masters.fleet, ground.now, locks.claims.get(claim_id), &release);
    ground.report_outcome(id, Outcome::Release(Err(ReleaseError::Unconfirmed(report))));
}

/// A connection broke: what it owed to this claim will not come.
pub(super) fn stray_claim(
    ground: &mut Ground,
    masters: &mut Masters,
    locks: &mut Locks,
    master: MasterId,
    id: Id,
) {
    publish_without(masters, locks, master, id);
    let is_successor = |other| locks.claims.find(other).is_some_and(|claim| claim.has_successor(id));
    let is_forgotten = mutant!(LateSwapForgotten) && locks.claims.ids().any(is_successor);
    let Some(claim) = locks.claims.find_mut(id).filter(|claim| claim.asked.contains(master)) else {
        return;
    };
    claim.note_stray(master, is_forgotten);
    if let Some(op) = claim.owner {
        acquire::handle_lost_connection(ground, masters, locks, master, op);
    }
}

/// A master has not carried out a release, for all that is known. If it was to publish that alone, the
/// others publish it, to all waiters.
fn publish_without(masters: &mut Masters, locks: &mut Locks, master: MasterId, id: Id) {
    let Some(claim) = locks.claims.find_mut(id) else { return };
    let is_awaited = claim.release.is_some_and(|release| release.sent.contains(master));
    if is_awaited && claim.notify() == (Notify::Group { publisher: master }) && !mutant!(PublisherTrusted) {
        claim.publishers = MasterSet::EMPTY;
        let others = masters.fleet.usable.without(MasterSet::only(master));
        masters.fleet.send_notification(others, &claim.entry);
    }
}

/// A link is ready: sends what claims still owe there, before anything else.
pub(super) fn release_orphans(
    ground: &mut Ground,
    masters: &mut Masters,
    locks: &mut Locks,
    master: MasterId,
) {
    for id in locks.claims.ids() {
        let claim = locks.claims.get(id);
        let is_owed = claim.release.is_some_and(|release| release.owed.contains(master));
        if is_owed && !(mutant!(AwaitedSentOnce) && claim.owner.is_some()) {
            send_end(ground, masters, locks, id, MasterSet::only(master));
        }
    }
}

/// The table is full: leaves the keys of claims that nobody owns to their TTL, so that a master which
/// does not let go of locks cannot keep the others from granting new ones.
pub(super) fn forget_orphans(ground: &mut Ground, locks: &mut Locks) {
    for id in locks.claims.ids() {
        if locks.claims.get(id).owner.is_none() {
            forget_claim(ground, locks, id);
        }
    }
}

/// A claim ends before each master has confirmed the release.
fn forget_claim(ground: &mut Ground, locks: &mut Locks, id: Id) {
    ground.stats.orphans += 1;
    locks.claims.free(id);
}

/// Another process than before answered for a master.
pub(super) fn void_grants(locks: &mut Locks, master: MasterId, before: Predecessor) {
    if mutant!(RestartedGrantsKept) {
        return;
    }
    let has_ended = before == Predecessor::Ended || mutant!(SuccessorIsProof);
    for id in locks.claims.ids() {
        locks.claims.get_mut(id).note_restart(master, has_ended);
    }
}

fn free_if_done(locks: &mut Locks, id: Id) {
    if locks.claims.get(id).is_done() {
        locks.claims.free(id);
    }
}
